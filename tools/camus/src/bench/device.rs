//! The block device under a directory, and what the kernel counted of it.

use crate::errors::{self, UserError};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SECTOR_BYTES: u64 = 512;
// Fields of /sys/block/DEV/stat. Source: Documentation/block/stat.rst.
const WRITES: usize = 4;
const SECTORS_WRITTEN: usize = 6;
const FLUSHES: usize = 15;

/// A whole disk (of a partition: the disk it is on), since flushes are counted of disks.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    pub name: String,
    dir: PathBuf,
    /// Its write cache is volatile, so the kernel sends flushes at all.
    pub write_back: bool,
    /// It takes single writes past its cache, so a durable write need not be a flush.
    pub fua: bool,
}

/// Counters since boot.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counters {
    pub writes: u64,
    pub bytes_written: u64,
    pub flushes: u64,
}

impl Device {
    /// `None`: the file system of `dir` has no device of its own (tmpfs, overlay, network, btrfs).
    pub fn of(dir: &Path) -> Result<Option<Device>, UserError> {
        let missing = |e: std::io::Error| {
            errors::bench_observed(&dir.display().to_string(), &e.to_string(), &format!("ls -ld {}", dir.display()))
        };
        let number = fs::metadata(dir).map_err(missing)?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let Ok(found) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else { return Ok(None) };
        let disk = match found.join("partition").exists() {
            true => found.parent().map(Path::to_path_buf).unwrap_or(found),
            false => found,
        };
        Ok(Device::at(disk))
    }

    fn at(dir: PathBuf) -> Option<Device> {
        let name = dir.file_name()?.to_string_lossy().into_owned();
        let queue = |file: &str| fs::read_to_string(dir.join("queue").join(file)).unwrap_or_default();
        let (write_back, fua) = (queue("write_cache").trim() == "write back", queue("fua").trim() == "1");
        Some(Device { name, dir, write_back, fua })
    }

    pub fn counters(&self) -> Counters {
        fs::read_to_string(self.dir.join("stat")).map(|text| counters(&text)).unwrap_or_default()
    }
}

/// Of a directory that is on no device that counts: what it is on, for the person.
pub fn kind_of(dir: &Path) -> String {
    // Source: statfs(2).
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    const OVERLAY: u64 = 0x794c_7630;
    const BTRFS: u64 = 0x9123_683e;
    const NFS: u64 = 0x6969;
    match rustix::fs::statfs(dir).map(|found| found.f_type as u64) {
        Ok(TMPFS) => "tmpfs",
        Ok(RAMFS) => "ramfs",
        Ok(OVERLAY) => "overlayfs, which has no block device of its own",
        Ok(BTRFS) => "btrfs, which has no block device of its own",
        Ok(NFS) => "NFS",
        _ => "no block device of this host",
    }
    .to_owned()
}

fn counters(stat: &str) -> Counters {
    let fields: Vec<u64> = stat.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
    let at = |field: usize| fields.get(field).copied().unwrap_or(0);
    Counters { writes: at(WRITES), bytes_written: at(SECTORS_WRITTEN) * SECTOR_BYTES, flushes: at(FLUSHES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: who flushes and who does not.
    #[test]
    fn the_kernels_fields_are_taken_at_their_place() {
        let counted = counters("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17");
        assert_eq!(counted, Counters { writes: 5, bytes_written: 7 * 512, flushes: 16 });
        assert_eq!(counters(""), Counters::default());
    }

    #[test]
    fn a_directory_that_is_not_there_is_told() {
        assert_eq!(Device::of(Path::new("/nowhere/at/all")).expect_err("not there").code, "CAM-0605");
        assert_eq!(kind_of(Path::new("/dev/shm")), "tmpfs");
        assert_eq!(Device::of(Path::new("/proc")).expect("it is there"), None, "proc is on no device");
    }
}
