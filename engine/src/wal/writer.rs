//! The writing half: group commit, segments and their recycling, and what readers ask of the log.
//!
//! A record goes into the open group. At the end of a turn the open group is closed and written, unless as many groups
//! as allowed are in flight: then it goes on filling, and closes when it is full. So the device's own speed sets the
//! size of a group, and no timer does. Groups complete in any order and are reported durable in LSN order.
//!
//! Files come from [`DiskOp::Prepare`], which writes every block once, and are used again when what they hold is not
//! needed. A segment begins with its header, and its first group is written when that is on the media.

use super::cache::TailCache;
use super::error::WalError;
use super::format::{
    DiskHead, FIRST_GROUP_AT, FORMAT_VERSION, GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, Incarnation,
    RECORD_HEAD_BYTES, SEGMENT_MAGIC, SegmentHeader, record_bytes,
};
use super::record::{RecordAt, RecordHead};
use super::recovery::{self, Dropped, Owner, Role};
use crate::io::buf::{Chunk, ChunkPool};
use crate::io::{BlockBuf, DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, FileId, OpId, Volume};
use crate::limits::{
    BLOCK_BYTES, WAL_CHUNK_BYTES, WAL_GROUP_BYTES_MAX, WAL_GROUPS_IN_FLIGHT_MAX, WAL_MARK_IDLE_MS,
    WAL_PREPARE_RETRY_MS, WAL_RECORD_BYTES_MAX, WAL_SEGMENTS_OVER_LIMIT_MAX, WAL_SPARE_SEGMENTS_MAX,
};
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::types::{CoreId, Lsn, Mono, SegmentSeq};
use bytes::Bytes;
use crc32c::crc32c;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A chunk's rest below this is not begun anew while others are free: it would make small groups.
const CHUNK_REST_MIN: usize = WAL_CHUNK_BYTES / 16;

/// What a log is opened with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WalConfig {
    pub cluster: [u8; 16],
    pub core: CoreId,
    /// Length of a segment's file: whole blocks, below 4 GiB.
    pub segment_bytes: u64,
    /// All files together: the limit of the disk space. At least 3. What is appended as reserved may take
    /// [`WAL_SEGMENTS_OVER_LIMIT_MAX`] more.
    pub segments_max: usize,
    /// Released segments that are kept to be used again, and so not written with zeros anew: at least
    /// [`WAL_SPARE_SEGMENTS_MAX`], which is what is made ahead. The rest is removed.
    pub spares_max: usize,
    /// Of the tail cache.
    pub cache_bytes: usize,
    /// What the open group holds at least, for each group in flight, before it is written beside them. 0: anything.
    pub beside_bytes: usize,
}

/// Whether a record can be appended now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Yes,
    /// Not now: buffers, or a segment that is being prepared. Try on a later turn.
    Wait,
    /// The disk is full, or the limit of segments is reached. Heals when segments are released or the disk has space.
    NoSpace,
}

/// Why a record finds no space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSpaceWhy {
    /// The disk had no room for a segment. Tried again each second.
    DiskFull,
    /// [`WalConfig::segments_max`] is reached, or a record is larger than any segment.
    Limit,
}

/// Who asks for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asks {
    /// Whatever leaves a whole spare segment, within the limit, behind it, and so many segments more below the limit.
    Ordinary { leaves: usize },
    /// What frees space or must not wait for it: also the last spare, and what is over the limit.
    Reserved,
}

/// Why there is no place in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lack {
    /// One is being prepared, or will be.
    Awaited,
    Space(NoSpaceWhy),
}

/// What is to happen, and what has happened.
#[derive(Debug)]
pub enum WalOut {
    Disk(OpId, DiskOp),
    /// Everything up to this LSN is on the media.
    Durable(Lsn),
    /// A group's write completed: `ns` after it was submitted, `bytes` with the padding.
    GroupWritten {
        ns: u64,
        bytes: u32,
    },
    /// Nothing more is durable, ever. The process must end.
    Poisoned(WalError),
}

/// What a recovery found and did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    pub groups: u64,
    pub records: u64,
    /// The last group; `Lsn(0)`: the log is empty.
    pub last: Lsn,
    /// The highest LSN that is known to have been acknowledged.
    pub acknowledged: Lsn,
    pub segments: usize,
    pub spares: usize,
    /// The log ended clean, so it goes on in its last segment; else a new one begins.
    pub goes_on: bool,
    /// An unfinished write that was dropped. Nobody was told that it was durable.
    pub dropped: Option<Dropped>,
    /// Files that are neither segments nor blank. They are left alone and count against the limit.
    pub unknown: Vec<String>,
}

/// The write-ahead log of one core.
///
/// Lives on the core's thread and never leaves it; owns the core's WAL directory. Pure: what is to be done comes out as
/// [`WalOut`], what was done comes in through [`Self::disk_done`]. Always: durable < LSN of each group in flight < LSN
/// of each closed group < LSN of the open group, each without a gap.
pub struct Wal {
    config: WalConfig,
    pool: ChunkPool,
    cache: TailCache,
    incarnation_seed: u64,

    /// Segments of the log, oldest first. The last one takes new groups once `place` is set.
    live: VecDeque<Segment>,
    /// Where the next group goes in the last segment. `None`: the last segment is another run's, and takes no more.
    place: Option<u32>,
    /// Where the last segment, which is another run's, lacks nothing but that an unfinished write in it becomes void.
    /// Gone once a new segment is begun.
    torn_at: Option<u32>,
    /// The unfinished write is being made void, up to this byte.
    voided: Option<u32>,
    next_sequence: SegmentSeq,

    open: Option<OpenGroup>,
    /// Full groups that wait for a free flight or for their segment's header.
    closed: VecDeque<OpenGroup>,
    /// The rest of a chunk that no group is open in.
    rest: Option<Chunk>,
    flights: VecDeque<Flight>,
    /// LSN of the next group to be opened.
    next_lsn: Lsn,
    /// CRC of the last group submitted.
    chain: u32,
    durable: Lsn,
    /// What the last header written says is durable.
    claimed: Lsn,
    /// The last group with records.
    last_with_records: Lsn,

