//! DeleteRecords: moves the start of a partition's log.

use super::messages;
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
fn read(request: &Request) -> Result<Vec<(StrBytes, Vec<(i32, i64)>)>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let topics = messages::structs(&mut r, 2, |r| {
        let name = r.string()?;
        Ok((name, messages::structs(r, 12, |r| Ok((r.i32()?, r.i64()?)))?))
    })?;
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
    let slots: Vec<(StrBytes, Vec<(i32, Result<(), Code>)>)> = topics
        .into_iter()
        .map(|(name, partitions)| {
            let asked = partitions.into_iter().map(|(number, offset)| (number, ask(&name, number, offset))).collect();
            (name, asked)
        })
        .collect();
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

/// Whether the topic's policy lets records be deleted: one that is only compacted keeps the last of each key.
fn deletes(ctx: &Ctx<'_>, topic: &str) -> bool {
    let policy = ctx.image.topic(topic).and_then(|topic| topic.configs.get("cleanup.policy"));
    policy.is_none_or(|policy| policy.is_empty() || policy.split(',').any(|one| one.trim() == "delete"))
}

fn reply(version: i16, slots: Vec<(StrBytes, Vec<(i32, Result<(), Code>)>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let mut partition = |(number, asked): (i32, Result<(), Code>)| {
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
    let topics = slots.into_iter().map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(&mut partition).collect();
        DeleteRecordsTopicResult::default().with_name(TopicName(name)).with_partitions(partitions)
    });
    respond(&DeleteRecordsResponse::default().with_topics(topics.collect()), version)
}
