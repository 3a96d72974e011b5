//! Disk work that takes long or that no ring does: making files and removing them, on a helper thread.
//!
//! A file appears under its number only when it is whole: it is made under a temporary name, written once with zeros (a
//! block that was only allocated never gets the fast durable write: the first write of it would change metadata),
//! flushed, renamed, and its directory flushed.

use super::buf::AlignedBuf;
use super::{DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, FileId, OpId, files};
use crate::rt::{Waker, spawn_helper};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Bytes that one write of zeros covers.
const ZEROS_BYTES: usize = 1024 * 1024;

/// A helper thread that does one kind of work, in order. Lives on the core's thread; the helper is started by the first
/// job and ends, after what it is at, when this is dropped.
pub(crate) struct Helper<J: Send + 'static> {
    name: String,
    work: Arc<dyn Fn(Vec<J>, &mut dyn FnMut(DiskDone)) + Send + Sync>,
    waker: Waker,
    jobs: Option<mpsc::Sender<J>>,
    results: (mpsc::Sender<DiskDone>, mpsc::Receiver<DiskDone>),
    thread: Option<JoinHandle<()>>,
    outstanding: usize,
}

impl<J: Send + 'static> Helper<J> {
    /// `work` gets all jobs that wait, in order, and reports each once. `waker` is used when it has.
    pub fn new(
        name: String,
        waker: Waker,
        work: impl Fn(Vec<J>, &mut dyn FnMut(DiskDone)) + Send + Sync + 'static,
    ) -> Helper<J> {
        let work = Arc::new(work);
        Helper { name, work, waker, jobs: None, results: mpsc::channel(), thread: None, outstanding: 0 }
    }

    /// How many jobs wait is up to the caller, who waits for their ends.
    pub fn submit(&mut self, job: J) -> io::Result<()> {
        if self.jobs.is_none() {
            let (sender, jobs) = mpsc::channel::<J>();
            let (work, results, waker) = (self.work.clone(), self.results.0.clone(), self.waker.clone());
            let body = move || {
                while let Ok(first) = jobs.recv() {
                    let batch = std::iter::once(first).chain(jobs.try_iter()).collect();
                    work(batch, &mut |done| {
                        // The loop holds the receiver for as long as it holds this helper's handle.
                        let _ = results.send(done);
                        waker.wake();
                    });
                }
            };
            self.thread = Some(spawn_helper(self.name.clone(), body)?);
            self.jobs = Some(sender);
        }
        let gone = |_| io::Error::other("the disk helper thread has ended");
        self.jobs.as_ref().expect("made above").send(job).map_err(gone)?;
        self.outstanding += 1;
        Ok(())
    }

    pub fn next(&mut self) -> Option<DiskDone> {
        if self.outstanding == 0 {
            return None;
        }
        let done = self.results.1.try_recv().ok()?;
        self.outstanding -= 1;
        Some(done)
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl<J: Send + 'static> Drop for Helper<J> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic over there was reported where it happened; what it was at has no end that anybody waits for now.
            let _ = thread.join();
        }
    }
}

/// [`DiskOp::Prepare`] and [`DiskOp::Remove`], one after the other.
pub(super) struct Background {
    helper: Helper<(OpId, DiskOp)>,
    stop: Arc<AtomicBool>,
}

impl Background {
    pub fn new(core: crate::types::CoreId, dir: PathBuf, waker: Waker) -> Background {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move |jobs: Vec<(OpId, DiskOp)>, report: &mut dyn FnMut(DiskDone)| {
            for (op, job) in jobs {
                let result = match job {
                    DiskOp::Prepare { file, len } => prepare(&dir, file, len, &stopped).map(|()| DiskOk::Prepared),
                    DiskOp::Remove { file } => remove(&dir, file).map(|()| DiskOk::Removed),
                    DiskOp::Write { .. } | DiskOp::Read { .. } => {
                        unreachable!("the background makes and removes files")
                    }
                };
                report(DiskDone { op, result });
            }
        };
        Background { helper: Helper::new(format!("core-{core}-files"), waker, work), stop }
    }

