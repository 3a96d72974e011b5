//! ElectLeaders: a leader for partitions that have none, or not the one that they should have.
//!
//! The replicas of a shard elect their leader themselves, as soon as a majority of them is there; none of them is
//! preferred, and none that lacks an acknowledged record ever leads (docs/adr/0003). So there is nothing to be done on
//! request: where a leader is known none is needed, and where none is known none can be had.

use super::messages::{self, ByTopic, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::Placement;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::elect_leaders_response::{ElectLeadersResponse, PartitionResult, ReplicaElectionResult};
use kafka_protocol::protocol::StrBytes;

/// Kafka's `ElectionType`.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

struct Asked {
    election: i8,
    /// Partition numbers of each topic; `None`: all that need a leader.
    topics: Option<ByTopic<i32>>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let election = if request.version >= 1 { r.i8()? } else { PREFERRED };
    let topics = messages::nullable_structs(&mut r, 2, |r| Ok((r.string()?, r.array(4, Reader::i32)?)))?;
    let _timeout_ms = r.i32()?;
    r.tags()?;
    Ok(Asked { election, topics })
}

/// ElectLeaders 0-2, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { election, topics } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let leaderless = match election {
        PREFERRED => Code::PreferredLeaderNotAvailable,
        UNCLEAN => Code::EligibleLeadersNotAvailable,
        _ => {
            let answer = ElectLeadersResponse::default().with_error_code(Code::InvalidRequest.wire());
            return respond(&answer, request.version);
        }
    };
    let told = match topics {
        Some(topics) => messages::for_each_partition(topics, |topic, number| {
            result(number, &said(ctx, leaderless, find(ctx, topic, number)))
        }),
        None => without_leader(ctx, leaderless),
    };
    let results = told.into_iter().map(|(topic, results)| {
        ReplicaElectionResult::default().with_topic(TopicName(topic)).with_partition_result(results)
    });
    let answer = ElectLeadersResponse::default().with_replica_election_results(results.collect());
    respond(&answer, request.version)
}

fn find<'a>(ctx: &'a Ctx<'_>, topic: &str, number: i32) -> Option<&'a Placement> {
    ctx.image.topic(topic)?.partitions.get(usize::try_from(number).ok()?)
}

/// Why nothing happens to the partition.
fn said(ctx: &Ctx<'_>, leaderless: Code, partition: Option<&Placement>) -> Fault {
    match partition.map(|placement| ctx.leader(placement.shard())) {
        None => Fault::new(Code::UnknownTopicOrPartition, "there is no such partition"),
        Some(None) => Fault::new(leaderless, "too few of its replicas are there to elect a leader"),
        Some(Some((leader, _))) => Fault::new(Code::ElectionNotNeeded, format!("broker {leader} leads it")),
    }
}

/// All partitions that have no leader.
fn without_leader(ctx: &Ctx<'_>, leaderless: Code) -> ByTopic<PartitionResult> {
    let topics = ctx.image.topics().map(|topic| {
        let partitions = topic.partitions.iter().zip(0..);
        let dark = partitions.filter(|(placement, _)| ctx.leader(placement.shard()).is_none());
        let results = dark.map(|(placement, number)| result(number, &said(ctx, leaderless, Some(placement))));
        (StrBytes::from_string(topic.name.clone()), results.collect::<Vec<_>>())
    });
    topics.filter(|(_, results)| !results.is_empty()).collect()
}

fn result(number: i32, fault: &Fault) -> PartitionResult {
    let answer = PartitionResult::default().with_partition_id(number);
    answer.with_error_code(fault.code.wire()).with_error_message(fault.message())
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::ElectLeadersRequest;
    use kafka_protocol::messages::elect_leaders_request::TopicPartitions;

    fn question(version: i16, election: i8, topics: Option<&[(&'static str, &[i32])]>) -> ElectLeadersRequest {
        let one = |(name, numbers): &(&'static str, &[i32])| {
            let name = TopicName(StrBytes::from_static_str(name));
            TopicPartitions::default().with_topic(name).with_partitions(numbers.to_vec())
        };
        let topics = topics.map(|topics| topics.iter().map(one).collect());
        let question = ElectLeadersRequest::default().with_topic_partitions(topics);
        if version >= 1 { question.with_election_type(election) } else { question }
    }

    fn elect(
        world: &mut World,
        version: i16,
        election: i8,
        topics: Option<&[(&'static str, &[i32])]>,
    ) -> Vec<(String, i32, i16)> {
        let answer: ElectLeadersResponse = world.call(handle, version, &question(version, election, topics));
        assert_eq!(answer.error_code, 0);
        let mut told = Vec::new();
        for topic in &answer.replica_election_results {
            for p in &topic.partition_result {
                assert!(p.error_message.as_ref().is_some_and(|m| !m.is_empty()));
                told.push((topic.topic.to_string(), p.partition_id, p.error_code));
            }
        }
        told
    }

    fn owned(expected: &[(&str, i32, i16)]) -> Vec<(String, i32, i16)> {
        expected.iter().map(|(name, number, code)| (name.to_string(), *number, *code)).collect()
    }

    /// A tool would wait for a leader that never comes, or take one for elected that is not there.
    #[test]
    fn every_version_says_whether_there_is_a_leader() {
        let asked: &[(&str, &[i32])] = &[("dark", &[2, 0, 9, -1]), ("nope", &[0])];
        for version in 0..=2 {
            for (election, leaderless) in [(PREFERRED, 80), (UNCLEAN, 83)] {
                if version == 0 && election != PREFERRED {
                    continue;
                }
                let told = elect(&mut World::new(), version, election, Some(asked));
                let expected =
                    [("dark", 2, leaderless), ("dark", 0, 84), ("dark", 9, 3), ("dark", -1, 3), ("nope", 0, 3)];
                assert_eq!(told, owned(&expected));
                let all = elect(&mut World::new(), version, election, None);
                assert_eq!(all, owned(&[("dark", 2, leaderless)]), "those with a leader are left out");
                assert!(elect(&mut World::new(), version, election, Some(&[])).is_empty());
            }
        }
    }

    /// A leader elsewhere is one as well.
    #[test]
    fn a_partition_that_another_broker_leads_needs_no_election() {
        let told = elect(&mut World::of_three(), 2, PREFERRED, Some(&[("dark", &[0, 1, 2])]));
        assert_eq!(told, owned(&[("dark", 0, 84), ("dark", 1, 80), ("dark", 2, 84)]));
    }

    /// A kind of election that nobody knows would pass for done.
    #[test]
    fn an_unknown_kind_of_election_is_refused() {
        for version in 1..=2 {
            for kind in [2, -1, 99] {
                let asked = question(version, kind, Some(&[("t", &[0])]));
                let answer: ElectLeadersResponse = World::new().call(handle, version, &asked);
                assert_eq!((answer.error_code, answer.replica_election_results.len()), (42, 0));
            }
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=2, |version| {
            encoded(&question(version, 0, Some(&[("t", &[0, 1]), ("nope", &[0])])), version)
        });
    }
}
