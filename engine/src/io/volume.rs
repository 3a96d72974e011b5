//! A core's directory before its loop runs: for recovery and for tools. Synchronous, through the page cache.

use super::{FileId, Volume, background, files};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// The directory of one core's WAL files.
#[derive(Debug)]
pub struct RealVolume {
    dir: PathBuf,
}

impl RealVolume {
    /// With `create`, for a broker that starts: makes the directory (its name durable) and removes what an earlier
    /// process left unfinished. Without, for tools: changes nothing.
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
            if removed {
                background::flush_dir(dir)?;
            }
        } else {
            fs::read_dir(dir)?;
        }
        Ok(RealVolume { dir: dir.to_owned() })
    }

    fn file(&self, file: FileId) -> io::Result<File> {
        File::open(self.dir.join(files::name(file)))
    }
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
        self.file(file)?.read_exact_at(buf, at)
    }

    fn sync(&self, file: FileId) -> io::Result<()> {
        self.file(file)?.sync_data()
    }

    fn path(&self, file: FileId) -> String {
        self.dir.join(files::name(file)).display().to_string()
    }
}
