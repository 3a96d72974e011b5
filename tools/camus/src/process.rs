//! The process as a whole: how many descriptors it may have, and that it ends when an assertion fails.

use crate::errors::{self, UserError};
use crate::http;
use crate::out;
use camus_engine::limits::FILES_OPEN_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of the whole process, besides what is counted on its own: standard streams, the data directory and its lock, the
/// HTTP port's listener and loop.
const DESCRIPTORS_BESIDES: u64 = 16;
/// Of a core, besides files, listeners and connections: its ring or epoll, its bell, what is opened for a moment.
const DESCRIPTORS_OF_LOOP: u64 = 8;
/// Files of a core's log that can always be open.
const LOG_FILES_MIN: u64 = 8;

/// Raises what the shell left low and the system allows: descriptors, and locked memory for the rings. Returns how many
/// descriptors there are (`u64::MAX`: no limit).
pub fn raise_limits() -> u64 {
    raise(Resource::Memlock);
    raise(Resource::Nofile).unwrap_or(u64::MAX)
}

/// Connections at a time of the HTTP port, of so many descriptors.
pub fn http_connections_max(descriptors: u64) -> usize {
    usize::try_from(descriptors / 8).unwrap_or(usize::MAX).clamp(4, http::CONNECTIONS_MAX)
}

/// Connections that each core may accept, so that the log, the HTTP port and the loops never want for a descriptor,
/// whatever clients do. `others`: brokers of the cluster. At least 1.
pub fn connections_max(descriptors: u64, cores: usize, listeners: usize, others: usize) -> usize {
    let (cores, listeners, of_peers) = (cores as u64, listeners as u64, of_peers(others) as u64);
    let files = (descriptors / 4 / cores).clamp(LOG_FILES_MIN, FILES_OPEN_MAX as u64);
    let process = DESCRIPTORS_BESIDES + listeners + http_connections_max(descriptors) as u64;
    let kept = process + cores * (files + listeners + of_peers + DESCRIPTORS_OF_LOOP);
    usize::try_from(descriptors.saturating_sub(kept) / cores).unwrap_or(usize::MAX).max(1)
}

/// Descriptors of each core for other brokers: a link to each and what they may connect, the core's listener and
/// what keeps its port.
fn of_peers(others: usize) -> usize {
    if others == 0 { 0 } else { others + camus_net::limits::PEER_GUESTS_MAX + 2 }
}

/// Sets the soft limit to the hard one; what then holds (`None`: no limit).
fn raise(resource: Resource) -> Option<u64> {
    let limit = getrlimit(resource);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(resource, raised) {
        Ok(()) => limit.maximum,
        // Not allowed in this container: it stays as it was, and who is told of it is decided above.
        Err(_) => limit.current,
    }
}

/// From now on a panic on any thread ends the process at once, with its own status, and the person is told. A core that
/// found itself in a state that must not be may not let others go on acknowledging.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let what = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no reason was given".to_owned());
        let place = panic.location().map_or("an unknown place".to_owned(), |l| format!("{}:{}", l.file(), l.line()));
        let error = of_panic(std::thread::current().name(), &place, &what);
        out::error(&error);
        out::backtrace(&std::backtrace::Backtrace::capture());
        #[allow(clippy::disallowed_methods)] // this is the end: nothing of the process may go on
        std::process::exit(i32::from(error.status));
    }));
}

fn of_panic(thread: Option<&str>, place: &str, what: &str) -> UserError {
    errors::assertion(thread.unwrap_or("unnamed"), place, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_raised_to_what_the_system_allows() {
        raise(Resource::Nofile);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    /// If this fails, idle clients take the descriptors that the log needs, and the broker can not even close one.
    #[test]
    fn connections_leave_descriptors_for_the_log_and_the_http_port() {
        assert_eq!(connections_max(100, 1, 1, 0), 37);
        assert_eq!(connections_max(1, 2, 1, 0), 1, "it starts, whatever comes of it");
        assert!(connections_max(u64::MAX, 2, 1, 0) > 1 << 40, "no limit is none");
        for descriptors in [64, 100, 256, 1024, 4096, 65_536, 1 << 20] {
            for cores in [1, 2, 8] {
                let clients = cores * connections_max(descriptors, cores, 2, 0);
                let least = cores as u64 * (LOG_FILES_MIN + 2 + DESCRIPTORS_OF_LOOP) + DESCRIPTORS_BESIDES + 2;
                let all = clients as u64 + http_connections_max(descriptors) as u64 + least;
                assert!(all <= descriptors || clients == cores, "{descriptors} for {cores}: {all}");
            }
        }
        let (alone, of_three) = (connections_max(1024, 2, 1, 0), connections_max(1024, 2, 1, 2));
        assert_eq!(alone - of_three, of_peers(2), "and for the other brokers");
        assert!(connections_max(1 << 20, 2, 1, 0) > 500_000, "little is kept of many");
    }

    #[test]
    fn a_panic_is_told_with_its_place_and_its_own_status() {
        let error = of_panic(Some("camus-core-0"), "engine/src/wal/writer.rs:1", "durable passed written");
        assert_eq!(error.status, errors::exit::CORE_FAILED);
        assert!(error.to_string().contains("engine/src/wal/writer.rs:1 (thread camus-core-0)"), "{error}");
    }
}
