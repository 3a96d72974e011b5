//! What can be wrong with a history: names that stay, and a text that says what is wrong where.

use crate::history::Partition;
use std::fmt;

/// What one judgement names at most. One fault often shows in thousands of records.
pub const ANOMALIES_MAX: usize = 100;

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Anomaly {
    /// It was acknowledged, and it is not there (Jepsen: lost-write, unseen). Offset -1: the broker did not say where.
    AcknowledgedLost { partition: Partition, value: u64, offset: i64 },
    /// Two values at one offset.
    InconsistentOffsets { partition: Partition, offset: i64, before: u64, after: u64 },
    /// It was acknowledged at another offset than the one at which it is.
    Moved { partition: Partition, value: u64, acked: i64, found: i64 },
    /// It was refused for good, and it is there.
    FailedButThere { partition: Partition, offset: i64, value: u64 },
    /// Nobody sent it, or not there.
    Invented { partition: Partition, offset: i64, value: u64 },
    /// An acknowledged record stands behind a later one of its producer, or an idempotent producer's log has a hole.
    Order { partition: Partition, producer: u32, offset: i64, number: u64, after: Option<u64> },
    /// An idempotent producer's record is there twice.
    Duplicate { partition: Partition, value: u64, offsets: (i64, i64) },
    /// A consumer saw it, and it is not there: it was visible before it was durable.
    ReadAndLost { partition: Partition, offset: i64, value: u64 },
    /// A consumer was shown a record and in the same answer a high watermark that is not behind it.
    ReadAboveHighWatermark { partition: Partition, offset: i64, high_watermark: i64 },
    /// Offsets are not contiguous.
    Gap { partition: Partition, after: i64, found: i64 },
    /// A client was shown a high watermark below one that it had been shown before it asked.
    HighWatermarkBack { partition: Partition, process: u32, at_ns: u64, before: i64, after: i64 },
    /// The same of the log start.
    LogStartBack { partition: Partition, process: u32, at_ns: u64, before: i64, after: i64 },
    /// A group was given an offset that a later one had replaced for certain. -1: none.
    CommittedOffsetBack { group: String, partition: Partition, at_ns: u64, before: i64, after: i64 },
    /// A group was given an offset that nobody committed.
    CommittedOffsetInvented { group: String, partition: Partition, at_ns: u64, offset: i64 },
    /// Two members of a group had a partition: in one generation of the classic protocol, or at one moment where the
    /// broker assigns. `generation`: of whoever came later.
    OwnedTwice { group: String, partition: Partition, generation: i32, members: (String, String), at_ns: u64 },
    /// A commit was acknowledged that was sent in a generation which was over for its member: it had been told that it
    /// is out, or had been given another one.
    FencedCommit { group: String, partition: Partition, member: String, generation: i32, at_ns: u64, offset: i64 },
    /// A client was told that an epoch ends before what it has read of it, or behind what a later one has written: it
    /// would read again what it has, or not see that its log was cut. `known`: that offset.
    EpochEnd { partition: Partition, epoch: i32, at_ns: u64, known: i64, end: i64 },
}

