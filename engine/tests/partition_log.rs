//! Offsets, where they lie, and what is found by time and epoch, against a list of batches. Lost if one of these fails:
//! a record gets another record's offset, or a consumer starts in the wrong place.

#![allow(clippy::unwrap_used, reason = "a test ends where its helpers do not hold")]

mod partition_kit;

use camus_engine::partition::{BatchRef, Partition};
use camus_engine::shard::api::{EpochEnd, Refusal};
use camus_engine::types::{EntryId, Index, LeaderEpoch, Offset, SegmentSeq, ShardId, Term, WallMs};
use partition_kit::{NOW, PARTITION, entry, head, place};
use proptest::prelude::*;

/// `counts` batches, committed, with these timestamps.
fn filled(batches: &[(i32, i64)]) -> Partition {
    let mut partition = Partition::new(PARTITION);
    for (n, (count, time)) in batches.iter().enumerate() {
        let index = n as u64 + 1;
        let base = partition.next_offset();
        partition.proposed(entry(index), &head((-1, -1, -1), *count, *time), base, place(index));
        partition.committed(Index(index)).unwrap();
    }
    partition
}

fn bases(partition: &Partition, from: i64) -> Vec<i64> {
    partition.read_from(Offset(from)).unwrap().map(|b| b.base_offset.0).collect()
}

