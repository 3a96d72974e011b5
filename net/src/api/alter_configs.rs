//! AlterConfigs: replaces the whole set of a topic's settings. (IncrementalAlterConfigs changes single ones.)

use super::describe_configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, is_me, unknown_kind};
use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::{Command, Decided, Done, State, Topic};
use kafka_protocol::messages::alter_configs_response::{AlterConfigsResourceResponse, AlterConfigsResponse};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;

/// What a request wants to change.
pub(super) struct Asked<Change> {
    resources: Vec<Resource<Change>>,
    validate_only: bool,
}

/// Of this type and name, in these ways.
struct Resource<Change> {
    kind: i8,
    name: StrBytes,
    changes: Vec<Change>,
}

struct Set {
    key: StrBytes,
    value: Option<StrBytes>,
}

/// Each change takes `bytes_min` at least and is read by `change`.
pub(super) fn read<'a, Change>(
    mut r: Reader<'a>,
    bytes_min: usize,
    mut change: impl FnMut(&mut Reader<'a>) -> Result<Change, Malformed>,
) -> Result<Asked<Change>, Malformed> {
    let resources = messages::structs(&mut r, 3, |r| {
        let (kind, name) = (r.i8()?, r.string()?);
        Ok(Resource { kind, name, changes: messages::structs(r, bytes_min, &mut change)? })
    })?;
    let validate_only = r.bool()?;
    r.tags()?;
    Ok(Asked { resources, validate_only })
}

/// AlterConfigs 0-2, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let r = Reader::new(&request.body, request.version >= 2);
    let asked = match read(r, 2, |r| Ok(Set { key: r.string()?, value: r.nullable_string()? })) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let version = request.version;
    alter(ctx, asked, replaced, move |altered| {
        let one = |altered: Altered| {
            let (code, message) = messages::told(&altered.result);
            AlterConfigsResourceResponse::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_resource_type(altered.kind)
                .with_resource_name(altered.name)
        };
        let responses = altered.into_iter().map(one).collect();
        respond(&AlterConfigsResponse::default().with_responses(responses), version)
    })
}

/// What is named is set; what is set now and not named goes back to its default.
fn replaced(topic: &Topic, changes: &[Set]) -> Result<BTreeMap<String, Option<String>>, Fault> {
    let mut set: BTreeMap<String, Option<String>> = topic.configs.keys().map(|key| (key.clone(), None)).collect();
    for change in changes {
        let Some(value) = &change.value else {
            return Err(Fault::invalid_request(format!("the setting '{}' has no value", messages::shown(&change.key))));
        };
        set.insert(change.key.to_string(), Some(value.to_string()));
    }
    Ok(set)
}

/// What became of one resource.
pub(super) struct Altered {
    pub kind: i8,
    pub name: StrBytes,
    pub result: Result<(), Fault>,
}

/// A change that names its key.
pub(super) trait Keyed {
    fn key(&self) -> &StrBytes;
}

impl Keyed for Set {
    fn key(&self) -> &StrBytes {
        &self.key
    }
}

/// Makes a command of each resource's changes, puts them to the meta shard, and answers. All changes of a resource
/// happen, or none of them.
///
/// A command says what a topic's settings are to be, worked out from what they are as this core knows it: of two
/// changes of one key that cross on their way, the later one stands.
pub(super) fn alter<Change: Keyed>(
    ctx: &mut Ctx<'_>,
    Asked { resources, validate_only }: Asked<Change>,
    plan: impl Fn(&Topic, &[Change]) -> Result<BTreeMap<String, Option<String>>, Fault>,
    reply: impl FnOnce(Vec<Altered>) -> Outcome + 'static,
) -> Outcome {
    let named: Vec<(i8, StrBytes)> = resources.iter().map(|resource| (resource.kind, resource.name.clone())).collect();
    let twice = messages::named_twice(named.iter());
    let mut commands = Vec::new();
    let judged = resources.into_iter().zip(named).map(|(resource, named)| {
        let result = if twice.contains(&named) {
            Err(Fault::invalid_request("the request names this resource more than once"))
        } else {
            command(ctx, &resource, &plan).map(|command| commands.push(command))
        };
        Altered { kind: resource.kind, name: resource.name, result }
    });
    let mut judged: Vec<Altered> = judged.collect();
    if validate_only || commands.is_empty() {
        return reply(judged);
    }
    Outcome::Meta(
        commands,
        Box::new(move |_, decided| {
            let asked = judged.iter_mut().filter(|altered| altered.result.is_ok());
            for (altered, decided) in asked.zip(decided) {
                altered.result = done(decided);
            }
            reply(judged)
        }),
    )
}

