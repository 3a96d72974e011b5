//! What is on the disk, byte by byte: segment headers, group headers, record heads, and their checksums.
//!
//! All three are fixed-size rkyv archives, little endian, without padding of their own, read in place. The images under
//! `golden/` hold their bytes for ever: a change here needs a new [`FORMAT_VERSION`] and a reader of the old one.
//!
//! | what | bytes | where | covered by |
//! |---|---|---|---|
//! | segment header | 128, zeros to 4096 | byte 0 of the file | its own CRC |
//! | group header | 64 | a multiple of 4096 | its own CRC, and the group's |
//! | record head | 96 | a multiple of 16, in its group | its own CRC (salted with its place), and the group's |
//! | body | any, zeros to 16 | after its head | CRC and word sum in its head |
//!
//! A CRC is always CRC32C. The group's runs over all record heads, in order, and then over the group's header; a head
//! holds its body's CRC, so every byte is checksummed once, and one number stands for the whole group: the next group
//! carries it ("chain"). It leaves out the heads' and the header's own CRCs: bytes followed by their own CRC bring
//! every CRC to the same value whatever they are, and the chain would say nothing. The word sum of a body is no second
//! defence against decay: it is what tells one flipped bit from an unfinished write (`flip.rs`).

use super::record::{RecordHead, RecordKind};
use crate::limits::{BLOCK_BYTES, WAL_RECORD_BYTES_MAX};
use crate::types::{
    CoreId, Index, Lsn, Offset, PartitionId, ProducerEpoch, ProducerId, SegmentSeq, Sequence, ShardId, Term, WallMs,
};
use crc32c::{crc32c, crc32c_append};
use rkyv::rancor::Failure;
use rkyv::ser::allocator::SubAllocator;
use rkyv::ser::writer::Buffer;

/// The format of this file. Where the first 12 bytes and the last 4 of a segment header lie is the same in all
/// versions.
pub const FORMAT_VERSION: u32 = 1;

pub const SEGMENT_HEADER_BYTES: usize = 128;
pub const GROUP_HEADER_BYTES: usize = 64;
pub const RECORD_HEAD_BYTES: usize = 96;
/// What of a group's header, and of a record's head, the CRCs cover.
pub(super) const GROUP_HEADER_COVERED: usize = GROUP_HEADER_BYTES - 8;
pub(super) const RECORD_HEAD_COVERED: usize = RECORD_HEAD_BYTES - 4;
/// Records begin at multiples of this in their group.
pub const RECORD_ALIGN: usize = 16;
/// Where the first group of a segment lies.
pub const FIRST_GROUP_AT: u64 = BLOCK_BYTES as u64;

pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"CAMUSWAL");
pub const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"CgrP");

/// A group, padding included, is never larger: the largest record, alone.
pub const GROUP_BYTES_LIMIT: usize =
    (GROUP_HEADER_BYTES + RECORD_HEAD_BYTES + WAL_RECORD_BYTES_MAX).next_multiple_of(BLOCK_BYTES);

const _: () = assert!(size_of::<ArchivedSegmentHeader>() == SEGMENT_HEADER_BYTES);
const _: () = assert!(size_of::<ArchivedGroupHeader>() == GROUP_HEADER_BYTES);
const _: () = assert!(size_of::<ArchivedDiskHead>() == RECORD_HEAD_BYTES);
const _: () =
    assert!(GROUP_HEADER_BYTES.is_multiple_of(RECORD_ALIGN) && RECORD_HEAD_BYTES.is_multiple_of(RECORD_ALIGN));
const _: () = assert!(GROUP_BYTES_LIMIT < u32::MAX as usize);

/// Names one use of a segment's file, random: what an earlier use left in the file has another one. A client never sees
/// it, so that no record body can be made to look like a group.
pub type Incarnation = [u8; 16];