fn out_of_range<T>(result: Result<T, Refusal>) -> (i64, i64) {
    match result.map(|_| ()) {
        Err(Refusal::OffsetOutOfRange { high_watermark, log_start }) => (log_start.0, high_watermark.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_visible_before_it_is_committed() {
    // SPEC, promise 3: a consumer would read what a crash takes back.
    let mut partition = Partition::new(PARTITION);
    let batch = head((-1, -1, -1), 3, NOW);
    partition.proposed(entry(5), &batch, Offset(0), place(1));
    partition.proposed(entry(8), &batch, Offset(3), place(2));
    assert_eq!((partition.high_watermark(), partition.next_offset()), (Offset(0), Offset(6)));
    assert_eq!(partition.read_from(Offset(0)).unwrap().count(), 0);
    assert_eq!(partition.find_time(WallMs(0)), None);
    assert_eq!(partition.find_max_timestamp(), None);
    assert_eq!(out_of_range(partition.read_from(Offset(1))), (0, 0));
    assert_eq!(out_of_range(partition.trim(Offset(1))), (0, 0));
    // Entries of other partitions commit in between.
    assert_eq!(partition.committed(Index(4)), None);
    assert_eq!(partition.committed(Index(5)).unwrap().base_offset, Offset(0));
    assert_eq!(partition.committed(Index(7)), None);
    assert_eq!((partition.high_watermark(), partition.last_stable()), (Offset(3), Offset(3)));
    assert_eq!(bases(&partition, 0), [0]);
    assert_eq!(bases(&partition, 3), [0; 0]);
    assert_eq!(partition.first_segment(), Some(SegmentSeq(1)));
}

#[test]
#[should_panic(expected = "offsets are contiguous")]
fn a_hole_in_the_offsets_ends_the_process() {
    let mut partition = filled(&[(3, NOW)]);
    partition.proposed(entry(2), &head((-1, -1, -1), 1, NOW), Offset(4), place(2));
}

#[test]
#[should_panic(expected = "offsets are contiguous")]
fn a_hole_in_the_recovered_offsets_ends_the_process() {
    let mut partition = filled(&[(3, NOW)]);
    let batch = head((-1, -1, -1), 1, NOW);
    partition.recovered(&batch.record_head(ShardId(1), PARTITION, entry(2), Offset(2), Index(0)), place(2));
}

#[test]
#[should_panic(expected = "did not")]
fn a_batch_that_is_passed_over_ends_the_process() {
    let mut partition = Partition::new(PARTITION);
    partition.proposed(entry(1), &head((-1, -1, -1), 1, NOW), Offset(0), place(1));
    partition.committed(Index(2));
}

#[test]
fn reading_begins_with_the_batch_that_holds_the_offset() {
    let partition = filled(&[(1, NOW), (5, NOW), (2, NOW)]);
    assert_eq!(bases(&partition, 0), [0, 1, 6]);
    assert_eq!(bases(&partition, 1), [1, 6]);
    assert_eq!(bases(&partition, 5), [1, 6]);
    assert_eq!(bases(&partition, 7), [6]);
    assert_eq!(bases(&partition, 8), [0; 0]);
    assert_eq!(out_of_range(partition.read_from(Offset(9))), (0, 8));
    assert_eq!(out_of_range(partition.read_from(Offset(-1))), (0, 8));
    let first = partition.read_from(Offset(0)).unwrap().next().unwrap();
    let want =
        BatchRef { base_offset: Offset(0), count: 1, at: place(1), max_timestamp: WallMs(NOW), epoch: LeaderEpoch(3) };
    assert_eq!(first, want);
}

#[test]
fn a_trim_moves_the_log_start_and_keeps_the_batch_it_cuts() {
    let mut partition = filled(&[(10, NOW); 40]);
    assert_eq!(partition.check_trim(None), Ok(Offset(400)));
    assert_eq!(partition.trim(Offset(205)), Ok(Offset(205)));
    assert_eq!((partition.log_start(), partition.high_watermark()), (Offset(205), Offset(400)));
    assert_eq!(bases(&partition, 205)[0], 200);
    assert_eq!(partition.first_segment(), Some(place(21).segment));
    assert_eq!(out_of_range(partition.read_from(Offset(204))), (205, 400));
    // Never back, never above the high watermark.
    assert_eq!(partition.trim(Offset(100)), Ok(Offset(205)));
    assert_eq!(out_of_range(partition.trim(Offset(401))), (205, 400));
    assert_eq!(out_of_range(partition.check_trim(Some(Offset(-1)))), (205, 400));
    assert_eq!(partition.trim(Offset(400)), Ok(Offset(400)));
    assert_eq!((partition.first_segment(), partition.index_bytes() < 10_000), (None, true));
    let batch = head((-1, -1, -1), 1, NOW);
    partition.proposed(entry(50), &batch, Offset(400), place(50));
    assert_eq!(partition.first_segment(), Some(place(50).segment));
    partition.committed(Index(50)).unwrap();
    assert_eq!(bases(&partition, 400), [400]);
}

#[test]
fn times_are_found_in_log_order() {
    let partition = filled(&[50, 10, 90, 20].map(|t| (2, t)));
    let find = |t| partition.find_time(WallMs(t)).map(|b| b.base_offset.0);
    assert_eq!([5, 50, 51, 90, 91].map(find), [Some(0), Some(0), Some(4), Some(4), None]);
    assert_eq!(partition.find_time_from(Offset(2), WallMs(5)).unwrap().base_offset, Offset(2));
    assert_eq!(partition.find_max_timestamp().unwrap().base_offset, Offset(4));
    assert_eq!(partition.find_max_timestamp_from(Offset(6)).unwrap().base_offset, Offset(6));
    // A record without a time is no answer: clients throw at a negative timestamp.
    assert_eq!(filled(&[(1, -1)]).find_max_timestamp(), None);
}

#[test]
fn a_restored_partition_knows_what_it_lacks() {
    // Data that is gone must be found at start, not by a consumer.
    let mut whole = filled(&[(10, NOW); 5]);
    whole.trim(Offset(15)).unwrap();
    let mut bytes = Vec::new();
    whole.snapshot(&mut bytes);
    let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
    assert_eq!(restored.missing(), Some((Offset(15), Offset(50))));
    for n in 0..5 {
        let at = place(n + 1);
        let base = Offset(n as i64 * 10);
        let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(n + 1), base, Index(0));
        restored.recovered_data_only(&batch, at);
    }
    assert_eq!(restored.missing(), None);
    assert_eq!(bases(&restored, 15), bases(&whole, 15));
    assert_eq!(restored.first_segment(), whole.first_segment());
}

#[test]
fn a_hole_below_a_snapshot_is_named() {
    let whole = filled(&[(10, NOW); 5]);
    let mut bytes = Vec::new();
    whole.snapshot(&mut bytes);
    for (gone, hole) in [(0, (0, 10)), (2, (20, 30)), (4, (40, 50))] {
        let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
        for n in (0..5).filter(|n| *n != gone) {
            let base = Offset(n as i64 * 10);
            let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(n + 1), base, Index(0));
            restored.recovered_data_only(&batch, place(n + 1));
        }
        assert_eq!(restored.missing(), Some((Offset(hole.0), Offset(hole.1))));
    }
}

#[test]
fn what_is_gone_below_a_snapshot_is_refused_until_it_is_trimmed() {
    // A reader would skip over lost records and never know; or a core would not start after segments were given back.
    let whole = filled(&[(10, NOW); 5]);
    let mut bytes = Vec::new();
    whole.snapshot(&mut bytes);
    let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
    for n in 2..5 {
        let base = Offset(n as i64 * 10);
        let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(n + 1), base, Index(0));
        restored.recovered_data_only(&batch, place(n + 1));
    }
    assert_eq!((restored.missing(), restored.torn()), (Some((Offset(0), Offset(20))), None));
    let next = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(6), Offset(50), Index(0));
    restored.recovered(&next, place(6));
    assert_eq!(restored.read_from(Offset(19)).err(), Some(Refusal::Storage));
    assert_eq!(bases(&restored, 20), [20, 30, 40, 50]);
    restored.trim(Offset(15)).unwrap();
    assert_eq!(restored.read_from(Offset(15)).err(), Some(Refusal::Storage));
    restored.trim(Offset(25)).unwrap();
    assert_eq!((restored.missing(), bases(&restored, 25)), (None, vec![20, 30, 40, 50]));

    // All of it is gone.
    let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
    assert_eq!((restored.missing(), restored.torn()), (Some((Offset(0), Offset(50))), None));
    assert_eq!(restored.read_from(Offset(49)).err(), Some(Refusal::Storage));
    assert_eq!(restored.read_from(Offset(50)).unwrap().count(), 0);
    restored.trim(Offset(50)).unwrap();
    assert_eq!(restored.missing(), None);
}

