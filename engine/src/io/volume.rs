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
    /// unfinished. Without, for tools: changes nothing.
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
            fs::read_dir(dir)?;
        }
        Ok(RealVolume { dir: dir.to_owned(), last: RefCell::new(None) })
    }

    fn open_file(&self, file: FileId) -> io::Result<File> {
        File::open(self.dir.join(files::name(file)))
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
        while files::is_in_use(&entry.path())? {
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
                found.push((file, entry.metadata()?.len()));
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