    /// Files ready to be used: blank ones and released ones, to be taken from the front.
    spares: VecDeque<FileId>,
    /// Released files beyond what is spared; each may go when a header of at least that sequence is on the media, which
    /// says that it is not needed.
    surplus: VecDeque<(SegmentSeq, FileId, u64)>,
    /// The highest sequence whose header is on the media.
    header_durable: SegmentSeq,
    preparing: bool,
    removing: bool,
    /// The last Prepare found no space; it is tried again at `retry_at` (unset until the next turn).
    no_space: bool,
    retry_at: Option<Mono>,
    /// Something reserved found no place: it gets a segment over the limit.
    reserve_wanted: Cell<bool>,
    /// Files that take space and can not be used.
    dead_files: usize,
    next_file: u32,
    disk_bytes: u64,

    doing: BTreeMap<OpId, Doing>,
    next_op: u64,
    /// When the last group completed.
    quiet_since: Mono,
    /// Bytes that an append had to wait for: the cache makes room for them.
    wanted_bytes: Cell<usize>,
    /// The largest room that was promised in this turn and not used yet, record heads included.
    asked_bytes: Cell<usize>,
    poisoned: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    sequence: SegmentSeq,
    file: FileId,
    file_bytes: u64,
    segment_bytes: u64,
    incarnation: Incarnation,
    first_lsn: Lsn,
    header: HeaderState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HeaderState {
    Unwritten,
    InFlight,
    Durable,
}

/// A group that is not submitted.
struct OpenGroup {
    lsn: Lsn,
    segment: SegmentSeq,
    incarnation: Incarnation,
    /// The byte of its header in the file.
    at: u32,
    chunk: Chunk,
    bytes: usize,
    /// What `bytes` may grow to.
    limit: usize,
    records: u32,
    heads_crc: u32,
}

#[derive(Debug)]
struct Flight {
    lsn: Lsn,
    segment: SegmentSeq,
    submitted: Mono,
    /// The byte of its header in the file, and what is written there: as long as it is not durable it can not be read
    /// from the disk, and the cache may have forgotten it.
    at: u32,
    buf: Bytes,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Group(Lsn),
    Header(SegmentSeq),
    Prepare(FileId),
    /// Zeros up to this byte.
    Void(u32),
    Remove(u64),
}

impl OpenGroup {
    fn fits(&self, record: usize) -> bool {
        self.bytes + record <= self.limit
    }

    /// The byte behind it in the file, were it closed now.
    fn end(&self) -> u32 {
        self.at + self.bytes.next_multiple_of(BLOCK_BYTES) as u32
    }
}

/// Where in a group that begins at `group_at` and is `bytes` long the record begins, if it lies there.
fn within(group_at: u32, bytes: usize, at: RecordAt) -> Option<usize> {
    let from = at.at.checked_sub(group_at)? as usize;
    (from < bytes).then_some(from)
}

/// The head of a record that was written in this life.
fn head_of(record: &[u8], at: RecordAt) -> Option<RecordHead> {
    let head = DiskHead::read(&record[..RECORD_HEAD_BYTES]);
    assert!(head.body_bytes == at.len, "{at:?} does not name a record: its head says {} bytes", head.body_bytes);
    head.head()
}

/// Of a group with one record of this many bytes, its head included.
fn group_bytes(record: usize) -> usize {
    (GROUP_HEADER_BYTES + record).next_multiple_of(BLOCK_BYTES)
}

const MARK_IDLE: Duration = Duration::from_millis(WAL_MARK_IDLE_MS);
const PREPARE_RETRY: Duration = Duration::from_millis(WAL_PREPARE_RETRY_MS);

/// Buffers that are kept free of cached groups: an open group and the rest of a chunk.
const POOL_RESERVE_BYTES: usize = 2 * WAL_CHUNK_BYTES;
/// The smallest pool: the reserve, and a chunk for each group in flight, twice.
const POOL_BYTES_MIN: usize = (2 + 2 * WAL_GROUPS_IN_FLIGHT_MAX) * WAL_CHUNK_BYTES;

impl Wal {
    /// Scans the volume. `visit` sees each record once, in LSN order; when this is an error, what it saw must be
    /// forgotten. `incarnation_seed` is random: two runs never have the same.
    ///
    /// # Panics
    /// When the configuration is not what [`WalConfig`] asks for, or the pool is smaller than 10 chunks.
    pub fn recover(
        config: WalConfig,
        volume: &dyn Volume,
        pool: ChunkPool,
        incarnation_seed: u64,
        visit: &mut dyn FnMut(&RecordHead, &[u8], RecordAt),
    ) -> Result<(Wal, RecoveryReport), WalError> {
        assert!(config.segment_bytes.is_multiple_of(BLOCK_BYTES as u64), "segments are whole blocks");
        assert!(config.segment_bytes >= 4 * BLOCK_BYTES as u64, "a segment holds its header and groups");
        assert!(config.segment_bytes <= u64::from(u32::MAX), "a place in a segment is 32 bits");
        assert!(config.spares_max >= WAL_SPARE_SEGMENTS_MAX, "{} spares", config.spares_max);
        assert!(config.segments_max >= 3, "one segment to write, one to go on with, one in reserve");
        assert!(pool.budget_bytes() >= POOL_BYTES_MIN, "a WAL needs {POOL_BYTES_MIN} bytes of buffers");
        let (cache_bytes, owner) =
            (config.cache_bytes, Owner { cluster: Some(config.cluster), core: Some(config.core) });
        let scan = recovery::scan(volume, owner, true, &mut |segment, group| {
            for (head, body, at) in group.records() {
                let len = u32::try_from(body.len()).expect("a body is at most WAL_RECORD_BYTES_MAX");
                visit(&head, body, RecordAt { segment: segment.sequence(), at, len });
            }
            Ok(())
        })?;
        let live: VecDeque<Segment> = scan
            .live
            .iter()
            .map(|(s, _)| Segment {
                sequence: s.sequence(),
                file: s.file,
                file_bytes: s.file_bytes,
                segment_bytes: s.header.segment_bytes,
                incarnation: s.header.incarnation,
                first_lsn: Lsn(s.header.first_lsn),
                header: HeaderState::Durable,
            })
            .collect();
        let next_sequence = SegmentSeq(scan.sequence.0 + 1);
        let mut wal = Wal {
            config,
            pool,
            cache: TailCache::new(cache_bytes),
            incarnation_seed,
            live,
            place: scan.goes_on_at,
            torn_at: scan.torn_at,
            voided: None,
            next_sequence,
            open: None,
            closed: VecDeque::new(),
            rest: None,
            flights: VecDeque::new(),
            next_lsn: Lsn(scan.last.0 + 1),
            chain: scan.chain,
            durable: scan.last,
            claimed: scan.durable,
            last_with_records: scan.last_with_records,
            spares: VecDeque::new(),
            surplus: VecDeque::new(),
            header_durable: scan.sequence,
            preparing: false,
            removing: false,
            no_space: false,
            retry_at: None,
            reserve_wanted: Cell::new(false),
            dead_files: 0,
            next_file: 1,
            disk_bytes: 0,
            doing: BTreeMap::new(),
            next_op: 0,
            quiet_since: Mono(0),
            wanted_bytes: Cell::new(0),
            asked_bytes: Cell::new(0),
            poisoned: false,
        };
        #[cfg(feature = "planted")]
        if is(Bug::SkipPreviousCrc) {
            wal.chain = 0;
        }
        let mut unknown = Vec::new();
        for (file, bytes, role) in &scan.files {
            wal.next_file = wal.next_file.max(file.0 + 1);
            wal.disk_bytes += bytes;
            match role {
                Role::Live { .. } => {}
                Role::Free | Role::Blank => wal.free(*file, *bytes),
                Role::Unknown => {
                    wal.dead_files += 1;
                    unknown.push(volume.path(*file));
                }
            }
        }
        let report = RecoveryReport {
            groups: scan.groups,
            records: scan.records,
            last: scan.last,
            acknowledged: scan.durable,
            segments: wal.live.len(),
            spares: wal.spares.len(),
            goes_on: wal.place.is_some(),
            dropped: scan.dropped,
            unknown,
        };
        Ok((wal, report))
    }

