//! What a core may be asked about its partitions, and how it answers. Plain data: it crosses cores through the mesh.

use crate::partition::batch::Codec;
use crate::types::{
    CoreId, Index, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, Sequence, ShardId, Term, WallMs,
};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a partition lives in this broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Route {
    pub core: CoreId,
    pub shard: ShardId,
    pub partition: PartitionId,
}

/// Names a question; its answer carries it back. The core is the one that asked; `request` and `part` are its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    pub core: CoreId,
    pub request: u64,
    pub part: u32,
}

/// Which timestamp the records of a topic carry (`message.timestamp.type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimestampType {
    #[default]
    CreateTime,
    LogAppendTime,
}

/// How a topic's batches are to be packed (`compression.type`), where it does not take them as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packing {
    pub codec: Codec,
    /// The codec's own number (`compression.gzip.level` and so on); below 0 the usual one of gzip. Snappy has none.
    pub level: i32,
}

/// What a batch must obey: the topic's settings that concern a single batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRules {
    /// `max.message.bytes`: of the whole batch as sent.
    pub batch_bytes_max: u32,
    pub timestamps: TimestampType,
    /// `message.timestamp.before.max.ms` / `after.max.ms`: how far a record's time may lie from the broker's clock.
    pub before_max_ms: i64,
    pub after_max_ms: i64,
    /// `cleanup.policy` has `compact`: each record needs a key.
    pub compacted: bool,
    /// `None`: batches stay as they were sent.
    pub packing: Option<Packing>,
}

impl Default for BatchRules {
    fn default() -> Self {
        BatchRules {
            batch_bytes_max: crate::limits::BATCH_BYTES_DEFAULT as u32,
            timestamps: TimestampType::CreateTime,
            before_max_ms: i64::MAX,
            after_max_ms: 3_600_000,
            compacted: false,
            packing: None,
        }
    }
}

/// A question to the core that owns a partition.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Append one record batch (exactly one, magic 2, as the client sent it).
    Produce { to: Route, batch: Bytes, rules: BatchRules },
    /// Batches from `offset` on, at most `bytes_max` of them, but at least one whole batch if `at_least_one`.
    Read { from: Route, offset: Offset, bytes_max: u32, at_least_one: bool, epoch: Option<LeaderEpoch>, watch: bool },
    /// Forget the watches of this request (see [`Answer::Moved`]). Not answered.
    Unwatch { request: u64 },
    /// An offset by time or by name.
    Find { from: Route, what: OffsetQuery, epoch: Option<LeaderEpoch> },
    /// The end of a leader epoch (OffsetForLeaderEpoch).
    EpochEnd { from: Route, epoch: LeaderEpoch, current: Option<LeaderEpoch> },
    /// Delete the records below `offset` (DeleteRecords); `None` means all below the high watermark.
    Trim { to: Route, offset: Option<Offset> },
    /// Who wrote to a partition and is remembered (DescribeProducers): see [`Producing`].
    Producers { of: Route, producers_max: u32 },
    /// What this core holds of each of its partitions, leader or not (DescribeLogDirs).
    Holdings { core: CoreId },
    /// How far the replicas of a shard are (DescribeQuorum). The leader's to answer.
    Quorum { core: CoreId, shard: ShardId },
}

impl Ask {
    /// Where the partition lives, if the question is about one.
    pub fn route(&self) -> Option<Route> {
        match self {
            Ask::Produce { to, .. } | Ask::Trim { to, .. } => Some(*to),
            Ask::Read { from, .. } | Ask::Find { from, .. } | Ask::EpochEnd { from, .. } => Some(*from),
            Ask::Producers { of, .. } => Some(*of),
            Ask::Unwatch { .. } | Ask::Holdings { .. } | Ask::Quorum { .. } => None,
        }
    }

    /// The core that has to answer; none where nothing is answered.
    pub fn core(&self) -> Option<CoreId> {
        match self {
            Ask::Holdings { core } | Ask::Quorum { core, .. } => Some(*core),
            Ask::Produce { .. }
            | Ask::Read { .. }
            | Ask::Unwatch { .. }
            | Ask::Find { .. }
            | Ask::EpochEnd { .. }
            | Ask::Trim { .. }
            | Ask::Producers { .. } => self.route().map(|route| route.core),
        }
    }
}