/// The head of a segment's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, rkyv::Archive, rkyv::Serialize)]
pub struct SegmentHeader {
    pub magic: u64,
    pub version: u32,
    pub core: u32,
    pub cluster: [u8; 16],
    pub incarnation: Incarnation,
    pub sequence: u32,
    /// The oldest segment that was needed when this header was written: it and all that follow must be there.
    pub oldest: u32,
    /// LSN of the first group. Groups of earlier segments from this LSN on were never acknowledged, and are void.
    pub first_lsn: u64,
    /// What was known to be on the media when this header was written.
    pub durable_lsn: u64,
    /// Length of the file.
    pub segment_bytes: u64,
    /// CRC of the group before the first one; 0 before the first of all.
    pub prev_crc: u32,
    pub reserved: [u8; 40],
    pub crc: u32,
}

/// The head of a block group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, rkyv::Archive, rkyv::Serialize)]
pub struct GroupHeader {
    pub magic: u32,
    /// This header and all records, without the padding to the block.
    pub bytes: u32,
    pub records: u32,
    /// Sequence of the segment. For people: what decides is the incarnation.
    pub segment: u32,
    pub incarnation: Incarnation,
    pub lsn: u64,
    /// What the writer knew to be on the media when it submitted this group. This is how a recovery tells damage from
    /// an unfinished write.
    pub durable_lsn: u64,
    /// CRC of the group before.
    pub prev_crc: u32,
    pub reserved: u32,
    /// Of this header up to here.
    pub header_crc: u32,
    /// Of all record heads, then of this header, each without its own CRC.
    pub crc: u32,
}

/// A [`RecordHead`] as it is on the disk, with what the WAL adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, rkyv::Archive, rkyv::Serialize)]
pub struct DiskHead {
    pub kind: u16,
    pub flags: u16,
    pub producer_epoch: i16,
    pub reserved: u16,
    pub shard: u32,
    pub count: u32,
    pub base_sequence: i32,
    pub body_bytes: u32,
    pub term: u64,
    pub index: u64,
    pub commit: u64,
    pub partition: u64,
    pub base_offset: i64,
    pub producer: i64,
    pub max_timestamp: i64,
    /// The body's little-endian 64-bit words, the last one filled up with zeros, added up.
    pub body_sum: u64,
    pub body_crc: u32,
    /// Of the place (incarnation, then the head's byte in the file as u32), then of this head up to here.
    pub head_crc: u32,
}

/// Writes an archive into a buffer of exactly its size.
macro_rules! put {
    ($value:expr, $into:expr) => {{
        let into: &mut [u8] = $into;
        let size = into.len();
        let done =
            rkyv::api::low::to_bytes_in_with_alloc::<_, _, Failure>($value, Buffer::from(into), SubAllocator::empty())
                .expect("a fixed-size archive fits a buffer of its size");
        assert!(done.len() == size, "an archive of {} bytes filled {}", size, done.len());
    }};
}

/// Bytes at an alignment that every archive here accepts.
#[repr(C, align(16))]
struct Aligned<const N: usize>([u8; N]);

/// Reads an archive in place, or through a copy where the bytes do not lie at a multiple of 16 (a tool's buffer).
macro_rules! get {
    ($archived:ty, $bytes:expr, $size:expr, $archive:ident => $body:expr) => {{
        let bytes: &[u8] = &$bytes[..$size];
        let copy;
        let bytes = if (bytes.as_ptr() as usize).is_multiple_of(RECORD_ALIGN) {
            bytes
        } else {
            copy = Aligned::<{ $size }>(bytes.try_into().expect("a slice of this size"));
            &copy.0[..]
        };
        let $archive = rkyv::access::<$archived, Failure>(bytes).expect("every bit pattern of plain numbers is valid");
        $body
    }};
}

