//! DescribeLogDirs: what each partition takes on this broker's disk.
//!
//! All cores write into one data directory, so there is one. A partition has no files of its own there: its size is
//! that of its batches as they are stored, which is what can be got back by deleting it. How large the disk is, is not
//! told: no handler asks the disk.

use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::code;
use camus_engine::shard::api::{Answer, Ask, Refusal};
use camus_engine::types::{CoreId, PartitionId, ShardId};
use camus_meta::{Placement, Topic};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::protocol::StrBytes;
use std::collections::{BTreeMap, BTreeSet};

/// Partition numbers by topic; `None`: all of all topics.
type Wanted = Option<BTreeMap<StrBytes, BTreeSet<i32>>>;

fn read(request: &Request) -> Result<Wanted, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 2);
    let topics = messages::nullable_structs(&mut r, 2, |r| Ok((r.string()?, r.array(4, Reader::i32)?)))?;
    r.tags()?;
    Ok(topics.map(|topics| {
        let mut wanted: BTreeMap<StrBytes, BTreeSet<i32>> = BTreeMap::new();
        for (name, numbers) in topics {
            wanted.entry(name).or_default().extend(numbers);
        }
        wanted
    }))
}

/// DescribeLogDirs 1-4, flexible from 2.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let wanted = match read(request) {
        Ok(wanted) => wanted,
        Err(fault) => return fault.into(),
    };
    let shards = (0..ctx.shards.len() as u32).map(ShardId);
    let cores: BTreeSet<CoreId> = shards.map(|shard| ctx.shards.core(shard)).collect();
    let asks = cores.into_iter().map(|core| Ask::Holdings { core }).collect();
    let version = request.version;
    Outcome::Ask(asks, Box::new(move |ctx, answers| reply(ctx, version, &wanted, answers)))
}

fn reply(ctx: &Ctx<'_>, version: i16, wanted: &Wanted, answers: Vec<Answer>) -> Outcome {
    let directory = ctx.settings.given.iter().find(|(name, _)| name == "log.dirs");
    let directory = directory.map_or("", |(_, directory)| directory.as_str()).to_owned();
    let told = DescribeLogDirsResult::default().with_log_dir(StrBytes::from_string(directory));
    let told = match held(answers) {
        Ok(held) => told.with_topics(topics(ctx, wanted, &held)),
        Err(refusal) => told.with_error_code(code(&refusal).wire()),
    };
    respond(&DescribeLogDirsResponse::default().with_results(vec![told]), version)
}

/// What the cores hold of each partition, bytes.
fn held(answers: Vec<Answer>) -> Result<BTreeMap<PartitionId, u64>, Refusal> {
    let mut held = BTreeMap::new();
    for answer in answers {
        match answer {
            Answer::Holdings(holdings) => held.extend(holdings?.into_iter().map(|h| (h.partition, h.bytes))),
            other => unreachable!("a question for what a core holds is not answered with {other:?}"),
        }
    }
    Ok(held)
}

