//! The disk on the core's own ring.
//!
//! A write is durable when its [`DiskDone`] comes: with `RWF_DSYNC` in one operation, or as a write linked with a flush
//! in two. Either way exactly one end is reported, after the kernel has given back every part of it. Any error, a short
//! transfer included, is that end: nothing is tried again here.
//!
//! The shell takes what is to be submitted from [`RingDisk::issue`] and brings completions to [`RingDisk::completed`].
//! Files are made and removed by `background.rs`.

use super::buf::PoolRegions;
use super::files;
use super::real::{RealDisk, Transfer, Transfers, What};
use super::{BlockBuf, DiskDone, DiskError, DiskOk, DurableMethod};
use crate::rt::Waker;
use crate::stats::CoreStats;
use crate::types::CoreId;
use io_uring::{Submitter, opcode, squeue, types};
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
    /// And what is written, but needs another flush.
    flushes: Vec<usize>,
    registry: Registry,
    stats: Arc<CoreStats>,
}

struct Flight {
    /// The kernel looks its descriptor up when the operation is submitted.
    transfer: Transfer,
    /// Completions that are to come.
    left: u8,
    /// The flush may have run beside its write: another has to follow both.
    flush_again: bool,
    error: Option<DiskError>,
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
        assert!(matches!(method, DurableMethod::Dsync | DurableMethod::LinkedFsync), "{method} is not for a ring");
        let registry = Registry::new(regions, ring);
        let (flight, ready) = (Slab::new(), VecDeque::new());
        let transfers = RingTransfers { method, flight, ready, flushes: vec![], registry, stats };
        RealDisk::with(transfers, core, dir, waker)
    }

    /// Hands everything that was submitted since the last call to the ring.
    pub(crate) fn issue(&mut self, ring: &Submitter<'_>, mut push: impl FnMut(Submission)) {
        let RingTransfers { method, flight, ready, flushes, registry, stats } = &mut self.transfers;
        for key in flushes.drain(..) {
            let flush = opcode::Fsync::new(types::Fd(flight[key].transfer.open.as_raw_fd()));
            let flush = flush.flags(types::FsyncFlags::DATASYNC).build();
            push(Submission::One(flush.user_data(DISK_TAG | FLUSH_TAG | key as u64)));
        }
        while let Some(key) = ready.pop_front() {
            let transfer = &mut flight[key].transfer;
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
                    let dsync = *method == DurableMethod::Dsync;
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
                        Submission::Linked(write.flags(squeue::Flags::IO_LINK), flush.user_data(tag | FLUSH_TAG))
                    });
                }
            }
        }
    }

    /// A completion whose user data has [`DISK_TAG`].
    pub(crate) fn completed(&mut self, data: u64, result: i32) {
        let key = (data & u64::from(u32::MAX)) as usize;
        let flight = self.transfers.flight.get_mut(key).expect("an entry lives until its last completion");
        flight.left -= 1;
        let Transfer { file, at, what, .. } = &flight.transfer;
        let wanted = match what {
            What::Write(buf) => buf.bytes.len(),
            What::Read(buf) => buf.len(),
        };
        let wanted = if data & FLUSH_TAG != 0 { 0 } else { wanted };
        // The first error counts: a flush that is cancelled says only that its write failed.
        if flight.error.is_none() {
            flight.error = match usize::try_from(result) {
                Ok(moved) if moved == wanted => None,
                Ok(moved) => Some(files::short(what.name(), *file, *at, moved, wanted)),
                Err(_) => {
                    let cause = io::Error::from_raw_os_error(-result);
                    Some(files::error(what.name(), *file, *at, &cause))
                }
            };
        }
        if flight.left == 0 && flight.error.is_none() && std::mem::take(&mut flight.flush_again) {
            flight.left = 1;
            self.transfers.flushes.push(key);
        } else if flight.left == 0 {
            let Flight { transfer, error, .. } = self.transfers.flight.remove(key);
            let ok = match transfer.what {
                What::Write(_) => DiskOk::Written,
                What::Read(buf) => DiskOk::Read(buf.freeze()),
            };
            self.done.push_back(DiskDone { op: transfer.op, result: error.map_or(Ok(ok), Err) });
        }
    }

    /// The kernel took a part of the submission queue only. Where it stopped, a link may have been cut: the flush would
    /// then be an operation of its own and might run beside its write. Which one is not known, so all are flushed
    /// again.
    pub(crate) fn cut_short(&mut self) {
        for (_, flight) in self.transfers.flight.iter_mut().filter(|(_, flight)| flight.left == 2) {
            flight.flush_again = true;
        }
    }
}

