//! What was measured on the disk: how fast a durable write is, and whether it can be one.

use super::{About, Finding, disk};
use crate::doctor::facts::{Facts, Measured};
use camus_engine::limits::BLOCK_BYTES;

pub const GROUP: &str = "measured";
/// Above these a produce that waits for its flush is slow, us.
const P50_US_MAX: f64 = 5_000.0;
const P99_US_MAX: f64 = 20_000.0;
/// Of 1 MiB writes, 10^6 bytes a second.
const SEQUENTIAL_MB_MIN: f64 = 50.0;
/// No flash and no network is this fast: who flushes more often a second has memory that outlives a power cut, or does
/// not flush.
const FLUSHES_PER_S_MAX: f64 = 20_000.0;
/// Of durable writes with a flush each, percent that the device must have seen; others' flushes only add to it.
const FLUSHES_PERCENT_MIN: u64 = 50;

/// Data-centre drives that are sold with power-loss protection, by the beginning of their model: they may be that fast.
/// A hint only, and not complete: it saves their owners a warning, and a drive that is missing gets one.
const PROTECTED: &[&str] = &[
    "INTEL SSDPE2K",
    "INTEL SSDPED", // Optane: no cache to lose
    "INTEL SSDPF2K",
    "SOLIDIGM SSDPF2K",
    "SAMSUNG MZQL",
    "SAMSUNG MZWL",
    "SAMSUNG MZ1L",
    "Micron_7300",
    "Micron_7400",
    "Micron_7450",
    "Micron_7500",
    "Micron_9300",
    "Micron_9400",
    "KIOXIA KCD",
    "KIOXIA KCM",
    "WUS4",
    "WUS5",
];

/// The command that takes a drive's volatile cache out of use, where there is one.
fn cache_off(device: &str) -> Option<String> {
    match device {
        nvme if nvme.starts_with("nvme") => Some(format!("nvme set-feature /dev/{nvme} -f 6 -v 0")),
        sata if sata.starts_with("sd") => Some(format!("hdparm -W0 /dev/{sata}")),
        _ => None,
    }
}

/// A virtual disk's cache is its host's.
const HOST_CACHE: &str = "virsh dumpxml NAME | grep cache   (on its host: 'none' or 'directsync', never 'unsafe')";

fn tests_again(facts: &Facts) -> String {
    format!("camus waltest {}", facts.disk.looked_at.display())
}

pub fn floor(facts: &Facts) -> Finding {
    let why = "no broker that flushes can answer a produce faster than this";
    let about = About { group: GROUP, name: "floor", why };
    let measured = match &facts.floor {
        Ok(measured) => &measured.floor,
        Err((why, run)) => {
            return match disk::not_writable(facts) {
                Some(cause) => about.see(cause),
                None => about
                    .because("without it nothing can be said of the speed of a broker here")
                    .fail(format!("not measured: {why}"), run.clone())
                    .look(),
            };
        }
    };
    let write = &measured.write_4k_us;
    let groups = if write.mean > 0.0 { 1e6 / write.mean } else { 0.0 };
    let shown = format!(
        "4 KiB durable ({}): p50 {:.0} us, p99 {:.0} us: {groups:.0} acknowledged groups a second, one at a time",
        measured.method, write.p50, write.p99
    );
    match write.p50 > P50_US_MAX || write.p99 > P99_US_MAX {
        true => about.warn(shown, tests_again(facts)).look(),
        false => about.pass(shown),
    }
}

pub fn sequential(facts: &Facts, measured: &Measured) -> Finding {
    let why = "no broker that flushes can take more than this, and a new segment is written twice";
    let about = About { group: GROUP, name: "bandwidth", why };
    let mb = measured.floor.sequential_mb_per_s;
    let shown = format!("1 MiB durable, four in flight: {mb:.0} MB/s");
    if mb < SEQUENTIAL_MB_MIN { about.warn(shown, tests_again(facts)).look() } else { about.pass(shown) }
}

pub fn direct_io(facts: &Facts, measured: &Measured) -> Finding {
    let why = "the log writes past the page cache, in blocks of 4 KiB";
    let about = About { group: GROUP, name: "direct I/O", why };
    match measured.direct_align {
        // Older kernels and some file systems do not tell; that it was measured says that it works.
        None => about.pass("works; its alignment is not told"),
        Some((memory, offset)) if offset > 0 && offset as usize <= BLOCK_BYTES && memory as usize <= BLOCK_BYTES => {
            about.pass(format!("aligned to {offset} bytes on the disk, {memory} in memory"))
        }
        Some((memory, offset)) => about
            .fail(
                format!("asks for blocks of {offset} bytes ({memory} in memory), the log's are {BLOCK_BYTES}"),
                format!("lsblk -o NAME,PHY-SEC,LOG-SEC; findmnt -T {}", facts.disk.looked_at.display()),
            )
            .look(),
    }
}

