//! The disk where io_uring is forbidden: `pread`, `pwrite` and `fdatasync` on a helper thread.
//!
//! One thread does reads and writes, one (`background.rs`) makes and removes files, which takes long. All writes that
//! wait share one flush per file; each ends after it, and a flush that fails is the end of all of them.

use super::background::Helper;
use super::files;
use super::real::{RealDisk, Transfer, Transfers, What};
use super::{DiskDone, DiskError, DiskOk, DurableMethod, FileId};
use crate::rt::Waker;
use crate::types::CoreId;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The disk of one core. Lives on the core's thread, in its shell.
pub(crate) type BlockingDisk = RealDisk<BlockingTransfers>;

/// Its reads and writes.
pub(crate) type BlockingTransfers = Helper<Transfer>;

impl BlockingDisk {
    pub(crate) fn new(core: CoreId, dir: PathBuf, waker: Waker) -> BlockingDisk {
        let transfers = Helper::new(format!("core-{core}-disk"), waker.clone(), transfer_all);
        RealDisk::with(transfers, core, dir, waker)
    }
}

impl Transfers for BlockingTransfers {
    fn start(&mut self, transfer: Transfer) -> io::Result<()> {
        self.submit(transfer)
    }

    fn next_done(&mut self) -> Option<DiskDone> {
        self.next()
    }

    fn outstanding(&self) -> usize {
        Helper::outstanding(self)
    }

    fn method(&self) -> DurableMethod {
        DurableMethod::Blocking
    }
}

/// On the helper thread: everything that waits. Reads end as they are done, writes after the flush that covers them.
pub(super) fn transfer_all(batch: Vec<Transfer>, report: &mut dyn FnMut(DiskDone)) {
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
