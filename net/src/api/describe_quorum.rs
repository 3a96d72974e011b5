//! DescribeQuorum: who votes on the cluster's metadata, who leads, and how far each of them is.
//!
//! Kafka calls that log `__cluster_metadata`, of one partition; here it is the meta shard's, which clients can not
//! read. An offset is the index of an entry. The leader knows how far the others are; another broker tells what it
//! knows: who leads, since when, and what it has applied itself.

use super::messages::{self, ByTopic};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use crate::peer::broker_of;
use camus_engine::shard::api::{Answer, Ask, Quorum};
use camus_engine::types::{BrokerId as Id, Index, META_SHARD};
use kafka_protocol::messages::describe_quorum_response::{
    DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState, TopicData,
};
use kafka_protocol::messages::{BrokerId, TopicName};
use kafka_protocol::protocol::StrBytes;

const TOPIC: &str = "__cluster_metadata";
/// What an answer says where nothing is known.
const UNKNOWN: i64 = -1;

fn read(request: &Request) -> Result<ByTopic<i32>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let topics = messages::by_topic(&mut r, 5, Reader::i32)?;
    r.tags()?;
    Ok(topics)
}

/// DescribeQuorum 0-2, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let topics = match read(request) {
        Ok(topics) => topics,
        Err(fault) => return fault.into(),
    };
    let core = ctx.shards.core(META_SHARD);
    let is_asked = topics.iter().any(|(name, numbers)| name.as_str() == TOPIC && numbers.contains(&0));
    let asks = if is_asked { vec![Ask::Quorum { core, shard: META_SHARD }] } else { Vec::new() };
    let (version, here) = (request.version, request.advertised.clone());
    Outcome::Ask(asks, Box::new(move |ctx, answers| reply(ctx, version, &here, topics, answers)))
}

fn reply(ctx: &Ctx<'_>, version: i16, here: &(String, u16), topics: ByTopic<i32>, mut answers: Vec<Answer>) -> Outcome {
    let known = match answers.pop() {
        Some(Answer::Quorum(quorum)) => quorum.ok(),
        None => None,
        Some(other) => unreachable!("a question for a quorum is not answered with {other:?}"),
    };
    // Once: here a few bytes ask for as many voters as there are.
    let mut is_told = false;
    let partition = |topic: &StrBytes, number: i32| {
        let told = PartitionData::default().with_partition_index(number).with_error_message(None);
        let (code, why) = match ((topic.as_str(), number) == (TOPIC, 0), is_told) {
            (true, false) => {
                is_told = true;
                return quorum(ctx, known.as_ref(), told);
            }
            (true, true) => (Code::InvalidRequest, "the request names this partition more than once"),
            (false, _) => (Code::UnknownTopicOrPartition, "only partition 0 of __cluster_metadata has a quorum"),
        };
        told.with_error_code(code.wire())
            .with_error_message(Some(StrBytes::from_static_str(why)))
            .with_leader_id(BrokerId(-1))
            .with_leader_epoch(-1)
            .with_high_watermark(UNKNOWN)
    };
    let topics = messages::for_each_partition(topics, partition)
        .into_iter()
        .map(|(name, partitions)| TopicData::default().with_topic_name(TopicName(name)).with_partitions(partitions));
    let answer = DescribeQuorumResponse::default().with_error_message(None).with_topics(topics.collect());
    let answer = if version >= 2 { answer.with_nodes(nodes(ctx, here)) } else { answer };
    respond(&answer, version)
}

/// `known`: what the leader knows, if it is this broker.
fn quorum(ctx: &Ctx<'_>, known: Option<&Quorum>, told: PartitionData) -> PartitionData {
    let me = ctx.settings.broker;
    let (leader, epoch) = ctx.leader(META_SHARD).map_or((-1, -1), |(leader, epoch)| (leader.0, epoch.0));
    let voter = |id: Id, end: i64| ReplicaState::default().with_replica_id(BrokerId(id.0)).with_log_end_offset(end);
    let behind = |index: Index| i64::try_from(index.0).map_or(i64::MAX, |index| index.saturating_add(1));
    let (high_watermark, voters) = match known {
        Some(quorum) => {
            let one = |(id, matched): &(u64, Index)| {
                let id = broker_of(*id);
                let last = if id == me { quorum.last } else { *matched };
                voter(id, behind(last))
            };
            (behind(quorum.commit), quorum.voters.iter().map(one).collect())
        }
        None => {
            let applied = behind(Index(ctx.image.version));
            let one = |id: Id| voter(id, if id == me { applied } else { UNKNOWN });
            (applied, ctx.replicas().into_iter().map(one).collect())
        }
    };
    told.with_leader_id(BrokerId(leader))
        .with_leader_epoch(epoch)
        .with_high_watermark(high_watermark)
        .with_current_voters(voters)
}

