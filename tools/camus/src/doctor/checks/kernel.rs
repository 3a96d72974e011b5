//! What the kernel gives to this process: io_uring, and its limits.

use super::{About, Finding};
use crate::doctor::facts::Facts;
use crate::settings::IoAsked;
use crate::{out, process};
use camus_engine::limits::{LISTEN_BACKLOG, RECV_BUFFER_BYTES, RECV_BUFFERS};

const GROUP: &str = "kernel";
/// The first with all that the ring uses.
const VERSION_MIN: (u32, u32) = (6, 1);
const LIMITS: &str = "systemctl edit camus";

pub fn version(facts: &Facts) -> Finding {
    let why = "before 6.1 the broker's ring can not be had, and it falls back to ordinary system calls";
    let about = About { group: GROUP, name: "kernel", why };
    let release = &facts.kernel.release;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= VERSION_MIN => about.pass(release),
        (Some(_), Some(_)) => about.warn(release, "apt-get install linux-image-amd64   (6.1 or newer), and a reboot"),
        _ => about.warn(format!("'{release}' is no version"), "uname -r").look(),
    }
}

pub fn io_uring(facts: &Facts) -> Finding {
    let why = "without it each durable write takes two threads and four system calls";
    let about = About { group: GROUP, name: "io_uring", why };
    let error = match (&facts.kernel.ring, facts.wanted.io) {
        (Ok(()), IoAsked::Blocking) => return about.pass("works, but camus.io is blocking"),
        (Ok(()), _) => return about.pass("works"),
        (Err(error), _) => error,
    };
    let disabled = &facts.kernel.io_uring_disabled;
    let (measured, fix) = match disabled.as_str() {
        "1" | "2" => {
            (format!("{error}: kernel.io_uring_disabled is {disabled}"), "sysctl -w kernel.io_uring_disabled=0")
        }
        _ => (
            format!("{error}: forbidden by a container's seccomp profile, or not in this kernel"),
            "docker run --security-opt seccomp=unconfined ...",
        ),
    };
    match facts.wanted.io {
        IoAsked::Uring | IoAsked::Glommio => about.fail(format!("{measured}; camus.io asks for it"), fix),
        IoAsked::Auto | IoAsked::Blocking => about.warn(measured, fix),
    }
}

pub fn locked_memory(facts: &Facts) -> Finding {
    let why = "buffers that can not be locked are mapped anew for each write";
    let about = About { group: GROUP, name: "locked memory", why };
    let received = (RECV_BUFFERS as usize * RECV_BUFFER_BYTES) as u64;
    let needed = facts.wanted.cores.len() as u64 * (facts.wanted.registered_bytes + received);
    let takes = format!("the broker registers {} at most", out::bytes(needed));
    match facts.kernel.memlock_bytes {
        _ if facts.kernel.may_lock => about.pass(format!("unlimited (CAP_IPC_LOCK); {takes}")),
        None => about.pass(format!("unlimited; {takes}")),
        Some(limit) if limit >= needed => about.pass(format!("{}; {takes}", out::bytes(limit))),
        Some(limit) => {
            let fix = format!("{LIMITS}   ([Service] LimitMEMLOCK=infinity; in a shell: ulimit -l)");
            about.warn(format!("{}; {takes}", out::bytes(limit)), fix)
        }
    }
}

pub fn descriptors(facts: &Facts) -> Finding {
    let why = "each connection and each open file of the log takes one";
    let about = About { group: GROUP, name: "descriptors", why };
    let (wanted, cores) = (&facts.wanted, facts.wanted.cores.len());
    let limit = facts.kernel.descriptors.unwrap_or(u64::MAX);
    let connections = process::connections_max(limit, cores, wanted.listeners, wanted.others).saturating_mul(cores);
    let shown = facts.kernel.descriptors.map_or("unlimited".to_owned(), |limit| limit.to_string());
    if connections >= wanted.connections_max {
        return about.pass(format!("{shown}, for max.connections = {}", wanted.connections_max));
    }
    let measured = format!("{shown}: {connections} connections, max.connections is {}", wanted.connections_max);
    about.warn(measured, format!("{LIMITS}   ([Service] LimitNOFILE=1048576; in a shell: ulimit -n)"))
}

pub fn backlog(facts: &Facts) -> Finding {
    let why = "connections that come at once wait there; more are dropped, and clients wait a second";
    let about = About { group: GROUP, name: "listen backlog", why };
    match facts.kernel.somaxconn {
        None => about.pass("not known"),
        Some(most) if most >= LISTEN_BACKLOG as u64 => about.pass(format!("somaxconn is {most}")),
        Some(most) => about.warn(
            format!("somaxconn is {most}, the broker asks for {LISTEN_BACKLOG}"),
            "sysctl -w net.core.somaxconn=4096",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{self, Fail, Pass, Warn};
    use super::*;
    use crate::doctor::recorded::judged;

    fn verdict(check: fn(&Facts) -> Finding, change: impl FnOnce(&mut Facts)) -> (Verdict, String) {
        let found = judged(check, change);
        (found.verdict, found.measured)
    }

    /// Lost if it fails: a broker that falls back to slow system calls, and nobody knows why.
    #[test]
    fn an_old_kernel_and_a_forbidden_ring_are_named_with_their_cause() {
        let kernel = |release: &str| verdict(version, |f| f.kernel.release = release.to_owned()).0;
        for (release, wanted) in [
            ("6.1.0-13-amd64", Pass),
            ("6.18.44", Pass),
            ("10.0", Pass),
            ("6.0.19", Warn),
            ("5.15.0-91-generic", Warn),
            ("", Warn),
        ] {
            assert_eq!(kernel(release), wanted, "{release}");
        }
        let ring = |disabled: &str, io: IoAsked| {
            verdict(io_uring, |f| {
                f.kernel.ring = Err("Operation not permitted".to_owned());
                f.kernel.io_uring_disabled = disabled.to_owned();
                f.wanted.io = io;
            })
        };
        assert_eq!(verdict(io_uring, |_| {}).0, Pass);
        let (found, shown) = ring("2", IoAsked::Auto);
        assert!(found == Warn && shown.contains("io_uring_disabled is 2"), "{shown}");
        let (found, shown) = ring("0", IoAsked::Uring);
        assert!(found == Fail && shown.contains("seccomp"), "{shown}");
    }

    /// Lost if it fails: connections that are refused, and buffers that are mapped anew for each write.
    #[test]
    fn limits_are_held_against_what_the_broker_takes() {
        let locked = |bytes, may_lock| {
            verdict(locked_memory, |f| (f.kernel.memlock_bytes, f.kernel.may_lock) = (bytes, may_lock)).0
        };
        assert_eq!(locked(Some(8 << 20), false), Warn);
        assert_eq!(locked(Some(8 << 20), true), Pass);
        assert_eq!(locked(None, false), Pass);
        // Two cores with 128 MiB and 4 MiB of receive buffers each.
        assert_eq!(locked(Some(264 << 20), false), Pass);
        assert_eq!(locked(Some((264 << 20) - 1), false), Warn);
        let open = |limit| verdict(descriptors, |f| f.kernel.descriptors = limit).0;
        assert_eq!((open(None), open(Some(1 << 20)), open(Some(1024))), (Pass, Pass, Warn));
        let wait = |most| verdict(backlog, |f| f.kernel.somaxconn = most).0;
        assert_eq!((wait(Some(4096)), wait(Some(128)), wait(None)), (Pass, Warn, Pass));
    }
}
