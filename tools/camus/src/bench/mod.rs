//! `camus bench`: how fast a Kafka-compatible broker answers, at what cost, and whether it flushes.
//!
//! Flags go in; a text report and, if asked for, JSON and an SVG come out. `flags.rs` what can be asked for; `load.rs`
//! when requests are due (pure); `encode.rs` requests that are built once; `wire.rs` answers; `conn.rs` a producing and
//! `fetch.rs` a reading connection; `drive.rs` the loop over all of them; `cluster.rs` topic, producer ids, offsets;
//! `stats.rs` what adds up; `output.rs` its files; `process.rs` and `device.rs` what the kernel counted; `run.rs` one
//! run from beginning to end; `report.rs` JSON and text; `plot.rs` the SVG.

mod cluster;
mod conn;
mod device;
mod drive;
mod encode;
mod fetch;
mod flags;
mod load;
mod output;
mod plot;
mod process;
mod report;
mod run;
mod stats;
mod wire;

pub use flags::BenchCommand;
pub use output::Output;

use crate::errors::UserError;
use crate::out;
use flags::{BenchArgs, Mode};
use std::io::IsTerminal;

/// Does what was asked for.
pub fn run(command: BenchCommand) -> Result<(), UserError> {
    let (mode, args) = match command {
        BenchCommand::Produce(args) => (Mode::Produce, args),
        BenchCommand::Open(args) => (Mode::Open, args),
        BenchCommand::E2e(args) => (Mode::E2e, args),
        BenchCommand::Fetch(args) => (Mode::Fetch, args),
        BenchCommand::Plot { out, runs, labels } => return plot::files(&out, &runs, &labels),
    };
    run::run(&BenchArgs { mode, ..args })
}

/// One line on standard error that is written over and over, if that is a terminal.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    shown: bool,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), shown: false }
    }

    pub fn say(&mut self, text: &str) {
        if self.terminal {
            out::progress(text);
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if self.shown {
            out::progress("");
            self.shown = false;
        }
    }
}

/// However a run ends, what is printed next has a line of its own.
impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
