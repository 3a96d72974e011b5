//! ListConfigResources: what there is that has settings.

use super::describe_configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::list_config_resources_response::{ConfigResource, ListConfigResourcesResponse};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

/// In the order in which they are listed.
const KINDS: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];

/// The kinds that are asked for, each once.
fn read(request: &Request) -> Result<BTreeSet<i8>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    // Version 0 was ListClientMetricsResources.
    let kinds = if request.version >= 1 { r.array(1, Reader::i8)? } else { vec![CLIENT_METRICS] };
    r.tags()?;
    Ok(if kinds.is_empty() { KINDS.into() } else { kinds.into_iter().collect() })
}

/// ListConfigResources 0-1, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let kinds = match read(request) {
        Ok(kinds) => kinds,
        Err(fault) => return fault.into(),
    };
    let answer = ListConfigResourcesResponse::default();
    let answer = if kinds.iter().all(|kind| KINDS.contains(kind)) {
        answer.with_config_resources(kinds.into_iter().flat_map(|kind| resources(ctx, kind)).collect())
    } else {
        answer.with_error_code(Code::UnsupportedVersion.wire())
    };
    respond(&answer, request.version)
}

/// No logger, no group and no client has settings of its own.
fn resources(ctx: &Ctx<'_>, kind: i8) -> Vec<ConfigResource> {
    let named = |name: String| {
        ConfigResource::default().with_resource_name(StrBytes::from_string(name)).with_resource_type(kind)
    };
    match kind {
        TOPIC => ctx.image.topics().map(|topic| named(topic.name.clone())).collect(),
        BROKER => ctx.replicas().into_iter().map(|broker| named(broker.to_string())).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::ListConfigResourcesRequest;

    fn ask(world: &mut World, version: i16, kinds: &[i8]) -> (i16, Vec<(String, i8)>) {
        let question = ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec());
        let answer: ListConfigResourcesResponse = world.call(handle, version, &question);
        let one = |r: &ConfigResource| (r.resource_name.to_string(), r.resource_type);
        (answer.error_code, answer.config_resources.iter().map(one).collect())
    }

    fn owned(expected: &[(&str, i8)]) -> Vec<(String, i8)> {
        expected.iter().map(|(name, kind)| (name.to_string(), *kind)).collect()
    }

    /// A tool that copies a cluster's settings would leave some behind.
    #[test]
    fn topics_and_brokers_are_listed_by_kind() {
        let topics = owned(&[("compact", 2), ("dark", 2), ("t", 2)]);
        let brokers = owned(&[("2", 4), ("4", 4), ("7", 4)]);
        let mut world = World::of_three();
        assert_eq!(ask(&mut world, 1, &[TOPIC]), (0, topics.clone()));
        assert_eq!(ask(&mut world, 1, &[BROKER, BROKER]), (0, brokers.clone()));
        let both = [topics, brokers].concat();
        assert_eq!(ask(&mut world, 1, &[BROKER, TOPIC]), (0, both.clone()));
        assert_eq!(ask(&mut world, 1, &[]), (0, both));
        assert_eq!(ask(&mut world, 1, &[BROKER_LOGGER, CLIENT_METRICS, GROUP]), (0, vec![]));
        assert_eq!(ask(&mut world, 0, &[]), (0, vec![]));
    }

    /// A kind that nobody knows would pass for one of which there is nothing.
    #[test]
    fn an_unknown_kind_is_refused() {
        for kinds in [&[0][..], &[TOPIC, 3], &[-1], &[99]] {
            assert_eq!(ask(&mut World::new(), 1, kinds), (35, vec![]), "{kinds:?}");
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=1, |version| {
            let kinds = if version >= 1 { vec![TOPIC, BROKER] } else { vec![] };
            encoded(&ListConfigResourcesRequest::default().with_resource_types(kinds), version)
        });
    }
}
