//! `camus-sim run --seeds 0..2000`: whole brokers in the simulator; `damage`: the same on disks that are damaged;
//! `crash-points`: a crash at every boundary of a short life; `replicas`: three pumps; `planted`: that mistakes are
//! found; `trace`: that a seed is the same every time; `figures`: how fast all of it is.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]
#![allow(clippy::disallowed_methods, reason = "how fast it runs is measured in real time")]

use camus_history::history::{from_lines, to_lines};
use camus_sim::crash_points::{Boundaries, Kind, TRIED_MAX, Tried};
use camus_sim::figures::{self, Speeds, Took, run_timed};
use camus_sim::kit::BROKERS;
use camus_sim::planted::{self, Asked};
use camus_sim::runner::{line, names, run_caught, spread};
use camus_sim::scenario::{Mode, Run, Setup};
use clap::{Parser, Subcommand};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The broker's own, which the simulator runs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "camus-sim", about = "Whole brokers in the simulator, from seeds")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs seeds and judges what their clients saw; one line for each that fails.
    Run {
        /// From the first to before the last: 0..2000.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// One broker or a cluster of three. By default about half of the seeds are of each.
        #[arg(long, value_parser = brokers)]
        brokers: Option<usize>,
        /// Clusters of which any number of brokers may be away at once: only what is shown is judged, and what is lost.
        #[arg(long, conflicts_with = "brokers")]
        no_budget: bool,
        /// Virtual time of each seed before it is wound up, s.
        #[arg(long, default_value_t = 60)]
        virtual_s: u64,
        /// Threads; each runs one seed at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Runs seeds in which disks are damaged: a start may be refused and a read may be, but nothing wrong is shown.
    Damage {
        /// From the first to before the last: 0..2000.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// One broker or a cluster of three. By default about half of the seeds are of each.
        #[arg(long, value_parser = brokers)]
        brokers: Option<usize>,
        /// Virtual time of each seed before it is wound up, s. A start that is refused ends it.
        #[arg(long, default_value_t = 60)]
        virtual_s: u64,
        /// Threads; each runs one seed at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Runs seeds of three pumps, which replicate, without Kafka's wire.
    Replicas {
        /// From the first to before the last: 0..2000.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// Virtual time of each seed before it is wound up, s.
        #[arg(long, default_value_t = 20)]
        virtual_s: u64,
        /// Threads; each runs one seed at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Makes mistakes, one after the other, and sees that the seeds find each. Builds a camus-sim that can make them.
    Planted {
        /// These mistakes alone: one,another.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Each mistake has to be found within these.
        #[arg(long, value_parser = seeds, default_value = "0..500")]
        seeds: Range<u64>,
        /// Virtual time of each seed before it is wound up, s.
        #[arg(long, default_value_t = 20)]
        virtual_s: u64,
        /// Threads; each runs one seed at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// The page whose table of mistakes is written anew.
        #[arg(long, conflicts_with = "only")]
        markdown: Option<PathBuf>,
    },
    /// Crashes a short life of a broker at each of its boundaries: disk operations begun, in the cache, ended; answers.
    CrashPoints {
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Tries this boundary alone.
        #[arg(long)]
        only: Option<u64>,
        /// Threads; each tries one boundary at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
    },
    /// Runs one seed and prints the hash of everything that happened in it.
    Trace {
        #[arg(long)]
        seed: u64,
        /// On damaged disks, as `damage` runs it.
        #[arg(long, conflicts_with = "no_budget")]
        damage: bool,
        /// As `run --no-budget` runs it.
        #[arg(long, conflicts_with = "brokers")]
        no_budget: bool,
        #[arg(long, value_parser = brokers)]
        brokers: Option<usize>,
        #[arg(long, default_value_t = 60)]
        virtual_s: u64,
        /// Where to write the history, an event a line.
        #[arg(long)]
        history: Option<PathBuf>,
    },
    /// Measures how fast the simulator is, and counts where lives are crashed.
    Figures {
        /// The page whose table of figures is written anew.
        #[arg(long)]
        markdown: Option<PathBuf>,
    },
    /// Judges a history that something else wrote.
    Check { history: PathBuf },
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let numbers = |(first, end): (&str, &str)| Some((first.parse().ok()?, end.parse().ok()?));
    let bounds: Option<(u64, u64)> = text.split_once("..").and_then(numbers);
    match bounds {
        Some((first, end)) if first < end => Ok(first..end),
        _ => Err("seeds are given as 0..2000".to_owned()),
    }
}

fn brokers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(brokers) if brokers == 1 || brokers == BROKERS => Ok(brokers),
        _ => Err(format!("there are 1 or {BROKERS}")),
    }
}

