//! That a seed is always the same run, and a few short ones.

use camus_history::Op;
use camus_history::history::{Assignor, Outcome, ProduceOutcome};
use camus_sim::kit::BROKERS;
use camus_sim::runner::{line, run_all, run_caught};
use camus_sim::scenario::{Mode, Run, Setup};
use std::time::Duration;

const TIME: Duration = Duration::from_secs(6);

fn acked(run: &Run) -> usize {
    let is_acked = |op: &Op| matches!(op, Op::Produce(p) if matches!(p.outcome, ProduceOutcome::Acked { .. }));
    run.events.iter().filter(|event| is_acked(&event.op)).count()
}

fn has_records(op: &Op) -> bool {
    matches!(op, Op::Read(read) if !read.records.is_empty())
}

/// Lost if it fails: a failure that was found can not be found again.
#[test]
fn the_same_seed_gives_the_same_run() {
    let lone = [Mode::Run, Mode::Damage].map(|mode| (mode, 1));
    let clusters = [Mode::Run, Mode::NoBudget, Mode::Damage, Mode::Replicas].map(|mode| (mode, BROKERS));
    for (mode, brokers) in lone.into_iter().chain(clusters) {
        let setup = Setup { mode, brokers: Some(brokers) };
        for seed in 500..502 {
            let run = run_caught(setup, seed, TIME);
            assert_eq!(run, run_caught(setup, seed, TIME));
            assert_ne!(run.trace, run_caught(setup, seed + 2, TIME).trace);
        }
    }
}

/// Runs seeds, none of which may fail: batches acknowledged, reads with records, and broken disks.
fn all_pass(setup: Setup, seeds: std::ops::Range<u64>) -> (u64, usize, usize, usize) {
    let (mut runs, mut acks, mut read, mut refused, mut failed) = (0, 0, 0, 0, Vec::new());
    run_all(setup, seeds, TIME, 2, |run| {
        runs += 1;
        acks += acked(&run);
        read += run.events.iter().filter(|event| has_records(&event.op)).count();
        refused += usize::from(run.refused.is_some());
        if !run.failures.is_empty() {
            failed.push(line(&run));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    (runs, acks, read, refused)
}

/// Lost if it fails: promises 1 to 4, for all that a client can see, under faults of disks, processes and connections.
#[test]
fn a_whole_broker_keeps_its_promises_under_faults() {
    let (runs, acks, read, _) = all_pass(Setup { mode: Mode::Run, brokers: Some(1) }, 0..16);
    assert_eq!(runs, 16);
    assert!(acks > 50 * 16 && read > 50 * 16, "{acks} batches acknowledged, {read} reads with records");
}

/// Lost if it fails: the same of three brokers, of which one at a time is away; or they never get on again.
#[test]
fn a_cluster_keeps_its_promises_while_one_broker_at_a_time_is_away() {
    let (runs, acks, read, _) = all_pass(Setup { mode: Mode::Run, brokers: Some(BROKERS) }, 0..12);
    assert_eq!(runs, 12);
    assert!(acks > 20 * 12 && read > 20 * 12, "{acks} batches acknowledged, {read} reads with records");
}

/// Lost if it fails: what was acknowledged, when any number of brokers is away at once.
#[test]
fn a_cluster_loses_nothing_however_many_of_its_brokers_are_away() {
    let (runs, acks, _, _) = all_pass(Setup { mode: Mode::NoBudget, brokers: None }, 0..8);
    assert_eq!(runs, 8);
    assert!(acks > 20 * 8, "{acks} batches acknowledged");
}

/// Lost if it fails: promise 8. Somebody is shown what a damaged disk made of the records.
#[test]
fn a_damaged_disk_is_refused_or_reported_and_never_served() {
    let (_, acks, _, refused) = all_pass(Setup { mode: Mode::Damage, brokers: Some(1) }, 0..16);
    assert!(acks > 50 && refused > 2, "{acks} batches acknowledged, {refused} starts refused");
}

/// Lost if it fails: the same of one disk of three.
#[test]
fn one_damaged_disk_of_three_is_refused_or_reported_and_never_served() {
    let (_, acks, _, refused) = all_pass(Setup { mode: Mode::Damage, brokers: Some(BROKERS) }, 0..16);
    assert!(acks > 50 && refused > 0, "{acks} batches acknowledged, {refused} starts refused");
}

/// Lost if it fails: promises 1 to 4 of a cluster, as far as replication keeps them.
#[test]
fn three_replicas_keep_their_promises_under_faults() {
    let (mut acks, mut ends, mut failed) = (0, 0, Vec::new());
    run_all(Mode::Replicas, 0..8, TIME, 2, |run| {
        acks += acked(&run);
        ends += run.events.iter().filter(|event| matches!(event.op, Op::EpochEnd(_))).count();
        if !run.failures.is_empty() {
            failed.push(line(&run));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(acks > 500 && ends > 20, "{acks} batches acknowledged, {ends} ends of epochs");
}

/// What members of groups did in some seeds.
#[derive(Default, Debug)]
struct Groups {
    led: usize,
    coordinated: usize,
    given_up: usize,
    fenced: usize,
    /// Commits as a member, and of these those that were refused since it was none any more.
    committed: usize,
    refused: usize,
}

impl Groups {
    fn look(&mut self, op: &Op) {
        match op {
            Op::Assigned(assigned) if assigned.partitions.is_empty() => {}
            Op::Assigned(assigned) => match assigned.assignor {
                Assignor::Leader(_) => self.led += 1,
                Assignor::Coordinator(_) => self.coordinated += 1,
            },
            Op::Revoked(_) => self.given_up += 1,
            Op::Lost(lost) => self.fenced += usize::from(lost.fenced),
            Op::CommitOffset(commit) if commit.by.is_some() => {
                self.committed += usize::from(commit.outcome == Outcome::Acked);
                self.refused += usize::from(commit.outcome == Outcome::Failed);
            }
            _ => {}
        }
    }
}

/// Lost if it fails: groups of which the judgement has nothing to judge, since nothing ever happens in them.
#[test]
fn members_of_both_protocols_share_partitions_give_them_up_and_are_fenced() {
    // on a lone broker members are fenced in few seeds
    for (brokers, seeds) in [(1, 100..130), (BROKERS, 100..110)] {
        let mut groups = Groups::default();
        run_all(Setup { mode: Mode::Run, brokers: Some(brokers) }, seeds, 2 * TIME, 2, |run| {
            run.events.iter().for_each(|event| groups.look(&event.op));
            assert!(run.failures.is_empty(), "{}", line(&run));
        });
        let Groups { led, coordinated, given_up, fenced, committed, refused } = groups;
        let all = [led, coordinated, given_up, fenced, committed, refused];
        assert!(all.iter().all(|count| *count > 2), "{brokers} brokers: {groups:?}");
    }
}

/// Lost if it fails: a kind of world that is never looked at.
#[test]
fn about_half_of_the_seeds_are_a_lone_broker() {
    let mut clusters = 0;
    run_all(Mode::Run, 0..20, Duration::from_millis(1), 2, |run| clusters += usize::from(run.brokers == BROKERS));
    assert!((5..=15).contains(&clusters), "{clusters} of 20 are clusters");
}
