//! A disk that forgets, and a broker's core reduced to its log: what the tests of the WAL play with.
//!
//! A write that has not completed may, after a crash, be there in any subset of its 512-byte sectors. A file being
//! prepared may be missing, short or whole; one being removed may still be there.
#![allow(dead_code)]

use bytes::Bytes;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::{DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, FileId, OpId, Volume};
use camus_engine::limits::WAL_CHUNK_BYTES;
use camus_engine::types::{CoreId, Index, Lsn, Mono, Offset, PartitionId, SegmentSeq, ShardId, Term};
use camus_engine::wal::format::{GroupHeader, SegmentHeader};
use camus_engine::wal::{RecordAt, RecordHead, RecordKind, RecoveryReport, Room, Wal, WalConfig, WalError, WalOut};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// SplitMix64: a test's choices, from one seed.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

#[derive(Clone, Default)]
pub struct Volumes {
    pub files: BTreeMap<FileId, Vec<u8>>,
}

impl Volume for Volumes {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        Ok(self.files.iter().map(|(file, bytes)| (*file, bytes.len() as u64)).collect())
    }

    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = self.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        let at = at as usize;
        let part = bytes.get(at..at + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(part);
        Ok(())
    }

    fn sync(&self, _file: FileId) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, file: FileId) -> String {
        format!("wal/{:06}.wal", file.0)
    }
}

/// What of a write in flight is there after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landed {
    All,
    Nothing,
    /// Any of its sectors.
    Half,
    /// Most of its sectors.
    Most,
    /// All but the sector with the header.
    NoHeader,
    /// The sector with the header only.
    Header,
}

impl Landed {
    pub const EACH: [Landed; 6] =
        [Landed::All, Landed::Nothing, Landed::Half, Landed::Most, Landed::NoHeader, Landed::Header];

    fn keeps(self, sector: usize, rng: &mut Rng) -> bool {
        match self {
            Landed::All => true,
            Landed::Nothing => false,
            Landed::Half => rng.below(2) == 0,
            Landed::Most => rng.below(8) != 0,
            Landed::NoHeader => sector > 0,
            Landed::Header => sector == 0,
        }
    }
}

/// A block write that was submitted.
#[derive(Clone, Debug)]
pub struct Written {
    pub file: FileId,
    pub at: u64,
    pub bytes: usize,
    /// LSN and claim of a group; `None`: a segment header.
    pub group: Option<(u64, u64)>,
    pub completed: bool,
}

/// A record that was appended.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    pub lsn: Lsn,
    pub head: RecordHead,
    pub body: Vec<u8>,
    pub at: RecordAt,
}

/// A core with nothing but its log.
pub struct Host {
    pub wal: Wal,
    pub report: RecoveryReport,
    pub volume: Volumes,
    pub config: WalConfig,
    pub pending: Vec<(OpId, DiskOp)>,
    pub out: Vec<WalOut>,
    pub now: Mono,
    /// Everything that the log should hold, in order.
    pub records: Vec<Record>,
    /// What the log has reported.
    pub acknowledged: Lsn,
    /// Segments below are released.
    pub needed: SegmentSeq,
    pub written: Vec<Written>,
    pub poisoned: Option<WalError>,
    /// Files that fit the disk.
    pub files_max: usize,
    pub groups_written: usize,
}

pub fn config(segment_bytes: u64, segments_max: usize) -> WalConfig {
    WalConfig {
        cluster: *b"cluster-of-tests",
        core: CoreId(3),
        segment_bytes,
        segments_max,
        spares_max: 2,
        cache_bytes: 256 * 1024,
        // Small groups in flight together are the hard case of a recovery.
        beside_bytes: 0,
    }
}

pub fn pool() -> ChunkPool {
    ChunkPool::new(10 * WAL_CHUNK_BYTES)
}

/// What a recovery of this volume shows, or why it refuses.
pub fn recover(config: WalConfig, volume: &Volumes) -> Result<(Wal, RecoveryReport, Vec<Record>), WalError> {
    recover_seeded(config, volume, 0x5eed)
}

pub fn recover_seeded(
    config: WalConfig,
    volume: &Volumes,
    seed: u64,
) -> Result<(Wal, RecoveryReport, Vec<Record>), WalError> {
    let mut records = Vec::new();
    let (wal, report) = Wal::recover(config, volume, pool(), seed, &mut |head, body, at| {
        records.push(Record { lsn: Lsn(0), head: *head, body: body.to_vec(), at });
    })?;
    Ok((wal, report, records))
}