fn command<Change: Keyed>(
    ctx: &Ctx<'_>,
    resource: &Resource<Change>,
    plan: impl Fn(&Topic, &[Change]) -> Result<BTreeMap<String, Option<String>>, Fault>,
) -> Result<Command, Fault> {
    let topic = match resource.kind {
        TOPIC => messages::topic(ctx, &resource.name)?,
        BROKER => {
            if !resource.name.is_empty() {
                is_me(ctx, &resource.name)?;
            }
            let why = "a broker's settings can not be changed while it runs: they are in its settings file";
            return Err(Fault::invalid_request(why));
        }
        BROKER_LOGGER | CLIENT_METRICS | GROUP => {
            let why = "no logger, group or client has settings of its own in this version of Camus";
            return Err(Fault::invalid_request(why));
        }
        other => return Err(unknown_kind(other)),
    };
    if let Some(key) = messages::named_twice(resource.changes.iter().map(Keyed::key)).first() {
        let why = format!("the setting '{}' is named more than once", messages::shown(key));
        return Err(Fault::invalid_request(why));
    }
    let command = Command::AlterTopicConfigs { id: topic.id, set: plan(topic, &resource.changes)? };
    State::check(ctx.image, &command).map_err(|refused| Fault::from(&refused))?;
    Ok(command)
}