/// What ListOffsets asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OffsetQuery {
    /// -1: the high watermark (or the last stable offset, which is the same until transactions exist).
    Latest,
    /// -2: the log start.
    Earliest,
    /// -3: the record with the largest timestamp.
    MaxTimestamp,
    /// -4: the first offset on the local disk.
    EarliestLocal,
    /// -5: the last offset in the bucket. -1 where nothing is.
    LatestTiered,
    /// The first record at or after this time.
    AtOrAfter(WallMs),
}

/// The answer to an [`Ask`], in the same order of variants.
#[derive(Clone, Debug)]
pub enum Answer {
    Produced(Result<Produced, Refusal>),
    Read(Result<ReadDone, Refusal>),
    Found(Result<Found, Refusal>),
    EpochEnd(Result<EpochEnd, Refusal>),
    Trimmed(Result<Offset, Refusal>),
    Producers(Result<Producing, Refusal>),
    Holdings(Result<Vec<Holding>, Refusal>),
    Quorum(Result<Quorum, Refusal>),
    /// A partition that a `Read { watch: true }` of this request was told about has more now (or is gone). Comes
    /// besides the answer to the read, at most once for each such read.
    Moved,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Produced {
    /// Of the first record: the original's, if this was a retry of what is in the log.
    pub base_offset: Offset,
    pub log_start: Offset,
    /// With LogAppendTime, the time that all records of the batch got.
    pub append_time: Option<WallMs>,
}

/// What a read returned, all from one moment.
#[derive(Clone, Debug, Default)]
pub struct ReadDone {
    /// Whole batches, as stored, in offset order; the first may begin below the offset asked for.
    pub batches: Vec<Bytes>,
    pub high_watermark: Offset,
    pub last_stable: Offset,
    pub log_start: Offset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// -1 if there is no such record.
    pub offset: Offset,
    /// -1 where the query has none.
    pub timestamp: WallMs,
    /// Of the batch found, or the partition's current one; -1 if none.
    pub epoch: LeaderEpoch,
}

/// The largest epoch that is not above the one asked for, and where it ends. (-1, -1) if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEnd {
    pub epoch: LeaderEpoch,
    pub end: Offset,
}

/// Who wrote to a partition and is remembered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producing {
    /// How many they are.
    pub total: usize,
    /// In the order of their ids; none if they are more than was asked for.
    pub active: Vec<ActiveProducer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActiveProducer {
    pub id: ProducerId,
    pub epoch: ProducerEpoch,
    /// Of its last record that is committed.
    pub last_sequence: Sequence,
    /// The largest of its last batch; -1 if that was deleted.
    pub last_timestamp: WallMs,
}

/// What a core holds of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    pub partition: PartitionId,
    /// Visible batches as they are stored, bytes.
    pub bytes: u64,
}

/// How far the replicas of a shard are, as its leader knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quorum {
    /// The last entry that a majority has flushed.
    pub commit: Index,
    /// The last entry of the leader's log.
    pub last: Index,
    /// The last entry that each voter is known to have flushed, by Raft id, ascending; the leader among them.
    pub voters: Vec<(u64, Index)>,
}

