//! A simulated disk: what is durable, what only looks so, and what a crash leaves of a write in flight.
//!
//! Time is the world's (`rt/sim.rs`), chance is seeded. A write goes into the device's cache, where reads find it, and
//! from there to the media by a flush that covers its sectors and nothing else in flight; it ends after that, so what
//! has ended is durable. At a crash each sector of a write that is not in the cache yet is lost, is on the media, or
//! (when only the process died) in the cache; what is in the cache stays there when the process dies, and when power is
//! lost any part of it may be gone unless [`Volume::sync`] came first. [`SimDisk`] is a handle; the world and the test
//! share it.
//!
//! Faults are off until a test asks for them, and off again after a crash. Writes that are lost, misdirected or torn
//! though they report success, and rot, are damage: no log masks it with one copy, and all that can be asked for is
//! that it is found. An old image that is brought back ([`SimDisk::bring_back`]) is damage that not even that can be
//! asked of: it is whole.
//! Files: `sim/media.rs` the sectors.

use super::{BlockBuf, Disk, DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, DurableMethod, FileId, OpId, Volume};
use crate::io::buf::AlignedBuf;
use crate::limits::BLOCK_BYTES;
use crate::rt::rng::Rng;
use crate::types::Mono;
use media::{Fate, SimFile, Tear, sectors_of};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

mod media;
#[cfg(test)]
mod tests;

/// What a device writes as one.
pub const SECTOR_BYTES: usize = 512;

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
    damage: Damage,
}

#[derive(Default)]
struct Faults {
    hang: bool,
    writes: u32,
    reads: u32,
    slow: Duration,
    spike_percent: u64,
    spike_max: Duration,
    lost: u32,
    misdirected: u32,
    torn: u32,
}

/// What was done to a disk that no log masks with one copy: for the judgement on what is served after it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Damage {
    /// Writes that reported success and are not there, or not all of them, or elsewhere.
    pub writes: u64,
    /// Bits that were flipped.
    pub bits: u64,
    /// Times that an old image was brought back.
    pub images: u64,
}

/// What a disk had on its media at some time.
#[derive(Clone)]
pub struct DiskImage(BTreeMap<FileId, SimFile>);