impl SegmentHeader {
    /// The block as it goes to the disk, with its CRC.
    pub fn block(mut self) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        self.crc = 0;
        put!(&self, &mut block[..SEGMENT_HEADER_BYTES]);
        let crc = crc32c(&block[..SEGMENT_HEADER_BYTES - 4]);
        block[SEGMENT_HEADER_BYTES - 4..SEGMENT_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// What the first bytes of a segment's file say, if their CRC is right.
    ///
    /// # Panics
    /// When there are fewer than [`SEGMENT_HEADER_BYTES`].
    pub fn read(bytes: &[u8]) -> Option<SegmentHeader> {
        if crc32c(&bytes[..SEGMENT_HEADER_BYTES - 4]) != le32(bytes, SEGMENT_HEADER_BYTES - 4) {
            return None;
        }
        let header = get!(ArchivedSegmentHeader, bytes, SEGMENT_HEADER_BYTES, a => SegmentHeader {
            magic: a.magic.to_native(),
            version: a.version.to_native(),
            core: a.core.to_native(),
            cluster: a.cluster,
            incarnation: a.incarnation,
            sequence: a.sequence.to_native(),
            oldest: a.oldest.to_native(),
            first_lsn: a.first_lsn.to_native(),
            durable_lsn: a.durable_lsn.to_native(),
            segment_bytes: a.segment_bytes.to_native(),
            prev_crc: a.prev_crc.to_native(),
            reserved: a.reserved,
            crc: a.crc.to_native(),
        });
        (header.magic == SEGMENT_MAGIC).then_some(header)
    }

    pub fn core(&self) -> CoreId {
        CoreId(u16::try_from(self.core).unwrap_or(u16::MAX))
    }
}

impl GroupHeader {
    /// Writes the header, and returns the group's CRC. `heads_crc` is the CRC of all record heads, in order.
    pub fn write(mut self, heads_crc: u32, into: &mut [u8]) -> u32 {
        self.header_crc = 0;
        self.crc = 0;
        put!(&self, &mut into[..GROUP_HEADER_BYTES]);
        let header_crc = crc32c(&into[..GROUP_HEADER_COVERED]);
        into[GROUP_HEADER_COVERED..GROUP_HEADER_BYTES - 4].copy_from_slice(&header_crc.to_le_bytes());
        let crc = crc32c_append(heads_crc, &into[..GROUP_HEADER_COVERED]);
        into[GROUP_HEADER_BYTES - 4..GROUP_HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// What these bytes say, whole or not. Compare [`Self::is_whole`] before believing.
    pub fn read(bytes: &[u8]) -> GroupHeader {
        get!(ArchivedGroupHeader, bytes, GROUP_HEADER_BYTES, a => GroupHeader {
            magic: a.magic.to_native(),
            bytes: a.bytes.to_native(),
            records: a.records.to_native(),
            segment: a.segment.to_native(),
            incarnation: a.incarnation,
            lsn: a.lsn.to_native(),
            durable_lsn: a.durable_lsn.to_native(),
            prev_crc: a.prev_crc.to_native(),
            reserved: a.reserved.to_native(),
            header_crc: a.header_crc.to_native(),
            crc: a.crc.to_native(),
        })
    }

    /// Whether `bytes` begin with a header of which no bit is wrong. A header lies in one sector, so that it is there
    /// as a whole or not at all; the rest of its group may still be missing.
    pub fn is_whole(bytes: &[u8]) -> bool {
        le32(bytes, 0) == GROUP_MAGIC && crc32c(&bytes[..GROUP_HEADER_COVERED]) == le32(bytes, GROUP_HEADER_COVERED)
    }

    /// Bytes on the disk.
    pub fn padded(&self) -> usize {
        (self.bytes as usize).next_multiple_of(BLOCK_BYTES)
    }

    /// Whether the lengths can be true at all.
    pub fn is_plausible(&self) -> bool {
        let bytes = self.bytes as usize;
        (GROUP_HEADER_BYTES..=GROUP_BYTES_LIMIT).contains(&bytes)
            && bytes.is_multiple_of(RECORD_ALIGN)
            && (self.records as usize) <= (bytes - GROUP_HEADER_BYTES) / RECORD_HEAD_BYTES
            && (self.records > 0 || bytes == GROUP_HEADER_BYTES)
    }
}

/// The place a head is bound to: no head is valid anywhere else, nor in another use of the file.
pub fn place_crc(incarnation: &Incarnation, at: u32) -> u32 {
    crc32c_append(crc32c(incarnation), &at.to_le_bytes())
}

impl DiskHead {
    pub fn new(head: &RecordHead, body: &[u8], body_crc: u32) -> DiskHead {
        DiskHead {
            kind: head.kind as u16,
            flags: head.flags,
            producer_epoch: head.producer_epoch.0,
            reserved: 0,
            shard: head.shard.0,
            count: head.count,
            base_sequence: head.base_sequence.0,
            body_bytes: u32::try_from(body.len()).expect("a body is at most WAL_RECORD_BYTES_MAX"),
            term: head.term.0,
            index: head.index.0,
            commit: head.commit.0,
            partition: head.partition.0,
            base_offset: head.base_offset.0,
            producer: head.producer.0,
            max_timestamp: head.max_timestamp.0,
            body_sum: word_sum(body),
            body_crc,
            head_crc: 0,
        }
    }

    /// Writes the head for the record at byte `at` of its file. Returns the CRC of the group's heads up to this one, if
    /// `heads_crc` is that of those before.
    pub fn write(mut self, incarnation: &Incarnation, at: u32, heads_crc: u32, into: &mut [u8]) -> u32 {
        self.head_crc = 0;
        put!(&self, &mut into[..RECORD_HEAD_BYTES]);
        let crc = head_crc(&into[..RECORD_HEAD_BYTES], incarnation, at);
        into[RECORD_HEAD_COVERED..RECORD_HEAD_BYTES].copy_from_slice(&crc.to_le_bytes());
        crc32c_append(heads_crc, &into[..RECORD_HEAD_COVERED])
    }

    /// What these bytes say, whole or not. Compare [`Self::is_whole`] before believing.
    pub fn read(bytes: &[u8]) -> DiskHead {
        get!(ArchivedDiskHead, bytes, RECORD_HEAD_BYTES, a => DiskHead {
            kind: a.kind.to_native(),
            flags: a.flags.to_native(),
            producer_epoch: a.producer_epoch.to_native(),
            reserved: a.reserved.to_native(),
            shard: a.shard.to_native(),
            count: a.count.to_native(),
            base_sequence: a.base_sequence.to_native(),
            body_bytes: a.body_bytes.to_native(),
            term: a.term.to_native(),
            index: a.index.to_native(),
            commit: a.commit.to_native(),
            partition: a.partition.to_native(),
            base_offset: a.base_offset.to_native(),
            producer: a.producer.to_native(),
            max_timestamp: a.max_timestamp.to_native(),
            body_sum: a.body_sum.to_native(),
            body_crc: a.body_crc.to_native(),
            head_crc: a.head_crc.to_native(),
        })
    }

    /// Whether `bytes` are a head that was written for this place, with no bit wrong.
    pub fn is_whole(bytes: &[u8], incarnation: &Incarnation, at: u32) -> bool {
        head_crc(bytes, incarnation, at) == le32(bytes, RECORD_HEAD_COVERED)
    }

    /// Bytes of the record in its group: head, body, padding.
    pub fn record_bytes(&self) -> usize {
        record_bytes(self.body_bytes as usize)
    }

    /// The head as the rest of the engine knows it. `None`: the kind is not one of this version.
    pub fn head(&self) -> Option<RecordHead> {
        let kind = match self.kind {
            1 => RecordKind::HardState,
            2 => RecordKind::Snapshot,
            3 => RecordKind::Noop,
            4 => RecordKind::Batch,
            5 => RecordKind::Trim,
            6 => RecordKind::Meta,
            7 => RecordKind::Membership,
            _ => return None,
        };
        Some(RecordHead {
            kind,
            shard: ShardId(self.shard),
            term: Term(self.term),
            index: Index(self.index),
            commit: Index(self.commit),
            partition: PartitionId(self.partition),
            base_offset: Offset(self.base_offset),
            count: self.count,
            producer: ProducerId(self.producer),
            producer_epoch: ProducerEpoch(self.producer_epoch),
            base_sequence: Sequence(self.base_sequence),
            max_timestamp: WallMs(self.max_timestamp),
            flags: self.flags,
        })
    }
}

fn head_crc(bytes: &[u8], incarnation: &Incarnation, at: u32) -> u32 {
    crc32c_append(place_crc(incarnation, at), &bytes[..RECORD_HEAD_COVERED])
}

/// Bytes of a record with this body in its group: head, body, padding.
pub fn record_bytes(body_bytes: usize) -> usize {
    RECORD_HEAD_BYTES + body_bytes.next_multiple_of(RECORD_ALIGN)
}

/// The little-endian 64-bit words of `body` added up; the last one is filled up with zeros.
pub fn word_sum(body: &[u8]) -> u64 {
    let (words, rest) = body.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    sum.wrapping_add(u64::from_le_bytes(last))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A group whose every byte that counts was compared with a checksum.
#[derive(Clone, Copy, Debug)]
pub struct WholeGroup<'a> {
    pub header: GroupHeader,
    /// From the header on, without the padding.
    pub bytes: &'a [u8],
    /// The byte of the header in its file.
    pub at: u32,
}

/// What is wrong with a group.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupFault {
    #[error("no group header")]
    NoHeader,
    #[error("a group header with a wrong checksum")]
    HeaderCrc,
    #[error("a group of another use of the file")]
    Incarnation,
    #[error("the group with LSN {found}")]
    Lsn { found: u64 },
    #[error("a group that follows on another one (CRC {found:08x}, not {expected:08x})")]
    Chain { expected: u32, found: u32 },
    #[error("a group of {bytes} bytes with {records} records")]
    Length { bytes: u32, records: u32 },
    #[error("the head of record {record} with a wrong checksum")]
    HeadCrc { record: u32 },
    #[error("a record {record} of an unknown kind {kind}")]
    Kind { record: u32, kind: u16 },
    #[error("records of {found} bytes in a group of {bytes}")]
    Records { bytes: u32, found: u64 },
    #[error("the body of record {record} with a wrong checksum")]
    BodyCrc { record: u32 },
    #[error("a group with a wrong checksum")]
    GroupCrc,
    #[error("the end of the file")]
    EndOfFile,
}

/// What must be true of the group at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    pub incarnation: Incarnation,
    pub lsn: Lsn,
    pub prev_crc: u32,
    /// Bytes from the group's first to the segment's end.
    pub room: u64,
}

impl Expected {
    /// Judges the header alone: all of it but `crc`.
    pub fn header(&self, bytes: &[u8]) -> Result<GroupHeader, GroupFault> {
        let header = GroupHeader::read(bytes);
        if header.magic != GROUP_MAGIC {
            return Err(GroupFault::NoHeader);
        }
        if !GroupHeader::is_whole(bytes) {
            return Err(GroupFault::HeaderCrc);
        }
        self.fields(&header).map(|()| header)
    }

