//! IncrementalAlterConfigs: sets single settings, takes them back, or changes what a list holds.

use super::alter_configs::{Altered, Keyed, alter, read};
use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Reader, respond};
use crate::errors::Code;
use camus_meta::Topic;
use camus_meta::configs::{self, ConfigError};
use kafka_protocol::messages::incremental_alter_configs_response::{
    AlterConfigsResourceResponse, IncrementalAlterConfigsResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;

/// Kafka's `AlterConfigOp.OpType`.
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

struct Change {
    key: StrBytes,
    operation: i8,
    value: Option<StrBytes>,
}

impl Keyed for Change {
    fn key(&self) -> &StrBytes {
        &self.key
    }
}

/// IncrementalAlterConfigs 0-1, flexible from 1.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let r = Reader::new(&request.body, request.version >= 1);
    let change = |r: &mut Reader<'_>| Ok(Change { key: r.string()?, operation: r.i8()?, value: r.nullable_string()? });
    let asked = match read(r, 3, change) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    alter(ctx, asked, changed, move |altered| {
        let one = |altered: Altered| {
            let (code, message) = messages::told(&altered.result);
            AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(altered.kind)
                .with_resource_name(altered.name)
        };
        let responses = altered.into_iter().map(one).collect();
        respond(&IncrementalAlterConfigsResponse::default().with_responses(responses), version)
    })
}

/// What the keys that are named are to be.
fn changed(topic: &Topic, changes: &[Change]) -> Result<BTreeMap<String, Option<String>>, Fault> {
    let refused = |why: ConfigError| Fault::new(Code::InvalidConfig, why.to_string());
    let mut set = BTreeMap::new();
    for change in changes {
        let key = messages::shown(&change.key);
        let value = || {
            let value = change.value.as_ref().map(StrBytes::as_str);
            value.ok_or_else(|| Fault::invalid_request(format!("the change of '{key}' has no value")))
        };
        let new = match change.operation {
            SET => Some(value()?.to_string()),
            DELETE => None,
            APPEND => Some(configs::appended(&topic.configs, &change.key, value()?).map_err(refused)?),
            SUBTRACT => Some(configs::subtracted(&topic.configs, &change.key, value()?).map_err(refused)?),
            other => {
                let why = format!(
                    "the change of '{key}' is of kind {other}: there are SET 0, DELETE 1, APPEND 2, SUBTRACT 3"
                );
                return Err(Fault::invalid_request(why));
            }
        };
        set.insert(change.key.to_string(), new);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::IncrementalAlterConfigsRequest;
    use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};

    type Op = (&'static str, i8, Option<&'static str>);

    fn question(name: &'static str, ops: &[Op]) -> IncrementalAlterConfigsRequest {
        let op = |(key, operation, value): &Op| {
            let config = AlterableConfig::default().with_name(StrBytes::from_static_str(key));
            config.with_config_operation(*operation).with_value(value.map(StrBytes::from_static_str))
        };
        let resource = AlterConfigsResource::default().with_resource_type(2);
        let resource = resource.with_resource_name(StrBytes::from_static_str(name));
        IncrementalAlterConfigsRequest::default()
            .with_resources(vec![resource.with_configs(ops.iter().map(op).collect())])
    }

    fn alter(world: &mut World, version: i16, name: &'static str, ops: &[Op]) -> i16 {
        let answer: IncrementalAlterConfigsResponse = world.call(handle, version, &question(name, ops));
        let [one] = &answer.responses[..] else { panic!("{answer:?}") };
        assert_eq!((one.resource_type, one.resource_name.as_str()), (2, name));
        assert_eq!(one.error_code != 0, one.error_message.as_ref().is_some_and(|m| !m.is_empty()));
        one.error_code
    }

    fn value(world: &World, key: &str) -> Option<String> {
        world.image.topic("t").expect("t").configs.get(key).cloned()
    }

    /// Settings that the change does not name would change with it.
    #[test]
    fn every_version_sets_and_takes_back_single_keys() {
        for version in 0..=1 {
            let mut world = World::with_state();
            assert_eq!(alter(&mut world, version, "t", &[("retention.ms", SET, Some("111"))]), 0);
            assert_eq!(alter(&mut world, version, "t", &[("segment.ms", SET, Some("222"))]), 0);
            assert_eq!(value(&world, "retention.ms").as_deref(), Some("111"));
            assert_eq!(alter(&mut world, version, "t", &[("retention.ms", DELETE, None)]), 0);
            assert_eq!((value(&world, "retention.ms"), value(&world, "segment.ms").as_deref()), (None, Some("222")));
        }
    }

    /// A list would lose what it held, its default included.
    #[test]
    fn lists_are_appended_to_and_subtracted_from() {
        let mut world = World::with_state();
        let steps = [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact,delete", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "delete", "compact"),
            (APPEND, " delete ", "compact,delete"),
        ];
        for (operation, with, after) in steps {
            assert_eq!(alter(&mut world, 1, "t", &[("cleanup.policy", operation, Some(with))]), 0);
            assert_eq!(value(&world, "cleanup.policy").as_deref(), Some(after), "{operation} {with}");
        }
    }

    /// Half of a change would apply, or a wrong one all of it.
    #[test]
    fn a_bad_change_is_refused_whole() {
        let bad: [(Op, i16); 9] = [
            (("no.such.key", SET, Some("1")), 40),
            (("no.such.key", APPEND, Some("1")), 40),
            (("retention.ms", SET, Some("abc")), 40),
            (("cleanup.policy", SET, Some("shred")), 40),
            (("retention.ms", APPEND, Some("5")), 40),
            (("retention.ms", SUBTRACT, Some("5")), 40),
            (("retention.ms", SET, None), 42),
            (("cleanup.policy", APPEND, None), 42),
            (("retention.ms", 9, Some("5")), 42),
        ];
        for (op, code) in bad {
            let mut world = World::with_state();
            assert_eq!(alter(&mut world, 1, "t", &[("segment.ms", SET, Some("777")), op]), code, "{op:?}");
            assert!(world.commands.is_empty() && value(&world, "segment.ms").is_none());
        }
        let mut world = World::with_state();
        assert_eq!(alter(&mut world, 0, "nope", &[("retention.ms", SET, Some("5"))]), 3);
        let twice = [("retention.ms", SET, Some("1")), ("retention.ms", SET, Some("2"))];
        assert_eq!(alter(&mut world, 0, "t", &twice), 42);
    }

    /// A rehearsal would change the topic.
    #[test]
    fn validate_only_changes_nothing() {
        for version in 0..=1 {
            for (value, code) in [("123", 0), ("abc", 40)] {
                let mut world = World::with_state();
                let question = question("t", &[("retention.ms", SET, Some(value))]).with_validate_only(true);
                let answer: IncrementalAlterConfigsResponse = world.call(handle, version, &question);
                assert_eq!(answer.responses[0].error_code, code);
                assert!(world.commands.is_empty());
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=1, |version| {
            encoded(
                &question("t", &[("retention.ms", SET, Some("5")), ("cleanup.policy", APPEND, Some("compact"))]),
                version,
            )
        });
    }
}
