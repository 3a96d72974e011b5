//! A simulated disk: what is durable, what only looks so, and what a crash leaves of a write in flight.
//!
//! Time is the world's (`rt/sim.rs`), chance is seeded. A completed write is durable. At a crash each sector of a write
//! in flight is lost, is on the media, or (when only the process died) is visible and not durable: the next power loss
//! takes it back unless [`Volume::sync`] came first. [`SimDisk`] is a handle; the world and the test share it.

use super::{BlockBuf, Disk, DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, DurableMethod, FileId, OpId, Volume};
use crate::io::buf::AlignedBuf;
use crate::limits::BLOCK_BYTES;
use crate::rt::rng::Rng;
use crate::types::Mono;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What a device writes as one.
pub const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// How a core ends without being asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process is gone; caches below it stay.
    Process,
    /// The machine lost power: what is not on the media is gone.
    Power,
}

/// One core's disk. Clones are the same disk. Stays when its core crashes.
#[derive(Clone)]
pub struct SimDisk(Rc<RefCell<State>>);

struct State {
    rng: Rng,
    files: BTreeMap<FileId, SimFile>,
    capacity_bytes: u64,
    flight: BTreeMap<u64, Flight>,
    next_token: u64,
    /// Since the world last asked: what was started, and when it is due.
    started: Vec<(u64, Mono)>,
    faults: Faults,
}

#[derive(Default)]
struct Faults {
    hang: bool,
    writes: u32,
    reads: u32,
    slow: Duration,
}

struct SimFile {
    len: u64,
    /// What is on the media; a sector that is not here is zero.
    durable: BTreeMap<u64, Sector>,
    /// Over it: what a read finds and a power loss takes.
    volatile: BTreeMap<u64, Sector>,
}

struct Flight {
    op: OpId,
    what: DiskOp,
}

impl SimFile {
    fn read(&self, at: u64, buf: &mut [u8]) {
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let (sector, within) = (at / SECTOR_BYTES as u64, (at % SECTOR_BYTES as u64) as usize);
            let here = rest.len().min(SECTOR_BYTES - within);
            let (now, later) = rest.split_at_mut(here);
            match self.volatile.get(&sector).or_else(|| self.durable.get(&sector)) {
                Some(found) => now.copy_from_slice(&found[within..within + here]),
                None => now.fill(0),
            }
            (rest, at) = (later, at + here as u64);
        }
    }
}

impl SimDisk {
    pub fn new(seed: u64) -> SimDisk {
        SimDisk(Rc::new(RefCell::new(State {
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            capacity_bytes: u64::MAX,
            flight: BTreeMap::new(),
            next_token: 0,
            started: vec![],
            faults: Faults::default(),
        })))
    }

    pub fn volume(&self) -> SimVolume {
        SimVolume(self.clone())
    }

