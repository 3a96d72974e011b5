//! The disk: where the data directory lies, and what its file system and its device say of themselves.

use super::{About, Finding, Verdict};
use crate::doctor::facts::{Facts, Mount, Place};
use crate::out;

const GROUP: &str = "disk";
const DEVICE: &str = "device";
const DATA_DIRECTORY: &str = "data directory";
const MOUNT_OPTIONS: &str = "mount options";
const FREE_SPACE: &str = "free space";
/// A file system of which less is free is slow and full soon.
const FREE_PERCENT_MIN: u64 = 15;
/// Segments that a core takes at its start: the one it writes and its spares.
const SEGMENTS_AT_START: u64 = 3;
/// A disk whose durable write is this fast does not rotate, whatever it says, us.
const ROTATING_US_MIN: f64 = 2_000.0;

fn mount_point(facts: &Facts) -> String {
    facts.disk.mount.as_ref().map_or_else(|| "/".to_owned(), |mount| mount.point.clone())
}

fn queue(facts: &Facts, file: &str) -> String {
    let name = facts.disk.device.as_ref().map_or("", |device| device.name.as_str());
    format!("/sys/block/{name}/queue/{file}")
}

/// Where another place must be found: the check that says why.
pub fn no_place(facts: &Facts) -> Option<&'static str> {
    let unfit = |found: Finding| (found.verdict == Verdict::Fail).then_some(found.name);
    match facts.disk.place {
        Place::NotADirectory | Place::Unreadable(_) => unfit(data_directory(facts)),
        Place::Directory | Place::New { .. } => unfit(file_system(facts)),
    }
}

/// Where nothing can be written, though the place is one: the check that says why.
pub fn not_writable(facts: &Facts) -> Option<&'static str> {
    match () {
        () if is_read_only(facts) => Some(MOUNT_OPTIONS),
        () if !facts.disk.writable => Some(DATA_DIRECTORY),
        () if free_space(facts).verdict == Verdict::Fail => Some(FREE_SPACE),
        () => None,
    }
}

fn is_read_only(facts: &Facts) -> bool {
    facts.disk.mount.as_ref().is_some_and(|mount| mount.options.iter().any(|option| option == "ro"))
}

pub fn data_directory(facts: &Facts) -> Finding {
    let why = "the broker makes it and must own it";
    let about = About { group: GROUP, name: DATA_DIRECTORY, why };
    let (disk, shown) = (&facts.disk, facts.disk.data_dir.display());
    let looked_at = disk.looked_at.display();
    match &disk.place {
        Place::NotADirectory => about.because("the log's files lie in it").fail(
            format!("{shown}: it, or what it is to lie in, is a file; name another --data-dir"),
            "camus doctor --data-dir DIR   (a directory, or what is not there yet)",
        ),
        Place::Unreadable(error) => about.fail(format!("{shown}: {error}"), access_for(facts)),
        // Nobody can write there, whoever owns it.
        _ if !disk.writable && is_read_only(facts) => about.see(MOUNT_OPTIONS),
        _ if !disk.writable => {
            about.fail(format!("{looked_at} can not be written by {}", disk.user), access_for(facts))
        }
        Place::New { parent: false } => about.warn(
            format!("{shown} is not there, nor what it is to lie in; {looked_at} was looked at"),
            format!("mkdir -p {shown}"),
        ),
        Place::New { parent: true } => about.pass(format!("{shown}: not there yet; {looked_at} was looked at")),
        Place::Directory => about.pass(shown.to_string()),
    }
}

/// The command that lets this user, or the right one, use the data directory.
fn access_for(facts: &Facts) -> String {
    let (disk, dir, user) = (&facts.disk, facts.disk.data_dir.display(), &facts.disk.user);
    match (&disk.place, disk.owner.as_deref()) {
        (Place::New { .. }, _) => format!("sudo install -d -o {user} {dir}"),
        (_, None) => {
            format!("camus doctor --data-dir DIR   (one that {user} can reach; what bars the way: namei -l {dir})")
        }
        (_, Some(owner)) if owner == user => format!("chmod u+rwx {dir}"),
        // Whose it is may be the user of a broker: to take it away would stop that one.
        (_, Some(owner)) if owner != "root" => {
            format!("sudo -u {owner} camus doctor --data-dir {dir}   (to make it yours: sudo chown -R {user} {dir})")
        }
        (Place::Directory, _) if disk.foreign => {
            format!("sudo install -d -o {user} {dir}/camus   (and name that: {dir} holds other things)")
        }
        (Place::Directory, _) => format!("sudo chown -R {user} {dir}"),
        _ => format!("sudo chown -R {user} {dir}   (if nothing but Camus uses it; else name another --data-dir)"),
    }
}

