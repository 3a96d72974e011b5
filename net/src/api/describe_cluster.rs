//! DescribeCluster: the brokers, for admin clients that have no use for topics.

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
            let me = BrokerId(ctx.settings.broker.0);
            let broker = DescribeClusterBroker::default()
                .with_broker_id(me)
                .with_host(StrBytes::from_string(request.advertised.0.clone()))
                .with_port(i32::from(request.advertised.1))
                .with_rack(ctx.settings.rack.clone().map(StrBytes::from_string));
            let answer = answer
                .with_cluster_id(StrBytes::from_string(ctx.settings.cluster_id.clone()))
                .with_controller_id(me)
                .with_brokers(vec![broker]);
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