    /// Files beyond this many bytes in all can not be prepared (ENOSPC). Those that are there stay.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.borrow_mut().capacity_bytes = bytes;
    }

    /// The next `n` writes fail with EIO; any of their sectors may be on the media all the same.
    pub fn fail_writes(&self, n: u32) {
        self.0.borrow_mut().faults.writes = n;
    }

    /// The next `n` reads fail with EIO.
    pub fn fail_reads(&self, n: u32) {
        self.0.borrow_mut().faults.reads = n;
    }

    /// While on, nothing ends. What is due then ends when it is off again.
    pub fn hang(&self, on: bool) {
        self.0.borrow_mut().faults.hang = on;
    }

    /// Added to every operation from now on.
    pub fn slow_down(&self, by: Duration) {
        self.0.borrow_mut().faults.slow = by;
    }

    /// Flips a bit on the media.
    pub fn rot(&self, file: FileId, at: u64) {
        let mut state = self.0.borrow_mut();
        let file = state.files.get_mut(&file).expect("the file exists");
        assert!(at < file.len);
        let sector = file.durable.entry(at / SECTOR_BYTES as u64).or_insert([0; SECTOR_BYTES]);
        sector[(at % SECTOR_BYTES as u64) as usize] ^= 1;
    }

    /// Operations without an end.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().flight.len()
    }

    /// Starts an operation at the time `now`. With [`Self::take_started`] and [`Self::complete`] this is the world's
    /// side; a test of the WAL alone may play the world.
    pub fn submit(&self, now: Mono, op: OpId, what: DiskOp) {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        super::check(&what);
        assert!(state.flight.values().all(|flight| flight.op != op), "{op:?} is in flight already");
        let us = match &what {
            DiskOp::Write { buf, .. } => state.rng.between(30, 300) + buf.bytes.len() as u64 / 1_000,
            DiskOp::Read { len, .. } => state.rng.between(20, 200) + u64::from(*len) / 1_000,
            DiskOp::Prepare { len, .. } => state.rng.between(1_000, 20_000) + len / 500,
            DiskOp::Remove { .. } => state.rng.between(100, 5_000),
        };
        // A device that collects its garbage now and then.
        let us = if state.rng.chance(1) { us + state.rng.between(5_000, 50_000) } else { us };
        let token = state.next_token;
        state.next_token += 1;
        state.flight.insert(token, Flight { op, what });
        state.started.push((token, now + Duration::from_micros(us) + state.faults.slow));
    }

    /// What was started since the last call: its token, and when it is due.
    pub fn take_started(&self) -> Vec<(u64, Mono)> {
        std::mem::take(&mut self.0.borrow_mut().started)
    }

    /// The operation is due: carries it out.
    pub fn complete(&self, token: u64) -> Result<DiskDone, Stuck> {
        let mut state = self.0.borrow_mut();
        if !state.flight.contains_key(&token) {
            return Err(Stuck::Gone);
        }
        if state.faults.hang {
            return Err(Stuck::Hangs);
        }
        let flight = state.flight.remove(&token).expect("looked up above");
        let result = state.carry_out(flight.what);
        Ok(DiskDone { op: flight.op, result })
    }

    /// What a crash leaves.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        if crash == Crash::Power {
            for file in state.files.values_mut() {
                for (sector, bytes) in std::mem::take(&mut file.volatile) {
                    // Some of it may have been written back by itself.
                    if state.rng.chance(50) {
                        file.durable.insert(sector, bytes);
                    }
                }
            }
        }
        state.started.clear();
        for (_, flight) in std::mem::take(&mut state.flight) {
            match flight.what {
                DiskOp::Write { file, at, buf } => {
                    let keep = |rng: &mut Rng| match (crash, rng.between(0, 2)) {
                        (_, 0) => Fate::Lost,
                        (Crash::Process, 1) => Fate::Volatile,
                        (Crash::Process | Crash::Power, _) => Fate::Durable,
                    };
                    state.write(file, at, &buf, keep);
                }
                DiskOp::Remove { file } => {
                    if state.rng.chance(50) {
                        state.files.remove(&file);
                    }
                }
                // It was still under its temporary name, or whole: nobody has been told.
                DiskOp::Prepare { file, len } => {
                    if state.rng.chance(20) && state.room_for(len) {
                        state.files.entry(file).or_insert(SimFile {
                            len,
                            durable: BTreeMap::new(),
                            volatile: BTreeMap::new(),
                        });
                    }
                }
                DiskOp::Read { .. } => {}
            }
        }
        state.faults = Faults::default();
    }
}

/// Why an operation that is due does not end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// The disk hangs: later.
    Hangs,
    /// It has ended, or went with a crash.
    Gone,
}

/// What becomes of one sector of a write that did not end.
enum Fate {
    Lost,
    Volatile,
    Durable,
}

impl State {
    fn room_for(&self, len: u64) -> bool {
        let used: u64 = self.files.values().map(|file| file.len).sum();
        used.saturating_add(len) <= self.capacity_bytes
    }