fn main() -> ExitCode {
    let run_or_not = |no_budget| if no_budget { Mode::NoBudget } else { Mode::Run };
    let passed = match Cli::parse().command {
        Command::Run { seeds, brokers, no_budget, virtual_s, jobs } => {
            run(Setup { mode: run_or_not(no_budget), brokers }, seeds, virtual_s, jobs)
        }
        Command::Damage { seeds, brokers, virtual_s, jobs } => {
            run(Setup { mode: Mode::Damage, brokers }, seeds, virtual_s, jobs)
        }
        Command::Replicas { seeds, virtual_s, jobs } => run(Mode::Replicas.into(), seeds, virtual_s, jobs),
        Command::Planted { only, seeds, virtual_s, jobs, markdown } => {
            planted::run(&Asked { only, seeds, virtual_s, jobs, markdown })
        }
        Command::CrashPoints { seed, only, jobs } => crash_points(seed, only, jobs.max(1)),
        Command::Trace { seed, damage, no_budget, brokers, virtual_s, history } => {
            let mode = if damage { Mode::Damage } else { run_or_not(no_budget) };
            let run = run_caught(Setup { mode, brokers }, seed, Duration::from_secs(virtual_s));
            trace(&run);
            history.is_none_or(|path| written(std::fs::write(path, to_lines(&run.events)))) && run.failures.is_empty()
        }
        Command::Figures { markdown } => figures::run(markdown.as_deref()),
        Command::Check { history } => check(&history),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What came of all seeds.
#[derive(Default)]
struct Sum {
    passed: u64,
    failed: u64,
    speeds: Speeds,
    refused: u64,
    unread: u64,
    beyond_budget: u64,
}

impl Sum {
    fn add(&mut self, run: &Run, took: Took) {
        self.speeds.add(run, took);
        self.refused += u64::from(run.refused.is_some());
        self.unread += run.unread;
        self.beyond_budget += u64::from(run.beyond_budget);
        if run.failures.is_empty() {
            self.passed += 1;
        } else {
            self.failed += 1;
            println!("{}", line(run));
        }
    }
}

fn run(setup: Setup, seeds: Range<u64>, virtual_s: u64, jobs: usize) -> bool {
    let (begun, jobs) = (Instant::now(), jobs.max(1));
    let mut sum = Sum::default();
    run_timed(setup, seeds, Duration::from_secs(virtual_s), jobs, |run, took| sum.add(&run, took));
    let real_s = begun.elapsed().as_secs_f64().max(1e-9);
    let seeds = sum.passed + sum.failed;
    let (seeds_a_minute, virtual_s) = (60.0 * seeds as f64 / real_s, sum.speeds.virtual_time().as_secs_f64());
    if setup.mode != Mode::Run {
        println!("{} starts were refused, {} partitions could not be read to their end", sum.refused, sum.unread);
    }
    if sum.beyond_budget > 0 {
        println!("{} seeds were left without a majority that has everything: nobody had to get on", sum.beyond_budget);
    }
    let Speeds { lone, clusters } = sum.speeds;
    println!("{seeds} seeds: {virtual_s:.0} virtual seconds in {real_s:.1} real seconds, {jobs} threads");
    for (speed, what) in [(clusters, format!("clusters of {BROKERS}")), (lone, "lone brokers".to_owned())] {
        if speed.seeds > 0 {
            println!("{} {what}: virtual seconds: {speed}", speed.seeds);
        }
    }
    println!("{seeds_a_minute:.1} seeds per minute");
    println!("{} passed, {} failed", sum.passed, sum.failed);
    sum.failed == 0
}

fn crash_points(seed: u64, only: Option<u64>, jobs: usize) -> bool {
    let begun = Instant::now();
    let boundaries = match Boundaries::of(seed) {
        Ok(boundaries) => boundaries,
        Err(failure) => {
            println!("seed {seed}: {}: {}", failure.name, failure.text);
            println!("0 passed, 1 failed");
            return false;
        }
    };
    let chosen = match only {
        Some(boundary) if (1..=boundaries.total()).contains(&boundary) => vec![boundary],
        Some(boundary) => {
            eprintln!("there is no boundary {boundary}: they are 1 to {}", boundaries.total());
            return false;
        }
        None => {
            let (chosen, every) = boundaries.chosen(TRIED_MAX);
            if every > 1 {
                println!("there are {} boundaries: only every {every}th is tried", boundaries.total());
            }
            chosen
        }
    };
    let (mut passed, mut failed, mut of_kind) = (0u64, 0u64, [0u64; Kind::ALL.len()]);
    let try_nth = |n: u64| boundaries.try_one(chosen[n as usize]);
    spread(0..chosen.len() as u64, jobs, try_nth, |tried| {
        of_kind[tried.kind as usize] += 1;
        if tried.failures.is_empty() {
            passed += 1;
        } else {
            failed += 1;
            println!("{}", crash_point_line(&tried, &boundaries));
        }
    });
    let real_s = begun.elapsed().as_secs_f64();
    for (kind, tried) in Kind::ALL.into_iter().zip(of_kind) {
        println!("{kind}: {tried} of {} boundaries tried", boundaries.of_kind(kind));
    }
    println!("{} tried, each without power and as a process", chosen.len());
    println!("{real_s:.1} s, {jobs} threads");
    println!("{passed} passed, {failed} failed");
    failed == 0
}

fn crash_point_line(tried: &Tried, boundaries: &Boundaries) -> String {
    let Tried { boundary, kind, failures } = tried;
    let first = failures.first().map_or("", |failure| failure.text.as_str());
    let (names, replay) = (names(failures), boundaries.replay(*boundary));
    format!("boundary {boundary} ({kind}): {names}: {first}; {replay}")
}

fn trace(run: &Run) {
    for failure in &run.failures {
        println!("{}: {}", failure.name, failure.text);
    }
    let virtual_s = run.virtual_time.as_secs_f64();
    let (seed, trace, brokers, events) = (run.seed, run.trace, run.brokers, run.events.len());
    println!("seed {seed}: trace {trace:016x}, {brokers} brokers, {events} events, {virtual_s:.3} virtual s");
}

fn written(result: std::io::Result<()>) -> bool {
    if let Err(error) = &result {
        eprintln!("the history can not be written: {error}");
    }
    result.is_ok()
}

fn check(path: &std::path::Path) -> bool {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return false;
        }
    };
    let history = match from_lines(&text) {
        Ok(history) => history,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return false;
        }
    };
    let anomalies = camus_history::check(&history);
    for anomaly in &anomalies {
        println!("{anomaly}");
    }
    println!("{} events, {} anomalies", history.len(), anomalies.len());
    anomalies.is_empty()
}