impl Transfers for RingTransfers {
    fn start(&mut self, transfer: Transfer) -> io::Result<()> {
        let left = match (&transfer.what, self.method) {
            (What::Write(_), DurableMethod::LinkedFsync) => 2,
            (What::Write(_) | What::Read(_), _) => 1,
        };
        let key = self.flight.insert(Flight { transfer, left, flush_again: false, error: None });
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
/// flush, `write back` with FUA does it in the write; everything else, and whatever is not known, gets a flush.
pub fn probe(dir: &Path) -> io::Result<DurableMethod> {
    let device = fs::metadata(dir)?.dev();
    let block = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has its queue one level up.
    let queue = [format!("{block}/queue"), format!("{block}/../queue")].map(PathBuf::from);
    let method = queue.iter().find(|queue| queue.is_dir()).map_or(DurableMethod::LinkedFsync, |queue| {
        let read = |name: &str| fs::read_to_string(queue.join(name)).unwrap_or_default();
        method_for(read("write_cache").trim(), read("fua").trim())
    });
    tracing::debug!(dir = %dir.display(), %method, "probed the device");
    Ok(method)
}

fn method_for(write_cache: &str, fua: &str) -> DurableMethod {
    match (write_cache, fua) {
        ("write through", _) | ("write back", "1") => DurableMethod::Dsync,
        _ => DurableMethod::LinkedFsync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buf::ChunkPool;
    use crate::io::{Disk, DiskOp, FileId, OpId};
    use crate::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES};

    /// Lost if it fails: acknowledged records, when the kernel ran out of memory between a write and its flush.
    #[test]
    fn a_flush_that_may_have_been_cut_from_its_write_is_repeated_before_the_write_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("000001.wal"), [0; BLOCK_BYTES]).expect("a file");
        let ring = io_uring::IoUring::new(8).expect("a ring");
        let waker = Waker::new(|| {});
        let method = DurableMethod::LinkedFsync;
        let stats = Arc::default();
        let mut disk = RingDisk::new(CoreId(0), dir.path().to_owned(), method, None, waker, stats, &ring.submitter());
        let mut chunk = ChunkPool::new(WAL_CHUNK_BYTES).take(1).expect("free");
        chunk.extend(&[1; BLOCK_BYTES]);
        disk.submit(OpId(9), DiskOp::Write { file: FileId(1), at: 0, buf: chunk.freeze() });
        let issued = |disk: &mut RingDisk| {
            let mut tags = vec![];
            disk.issue(&ring.submitter(), |submission| match submission {
                Submission::One(entry) => tags.push(entry.get_user_data()),
                Submission::Linked(first, second) => {
                    let link = squeue::Flags::IO_LINK.bits();
                    assert!(format!("{first:?}").contains(&format!("flags: {link}")), "{first:?} is not linked");
                    tags.extend([first.get_user_data(), second.get_user_data()]);
                }
            });
            tags
        };
        let [write, flush] = issued(&mut disk)[..] else { panic!("a write and its flush") };
        disk.cut_short();
        disk.completed(flush, 0);
        disk.completed(write, BLOCK_BYTES as i32);
        assert!(disk.next_done().is_none(), "the flush may have come before the write");
        let [again] = issued(&mut disk)[..] else { panic!("one more flush") };
        assert_eq!(again, flush);
        disk.completed(again, 0);
        let done = disk.next_done().expect("now it is durable");
        assert!(done.op == OpId(9) && done.result.is_ok());
        assert_eq!(disk.outstanding(), 0);
    }

    /// Lost if it fails: acknowledged records, on a device with a volatile cache.
    #[test]
    fn a_device_that_is_not_known_to_be_safe_gets_a_flush() {
        assert_eq!(method_for("write through", "0"), DurableMethod::Dsync);
        assert_eq!(method_for("write back", "1"), DurableMethod::Dsync);
        for (cache, fua) in [("write back", "0"), ("write back", ""), ("", ""), ("none", "1")] {
            assert_eq!(method_for(cache, fua), DurableMethod::LinkedFsync, "{cache} {fua}");
        }
        assert!(probe(Path::new("/proc")).is_ok_and(|method| method == DurableMethod::LinkedFsync));
        assert!(probe(Path::new("/nowhere")).is_err());
    }
}
