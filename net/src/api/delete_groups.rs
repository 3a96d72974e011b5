//! DeleteGroups: groups without members, and all that they committed.

use super::groups::{self, said};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use camus_meta::groups::{GroupAnswer, GroupAsk};
use kafka_protocol::messages::GroupId;
use kafka_protocol::messages::delete_groups_response::{DeletableGroupResult, DeleteGroupsResponse};

fn read(request: &Request) -> Result<Vec<String>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let names = r.array(1, groups::text)?;
    r.tags()?;
    Ok(names)
}

/// DeleteGroups 0-2, flexible from 2.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let names = match read(request) {
        Ok(names) => names,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    Outcome::Group(
        GroupAsk::DeleteGroups { groups: names.clone() },
        Box::new(move |_, answer| {
            let deleted = match answer {
                GroupAnswer::GroupsDeleted(deleted) => deleted,
                other => unreachable!("a DeleteGroups is answered as GroupsDeleted, not as {other:?}"),
            };
            let results = names.into_iter().zip(deleted).map(|(name, deleted)| {
                DeletableGroupResult::default()
                    .with_group_id(GroupId(said(name)))
                    .with_error_code(groups::wire(&deleted))
            });
            respond(&DeleteGroupsResponse::default().with_results(results.collect()), version)
        }),
    )
}
