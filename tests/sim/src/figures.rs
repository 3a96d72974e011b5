//! How fast the simulator is, and how much of it there is: what `run` says of itself, and `camus-sim figures`, which
//! writes a page's table. Real time is that of the threads that run seeds; beside it stands what they had of the
//! processor, which others on the machine do not change as much.
#![allow(clippy::disallowed_methods, reason = "how fast it runs is measured in real time")]

use crate::crash_points::{Boundaries, Kind};
use crate::kit::BROKERS;
use crate::page::write_table;
use crate::runner::{run_caught, spread};
use crate::scenario::{Mode, Run, Setup};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Behind this line of a page stands the table that `--markdown` writes.
const TABLE_BEGINS: &str = "<!-- made by: camus-sim figures --markdown -->";

/// What a thread spent on something.
#[derive(Clone, Copy, Default, Debug)]
pub struct Took {
    pub real: Duration,
    pub processor: Duration,
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Does it, on this thread.
pub fn timed<T>(what: impl FnOnce() -> T) -> (T, Took) {
    let (real, processor) = (Instant::now(), processor_time());
    let done = what();
    let took = Took { real: real.elapsed(), processor: processor_time().saturating_sub(processor) };
    (done, took)
}

/// What seeds of one kind took, all together.
#[derive(Clone, Copy, Default, Debug)]
pub struct Speed {
    pub seeds: u64,
    virtual_time: Duration,
    took: Took,
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64().max(1e-9)
}

impl Speed {
    pub fn add(&mut self, run: &Run, took: Took) {
        self.seeds += 1;
        self.virtual_time += run.virtual_time;
        self.took.real += took.real;
        self.took.processor += took.processor;
    }

    /// Virtual seconds in each second of a thread.
    fn per_real_s(&self) -> f64 {
        ratio(self.virtual_time, self.took.real)
    }

    /// And in each second in which it had the processor.
    fn per_processor_s(&self) -> f64 {
        ratio(self.virtual_time, self.took.processor)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (per_real_s, per_processor_s) = (self.per_real_s(), self.per_processor_s());
        write!(f, "{per_real_s:.1} per real second of a thread, {per_processor_s:.1} per second of the processor")
    }
}

/// The same of lone brokers and of clusters.
#[derive(Clone, Copy, Default, Debug)]
pub struct Speeds {
    pub lone: Speed,
    pub clusters: Speed,
}

impl Speeds {
    pub fn add(&mut self, run: &Run, took: Took) {
        if run.brokers > 1 { self.clusters.add(run, took) } else { self.lone.add(run, took) }
    }

    pub fn virtual_time(&self) -> Duration {
        self.lone.virtual_time + self.clusters.virtual_time
    }
}

/// Runs seeds, and hands each to `each` on this thread with what it took.
pub fn run_timed(setup: Setup, seeds: Range<u64>, time: Duration, jobs: usize, mut each: impl FnMut(Run, Took)) {
    spread(seeds, jobs, |seed| timed(|| run_caught(setup, seed, time)), |(run, took)| each(run, took));
}

fn speeds(setup: Setup, seeds: Range<u64>, virtual_s: u64, jobs: usize) -> (Speeds, Duration) {
    let (begun, mut speeds) = (Instant::now(), Speeds::default());
    run_timed(setup, seeds, Duration::from_secs(virtual_s), jobs, |run, took| speeds.add(&run, took));
    (speeds, begun.elapsed())
}

/// Virtual time of the seeds that show how fast it is, s: what is promised of three brokers is a minute in a second.
const VIRTUAL_S: u64 = 60;
const SEEDS: u64 = 20;
const MIXED: u64 = 60;
const MIXED_VIRTUAL_S: u64 = 30;
const JOBS: usize = 2;

/// Measures, prints, and writes the table if a page is named. Judges nothing: `run` does.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "what is measured is said")]
pub fn run(page: Option<&Path>) -> bool {
    let mut rows = String::new();
    let mut say = |what: &str, figure: String, command: String| {
        println!("{what}: {figure}");
        rows.push_str(&format!("| {what} | {figure} | `{command}` |\n"));
    };
    for (brokers, what) in [(BROKERS, "clusters of three, virtual seconds"), (1, "lone brokers, virtual seconds")] {
        let setup = Setup { mode: Mode::Run, brokers: Some(brokers) };
        let (speeds, _) = speeds(setup, 0..SEEDS, VIRTUAL_S, 1);
        let speed = if brokers > 1 { speeds.clusters } else { speeds.lone };
        let command = format!("run --brokers {brokers} --seeds 0..{SEEDS} --virtual-s {VIRTUAL_S} --jobs 1");
        say(what, speed.to_string(), command);
    }
    let (mixed, real) = speeds(Mode::Run.into(), 0..MIXED, MIXED_VIRTUAL_S, JOBS);
    let a_minute = 60.0 * MIXED as f64 / real.as_secs_f64().max(1e-9);
    let (clusters, lone) = (mixed.clusters.seeds, mixed.lone.seeds);
    let figure = format!("{a_minute:.0} ({clusters} clusters, {lone} lone brokers, {JOBS} threads)");
    let command = format!("run --seeds 0..{MIXED} --virtual-s {MIXED_VIRTUAL_S} --jobs {JOBS}");
    say("seeds a minute", figure, command);
    match Boundaries::of(1) {
        Ok(boundaries) => {
            let of_kind = |kind: Kind| format!("{} of {kind}", boundaries.of_kind(kind));
            let figure = format!("{}: {}", boundaries.total(), Kind::ALL.map(of_kind).join(", "));
            say("boundaries at which a short life is crashed", figure, "crash-points".to_owned());
        }
        Err(failure) => {
            eprintln!("{}: {}", failure.name, failure.text);
            return false;
        }
    }
    let table = format!("| what | figure | `cargo run --release -p camus-sim --` |\n|---|---|---|\n{rows}");
    let written = page.map_or(Ok(()), |page| write_table(page, TABLE_BEGINS, &table));
    if let Err(why) = &written {
        eprintln!("{why}");
    }
    written.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a figure that says nothing, or says of clusters what lone brokers took.
    #[test]
    fn what_seeds_took_is_told_apart_by_how_many_brokers_they_are_of() {
        let (mut both, time) = (Speeds::default(), Duration::from_millis(500));
        run_timed(Mode::Run.into(), 0..6, time, 2, |run, took| {
            assert!(took.real > Duration::ZERO && took.processor <= took.real + Duration::from_millis(20), "{took:?}");
            both.add(&run, took);
        });
        assert_eq!(both.lone.seeds + both.clusters.seeds, 6);
        assert!(both.lone.seeds > 0 && both.clusters.seeds > 0, "{both:?}");
        assert!(both.virtual_time() >= 6 * time);
        assert!(both.clusters.per_processor_s() > 0.0 && both.lone.per_real_s() > 0.0);
    }
}
