//! OffsetDelete: single offsets of a group, of topics that its members do not read.

use super::groups;
use super::messages::structs;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{GroupAnswer, GroupAsk};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::protocol::StrBytes;

type Topics = Vec<(StrBytes, Vec<i32>)>;

fn read(request: &Request) -> Result<(String, Topics), Malformed> {
    let mut r = Reader::new(&request.body, false);
    let group = groups::text(&mut r)?;
    let topics = structs(&mut r, 6, |r| Ok((r.string()?, structs(r, 4, Reader::i32)?)))?;
    r.tags()?;
    Ok((group, topics))
}

/// OffsetDelete 0, not flexible.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let (group, asked) = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let has = |name: &StrBytes, partition: i32| {
        let topic = ctx.image.topic(name)?;
        let number = u32::try_from(partition).ok().filter(|number| (*number as usize) < topic.partitions.len())?;
        Some((topic.id, number))
    };
    let known: Vec<Vec<bool>> =
        asked.iter().map(|(name, partitions)| partitions.iter().map(|p| has(name, *p).is_some()).collect()).collect();
    let topics = asked.iter().map(|(name, partitions)| {
        let there = partitions.iter().filter_map(|partition| has(name, *partition));
        let id = ctx.image.topic(name).map_or(uuid::Uuid::nil(), |topic| topic.id);
        (name.to_string(), id, there.map(|(_, number)| number).collect())
    });
    let topics = topics.collect();
    Outcome::Group(
        GroupAsk::DeleteOffsets { group, topics },
        Box::new(move |_, answer| {
            let deleted = match answer {
                GroupAnswer::OffsetsDeleted(Ok(deleted)) => deleted,
                GroupAnswer::OffsetsDeleted(Err(why)) => {
                    return respond(&OffsetDeleteResponse::default().with_error_code(group_code(why).wire()), version);
                }
                other => unreachable!("a DeleteOffsets is answered as OffsetsDeleted, not as {other:?}"),
            };
            let topics = asked.into_iter().zip(known).zip(deleted).map(|(((name, partitions), known), deleted)| {
                let partitions = partitions.into_iter().zip(known).map(|(number, known)| {
                    let code = if known { groups::wire(&deleted) } else { Code::UnknownTopicOrPartition.wire() };
                    OffsetDeleteResponsePartition::default().with_partition_index(number).with_error_code(code)
                });
                OffsetDeleteResponseTopic::default().with_name(TopicName(name)).with_partitions(partitions.collect())
            });
            respond(&OffsetDeleteResponse::default().with_topics(topics.collect()), version)
        }),
    )
}