    pub(super) fn fields(&self, header: &GroupHeader) -> Result<(), GroupFault> {
        if header.incarnation != self.incarnation {
            return Err(GroupFault::Incarnation);
        }
        if header.lsn != self.lsn.0 {
            return Err(GroupFault::Lsn { found: header.lsn });
        }
        if header.prev_crc != self.prev_crc {
            return Err(GroupFault::Chain { expected: self.prev_crc, found: header.prev_crc });
        }
        if !header.is_plausible() || header.padded() as u64 > self.room {
            return Err(GroupFault::Length { bytes: header.bytes, records: header.records });
        }
        Ok(())
    }

    /// Judges the whole group: `bytes` begin with its header and hold all of it; it lies at byte `at` of its file.
    pub fn group<'a>(&self, bytes: &'a [u8], at: u32) -> Result<WholeGroup<'a>, GroupFault> {
        WholeGroup::judge(self.header(bytes)?, bytes, at)
    }
}

impl<'a> WholeGroup<'a> {
    /// Judges what follows a header that [`Expected::header`] found right, and the group's CRC.
    pub(super) fn judge(header: GroupHeader, bytes: &'a [u8], at: u32) -> Result<WholeGroup<'a>, GroupFault> {
        let bytes = &bytes[..header.bytes as usize];
        let mut heads_crc = 0;
        let mut from = GROUP_HEADER_BYTES;
        for record in 0..header.records {
            if bytes.len() - from < RECORD_HEAD_BYTES {
                return Err(GroupFault::Records { bytes: header.bytes, found: (from + RECORD_HEAD_BYTES) as u64 });
            }
            let head_bytes = &bytes[from..from + RECORD_HEAD_BYTES];
            if !DiskHead::is_whole(head_bytes, &header.incarnation, at + from as u32) {
                return Err(GroupFault::HeadCrc { record });
            }
            let head = DiskHead::read(head_bytes);
            if head.head().is_none() {
                return Err(GroupFault::Kind { record, kind: head.kind });
            }
            if head.record_bytes() > bytes.len() - from {
                return Err(GroupFault::Records {
                    bytes: header.bytes,
                    found: from as u64 + head.record_bytes() as u64,
                });
            }
            let body = &bytes[from + RECORD_HEAD_BYTES..][..head.body_bytes as usize];
            if crc32c(body) != head.body_crc {
                return Err(GroupFault::BodyCrc { record });
            }
            heads_crc = crc32c_append(heads_crc, &head_bytes[..RECORD_HEAD_COVERED]);
            from += head.record_bytes();
        }
        if from != bytes.len() {
            return Err(GroupFault::Records { bytes: header.bytes, found: from as u64 });
        }
        if crc32c_append(heads_crc, &bytes[..GROUP_HEADER_COVERED]) != header.crc {
            return Err(GroupFault::GroupCrc);
        }
        Ok(WholeGroup { header, bytes, at })
    }

    /// The records in order: head, body, the head's byte in the file.
    pub fn records(&self) -> impl Iterator<Item = (RecordHead, &'a [u8], u32)> + use<'a> {
        let (bytes, at, records) = (self.bytes, self.at, self.header.records);
        let mut from = GROUP_HEADER_BYTES;
        (0..records).map(move |_| {
            let head = DiskHead::read(&bytes[from..from + RECORD_HEAD_BYTES]);
            let body = &bytes[from + RECORD_HEAD_BYTES..][..head.body_bytes as usize];
            let place = at + from as u32;
            from += head.record_bytes();
            (head.head().expect("the kind was compared when the group was read"), body, place)
        })
    }

    pub fn lsn(&self) -> Lsn {
        Lsn(self.header.lsn)
    }

    pub fn segment(&self) -> SegmentSeq {
        SegmentSeq(self.header.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(lsn: u64, durable_lsn: u64, prev_crc: u32, count: u32, body: &[u8]) -> u32 {
        let mut head = RecordHead::new(RecordKind::Batch, ShardId(1));
        head.count = count;
        let mut bytes = [0; GROUP_HEADER_BYTES + RECORD_HEAD_BYTES];
        let disk = DiskHead::new(&head, body, crc32c(body));
        let heads_crc = disk.write(&[7; 16], 64, 0, &mut bytes[GROUP_HEADER_BYTES..]);
        let header = GroupHeader {
            magic: GROUP_MAGIC,
            bytes: (bytes.len() + body.len()) as u32,
            records: 1,
            segment: 1,
            incarnation: [7; 16],
            lsn,
            durable_lsn,
            prev_crc,
            reserved: 0,
            header_crc: 0,
            crc: 0,
        };
        header.write(heads_crc, &mut bytes[..GROUP_HEADER_BYTES])
    }

    /// Lost if it fails: the chain. Bytes that end with their own CRC have the same CRC whatever they are.
    #[test]
    fn the_crc_of_a_group_depends_on_everything_in_it() {
        let one = group(2, 1, 3, 4, b"body");
        assert_ne!(one, group(3, 1, 3, 4, b"body"));
        assert_ne!(one, group(2, 0, 3, 4, b"body"));
        assert_ne!(one, group(2, 1, 2, 4, b"body"));
        assert_ne!(one, group(2, 1, 3, 5, b"body"));
        assert_ne!(one, group(2, 1, 3, 4, b"Body"));
        assert_eq!(one, group(2, 1, 3, 4, b"body"));
    }
}
