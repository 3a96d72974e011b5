//! `camus waltest`: the floor: the write-ahead log's durable write by itself, without a broker.
//!
//! What the broker adds to it is what Camus costs; below it nothing that keeps its word can be. The engine writes
//! ([`camus_engine::io::floor`]); here is what is measured and how it is told.

use crate::errors::{self, UserError};
use crate::percentiles::{self, Percentiles};
use camus_engine::io::floor::{self as engine, Cell, Done, FloorError, How};
use camus_engine::io::{DurableMethod, uring};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The file that is written: a segment of the default size.
pub const FILE_BYTES: u64 = camus_engine::limits::WAL_SEGMENT_BYTES;
/// What must be free besides: the file's extents and the journal of the file system.
const FREE_BESIDES_BYTES: u64 = 4 << 20;
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// What the disk gives to whoever keeps his word: the two figures that others are held against.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Floor {
    /// How the broker would make writes durable here: `dsync`, `write+fsync`, `blocking`.
    pub method: String,
    /// 4 KiB, one at a time, by that method, us.
    pub write_4k_us: Percentiles,
    /// 1 MiB, four in flight, by that method: 10^6 bytes a second.
    pub sequential_mb_per_s: f64,
}

/// Measures the floor of `dir`: two cells of `seconds` each. Makes its own file there, which is gone afterwards, and
/// whatever ends the process.
///
/// # Errors
/// Where the directory, its file system or its disk do not let it: each in its own words.
pub fn floor(dir: &Path, seconds: f64) -> Result<Floor, UserError> {
    floor_until(dir, seconds, &AtomicBool::new(false))
}

/// The same, and gives up when `stop` is set.
pub fn floor_until(dir: &Path, seconds: f64, stop: &AtomicBool) -> Result<Floor, UserError> {
    check(dir)?;
    let failed = |error: FloorError| errors::of_floor(dir, FILE_BYTES, &error);
    let (method, _) = method(dir).map_err(|error| errors::measure_io(dir, "looking at its device", &error))?;
    let how = How::of(method).expect("a probe finds a method of this machine");
    let file = engine::Floor::prepare(dir, FILE_BYTES, stop).map_err(failed)?;
    let measured = |bytes, depth| measure(&file, Cell { how, bytes, depth }, seconds, stop).map_err(failed);
    let (write_4k_us, _) = measured(4 << 10, 1)?;
    let (_, done) = measured(1 << 20, 4)?;
    Ok(Floor { method: method.to_string(), write_4k_us, sequential_mb_per_s: mb_per_s(&done) })
}

/// How a broker with `camus.io = auto` would write in this directory; why not on a ring, if so.
pub fn method(dir: &Path) -> io::Result<(DurableMethod, Option<io::Error>)> {
    match engine::ring_probe() {
        Ok(()) => Ok((uring::probe(dir)?, None)),
        Err(error) => Ok((DurableMethod::Blocking, Some(error))),
    }
}

/// One cell: its percentiles, and what was done.
fn measure(
    file: &engine::Floor,
    cell: Cell,
    seconds: f64,
    stop: &AtomicBool,
) -> Result<(Percentiles, Done), FloorError> {
    let mut samples = percentiles::histogram();
    let time = Duration::from_secs_f64(seconds);
    let done = file.measure(cell, time, stop, &mut |ns| samples.saturating_record(ns))?;
    Ok((Percentiles::of(&samples), done))
}

/// 10^6 bytes a second.
fn mb_per_s(done: &Done) -> f64 {
    let seconds = done.took.as_secs_f64();
    if seconds > 0.0 { (done.bytes as f64 / seconds / 1e4).round() / 100.0 } else { 0.0 }
}

/// Refuses, before anything is made, what can not be measured.
fn check(dir: &Path) -> Result<(), UserError> {
    let found = std::fs::metadata(dir).map_err(|error| errors::measure_io(dir, "looking for it", &error))?;
    if !found.is_dir() {
        let error = io::Error::from(io::ErrorKind::NotADirectory);
        return Err(errors::measure_io(dir, "looking for it", &error));
    }
    let failed = |error: rustix::io::Errno| errors::measure_io(dir, "looking at its file system", &error.into());
    match rustix::fs::statfs(dir).map_err(failed)?.f_type as u64 {
        TMPFS_MAGIC => return Err(errors::not_durable(dir, "it is on a tmpfs, which is memory")),
        RAMFS_MAGIC => return Err(errors::not_durable(dir, "it is on a ramfs, which is memory")),
        _ => {}
    }
    let space = rustix::fs::statvfs(dir).map_err(failed)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < FILE_BYTES + FREE_BESIDES_BYTES {
        return Err(errors::measure_space(dir, FILE_BYTES + FREE_BESIDES_BYTES, free));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the floor beside each published figure.
    #[test]
    fn the_floor_is_measured_and_leaves_nothing() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let floor = floor(dir.path(), 0.05).expect("measured");
        let written = &floor.write_4k_us;
        assert!(written.count > 0 && written.p50 > 0.0 && written.p50 <= written.p99 && written.p99 <= written.max);
        assert!(floor.sequential_mb_per_s > 0.0);
        assert!(["dsync", "write+fsync", "blocking"].contains(&floor.method.as_str()));
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    /// Lost if it fails: the person's time: what is wrong with a directory is told as something else, or not at all.
    #[test]
    fn what_can_not_be_measured_is_refused_in_its_own_words() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let refused = |path: &Path| floor(path, 0.01).expect_err("refused");
        let missing = refused(&dir.path().join("nowhere"));
        assert!(missing.code == "CAM-0109" && missing.run.starts_with("mkdir -p "), "{missing}");
        let file = dir.path().join("a-file");
        std::fs::write(&file, "x").expect("written");
        assert!(refused(&file).meaning.contains("not a directory"));
        assert_eq!(refused(Path::new("/dev/shm")).code, "CAM-0110");
    }
}
