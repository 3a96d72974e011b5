//! The scan of a log: at start, and for tools. Reads only.
//!
//! Segments in the order of their sequence, groups by incarnation, LSN and the CRC of the group before. Where the chain
//! ends, one question decides: was the group that should follow acknowledged? Every header, of groups and of segments,
//! says what its writer knew to be on the media, and that stays true for ever (an acknowledged LSN is never taken
//! back); so the highest such claim found anywhere is a floor. At or below it, a group that is not whole is damage, and
//! the log is refused. Above it, it is damage if one flipped bit explains it (`flip.rs`), else it is an unfinished
//! write: it and all that follows is dropped, and a new segment begins at its LSN, which makes what is left of it void
//! for ever. Where nothing was begun behind the last group there is nothing to make void, and the log goes on there.
//!
//! The limits of this are in docs/adr/0002.

use super::error::{Damage, WalError, Why};
use super::flip;
use super::format::{
    Expected, FIRST_GROUP_AT, FORMAT_VERSION, GROUP_HEADER_BYTES, GroupFault, GroupHeader, Incarnation,
    RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, WholeGroup,
};
use crate::io::{FileId, Volume};
use crate::limits::BLOCK_BYTES;
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::types::{CoreId, Lsn, SegmentSeq};
use rkyv::util::AlignedVec;

/// Bytes read at once.
const WINDOW_BYTES: usize = 1024 * 1024;

/// Whose log it must be. A tool may not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    pub cluster: Option<[u8; 16]>,
    pub core: Option<CoreId>,
}

/// A segment, as its header and its file say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFound {
    pub file: FileId,
    pub file_bytes: u64,
    pub header: SegmentHeader,
}

impl SegmentFound {
    pub fn sequence(&self) -> SegmentSeq {
        SegmentSeq(self.header.sequence)
    }
}

/// What a file of the directory is to the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Holds groups of the log.
    Live { groups: u64 },
    /// Was given up before the last header was written, or holds nothing but void groups: its space may be used again.
    Free,
    /// Prepared, never used.
    Blank,
    /// Its first block is not zero and not a header. Not touched.
    Unknown,
}

/// What a scan found.
#[derive(Debug)]
pub struct Scan {
    /// The log's segments in order, with the number of groups that count. None is without groups, but for the last one
    /// where [`Self::goes_on_at`] says so.
    pub live: Vec<(SegmentFound, u64)>,
    /// All files, by number.
    pub files: Vec<(FileId, u64, Role)>,
    /// The last group of the log; `Lsn(0)`: none. Nothing of it, and nothing before, is missing.
    pub last: Lsn,
    /// Its CRC.
    pub chain: u32,
    /// The last group with records.
    pub last_with_records: Lsn,
    /// The byte behind the last group in the last of `live`, where the next one may be written. `None`: the log goes on
    /// in a new segment, because something is dropped, or the segment is full, or there is none.
    pub goes_on_at: Option<u32>,
    /// The byte behind the last group in the last of `live`, where what is dropped begins: the next group may be
    /// written there once everything from here to the end of the segment is void. `None` where `goes_on_at` is set.
    pub torn_at: Option<u32>,
    /// The highest LSN that any header says was on the media. At most `last`.
    pub durable: Lsn,
    /// The highest sequence of any header.
    pub sequence: SegmentSeq,
    pub groups: u64,
    pub records: u64,
    /// An unfinished write after `last`, if one left a trace.
    pub dropped: Option<Dropped>,
}

/// Writes that were never acknowledged, and of which not all reached the media.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    pub file: String,
    pub offset: u64,
    pub lsn: Lsn,
    pub found: String,
    /// Headers of groups after it.
    pub later: u64,
}

