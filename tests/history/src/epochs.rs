//! The judgement on where leader epochs end: what a consumer asks to learn whether the log that it read was cut.

use crate::anomaly::{Anomaly, Found};
use crate::history::{EpochEnd, Event, Op, Outcome, Partition};
use std::collections::BTreeMap;

/// What is known of one partition.
#[derive(Default)]
struct Epochs<'a> {
    /// Of each epoch, the lowest offset at which a batch of it was read.
    starts: BTreeMap<i32, i64>,
    /// When it was answered, and what.
    ends: Vec<(u64, &'a EpochEnd)>,
    /// Below it somebody asked for records to be deleted: an epoch that ended there is said to end at the log start.
    deletable: i64,
}

/// An epoch ends behind what was read of it, and not behind what a later one wrote.
pub(crate) fn check_epoch_ends(history: &[Event], found: &mut Found) {
    for (partition, epochs) in epochs(history) {
        for &(at_ns, &EpochEnd { epoch, known_to, end, .. }) in &epochs.ends {
            let wrong = |known| Anomaly::EpochEnd { partition: partition.clone(), epoch, at_ns, known, end };
            let later = epochs.starts.range(epoch + 1..).map(|(_, offset)| *offset).min();
            if end < known_to {
                found.push(wrong(known_to));
            } else if let Some(later) = later.filter(|later| end > *later.max(&epochs.deletable)) {
                found.push(wrong(later));
            }
        }
    }
}

fn epochs(history: &[Event]) -> BTreeMap<&Partition, Epochs<'_>> {
    let mut all: BTreeMap<&Partition, Epochs<'_>> = BTreeMap::new();
    for event in history {
        match &event.op {
            Op::EpochStart(start) => {
                let lowest = all.entry(&start.partition).or_default().starts.entry(start.epoch).or_insert(start.offset);
                *lowest = start.offset.min(*lowest);
            }
            Op::EpochEnd(end) => all.entry(&end.partition).or_default().ends.push((event.completed_ns, end)),
            Op::Trim(trim) if trim.outcome != Outcome::Failed => {
                let epochs = all.entry(&trim.partition).or_default();
                epochs.deletable = epochs.deletable.max(if trim.offset < 0 { i64::MAX } else { trim.offset });
            }
            Op::Trim(_) | Op::Produce(_) | Op::Read(_) | Op::ListOffset(_) | Op::CommitOffset(_) => {}
            Op::FetchOffset(_) | Op::Final(_) => {}
            Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => {}
        }
    }
    all
}
