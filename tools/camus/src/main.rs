//! The camus binary: `serve` runs the broker, the other commands look at it or talk to it.
//!
//! `cli.rs` the command line; `settings.rs` every setting; `serve.rs` the order of a start and of an end, with
//! `cores.rs` (the pinned threads), `data_dir.rs` (whose data, and one process at a time), `board.rs` + `http.rs` +
//! `metrics.rs` (how it is), `memory.rs` (the budgets), `process.rs` (its limits and its end) and `shutdown.rs`;
//! `topic.rs` over `client.rs`; `wal.rs`; `bench` the load, `waltest.rs` the disk alone, both with `percentiles.rs`;
//! `doctor` the disk and the host; `compatibility.rs` the page of what is served; `errors.rs` what a person reads when
//! the answer is no; `out.rs` the one place that prints.

mod bench;
mod board;
mod cli;
mod client;
mod compatibility;
mod cores;
mod data_dir;
mod doctor;
mod errors;
#[cfg(test)]
mod golden;
mod http;
mod memory;
mod metrics;
mod out;
mod percentiles;
mod process;
mod roll;
mod serve;
mod settings;
mod shutdown;
mod topic;
mod wal;
mod waltest;

use clap::Parser;
use std::process::ExitCode;

/// One allocator for the whole process: steady under many threads that free what others allocated.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            out::error(&error);
            ExitCode::from(error.status)
        }
    }
}