#[test]
fn a_segment_of_deleted_batches_only_is_not_held_after_a_restart() {
    // The disk would fill with what nobody may read.
    let mut whole = filled(&[(10, NOW); 20]);
    whole.trim(Offset(160)).unwrap();
    let mut bytes = Vec::new();
    whole.snapshot(&mut bytes);
    let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
    for n in 0..20 {
        let base = Offset(n as i64 * 10);
        let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(n + 1), base, Index(0));
        restored.recovered_data_only(&batch, place(n + 1));
    }
    assert_eq!(restored.missing(), None);
    assert_eq!(whole.first_segment(), Some(place(17).segment));
    assert_ne!(whole.first_segment(), Some(place(1).segment));
    assert_eq!(restored.read_from(Offset(160)).unwrap().count(), 4);
    assert_eq!(restored.first_segment(), whole.first_segment());
    let mut at_the_end = filled(&[(10, NOW)]);
    at_the_end.trim(Offset(10)).unwrap();
    let mut bytes = Vec::new();
    at_the_end.snapshot(&mut bytes);
    let mut restored = Partition::restore(PARTITION, &bytes).unwrap();
    let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, entry(1), Offset(0), Index(0));
    restored.recovered_data_only(&batch, place(1));
    assert_eq!(restored.first_segment(), None);
}

#[test]
fn what_is_known_of_epochs_does_not_depend_on_when_the_log_was_cut() {
    // A restart that cuts after the batches, where the live broker cut before, would answer otherwise.
    let history = [(1, 2), (2, 5)];
    let told = |cut_before_last: bool| {
        let mut partition = Partition::new(PARTITION);
        for (index, term) in history {
            if cut_before_last && index == 2 {
                partition.trim(Offset(10)).unwrap();
            }
            let at = EntryId { term: Term(term), index: Index(index) };
            let base = partition.next_offset();
            let batch = head((-1, -1, -1), 10, NOW).record_head(ShardId(1), PARTITION, at, base, Index(0));
            partition.recovered(&batch, place(index));
        }
        if !cut_before_last {
            partition.trim(Offset(10)).unwrap();
        }
        let mut bytes = Vec::new();
        partition.snapshot(&mut bytes);
        bytes
    };
    assert_eq!(told(true), told(false));
}

#[test]
fn epochs_come_from_the_batches_terms() {
    let mut partition = Partition::new(PARTITION);
    for (index, term) in [(1, 2), (2, 2), (3, 5), (4, 9)] {
        let at = EntryId { term: Term(term), index: Index(index) };
        partition.proposed(at, &head((-1, -1, -1), 10, NOW), partition.next_offset(), place(index));
        if term == 9 {
            // Not committed: no epoch yet.
            break;
        }
        partition.committed(Index(index)).unwrap();
    }
    let end = |epoch, end| EpochEnd { epoch: LeaderEpoch(epoch), end: Offset(end) };
    let ask = |requested| partition.epoch_end(LeaderEpoch(requested), LeaderEpoch(9));
    assert_eq!(
        [1, 2, 4, 5, 8, 9, 10].map(ask),
        [end(1, 0), end(2, 20), end(2, 20), end(5, 30), end(5, 30), end(9, 30), end(-1, -1)]
    );
    assert_eq!([0, 19, 20, 29].map(|o| partition.epoch_of(Offset(o)).0), [2, 2, 5, 5]);
}

