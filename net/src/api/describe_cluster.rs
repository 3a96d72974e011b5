//! DescribeCluster: the brokers, for admin clients that have no use for topics.

use super::ctx::Reachable;
use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::messages::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;

const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

struct Asked {
    operations: bool,
    endpoint: i8,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let operations = r.bool()?;
    let endpoint = if request.version >= 1 { r.i8()? } else { BROKERS };
    if request.version >= 2 {
        // No broker is ever fenced here.
        let _fenced_too = r.bool()?;
    }
    r.tags()?;
    Ok(Asked { operations, endpoint })
}

/// DescribeCluster 0-2, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let answer = DescribeClusterResponse::default()
        .with_endpoint_type(asked.endpoint)
        .with_error_message(None)
        .with_controller_id(BrokerId(-1))
        .with_cluster_authorized_operations(messages::OPERATIONS_OMITTED);
    let refused = |code: Code, why: &'static str| {
        answer.clone().with_error_code(code.wire()).with_error_message(Some(StrBytes::from_static_str(why)))
    };
    let answer = match asked.endpoint {
        BROKERS => {
            let reachable = ctx.reachable(&request.advertised);
            let brokers = reachable.into_iter().map(|Reachable { id, at: (host, port), rack }| {
                DescribeClusterBroker::default()
                    .with_broker_id(BrokerId(id.0))
                    .with_host(StrBytes::from_string(host))
                    .with_port(i32::from(port))
                    .with_rack(rack.map(StrBytes::from_string))
            });
            let answer = answer
                .with_cluster_id(StrBytes::from_string(ctx.settings.cluster_id.clone()))
                .with_controller_id(BrokerId(ctx.controller_id()))
                .with_brokers(brokers.collect());
            if asked.operations {
                answer.with_cluster_authorized_operations(messages::CLUSTER_OPERATIONS)
            } else {
                answer
            }
        }
        CONTROLLERS => refused(Code::MismatchedEndpointType, "controllers have no listener of their own"),
        _ => refused(Code::UnsupportedEndpointType, "the endpoint type is 1 (brokers) or 2 (controllers)"),
    };
    respond(&answer, request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DescribeClusterRequest;

    /// An admin client that gets no broker here finds none at all.
    #[test]
    fn every_version_names_the_cluster_and_its_broker() {
        for version in 0..=2 {
            for operations in [false, true] {
                let question = DescribeClusterRequest::default().with_include_cluster_authorized_operations(operations);
                let answer: DescribeClusterResponse = World::new().call(handle, version, &question);
                assert_eq!((answer.error_code, answer.error_message, answer.endpoint_type), (0, None, 1));
                assert_eq!((answer.cluster_id.as_str(), answer.controller_id.0), ("cluster-1", 4));
                assert_eq!(answer.cluster_authorized_operations, if operations { 8096 } else { i32::MIN });
                let [broker] = &answer.brokers[..] else { panic!("one broker: {:?}", answer.brokers) };
                assert_eq!((broker.broker_id.0, broker.host.as_str(), broker.port), (4, "broker.example", 9093));
                assert_eq!((broker.rack.as_ref().map(|r| r.as_str()), broker.is_fenced), (Some("rack-2"), false));
            }
        }
    }

    /// A client that looks for controllers would take brokers for them.
    #[test]
    fn endpoints_of_another_type_are_refused() {
        for version in 1..=2 {
            for (endpoint, code) in [(2, 114), (0, 115), (3, 115), (99, 115), (-1, 115)] {
                let question = DescribeClusterRequest::default().with_endpoint_type(endpoint);
                let answer: DescribeClusterResponse = World::new().call(handle, version, &question);
                assert_eq!((answer.error_code, answer.endpoint_type), (code, endpoint));
                assert!(answer.error_message.is_some_and(|m| !m.is_empty()) && answer.brokers.is_empty());
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| encoded(&DescribeClusterRequest::default(), version));
    }
}
