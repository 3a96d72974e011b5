//! The floor: the WAL's durable write by itself, to measure what a disk can do before the broker does anything.
//!
//! In:  a directory, then one [`Cell`] at a time. Out: how long each write took until it was on the media. The writes
//! are the broker's: the same files ([`super::background`]), the same operations ([`super::uring`],
//! [`super::blocking`]), the same kind of ring and buffers; on the calling thread, and nothing else is done.
//! The file has no name any more when the first cell runs: whatever ends the process, it is gone.

use super::buf::ChunkPool;
use super::real::{Transfer, What};
use super::uring::{DISK_TAG, RingDisk, Submission, core_ring};
use super::{BlockBuf, DiskDone, DiskErrorKind, DurableMethod, FileId, OpId, background, blocking, files};
use crate::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES, WAL_GROUPS_IN_FLIGHT_MAX};
use crate::rt::{Waker, rng::Rng};
use crate::types::CoreId;
use io_uring::{EnterFlags, IoUring, types};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The floor's only file.
const FILE: FileId = FileId(1);
/// What the directory of a floor is called, before the process's number.
pub const DIR_PREFIX: &str = ".camus-floor-";
/// linux/stat.h
const STATX_DIOALIGN: u32 = 0x2000;
/// Of a cell's time, what goes by before writes count: buffers are registered and queues filled by then.
const WARM_UP_MAX: Duration = Duration::from_millis(100);

/// A way to make a write durable. The broker uses the first four.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum How {
    /// [`DurableMethod::Dsync`]
    RingDsync,
    /// [`DurableMethod::LinkedFsync`]
    RingLinked,
    /// [`DurableMethod::Adaptive`], on a core that rests.
    RingAdaptive,
    /// [`DurableMethod::Blocking`], without the way to the helper thread.
    Blocking,
    /// pwritev2 with RWF_DSYNC: what the broker does not do. One at a time.
    BlockingDsync,
}

impl How {
    pub const ALL: [How; 5] = [How::RingDsync, How::RingLinked, How::RingAdaptive, How::Blocking, How::BlockingDsync];

    /// How a broker with this method writes. `None`: the simulator's.
    pub fn of(method: DurableMethod) -> Option<How> {
        match method {
            DurableMethod::Dsync => Some(How::RingDsync),
            DurableMethod::LinkedFsync => Some(How::RingLinked),
            DurableMethod::Adaptive => Some(How::RingAdaptive),
            DurableMethod::Blocking => Some(How::Blocking),
            DurableMethod::Simulated => None,
        }
    }

    /// Needs io_uring.
    pub fn needs_ring(self) -> bool {
        self.on_ring().is_some()
    }

    fn on_ring(self) -> Option<DurableMethod> {
        match self {
            How::RingDsync => Some(DurableMethod::Dsync),
            How::RingLinked => Some(DurableMethod::LinkedFsync),
            How::RingAdaptive => Some(DurableMethod::Adaptive),
            How::Blocking | How::BlockingDsync => None,
        }
    }
}

/// What is measured at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub how: How,
    /// Of one write: whole blocks, [`WAL_CHUNK_BYTES`] at most.
    pub bytes: usize,
    /// Writes in flight, [`WAL_GROUPS_IN_FLIGHT_MAX`] at most.
    pub depth: usize,
}

/// What was done in a cell's time, the warm-up not counted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Done {
    pub writes: u64,
    pub bytes: u64,
    pub took: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum FloorError {
    /// The file system has no direct I/O.
    #[error("no direct I/O")]
    NoDirect,
    #[error("no space: {0}")]
    NoSpace(String),
    /// io_uring can not be had.
    #[error("no ring: {0}")]
    NoRing(io::Error),
    #[error("{what}: {error}")]
    Io { what: &'static str, error: io::Error },
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
}

fn io_error(what: &'static str) -> impl Fn(io::Error) -> FloorError {
    move |error| match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FloorError::NoSpace(error.to_string()),
        _ => FloorError::Io { what, error },
    }
}

/// Whether this process can have a ring like the broker's; if not, what the kernel said.
pub fn ring_probe() -> io::Result<()> {
    ring().map(drop)
}

