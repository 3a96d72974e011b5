//! Which offsets a partition holds, and where their batches lie: one entry of 32 bytes a batch. Only what is committed.

use super::time::TimeIndex;
use crate::types::{Offset, SegmentSeq, WallMs};
use crate::wal::record::RecordAt;
use std::collections::VecDeque;

/// A batch in the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub base_offset: Offset,
    pub max_timestamp: WallMs,
    pub at: RecordAt,
    pub count: u32,
}
const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    /// The offset behind the last record.
    pub fn end(&self) -> Offset {
        self.base_offset + i64::from(self.count)
    }
}

/// The committed batches, oldest first, contiguous: each begins where the one before it ends. The first may begin below
/// the log start, never end there; the last ends at `end`.
///
/// While a partition is loaded behind a snapshot, the batches below the snapshot come after it: until then the index
/// ends below `end`. What the snapshot has and is in no segment any more leaves a gap at the log start, until the trim
/// or the deletion that gave the segments back comes ([`Self::missing`]).
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    start: Offset,
    end: Offset,
    batches: VecDeque<Entry>,
    /// Of all batches in the index together.
    data_bytes: u64,
    times: TimeIndex,
    /// The first offsets that lie between two batches told of.
    hole: Option<(Offset, Offset)>,
}

impl Log {
    /// A log whose batches are still to be told of.
    pub fn restored(start: Offset, end: Offset) -> Log {
        assert!(start <= end, "a log can not start at {start} and end at {end}");
        Log { start, end, ..Log::default() }
    }

    pub fn start(&self) -> Offset {
        self.start
    }

    pub fn end(&self) -> Offset {
        self.end
    }

    /// A committed batch: the log ends behind it.
    pub fn push(&mut self, entry: Entry) {
        let base = entry.base_offset;
        assert_eq!(base, self.end, "offsets are contiguous: the batch at {base} does not begin at the log's end");
        assert_eq!(self.torn(), None, "the batch at {base} comes before those below it");
        self.end = entry.end();
        self.index(entry);
    }

    /// A batch below the snapshot that the log was restored from. Those below the log start are passed over.
    pub fn push_below_snapshot(&mut self, entry: Entry) {
        let (base, end) = (entry.base_offset, entry.end());
        assert!(end <= self.end, "the batch [{base}, {end}) is not below the snapshot, which ends at {}", self.end);
        if end <= self.start {
            return;
        }
        if let Some(known) = self.batches.back().map(Entry::end) {
            assert!(base >= known, "the batch at {base} overlaps the one that ends at {known}");
            if base > known {
                self.hole.get_or_insert((known, base));
            }
        }
        self.index(entry);
    }

    fn index(&mut self, entry: Entry) {
        assert!(entry.count > 0, "the batch at {} has no records", entry.base_offset);
        if let Some(last) = self.batches.back() {
            assert!(last.at < entry.at, "the batch at {} lies before the one below it", entry.base_offset);
        }
        self.batches.push_back(entry);
        self.data_bytes += u64::from(entry.at.len);
        self.times.push(entry.max_timestamp);
    }

    /// The first offsets from the log start on that no batch was told for.
    pub fn missing(&self) -> Option<(Offset, Offset)> {
        let known_from = self.batches.front().map_or(self.end, |first| first.base_offset);
        (known_from > self.start).then_some((self.start, known_from)).or(self.torn())
    }

    /// The first offsets behind a batch that is there, for which none was told. Segments are given back oldest first:
    /// that leaves no such gap.
    pub fn torn(&self) -> Option<(Offset, Offset)> {
        let known_end = self.batches.back().map_or(self.end, Entry::end);
        self.hole.or((known_end != self.end).then_some((known_end, self.end)))
    }

    /// Batches from the one that holds `offset` on.
    pub fn from(&self, offset: Offset) -> impl Iterator<Item = &Entry> + '_ {
        self.batches.range(self.position(offset)..)
    }

    /// The first batch from the one that holds `from` on that has a timestamp at or above `t`.
    pub fn find_time(&self, from: Offset, t: WallMs) -> Option<&Entry> {
        let number = self.times.find(self.number(from), t, |number| self.numbered(number).max_timestamp)?;
        Some(self.numbered(number))
    }

    /// The first batch, from the one that holds `from` on, with the largest timestamp of all of these.
    pub fn find_max_timestamp(&self, from: Offset) -> Option<&Entry> {
        let number = self.number(from);
        let largest = self.times.max(number, |number| self.numbered(number).max_timestamp)?;
        self.find_time(from, largest)
    }

    /// Deletes what is below `offset`, which must not be above the end. A batch that straddles it stays whole.
    pub fn trim(&mut self, offset: Offset) {
        assert!(offset <= self.end, "the log ends at {}, it can not be cut at {offset}", self.end);
        if offset <= self.start {
            return;
        }
        self.start = offset;
        self.hole = self.hole.filter(|hole| hole.0 > offset);
        let below = self.position(offset);
        let gone: u64 = self.batches.drain(..below).map(|batch| u64::from(batch.at.len)).sum();
        self.data_bytes -= gone;
        self.times.drop_front(below as u64);
        if self.batches.capacity() > 4 * self.batches.len().max(16) {
            self.batches.shrink_to(2 * self.batches.len());
        }
    }

    pub fn first_segment(&self) -> Option<SegmentSeq> {
        self.batches.front().map(|first| first.at.segment)
    }

    /// What the batches take in the write-ahead log, bytes, without the heads of their records.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    pub fn bytes(&self) -> usize {
        self.batches.capacity() * size_of::<Entry>() + self.times.bytes()
    }

    /// Where in the index the batch is that holds `offset`, or else the first behind it.
    fn position(&self, offset: Offset) -> usize {
        self.batches.partition_point(|batch| batch.end() <= offset)
    }

    fn number(&self, offset: Offset) -> u64 {
        self.times.first() + self.position(offset) as u64
    }

    fn numbered(&self, number: u64) -> &Entry {
        &self.batches[(number - self.times.first()) as usize]
    }
}