/// The topics with a partition that was asked for and is here.
fn topics(ctx: &Ctx<'_>, wanted: &Wanted, held: &BTreeMap<PartitionId, u64>) -> Vec<DescribeLogDirsTopic> {
    let told = |topic: &Topic, numbers: Option<&BTreeSet<i32>>| {
        let of = |(placement, number): (&Placement, i32)| {
            let bytes = held.get(&placement.partition()).filter(|_| numbers.is_none_or(|n| n.contains(&number)))?;
            let size = i64::try_from(*bytes).unwrap_or(i64::MAX);
            Some(DescribeLogDirsPartition::default().with_partition_index(number).with_partition_size(size))
        };
        let partitions: Vec<_> = topic.partitions.iter().zip(0..).filter_map(of).collect();
        let name = TopicName(StrBytes::from_string(topic.name.clone()));
        let is_here = !partitions.is_empty();
        is_here.then(|| DescribeLogDirsTopic::default().with_name(name).with_partitions(partitions))
    };
    match wanted {
        None => ctx.image.topics().filter_map(|topic| told(topic, None)).collect(),
        Some(wanted) => {
            wanted.iter().filter_map(|(name, numbers)| told(ctx.image.topic(name)?, Some(numbers))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage};
    use super::*;
    use camus_engine::shard::api::Holding;
    use kafka_protocol::messages::DescribeLogDirsRequest;
    use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;

    fn question(topics: Option<&[(&'static str, &[i32])]>) -> DescribeLogDirsRequest {
        let one = |(name, numbers): &(&'static str, &[i32])| {
            let name = TopicName(StrBytes::from_static_str(name));
            DescribableLogDirTopic::default().with_topic(name).with_partitions(numbers.to_vec())
        };
        DescribeLogDirsRequest::default().with_topics(topics.map(|topics| topics.iter().map(one).collect()))
    }

    /// Core 0 has partition 100 with 7000 bytes, core 1 the partitions 101 and 102.
    fn world() -> World {
        let mut world = World::new();
        world.settings.given = vec![("log.dirs".into(), "/data/camus".into())];
        world.answer = Box::new(|ask| {
            let holdings: &[(u64, u64)] = match ask {
                Ask::Holdings { core: CoreId(0) } => &[(100, 7000)],
                Ask::Holdings { core: CoreId(1) } => &[(101, 0), (102, 50)],
                other => panic!("{other:?}"),
            };
            let one = |(id, bytes): &(u64, u64)| Holding { partition: PartitionId(*id), bytes: *bytes };
            Answer::Holdings(Ok(holdings.iter().map(one).collect()))
        });
        world
    }

    fn ask(version: i16, topics: Option<&[(&'static str, &[i32])]>) -> Vec<(String, Vec<(i32, i64)>)> {
        let answer: DescribeLogDirsResponse = world().call(handle, version, &question(topics));
        assert_eq!(answer.error_code, 0);
        let [directory] = &answer.results[..] else { panic!("{answer:?}") };
        assert_eq!((directory.error_code, directory.log_dir.as_str()), (0, "/data/camus"));
        assert_eq!((directory.total_bytes, directory.usable_bytes), (-1, -1));
        let partition = |p: &DescribeLogDirsPartition| {
            assert_eq!((p.offset_lag, p.is_future_key), (0, false));
            (p.partition_index, p.partition_size)
        };
        let topic = |t: &DescribeLogDirsTopic| (t.name.to_string(), t.partitions.iter().map(partition).collect());
        directory.topics.iter().map(topic).collect()
    }

    /// Consoles show a cluster as offline without this, and an operator would look for what fills the disk elsewhere.
    #[test]
    fn every_version_tells_what_each_partition_takes() {
        for version in 1..=4 {
            let all = [
                ("compact".to_string(), vec![(0, 7000)]),
                ("dark".to_string(), vec![(0, 7000), (1, 0), (2, 50)]),
                ("t".to_string(), vec![(0, 7000), (1, 0)]),
            ];
            assert_eq!(ask(version, None), all);
            let some: &[(&str, &[i32])] = &[("t", &[1, 9, 1, -1]), ("nope", &[0]), ("dark", &[])];
            assert_eq!(ask(version, Some(some)), [("t".to_string(), vec![(1, 0)])]);
            let twice: &[(&str, &[i32])] = &[("t", &[0]), ("t", &[1])];
            assert_eq!(ask(version, Some(twice)), [("t".to_string(), vec![(0, 7000), (1, 0)])]);
            assert!(ask(version, Some(&[])).is_empty());
        }
    }

    /// A few bytes would become a question for each partition of the cluster.
    #[test]
    fn each_core_is_asked_once() {
        let mut world = world();
        let _: DescribeLogDirsResponse = world.call(handle, 4, &question(None));
        let cores: Vec<_> = world.asked.iter().map(Ask::core).collect();
        assert_eq!(cores, [Some(CoreId(0)), Some(CoreId(1))]);
    }

    /// Sizes of nothing would pass for an empty disk.
    #[test]
    fn a_disk_that_has_failed_is_told_of() {
        for version in 1..=4 {
            let mut world = world();
            world.answer = Box::new(|_| Answer::Holdings(Err(Refusal::Storage)));
            let answer: DescribeLogDirsResponse = world.call(handle, version, &question(None));
            assert_eq!((answer.results[0].error_code, answer.results[0].topics.len()), (56, 0));
        }
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 1..=4, |version| encoded(&question(Some(&[("t", &[0, 1]), ("nope", &[0])])), version));
    }
}