/// Reads the log of `volume` and shows each group that counts, in order, to `visit`. What was visited before an error
/// is whole, but the log is not.
///
/// `sync`: flush each file before believing it. A tool on a read-only copy does not.
pub fn scan(
    volume: &dyn Volume,
    owner: Owner,
    sync: bool,
    visit: &mut dyn FnMut(&SegmentFound, &WholeGroup<'_>) -> Result<(), WalError>,
) -> Result<Scan, WalError> {
    let files = Files::read(volume, owner, sync)?;
    let durable = files.segments.iter().map(|s| s.header.durable_lsn).max().unwrap_or(0);
    let mut walk =
        Walk { volume, files: &files, durable: Lsn(durable), last_with_records: Lsn(0), groups: 0, records: 0, visit };
    let end = walk.run()?;
    let Walk { groups, records, durable, last_with_records, .. } = walk;
    assert!(durable <= end.last, "LSN {durable} was acknowledged, but the log ends at {}", end.last);

    let mut live = end.live;
    let torn_at = end.torn_at.filter(|_| live.last().is_some_and(|(_, groups)| *groups > 0));
    let written = live.last().filter(|_| end.goes_on_at.is_some()).map(|(s, _)| s.file);
    live.retain(|(s, groups)| *groups > 0 || Some(s.file) == written);
    let roles = files.all.iter().map(|(file, bytes)| {
        let role = match files.segments.iter().find(|s| s.file == *file) {
            Some(_) => match live.iter().find(|(s, _)| s.file == *file) {
                Some((_, groups)) => Role::Live { groups: *groups },
                None => Role::Free,
            },
            None if files.headless.iter().any(|h| h.file == *file && !h.blank) => Role::Unknown,
            None => Role::Blank,
        };
        (*file, *bytes, role)
    });
    Ok(Scan {
        files: roles.collect(),
        live,
        last: end.last,
        chain: end.chain,
        last_with_records,
        goes_on_at: end.goes_on_at,
        torn_at,
        durable,
        sequence: files.segments.iter().map(SegmentFound::sequence).max().unwrap_or(SegmentSeq(0)),
        groups,
        records,
        dropped: end.dropped,
    })
}

/// The directory: which file has which header.
struct Files {
    all: Vec<(FileId, u64)>,
    /// By sequence.
    segments: Vec<SegmentFound>,
    headless: Vec<Headless>,
}

/// A file without a segment header.
#[derive(Clone, Copy)]
struct Headless {
    file: FileId,
    file_bytes: u64,
    /// The header block is zero.
    blank: bool,
    /// It holds at least one group header: then it was a segment once.
    used: bool,
}

impl Files {
    fn read(volume: &dyn Volume, owner: Owner, sync: bool) -> Result<Files, WalError> {
        let all = volume.files().map_err(|e| WalError::Io {
            what: "listing",
            file: "the directory".to_owned(),
            at: 0,
            detail: e.to_string(),
        })?;
        let mut segments: Vec<SegmentFound> = Vec::new();
        let mut headless = Vec::new();
        for &(file, file_bytes) in &all {
            if sync {
                volume.sync(file).map_err(|e| io_error(volume, "flush", file, 0, &e))?;
            }
            if file_bytes < BLOCK_BYTES as u64 {
                return Err(WalError::CutShort { file: volume.path(file), found: file_bytes });
            }
            let mut window = Window::narrow(volume, file, file_bytes);
            let block = window.get(0, BLOCK_BYTES)?;
            let blank = block.iter().all(|b| *b == 0);
            let Some(header) = SegmentHeader::read(&block[..SEGMENT_HEADER_BYTES]) else {
                let first = file_bytes >= 2 * BLOCK_BYTES as u64
                    && GroupHeader::is_whole(&window.get(FIRST_GROUP_AT, BLOCK_BYTES)?[..GROUP_HEADER_BYTES]);
                headless.push(Headless { file, file_bytes, blank, used: first || !blank });
                continue;
            };
            let found = SegmentFound { file, file_bytes, header };
            found.judge(volume, owner)?;
            if let Some(other) = segments.iter().find(|s| s.header.sequence == header.sequence) {
                return Err(WalError::DuplicateSegment {
                    segment: found.sequence(),
                    file: volume.path(other.file),
                    other: volume.path(file),
                });
            }
            segments.push(found);
        }
        segments.sort_by_key(|s| s.header.sequence);
        Ok(Files { all, segments, headless })
    }
}

impl SegmentFound {
    /// A header whose checksum is right was written by a program: what it says is true, or it is not for us.
    fn judge(&self, volume: &dyn Volume, owner: Owner) -> Result<(), WalError> {
        let header = &self.header;
        let file = || volume.path(self.file);
        if header.version != FORMAT_VERSION {
            return Err(WalError::WrongVersion { file: file(), expected: FORMAT_VERSION, found: header.version });
        }
        if let Some(cluster) = owner.cluster
            && cluster != header.cluster
        {
            return Err(WalError::WrongCluster { file: file(), expected: cluster, found: header.cluster });
        }
        if let Some(core) = owner.core
            && u32::from(core.0) != header.core
        {
            return Err(WalError::WrongCore { file: file(), expected: core.0.into(), found: header.core });
        }
        let impossible = |what: String| Err(WalError::ImpossibleHeader { file: file(), what });
        if !header.segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
            || header.segment_bytes < 2 * BLOCK_BYTES as u64
            || header.segment_bytes > u64::from(u32::MAX)
        {
            return impossible(format!("{} bytes", header.segment_bytes));
        }
        if header.sequence == 0 || header.oldest == 0 || header.oldest > header.sequence {
            return impossible(format!("segment {} with {} as the oldest", header.sequence, header.oldest));
        }
        if header.first_lsn == 0 || header.first_lsn > i64::MAX as u64 || header.durable_lsn >= header.first_lsn {
            return impossible(format!("first LSN {}, durable {}", header.first_lsn, header.durable_lsn));
        }
        Ok(())
    }
}

struct Walk<'a> {
    volume: &'a dyn Volume,
    files: &'a Files,
    durable: Lsn,
    last_with_records: Lsn,
    groups: u64,
    records: u64,
    visit: &'a mut dyn FnMut(&SegmentFound, &WholeGroup<'_>) -> Result<(), WalError>,
}

