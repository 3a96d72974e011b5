//! The one reader: files of /proc and /sys, below a root that a test chooses, as facts. Changes nothing.

use super::facts::{Device, Host, Kernel, Mount};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// CAP_IPC_LOCK.
const CAP_IPC_LOCK: u32 = 14;
/// A limit of a control group of the first version that is none.
const NO_LIMIT: u64 = 1 << 60;

pub struct Reader {
    root: PathBuf,
}

impl Reader {
    /// This machine.
    pub fn here() -> Reader {
        Reader::below(Path::new("/"))
    }

    /// `root` has what `/` has: `root/proc/...`, `root/sys/...`.
    pub fn below(root: &Path) -> Reader {
        Reader { root: root.to_owned() }
    }

    /// Trimmed; `None` where it can not be read.
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The block device with this number. `None` where sysfs has none: it is not a disk of this host.
    pub fn device(&self, major: u32, minor: u32) -> Option<Device> {
        let block = self.block(major, minor)?;
        // A partition has its queue one level up, as the engine's probe knows too.
        let disk = [block.clone(), format!("{block}/..")].into_iter().find(|d| self.is_dir(&format!("{d}/queue")))?;
        let name = self.uevent(&disk, "DEVNAME").unwrap_or_default();
        let read = |file: &str| self.text(&format!("{disk}/{file}")).unwrap_or_default();
        Some(Device {
            model: Some(read("device/model")).filter(|m| !m.is_empty()).unwrap_or_else(|| read("dm/name")),
            write_cache: read("queue/write_cache"),
            fua: read("queue/fua"),
            rotational: read("queue/rotational"),
            scheduler: chosen(&read("queue/scheduler")),
            nomerges: read("queue/nomerges"),
            name,
        })
    }

    /// Flushes that the device has ended, counted by its request queue. `None` where it has none of its own (dm, md,
    /// loop: the flushes count below), or the kernel is too old to count.
    pub fn flushes(&self, major: u32, minor: u32) -> Option<u64> {
        let block = self.block(major, minor)?;
        let disk = [block.clone(), format!("{block}/..")].into_iter().find(|d| self.is_dir(&format!("{d}/queue")))?;
        let name = self.uevent(&disk, "DEVNAME")?;
        let own_queue = ["nvme", "sd", "vd", "xvd", "mmcblk"].iter().any(|kind| name.starts_with(kind));
        let stat = self.text(&format!("{disk}/stat")).filter(|_| own_queue)?;
        stat.split_whitespace().nth(15)?.parse().ok()
    }

