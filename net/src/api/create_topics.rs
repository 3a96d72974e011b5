//! CreateTopics: new topics, each judged on its own.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::configs;
use camus_meta::{Command, Decided, Done, State};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeMap;
use uuid::Uuid;

struct Asked {
    topics: Vec<Wanted>,
    validate_only: bool,
}

struct Wanted {
    name: StrBytes,
    partitions: i32,
    replication_factor: i16,
    /// (partition number, brokers); empty where the broker is to choose.
    assignments: Vec<(i32, Vec<i32>)>,
    configs: Vec<(StrBytes, Option<StrBytes>)>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 5);
    let topics = messages::structs(&mut r, 9, |r| {
        Ok(Wanted {
            name: r.string()?,
            partitions: r.i32()?,
            replication_factor: r.i16()?,
            assignments: messages::structs(r, 5, |r| Ok((r.i32()?, r.array(4, Reader::i32)?)))?,
            configs: messages::structs(r, 2, |r| Ok((r.string()?, r.nullable_string()?)))?,
        })
    })?;
    let _timeout_ms = r.i32()?;
    let validate_only = r.bool()?;
    r.tags()?;
    Ok(Asked { topics, validate_only })
}

/// What a topic will be like.
struct Plan {
    partitions: u32,
    replication_factor: i16,
    configs: BTreeMap<String, String>,
}

/// Topics of one request whose settings are told in the answer: they are kilobytes for each.
const DESCRIBED_MAX: usize = 1000;

/// CreateTopics 2-7, flexible from 5.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { topics, validate_only } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let mut commands = Vec::new();
    let mut room = messages::PARTITIONS_PER_REQUEST_MAX;
    let topic = |wanted: &Wanted| {
        let plan = plan(ctx, wanted)?;
        let command = Command::CreateTopic {
            name: wanted.name.to_string(),
            id: messages::random_id(ctx),
            partitions: plan.partitions,
            replication_factor: plan.replication_factor,
            configs: plan.configs.clone(),
        };
        // What can not be done is not put to the meta shard: it would cost a write for nothing.
        State::check(ctx.image, &command).map_err(|refused| Fault::from(&refused))?;
        messages::take_room(&mut room, plan.partitions as usize)?;
        commands.push(command);
        Ok(plan)
    };
    let slots = messages::each_named_once(topics, |wanted| &wanted.name, topic);
    let version = request.version;
    if validate_only || commands.is_empty() {
        return reply(ctx, version, slots, None);
    }
    Outcome::Meta(commands, Box::new(move |ctx, decided| reply(ctx, version, slots, Some(decided))))
}

/// Puts in the defaults. Every check that needs no metadata is here; the others are the state machine's.
fn plan(ctx: &Ctx<'_>, wanted: &Wanted) -> Result<Plan, Fault> {
    if let Some(fault) = messages::name_fault(&wanted.name) {
        return Err(fault);
    }
    let (partitions, replication_factor) = if wanted.assignments.is_empty() {
        let partitions = match wanted.partitions {
            -1 => ctx.settings.num_partitions.max(1),
            1.. => wanted.partitions,
            other => {
                let why = format!("the number of partitions is positive, or -1 for the broker's default, not {other}");
                return Err(Fault::new(Code::InvalidPartitions, why));
            }
        };
        let replication_factor = match wanted.replication_factor {
            -1 => ctx.settings.default_replication_factor.max(1),
            1.. => wanted.replication_factor,
            other => {
                let why = format!("the replication factor is positive, or -1 for the broker's default, not {other}");
                return Err(Fault::new(Code::InvalidReplicationFactor, why));
            }
        };
        (partitions as u32, replication_factor)
    } else {
        if (wanted.partitions, wanted.replication_factor) != (-1, -1) {
            let why = "where the replicas are given, partitions and replication factor are -1";
            return Err(Fault::invalid_request(why));
        }
        assigned(ctx, &wanted.assignments)?
    };
    let mut configs = BTreeMap::new();
    for (name, value) in &wanted.configs {
        let Some(value) = value else {
            let why = format!("the setting '{}' has no value", messages::shown(name));
            return Err(Fault::new(Code::InvalidConfig, why));
        };
        configs.insert(name.to_string(), value.to_string());
    }
    Ok(Plan { partitions, replication_factor, configs })
}

