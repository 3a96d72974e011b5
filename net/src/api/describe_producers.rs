//! DescribeProducers: who writes to a partition, as far as it is remembered for retries.

use super::messages::{self, ByTopic, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::{Code, code};
use camus_engine::limits;
use camus_engine::shard::api::{ActiveProducer, Answer, Ask};
use kafka_protocol::messages::describe_producers_response::{
    DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{ProducerId, TopicName};
use kafka_protocol::protocol::StrBytes;

/// Producers of one answer, as long as there are no more partitions than that: here a few bytes ask for ten thousand.
/// Each partition has an equal share.
const ANSWER_PRODUCERS_MAX: usize = 10 * limits::PRODUCERS_PER_PARTITION_MAX;

/// Partition numbers of each topic.
fn read(request: &Request) -> Result<ByTopic<i32>, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let topics = messages::structs(&mut r, 3, |r| Ok((r.string()?, r.array(4, Reader::i32)?)))?;
    r.tags()?;
    Ok(topics)
}

/// DescribeProducers 0, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let topics = match read(request) {
        Ok(topics) => topics,
        Err(fault) => return fault.into(),
    };
    let mut routes = Vec::new();
    let mut find = |topic: &StrBytes, number: i32| -> Result<(), Fault> {
        let unknown = || {
            let unknown = || Fault::new(Code::UnknownTopicOrPartition, "there is no such partition");
            messages::name_fault(topic).unwrap_or_else(unknown)
        };
        routes.push(messages::locate(ctx, topic, number).ok_or_else(unknown)?);
        Ok(())
    };
    let slots = messages::for_each_partition(topics, |topic, number| (number, find(topic, number)));
    let producers_max = (ANSWER_PRODUCERS_MAX / routes.len().max(1)).max(1) as u32;
    let asks = routes.into_iter().map(|of| Ask::Producers { of, producers_max }).collect();
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |_, answers| reply(version, slots, answers)))
}

fn reply(version: i16, slots: ByTopic<(i32, Result<(), Fault>)>, answers: Vec<Answer>) -> Outcome {
    let mut answers = answers.into_iter();
    let partition = |_: &StrBytes, (number, asked): (i32, Result<(), Fault>)| {
        let active = asked.and_then(|()| match answers.next() {
            Some(Answer::Producers(Ok(told))) if told.active.len() < told.total => {
                let why = format!("it has {} producers: ask for fewer partitions at once", told.total);
                Err(Fault::invalid_request(why))
            }
            Some(Answer::Producers(Ok(told))) => Ok(told.active),
            Some(Answer::Producers(Err(refusal))) => Err(Fault::new(code(&refusal), refusal.to_string())),
            other => unreachable!("a question for producers is not answered with {other:?}"),
        });
        let (code, message) = messages::told(&active);
        PartitionResponse::default()
            .with_partition_index(number)
            .with_error_code(code)
            .with_error_message(message)
            .with_active_producers(active.unwrap_or_default().iter().map(state).collect())
    };
    let topics = messages::for_each_partition(slots, partition).into_iter();
    let topics = topics
        .map(|(name, partitions)| TopicResponse::default().with_name(TopicName(name)).with_partitions(partitions));
    respond(&DescribeProducersResponse::default().with_topics(topics.collect()), version)
}