struct End {
    live: Vec<(SegmentFound, u64)>,
    last: Lsn,
    chain: u32,
    goes_on_at: Option<u32>,
    torn_at: Option<u32>,
    dropped: Option<Dropped>,
}

/// Group headers after the place where the chain ended.
#[derive(Default)]
struct Later {
    headers: u64,
    durable: Lsn,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<End, WalError> {
        let files = self.files;
        let oldest = files.segments.iter().map(|s| s.header.oldest).max().unwrap_or(0);
        let needed = &files.segments[files.segments.partition_point(|s| s.header.sequence < oldest)..];
        let Some(first) = needed.first() else {
            assert!(files.segments.is_empty(), "the segment that says which is the oldest is not older than it");
            self.refuse_groups_without_header(Lsn(1), None)?;
            return Ok(End {
                live: Vec::new(),
                last: Lsn(0),
                chain: 0,
                goes_on_at: None,
                torn_at: None,
                dropped: None,
            });
        };
        if first.header.sequence != oldest {
            let later = self.later(needed, None)?;
            self.durable = self.durable.max(later.durable);
            if let Some((headless, lsn)) = self.headless_segment(SegmentSeq(oldest))? {
                return Err(self.header_gone(headless, lsn, later.headers));
            }
            return Err(WalError::MissingSegment {
                segment: SegmentSeq(oldest),
                whole_before: Lsn(0),
                whole_after: later.headers,
                durable: self.durable,
            });
        }
        let mut next = Lsn(first.header.first_lsn);
        let mut chain = first.header.prev_crc;
        let mut live: Vec<(SegmentFound, u64)> = Vec::new();
        for (i, segment) in needed.iter().enumerate() {
            let limit = Lsn(needed[i + 1..].iter().map(|s| s.header.first_lsn).min().unwrap_or(u64::MAX));
            if segment.header.first_lsn >= limit.0 {
                // Nothing in it was ever acknowledged: a later segment begins where it began, or before.
                live.push((*segment, 0));
                continue;
            }
            if live.iter().all(|(_, groups)| *groups == 0) {
                (next, chain) = (Lsn(segment.header.first_lsn), segment.header.prev_crc);
            }
            assert!(segment.header.first_lsn == next.0, "the segment before was walked to where this one begins");
            if segment.header.prev_crc != chain {
                return Err(self.damaged(
                    segment,
                    Lsn(next.0),
                    0,
                    format!("a segment that follows on the group with CRC {chain:08x}"),
                    format!("one that follows on {:08x}", segment.header.prev_crc),
                    Why::WrittenSo,
                    self.later(&needed[i + 1..], None)?.headers,
                ));
            }
            if segment.file_bytes < segment.header.segment_bytes {
                return Err(WalError::Truncated {
                    file: self.volume.path(segment.file),
                    segment: segment.sequence(),
                    expected: segment.header.segment_bytes,
                    found: segment.file_bytes,
                });
            }
            let groups_before = self.groups;
            let stop = self.segment(segment, &mut next, &mut chain, limit)?;
            live.push((*segment, self.groups - groups_before));
            if let Some(stop) = stop {
                let place = u32::try_from(stop.at).expect("a segment is below 4 GiB");
                let is_room = stop.at < segment.header.segment_bytes;
                let (is_clean, dropped) = self.chain_ends(&needed[i..], next, chain, stop)?;
                let goes_on_at = is_clean.then_some(place);
                // what was begun in a later segment is no part of this one, and that one is free
                let torn_at = (!is_clean && is_room && needed.len() == i + 1).then_some(place);
                return Ok(End { live, last: Lsn(next.0 - 1), chain, goes_on_at, torn_at, dropped });
            }
        }
        unreachable!("the last segment has no limit, so its walk stops")
    }

