//! That a seed is always the same run, and a few short ones.

use camus_history::Op;
use camus_history::history::ProduceOutcome;
use camus_sim::runner::{line, run_all, run_caught};
use camus_sim::scenario::{Mode, Run};
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
    for mode in [Mode::Run, Mode::Damage, Mode::Replicas] {
        for seed in 500..502 {
            let run = run_caught(mode, seed, TIME);
            assert_eq!(run, run_caught(mode, seed, TIME));
            assert_ne!(run.trace, run_caught(mode, seed + 2, TIME).trace);
        }
    }
}

/// Lost if it fails: promises 1 to 4, for all that a client can see, under faults of disks, processes and connections.
#[test]
fn a_whole_broker_keeps_its_promises_under_faults() {
    let (mut runs, mut acks, mut read, mut failed) = (0, 0, 0, Vec::new());
    run_all(Mode::Run, 0..16, TIME, 2, |run| {
        runs += 1;
        acks += acked(&run);
        read += run.events.iter().filter(|event| has_records(&event.op)).count();
        if !run.failures.is_empty() {
            failed.push(line(&run));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(runs, 16);
    assert!(acks > 50 * runs && read > 50 * runs, "{acks} batches acknowledged, {read} reads with records");
}

/// Lost if it fails: promise 8. Somebody is shown what a damaged disk made of the records.
#[test]
fn a_damaged_disk_is_refused_or_reported_and_never_served() {
    let (mut acks, mut refused, mut failed) = (0, 0, Vec::new());
    run_all(Mode::Damage, 0..16, TIME, 2, |run| {
        acks += acked(&run);
        refused += usize::from(run.refused.is_some());
        if !run.failures.is_empty() {
            failed.push(line(&run));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(acks > 50 && refused > 2, "{acks} batches acknowledged, {refused} starts refused");
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