pub fn file_system(facts: &Facts) -> Finding {
    let why = "on ext4 and XFS an overwritten block is durable with one write; elsewhere it may not be at all";
    let about = About { group: GROUP, name: "file system", why };
    if matches!(facts.disk.place, Place::NotADirectory | Place::Unreadable(_)) {
        return about.see(DATA_DIRECTORY);
    }
    let gone = about.because("acknowledged records must be there after the next boot");
    let move_to = "camus doctor --data-dir DIR   (a directory of ext4 or XFS on a local disk)";
    let Some(Mount { kind, source, point, .. }) = &facts.disk.mount else {
        return about.warn("unknown", format!("findmnt -T {}", facts.disk.looked_at.display())).look();
    };
    let shown = format!("{kind} ({source} on {point})");
    match kind.as_str() {
        "ext4" | "xfs" => about.pass(shown),
        "tmpfs" | "ramfs" => gone.fail(format!("{shown}: memory, gone at the next boot"), move_to),
        "overlay" => gone.fail(format!("{shown}: gone with the container"), "docker run -v camus-data:/data ..."),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "glusterfs" | "virtiofs" => {
            about.fail(format!("{shown}: locks and flushes are another host's"), move_to)
        }
        kind if kind.starts_with("fuse") => about.fail(format!("{shown}: a flush may be no flush"), move_to),
        "btrfs" | "zfs" | "bcachefs" => {
            about.warn(format!("{shown}: copies on write, so each durable write changes metadata"), move_to)
        }
        _ => about.warn(format!("{shown}: not tested with Camus"), move_to),
    }
}

pub fn mount_options(facts: &Facts) -> Finding {
    let why = "barriers keep what was acknowledged; atime and discard add writes of their own";
    let about = About { group: GROUP, name: MOUNT_OPTIONS, why };
    let Some(mount) = &facts.disk.mount else {
        return about.warn("unknown", format!("findmnt -T {}", facts.disk.looked_at.display())).look();
    };
    let has = |name: &str| mount.options.iter().any(|option| option == name);
    let point = mount_point(facts);
    let remount = |options: &str| format!("mount -o remount,{options} {point}   (and in /etc/fstab)");
    if let Some(off) = ["nobarrier", "barrier=0", "nobarriers"].iter().find(|option| has(option)) {
        let about = about.because("without barriers a power cut takes acknowledged records");
        return about.fail(format!("{off}: no flush reaches the disk"), remount("barrier=1"));
    }
    if has("ro") {
        return about.because("the log is written there").fail("ro: read-only", remount("rw"));
    }
    match (has("noatime"), has("discard")) {
        (true, false) => about.pass("noatime"),
        (true, true) => about
            .because("trims wait in the same queue as the log's writes")
            .warn("discard: each freed block is trimmed at once", remount("nodiscard")),
        (false, false) => about
            .because("such writes wait in the same queue as the log's")
            .warn("no noatime: a read of a written segment writes its inode", remount("noatime")),
        (false, true) => about.because("both add writes and trims beside the log's").warn(
            "no noatime, and discard: reads write inodes, freed blocks are trimmed at once",
            remount("noatime,nodiscard"),
        ),
    }
}

pub fn directory_flush(facts: &Facts) -> Finding {
    let why = "a new file of the log is lost by a power cut if its name was not flushed";
    let about = About { group: GROUP, name: "directory flush", why };
    match &facts.disk.dir_flush {
        Ok(()) => about.pass("works"),
        // It can not even be opened.
        Err(_) if !facts.disk.writable => about.see(not_writable(facts).unwrap_or(DATA_DIRECTORY)),
        Err(error) => about.fail(error.clone(), format!("findmnt -T {}", facts.disk.looked_at.display())).look(),
    }
}

pub fn one_file_system(facts: &Facts) -> Finding {
    let why = "what is measured here is the disk of the data directory, and no other";
    let about = About { group: GROUP, name: "one file system", why };
    match facts.disk.elsewhere.first() {
        None => about.pass("all logs lie on it"),
        Some(other) => {
            let dirs: Vec<String> = facts.disk.elsewhere.iter().map(|dir| dir.display().to_string()).collect();
            let measured = format!("on other ones: {}", dirs.join(", "));
            about.warn(measured, format!("camus waltest {}", other.display())).look()
        }
    }
}

