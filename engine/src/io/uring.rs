//! The disk on the core's own ring.
//!
//! A write is durable when its [`DiskDone`] comes: with `RWF_DSYNC` in one operation, or as a write linked with a flush
//! in two. Of the two both ends are waited for. The flush's alone does not do, though the kernel cancels it behind a
//! write that failed: what a write lacks the kernel tries again by itself, and if that moves nothing, the write counts
//! as done, and the flush is run. Any error, a short transfer included, is the end: nothing is tried again here.
//!
//! Both ways are as durable; on a device without FUA they differ in who waits for whom (docs/adr/0002). One operation
//! is finished by the kernel alone, while the core sleeps; but the kernel's worker that does it has to get the core's
//! CPU, which it may not while the core has work. So a write that is alone while the core rests takes that way, and
//! the others the other.
//!
//! The shell takes what is to be submitted from [`RingDisk::issue`] and brings completions to [`RingDisk::completed`].
//! Files are made and removed by `background.rs`.

use super::buf::PoolRegions;
use super::files;
use super::real::{RealDisk, Transfer, Transfers, What};
use super::{BlockBuf, DiskDone, DiskOk, DurableMethod};
use crate::rt::Waker;
use crate::stats::CoreStats;
use crate::types::CoreId;
use io_uring::{IoUring, Submitter, opcode, squeue, types};
use slab::Slab;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Set in the user data of every disk operation, in no other's.
pub(crate) const DISK_TAG: u64 = 1 << 63;
/// Tells a write's flush from the write.
const FLUSH_TAG: u64 = 1 << 32;

/// A ring as a core has it: of one thread, which is told of completions when it asks. `completions`: `None` for the
/// kernel's choice. ENOSYS where it would lose completions.
pub(crate) fn core_ring(entries: u32, completions: Option<u32>) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    if let Some(completions) = completions {
        builder.setup_cqsize(completions);
    }
    let ring = builder.build(entries)?;
    let is_whole = ring.params().is_feature_nodrop() && ring.params().is_feature_ext_arg();
    if is_whole { Ok(ring) } else { Err(io::Error::from_raw_os_error(libc::ENOSYS)) }
}

/// What goes to the ring as one.
pub(crate) enum Submission {
    One(squeue::Entry),
    /// The second runs after the first has succeeded, or is cancelled. They must enter the kernel together.
    Linked(squeue::Entry, squeue::Entry),
}

/// The disk of one core. Lives on the core's thread, in its shell.
pub(crate) type RingDisk = RealDisk<RingTransfers>;

/// The reads and writes of a [`RingDisk`].
pub(crate) struct RingTransfers {
    method: DurableMethod,
    /// Those that have no end yet. An entry keeps what the kernel was given.
    flight: Slab<Flight>,
    /// Of these, what is not submitted yet.
    ready: VecDeque<usize>,
    registry: Registry,
    stats: Arc<CoreStats>,
}

struct Flight {
    /// The kernel looks its descriptor up when the operation is submitted.
    transfer: Transfer,
    /// A write that was handed over with a flush behind it.
    linked: bool,
    /// The flush may have run beside its write.
    cut: bool,
    /// Of a linked write: what the first of its two ends said, the write's or the flush's.
    first_end: Option<(u64, i32)>,
}

/// Which chunks of the pool are registered with the ring. A chunk is registered when it is first written, so that
/// memory is touched and pinned as it is needed.
struct Registry {
    regions: Option<PoolRegions>,
    known: Vec<bool>,
    /// It worked so far.
    on: bool,
}

impl RingDisk {
    pub(crate) fn new(
        core: CoreId,
        dir: PathBuf,
        method: DurableMethod,
        regions: Option<PoolRegions>,
        waker: Waker,
        stats: Arc<CoreStats>,
        ring: &Submitter<'_>,
    ) -> RingDisk {
        let is_ours = matches!(method, DurableMethod::Dsync | DurableMethod::LinkedFsync | DurableMethod::Adaptive);
        assert!(is_ours, "{method} is not for a ring");
        let registry = Registry::new(regions, ring);
        let (flight, ready) = (Slab::new(), VecDeque::new());
        let transfers = RingTransfers { method, flight, ready, registry, stats };
        RealDisk::with(transfers, core, dir, waker)
    }

