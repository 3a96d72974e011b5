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

    pub fn add(&mut self, shard: ShardId, index: Index, term: Term, state: Vec<u8>) {
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
            });
        }
    }

    pub fn next_part(&self) -> Option<&Part> {
        self.parts.front()
    }

    pub fn take_part(&mut self) -> Option<Part> {
        self.parts.pop_front()
    }

    /// What belongs to the shard's snapshot begins in this segment.
    pub fn begin(&mut self, shard: ShardId, segment: SegmentSeq) {
        self.begun.insert(shard, segment);
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
