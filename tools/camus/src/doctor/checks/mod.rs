//! The checks: each a function of the facts to one finding; nothing is read or changed here.
//!
//! `disk.rs` where the data will lie; `floor.rs` what was measured; `start.rs` what a start would meet; `kernel.rs`
//! what the kernel gives; `host.rs` what else runs on the host's processors and memory.

use super::facts::{Facts, Measured};
use serde::Serialize;

mod disk;
mod floor;
mod host;
mod kernel;
mod start;

/// In ascending order of what it asks of the person.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is known: it was not looked at, or not measured.
    Skip,
    Pass,
    /// It works, but slower or less safely than it could.
    Warn,
    /// It will not work, or what is promised does not hold.
    Fail,
}

/// What one check found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    pub group: &'static str,
    pub name: &'static str,
    pub verdict: Verdict,
    pub measured: String,
    /// Why it matters.
    pub why: &'static str,
    /// The one command that mends it. `None` where nothing is to be done, or where none is known.
    pub fix: Option<String>,
    /// Where there is no such command: the one that shows more.
    pub see: Option<String>,
}

impl Finding {
    /// Its command only shows more: it mends nothing.
    fn look(mut self) -> Finding {
        self.see = self.fix.take();
        self
    }

    /// What to run, to mend it or to see more.
    pub fn command(&self) -> Option<&String> {
        self.fix.as_ref().or(self.see.as_ref())
    }

    fn not_looked_at(self, cause: &str) -> Finding {
        About { group: self.group, name: self.name, why: self.why }.see(cause)
    }
}

/// A check, before it has looked.
#[derive(Clone, Copy, Debug)]
struct About {
    group: &'static str,
    name: &'static str,
    why: &'static str,
}

impl About {
    fn pass(self, measured: impl Into<String>) -> Finding {
        self.found(Verdict::Pass, measured.into(), None)
    }

    fn skip(self, measured: impl Into<String>) -> Finding {
        self.found(Verdict::Skip, measured.into(), None)
    }

    /// What another check has found is the cause: one cause is told once.
    fn see(self, other: &str) -> Finding {
        self.skip(format!("not looked at: see {other}"))
    }

    /// With another reason than the check's own.
    fn because(self, why: &'static str) -> About {
        About { why, ..self }
    }

    fn warn(self, measured: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.found(Verdict::Warn, measured.into(), Some(fix.into()))
    }

    fn fail(self, measured: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.found(Verdict::Fail, measured.into(), Some(fix.into()))
    }

    fn found(self, verdict: Verdict, measured: String, fix: Option<String>) -> Finding {
        Finding { group: self.group, name: self.name, verdict, measured, why: self.why, fix, see: None }
    }
}

/// Of the place itself, in the order in which a person would look. What is wrong here is the cause of the rest.
const PLACE: &[fn(&Facts) -> Finding] = &[disk::data_directory, disk::file_system];

/// Advice for the place: worth nothing where another one must be found.
const DISK: &[fn(&Facts) -> Finding] = &[
    disk::mount_options,
    disk::directory_flush,
    disk::one_file_system,
    disk::free_space,
    disk::write_cache,
    disk::rotational,
    disk::scheduler,
    disk::merges,
    floor::floor,
];

/// What can be judged only where the disk could be measured; where not, the floor says why.
const MEASURED: &[fn(&Facts, &Measured) -> Finding] = &[floor::sequential, floor::direct_io, floor::honesty];

const HOST: &[fn(&Facts) -> Finding] = &[
    start::lock,
    start::listeners,
    start::http,
    kernel::version,
    kernel::io_uring,
    kernel::locked_memory,
    kernel::descriptors,
    kernel::backlog,
    host::cores,
    host::siblings,
    host::processor_limit,
    host::memory_limit,
    host::load,
    host::clock_source,
    host::governor,
    host::huge_pages,
    host::swap,
];

/// Whether what was looked at is the place of the data.
pub fn is_a_place(facts: &Facts) -> bool {
    disk::no_place(facts).is_none()
}

pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = PLACE.iter().map(|check| check(facts)).collect();
    let no_place = disk::no_place(facts);
    found.extend(DISK.iter().map(|check| {
        let found = check(facts);
        match no_place {
            // What was measured all the same is told.
            Some(_) if found.group == floor::GROUP && facts.floor.is_ok() => found,
            Some(cause) => found.not_looked_at(cause),
            None => found,
        }
    }));
    if let Ok(measured) = &facts.floor {
        found.extend(MEASURED.iter().map(|check| check(facts, measured)));
    }
    found.extend(HOST.iter().map(|check| check(facts)));
    found
}