    /// Hands everything that was submitted since the last call to the ring. `rests`: the core has nothing else to do
    /// now.
    pub(crate) fn issue(&mut self, ring: &Submitter<'_>, rests: bool, mut push: impl FnMut(Submission)) {
        let RingTransfers { method, flight, ready, registry, stats } = &mut self.transfers;
        let is_alone = rests && flight.len() == 1;
        while let Some(key) = ready.pop_front() {
            let Flight { transfer, linked, .. } = &mut flight[key];
            let (fd, tag) = (types::Fd(transfer.open.as_raw_fd()), DISK_TAG | key as u64);
            match &mut transfer.what {
                What::Read(buf) => {
                    let len = u32::try_from(buf.len()).expect("checked when it was submitted");
                    push(Submission::One(
                        opcode::Read::new(fd, buf.as_mut_ptr(), len).offset(transfer.at).build().user_data(tag),
                    ));
                }
                What::Write(buf) => {
                    let (from, len) = (buf.bytes.as_ptr(), buf.bytes.len() as u32);
                    let dsync = match method {
                        DurableMethod::Dsync => true,
                        DurableMethod::Adaptive => is_alone,
                        _ => false,
                    };
                    *linked = !dsync;
                    let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                    let write = match registry.index(buf, ring) {
                        Some(index) => {
                            stats.turns.writes_registered.fetch_add(1, Ordering::Relaxed);
                            opcode::WriteFixed::new(fd, from, len, index).offset(transfer.at).rw_flags(flags).build()
                        }
                        None => {
                            stats.turns.writes_unregistered.fetch_add(1, Ordering::Relaxed);
                            opcode::Write::new(fd, from, len).offset(transfer.at).rw_flags(flags).build()
                        }
                    };
                    let write = write.user_data(tag);
                    push(if dsync {
                        Submission::One(write)
                    } else {
                        let flush = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
                        let write = write.flags(squeue::Flags::IO_LINK);
                        Submission::Linked(write, flush.user_data(tag | FLUSH_TAG))
                    });
                }
            }
        }
    }

    /// A completion whose user data has [`DISK_TAG`]: the end of an operation, or one of the two of a linked write.
    pub(crate) fn completed(&mut self, data: u64, result: i32) {
        let key = (data & u64::from(u32::MAX)) as usize;
        let flight = &mut self.transfers.flight[key];
        if flight.linked && flight.first_end.is_none() {
            flight.first_end = Some((data, result));
            return;
        }
        let Flight { transfer, cut, first_end, .. } = self.transfers.flight.remove(key);
        let Transfer { op, file, at, what, .. } = &transfer;
        let bytes = match what {
            What::Write(buf) => buf.bytes.len(),
            What::Read(buf) => buf.len(),
        };
        let judged = |(data, result): (u64, i32)| {
            let wanted = if data & FLUSH_TAG != 0 { 0 } else { bytes };
            match usize::try_from(result) {
                Ok(moved) if moved == wanted => Ok(()),
                Ok(moved) => Err(files::short(what.name(), *file, *at, moved, wanted)),
                Err(_) => Err(files::error(what.name(), *file, *at, &io::Error::from_raw_os_error(-result))),
            }
        };
        // The write's end says what went wrong; its flush is only cancelled then.
        let (write, flush) = match first_end {
            Some(first) if first.0 & FLUSH_TAG != 0 => (judged((data, result)), judged(first)),
            Some(first) => (judged(first), judged((data, result))),
            None => (judged((data, result)), Ok(())),
        };
        let result = match write.and(flush) {
            Ok(()) if cut => {
                let cause = io::Error::other("the kernel ran out of memory between the write and its flush");
                Err(files::error(what.name(), *file, *at, &cause))
            }
            result => result,
        };
        let op = *op;
        let ok = |()| match transfer.what {
            What::Write(_) => DiskOk::Written,
            What::Read(buf) => DiskOk::Read(buf.freeze()),
        };
        self.done.push_back(DiskDone { op, result: result.map(ok) });
    }

