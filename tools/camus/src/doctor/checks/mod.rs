//! The checks: each a function of the facts to one finding; nothing is read or changed here.
//!
//! `disk.rs` where the data will lie; `floor.rs` what was measured; `kernel.rs` what the kernel gives; `host.rs` what
//! else runs on the host's processors and memory.

use super::facts::Facts;
use serde::Serialize;

mod disk;
mod floor;
mod host;
mod kernel;

/// In ascending order of what it asks of the person.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
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
    /// The one command. `None` where nothing is to be done.
    pub fix: Option<String>,
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

    fn warn(self, measured: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.found(Verdict::Warn, measured.into(), Some(fix.into()))
    }

    fn fail(self, measured: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.found(Verdict::Fail, measured.into(), Some(fix.into()))
    }

    fn found(self, verdict: Verdict, measured: String, fix: Option<String>) -> Finding {
        Finding { group: self.group, name: self.name, verdict, measured, why: self.why, fix }
    }
}

/// All of them, in the order in which a person would look.
pub const ALL: &[fn(&Facts) -> Finding] = &[
    disk::data_directory,
    disk::file_system,
    disk::mount_options,
    disk::direct_io,
    disk::directory_flush,
    disk::one_file_system,
    disk::free_space,
    disk::write_cache,
    disk::rotational,
    disk::scheduler,
    disk::merges,
    floor::floor,
    floor::sequential,
    floor::honesty,
    kernel::version,
    kernel::io_uring,
    kernel::locked_memory,
    kernel::descriptors,
    kernel::backlog,
    host::cores,
    host::siblings,
    host::processor_limit,
    host::memory_limit,
    host::clock_source,
    host::governor,
    host::huge_pages,
    host::swap,
];

pub fn judge(facts: &Facts) -> Vec<Finding> {
    ALL.iter().map(|check| check(facts)).collect()
}