struct Flight {
    op: OpId,
    what: DiskOp,
    ends: Mono,
    /// Of a write that is in the cache: the sectors that its flush covers.
    cached: Option<Range<u64>>,
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
            damage: Damage::default(),
        })))
    }

    pub fn volume(&self) -> SimVolume {
        SimVolume(self.clone())
    }

    /// Files beyond this many bytes in all can not be prepared (ENOSPC). Those that are there stay.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.borrow_mut().capacity_bytes = bytes;
    }

    /// The next `n` writes fail, on their way to the cache (half of these are short) or in their flush, with EIO; any
    /// of their sectors may be on the media all the same.
    pub fn fail_writes(&self, n: u32) {
        self.0.borrow_mut().faults.writes = n;
    }

    /// The next `n` reads fail with EIO.
    pub fn fail_reads(&self, n: u32) {
        self.0.borrow_mut().faults.reads = n;
    }

    /// The next `n` writes report success, and nothing of them reaches the cache or the media.
    pub fn lose_writes(&self, n: u32) {
        self.0.borrow_mut().faults.lost = n;
    }

    /// The next `n` writes report success and go to another block of the same file.
    pub fn misdirect_writes(&self, n: u32) {
        self.0.borrow_mut().faults.misdirected = n;
    }

    /// The next `n` writes report success, and about half of their sectors are there.
    pub fn tear_writes(&self, n: u32) {
        self.0.borrow_mut().faults.torn = n;
    }

    /// While on, nothing ends. What is due then ends when it is off again.
    pub fn hang(&self, on: bool) {
        self.0.borrow_mut().faults.hang = on;
    }

    /// Added to every operation from now on.
    pub fn slow_down(&self, by: Duration) {
        self.0.borrow_mut().faults.slow = by;
    }

    /// From now on so many operations in a hundred take up to `up_to` longer.
    pub fn spike(&self, percent: u64, up_to: Duration) {
        let mut state = self.0.borrow_mut();
        (state.faults.spike_percent, state.faults.spike_max) = (percent, up_to);
    }

    /// Flips a bit on the media.
    pub fn rot(&self, file: FileId, at: u64) {
        let mut state = self.0.borrow_mut();
        let file = state.files.get_mut(&file).expect("the file exists");
        assert!(at < file.len);
        let sector = file.durable.entry(at / SECTOR_BYTES as u64).or_insert_with(|| Box::new([0; SECTOR_BYTES]));
        sector[(at % SECTOR_BYTES as u64) as usize] ^= 1;
        state.damage.bits += 1;
    }

    /// Flips a bit of a sector that was written: which file, and which byte. `None`: nothing is on the media.
    pub fn rot_somewhere(&self) -> Option<(FileId, u64)> {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let mut written: Vec<(&FileId, &mut SimFile)> =
            state.files.iter_mut().filter(|(_, file)| !file.durable.is_empty()).collect();
        let last = written.len().checked_sub(1)?;
        let (file, found) = &mut written[state.rng.between(0, last as u64) as usize];
        let nth = state.rng.between(0, found.durable.len() as u64 - 1) as usize;
        let (sector, bytes) = found.durable.iter_mut().nth(nth).expect("as many as that");
        let (byte, bit) = (state.rng.between(0, SECTOR_BYTES as u64 - 1), state.rng.between(0, 7));
        bytes[byte as usize] ^= 1u8 << bit;
        state.damage.bits += 1;
        Some((**file, *sector * SECTOR_BYTES as u64 + byte))
    }

    /// What is on the media now.
    pub fn image(&self) -> DiskImage {
        let state = self.0.borrow();
        DiskImage(state.files.iter().map(|(file, found)| (*file, found.on_media())).collect())
    }

    /// The disk is as it was then, and what was written since is gone.
    ///
    /// # Panics
    /// If it is in use.
    pub fn bring_back(&self, image: &DiskImage) {
        let mut state = self.0.borrow_mut();
        assert!(state.flight.is_empty(), "somebody uses the disk");
        state.files = image.0.clone();
        state.damage.images += 1;
    }

    /// What was done to this disk since it was new.
    pub fn damage(&self) -> Damage {
        self.0.borrow().damage
    }

    /// Operations without an end.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().flight.len()
    }

    /// Starts an operation at the time `now`. With [`Self::take_started`] and [`Self::complete`] this is the world's
    /// side; a test of the WAL alone may play the world.
    pub fn submit(&self, now: Mono, op: OpId, what: DiskOp) {
        let mut state = self.0.borrow_mut();
        super::check(&what);
        assert!(state.flight.values().all(|flight| flight.op != op), "{op:?} is in flight already");
        let time = state.time(&what);
        let ends = now + time;
        // A write is in the cache some time before it is flushed.
        let due = match &what {
            DiskOp::Write { .. } => now + time * state.rng.between(10, 90) as u32 / 100,
            DiskOp::Read { .. } | DiskOp::Prepare { .. } | DiskOp::Remove { .. } => ends,
        };
        let token = state.next_token;
        state.next_token += 1;
        state.flight.insert(token, Flight { op, what, ends, cached: None });
        state.started.push((token, due));
    }

    /// What was started since the last call: its token, and when it is due.
    pub fn take_started(&self) -> Vec<(u64, Mono)> {
        std::mem::take(&mut self.0.borrow_mut().started)
    }

    /// The operation is due: carries it out. A write is due twice, and goes into the cache first.
    pub fn complete(&self, token: u64) -> Result<DiskDone, Stuck> {
        let mut state = self.0.borrow_mut();
        if !state.flight.contains_key(&token) {
            return Err(Stuck::Gone);
        }
        if state.faults.hang {
            return Err(Stuck::Hangs);
        }
        let mut flight = state.flight.remove(&token).expect("looked up above");
        match state.go_on(&mut flight) {
            Some(result) => Ok(DiskDone { op: flight.op, result }),
            None => {
                let ends = flight.ends;
                state.flight.insert(token, flight);
                Err(Stuck::Flushes(ends))
            }
        }
    }

    /// What a crash leaves.
    pub fn crash(&self, crash: Crash) {
        let mut state = self.0.borrow_mut();
        state.started.clear();
        state.faults = Faults::default();
        for flight in std::mem::take(&mut state.flight).into_values() {
            state.cut_off(flight, crash);
        }
        if crash == Crash::Power {
            // What earlier processes left.
            let files: Vec<FileId> = state.files.keys().copied().collect();
            for file in files {
                state.lose_cache(file, 0..u64::MAX);
            }
        }
    }
}

/// Why an operation that is due does not end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stuck {
    /// The disk hangs: later.
    Hangs,
    /// It is a write that is in the cache now: visible, and durable only when it has ended, which is due then.
    Flushes(Mono),
    /// It has ended, or went with a crash.
    Gone,
}

fn error(what: &'static str, file: FileId, at: u64, errno: i32, kind: DiskErrorKind, detail: &str) -> DiskError {
    DiskError { kind, what, file, at, errno: Some(errno), detail: detail.to_owned() }
}

