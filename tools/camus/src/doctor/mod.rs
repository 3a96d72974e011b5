//! `camus doctor`: whether this disk and this host are fit for a broker with these settings. Changes nothing.
//!
//! In: the settings of `serve`, /proc, /sys, and a few seconds of writes to a file of its own. Out: a table or JSON,
//! and the exit status: 0 all pass, 1 a warning, 2 a failure. `facts.rs` what is known; `reader.rs` where it is read,
//! `addresses.rs` whether they can be opened; `checks/` what it means, each a function of the facts; `recorded.rs`
//! hosts for tests.

use crate::errors::{self, UserError};
use crate::settings::{self, Settings};
use crate::waltest::{self, Meter};
use crate::{data_dir, out};
use camus_engine::io::floor;
use checks::{Finding, Verdict};
use facts::{Disk, Facts, Holder, Measured, Place, Start, Wanted};
use reader::Reader;
use rustix::fs::{Access, access, fsync, major, minor, statvfs};
use serde::Serialize;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

mod addresses;
mod checks;
pub mod facts;
pub mod reader;
#[cfg(test)]
mod recorded;

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    data_dir: String,
    /// The directory itself, or what is above it if it is not there yet.
    looked_at: String,
    verdict: Verdict,
    /// null where it could not be measured.
    floor: Option<&'a waltest::Floor>,
    checks: &'a [Finding],
}

/// Looks, measures for twice `seconds`, judges and tells; returns the exit status.
pub fn run(settings: &Settings, seconds: f64, json: bool) -> Result<u8, UserError> {
    let stop = waltest::stop_on_signals()?;
    let facts = look(settings, seconds, &stop)?;
    let findings = checks::judge(&facts);
    let verdict = findings.iter().map(|found| found.verdict).max().unwrap_or(Verdict::Pass);
    match json {
        true => out::line(as_json(&facts, &findings, verdict)),
        false => out::line(as_text(&facts, &findings, verdict)),
    }
    Ok(status(verdict))
}

fn status(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Skip | Verdict::Pass => 0,
        Verdict::Warn => 1,
        Verdict::Fail => 2,
    }
}

/// Everything that is to be known, from this machine.
fn look(settings: &Settings, seconds: f64, stop: &AtomicBool) -> Result<Facts, UserError> {
    let reader = Reader::here();
    let here = settings::Host::here(&settings.data_dir);
    // Whose directory it is: a start will say if that can not be read.
    let made_with = data_dir::read_identity(&settings.data_dir).ok().flatten().map(|identity| identity.cores);
    let cores = settings.core_cpus(&here, made_with)?;
    let budgets = settings.budgets(&here, cores.len())?;
    settings.wal_segments_max(cores.len())?;
    let wanted = Wanted {
        memory_bytes: settings.memory_bytes(&here, cores.len())?,
        registered_bytes: budgets.wal_bytes as u64,
        wal_limit_bytes: settings.wal_disk_limit_bytes,
        segment_bytes: settings.wal_segment_bytes,
        connections_max: settings.connections_max,
        listeners: settings.listeners.len(),
        others: settings.brokers.len().saturating_sub(1),
        io: settings.io,
        cores,
    };
    let used: Vec<usize> = wanted.cores.iter().copied().flatten().collect();
    let kernel = reader.kernel(floor::ring_probe().map_err(|error| error.to_string()));
    let host = reader.host(&here.cpus, &used);
    let disk = look_at_disk(&reader, &settings.data_dir);
    let start = Start {
        holder: holder(&disk),
        listeners: settings.listeners.iter().map(|listener| addresses::tried("listeners", listener)).collect(),
        http: addresses::tried("camus.http", &settings.http),
    };
    let unfit = |kind: ErrorKind| errors::measure_io(&settings.data_dir, "looking for it", &kind.into());
    let measured = match &disk.place {
        // What is above it is no place for the data, and not ours to write to.
        Place::NotADirectory => Err(unfit(ErrorKind::NotADirectory)),
        Place::Unreadable(_) => Err(unfit(ErrorKind::PermissionDenied)),
        Place::Directory | Place::New { .. } => measure(&reader, &disk.looked_at, seconds, stop),
    };
    let floor = match measured {
        Ok(measured) => Ok(measured),
        Err(error) if error.code == errors::INTERRUPTED.code => return Err(interrupted(&settings.data_dir, error)),
        Err(error) => Err((error.meaning, error.run)),
    };
    Ok(Facts { wanted, disk, kernel, host, start, floor })
}

/// In doctor's own words: the measurement is a part of other commands too.
fn interrupted(data_dir: &Path, error: UserError) -> UserError {
    let shown = data_dir.display();
    UserError {
        what: "doctor was interrupted".to_owned(),
        place: format!("measuring the disk of {shown}"),
        run: format!("camus doctor --data-dir {shown} --seconds 0.2   (the same, in a tenth of the time)"),
        ..error
    }
}

