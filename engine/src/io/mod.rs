//! The disk, as the engine sees it: numbered files in one directory, written in whole blocks.
//!
//! In:  [`DiskOp`]s, through [`Disk::submit`]. Out: exactly one [`DiskDone`] each, as an event of the core's loop.
//! Before the loop runs, [`Volume`] reads synchronously (recovery). Nothing here knows what the bytes mean.
//! Files: `buf.rs` aligned, shared buffers; `uring.rs` operations on the core's ring; `blocking.rs` pread/pwrite on a
//! helper thread, where io_uring is forbidden; `real.rs` what these two share; `background.rs` making and removing
//! files; `files.rs` their names, and which are open; `volume.rs` the directory before the loop runs; `floor.rs`
//! the durable write by itself, to be measured; `sim.rs` a simulated disk.
//! A file is named by its [`FileId`]: `000017.wal` in the core's directory.

use bytes::Bytes;
use std::fmt;
use std::io;

mod background;
pub(crate) mod blocking;
pub mod buf;
pub(crate) mod files;
pub mod floor;
pub(crate) mod real;
pub mod sim;
pub mod uring;
mod volume;
pub use volume::RealVolume;

/// A file of the core's directory. Chosen by whoever has it prepared; a number may be used again after a removal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// Names an operation in flight. Chosen by whoever submits it, unique among those in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Bytes to write: the address and the length are multiples of [`crate::limits::BLOCK_BYTES`].
#[derive(Clone, Debug)]
pub struct BlockBuf {
    pub bytes: Bytes,
    /// The registered buffer that the bytes lie in, if the disk registered the pool they come from.
    pub registered: Option<u16>,
}

/// What a disk is asked to do.
#[derive(Clone, Debug)]
pub enum DiskOp {
    /// Writes `buf` at `at` (a multiple of the block). Completed = on the media.
    Write { file: FileId, at: u64, buf: BlockBuf },
    /// Reads `len` bytes at `at`, both multiples of the block.
    Read { file: FileId, at: u64, len: u32 },
    /// Makes the file: `len` bytes, each written once with zero, flushed, its name durable. Takes long; done in the
    /// background. It has its name when it is whole, not sooner, whatever happens. A file that exists is not touched
    /// and is an error.
    Prepare { file: FileId, len: u64 },
    /// Removes the file, its absence durable.
    Remove { file: FileId },
}

/// The end of one [`DiskOp`].
#[derive(Debug)]
pub struct DiskDone {
    pub op: OpId,
    pub result: Result<DiskOk, DiskError>,
}

#[derive(Debug)]
pub enum DiskOk {
    Written,
    Read(Bytes),
    Prepared,
    Removed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskErrorKind {
    /// ENOSPC, EDQUOT: may pass by itself.
    NoSpace,
    /// Anything else, a short transfer included: never retried into success.
    Io,
}

/// What a disk answered, with everything that is known of it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} of {file:?} at {at}: {detail}")]
pub struct DiskError {
    pub kind: DiskErrorKind,
    /// `write`, `read`, `prepare`, `remove`.
    pub what: &'static str,
    pub file: FileId,
    pub at: u64,
    pub errno: Option<i32>,
    pub detail: String,
}

/// How a write is made durable, found by a probe at start (docs/adr/0002).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurableMethod {
    /// One write with RWF_DSYNC: the device has FUA or a write-through cache.
    Dsync,
    /// A write with a linked FSYNC(DATASYNC).
    LinkedFsync,
    /// Where the device has a volatile cache and no FUA: as [`DurableMethod::Dsync`] while the core rests and nothing
    /// is in flight beside the write, else as [`DurableMethod::LinkedFsync`].
    Adaptive,
    /// pwrite, then fdatasync, on a helper thread.
    Blocking,
    /// The simulator's.
    Simulated,
}

impl fmt::Display for DurableMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DurableMethod::Dsync => "dsync",
            DurableMethod::LinkedFsync => "write+fsync",
            DurableMethod::Adaptive => "adaptive",
            DurableMethod::Blocking => "blocking",
            DurableMethod::Simulated => "simulated",
        })
    }
}

/// The disk of one core, while its loop runs. Lives on the core's thread.
pub trait Disk {
    /// Starts an operation. Operations on one file may complete in any order.
    fn submit(&mut self, id: OpId, op: DiskOp);
    fn method(&self) -> DurableMethod;
}

/// The same directory before the loop runs: for recovery and for tools. Synchronous.
pub trait Volume {
    /// The files with their lengths, by number.
    fn files(&self) -> io::Result<Vec<(FileId, u64)>>;
    /// Fills `buf` from `at`; an end of file before that is an error.
    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Makes durable what was read: a page that was written but not flushed must not be believed.
    fn sync(&self, file: FileId) -> io::Result<()>;
    /// The path a person would look for, for messages.
    fn path(&self, file: FileId) -> String;
}

/// Whoever submits keeps to whole blocks: anything else is a fault of ours.
fn check(op: &DiskOp) {
    let whole = |n: u64| n.is_multiple_of(crate::limits::BLOCK_BYTES as u64);
    match op {
        DiskOp::Write { at, buf, .. } => {
            let (len, address) = (buf.bytes.len(), buf.bytes.as_ptr() as u64);
            assert!(len > 0 && u32::try_from(len).is_ok_and(|len| len < 1 << 31), "a write of {len} bytes");
            assert!(whole(*at) && whole(len as u64) && whole(address), "{len} bytes from {address:#x} to {at}");
        }
        DiskOp::Read { at, len, .. } => {
            assert!(*len > 0 && *len < 1 << 31 && whole(*at) && whole((*len).into()), "{len} bytes from {at}");
        }
        DiskOp::Prepare { len, .. } => assert!(*len > 0 && whole(*len), "a file of {len} bytes"),
        DiskOp::Remove { .. } => {}
    }
}
