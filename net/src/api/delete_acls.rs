//! DeleteAcls: each filter is answered with SECURITY_DISABLED (`describe_acls.rs`).

use super::describe_acls::{disabled, read_filter};
use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use kafka_protocol::messages::delete_acls_response::{DeleteAclsFilterResult, DeleteAclsResponse};

/// How many filters there are.
fn read(request: &Request) -> Result<usize, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let filters = messages::structs(&mut r, 8, read_filter)?;
    r.tags()?;
    Ok(filters.len())
}

/// DeleteAcls 1-3, flexible from 2.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let count = match read(request) {
        Ok(count) => count,
        Err(fault) => return fault.into(),
    };
    let fault = disabled();
    let one = DeleteAclsFilterResult::default().with_error_code(fault.code.wire()).with_error_message(fault.message());
    respond(&DeleteAclsResponse::default().with_filter_results(vec![one; count]), request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DeleteAclsRequest;
    use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
    use kafka_protocol::protocol::StrBytes;

    fn question(count: usize) -> DeleteAclsRequest {
        let one = DeleteAclsFilter::default()
            .with_resource_type_filter(1)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(1)
            .with_principal_filter(Some(StrBytes::from_static_str("User:alice")))
            .with_host_filter(None)
            .with_operation(1)
            .with_permission_type(1);
        DeleteAclsRequest::default().with_filters(vec![one; count])
    }

    /// An operator would believe a right taken back that everybody has.
    #[test]
    fn every_version_refuses_each_filter() {
        for version in 1..=3 {
            for count in [0, 1, 3] {
                let answer: DeleteAclsResponse = World::new().call(handle, version, &question(count));
                assert_eq!(answer.filter_results.len(), count);
                for result in answer.filter_results {
                    assert_eq!((result.error_code, result.matching_acls.len()), (54, 0));
                    assert!(result.error_message.is_some_and(|m| !m.is_empty()));
                }
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=3, |version| encoded(&question(2), version));
    }
}
