//! ListOffsets: an offset by time, or by one of the names that negative times are.

use super::messages::{self, ByTopic};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, code};
use camus_engine::shard::api::{Answer, Ask, Found, OffsetQuery};
use camus_engine::types::WallMs;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;

/// The newest version that the codec crate writes. 11 has the same layout; it only allows the time -6.
const LAYOUT_MAX: i16 = 10;

struct Asked {
    isolation: i8,
    topics: ByTopic<Partition>,
}

struct Partition {
    number: i32,
    believed_epoch: i32,
    time: i64,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, request.version >= 6);
    let _replica = r.i32()?;
    let isolation = if version >= 2 { r.i8()? } else { 0 };
    let topics = messages::by_topic(&mut r, 12, |r| {
        let number = r.i32()?;
        let believed_epoch = if version >= 4 { r.i32()? } else { -1 };
        Ok(Partition { number, believed_epoch, time: r.i64()? })
    })?;
    if version >= 10 {
        // How long to wait for a remote tier.
        let _timeout_ms = r.i32()?;
    }
    r.tags()?;
    Ok(Asked { isolation, topics })
}

/// What a partition is asked, and what its answer becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Question {
    what: OffsetQuery,
    /// The offset wanted is the one behind the one found.
    next: bool,
}

fn question(time: i64, version: i16) -> Result<Question, Code> {
    let (since, what) = match time {
        -1 => (1, OffsetQuery::Latest),
        -2 => (1, OffsetQuery::Earliest),
        -3 => (7, OffsetQuery::MaxTimestamp),
        -4 => (8, OffsetQuery::EarliestLocal),
        -5 => (9, OffsetQuery::LatestTiered),
        // The earliest that waits for its upload (KIP-1023).
        -6 => (11, OffsetQuery::LatestTiered),
        0.. => (1, OffsetQuery::AtOrAfter(WallMs(time))),
        _ => return Err(Code::UnsupportedVersion),
    };
    if version < since { Err(Code::UnsupportedVersion) } else { Ok(Question { what, next: time == -6 }) }
}

/// ListOffsets 1-11, flexible from 6.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { isolation, topics } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let mut named = BTreeMap::<(&StrBytes, i32), u32>::new();
    for (name, partition) in topics.iter().flat_map(|(name, ps)| ps.iter().map(move |p| (name, p))) {
        *named.entry((name, partition.number)).or_default() += 1;
    }
    let mut asks = Vec::new();
    let mut ask = |topic: &StrBytes, partition: &Partition| -> Result<Question, Code> {
        if !(0..=1).contains(&isolation) || named[&(topic, partition.number)] > 1 {
            return Err(Code::InvalidRequest);
        }
        let from = messages::locate(ctx, topic, partition.number).ok_or(Code::UnknownTopicOrPartition)?;
        let question = question(partition.time, version)?;
        asks.push(Ask::Find { from, what: question.what, epoch: messages::believed(partition.believed_epoch) });
        Ok(question)
    };
    let slots: ByTopic<(i32, Result<Question, Code>)> = topics
        .iter()
        .map(|(name, partitions)| (name.clone(), partitions.iter().map(|p| (p.number, ask(name, p))).collect()))
        .collect();
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