    /// Asks for a segment if the log does not go on in the last one, and for spares.
    pub fn start(&mut self, out: &mut Vec<WalOut>) {
        if self.place.is_none() && !self.spares.is_empty() {
            self.begin_segment();
        }
        self.headers(out);
        self.prepare(None, out);
        self.void(out);
    }

    /// Whether a record with a body of this many bytes can be appended now. Only what leaves one whole spare segment
    /// within the limit, for [`Self::room_for_reserved`], can. A body above [`Self::record_bytes_max`] never finds
    /// space.
    ///
    /// After a `Yes` several smaller records may be appended in the same turn instead: each counts its body, rounded up
    /// to 16, and, except for the first, 96 bytes more.
    pub fn room_for(&self, body_bytes: usize) -> Room {
        self.ask(body_bytes, Asks::Ordinary { leaves: 0 })
    }

    /// As [`Self::room_for`], but leaves so many segments more below the limit, whether they are made or not: for
    /// ordinary records of others.
    pub fn room_leaving(&self, body_bytes: usize, leaves: usize) -> Room {
        self.ask(body_bytes, Asks::Ordinary { leaves })
    }

    /// As [`Self::room_for`], but may use the last spare segment, and [`WAL_SEGMENTS_OVER_LIMIT_MAX`] segments over the
    /// limit: for what frees space, or must not wait for it (trims, snapshots, Raft's hard state).
    pub fn room_for_reserved(&self, body_bytes: usize) -> Room {
        self.ask(body_bytes, Asks::Reserved)
    }

    /// Why [`Self::room_leaving`] finds no space for such a body, if so. Nothing is asked for: it may be called at any
    /// time. Neither buffers nor a segment that is on its way are a lack of space, and a disk that was full is full
    /// until a segment was prepared, so the answer does not change back and forth.
    pub fn no_space_why(&self, body_bytes: usize, leaves: usize) -> Option<NoSpaceWhy> {
        if body_bytes > self.record_bytes_max() {
            return Some(NoSpaceWhy::Limit);
        }
        match self.place_for(record_bytes(body_bytes), Asks::Ordinary { leaves }) {
            Err(Lack::Space(why)) if !self.poisoned => Some(why),
            Err(_) | Ok(()) => None,
        }
    }

    /// As [`Self::no_space_why`], for [`Self::room_for_reserved`].
    pub fn no_space_for_reserved_why(&self, body_bytes: usize) -> Option<NoSpaceWhy> {
        match self.place_for(record_bytes(body_bytes), Asks::Reserved) {
            Err(Lack::Space(why)) if !self.poisoned => Some(why),
            Err(_) | Ok(()) => None,
        }
    }

    /// The largest body that this log can ever take.
    pub fn record_bytes_max(&self) -> usize {
        let overhead = GROUP_HEADER_BYTES + RECORD_HEAD_BYTES;
        let segment = (self.config.segment_bytes - FIRST_GROUP_AT) as usize - overhead;
        // The reserve of chunks goes on being needed beside a one-off chunk.
        let pool = self.pool.budget_bytes() - POOL_RESERVE_BYTES - overhead;
        WAL_RECORD_BYTES_MAX.min(segment).min(pool)
    }

    fn ask(&self, body_bytes: usize, asks: Asks) -> Room {
        if body_bytes > self.record_bytes_max() {
            return Room::NoSpace;
        }
        let record = record_bytes(body_bytes);
        let room = self.room(record, asks);
        if room == Room::Yes {
            self.asked_bytes.set(self.asked_bytes.get().max(record));
        } else if asks == Asks::Reserved && self.place_for(record, asks).is_err() {
            self.reserve_wanted.set(true);
        }
        room
    }

    /// For a record of this many bytes, its head included.
    fn room(&self, record: usize, asks: Asks) -> Room {
        if self.poisoned {
            return Room::Wait;
        }
        match self.place_for(record, asks) {
            Ok(()) => {}
            Err(Lack::Awaited) => return Room::Wait,
            Err(Lack::Space(_)) => return Room::NoSpace,
        }
        if self.open.as_ref().is_some_and(|open| open.fits(record)) {
            return Room::Yes;
        }
        let group = group_bytes(record);
        let rest = if self.open.is_none() { self.rest.as_ref().map_or(0, Chunk::room) } else { 0 };
        let chunk = group.max(WAL_CHUNK_BYTES);
        if rest >= group || self.pool.in_use_bytes() + chunk <= self.pool.budget_bytes() {
            Room::Yes
        } else {
            self.wanted_bytes.set(self.wanted_bytes.get().max(chunk));
            Room::Wait
        }
    }