    /// Walks one segment up to `limit` (exclusive). Returns where and why it stopped before that.
    fn segment(
        &mut self,
        segment: &SegmentFound,
        next: &mut Lsn,
        chain: &mut u32,
        limit: Lsn,
    ) -> Result<Option<Stop>, WalError> {
        let mut window = Window::new(self.volume, segment.file, segment.header.segment_bytes);
        let mut at = FIRST_GROUP_AT;
        while *next < limit {
            let room = segment.header.segment_bytes - at;
            if room == 0 {
                return Ok(Some(Stop { at, fault: GroupFault::EndOfFile, flip: None, likely: false, header: None }));
            }
            let expected = Expected { incarnation: segment.header.incarnation, lsn: *next, prev_crc: *chain, room };
            let block = window.get(at, BLOCK_BYTES)?;
            let result = match expected.header(block) {
                Ok(header) => WholeGroup::judge(header, window.get(at, header.padded())?, at as u32),
                Err(fault) => Err(fault),
            };
            match result {
                Ok(group) => {
                    if group.header.durable_lsn >= next.0 {
                        let found = format!("one that says LSN {} was on the media", group.header.durable_lsn);
                        return Err(self.damaged(
                            segment,
                            *next,
                            at,
                            "a group that knows nothing of itself".to_owned(),
                            found,
                            Why::WrittenSo,
                            0,
                        ));
                    }
                    (self.visit)(segment, &group)?;
                    self.groups += 1;
                    self.records += u64::from(group.header.records);
                    if group.header.records > 0 {
                        self.last_with_records = *next;
                    }
                    self.durable = self.durable.max(Lsn(group.header.durable_lsn));
                    at += group.header.padded() as u64;
                    *chain = group.header.crc;
                    *next = Lsn(next.0 + 1);
                }
                Err(fault) => {
                    let header = expected.header(window.get(at, BLOCK_BYTES)?).ok();
                    let likely = flip::header(&expected, window.get(at, BLOCK_BYTES)?);
                    let flip = match &likely {
                        Some(likely) => flip::explain(&expected, window.get(at, likely.padded())?, at as u32),
                        None => None,
                    };
                    return Ok(Some(Stop { at, fault, flip, likely: likely.is_some(), header }));
                }
            }
        }
        Ok(None)
    }

