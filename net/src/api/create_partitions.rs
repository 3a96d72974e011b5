//! CreatePartitions: topics grow; they never shrink, and no partition changes its number.

use super::messages::{self, Fault};
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::{Command, Decided, Done, State};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::create_partitions_response::{CreatePartitionsResponse, CreatePartitionsTopicResult};
use kafka_protocol::protocol::StrBytes;

struct Asked {
    topics: Vec<Wanted>,
    validate_only: bool,
}

struct Wanted {
    name: StrBytes,
    /// Of partitions in the end, the old ones included.
    total: i32,
    /// The brokers of each new partition.
    assignments: Option<Vec<Vec<i32>>>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let topics = messages::structs(&mut r, 9, |r| {
        Ok(Wanted {
            name: r.string()?,
            total: r.i32()?,
            assignments: messages::nullable_structs(r, 1, |r| r.array(4, Reader::i32))?,
        })
    })?;
    let _timeout_ms = r.i32()?;
    let validate_only = r.bool()?;
    r.tags()?;
    Ok(Asked { topics, validate_only })
}

/// CreatePartitions 0-3, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { topics, validate_only } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let mut commands = Vec::new();
    let mut room = messages::PARTITIONS_PER_REQUEST_MAX;
    let topic = |wanted: &Wanted| plan(ctx, wanted, &mut room).map(|command| commands.push(command));
    let slots = messages::each_named_once(topics, |wanted| &wanted.name, topic);
    let version = request.version;
    if validate_only || commands.is_empty() {
        return reply(version, slots, None);
    }
    Outcome::Meta(commands, Box::new(move |_, decided| reply(version, slots, Some(decided))))
}

fn plan(ctx: &Ctx<'_>, wanted: &Wanted, room: &mut usize) -> Result<Command, Fault> {
    let topic = messages::topic(ctx, &wanted.name)?;
    let now = topic.partitions.len();
    let total = match u32::try_from(wanted.total) {
        Ok(total) if total as usize > now => total,
        _ => {
            let why = format!("the topic has {now} partitions; {} is not more", wanted.total);
            return Err(Fault::new(Code::InvalidPartitions, why));
        }
    };
    if let Some(assignments) = &wanted.assignments {
        let refuse = |why: String| Fault::new(Code::InvalidReplicaAssignment, why);
        if assignments.len() != total as usize - now {
            let why = format!("{} partitions are new, but {} are assigned", total as usize - now, assignments.len());
            return Err(refuse(why));
        }
        for brokers in assignments {
            messages::live_once(ctx, brokers).map_err(refuse)?;
        }
    }
    let command = Command::CreatePartitions { id: topic.id, total };
    State::check(ctx.image, &command).map_err(|refused| Fault::from(&refused))?;
    messages::take_room(room, total as usize - now)?;
    Ok(command)
}

