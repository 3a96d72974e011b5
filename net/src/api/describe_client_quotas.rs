//! DescribeClientQuotas: what clients are held to. Camus has no quotas, so that nothing ever matches.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::describe_client_quotas_response::DescribeClientQuotasResponse;
use kafka_protocol::protocol::StrBytes;

/// What a quota can be for. Sources: KIP-546, KIP-612.
const ENTITIES: [&str; 3] = ["user", "client-id", "ip"];

/// How a filter's name is meant.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const ANY: i8 = 2;

/// A part of the filter: one kind of entity.
struct Component {
    entity: StrBytes,
    kind: i8,
    name: Option<StrBytes>,
}

fn read(request: &Request) -> Result<Vec<Component>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 1);
    let components = messages::structs(&mut r, 4, |r| {
        Ok(Component { entity: r.string()?, kind: r.i8()?, name: r.nullable_string()? })
    })?;
    let _strict = r.bool()?;
    r.tags()?;
    Ok(components)
}

/// DescribeClientQuotas 0-1, flexible from 1.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let components = match read(request) {
        Ok(components) => components,
        Err(fault) => return fault.into(),
    };
    let judged = judge(&components);
    let (code, message) = messages::told(&judged);
    let answer = DescribeClientQuotasResponse::default()
        .with_error_code(code)
        .with_error_message(message)
        .with_entries(judged.is_ok().then(Vec::new));
    respond(&answer, request.version)
}

/// A filter that can not be meant is refused as in Kafka, though nothing could match it.
fn judge(components: &[Component]) -> Result<(), Fault> {
    if let Some(twice) = messages::named_twice(components.iter().map(|component| &component.entity)).first() {
        return Err(Fault::invalid_request(format!("the filter names '{}' more than once", messages::shown(twice))));
    }
    for Component { entity, kind, name } in components {
        known(entity)?;
        match (*kind, name) {
            (EXACT, Some(_)) | (DEFAULT | ANY, None) => {}
            (EXACT, None) => return Err(Fault::invalid_request("an exact filter has a name")),
            (DEFAULT | ANY, Some(_)) => return Err(Fault::invalid_request("only an exact filter has a name")),
            (other, _) => {
                let why = format!("a filter is exact (0), for the default (1) or for any name (2), not {other}");
                return Err(Fault::invalid_request(why));
            }
        }
    }
    let of_address = components.iter().any(|component| component.entity.as_str() == "ip");
    if of_address && components.len() > 1 {
        return Err(Fault::invalid_request("quotas of addresses have nothing to do with users and client ids"));
    }
    Ok(())
}

/// Whether a quota can be for such an entity.
pub(super) fn known(entity: &StrBytes) -> Result<(), Fault> {
    match entity.as_str() {
        "" => Err(Fault::invalid_request("an entity has a type")),
        entity if ENTITIES.contains(&entity) => Ok(()),
        other => {
            let why = format!("quotas are for a user, a client-id or an ip, not for '{}'", messages::shown(other));
            Err(Fault::new(Code::UnsupportedVersion, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::DescribeClientQuotasRequest;
    use kafka_protocol::messages::describe_client_quotas_request::ComponentData;

    type Part = (&'static str, i8, Option<&'static str>);

    fn question(components: &[Part]) -> DescribeClientQuotasRequest {
        let one = |(entity, kind, name): &Part| {
            let component = ComponentData::default().with_entity_type(StrBytes::from_static_str(entity));
            component.with_match_type(*kind).with_match(name.map(StrBytes::from_static_str))
        };
        DescribeClientQuotasRequest::default().with_components(components.iter().map(one).collect())
    }

    /// Consoles ask for this on their first page; a limit that does not exist would be looked for in vain.
    #[test]
    fn every_version_finds_no_quota() {
        let filters: [&[Part]; 4] = [
            &[],
            &[("user", EXACT, Some("u"))],
            &[("user", ANY, None), ("client-id", DEFAULT, None)],
            &[("ip", EXACT, Some("192.0.2.1"))],
        ];
        for version in 0..=1 {
            for filter in filters {
                let answer: DescribeClientQuotasResponse = World::new().call(handle, version, &question(filter));
                assert_eq!((answer.error_code, answer.error_message, answer.entries), (0, None, Some(vec![])));
            }
        }
    }

    /// A filter that is misspelt would find nothing, and look as if there were nothing.
    #[test]
    fn a_filter_that_can_not_be_meant_is_refused() {
        let filters: [(&[Part], i16); 7] = [
            (&[("", ANY, None)], 42),
            (&[("tenant", ANY, None)], 35),
            (&[("user", ANY, None), ("user", DEFAULT, None)], 42),
            (&[("user", EXACT, None)], 42),
            (&[("user", ANY, Some("u"))], 42),
            (&[("user", 3, None)], 42),
            (&[("ip", ANY, None), ("user", ANY, None)], 42),
        ];
        for version in 0..=1 {
            for (filter, code) in filters {
                let answer: DescribeClientQuotasResponse = World::new().call(handle, version, &question(filter));
                assert_eq!((answer.error_code, answer.entries), (code, None), "{filter:?}");
                assert!(answer.error_message.is_some_and(|m| !m.is_empty()));
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=1, |version| {
            encoded(&question(&[("user", EXACT, Some("u")), ("client-id", ANY, None)]), version)
        });
    }
}
