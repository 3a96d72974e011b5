//! Whether a broker that keeps its promises can have led to a history: the logs. Pure, and the same for the same
//! history.
//!
//! What is held against a partition's log is what its `Final` holds. Without one only reads and acknowledgements are
//! held against each other. Below the log start records may be missing, as far as somebody asked for that.
//!
//! A record of a plain producer that got no answer may be nowhere, anywhere, or twice: its producer went on without it.
//! One that it sent again by itself stands in no order either.
//! An idempotent producer's records stand in their order without a hole, except for what was refused for good.

use crate::anomaly::{Anomaly, Found};
use crate::epochs;
use crate::groups;
use crate::history::{Event, Final, Op, Outcome, Partition, Produce, ProduceOutcome, Read};
use crate::marks;
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong with a history: nothing, or the first [`crate::ANOMALIES_MAX`] anomalies.
pub fn check(history: &[Event]) -> Vec<Anomaly> {
    let mut found = Found::default();
    let sent = sent(history);
    for (partition, log) in logs(history) {
        let sent = Senders::of(partition, &sent);
        let kept = log.last.map(|last| check_final(partition, last, log.deletable, &sent, &mut found));
        check_acked(partition, &log.acked, kept.as_ref(), &mut found);
        let seen = check_reads(partition, &log.reads, kept.as_ref(), &sent, &mut found);
        check_acked_against_reads(partition, &log.acked, kept.as_ref(), seen, &mut found);
    }
    marks::check_watermarks(history, &mut found);
    marks::check_committed_offsets(history, &mut found);
    groups::check_groups(history, &mut found);
    epochs::check_epoch_ends(history, &mut found);
    found.0
}

/// One record, as its producer sees it.
struct Sent<'a> {
    partition: &'a Partition,
    producer: u32,
    number: u64,
    idempotent: bool,
    acked: bool,
    /// Sent more than once by the client itself: without sequences, in no order.
    again: bool,
    /// Every time that it was sent.
    failed: bool,
}

/// By value.
fn sent(history: &[Event]) -> BTreeMap<u64, Sent<'_>> {
    let mut all: BTreeMap<u64, Sent<'_>> = BTreeMap::new();
    for event in history {
        let Op::Produce(produce) = &event.op else { continue };
        for (number, value) in (produce.first_number..).zip(&produce.values) {
            let again = all.contains_key(value);
            let record = all.entry(*value).or_insert(Sent {
                partition: &produce.partition,
                producer: produce.producer,
                number,
                idempotent: produce.idempotent,
                acked: false,
                again: false,
                failed: true,
            });
            record.again |= again;
            record.acked |= matches!(produce.outcome, ProduceOutcome::Acked { .. });
            record.failed &= produce.outcome == ProduceOutcome::Failed;
        }
    }
    all
}

/// What was sent, as one partition sees it.
struct Senders<'a> {
    partition: &'a Partition,
    sent: &'a BTreeMap<u64, Sent<'a>>,
    /// Producer and number of what was refused for good.
    failed: BTreeSet<(u32, u64)>,
}

impl<'a> Senders<'a> {
    fn of(partition: &'a Partition, sent: &'a BTreeMap<u64, Sent<'a>>) -> Senders<'a> {
        let here = sent.values().filter(|record| record.partition == partition && record.failed);
        Senders { partition, sent, failed: here.map(|record| (record.producer, record.number)).collect() }
    }

    /// Whether a value may be in this partition.
    fn may_be_here(&self, offset: i64, value: u64) -> Result<&Sent<'a>, Anomaly> {
        let record = self.sent.get(&value).filter(|record| record.partition == self.partition);
        match record {
            None => Err(Anomaly::Invented { partition: self.partition.clone(), offset, value }),
            Some(record) if record.failed => {
                Err(Anomaly::FailedButThere { partition: self.partition.clone(), offset, value })
            }
            Some(record) => Ok(record),
        }
    }

    /// Whether this record may be the next of its producer behind number `after`, or its first. `cut`: the log's front
    /// is gone, and with it perhaps the records before this one.
    fn is_next(&self, record: &Sent<'_>, after: Option<u64>, cut: bool) -> bool {
        let refused = |number| self.failed.contains(&(record.producer, number));
        match after {
            None => cut || !record.idempotent || (0..record.number).all(refused),
            Some(after) if record.number <= after => false,
            Some(after) => !record.idempotent || (after + 1..record.number).all(refused),
        }
    }
}

/// What the history says of one partition.
#[derive(Default)]
struct Log<'a> {
    /// Value and offset; -1: not said.
    acked: Vec<(u64, i64)>,
    reads: Vec<&'a Read>,
    last: Option<&'a Final>,
    /// Below it somebody asked for records to be deleted.
    deletable: i64,
}

fn logs(history: &[Event]) -> BTreeMap<&Partition, Log<'_>> {
    let mut logs: BTreeMap<&Partition, Log<'_>> = BTreeMap::new();
    for event in history {
        match &event.op {
            Op::Produce(produce) => logs.entry(&produce.partition).or_default().produced(produce),
            Op::Read(read) => logs.entry(&read.partition).or_default().reads.push(read),
            Op::Trim(trim) if trim.outcome != Outcome::Failed => {
                let log = logs.entry(&trim.partition).or_default();
                let offset = if trim.offset < 0 { i64::MAX } else { trim.offset };
                log.deletable = log.deletable.max(offset);
            }
            Op::Final(last) => logs.entry(&last.partition).or_default().last = Some(last),
            Op::Trim(_) | Op::ListOffset(_) | Op::CommitOffset(_) | Op::FetchOffset(_) => {}
            Op::EpochStart(_) | Op::EpochEnd(_) => {}
            Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => {}
        }
    }
    logs
}