fn ring() -> io::Result<IoUring> {
    core_ring(4 * WAL_GROUPS_IN_FLIGHT_MAX as u32, None)
}

/// A pre-written file without a name, and what is written to it. Lives on the thread that made it.
pub struct Floor {
    file: Arc<File>,
    bytes: u64,
    /// For each write in flight its own bytes, which look like no others.
    sources: Vec<BlockBuf>,
    pool: ChunkPool,
    /// Where the file was made. There is nothing there any more.
    dir: PathBuf,
}

impl Floor {
    /// Makes a file of `bytes` (whole chunks) in `dir`, each block written once, and takes its name away again. Gives
    /// up when `stop` is set.
    pub fn prepare(dir: &Path, bytes: u64, stop: &AtomicBool) -> Result<Floor, FloorError> {
        assert!(bytes > 0 && bytes.is_multiple_of(WAL_CHUNK_BYTES as u64), "a floor of {bytes} bytes");
        let own = dir.join(format!("{DIR_PREFIX}{}", std::process::id()));
        remove_leftovers(dir).map_err(io_error("reading the directory"))?;
        fs::create_dir(&own).map_err(io_error("making a directory"))?;
        let made = open_prepared(&own, bytes, stop);
        let removed = fs::remove_dir_all(&own).and_then(|()| background::flush_dir(dir));
        let file = made?;
        removed.map_err(io_error("removing the file's name"))?;
        let mut pool = ChunkPool::new(WAL_GROUPS_IN_FLIGHT_MAX * WAL_CHUNK_BYTES);
        let mut rng = Rng::new(1);
        let sources = (0..WAL_GROUPS_IN_FLIGHT_MAX).map(|_| {
            let mut chunk = pool.take(WAL_CHUNK_BYTES).expect("a chunk for each");
            for _ in 0..WAL_CHUNK_BYTES / 8 {
                chunk.extend(&rng.u64().to_le_bytes());
            }
            chunk.freeze()
        });
        let sources = sources.collect();
        Ok(Floor { file: Arc::new(file), bytes, sources, pool, dir: own })
    }

    /// The alignment that direct I/O asks for here, bytes: of memory, of the offset; both 0 where there is none. `None`
    /// where the kernel does not tell (before 6.1, or the file system).
    pub fn direct_align(&self) -> Option<(u32, u32)> {
        use rustix::fs::{AtFlags, StatxFlags, statx};
        let found = statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(STATX_DIOALIGN)).ok()?;
        let told = found.stx_mask & STATX_DIOALIGN != 0;
        told.then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
    }

    /// Writes for `time`, block after block and from the beginning again at the end, as the log does. `sample` gets
    /// each write's time, ns.
    ///
    /// # Errors
    /// Any failed or short write, and [`FloorError::Stopped`].
    pub fn measure(
        &self,
        cell: Cell,
        time: Duration,
        stop: &AtomicBool,
        sample: &mut dyn FnMut(u64),
    ) -> Result<Done, FloorError> {
        let Cell { how, bytes, depth } = cell;
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES) && bytes <= WAL_CHUNK_BYTES, "writes of {bytes} bytes");
        assert!((1..=WAL_GROUPS_IN_FLIGHT_MAX).contains(&depth), "{depth} writes in flight");
        let mut tally = Tally::new(bytes, time, sample);
        let mut at = 0;
        let mut next = |slot: usize| {
            let source = &self.sources[slot];
            let buf = BlockBuf { bytes: source.bytes.slice(..bytes), registered: source.registered };
            if at + bytes as u64 > self.bytes {
                at = 0;
            }
            let (op, open, what) = (OpId(slot as u64), self.file.clone(), What::Write(buf));
            let transfer = Transfer { op, file: FILE, at, open, what };
            at += bytes as u64;
            transfer
        };
        match how {
            How::RingDsync | How::RingLinked | How::RingAdaptive => {
                let method = how.on_ring().expect("those are the ring's");
                let mut ring = RingSide::new(self, method).map_err(FloorError::NoRing)?;
                let driven = ring.drive(depth, stop, &mut next, &mut tally);
                let drained = ring.drain();
                driven.and(drained)?;
            }
            How::Blocking => {
                while tally.goes_on() && !stop.load(Ordering::Relaxed) {
                    let began = now();
                    let mut failed = None;
                    blocking::transfer_all((0..depth).map(&mut next).collect(), &mut |done| {
                        failed = failed.take().or(ended(&done).err());
                        tally.count(began);
                    });
                    failed.map_or(Ok(()), Err)?;
                }
            }
            How::BlockingDsync => {
                assert_eq!(depth, 1, "a thread that waits does one write at a time");
                while tally.goes_on() && !stop.load(Ordering::Relaxed) {
                    let began = now();
                    write_dsync(&next(0))?;
                    tally.count(began);
                }
            }
        }
        if stop.load(Ordering::Relaxed) { Err(FloorError::Stopped) } else { Ok(tally.done()) }
    }
}

