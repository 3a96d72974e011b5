//! OffsetFetch: where a group goes on reading.
//!
//! What was never committed is no error: offset -1, whether the group, the topic or the partition is unknown (an error
//! ends a Kafka Streams thread). `require_stable` has nothing to wait for as long as there are no transactions. From
//! version 9 on a member says who it is, and one that a group of KIP-848 does not have is told nothing.

use super::groups::{self, said};
use super::messages::{nullable_structs, structs};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{FetchGroup, FetchedGroup, FetchedPartition, GroupAnswer, GroupAsk, GroupRefusal};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

type Topics = Option<Vec<(StrBytes, Vec<i32>)>>;

struct Asked {
    group: String,
    member: Option<String>,
    epoch: i32,
    topics: Topics,
}

fn read(request: &Request) -> Result<Vec<Asked>, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 6);
    let topic = |r: &mut Reader<'_>| Ok((r.string()?, r.array(4, Reader::i32)?));
    let asked = if version >= 8 {
        structs(&mut r, 2, |r| {
            let group = groups::text(r)?;
            let (member, epoch) = if version >= 9 { (groups::nullable_text(r)?, r.i32()?) } else { (None, -1) };
            Ok(Asked { group, member, epoch, topics: nullable_structs(r, 2, topic)? })
        })?
    } else {
        let group = groups::text(&mut r)?;
        let topics = if version >= 2 { nullable_structs(&mut r, 2, topic)? } else { Some(structs(&mut r, 2, topic)?) };
        vec![Asked { group, member: None, epoch: -1, topics }]
    };
    if version >= 7 {
        let _require_stable = r.bool()?;
    }
    r.tags()?;
    Ok(asked)
}

/// OffsetFetch 1-9, flexible from 6.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let known = |(name, partitions): &(StrBytes, Vec<i32>)| {
        // a topic that is not there has the nil id, under which nothing is committed; -1 becomes a partition that is
        // not
        let id = ctx.image.topic(name).map_or(Uuid::nil(), |topic| topic.id);
        (id, partitions.iter().map(|partition| *partition as u32).collect())
    };
    let groups = asked.iter().map(|asked| FetchGroup {
        group: asked.group.clone(),
        member: asked.member.clone(),
        epoch: asked.epoch,
        topics: asked.topics.as_ref().map(|topics| topics.iter().map(known).collect()),
    });
    let groups = groups.collect();
    Outcome::Group(
        GroupAsk::Fetch { groups },
        Box::new(move |_, answer| match answer {
            GroupAnswer::Fetched(fetched) => reply(version, asked, fetched),
            GroupAnswer::Refused(why) => refuse(version, asked, group_code(why)),
            other => unreachable!("a Fetch is answered as Fetched, not as {other:?}"),
        }),
    )
}

/// For all of it: where each version has a place for a code.
fn refuse(version: i16, asked: Vec<Asked>, code: Code) -> Outcome {
    let code = code.wire();
    if version >= 8 {
        let groups = asked.into_iter().map(|asked| {
            OffsetFetchResponseGroup::default().with_group_id(GroupId(said(asked.group))).with_error_code(code)
        });
        return respond(&OffsetFetchResponse::default().with_groups(groups.collect()), version);
    }
    if version >= 2 {
        return respond(&OffsetFetchResponse::default().with_error_code(code), version);
    }
    let topics = asked.into_iter().flat_map(|asked| asked.topics.unwrap_or_default()).map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|number| {
            OffsetFetchResponsePartition::default()
                .with_partition_index(number)
                .with_committed_offset(-1)
                .with_metadata(Some(StrBytes::default()))
                .with_error_code(code)
        });
        OffsetFetchResponseTopic::default().with_name(TopicName(name)).with_partitions(partitions.collect())
    });
    respond(&OffsetFetchResponse::default().with_topics(topics.collect()), version)
}

fn reply(version: i16, asked: Vec<Asked>, fetched: Vec<Result<FetchedGroup, GroupRefusal>>) -> Outcome {
    if version >= 8 {
        let groups = asked.into_iter().zip(fetched).map(|(asked, fetched)| {
            let group = OffsetFetchResponseGroup::default().with_group_id(GroupId(said(asked.group)));
            let fetched = match fetched {
                Ok(fetched) => fetched,
                Err(why) => return group.with_error_code(group_code(why).wire()),
            };
            let topics = named(asked.topics, fetched).map(|(name, partitions)| {
                let partitions = partitions.into_iter().map(|partition| {
                    let (number, offset, leader_epoch, metadata) = shown(partition);
                    OffsetFetchResponsePartitions::default()
                        .with_partition_index(number)
                        .with_committed_offset(offset)
                        .with_committed_leader_epoch(leader_epoch)
                        .with_metadata(Some(metadata))
                });
                OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions.collect())
            });
            group.with_topics(topics.collect())
        });
        return respond(&OffsetFetchResponse::default().with_groups(groups.collect()), version);
    }
    let fetched = match fetched.into_iter().next().expect("one group is asked for before version 8") {
        Ok(fetched) => fetched,
        Err(why) => return refuse(version, asked, group_code(why)),
    };
    let asked = asked.into_iter().next().expect("one group is asked for before version 8");
    let topics = named(asked.topics, fetched).map(|(name, partitions)| {
        let partitions = partitions.into_iter().map(|partition| {
            let (number, offset, leader_epoch, metadata) = shown(partition);
            OffsetFetchResponsePartition::default()
                .with_partition_index(number)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(if version >= 5 { leader_epoch } else { -1 })
                .with_metadata(Some(metadata))
        });
        OffsetFetchResponseTopic::default().with_name(name).with_partitions(partitions.collect())
    });
    respond(&OffsetFetchResponse::default().with_topics(topics.collect()), version)
}

/// What was fetched, under the names that were asked for, or all of it under its own.
fn named(asked: Topics, fetched: FetchedGroup) -> impl Iterator<Item = (TopicName, Vec<FetchedPartition>)> {
    let mut names = asked.map(|topics| topics.into_iter().map(|(name, _)| name));
    fetched.topics.into_iter().map(move |topic| {
        let name = names.as_mut().map_or_else(|| Some(said(topic.name)), Iterator::next);
        (TopicName(name.expect("a topic for each that was asked for")), topic.partitions)
    })
}

/// Partition, offset, leader epoch and metadata, as the wire says them.
fn shown(partition: FetchedPartition) -> (i32, i64, i32, StrBytes) {
    let number = partition.partition as i32;
    match partition.committed {
        Some(committed) => (number, committed.offset, committed.leader_epoch, said(committed.metadata)),
        None => (number, -1, -1, StrBytes::default()),
    }
}
