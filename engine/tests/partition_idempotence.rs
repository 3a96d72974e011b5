//! The retry rule (SPEC, promise 4) on a partition: live, rebuilt from WAL record heads, and from a snapshot with the
//! rest behind it. Lost if one of these fails: a record is stored twice, or one that was acknowledged is refused for
//! ever, or a restart answers a retry otherwise than the broker before it would have.

#![allow(clippy::unwrap_used, reason = "a test ends where its helpers do not hold")]

mod partition_kit;

use camus_engine::limits;
use camus_engine::partition::batch::{BatchHead, FLAG_LOG_APPEND_TIME};
use camus_engine::partition::idempotence::Producers;
use camus_engine::partition::{CommittedBatch, Partition, Verdict};
use camus_engine::shard::api::Refusal;
use camus_engine::types::{EntryId, Index, Offset, ProducerEpoch, Sequence, ShardId, Term, WallMs};
use camus_engine::wal::record::{RecordAt, RecordHead};
use partition_kit::{NOW, PARTITION, head, place};
use proptest::prelude::*;
use std::collections::VecDeque;

/// A leader's partition, its Raft log and what its WAL would hold.
struct Leader {
    partition: Partition,
    term: u64,
    next_index: u64,
    flying: VecDeque<u64>,
    /// Record heads of every committed batch.
    wal: Vec<(RecordHead, RecordAt)>,
    pending: VecDeque<(RecordHead, RecordAt)>,
}

impl Leader {
    fn new() -> Leader {
        Leader {
            partition: Partition::new(PARTITION),
            term: 1,
            next_index: 1,
            flying: VecDeque::new(),
            wal: Vec::new(),
            pending: VecDeque::new(),
        }
    }

    /// A produce up to its proposal.
    fn send_head(&mut self, head: &BatchHead) -> Verdict {
        let verdict = self.partition.check(head);
        if let Verdict::Append { base_offset } = verdict {
            let entry = EntryId { term: Term(self.term), index: Index(self.next_index) };
            let at = place(self.next_index);
            self.next_index += 1;
            self.partition.proposed(entry, head, base_offset, at);
            self.flying.push_back(entry.index.0);
            self.pending.push_back((head.record_head(ShardId(1), PARTITION, entry, base_offset, Index(0)), at));
        }
        verdict
    }

    fn send(&mut self, producer: i64, epoch: i16, first: i32, count: i32) -> Verdict {
        self.send_head(&head((producer, epoch, first), count, NOW))
    }

    fn commit_one(&mut self) -> CommittedBatch {
        let committed = self.partition.committed(Index(self.flying.pop_front().unwrap())).unwrap();
        self.wal.push(self.pending.pop_front().unwrap());
        committed
    }

    fn commit_all(&mut self) {
        while !self.flying.is_empty() {
            self.commit_one();
        }
    }

    fn ok(&mut self, producer: i64, epoch: i16, first: i32, count: i32) -> i64 {
        match self.send(producer, epoch, first, count) {
            Verdict::Append { base_offset } => {
                self.commit_all();
                base_offset.0
            }
            Verdict::Duplicate { base_offset, .. } => base_offset.0,
            other => panic!("{other:?}"),
        }
    }

    fn lose_leadership(&mut self) {
        self.partition.drop_uncommitted();
        self.flying.clear();
        self.pending.clear();
        self.term += 1;
    }

    /// What a restart would make of the WAL.
    fn rebuilt(&self) -> Partition {
        let mut partition = Partition::new(PARTITION);
        for (head, at) in &self.wal {
            partition.recovered(head, *at);
        }
        partition
    }

    /// What a restart would make of a snapshot behind the first `below` batches, and the rest.
    fn restored_behind(&self, below: usize) -> Partition {
        let mut before = Partition::new(PARTITION);
        for (head, at) in &self.wal[..below] {
            before.recovered(head, *at);
        }
        let mut bytes = Vec::new();
        before.snapshot(&mut bytes);
        let mut partition = Partition::restore(PARTITION, &bytes).unwrap();
        for (head, at) in &self.wal[..below] {
            partition.recovered_data_only(head, *at);
        }
        assert_eq!(partition.missing(), None);
        for (head, at) in &self.wal[below..] {
            partition.recovered(head, *at);
        }
        partition
    }
}

