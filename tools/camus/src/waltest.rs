//! `camus waltest`: the floor: the write-ahead log's durable write by itself, without a broker.
//!
//! What the broker adds to it is what Camus costs; below it nothing that keeps its word can be. The engine writes
//! ([`camus_engine::io::floor`]); here is what is measured and how it is told.

use crate::bench::Output;
use crate::doctor::facts::Device;
use crate::doctor::reader::Reader;
use crate::errors::{self, UserError, exit};
use crate::percentiles::{self, Percentiles};
use crate::{out, process};
use camus_engine::io::floor::{self as engine, Cell, Done, How};
use camus_engine::io::{DurableMethod, uring};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The file that is written: a segment of the default size.
pub const FILE_BYTES: u64 = camus_engine::limits::WAL_SEGMENT_BYTES;
/// What must be free besides: the file's extents and the journal of the file system.
const FREE_BESIDES_BYTES: u64 = 4 << 20;
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Sizes of one write, bytes.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Writes in flight.
const DEPTHS: [usize; 2] = [1, 4];

/// What the disk gives to whoever keeps his word: the two figures that others are held against.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Floor {
    /// How the broker would make writes durable here: `dsync`, `adaptive`, `blocking`.
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
/// Where the directory, its file system or its disk do not let it: each in its own words; and when `stop` is set.
pub fn floor(dir: &Path, seconds: f64, stop: &AtomicBool) -> Result<Floor, UserError> {
    let meter = Meter::open(dir, FILE_BYTES, stop)?;
    let (write_4k_us, _) = meter.broker(4 << 10, 1, seconds)?;
    let (_, sequential_mb_per_s) = meter.broker(1 << 20, 4, seconds)?;
    Ok(Floor { method: meter.method.to_string(), write_4k_us, sequential_mb_per_s })
}

/// A file in a directory, ready to be written to and measured. It has no name any more.
pub struct Meter<'a> {
    dir: PathBuf,
    file_bytes: u64,
    file: engine::Floor,
    stop: &'a AtomicBool,
    /// How the broker would write there.
    pub method: DurableMethod,
    /// Why that is on no ring, if so.
    pub no_ring: Option<String>,
}

impl<'a> Meter<'a> {
    /// Gives up when `stop` is set.
    pub fn open(dir: &Path, file_bytes: u64, stop: &'a AtomicBool) -> Result<Meter<'a>, UserError> {
        check(dir, file_bytes)?;
        process::raise_limits();
        let failed = |error: io::Error| errors::measure_io(dir, "looking at its device", &error);
        // As with camus.io = auto.
        let (method, no_ring) = match engine::ring_probe() {
            Ok(()) => (uring::probe(dir).map_err(failed)?, None),
            Err(error) => (DurableMethod::Blocking, Some(error.to_string())),
        };
        let file = engine::Floor::prepare(dir, file_bytes, stop).map_err(|e| errors::of_floor(dir, file_bytes, &e))?;
        Ok(Meter { dir: dir.to_owned(), file_bytes, file, stop, method, no_ring })
    }

    fn how(&self) -> How {
        How::of(self.method).expect("a probe finds a method of this machine")
    }

    /// One cell by the broker's method: its percentiles, and 10^6 bytes a second.
    pub fn broker(&self, bytes: usize, depth: usize, seconds: f64) -> Result<(Percentiles, f64), UserError> {
        self.cell(Cell { how: self.how(), bytes, depth }, seconds)
    }

    fn cell(&self, cell: Cell, seconds: f64) -> Result<(Percentiles, f64), UserError> {
        let mut samples = percentiles::histogram();
        let time = Duration::from_secs_f64(seconds);
        let measured = self.file.measure(cell, time, self.stop, &mut |ns| samples.saturating_record(ns));
        let done = measured.map_err(|error| errors::of_floor(&self.dir, self.file_bytes, &error))?;
        Ok((Percentiles::of(&samples), mb_per_s(&done)))
    }

    /// See [`engine::Floor::direct_align`].
    pub fn direct_align(&self) -> Option<(u32, u32)> {
        self.file.direct_align()
    }
}

/// 10^6 bytes a second.
fn mb_per_s(done: &Done) -> f64 {
    let seconds = done.took.as_secs_f64();
    if seconds > 0.0 { (done.bytes as f64 / seconds / 1e4).round() / 100.0 } else { 0.0 }
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    dir: String,
    file_bytes: u64,
    seconds_per_cell: f64,
    /// What sysfs says; null where it has no device.
    device: Option<Device>,
    /// The broker's method, and why it is that.
    method: String,
    why: String,
    cells: Vec<Row>,
    floor: Floor,
}

#[derive(Debug, Serialize)]
struct Row {
    method: &'static str,
    /// It is the broker's.
    broker: bool,
    bytes: usize,
    depth: usize,
    latency_us: Percentiles,
    writes_per_s: f64,
    mb_per_s: f64,
}

fn name(how: How) -> &'static str {
    match how {
        How::RingDsync => "io_uring dsync",
        How::RingLinked => "io_uring write+fsync",
        How::RingAdaptive => "io_uring adaptive",
        How::Blocking => "pwrite+fdatasync",
        How::BlockingDsync => "pwritev2 dsync",
    }
}

