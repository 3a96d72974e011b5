//! OffsetCommit: what a group will read next, stored durably before it is answered.

use super::groups;
use super::messages::structs;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{Commit, GroupAnswer, GroupAsk, MemberName};
use camus_meta::{PartitionOffset, TopicOffsets};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponse, OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

struct Asked {
    group: String,
    generation: i32,
    member: MemberName,
    topics: Vec<(StrBytes, Vec<Partition>)>,
}

struct Partition {
    number: i32,
    offset: i64,
    leader_epoch: i32,
    metadata: StrBytes,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 8);
    let (group, generation) = (groups::text(&mut r)?, r.i32()?);
    let member = groups::member(&mut r, version >= 7)?;
    if version <= 4 {
        let _retention_ms = r.i64()?;
    }
    let topics = structs(&mut r, 2, |r| {
        let name = r.string()?;
        let partitions = structs(r, 13, |r| {
            Ok(Partition {
                number: r.i32()?,
                offset: r.i64()?,
                leader_epoch: if version >= 6 { r.i32()? } else { -1 },
                metadata: r.nullable_string()?.unwrap_or_default(),
            })
        })?;
        Ok((name, partitions))
    })?;
    r.tags()?;
    Ok(Asked { group, generation, member, topics })
}

/// What each partition of the request becomes: refused here, or part of the commit under its topic's id.
type Planned = Vec<(StrBytes, Vec<(i32, Result<Uuid, Code>)>)>;

fn plan(ctx: &Ctx<'_>, topics: Vec<(StrBytes, Vec<Partition>)>) -> (Planned, Vec<TopicOffsets>) {
    let (mut planned, mut commit) = (Vec::with_capacity(topics.len()), Vec::new());
    for (name, partitions) in topics {
        let topic = ctx.image.topic(&name);
        let mut answers = Vec::with_capacity(partitions.len());
        let mut offsets = Vec::new();
        for Partition { number, offset, leader_epoch, metadata } in partitions {
            let there = topic.zip(u32::try_from(number).ok()).filter(|(t, n)| (*n as usize) < t.partitions.len());
            let answer = match there {
                None => Err(Code::UnknownTopicOrPartition),
                Some(_) if metadata.len() > ctx.settings.offset_metadata_bytes_max => Err(Code::OffsetMetadataTooLarge),
                Some((topic, partition)) => {
                    let metadata = metadata.to_string();
                    offsets.push(PartitionOffset { partition, offset, leader_epoch, metadata });
                    Ok(topic.id)
                }
            };
            answers.push((number, answer));
        }
        if let Some(topic) = topic.filter(|_| !offsets.is_empty()) {
            commit.push(TopicOffsets { topic: topic.id, partitions: offsets });
        }
        planned.push((name, answers));
    }
    (planned, commit)
}

/// OffsetCommit 2-9, flexible from 8.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { group, generation, member, topics } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let (planned, topics) = plan(ctx, topics);
    let commit = Commit { group, generation, member, knows_not_found: version >= 9, at_ms: ctx.wall.0, topics };
    Outcome::Group(
        GroupAsk::Commit(commit),
        Box::new(move |_, answer| {
            let (gone, all) = match answer {
                GroupAnswer::Committed(Ok(gone)) => (gone, None),
                GroupAnswer::Committed(Err(why)) => (Vec::new(), Some(group_code(why))),
                other => unreachable!("a Commit is answered as Committed, not as {other:?}"),
            };
            let code = |planned: Result<Uuid, Code>| match (all, planned) {
                (Some(all), _) => all,
                (None, Err(code)) => code,
                (None, Ok(topic)) if gone.contains(&topic) => Code::UnknownTopicOrPartition,
                (None, Ok(_)) => Code::None,
            };
            let topics = planned.into_iter().map(|(name, partitions)| {
                let one = |(number, planned)| {
                    OffsetCommitResponsePartition::default()
                        .with_partition_index(number)
                        .with_error_code(code(planned).wire())
                };
                OffsetCommitResponseTopic::default()
                    .with_name(TopicName(name))
                    .with_partitions(partitions.into_iter().map(one).collect())
            });
            respond(&OffsetCommitResponse::default().with_topics(topics.collect()), version)
        }),
    )
}
