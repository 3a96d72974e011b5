//! The process as a whole: how many descriptors it may have, and that it ends when an assertion fails.

use crate::errors::{self, UserError};
use crate::out;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors besides those of clients: files of the log, rings, listeners, the HTTP port.
const DESCRIPTORS_BESIDES: u64 = 1024;

/// Raises what the shell left low and the system allows: a descriptor for each connection, and locked memory for the
/// rings. Says where it is still too little.
pub fn raise_limits(connections_max: usize) {
    let needed = connections_max as u64 + DESCRIPTORS_BESIDES;
    let have = raise(Resource::Nofile);
    if have.is_some_and(|have| have < needed) {
        tracing::warn!(
            "{} descriptors are allowed, {connections_max} connections may need {needed}: raise `ulimit -Hn`",
            have.unwrap_or(0)
        );
    }
    raise(Resource::Memlock);
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

    #[test]
    fn a_panic_is_told_with_its_place_and_its_own_status() {
        let error = of_panic(Some("camus-core-0"), "engine/src/wal/writer.rs:1", "durable passed written");
        assert_eq!(error.status, errors::exit::CORE_FAILED);
        assert!(error.to_string().contains("engine/src/wal/writer.rs:1 (thread camus-core-0)"), "{error}");
    }
}
