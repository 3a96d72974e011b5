//! DescribeAcls: who may do what. There are no ACLs yet: everybody may do everything, and Kafka's word for that is
//! SECURITY_DISABLED. An empty list would say that nobody may do anything, or that there is something to add to.

use super::messages::Fault;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::describe_acls_response::DescribeAclsResponse;

/// What all requests about ACLs are told.
pub(super) fn disabled() -> Fault {
    Fault::new(Code::SecurityDisabled, "this version of Camus has no ACLs: everybody may do everything")
}

/// A filter: of resources, of principals and hosts, of operations and permissions.
pub(super) fn read_filter(r: &mut Reader<'_>) -> Result<(), Malformed> {
    let _resource = (r.i8()?, r.nullable_string()?, r.i8()?);
    let _who = (r.nullable_string()?, r.nullable_string()?);
    let _what = (r.i8()?, r.i8()?);
    Ok(())
}

fn read(request: &Request) -> Result<(), Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    read_filter(&mut r)?;
    r.tags()
}

/// DescribeAcls 1-3, flexible from 2.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    if let Err(fault) = read(request) {
        return fault.into();
    }
    let fault = disabled();
    let answer = DescribeAclsResponse::default().with_error_code(fault.code.wire());
    respond(&answer.with_error_message(fault.message()), request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DescribeAclsRequest;
    use kafka_protocol::protocol::StrBytes;

    fn question() -> DescribeAclsRequest {
        DescribeAclsRequest::default()
            .with_resource_type_filter(2)
            .with_resource_name_filter(Some(StrBytes::from_static_str("t")))
            .with_pattern_type_filter(1)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(1)
            .with_permission_type(1)
    }

    /// An operator would take an open cluster for one in which nobody has any right.
    #[test]
    fn every_version_says_that_there_are_no_acls() {
        for version in 1..=3 {
            let answer: DescribeAclsResponse = World::new().call(handle, version, &question());
            assert_eq!((answer.error_code, answer.resources.len()), (54, 0));
            assert!(answer.error_message.is_some_and(|m| !m.is_empty()));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=3, |version| encoded(&question(), version));
    }
}
