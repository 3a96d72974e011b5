//! Leader epochs of a partition: from which offset on each one wrote. What a consumer asks to learn whether the log it
//! read was cut behind its back (KIP-101, KIP-320). Source: Kafka's `LeaderEpochFileCache`.

use super::codec::{Reader, SnapshotError, Writer};
use crate::limits;
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::shard::api::EpochEnd;
use crate::types::{LeaderEpoch, Offset};
use std::collections::VecDeque;

/// Lives on the partition's core; changed by committed batches only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Epochs {
    /// Each epoch with a committed batch, and the base offset of its first one; both strictly ascending. The first may
    /// begin below the log start. At most [`limits::EPOCHS_PER_PARTITION_MAX`].
    starts: VecDeque<(LeaderEpoch, Offset)>,
}

impl Epochs {
    /// A batch of this epoch was committed at `base_offset`.
    pub fn note(&mut self, epoch: LeaderEpoch, base_offset: Offset) {
        if let Some((last, start)) = self.starts.back() {
            assert!(*last <= epoch, "epoch {epoch} at offset {base_offset} follows epoch {last}");
            if *last == epoch {
                return;
            }
            assert!(*start < base_offset, "epoch {epoch} begins at {base_offset}, epoch {last} at {start}");
        }
        if self.starts.len() == limits::EPOCHS_PER_PARTITION_MAX {
            self.starts.pop_front();
        }
        self.starts.push_back((epoch, base_offset));
    }

    /// The epoch in which the record at `offset` was written; of those the oldest known if it is older; -1 if none is.
    pub fn of(&self, offset: Offset) -> LeaderEpoch {
        let after = self.starts.partition_point(|(_, start)| *start <= offset);
        self.starts.get(after.saturating_sub(1)).map_or(LeaderEpoch(-1), |(epoch, _)| *epoch)
    }

    /// The largest epoch that is not above `requested`, and where it ends. `current` is the leader's own: it ends at
    /// the high watermark, whether it has a batch or not. Above it nothing is known: (-1, -1). An epoch below all known
    /// ones ends where those begin.
    pub fn end_of(
        &self,
        requested: LeaderEpoch,
        current: LeaderEpoch,
        log_start: Offset,
        high_watermark: Offset,
    ) -> EpochEnd {
        if requested < LeaderEpoch(0) || requested > current {
            return EpochEnd { epoch: LeaderEpoch(-1), end: Offset(-1) };
        }
        if requested == current {
            return EpochEnd { epoch: current, end: high_watermark };
        }
        let after = self.starts.partition_point(|(epoch, _)| *epoch <= requested);
        #[cfg(feature = "planted")]
        let after = if is(Bug::WrongEpochEnd) { after.saturating_sub(1) } else { after };
        let epoch = after.checked_sub(1).map_or(requested, |floor| self.starts[floor].0);
        let end = self.starts.get(after).map_or(high_watermark, |(_, start)| *start);
        EpochEnd { epoch, end: end.max(log_start) }
    }

    /// Forgets the epochs that ended at or below `log_start`. The last stays.
    pub fn prune(&mut self, log_start: Offset) {
        while self.starts.get(1).is_some_and(|(_, start)| *start <= log_start) {
            self.starts.pop_front();
        }
    }

    pub fn bytes(&self) -> usize {
        self.starts.capacity() * size_of::<(LeaderEpoch, Offset)>()
    }

    pub(super) fn snapshot(&self, out: &mut Writer<'_>) {
        out.u32(u32::try_from(self.starts.len()).expect("epochs are bounded"));
        for (epoch, start) in &self.starts {
            out.i32(epoch.0);
            out.i64(start.0);
        }
    }