pub fn free_space(facts: &Facts) -> Finding {
    let why = "a full disk refuses every produce; a nearly full one is slow";
    let about = About { group: GROUP, name: FREE_SPACE, why };
    let (disk, wanted) = (&facts.disk, &facts.wanted);
    let at_start = (SEGMENTS_AT_START * wanted.segment_bytes * wanted.cores.len() as u64).min(wanted.wal_limit_bytes);
    let more = |bytes: u64| bytes.saturating_sub(disk.wal_bytes);
    let percent = (disk.free_bytes.saturating_mul(100)).checked_div(disk.total_bytes).unwrap_or(0);
    let limit = out::bytes(wanted.wal_limit_bytes);
    let has = format!("{} free, {percent} %", out::bytes(disk.free_bytes));
    if disk.free_bytes < more(at_start) {
        let (point, lacks) = (mount_point(facts), out::bytes(more(at_start) - disk.free_bytes));
        let measured = format!("{has}; a start takes {}: free {lacks} on {point}", out::bytes(more(at_start)));
        let fix = format!("du -xhd2 {point} | sort -h | tail   (what is large; or name a --data-dir on another disk)");
        return about.fail(measured, fix).look();
    }
    if disk.free_bytes < more(wanted.wal_limit_bytes) {
        // A quarter less than what is there, so that there is room for others.
        let fits = ((disk.free_bytes + disk.wal_bytes) / 4 * 3) >> 20;
        let fix = format!("camus serve --set camus.wal.disk.limit={fits}MiB");
        return about.warn(format!("{has}; the log may grow to {limit}"), fix);
    }
    if percent < FREE_PERCENT_MIN {
        let measured = format!("{has}: less than {FREE_PERCENT_MIN} %");
        return about.warn(measured, format!("du -xh {} | sort -h | tail", mount_point(facts))).look();
    }
    about.pass(format!("{has}; the log takes {limit} at most"))
}

pub fn write_cache(facts: &Facts) -> Finding {
    let why = "it decides how a write is made durable, and what that costs";
    let about = About { group: DEVICE, name: "write cache", why };
    let Some(device) = &facts.disk.device else {
        let fix = format!("findmnt -T {}; lsblk -s", facts.disk.looked_at.display());
        return about.warn("the device below is not known: each write is followed by a flush", fix).look();
    };
    let name = &device.name;
    match (device.write_cache.as_str(), device.fua.as_str()) {
        ("write through", _) => about.pass(format!("{name}: write through: no flush is needed")),
        ("write back", "1") => about.pass(format!("{name}: write back with FUA: a write is durable by itself")),
        ("write back", _) => about.pass(format!("{name}: write back without FUA: each write is followed by a flush")),
        (other, _) => about
            .warn(
                format!("{name}: '{other}' is not known: each write is followed by a flush"),
                format!("cat {}", queue(facts, "write_cache")),
            )
            .look(),
    }
}

pub fn rotational(facts: &Facts) -> Finding {
    let about =
        About { group: DEVICE, name: "rotational", why: "a flush on a rotating disk takes a turn or two of it" };
    let Some(device) = &facts.disk.device else { return about.skip("not known") };
    let measured = facts.floor.as_ref().map(|measured| measured.floor.write_4k_us.p50);
    match (device.rotational.as_str(), measured) {
        ("1", Ok(us)) if us < ROTATING_US_MIN => {
            about.pass("it says that it rotates, but is too fast for that (a virtual disk)")
        }
        ("1", Ok(_)) => about
            .warn(format!("{} says that it does", device.name), "lsblk -d -o NAME,ROTA,MODEL   (is there an SSD?)")
            .look(),
        // Virtual disks say so as well.
        ("1", Err(_)) => about.skip("not known: it says that it rotates, but its speed was not measured"),
        _ => about.pass("no"),
    }
}

pub fn scheduler(facts: &Facts) -> Finding {
    let why = "an SSD orders its requests itself; a scheduler only adds processor time and waits to them";
    let about = About { group: DEVICE, name: "scheduler", why };
    let Some(device) = &facts.disk.device else { return about.skip("not known") };
    match (device.scheduler.as_str(), rotational(facts).verdict) {
        ("none" | "", _) => about.pass("none"),
        (other, Verdict::Skip) => about.skip(format!("{other}; not known whether it helps: see rotational")),
        (other, Verdict::Pass) => about.warn(other, format!("echo none > {}", queue(facts, "scheduler"))),
        // On a disk that rotates it helps.
        (other, Verdict::Warn | Verdict::Fail) => about.pass(other),
    }
}

