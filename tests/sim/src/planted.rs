//! `camus-sim planted`: mistakes that production code could have (`engine/src/planted.rs`), one after the other, each
//! of which has to be found by the seeds that everything else is tested with, and under the right name.
//!
//! Nothing that ships can make these mistakes: they are behind a feature. A build without it makes one that has it,
//! lets that one run, and then runs the same seeds itself, which have to pass: so it was the mistake that was found.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what it finds is said as it is found")]
#![allow(clippy::disallowed_methods, reason = "how long it takes is measured in real time")]

use crate::scenario::{Mode, Setup};
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Behind this line of a page stands the table that `--markdown` writes.
pub const TABLE_BEGINS: &str = "<!-- made by: camus-sim planted --markdown -->";

const LONE: Setup = Setup { mode: Mode::Run, brokers: Some(1) };
const DAMAGE: Setup = Setup { mode: Mode::Damage, brokers: Some(1) };
const CLUSTER: Setup = Setup { mode: Mode::NoBudget, brokers: None };
const REPLICAS: Setup = Setup { mode: Mode::Replicas, brokers: None };
/// Kinds of seeds that find mistakes.
pub const SETUPS: [Setup; 4] = [LONE, DAMAGE, CLUSTER, REPLICAS];

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// These mistakes alone; all, where none is named.
    pub only: Vec<String>,
    /// Each mistake is found within these.
    pub seeds: Range<u64>,
    pub virtual_s: u64,
    pub jobs: usize,
    /// The page whose table is written anew.
    pub markdown: Option<PathBuf>,
}

impl Asked {
    fn time(&self) -> Duration {
        Duration::from_secs(self.virtual_s)
    }
}

/// Whether every mistake was found.
#[cfg(feature = "planted")]
pub fn run(asked: &Asked) -> bool {
    with_bugs::run(asked)
}

/// Whether every mistake was found by a build that can make them, and this one, which can not, passes the same seeds.
#[cfg(not(feature = "planted"))]
pub fn run(asked: &Asked) -> bool {
    without_bugs::run(asked)
}

/// A mistake that was found, as one line says it and another process reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caught {
    pub name: String,
    pub seed: u64,
    /// The command that runs such seeds.
    pub command: String,
    pub anomalies: String,
    pub seeds: u64,
}

impl Caught {
    pub fn line(&self) -> String {
        let Caught { name, seed, command, anomalies, seeds } = self;
        format!("{name}: caught by seed {seed} ({command}) as {anomalies} in {seeds} seeds")
    }

    pub fn parse(line: &str) -> Option<Caught> {
        let (name, rest) = line.split_once(": caught by seed ")?;
        let (seed, rest) = rest.split_once(" (")?;
        let (command, rest) = rest.split_once(") as ")?;
        let (anomalies, rest) = rest.rsplit_once(" in ")?;
        let seeds = rest.strip_suffix(" seeds")?;
        Some(Caught {
            name: name.to_owned(),
            seed: seed.parse().ok()?,
            command: command.to_owned(),
            anomalies: anomalies.to_owned(),
            seeds: seeds.parse().ok()?,
        })
    }
}

#[cfg(feature = "planted")]
pub mod with_bugs {
    use super::{Asked, CLUSTER, Caught, DAMAGE, LONE, REPLICAS, TABLE_BEGINS};
    use crate::page::write_table;
    use crate::runner::{command, names, run_caught, spread};
    use crate::scenario::{Run, Setup};
    use camus_engine::planted::{Bug, plant};
    use std::time::Instant;

