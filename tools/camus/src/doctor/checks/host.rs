//! The host's processors and memory, against what the broker is to have of them.

use super::{About, Finding};
use crate::doctor::facts::Facts;
use crate::out;
use std::collections::BTreeSet;

const GROUP: &str = "host";
/// Of a limit of memory, percent: besides its budgets the broker needs code, stacks and what its allocator keeps.
const MEMORY_PERCENT_MAX: u64 = 80;
/// Clocks that are read without a system call. Those of hypervisors among them.
const FAST_CLOCKS: &[&str] = &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
/// More than this much of an inclination to swap takes pages of the broker while there is free memory.
const SWAPPINESS_MAX: u64 = 1;

pub fn cores(facts: &Facts) -> Finding {
    let why = "each core of the broker is one thread on one CPU: what else runs there makes its clients wait";
    let about = About { group: GROUP, name: "cores", why };
    let (wanted, cpus) = (facts.wanted.cores.len(), facts.host.cpus.len());
    let shown = format!("{wanted} of {cpus} CPUs");
    if facts.wanted.cores.iter().any(Option::is_none) {
        return about.fail(format!("{shown}: they can not be pinned"), format!("camus serve --cores {cpus}"));
    }
    if wanted == cpus && cpus > 1 {
        let measured = format!("{shown}: none is left for the kernel's own work and for clients on this host");
        return about.warn(measured, format!("camus serve --cores {}   (a new data directory)", cpus - 1));
    }
    let pinned: Vec<String> = facts.wanted.cores.iter().flatten().map(ToString::to_string).collect();
    about.pass(format!("{shown}: {}", pinned.join(",")))
}

pub fn siblings(facts: &Facts) -> Finding {
    let why = "two CPUs that are one physical core share its time: either is slow while the other works";
    let about = About { group: GROUP, name: "siblings", why };
    let used: Vec<usize> = facts.wanted.cores.iter().copied().flatten().collect();
    let core_of = |cpu: &usize| facts.host.siblings.iter().find(|(id, _)| id == cpu).map(|(_, shared)| shared);
    let shared = used.iter().enumerate().find_map(|(i, cpu)| {
        let shared = core_of(cpu)?;
        used[..i].iter().find(|other| shared.contains(other)).map(|other| (*other, *cpu))
    });
    let Some((one, other)) = shared else { return about.pass("each core has a physical one of its own") };
    // One CPU of each physical core, as many as are wanted.
    let mut taken = BTreeSet::new();
    let mut apart = vec![];
    for cpu in &facts.host.cpus {
        let shared = core_of(cpu).map_or(*cpu, |shared| shared.iter().copied().min().unwrap_or(*cpu));
        if taken.insert(shared) && apart.len() < used.len() {
            apart.push(cpu.to_string());
        }
    }
    about.warn(format!("CPU {one} and CPU {other} are one"), format!("camus serve --cores {}", list(&apart)))
}

/// As `--cores` takes it: a single number would be a count.
fn list(cpus: &[String]) -> String {
    if cpus.len() == 1 { format!("{},", cpus[0]) } else { cpus.join(",") }
}

pub fn processor_limit(facts: &Facts) -> Finding {
    let why = "a group that has used its share stands still for the rest of each tenth of a second";
    let about = About { group: GROUP, name: "processor limit", why };
    let wanted = facts.wanted.cores.len();
    match facts.host.group_cpus {
        None => about.pass("none"),
        Some(limit) if limit >= wanted as f64 => about.pass(format!("{limit:.1} CPUs for {wanted} cores")),
        Some(limit) => about.fail(
            format!("{limit:.1} CPUs for {wanted} cores"),
            format!("systemctl set-property camus CPUQuota={}%   (or docker run --cpus {wanted})", wanted * 100),
        ),
    }
}

pub fn memory_limit(facts: &Facts) -> Finding {
    let why = "at the limit of its group or of the host the kernel kills the broker";
    let about = About { group: GROUP, name: "memory", why };
    let (host, wanted) = (&facts.host, facts.wanted.memory_bytes);
    let limit = host.group_memory_bytes.map_or(host.memory_bytes, |group| group.min(host.memory_bytes));
    let of = if host.group_memory_bytes.is_some_and(|g| g < host.memory_bytes) { "control group" } else { "host" };
    let shown = format!("camus.memory is {} of the {of}'s {}", out::bytes(wanted), out::bytes(limit));
    let fits = limit / 100 * MEMORY_PERCENT_MAX;
    let fix = format!("camus serve --set camus.memory={}MiB", (fits >> 20).max(1));
    match () {
        () if limit == 0 => about.warn("how much there is is not known", "free -m").look(),
        () if wanted > limit => about.fail(shown, fix),
        () if wanted > fits => about.warn(format!("{shown}: over {MEMORY_PERCENT_MAX} %"), fix),
        () => about.pass(shown),
    }
}

pub fn load(facts: &Facts) -> Finding {
    let about = About { group: GROUP, name: "load", why: "what is measured on a busy host is also the others' work" };
    let cpus = facts.host.cpus.len();
    match facts.host.load {
        None => about.pass("not known"),
        Some(load) if load <= cpus as f64 => about.pass(format!("{load:.1} on {cpus} CPUs")),
        Some(load) if facts.floor.is_ok() => {
            about.warn(format!("{load:.1} on {cpus} CPUs: the figures above are not the disk's alone"), "top").look()
        }
        Some(load) => about
            .because("the broker's cores wait while others work")
            .warn(format!("{load:.1} on {cpus} CPUs: more work than processors"), "top")
            .look(),
    }
}

