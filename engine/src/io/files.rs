//! The files of one core's directory: their names, and which are open.

use super::{DiskError, DiskErrorKind, FileId};
use crate::limits::FILES_OPEN_MAX;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `000017.wal`.
pub(crate) fn name(file: FileId) -> String {
    format!("{:06}.wal", file.0)
}

/// What a file is called until it is whole.
pub(super) fn temporary_name(file: FileId) -> String {
    format!("{:06}.wal.tmp", file.0)
}

pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| parse(name).is_some())
}

/// The number in a file's name; `None` for what is not ours.
pub(super) fn parse(file_name: &str) -> Option<FileId> {
    let digits = file_name.strip_suffix(".wal")?;
    let id = FileId(digits.parse().ok()?);
    (name(id) == file_name).then_some(id)
}

/// The same error, saying which file it is about.
pub(super) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The length of a file in bytes. Refuses what is no plain file, before anything opens it: that of a pipe would never
/// end.
pub(super) fn length(path: &Path) -> io::Result<u64> {
    let found = std::fs::metadata(path).map_err(|error| named(path, &error))?;
    if !found.is_file() {
        return Err(named(path, &io::Error::other("it has the name of a segment, but is no plain file")));
    }
    Ok(found.len())
}

/// Opens for direct I/O; where the file system has none, with the page cache and a warning.
pub(super) fn open_direct(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match open_direct_only(path, options) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::warn!(path = %path.display(), "this file system has no direct I/O; for development only");
            options.custom_flags(0).open(path)
        }
        opened => opened,
    }
}

/// Opens for direct I/O; EINVAL where the file system has none.
pub(super) fn open_direct_only(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags(libc::O_DIRECT).open(path)
}

/// Says, for as long as the kernel holds anything of this opening, that the file is being written: a shared lock on its
/// open file description. A write that a killed process left in its ring keeps the description, and so the lock.
pub(super) fn say_in_use(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockShared)?)
}

/// Is a write by an earlier process still on its way to this file? Such a process may be gone already: the ring of one
/// that was killed is taken down after it.
pub(super) fn is_in_use(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Open files by number, [`FILES_OPEN_MAX`] and those that operations in flight use.
pub(super) struct OpenFiles {
    dir: PathBuf,
    open: BTreeMap<FileId, (Arc<File>, u64)>,
    uses: u64,
}

impl OpenFiles {
    pub fn new(dir: PathBuf) -> OpenFiles {
        OpenFiles { dir, open: BTreeMap::new(), uses: 0 }
    }

    pub fn get(&mut self, file: FileId) -> io::Result<Arc<File>> {
        self.uses += 1;
        if let Some((open, used)) = self.open.get_mut(&file) {
            *used = self.uses;
            return Ok(open.clone());
        }
        if self.open.len() >= FILES_OPEN_MAX {
            self.close_oldest();
        }
        let path = self.dir.join(name(file));
        let opened = loop {
            match open_direct(&path, OpenOptions::new().read(true).write(true)) {
                // Clients may have taken every descriptor. One of ours is less needed than this.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) && self.close_oldest() => {}
                opened => break opened?,
            }
        };
        say_in_use(&opened)?;
        let opened = Arc::new(opened);
        self.open.insert(file, (opened.clone(), self.uses));
        Ok(opened)
    }

    /// Of those that no operation uses. False if there is none.
    fn close_oldest(&mut self) -> bool {
        let unused = self.open.iter().filter(|(_, (open, _))| Arc::strong_count(open) == 1);
        let oldest = unused.min_by_key(|(_, (_, used))| *used).map(|(file, _)| *file);
        oldest.is_some_and(|file| self.open.remove(&file).is_some())
    }

    /// The number may soon mean another file.
    pub fn forget(&mut self, file: FileId) {
        self.open.remove(&file);
    }
}

/// A system's error as ours.
pub(super) fn error(what: &'static str, file: FileId, at: u64, cause: &io::Error) -> DiskError {
    let errno = cause.raw_os_error();
    let kind = match errno {
        Some(libc::ENOSPC | libc::EDQUOT) => DiskErrorKind::NoSpace,
        // Nothing is lost when a file can not be made for want of a descriptor: that may pass by itself too.
        Some(libc::EMFILE | libc::ENFILE) if what == "prepare" => DiskErrorKind::NoSpace,
        _ => DiskErrorKind::Io,
    };
    DiskError { kind, what, file, at, errno, detail: cause.to_string() }
}

/// A transfer that ended early without an error: at the end of the file, or worse.
pub(super) fn short(what: &'static str, file: FileId, at: u64, moved: usize, wanted: usize) -> DiskError {
    let detail = format!("only {moved} of {wanted} bytes were transferred");
    DiskError { kind: DiskErrorKind::Io, what, file, at, errno: None, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the log, to clients that open too many connections.
    #[test]
    fn the_file_used_longest_ago_makes_room_and_one_in_use_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = OpenFiles::new(dir.path().to_owned());
        let count = FILES_OPEN_MAX as u32 + 1;
        for n in 0..count {
            File::create(dir.path().join(name(FileId(n)))).expect("a file");
        }
        let in_use = files.get(FileId(0)).expect("it exists");
        for n in 1..count {
            files.get(FileId(n)).expect("it exists");
        }
        assert_eq!(files.open.len(), FILES_OPEN_MAX);
        assert!(files.open.contains_key(&FileId(0)) && !files.open.contains_key(&FileId(1)));
        drop(in_use);
        assert!(files.close_oldest());
        assert!(!files.open.contains_key(&FileId(0)));
        assert_eq!(files.get(FileId(count)).expect_err("it does not exist").kind(), io::ErrorKind::NotFound);
    }

    /// Lost if it fails: a write that a killed process left behind lands in a log that its successor has read already.
    #[test]
    fn a_file_with_writes_on_the_way_is_known_to_be_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(name(FileId(1)));
        File::create(&path).expect("a file");
        let mut files = OpenFiles::new(dir.path().to_owned());
        let in_flight = files.get(FileId(1)).expect("it exists");
        drop(files);
        assert!(is_in_use(&path).expect("a look"));
        drop(in_flight);
        assert!(!is_in_use(&path).expect("a look"));
    }

    /// Lost if it fails: recovery would take a half-made file for a segment, or miss one.
    #[test]
    fn only_whole_files_have_a_number() {
        assert_eq!(parse(&name(FileId(17))), Some(FileId(17)));
        assert_eq!(parse(&name(FileId(12_345_678))), Some(FileId(12_345_678)));
        for other in ["17.wal", "000017.wal.tmp", "000017", "+00017.wal", "0000017.wal", ".wal", "LOCK"] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert!(is_temporary(&temporary_name(FileId(3))) && !is_temporary("x.tmp"));
    }
}