fn reply(version: i16, slots: Vec<(StrBytes, Result<(), Fault>)>, decided: Option<Vec<Decided>>) -> Outcome {
    let mut decided = decided.map(Vec::into_iter);
    let results = slots.into_iter().map(|(name, planned)| {
        let done = planned.and_then(|()| match &mut decided {
            None => Ok(()),
            Some(decided) => match decided.next() {
                Some(Ok(Done::PartitionsCreated { .. })) => Ok(()),
                Some(Err(refused)) => Err(Fault::from(&refused)),
                other => unreachable!("a CreatePartitions is decided as PartitionsCreated, not as {other:?}"),
            },
        });
        let (code, message) = messages::told(&done);
        CreatePartitionsTopicResult::default()
            .with_name(TopicName(name))
            .with_error_code(code)
            .with_error_message(message)
    });
    respond(&CreatePartitionsResponse::default().with_results(results.collect()), version)
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use kafka_protocol::messages::create_partitions_request::{
        CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
    };

    fn topic(name: &'static str, total: i32, assignments: Option<&[&[i32]]>) -> CreatePartitionsTopic {
        let one = |brokers: &&[i32]| {
            CreatePartitionsAssignment::default().with_broker_ids(brokers.iter().map(|b| (*b).into()).collect())
        };
        CreatePartitionsTopic::default()
            .with_name(TopicName(StrBytes::from_static_str(name)))
            .with_count(total)
            .with_assignments(assignments.map(|all| all.iter().map(one).collect()))
    }

    fn grow(
        world: &mut World,
        version: i16,
        validate_only: bool,
        topics: Vec<CreatePartitionsTopic>,
    ) -> Vec<(String, i16)> {
        let question = CreatePartitionsRequest::default().with_topics(topics).with_validate_only(validate_only);
        let answer: CreatePartitionsResponse = world.call(handle, version, &question);
        let told = |topic: CreatePartitionsTopicResult| {
            assert_eq!(topic.error_code != 0, topic.error_message.is_some_and(|m| !m.is_empty()));
            (topic.name.to_string(), topic.error_code)
        };
        answer.results.into_iter().map(told).collect()
    }

    fn said(expected: &[(&str, i16)]) -> Vec<(String, i16)> {
        expected.iter().map(|(name, code)| (name.to_string(), *code)).collect()
    }

    /// Keys would go to other partitions than before if a count shrank or a number changed.
    #[test]
    fn every_version_grows_topics_and_keeps_what_is_there() {
        for version in 0..=3 {
            let mut world = World::with_state();
            let before = world.image.topic("t").expect("t").partitions.clone();
            let topics = vec![
                topic("t", 5, None),
                topic("dark", 3, None),
                topic("compact", 0, None),
                topic("nope", 2, None),
                topic("a b", 2, None),
            ];
            let answers = grow(&mut world, version, false, topics);
            assert_eq!(answers, said(&[("t", 0), ("dark", 37), ("compact", 37), ("nope", 3), ("a b", 17)]));
            let after = &world.image.topic("t").expect("t").partitions;
            assert_eq!((after.len(), &after[..2]), (5, &before[..]));
            assert_eq!(world.commands.len(), 1);
        }
    }

    /// A rehearsal would change the topic.
    #[test]
    fn validate_only_changes_nothing() {
        for version in 0..=3 {
            let mut world = World::with_state();
            let topics = vec![topic("t", 5, None), topic("dark", 2, None), topic("compact", i32::MAX, None)];
            assert_eq!(grow(&mut world, version, true, topics), said(&[("t", 0), ("dark", 37), ("compact", 37)]));
            assert!(world.commands.is_empty());
        }
    }

    /// Replicas would be believed on brokers that hold none.
    #[test]
    fn there_is_one_assignment_for_each_new_partition_on_live_brokers() {
        let cases: [(&[&[i32]], i16); 5] =
            [(&[&[4], &[4]], 0), (&[&[4]], 39), (&[&[4], &[]], 39), (&[&[4], &[5]], 39), (&[&[4], &[4, 4]], 39)];
        for (assignments, code) in cases {
            let answers = grow(&mut World::with_state(), 3, false, vec![topic("t", 4, Some(assignments))]);
            assert_eq!(answers, said(&[("t", code)]), "{assignments:?}");
        }
    }

    /// A request of a few bytes would fill the cluster.
    #[test]
    fn a_request_makes_only_so_many_partitions() {
        let mut world = World::with_state();
        let topics = vec![topic("t", 10_000, None), topic("compact", 4, None), topic("dark", 3 + 2, None)];
        assert_eq!(grow(&mut world, 3, false, topics), said(&[("t", 0), ("compact", 44), ("dark", 0)]));
    }

    /// Which of two counts would hold?
    #[test]
    fn a_topic_that_is_named_twice_does_not_grow() {
        let answers = grow(&mut World::with_state(), 1, false, vec![topic("t", 4, None), topic("t", 5, None)]);
        assert_eq!(answers, said(&[("t", 42)]));
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=3, |version| {
            let topics = vec![topic("t", 4, Some(&[&[4], &[4]])), topic("dark", 9, None)];
            encoded(&CreatePartitionsRequest::default().with_topics(topics), version)
        });
    }
}