fn missing(what: &'static str, file: FileId, at: u64) -> DiskError {
    error(what, file, at, libc::ENOENT, DiskErrorKind::Io, "no such file")
}

fn simulated(what: &'static str, file: FileId, at: u64) -> DiskError {
    error(what, file, at, libc::EIO, DiskErrorKind::Io, "simulated fault")
}

/// One of so many that were asked for, if there is one left.
fn take_one(left: &mut u32) -> bool {
    let any = *left > 0;
    *left -= u32::from(any);
    any
}

impl State {
    fn room_for(&self, len: u64) -> bool {
        let used: u64 = self.files.values().map(|file| file.len).sum();
        used.saturating_add(len) <= self.capacity_bytes
    }

    /// What an operation takes.
    fn time(&mut self, what: &DiskOp) -> Duration {
        let us = match what {
            DiskOp::Write { buf, .. } => self.rng.between(30, 300) + buf.bytes.len() as u64 / 1_000,
            DiskOp::Read { len, .. } => self.rng.between(20, 200) + u64::from(*len) / 1_000,
            DiskOp::Prepare { len, .. } => self.rng.between(1_000, 20_000) + len / 500,
            DiskOp::Remove { .. } => self.rng.between(100, 5_000),
        };
        // A device that collects its garbage now and then.
        let us = if self.rng.chance(1) { us + self.rng.between(5_000, 50_000) } else { us };
        let spike = if self.faults.spike_percent > 0 && self.rng.chance(self.faults.spike_percent) {
            self.rng.between(0, self.faults.spike_max.as_micros() as u64)
        } else {
            0
        };
        Duration::from_micros(us + spike) + self.faults.slow
    }

    /// A write that is not in the cache goes there, and `None` says so; all else is done.
    fn go_on(&mut self, flight: &mut Flight) -> Option<Result<DiskOk, DiskError>> {
        match (&flight.what, flight.cached.clone()) {
            (DiskOp::Write { file, at, buf }, None) => match self.cache(*file, *at, buf) {
                Ok(sectors) => {
                    flight.cached = Some(sectors);
                    None
                }
                Err(error) => Some(Err(error)),
            },
            (DiskOp::Write { file, at, .. }, Some(sectors)) => Some(self.flush(*file, *at, sectors)),
            (DiskOp::Read { file, at, len }, _) => Some(self.read(*file, *at, *len)),
            (DiskOp::Prepare { file, len }, _) => Some(self.prepare(*file, *len)),
            (DiskOp::Remove { file }, _) => Some(match self.files.remove(file) {
                Some(_) => Ok(DiskOk::Removed),
                None => Err(missing("remove", *file, 0)),
            }),
        }
    }

    fn write(&mut self, file: FileId, at: u64, buf: &BlockBuf, mut fate: impl FnMut(u64, &mut Rng) -> Fate) {
        if let Some(file) = self.files.get_mut(&file) {
            file.write(at, buf, |sector| fate(sector, &mut self.rng));
        }
    }

    /// The first half of a write. The sectors that it took in the cache.
    fn cache(&mut self, file: FileId, at: u64, buf: &BlockBuf) -> Result<Range<u64>, DiskError> {
        let Some(found) = self.files.get(&file) else { return Err(missing("write", file, at)) };
        let (file_len, len) = (found.len, buf.bytes.len() as u64);
        // The WAL never writes beyond its files: a real file would grow, which costs what preparing saves.
        assert!(at + len <= file_len, "a write beyond the end of {file:?}");
        // Else it fails in its flush.
        if self.faults.writes > 0 && self.rng.chance(50) {
            self.faults.writes -= 1;
            let mut tear = Tear::drawn(&mut self.rng);
            self.write(file, at, buf, |sector, rng| match tear.keeps(sector, rng) {
                true if rng.chance(50) => Fate::Volatile,
                true => Fate::Durable,
                false => Fate::Lost,
            });
            if self.rng.chance(50) {
                return Err(super::files::short("write", file, at, buf.bytes.len() / 2, buf.bytes.len()));
            }
            return Err(simulated("write", file, at));
        }
        if take_one(&mut self.faults.lost) {
            self.damage.writes += 1;
            return Ok(0..0);
        }
        let mut to = at;
        if take_one(&mut self.faults.misdirected) {
            self.damage.writes += 1;
            match self.elsewhere(at, len, file_len) {
                Some(place) => to = place,
                None => return Ok(0..0),
            }
        }
        let mut tear = Tear::nowhere();
        if take_one(&mut self.faults.torn) {
            self.damage.writes += 1;
            tear = Tear::in_half(&mut self.rng);
        }
        self.write(file, to, buf, |sector, rng| if tear.keeps(sector, rng) { Fate::Volatile } else { Fate::Lost });
        Ok(sectors_of(to, len))
    }