/// The floor, and the device's own count of flushes while it was measured one write at a time: those of several at once
/// may be one for the device.
fn measure(reader: &Reader, dir: &Path, seconds: f64, stop: &AtomicBool) -> Result<Measured, UserError> {
    let meter = Meter::open(dir, waltest::FILE_BYTES, stop)?;
    let device = fs::metadata(dir).map(|found| found.dev()).unwrap_or(0);
    let flushes = || reader.flushes(major(device), minor(device));
    let before = flushes();
    let (write_4k_us, _) = meter.broker(4 << 10, 1, seconds)?;
    let flushes = before.and_then(|before| Some(flushes()?.saturating_sub(before)));
    let (_, sequential_mb_per_s) = meter.broker(1 << 20, 4, seconds)?;
    let floor = waltest::Floor { method: meter.method.to_string(), write_4k_us, sequential_mb_per_s };
    Ok(Measured { writes: floor.write_4k_us.count, flushes, floor, direct_align: meter.direct_align() })
}

/// Who has the data directory. Our own lock is shared and gone at once: nothing waits for it.
fn holder(disk: &Disk) -> Option<Holder> {
    if disk.place != Place::Directory {
        return None;
    }
    let error = data_dir::hold_for_reading(&disk.looked_at).err()?;
    let pid = error.run.strip_prefix("ps -fp ").and_then(|pid| pid.parse().ok());
    (error.code == errors::DATA_DIR_LOCKED.code).then_some(Holder { pid, said: error.meaning })
}

fn look_at_disk(reader: &Reader, data_dir: &Path) -> Disk {
    let (place, looked_at) = place(data_dir);
    let number = fs::metadata(&looked_at).map(|found| found.dev()).ok();
    let space = statvfs(&looked_at).ok();
    let bytes = |blocks: u64| blocks.saturating_mul(space.as_ref().map_or(0, |space| space.f_frsize));
    let logs: Vec<PathBuf> = core_dirs(data_dir);
    let elsewhere = logs.iter().filter(|dir| fs::metadata(dir).ok().map(|found| found.dev()) != number);
    let flushed = File::open(&looked_at).and_then(|dir| fsync(dir).map_err(Into::into));
    Disk {
        data_dir: data_dir.to_owned(),
        user: reader.user(rustix::process::geteuid().as_raw()),
        owner: fs::metadata(data_dir).ok().map(|found| reader.user(found.uid())),
        foreign: is_foreign(data_dir),
        writable: access(&looked_at, Access::WRITE_OK | Access::EXEC_OK).is_ok(),
        mount: reader.mount(&looked_at),
        device: number.and_then(|number| reader.device(major(number), minor(number))),
        total_bytes: bytes(space.as_ref().map_or(0, |space| space.f_blocks)),
        free_bytes: bytes(space.as_ref().map_or(0, |space| space.f_bavail)),
        wal_bytes: logs.iter().map(|dir| log_bytes(dir)).sum(),
        dir_flush: flushed.map_err(|error| error.to_string()),
        elsewhere: elsewhere.cloned().collect(),
        place,
        looked_at,
    }
}

/// What is at the path, and the directory that can be looked at: itself, or the nearest one above.
fn place(data_dir: &Path) -> (Place, PathBuf) {
    let place = match fs::metadata(data_dir) {
        Ok(found) if !found.is_dir() => Place::NotADirectory,
        Ok(_) => match fs::read_dir(data_dir) {
            Ok(_) => Place::Directory,
            Err(error) => Place::Unreadable(error.to_string()),
        },
        Err(error) if error.kind() == ErrorKind::NotADirectory => Place::NotADirectory,
        Err(error) if error.kind() == ErrorKind::NotFound => Place::New { parent: false },
        Err(error) => Place::Unreadable(error.to_string()),
    };
    let absolute = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    let above = absolute.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/")).to_owned();
    let place = match place {
        Place::New { .. } => Place::New { parent: absolute.parent() == Some(&above) },
        place => place,
    };
    (place, above.canonicalize().unwrap_or(above))
}

fn core_dirs(data_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    let is_log = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("core-"));
        name.is_some_and(|number| number.parse::<u16>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_log).collect()
}

fn is_foreign(data_dir: &Path) -> bool {
    let mut entries = fs::read_dir(data_dir).into_iter().flatten().flatten();
    // A file system of its own is not empty either.
    !data_dir.join(data_dir::IDENTITY_FILE).exists() && entries.any(|entry| entry.file_name() != "lost+found")
}

fn log_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

fn as_json(facts: &Facts, findings: &[Finding], verdict: Verdict) -> String {
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        data_dir: facts.disk.data_dir.display().to_string(),
        looked_at: facts.disk.looked_at.display().to_string(),
        verdict,
        floor: facts.floor.as_ref().ok().map(|measured| &measured.floor),
        checks: findings,
    };
    serde_json::to_string_pretty(&report).expect("plain data")
}

