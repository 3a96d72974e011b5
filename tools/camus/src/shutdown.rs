//! How the broker is asked to end: by SIGTERM or SIGINT, or by a core that can not go on.

use crate::errors::UserError;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::sync::{Arc, Condvar, Mutex};

/// Why the broker ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// This signal came.
    Signal(i32),
    /// A core can not go on.
    Failed(UserError),
}

/// A flag with a reason, set once. Shared by the signal thread, the cores and the main thread, which waits on it.
#[derive(Debug, Default)]
pub struct Shutdown {
    why: Mutex<Option<Why>>,
    asked: Condvar,
}

impl Shutdown {
    /// The first reason stands; whether this was it.
    pub fn ask(&self, why: Why) -> bool {
        let mut slot = self.why.lock().expect("nobody panics while holding this");
        if slot.is_some() {
            return false;
        }
        *slot = Some(why);
        self.asked.notify_all();
        true
    }

    pub fn is_asked(&self) -> bool {
        self.why.lock().expect("nobody panics while holding this").is_some()
    }

    /// Waits until somebody asks.
    pub fn wait(&self) -> Why {
        let mut slot = self.why.lock().expect("nobody panics while holding this");
        loop {
            if let Some(why) = &*slot {
                return why.clone();
            }
            slot = self.asked.wait(slot).expect("nobody panics while holding this");
        }
    }
}

/// From now on SIGTERM and SIGINT ask for an orderly end; a second one ends the process at once.
pub fn watch_signals(shutdown: Arc<Shutdown>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT])?;
    #[allow(clippy::disallowed_methods)] // a thread of the tool, beside the cores
    std::thread::Builder::new().name("camus-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if shutdown.ask(Why::Signal(signal)) {
                tracing::info!(signal, "asked to stop; once more ends at once");
            } else {
                tracing::warn!(signal, "ending at once; nothing acknowledged is lost");
                #[allow(clippy::disallowed_methods)] // asked twice: as kill -9, which loses nothing
                std::process::exit(128 + signal);
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stands_and_wakes_who_waits() {
        let shutdown = Arc::new(Shutdown::default());
        assert!(!shutdown.is_asked());
        let waits = Arc::clone(&shutdown);
        #[allow(clippy::disallowed_methods)] // a test
        let thread = std::thread::spawn(move || waits.wait());
        assert!(shutdown.ask(Why::Signal(SIGTERM)));
        assert!(!shutdown.ask(Why::Signal(SIGINT)));
        assert_eq!(thread.join().expect("it ended"), Why::Signal(SIGTERM));
        assert!(shutdown.is_asked());
    }
}
