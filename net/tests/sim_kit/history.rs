//! What clients did and saw, and whether a broker that keeps its promises can have led to it. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// Stands for one record: no two have the same.
pub type Value = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub partition: i32,
    pub producer: usize,
    /// Of this record among those of its producer, from 0, without a gap.
    pub number: u64,
    pub idempotent: bool,
}

/// Everything, in any order, and what the partitions hold in the end.
#[derive(Clone, Default, Debug)]
pub struct History {
    pub sent: BTreeMap<Value, Sent>,
    pub acked: Vec<(Value, i64)>,
    /// Partition, offset, value.
    pub read: Vec<(i32, i64, Value)>,
    pub finally: BTreeMap<i32, Vec<(i64, Value)>>,
}

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// It was acknowledged, and it is not there.
    Lost { value: Value, offset: i64 },
    /// It was acknowledged at another offset than the one at which it is.
    Moved { value: Value, acked: i64, found: i64 },
    /// A consumer saw it, and it is not there: it was visible before it was durable.
    ReadAndLost { partition: i32, offset: i64, value: Value },
    /// Two values at one offset.
    Changed { partition: i32, offset: i64, before: Value, after: Value },
    /// Offsets are not contiguous.
    Gap { partition: i32, after: i64, found: i64 },
    /// Nobody sent it, or not there.
    Invented { partition: i32, offset: i64, value: Value },
    /// An idempotent producer's record is there twice.
    Duplicate { partition: i32, value: Value, offsets: (i64, i64) },
    /// An acknowledged record stands before an earlier one of its producer, or an idempotent producer's log has a hole.
    Disorder { partition: i32, producer: usize, number: u64, after: Option<u64> },
}

pub fn check(history: &History) -> Result<(), Broken> {
    let mut at: BTreeMap<(i32, i64), Value> = BTreeMap::new();
    let mut first: BTreeMap<Value, i64> = BTreeMap::new();
    let acked: BTreeSet<Value> = history.acked.iter().map(|(value, _)| *value).collect();
    for (&partition, records) in &history.finally {
        let mut last: BTreeMap<usize, u64> = BTreeMap::new();
        for (next, &(offset, value)) in (0..).zip(records) {
            if offset != next {
                return Err(Broken::Gap { partition, after: next - 1, found: offset });
            }
            let Some(sent) = history.sent.get(&value).filter(|sent| sent.partition == partition) else {
                return Err(Broken::Invented { partition, offset, value });
            };
            at.insert((partition, offset), value);
            if let Some(before) = first.get(&value) {
                if sent.idempotent {
                    return Err(Broken::Duplicate { partition, value, offsets: (*before, offset) });
                }
                continue;
            }
            first.insert(value, offset);
            if !sent.idempotent && !acked.contains(&value) {
                // Its producer went on without an answer: where it lands is nobody's promise.
                continue;
            }
            let after = last.insert(sent.producer, sent.number);
            let in_order = match (after, sent.idempotent) {
                (None, true) => sent.number == 0,
                (None, false) => true,
                (Some(after), true) => sent.number == after + 1,
                (Some(after), false) => sent.number > after,
            };
            if !in_order {
                return Err(Broken::Disorder { partition, producer: sent.producer, number: sent.number, after });
            }
        }
    }
    for &(value, offset) in &history.acked {
        let partition = history.sent[&value].partition;
        match at.get(&(partition, offset)) {
            Some(found) if *found == value => {}
            Some(_) | None => {
                return Err(match first.get(&value) {
                    Some(found) => Broken::Moved { value, acked: offset, found: *found },
                    None => Broken::Lost { value, offset },
                });
            }
        }
    }
    let mut seen: BTreeMap<(i32, i64), Value> = BTreeMap::new();
    for &(partition, offset, value) in &history.read {
        if let Some(before) = seen.insert((partition, offset), value)
            && before != value
        {
            return Err(Broken::Changed { partition, offset, before, after: value });
        }
        match at.get(&(partition, offset)) {
            Some(found) if *found == value => {}
            Some(found) => return Err(Broken::Changed { partition, offset, before: value, after: *found }),
            None => return Err(Broken::ReadAndLost { partition, offset, value }),
        }
    }
    Ok(())
}