/// A process that was killed while it wrote its file left it behind. One that lives holds it in use.
fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(DIR_PREFIX));
        if ours && files::is_in_use(&entry.path().join(files::name(FILE))).is_ok_and(|used| !used) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// In a directory of its own: made as a segment is, opened as a segment is.
fn open_prepared(dir: &Path, bytes: u64, stop: &AtomicBool) -> Result<File, FloorError> {
    let path = dir.join(files::name(FILE));
    // Asked here, since the broker goes on without.
    let mut options = OpenOptions::new();
    let direct = files::open_direct_only(&path, options.read(true).write(true).create_new(true).mode(0o600));
    let file = direct.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => FloorError::NoDirect,
        _ => io_error("making a file")(error),
    })?;
    files::say_in_use(&file).map_err(io_error("locking the file"))?;
    background::fill(&file, FILE, bytes, stop).map_err(|error| match error.kind {
        _ if stop.load(Ordering::Relaxed) => FloorError::Stopped,
        DiskErrorKind::NoSpace => FloorError::NoSpace(error.detail),
        DiskErrorKind::Io => {
            let cause = error.errno.map_or_else(|| io::Error::other(error.detail), io::Error::from_raw_os_error);
            FloorError::Io { what: "writing the file", error: cause }
        }
    })?;
    background::flush_dir(dir).map_err(io_error("flushing the directory"))?;
    Ok(file)
}

/// The end of a write: anything else than all of it is the end of the measurement.
fn ended(done: &DiskDone) -> Result<(), FloorError> {
    done.result.as_ref().map(|_| ()).map_err(|error| {
        let cause = error.errno.map_or_else(|| io::Error::other(error.detail.clone()), io::Error::from_raw_os_error);
        io_error("a durable write")(cause)
    })
}

fn write_dsync(transfer: &Transfer) -> Result<(), FloorError> {
    let What::Write(buf) = &transfer.what else { unreachable!("the floor only writes") };
    let flags = rustix::io::ReadWriteFlags::DSYNC;
    let moved = loop {
        match rustix::io::pwritev2(&transfer.open, &[IoSlice::new(&buf.bytes)], transfer.at, flags) {
            Err(rustix::io::Errno::INTR) => {}
            ended => break ended.map_err(|error| io_error("a durable write")(error.into()))?,
        }
    };
    if moved == buf.bytes.len() {
        return Ok(());
    }
    let error = io::Error::other(files::short("write", FILE, transfer.at, moved, buf.bytes.len()).detail);
    Err(FloorError::Io { what: "a durable write", error })
}

/// Which writes count, and for how long it goes on.
struct Tally<'a> {
    warm: Instant,
    end: Instant,
    bytes: usize,
    sample: &'a mut dyn FnMut(u64),
    writes: u64,
    last: Instant,
}

