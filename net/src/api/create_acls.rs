//! CreateAcls: each is refused with SECURITY_DISABLED (`describe_acls.rs`), so that nobody relies on it.

use super::describe_acls::disabled;
use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use kafka_protocol::messages::create_acls_response::{AclCreationResult, CreateAclsResponse};

/// How many are asked for.
fn read(request: &Request) -> Result<usize, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let creations = messages::structs(&mut r, 8, |r| {
        let _resource = (r.i8()?, r.string()?, r.i8()?);
        let _who = (r.string()?, r.string()?);
        let _what = (r.i8()?, r.i8()?);
        Ok(())
    })?;
    r.tags()?;
    Ok(creations.len())
}

/// CreateAcls 1-3, flexible from 2.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let count = match read(request) {
        Ok(count) => count,
        Err(fault) => return fault.into(),
    };
    let fault = disabled();
    let one = AclCreationResult::default().with_error_code(fault.code.wire()).with_error_message(fault.message());
    respond(&CreateAclsResponse::default().with_results(vec![one; count]), request.version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::CreateAclsRequest;
    use kafka_protocol::messages::create_acls_request::AclCreation;
    use kafka_protocol::protocol::StrBytes;

    fn question(count: usize) -> CreateAclsRequest {
        let one = AclCreation::default()
            .with_resource_type(2)
            .with_resource_name(StrBytes::from_static_str("t"))
            .with_resource_pattern_type(3)
            .with_principal(StrBytes::from_static_str("User:alice"))
            .with_host(StrBytes::from_static_str("*"))
            .with_operation(3)
            .with_permission_type(2);
        CreateAclsRequest::default().with_creations(vec![one; count])
    }

    /// An operator would believe somebody kept out who is not.
    #[test]
    fn every_version_refuses_each_acl() {
        for version in 1..=3 {
            for count in [0, 1, 3] {
                let answer: CreateAclsResponse = World::new().call(handle, version, &question(count));
                assert_eq!(answer.results.len(), count);
                let refused = |r: &AclCreationResult| r.error_code == 54 && r.error_message.is_some();
                assert!(answer.results.iter().all(refused));
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=3, |version| encoded(&question(2), version));
    }
}
