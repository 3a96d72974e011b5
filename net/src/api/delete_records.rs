//! DeleteRecords: moves the start of a partition's log.

use super::messages::{self, ByTopic};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, code};
use camus_engine::shard::api::{Answer, Ask};
use camus_engine::types::Offset;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsResponse, DeleteRecordsTopicResult,
};
use kafka_protocol::protocol::StrBytes;

/// (partition number, offset) of each topic.
fn read(request: &Request) -> Result<ByTopic<(i32, i64)>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let topics = messages::by_topic(&mut r, 12, |r| Ok((r.i32()?, r.i64()?)))?;
    let _timeout_ms = r.i32()?;
    r.tags()?;
    Ok(topics)
}

/// DeleteRecords 0-2, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let topics = match read(request) {
        Ok(topics) => topics,
        Err(fault) => return fault.into(),
    };
    let mut asks = Vec::new();
    let mut ask = |topic: &StrBytes, number: i32, offset: i64| -> Result<(), Code> {
        let to = messages::locate(ctx, topic, number).ok_or(Code::UnknownTopicOrPartition)?;
        if !deletes(ctx, topic) {
            return Err(Code::PolicyViolation);
        }
        let offset = match offset {
            -1 => None,
            0.. => Some(Offset(offset)),
            _ => return Err(Code::OffsetOutOfRange),
        };
        asks.push(Ask::Trim { to, offset });
        Ok(())
    };
    let slots = messages::for_each_partition(topics, |topic, (number, offset)| (number, ask(topic, number, offset)));
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

/// Whether the topic's policy lets records be deleted: one that is only compacted keeps the last of each key.
fn deletes(ctx: &Ctx<'_>, topic: &str) -> bool {
    let policy = ctx.image.topic(topic).and_then(|topic| topic.configs.get("cleanup.policy"));
    policy.is_none_or(|policy| policy.is_empty() || policy.split(',').any(|one| one.trim() == "delete"))
}

fn reply(version: i16, slots: ByTopic<(i32, Result<(), Code>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let partition = |_: &StrBytes, (number, asked): (i32, Result<(), Code>)| {
        let trimmed = asked.map_err(|error| error.wire()).and_then(|()| match answers.next() {
            Some(Answer::Trimmed(trimmed)) => trimmed.map_err(|refusal| code(&refusal).wire()),
            other => unreachable!("a Trim is answered with Trimmed, not with {other:?}"),
        });
        let answer = DeleteRecordsPartitionResult::default().with_partition_index(number);
        match trimmed {
            Ok(low_watermark) => answer.with_low_watermark(low_watermark.0),
            Err(code) => answer.with_error_code(code).with_low_watermark(-1),
        }
    };
    let topics = messages::for_each_partition(slots, partition).into_iter().map(|(name, partitions)| {
        DeleteRecordsTopicResult::default().with_name(TopicName(name)).with_partitions(partitions)
    });
    respond(&DeleteRecordsResponse::default().with_topics(topics.collect()), version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::Refusal;
    use camus_engine::types::PartitionId;
    use kafka_protocol::messages::delete_records_request::{
        DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
    };

    fn question(name: &'static str, asked: &[(i32, i64)]) -> DeleteRecordsRequest {
        let one = |(number, offset): &(i32, i64)| {
            DeleteRecordsPartition::default().with_partition_index(*number).with_offset(*offset)
        };
        let topic = DeleteRecordsTopic::default().with_name(TopicName(StrBytes::from_static_str(name)));
        DeleteRecordsRequest::default().with_topics(vec![topic.with_partitions(asked.iter().map(one).collect())])
    }

    fn told(answer: &DeleteRecordsResponse) -> Vec<(i32, i16, i64)> {
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|p| (p.partition_index, p.error_code, p.low_watermark)).collect()
    }

    /// Records would be gone that nobody wanted to be rid of.
    #[test]
    fn every_version_trims_what_was_asked_and_nothing_else() {
        for version in 0..=2 {
            let mut world = World::new();
            world.answer = Box::new(|ask| match ask {
                Ask::Trim { to, offset: Some(Offset(3)) } if to.partition == PartitionId(100) => {
                    Answer::Trimmed(Ok(Offset(3)))
                }
                Ask::Trim { to, offset: None } if to.partition == PartitionId(101) => Answer::Trimmed(Ok(Offset(8))),
                other => panic!("{other:?}"),
            });
            let asked = [(0, 3), (9, 3), (1, -1), (0, -2), (0, i64::MIN)];
            let answer: DeleteRecordsResponse = world.call(handle, version, &question("t", &asked));
            assert_eq!(told(&answer), [(0, 0, 3), (9, 3, -1), (1, 0, 8), (0, 1, -1), (0, 1, -1)]);
        }
    }

    /// A client would believe records gone that are still there.
    #[test]
    fn a_refused_trim_has_its_code_and_no_watermark() {
        let mut world = World::new();
        let refusal = Refusal::OffsetOutOfRange { high_watermark: Offset(5), log_start: Offset(0) };
        world.answer = Box::new(move |_| Answer::Trimmed(Err(refusal.clone())));
        let answer: DeleteRecordsResponse = world.call(handle, 2, &question("t", &[(0, 99)]));
        assert_eq!(told(&answer), [(0, 1, -1)]);
    }

    /// The last record of a key is what a compacted topic promises to keep.
    #[test]
    fn a_topic_that_is_only_compacted_keeps_its_records() {
        let answer: DeleteRecordsResponse = World::new().call(handle, 2, &question("compact", &[(0, 1)]));
        assert_eq!(told(&answer), [(0, 44, -1)]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| encoded(&question("t", &[(0, 3), (1, -1)]), version));
    }
}
