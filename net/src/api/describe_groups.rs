//! DescribeGroups: the members of groups, and what each is assigned.

use super::groups::said;
use super::messages::{OPERATIONS_OMITTED, shown};
use super::{Ctx, Outcome, Request, groups};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, group_code};
use camus_meta::groups::{Described, GroupAnswer, GroupAsk, GroupRefusal};
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::describe_groups_response::{
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};

fn read(request: &Request) -> Result<(Vec<String>, bool), Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 5);
    let groups = r.array(1, groups::text)?;
    let operations = request.version >= 3 && r.bool()?;
    r.tags()?;
    Ok((groups, operations))
}

/// DescribeGroups 0-6, flexible from 5.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let (names, operations) = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let operations = if operations { groups::GROUP_OPERATIONS } else { OPERATIONS_OMITTED };
    Outcome::Group(
        GroupAsk::Describe { groups: names.clone() },
        Box::new(move |_, answer| {
            let described = match answer {
                GroupAnswer::Described(described) => described,
                GroupAnswer::Refused(why) => {
                    let groups = names.into_iter().map(|name| refused(name, why));
                    return respond(&DescribeGroupsResponse::default().with_groups(groups.collect()), version);
                }
                other => unreachable!("a Describe is answered as Described, not as {other:?}"),
            };
            let groups = names.into_iter().zip(described).map(|(name, described)| match described {
                Ok(described) => describe(version, name, described).with_authorized_operations(operations),
                Err(GroupRefusal::GroupNotFound) => unknown(version, name, operations),
                Err(why) => refused(name, why),
            });
            respond(&DescribeGroupsResponse::default().with_groups(groups.collect()), version)
        }),
    )
}

fn refused(name: String, why: GroupRefusal) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_id(GroupId(said(name)))
        .with_error_code(group_code(why).wire())
        .with_authorized_operations(OPERATIONS_OMITTED)
}

fn describe(version: i16, name: String, described: Described) -> DescribedGroup {
    let members = described.members.into_iter().map(|member| {
        DescribedGroupMember::default()
            .with_member_id(said(member.id))
            .with_group_instance_id(member.instance.filter(|_| version >= 4).map(said))
            .with_client_id(said(member.client_id))
            .with_client_host(said(member.client_host))
            .with_member_metadata(member.metadata)
            .with_member_assignment(member.assignment)
    });
    DescribedGroup::default()
        .with_group_id(GroupId(said(name)))
        .with_group_state(said(described.state.name()))
        .with_protocol_type(said(described.protocol_type))
        .with_protocol_data(said(described.protocol))
        .with_members(members.collect())
}

/// Kafka calls a group that is not there dead, without an error before version 6. It takes the empty name for any
/// other.
fn unknown(version: i16, name: String, operations: i32) -> DescribedGroup {
    let why = format!("there is no group '{}'", shown(&name));
    let group = DescribedGroup::default().with_group_id(GroupId(said(name))).with_group_state(said("Dead"));
    match version {
        6.. => group
            .with_error_code(Code::GroupIdNotFound.wire())
            .with_error_message(Some(said(why)))
            .with_authorized_operations(OPERATIONS_OMITTED),
        ..6 => group.with_authorized_operations(operations),
    }
}