pub fn honesty(facts: &Facts, measured: &Measured) -> Finding {
    let why = "a drive that answers a flush before it has flushed loses acknowledged records with the power";
    let about = About { group: GROUP, name: "flush honesty", why };
    let Some(device) = &facts.disk.device else {
        let fix = format!("lsblk -s -o NAME,MODEL,TYPE; findmnt -T {}", facts.disk.looked_at.display());
        return about.warn("the device below is not known, so nothing can be said of its cache", fix).look();
    };
    if device.write_cache != "write back" {
        return about.pass(format!("{} says that it has no cache to lose ({})", device.name, device.write_cache));
    }
    if measured.floor.method != "dsync"
        && let Some(flushes) = measured.flushes
        && flushes * 100 < measured.writes * FLUSHES_PERCENT_MIN
    {
        let fix = format!("findmnt -no OPTIONS -T {}   (is there a nobarrier?)", facts.disk.looked_at.display());
        let shown = format!("{flushes} flushes reached {} for {} durable writes", device.name, measured.writes);
        return about.fail(shown, fix).look();
    }
    let mean = measured.floor.write_4k_us.mean;
    let per_s = if mean > 0.0 { 1e6 / mean } else { 0.0 };
    let known = PROTECTED.iter().any(|model| device.model.starts_with(model));
    if per_s > FLUSHES_PER_S_MAX && !known {
        let model = if device.model.is_empty() { "no model is given" } else { &device.model };
        let shown = format!(
            "{per_s:.0} flushes a second by a write-back cache: {} ({model}) has power-loss protection, or it lies",
            device.name
        );
        return match cache_off(&device.name) {
            Some(off) => about.warn(shown, off),
            None => about.warn(shown, HOST_CACHE).look(),
        };
    }
    let counted = measured.flushes.map_or(String::new(), |n| format!(", {n} flushes counted by the device"));
    about.pass(format!("{} flushes at a believable rate: {per_s:.0} a second{counted}", device.name))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{self, Fail, Pass, Warn};
    use super::*;
    use crate::doctor::facts::{Measured, Place};
    use crate::doctor::recorded::{facts, judged};

    fn verdict(check: fn(&Facts, &Measured) -> Finding, change: impl FnOnce(&mut Facts)) -> (Verdict, String) {
        let found = judged(|facts| check(facts, facts.floor.as_ref().expect("measured")), change);
        (found.verdict, found.measured)
    }

    fn measured(facts: &mut Facts) -> &mut Measured {
        facts.floor.as_mut().expect("measured")
    }

    /// Lost if it fails: a slow disk is found out by the clients.
    #[test]
    fn a_slow_disk_is_told_with_what_it_means() {
        let floor = |facts: &Facts, _: &Measured| floor(facts);
        let (fast, shown) = verdict(floor, |_| {});
        assert_eq!(fast, Pass);
        assert!(shown.contains("p50 160 us, p99 430 us: 5000 acknowledged groups a second"), "{shown}");
        assert_eq!(verdict(floor, |f| measured(f).floor.write_4k_us.p50 = 8_000.0).0, Warn);
        assert_eq!(verdict(floor, |f| measured(f).floor.write_4k_us.p99 = 30_000.0).0, Warn);
        assert_eq!(verdict(sequential, |_| {}).0, Pass);
        assert_eq!(verdict(sequential, |f| measured(f).floor.sequential_mb_per_s = 20.0).0, Warn);
    }

    /// Lost if it fails: the answer to why there are no figures.
    #[test]
    fn a_disk_that_could_not_be_measured_fails_once_and_says_why() {
        let mut facts = facts();
        facts.floor = Err(("it is on a tmpfs".to_owned(), "findmnt".to_owned()));
        let failed: Vec<_> = super::super::judge(&facts).into_iter().filter(|found| found.verdict != Pass).collect();
        assert_eq!(failed.len(), 1, "{failed:#?}");
        assert_eq!((failed[0].name, failed[0].verdict), ("floor", Fail));
        assert_eq!(failed[0].measured, "not measured: it is on a tmpfs");
    }

    /// Lost if it fails: a new user mends three things, two of which are none.
    #[test]
    fn one_cause_is_one_failure() {
        type Change = fn(&mut Facts);
        let not_a_directory: Change = |f| f.disk.place = Place::NotADirectory;
        let unreadable: Change = |f| f.disk.place = Place::Unreadable("Permission denied".to_owned());
        let not_ours: Change = |f| f.disk.writable = false;
        let memory: Change = |f| f.disk.mount.as_mut().expect("there").kind = "tmpfs".to_owned();
        let read_only: Change = |f| {
            f.disk.writable = false;
            f.disk.mount.as_mut().expect("there").options = vec!["ro".to_owned()];
        };
        let full: Change = |f| f.disk.free_bytes = 0;
        for (change, cause) in [
            (not_a_directory, "data directory"),
            (unreadable, "data directory"),
            (not_ours, "data directory"),
            (memory, "file system"),
            (read_only, "mount options"),
            (full, "free space"),
        ] {
            let mut facts = facts();
            facts.floor = Err(("it could not".to_owned(), "ls".to_owned()));
            facts.disk.dir_flush = Err("Permission denied".to_owned());
            facts.disk.device.as_mut().expect("there").rotational = "1".to_owned();
            facts.host.load = Some(100.0);
            change(&mut facts);
            // A directory that is ours can be opened.
            if facts.disk.writable {
                facts.disk.dir_flush = Ok(());
            }
            let found = super::super::judge(&facts);
            let named = |verdict| found.iter().filter(|f| f.verdict == verdict).map(|f| f.name).collect::<Vec<_>>();
            assert_eq!(named(Fail), [cause], "{found:#?}");
            assert_eq!(named(Warn), ["load"], "of {cause} no advice for what depends on it");
            let floor = found.iter().find(|found| found.name == "floor").expect("it is told");
            assert_eq!(floor.measured, format!("not looked at: see {cause}"));
            let load = found.iter().find(|found| found.name == "load").expect("it is told");
            assert!(!load.measured.contains("figures"), "there are none: {}", load.measured);
        }
    }

    /// Lost if it fails: a drive with larger blocks than the log's is found out by the first failed write.
    #[test]
    fn direct_io_takes_the_blocks_of_the_log() {
        let align = |align| verdict(direct_io, |f| measured(f).direct_align = align).0;
        assert_eq!(align(Some((4, 512))), Pass);
        assert_eq!(align(Some((512, 4096))), Pass);
        assert_eq!(align(Some((512, 16_384))), Fail);
        assert_eq!(align(Some((0, 0))), Fail);
        assert_eq!(align(None), Pass, "it was measured");
    }

    /// Lost if it fails: acknowledged records, with the power, on a drive that only says that it flushes.
    #[test]
    fn a_drive_that_flushes_in_no_time_is_named() {
        assert_eq!(verdict(honesty, |_| {}).0, Pass);
        let fast = |f: &mut Facts| measured(f).floor.write_4k_us.mean = 20.0;
        let (found, shown) = verdict(honesty, fast);
        assert!(found == Warn && shown.contains("50000 flushes a second") && shown.contains("nvme0n1"), "{shown}");
        let protected = |f: &mut Facts| {
            fast(f);
            f.disk.device.as_mut().expect("there").model = "SAMSUNG MZQL21T9HCJR-00A07".to_owned();
        };
        assert_eq!(verdict(honesty, protected).0, Pass);
        let through = |f: &mut Facts| {
            fast(f);
            f.disk.device.as_mut().expect("there").write_cache = "write through".to_owned();
        };
        assert_eq!(verdict(honesty, through).0, Pass);
        assert_eq!(verdict(honesty, |f| f.disk.device = None).0, Warn);
    }

    /// Lost if it fails: acknowledged records, where something between the file and the drive swallows the flushes.
    #[test]
    fn flushes_that_never_reach_the_device_fail() {
        let counted = |flushes| verdict(honesty, |f| measured(f).flushes = flushes).0;
        assert_eq!(counted(Some(0)), Fail);
        assert_eq!(counted(Some(9_000)), Pass);
        assert_eq!(counted(None), Pass, "a device without a counter");
        let fua = |f: &mut Facts| {
            measured(f).flushes = Some(0);
            measured(f).floor.method = "dsync".to_owned();
        };
        assert_eq!(verdict(honesty, fua).0, Pass, "with FUA there is none to count");
    }
}
