//! Planted bugs: mistakes that production code could have, one of them at a time, to see that the simulator finds each
//! (`camus-sim planted`). Only in builds with the feature `planted`, which nothing that ships has (`camus-tidy` holds
//! the house to that).
//!
//! In:  which bug is planted ([`plant`]), for all threads of the process. Out: whether a place is to make its mistake
//! ([`is`]). A site is the wrong decision itself, where the right one is made, and no more.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A mistake. `ALL` has the name and the meaning of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    AcknowledgeBeforeFlush,
    FlushWrongRange,
    FlushCoversNeighbours,
    CountOwnWrite,
    SkipPreviousCrc,
    DamageAsTornTail,
    VoteAfterLostTail,
    LeadBeforeOwnTerm,
    DropProducersAtSnapshot,
    ForgetInFlight,
    ReuseOffset,
    ServePastHighWatermark,
    IgnoreShortWrite,
    RetryFailedFlush,
    ApplyTwice,
    WrongEpochEnd,
    LostWakeUp,
    StaleRecycledBuffer,
    DropGroupOffsetsAtSnapshot,
    CoordinateUnproven,
    GiveBeforeGivenUp,
    CommitInAnyEpoch,
}

impl Bug {
    pub const ALL: [Bug; 22] = [
        Bug::AcknowledgeBeforeFlush,
        Bug::FlushWrongRange,
        Bug::FlushCoversNeighbours,
        Bug::CountOwnWrite,
        Bug::SkipPreviousCrc,
        Bug::DamageAsTornTail,
        Bug::VoteAfterLostTail,
        Bug::LeadBeforeOwnTerm,
        Bug::DropProducersAtSnapshot,
        Bug::ForgetInFlight,
        Bug::ReuseOffset,
        Bug::ServePastHighWatermark,
        Bug::IgnoreShortWrite,
        Bug::RetryFailedFlush,
        Bug::ApplyTwice,
        Bug::WrongEpochEnd,
        Bug::LostWakeUp,
        Bug::StaleRecycledBuffer,
        Bug::DropGroupOffsetsAtSnapshot,
        Bug::CoordinateUnproven,
        Bug::GiveBeforeGivenUp,
        Bug::CommitInAnyEpoch,
    ];

    pub fn name(self) -> &'static str {
        self.about().0
    }

    /// What is wrong, in one line.
    pub fn what(self) -> &'static str {
        self.about().1
    }

    fn about(self) -> (&'static str, &'static str) {
        match self {
            Bug::AcknowledgeBeforeFlush => {
                ("acknowledge-before-flush", "a group counts as durable when the disk has been asked to write it")
            }
            Bug::FlushWrongRange => {
                ("flush-wrong-range", "the last block of a group, if it is partly filled, is not handed to the disk")
            }
            Bug::FlushCoversNeighbours => {
                ("flush-covers-neighbours", "a flush counts for the groups before it that are still in flight")
            }
            Bug::CountOwnWrite => {
                ("count-own-write", "a leader with followers counts itself when it has appended, not flushed")
            }
            Bug::SkipPreviousCrc => {
                ("skip-previous-crc", "after a recovery the log goes on without the CRC of the last group")
            }
            Bug::DamageAsTornTail => {
                ("damage-as-torn-tail", "a recovery takes damage in the middle of the log for an unfinished write")
            }
            Bug::VoteAfterLostTail => (
                "vote-after-lost-tail",
                "a replica answers before its log is flushed: it votes without what it acknowledged, or twice",
            ),
            Bug::LeadBeforeOwnTerm => {
                ("lead-before-own-term", "a leader serves before an entry of its own term is committed and applied")
            }
            Bug::DropProducersAtSnapshot => {
                ("drop-producers-at-snapshot", "a snapshot has no producers: after it any sequence is a first one")
            }
            Bug::ForgetInFlight => (
                "forget-in-flight",
                "sequences of batches that were in flight when the leader changed, or ended, are forgotten",
            ),
            Bug::ReuseOffset => (
                "reuse-offset",
                "a restart gives the offsets out again of what is durable and not known to be committed",
            ),
            Bug::ServePastHighWatermark => {
                ("serve-past-high-watermark", "a read is given batches that are proposed and not committed")
            }
            Bug::IgnoreShortWrite => ("ignore-short-write", "a write that moved fewer bytes than asked is a write"),
            Bug::RetryFailedFlush => {
                ("retry-failed-flush", "a flush that failed is asked for again, and believed when it then succeeds")
            }
            Bug::ApplyTwice => ("apply-twice", "the last entry that a snapshot holds is applied to it once more"),
            Bug::WrongEpochEnd => ("wrong-epoch-end", "an epoch is said to end where it begins"),
            Bug::LostWakeUp => {
                ("lost-wake-up", "a fetch goes to sleep without looking again at what moved before its watch was there")
            }
            Bug::StaleRecycledBuffer => (
                "stale-recycled-buffer",
                "a cached group is known by its place in the file alone, though the file has been used again since",
            ),
            Bug::DropGroupOffsetsAtSnapshot => {
                ("drop-group-offsets-at-snapshot", "the metadata's snapshot has no committed offsets of groups")
            }
            Bug::CoordinateUnproven => (
                "coordinate-unproven",
                "a coordinator that may have been replaced answers what is committed from memory",
            ),
            Bug::GiveBeforeGivenUp => (
                "give-before-given-up",
                "a partition is free for its next owner when the one before is told to give it up, not when it has",
            ),
            Bug::CommitInAnyEpoch => {
                ("commit-in-any-epoch", "a member of a group of KIP-848 commits, whatever epoch it says that it is in")
            }
        }
    }
}

/// 0: none; else one more than the bug's place in its enum. One bug is planted at a time, before any thread runs with
/// it: nothing is ordered by this.
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// From now on this bug, or none, is in the whole process.
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| 1 + bug as usize), Ordering::SeqCst);
}

/// Whether this bug is planted: then its site makes the mistake.
pub fn is(bug: Bug) -> bool {
    PLANTED.load(Ordering::Relaxed) == 1 + bug as usize
}
