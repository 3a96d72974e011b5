//! The disk where io_uring is forbidden: `pread`, `pwrite` and `fdatasync` on a helper thread.
//!
//! One thread does reads and writes, one (`background.rs`) makes and removes files, which takes long. All writes that
//! wait share one flush per file; each ends after it, and a flush that fails is the end of all of them.

use super::background::{Background, Helper};
use super::buf::AlignedBuf;
use super::files::{self, OpenFiles};
use super::{BlockBuf, Disk, DiskDone, DiskError, DiskOk, DiskOp, DurableMethod, FileId, OpId};
use crate::rt::Waker;
use crate::types::CoreId;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The disk of one core. Lives on the core's thread, in its shell.
pub(crate) struct BlockingDisk {
    files: OpenFiles,
    transfers: Helper<Transfer>,
    background: Background,
    done: VecDeque<DiskDone>,
}

struct Transfer {
    op: OpId,
    file: FileId,
    at: u64,
    open: Arc<File>,
    what: What,
}

enum What {
    Write(BlockBuf),
    Read(AlignedBuf),
}

impl BlockingDisk {
    pub(crate) fn new(core: CoreId, dir: PathBuf, waker: Waker) -> BlockingDisk {
        BlockingDisk {
            files: OpenFiles::new(dir.clone()),
            transfers: Helper::new(format!("core-{core}-disk"), waker.clone(), transfer_all),
            background: Background::new(core, dir, waker),
            done: VecDeque::new(),
        }
    }

    /// The next end to report.
    pub(crate) fn next_done(&mut self) -> Option<DiskDone> {
        self.done.pop_front().or_else(|| self.transfers.next()).or_else(|| self.background.next())
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
        let name = what.name();
        let started =
            self.files.get(file).and_then(|open| self.transfers.submit(Transfer { op, file, at, open, what }));
        if let Err(cause) = started {
            self.done.push_back(DiskDone { op, result: Err(files::error(name, file, at, &cause)) });
        }
    }
}

impl Disk for BlockingDisk {
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
        DurableMethod::Blocking
    }
}

impl What {
    fn name(&self) -> &'static str {
        match self {
            What::Write(_) => "write",
            What::Read(_) => "read",
        }
    }
}

/// On the helper thread: everything that waits. Reads end as they are done, writes after the flush that covers them.
fn transfer_all(batch: Vec<Transfer>, report: &mut dyn FnMut(DiskDone)) {
    let mut written = vec![];
    for Transfer { op, file, at, open, what } in batch {
        match what {
            What::Read(mut buf) => {
                let wanted = buf.len();
                let moved = once(|| open.read_at(buf.bytes_mut(), at));
                let result = whole("read", file, at, moved, wanted).map(|()| DiskOk::Read(buf.freeze()));
                report(DiskDone { op, result });
            }
            What::Write(buf) => {
                let moved = once(|| open.write_at(&buf.bytes, at));
                match whole("write", file, at, moved, buf.bytes.len()) {
                    Ok(()) => written.push((op, file, at, open)),
                    Err(error) => report(DiskDone { op, result: Err(error) }),
                }
            }
        }
    }
    while let Some((_, file, _, open)) = written.first() {
        let (file, open) = (*file, open.clone());
        let flushed = open.sync_data();
        // The same number may name another file by now: only those of the same open file are flushed.
        let (these, rest): (Vec<_>, Vec<_>) = written.into_iter().partition(|(.., other)| Arc::ptr_eq(other, &open));
        written = rest;
        for (op, _, at, _) in these {
            let result = match &flushed {
                Ok(()) => Ok(DiskOk::Written),
                Err(cause) => Err(files::error("write", file, at, cause)),
            };
            report(DiskDone { op, result });
        }
    }
}

/// One system call, again only when a signal came before anything was done.
fn once(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => return ended,
        }
    }
}

fn whole(what: &'static str, file: FileId, at: u64, moved: io::Result<usize>, wanted: usize) -> Result<(), DiskError> {
    match moved {
        Ok(moved) if moved == wanted => Ok(()),
        Ok(moved) => Err(files::short(what, file, at, moved, wanted)),
        Err(cause) => Err(files::error(what, file, at, &cause)),
    }
}