    /// Where a mistake can be seen, and as what.
    pub struct Case {
        /// Kinds of seeds that come by the place. Each seed is run in all of these.
        pub setups: &'static [Setup],
        /// What is right to call it. Anything else is a miss.
        pub anomalies: &'static [&'static str],
    }

    const LOST: &[&str] = &[
        "acknowledged-lost",
        "read-and-lost",
        "inconsistent-offsets",
        "moved",
        "high-watermark-back",
        "committed-offset-back",
        "replicas-differ",
        "order",
    ];

    fn seen(setups: &'static [Setup], anomalies: &'static [&'static str]) -> Case {
        Case { setups, anomalies }
    }

    pub fn case(bug: Bug) -> Case {
        match bug {
            // Who has read what was committed, and not known to be, is beyond the end of the log behind the restart.
            Bug::ReuseOffset => {
                seen(&[LONE], &["offset-out-of-range", "read-and-lost", "inconsistent-offsets", "acknowledged-lost"])
            }
            Bug::AcknowledgeBeforeFlush
            | Bug::FlushCoversNeighbours
            | Bug::IgnoreShortWrite
            | Bug::RetryFailedFlush => {
                seen(&[LONE], &["acknowledged-lost", "read-and-lost", "inconsistent-offsets", "moved", "start-refused"])
            }
            Bug::FlushWrongRange | Bug::SkipPreviousCrc => seen(&[LONE], &["start-refused", "acknowledged-lost"]),
            Bug::CountOwnWrite => seen(&[CLUSTER, REPLICAS], LOST),
            // A leader takes what was said to be there for there: who lacks it is told so, and ends itself.
            Bug::VoteAfterLostTail => seen(
                &[CLUSTER, REPLICAS],
                &["forgot", "panic", "acknowledged-lost", "read-and-lost", "replicas-differ", "two-leaders"],
            ),
            Bug::DamageAsTornTail => seen(&[DAMAGE], LOST),
            Bug::LeadBeforeOwnTerm => {
                seen(&[LONE, CLUSTER], &["panic", "high-watermark-back", "unexpected-answer", "inconsistent-offsets"])
            }
            Bug::DropProducersAtSnapshot | Bug::ForgetInFlight => seen(&[LONE], &["duplicate", "order"]),
            Bug::ServePastHighWatermark => seen(&[LONE], &["read-above-high-watermark", "read-and-lost"]),
            Bug::ApplyTwice => seen(&[LONE], &["start-refused", "panic"]),
            Bug::WrongEpochEnd => seen(&[LONE, CLUSTER], &["epoch-end"]),
            Bug::LostWakeUp => seen(&[LONE], &["missed-wake-up"]),
            Bug::StaleRecycledBuffer => {
                seen(&[LONE], &["panic", "gap", "invented", "inconsistent-offsets", "unexpected-answer"])
            }
            Bug::DropGroupOffsetsAtSnapshot => seen(&[LONE], &["committed-offset-back"]),
            Bug::CoordinateUnproven => seen(&[CLUSTER], &["committed-offset-back"]),
            Bug::GiveBeforeGivenUp => seen(&[LONE, CLUSTER], &["owned-twice"]),
            Bug::CommitInAnyEpoch => seen(&[LONE, CLUSTER], &["fenced-commit"]),
        }
    }

    /// What came of one mistake.
    enum Outcome {
        Caught(Caught),
        /// A seed failed, but not as it should.
        Misnamed(Box<Run>),
        NotCaught,
    }

    pub fn run(asked: &Asked) -> bool {
        let names_of_all = Bug::ALL.map(Bug::name);
        if let Some(unknown) = asked.only.iter().find(|only| !names_of_all.contains(&only.as_str())) {
            eprintln!("there is no mistake {unknown}: there are {}", names_of_all.join(", "));
            return false;
        }
        let is_chosen = |bug: &Bug| asked.only.is_empty() || asked.only.iter().any(|only| only == bug.name());
        let chosen: Vec<Bug> = Bug::ALL.into_iter().filter(is_chosen).collect();
        let (begun, all) = (Instant::now(), chosen.len());
        let (mut caught, mut missed, mut rows) = (0u64, 0u64, String::new());
        for bug in chosen {
            plant(Some(bug));
            let outcome = first(bug, asked);
            plant(None);
            match outcome {
                Outcome::Caught(one) => {
                    caught += 1;
                    println!("{}", one.line());
                    rows += &row(bug, &one);
                }
                Outcome::Misnamed(run) => {
                    missed += 1;
                    let (as_what, first) = (names(&run.failures), &run.failures[0].text);
                    let (name, command, seed) = (bug.name(), command(run.setup), run.seed);
                    println!("{name}: NOT CAUGHT: seed {seed} ({command}) calls it {as_what}: {first}");
                }
                Outcome::NotCaught => {
                    missed += 1;
                    println!("{}: NOT CAUGHT in {} seeds", bug.name(), asked.seeds.end - asked.seeds.start);
                }
            }
            println!("  {} of {all} tried, {:.0} s", caught + missed, begun.elapsed().as_secs_f64());
        }
        let written = match &asked.markdown {
            Some(page) if missed == 0 => write_table(page, TABLE_BEGINS, &format!("{HEAD}{rows}")),
            Some(_) => Err("the table is not written: something was missed".to_owned()),
            None => Ok(()),
        };
        if let Err(why) = &written {
            eprintln!("{why}");
        }
        println!("{caught} caught, {missed} missed");
        missed == 0 && written.is_ok()
    }

    /// Who waits for a mistake to be found hears of it after so many seeds.
    const SAID_EVERY: u64 = 50;
    const HEAD: &str = "| mistake | what it does | caught as | by seed | seeds needed |\n|---|---|---|---|---|\n";

    fn row(bug: Bug, caught: &Caught) -> String {
        let Caught { name, seed, command, anomalies, seeds } = caught;
        format!("| `{name}` | {} | {anomalies} | {seed} (`{command}`) | {seeds} |\n", bug.what())
    }

    /// The first seed that fails, whatever it fails with. The same for any number of threads.
    fn first(bug: Bug, asked: &Asked) -> Outcome {
        let Case { setups, anomalies } = case(bug);
        let (each, jobs) = (setups.len() as u64, asked.jobs.max(1));
        let total = (asked.seeds.end - asked.seeds.start) * each;
        // Some at a time, and all of these are waited for.
        let at_once = 2 * jobs as u64;
        for from in (0..total).step_by(at_once as usize) {
            if from / each / SAID_EVERY > from.saturating_sub(at_once) / each / SAID_EVERY {
                println!("  {}: not yet in {} seeds", bug.name(), from / each);
            }
            let mut failed: Option<(u64, Run)> = None;
            let one = |n: u64| {
                let (setup, seed) = (setups[(n % each) as usize], asked.seeds.start + n / each);
                (n, run_caught(setup, seed, asked.time()))
            };
            spread(from..(from + at_once).min(total), jobs, one, |(n, run)| {
                let is_first = failed.as_ref().is_none_or(|(first, _)| n < *first);
                if !run.failures.is_empty() && is_first {
                    failed = Some((n, run));
                }
            });
            let Some((_, run)) = failed else { continue };
            if !run.failures.iter().any(|failure| anomalies.contains(&failure.name.as_str())) {
                return Outcome::Misnamed(Box::new(run));
            }
            return Outcome::Caught(Caught {
                name: bug.name().to_owned(),
                seed: run.seed,
                command: command(run.setup),
                anomalies: names(&run.failures),
                seeds: run.seed - asked.seeds.start + 1,
            });
        }
        Outcome::NotCaught
    }
}

