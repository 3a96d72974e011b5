//! ConsumerGroupDescribe: groups of KIP-848, what each member has and what is meant for it. Of other groups it says
//! that they are not there, and clients ask DescribeGroups then.

use super::groups::{self, said};
use super::messages::{OPERATIONS_OMITTED, shown};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{DescribedConsumer, DescribedConsumers, GroupAnswer, GroupAsk, GroupRefusal, NamedPartitions};
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, ConsumerGroupDescribeResponse, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{GroupId, TopicName};

/// What kind of member it is, from version 1 on.
const CLASSIC: i8 = 0;
const CONSUMER: i8 = 1;

fn read(request: &Request) -> Result<(Vec<String>, bool), Malformed> {
    let mut r = Reader::new(&request.body, true);
    let asked = (r.array(1, groups::text)?, r.bool()?);
    r.tags()?;
    Ok(asked)
}

/// ConsumerGroupDescribe 0-1, flexible from 0.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let (names, operations) = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let operations = if operations { groups::GROUP_OPERATIONS } else { OPERATIONS_OMITTED };
    Outcome::Group(
        GroupAsk::DescribeConsumers { groups: names.clone() },
        Box::new(move |_, answer| {
            let groups: Vec<DescribedGroup> = match answer {
                GroupAnswer::ConsumersDescribed(described) => {
                    let described = names.into_iter().zip(described).map(|(name, described)| match described {
                        Ok(described) => describe(version, name, described).with_authorized_operations(operations),
                        Err(_) if name.is_empty() => nameless(name),
                        Err(GroupRefusal::GroupNotFound) => {
                            let why = format!("there is no group '{}' of this protocol", shown(&name));
                            absent(name, Code::GroupIdNotFound, why)
                        }
                        Err(why) => absent(name, group_code(why), why.to_string()),
                    });
                    described.collect()
                }
                GroupAnswer::Refused(why) => {
                    let refused = names.into_iter().map(|name| match name.is_empty() {
                        true => nameless(name),
                        false => absent(name, group_code(why), why.to_string()),
                    });
                    refused.collect()
                }
                other => unreachable!("a DescribeConsumers is not answered as {other:?}"),
            };
            respond(&ConsumerGroupDescribeResponse::default().with_groups(groups), version)
        }),
    )
}

/// Another broker would say the same of it.
fn nameless(name: String) -> DescribedGroup {
    absent(name, Code::InvalidGroupId, "a group id is not empty".to_owned())
}

fn absent(name: String, code: Code, why: String) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(GroupId(said(name)))
        .with_error_code(code.wire())
        .with_error_message(Some(said(why)))
        .with_authorized_operations(OPERATIONS_OMITTED)
}

fn describe(version: i16, name: String, described: DescribedConsumers) -> DescribedGroup {
    let members = described.members.into_iter().map(|one| member(version, one));
    DescribedGroup::default()
        .with_group_id(GroupId(said(name)))
        .with_group_state(said(described.state.name()))
        .with_group_epoch(described.epoch)
        .with_assignment_epoch(described.assignment_epoch)
        .with_assignor_name(said(described.assignor))
        .with_members(members.collect())
}

fn member(version: i16, one: DescribedConsumer) -> Member {
    let member = Member::default()
        .with_member_id(said(one.id))
        .with_instance_id(one.instance.map(said))
        .with_rack_id(one.rack.map(said))
        .with_member_epoch(one.epoch)
        .with_client_id(said(one.client_id))
        .with_client_host(said(one.client_host))
        .with_subscribed_topic_names(one.topics.into_iter().map(|name| TopicName(said(name))).collect())
        // empty, not null, where there is none, as in Kafka
        .with_subscribed_topic_regex(Some(said(one.pattern)))
        .with_assignment(assignment(one.assignment))
        .with_target_assignment(assignment(one.target));
    let kind = if one.is_classic { CLASSIC } else { CONSUMER };
    if version >= 1 { member.with_member_type(kind) } else { member }
}

fn assignment(partitions: NamedPartitions) -> Assignment {
    let topics = partitions.into_iter().map(|(topic, name, numbers)| {
        TopicPartitions::default()
            .with_topic_id(topic)
            .with_topic_name(TopicName(said(name)))
            .with_partitions(groups::numbers(numbers))
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
