//! AlterPartitionReassignments: other replicas for partitions. Each broker of the cluster has a copy of everything, so
//! that what can be asked for is what is there already, and nothing that was asked for can be called off.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::protocol::StrBytes;

struct Asked {
    /// A partition may get more or fewer replicas than it has.
    other_factor: bool,
    topics: messages::ByTopic<Wanted>,
}

struct Wanted {
    number: i32,
    /// The brokers; `None`: call off what is under way.
    replicas: Option<Vec<i32>>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let _timeout_ms = r.i32()?;
    let other_factor = request.version < 1 || r.bool()?;
    let topics = messages::by_topic(&mut r, 6, |r| {
        Ok(Wanted { number: r.i32()?, replicas: r.nullable_array(4, Reader::i32)? })
    })?;
    r.tags()?;
    Ok(Asked { other_factor, topics })
}

/// AlterPartitionReassignments 0-1, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { other_factor, topics } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let now: Vec<i32> = ctx.replicas().iter().map(|broker| broker.0).collect();
    let told = messages::for_each_partition(topics, |topic, wanted| {
        let (code, message) = messages::told(&judge(ctx, &now, other_factor, topic, &wanted));
        ReassignablePartitionResponse::default()
            .with_partition_index(wanted.number)
            .with_error_code(code)
            .with_error_message(message)
    });
    let responses = told.into_iter().map(|(name, partitions)| {
        ReassignableTopicResponse::default().with_name(TopicName(name)).with_partitions(partitions)
    });
    let answer = AlterPartitionReassignmentsResponse::default()
        .with_error_message(None)
        .with_allow_replication_factor_change(other_factor)
        .with_responses(responses.collect());
    respond(&answer, request.version)
}

/// `now`: who has a copy.
fn judge(ctx: &Ctx<'_>, now: &[i32], other_factor: bool, topic: &StrBytes, wanted: &Wanted) -> Result<(), Fault> {
    if messages::locate(ctx, topic, wanted.number).is_none() {
        return Err(Fault::new(Code::UnknownTopicOrPartition, "there is no such partition"));
    }
    let Some(replicas) = &wanted.replicas else {
        return Err(Fault::new(Code::NoReassignmentInProgress, "nothing is under way for this partition"));
    };
    messages::live_once(ctx, replicas).map_err(|why| Fault::new(Code::InvalidReplicaAssignment, why))?;
    if replicas.len() != now.len() && !other_factor {
        let why = format!("the partition has {} replicas, and that is not to change", now.len());
        return Err(Fault::new(Code::InvalidReplicationFactor, why));
    }
    if replicas != now {
        let why = format!("each broker of the cluster has a copy, and none is preferred: the replicas are {now:?}");
        return Err(Fault::new(Code::InvalidReplicaAssignment, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::alter_partition_reassignments_request::{
        AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
    };

    type Wish<'a> = (i32, Option<&'a [i32]>);

    fn question(topics: &[(&'static str, &[Wish<'_>])]) -> AlterPartitionReassignmentsRequest {
        let partition = |(number, replicas): &Wish<'_>| {
            let replicas = replicas.map(|replicas| replicas.iter().map(|broker| (*broker).into()).collect());
            ReassignablePartition::default().with_partition_index(*number).with_replicas(replicas)
        };
        let topic = |(name, wishes): &(&'static str, &[Wish<'_>])| {
            let name = TopicName(StrBytes::from_static_str(name));
            ReassignableTopic::default().with_name(name).with_partitions(wishes.iter().map(partition).collect())
        };
        AlterPartitionReassignmentsRequest::default().with_topics(topics.iter().map(topic).collect())
    }

    fn told(answer: &AlterPartitionReassignmentsResponse) -> Vec<(i32, i16)> {
        assert_eq!((answer.error_code, &answer.error_message), (0, &None));
        let partitions = answer.responses.iter().flat_map(|topic| &topic.partitions);
        let one = |p: &ReassignablePartitionResponse| {
            assert_eq!(p.error_code != 0, p.error_message.as_ref().is_some_and(|m| !m.is_empty()));
            (p.partition_index, p.error_code)
        };
        partitions.map(one).collect()
    }

    /// A tool would wait for copies on brokers that never get them, or for others to go that stay.
    #[test]
    fn every_version_takes_what_is_there_and_refuses_anything_else() {
        let wishes: &[Wish<'_>] = &[
            (0, Some(&[2, 4, 7])),
            (0, Some(&[4, 2, 7])),
            (0, Some(&[2, 4])),
            (0, Some(&[2, 4, 7, 9])),
            (0, Some(&[2, 4, 4])),
            (0, Some(&[])),
            (0, None),
            (9, None),
            (-1, Some(&[2, 4, 7])),
        ];
        let asked = question(&[("t", wishes), ("nope", &[(0, None)])]);
        for version in 0..=1 {
            let answer: AlterPartitionReassignmentsResponse = World::of_three().call(handle, version, &asked);
            let expected = [(0, 0), (0, 39), (0, 39), (0, 39), (0, 39), (0, 39), (0, 85), (9, 3), (-1, 3), (0, 3)];
            assert_eq!(told(&answer), expected);
            assert_eq!(answer.responses[1].name.as_str(), "nope");
        }
    }

    /// KIP-860: a tool that must not change the number of copies is told that this is why.
    #[test]
    fn another_number_of_replicas_is_refused_by_name_where_it_must_not_change() {
        let asked = question(&[("t", &[(0, Some(&[2, 4])), (1, Some(&[2, 4, 7]))])]);
        let asked = asked.with_allow_replication_factor_change(false);
        let answer: AlterPartitionReassignmentsResponse = World::of_three().call(handle, 1, &asked);
        assert!(!answer.allow_replication_factor_change);
        assert_eq!(told(&answer), [(0, 38), (1, 0)]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=1, |version| {
            encoded(&question(&[("t", &[(0, Some(&[4])), (1, None)]), ("nope", &[])]), version)
        });
    }
}