    /// The chain ended before `next` in the first of `segments`. Either that is the end of the log, or it is damaged.
    /// Returns whether the log may go on at this place, and what is dropped.
    fn chain_ends(
        &mut self,
        segments: &[SegmentFound],
        next: Lsn,
        chain: u32,
        stop: Stop,
    ) -> Result<(bool, Option<Dropped>), WalError> {
        let segment = &segments[0];
        let later = self.later(segments, Some(stop.at))?;
        self.durable = self.durable.max(later.durable);
        let (segment_next, segment_has) = (segment.header.sequence + 1, segments.get(1).map(|s| s.header.sequence));
        #[cfg(feature = "planted")]
        let stop = if is(Bug::DamageAsTornTail) {
            self.durable = self.durable.min(Lsn(next.0 - 1));
            Stop { flip: None, ..stop }
        } else {
            stop
        };
        let nothing_there =
            matches!(stop.fault, GroupFault::NoHeader | GroupFault::Incarnation | GroupFault::EndOfFile)
                && stop.flip.is_none();
        if self.durable >= next {
            if let Some(headless) = self.continuing(next, chain)? {
                return Err(self.header_gone(&headless, next, later.headers));
            }
            if nothing_there && segment_has.is_some_and(|has| has != segment_next) {
                return Err(WalError::MissingSegment {
                    segment: SegmentSeq(segment_next),
                    whole_before: Lsn(next.0 - 1),
                    whole_after: later.headers,
                    durable: self.durable,
                });
            }
            let why = match stop.flip {
                Some(flip) => Why::FlippedBit { bit: flip.bit },
                None => Why::Acknowledged { durable: self.durable },
            };
            let offset = stop.at + stop.flip.map_or(0, |flip| u64::from(flip.byte));
            return Err(self.refuse(segment, next, chain, offset, stop.fault.to_string(), why, later.headers));
        }
        if let GroupFault::Kind { .. } = stop.fault {
            let found = stop.fault.to_string();
            return Err(self.refuse(segment, next, chain, stop.at, found, Why::WrittenSo, later.headers));
        }
        // The last group, and without records: it holds nothing that anybody could have been told of.
        if let Some(flip) = stop.flip.filter(|flip| flip.records > 0 || later.headers > 0) {
            let (offset, why) = (stop.at + u64::from(flip.byte), Why::FlippedBit { bit: flip.bit });
            return Err(self.refuse(segment, next, chain, offset, stop.fault.to_string(), why, later.headers));
        }
        self.refuse_groups_without_header(next, Some(chain))?;
        // No header of this use of the file lies behind the last group: whatever is written there is the first that is.
        let is_clean = matches!(stop.fault, GroupFault::NoHeader | GroupFault::Incarnation)
            && !stop.likely
            && later.headers == 0
            && segments.len() == 1;
        let left_a_trace = stop.header.is_some() || later.headers > 0;
        assert!(!(is_clean && left_a_trace), "what is dropped must become void");
        let dropped = left_a_trace.then(|| Dropped {
            file: self.volume.path(segment.file),
            offset: stop.at,
            lsn: next,
            found: stop.fault.to_string(),
            later: later.headers,
        });
        Ok((is_clean, dropped))
    }

    /// Group headers of `segments`, in the first one after the block at `after` only. Void ones are counted too: what
    /// they claim was true when they were written, and so it still is.
    fn later(&self, segments: &[SegmentFound], after: Option<u64>) -> Result<Later, WalError> {
        let mut later = Later::default();
        for (i, segment) in segments.iter().enumerate() {
            let first = match after {
                Some(at) if i == 0 => at,
                Some(_) | None => FIRST_GROUP_AT,
            };
            let mut window =
                Window::new(self.volume, segment.file, segment.header.segment_bytes.min(segment.file_bytes));
            window.headers(first, |at, header| {
                if header.incarnation == segment.header.incarnation {
                    later.durable = later.durable.max(Lsn(header.durable_lsn));
                    later.headers += u64::from(i > 0 || Some(at) != after);
                }
            })?;
        }
        for headless in self.files.headless.iter().filter(|h| h.used) {
            let mut window = Window::new(self.volume, headless.file, headless.file_bytes);
            window.headers(FIRST_GROUP_AT, |_, header| {
                if header.lsn > header.durable_lsn && header.durable_lsn != u64::MAX {
                    later.durable = later.durable.max(Lsn(header.durable_lsn));
                }
            })?;
        }
        Ok(later)
    }