/// One line for each check; below those that do not pass, why it matters and what to run.
fn as_text(facts: &Facts, findings: &[Finding], verdict: Verdict) -> String {
    let width = findings.iter().map(|found| found.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut group = "";
    for found in findings {
        if found.group != group {
            group = found.group;
            let of = match group {
                "disk" => format!(" ({})", facts.disk.looked_at.display()),
                "device" if checks::is_a_place(facts) => facts
                    .disk
                    .device
                    .as_ref()
                    .map_or(String::new(), |d| format!(" ({})", format!("{} {}", d.name, d.model).trim_end())),
                _ => String::new(),
            };
            text.push_str(&format!("{group}{of}\n"));
        }
        let mark = match found.verdict {
            Verdict::Skip => "----",
            Verdict::Pass => "pass",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        text.push_str(&format!("  {mark}  {:<width$}  {}\n", found.name, found.measured));
        if let Some(command) = found.command() {
            let label = if found.fix.is_some() { "  fix" } else { "  to see more" };
            text.push_str(&format!("        {:<width$}  {}\n", "  why", found.why));
            text.push_str(&format!("        {label:<width$}  {command}\n"));
        }
    }
    let count = |wanted| findings.iter().filter(|found| found.verdict == wanted).count();
    let (pass, warn, fail) = (count(Verdict::Pass), count(Verdict::Warn), count(Verdict::Fail));
    let skipped = match count(Verdict::Skip) {
        0 => String::new(),
        skipped => format!(", {skipped} not known"),
    };
    text.push_str(&match verdict {
        Verdict::Skip | Verdict::Pass => format!("all {pass} checks pass{skipped}"),
        Verdict::Warn | Verdict::Fail => {
            format!("{pass} pass, {warn} warn, {fail} fail{skipped}; nothing was changed")
        }
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_golden;

    /// Lost if it fails: a host that is fit is told that it is not; nobody believes a warning then.
    #[test]
    fn a_fit_host_passes_every_check() {
        let facts = recorded::facts();
        let findings = checks::judge(&facts);
        let others: Vec<&Finding> = findings.iter().filter(|found| found.verdict != Verdict::Pass).collect();
        assert!(others.is_empty(), "{others:#?}");
        let names: std::collections::BTreeSet<&str> = findings.iter().map(|found| found.name).collect();
        assert_eq!(names.len(), findings.len(), "each check has a name of its own");
        assert_eq!([Verdict::Pass, Verdict::Warn, Verdict::Fail].map(status), [0, 1, 2]);
    }

    /// Lost if it fails: what people read and scripts parse.
    #[test]
    fn what_was_found_is_told_as_it_was() {
        let mut facts = recorded::facts();
        let fit = as_text(&facts, &checks::judge(&facts), Verdict::Pass);
        facts.disk.mount.as_mut().expect("there").kind = "tmpfs".to_owned();
        facts.disk.device.as_mut().expect("there").scheduler = "mq-deadline".to_owned();
        facts.kernel.memlock_bytes = Some(8 << 20);
        facts.floor = Err(("it is on a tmpfs, which is memory".to_owned(), "findmnt -T /srv/camus".to_owned()));
        let findings = checks::judge(&facts);
        let unfit = as_text(&facts, &findings, Verdict::Fail);
        assert_golden("doctor.txt", &format!("{fit}\n\n{unfit}\n\n{}", as_json(&facts, &findings, Verdict::Fail)));
    }

    /// Lost if it fails: a start that is refused, and a doctor who did not know; or a broker that doctor keeps out.
    #[test]
    fn who_has_the_data_directory_is_known_and_it_is_left_to_him() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = || look_at_disk(&Reader::here(), dir.path());
        assert_eq!(holder(&disk()), None);
        let held = data_dir::DataDir::open(dir.path()).expect("doctor does not keep it");
        let found = holder(&disk()).expect("it is held");
        assert_eq!(found.pid, Some(std::process::id()));
        assert!(found.said.contains(&std::process::id().to_string()), "{}", found.said);
        drop(held);
        assert_eq!(holder(&disk()), None);
    }

    /// Lost if it fails: another directory than the broker's is measured.
    #[test]
    fn the_nearest_directory_that_exists_is_looked_at() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("it exists");
        let at = |path: &str| place(&root.join(path));
        assert_eq!(at(""), (Place::Directory, root.clone()));
        assert_eq!(at("new"), (Place::New { parent: true }, root.clone()));
        assert_eq!(at("new/er"), (Place::New { parent: false }, root.clone()));
        fs::write(root.join("file"), "x").expect("written");
        assert_eq!(at("file"), (Place::NotADirectory, root.clone()));
        assert_eq!(at("file/below"), (Place::NotADirectory, root.clone()));
        fs::create_dir_all(root.join("core-0")).expect("made");
        fs::create_dir_all(root.join("core-x")).expect("made");
        fs::write(root.join("core-0/000001.wal"), [0; 5000]).expect("written");
        let disk = look_at_disk(&Reader::here(), &root);
        assert_eq!((disk.wal_bytes, disk.elsewhere.len(), disk.dir_flush.is_ok()), (5000, 0, true));
        assert_eq!((disk.foreign, disk.owner.as_ref()), (true, Some(&disk.user)), "a log without an identity");
        fs::write(root.join(data_dir::IDENTITY_FILE), "").expect("written");
        assert!(!is_foreign(&root) && !is_foreign(&root.join("new")));
        assert!(disk.writable && disk.total_bytes >= disk.free_bytes && disk.total_bytes > 0);
    }
}