/// How the voters are reached: as brokers, since none has a listener for metadata alone.
fn nodes(ctx: &Ctx<'_>, here: &(String, u16)) -> Vec<Node> {
    let node = |broker: super::ctx::Reachable| {
        let (host, port) = broker.at;
        let listener = Listener::default()
            .with_name(StrBytes::from_static_str("PLAINTEXT"))
            .with_host(StrBytes::from_string(host))
            .with_port(port);
        Node::default().with_node_id(BrokerId(broker.id.0)).with_listeners(vec![listener])
    };
    ctx.reachable(here).into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::Refusal;
    use camus_engine::types::Term;
    use kafka_protocol::messages::DescribeQuorumRequest;
    use kafka_protocol::messages::describe_quorum_request::{PartitionData as Partition, TopicData as Topic};

    fn question(topics: &[(&'static str, &[i32])]) -> DescribeQuorumRequest {
        let partition = |number: &i32| Partition::default().with_partition_index(*number);
        let one = |(name, numbers): &(&'static str, &[i32])| {
            let name = TopicName(StrBytes::from_static_str(name));
            Topic::default().with_topic_name(name).with_partitions(numbers.iter().map(partition).collect())
        };
        DescribeQuorumRequest::default().with_topics(topics.iter().map(one).collect())
    }

    fn voters(partition: &PartitionData) -> Vec<(i32, i64)> {
        let voter = |state: &ReplicaState| {
            assert_eq!((state.last_fetch_timestamp, state.last_caught_up_timestamp), (-1, -1));
            (state.replica_id.0, state.log_end_offset)
        };
        partition.current_voters.iter().map(voter).collect()
    }

    /// An operator would wait for a broker that has caught up long ago, or stop one more than the cluster can bear.
    #[test]
    fn the_leader_tells_how_far_each_voter_is() {
        for version in 0..=2 {
            let mut world = World::of_three();
            world.shards.set_leading(META_SHARD, Some(Term(12)));
            world.answer = Box::new(|ask| match ask {
                Ask::Quorum { shard: META_SHARD, .. } => Answer::Quorum(Ok(Quorum {
                    commit: Index(100),
                    last: Index(102),
                    voters: vec![(3, Index(100)), (5, Index(101)), (8, Index(40))],
                })),
                other => panic!("{other:?}"),
            });
            let answer: DescribeQuorumResponse = world.call(handle, version, &question(&[(TOPIC, &[0])]));
            assert_eq!((answer.error_code, answer.topics[0].topic_name.as_str()), (0, TOPIC));
            let partition = &answer.topics[0].partitions[0];
            assert_eq!((partition.error_code, partition.leader_id.0, partition.leader_epoch), (0, 4, 12));
            assert_eq!(partition.high_watermark, 101);
            assert_eq!(voters(partition), [(2, 101), (4, 103), (7, 41)]);
            assert!(partition.observers.is_empty());
            let nodes: Vec<_> = answer.nodes.iter().map(|n| (n.node_id.0, n.listeners[0].port)).collect();
            assert_eq!(nodes, if version >= 2 { vec![(2, 9092), (4, 9093), (7, 9097)] } else { vec![] });
        }
    }

    /// What one broker believes of others would pass for knowledge.
    #[test]
    fn another_broker_tells_who_leads_and_nothing_that_it_does_not_know() {
        for version in 0..=2 {
            let mut world = World::of_three();
            world.answer = Box::new(|_| Answer::Quorum(Err(Refusal::NotLeader)));
            let answer: DescribeQuorumResponse = world.call(handle, version, &question(&[(TOPIC, &[0])]));
            let partition = &answer.topics[0].partitions[0];
            assert_eq!((partition.error_code, partition.leader_id.0, partition.leader_epoch), (0, 7, 11));
            assert_eq!((partition.high_watermark, voters(partition)), (6, vec![(2, -1), (4, 6), (7, -1)]));
        }
    }

    /// A request of a few kilobytes would be answered with megabytes.
    #[test]
    fn the_quorum_is_told_once() {
        let answer: DescribeQuorumResponse = {
            let mut world = World::new();
            world.answer = Box::new(|_| Answer::Quorum(Err(Refusal::NotLeader)));
            world.call(handle, 2, &question(&[(TOPIC, &[0, 0]), (TOPIC, &[0])]))
        };
        let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
        let told: Vec<_> = partitions.map(|p| (p.error_code, p.current_voters.len())).collect();
        assert_eq!(told, [(0, 1), (42, 0), (42, 0)]);
    }

    /// A topic's partitions have no quorum of their own.
    #[test]
    fn anything_else_is_unknown() {
        for version in 0..=2 {
            let asked = question(&[("t", &[0]), (TOPIC, &[1, -1])]);
            let answer: DescribeQuorumResponse = World::new().call(handle, version, &asked);
            let partitions: Vec<_> = answer.topics.iter().flat_map(|topic| &topic.partitions).collect();
            let codes: Vec<_> = partitions.iter().map(|p| (p.partition_index, p.error_code)).collect();
            assert_eq!(codes, [(0, 3), (1, 3), (-1, 3)]);
            assert!(partitions.iter().all(|p| p.leader_id.0 == -1 && p.current_voters.is_empty()));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| encoded(&question(&[(TOPIC, &[0]), ("t", &[0])]), version));
    }
}
