//! The head of a record: what the WAL and a recovery know of it without reading its body.

use crate::types::{
    Index, Offset, PartitionId, ProducerEpoch, ProducerId, SegmentSeq, Sequence, ShardId, Term, WallMs,
};

/// What a record is. Numbers are on disk: never change one, never use one again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum RecordKind {
    /// Raft's term, vote and commit of a shard. No entry: `index` is 0.
    HardState = 1,
    /// A part of a shard's snapshot at `index`; `base_offset` is the part's number, `count` the number of parts.
    Snapshot = 2,
    /// The empty entry of a new leader.
    Noop = 3,
    /// A Kafka record batch; the fields from `partition` on are its own.
    Batch = 4,
    /// Records of `partition` below `base_offset` are deleted.
    Trim = 5,
    /// A command to the meta shard's state machine.
    Meta = 6,
    /// A change of the shard's replicas (Raft's ConfChangeV2).
    Membership = 7,
}

/// The head of a record. Fields that a kind does not use hold [`RecordHead::new`]'s defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead {
    pub kind: RecordKind,
    pub shard: ShardId,
    pub term: Term,
    pub index: Index,
    /// The shard's commit index when the record was appended: recovery may apply up to it without asking anybody.
    pub commit: Index,
    pub partition: PartitionId,
    pub base_offset: Offset,
    /// Records in the batch.
    pub count: u32,
    pub producer: ProducerId,
    pub producer_epoch: ProducerEpoch,
    pub base_sequence: Sequence,
    pub max_timestamp: WallMs,
    /// Free for the kind.
    pub flags: u16,
}

impl RecordHead {
    pub fn new(kind: RecordKind, shard: ShardId) -> RecordHead {
        RecordHead {
            kind,
            shard,
            term: Term(0),
            index: Index(0),
            commit: Index(0),
            partition: PartitionId(0),
            base_offset: Offset(-1),
            count: 0,
            producer: ProducerId::NONE,
            producer_epoch: ProducerEpoch(-1),
            base_sequence: Sequence(-1),
            max_timestamp: WallMs(-1),
            flags: 0,
        }
    }
}

/// Where a record lies: its segment, the byte of its head in the segment's file, the length of its body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordAt {
    pub segment: SegmentSeq,
    pub at: u32,
    pub len: u32,
}
