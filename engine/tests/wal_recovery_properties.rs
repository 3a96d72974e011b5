//! Histories nobody thought of: any order of completions, any torn sectors, any flipped bit, blocks lost and swapped.
//! Lost if one of these fails: acknowledged records, or the trust in those that are found.

mod wal_model;

use camus_engine::io::FileId;
use camus_engine::types::SegmentSeq;
use camus_engine::wal::{WalError, Why};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use wal_model::{BLOCK, Crashed, Host, Landed, Rng, Volumes, config, recover};

#[derive(Clone, Debug)]
enum Step {
    Append { bytes: usize, kind: u8 },
    Turn,
    Complete(usize),
    Rest,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![6 => 0usize..300, 3 => 300usize..5_000, 1 => 5_000usize..20_000];
    prop_oneof![
        6 => (bytes, 0u8..4).prop_map(|(bytes, kind)| Step::Append { bytes, kind }),
        4 => Just(Step::Turn),
        5 => (0usize..16).prop_map(Step::Complete),
        1 => Just(Step::Rest),
        1 => Just(Step::Release),
    ]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

fn body(rng: &mut Rng, bytes: usize, kind: u8) -> Vec<u8> {
    match kind {
        0 => vec![0; bytes],
        1 => vec![b'x'; bytes],
        _ => (0..bytes).map(|_| rng.next() as u8).collect(),
    }
}

fn play(host: &mut Host, steps: &[Step], rng: &mut Rng) {
    for step in steps {
        host.check_files();
        match *step {
            Step::Append { bytes, kind } => {
                let body = body(rng, bytes, kind);
                if kind == 3 {
                    host.append_in_parts(&body);
                } else {
                    host.append(&body);
                }
            }
            Step::Turn => host.turn(),
            Step::Complete(i) => {
                if !host.pending.is_empty() {
                    host.complete(i % host.pending.len());
                }
            }
            Step::Rest => {
                host.tick(300);
                host.turn();
            }
            Step::Release => {
                // All but the newest two that hold something durable.
                let durable = host.records.iter().rev().find(|r| r.lsn <= host.acknowledged).map(|r| r.at.segment);
                if let Some(segment) = durable {
                    host.release(SegmentSeq(segment.0.saturating_sub(1)));
                }
            }
        }
    }
    host.check_reads();
}

/// A host that has lived through these histories, each but the last ended by a crash, and then crashed.
fn lived(lives: &[Vec<Step>], seed: u64) -> Crashed {
    let mut rng = Rng(seed);
    let mut host = Host::new(config(64 * 1024, 6));
    for (i, steps) in lives.iter().enumerate() {
        play(&mut host, steps, &mut rng);
        if i + 1 < lives.len() {
            host = host.crash(&mut rng).restart(rng.next());
        }
    }
    host.crash(&mut rng)
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// With nothing in flight.
    Quiet,
    /// Of each write in flight the same is there.
    Alike(Landed),
    /// Of each something else.
    Mixed,
}

const ENDS: [Ends; 8] = [
    Ends::Quiet,
    Ends::Mixed,
    Ends::Alike(Landed::All),
    Ends::Alike(Landed::Nothing),
    Ends::Alike(Landed::Half),
    Ends::Alike(Landed::Most),
    Ends::Alike(Landed::NoHeader),
    Ends::Alike(Landed::Header),
];

/// Lost if it fails: what a process acknowledged in a segment that others began and wrote to, each until its crash.
#[test]
fn many_processes_that_crash_in_one_segment_keep_all_that_was_acknowledged() {
    let ends = (0..ENDS.len(), prop::collection::vec(step(), 0..25));
    let lives = (prop::collection::vec(ends, 5..12), any::<u64>());
    // For each kind of end: how often the next process went on in the segment, and how often it did not.
    let next = Cell::new([(0u32, 0u32); ENDS.len()]);
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    let run = |(lives, seed): (Vec<(usize, Vec<Step>)>, u64)| {
        let mut rng = Rng(seed);
        // Few segments that are gone on with for long, or many of which the last one was just begun.
        let segment_bytes = if seed % 2 == 0 { 256 * 1024 } else { 64 * 1024 };
        let mut host = Host::new(self::config(segment_bytes, 8));
        host.settle();
        for (end, steps) in &lives {
            play(&mut host, steps, &mut rng);
            let landed = match ENDS[*end] {
                Ends::Quiet => {
                    host.settle();
                    None
                }
                Ends::Alike(landed) => Some(landed),
                Ends::Mixed => None,
            };
            let before = host.wal.segment_now();
            let submitted = host.written.iter().filter_map(|w| w.group.map(|(lsn, _)| lsn)).max().unwrap_or(0);
            let is_full = host.written.last().is_some_and(|w| w.at + w.bytes as u64 == segment_bytes);
            host = host.crash_with(&mut rng, landed).restart(rng.next());
            let mut count = next.get();
            if host.report.goes_on {
                prop_assert!(host.wal.segment_now() <= before);
                count[*end].0 += 1;
            } else {
                prop_assert!(ENDS[*end] != Ends::Quiet || is_full, "a clean end");
                count[*end].1 += 1;
            }
            next.set(count);
            prop_assert!(host.report.last.0 <= submitted);
        }
        let crashed = host.crash_with(&mut rng, None);
        let (_, report, found) = crashed.recover().map_err(|e| TestCaseError::fail(e.to_string()))?;
        crashed.judge(&found, report.last).map_err(TestCaseError::fail)
    };
    if let Err(wrong) = TestRunner::new(config).run(&lives, run) {
        panic!("{wrong}");
    }
    for (end, (same, new)) in ENDS.iter().zip(next.get()) {
        let never = matches!(end, Ends::Quiet | Ends::Alike(Landed::All));
        assert!(same > 100 && (new > 5 || never), "{end:?}: {same} went on, {new} did not");
    }
}

/// A place in what was written, mostly; anywhere, sometimes.
fn place(crashed: &Crashed, rng: &mut Rng) -> Option<(FileId, usize)> {
    let files: Vec<_> = crashed.volume.files.iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    if files.is_empty() {
        return None;
    }
    let written: Vec<_> = crashed.written.iter().filter(|w| crashed.volume.files.contains_key(&w.file)).collect();
    if written.is_empty() || rng.below(8) == 0 {
        let (file, bytes) = files[rng.below(files.len())];
        return Some((*file, rng.below(bytes.len())));
    }
    // The last ones more often: they are the hard ones.
    let w = written[written.len() - 1 - rng.below(written.len()).min(rng.below(written.len()))];
    let within = if rng.below(2) == 0 { rng.below(256) } else { rng.below(w.bytes) };
    Some((w.file, w.at as usize + within))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_keeps_all_that_was_acknowledged_and_a_prefix_of_the_rest(
        lives in prop::collection::vec(history(), 1..5),
        seed: u64,
    ) {
        let crashed = lived(&lives, seed);
        let (_, report, found) = crashed.recover().map_err(|e| TestCaseError::fail(e.to_string()))?;
        crashed.judge(&found, report.last).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_flipped_bit_never_shortens_or_changes_the_log(lives in prop::collection::vec(history(), 1..4), seed: u64) {
        let mut crashed = lived(&lives, seed);
        let mut rng = Rng(!seed);
        for _ in 0..24 {
            let Some((file, byte)) = place(&crashed, &mut rng) else { break };
            let bit = 1u8 << rng.below(8);
            crashed.volume.files.get_mut(&file).expect("there")[byte] ^= bit;
            match crashed.recover() {
                Ok((_, report, found)) => crashed
                    .judge(&found, report.last)
                    .map_err(|e| TestCaseError::fail(format!("{e}; flipped {file:?} byte {byte}")))?,
                Err(refusal) => names_a_place(&refusal)?,
            }
            crashed.volume.files.get_mut(&file).expect("there")[byte] ^= bit;
        }
    }

    #[test]
    fn blocks_lost_swapped_or_doubled_before_an_acknowledged_group_are_refused(
        lives in prop::collection::vec(history(), 1..4),
        seed: u64,
    ) {
        let crashed = lived(&lives, seed);
        let mut rng = Rng(!seed);
        for _ in 0..16 {
            let (Some((to, at)), Some((from, from_at))) = (place(&crashed, &mut rng), place(&crashed, &mut rng)) else {
                break;
            };
            let (at, from_at) = (at / BLOCK * BLOCK, from_at / BLOCK * BLOCK);
            let mut damaged = crashed.clone();
            if damaged.volume.files[&to].len() < at + BLOCK || damaged.volume.files[&from].len() < from_at + BLOCK {
                continue;
            }
            let mut blocks = vec![(to, (at / BLOCK) as u64)];
            let old = damaged.volume.files[&to][at..at + BLOCK].to_vec();
            let new = match rng.below(3) {
                0 => vec![0; BLOCK],
                _ => damaged.volume.files[&from][from_at..from_at + BLOCK].to_vec(),
            };
            damaged.volume.files.get_mut(&to).expect("there")[at..at + BLOCK].copy_from_slice(&new);
            if rng.below(2) == 0 {
                blocks.push((from, (from_at / BLOCK) as u64));
                damaged.volume.files.get_mut(&from).expect("there")[from_at..from_at + BLOCK].copy_from_slice(&old);
            }
            let claimed = damaged.claimed_outside(&blocks);
            match damaged.recover() {
                Ok((_, report, found)) => {
                    let judged = if report.last.0 >= claimed.min(damaged.acknowledged.0) {
                        // Beyond what anything else vouches for, a lost block is a block that was never written.
                        damaged.judge_prefix(&found, report.last)
                    } else {
                        damaged.judge(&found, report.last)
                    };
                    judged.map_err(|e| TestCaseError::fail(format!("{e}; damaged {blocks:?}")))?;
                }
                Err(refusal) => names_a_place(&refusal)?,
            }
        }
    }

    #[test]
    fn any_bytes_at_all_are_recovered_or_refused_but_never_a_panic(
        lives in prop::collection::vec(history(), 1..3),
        seed: u64,
        changes in prop::collection::vec((any::<u64>(), any::<u8>()), 0..40),
        cut in prop::option::of(0usize..80_000),
    ) {
        let mut crashed = lived(&lives, seed);
        let mut rng = Rng(!seed);
        for (_, value) in &changes {
            if let Some((file, byte)) = place(&crashed, &mut rng) {
                crashed.volume.files.get_mut(&file).expect("there")[byte] = *value;
            }
        }
        if let Some(cut) = cut && let Some(mut file) = crashed.volume.files.first_entry() {
            file.get_mut().truncate(cut);
        }
        if let Ok((_, report, found)) = crashed.recover() {
            crashed.judge_prefix(&found, report.last).map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn random_files_are_no_log(
        files in prop::collection::btree_map(0u32..5, prop::collection::vec(any::<u8>(), BLOCK..20_000), 0..4),
    ) {
        let volume = Volumes { files: files.into_iter().map(|(f, bytes)| (FileId(f), bytes)).collect() };
        let recovered = recover(config(64 * 1024, 6), &volume);
        let (_, report, found) = recovered.map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert!(found.is_empty() && report.groups == 0);
    }
}

/// A person can look at what a refusal names.
fn names_a_place(refusal: &WalError) -> Result<(), TestCaseError> {
    match refusal {
        WalError::Damaged(damage) => {
            prop_assert!(damage.file.ends_with(".wal"));
            if let Why::Acknowledged { durable } = damage.why {
                prop_assert!(durable >= damage.lsn);
            }
        }
        WalError::MissingSegment { segment, .. } => prop_assert!(segment.0 > 0),
        WalError::DuplicateSegment { .. } | WalError::Truncated { .. } | WalError::CutShort { .. } => {}
        other => return Err(TestCaseError::fail(format!("a refusal of another kind: {other}"))),
    }
    Ok(())
}