/// `camus waltest`: every method, size and depth; rows as they are measured, or JSON.
pub fn run(dir: &Path, file_bytes: u64, seconds: f64, json: Option<&str>) -> Result<(), UserError> {
    let unwritten = |to: &str| {
        let path = PathBuf::from(to);
        move |error: io::Error| errors::bench_file(&path, &error.to_string())
    };
    // Before a minute goes by for nothing.
    let mut file = match json {
        None | Some("-") => None,
        Some(to) => Some(Output::open(Path::new(to)).map_err(unwritten(to))?),
    };
    let stop = stop_on_signals()?;
    let meter = Meter::open(dir, file_bytes, &stop)?;
    let device = device(dir);
    let (method, why) = (meter.method, why(device.as_ref(), meter.no_ring.as_deref()));
    let quiet = json == Some("-");
    let say = |text: String| {
        if !quiet {
            out::line(text);
        }
    };
    let shown = |how: How| {
        let mark = if how == meter.how() { "*" } else { " " };
        format!("{mark} {}", name(how))
    };
    say(format!(
        "{}: durable writes of whole blocks, O_DIRECT, into a file of {} that was written once; {seconds} s a row",
        dir.display(),
        out::bytes(file_bytes)
    ));
    say(format!("* the broker's choice here: {method}: {why}"));
    say(format!(
        "  {:<21}{:>8}{:>6}{:>10}{:>9}{:>9}{:>9}{:>9}{:>10}{:>8}",
        "METHOD", "SIZE", "DEPTH", "P50 us", "P90", "P99", "P99.9", "MAX", "WRITES/S", "MB/S"
    ));
    let mut rows: Vec<Row> = vec![];
    for how in How::ALL {
        if how.needs_ring() && meter.no_ring.is_some() {
            say(format!("{:<23}  not available: io_uring can not be had", shown(how)));
            continue;
        }
        for (bytes, depth) in SIZES.into_iter().flat_map(|bytes| DEPTHS.map(|depth| (bytes, depth))) {
            if how == How::BlockingDsync && depth > 1 {
                continue;
            }
            let (latency_us, mb_per_s) = meter.cell(Cell { how, bytes, depth }, seconds)?;
            let writes_per_s = (mb_per_s * 1e6 / bytes as f64).round();
            let Percentiles { p50, p90, p99, p999, max, .. } = latency_us;
            say(format!(
                "{:<23}{:>8}{depth:>6}{p50:>10.0}{p90:>9.0}{p99:>9.0}{p999:>9.0}{max:>9.0}{writes_per_s:>10}\
                 {mb_per_s:>8.1}",
                shown(how),
                out::bytes(bytes as u64)
            ));
            let broker = how == meter.how();
            rows.push(Row { method: name(how), broker, bytes, depth, latency_us, writes_per_s, mb_per_s });
        }
    }
    let of_broker = |bytes: usize, depth: usize| {
        let row = rows.iter().find(|row| row.broker && row.bytes == bytes && row.depth == depth);
        row.expect("the broker's method was measured in every size")
    };
    let (write, sequential) = (of_broker(4 << 10, 1), of_broker(1 << 20, 4));
    let floor =
        Floor { method: method.to_string(), write_4k_us: write.latency_us, sequential_mb_per_s: sequential.mb_per_s };
    say(format!(
        "floor: 4 KiB p50 {:.0} us, p99 {:.0} us: {} acknowledged groups a second, one at a time; {:.0} MB/s in 1 MiB",
        floor.write_4k_us.p50, floor.write_4k_us.p99, write.writes_per_s, floor.sequential_mb_per_s
    ));
    let Some(to) = json else { return Ok(()) };
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        dir: dir.display().to_string(),
        file_bytes,
        seconds_per_cell: seconds,
        device,
        method: method.to_string(),
        why,
        cells: rows,
        floor,
    };
    let text = serde_json::to_string_pretty(&report).expect("plain data");
    match &mut file {
        None => out::line(text),
        Some(file) => file.write(&format!("{text}\n")).map_err(unwritten(to))?,
    }
    Ok(())
}