    fn write(&mut self, file: FileId, at: u64, buf: &BlockBuf, mut fate: impl FnMut(&mut Rng) -> Fate) {
        let Some(file) = self.files.get_mut(&file) else { return };
        for (n, bytes) in buf.bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let sector = at / SECTOR_BYTES as u64 + n as u64;
            let bytes: Sector = bytes.try_into().expect("chunks of that length");
            if sector * SECTOR_BYTES as u64 >= file.len {
                return;
            }
            match fate(&mut self.rng) {
                Fate::Lost => {}
                Fate::Volatile => {
                    file.volatile.insert(sector, bytes);
                }
                Fate::Durable => {
                    file.volatile.remove(&sector);
                    file.durable.insert(sector, bytes);
                }
            }
        }
    }

    fn carry_out(&mut self, what: DiskOp) -> Result<DiskOk, DiskError> {
        let error = |what, file, at, errno, kind, detail: &str| {
            Err(DiskError { kind, what, file, at, errno, detail: detail.to_owned() })
        };
        let missing = |what, file, at| error(what, file, at, Some(libc::ENOENT), DiskErrorKind::Io, "no such file");
        match what {
            DiskOp::Write { file, at, buf } => {
                if !self.files.contains_key(&file) {
                    return missing("write", file, at);
                }
                if self.faults.writes > 0 {
                    self.faults.writes -= 1;
                    self.write(file, at, &buf, |rng| if rng.chance(50) { Fate::Durable } else { Fate::Lost });
                    return error("write", file, at, Some(libc::EIO), DiskErrorKind::Io, "simulated fault");
                }
                // The WAL never writes beyond its files: a real file would grow, which costs what preparing saves.
                assert!(at + buf.bytes.len() as u64 <= self.files[&file].len, "a write beyond the end of {file:?}");
                self.write(file, at, &buf, |_| Fate::Durable);
                Ok(DiskOk::Written)
            }
            DiskOp::Read { file, at, len } => {
                let Some(found) = self.files.get(&file) else { return missing("read", file, at) };
                if self.faults.reads > 0 {
                    self.faults.reads -= 1;
                    return error("read", file, at, Some(libc::EIO), DiskErrorKind::Io, "simulated fault");
                }
                if at + u64::from(len) > found.len {
                    return error("read", file, at, None, DiskErrorKind::Io, "the file ends before that");
                }
                let mut buf = AlignedBuf::zeroed(len as usize);
                found.read(at, buf.bytes_mut());
                Ok(DiskOk::Read(buf.freeze()))
            }
            DiskOp::Prepare { file, len } => {
                if self.files.contains_key(&file) {
                    return error("prepare", file, 0, Some(libc::EEXIST), DiskErrorKind::Io, "it exists");
                }
                if !self.room_for(len) {
                    return error("prepare", file, 0, Some(libc::ENOSPC), DiskErrorKind::NoSpace, "no space left");
                }
                self.files.insert(file, SimFile { len, durable: BTreeMap::new(), volatile: BTreeMap::new() });
                Ok(DiskOk::Prepared)
            }
            DiskOp::Remove { file } => match self.files.remove(&file) {
                Some(_) => Ok(DiskOk::Removed),
                None => missing("remove", file, 0),
            },
        }
    }
}

/// A core's way to its disk: knows the time of the callback it is used in.
pub(crate) struct SimCoreDisk {
    pub disk: SimDisk,
    pub now: Mono,
}

impl Disk for SimCoreDisk {
    fn submit(&mut self, id: OpId, op: DiskOp) {
        self.disk.submit(self.now, id, op);
    }

    fn method(&self) -> DurableMethod {
        DurableMethod::Simulated
    }
}

/// The simulated disk before its core runs.
#[derive(Clone)]
pub struct SimVolume(SimDisk);

