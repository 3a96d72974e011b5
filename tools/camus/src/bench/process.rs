//! What a process has used, by what the kernel says of it in `/proc`.

use crate::errors::{self, UserError};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// A process that is watched, as it was at one moment.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Usage {
    /// User and system time of all its threads, also of those that ended.
    pub cpu_s: f64,
    pub rss_bytes: u64,
    pub rss_max_bytes: u64,
    /// What it caused to be written to storage; None where the kernel does not let one look.
    pub write_bytes: Option<u64>,
}

/// CPU time of this process, s.
pub fn own_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Looks at process `pid`.
pub fn usage(pid: u32) -> Result<Usage, UserError> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
    let gone = |why: &str| errors::bench_observed(&format!("process {pid}"), why, "pgrep -a camus   (or jps)");
    let stat = read("stat").map_err(|e| gone(&e.to_string()))?;
    let ticks = cpu_ticks(&stat).ok_or_else(|| gone("/proc does not say what it has used"))?;
    let status = read("status").map_err(|e| gone(&e.to_string()))?;
    let io = read("io").ok();
    Ok(Usage {
        cpu_s: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        rss_bytes: field(&status, "VmRSS:").unwrap_or(0) * 1024,
        rss_max_bytes: field(&status, "VmHWM:").unwrap_or(0) * 1024,
        write_bytes: io.as_deref().and_then(|text| field(text, "write_bytes:")),
    })
}

/// utime and stime. The name in brackets may hold anything, also blanks and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Whether process `pid` listens on `port`. `None`: this user may not look.
pub fn listens(pid: u32, port: u16) -> Option<bool> {
    let listening: Vec<String> = ["tcp", "tcp6"]
        .iter()
        .filter_map(|file| fs::read_to_string(format!("/proc/{pid}/net/{file}")).ok())
        .flat_map(|text| listeners(&text, port))
        .collect();
    let mut seen = false;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        // Files come and go; what can not be read at all is no answer.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        seen = true;
        if listening.iter().any(|socket| target.as_os_str() == socket.as_str()) {
            return Some(true);
        }
    }
    seen.then_some(false)
}

/// The sockets that listen on `port`, as the links in `/proc/PID/fd` name them. Source: Documentation/networking/
/// proc_net_tcp.rst: local address and port in hexadecimal, state 0A, the inode as tenth field.
fn listeners(table: &str, port: u16) -> Vec<String> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let listens = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == "0A";
        listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    };
    table.lines().skip(1).filter_map(of).collect()
}

/// The host's load average over a minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

pub fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "unknown".to_owned(), |t| t.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read_right() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 30 9 9 20 0 1 0 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(180));
    }

    /// Lost if it fails: the warning that CPU time and memory are those of another process.
    #[test]
    fn who_listens_is_told_from_who_does_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(listens(std::process::id(), port), Some(true));
        drop(listener);
        assert_eq!(listens(std::process::id(), port), Some(false));
        assert_eq!(listens(u32::MAX / 2, port), None, "no such process");
    }

    #[test]
    fn this_process_is_found_and_one_that_is_gone_is_told() {
        let own = usage(std::process::id()).expect("it runs");
        assert!(own.rss_bytes > 0 && own.rss_max_bytes >= own.rss_bytes);
        assert_eq!(usage(u32::MAX / 2).expect_err("no such process").code, "CAM-0605");
    }
}
