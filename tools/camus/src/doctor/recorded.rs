//! For tests: a host on which every check passes, and trees of recorded files.

use super::checks::{Finding, Verdict};
use super::facts::{Address, Device, Disk, Facts, Host, Kernel, Measured, Mount, Open, Place, Start, Wanted};
use crate::percentiles::Percentiles;
use crate::settings::IoAsked;
use crate::waltest::Floor;
use std::path::PathBuf;
use tempfile::TempDir;

/// Files of /proc and /sys below a root of their own.
pub fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("in the root")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    root
}

/// What a check finds when these facts are changed: whatever is wrong has its command.
pub fn judged(check: impl FnOnce(&Facts) -> Finding, change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = facts();
    change(&mut facts);
    let found = check(&facts);
    assert_eq!(found.command().is_none(), found.verdict <= Verdict::Pass, "what is wrong has its command: {found:?}");
    found
}

fn address(host: &str, port: u16) -> Address {
    Address { host: host.to_owned(), asked: format!("{host}:{port}"), port, open: Open::Yes, free_port: None }
}

/// The same: its verdict, and the command that comes with it.
pub fn verdict(check: fn(&Facts) -> Finding, change: impl FnOnce(&mut Facts)) -> (Verdict, String) {
    let found = judged(check, change);
    (found.verdict, found.command().cloned().unwrap_or_default())
}

/// Two cores of four CPUs on an NVMe drive with a volatile cache, XFS.
pub fn facts() -> Facts {
    let write_4k_us =
        Percentiles { count: 10_000, p50: 160.0, p90: 200.0, p99: 430.0, p999: 900.0, max: 2_000.0, mean: 200.0 };
    Facts {
        wanted: Wanted {
            cores: vec![Some(0), Some(1)],
            memory_bytes: 512 << 20,
            registered_bytes: 128 << 20,
            wal_limit_bytes: 8 << 30,
            segment_bytes: 64 << 20,
            connections_max: 20_000,
            listeners: 1,
            others: 0,
            io: IoAsked::Auto,
        },
        disk: Disk {
            data_dir: PathBuf::from("/srv/camus"),
            place: Place::Directory,
            looked_at: PathBuf::from("/srv/camus"),
            writable: true,
            user: "camus".to_owned(),
            owner: Some("camus".to_owned()),
            foreign: false,
            mount: Some(Mount {
                point: "/srv".to_owned(),
                kind: "xfs".to_owned(),
                source: "/dev/nvme0n1p2".to_owned(),
                options: vec!["rw".to_owned(), "noatime".to_owned()],
            }),
            device: Some(Device {
                name: "nvme0n1".to_owned(),
                model: "Samsung SSD 990 PRO 2TB".to_owned(),
                write_cache: "write back".to_owned(),
                fua: "0".to_owned(),
                rotational: "0".to_owned(),
                scheduler: "none".to_owned(),
                nomerges: "2".to_owned(),
            }),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            wal_bytes: 0,
            dir_flush: Ok(()),
            elsewhere: vec![],
        },
        kernel: Kernel {
            release: "6.18.44".to_owned(),
            io_uring_disabled: "0".to_owned(),
            ring: Ok(()),
            memlock_bytes: None,
            descriptors: Some(1 << 20),
            may_lock: false,
            somaxconn: Some(4096),
        },
        host: Host {
            cpus: vec![0, 1, 2, 3],
            memory_bytes: 16 << 30,
            group_cpus: None,
            group_memory_bytes: None,
            load: Some(0.5),
            clock_source: "tsc".to_owned(),
            siblings: (0..4).map(|cpu| (cpu, vec![cpu % 2, cpu % 2 + 2])).collect(),
            governors: vec!["performance".to_owned()],
            huge_pages: "madvise".to_owned(),
            swappiness: Some(60),
            swap_bytes: 0,
        },
        start: Start { holder: None, listeners: vec![address("127.0.0.1", 9092)], http: address("127.0.0.1", 9644) },
        floor: Ok(Measured {
            floor: Floor { method: "adaptive".to_owned(), write_4k_us, sequential_mb_per_s: 290.0 },
            writes: 10_000,
            flushes: Some(10_000),
            direct_align: Some((4, 512)),
        }),
    }
}