pub fn merges(facts: &Facts) -> Finding {
    let why = "the log's writes are whole groups: looking for neighbours to merge is for nothing on a fast drive";
    let about = About { group: DEVICE, name: "merges", why };
    let Some(device) = &facts.disk.device else { return about.skip("not known") };
    match device.nomerges.as_str() {
        // Elsewhere the search is small beside what a request costs.
        "0" if device.name.starts_with("nvme") => {
            about.warn("nomerges is 0", format!("echo 2 > {}", queue(facts, "nomerges")))
        }
        "" => about.skip("not known"),
        other => about.pass(format!("nomerges is {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Fail, Pass, Skip, Warn};
    use super::*;
    use crate::doctor::facts::Device;
    use crate::doctor::recorded::{judged, verdict};
    use std::path::PathBuf;

    /// Lost if it fails: a typing error in the path, found when the disk of the system is full.
    #[test]
    fn a_data_directory_is_there_or_can_be_made() {
        let at = |place: Place| verdict(data_directory, |f| f.disk.place = place);
        assert_eq!(at(Place::Directory).0, Pass);
        assert_eq!(at(Place::New { parent: true }).0, Pass);
        assert_eq!(at(Place::New { parent: false }), (Warn, "mkdir -p /srv/camus".to_owned()));
        assert_eq!(at(Place::NotADirectory).0, Fail);
        assert_eq!(at(Place::Unreadable("Permission denied".to_owned())).0, Fail);
        assert_eq!(verdict(data_directory, |f| f.disk.writable = false).0, Fail);
    }

    /// Lost if it fails: another user's directory, given away by an advice.
    #[test]
    fn a_permission_is_mended_by_one_command_with_the_real_user_and_path() {
        let denied = |place: Place, owner: Option<&str>, foreign: bool| {
            let (found, fix) = verdict(data_directory, |f| {
                (f.disk.writable, f.disk.place, f.disk.user) = (false, place, "ann".to_owned());
                (f.disk.owner, f.disk.foreign) = (owner.map(str::to_owned), foreign);
            });
            assert_eq!(found, Fail);
            fix
        };
        let unreadable = || Place::Unreadable("Permission denied".to_owned());
        assert_eq!(denied(Place::New { parent: false }, None, false), "sudo install -d -o ann /srv/camus");
        assert_eq!(denied(Place::Directory, Some("root"), false), "sudo chown -R ann /srv/camus");
        assert_eq!(denied(Place::Directory, Some("ann"), true), "chmod u+rwx /srv/camus");
        assert!(denied(Place::Directory, Some("root"), true).starts_with("sudo install -d -o ann /srv/camus/camus "));
        for place in [Place::Directory, unreadable()] {
            let fix = denied(place, Some("bob"), false);
            assert!(fix.starts_with("sudo -u bob camus doctor --data-dir /srv/camus "), "{fix}");
        }
        assert!(denied(unreadable(), Some("root"), false).contains("if nothing but Camus uses it"));
        assert!(denied(unreadable(), None, false).starts_with("camus doctor --data-dir DIR "));
    }

    /// Lost if it fails: records on a file system that keeps none of them.
    #[test]
    fn a_file_system_that_keeps_nothing_fails() {
        let on = |kind: &str| verdict(file_system, |f| f.disk.mount.as_mut().expect("there").kind = kind.to_owned()).0;
        for (kinds, wanted) in [
            (&["xfs", "ext4"][..], Pass),
            (&["btrfs", "zfs", "f2fs"], Warn),
            (&["tmpfs", "overlay", "nfs4", "9p", "fuse.sshfs"], Fail),
        ] {
            for kind in kinds {
                assert_eq!(on(kind), wanted, "{kind}");
            }
        }
        assert_eq!(verdict(file_system, |f| f.disk.mount = None).0, Warn);
    }

    /// Lost if it fails: acknowledged records, at the first power cut on a mount without barriers.
    #[test]
    fn a_mount_without_barriers_fails() {
        let with = |options: &[&str]| {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            verdict(mount_options, |f| f.disk.mount.as_mut().expect("there").options = options)
        };
        assert_eq!(with(&["rw", "noatime"]).0, Pass);
        let both = with(&["rw", "relatime", "discard"]);
        assert_eq!((both.0, both.1.starts_with("mount -o remount,noatime,nodiscard /srv")), (Warn, true));
        assert_eq!(with(&["rw", "noatime", "discard"]).0, Warn);
        assert_eq!(with(&["rw", "relatime"]).0, Warn);
        let atime = judged(mount_options, |f| f.disk.mount.as_mut().expect("there").options = vec!["rw".to_owned()]);
        assert!(!atime.why.contains("power cut"), "no record is lost by it: {}", atime.why);
        assert_eq!(with(&["rw", "noatime", "nobarrier"]).0, Fail);
        assert_eq!(with(&["rw", "noatime", "barrier=0"]).0, Fail);
        assert_eq!(with(&["ro", "noatime"]).0, Fail);
    }

    /// Lost if it fails: a start that is refused by the disk, seen only then.
    #[test]
    fn directory_flushes_work_and_all_logs_lie_on_the_disk() {
        assert_eq!(verdict(directory_flush, |f| f.disk.dir_flush = Err("EINVAL".to_owned())).0, Fail);
        assert_eq!(verdict(directory_flush, |_| {}).0, Pass);
        let denied = |f: &mut Facts| (f.disk.writable, f.disk.dir_flush) = (false, Err("EACCES".to_owned()));
        assert_eq!(verdict(directory_flush, denied).0, Skip, "its cause has a line of its own");
        let elsewhere = verdict(one_file_system, |f| f.disk.elsewhere = vec![PathBuf::from("/srv/camus/core-1")]);
        assert_eq!(elsewhere, (Warn, "camus waltest /srv/camus/core-1".to_owned()));
        assert_eq!(verdict(one_file_system, |_| {}).0, Pass);
    }

    /// Lost if it fails: a broker that refuses produce on its first busy day.
    #[test]
    fn the_log_must_have_room_to_grow_to_its_limit() {
        let free = |free: u64, used: u64| {
            verdict(free_space, |f| {
                (f.disk.total_bytes, f.disk.free_bytes, f.disk.wal_bytes) = (100 << 30, free, used);
            })
        };
        assert_eq!(free(50 << 30, 0).0, Pass);
        assert_eq!(free(14 << 30, 0).0, Warn, "14 %");
        assert_eq!(free(4 << 30, 0), (Warn, "camus serve --set camus.wal.disk.limit=3072MiB".to_owned()));
        assert_eq!(free(4 << 30, 8 << 30).0, Warn, "it has grown already, but little is left");
        assert_eq!(free(300 << 20, 0).0, Fail, "two cores take six segments");
        assert_eq!(free(0, 8 << 30).0, Warn, "what it needs it has");
        let none = verdict(free_space, |f| (f.disk.total_bytes, f.disk.free_bytes) = (0, 0));
        assert_eq!(none.0, Fail);
    }

    /// Lost if it fails: an SSD behind a scheduler that it does not need.
    #[test]
    fn the_device_is_judged_by_its_queue() {
        let with = |check, change: fn(&mut Device)| {
            verdict(check, |f| {
                change(f.disk.device.as_mut().expect("there"));
                f.floor = Err((String::new(), String::new()));
            })
        };
        assert_eq!(with(write_cache, |_| {}).0, Pass);
        assert_eq!(with(write_cache, |d| d.write_cache = String::new()).0, Warn);
        assert_eq!(verdict(write_cache, |f| f.disk.device = None).0, Warn);
        let scheduled = with(scheduler, |d| d.scheduler = "mq-deadline".to_owned());
        assert_eq!(scheduled, (Warn, "echo none > /sys/block/nvme0n1/queue/scheduler".to_owned()));
        assert_eq!(with(scheduler, |_| {}).0, Pass);
        let rotating = |d: &mut Device| {
            d.rotational = "1".to_owned();
            d.scheduler = "bfq".to_owned();
        };
        assert_eq!(with(rotational, rotating).0, Skip, "nothing was measured");
        assert_eq!(with(scheduler, rotating).0, Skip, "nor can this be said then");
        let slow = |f: &mut Facts| {
            rotating(f.disk.device.as_mut().expect("there"));
            f.floor.as_mut().expect("measured").floor.write_4k_us.p50 = 8_000.0;
        };
        assert_eq!(verdict(rotational, slow).0, Warn);
        assert_eq!(verdict(scheduler, slow).0, Pass, "there it helps");
        let virtual_disk = |f: &mut Facts| f.disk.device.as_mut().expect("there").rotational = "1".to_owned();
        assert_eq!(verdict(rotational, virtual_disk).0, Pass, "50 us are no turn of a disk");
        assert_eq!(with(merges, |d| d.nomerges = "0".to_owned()).0, Warn);
        assert_eq!(with(merges, |d| (d.nomerges, d.name) = ("0".to_owned(), "vda".to_owned())).0, Pass);
        assert_eq!(with(merges, |_| {}).0, Pass);
    }
}
