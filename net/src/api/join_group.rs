//! JoinGroup: a member says what it is, and waits for the generation that it becomes part of.

use super::groups::{self, said};
use super::messages::structs;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::group_code;
use camus_meta::groups::{GroupAnswer, GroupAsk, GroupRefusal, Join, Joined};
use camus_meta::limits::MEMBER_ID_BYTES_MAX;
use kafka_protocol::messages::join_group_response::{JoinGroupResponse, JoinGroupResponseMember};

fn read(request: &Request) -> Result<Join, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 6);
    let group = groups::text(&mut r)?;
    let session_timeout = groups::timeout(r.i32()?);
    let rebalance_timeout = if version >= 1 { groups::timeout(r.i32()?) } else { session_timeout };
    let member = groups::member(&mut r, version >= 5)?;
    let protocol_type = groups::text(&mut r)?;
    let protocols = structs(&mut r, 2, |r| Ok((groups::text(r)?, groups::bytes(r)?)))?;
    if version >= 8 {
        let _reason = r.nullable_string()?;
    }
    r.tags()?;
    Ok(Join {
        group,
        member,
        fresh: String::new(),
        id_required: version >= 4,
        may_skip_assignment: version >= 9,
        client_id: request.client_id.clone().unwrap_or_default(),
        // as Kafka writes it
        client_host: format!("/{}", request.peer),
        session_timeout,
        rebalance_timeout,
        protocol_type,
        protocols,
    })
}

/// JoinGroup 0-9, flexible from 6.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let mut join = match read(request) {
        Ok(join) => join,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    let instance = join.member.instance.as_deref().unwrap_or_default();
    if [&*join.member.id, instance].into_iter().any(|name| name.len() > MEMBER_ID_BYTES_MAX) {
        return refuse(version, GroupRefusal::InvalidRequest, join.member.id);
    }
    if join.member.id.is_empty() {
        join.fresh = groups::fresh_member_id(ctx, &join.client_id, join.member.instance.as_deref());
    }
    Outcome::Group(
        GroupAsk::Join(Box::new(join)),
        Box::new(move |_, answer| match answer {
            GroupAnswer::Joined(Ok(joined)) => reply(version, joined),
            GroupAnswer::Joined(Err((why, member))) => refuse(version, why, member),
            other => unreachable!("a Join is answered as Joined, not as {other:?}"),
        }),
    )
}

fn reply(version: i16, joined: Joined) -> Outcome {
    let members = joined.members.into_iter().map(|member| {
        JoinGroupResponseMember::default()
            .with_member_id(said(member.id))
            .with_group_instance_id(member.instance.filter(|_| version >= 5).map(said))
            .with_metadata(member.metadata)
    });
    let answer = JoinGroupResponse::default()
        .with_generation_id(joined.generation)
        .with_protocol_type((version >= 7).then(|| said(joined.protocol_type)))
        .with_protocol_name(Some(said(joined.protocol)))
        .with_leader(said(joined.leader))
        .with_skip_assignment(joined.skip_assignment)
        .with_member_id(said(joined.member))
        .with_members(members.collect());
    respond(&answer, version)
}

fn refuse(version: i16, why: GroupRefusal, member: String) -> Outcome {
    let answer = JoinGroupResponse::default()
        .with_error_code(group_code(why).wire())
        .with_generation_id(-1)
        .with_protocol_type(None)
        .with_protocol_name((version < 7).then(|| said("")))
        .with_member_id(said(member));
    respond(&answer, version)
}