/// The number of partitions and of replicas of a manual assignment.
fn assigned(ctx: &Ctx<'_>, assignments: &[(i32, Vec<i32>)]) -> Result<(u32, i16), Fault> {
    let refuse = |why: String| Fault::new(Code::InvalidReplicaAssignment, why);
    let mut numbers: Vec<i32> = assignments.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    if !numbers.iter().zip(0..).all(|(number, expected)| *number == expected) {
        return Err(refuse("the partitions of an assignment are 0, 1, 2 and so on, each once".into()));
    }
    for (number, brokers) in assignments {
        messages::live_once(ctx, brokers).map_err(|why| refuse(format!("partition {number}: {why}")))?;
        if brokers.len() != assignments[0].1.len() {
            return Err(refuse("all partitions have the same number of replicas".into()));
        }
    }
    Ok((assignments.len() as u32, assignments[0].1.len() as i16))
}

fn reply(
    ctx: &Ctx<'_>,
    version: i16,
    slots: Vec<(StrBytes, Result<Plan, Fault>)>,
    decided: Option<Vec<Decided>>,
) -> Outcome {
    let mut decided = decided.map(Vec::into_iter);
    let broker = messages::broker_settings(ctx);
    let mut described = 0;
    let topics = slots.into_iter().map(|(name, planned)| {
        let made = planned.and_then(|plan| match &mut decided {
            None => Ok((plan, Uuid::nil())),
            Some(decided) => match decided.next() {
                Some(Ok(Done::TopicCreated { id, .. })) => Ok((plan, id)),
                Some(Err(refused)) => Err(Fault::from(&refused)),
                other => unreachable!("a CreateTopic is decided as TopicCreated, not as {other:?}"),
            },
        });
        let (code, message) = messages::told(&made);
        let answer = CreatableTopicResult::default()
            .with_name(TopicName(name))
            .with_error_code(code)
            .with_error_message(message);
        match made {
            Ok((plan, id)) if version >= 5 => {
                let answer = answer
                    .with_topic_id(if version >= 7 { id } else { Uuid::nil() })
                    .with_num_partitions(plan.partitions as i32)
                    .with_replication_factor(plan.replication_factor);
                described += 1;
                if described <= DESCRIBED_MAX {
                    answer.with_configs(Some(effective(&plan.configs, &broker)))
                } else {
                    answer.with_configs(None).with_topic_config_error_code(Code::PolicyViolation.wire())
                }
            }
            Ok(_) | Err(_) => answer,
        }
    });
    respond(&CreateTopicsResponse::default().with_topics(topics.collect()), version)
}

