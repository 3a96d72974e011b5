//! OffsetForLeaderEpoch: where an epoch ended, so that a consumer sees that its log was cut.

use super::messages;
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

fn read(request: &Request) -> Result<Vec<(StrBytes, Vec<Partition>)>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 4);
    if request.version >= 3 {
        let _replica = r.i32()?;
    }
    let topics = messages::structs(&mut r, 2, |r| {
        let name = r.string()?;
        let partitions = messages::structs(r, 12, |r| {
            Ok(Partition { number: r.i32()?, believed_epoch: r.i32()?, epoch: r.i32()? })
        })?;
        Ok((name, partitions))
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
    let mut ask = |topic: &StrBytes, partition: &Partition| match messages::locate(ctx, topic, partition.number) {
        None => (partition.number, false),
        Some(from) => {
            let current = messages::believed(partition.believed_epoch);
            asks.push(Ask::EpochEnd { from, epoch: LeaderEpoch(partition.epoch), current });
            (partition.number, true)
        }
    };
    let slots: Vec<(StrBytes, Vec<(i32, bool)>)> = topics
        .into_iter()
        .map(|(name, partitions)| {
            let asked = partitions.iter().map(|partition| ask(&name, partition)).collect();
            (name, asked)
        })
        .collect();
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

fn reply(version: i16, slots: Vec<(StrBytes, Vec<(i32, bool)>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let mut partition = |(number, asked): (i32, bool)| {
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
    let topics = slots.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(&mut partition).collect();
        OffsetForLeaderTopicResult::default().with_topic(TopicName(name)).with_partitions(partitions)
    });
    respond(&OffsetForLeaderEpochResponse::default().with_topics(topics.collect()), version)
}