fn reply(version: i16, slots: ByTopic<(i32, Result<Question, Code>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let partition = |_: &StrBytes, (number, asked): (i32, Result<Question, Code>)| {
        let found = match asked {
            Err(error) => Err(error.wire()),
            Ok(question) => match answers.next() {
                Some(Answer::Found(Ok(found))) => Ok(if question.next && found.offset.0 >= 0 {
                    Found { offset: found.offset + 1, ..found }
                } else {
                    found
                }),
                Some(Answer::Found(Err(refusal))) => Err(code(&refusal).wire()),
                other => unreachable!("a Find is answered with Found, not with {other:?}"),
            },
        };
        let answer = ListOffsetsPartitionResponse::default().with_partition_index(number);
        match found {
            Ok(found) => answer
                .with_offset(found.offset.0)
                .with_timestamp(found.timestamp.0)
                .with_leader_epoch(if version >= 4 { found.epoch.0 } else { -1 }),
            Err(code) => answer.with_error_code(code).with_offset(-1).with_timestamp(-1).with_leader_epoch(-1),
        }
    };
    let topics = messages::for_each_partition(slots, partition).into_iter().map(|(name, partitions)| {
        ListOffsetsTopicResponse::default().with_name(TopicName(name)).with_partitions(partitions)
    });
    let answer = ListOffsetsResponse::default().with_topics(topics.collect());
    respond(&answer, version.min(LAYOUT_MAX))
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::Refusal;
    use camus_engine::types::{CoreId, LeaderEpoch, Offset, PartitionId, ShardId};
    use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};

    fn partition(number: i32, time: i64) -> ListOffsetsPartition {
        ListOffsetsPartition::default().with_partition_index(number).with_timestamp(time).with_current_leader_epoch(-1)
    }

    fn topic(name: &'static str, partitions: Vec<ListOffsetsPartition>) -> ListOffsetsTopic {
        ListOffsetsTopic::default().with_name(TopicName(StrBytes::from_static_str(name))).with_partitions(partitions)
    }

    fn ask(world: &mut World, version: i16, topics: Vec<ListOffsetsTopic>) -> ListOffsetsResponse {
        let question = ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(topics);
        world.call_laid_out(handle, version, version.min(10), &question)
    }

    fn finds(offset: i64, timestamp: i64, epoch: i32) -> World {
        let mut world = World::new();
        let found = Found { offset: Offset(offset), timestamp: WallMs(timestamp), epoch: LeaderEpoch(epoch) };
        world.answer = Box::new(move |_| Answer::Found(Ok(found)));
        world
    }

    fn told(answer: &ListOffsetsResponse) -> Vec<(i32, i16, i64, i64, i32)> {
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|p| (p.partition_index, p.error_code, p.offset, p.timestamp, p.leader_epoch)).collect()
    }

    /// A consumer would begin at another offset than the one that it asked for.
    #[test]
    fn every_version_asks_the_partition_and_answers_with_what_was_found() {
        for version in 1..=11 {
            let mut world = finds(17, 1234, 7);
            let answer = ask(&mut world, version, vec![topic("t", vec![partition(0, 1000)])]);
            assert_eq!(answer.topics[0].name.as_str(), "t");
            assert_eq!(told(&answer), [(0, 0, 17, 1234, if version >= 4 { 7 } else { -1 })]);
            let [Ask::Find { from, what: OffsetQuery::AtOrAfter(WallMs(1000)), epoch: None }] = &world.asked[..] else {
                panic!("{:?}", world.asked)
            };
            assert_eq!((from.core, from.shard, from.partition), (CoreId(0), ShardId(1), PartitionId(100)));
        }
    }

    /// An old client that means a time would get what a newer one means by the same number.
    #[test]
    fn each_named_offset_is_served_from_its_version_on() {
        let named = [
            (-1, 1, OffsetQuery::Latest),
            (-2, 1, OffsetQuery::Earliest),
            (-3, 7, OffsetQuery::MaxTimestamp),
            (-4, 8, OffsetQuery::EarliestLocal),
            (-5, 9, OffsetQuery::LatestTiered),
            (-6, 11, OffsetQuery::LatestTiered),
        ];
        for version in 1..=11 {
            for (time, since, query) in named {
                let mut world = finds(17, -1, 7);
                let answer = ask(&mut world, version, vec![topic("t", vec![partition(0, time)])]);
                let epoch = if version >= 4 { 7 } else { -1 };
                if version < since {
                    assert_eq!(told(&answer), [(0, 35, -1, -1, -1)]);
                    assert!(world.asked.is_empty());
                } else {
                    assert_eq!(told(&answer), [(0, 0, if time == -6 { 18 } else { 17 }, -1, epoch)]);
                    assert!(matches!(&world.asked[..], [Ask::Find { what, .. }] if *what == query));
                }
            }
            for time in [-7, i64::MIN] {
                let answer = ask(&mut World::new(), version, vec![topic("t", vec![partition(0, time)])]);
                assert_eq!(told(&answer), [(0, 35, -1, -1, -1)]);
            }
        }
        let nothing_waits = ask(&mut finds(-1, -1, -1), 11, vec![topic("t", vec![partition(0, -6)])]);
        assert_eq!(told(&nothing_waits), [(0, 0, -1, -1, -1)]);
    }

    /// One partition's answer would stand under another's number.
    #[test]
    fn each_partition_has_its_own_answer() {
        let mut world = World::new();
        world.answer = Box::new(|ask| match ask.route() {
            Some(route) if route.partition == PartitionId(100) => {
                Answer::Found(Ok(Found { offset: Offset(5), timestamp: WallMs(-1), epoch: LeaderEpoch(7) }))
            }
            _ => Answer::Found(Err(Refusal::NotLeader)),
        });
        let topics = vec![
            topic("t", vec![partition(9, -1), partition(1, -1), partition(-1, -1), partition(0, -1)]),
            topic("nope", vec![partition(0, -1)]),
        ];
        let answer = ask(&mut world, 5, topics);
        let expected =
            [(9, 3, -1, -1, -1), (1, 6, -1, -1, -1), (-1, 3, -1, -1, -1), (0, 0, 5, -1, 7), (0, 3, -1, -1, -1)];
        assert_eq!(told(&answer), expected);
    }

    /// Which of two answers would be believed?
    #[test]
    fn a_partition_that_is_asked_twice_is_refused_in_both_places() {
        let topics = vec![topic("t", vec![partition(0, -1), partition(1, -1)]), topic("t", vec![partition(0, -2)])];
        let answer = ask(&mut finds(1, -1, 7), 7, topics);
        assert_eq!(told(&answer), [(0, 42, -1, -1, -1), (1, 0, 1, -1, 7), (0, 42, -1, -1, -1)]);
    }

    /// A client with old metadata would be answered by a log that is not the one it believes in.
    #[test]
    fn the_epoch_that_the_client_believes_in_goes_with_the_question() {
        let mut world = World::new();
        world.answer = Box::new(|ask| match ask {
            Ask::Find { epoch: Some(LeaderEpoch(8)), .. } => Answer::Found(Err(Refusal::UnknownEpoch)),
            Ask::Find { epoch: Some(LeaderEpoch(6)), .. } => Answer::Found(Err(Refusal::FencedEpoch)),
            other => panic!("{other:?}"),
        });
        let partitions =
            vec![partition(0, -1).with_current_leader_epoch(8), partition(1, -1).with_current_leader_epoch(6)];
        let answer = ask(&mut world, 4, vec![topic("t", partitions)]);
        assert_eq!(told(&answer), [(0, 75, -1, -1, -1), (1, 74, -1, -1, -1)]);
    }

    /// Neither of the two isolations, and yet an answer.
    #[test]
    fn an_unknown_isolation_is_refused() {
        let question = ListOffsetsRequest::default().with_topics(vec![topic("t", vec![partition(0, -1)])]);
        let answer: ListOffsetsResponse = World::new().call(handle, 2, &question.with_isolation_level(2));
        assert_eq!(told(&answer), [(0, 42, -1, -1, -1)]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=11, |version| {
            let topics = vec![topic("t", vec![partition(0, 5), partition(1, -2)])];
            encoded(&ListOffsetsRequest::default().with_topics(topics), version.min(10))
        });
    }
}
