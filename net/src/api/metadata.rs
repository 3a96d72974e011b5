//! Metadata: which topics there are, where their partitions are led, and which brokers there are.
//!
//! A (topic id, partition, leader epoch) names one leader for ever: the epoch is the term in which a broker leads the
//! shard, and where no leader is known nothing is guessed. Each broker has a copy of everything, and votes: all of them
//! are replicas, and all are in sync, as far as no acknowledgement needs more than a majority (docs/adr/0005).

use super::ctx::Reachable;
use super::messages::{self, OPERATIONS_OMITTED, TOPIC_OPERATIONS};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, meta_code};
use camus_meta::{Command, Decided, Done, Refused, Topic};
use kafka_protocol::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Topics that one request may bring into being. The others are told to come again.
pub const AUTO_CREATE_MAX: usize = 100;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Wanted {
    Name(StrBytes),
    Id(Uuid),
    /// Before v12 an id can be written but not asked for, and a name can be null but must not be.
    Unsupported(Uuid, Option<StrBytes>),
}

struct Asked {
    /// `None`: all. Each one once, in the order of the request.
    topics: Option<Vec<Wanted>>,
    auto_create: bool,
    cluster_operations: bool,
    topic_operations: bool,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let version = request.version;
    let mut r = Reader::new(&request.body, request.version >= 9);
    let topics = messages::nullable_structs(&mut r, 1, |r| {
        let id = if version >= 10 { r.uuid()? } else { Uuid::nil() };
        let name = if version >= 10 { r.nullable_string()? } else { Some(r.string()?) };
        Ok(match name {
            _ if version < 12 && (!id.is_nil() || name.is_none()) => Wanted::Unsupported(id, name),
            Some(name) if id.is_nil() => Wanted::Name(name),
            _ => Wanted::Id(id),
        })
    })?;
    let topics = match topics {
        None if version == 0 => return Err(Malformed::Null { at: 0 }),
        Some(topics) if version == 0 && topics.is_empty() => None,
        None => None,
        Some(topics) => {
            let mut seen = BTreeSet::new();
            Some(topics.into_iter().filter(|topic| seen.insert(topic.clone())).collect())
        }
    };
    let auto_create = version < 4 || r.bool()?;
    let cluster_operations = (8..=10).contains(&version) && r.bool()?;
    let topic_operations = version >= 8 && r.bool()?;
    r.tags()?;
    Ok(Asked { topics, auto_create, cluster_operations, topic_operations })
}

/// Metadata 0-13, flexible from 9.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let asked = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let missing = to_create(ctx, &asked);
    let (version, advertised) = (request.version, request.advertised.clone());
    if missing.is_empty() {
        return reply(ctx, version, &advertised, &asked, &BTreeMap::new());
    }
    let commands = missing
        .iter()
        .map(|name| Command::CreateTopic {
            name: name.to_string(),
            id: messages::random_id(ctx),
            partitions: u32::try_from(ctx.settings.num_partitions).unwrap_or(1).max(1),
            replication_factor: ctx.settings.default_replication_factor,
            configs: BTreeMap::new(),
        })
        .collect();
    Outcome::Meta(
        commands,
        Box::new(move |ctx, decided| {
            let refused =
                missing.into_iter().zip(decided).filter_map(|(name, decided)| Some((name, not_made(decided)?)));
            reply(ctx, version, &advertised, &asked, &refused.collect())
        }),
    )
}

/// The names that are asked for, may be made, and are not there.
fn to_create(ctx: &Ctx<'_>, asked: &Asked) -> Vec<StrBytes> {
    if !(asked.auto_create && ctx.settings.auto_create_topics) {
        return Vec::new();
    }
    let names = asked.topics.iter().flatten().filter_map(|wanted| match wanted {
        Wanted::Name(name) => Some(name),
        Wanted::Id(_) | Wanted::Unsupported(..) => None,
    });
    let missing = names.filter(|name| ctx.image.topic(name).is_none() && messages::name_fault(name).is_none());
    missing.take(AUTO_CREATE_MAX).cloned().collect()
}

/// What to say of a topic that was not made; `None` if it is there (another may have made it meanwhile).
fn not_made(decided: Decided) -> Option<Code> {
    match decided {
        Ok(Done::TopicCreated { .. }) | Err(Refused::TopicExists { .. }) => None,
        Err(Refused::Unavailable { .. } | Refused::NoLeader) => Some(Code::LeaderNotAvailable),
        Err(refused) => Some(meta_code(&refused)),
        Ok(other) => unreachable!("a CreateTopic is decided as TopicCreated, not as {other:?}"),
    }
}