    /// Whether a record of this many bytes has a place in a segment. Buffers are another question.
    fn place_for(&self, record: usize, asks: Asks) -> Result<(), Lack> {
        let fits_here = self.open.as_ref().is_some_and(|open| open.fits(record))
            || self.segment_room().is_some_and(|room| room >= group_bytes(record));
        let (spares, used) = (self.spares.len(), self.live.len() + self.dead_files);
        let on_the_way = usize::from(self.preparing);
        match asks {
            Asks::Ordinary { leaves } => {
                // spares that it takes, and one that it leaves
                let needed = if fits_here { 1 } else { 2 };
                if used + needed + leaves > self.config.segments_max {
                    Err(Lack::Space(NoSpaceWhy::Limit))
                } else if spares >= needed {
                    Ok(())
                } else if self.no_space {
                    Err(Lack::Space(NoSpaceWhy::DiskFull))
                } else if self.files() - on_the_way < self.config.segments_max || self.removing || on_the_way > 0 {
                    Err(Lack::Awaited)
                } else {
                    Err(Lack::Space(NoSpaceWhy::Limit))
                }
            }
            Asks::Reserved if fits_here || spares > 0 => Ok(()),
            Asks::Reserved if self.voided.is_some() => Err(Lack::Awaited),
            Asks::Reserved if self.no_space => Err(Lack::Space(NoSpaceWhy::DiskFull)),
            Asks::Reserved if on_the_way > 0 || self.files() < self.files_max() => Err(Lack::Awaited),
            Asks::Reserved => Err(Lack::Space(NoSpaceWhy::Limit)),
        }
    }

    /// What the reserve may grow to.
    fn files_max(&self) -> usize {
        self.config.segments_max + WAL_SEGMENTS_OVER_LIMIT_MAX
    }

    /// Bytes left in the segment being written, behind the open group.
    fn segment_room(&self) -> Option<usize> {
        let place = self.open.as_ref().map_or(self.place?, OpenGroup::end);
        let segment = self.live.back().expect("a place is in the last segment");
        Some(segment.segment_bytes as usize - place as usize)
    }

    /// Copies the parts, one after the other, into the open group as the body of one record. `crc`: CRC32C of the whole
    /// body, if the caller knows it. Returns the group's LSN: when that is durable, the record is.
    ///
    /// # Panics
    /// When [`Self::room_for_reserved`] is not [`Room::Yes`].
    pub fn append(&mut self, head: RecordHead, parts: &[&[u8]], crc: Option<u32>) -> (Lsn, RecordAt) {
        let body_bytes = parts.iter().map(|part| part.len()).sum();
        assert!(body_bytes <= self.record_bytes_max(), "a body of {body_bytes} bytes");
        let record = record_bytes(body_bytes);
        let room = self.room(record, Asks::Reserved);
        assert!(room == Room::Yes, "no room for {body_bytes} bytes: {room:?}");
        // What was asked for goes into one group, also if it comes in parts: so the last part has room as well.
        let asked = self.asked_bytes.replace(self.asked_bytes.get().saturating_sub(record));
        let whole = if asked > record && self.room(asked, Asks::Reserved) == Room::Yes { asked } else { record };
        if !self.open.as_ref().is_some_and(|open| open.fits(whole)) {
            self.close();
            self.open_group(whole);
        }
        let open = self.open.as_mut().expect("just opened");
        let from = open.bytes;
        open.chunk.extend(&[0; RECORD_HEAD_BYTES]);
        for part in parts {
            open.chunk.extend(part);
        }
        const ZEROS: [u8; super::format::RECORD_ALIGN] = [0; super::format::RECORD_ALIGN];
        open.chunk.extend(&ZEROS[..record - RECORD_HEAD_BYTES - body_bytes]);
        let at = open.at + from as u32;
        let written = open.chunk.written_mut();
        assert!(written.len() == from + record, "the open group is all that is not frozen");
        let (head_bytes, body) = written[from..].split_at_mut(RECORD_HEAD_BYTES);
        let body = &body[..body_bytes];
        let crc = match crc {
            Some(crc) => {
                debug_assert_eq!(crc, crc32c(body), "the caller's CRC is not that of the body");
                crc
            }
            None => crc32c(body),
        };
        open.heads_crc = DiskHead::new(&head, body, crc).write(&open.incarnation, at, open.heads_crc, head_bytes);
        open.bytes += record;
        open.records += 1;
        assert!(open.bytes <= open.limit, "a record that fits does not pass the limit");
        let len = u32::try_from(body_bytes).expect("at most WAL_RECORD_BYTES_MAX");
        (open.lsn, RecordAt { segment: open.segment, at, len })
    }