/// Why a core did not do what it was asked: small, and each says what the client is to do. The wire's codes are made
/// from these in `net`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("this broker does not lead the partition")]
    NotLeader,
    #[error("there is no such partition")]
    UnknownPartition,
    #[error("the offset is outside the log")]
    OffsetOutOfRange { high_watermark: Offset, log_start: Offset },
    #[error("the leader epoch is older than the partition's")]
    FencedEpoch,
    #[error("the leader epoch is newer than the partition's")]
    UnknownEpoch,
    #[error("the sequence {found} of producer {producer} does not follow on: expected {expected}")]
    OutOfOrderSequence { producer: ProducerId, expected: Sequence, found: Sequence },
    #[error("the epoch {found} of producer {producer} is older than {current}")]
    OldProducerEpoch { producer: ProducerId, current: ProducerEpoch, found: ProducerEpoch },
    #[error("the batch is damaged: {0}")]
    Corrupt(&'static str),
    #[error("the batch has {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("a record's timestamp is too far from the broker's clock")]
    Timestamp { indexes: Vec<i32> },
    /// `indexes`: of the records at fault, if single records are.
    #[error("the batch is invalid: {why}")]
    Invalid { why: &'static str, indexes: Vec<i32> },
    #[error("the codec is not supported")]
    UnsupportedCodec,
    /// Retriable: the disk is full, or the WAL limit is reached.
    #[error("no room on the disk of the write-ahead log")]
    NoSpace,
    /// Retriable: over a memory or queue budget.
    #[error("over budget, try again")]
    Busy,
    #[error("the stored bytes are damaged or can not be read")]
    Storage,
}

/// Who leads which shard, and since which term. One owner per entry (the core that runs the replica), read by all:
/// Metadata answers with it on every core. A term of 0 means no leader yet.
#[derive(Debug)]
pub struct ShardTable {
    cores: Vec<CoreId>,
    terms: Vec<AtomicU64>,
    /// Raft id of the leader in the upper half, its term in the lower one; 0: unknown.
    leaders: Vec<AtomicU64>,
}

impl ShardTable {
    /// `cores[s]` is the core that runs shard `s`.
    pub fn new(cores: Vec<CoreId>) -> ShardTable {
        let zeros = || cores.iter().map(|_| AtomicU64::new(0)).collect();
        let (terms, leaders) = (zeros(), zeros());
        ShardTable { cores, terms, leaders }
    }

    pub fn len(&self) -> usize {
        self.cores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cores.is_empty()
    }

    pub fn core(&self, shard: ShardId) -> CoreId {
        self.cores[shard.0 as usize]
    }

    pub fn shards_of(&self, core: CoreId) -> impl Iterator<Item = ShardId> + '_ {
        self.cores.iter().enumerate().filter(move |(_, c)| **c == core).map(|(s, _)| ShardId(s as u32))
    }

    /// The term in which this broker leads the shard and serves it, if it does.
    pub fn leading(&self, shard: ShardId) -> Option<Term> {
        match self.terms[shard.0 as usize].load(Ordering::Acquire) {
            0 => None,
            term => Some(Term(term)),
        }
    }

    /// Called by the core that runs the shard only.
    pub fn set_leading(&self, shard: ShardId, term: Option<Term>) {
        self.terms[shard.0 as usize].store(term.map_or(0, |t| t.0), Ordering::Release);
    }

    /// The raft id of the broker that leads the shard, this one or another, and its term, as far as this broker knows.
    /// It may not serve yet.
    pub fn leader(&self, shard: ShardId) -> Option<(u64, Term)> {
        match self.leaders[shard.0 as usize].load(Ordering::Acquire) {
            0 => None,
            both => Some((both >> 32, Term(both & u64::from(u32::MAX)))),
        }
    }

    /// Called by the core that runs the shard only.
    ///
    /// # Panics
    /// If the id or the term has more than 32 bits: both come from numbers that clients see as 32 bits.
    pub fn set_leader(&self, shard: ShardId, leader: Option<(u64, Term)>) {
        let half = |n: u64| u64::from(u32::try_from(n).expect("raft ids and terms are below 2^32"));
        let both = leader.map_or(0, |(id, term)| (half(id) << 32) | half(term.0));
        self.leaders[shard.0 as usize].store(both, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients would be sent to a broker that does not exist, or fence a leader for its term.
    #[test]
    fn a_leader_and_its_term_are_read_as_they_were_set() {
        let table = ShardTable::new(vec![CoreId(0); 2]);
        assert_eq!(table.leader(ShardId(1)), None);
        let largest = (1 << 31, Term((1 << 31) - 1));
        table.set_leader(ShardId(1), Some(largest));
        assert_eq!((table.leader(ShardId(0)), table.leader(ShardId(1))), (None, Some(largest)));
        assert_eq!(table.leading(ShardId(1)), None, "who leads elsewhere does not lead here");
        table.set_leader(ShardId(1), None);
        assert_eq!(table.leader(ShardId(1)), None);
    }
}