    /// The file that has not the header of the group in it, which would follow on the log; if there is one. A header is
    /// on the media before the first group is written; so it was there, and it is not any more.
    fn continuing(&self, next: Lsn, chain: u32) -> Result<Option<Headless>, WalError> {
        let headless = self.files.headless.iter().filter(|h| h.used).map(|h| (*h, None));
        let replaced = self.files.segments.iter().map(|s| {
            let headless = Headless { file: s.file, file_bytes: s.file_bytes, blank: false, used: true };
            (headless, Some(s.header.incarnation))
        });
        for (headless, incarnation) in headless.chain(replaced) {
            let blocks = headless.file_bytes / BLOCK_BYTES as u64;
            if blocks < 2 {
                continue;
            }
            let mut window = Window::narrow(self.volume, headless.file, headless.file_bytes);
            let header = GroupHeader::read(window.get(FIRST_GROUP_AT, BLOCK_BYTES)?);
            if incarnation == Some(header.incarnation) {
                continue;
            }
            let expected = Expected {
                incarnation: header.incarnation,
                lsn: next,
                prev_crc: chain,
                room: (blocks - 1) * BLOCK_BYTES as u64,
            };
            let Ok(header) = expected.header(window.get(FIRST_GROUP_AT, BLOCK_BYTES)?) else { continue };
            if self.is_void(&header) {
                continue;
            }
            let bytes = window.get(FIRST_GROUP_AT, header.padded())?;
            if expected.group(bytes, FIRST_GROUP_AT as u32).is_ok() {
                return Ok(Some(headless));
            }
        }
        Ok(None)
    }

    /// A later segment begins at this group or before: its writer had seen that the group was never whole. If it is
    /// now, then because the sectors it lacked were written by a use of the file that wrote the same there.
    fn is_void(&self, group: &GroupHeader) -> bool {
        let is_later = |s: &&SegmentFound| s.header.sequence > group.segment;
        self.files.segments.iter().filter(is_later).any(|s| s.header.first_lsn <= group.lsn)
    }

    /// The file without a header whose first group says that it is of this segment, and that group's LSN.
    fn headless_segment(&self, segment: SegmentSeq) -> Result<Option<(&Headless, Lsn)>, WalError> {
        for headless in self.files.headless.iter().filter(|h| h.used && h.file_bytes >= 2 * BLOCK_BYTES as u64) {
            let mut window = Window::narrow(self.volume, headless.file, headless.file_bytes);
            let block = window.get(FIRST_GROUP_AT, BLOCK_BYTES)?;
            let header = GroupHeader::read(block);
            if GroupHeader::is_whole(block) && header.segment == segment.0 {
                return Ok(Some((headless, Lsn(header.lsn))));
            }
        }
        Ok(None)
    }

    /// The log ends before `next`: no file without a header may hold what follows. Without a `chain` (there is no
    /// segment at all), none may hold a group.
    fn refuse_groups_without_header(&self, next: Lsn, chain: Option<u32>) -> Result<(), WalError> {
        match chain {
            Some(chain) => match self.continuing(next, chain)? {
                Some(headless) => Err(self.header_gone(&headless, next, 0)),
                None => Ok(()),
            },
            None => {
                for headless in self.files.headless.iter().filter(|h| h.used) {
                    let mut groups = 0;
                    let mut first = None;
                    let mut window = Window::new(self.volume, headless.file, headless.file_bytes);
                    window.headers(FIRST_GROUP_AT, |_, header| {
                        groups += 1;
                        first.get_or_insert(Lsn(header.lsn));
                    })?;
                    if let Some(first) = first {
                        return Err(self.header_gone(headless, first, groups));
                    }
                }
                Ok(())
            }
        }
    }

    fn header_gone(&self, headless: &Headless, lsn: Lsn, whole_after: u64) -> WalError {
        let found = if headless.blank { "zeros" } else { "something else" };
        WalError::Damaged(Box::new(Damage {
            file: self.volume.path(headless.file),
            segment: SegmentSeq(0),
            offset: 0,
            lsn,
            expected: "a segment header".to_owned(),
            found: found.to_owned(),
            why: Why::HeaderGone,
            whole_before: Lsn(lsn.0.saturating_sub(1)),
            whole_after,
        }))
    }

    fn refuse(
        &self,
        segment: &SegmentFound,
        next: Lsn,
        chain: u32,
        offset: u64,
        found: String,
        why: Why,
        after: u64,
    ) -> WalError {
        let expected = format!("the group with LSN {next} after the one with CRC {chain:08x}");
        self.damaged(segment, next, offset, expected, found, why, after)
    }

