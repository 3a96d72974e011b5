//! How `camus.memory` is split: one budget for each use on each core (docs/adr/0006-memory.md).

/// What one core may hold, bytes. At a budget the core sheds load (a throttle, a retriable error, a paused connection);
/// it never allocates past it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// Buffers of the write-ahead log: the group that fills, those in flight, and the tail cache that fetches read
    /// from.
    pub wal_bytes: usize,
    /// What was read back from the disk: being read, kept for the next reader, in answers.
    pub reads_bytes: usize,
    /// What is held for clients, of all connections: requests, parts of requests, answers that are being sent.
    pub clients_bytes: usize,
    /// Where each record batch lies, and who wrote it.
    pub index_bytes: usize,
    /// Of all cores together, because they live on the first: members of groups, and what groups have committed.
    pub groups_bytes: usize,
}

/// The least that one core can work with: two groups of the largest record, and one request of it.
pub const PER_CORE_BYTES_MIN: u64 = 128 << 20;
/// What one core gets at most where nothing is said: more helps only a deployment that can say so.
pub const PER_CORE_BYTES_DEFAULT_MAX: u64 = 1 << 30;

/// The default of `camus.memory`: a quarter of what the host (or its container) has, within the bounds above.
pub fn default_bytes(host_bytes: u64, cores: usize) -> u64 {
    let cores = cores as u64;
    (host_bytes / 4).clamp(PER_CORE_BYTES_MIN * cores, PER_CORE_BYTES_DEFAULT_MAX * cores)
}

/// A block of the allocator that has a page of its own, bytes.
const OWN_PAGE_BYTES: usize = 2 << 20;

/// Has the allocator give back to the kernel what was freed long enough ago, by any thread. mimalloc does that when one
/// of its pages comes or goes, whosever it is, and a broker that became idle brings it to neither: its resident memory
/// would stay where the last load left it. Such a page is made here, not touched, and freed.
pub fn give_back() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(OWN_PAGE_BYTES)));
}

impl Budgets {
    /// The share of one core of `cores`.
    pub fn of_core(memory_bytes: u64, cores: usize) -> Budgets {
        assert!(cores > 0, "a broker has a core");
        let core = memory_bytes / cores as u64;
        let part = |percent: u64| usize::try_from(core * percent / 100).expect("a budget fits the address space");
        Budgets {
            wal_bytes: part(44),
            reads_bytes: part(6),
            clients_bytes: part(36),
            index_bytes: part(10),
            groups_bytes: part(4) * cores,
        }
    }

    #[cfg(test)]
    fn total_bytes(&self, cores: usize) -> usize {
        (self.wal_bytes + self.reads_bytes + self.clients_bytes + self.index_bytes) * cores + self.groups_bytes
    }
}

/// Memory that this process may use: the host's, or less where a control group says so.
pub fn host_bytes() -> u64 {
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(1 << 30, |kib| kib << 10);
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let groups = read("/proc/self/cgroup").map(|text| limit_files(&text)).unwrap_or_default();
    groups.iter().filter_map(|path| read(path)?.trim().parse::<u64>().ok()).fold(total, u64::min)
}

/// Where limits stand that hold for a process with this `/proc/self/cgroup`: those of its own control group, and of
/// every group that it is in, up to the root (which in a container is the container's own).
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            some if some.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            let Some(parent) = path.rfind('/') else { break };
            path = &path[..parent];
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::limits;

    /// If this fails, the sum of the budgets is more than the operator gave.
    #[test]
    fn budgets_of_all_cores_stay_within_the_memory_given() {
        for cores in [1, 2, 3, 7, 64] {
            let memory = PER_CORE_BYTES_MIN * cores as u64 + 4711;
            assert!(Budgets::of_core(memory, cores).total_bytes(cores) <= memory as usize);
        }
    }

    /// If this fails, a broker that was allowed to start can never accept the largest batch it promises to take.
    #[test]
    fn the_smallest_core_can_take_the_largest_record() {
        let least = Budgets::of_core(PER_CORE_BYTES_MIN, 1);
        assert!(least.clients_bytes > 2 * limits::BATCH_BYTES_MAX);
        assert!(least.wal_bytes >= 2 * (limits::WAL_RECORD_BYTES_MAX + limits::WAL_GROUP_BYTES_MAX));
        assert!(least.wal_bytes >= 2 * limits::WAL_GROUPS_IN_FLIGHT_MAX * limits::WAL_CHUNK_BYTES);
    }

    #[test]
    fn the_default_is_a_quarter_of_the_host_within_bounds() {
        assert_eq!(default_bytes(2 << 30, 1), 512 << 20);
        assert_eq!(default_bytes(1 << 20, 2), 2 * PER_CORE_BYTES_MIN);
        assert_eq!(default_bytes(1 << 40, 2), 2 * PER_CORE_BYTES_DEFAULT_MAX);
    }

    /// If this fails, a broker under systemd's `MemoryMax=` takes a quarter of the host, and is killed.
    #[test]
    fn the_limit_of_every_control_group_above_counts() {
        assert_eq!(
            limit_files("0::/system.slice/camus.service\n"),
            [
                "/sys/fs/cgroup/system.slice/camus.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(limit_files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert_eq!(
            limit_files("9:cpu:/x\n4:memory:/a:b\n"),
            ["/sys/fs/cgroup/memory/a:b/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
    }

    fn resident_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages: usize = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
        pages * 4096
    }

    /// Lost if it fails: memory of the host, for as long as a broker has nothing to do after a storm.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "what another thread freed long ago is to be given back")]
    fn what_was_freed_is_given_back_while_nothing_happens() {
        const TAKEN: usize = 256 << 20;
        let (full, filled) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            let blocks: Vec<Vec<u8>> = (0..TAKEN / (96 << 10)).map(|_| vec![1; 96 << 10]).collect();
            full.send(resident_bytes()).expect("the test waits");
            drop(blocks);
            full.send(0).expect("the test waits");
            let _ = ended.recv();
        });
        let most = filled.recv().expect("it fills");
        filled.recv().expect("it frees");
        let begun = std::time::Instant::now();
        while resident_bytes() + TAKEN / 4 * 3 > most {
            assert!(begun.elapsed().as_secs() < 30, "{} of {most} bytes are resident", resident_bytes());
            std::thread::sleep(std::time::Duration::from_millis(100));
            give_back();
        }
        drop(end);
        other.join().expect("it ends");
    }
}