fn bytes(partition: &Partition) -> Vec<u8> {
    let mut out = Vec::new();
    partition.snapshot(&mut out);
    out
}

fn append(base: i64) -> Verdict {
    Verdict::Append { base_offset: Offset(base) }
}

fn duplicate(base: i64) -> Verdict {
    Verdict::Duplicate { base_offset: Offset(base), append_time: None }
}

fn is_45(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Refuse(Refusal::OutOfOrderSequence { .. }))
}

fn is_47(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Refuse(Refusal::OldProducerEpoch { .. }))
}

#[test]
fn idempotent_inflight_retries_keep_order() {
    // Five batches in flight, each retried before any of them is durable: each retry shares its original's fate, none
    // is stored again, and the order stays.
    let mut leader = Leader::new();
    for round in 0..4 {
        let base = round * 10;
        for n in 0..5 {
            assert_eq!(leader.send(1, 0, base + n * 2, 2), append((base + n * 2).into()));
        }
        let flying: Vec<u64> = leader.flying.iter().copied().collect();
        for n in [4, 0, 2, 1, 3] {
            let original = Verdict::AwaitOriginal { index: Index(flying[n as usize]) };
            assert_eq!(leader.send(1, 0, base + n * 2, 2), original);
        }
        assert!(is_45(leader.send(1, 0, base + 12, 2)));
        // Some land, the others fly on: both kinds of retry at once.
        for n in 0..5 {
            assert_eq!(leader.commit_one().base_offset, Offset((base + n * 2).into()));
            for m in 0..5 {
                let want = if m <= n {
                    duplicate((base + m * 2).into())
                } else {
                    Verdict::AwaitOriginal { index: Index(flying[m as usize]) }
                };
                assert_eq!(leader.send(1, 0, base + m * 2, 2), want);
            }
        }
    }
    let offsets: Vec<_> = leader.partition.read_from(Offset(0)).unwrap().map(|b| (b.base_offset.0, b.count)).collect();
    assert_eq!(offsets, (0..20).map(|n| (n * 2, 2)).collect::<Vec<_>>());
}

#[test]
fn concurrent_producers_keep_each_send_order() {
    // Two producers on one partition interleave as they commit; each that sends one at a time keeps its own order.
    let mut leader = Leader::new();
    let mut order = Vec::new();
    for n in 0..30 {
        for producer in if n % 3 == 0 { [1, 2, 3] } else { [3, 1, 2] } {
            assert_eq!(leader.send(producer, 0, n, 1), append(order.len() as i64));
            order.push((producer, n));
        }
        leader.commit_all();
    }
    let stored: Vec<_> = leader.wal.iter().map(|(head, _)| (head.producer.0, head.base_sequence.0)).collect();
    assert_eq!(stored, order);
    for producer in 1..=3 {
        let own: Vec<_> = stored.iter().filter(|(p, _)| *p == producer).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..30).collect::<Vec<_>>());
    }
    for (offset, (head, _)) in leader.wal.iter().enumerate() {
        assert_eq!(head.base_offset, Offset(offset as i64));
    }
}

#[test]
fn the_last_five_are_remembered_and_no_more() {
    let mut leader = Leader::new();
    for n in 0..6 {
        assert_eq!(leader.ok(1, 0, n, 1), i64::from(n));
    }
    assert!(is_45(leader.send(1, 0, 0, 1)));
    for n in 1..6 {
        assert_eq!(leader.send(1, 0, n, 1), duplicate(n.into()));
    }
}