/// No coordinator of transactions has written for it, and no transaction is open.
fn state(producer: &ActiveProducer) -> ProducerState {
    ProducerState::default()
        .with_producer_id(ProducerId(producer.id.0))
        .with_producer_epoch(i32::from(producer.epoch.0))
        .with_last_sequence(producer.last_sequence.0)
        .with_last_timestamp(producer.last_timestamp.0)
        .with_coordinator_epoch(-1)
        .with_current_txn_start_offset(-1)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::{Producing, Refusal};
    use camus_engine::types::{PartitionId, ProducerEpoch, ProducerId as Id, Sequence, WallMs};
    use kafka_protocol::messages::DescribeProducersRequest;
    use kafka_protocol::messages::describe_producers_request::TopicRequest;

    fn question(topics: &[(&'static str, &[i32])]) -> DescribeProducersRequest {
        let one = |(name, numbers): &(&'static str, &[i32])| {
            let name = TopicName(StrBytes::from_static_str(name));
            TopicRequest::default().with_name(name).with_partition_indexes(numbers.to_vec())
        };
        DescribeProducersRequest::default().with_topics(topics.iter().map(one).collect())
    }

    fn producer(id: i64) -> ActiveProducer {
        ActiveProducer {
            id: Id(id),
            epoch: ProducerEpoch(3),
            last_sequence: Sequence(41),
            last_timestamp: WallMs(1_700_000_000_000),
        }
    }

    fn told(answer: &DescribeProducersResponse) -> Vec<(&str, i32, i16, Vec<i64>)> {
        let mut all = Vec::new();
        for topic in &answer.topics {
            for p in &topic.partitions {
                assert_eq!(p.error_code != 0, p.error_message.as_ref().is_some_and(|m| !m.is_empty()));
                let ids = p.active_producers.iter().map(|state| state.producer_id.0).collect();
                all.push((topic.name.as_str(), p.partition_index, p.error_code, ids));
            }
        }
        all
    }

    /// Whoever looks for a producer that hangs would look at the wrong one.
    #[test]
    fn each_partition_has_its_own_producers() {
        let mut world = World::new();
        world.answer = Box::new(|ask| match ask {
            Ask::Producers { of, .. } if of.partition == PartitionId(100) => {
                Answer::Producers(Ok(Producing { total: 2, active: vec![producer(5), producer(9)] }))
            }
            Ask::Producers { of, .. } if of.partition == PartitionId(101) => {
                Answer::Producers(Ok(Producing { total: 0, active: vec![] }))
            }
            Ask::Producers { .. } => Answer::Producers(Err(Refusal::NotLeader)),
            other => panic!("{other:?}"),
        });
        let asked = question(&[("t", &[1, 9, 0]), ("nope", &[0]), ("dark", &[2])]);
        let answer: DescribeProducersResponse = world.call(handle, 0, &asked);
        let expected = [
            ("t", 1, 0, vec![]),
            ("t", 9, 3, vec![]),
            ("t", 0, 0, vec![5, 9]),
            ("nope", 0, 3, vec![]),
            ("dark", 2, 6, vec![]),
        ];
        assert_eq!(told(&answer), expected);
        let state = &answer.topics[0].partitions[2].active_producers[0];
        assert_eq!((state.producer_epoch, state.last_sequence, state.last_timestamp), (3, 41, 1_700_000_000_000));
        assert_eq!((state.coordinator_epoch, state.current_txn_start_offset), (-1, -1));
    }

    /// A tool would wait for a topic that can never exist.
    #[test]
    fn a_name_that_no_topic_can_have_is_told_from_one_that_none_has() {
        let asked = question(&[("", &[0]), ("a b", &[0, 1]), ("nope", &[0])]);
        let answer: DescribeProducersResponse = World::new().call(handle, 0, &asked);
        let expected = [("", 0, 17, vec![]), ("a b", 0, 17, vec![]), ("a b", 1, 17, vec![]), ("nope", 0, 3, vec![])];
        assert_eq!(told(&answer), expected);
    }

    /// A request of a few kilobytes would be answered with gigabytes.
    #[test]
    fn an_answer_has_only_so_many_producers() {
        let numbers: Vec<i32> = (0..1000).map(|n| n % 2).collect();
        let mut world = World::new();
        world.answer = Box::new(|ask| match ask {
            Ask::Producers { producers_max: 100, .. } => {
                Answer::Producers(Ok(Producing { total: 101, active: vec![] }))
            }
            other => panic!("{other:?}"),
        });
        let answer: DescribeProducersResponse = world.call(handle, 0, &question(&[("t", &numbers[..])]));
        assert_eq!(world.asked.len(), 1000);
        assert!(answer.topics[0].partitions.iter().all(|p| p.error_code == 42));
        let mut world = World::new();
        world.answer = Box::new(|ask| match ask {
            Ask::Producers { producers_max: 100_000, .. } => {
                Answer::Producers(Ok(Producing { total: 1, active: vec![producer(1)] }))
            }
            other => panic!("{other:?}"),
        });
        let answer: DescribeProducersResponse = world.call(handle, 0, &question(&[("t", &[0])]));
        assert_eq!(told(&answer), [("t", 0, 0, vec![1])]);
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| encoded(&question(&[("t", &[0, 1]), ("nope", &[0])]), version));
    }
}
