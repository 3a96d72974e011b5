//! Files that a command writes at its end, opened at its beginning: after a long run is too late to hear that one can
//! not be written.

use crate::errors::{self, UserError};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is open for writing. What was in it stays until [`Self::write`]; if that is never called, a file that
/// was made for it is taken away again.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    file: File,
    made: bool,
}

impl Output {
    /// # Errors
    /// It is a directory, lies in none, or may not be written.
    pub fn open(path: &Path) -> io::Result<Output> {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let (file, made) = match made {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (OpenOptions::new().write(true).open(path)?, false),
            other => (other?, true),
        };
        Ok(Output { path: path.to_owned(), file, made })
    }

    /// Puts `text` in the place of what was in it.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        // A device or a pipe has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.made = false;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.made {
            // It is empty, and whoever waits for it looks at the error.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Refuses to draw over what is no drawing: a result whose name was given in the place of the plot's.
pub fn check_svg(path: &Path) -> Result<(), UserError> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() > 0 => {}
        _ => return Ok(()),
    }
    let text = fs::read(path).map_err(|e| errors::bench_file(path, &e.to_string()))?;
    let text = String::from_utf8_lossy(&text[..text.len().min(1024)]).into_owned();
    match text.contains("<svg") {
        true => Ok(()),
        false => Err(errors::bench_file(path, "it is there already and is no SVG: it would be overwritten")),
    }
}

/// Both names are of one file.
pub fn is_same(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the good result of yesterday, for a run of today that fails.
    #[test]
    fn what_was_there_stays_until_there_is_something_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "yesterday, and longer").expect("written");
        drop((Output::open(&old).expect("open"), Output::open(&new).expect("open")));
        assert_eq!(fs::read_to_string(&old).expect("there"), "yesterday, and longer");
        assert!(!new.exists(), "nothing was written, so nothing is left");
        Output::open(&old).expect("open").write("today").expect("written");
        assert_eq!(fs::read_to_string(&old).expect("there"), "today");
        assert!(Output::open(dir.path()).is_err(), "a directory is found out at once");
        assert!(Output::open(Path::new("/dev/full")).expect("open").write("x").is_err());
        assert!(Path::new("/dev/full").exists());
    }
}
