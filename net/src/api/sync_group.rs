//! SyncGroup: the leader brings the assignment of its generation, and every member takes its own.

use super::groups::{self, said};
use super::messages::structs;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::group_code;
use camus_meta::groups::{GroupAnswer, GroupAsk, Sync};
use kafka_protocol::messages::SyncGroupResponse;

fn read(request: &Request) -> Result<Sync, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, version >= 4);
    let (group, generation) = (groups::text(&mut r)?, r.i32()?);
    let member = groups::member(&mut r, version >= 3)?;
    let (mut protocol_type, mut protocol) = (None, None);
    if version >= 5 {
        (protocol_type, protocol) = (groups::nullable_text(&mut r)?, groups::nullable_text(&mut r)?);
    }
    let assignments = structs(&mut r, 2, |r| Ok((groups::text(r)?, groups::bytes(r)?)))?;
    r.tags()?;
    Ok(Sync { group, generation, member, protocol_type, protocol, assignments })
}

/// SyncGroup 0-5, flexible from 4.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let sync = match read(request) {
        Ok(sync) => sync,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    Outcome::Group(
        GroupAsk::Sync(sync),
        Box::new(move |_, answer| match answer {
            GroupAnswer::Synced(Ok(synced)) => {
                let answer = SyncGroupResponse::default()
                    .with_protocol_type((version >= 5).then(|| said(synced.protocol_type)))
                    .with_protocol_name((version >= 5).then(|| said(synced.protocol)))
                    .with_assignment(synced.assignment);
                respond(&answer, version)
            }
            GroupAnswer::Synced(Err(why)) => {
                respond(&SyncGroupResponse::default().with_error_code(group_code(why).wire()), version)
            }
            other => unreachable!("a Sync is answered as Synced, not as {other:?}"),
        }),
    )
}