    /// Failure to start the thread is an end like any other.
    pub fn submit(&mut self, op: OpId, job: DiskOp) -> Option<DiskDone> {
        let (what, file) = match &job {
            DiskOp::Prepare { file, .. } => ("prepare", *file),
            DiskOp::Remove { file } => ("remove", *file),
            DiskOp::Write { .. } | DiskOp::Read { .. } => unreachable!("the background makes and removes files"),
        };
        let failed = self.helper.submit((op, job)).err()?;
        Some(DiskDone { op, result: Err(files::error(what, file, 0, &failed)) })
    }

    pub fn next(&mut self) -> Option<DiskDone> {
        self.helper.next()
    }

    pub fn outstanding(&self) -> usize {
        self.helper.outstanding()
    }

    /// A file that is being made is given up: it has no use any more.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn prepare(dir: &Path, file: FileId, len: u64, stop: &AtomicBool) -> Result<(), DiskError> {
    assert!(len > 0 && len.is_multiple_of(crate::limits::BLOCK_BYTES as u64), "a file of {len} bytes");
    let (temporary, path) = (dir.join(files::temporary_name(file)), dir.join(files::name(file)));
    let failed = |cause: io::Error| files::error("prepare", file, 0, &cause);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let opened = files::open_direct(&temporary, options).map_err(failed);
    let made = opened
        .and_then(|target| fill(&target, file, len, stop))
        .and_then(|()| rename_to_new(&temporary, &path).map_err(failed));
    if let Err(error) = made {
        // Half a file is of no use and holds space that may be what is missing. If this fails too, the next start does
        // it.
        if let Err(also) = fs::remove_file(&temporary)
            && also.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %temporary.display(), error = %also, "an unfinished file could not be removed");
        }
        return Err(error);
    }
    flush_dir(dir).map_err(failed)
}

/// Writes every block of a new file once and flushes it.
pub(super) fn fill(target: &File, file: FileId, len: u64, stop: &AtomicBool) -> Result<(), DiskError> {
    let failed = |at| move |cause: io::Error| files::error("prepare", file, at, &cause);
    match rustix::fs::fallocate(target, rustix::fs::FallocateFlags::empty(), 0, len) {
        // Not every file system can; the zeros below allocate as well.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(cause) => return Err(failed(0)(cause.into())),
    }
    let mut zeros = AlignedBuf::zeroed(ZEROS_BYTES);
    let mut at = 0;
    while at < len {
        if stop.load(Ordering::Relaxed) {
            let detail = "the core is stopping".to_owned();
            return Err(DiskError { kind: DiskErrorKind::Io, what: "prepare", file, at, errno: None, detail });
        }
        let part = usize::try_from(len - at).map_or(ZEROS_BYTES, |rest| rest.min(ZEROS_BYTES));
        target.write_all_at(&zeros.bytes_mut()[..part], at).map_err(failed(at))?;
        at += part as u64;
    }
    target.sync_data().map_err(failed(at))
}

/// Renames, unless the new name exists.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know the flag. Nobody else makes files here, so a look before is as good.
        Err(rustix::io::Errno::INVAL) if !to.try_exists()? => fs::rename(from, to),
        Err(rustix::io::Errno::INVAL) => Err(io::Error::from_raw_os_error(libc::EEXIST)),
        renamed => renamed.map_err(Into::into),
    }
}

fn remove(dir: &Path, file: FileId) -> Result<(), DiskError> {
    fs::remove_file(dir.join(files::name(file)))
        .and_then(|()| flush_dir(dir))
        .map_err(|cause| files::error("remove", file, 0, &cause))
}

pub(super) fn flush_dir(dir: &Path) -> io::Result<()> {
    rustix::fs::fsync(File::open(dir)?.as_fd()).map_err(Into::into)
}
