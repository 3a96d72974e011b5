//! Heartbeat: a member is alive, and hears whether it has to join again.

use super::groups;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use camus_meta::groups::{GroupAnswer, GroupAsk};
use kafka_protocol::messages::HeartbeatResponse;

fn read(request: &Request) -> Result<GroupAsk, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 4);
    let (group, generation) = (groups::text(&mut r)?, r.i32()?);
    let member = groups::member(&mut r, request.version >= 3)?;
    r.tags()?;
    Ok(GroupAsk::Heartbeat { group, generation, member })
}

/// Heartbeat 0-4, flexible from 4.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let ask = match read(request) {
        Ok(ask) => ask,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    Outcome::Group(
        ask,
        Box::new(move |_, answer| match answer {
            GroupAnswer::Heartbeat(heard) => {
                respond(&HeartbeatResponse::default().with_error_code(groups::wire(&heard)), version)
            }
            other => unreachable!("a Heartbeat is answered as one, not as {other:?}"),
        }),
    )
}