    /// Moves the open group to those that wait for submission.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.place = Some(open.end());
            self.closed.push_back(open);
        }
    }

    /// Opens a group with room for `record` bytes at least. Room was found before.
    fn open_group(&mut self, record: usize) {
        assert!(self.open.is_none(), "one group is open at a time");
        let least = group_bytes(record);
        if self.segment_room().is_none_or(|room| room < least) {
            self.begin_segment();
        }
        let mut chunk = self.chunk(least);
        let segment = self.live.back().expect("a segment was begun");
        let place = self.place.expect("a segment was begun");
        let limit = if least > WAL_GROUP_BYTES_MAX {
            least
        } else {
            let room = self.segment_room().expect("a segment was begun");
            WAL_GROUP_BYTES_MAX.min(chunk.room()).min(room)
        };
        assert!(chunk.len().is_multiple_of(BLOCK_BYTES), "groups begin at a block");
        chunk.extend(&[0; GROUP_HEADER_BYTES]);
        self.open = Some(OpenGroup {
            lsn: self.next_lsn,
            segment: segment.sequence,
            incarnation: segment.incarnation,
            at: place,
            chunk,
            bytes: GROUP_HEADER_BYTES,
            limit,
            records: 0,
            heads_crc: 0,
        });
        self.next_lsn = Lsn(self.next_lsn.0 + 1);
    }

    fn chunk(&mut self, least: usize) -> Chunk {
        let rest = self.rest.as_ref().map_or(0, Chunk::room);
        if rest >= least.max(CHUNK_REST_MIN) {
            return self.rest.take().expect("it has room");
        }
        match self.pool.take(least.max(WAL_CHUNK_BYTES)) {
            Some(chunk) => chunk,
            None => {
                assert!(rest >= least, "there was room for {least} bytes");
                self.rest.take().expect("it has room")
            }
        }
    }

    /// Takes a spare file as the next segment. Its header is written when the groups before it are submitted.
    fn begin_segment(&mut self) {
        let file = self.spares.pop_front().expect("room was found, so there is a spare");
        let sequence = self.next_sequence;
        self.next_sequence = SegmentSeq(sequence.0 + 1);
        self.live.push_back(Segment {
            sequence,
            file,
            file_bytes: self.config.segment_bytes,
            segment_bytes: self.config.segment_bytes,
            incarnation: recovery::incarnation(self.incarnation_seed, sequence),
            first_lsn: self.next_lsn,
            header: HeaderState::Unwritten,
        });
        self.place = Some(FIRST_GROUP_AT as u32);
        self.torn_at = None;
        self.reserve_wanted.set(false);
    }

    /// The end of a turn: submits what is to be submitted.
    pub fn turn_end(&mut self, now: Mono, out: &mut Vec<WalOut>) {
        if self.poisoned {
            return;
        }
        self.asked_bytes.set(0);
        if self.place.is_none() && self.voided.is_none() && !self.spares.is_empty() {
            self.begin_segment();
        }
        self.submit(now, out);
        if self.mark_due().is_some_and(|due| due <= now) {
            self.mark(now, out);
        }
        if self.needs_header() && self.is_quiet() && self.quiet_since + MARK_IDLE <= now && self.spares.len() >= 2 {
            self.begin_segment();
            self.headers(out);
        }
        self.prepare(Some(now), out);
        self.void(out);
        self.remove(out);
        self.make_memory();
    }

    fn submit(&mut self, now: Mono, out: &mut Vec<WalOut>) {
        self.headers(out);
        while self.flights.len() < WAL_GROUPS_IN_FLIGHT_MAX {
            if self.closed.is_empty() {
                self.close_if_written();
            }
            let Some(group) = self.closed.front() else { break };
            let segment = *self.segment(group.segment).expect("an open group's segment is live");
            if segment.header != HeaderState::Durable {
                break;
            }
            let group = self.closed.pop_front().expect("looked at just now");
            self.write(now, group, segment.file, out);
            self.headers(out);
        }
        assert!(self.durable.0 + self.flights.len() as u64 + self.waiting() as u64 + 1 == self.next_lsn.0);
    }

    /// Closes the open group, if it is worth a flush of its own and its segment's header is there: else it may as well
    /// go on filling.
    fn close_if_written(&mut self) {
        let Some(open) = &self.open else { return };
        if open.bytes >= self.flights.len() * self.config.beside_bytes
            && self.segment(open.segment).is_some_and(|s| s.header == HeaderState::Durable)
        {
            self.close();
        }
    }

    /// Groups that are not submitted.
    fn waiting(&self) -> usize {
        self.closed.len() + usize::from(self.open.is_some())
    }

    /// Writes the header of a begun segment, once all groups before it are submitted: it carries their last CRC.
    fn headers(&mut self, out: &mut Vec<WalOut>) {
        let first_waiting = self.closed.front().or(self.open.as_ref()).map_or(self.next_lsn, |group| group.lsn);
        // They are written in order. What is looked at is behind those that are: this is asked in every turn.
        let unwritten = self.live.iter().rev().take_while(|s| s.header == HeaderState::Unwritten).count();
        if unwritten == 0 {
            return;
        }
        let i = self.live.len() - unwritten;
        if self.live[i].first_lsn > first_waiting {
            return;
        }
        let segment = self.live[i];
        assert!(segment.first_lsn == first_waiting, "no group of a segment goes before its header");
        let header = SegmentHeader {
            magic: SEGMENT_MAGIC,
            version: FORMAT_VERSION,
            core: self.config.core.0.into(),
            cluster: self.config.cluster,
            incarnation: segment.incarnation,
            sequence: segment.sequence.0,
            oldest: self.live[0].sequence.0,
            first_lsn: segment.first_lsn.0,
            durable_lsn: self.durable.0,
            segment_bytes: segment.segment_bytes,
            prev_crc: self.chain,
            reserved: [0; 40],
            crc: 0,
        };
        let mut block = crate::io::buf::AlignedBuf::zeroed(BLOCK_BYTES);
        block.bytes_mut().copy_from_slice(&header.block());
        let buf = BlockBuf { bytes: block.freeze(), registered: None };
        self.live[i].header = HeaderState::InFlight;
        self.claimed = self.durable;
        self.begin(Doing::Header(segment.sequence), DiskOp::Write { file: segment.file, at: 0, buf }, out);
    }

    fn write(&mut self, now: Mono, mut group: OpenGroup, file: FileId, out: &mut Vec<WalOut>) {
        assert!(group.lsn.0 == self.durable.0 + self.flights.len() as u64 + 1, "groups are submitted in LSN order");
        let header = GroupHeader {
            magic: GROUP_MAGIC,
            bytes: u32::try_from(group.bytes).expect("a group is below 4 GiB"),
            records: group.records,
            segment: group.segment.0,
            incarnation: group.incarnation,
            lsn: group.lsn.0,
            durable_lsn: self.durable.0,
            prev_crc: self.chain,
            reserved: 0,
            header_crc: 0,
            crc: 0,
        };
        assert!(header.is_plausible(), "{header:?}");
        let written = group.chunk.written_mut();
        assert!(written.len() == group.bytes, "a group is all that is not frozen of its chunk");
        self.chain = header.write(group.heads_crc, written);
        group.chunk.pad_to_block();
        let buf = group.chunk.freeze();
        assert!(buf.bytes.len() == header.padded());
        self.claimed = self.durable;
        if group.records > 0 {
            self.last_with_records = group.lsn;
        }
        self.cache.push(group.segment, group.at, buf.bytes.clone());
        self.flights.push_back(Flight {
            lsn: group.lsn,
            segment: group.segment,
            submitted: now,
            at: group.at,
            buf: buf.bytes.clone(),
            done: false,
        });
        let room = group.chunk.room();
        if room >= BLOCK_BYTES && self.rest.as_ref().is_none_or(|rest| rest.room() < room) {
            self.rest = Some(group.chunk);
        }
        #[cfg(feature = "planted")]
        let buf = if is(Bug::FlushWrongRange) && group.bytes > BLOCK_BYTES {
            BlockBuf { bytes: buf.bytes.slice(..group.bytes / BLOCK_BYTES * BLOCK_BYTES), ..buf }
        } else {
            buf
        };
        self.begin(Doing::Group(group.lsn), DiskOp::Write { file, at: group.at.into(), buf }, out);
        #[cfg(feature = "planted")]
        if is(Bug::AcknowledgeBeforeFlush) {
            out.push(WalOut::Durable(group.lsn));
        }
    }

    /// The end of an operation. What follows from it is submitted at the end of the turn.
    ///
    /// # Panics
    /// When no such operation was asked for.
    pub fn disk_done(&mut self, now: Mono, done: DiskDone, out: &mut Vec<WalOut>) {
        let doing = self.doing.remove(&done.op).expect("an operation ends once, and was begun here");
        if self.poisoned {
            return;
        }
        match (doing, done.result) {
            (Doing::Group(lsn), Ok(DiskOk::Written)) => self.written(now, lsn, out),
            (Doing::Header(sequence), Ok(DiskOk::Written)) => {
                let i = self.index_of(sequence).expect("a segment with its header in flight is live");
                self.live[i].header = HeaderState::Durable;
                assert!(self.header_durable < sequence, "headers are written one after the other");
                self.header_durable = sequence;
                self.quiet_since = now;
            }
            (Doing::Prepare(file), Ok(DiskOk::Prepared)) => {
                self.preparing = false;
                self.no_space = false;
                self.spares.push_back(file);
            }
            // No space, or (without an errno) the disk gave up half way because the core stops: neither touches the
            // log.
            (Doing::Prepare(_), Err(error)) if error.kind == DiskErrorKind::NoSpace || error.errno.is_none() => {
                self.preparing = false;
                self.disk_bytes -= self.config.segment_bytes;
                self.no_space = true;
                self.retry_at = Some(now + PREPARE_RETRY);
            }
            (Doing::Void(end), Ok(DiskOk::Written)) => {
                let segment_bytes = self.live.back().expect("it is kept while it is made void").segment_bytes;
                if u64::from(end) < segment_bytes {
                    self.void_up_to(end, out);
                } else {
                    self.voided = None;
                    self.place = self.torn_at.take();
                }
            }
            (Doing::Remove(bytes), Ok(DiskOk::Removed)) => {
                self.removing = false;
                self.disk_bytes -= bytes;
            }
            // What it held is not needed. It takes space until somebody looks after it.
            (Doing::Remove(_), Err(_)) => {
                self.removing = false;
                self.dead_files += 1;
            }
            #[cfg(feature = "planted")]
            (Doing::Group(lsn), Err(error)) if is(Bug::IgnoreShortWrite) && error.errno.is_none() => {
                self.written(now, lsn, out);
            }
            #[cfg(feature = "planted")]
            (Doing::Group(lsn), Err(_)) if is(Bug::RetryFailedFlush) => self.flush_again(lsn, out),
            (Doing::Group(_) | Doing::Header(_) | Doing::Prepare(_) | Doing::Void(_), Err(error)) => {
                self.poison(error, out);
            }
            (doing, Ok(ok)) => panic!("{doing:?} ended in {ok:?}"),
        }
    }

    /// A write of the group's first block, whose flush covers the file and so the rest of the group.
    #[cfg(feature = "planted")]
    fn flush_again(&mut self, lsn: Lsn, out: &mut Vec<WalOut>) {
        let flight = self.flights.iter().find(|flight| flight.lsn == lsn).expect("it is in flight until it ends");
        let (segment, at) = (flight.segment, u64::from(flight.at));
        let buf = BlockBuf { bytes: flight.buf.slice(..BLOCK_BYTES), registered: None };
        let file = self.file_of(segment).expect("a segment with a group in flight is live");
        self.begin(Doing::Group(lsn), DiskOp::Write { file, at, buf }, out);
    }

    fn written(&mut self, now: Mono, lsn: Lsn, out: &mut Vec<WalOut>) {
        #[cfg(feature = "planted")]
        if is(Bug::FlushCoversNeighbours) {
            if lsn <= self.durable {
                return;
            }
            self.flights.iter_mut().filter(|flight| flight.lsn < lsn).for_each(|flight| flight.done = true);
        }
        let first = self.flights.front().expect("a group completed, so it was in flight").lsn;
        let flight = &mut self.flights[(lsn.0 - first.0) as usize];
        assert!(flight.lsn == lsn && !flight.done, "a group completes once");
        flight.done = true;
        let ns = u64::try_from(now.since(flight.submitted).as_nanos()).unwrap_or(u64::MAX);
        out.push(WalOut::GroupWritten { ns, bytes: flight.buf.len() as u32 });
        let before = self.durable;
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.done) {
            assert!(flight.lsn.0 == self.durable.0 + 1, "durability moves in LSN order");
            self.durable = flight.lsn;
        }
        if self.durable > before {
            out.push(WalOut::Durable(self.durable));
        }
        self.quiet_since = now;
    }

    fn poison(&mut self, error: DiskError, out: &mut Vec<WalOut>) {
        self.poisoned = true;
        out.push(WalOut::Poisoned(WalError::Write(error)));
    }

    fn begin(&mut self, doing: Doing, op: DiskOp, out: &mut Vec<WalOut>) {
        let id = OpId(self.next_op);
        self.next_op += 1;
        assert!(id.0 >> 63 == 0, "the top bit is for the reads of others");
        self.doing.insert(id, doing);
        out.push(WalOut::Disk(id, op));
    }

    /// Has a spare made, if one is wanted and there is space. `now`: a failed one is tried again when it is time.
    fn prepare(&mut self, now: Option<Mono>, out: &mut Vec<WalOut>) {
        let usable = |(_, _, bytes): &(SegmentSeq, FileId, u64)| *bytes == self.config.segment_bytes;
        while self.spares.len() < self.config.spares_max
            && let Some(i) = self.surplus.iter().position(usable)
        {
            let (_, file, _) = self.surplus.remove(i).expect("found at this place");
            self.spares.push_back(file);
        }
        let wanted = self.wants_spare() && !self.preparing;
        let may = !self.no_space || now.is_some_and(|now| self.retry_at.is_none_or(|at| at <= now));
        if wanted && may {
            let file = FileId(self.next_file);
            self.next_file += 1;
            self.preparing = true;
            self.disk_bytes += self.config.segment_bytes;
            self.begin(Doing::Prepare(file), DiskOp::Prepare { file, len: self.config.segment_bytes }, out);
        }
    }

    fn wants_spare(&self) -> bool {
        let files = self.files() - usize::from(self.preparing);
        // A log at its limit gets more for what frees space: without it a start could not even elect.
        let cannot_go_on = self.spares.is_empty() && self.voided.is_none() && !self.may_void();
        let reserve = cannot_go_on && (self.place.is_none() || self.reserve_wanted.get());
        self.spares.len() < WAL_SPARE_SEGMENTS_MAX && files < self.config.segments_max
            || reserve && files < self.files_max()
    }

    fn may_void(&self) -> bool {
        self.place.is_none() && self.torn_at.is_some()
    }

    /// Where a start after an unfinished write finds neither a spare nor room for one, the rest of the last segment is
    /// used: what is there is overwritten with zeros, so that the disk is one on which the write had not begun.
    fn void(&mut self, out: &mut Vec<WalOut>) {
        let no_spare =
            self.spares.is_empty() && !self.preparing && (self.no_space || self.files() >= self.config.segments_max);
        if let Some(at) = self.torn_at
            && self.may_void()
            && self.voided.is_none()
            && no_spare
        {
            self.void_up_to(at, out);
        }
    }

    /// The next write of zeros, from `at`. The first one takes the header of the group that is dropped, by itself: what
    /// follows can then never become whole.
    fn void_up_to(&mut self, at: u32, out: &mut Vec<WalOut>) {
        let segment = self.live.back().expect("a torn segment is live");
        let rest = usize::try_from(segment.segment_bytes - u64::from(at)).expect("a segment is below 4 GiB");
        let most = if self.voided.is_none() { BLOCK_BYTES } else { WAL_CHUNK_BYTES };
        let zeros = crate::io::buf::AlignedBuf::zeroed(rest.min(most));
        let end = at + rest.min(most) as u32;
        let op = DiskOp::Write {
            file: segment.file,
            at: at.into(),
            buf: BlockBuf { bytes: zeros.freeze(), registered: None },
        };
        self.voided = Some(end);
        self.begin(Doing::Void(end), op, out);
    }

    /// Files that are there or being made.
    fn files(&self) -> usize {
        self.live.len()
            + self.spares.len()
            + self.surplus.len()
            + usize::from(self.preparing)
            + usize::from(self.removing)
            + self.dead_files
    }

    /// Has one surplus file removed, once a header on the media says that it is not needed.
    fn remove(&mut self, out: &mut Vec<WalOut>) {
        if self.removing || self.surplus.front().is_none_or(|(after, _, _)| *after > self.header_durable) {
            return;
        }
        let (_, file, bytes) = self.surplus.pop_front().expect("looked at just now");
        self.removing = true;
        self.begin(Doing::Remove(bytes), DiskOp::Remove { file }, out);
    }

    /// Whether a surplus file waits for a header that nothing else will have written soon.
    fn needs_header(&self) -> bool {
        self.surplus.front().is_some_and(|(after, _, _)| *after >= self.next_sequence)
            && self.place.is_some_and(|place| u64::from(place) > FIRST_GROUP_AT)
    }

    /// Nothing waits, and nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.waiting() == 0
            && self.flights.is_empty()
            && self.live.back().is_none_or(|s| s.header == HeaderState::Durable)
    }

    /// When a group without records is to be written: it says that the last records were on the media, so that a later
    /// damage to them is known to be one.
    fn mark_due(&self) -> Option<Mono> {
        (self.claimed < self.last_with_records && self.can_mark()).then(|| self.quiet_since + MARK_IDLE)
    }

    fn can_mark(&self) -> bool {
        !self.poisoned
            && self.is_quiet()
            && self.segment_room().is_some_and(|room| room >= BLOCK_BYTES)
            && (self.rest.as_ref().is_some_and(|rest| rest.room() >= BLOCK_BYTES)
                || self.pool.in_use_bytes() + WAL_CHUNK_BYTES <= self.pool.budget_bytes())
    }

    /// Writes at once what is otherwise written after a moment of rest ([`WAL_MARK_IDLE_MS`]): before a shutdown. False
    /// when there is nothing to say, or it is not quiet ([`Self::is_quiet`]) or there is no room.
    pub fn mark(&mut self, now: Mono, out: &mut Vec<WalOut>) -> bool {
        if self.claimed >= self.last_with_records || !self.can_mark() {
            return false;
        }
        self.open_group(0);
        self.submit(now, out);
        true
    }

    /// Evicts cached groups until the reserve, and what an append waits for, is free.
    fn make_memory(&mut self) {
        let free = POOL_RESERVE_BYTES.max(self.wanted_bytes.take());
        // What is in flight is held by the disk as well: to forget it frees nothing.
        while self.pool.in_use_bytes() + free > self.pool.budget_bytes() && self.cache.len() > self.flights.len() {
            self.cache.evict();
        }
    }

    fn index_of(&self, sequence: SegmentSeq) -> Option<usize> {
        let i = self.live.partition_point(|s| s.sequence < sequence);
        self.live.get(i).is_some_and(|s| s.sequence == sequence).then_some(i)
    }

    fn segment(&self, sequence: SegmentSeq) -> Option<&Segment> {
        self.index_of(sequence).map(|i| &self.live[i])
    }

    /// Everything up to this LSN is on the media.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// The body of a record that is durable or in flight, if its group is still in memory. Not a copy.
    pub fn cached(&self, at: RecordAt) -> Option<Bytes> {
        self.cache.body(at)
    }

    /// The record at this place, if its group is in memory, durable or not: its head and its body. A copy only where
    /// its group is not on the way to the disk yet.
    pub fn in_memory(&self, at: RecordAt) -> Option<(RecordHead, Bytes)> {
        if let Some((head, body)) = self.cache.record(at) {
            return Some((head.head()?, body));
        }
        if self.is_durable(at) {
            return None;
        }
        for flight in self.flights.iter().filter(|flight| flight.segment == at.segment) {
            if let Some(from) = within(flight.at, flight.buf.len(), at) {
                let head = head_of(&flight.buf[from..], at)?;
                let from = from + RECORD_HEAD_BYTES;
                return Some((head, flight.buf.slice(from..from + at.len as usize)));
            }
        }
        for group in self.closed.iter().chain(&self.open).filter(|group| group.segment == at.segment) {
            if let Some(from) = within(group.at, group.bytes, at) {
                let record = &group.chunk.written()[from..];
                let body = &record[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + at.len as usize];
                return Some((head_of(record, at)?, Bytes::copy_from_slice(body)));
            }
        }
        None
    }

    /// Whether the record is on the media, and everything before it: only then is it to be read from there.
    pub fn is_durable(&self, at: RecordAt) -> bool {
        let flying = self.flights.front().map(|flight| (flight.segment, flight.at));
        let waiting = || self.closed.iter().chain(&self.open).next().map(|group| (group.segment, group.at));
        flying.or_else(waiting).is_none_or(|first| (at.segment, at.at) < first)
    }

    /// The file of a segment, while that is needed.
    pub fn file_of(&self, sequence: SegmentSeq) -> Option<FileId> {
        self.segment(sequence).map(|segment| segment.file)
    }

    /// What to read for a record: file, first byte, length, in whole blocks. For [`Self::extract`].
    ///
    /// # Panics
    /// When the record's segment was released: who has released it must not have it read.
    pub fn read_plan(&self, at: RecordAt) -> (FileId, u64, u32) {
        let segment = self.segment(at.segment).expect("a record is read while its segment is needed");
        let (from, end) = (u64::from(at.at), u64::from(at.at) + (RECORD_HEAD_BYTES + at.len as usize) as u64);
        assert!(end <= segment.segment_bytes, "{at:?} is outside its segment");
        let first = from / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let len = end.next_multiple_of(BLOCK_BYTES as u64) - first;
        (segment.file, first, u32::try_from(len).expect("a record is below 4 GiB"))
    }

    /// The record in what was read after [`Self::read_plan`], if every checksum is right and it is the record that was
    /// written at this place in this use of the file. Not a copy.
    pub fn extract(&self, at: RecordAt, read: &Bytes) -> Result<(RecordHead, Bytes), WalError> {
        let segment = self.segment(at.segment).ok_or(WalError::Released { segment: at.segment })?;
        let wrong =
            |expected: String, found: String| Err(WalError::Record { segment: at.segment, at: at.at, expected, found });
        let from = at.at as usize % BLOCK_BYTES;
        let end = from + RECORD_HEAD_BYTES + at.len as usize;
        if read.len() < end {
            return wrong(format!("{end} bytes"), format!("{}", read.len()));
        }
        let head_bytes = &read[from..from + RECORD_HEAD_BYTES];
        if !DiskHead::is_whole(head_bytes, &segment.incarnation, at.at) {
            return wrong("the head of a record".to_owned(), "bytes with a wrong checksum".to_owned());
        }
        let head = DiskHead::read(head_bytes);
        if head.body_bytes != at.len {
            return wrong(format!("a body of {} bytes", at.len), format!("one of {}", head.body_bytes));
        }
        let body = read.slice(from + RECORD_HEAD_BYTES..end);
        let crc = crc32c(&body);
        if crc != head.body_crc {
            return wrong(format!("a body with CRC {:08x}", head.body_crc), format!("{crc:08x}"));
        }
        match head.head() {
            Some(head) => Ok((head, body)),
            None => wrong("a kind of record".to_owned(), format!("kind {}", head.kind)),
        }
    }

    /// Nothing below this segment is needed any more: whatever says so is durable. Files are used again, oldest first;
    /// what is too much is removed once the header of a later segment says that it is not needed. Segments with groups
    /// that are not durable, and the one being written, stay.
    pub fn release_below(&mut self, needed: SegmentSeq, out: &mut Vec<WalOut>) {
        while let Some(oldest) = self.live.front() {
            let sequence = oldest.sequence;
            let being_written = (self.place.is_some() || self.torn_at.is_some()) && self.live.len() == 1;
            let waits = self.closed.iter().chain(&self.open).any(|group| group.segment == sequence)
                || self.flights.iter().any(|flight| flight.segment == sequence);
            if sequence >= needed || being_written || waits || oldest.header != HeaderState::Durable {
                break;
            }
            let oldest = self.live.pop_front().expect("looked at just now");
            self.free(oldest.file, oldest.file_bytes);
        }
        if !self.poisoned {
            self.remove(out);
        }
    }

    fn free(&mut self, file: FileId, bytes: u64) {
        if bytes == self.config.segment_bytes && self.spares.len() < self.config.spares_max {
            self.spares.push_back(file);
            // a disk that was full some time ago may have room by now: it is asked when a segment is wanted
            self.no_space &= self.spares.len() < WAL_SPARE_SEGMENTS_MAX;
        } else {
            self.surplus.push_back((self.next_sequence, file, bytes));
        }
    }

    /// The segment that new records go to (or will go to, before the first one is begun).
    pub fn segment_now(&self) -> SegmentSeq {
        match self.place {
            Some(_) => self.live.back().expect("a place is in the last segment").sequence,
            // it may yet be gone on with
            None if self.torn_at.is_some() => self.live.back().expect("a torn segment is live").sequence,
            None => self.next_sequence,
        }
    }

    /// Bytes of all files.
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    /// Bytes of buffers: open, in flight, cached, or held by readers.
    pub fn memory_bytes(&self) -> usize {
        self.pool.in_use_bytes()
    }

    /// When [`Self::turn_end`] wants to be called though nothing happens.
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.poisoned {
            return None;
        }
        let retry = self.retry_at.filter(|_| self.no_space && self.wants_spare() && !self.preparing);
        let header =
            (self.needs_header() && self.is_quiet() && self.spares.len() >= 2).then(|| self.quiet_since + MARK_IDLE);
        [retry, self.mark_due(), header].into_iter().flatten().min()
    }
}