#[test]
fn a_gap_or_an_overlap_is_refused_and_never_parked() {
    let mut leader = Leader::new();
    leader.ok(1, 0, 0, 3);
    for (first, count) in [(0, 2), (0, 4), (1, 2), (2, 1), (2, 2), (4, 1), (1003, 1), (i32::MAX, 1)] {
        assert!(is_45(leader.send(1, 0, first, count)), "{first} {count}");
    }
    match leader.send(1, 0, 7, 1) {
        Verdict::Refuse(Refusal::OutOfOrderSequence { expected, found, .. }) => {
            assert_eq!((expected, found), (Sequence(3), Sequence(7)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(leader.ok(1, 0, 0, 3), 0);
    assert_eq!(leader.ok(1, 0, 3, 1), 3);
}

#[test]
fn without_state_any_first_sequence_will_do() {
    let mut leader = Leader::new();
    assert_eq!(leader.ok(1, 5, 7, 3), 0);
    assert_eq!(leader.ok(1, 5, 10, 1), 3);
    assert!(is_45(leader.send(1, 5, 20, 1)));
}

#[test]
fn epochs_fence_and_begin_at_zero() {
    let mut leader = Leader::new();
    leader.ok(1, 0, 0, 1);
    leader.ok(1, 0, 1, 1);
    for first in [1, 2, 3] {
        assert!(is_45(leader.send(1, 4, first, 1)));
    }
    assert_eq!(leader.ok(1, 4, 0, 1), 2);
    for (epoch, first) in [(3, 0), (0, 0), (0, 1), (0, 2)] {
        assert!(is_47(leader.send(1, epoch, first, 1)));
    }
    match leader.send(1, 3, 0, 1) {
        Verdict::Refuse(Refusal::OldProducerEpoch { current, found, .. }) => {
            assert_eq!((current, found), (ProducerEpoch(4), ProducerEpoch(3)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(leader.ok(1, 4, 0, 1), 2);
    assert_eq!(leader.ok(1, 4, 1, 1), 3);
}

#[test]
fn the_sequence_wraps_between_batches_and_inside_one() {
    let mut leader = Leader::new();
    assert_eq!(leader.ok(1, 0, i32::MAX - 1, 2), 0);
    assert_eq!(leader.ok(1, 0, 0, 1), 2);
    assert_eq!(leader.send(1, 0, i32::MAX - 1, 2), duplicate(0));
    assert_eq!(leader.ok(2, 0, i32::MAX - 1, 5), 3);
    assert!(is_45(leader.send(2, 0, 4, 1)));
    assert_eq!(leader.ok(2, 0, 3, 1), 8);
    assert_eq!(leader.send(2, 0, i32::MAX - 1, 5), duplicate(3));
    assert_eq!(leader.rebuilt().check(&head((2, 0, i32::MAX - 1), 5, NOW)), duplicate(3));
    assert_eq!(leader.rebuilt().check(&head((2, 0, 4), 1, NOW)), append(9));
}

#[test]
fn a_lost_leader_forgets_what_flew_and_judges_by_what_is_committed() {
    // The batches in flight may be gone: answering a retry with their offsets would acknowledge what is nowhere.
    let mut leader = Leader::new();
    leader.ok(1, 0, 0, 1);
    assert_eq!(leader.send(1, 0, 1, 1), append(1));
    assert_eq!(leader.send(1, 0, 2, 1), append(2));
    assert_eq!(leader.partition.next_offset(), Offset(3));
    leader.lose_leadership();
    assert_eq!(leader.partition.next_offset(), Offset(1));
    assert!(is_45(leader.send(1, 0, 2, 1)));
    assert_eq!(leader.ok(1, 0, 1, 1), 1);
    assert_eq!(leader.ok(1, 0, 2, 1), 2);
    assert_eq!(leader.ok(1, 0, 0, 1), 0);
}

#[test]
fn a_retry_after_the_data_was_deleted_gets_the_original_offset() {
    let mut leader = Leader::new();
    leader.ok(1, 0, 0, 3);
    leader.partition.trim(Offset(3)).unwrap();
    assert_eq!(leader.partition.first_segment(), None);
    assert_eq!(leader.send(1, 0, 0, 3), duplicate(0));
    let restored = Partition::restore(PARTITION, &bytes(&leader.partition)).unwrap();
    assert_eq!(restored.check(&head((1, 0, 0), 3, NOW)), duplicate(0));
    assert_eq!(leader.ok(1, 0, 3, 1), 3);
}

#[test]
fn a_retry_is_told_the_originals_append_time() {
    let mut leader = Leader::new();
    let mut batch = head((1, 0, 0), 2, 5000);
    batch.attributes |= 0x08;
    assert_eq!(leader.send_head(&batch), append(0));
    assert_eq!(leader.commit_one().append_time, Some(WallMs(5000)));
    assert_eq!(leader.wal[0].0.flags, FLAG_LOG_APPEND_TIME);
    let mut retry = batch;
    retry.max_timestamp = WallMs(9000);
    let want = Verdict::Duplicate { base_offset: Offset(0), append_time: Some(WallMs(5000)) };
    assert_eq!(leader.send_head(&retry), want);
    assert_eq!(leader.rebuilt().check(&retry), want);
    assert_eq!(leader.restored_behind(1).check(&retry), want);
}

#[test]
fn batches_without_a_producer_are_never_taken_for_another() {
    let mut leader = Leader::new();
    for n in 0..3 {
        assert_eq!(leader.send(-1, -1, -1, 1), append(n));
    }
    leader.commit_all();
    assert_eq!(leader.send(-1, -1, -1, 1), append(3));
}

#[test]
fn producers_are_bounded() {
    let mut leader = Leader::new();
    let max = limits::PRODUCERS_PER_PARTITION_MAX as i64;
    for producer in 0..max + 2 {
        leader.ok(producer, 0, 0, 1);
    }
    // The two idle longest are unknown, so any sequence is their first; the others are known.
    for (producer, want) in [(0, append(max + 2)), (1, append(max + 2)), (2, duplicate(2)), (max, duplicate(max))] {
        assert_eq!(leader.partition.check(&head((producer, 0, 0), 1, NOW)), want, "{producer}");
    }
    assert!(matches!(leader.partition.check(&head((0, 0, 9), 1, NOW)), Verdict::Append { .. }));
    assert!(is_45(leader.partition.check(&head((2, 0, 9), 1, NOW))));
    assert!(Producers::default().is_empty());
    assert_eq!(bytes(&leader.partition), bytes(&leader.rebuilt()));
}

/// The rule as SPEC says it: the list of all accepted batches.
#[derive(Default)]
struct Model {
    /// producer, epoch, first, count, base offset, raft index; committed ones first.
    accepted: Vec<(i64, i16, i32, i32, i64, u64)>,
    committed: usize,
}

impl Model {
    fn judge(&self, (producer, epoch, first, count): (i64, i16, i32, i32), next: i64) -> Verdict {
        let own: Vec<_> = self.accepted.iter().enumerate().filter(|(_, a)| a.0 == producer).collect();
        let Some((_, newest)) = own.last() else { return append(next) };
        if epoch < newest.1 {
            return Verdict::Refuse(Refusal::OldProducerEpoch {
                producer: camus_engine::types::ProducerId(producer),
                current: ProducerEpoch(newest.1),
                found: ProducerEpoch(epoch),
            });
        }
        let same_epoch: Vec<_> = own.iter().filter(|(_, a)| a.1 == epoch).collect();
        let committed = same_epoch.iter().filter(|(n, _)| *n < self.committed).count();
        for (at, (n, a)) in same_epoch.iter().enumerate() {
            if (a.2, a.3) == (first, count) {
                if *n >= self.committed {
                    return Verdict::AwaitOriginal { index: Index(a.5) };
                }
                if committed - at <= 5 {
                    return duplicate(a.4);
                }
            }
        }
        let expected =
            if epoch > newest.1 { 0 } else { ((i64::from(newest.2) + i64::from(newest.3)) % (1 << 31)) as i32 };
        if first == expected {
            return append(next);
        }
        Verdict::Refuse(Refusal::OutOfOrderSequence {
            producer: camus_engine::types::ProducerId(producer),
            expected: Sequence(expected),
            found: Sequence(first),
        })
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// The next batch of a producer, `skip` sequences ahead.
    Send {
        producer: i64,
        count: i32,
        skip: i32,
    },
    /// A batch that was sent before, `back` batches ago, bent a little.
    Again {
        back: usize,
        bend: i32,
    },
    Bump {
        producer: i64,
        by: i16,
    },
    Commit,
    Lose,
    Trim(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let producer = || -1..3i64;
    prop_oneof![
        8 => (producer(), 1..5i32, prop_oneof![9 => Just(0), 1 => 1..9i32])
            .prop_map(|(producer, count, skip)| Step::Send { producer, count, skip }),
        6 => (1..12usize, prop_oneof![6 => Just(0), 1 => -2..3i32]).prop_map(|(back, bend)| Step::Again { back, bend }),
        1 => (0..3i64, -1..3i16).prop_map(|(producer, by)| Step::Bump { producer, by }),
        8 => Just(Step::Commit),
        1 => Just(Step::Lose),
        1 => any::<u8>().prop_map(Step::Trim),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_verdict_is_the_models_and_every_restart_agrees(
        steps in proptest::collection::vec(step(), 1..120),
        start in prop_oneof![Just(0), Just(i32::MAX - 6)],
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut leader = Leader::new();
        let mut model = Model::default();
        let mut sent: Vec<(i64, i16, i32, i32)> = Vec::new();
        let mut next = [(0i16, start); 3];
        for step in steps {
            match step {
                Step::Send { .. } | Step::Again { .. } => {
                    let batch = match step {
                        Step::Send { producer: -1, count, .. } => (-1, -1, -1, count),
                        Step::Send { producer, count, skip } => {
                            let (epoch, first) = next[producer as usize];
                            (producer, epoch, Sequence(first).plus(skip).0, count)
                        }
                        Step::Again { back, bend } => match sent.len().checked_sub(back).map(|at| sent[at]) {
                            Some((producer, epoch, first, count)) => (producer, epoch, first, (count + bend).max(1)),
                            None => continue,
                        },
                        _ => unreachable!(),
                    };
                    let base = leader.partition.next_offset().0;
                    let want = if batch.0 == -1 { append(base) } else { model.judge(batch, base) };
                    let got = leader.send(batch.0, batch.1, batch.2, batch.3);
                    prop_assert_eq!(&got, &want, "{:?}", batch);
                    sent.push(batch);
                    if let Verdict::Append { .. } = got {
                        let index = leader.next_index - 1;
                        model.accepted.push((batch.0, batch.1, batch.2, batch.3, base, index));
                        if batch.0 >= 0 {
                            next[batch.0 as usize] = (batch.1, Sequence(batch.2).plus(batch.3).0);
                        }
                    }
                }
                Step::Bump { producer, by } => {
                    let slot = &mut next[producer as usize];
                    *slot = ((slot.0 + by).max(0), 0);
                }
                Step::Commit => {
                    if !leader.flying.is_empty() {
                        let committed = leader.commit_one();
                        prop_assert_eq!(committed.base_offset.0, model.accepted[model.committed].4);
                        model.committed += 1;
                        prop_assert_eq!(bytes(&leader.partition), {
                            // Trims are not in `wal`: the log start is compared below, the rest here.
                            let mut rebuilt = leader.rebuilt();
                            rebuilt.trim(leader.partition.log_start()).unwrap();
                            bytes(&rebuilt)
                        });
                    }
                }
                Step::Lose => {
                    leader.lose_leadership();
                    model.accepted.truncate(model.committed);
                }
                Step::Trim(part) => {
                    let to = leader.partition.high_watermark().0 * i64::from(part) / 255;
                    leader.partition.trim(Offset(to)).unwrap();
                }
            }
        }
        let below = cut.index(leader.wal.len() + 1);
        let mut restored = leader.restored_behind(below);
        restored.trim(leader.partition.log_start()).unwrap();
        leader.lose_leadership();
        prop_assert_eq!(bytes(&leader.partition), bytes(&restored));
        for batch in sent {
            let head = head((batch.0, batch.1, batch.2), batch.3, NOW);
            prop_assert_eq!(leader.partition.check(&head), restored.check(&head));
        }
    }
}
