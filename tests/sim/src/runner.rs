//! Many seeds on some threads. Each seed has a world of its own, made on the thread that runs it.

use crate::scenario::{Failure, Mode, Run, Setup, run};
use std::cell::RefCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

thread_local! {
    /// What this thread runs: its name, and how to run it again. And what its panic said.
    static RUNS: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs it, whatever happens in it: a panic is a failure like others.
pub fn caught<T>(name: String, replay: String, what: impl FnOnce() -> T) -> Result<T, Failure> {
    hear_panics();
    RUNS.set(Some((name, replay)));
    let caught = catch_unwind(AssertUnwindSafe(what));
    RUNS.set(None);
    caught.map_err(|_| Failure { name: "panic".to_owned(), text: last_panic() })
}

/// What the last panic on this thread said.
pub fn last_panic() -> String {
    PANIC.take()
}

/// A seed, whatever happens in it.
pub fn run_caught(setup: impl Into<Setup>, seed: u64, time: Duration) -> Run {
    let setup = setup.into();
    let again = replay(setup, seed, time);
    caught(format!("seed {seed}"), again, || run(setup, seed, time)).unwrap_or_else(|failure| Run {
        seed,
        setup,
        time,
        brokers: 0,
        trace: 0,
        virtual_time: Duration::ZERO,
        events: vec![],
        failures: vec![failure],
        refused: None,
        unread: 0,
        beyond_budget: false,
    })
}

/// What a panic in a seed says is kept for its report. Other threads' panics are said as ever.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match RUNS.with_borrow(Option::clone) {
            Some((name, replay)) => heard(&name, &replay, info),
            None => others(info),
        }));
    });
}

#[allow(clippy::print_stdout, reason = "where a panic aborts, nobody is left to print it")]
fn heard(name: &str, replay: &str, info: &PanicHookInfo<'_>) {
    let text = info.to_string().replace('\n', " ");
    if cfg!(panic = "abort") {
        println!("{name}: panic: {text}; {replay}");
    }
    PANIC.set(text);
}

/// The command that runs seeds of this kind.
pub fn command(setup: Setup) -> String {
    let command = match setup.mode {
        Mode::Run => "run",
        Mode::NoBudget => "run --no-budget",
        Mode::Damage => "damage",
        Mode::Replicas => "replicas",
    };
    let brokers = setup.brokers.map_or(String::new(), |brokers| format!(" --brokers {brokers}"));
    format!("{command}{brokers}")
}

/// How a seed is run alone.
pub fn replay(setup: Setup, seed: u64, time: Duration) -> String {
    let (command, end, virtual_s) = (command(setup), seed + 1, time.as_secs());
    format!("replay: cargo run --release -p camus-sim -- {command} --seeds {seed}..{end} --virtual-s {virtual_s}")
}

/// Each name once.
pub fn names(failures: &[Failure]) -> String {
    let mut names: Vec<&str> = failures.iter().map(|failure| failure.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// The line about a seed that failed: each name once, the first of its texts, and how to run it again.
pub fn line(run: &Run) -> String {
    let first = run.failures.first().map_or("", |failure| failure.text.as_str());
    format!("seed {}: {}: {first}; {}", run.seed, names(&run.failures), replay(run.setup, run.seed, run.time))
}

/// Runs all seeds on so many threads, and hands each run to `each` on this one, as they end.
pub fn run_all(setup: impl Into<Setup>, seeds: Range<u64>, time: Duration, jobs: usize, each: impl FnMut(Run)) {
    let setup = setup.into();
    spread(seeds, jobs, |seed| run_caught(setup, seed, time), each);
}

/// Does `what` for each number on so many threads, and hands what comes of it to `each` on this one, as it comes.
pub fn spread<T: Send>(numbers: Range<u64>, jobs: usize, what: impl Fn(u64) -> T + Sync, mut each: impl FnMut(T)) {
    let next = AtomicU64::new(numbers.start);
    let (done, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (done, next, what) = (done.clone(), &next, &what);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end || done.send(what(number)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        results.iter().for_each(&mut each);
    });
}