impl Anomaly {
    /// Stays the same for ever: tests, pages and search go by it.
    pub fn name(&self) -> &'static str {
        match self {
            Anomaly::AcknowledgedLost { .. } => "acknowledged-lost",
            Anomaly::InconsistentOffsets { .. } => "inconsistent-offsets",
            Anomaly::Moved { .. } => "moved",
            Anomaly::FailedButThere { .. } => "failed-but-there",
            Anomaly::Invented { .. } => "invented",
            Anomaly::Order { .. } => "order",
            Anomaly::Duplicate { .. } => "duplicate",
            Anomaly::ReadAndLost { .. } => "read-and-lost",
            Anomaly::ReadAboveHighWatermark { .. } => "read-above-high-watermark",
            Anomaly::Gap { .. } => "gap",
            Anomaly::HighWatermarkBack { .. } => "high-watermark-back",
            Anomaly::LogStartBack { .. } => "log-start-back",
            Anomaly::CommittedOffsetBack { .. } => "committed-offset-back",
            Anomaly::CommittedOffsetInvented { .. } => "committed-offset-invented",
            Anomaly::OwnedTwice { .. } => "owned-twice",
            Anomaly::FencedCommit { .. } => "fenced-commit",
            Anomaly::EpochEnd { .. } => "epoch-end",
        }
    }
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        match self {
            Anomaly::AcknowledgedLost { partition, value, offset: -1 } => {
                write!(f, "{partition}: value {value} was acknowledged and is not there")
            }
            Anomaly::AcknowledgedLost { partition, value, offset } => {
                write!(f, "{partition}: value {value} was acknowledged at offset {offset} and is not there")
            }
            Anomaly::InconsistentOffsets { partition, offset, before, after } => {
                write!(f, "{partition}: offset {offset} holds value {before} for one and value {after} for another")
            }
            Anomaly::Moved { partition, value, acked, found } => {
                write!(f, "{partition}: value {value} was acknowledged at offset {acked} and is at offset {found}")
            }
            Anomaly::FailedButThere { partition, offset, value } => {
                write!(f, "{partition}: value {value} was refused for good and is at offset {offset}")
            }
            Anomaly::Invented { partition, offset, value } => {
                write!(f, "{partition}: value {value} at offset {offset} was sent by nobody, or not there")
            }
            Anomaly::Order { partition, producer, offset, number, after } => {
                write!(f, "{partition}: record {number} of producer {producer} is at offset {offset}, ")?;
                match after {
                    Some(after) => write!(f, "and the one of that producer before it is record {after}"),
                    None => write!(f, "and it is the first of that producer there"),
                }
            }
            Anomaly::Duplicate { partition, value, offsets: (first, second) } => {
                write!(f, "{partition}: value {value} of an idempotent producer is at offsets {first} and {second}")
            }
            Anomaly::ReadAndLost { partition, offset, value } => {
                write!(f, "{partition}: value {value} was read at offset {offset} and is not there")
            }
            Anomaly::ReadAboveHighWatermark { partition, offset, high_watermark } => {
                write!(f, "{partition}: offset {offset} was read under a high watermark of {high_watermark}")
            }
            Anomaly::Gap { partition, after, found } => {
                write!(f, "{partition}: behind offset {after} comes offset {found}")
            }
            Anomaly::HighWatermarkBack { partition, process, at_ns, before, after } => {
                write!(f, "{partition}: process {process} saw high watermark {before}, then {after} (at {at_ns} ns)")
            }
            Anomaly::LogStartBack { partition, process, at_ns, before, after } => {
                write!(f, "{partition}: process {process} saw log start {before}, then {after} (at {at_ns} ns)")
            }
            Anomaly::CommittedOffsetBack { group, partition, at_ns, before, after } => {
                write!(f, "{partition}: group {group} was at offset {before} and is given {after} (at {at_ns} ns)")
            }
            Anomaly::CommittedOffsetInvented { group, partition, at_ns, offset } => {
                write!(f, "{partition}: group {group} is given offset {offset}, never committed (at {at_ns} ns)")
            }
            Anomaly::OwnedTwice { group, partition, generation, members: (first, second), at_ns } => {
                write!(f, "{partition}: members {first} and {second} of group {group} both have it, ")?;
                write!(f, "in generation {generation} (at {at_ns} ns)")
            }
            Anomaly::FencedCommit { group, partition, member, generation, at_ns, offset } => {
                write!(f, "{partition}: member {member} of group {group} committed offset {offset} ")?;
                write!(f, "in generation {generation}, which was over for it (at {at_ns} ns)")
            }
            Anomaly::EpochEnd { partition, epoch, at_ns, known, end } => {
                let beside = if end < known { "it was read up to" } else { "a later one begins at" };
                write!(f, "{partition}: epoch {epoch} is said to end at {end}, {beside} {known} (at {at_ns} ns)")
            }
        }
    }
}

/// The first of what was found.
#[derive(Default)]
pub(crate) struct Found(pub Vec<Anomaly>);

impl Found {
    pub fn push(&mut self, anomaly: Anomaly) {
        if self.0.len() < ANOMALIES_MAX {
            self.0.push(anomaly);
        }
    }
}