fn done(decided: Decided) -> Result<(), Fault> {
    match decided {
        Ok(Done::ConfigsAltered { .. }) => Ok(()),
        Err(refused) => match Fault::from(&refused) {
            // It was found by its name, and is gone.
            Fault { code: Code::UnknownTopicId, why } => Err(Fault::new(Code::UnknownTopicOrPartition, why)),
            fault => Err(fault),
        },
        Ok(other) => unreachable!("AlterTopicConfigs is decided as ConfigsAltered, not as {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_meta::Refused;
    use kafka_protocol::messages::AlterConfigsRequest;
    use kafka_protocol::messages::alter_configs_request::{AlterConfigsResource, AlterableConfig};

    fn resource(kind: i8, name: &'static str, sets: &[(&'static str, Option<&'static str>)]) -> AlterConfigsResource {
        let set = |(key, value): &(&'static str, Option<&'static str>)| {
            let config = AlterableConfig::default().with_name(StrBytes::from_static_str(key));
            config.with_value(value.map(StrBytes::from_static_str))
        };
        AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(StrBytes::from_static_str(name))
            .with_configs(sets.iter().map(set).collect())
    }

    fn alter(world: &mut World, version: i16, resources: Vec<AlterConfigsResource>) -> Vec<(i8, String, i16)> {
        let question = AlterConfigsRequest::default().with_resources(resources);
        told(world.call(handle, version, &question))
    }

    fn told(answer: AlterConfigsResponse) -> Vec<(i8, String, i16)> {
        let one = |r: AlterConfigsResourceResponse| {
            assert_eq!(r.error_code != 0, r.error_message.is_some_and(|m| !m.is_empty()));
            (r.resource_type, r.resource_name.to_string(), r.error_code)
        };
        answer.responses.into_iter().map(one).collect()
    }

    fn configs(world: &World, topic: &str) -> Vec<(String, String)> {
        world.image.topic(topic).expect(topic).configs.clone().into_iter().collect()
    }

    /// A setting that the client meant to be rid of would stay.
    #[test]
    fn every_version_replaces_the_whole_set() {
        for version in 0..=2 {
            let mut world = World::with_state();
            let first = resource(2, "t", &[("retention.ms", Some("111")), ("segment.ms", Some("222"))]);
            assert_eq!(alter(&mut world, version, vec![first]), [(2, "t".into(), 0)]);
            let second = resource(2, "t", &[("retention.ms", Some("333"))]);
            assert_eq!(alter(&mut world, version, vec![second]), [(2, "t".into(), 0)]);
            assert_eq!(configs(&world, "t"), [("retention.ms".into(), "333".into())]);
            assert_eq!(alter(&mut world, version, vec![resource(2, "t", &[])]), [(2, "t".into(), 0)]);
            assert_eq!(configs(&world, "t"), []);
            assert_eq!(configs(&world, "compact").len(), 1);
        }
    }

    /// One bad resource would spoil the others, or half of it would apply.
    #[test]
    fn each_resource_is_judged_on_its_own_and_all_or_nothing() {
        let mut world = World::with_state();
        let resources = vec![
            resource(2, "t", &[("retention.ms", Some("5")), ("no.such.key", Some("1"))]),
            resource(2, "compact", &[("retention.ms", None)]),
            resource(2, "nope", &[]),
            resource(2, "a b", &[]),
            resource(2, "dark", &[("retention.ms", Some("5"))]),
            resource(4, "4", &[("num.partitions", Some("5"))]),
            resource(4, "", &[]),
            resource(4, "7", &[]),
            resource(4, "x", &[]),
            resource(99, "t", &[]),
            resource(8, "4", &[("root", Some("DEBUG"))]),
            resource(16, "m", &[("interval.ms", Some("1000"))]),
            resource(32, "g", &[("consumer.session.timeout.ms", Some("45000"))]),
        ];
        let codes: Vec<i16> = alter(&mut world, 2, resources).into_iter().map(|(_, _, code)| code).collect();
        assert_eq!(codes, [40, 42, 3, 17, 0, 42, 42, 42, 42, 42, 42, 42, 42]);
        assert_eq!(configs(&world, "t"), []);
        assert_eq!(configs(&world, "dark").len(), 1);
    }

    /// Which of two wishes would hold?
    #[test]
    fn what_is_named_twice_is_refused() {
        let mut world = World::with_state();
        let twice = || resource(2, "t", &[("retention.ms", Some("5"))]);
        let key_twice = resource(2, "dark", &[("retention.ms", Some("1")), ("retention.ms", Some("2"))]);
        let codes: Vec<i16> =
            alter(&mut world, 0, vec![twice(), twice(), key_twice]).into_iter().map(|t| t.2).collect();
        assert_eq!(codes, [42, 42, 42]);
        assert!(world.commands.is_empty());
    }

    /// A rehearsal would change the topic.
    #[test]
    fn validate_only_changes_nothing() {
        for version in 0..=2 {
            let mut world = World::with_state();
            let good = resource(2, "t", &[("retention.ms", Some("5"))]);
            let bad = resource(2, "dark", &[("retention.ms", Some("abc"))]);
            let question = AlterConfigsRequest::default().with_resources(vec![good, bad]).with_validate_only(true);
            let codes: Vec<i16> = told(world.call(handle, version, &question)).into_iter().map(|t| t.2).collect();
            assert_eq!(codes, [0, 40]);
            assert!(world.commands.is_empty());
        }
    }

    /// A topic that went meanwhile is unknown by the name that was asked for.
    #[test]
    fn a_topic_that_is_gone_by_the_decision_is_unknown() {
        let mut world = World::new();
        world.decide = Box::new(|_| Err(Refused::UnknownTopicId));
        let answers = alter(&mut world, 2, vec![resource(2, "a b", &[]), resource(2, "t", &[])]);
        assert_eq!(answers.into_iter().map(|t| t.2).collect::<Vec<_>>(), [17, 3]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| {
            let resources = vec![resource(2, "t", &[("retention.ms", Some("5"))]), resource(4, "4", &[])];
            encoded(&AlterConfigsRequest::default().with_resources(resources), version)
        });
    }
}