pub fn batch_head(n: u64) -> RecordHead {
    let mut head = RecordHead::new(RecordKind::Batch, ShardId(1 + (n % 3) as u32));
    head.term = Term(7);
    head.index = Index(n);
    head.commit = Index(n / 2);
    head.partition = PartitionId(n % 5);
    head.base_offset = Offset(n as i64 * 10);
    head.count = 10;
    head
}

impl Host {
    pub fn new(config: WalConfig) -> Host {
        Host::over(config, Volumes::default(), 1).expect("nothing can be wrong with an empty disk")
    }

    /// Starts on what a disk holds. What it finds is what it must keep from now on.
    pub fn over(config: WalConfig, volume: Volumes, seed: u64) -> Result<Host, WalError> {
        let (wal, report, records) = recover_seeded(config.clone(), &volume, seed)?;
        let mut host = Host {
            acknowledged: wal.durable(),
            wal,
            report,
            volume,
            config,
            pending: Vec::new(),
            out: Vec::new(),
            now: Mono(1_000_000_000),
            records,
            needed: SegmentSeq(0),
            written: Vec::new(),
            poisoned: None,
            files_max: usize::MAX,
            groups_written: 0,
        };
        host.wal.start(&mut host.out);
        host.collect();
        Ok(host)
    }

    /// Takes what the log has to say.
    pub fn collect(&mut self) {
        for out in std::mem::take(&mut self.out) {
            match out {
                WalOut::Disk(id, op) => {
                    assert!(self.pending.iter().all(|(other, _)| *other != id), "an operation's id is used twice");
                    if let DiskOp::Write { file, at, buf } = &op {
                        assert!((*at as usize).is_multiple_of(BLOCK) && buf.bytes.len().is_multiple_of(BLOCK));
                        let header = GroupHeader::read(&buf.bytes);
                        // zeros make an unfinished write void
                        let group = (*at > 0 && header.lsn > 0).then_some((header.lsn, header.durable_lsn));
                        let written = Written { file: *file, at: *at, bytes: buf.bytes.len(), group, completed: false };
                        // What is written over is not there any more.
                        let end = if *at == 0 { u64::MAX } else { at + buf.bytes.len() as u64 };
                        self.written.retain(|w| w.file != *file || w.at >= end || w.at + w.bytes as u64 <= *at);
                        if *at == 0 || group.is_some() {
                            self.written.push(written);
                        }
                    }
                    self.pending.push((id, op));
                }
                WalOut::Durable(lsn) => {
                    assert!(lsn > self.acknowledged, "durability moves forwards only");
                    self.acknowledged = lsn;
                }
                WalOut::GroupWritten { .. } => self.groups_written += 1,
                WalOut::Poisoned(error) => self.poisoned = Some(error),
            }
        }
    }

    pub fn append(&mut self, body: &[u8]) -> Option<RecordAt> {
        if self.wal.room_for(body.len()) != Room::Yes {
            return None;
        }
        Some(self.append_reserved(body))
    }

    /// A record of its own for the first third, when room for both was promised as one.
    pub fn append_in_parts(&mut self, body: &[u8]) -> Option<RecordAt> {
        if self.wal.room_for(body.len() + 128) != Room::Yes {
            return None;
        }
        let cut = body.len() / 3;
        self.append_reserved(&body[..cut]);
        Some(self.append_reserved(&body[cut..]))
    }

    pub fn append_reserved(&mut self, body: &[u8]) -> RecordAt {
        let n = self.records.len() as u64 + 1;
        let head = batch_head(n);
        let cut = body.len() / 3;
        let (lsn, at) = self.wal.append(head, &[&body[..cut], &body[cut..]], None);
        self.records.push(Record { lsn, head, body: body.to_vec(), at });
        at
    }

    pub fn turn(&mut self) {
        self.wal.turn_end(self.now, &mut self.out);
        self.collect();
    }

    pub fn tick(&mut self, ms: u64) {
        self.now = self.now + Duration::from_millis(ms);
    }