#[test]
fn the_snapshots_bytes_never_change() {
    // They are in WALs out there: a broker that reads them otherwise forgets offsets or producers.
    let mut partition = Partition::new(PARTITION);
    for (index, (term, batch)) in
        [(2, head((-1, -1, -1), 3, 7)), (2, head((0x0102, 1, 4), 2, 8)), (5, head((0x0102, 1, 6), 1, 9))]
            .into_iter()
            .enumerate()
    {
        let index = index as u64 + 1;
        let id = EntryId { term: Term(term), index: Index(index) };
        let mut batch = batch;
        batch.attributes |= if index == 3 { 8 } else { 0 };
        partition.proposed(id, &batch, partition.next_offset(), place(index));
        partition.committed(Index(index)).unwrap();
    }
    partition.trim(Offset(1)).unwrap();
    let mut bytes = Vec::new();
    partition.snapshot(&mut bytes);
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let golden = [
        "01",
        "0000000000000001",
        "0000000000000006",
        // Two epochs.
        "00000002",
        "000000020000000000000000",
        "000000050000000000000005",
        // One producer, epoch 1, two batches: first and last sequence, base offset, append time.
        "00000001",
        "0000000000000102000102",
        "0000000400000005000000000000000300ffffffffffffffff",
        "00000006000000060000000000000005010000000000000009",
    ]
    .concat();
    assert_eq!(hex, golden);
    let mut again = Vec::new();
    Partition::restore(PARTITION, &bytes).unwrap().snapshot(&mut again);
    assert_eq!(again, bytes);
    for len in 0..bytes.len() {
        assert!(Partition::restore(PARTITION, &bytes[..len]).is_err(), "{len}");
    }
    assert_eq!(Partition::restore(PARTITION, &bytes[..5]).unwrap_err().at, 1);
    assert!(Partition::restore(PARTITION, &[&bytes[..], &[0]].concat()).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Append { count: i32, time: i64 },
    Trim(u8),
    Drop(i32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..6i32, -1..60i64).prop_map(|(count, time)| Step::Append { count, time }),
        1 => any::<u8>().prop_map(Step::Trim),
        1 => (1..4i32).prop_map(Step::Drop),
    ]
}

proptest! {
    #[test]
    fn the_index_is_the_list_of_batches(steps in proptest::collection::vec(step(), 1..200)) {
        let mut partition = Partition::new(PARTITION);
        // base, count, time, index
        let mut all: Vec<(i64, i32, i64, u64)> = Vec::new();
        let (mut start, mut end, mut index, mut term) = (0i64, 0i64, 0, 3);
        for step in steps {
            match step {
                Step::Append { count, time } => {
                    index += 1;
                    let id = EntryId { term: Term(term), index: Index(index) };
                    partition.proposed(id, &head((-1, -1, -1), count, time), Offset(end), place(index));
                    partition.committed(Index(index)).unwrap();
                    all.push((end, count, time, index));
                    end += i64::from(count);
                }
                Step::Trim(part) => {
                    start = start.max(end * i64::from(part) / 255);
                    prop_assert_eq!(partition.trim(Offset(start)), Ok(Offset(start)));
                    all.retain(|b| b.0 + i64::from(b.1) > start);
                }
                Step::Drop(count) => {
                    index += 1;
                    let id = EntryId { term: Term(term), index: Index(index) };
                    partition.proposed(id, &head((1, 0, 0), count, 99), Offset(end), place(index));
                    partition.drop_uncommitted();
                    term += 1;
                }
            }
            prop_assert_eq!(partition.log_start().0, start);
            prop_assert_eq!(partition.high_watermark().0, end);
            prop_assert_eq!(partition.next_offset().0, end);
            prop_assert_eq!(partition.missing(), None);
            prop_assert_eq!(partition.first_segment(), all.first().map(|b| place(b.3).segment));
        }
        for offset in start - 2..end + 3 {
            let got = partition.read_from(Offset(offset));
            let got = got.map(|i| i.map(|b| (b.base_offset.0, b.at)).collect::<Vec<_>>());
            if (start..=end).contains(&offset) {
                let want: Vec<_> =
                    all.iter().filter(|b| b.0 + i64::from(b.1) > offset).map(|b| (b.0, place(b.3))).collect();
                prop_assert_eq!(got.unwrap(), want);
            } else {
                prop_assert!(got.is_err());
            }
        }
        for t in -1..62 {
            let want = all.iter().find(|b| b.2 >= t).map(|b| b.0);
            prop_assert_eq!(partition.find_time(WallMs(t)).map(|b| b.base_offset.0), want);
        }
        let largest = all.iter().map(|b| b.2).max();
        let want = all.iter().find(|b| Some(b.2) == largest && b.2 >= 0).map(|b| b.0);
        prop_assert_eq!(partition.find_max_timestamp().map(|b| b.base_offset.0), want);
    }

    #[test]
    fn no_bytes_make_a_restore_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..120),
        at in any::<proptest::sample::Index>(),
    ) {
        let _ = Partition::restore(PARTITION, &bytes);
        let mut good = Vec::new();
        filled(&[(3, NOW), (2, NOW)]).snapshot(&mut good);
        if let (Some(byte), Some(put)) = (bytes.first(), good.len().checked_sub(1)) {
            good[at.index(put)] = *byte;
            let _ = Partition::restore(PARTITION, &good);
        }
    }
}
