//! LeaveGroup: members go, and the others need not wait for their session timeout.

use super::groups::{self, said};
use super::messages::structs;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use camus_meta::groups::{GroupAnswer, GroupAsk, Leaver};
use kafka_protocol::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};

fn read(request: &Request) -> Result<(String, Vec<Leaver>), Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 4);
    let group = groups::text(&mut r)?;
    let members = if version >= 3 {
        structs(&mut r, 2, |r| {
            let member = groups::member(r, true)?;
            if version >= 5 {
                let _reason = r.nullable_string()?;
            }
            Ok(Leaver { member })
        })?
    } else {
        vec![Leaver { member: groups::member(&mut r, false)? }]
    };
    r.tags()?;
    Ok((group, members))
}

/// LeaveGroup 0-5, flexible from 4.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let (group, members) = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let names: Vec<_> = members.iter().map(|leaver| leaver.member.clone()).collect();
    Outcome::Group(
        GroupAsk::Leave { group, members },
        Box::new(move |_, answer| {
            let left = match answer {
                GroupAnswer::Left(left) => left,
                other => unreachable!("a Leave is answered as Left, not as {other:?}"),
            };
            let answer = LeaveGroupResponse::default().with_error_code(groups::wire(&left));
            let left = left.unwrap_or_default();
            if version < 3 {
                let code = left.first().map_or(answer.error_code, groups::wire);
                return respond(&answer.with_error_code(code), version);
            }
            let members = names.into_iter().zip(left).map(|(member, left)| {
                MemberResponse::default()
                    .with_member_id(said(member.id))
                    .with_group_instance_id(member.instance.map(said))
                    .with_error_code(groups::wire(&left))
            });
            respond(&answer.with_members(members.collect()), version)
        }),
    )
}