fn reply(
    ctx: &Ctx<'_>,
    version: i16,
    advertised: &(String, u16),
    asked: &Asked,
    not_made: &BTreeMap<StrBytes, Code>,
) -> Outcome {
    let operations = if asked.topic_operations { TOPIC_OPERATIONS } else { OPERATIONS_OMITTED };
    let topics = match &asked.topics {
        None => ctx.image.topics().map(|topic| describe(ctx, topic, version, operations)).collect(),
        Some(wanted) => {
            let creating = asked.auto_create && ctx.settings.auto_create_topics;
            wanted.iter().map(|wanted| one(ctx, version, operations, wanted, creating, not_made)).collect()
        }
    };
    let brokers = ctx.reachable(advertised).into_iter().map(|Reachable { id, at: (host, port), rack }| {
        MetadataResponseBroker::default()
            .with_node_id(BrokerId(id.0))
            .with_host(StrBytes::from_string(host))
            .with_port(i32::from(port))
            .with_rack(rack.filter(|_| version >= 1).map(StrBytes::from_string))
    });
    let mut answer = MetadataResponse::default()
        .with_brokers(brokers.collect())
        .with_controller_id(BrokerId(ctx.controller_id()))
        .with_topics(topics);
    if version >= 2 {
        answer = answer.with_cluster_id(Some(StrBytes::from_string(ctx.settings.cluster_id.clone())));
    }
    if asked.cluster_operations {
        answer = answer.with_cluster_authorized_operations(messages::CLUSTER_OPERATIONS);
    }
    respond(&answer, version)
}

fn one(
    ctx: &Ctx<'_>,
    version: i16,
    operations: i32,
    wanted: &Wanted,
    creating: bool,
    not_made: &BTreeMap<StrBytes, Code>,
) -> MetadataResponseTopic {
    let (id, name, error) = match wanted {
        Wanted::Name(name) => {
            if let Some(topic) = ctx.image.topic(name) {
                return describe(ctx, topic, version, operations);
            }
            let error = match (messages::name_fault(name), not_made.get(name)) {
                (Some(fault), _) => fault.code,
                (None, Some(error)) => *error,
                // It was made and is gone again, or it was one too many for one request.
                (None, None) if creating => Code::LeaderNotAvailable,
                (None, None) => Code::UnknownTopicOrPartition,
            };
            (Uuid::nil(), Some(name.clone()), error)
        }
        Wanted::Id(id) => match ctx.image.topic_by_id(*id) {
            Some(topic) => return describe(ctx, topic, version, operations),
            None => (*id, None, Code::UnknownTopicId),
        },
        Wanted::Unsupported(id, name) => (*id, Some(name.clone().unwrap_or_default()), Code::InvalidRequest),
    };
    MetadataResponseTopic::default().with_error_code(error.wire()).with_topic_id(id).with_name(name.map(TopicName))
}

