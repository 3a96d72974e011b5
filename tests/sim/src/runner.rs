//! Many seeds on some threads. Each seed has a world of its own, made on the thread that runs it.

use crate::scenario::{Failure, Run, run};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

thread_local! {
    /// The seed that this thread runs, and what its panic said.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A seed, whatever happens in it: a panic is a failure like others.
pub fn run_caught(seed: u64, time: Duration) -> Run {
    hear_panics();
    SEED.set(Some(seed));
    let caught = catch_unwind(AssertUnwindSafe(|| run(seed, time)));
    SEED.set(None);
    caught.unwrap_or_else(|_| {
        let failure = Failure { name: "panic".to_owned(), text: PANIC.take() };
        Run { seed, trace: 0, virtual_time: Duration::ZERO, events: vec![], failures: vec![failure] }
    })
}

/// What a panic in a seed says is kept for its report. Other threads' panics are said as ever.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match SEED.get() {
            Some(seed) => heard(seed, info),
            None => others(info),
        }));
    });
}

#[allow(clippy::print_stdout, reason = "where a panic aborts, nobody is left to print it")]
fn heard(seed: u64, info: &PanicHookInfo<'_>) {
    let text = info.to_string().replace('\n', " ");
    if cfg!(panic = "abort") {
        println!("seed {seed}: panic: {text}; {}", replay(seed));
    }
    PANIC.set(text);
}

/// How a seed is run alone.
pub fn replay(seed: u64) -> String {
    format!("replay: cargo run --release -p camus-sim -- run --seeds {seed}..{}", seed + 1)
}

/// The line about a seed that failed: each name once, the first of its texts, and how to run it again.
pub fn line(run: &Run) -> String {
    let mut names: Vec<&str> = run.failures.iter().map(|failure| failure.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let first = run.failures.first().map_or("", |failure| failure.text.as_str());
    format!("seed {}: {}: {first}; {}", run.seed, names.join(", "), replay(run.seed))
}

/// Runs all seeds on so many threads, and hands each run to `each` on this one, as they end.
pub fn run_all(seeds: Range<u64>, time: Duration, jobs: usize, mut each: impl FnMut(Run)) {
    let next = AtomicU64::new(seeds.start);
    let (done, runs) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (done, next) = (done.clone(), &next);
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || done.send(run_caught(seed, time)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        runs.iter().for_each(&mut each);
    });
}