    /// The CPU that takes all of this device's interrupts. `None` where the device has a queue for each CPU, and where
    /// the kernel does not tell: a disk below others, an interrupt that goes to several. `cpus`: how many there are.
    pub fn interrupt_cpu(&self, major: u32, minor: u32, cpus: usize) -> Option<usize> {
        let block = self.block(major, minor)?;
        let disk = [block.clone(), format!("{block}/..")].into_iter().find(|d| self.is_dir(&format!("{d}/mq")))?;
        if self.names(&format!("{disk}/mq")).len() >= cpus {
            return None;
        }
        // What a virtio disk, and a controller's namespace, has above it.
        let of = ["device/../msi_irqs", "device/device/msi_irqs", "device/msi_irqs"];
        let irqs = of.iter().map(|path| self.names(&format!("{disk}/{path}"))).find(|names| !names.is_empty())?;
        let counts = self.text("proc/interrupts")?;
        let busy = irqs.iter().max_by_key(|irq| interrupts(&counts, irq)).filter(|irq| interrupts(&counts, irq) > 0)?;
        match parse_list(&self.text(&format!("proc/irq/{busy}/effective_affinity_list"))?)[..] {
            [cpu] => Some(cpu),
            _ => None,
        }
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(dir)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn block(&self, major: u32, minor: u32) -> Option<String> {
        let block = format!("sys/dev/block/{major}:{minor}");
        self.is_dir(&block).then_some(block)
    }

    fn is_dir(&self, path: &str) -> bool {
        self.root.join(path).is_dir()
    }

    fn uevent(&self, block: &str, key: &str) -> Option<String> {
        let text = self.text(&format!("{block}/uevent"))?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
    }

    /// The name of a user, or the number where /etc/passwd has none.
    pub fn user(&self, uid: u32) -> String {
        let number = uid.to_string();
        let text = self.text("etc/passwd").unwrap_or_default();
        let name = text.lines().find_map(|line| {
            let mut parts = line.split(':');
            let (name, _, id) = (parts.next()?, parts.next()?, parts.next()?);
            (id == number).then(|| name.to_owned())
        });
        name.unwrap_or(number)
    }

    /// The mount that this absolute path without links lies on.
    pub fn mount(&self, path: &Path) -> Option<Mount> {
        let text = self.text("proc/self/mountinfo")?;
        let mounts = text.lines().filter_map(parse_mount).filter(|m| path.starts_with(&m.point));
        // The deepest; of several on one place, the last.
        mounts.max_by_key(|m| Path::new(&m.point).components().count())
    }

    /// `ring`: what a probe of the real kernel said.
    pub fn kernel(&self, ring: Result<(), String>) -> Kernel {
        let limits = self.text("proc/self/limits").unwrap_or_default();
        Kernel {
            release: self.text("proc/sys/kernel/osrelease").unwrap_or_default(),
            io_uring_disabled: self.text("proc/sys/kernel/io_uring_disabled").unwrap_or_default(),
            ring,
            memlock_bytes: hard_limit(&limits, "Max locked memory"),
            descriptors: hard_limit(&limits, "Max open files"),
            may_lock: self.text("proc/self/status").is_some_and(|status| has_capability(&status, CAP_IPC_LOCK)),
            somaxconn: self.number("proc/sys/net/core/somaxconn"),
        }
    }

    /// `cpus`: those that this process may use; `used`: those that the broker would be pinned to.
    pub fn host(&self, cpus: &[usize], used: &[usize]) -> Host {
        let cpu = |cpu: &usize, file: &str| self.text(&format!("sys/devices/system/cpu/cpu{cpu}/{file}"));
        let siblings =
            cpus.iter().filter_map(|id| Some((*id, parse_list(&cpu(id, "topology/thread_siblings_list")?)))).collect();
        let governors: BTreeSet<String> = used.iter().filter_map(|id| cpu(id, "cpufreq/scaling_governor")).collect();
        let meminfo = self.text("proc/meminfo").unwrap_or_default();
        let swaps = self.text("proc/swaps").unwrap_or_default();
        let swap_kib =
            swaps.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum::<u64>();
        Host {
            cpus: cpus.to_vec(),
            memory_bytes: kib(&meminfo, "MemTotal:").unwrap_or(0),
            group_cpus: self.group_cpus(),
            group_memory_bytes: self.group_memory(),
            load: self.text("proc/loadavg").and_then(|text| text.split_whitespace().next()?.parse().ok()),
            clock_source: self
                .text("sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_default(),
            siblings,
            governors: governors.into_iter().collect(),
            huge_pages: chosen(&self.text("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default()),
            swappiness: self.number("proc/sys/vm/swappiness"),
            swap_bytes: swap_kib << 10,
        }
    }

    /// The directories of this process's control group and of all above it, for the unified hierarchy or for one
    /// controller of the first version.
    fn groups(&self, controller: &str, mounts: &[&str]) -> Vec<String> {
        let text = self.text("proc/self/cgroup").unwrap_or_default();
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            controllers.split(',').any(|c| c == controller).then(|| path.trim_start_matches('/').to_owned())
        });
        let Some(path) = path else { return vec![] };
        let mut found = vec![];
        for mount in mounts {
            let mut at = Some(Path::new(&path));
            while let Some(group) = at {
                found.push(format!("{mount}/{}", group.display()));
                at = group.parent();
            }
        }
        found
    }

    /// The least that any of the groups leaves, as processors.
    fn group_cpus(&self) -> Option<f64> {
        let unified = self.groups("", &["sys/fs/cgroup", "sys/fs/cgroup/unified"]);
        let first = self.groups("cpu", &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]);
        let unified = unified.iter().filter_map(|group| {
            let text = self.text(&format!("{group}/cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        });
        let first = first.iter().filter_map(|group| {
            let quota = self.number(&format!("{group}/cpu.cfs_quota_us"))?;
            Some(quota as f64 / self.number(&format!("{group}/cpu.cfs_period_us"))? as f64)
        });
        unified.chain(first).filter(|cpus| cpus.is_finite()).min_by(f64::total_cmp)
    }

    fn group_memory(&self) -> Option<u64> {
        let unified = self.groups("", &["sys/fs/cgroup", "sys/fs/cgroup/unified"]);
        let first = self.groups("memory", &["sys/fs/cgroup/memory"]);
        let files = unified
            .iter()
            .map(|group| format!("{group}/memory.max"))
            .chain(first.iter().map(|group| format!("{group}/memory.limit_in_bytes")));
        files.filter_map(|file| self.number(&file)).filter(|bytes| *bytes < NO_LIMIT).min()
    }
}

/// Of `a [b] c`: `b`.
fn chosen(text: &str) -> String {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(text, |(inner, _)| inner).to_owned()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let left: Vec<&str> = left.split(' ').collect();
    let right: Vec<&str> = right.split(' ').collect();
    let options = |text: &&str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut all = options(left.get(5)?);
    for option in right.get(2).map(options).unwrap_or_default() {
        if !all.contains(&option) {
            all.push(option);
        }
    }
    Some(Mount {
        point: unescape(left.get(4)?),
        kind: (*right.first()?).to_owned(),
        source: unescape(right.get(1)?),
        options: all,
    })
}

/// mountinfo writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(text.to_owned(), |text, (code, is)| text.replace(code, is))
}

/// How often an interrupt came, on all CPUs: its line of /proc/interrupts.
fn interrupts(text: &str, irq: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(irq)?.strip_prefix(':'));
    let counts = line.unwrap_or_default().split_whitespace().map_while(|word| word.parse::<u64>().ok());
    counts.sum()
}

/// `0-1,4`.
fn parse_list(text: &str) -> Vec<usize> {
    let part = |part: &str| -> Option<Vec<usize>> {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.trim().parse().ok()?..=to.trim().parse().ok()?).collect())
    };
    text.split(',').filter_map(part).flatten().collect()
}

fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().nth(1)?.parse().ok()
}

