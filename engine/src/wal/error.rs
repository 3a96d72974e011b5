//! What can be wrong with a log, with everything that is known of it.

use crate::io::DiskError;
use crate::types::{Lsn, SegmentSeq, ShardId};

/// Why a log is not opened, not written any more, or not read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WalError {
    /// Bytes that were acknowledged are not what was written. Nothing was changed.
    #[error("{0}")]
    Damaged(Box<Damage>),
    /// A segment that must be there is not.
    #[error(
        "segment {segment} of the write-ahead log is missing; records up to LSN {whole_before} are whole, \
         {whole_after} later groups are there, and LSN {durable} had been acknowledged"
    )]
    MissingSegment { segment: SegmentSeq, whole_before: Lsn, whole_after: u64, durable: Lsn },
    #[error("{file} is {found} bytes long, but the segment in it has {expected}")]
    Truncated { file: String, segment: SegmentSeq, expected: u64, found: u64 },
    /// A file gets its name when it is whole.
    #[error("{file} is {found} bytes long, too short for a segment of any size: it was cut")]
    CutShort { file: String, found: u64 },
    #[error("{file} and {other} both say that they are segment {segment}")]
    DuplicateSegment { segment: SegmentSeq, file: String, other: String },
    #[error("{file} belongs to another cluster: {found:02x?}, this one is {expected:02x?}")]
    WrongCluster { file: String, expected: [u8; 16], found: [u8; 16] },
    #[error("{file} belongs to core {found}, this one is core {expected}")]
    WrongCore { file: String, expected: u32, found: u32 },
    #[error("{file} has format version {found}, this program reads version {expected}")]
    WrongVersion { file: String, expected: u32, found: u32 },
    /// A header with a right checksum that says what can not be.
    #[error("{file}: the segment header says what can not be: {what}")]
    ImpossibleHeader { file: String, what: String },
    #[error("{what} of {file} at byte {at}: {detail}")]
    Io { what: &'static str, file: String, at: u64, detail: String },
    /// A write failed or was short: nothing of this log is acknowledged any more, and nothing is tried again.
    #[error("the write-ahead log can not be written: {0}")]
    Write(DiskError),
    /// A record that was read for a reader is not what was written.
    #[error("segment {segment}, byte {at}: expected {expected}, found {found}")]
    Record { segment: SegmentSeq, at: u32, expected: String, found: String },
    /// What other brokers know of this log is not in it: its disk, or theirs, has lost what was acknowledged.
    #[error("the log of shard {shard} is not what it was: {what}")]
    Forgot { shard: ShardId, what: String },
    /// The segment was given up; its file may hold something else by now.
    #[error("segment {segment} is not part of the log any more")]
    Released { segment: SegmentSeq },
}

/// Where a log is damaged, and what of it is whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{file}, byte {offset} (segment {segment}, LSN {lsn}): expected {expected}, found {found}; {why}; records up to \
     LSN {whole_before} are whole, {whole_after} later groups are whole as well"
)]
pub struct Damage {
    /// The path a person would look for.
    pub file: String,
    pub segment: SegmentSeq,
    /// The byte in the file: of the group, or the one byte at fault where that is known.
    pub offset: u64,
    /// The group that should be there.
    pub lsn: Lsn,
    pub expected: String,
    pub found: String,
    /// Why this is damage and not an unfinished write.
    pub why: Why,
    pub whole_before: Lsn,
    /// Headers of later groups that were found.
    pub whole_after: u64,
}

/// Why something that is not whole is damage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Why {
    #[error("a later write says that everything up to LSN {durable} was on the media")]
    Acknowledged { durable: Lsn },
    #[error("one flipped bit (bit {bit} of this byte) explains all of it, so it was written whole")]
    FlippedBit { bit: u8 },
    #[error("the file holds groups that only follow a header that was on the media")]
    HeaderGone,
    #[error("its checksum is right, so it was written like this")]
    WrittenSo,
}
