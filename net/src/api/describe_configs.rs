//! DescribeConfigs: the settings of topics and of the broker, each with where its value comes from.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use camus_meta::configs::{self, Described, Synonym};
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

/// Kafka's `ConfigResource.Type`.
pub(super) const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const BROKER_LOGGER: i8 = 8;
pub(super) const CLIENT_METRICS: i8 = 16;
pub(super) const GROUP: i8 = 32;

/// What one answer may take in memory while it is made, bytes: here a few bytes ask for kilobytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

struct Asked {
    resources: Vec<Wanted>,
    synonyms: bool,
    documentation: bool,
}

struct Wanted {
    kind: i8,
    name: StrBytes,
    /// `None`: all.
    keys: Option<BTreeSet<String>>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 4);
    let resources = messages::structs(&mut r, 3, |r| {
        let (kind, name) = (r.i8()?, r.string()?);
        let keys = r.nullable_array(1, Reader::string)?;
        // No key at all means every key, as in Kafka.
        Ok(Wanted {
            kind,
            name,
            keys: keys.filter(|keys| !keys.is_empty()).map(|keys| keys.iter().map(StrBytes::to_string).collect()),
        })
    })?;
    let synonyms = r.bool()?;
    let documentation = request.version >= 3 && r.bool()?;
    r.tags()?;
    Ok(Asked { resources, synonyms, documentation })
}

/// DescribeConfigs 1-4, flexible from 4.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let named: Vec<(i8, StrBytes)> = asked.resources.iter().map(|wanted| (wanted.kind, wanted.name.clone())).collect();
    let twice = messages::named_twice(named.iter());
    let broker = messages::broker_settings(ctx);
    let mut bytes_left = ANSWER_BYTES_MAX;
    let results = asked.resources.iter().zip(&named).map(|(wanted, name)| {
        let settings = if twice.contains(name) {
            Err(Fault::invalid_request("the request names this resource more than once"))
        } else {
            settings(ctx, wanted, &broker)
        };
        let configs = settings.and_then(|settings| {
            let settings =
                settings.into_iter().filter(|s| wanted.keys.as_ref().is_none_or(|keys| keys.contains(s.name)));
            let configs: Vec<_> = settings.map(|setting| config(setting, &asked, request.version)).collect();
            bytes_left = bytes_left.checked_sub(configs.iter().map(bytes).sum()).ok_or_else(|| {
                Fault::invalid_request("the answer would be too large: ask for fewer resources at once")
            })?;
            Ok(configs)
        });
        let (code, message) = messages::told(&configs);
        DescribeConfigsResult::default()
            .with_error_code(code)
            .with_error_message(message)
            .with_resource_type(wanted.kind)
            .with_resource_name(wanted.name.clone())
            .with_configs(configs.unwrap_or_default())
    });
    let results = results.collect();
    respond(&DescribeConfigsResponse::default().with_results(results), request.version)
}

fn settings(ctx: &Ctx<'_>, wanted: &Wanted, broker: &[(&str, String)]) -> Result<Vec<Described>, Fault> {
    match wanted.kind {
        TOPIC => Ok(configs::describe(&messages::topic(ctx, &wanted.name)?.configs, broker)),
        // The defaults that brokers share and that can be changed while they run: there are none.
        BROKER if wanted.name.is_empty() => Ok(Vec::new()),
        BROKER => is_me(ctx, &wanted.name).map(|()| configs::describe_broker(broker)),
        // No logger, group or client has a setting of its own.
        BROKER_LOGGER => is_me(ctx, &wanted.name).map(|()| Vec::new()),
        CLIENT_METRICS | GROUP if wanted.name.is_empty() => Err(Fault::invalid_request("the resource has no name")),
        CLIENT_METRICS | GROUP => Ok(Vec::new()),
        other => Err(unknown_kind(other)),
    }
}

pub(super) fn unknown_kind(kind: i8) -> Fault {
    Fault::invalid_request(format!(
        "settings are those of a topic (2), a broker (4), its loggers (8), client metrics (16) or a group (32), not of \
         type {kind}"
    ))
}

/// The name of a broker resource is its id, and a broker speaks for itself.
pub(super) fn is_me(ctx: &Ctx<'_>, name: &str) -> Result<(), Fault> {
    let me = ctx.settings.broker;
    match name.parse::<i32>() {
        Ok(id) if id == me.0 => Ok(()),
        Ok(id) => Err(Fault::invalid_request(format!("this is broker {me}, not {id}"))),
        Err(_) => Err(Fault::invalid_request(format!("'{}' is not the id of a broker", messages::shown(name)))),
    }
}

