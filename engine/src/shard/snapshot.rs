//! Snapshots of a shard's state in the WAL: they free the segments that only old state holds back.
//!
//! A snapshot is the state, never the data: log starts, next offsets, epochs, producers. It is cut into parts that fit
//! into groups beside everything else; the state counts from the moment in which the last part is durable.

use crate::limits;
use crate::partition::Partition;
use crate::types::{Index, Lsn, Offset, PartitionId, SegmentSeq, ShardId, Term};
use crate::wal::{RecordHead, RecordKind};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// One part, on its way into the WAL.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub shard: ShardId,
    pub index: Index,
    pub term: Term,
    pub number: u32,
    pub parts: u32,
    pub body: Bytes,
    /// Entries behind the snapshot may lie in front of it: the first of them is in this segment.
    rest_from: Option<SegmentSeq>,
}

impl Part {
    pub fn head(&self, commit: Index) -> RecordHead {
        RecordHead {
            term: self.term,
            index: self.index,
            commit,
            base_offset: Offset(i64::from(self.number)),
            count: self.parts,
            ..RecordHead::new(RecordKind::Snapshot, self.shard)
        }
    }
}

/// The snapshots of one core that are being written. Owned by [`super::core::Core`].
#[derive(Default, Debug)]
pub(super) struct Snapshots {
    parts: VecDeque<Part>,
    /// Where the snapshot of each shard that is being written begins.
    begun: BTreeMap<ShardId, SegmentSeq>,
    /// Whole in the WAL when this LSN is durable.
    written: VecDeque<(Lsn, ShardId, SegmentSeq)>,
}

impl Snapshots {
    pub fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.written.is_empty()
    }

    /// `rest_from`: the segment of the entry at `index + 1`, if it is written by now.
    pub fn add(&mut self, shard: ShardId, index: Index, term: Term, state: Vec<u8>, rest_from: Option<SegmentSeq>) {
        let state = Bytes::from(state);
        let count = state.len().div_ceil(limits::SNAPSHOT_PART_BYTES_MAX).max(1);
        for number in 0..count {
            let from = number * limits::SNAPSHOT_PART_BYTES_MAX;
            let to = state.len().min(from + limits::SNAPSHOT_PART_BYTES_MAX);
            self.parts.push_back(Part {
                shard,
                index,
                term,
                number: number as u32,
                parts: count as u32,
                body: state.slice(from..to),
                rest_from,
            });
        }
    }

    pub fn next_part(&self) -> Option<&Part> {
        self.parts.front()
    }

    pub fn take_part(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// The snapshot is being written from this segment on. What belongs to it begins there, or with the entries that
    /// come after its state and were written before it.
    pub fn begin(&mut self, part: &Part, segment: SegmentSeq) {
        self.begun.insert(part.shard, part.rest_from.map_or(segment, |rest| rest.min(segment)));
    }

    pub fn appended(&mut self, part: &Part, lsn: Lsn) {
        if part.number + 1 == part.parts {
            let from = self.begun.remove(&part.shard).expect("a snapshot begins before it ends");
            self.written.push_back((lsn, part.shard, from));
        }
    }

    /// The snapshots that are whole on the media now, with the segment in which each begins.
    pub fn durable(&mut self, lsn: Lsn) -> Vec<(ShardId, SegmentSeq)> {
        let mut done = Vec::new();
        while let Some((at, shard, from)) = self.written.front().copied() {
            if at > lsn {
                break;
            }
            self.written.pop_front();
            done.push((shard, from));
        }
        done
    }
}

/// In which segments the entries of one shard lie: the first entry of each run. One element for each segment.
#[derive(Clone, Default, Debug)]
pub(super) struct Places {
    runs: VecDeque<(Index, SegmentSeq)>,
    last: Index,
}

impl Places {
    /// The entry lies in this segment. One at a position that is taken replaces it and all after it.
    pub fn note(&mut self, index: Index, segment: SegmentSeq) {
        while self.runs.back().is_some_and(|(first, _)| *first >= index) {
            self.runs.pop_back();
        }
        if self.runs.back().is_none_or(|(_, last)| *last != segment) {
            self.runs.push_back((index, segment));
        }
        self.last = index;
    }

    /// The segment of an entry that was noted and not forgotten.
    pub fn of(&self, index: Index) -> Option<SegmentSeq> {
        let run = self.runs.partition_point(|(first, _)| *first <= index);
        (index <= self.last).then_some(self.runs.get(run.checked_sub(1)?)?.1)
    }

    /// The first entry that lies in this segment or a later one; behind all, if none does.
    pub fn first_in(&self, segment: SegmentSeq) -> Index {
        let run = self.runs.iter().find(|(_, of)| *of >= segment);
        run.map_or(Index(self.last.0 + 1), |(first, _)| *first)
    }

    pub fn forget_below(&mut self, index: Index) {
        while self.runs.get(1).is_some_and(|(first, _)| *first <= index) {
            self.runs.pop_front();
        }
    }
}

/// The state of a data shard: its partitions, each with its length before it.
pub(super) fn encode(partitions: &BTreeMap<PartitionId, Partition>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut one = Vec::new();
    for (id, partition) in partitions {
        one.clear();
        partition.snapshot(&mut one);
        out.extend_from_slice(&id.0.to_le_bytes());
        out.extend_from_slice(&(one.len() as u32).to_le_bytes());
        out.extend_from_slice(&one);
    }
    out
}

/// The partitions of a data shard; `None` if the bytes are no such state.
pub(super) fn decode(mut state: &[u8]) -> Option<BTreeMap<PartitionId, Partition>> {
    let mut partitions = BTreeMap::new();
    while !state.is_empty() {
        let (id, rest) = state.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len) as usize;
        let (body, rest) = rest.split_at_checked(len)?;
        let id = PartitionId(u64::from_le_bytes(*id));
        partitions.insert(id, Partition::restore(id, body).ok()?);
        state = rest;
    }
    Some(partitions)
}