impl Log<'_> {
    fn produced(&mut self, produce: &Produce) {
        let ProduceOutcome::Acked { base_offset } = produce.outcome else { return };
        let offset = |n: i64| if base_offset < 0 { -1 } else { base_offset + n };
        self.acked.extend((0..).zip(&produce.values).map(|(n, value)| (*value, offset(n))));
    }
}

/// What is there in the end.
#[derive(Default)]
struct Kept {
    at: BTreeMap<i64, u64>,
    /// The lowest offset of each value.
    first: BTreeMap<u64, i64>,
    /// Below it records may be missing.
    gone_below: i64,
}

fn check_final(partition: &Partition, last: &Final, deletable: i64, sent: &Senders<'_>, found: &mut Found) -> Kept {
    let mut kept = Kept { gone_below: last.log_start.min(deletable), ..Kept::default() };
    let mut order: BTreeMap<u32, u64> = BTreeMap::new();
    let mut next = last.log_start;
    for &(offset, value) in &last.records {
        if offset != next {
            found.push(Anomaly::Gap { partition: partition.clone(), after: next - 1, found: offset });
        }
        next = offset + 1;
        kept.at.insert(offset, value);
        let before = kept.first.get(&value).copied();
        let first = before.unwrap_or(offset);
        kept.first.insert(value, first);
        let record = match sent.may_be_here(offset, value) {
            Ok(record) => record,
            Err(anomaly) => {
                found.push(anomaly);
                continue;
            }
        };
        if before.is_some() {
            if record.idempotent {
                found.push(Anomaly::Duplicate { partition: partition.clone(), value, offsets: (first, offset) });
            }
            continue;
        }
        if !record.idempotent && (!record.acked || record.again) {
            // Its producer went on without an answer, or sent it again: where it lands is nobody's promise.
            continue;
        }
        let (producer, number) = (record.producer, record.number);
        let after = order.insert(producer, number);
        if !sent.is_next(record, after, last.log_start > 0) {
            found.push(Anomaly::Order { partition: partition.clone(), producer, offset, number, after });
        }
    }
    kept
}

/// What was acknowledged is where it was acknowledged, if it has not been deleted.
fn check_acked(partition: &Partition, acked: &[(u64, i64)], kept: Option<&Kept>, found: &mut Found) {
    let Some(kept) = kept else { return };
    for &(value, offset) in acked {
        let said = offset >= 0;
        let may_be_gone = if said { offset < kept.gone_below } else { kept.gone_below > 0 };
        match kept.first.get(&value) {
            Some(_) if !said => {}
            _ if said && kept.at.get(&offset) == Some(&value) => {}
            _ if may_be_gone => {}
            Some(at) => found.push(Anomaly::Moved { partition: partition.clone(), value, acked: offset, found: *at }),
            None => found.push(Anomaly::AcknowledgedLost { partition: partition.clone(), value, offset }),
        }
    }
}

/// What was read is the same for everybody, is contiguous, and is there in the end. What was read at each offset.
fn check_reads(
    partition: &Partition,
    reads: &[&Read],
    kept: Option<&Kept>,
    sent: &Senders<'_>,
    found: &mut Found,
) -> BTreeMap<i64, u64> {
    let mut seen: BTreeMap<i64, u64> = BTreeMap::new();
    for read in reads {
        let mut next = read.from_offset;
        for &(offset, value) in &read.records {
            if offset != next {
                found.push(Anomaly::Gap { partition: partition.clone(), after: next - 1, found: offset });
            }
            next = offset + 1;
            if offset >= read.high_watermark {
                let (partition, high_watermark) = (partition.clone(), read.high_watermark);
                found.push(Anomaly::ReadAboveHighWatermark { partition, offset, high_watermark });
            }
            match seen.insert(offset, value) {
                // Judged when it was read first.
                Some(before) if before == value => continue,
                Some(before) => {
                    let partition = partition.clone();
                    found.push(Anomaly::InconsistentOffsets { partition, offset, before, after: value });
                }
                None => {}
            }
            check_read(partition, offset, value, kept, sent, found);
        }
    }
    seen
}

/// One record that was read, against what is there in the end.
fn check_read(
    partition: &Partition,
    offset: i64,
    value: u64,
    kept: Option<&Kept>,
    sent: &Senders<'_>,
    found: &mut Found,
) {
    let partition = partition.clone();
    match kept.and_then(|kept| kept.at.get(&offset)) {
        Some(there) if *there == value => return,
        Some(there) => found.push(Anomaly::InconsistentOffsets { partition, offset, before: value, after: *there }),
        None if kept.is_some_and(|kept| offset >= kept.gone_below) => {
            found.push(Anomaly::ReadAndLost { partition, offset, value });
        }
        None => {}
    }
    // The final log does not hold it, so nobody has asked yet who sent it.
    if let Err(anomaly) = sent.may_be_here(offset, value) {
        found.push(anomaly);
    }
}

/// Where the final log says nothing, an acknowledgement and a read of the same offset name the same value.
fn check_acked_against_reads(
    partition: &Partition,
    acked: &[(u64, i64)],
    kept: Option<&Kept>,
    mut seen: BTreeMap<i64, u64>,
    found: &mut Found,
) {
    for &(value, offset) in acked {
        if offset < 0 || kept.is_some_and(|kept| kept.at.contains_key(&offset)) {
            continue;
        }
        if let Some(before) = seen.insert(offset, value)
            && before != value
        {
            let partition = partition.clone();
            found.push(Anomaly::InconsistentOffsets { partition, offset, before, after: value });
        }
    }
}