fn has_capability(status: &str, bit: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|all| all >> bit & 1 == 1)
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::recorded::tree;

    /// Lost if it fails: the device that is judged is another than the one that is written to.
    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let root = tree(&[
            ("sys/devices/pci/nvme0n1/uevent", "MAJOR=259\nMINOR=0\nDEVNAME=nvme0n1\nDEVTYPE=disk\n"),
            ("sys/devices/pci/nvme0n1/queue/write_cache", "write back\n"),
            ("sys/devices/pci/nvme0n1/queue/fua", "1\n"),
            ("sys/devices/pci/nvme0n1/queue/scheduler", "[none] mq-deadline kyber\n"),
            ("sys/devices/pci/nvme0n1/device/model", "SAMSUNG MZVL21T0HCLR-00B00              \n"),
            ("sys/devices/pci/nvme0n1/stat", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 4711 17\n"),
            ("sys/devices/pci/nvme0n1/nvme0n1p2/uevent", "DEVNAME=nvme0n1p2\nDEVTYPE=partition\n"),
        ]);
        std::fs::create_dir_all(root.path().join("sys/dev/block")).expect("made");
        let link = root.path().join("sys/dev/block/259:2");
        std::os::unix::fs::symlink("../../devices/pci/nvme0n1/nvme0n1p2", link).expect("linked");
        let reader = Reader::below(root.path());
        let device = reader.device(259, 2).expect("it is there");
        assert_eq!((device.name.as_str(), device.fua.as_str()), ("nvme0n1", "1"));
        assert_eq!((device.scheduler.as_str(), device.model.as_str()), ("none", "SAMSUNG MZVL21T0HCLR-00B00"));
        assert_eq!(reader.flushes(259, 2), Some(4711));
        assert_eq!(reader.device(0, 44), None);
    }

    /// Lost if it fails: the advice gives the directory to nobody.
    #[test]
    fn a_user_has_a_name_or_a_number() {
        let root = tree(&[("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ncamus:x:104:99::/srv:/bin/false\n")]);
        let reader = Reader::below(root.path());
        assert_eq!([0, 104, 99].map(|uid| reader.user(uid)), ["root", "camus", "99"]);
    }

    /// Lost if it fails: the options of another mount are judged.
    #[test]
    fn the_deepest_and_last_mount_is_the_one() {
        let root = tree(&[(
            "proc/self/mountinfo",
            "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
             40 27 8:1 / /srv/my\\040data rw,noatime shared:1 - xfs /dev/sda1 rw,attr2,noquota\n\
             41 27 0:50 / /srv/my\\040data/x rw - overlay overlay rw,lowerdir=/a\n\
             42 41 8:2 / /srv/my\\040data/x ro,noatime - ext4 /dev/sda2 rw,nobarrier\n",
        )]);
        let reader = Reader::below(root.path());
        let at = |path: &str| reader.mount(Path::new(path)).expect("something is mounted");
        assert_eq!((at("/srv").kind.as_str(), at("/srv").point.as_str()), ("ext4", "/"));
        assert_eq!(at("/srv/my data/camus").options, ["rw", "noatime", "attr2", "noquota"]);
        assert_eq!(at("/srv/my data/x/y").options, ["ro", "noatime", "rw", "nobarrier"]);
    }

    /// Lost if it fails: a container's limit goes unseen, and the broker is killed under load.
    #[test]
    fn limits_of_control_groups_are_the_least_of_all_above() {
        let unified = tree(&[
            ("proc/self/cgroup", "0::/system.slice/camus.service\n"),
            ("sys/fs/cgroup/system.slice/camus.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/camus.service/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n"),
        ]);
        let host = Reader::below(unified.path()).host(&[0], &[0]);
        assert_eq!((host.group_cpus, host.group_memory_bytes), (Some(1.5), Some(1 << 30)));
        let first = tree(&[
            ("proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ]);
        let host = Reader::below(first.path()).host(&[0], &[0]);
        assert_eq!((host.group_cpus, host.group_memory_bytes), (Some(0.5), Some(512 << 20)));
        let none = tree(&[("proc/self/cgroup", "0::/\n")]);
        let host = Reader::below(none.path()).host(&[0], &[0]);
        assert_eq!((host.group_cpus, host.group_memory_bytes), (None, None));
    }

    /// Lost if it fails: a core sits on another CPU than its disk, or beside the one that is said to be it.
    #[test]
    fn the_cpu_of_a_disk_with_one_queue_is_found_and_only_that() {
        let files = |queues: usize, affinity: &'static str| {
            let mut files = vec![
                ("sys/dev/block/254:0/device/virtio1/x", ""),
                ("sys/dev/block/254:0/device/msi_irqs/35", "msix"),
                ("sys/dev/block/254:0/device/msi_irqs/36", "msix"),
                (
                    "proc/interrupts",
                    "     CPU0 CPU1\n 35: 0 1 PCI-MSIX 0-edge config\n 36: 7 10499607 PCI-MSIX req.0\n",
                ),
                ("proc/irq/35/effective_affinity_list", "0"),
                ("proc/irq/36/effective_affinity_list", affinity),
            ];
            let each = ["sys/dev/block/254:0/mq/0/cpu_list", "sys/dev/block/254:0/mq/1/cpu_list"];
            files.extend(each[..queues].iter().map(|path| (*path, "0, 1")));
            tree(&files)
        };
        let cpu = |queues, affinity| Reader::below(files(queues, affinity).path()).interrupt_cpu(254, 0, 2);
        assert_eq!(cpu(1, "1\n"), Some(1));
        assert_eq!(cpu(2, "1\n"), None, "each CPU has a queue of its own");
        assert_eq!(cpu(1, "0-1\n"), None, "it goes to both");
        assert_eq!(cpu(0, "1\n"), None, "no queue is known");
        assert_eq!(Reader::below(files(1, "1").path()).interrupt_cpu(7, 0, 2), None, "no such device");
    }

    /// Lost if it fails: every check of the host, at once.
    #[test]
    fn the_host_is_read_as_it_was_recorded() {
        let root = tree(&[
            ("proc/meminfo", "MemTotal:       24668864 kB\nMemFree: 1 kB\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n/dev/zram0 partition 1048572 0 100\n/swap file 4 0 -2\n"),
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/loadavg", "1.25 0.50 0.10 2/300 4711\n"),
            ("proc/sys/net/core/somaxconn", "4096\n"),
            ("proc/sys/kernel/osrelease", "6.18.44\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("proc/self/status", "Name:\tcamus\nCapEff:\t0000000000004000\n"),
            (
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max open files            1024                 524288               files     \n\
                 Max locked memory         8388608              unlimited            bytes     \n",
            ),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
            ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1-3\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ]);
        let reader = Reader::below(root.path());
        let host = reader.host(&[0, 1], &[0]);
        assert_eq!((host.memory_bytes, host.swap_bytes), (24_668_864 << 10, 1_048_576 << 10));
        assert_eq!(host.siblings, [(0, vec![0, 2]), (1, vec![1, 2, 3])]);
        assert_eq!(host.governors, ["powersave"], "only of those that are used");
        assert_eq!((host.huge_pages.as_str(), host.clock_source.as_str()), ("madvise", "tsc"));
        assert_eq!((host.swappiness, host.load), (Some(60), Some(1.25)));
        let kernel = reader.kernel(Ok(()));
        assert_eq!((kernel.descriptors, kernel.memlock_bytes), (Some(524_288), None));
        assert!(kernel.may_lock && kernel.somaxconn == Some(4096));
        assert_eq!((kernel.release.as_str(), kernel.io_uring_disabled.as_str()), ("6.18.44", "2"));
    }
}
