//! ListGroups: every group that this broker coordinates, by state and type. Clients ask every broker.

use super::groups::said;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use camus_meta::groups::{GroupAnswer, GroupAsk, Listed};
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::list_groups_response::{ListGroupsResponse, ListedGroup};
use kafka_protocol::protocol::StrBytes;

/// Names in any case; nothing means all.
#[derive(Default)]
struct Filters {
    states: Vec<StrBytes>,
    types: Vec<StrBytes>,
}

fn read(request: &Request) -> Result<Filters, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 3);
    let mut names = |from| if version >= from { r.array(1, Reader::string) } else { Ok(Vec::new()) };
    let (states, types) = (names(4)?, names(5)?);
    r.tags()?;
    Ok(Filters { states, types })
}

fn passes(filter: &[StrBytes], name: &str) -> bool {
    filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
}

/// ListGroups 0-5, flexible from 3.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let filters = match read(request) {
        Ok(filters) => filters,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    Outcome::Group(
        GroupAsk::List,
        Box::new(move |_, answer| match answer {
            GroupAnswer::Listed(listed) => reply(version, &filters, listed),
            other => unreachable!("a List is answered as Listed, not as {other:?}"),
        }),
    )
}

fn reply(version: i16, filters: &Filters, listed: Vec<Listed>) -> Outcome {
    let wanted = |group: &Listed| passes(&filters.states, group.state) && passes(&filters.types, group.kind.name());
    let groups = listed.into_iter().filter(wanted).map(|group| {
        let listed = ListedGroup::default()
            .with_group_id(GroupId(said(group.group)))
            .with_protocol_type(said(group.protocol_type));
        let listed = if version >= 4 { listed.with_group_state(said(group.state)) } else { listed };
        if version >= 5 { listed.with_group_type(said(group.kind.name())) } else { listed }
    });
    respond(&ListGroupsResponse::default().with_groups(groups.collect()), version)
}