    /// The kernel took a part of the submission queue only, for want of memory. Where it stopped, a link may have been
    /// cut: the flush is then an operation of its own, which may run beside its write and says nothing about it. Which
    /// one is not known, so all that are in flight fail when they end, and with them the log.
    pub(crate) fn cut_short(&mut self) {
        let linked = self.transfers.flight.iter_mut().filter(|(_, flight)| flight.linked);
        linked.for_each(|(_, flight)| flight.cut = true);
    }
}

impl Transfers for RingTransfers {
    fn start(&mut self, transfer: Transfer) -> io::Result<()> {
        let key = self.flight.insert(Flight { transfer, linked: false, cut: false, first_end: None });
        assert!(u32::try_from(key).is_ok(), "fewer than 2^32 operations are in flight");
        self.ready.push_back(key);
        Ok(())
    }

    /// The ring tells of every end, and [`RingDisk::completed`] keeps it.
    fn next_done(&mut self) -> Option<DiskDone> {
        None
    }

    fn outstanding(&self) -> usize {
        self.flight.len()
    }

    fn method(&self) -> DurableMethod {
        self.method
    }
}

impl Registry {
    fn new(regions: Option<PoolRegions>, ring: &Submitter<'_>) -> Registry {
        let chunks = regions.as_ref().map_or(0, PoolRegions::chunks);
        let mut on = chunks > 0;
        if on && let Err(error) = ring.register_buffers_sparse(chunks as u32) {
            tracing::warn!(%error, "WAL buffers can not be registered; going on without");
            on = false;
        }
        Registry { regions, known: vec![false; chunks], on }
    }

    /// The registered buffer that `buf` lies in, registering it if need be.
    fn index(&mut self, buf: &BlockBuf, ring: &Submitter<'_>) -> Option<u16> {
        let (index, regions) = (buf.registered?, self.regions.as_ref()?);
        // The pool may be another than the one that the ring was told of.
        if !regions.holds(index, &buf.bytes) {
            return None;
        }
        let known = &mut self.known[usize::from(index)];
        if !*known && self.on {
            let (start, len) = regions.chunk(index.into());
            let iovec = [libc::iovec { iov_base: start.cast(), iov_len: len }];
            // SAFETY: the range is the chunk's, mapped as long as `regions` is held, which this struct does; the kernel
            // pins its pages, so that even after that it touches nothing of anybody else's.
            match unsafe { ring.register_buffers_update(index.into(), &iovec, None) } {
                Ok(()) => *known = true,
                Err(error) => {
                    self.on = false;
                    let memlock_bytes = crate::rt::memlock_bytes();
                    tracing::warn!(
                        %error, memlock_bytes,
                        "a WAL buffer can not be registered (RLIMIT_MEMLOCK too low?); going on with plain ones"
                    );
                }
            }
        }
        known.then_some(index)
    }
}

/// How writes in this directory are made durable: by what sysfs says of the device below it. `write through` needs no
/// flush, `write back` with FUA does it in the write; on everything else, and whatever is not known, it depends.
pub fn probe(dir: &Path) -> io::Result<DurableMethod> {
    let device = fs::metadata(dir)?.dev();
    let block = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has its queue one level up.
    let queue = [format!("{block}/queue"), format!("{block}/../queue")].map(PathBuf::from);
    let method = queue.iter().find(|queue| queue.is_dir()).map_or(DurableMethod::Adaptive, |queue| {
        let read = |name: &str| fs::read_to_string(queue.join(name)).unwrap_or_default();
        method_for(read("write_cache").trim(), read("fua").trim())
    });
    tracing::debug!(dir = %dir.display(), %method, "probed the device");
    Ok(method)
}