fn config(setting: Described, asked: &Asked, version: i16) -> DescribeConfigsResourceResult {
    let synonym = |synonym: Synonym| {
        DescribeConfigsSynonym::default()
            .with_name(StrBytes::from_static_str(synonym.name))
            .with_value(synonym.value.map(StrBytes::from_string))
            .with_source(synonym.source.code())
    };
    let synonyms = if asked.synonyms { setting.synonyms.into_iter().map(synonym).collect() } else { Vec::new() };
    DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_static_str(setting.name))
        .with_value(setting.value.map(StrBytes::from_string))
        .with_read_only(setting.read_only)
        .with_config_source(setting.source.code())
        .with_is_sensitive(setting.sensitive)
        .with_synonyms(synonyms)
        .with_config_type(if version >= 3 { setting.kind.code() } else { 0 })
        .with_documentation(asked.documentation.then_some(StrBytes::from_static_str(setting.doc)))
}

/// What a setting takes while the answer is made. (Names and documentation are ours, and static.)
fn bytes(config: &DescribeConfigsResourceResult) -> usize {
    let text = |text: &Option<StrBytes>| text.as_ref().map_or(0, |text| text.len());
    let synonym = |s: &DescribeConfigsSynonym| size_of::<DescribeConfigsSynonym>() + text(&s.value);
    let written = config.name.len() + text(&config.documentation);
    size_of_val(config) + written + text(&config.value) + config.synonyms.iter().map(synonym).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage, topic};
    use super::*;
    use camus_meta::Image;
    use kafka_protocol::messages::DescribeConfigsRequest;
    use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
    use std::sync::Arc;

    fn resource(kind: i8, name: &str, keys: Option<&[&'static str]>) -> DescribeConfigsResource {
        let keys = keys.map(|keys| keys.iter().map(|key| StrBytes::from_static_str(key)).collect());
        DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(StrBytes::from_string(name.into()))
            .with_configuration_keys(keys)
    }

    fn ask(version: i16, synonyms: bool, resources: Vec<DescribeConfigsResource>) -> Vec<DescribeConfigsResult> {
        let question = DescribeConfigsRequest::default().with_resources(resources).with_include_synonyms(synonyms);
        let answer: DescribeConfigsResponse = World::new().call(handle, version, &question);
        answer.results
    }

    fn find<'a>(result: &'a DescribeConfigsResult, name: &str) -> &'a DescribeConfigsResourceResult {
        result.configs.iter().find(|config| config.name.as_str() == name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn text(text: &Option<StrBytes>) -> &str {
        text.as_ref().map_or("(null)", StrBytes::as_str)
    }

    /// Schema Registry and Connect refuse to start where cleanup.policy is missing or has a wrong source.
    #[test]
    fn every_version_describes_all_settings_of_a_topic_with_their_sources() {
        for version in 1..=4 {
            let results = ask(version, false, vec![resource(TOPIC, "compact", None)]);
            let [result] = &results[..] else { panic!("{results:?}") };
            assert_eq!((result.error_code, result.resource_type, result.resource_name.as_str()), (0, TOPIC, "compact"));
            let set = find(result, "cleanup.policy");
            assert_eq!((text(&set.value), set.config_source), ("compact", 1));
            let default = find(result, "retention.ms");
            assert_eq!((text(&default.value), default.config_source), ("604800000", 5));
            let kinds = (set.config_type, default.config_type);
            assert_eq!(kinds, if version >= 3 { (7, 5) } else { (0, 0) });
            for config in &result.configs {
                assert!(config.synonyms.is_empty() && !config.is_sensitive);
                assert!(version < 3 || config.documentation.is_none());
            }
            let names: BTreeSet<&str> = result.configs.iter().map(|config| config.name.as_str()).collect();
            assert_eq!(names.len(), result.configs.len(), "each once");
        }
    }

    /// A console that asks for one setting would be flooded, or one that asks for all would get none.
    #[test]
    fn only_the_keys_that_were_asked_for_come_back() {
        for version in 1..=4 {
            let keys = |keys: &[&'static str]| {
                let results = ask(version, false, vec![resource(TOPIC, "t", Some(keys))]);
                assert_eq!(results[0].error_code, 0);
                results[0].configs.iter().map(|config| config.name.to_string()).collect::<Vec<_>>()
            };
            assert_eq!(keys(&["cleanup.policy"]), ["cleanup.policy"]);
            assert_eq!(keys(&["retention.ms", "no.such.key", "retention.ms"]), ["retention.ms"]);
            assert!(keys(&["no.such.key"]).is_empty());
            assert!(keys(&[]).len() > 20);
        }
    }

    /// Consoles show where a value comes from by this chain.
    #[test]
    fn synonyms_run_from_the_topics_own_value_down_to_the_default() {
        for version in 1..=4 {
            let results = ask(version, true, vec![resource(TOPIC, "compact", Some(&["cleanup.policy"]))]);
            let synonyms = &find(&results[0], "cleanup.policy").synonyms;
            let first = synonyms.first().expect("a chain");
            assert_eq!((first.name.as_str(), text(&first.value), first.source), ("cleanup.policy", "compact", 1));
            let last = synonyms.last().expect("a chain");
            assert_eq!((text(&last.value), last.source), ("delete", 5));
        }
    }

    /// KIP-569: clients show this text.
    #[test]
    fn documentation_comes_on_request() {
        for version in 3..=4 {
            let question = DescribeConfigsRequest::default()
                .with_resources(vec![resource(TOPIC, "t", None), resource(BROKER, "4", None)])
                .with_include_documentation(true);
            let answer: DescribeConfigsResponse = World::new().call(handle, version, &question);
            for config in answer.results.iter().flat_map(|result| &result.configs) {
                assert!(config.documentation.as_ref().is_some_and(|d| !d.is_empty()), "{}", config.name.as_str());
            }
        }
    }

    /// A broker would speak for another, or for none.
    #[test]
    fn a_broker_describes_itself_only() {
        for version in 1..=4 {
            let names = ["4", "", "7", "x", "not-a-number"];
            let results = ask(version, true, names.map(|name| resource(BROKER, name, None)).to_vec());
            assert_eq!(results.iter().map(|result| result.error_code).collect::<Vec<_>>(), [0, 0, 42, 42, 42]);
            assert_eq!(text(&find(&results[0], "num.partitions").value), "6");
            assert_eq!(text(&find(&results[0], "message.max.bytes").value), "1048588");
            assert!(results[0].configs.iter().all(|config| config.read_only));
        }
    }

    /// Tools that show everything that can be set ask for these too, and would stop at an error.
    #[test]
    fn what_has_no_settings_of_its_own_is_described_with_none() {
        let of = [(BROKER_LOGGER, "4"), (GROUP, "g"), (CLIENT_METRICS, "m")];
        for version in 1..=4 {
            let results = ask(version, true, of.map(|(kind, name)| resource(kind, name, None)).to_vec());
            assert!(results.iter().all(|result| result.error_code == 0 && result.configs.is_empty()));
            let bad = [(BROKER_LOGGER, "7"), (BROKER_LOGGER, ""), (GROUP, ""), (CLIENT_METRICS, "")];
            let results = ask(version, true, bad.map(|(kind, name)| resource(kind, name, None)).to_vec());
            assert!(results.iter().all(|result| result.error_code == 42));
        }
    }

    /// One bad resource would spoil the others.
    #[test]
    fn each_resource_is_answered_under_its_own_name() {
        let keys = Some(&["cleanup.policy"][..]);
        let names = [(TOPIC, "t"), (TOPIC, "nope"), (TOPIC, "a b"), (99, "t"), (TOPIC, "dark"), (TOPIC, "dark")];
        let results = ask(4, false, names.map(|(kind, name)| resource(kind, name, keys)).to_vec());
        let told = results.iter().map(|r| (r.resource_type, r.resource_name.as_str(), r.error_code, r.configs.len()));
        let expected = [
            (2, "t", 0, 1),
            (2, "nope", 3, 0),
            (2, "a b", 17, 0),
            (99, "t", 42, 0),
            (2, "dark", 42, 0),
            (2, "dark", 42, 0),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert!(results.iter().all(|r| (r.error_code != 0) == r.error_message.as_ref().is_some_and(|m| !m.is_empty())));
    }

    /// A few bytes for each topic would make the broker write kilobytes for each: as many as there are topics.
    #[test]
    fn the_answer_has_a_largest_size() {
        let mut world = World::new();
        let names: Vec<String> = (0..20_000).map(|n| format!("topic-{n}")).collect();
        let topics = names.iter().zip(1..).map(|(name, id)| topic(name, id, 1, &[]));
        world.image = Arc::new(Image::of(1, "cluster-1", topics));
        let question = DescribeConfigsRequest::default()
            .with_resources(names.iter().map(|name| resource(TOPIC, name, None)).collect())
            .with_include_synonyms(true)
            .with_include_documentation(true);
        let body = encoded(&question, 4);
        let answer = world.run(handle, 4, body).expect("answered");
        assert!(answer.len() <= ANSWER_BYTES_MAX + (4 << 20), "{} bytes", answer.len());
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=4, |version| {
            let resources = vec![resource(TOPIC, "t", Some(&["retention.ms"])), resource(BROKER, "4", None)];
            encoded(&DescribeConfigsRequest::default().with_resources(resources), version)
        });
    }
}