    /// `next`: where the log ends; no epoch can begin there or behind.
    pub(super) fn restore(input: &mut Reader<'_>, next: Offset) -> Result<Epochs, SnapshotError> {
        let count = input.u32()? as usize;
        if count > limits::EPOCHS_PER_PARTITION_MAX {
            return Err(input.wrong("more leader epochs than one partition has"));
        }
        let mut epochs = Epochs::default();
        let (mut below, mut from) = (LeaderEpoch(-1), Offset(-1));
        for _ in 0..count {
            let (epoch, start) = (LeaderEpoch(input.i32()?), Offset(input.i64()?));
            if epoch <= below || start <= from || start >= next {
                return Err(input.wrong("leader epochs are not in order"));
            }
            (below, from) = (epoch, start);
            epochs.starts.push_back((epoch, start));
        }
        Ok(epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(epoch: i32, end: i64) -> EpochEnd {
        EpochEnd { epoch: LeaderEpoch(epoch), end: Offset(end) }
    }

    fn three() -> Epochs {
        let mut epochs = Epochs::default();
        for (epoch, start) in [(2, 0), (2, 5), (3, 10), (6, 30), (6, 31)] {
            epochs.note(LeaderEpoch(epoch), Offset(start));
        }
        epochs
    }

    #[test]
    fn a_past_epoch_ends_where_the_next_one_begins() {
        // With the current epoch's end in its place, consumers would miss a truncation; with -1 they would see one.
        let epochs = three();
        let ask = |requested| epochs.end_of(LeaderEpoch(requested), LeaderEpoch(6), Offset(0), Offset(40));
        assert_eq!(ask(2), end(2, 10));
        assert_eq!(ask(3), end(3, 30));
        assert_eq!(ask(4), end(3, 30));
        assert_eq!(ask(5), end(3, 30));
        assert_eq!(ask(6), end(6, 40));
        assert_eq!(ask(7), end(-1, -1));
        assert_eq!(ask(-1), end(-1, -1));
        assert_eq!(ask(0), end(0, 0));
        assert_eq!(ask(1), end(1, 0));
    }

    #[test]
    fn a_new_leader_without_a_batch_is_known_by_its_own_epoch() {
        let epochs = three();
        let ask = |requested| epochs.end_of(LeaderEpoch(requested), LeaderEpoch(9), Offset(0), Offset(40));
        assert_eq!(ask(9), end(9, 40));
        assert_eq!(ask(8), end(6, 40));
        assert_eq!(ask(10), end(-1, -1));
        let none = Epochs::default();
        assert_eq!(none.end_of(LeaderEpoch(1), LeaderEpoch(3), Offset(0), Offset(0)), end(1, 0));
        assert_eq!(none.end_of(LeaderEpoch(3), LeaderEpoch(3), Offset(0), Offset(0)), end(3, 0));
        assert_eq!(none.of(Offset(0)), LeaderEpoch(-1));
    }

    #[test]
    fn pruning_forgets_what_ended_and_ends_never_go_below_the_log_start() {
        let mut epochs = three();
        epochs.prune(Offset(12));
        assert_eq!(epochs.of(Offset(12)), LeaderEpoch(3));
        assert_eq!(epochs.of(Offset(29)), LeaderEpoch(3));
        assert_eq!(epochs.of(Offset(30)), LeaderEpoch(6));
        let ask = |requested| epochs.end_of(LeaderEpoch(requested), LeaderEpoch(6), Offset(12), Offset(40));
        assert_eq!(ask(2), end(2, 12));
        assert_eq!(ask(3), end(3, 30));
        epochs.prune(Offset(40));
        assert_eq!(epochs, {
            let mut last = Epochs::default();
            last.note(LeaderEpoch(6), Offset(30));
            last
        });
    }

    #[test]
    fn elections_without_end_do_not_grow_the_list() {
        let mut epochs = Epochs::default();
        for n in 0..limits::EPOCHS_PER_PARTITION_MAX as i32 + 10 {
            epochs.note(LeaderEpoch(n), Offset(i64::from(n)));
        }
        assert_eq!(epochs.starts.len(), limits::EPOCHS_PER_PARTITION_MAX);
        // What was forgotten ends where knowledge begins: never below its true end.
        let ask = |requested| epochs.end_of(LeaderEpoch(requested), LeaderEpoch(9999), Offset(0), Offset(9999));
        assert_eq!(ask(3), end(3, 10));
        assert_eq!(ask(10), end(10, 11));
    }
}
