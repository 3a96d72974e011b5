//! OffsetForLeaderEpoch: where an epoch ended, so that a consumer sees that its log was cut.

use super::messages::{self, ByTopic};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, code};
use camus_engine::shard::api::{Answer, Ask};
use camus_engine::types::LeaderEpoch;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use kafka_protocol::protocol::StrBytes;

struct Partition {
    number: i32,
    believed_epoch: i32,
    epoch: i32,
}

fn read(request: &Request) -> Result<ByTopic<Partition>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 4);
    if request.version >= 3 {
        let _replica = r.i32()?;
    }
    let topics = messages::by_topic(&mut r, 12, |r| {
        Ok(Partition { number: r.i32()?, believed_epoch: r.i32()?, epoch: r.i32()? })
    })?;
    r.tags()?;
    Ok(topics)
}

/// OffsetForLeaderEpoch 2-4, flexible from 4.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let topics = match read(request) {
        Ok(topics) => topics,
        Err(fault) => return fault.into(),
    };
    let mut asks = Vec::new();
    let ask = |topic: &StrBytes, partition: Partition| match messages::locate(ctx, topic, partition.number) {
        None => (partition.number, false),
        Some(from) => {
            let current = messages::believed(partition.believed_epoch);
            asks.push(Ask::EpochEnd { from, epoch: LeaderEpoch(partition.epoch), current });
            (partition.number, true)
        }
    };
    let slots = messages::for_each_partition(topics, ask);
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

fn reply(version: i16, slots: ByTopic<(i32, bool)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let partition = |_: &StrBytes, (number, asked): (i32, bool)| {
        let end = match asked.then(|| answers.next()) {
            None => Err(Code::UnknownTopicOrPartition.wire()),
            Some(Some(Answer::EpochEnd(Ok(end)))) => Ok(end),
            Some(Some(Answer::EpochEnd(Err(refusal)))) => Err(code(&refusal).wire()),
            Some(other) => unreachable!("an EpochEnd is answered with EpochEnd, not with {other:?}"),
        };
        let answer = EpochEndOffset::default().with_partition(number);
        match end {
            Ok(end) => answer.with_leader_epoch(end.epoch.0).with_end_offset(end.end.0),
            Err(code) => answer.with_error_code(code).with_leader_epoch(-1).with_end_offset(-1),
        }
    };
    let topics = messages::for_each_partition(slots, partition).into_iter().map(|(name, partitions)| {
        OffsetForLeaderTopicResult::default().with_topic(TopicName(name)).with_partitions(partitions)
    });
    respond(&OffsetForLeaderEpochResponse::default().with_topics(topics.collect()), version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::{EpochEnd, Refusal};
    use camus_engine::types::{CoreId, Offset, PartitionId};
    use kafka_protocol::messages::offset_for_leader_epoch_request::{
        OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
    };

    fn question(asked: &[(i32, i32, i32)]) -> OffsetForLeaderEpochRequest {
        let one = |(number, current, epoch): &(i32, i32, i32)| {
            let partition = OffsetForLeaderPartition::default().with_partition(*number);
            partition.with_current_leader_epoch(*current).with_leader_epoch(*epoch)
        };
        let topic = OffsetForLeaderTopic::default().with_topic(TopicName(StrBytes::from_static_str("t")));
        let topic = topic.with_partitions(asked.iter().map(one).collect());
        OffsetForLeaderEpochRequest::default().with_topics(vec![topic])
    }

    /// A consumer would see a cut log where there is none, and read again from the start.
    #[test]
    fn every_version_answers_with_the_end_of_the_epoch() {
        for version in 2..=4 {
            let mut world = World::new();
            world.answer = Box::new(|ask| match ask {
                Ask::EpochEnd { from, epoch: LeaderEpoch(3), current: None } if from.core == CoreId(0) => {
                    Answer::EpochEnd(Ok(EpochEnd { epoch: LeaderEpoch(2), end: Offset(40) }))
                }
                Ask::EpochEnd { from, epoch: LeaderEpoch(4), current: Some(LeaderEpoch(9)) } => {
                    assert_eq!(from.partition, PartitionId(101));
                    Answer::EpochEnd(Err(Refusal::UnknownEpoch))
                }
                other => panic!("{other:?}"),
            });
            let question = question(&[(0, -1, 3), (7, -1, 3), (1, 9, 4)]).with_replica_id(if version >= 3 {
                (-1).into()
            } else {
                (-2).into()
            });
            let answer: OffsetForLeaderEpochResponse = world.call(handle, version, &question);
            assert_eq!(answer.topics[0].topic.as_str(), "t");
            let told =
                answer.topics[0].partitions.iter().map(|p| (p.partition, p.error_code, p.leader_epoch, p.end_offset));
            assert_eq!(told.collect::<Vec<_>>(), [(0, 0, 2, 40), (7, 3, -1, -1), (1, 75, -1, -1)]);
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 2..=4, |version| encoded(&question(&[(0, -1, 3), (1, 9, 4)]), version));
    }
}