    /// Completes an operation in flight.
    pub fn complete(&mut self, i: usize) {
        let (op, what) = self.pending.remove(i);
        let result = match what {
            DiskOp::Write { file, at, buf } => {
                let to = self.volume.files.get_mut(&file).expect("a write goes to a file that is there");
                to[at as usize..at as usize + buf.bytes.len()].copy_from_slice(&buf.bytes);
                self.written.iter_mut().filter(|w| w.file == file && w.at == at).for_each(|w| w.completed = true);
                Ok(DiskOk::Written)
            }
            DiskOp::Read { file, at, len } => {
                let bytes = &self.volume.files[&file][at as usize..][..len as usize];
                Ok(DiskOk::Read(Bytes::copy_from_slice(bytes)))
            }
            DiskOp::Prepare { file, len } => {
                assert!(!self.volume.files.contains_key(&file), "a file is prepared once");
                if self.volume.files.len() < self.files_max {
                    self.volume.files.insert(file, vec![0; len as usize]);
                    Ok(DiskOk::Prepared)
                } else {
                    Err(error(DiskErrorKind::NoSpace, file))
                }
            }
            DiskOp::Remove { file } => {
                self.volume.files.remove(&file).expect("a file that is removed is there");
                Ok(DiskOk::Removed)
            }
        };
        self.wal.disk_done(self.now, DiskDone { op, result }, &mut self.out);
        self.collect();
    }

    pub fn fail(&mut self, i: usize, kind: DiskErrorKind) {
        let (op, _) = self.pending.remove(i);
        let result = Err(error(kind, FileId(0)));
        self.wal.disk_done(self.now, DiskDone { op, result }, &mut self.out);
        self.collect();
    }

    /// Completes everything, in order, until nothing is left.
    pub fn settle(&mut self) {
        self.turn();
        while !self.pending.is_empty() {
            self.complete(0);
            self.turn();
        }
    }

    /// Appends one record in a group of its own and waits for it.
    pub fn append_durable(&mut self, body: &[u8]) -> RecordAt {
        let at = self.append(body).expect("there is room");
        self.settle();
        assert_eq!(self.acknowledged, self.records.last().expect("one was appended").lsn);
        at
    }

    pub fn release(&mut self, below: SegmentSeq) {
        self.needed = self.needed.max(below);
        self.wal.release_below(below, &mut self.out);
        self.collect();
    }

    /// The disk holds no more files than it may.
    pub fn check_files(&self) {
        let preparing = self.pending.iter().filter(|(_, op)| matches!(op, DiskOp::Prepare { .. })).count();
        let files = self.volume.files.len() + preparing;
        assert!(files <= self.config.segments_max, "{files} files");
    }

    /// Every record that is there is read as it was written, from memory and from the disk.
    pub fn check_reads(&self) {
        for record in self.records.iter().filter(|r| r.at.segment >= self.needed) {
            let at = record.at;
            if let Some(body) = self.wal.cached(at) {
                assert_eq!(body, record.body);
            }
            if record.lsn <= self.acknowledged {
                let (file, from, len) = self.wal.read_plan(at);
                let read = Bytes::copy_from_slice(&self.volume.files[&file][from as usize..][..len as usize]);
                let (head, body) = self.wal.extract(at, &read).expect("what is durable can be read");
                assert_eq!((head, &body[..]), (record.head, &record.body[..]));
            }
        }
    }

    /// The power goes. What is in flight may be there in parts.
    pub fn crash(self, rng: &mut Rng) -> Crashed {
        self.crash_with(rng, None)
    }

    /// The power goes. `landed`: of each write in flight; `None`: of each something else.
    pub fn crash_with(self, rng: &mut Rng, landed: Option<Landed>) -> Crashed {
        let mut volume = self.volume;
        for (_, op) in self.pending {
            match op {
                DiskOp::Write { file, at, buf } => {
                    let to = volume.files.get_mut(&file).expect("a write goes to a file that is there");
                    let landed = landed.unwrap_or(Landed::EACH[rng.below(Landed::EACH.len())]);
                    for (i, sector) in buf.bytes.chunks(SECTOR).enumerate() {
                        let from = at as usize + i * SECTOR;
                        let to = &mut to[from..from + sector.len()];
                        // A sector that lacks one bit only is as good as damaged: that is refused, and has its own
                        // test.
                        let lacks: u32 = sector.iter().zip(&*to).map(|(new, old)| (new ^ old).count_ones()).sum();
                        if landed.keeps(i, rng) || lacks == 1 {
                            to.copy_from_slice(sector);
                        }
                    }
                }
                // It gets its name when it is whole.
                DiskOp::Prepare { file, len } => {
                    if rng.below(2) == 0 {
                        volume.files.insert(file, vec![0; len as usize]);
                    }
                }
                DiskOp::Remove { file } => {
                    if rng.below(2) == 0 {
                        volume.files.remove(&file);
                    }
                }
                DiskOp::Read { .. } => {}
            }
        }
        Crashed {
            volume,
            config: self.config,
            records: self.records,
            acknowledged: self.acknowledged,
            needed: self.needed,
            written: self.written,
        }
    }
}