fn method_for(write_cache: &str, fua: &str) -> DurableMethod {
    match (write_cache, fua) {
        ("write through", _) | ("write back", "1") => DurableMethod::Dsync,
        _ => DurableMethod::Adaptive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buf::ChunkPool;
    use crate::io::{Disk, DiskOp, FileId, OpId};
    use crate::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES};

    fn ring_disk(dir: &Path, method: DurableMethod, ring: &io_uring::IoUring) -> RingDisk {
        let (waker, stats) = (Waker::new(|| {}), Arc::default());
        RingDisk::new(CoreId(0), dir.to_owned(), method, None, waker, stats, &ring.submitter())
    }

    fn block() -> BlockBuf {
        let mut chunk = ChunkPool::new(WAL_CHUNK_BYTES).take(1).expect("free");
        chunk.extend(&[1; BLOCK_BYTES]);
        chunk.freeze()
    }

    /// A block is to be written there: the write and its flush, as the kernel gets them.
    fn linked(disk: &mut RingDisk, ring: &io_uring::IoUring, op: OpId, at: u64) -> [squeue::Entry; 2] {
        disk.submit(op, DiskOp::Write { file: FileId(1), at, buf: block() });
        let mut both = None;
        disk.issue(&ring.submitter(), true, |submission| match submission {
            Submission::One(_) => panic!("a write and its flush are one"),
            Submission::Linked(write, flush) => both = Some([write, flush]),
        });
        both.expect("it is issued at once")
    }

    /// Lost if it fails: acknowledged records, when the kernel ran out of memory between a write and its flush.
    #[test]
    fn a_flush_that_may_have_been_cut_from_its_write_vouches_for_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("000001.wal"), [0; BLOCK_BYTES]).expect("a file");
        let ring = io_uring::IoUring::new(8).expect("a ring");
        let mut disk = ring_disk(dir.path(), DurableMethod::LinkedFsync, &ring);
        let [write, flush] = linked(&mut disk, &ring, OpId(9), 0);
        let link = squeue::Flags::IO_LINK.bits();
        assert!(format!("{write:?}").contains(&format!("flags: {link}")), "{write:?} is not linked");
        disk.cut_short();
        disk.completed(flush.get_user_data(), 0);
        assert!(disk.next_done().is_none(), "the write may still be under way");
        disk.completed(write.get_user_data(), BLOCK_BYTES as i32);
        let done = disk.next_done().expect("its end");
        assert!(done.op == OpId(9) && done.result.is_err(), "{done:?}");
        assert_eq!(disk.outstanding(), 0);
    }

    /// Lost if it fails: records that were acknowledged though the device took a part of them. The kernel runs the
    /// flush behind a write that is short, where it has tried the rest again and moved nothing.
    #[test]
    fn a_flush_behind_a_short_write_vouches_for_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("000001.wal"), [0; BLOCK_BYTES]).expect("a file");
        let ring = io_uring::IoUring::new(8).expect("a ring");
        let mut disk = ring_disk(dir.path(), DurableMethod::LinkedFsync, &ring);
        for (op, moved, flush_first) in [(1, 512, false), (2, 512, true), (3, 0, false), (4, -libc::EIO, true)] {
            let [write, flush] = linked(&mut disk, &ring, OpId(op), 0);
            let mut ends = [(write.get_user_data(), moved), (flush.get_user_data(), 0)];
            if flush_first {
                ends.reverse();
            }
            for (tag, result) in ends {
                assert!(disk.next_done().is_none(), "half of it is known");
                disk.completed(tag, result);
            }
            let done = disk.next_done().expect("its end");
            assert!(done.op == OpId(op) && done.result.is_err(), "{done:?}");
        }
    }

    /// Lost if it fails: an end for each write, exactly one, whatever becomes of it: the kernel tells of the write and
    /// of the flush.
    #[test]
    fn a_write_and_its_flush_have_one_end() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("000001.wal"), [0; 2 * BLOCK_BYTES]).expect("a file");
        let mut ring = io_uring::IoUring::new(8).expect("a ring");
        let mut disk = ring_disk(dir.path(), DurableMethod::LinkedFsync, &ring);
        let beyond_any_file = 1 << 62;
        for (op, at, good) in [(1, 0, true), (2, beyond_any_file, false), (3, BLOCK_BYTES as u64, true)] {
            let entries = linked(&mut disk, &ring, OpId(op), at);
            // SAFETY: the disk keeps what the entries name until it is told of their end.
            unsafe { ring.submission().push_multiple(&entries).expect("room") };
            ring.submit_and_wait(2).expect("two ends");
            // A third one would be there by the time a later operation has ended.
            // SAFETY: it names nothing.
            unsafe { ring.submission().push(&opcode::Nop::new().build().user_data(77)).expect("room") };
            ring.submit_and_wait(1).expect("the later one");
            let told: Vec<_> = ring.completion().map(|c| (c.user_data(), c.result())).collect();
            let ends: Vec<_> = told.into_iter().filter(|(data, _)| *data != 77).collect();
            assert_eq!(ends.len(), 2, "{ends:?}");
            ends.into_iter().for_each(|(data, result)| disk.completed(data, result));
            let done = disk.next_done().expect("its end");
            assert_eq!((done.op, done.result.is_ok()), (OpId(op), good), "{done:?}");
            assert_eq!(disk.outstanding(), 0);
        }
    }

    /// Lost if it fails: the kernel's worker waits milliseconds for the CPU of a busy core, or a core that rests is
    /// woken between a write and its flush.
    #[test]
    fn a_write_is_one_operation_where_it_is_alone_and_the_core_rests() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("000001.wal"), [0; 4 * BLOCK_BYTES]).expect("a file");
        let ring = io_uring::IoUring::new(8).expect("a ring");
        let mut disk = ring_disk(dir.path(), DurableMethod::Adaptive, &ring);
        let issued = |disk: &mut RingDisk, at: u64, rests: bool| {
            disk.submit(OpId(at), DiskOp::Write { file: FileId(1), at: at * BLOCK_BYTES as u64, buf: block() });
            let (mut tag, mut dsync) = ([0; 2], false);
            disk.issue(&ring.submitter(), rests, |submission| match submission {
                Submission::One(write) => {
                    assert!(format!("{write:?}").contains(&format!("rw_flags: {}", libc::RWF_DSYNC)), "{write:?}");
                    (tag, dsync) = ([write.get_user_data(); 2], true);
                }
                Submission::Linked(write, flush) => tag = [write.get_user_data(), flush.get_user_data()],
            });
            (tag, dsync)
        };
        let (busy, dsync) = issued(&mut disk, 0, false);
        assert!(!dsync, "the core has work");
        let (beside, dsync) = issued(&mut disk, 1, true);
        assert!(!dsync, "another one is in flight");
        for [write, flush] in [busy, beside] {
            disk.completed(write, BLOCK_BYTES as i32);
            disk.completed(flush, 0);
        }
        let mut alone = None;
        disk.submit(OpId(2), DiskOp::Write { file: FileId(1), at: 0, buf: block() });
        disk.issue(&ring.submitter(), true, |submission| match submission {
            Submission::One(write) => alone = Some(write.get_user_data()),
            Submission::Linked(..) => {}
        });
        // A link that was cut somewhere is none of its business.
        disk.cut_short();
        disk.completed(alone.expect("one operation"), BLOCK_BYTES as i32);
        for op in 0..3 {
            let done = disk.next_done().expect("its end");
            assert!(done.op == OpId(op) && done.result.is_ok(), "{done:?}");
        }
    }

    /// Lost if it fails: acknowledged records, on a device with a volatile cache.
    #[test]
    fn a_device_is_taken_for_safe_by_itself_only_where_it_says_so() {
        assert_eq!(method_for("write through", "0"), DurableMethod::Dsync);
        assert_eq!(method_for("write back", "1"), DurableMethod::Dsync);
        for (cache, fua) in [("write back", "0"), ("write back", ""), ("", ""), ("none", "1")] {
            assert_eq!(method_for(cache, fua), DurableMethod::Adaptive, "{cache} {fua}");
        }
        assert!(probe(Path::new("/proc")).is_ok_and(|method| method == DurableMethod::Adaptive));
        assert!(probe(Path::new("/nowhere")).is_err());
    }
}
