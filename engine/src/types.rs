//! Ids, positions and times, each a type of its own: an offset can not be passed where an index is meant.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

newtype!(
    /// A broker of the cluster (Kafka's node id).
    BrokerId(i32));
newtype!(
    /// A pinned thread of this broker: one loop, one ring, one WAL. Counted from 0.
    CoreId(u16));
newtype!(
    /// A set of partitions that share one replicated log (one Raft group). 0 is the meta shard.
    ShardId(u32));
newtype!(
    /// A partition for the whole life of the cluster: given out by the meta shard when the partition is made, never
    /// given out again, so that a topic made anew under an old name shares nothing with the old one.
    PartitionId(u64));
newtype!(
    /// The position of a record in its partition.
    Offset(i64));
newtype!(
    /// The number of a block group in its WAL, from 1.
    Lsn(u64));
newtype!(
    /// The number of a WAL segment in its WAL, from 1; it grows with every segment begun.
    SegmentSeq(u32));
newtype!(
    /// A Raft term. Kafka's leader epoch is its low 31 bits ([`Term::leader_epoch`]).
    Term(u64));
newtype!(
    /// The position of an entry in a shard's Raft log, from 1.
    Index(u64));
newtype!(
    /// Kafka's leader epoch: the term in which a partition's leader was elected.
    LeaderEpoch(i32));
newtype!(
    /// Names an idempotent producer. -1 in a batch says that it has none.
    ProducerId(i64));
newtype!(
    /// Grows when a producer is fenced or starts its sequences anew.
    ProducerEpoch(i16));
newtype!(
    /// The number of a record among those of its producer, partition and epoch; 0 follows 2147483647.
    Sequence(i32));
newtype!(
    /// Monotonic time of this process, ns. Never goes back; says nothing about the calendar.
    Mono(u64));
newtype!(
    /// Wall clock, ms since 1970: what record timestamps are. May jump.
    WallMs(i64));

/// An entry of a shard's Raft log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId {
    pub term: Term,
    pub index: Index,
}

/// The shard whose log is the cluster's metadata.
pub const META_SHARD: ShardId = ShardId(0);

impl Term {
    /// The epoch that clients see for this term.
    ///
    /// # Panics
    /// After 2^31 elections of one shard.
    pub fn leader_epoch(self) -> LeaderEpoch {
        LeaderEpoch(i32::try_from(self.0).expect("a shard has fewer than 2^31 terms"))
    }
}

impl ProducerId {
    pub const NONE: ProducerId = ProducerId(-1);
}

impl Add<i64> for Offset {
    type Output = Offset;
    fn add(self, count: i64) -> Offset {
        Offset(self.0 + count)
    }
}

impl Sub for Offset {
    type Output = i64;
    fn sub(self, earlier: Offset) -> i64 {
        self.0 - earlier.0
    }
}

impl Sequence {
    /// The sequence `count` records later: 0 follows 2147483647.
    pub fn plus(self, count: i32) -> Sequence {
        Sequence(((i64::from(self.0) + i64::from(count)) & 0x7fff_ffff) as i32)
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, time: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Mono {
    /// How long after `earlier` this is; nothing if it is not after it.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_after_the_largest_is_zero() {
        assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
        assert_eq!(Sequence(i32::MAX - 2).plus(5), Sequence(2));
        assert_eq!(Sequence(7).plus(3), Sequence(10));
    }
}
