//! FindCoordinator: which broker serves a group or a transactional id.
//!
//! Every group, and every transactional id, is served by the broker that leads the metadata. Transactions are not there
//! yet, and InitProducerId says so at once: a client that was told to come again for its coordinator would try until
//! its time is over, and then not know why.

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
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let coordinator = ctx
        .controller()
        .and_then(|leader| ctx.reachable(&request.advertised).into_iter().find(|broker| broker.id == leader));
    let (code, why) = match (asked.kind, coordinator) {
        (GROUP | TRANSACTION, Some(broker)) => return found(broker.id, broker.at, request, asked.keys),
        (GROUP | TRANSACTION, None) => (Code::CoordinatorNotAvailable, "no broker leads the metadata now"),
        (_, _) => (Code::InvalidRequest, "the key type is 0 (group) or 1 (transaction)"),
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

/// The coordinator of these keys, and how a client reaches it.
fn found(id: camus_engine::types::BrokerId, at: (String, u16), request: &Request, keys: Vec<StrBytes>) -> Outcome {
    let (host, port) = (StrBytes::from_string(at.0), i32::from(at.1));
    let me = BrokerId(id.0);
    let answer = FindCoordinatorResponse::default().with_error_message(None);
    let answer = if request.version >= 4 {
        let one = |key| {
            let coordinator = Coordinator::default().with_key(key).with_node_id(me).with_error_message(None);
            coordinator.with_host(host.clone()).with_port(port)
        };
        answer.with_coordinators(keys.into_iter().map(one).collect())
    } else {
        answer.with_node_id(me).with_host(host).with_port(port)
    };
    respond(&answer, request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::FindCoordinatorRequest;

    fn question(version: i16, kind: i8) -> FindCoordinatorRequest {
        let question = FindCoordinatorRequest::default().with_key_type(if version >= 1 { kind } else { 0 });
        match version {
            ..4 => question.with_key(StrBytes::from_static_str("a")),
            4.. => question.with_coordinator_keys(vec![StrBytes::from_static_str("a"), StrBytes::from_static_str("b")]),
        }
    }

    /// A group whose members ask different brokers is two groups.
    #[test]
    fn every_group_is_coordinated_by_this_broker_as_the_client_reaches_it() {
        for version in 0..=6 {
            let answer: FindCoordinatorResponse = World::new().call(handle, version, &question(version, 0));
            let here = ("broker.example", 9093, 4, 0);
            if version < 4 {
                let told = (answer.host.as_str(), answer.port, answer.node_id.0, answer.error_code);
                assert!(answer.error_message.is_none_or(|why| why.is_empty()));
                assert_eq!(told, here);
            } else {
                let told = answer.coordinators.iter().map(|c| {
                    (c.key.as_str(), (c.host.as_str(), c.port, c.node_id.0, c.error_code), c.error_message.is_none())
                });
                assert_eq!(told.collect::<Vec<_>>(), [("a", here, true), ("b", here, true)]);
            }
        }
    }

    /// A group whose members are sent to different brokers is two groups.
    #[test]
    fn in_a_cluster_every_group_is_coordinated_by_the_broker_that_leads_the_metadata() {
        for version in 0..=6 {
            let mut world = World::of_three();
            let answer: FindCoordinatorResponse = world.call(handle, version, &question(version, 0));
            let there = ("other-7.example", 9097, 7, 0);
            if version < 4 {
                assert_eq!((answer.host.as_str(), answer.port, answer.node_id.0, answer.error_code), there);
            } else {
                let told = &answer.coordinators[0];
                assert_eq!((told.host.as_str(), told.port, told.node_id.0, told.error_code), there);
            }
            world.shards.set_leader(camus_engine::types::META_SHARD, None);
            let answer: FindCoordinatorResponse = world.call(handle, version, &question(version, 0));
            let code = if version < 4 { answer.error_code } else { answer.coordinators[0].error_code };
            assert_eq!(code, 15, "nobody leads it now: come again");
        }
    }

    /// A transactional client that is told to come again hangs until its time is over.
    #[test]
    fn a_transactional_id_has_the_coordinator_of_groups() {
        for version in 1..=6 {
            let told =
                |kind| -> FindCoordinatorResponse { World::new().call(handle, version, &question(version, kind)) };
            assert_eq!(told(1), told(0), "v{version}");
        }
    }

    /// A client that is sent to a node for a kind that there is not would ask that node for ever.
    #[test]
    fn a_key_of_a_kind_that_there_is_not_is_refused() {
        for version in 1..=6 {
            for (kind, code) in [(2, 42), (9, 42), (-1, 42)] {
                let answer: FindCoordinatorResponse = World::new().call(handle, version, &question(version, kind));
                if version < 4 {
                    assert_eq!(
                        (answer.error_code, answer.node_id.0, answer.host.as_str(), answer.port),
                        (code, -1, "", -1)
                    );
                    assert_eq!(answer.error_message.is_some_and(|m| !m.is_empty()), version >= 1);
                } else {
                    let told = answer.coordinators.iter().map(|c| (c.key.as_str(), c.error_code, c.node_id.0, c.port));
                    assert_eq!(told.collect::<Vec<_>>(), [("a", code, -1, -1), ("b", code, -1, -1)]);
                }
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=6, |version| encoded(&question(version, 0), version));
    }
}