fn error(kind: DiskErrorKind, file: FileId) -> DiskError {
    DiskError { kind, what: "write", file, at: 0, errno: Some(5), detail: "told to".to_owned() }
}

/// What is left of a host.
#[derive(Clone)]
pub struct Crashed {
    pub volume: Volumes,
    pub config: WalConfig,
    pub records: Vec<Record>,
    pub acknowledged: Lsn,
    pub needed: SegmentSeq,
    pub written: Vec<Written>,
}

impl Crashed {
    /// What a recovery found must be everything that was acknowledged and is needed, in order and unchanged, and of the
    /// rest a prefix of whole groups. Says what is wrong.
    pub fn judge(&self, found: &[Record], last: Lsn) -> Result<(), String> {
        // A group without records may go: nobody was told of it.
        if self.records.iter().any(|r| r.lsn > last && r.lsn <= self.acknowledged) {
            return Err(format!("LSN {} was acknowledged, the log ends at {last}", self.acknowledged));
        }
        self.judge_prefix(found, last)
    }

    /// As [`Self::judge`], but the end may be missing.
    pub fn judge_prefix(&self, found: &[Record], last: Lsn) -> Result<(), String> {
        let expected: Vec<&Record> = self.records.iter().filter(|r| r.lsn <= last).collect();
        let missing = expected.len().checked_sub(found.len()).ok_or("more records than were written")?;
        for record in &expected[..missing] {
            if record.at.segment >= self.needed {
                return Err(format!("the needed record at {:?} is missing", record.at));
            }
        }
        for (expected, found) in expected[missing..].iter().zip(found) {
            if expected.head != found.head || expected.body != found.body || expected.at != found.at {
                return Err(format!("the record at {:?} is not what was written", expected.at));
            }
        }
        Ok(())
    }

    pub fn recover(&self) -> Result<(Wal, RecoveryReport, Vec<Record>), WalError> {
        recover(self.config.clone(), &self.volume)
    }

    /// Recovers, compares, goes on.
    pub fn restart(self, seed: u64) -> Host {
        let (_, report, found) = self.recover().unwrap_or_else(|e| panic!("a crash is no damage, but: {e}"));
        if let Err(wrong) = self.judge(&found, report.last) {
            panic!("{wrong}; {report:?}");
        }
        self.restart_from(report.last, seed)
    }

    /// Goes on, when a recovery found everything up to `last`.
    pub fn restart_from(self, last: Lsn, seed: u64) -> Host {
        let kept: Vec<Record> = self.records.into_iter().filter(|r| r.lsn <= last).collect();
        let mut host = Host::over(self.config, self.volume, seed).expect("recovered just now");
        // Those of released segments too: until a header says that they are not needed, they may be found again.
        host.records = kept;
        host.needed = self.needed;
        host.written = self.written;
        host.written.iter_mut().for_each(|w| w.completed = true);
        host
    }

    /// The header of the segment in a file.
    pub fn header(&self, file: FileId) -> Option<SegmentHeader> {
        SegmentHeader::read(self.volume.files.get(&file)?)
    }

    /// The highest claim that a completed write outside of `damaged` (file, block) makes.
    pub fn claimed_outside(&self, damaged: &[(FileId, u64)]) -> u64 {
        let mut claimed = 0;
        for w in self.written.iter().filter(|w| w.completed) {
            if damaged.contains(&(w.file, w.at / BLOCK as u64)) || damaged.contains(&(w.file, 0)) {
                continue;
            }
            let Some(bytes) = self.volume.files.get(&w.file) else { continue };
            let Some(segment) = bytes.get(..BLOCK).and_then(SegmentHeader::read) else { continue };
            let claim = match w.group {
                Some((lsn, claim)) => {
                    // A write of an earlier life may never have arrived.
                    let header = GroupHeader::read(&bytes[w.at as usize..]);
                    let arrived = header.lsn == lsn && header.incarnation == segment.incarnation;
                    if arrived { claim } else { 0 }
                }
                None => segment.durable_lsn,
            };
            claimed = claimed.max(claim);
        }
        claimed
    }
}
