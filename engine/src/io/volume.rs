//! A core's directory before its loop runs: for recovery and for tools. Synchronous, through the page cache.

use super::{FileId, Volume, background, files};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directory of one core's WAL files.
#[derive(Debug)]
pub struct RealVolume {
    dir: PathBuf,
    /// The file that was read last: the kernel reads ahead in a file that stays open.
    last: RefCell<Option<(FileId, File)>>,
}

impl RealVolume {
    /// With `create`, for a broker that starts: makes the directory (its name durable), waits until no write of an
    /// earlier process is on its way to it (at most [`LAST_WRITES_MAX`]), and removes what such a process left
    /// unfinished. Without, for tools: changes nothing. Refuses what has a segment's name and is no plain file; an
    /// error about a file names it.
    pub fn open(dir: &Path, create: bool) -> io::Result<RealVolume> {
        if create {
            if !dir.try_exists()? {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                if let Some(parent) = dir.canonicalize()?.parent() {
                    background::flush_dir(parent)?;
                }
            }
            let mut removed = false;
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_name().to_str().is_some_and(files::is_temporary) {
                    fs::remove_file(entry.path())?;
                    removed = true;
                }
            }
            wait_for_last_writes(dir)?;
            if removed {
                background::flush_dir(dir)?;
            }
        } else {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_name().to_str().and_then(files::parse).is_some() {
                    files::length(&entry.path())?;
                }
            }
        }
        Ok(RealVolume { dir: dir.to_owned(), last: RefCell::new(None) })
    }

    fn open_file(&self, file: FileId) -> io::Result<File> {
        let path = self.dir.join(files::name(file));
        files::length(&path)?;
        File::open(&path).map_err(|error| files::named(&path, &error))
    }
}

/// How long a killed process's last writes may take. A disk that hangs longer is refused, not believed.
const LAST_WRITES_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(5);

fn wait_for_last_writes(dir: &Path) -> io::Result<()> {
    let mut waited = Duration::ZERO;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_str().and_then(files::parse).is_none() {
            continue;
        }
        files::length(&entry.path())?;
        while files::is_in_use(&entry.path()).map_err(|error| files::named(&entry.path(), &error))? {
            if waited >= LAST_WRITES_MAX {
                let path = entry.path();
                return Err(io::Error::other(format!(
                    "{} is still being written, by a process that may be gone: the disk hangs, or a broker runs",
                    path.display()
                )));
            }
            #[allow(clippy::disallowed_methods, reason = "before the loop runs, and nothing else can be done")]
            std::thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }
    Ok(())
}

impl Volume for RealVolume {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        let mut found = vec![];
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if let Some(file) = entry.file_name().to_str().and_then(files::parse) {
                found.push((file, files::length(&entry.path())?));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, file: FileId, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut last = self.last.borrow_mut();
        // A reader that begins anew gets the file that has the name now.
        if at == 0 || last.as_ref().is_none_or(|(open, _)| *open != file) {
            *last = Some((file, self.open_file(file)?));
        }
        let (_, open) = last.as_ref().expect("opened just now");
        open.read_exact_at(buf, at)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.open_file(file)?.sync_data()
    }

    fn path(&self, file: FileId) -> String {
        self.dir.join(files::name(file)).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Lost if it fails: the start: it hangs for ever at the opening of a pipe, or does not say what is wrong.
    #[test]
    fn what_has_a_segments_name_and_is_no_file_is_refused_and_named() {
        let pipe = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).map_err(io::Error::from);
        let dangling = |path: &Path| symlink("nowhere", path);
        let directory = |path: &Path| fs::create_dir(path);
        let kinds: [(&str, &dyn Fn(&Path) -> io::Result<()>); 3] =
            [("a pipe", &pipe), ("a dangling link", &dangling), ("a directory", &directory)];
        for (kind, make) in kinds {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join(files::name(FileId(3)));
            make(&path).expect(kind);
            for create in [true, false] {
                let (told, tells) = std::sync::mpsc::channel();
                let dir = dir.path().to_owned();
                #[allow(clippy::disallowed_methods, reason = "a test that must not hang itself")]
                std::thread::spawn(move || told.send(RealVolume::open(&dir, create).map(|_| ())));
                let opened = tells.recv_timeout(Duration::from_secs(5)).expect("it does not wait for a writer");
                let error = opened.expect_err(kind).to_string();
                assert!(error.contains("000003.wal"), "{kind}: {error}");
            }
        }
    }

    /// Lost if it fails: logs on another disk, led to by links: their length was that of the link.
    #[test]
    fn a_link_to_a_file_is_as_long_as_the_file() {
        let (dir, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        fs::write(other.path().join("x"), [7u8; 5000]).expect("written");
        symlink(other.path().join("x"), dir.path().join(files::name(FileId(1)))).expect("linked");
        let volume = RealVolume::open(dir.path(), true).expect("a log");
        assert_eq!(volume.files().expect("listed"), [(FileId(1), 5000)]);
    }
}