#[cfg(not(feature = "planted"))]
mod without_bugs {
    use super::{Asked, Caught, SETUPS};
    use crate::runner::{command, line, run_all};
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    pub fn run(asked: &Asked) -> bool {
        let begun = Instant::now();
        let Some((found, caught, last)) = child(asked) else { return false };
        let passed = control(asked, &caught);
        println!("{:.0} s with the build, {} threads", begun.elapsed().as_secs_f64(), asked.jobs.max(1));
        if !last.is_empty() {
            println!("{last}");
        }
        found && passed
    }

    /// Builds and runs a `camus-sim` that has the mistakes. Whether it found all, what it found, and its last line.
    fn child(asked: &Asked) -> Option<(bool, Vec<Caught>, String)> {
        let here = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| here.join("../../target"), PathBuf::from);
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Its own profile: a panic there is a failure of its seed, and not the end of the process.
        cargo.args(["run", "--locked", "--profile", "sim", "-p", "camus-sim", "--features", "planted"]);
        cargo.arg("--manifest-path").arg(here.join("Cargo.toml"));
        cargo.arg("--target-dir").arg(target.join("planted"));
        cargo.args(["--", "planted"]);
        cargo.arg("--seeds").arg(format!("{}..{}", asked.seeds.start, asked.seeds.end));
        cargo.arg("--virtual-s").arg(asked.virtual_s.to_string()).arg("--jobs").arg(asked.jobs.to_string());
        if !asked.only.is_empty() {
            cargo.arg("--only").arg(asked.only.join(","));
        }
        if let Some(page) = &asked.markdown {
            cargo.arg("--markdown").arg(page);
        }
        println!("this build can not make the mistakes; one that can is built beside it, and run:");
        println!("  cargo run --profile sim -p camus-sim --features planted -- planted");
        let mut running = match cargo.stdout(Stdio::piped()).spawn() {
            Ok(running) => running,
            Err(error) => {
                eprintln!("cargo does not run: {error}");
                return None;
            }
        };
        let (mut caught, mut last) = (Vec::new(), String::new());
        for line in BufReader::new(running.stdout.take().expect("it was asked for")).lines().map_while(Result::ok) {
            if line.ends_with(" missed") {
                last = line;
                continue;
            }
            println!("{line}");
            caught.extend(Caught::parse(&line));
        }
        let status = running.wait();
        Some((status.is_ok_and(|status| status.success()), caught, last))
    }

    /// Runs the same seeds without a mistake: each up to the last that one was needed for.
    fn control(asked: &Asked, caught: &[Caught]) -> bool {
        let (mut passed, mut failed) = (0u64, 0u64);
        for setup in SETUPS {
            let of_setup = caught.iter().filter(|one| one.command == command(setup));
            let Some(last) = of_setup.map(|one| one.seed).max() else { continue };
            run_all(setup, asked.seeds.start..last + 1, asked.time(), asked.jobs.max(1), |run| {
                if run.failures.is_empty() {
                    passed += 1;
                } else {
                    failed += 1;
                    println!("without a mistake {}", line(&run));
                }
            });
        }
        println!("without the mistakes the same seeds: {passed} passed, {failed} failed");
        failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: the seeds that are run again without a mistake are not those that found one.
    #[test]
    fn what_one_process_says_another_reads() {
        let caught = Caught {
            name: "reuse-offset".to_owned(),
            seed: 17,
            command: "run".to_owned(),
            anomalies: "acknowledged-lost, moved".to_owned(),
            seeds: 18,
        };
        assert_eq!(Caught::parse(&caught.line()), Some(caught));
        assert_eq!(Caught::parse("reuse-offset: NOT CAUGHT in 500 seeds"), None);
    }
}