/// The block device that this directory lies on, if sysfs has one.
fn device(dir: &Path) -> Option<Device> {
    let number = std::fs::metadata(dir).ok()?.dev();
    Reader::here().device(rustix::fs::major(number), rustix::fs::minor(number))
}

/// Why a broker chooses its method here. Source: docs/adr/0002, `camus_engine::io::uring::probe`.
fn why(device: Option<&Device>, no_ring: Option<&str>) -> String {
    if let Some(error) = no_ring {
        return format!("io_uring can not be had ({error})");
    }
    let Some(Device { name, write_cache, fua, .. }) = device else {
        return "the device below is not known, so a write is taken to need a flush".to_owned();
    };
    match (write_cache.as_str(), fua.as_str()) {
        ("write through", _) => format!("{name} is write through: a write is durable by itself"),
        ("write back", "1") => format!("{name} is write back with FUA: one write that goes through the cache"),
        ("write back", _) => {
            format!("{name} is write back without FUA: dsync where a write is alone, else write+fsync")
        }
        _ => format!("{name} does not say what cache it has, so a write is taken to need a flush"),
    }
}

/// A flag that the first SIGINT or SIGTERM sets; the second one ends the process.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, UserError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: a handler that sees the flag set by the one before would end the process at the first signal.
        let twice = flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), stop.clone());
        twice
            .and_then(|_| flag::register(signal, stop.clone()))
            .map_err(|e| errors::runtime(0, &format!("signals can not be watched: {e}")))?;
    }
    Ok(stop)
}

/// Refuses, before anything is made, what can not be measured.
fn check(dir: &Path, file_bytes: u64) -> Result<(), UserError> {
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
    if space.f_blocks == 0 {
        return Err(errors::not_durable(dir, "its file system holds no data (as /proc and /sys)"));
    }
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < file_bytes + FREE_BESIDES_BYTES {
        return Err(errors::measure_space(dir, file_bytes + FREE_BESIDES_BYTES, free, None));
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
        let floor = floor(dir.path(), 0.05, &AtomicBool::new(false)).expect("measured");
        let written = &floor.write_4k_us;
        assert!(written.count > 0 && written.p50 > 0.0 && written.p50 <= written.p99 && written.p99 <= written.max);
        assert!(floor.sequential_mb_per_s > 0.0);
        assert!(["dsync", "adaptive", "blocking"].contains(&floor.method.as_str()));
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
    }

    #[test]
    fn a_floor_that_nobody_waits_for_any_more_is_not_measured() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let error = floor(dir.path(), 3600.0, &AtomicBool::new(true)).expect_err("it was stopped");
        assert_eq!(error.code, errors::INTERRUPTED.code);
    }

    /// Lost if it fails: the person's time: what is wrong with a directory is told as something else, or not at all.
    #[test]
    fn what_can_not_be_measured_is_refused_in_its_own_words() {
        let dir = tempfile::tempdir_in(".").expect("a directory on a disk");
        let refused = |path: &Path| floor(path, 0.01, &AtomicBool::new(false)).expect_err("refused");
        let missing = refused(&dir.path().join("nowhere"));
        assert!(missing.code == "CAM-0109" && missing.run.starts_with("mkdir -p "), "{missing}");
        let file = dir.path().join("a-file");
        std::fs::write(&file, "x").expect("written");
        assert!(refused(&file).meaning.contains("not a directory"));
        assert_eq!(refused(Path::new("/dev/shm")).code, "CAM-0110");
        assert!(refused(Path::new("/proc")).meaning.contains("holds no data"));
    }
}