impl<'a> Tally<'a> {
    fn new(bytes: usize, time: Duration, sample: &'a mut dyn FnMut(u64)) -> Tally<'a> {
        let warm = now() + WARM_UP_MAX.min(time / 4);
        Tally { warm, end: warm + time, bytes, sample, writes: 0, last: warm }
    }

    fn goes_on(&self) -> bool {
        now() < self.end
    }

    /// A write that was begun then has ended. Those of the warm-up do not count; those that end late do.
    fn count(&mut self, began: Instant) {
        let ended = now();
        if began >= self.warm {
            self.writes += 1;
            self.last = ended;
            (self.sample)(u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn done(&self) -> Done {
        Done { writes: self.writes, bytes: self.writes * self.bytes as u64, took: self.last - self.warm }
    }
}

#[allow(clippy::disallowed_methods, reason = "it measures: time is what comes out")]
fn now() -> Instant {
    Instant::now()
}

/// A ring and a core's disk on it, without the core.
struct RingSide {
    ring: IoUring,
    /// Always there, but in `drop`.
    disk: Option<RingDisk>,
}

impl RingSide {
    fn new(floor: &Floor, method: DurableMethod) -> io::Result<RingSide> {
        let ring = ring()?;
        let (waker, stats, regions) = (Waker::new(|| {}), Arc::default(), Some(floor.pool.regions()));
        let disk = RingDisk::new(CoreId(0), floor.dir.clone(), method, regions, waker, stats, &ring.submitter());
        Ok(RingSide { ring, disk: Some(disk) })
    }

    fn disk(&mut self) -> &mut RingDisk {
        self.disk.as_mut().expect("it is there until it is dropped")
    }

    /// Keeps `depth` writes in flight until the time is up; those in flight then are waited for.
    fn drive(
        &mut self,
        depth: usize,
        stop: &AtomicBool,
        next: &mut dyn FnMut(usize) -> Transfer,
        tally: &mut Tally<'_>,
    ) -> Result<(), FloorError> {
        let mut began = [now(); WAL_GROUPS_IN_FLIGHT_MAX];
        let mut free: Vec<usize> = (0..depth).collect();
        loop {
            if tally.goes_on() && !stop.load(Ordering::Relaxed) {
                for slot in free.drain(..) {
                    began[slot] = now();
                    self.disk().start_on(next(slot));
                }
            }
            if free.len() == depth {
                return Ok(());
            }
            self.turn()?;
            while let Some(done) = self.disk().next_done() {
                ended(&done)?;
                let slot = usize::try_from(done.op.0).expect("a slot");
                tally.count(began[slot]);
                free.push(slot);
            }
        }
    }

    /// After an error: what is in flight ends before the memory goes.
    fn drain(&mut self) -> Result<(), FloorError> {
        while self.disk().outstanding() > 0 {
            if self.disk().next_done().is_none() {
                self.turn()?;
            }
        }
        Ok(())
    }

    /// Submits what waits and takes what has ended; waits for one at least.
    fn turn(&mut self) -> Result<(), FloorError> {
        let disk = self.disk.as_mut().expect("it is there until it is dropped");
        let mut submissions = vec![];
        disk.issue(&self.ring.submitter(), true, |submission| submissions.push(submission));
        let queued = {
            let mut queue = self.ring.submission();
            for submission in submissions {
                // SAFETY: what an entry names (the bytes and the file, held by the disk's flight) stays until its
                // completion is seen; a disk that is dropped before that is leaked (`drop` below).
                let pushed = unsafe {
                    match submission {
                        Submission::One(entry) => queue.push(&entry),
                        Submission::Linked(first, second) => queue.push_multiple(&[first, second]),
                    }
                };
                pushed.expect("a ring has room for all that can be in flight");
            }
            queue.len()
        };
        let no_iowait = self.ring.params().is_feature_no_iowait();
        let flags = if no_iowait { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
        let args = types::SubmitArgs::new();
        match self.ring.submitter().submit_with_args_and_flags(1, &args, flags) {
            Ok(taken) if taken < queued => disk.cut_short(),
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
            Err(error) => return Err(FloorError::Io { what: "io_uring_enter", error }),
        }
        for entry in self.ring.completion() {
            disk.completed(entry.user_data() & !DISK_TAG, entry.result());
        }
        Ok(())
    }
}

impl Drop for RingSide {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.take_if(|disk| disk.outstanding() > 0) {
            // The kernel may still read what it was given.
            std::mem::forget(disk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn prepared(dir: &Path) -> Floor {
        Floor::prepare(dir, 2 * MIB, &AtomicBool::new(false)).expect("a file")
    }

    /// Lost if it fails: the figure that all others are held against, or a file that stays on a full disk for ever.
    #[test]
    fn each_way_writes_durably_and_leaves_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let floor = prepared(dir.path());
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0, "it has no name already");
        for how in How::ALL {
            for (bytes, depth) in [(BLOCK_BYTES, 1), (WAL_CHUNK_BYTES, 4)] {
                if how == How::BlockingDsync && depth > 1 {
                    continue;
                }
                let cell = Cell { how, bytes, depth };
                let mut samples = 0;
                let stop = AtomicBool::new(false);
                let measured = floor.measure(cell, Duration::from_millis(100), &stop, &mut |ns| {
                    assert!(ns > 0);
                    samples += 1;
                });
                let done = match measured {
                    Err(FloorError::NoRing(_)) if how.needs_ring() => continue,
                    measured => measured.expect("written"),
                };
                assert_eq!(done.writes, samples, "{cell:?}");
                assert!(samples > 0 && done.bytes == samples * bytes as u64, "{cell:?}: {done:?}");
            }
        }
        // What was written last is there: the writes were no pretence.
        let mut first = crate::io::buf::AlignedBuf::zeroed(BLOCK_BYTES);
        std::os::unix::fs::FileExt::read_exact_at(&*floor.file, first.bytes_mut(), 0).expect("read");
        assert_eq!(first.bytes_mut(), &floor.sources[0].bytes[..BLOCK_BYTES]);
    }

    /// Lost if it fails: each killed measurement costs 64 MiB of the disk for ever, or one takes the other's file.
    #[test]
    fn what_a_killed_one_left_is_removed_and_what_is_in_use_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let (dead, alive) = (dir.path().join(".camus-floor-1"), dir.path().join(".camus-floor-2"));
        for own in [&dead, &alive] {
            fs::create_dir(own).expect("made");
        }
        fs::write(dead.join(files::name(FILE)), "").expect("written");
        let held = File::create(alive.join(files::name(FILE))).expect("made");
        files::say_in_use(&held).expect("locked");
        prepared(dir.path());
        assert!(!dead.exists() && alive.exists());
    }

    /// Lost if it fails: Ctrl-C would leave a file behind, or not end it.
    #[test]
    fn it_stops_when_told_and_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = AtomicBool::new(true);
        assert!(matches!(Floor::prepare(dir.path(), MIB, &stop), Err(FloorError::Stopped)));
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        let floor = prepared(dir.path());
        let cell = Cell { how: How::Blocking, bytes: BLOCK_BYTES, depth: 1 };
        let ended = floor.measure(cell, Duration::from_secs(3600), &stop, &mut |_| {});
        assert!(matches!(ended, Err(FloorError::Stopped)));
    }

    /// Lost if it fails: a disk that fails would be measured as a fast one, or memory would go that the kernel reads.
    #[test]
    fn a_failed_write_ends_a_cell_with_its_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut floor = prepared(dir.path());
        let path = dir.path().join("read-only");
        fs::write(&path, [0; BLOCK_BYTES]).expect("written");
        floor.file = Arc::new(File::open(&path).expect("opened"));
        for how in How::ALL {
            let depth = if how == How::BlockingDsync { 1 } else { 4 };
            let cell = Cell { how, bytes: BLOCK_BYTES, depth };
            let ended = floor.measure(cell, Duration::from_secs(60), &AtomicBool::new(false), &mut |_| {});
            match ended {
                Err(FloorError::NoRing(_)) if how.needs_ring() => {}
                Err(FloorError::Io { what: "a durable write", error }) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{cell:?}");
                }
                other => panic!("{cell:?}: {other:?}"),
            }
        }
    }

    /// Lost if it fails: a disk without room or a directory without permission would be told as something else.
    #[test]
    fn what_does_not_let_it_is_told_apart() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = AtomicBool::new(false);
        let missing = Floor::prepare(&dir.path().join("nowhere"), MIB, &stop).err().expect("refused");
        assert!(matches!(&missing, FloorError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound));
        let full = Floor::prepare(dir.path(), 1 << 50, &stop).err().expect("refused");
        assert!(matches!(full, FloorError::NoSpace(_) | FloorError::Io { .. }), "{full}");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }
}
