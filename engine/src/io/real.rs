//! What the disks of this machine have in common: the open files, those that are made and removed in the background,
//! and the ends that wait to be reported. How bytes are moved is each one's own ([`Transfers`]).

use super::background::Background;
use super::buf::AlignedBuf;
use super::files::{self, OpenFiles};
use super::{BlockBuf, Disk, DiskDone, DiskOp, DurableMethod, FileId, OpId};
use crate::rt::Waker;
use crate::types::CoreId;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// How a disk reads and writes. Called with its type known: nothing is dispatched at run time.
pub(crate) trait Transfers {
    /// Begins one. An error is its end.
    fn start(&mut self, transfer: Transfer) -> io::Result<()>;
    /// An end that was reached elsewhere than on the core's thread.
    fn next_done(&mut self) -> Option<DiskDone>;
    /// Those that have no end yet.
    fn outstanding(&self) -> usize;
    fn method(&self) -> DurableMethod;
}

/// A read or a write.
pub(crate) struct Transfer {
    pub op: OpId,
    pub file: FileId,
    pub at: u64,
    /// Keeps the descriptor open until the end.
    pub open: Arc<File>,
    pub what: What,
}

pub(crate) enum What {
    Write(BlockBuf),
    Read(AlignedBuf),
}

impl What {
    pub fn name(&self) -> &'static str {
        match self {
            What::Write(_) => "write",
            What::Read(_) => "read",
        }
    }
}

/// The disk of one core. Lives on the core's thread, in its shell.
pub(crate) struct RealDisk<T> {
    files: OpenFiles,
    background: Background,
    pub(super) transfers: T,
    pub(super) done: VecDeque<DiskDone>,
}

impl<T: Transfers> RealDisk<T> {
    pub(super) fn with(transfers: T, core: CoreId, dir: PathBuf, waker: Waker) -> RealDisk<T> {
        RealDisk {
            files: OpenFiles::new(dir.clone()),
            background: Background::new(core, dir, waker),
            transfers,
            done: VecDeque::new(),
        }
    }

    /// The next end to report.
    pub(crate) fn next_done(&mut self) -> Option<DiskDone> {
        self.done.pop_front().or_else(|| self.transfers.next_done()).or_else(|| self.background.next())
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Operations that have no end yet, or one that was not reported.
    pub(crate) fn outstanding(&self) -> usize {
        self.transfers.outstanding() + self.background.outstanding() + self.done.len()
    }

    /// The core is stopping: what only prepares for later is given up.
    pub(crate) fn stop(&self) {
        self.background.stop();
    }

    fn start(&mut self, op: OpId, file: FileId, at: u64, what: What) {
        match self.files.get(file) {
            Ok(open) => self.start_on(Transfer { op, file, at, open, what }),
            Err(cause) => self.failed(op, what.name(), file, at, &cause),
        }
    }

    /// The same for a file that is open already.
    pub(super) fn start_on(&mut self, transfer: Transfer) {
        let (op, name, file, at) = (transfer.op, transfer.what.name(), transfer.file, transfer.at);
        if let Err(cause) = self.transfers.start(transfer) {
            self.failed(op, name, file, at, &cause);
        }
    }

    fn failed(&mut self, op: OpId, name: &'static str, file: FileId, at: u64, cause: &io::Error) {
        self.done.push_back(DiskDone { op, result: Err(files::error(name, file, at, cause)) });
    }
}

impl<T: Transfers> Disk for RealDisk<T> {
    fn submit(&mut self, id: OpId, op: DiskOp) {
        super::check(&op);
        match op {
            DiskOp::Write { file, at, buf } => self.start(id, file, at, What::Write(buf)),
            DiskOp::Read { file, at, len } => {
                self.start(id, file, at, What::Read(AlignedBuf::zeroed(len as usize)));
            }
            DiskOp::Prepare { file, .. } | DiskOp::Remove { file } => {
                // What was open under this number is, or will be, another file.
                self.files.forget(file);
                self.done.extend(self.background.submit(id, op));
            }
        }
    }

    fn method(&self) -> DurableMethod {
        self.transfers.method()
    }
}
