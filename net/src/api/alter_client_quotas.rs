//! AlterClientQuotas: Camus has no quotas. One that is set is refused, so that nobody relies on it; one that is taken
//! back was never there.

use super::describe_client_quotas::known;
use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::alter_client_quotas_response::{AlterClientQuotasResponse, EntityData, EntryData};
use kafka_protocol::protocol::StrBytes;

/// What is to be for one entity.
struct Entry {
    /// (type, name); null is the default.
    entity: Vec<(StrBytes, Option<StrBytes>)>,
    /// A value is set, not only taken back.
    sets: bool,
}

fn read(request: &Request) -> Result<Vec<Entry>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 1);
    let entries = messages::structs(&mut r, 3, |r| {
        let entity = messages::structs(r, 3, |r| Ok((r.string()?, r.nullable_string()?)))?;
        let removes = messages::structs(r, 11, |r| {
            let (_key, _value) = (r.string()?, r.i64()?);
            r.bool()
        })?;
        Ok(Entry { entity, sets: removes.contains(&false) })
    })?;
    let _validate_only = r.bool()?;
    r.tags()?;
    Ok(entries)
}

/// AlterClientQuotas 0-1, flexible from 1.
pub fn handle(_: &mut Ctx<'_>, request: &Request) -> Outcome {
    let entries = match read(request) {
        Ok(entries) => entries,
        Err(fault) => return fault.into(),
    };
    let one = |entry: Entry| {
        let (code, message) = messages::told(&judge(&entry));
        let part = |(kind, name)| EntityData::default().with_entity_type(kind).with_entity_name(name);
        EntryData::default()
            .with_error_code(code)
            .with_error_message(message)
            .with_entity(entry.entity.into_iter().map(part).collect())
    };
    let entries = entries.into_iter().map(one).collect();
    respond(&AlterClientQuotasResponse::default().with_entries(entries), request.version)
}

fn judge(entry: &Entry) -> Result<(), Fault> {
    if entry.entity.is_empty() {
        return Err(Fault::invalid_request("a quota is for somebody"));
    }
    entry.entity.iter().try_for_each(|(kind, _)| known(kind))?;
    if entry.sets {
        return Err(Fault::new(Code::UnsupportedVersion, "this version of Camus has no client quotas"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::AlterClientQuotasRequest;
    use kafka_protocol::messages::alter_client_quotas_request::{EntityData as Entity, EntryData as Wish, OpData};

    fn wish(entity: &[(&'static str, Option<&'static str>)], removes: &[bool]) -> Wish {
        let part = |(kind, name): &(&'static str, Option<&'static str>)| {
            let part = Entity::default().with_entity_type(StrBytes::from_static_str(kind));
            part.with_entity_name(name.map(StrBytes::from_static_str))
        };
        let op = |remove: &bool| {
            let op = OpData::default().with_key(StrBytes::from_static_str("producer_byte_rate"));
            op.with_value(1024.0).with_remove(*remove)
        };
        Wish::default().with_entity(entity.iter().map(part).collect()).with_ops(removes.iter().map(op).collect())
    }

    /// An operator would believe a client held back that is not.
    #[test]
    fn every_version_refuses_to_set_a_quota_and_has_none_to_take_back() {
        let wishes = vec![
            wish(&[("user", Some("u")), ("client-id", None)], &[true, false]),
            wish(&[("user", Some("u"))], &[true]),
            wish(&[("ip", None)], &[]),
            wish(&[("tenant", None)], &[true]),
            wish(&[], &[true]),
        ];
        for version in 0..=1 {
            for validate_only in [false, true] {
                let asked = AlterClientQuotasRequest::default().with_entries(wishes.clone());
                let asked = asked.with_validate_only(validate_only);
                let answer: AlterClientQuotasResponse = World::new().call(handle, version, &asked);
                let codes: Vec<i16> = answer.entries.iter().map(|entry| entry.error_code).collect();
                assert_eq!(codes, [35, 0, 0, 35, 42]);
                let entity = &answer.entries[0].entity;
                let names: Vec<_> = entity.iter().map(|e| (e.entity_type.as_str(), e.entity_name.is_some())).collect();
                assert_eq!(names, [("user", true), ("client-id", false)]);
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=1, |version| {
            let wishes = vec![wish(&[("user", Some("u"))], &[false]), wish(&[("ip", None)], &[true])];
            encoded(&AlterClientQuotasRequest::default().with_entries(wishes), version)
        });
    }
}