pub fn clock_source(facts: &Facts) -> Finding {
    let why = "the time is read many times for each request; another clock needs a system call for it";
    let about = About { group: GROUP, name: "clock source", why };
    match facts.host.clock_source.as_str() {
        "" => about.pass("not known"),
        fast if FAST_CLOCKS.contains(&fast) => about.pass(fast),
        slow => about.warn(
            slow,
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource   (if it is available there)",
        ),
    }
}

pub fn governor(facts: &Facts) -> Finding {
    let why = "a CPU that sleeps deeply or clocks down wakes late for each request";
    let about = About { group: GROUP, name: "governor", why };
    match facts.host.governors.as_slice() {
        [] => about.pass("not visible: the hypervisor's, or none"),
        [only] if only == "performance" => about.pass("performance"),
        all => about.warn(all.join(", "), "cpupower frequency-set -g performance"),
    }
}

pub fn huge_pages(facts: &Facts) -> Finding {
    let why = "with always, the kernel gives and moves 2 MiB pages by itself: more memory, and stalls while it does";
    let about = About { group: GROUP, name: "huge pages", why };
    match facts.host.huge_pages.as_str() {
        "always" => about.warn("always", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        "" => about.pass("none"),
        other => about.pass(other),
    }
}

pub fn swap(facts: &Facts) -> Finding {
    let about =
        About { group: GROUP, name: "swap", why: "a core that waits for a swapped page stops for milliseconds" };
    match (facts.host.swap_bytes, facts.host.swappiness) {
        (0, _) => about.pass("none"),
        (bytes, Some(inclination)) if inclination <= SWAPPINESS_MAX => {
            about.pass(format!("{}, swappiness {inclination}", out::bytes(bytes)))
        }
        (bytes, inclination) => {
            let inclination = inclination.map_or("unknown".to_owned(), |value| value.to_string());
            about.warn(format!("{}, swappiness {inclination}", out::bytes(bytes)), "sysctl -w vm.swappiness=1")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Fail, Pass, Warn};
    use super::*;
    use crate::doctor::recorded::verdict;

    /// Lost if it fails: cores that stop each other, and latencies that nobody can explain.
    #[test]
    fn cores_have_cpus_of_their_own() {
        let on = |check, used: &[Option<usize>], cpus: &[usize]| {
            verdict(check, |f| (f.wanted.cores, f.host.cpus) = (used.to_vec(), cpus.to_vec()))
        };
        assert_eq!(on(cores, &[Some(0)], &[0, 1]).0, Pass);
        assert_eq!(on(cores, &[Some(0)], &[0]).0, Pass, "there is only one");
        assert_eq!(on(cores, &[Some(0), Some(1)], &[0, 1]).0, Warn);
        assert_eq!(on(cores, &[None, None, None], &[0, 1]), (Fail, "camus serve --cores 2".to_owned()));
        // The recorded host has four CPUs, 0 and 2 are one, 1 and 3.
        assert_eq!(on(siblings, &[Some(0), Some(1)], &[0, 1, 2, 3]).0, Pass);
        let shared = on(siblings, &[Some(0), Some(2)], &[0, 1, 2, 3]);
        assert_eq!(shared, (Warn, "camus serve --cores 0,1".to_owned()));
        assert_eq!(on(siblings, &[None], &[0]).0, Pass);
    }

    /// Lost if it fails: the broker is stopped or killed by a limit that was there to be read.
    #[test]
    fn limits_of_the_control_group_are_held_against_the_settings() {
        let cpus = |limit| verdict(processor_limit, |f| f.host.group_cpus = limit).0;
        assert_eq!((cpus(None), cpus(Some(2.0)), cpus(Some(1.5))), (Pass, Pass, Fail));
        let memory = |group: Option<u64>| verdict(memory_limit, |f| f.host.group_memory_bytes = group);
        assert_eq!(memory(None).0, Pass);
        assert_eq!(memory(Some(1 << 30)).0, Pass);
        assert_eq!(memory(Some(600 << 20)).0, Warn, "512 of 600 MiB");
        assert_eq!(memory(Some(256 << 20)), (Fail, "camus serve --set camus.memory=204MiB".to_owned()));
        assert_eq!(verdict(memory_limit, |f| f.host.memory_bytes = 256 << 20).0, Fail);
        assert_eq!(verdict(memory_limit, |f| f.host.memory_bytes = 0).0, Warn);
    }

    /// Lost if it fails: milliseconds here and there that no profile shows.
    #[test]
    fn slow_clocks_sleepy_cpus_and_swap_are_named() {
        let clock = |name: &str| verdict(clock_source, |f| f.host.clock_source = name.to_owned()).0;
        assert_eq!((clock("tsc"), clock("kvm-clock"), clock("hpet"), clock("")), (Pass, Pass, Warn, Pass));
        let busy = |load| verdict(super::load, |f| f.host.load = load).0;
        assert_eq!((busy(None), busy(Some(4.0)), busy(Some(4.1))), (Pass, Pass, Warn));
        let governed = |all: &[&str]| {
            verdict(governor, |f| f.host.governors = all.iter().map(|name| (*name).to_owned()).collect()).0
        };
        assert_eq!((governed(&[]), governed(&["performance"])), (Pass, Pass));
        assert_eq!((governed(&["powersave"]), governed(&["performance", "schedutil"])), (Warn, Warn));
        let pages = |how: &str| verdict(huge_pages, |f| f.host.huge_pages = how.to_owned()).0;
        assert_eq!((pages("madvise"), pages("never"), pages("always")), (Pass, Pass, Warn));
        let swapping =
            |bytes, inclination| verdict(swap, |f| (f.host.swap_bytes, f.host.swappiness) = (bytes, inclination)).0;
        assert_eq!((swapping(0, Some(60)), swapping(1, Some(1)), swapping(1, Some(60))), (Pass, Pass, Warn));
    }
}
