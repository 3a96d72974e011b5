//! FindCoordinator: which broker serves a group or a transactional id.
//!
//! Groups and transactions are not served yet, so no key has a coordinator: the answer is the retriable code that a
//! Kafka broker gives while a coordinator is not up, never a node that would then refuse.

use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

struct Asked {
    kind: i8,
    keys: Vec<StrBytes>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 3);
    let asked = if request.version >= 4 {
        let kind = r.i8()?;
        Asked { kind, keys: r.array(1, Reader::string)? }
    } else {
        let keys = vec![r.string()?];
        Asked { kind: if request.version >= 1 { r.i8()? } else { GROUP }, keys }
    };
    r.tags()?;
    Ok(asked)
}

/// FindCoordinator 0-6, flexible from 3.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let (code, why) = match asked.kind {
        GROUP | TRANSACTION => (Code::CoordinatorNotAvailable, "no coordinator is up"),
        _ => (Code::InvalidRequest, "the key type is 0 (group) or 1 (transaction)"),
    };
    let (code, why, nobody) = (code.wire(), StrBytes::from_static_str(why), BrokerId(-1));
    let answer = FindCoordinatorResponse::default().with_error_message(None);
    let answer = if request.version >= 4 {
        let one = |key| {
            let coordinator = Coordinator::default().with_key(key).with_node_id(nobody).with_port(-1);
            coordinator.with_error_code(code).with_error_message(Some(why.clone()))
        };
        answer.with_coordinators(asked.keys.into_iter().map(one).collect())
    } else {
        let why = (request.version >= 1).then_some(why);
        answer.with_error_code(code).with_error_message(why).with_node_id(nobody).with_port(-1)
    };
    respond(&answer, request.version)
}