    fn damaged(
        &self,
        segment: &SegmentFound,
        lsn: Lsn,
        offset: u64,
        expected: String,
        found: String,
        why: Why,
        whole_after: u64,
    ) -> WalError {
        WalError::Damaged(Box::new(Damage {
            file: self.volume.path(segment.file),
            segment: segment.sequence(),
            offset,
            lsn,
            expected,
            found,
            why,
            whole_before: Lsn(lsn.0 - 1),
            whole_after,
        }))
    }
}

/// Where a walk stopped, and why.
struct Stop {
    at: u64,
    fault: GroupFault,
    flip: Option<flip::Flip>,
    /// There is a header, and it is the right one but for one bit at most.
    likely: bool,
    /// The header, if that is whole and the right one: then the group was begun.
    header: Option<GroupHeader>,
}

fn io_error(volume: &dyn Volume, what: &'static str, file: FileId, at: u64, error: &std::io::Error) -> WalError {
    WalError::Io { what, file: volume.path(file), at, detail: error.to_string() }
}

/// A moving view of a file, in whole blocks. Reads each block once, as long as the places go forwards.
struct Window<'a> {
    volume: &'a dyn Volume,
    file: FileId,
    /// Whole blocks of the file.
    end: u64,
    at: u64,
    /// What of `bytes` is the file's, from `at` on.
    held: usize,
    bytes: AlignedVec<BLOCK_BYTES>,
    /// Bytes read at once, at least.
    ahead: usize,
}

impl<'a> Window<'a> {
    /// For all of a file.
    fn new(volume: &'a dyn Volume, file: FileId, file_bytes: u64) -> Window<'a> {
        Window { ahead: WINDOW_BYTES, ..Window::narrow(volume, file, file_bytes) }
    }

    /// For a block or two.
    fn narrow(volume: &'a dyn Volume, file: FileId, file_bytes: u64) -> Window<'a> {
        let end = file_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        Window { volume, file, end, at: 0, held: 0, bytes: AlignedVec::new(), ahead: BLOCK_BYTES }
    }

    /// `len` bytes from `at`: both whole blocks, inside the file.
    fn get(&mut self, at: u64, len: usize) -> Result<&[u8], WalError> {
        assert!(at + len as u64 <= self.end, "{len} bytes at {at} of a file of {}", self.end);
        let held_end = self.at + self.held as u64;
        if at < self.at || at + len as u64 > held_end {
            let rest = if at < self.at { 0 } else { held_end.saturating_sub(at) as usize };
            self.bytes.copy_within(self.held - rest..self.held, 0);
            let wanted = (self.end - at).min(self.ahead.max(len) as u64) as usize;
            if self.bytes.len() < wanted {
                self.bytes.resize(wanted, 0);
            }
            (self.at, self.held) = (at, 0);
            let from = at + rest as u64;
            self.volume
                .read(self.file, from, &mut self.bytes[rest..wanted])
                .map_err(|e| io_error(self.volume, "read", self.file, from, &e))?;
            self.held = wanted;
        }
        let from = (at - self.at) as usize;
        Ok(&self.bytes[from..from + len])
    }

    /// Shows each whole group header at a block's begin, from `first` on.
    fn headers(&mut self, first: u64, mut show: impl FnMut(u64, &GroupHeader)) -> Result<(), WalError> {
        let mut at = first;
        while at + BLOCK_BYTES as u64 <= self.end {
            let block = self.get(at, BLOCK_BYTES)?;
            if GroupHeader::is_whole(block) {
                show(at, &GroupHeader::read(block));
            }
            at += BLOCK_BYTES as u64;
        }
        Ok(())
    }
}

/// The incarnation of a segment: random, and different for each use of a file.
pub(super) fn incarnation(seed: u64, sequence: SegmentSeq) -> Incarnation {
    let mut state = seed ^ u64::from(sequence.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&next().to_le_bytes());
    bytes[8..].copy_from_slice(&next().to_le_bytes());
    bytes
}

const _: () = assert!(WINDOW_BYTES.is_multiple_of(BLOCK_BYTES) && RECORD_HEAD_BYTES < BLOCK_BYTES);
