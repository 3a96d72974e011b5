//! ListOffsets: an offset by time, or by one of the names that negative times are.

use super::messages;
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
    topics: Vec<(StrBytes, Vec<Partition>)>,
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
    let topics = messages::structs(&mut r, 2, |r| {
        let name = r.string()?;
        let partitions = messages::structs(r, 12, |r| {
            let number = r.i32()?;
            let believed_epoch = if version >= 4 { r.i32()? } else { -1 };
            Ok(Partition { number, believed_epoch, time: r.i64()? })
        })?;
        Ok((name, partitions))
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
    let slots: Vec<(StrBytes, Vec<(i32, Result<Question, Code>)>)> = topics
        .iter()
        .map(|(name, partitions)| (name.clone(), partitions.iter().map(|p| (p.number, ask(name, p))).collect()))
        .collect();
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

fn reply(version: i16, slots: Vec<(StrBytes, Vec<(i32, Result<Question, Code>)>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let mut partition = |(number, asked): (i32, Result<Question, Code>)| {
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
    let topics = slots.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(&mut partition).collect();
        ListOffsetsTopicResponse::default().with_name(TopicName(name)).with_partitions(partitions)
    });
    let answer = ListOffsetsResponse::default().with_topics(topics.collect());
    respond(&answer, version.min(LAYOUT_MAX))
}