    /// Another block where so many bytes fit into the file.
    fn elsewhere(&mut self, at: u64, len: u64, file_len: u64) -> Option<u64> {
        let block_bytes = BLOCK_BYTES as u64;
        let others = (file_len - len) / block_bytes;
        if others == 0 {
            return None;
        }
        let block = self.rng.between(0, others - 1);
        let place = if block < at / block_bytes { block } else { block + 1 };
        Some(place * block_bytes)
    }

    /// The second half: what the write has in the cache is on the media, and nothing else for its sake.
    fn flush(&mut self, file: FileId, at: u64, sectors: Range<u64>) -> Result<DiskOk, DiskError> {
        let Some(found) = self.files.get_mut(&file) else { return Err(missing("write", file, at)) };
        if take_one(&mut self.faults.writes) {
            // The rest stays in the cache, for as long as there is power.
            let mut tear = Tear::drawn(&mut self.rng);
            let rng = &mut self.rng;
            found.settle(sectors, |sector| if tear.keeps(sector, rng) { Fate::Durable } else { Fate::Volatile });
            return Err(simulated("write", file, at));
        }
        found.settle(sectors, |_| Fate::Durable);
        Ok(DiskOk::Written)
    }

    fn read(&mut self, file: FileId, at: u64, len: u32) -> Result<DiskOk, DiskError> {
        let Some(found) = self.files.get(&file) else { return Err(missing("read", file, at)) };
        if take_one(&mut self.faults.reads) {
            return Err(simulated("read", file, at));
        }
        if at + u64::from(len) > found.len {
            let detail = "the file ends before that".to_owned();
            return Err(DiskError { kind: DiskErrorKind::Io, what: "read", file, at, errno: None, detail });
        }
        let mut buf = AlignedBuf::zeroed(len as usize);
        found.read(at, buf.bytes_mut());
        Ok(DiskOk::Read(buf.freeze()))
    }

    fn prepare(&mut self, file: FileId, len: u64) -> Result<DiskOk, DiskError> {
        if self.files.contains_key(&file) {
            return Err(error("prepare", file, 0, libc::EEXIST, DiskErrorKind::Io, "it exists"));
        }
        if !self.room_for(len) {
            return Err(error("prepare", file, 0, libc::ENOSPC, DiskErrorKind::NoSpace, "no space left"));
        }
        self.files.insert(file, SimFile::new(len));
        Ok(DiskOk::Prepared)
    }

    /// A crash in the middle of an operation.
    fn cut_off(&mut self, flight: Flight, crash: Crash) {
        match (flight.what, flight.cached) {
            (DiskOp::Write { file, .. }, Some(sectors)) => {
                if crash == Crash::Power {
                    self.lose_cache(file, sectors);
                }
            }
            (DiskOp::Write { file, at, buf }, None) => {
                let mut tear = Tear::drawn(&mut self.rng);
                self.write(file, at, &buf, |sector, rng| match (tear.keeps(sector, rng), crash) {
                    (false, _) => Fate::Lost,
                    (true, Crash::Process) if rng.chance(50) => Fate::Volatile,
                    (true, Crash::Process | Crash::Power) => Fate::Durable,
                });
            }
            (DiskOp::Remove { file }, _) => {
                if self.rng.chance(50) {
                    self.files.remove(&file);
                }
            }
            // It was still under its temporary name, or whole: nobody has been told.
            (DiskOp::Prepare { file, len }, _) => {
                if self.rng.chance(20) && self.room_for(len) {
                    self.files.entry(file).or_insert(SimFile::new(len));
                }
            }
            (DiskOp::Read { .. }, _) => {}
        }
    }

    /// Power is lost: of these sectors, those in the cache are gone, but for what was written back by itself.
    fn lose_cache(&mut self, file: FileId, sectors: Range<u64>) {
        let mut tear = Tear::drawn(&mut self.rng);
        let Some(found) = self.files.get_mut(&file) else { return };
        let rng = &mut self.rng;
        found.settle(sectors, |sector| if tear.keeps(sector, rng) { Fate::Durable } else { Fate::Lost });
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
        state.files.get_mut(&file).ok_or(io::ErrorKind::NotFound)?.sync();
        Ok(())
    }

    fn path(&self, file: FileId) -> String {
        format!("sim/{}", super::files::name(file))
    }
}

const _: () = assert!(BLOCK_BYTES.is_multiple_of(SECTOR_BYTES));