/// Every setting that the topic has, with its source.
fn effective(configs: &BTreeMap<String, String>, broker: &[(&str, String)]) -> Vec<CreatableTopicConfigs> {
    let entry = |config: configs::Described| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(config.name))
            .with_value(config.value.map(StrBytes::from_string))
            .with_read_only(config.read_only)
            .with_config_source(config.source.code())
            .with_is_sensitive(config.sensitive)
    };
    configs::describe(configs, broker).into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_meta::Refused;
    use kafka_protocol::messages::create_topics_request::{
        CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
    };

    fn topic(name: &str, partitions: i32, replication_factor: i16, configs: &[(&str, Option<&str>)]) -> CreatableTopic {
        let text = |text: &str| StrBytes::from_string(text.into());
        let config = |(name, value): &(&str, Option<&str>)| {
            CreatableTopicConfig::default().with_name(text(name)).with_value(value.map(text))
        };
        CreatableTopic::default()
            .with_name(TopicName(text(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(replication_factor)
            .with_configs(configs.iter().map(config).collect())
    }

    fn assigned(assignments: &[(i32, &[i32])]) -> CreatableTopic {
        let one = |(number, brokers): &(i32, &[i32])| {
            let brokers = brokers.iter().map(|broker| (*broker).into()).collect();
            CreatableReplicaAssignment::default().with_partition_index(*number).with_broker_ids(brokers)
        };
        topic("new", -1, -1, &[]).with_assignments(assignments.iter().map(one).collect())
    }

    fn create(world: &mut World, version: i16, topics: Vec<CreatableTopic>) -> Vec<CreatableTopicResult> {
        let answer: CreateTopicsResponse =
            world.call(handle, version, &CreateTopicsRequest::default().with_topics(topics));
        answer.topics
    }

    fn codes(answers: &[CreatableTopicResult]) -> Vec<(&str, i16)> {
        answers.iter().map(|topic| (topic.name.as_str(), topic.error_code)).collect()
    }

    /// A topic other than the one asked for would be made, or its answer read in a wrong layout.
    #[test]
    fn every_version_creates_the_topic_and_tells_what_it_is_like() {
        for version in 2..=7 {
            let mut world = World::with_state();
            let asked = topic("new", 3, 1, &[("retention.ms", Some("3600000"))]);
            let answers = create(&mut world, version, vec![asked]);
            let [answer] = &answers[..] else { panic!("{answers:?}") };
            assert_eq!((answer.name.as_str(), answer.error_code, &answer.error_message), ("new", 0, &None));
            let made = world.image.topic("new").expect("it is there");
            assert_eq!((made.partitions.len(), made.replication_factor), (3, 1));
            assert_eq!(made.configs.get("retention.ms").map(String::as_str), Some("3600000"));
            assert_eq!(made.id.get_version_num(), 4);
            assert_eq!(answer.topic_id, if version >= 7 { made.id } else { Uuid::nil() });
            if version >= 5 {
                assert_eq!((answer.num_partitions, answer.replication_factor), (3, 1));
                let configs = answer.configs.as_ref().expect("configs");
                let config = |name: &str| configs.iter().find(|c| c.name.as_str() == name).expect("every setting");
                let set = config("retention.ms");
                assert_eq!((set.value.as_ref().map(|v| v.as_str()), set.config_source), (Some("3600000"), 1));
                let default = config("cleanup.policy");
                assert_eq!((default.value.as_ref().map(|v| v.as_str()), default.config_source), (Some("delete"), 5));
                assert!(configs.iter().all(|c| !c.is_sensitive && !c.read_only) && configs.len() >= 20);
            }
        }
    }

    /// Kafka Streams sends -1 and believes the numbers that come back.
    #[test]
    fn minus_one_means_the_brokers_defaults_and_comes_back_as_real_numbers() {
        let answers = create(&mut World::with_state(), 7, vec![topic("new", -1, -1, &[])]);
        assert_eq!((answers[0].error_code, answers[0].num_partitions, answers[0].replication_factor), (0, 6, 2));
        let answers = create(&mut World::with_state(), 7, vec![topic("new", -1, 3, &[])]);
        assert_eq!((answers[0].error_code, answers[0].num_partitions, answers[0].replication_factor), (0, 6, 3));
    }

    /// A rehearsal would make a topic.
    #[test]
    fn validate_only_answers_the_same_and_makes_nothing() {
        for version in 2..=7 {
            let mut world = World::with_state();
            let topics =
                vec![topic("new", 2, 1, &[]), topic("t", 2, 1, &[]), topic("bad", 2, 1, &[("no.such", Some("1"))])];
            let question = CreateTopicsRequest::default().with_topics(topics).with_validate_only(true);
            let answer: CreateTopicsResponse = world.call(handle, version, &question);
            assert_eq!(codes(&answer.topics), [("new", 0), ("t", 36), ("bad", 40)]);
            assert_eq!(answer.topics[0].num_partitions, if version >= 5 { 2 } else { -1 });
            assert!(world.commands.is_empty() && world.image.topic("new").is_none());
        }
    }

    /// One bad topic would spoil the others, or go through.
    #[test]
    fn each_topic_is_judged_on_its_own() {
        let mut world = World::with_state();
        let x250 = "x".repeat(250);
        let topics = vec![
            topic("good", 1, 1, &[]),
            topic("none", 0, 1, &[]),
            topic("negative", -2, 1, &[]),
            topic("least", i32::MIN, 1, &[]),
            topic("too-many", i32::MAX, 1, &[]),
            topic("no-copy", 1, 0, &[]),
            topic("fewer", 1, -2, &[]),
            topic("a b", 1, 1, &[]),
            topic("", 1, 1, &[]),
            topic("..", 1, 1, &[]),
            topic(&x250, 1, 1, &[]),
            topic("t", 1, 1, &[]),
            topic("unknown-key", 1, 1, &[("no.such.config", Some("1"))]),
            topic("bad-value", 1, 1, &[("retention.ms", Some("abc"))]),
            topic("null-value", 1, 1, &[("retention.ms", None)]),
        ];
        let answers = create(&mut world, 5, topics);
        let expected = [
            ("good", 0),
            ("none", 37),
            ("negative", 37),
            ("least", 37),
            ("too-many", 37),
            ("no-copy", 38),
            ("fewer", 38),
            ("a b", 17),
            ("", 17),
            ("..", 17),
            (&x250, 17),
            ("t", 36),
            ("unknown-key", 40),
            ("bad-value", 40),
            ("null-value", 40),
        ];
        assert_eq!(codes(&answers), expected);
        assert!(answers[1..].iter().all(|topic| topic.error_message.as_ref().is_some_and(|m| !m.is_empty())));
        assert_eq!(world.commands.len(), 1, "what can not be done is not written to the metadata's log");
        assert_eq!(world.image.topics().count(), 4);
    }

    /// A request of a few kilobytes would fill the cluster, or be answered with gigabytes.
    #[test]
    fn a_request_makes_and_describes_only_so_much() {
        let topics = [("a", 6000), ("b", 5000), ("c", 4000), ("d", 1)].map(|(name, count)| topic(name, count, 1, &[]));
        let answers = create(&mut World::with_state(), 7, topics.to_vec());
        assert_eq!(codes(&answers), [("a", 0), ("b", 44), ("c", 0), ("d", 44)]);

        let topics = (0..1002).map(|n| topic(&format!("n{n}"), 1, 1, &[])).collect();
        let answers = create(&mut World::with_state(), 7, topics);
        assert!(answers.iter().all(|topic| topic.error_code == 0 && topic.num_partitions == 1));
        assert!(answers[..1000].iter().all(|topic| topic.topic_config_error_code == 0 && topic.configs.is_some()));
        assert!(answers[1000..].iter().all(|topic| topic.topic_config_error_code == 44 && topic.configs.is_none()));
    }

    /// Two wishes for one name: neither is served, and clients that look answers up by name find one.
    #[test]
    fn a_name_that_stands_twice_is_refused_once() {
        for version in 2..=7 {
            let mut world = World::with_state();
            let topics = vec![topic("new", 1, 1, &[]), topic("other", 1, 1, &[]), topic("new", 2, 1, &[])];
            assert_eq!(codes(&create(&mut world, version, topics)), [("new", 42), ("other", 0)]);
            assert!(world.image.topic("new").is_none());
        }
    }

    /// Replicas would be believed on brokers that hold none.
    #[test]
    fn a_manual_assignment_is_followed_or_refused() {
        let me: &[i32] = &[4];
        let cases = [
            (assigned(&[(0, me), (1, me)]), 0),
            (assigned(&[(1, me), (0, me)]), 0),
            (assigned(&[(0, me), (2, me)]), 39),
            (assigned(&[(1, me)]), 39),
            (assigned(&[(0, me), (0, me)]), 39),
            (assigned(&[(-1, me)]), 39),
            (assigned(&[(0, &[])]), 39),
            (assigned(&[(0, &[5])]), 39),
            (assigned(&[(0, &[4, 4])]), 39),
            (assigned(&[(0, me)]).with_num_partitions(1), 42),
            (assigned(&[(0, me)]).with_replication_factor(1), 42),
        ];
        for (asked, code) in cases {
            let answers = create(&mut World::with_state(), 7, vec![asked.clone()]);
            assert_eq!(answers[0].error_code, code, "{asked:?}");
            if code == 0 {
                assert_eq!((answers[0].num_partitions, answers[0].replication_factor), (2, 1));
            }
        }
    }

    /// The command was put, and nobody can say what became of it: the client has to ask again.
    #[test]
    fn without_a_leader_of_the_metadata_the_code_is_retriable() {
        for version in 2..=7 {
            let mut world = World::new();
            world.decide = Box::new(|_| Err(Refused::Unavailable { why: "no leader".into() }));
            let answers = create(&mut world, version, vec![topic("new", 1, 1, &[])]);
            assert_eq!((answers[0].error_code, answers[0].num_partitions), (7, -1));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 2..=7, |version| {
            let topics = vec![topic("new", 1, 1, &[("retention.ms", Some("1"))]), assigned(&[(0, &[4])])];
            encoded(&CreateTopicsRequest::default().with_topics(topics), version)
        });
    }
}