fn describe(ctx: &Ctx<'_>, topic: &Topic, version: i16, operations: i32) -> MetadataResponseTopic {
    let replicas: Vec<BrokerId> = ctx.replicas().into_iter().map(|broker| BrokerId(broker.0)).collect();
    let partitions = topic.partitions.iter().zip(0..).map(|(placement, number)| {
        let partition = MetadataResponsePartition::default()
            .with_partition_index(number)
            .with_replica_nodes(replicas.clone())
            .with_isr_nodes(replicas.clone());
        match ctx.leader(placement.shard()) {
            None => partition
                .with_error_code(Code::LeaderNotAvailable.wire())
                .with_leader_id(BrokerId(-1))
                .with_leader_epoch(-1),
            Some((leader, epoch)) => {
                partition.with_leader_id(BrokerId(leader.0)).with_leader_epoch(if version >= 7 { epoch.0 } else { -1 })
            }
        }
    });
    MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(topic.name.clone()))))
        .with_topic_id(if version >= 10 { topic.id } else { Uuid::nil() })
        .with_partitions(partitions.collect())
        .with_topic_authorized_operations(operations)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage, topic};
    use super::*;
    use camus_meta::Image;
    use kafka_protocol::messages::MetadataRequest;
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
    use std::sync::Arc;

    fn named(name: &str) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.into()))))
    }

    /// A client would write to a broker that refuses it, or give up on a partition that is led.
    #[test]
    fn in_a_cluster_each_partition_has_the_leader_that_this_broker_knows_of() {
        for version in 1..=13 {
            let request = MetadataRequest::default().with_topics(Some(vec![named("dark")]));
            let request = if version >= 4 { request.with_allow_auto_topic_creation(false) } else { request };
            let mut world = World::of_three();
            let answer: MetadataResponse = world.call(handle, version, &request);
            let brokers: Vec<_> = answer.brokers.iter().map(|b| (b.node_id.0, b.host.as_str(), b.port)).collect();
            let [other, last] = [(2, "other-2.example", 9092), (7, "other-7.example", 9097)];
            assert_eq!(brokers, [other, (4, "broker.example", 9093), last]);
            assert_eq!(answer.controller_id.0, 7);
            let led: Vec<_> = answer.topics[0].partitions.iter().map(|p| (p.leader_id.0, p.error_code)).collect();
            assert_eq!(led, [(4, 0), (-1, 5), (7, 0)]);
            if version >= 7 {
                let epochs: Vec<_> = answer.topics[0].partitions.iter().map(|p| p.leader_epoch).collect();
                assert_eq!(epochs, [7, -1, 11]);
            }
            for partition in &answer.topics[0].partitions {
                let all = [2, 4, 7].map(BrokerId);
                assert_eq!((&partition.replica_nodes[..], &partition.isr_nodes[..]), (&all[..], &all[..]));
            }
            // this broker is elected and does not serve yet: nobody is to be sent here
            world.shards.set_leader(camus_engine::types::META_SHARD, Some((5, camus_engine::types::Term(12))));
            let answer: MetadataResponse = world.call(handle, version, &request);
            assert_eq!(answer.controller_id.0, -1);
        }
    }

    fn by_id(id: u128) -> MetadataRequestTopic {
        MetadataRequestTopic::default().with_name(None).with_topic_id(Uuid::from_u128(id))
    }

    fn ask(world: &mut World, version: i16, topics: Option<Vec<MetadataRequestTopic>>) -> MetadataResponse {
        let question = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(version < 4);
        world.call(handle, version, &question)
    }

    fn names(answer: &MetadataResponse) -> Vec<&str> {
        answer.topics.iter().map(|topic| topic.name.as_ref().map_or("", |name| name.as_str())).collect()
    }

    /// Clients find no leader, or a wrong one, if one field stands in another version's place.
    #[test]
    fn every_version_describes_a_topic_and_its_leaders() {
        for version in 0..=13 {
            let answer = ask(&mut World::new(), version, Some(vec![named("dark"), named("dark")]));
            let [topic] = &answer.topics[..] else { panic!("asked twice, answered once: {answer:?}") };
            assert_eq!((topic.error_code, topic.is_internal), (0, false));
            assert_eq!(names(&answer), ["dark"]);
            assert_eq!(topic.topic_id, if version >= 10 { Uuid::from_u128(0xa3) } else { Uuid::nil() });
            assert_eq!(topic.topic_authorized_operations, i32::MIN);
            let epochs = if version >= 7 { [7, 9, -1] } else { [-1; 3] };
            let got: Vec<_> =
                topic.partitions.iter().map(|p| (p.partition_index, p.error_code, p.leader_id.0)).collect();
            assert_eq!(got, [(0, 0, 4), (1, 0, 4), (2, 5, -1)]);
            assert_eq!(topic.partitions.iter().map(|p| p.leader_epoch).collect::<Vec<_>>(), epochs);
            for p in &topic.partitions {
                assert_eq!((&p.replica_nodes[..], &p.isr_nodes[..]), (&[BrokerId(4)][..], &[BrokerId(4)][..]));
            }
            let [broker] = &answer.brokers[..] else { panic!("one broker: {answer:?}") };
            assert_eq!((broker.node_id.0, broker.host.as_str(), broker.port), (4, "broker.example", 9093));
            assert_eq!(broker.rack.as_ref().map(|r| r.as_str()), (version >= 1).then_some("rack-2"));
            assert_eq!(answer.controller_id.0, if version >= 1 { 4 } else { -1 });
            assert_eq!(answer.cluster_id.as_ref().map(|c| c.as_str()), (version >= 2).then_some("cluster-1"));
        }
    }

    /// A client that wants only brokers would get the whole cluster, or one that wants all topics none.
    #[test]
    fn null_means_all_topics_and_empty_means_none_except_in_version_0() {
        for version in 0..=13 {
            let all = if version == 0 { Some(vec![]) } else { None };
            assert_eq!(names(&ask(&mut World::new(), version, all)), ["compact", "dark", "t"]);
            if version > 0 {
                assert!(ask(&mut World::new(), version, Some(vec![])).topics.is_empty());
            }
        }
        let null = bytes::Bytes::from_static(&[0xff; 4]);
        assert_eq!(World::new().run(handle, 0, null), None);
    }

    /// A client could bind an id to the topic that took its name.
    #[test]
    fn a_topic_is_found_by_its_id_from_version_12_on() {
        for version in 12..=13 {
            let answer = ask(&mut World::new(), version, Some(vec![by_id(0xa1), by_id(0xbb), by_id(0)]));
            let got: Vec<_> =
                answer.topics.iter().map(|t| (t.error_code, t.topic_id.as_u128(), t.name.is_some())).collect();
            assert_eq!(got, [(0, 0xa1, true), (100, 0xbb, false), (100, 0, false)]);
        }
        for version in 10..=11 {
            let question = named("t").with_topic_id(Uuid::from_u128(0xa1));
            let answer = ask(&mut World::new(), version, Some(vec![question, named("t")]));
            assert_eq!(answer.topics.iter().map(|t| t.error_code).collect::<Vec<_>>(), [42, 0], "v{version}");
        }
    }

    /// A name that is null where it must not be could be taken for an empty one.
    #[test]
    fn a_null_name_closes_the_connection_before_version_10() {
        assert_eq!(World::new().run(handle, 1, bytes::Bytes::from_static(&[0, 0, 0, 1, 0xff, 0xff])), None);
        let mut world = World::new();
        let ten = bytes::Bytes::from([&[2][..], &[0; 16], &[0, 0], &[0, 0, 0, 0]].concat());
        assert!(world.run(handle, 10, ten).is_some());
    }

    /// Producers to a new topic would wait for ever, or a misspelt name would become a topic though the client forbade
    /// it.
    #[test]
    fn an_unknown_topic_is_created_only_if_client_and_broker_allow_it() {
        for version in 0..=13 {
            for (client, broker) in [(true, true), (true, false), (false, true)] {
                if version < 4 && !client {
                    continue;
                }
                let mut world = World::new();
                world.settings.auto_create_topics = broker;
                world.decide = Box::new(|_| Err(Refused::Unavailable { why: "no leader".into() }));
                let names = vec![named("new"), named("t"), named("bad name")];
                let question =
                    MetadataRequest::default().with_topics(Some(names)).with_allow_auto_topic_creation(client);
                let answer: MetadataResponse = world.call(handle, version, &question);
                let made = client && broker;
                let unknown = if made { 5 } else { 3 };
                assert_eq!(answer.topics.iter().map(|t| t.error_code).collect::<Vec<_>>(), [unknown, 0, 17]);
                match &world.commands[..] {
                    [Command::CreateTopic { name, id, partitions, replication_factor, configs }] if made => {
                        assert_eq!((&name[..], *partitions, *replication_factor, configs.len()), ("new", 6, 2, 0));
                        assert_eq!(id.get_version_num(), 4);
                    }
                    [] if !made => (),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// The first message to a new topic would be lost for clients that do not ask again.
    #[test]
    fn a_created_topic_is_described_in_the_same_answer() {
        for lost_the_race in [false, true] {
            let mut world = World::new();
            world.decide = Box::new(move |command| match command {
                Command::CreateTopic { name, .. } if lost_the_race => Err(Refused::TopicExists { name }),
                Command::CreateTopic { id, partitions, .. } => Ok(Done::TopicCreated { id, partitions }),
                other => panic!("{other:?}"),
            });
            world.after = Some(Arc::new(Image::of(6, "cluster-1", [topic("new", 0xa9, 2, &[])])));
            let question = MetadataRequest::default().with_topics(Some(vec![named("new")]));
            let answer: MetadataResponse = world.call(handle, 12, &question);
            assert_eq!((answer.topics[0].error_code, answer.topics[0].partitions.len()), (0, 2));
        }
    }

    /// One request could make a hundred thousand topics.
    #[test]
    fn a_request_creates_only_so_many_topics() {
        let mut world = World::new();
        world.decide = Box::new(|_| Err(Refused::TooManyPartitions { limit: 1 }));
        let names = (0..AUTO_CREATE_MAX + 5).map(|n| named(&format!("n{n}"))).collect();
        let question = MetadataRequest::default().with_topics(Some(names));
        let answer: MetadataResponse = world.call(handle, 9, &question);
        assert_eq!(world.commands.len(), AUTO_CREATE_MAX);
        assert!(answer.topics[..AUTO_CREATE_MAX].iter().all(|t| t.error_code == 44));
        assert!(answer.topics[AUTO_CREATE_MAX..].iter().all(|t| t.error_code == 5));
    }

    /// KIP-430: clients take the bits at their word.
    #[test]
    fn operations_are_listed_only_on_request() {
        for version in 8..=13 {
            let mut question = MetadataRequest::default().with_topics(Some(vec![named("t")]));
            question = question.with_include_topic_authorized_operations(true);
            question = question.with_include_cluster_authorized_operations(version <= 10);
            let answer: MetadataResponse = World::new().call(handle, version, &question);
            assert_eq!(answer.topics[0].topic_authorized_operations, 3576);
            assert_eq!(answer.cluster_authorized_operations, if version <= 10 { 8096 } else { i32::MIN });
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=13, |version| {
            encoded(&MetadataRequest::default().with_topics(Some(vec![named("t"), named("new")])), version)
        });
    }
}
