//! What was measured on the disk: how fast a durable write is, and whether it can be one.

use super::{About, Finding};
use crate::doctor::facts::Facts;

const GROUP: &str = "measured";
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

/// Drives that have capacitors behind their cache, by the beginning of their model: they may be that fast. From their
/// makers' product pages (power-loss protection); not complete, and a hint only.
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
fn cache_off(device: &str) -> String {
    match device {
        nvme if nvme.starts_with("nvme") => format!("nvme set-feature /dev/{nvme} -f 6 -v 0"),
        sata if sata.starts_with("sd") => format!("hdparm -W0 /dev/{sata}"),
        _ => "virsh dumpxml NAME | grep cache   (on its host: 'none' or 'directsync', never 'unsafe')".to_owned(),
    }
}

fn tests_again(facts: &Facts) -> String {
    format!("camus waltest {}", facts.disk.looked_at.display())
}

pub fn floor(facts: &Facts) -> Finding {
    let why = "no broker that flushes can answer a produce faster than this";
    let about = About { group: GROUP, name: "floor", why };
    let measured = match &facts.floor {
        Ok(measured) => &measured.floor,
        Err((why, run)) => return about.fail(format!("not measured: {why}"), run.clone()),
    };
    let write = &measured.write_4k_us;
    let groups = if write.mean > 0.0 { 1e6 / write.mean } else { 0.0 };
    let shown = format!(
        "4 KiB durable ({}): p50 {:.0} us, p99 {:.0} us: {groups:.0} acknowledged groups a second, one at a time",
        measured.method, write.p50, write.p99
    );
    match write.p50 > P50_US_MAX || write.p99 > P99_US_MAX {
        true => about.warn(shown, tests_again(facts)),
        false => about.pass(shown),
    }
}

pub fn sequential(facts: &Facts) -> Finding {
    let why = "no broker that flushes can take more than this, and a new segment is written twice";
    let about = About { group: GROUP, name: "bandwidth", why };
    let Ok(measured) = &facts.floor else { return about.warn("not measured", tests_again(facts)) };
    let mb = measured.floor.sequential_mb_per_s;
    let shown = format!("1 MiB durable, four in flight: {mb:.0} MB/s");
    if mb < SEQUENTIAL_MB_MIN { about.warn(shown, tests_again(facts)) } else { about.pass(shown) }
}

pub fn honesty(facts: &Facts) -> Finding {
    let why = "a drive that answers a flush before it has flushed loses acknowledged records with the power";
    let about = About { group: GROUP, name: "flush honesty", why };
    let Ok(measured) = &facts.floor else { return about.warn("not measured", tests_again(facts)) };
    let Some(device) = &facts.disk.device else {
        let fix = format!("lsblk -s -o NAME,MODEL,TYPE; findmnt -T {}", facts.disk.looked_at.display());
        return about.warn("the device below is not known, so nothing can be said of its cache", fix);
    };
    if device.write_cache != "write back" {
        return about.pass(format!("{} says that it has no cache to lose ({})", device.name, device.write_cache));
    }
    if measured.floor.method != "dsync"
        && let Some(flushes) = measured.flushes
        && flushes * 100 < measured.writes * FLUSHES_PERCENT_MIN
    {
        return about.fail(
            format!("{flushes} flushes reached {} for {} durable writes", device.name, measured.writes),
            format!("findmnt -no OPTIONS -T {}   (is there a nobarrier?)", facts.disk.looked_at.display()),
        );
    }
    let mean = measured.floor.write_4k_us.mean;
    let per_s = if mean > 0.0 { 1e6 / mean } else { 0.0 };
    let known = PROTECTED.iter().any(|model| device.model.starts_with(model));
    if per_s > FLUSHES_PER_S_MAX && !known {
        let model = if device.model.is_empty() { "no model is given" } else { &device.model };
        return about.warn(
            format!(
                "{per_s:.0} flushes a second by a write-back cache: {} ({model}) has power-loss protection, or it lies",
                device.name
            ),
            cache_off(&device.name),
        );
    }
    let counted = measured.flushes.map_or(String::new(), |n| format!(", {n} flushes counted by the device"));
    about.pass(format!("{} flushes at a believable rate: {per_s:.0} a second{counted}", device.name))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{self, Fail, Pass, Warn};
    use super::*;
    use crate::doctor::facts::Measured;
    use crate::doctor::recorded::facts;

    fn verdict(check: fn(&Facts) -> Finding, change: impl FnOnce(&mut Facts)) -> (Verdict, String) {
        let mut facts = facts();
        change(&mut facts);
        let found = check(&facts);
        assert_eq!(found.fix.is_none(), found.verdict == Pass, "what is wrong has its command: {found:?}");
        (found.verdict, found.measured)
    }

    fn measured(facts: &mut Facts) -> &mut Measured {
        facts.floor.as_mut().expect("measured")
    }

    /// Lost if it fails: a slow disk is found out by the clients.
    #[test]
    fn a_slow_disk_is_told_with_what_it_means() {
        let (fast, shown) = verdict(floor, |_| {});
        assert_eq!(fast, Pass);
        assert!(shown.contains("p50 160 us, p99 430 us: 5000 acknowledged groups a second"), "{shown}");
        assert_eq!(verdict(floor, |f| measured(f).floor.write_4k_us.p50 = 8_000.0).0, Warn);
        assert_eq!(verdict(floor, |f| measured(f).floor.write_4k_us.p99 = 30_000.0).0, Warn);
        assert_eq!(verdict(sequential, |_| {}).0, Pass);
        assert_eq!(verdict(sequential, |f| measured(f).floor.sequential_mb_per_s = 20.0).0, Warn);
        let none = |f: &mut Facts| f.floor = Err(("it is on a tmpfs".to_owned(), "findmnt".to_owned()));
        assert_eq!(verdict(floor, none), (Fail, "not measured: it is on a tmpfs".to_owned()));
        assert_eq!((verdict(sequential, none).0, verdict(honesty, none).0), (Warn, Warn));
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