impl Volume for SimVolume {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        Ok(self.0.0.borrow().files.iter().map(|(file, found)| (*file, found.len)).collect())
    }

    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let state = self.0.0.borrow();
        let found = state.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        if at + buf.len() as u64 > found.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        found.read(at, buf);
        Ok(())
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        let mut state = self.0.0.borrow_mut();
        let found = state.files.get_mut(&file).ok_or(io::ErrorKind::NotFound)?;
        found.durable.append(&mut found.volatile);
        Ok(())
    }

    fn path(&self, file: FileId) -> String {
        format!("sim/{}", super::files::name(file))
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buf::ChunkPool;
    use crate::limits::WAL_CHUNK_BYTES;

    const FILE: FileId = FileId(1);

    fn prepared(seed: u64) -> SimDisk {
        let disk = SimDisk::new(seed);
        disk.submit(Mono(0), OpId(0), DiskOp::Prepare { file: FILE, len: 16 * BLOCK_BYTES as u64 });
        finish(&disk);
        disk
    }

    fn finish(disk: &SimDisk) -> Vec<DiskDone> {
        disk.take_started().into_iter().map(|(token, _)| disk.complete(token).expect("it does not hang")).collect()
    }

    fn write(disk: &SimDisk, op: u64, byte: u8) {
        let mut pool = ChunkPool::new(WAL_CHUNK_BYTES);
        let mut chunk = pool.take(1).expect("free");
        chunk.extend(&[byte; 4 * BLOCK_BYTES]);
        disk.submit(Mono(0), OpId(op), DiskOp::Write { file: FILE, at: BLOCK_BYTES as u64, buf: chunk.freeze() });
    }

    fn sectors(disk: &SimDisk) -> Vec<u8> {
        let mut buf = vec![0; 6 * BLOCK_BYTES];
        disk.volume().read(FILE, 0, &mut buf).expect("it is there");
        buf.chunks(SECTOR_BYTES)
            .map(|sector| {
                assert!(sector.iter().all(|b| *b == sector[0]), "a sector is written as one");
                sector[0]
            })
            .collect()
    }

    /// Lost if it fails: every test that crashes would show less than it says.
    #[test]
    fn a_completed_write_survives_and_one_in_flight_leaves_any_of_its_sectors() {
        let mut torn = 0;
        for seed in 0..50 {
            for crash in [Crash::Process, Crash::Power] {
                let disk = prepared(seed);
                write(&disk, 1, 1);
                assert!(finish(&disk)[0].result.is_ok());
                write(&disk, 2, 2);
                disk.crash(crash);
                let found = sectors(&disk);
                assert!(found[..8].iter().chain(&found[40..]).all(|b| *b == 0), "nothing beside it is touched");
                assert!(found[8..40].iter().all(|b| [1, 2].contains(b)), "nothing that was complete is lost");
                torn += usize::from(found[8..40].contains(&1) && found[8..40].contains(&2));
                assert_eq!(disk.in_flight(), 0);
            }
        }
        assert!(torn > 50, "{torn} of 100 writes were torn");
    }

    /// Lost if it fails: a recovery that forgets to flush what it has read would pass.
    #[test]
    fn what_a_dead_process_left_is_durable_only_after_a_sync() {
        let mut taken_back = 0;
        for seed in 0..50 {
            for sync in [false, true] {
                let disk = prepared(seed);
                write(&disk, 1, 2);
                disk.crash(Crash::Process);
                let before = sectors(&disk);
                if sync {
                    disk.volume().sync(FILE).expect("it is there");
                }
                disk.crash(Crash::Power);
                if sync {
                    assert_eq!(sectors(&disk), before);
                } else {
                    taken_back += usize::from(sectors(&disk) != before);
                }
            }
        }
        assert!(taken_back > 25, "{taken_back} of 50");
    }

    /// Lost if it fails: the WAL's answer to a bad disk is never tried.
    #[test]
    fn faults_come_when_they_are_asked_for_and_once() {
        let disk = prepared(7);
        disk.fail_writes(1);
        write(&disk, 1, 1);
        write(&disk, 2, 1);
        let ends = finish(&disk);
        assert_eq!(ends[0].result.as_ref().expect_err("asked for").kind, DiskErrorKind::Io);
        assert!(ends[1].result.is_ok());
        disk.set_capacity(20 * BLOCK_BYTES as u64);
        let prepare = |op, file, blocks| {
            disk.submit(Mono(0), OpId(op), DiskOp::Prepare { file: FileId(file), len: blocks * BLOCK_BYTES as u64 });
        };
        prepare(3, 2, 5);
        prepare(4, 2, 4);
        prepare(5, 1, 1);
        let kinds: Vec<_> = finish(&disk).into_iter().map(|end| end.result.map(|_| ()).map_err(|e| e.kind)).collect();
        assert_eq!(kinds, [Err(DiskErrorKind::NoSpace), Ok(()), Err(DiskErrorKind::Io)]);
        disk.hang(true);
        write(&disk, 6, 1);
        let [(token, _)] = disk.take_started()[..] else { panic!("one was started") };
        assert!(matches!(disk.complete(token), Err(Stuck::Hangs)));
        disk.hang(false);
        assert!(disk.complete(token).is_ok());
        assert!(matches!(disk.complete(token), Err(Stuck::Gone)));
    }
}
