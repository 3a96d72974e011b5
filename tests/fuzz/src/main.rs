//! `camus-fuzz run`: the fuzz targets on the stable toolchain, for a bounded time, from one seed. `replay`: one input
//! again. `seeds`: what libFuzzer begins with. `list`: the targets.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line")]
#![allow(clippy::disallowed_methods, reason = "a run has an end in real time, and an input that hangs is found by it")]

mod planted;
mod runner;

use camus_fuzz::inputs::Inputs;
use camus_fuzz::{MIB, TARGETS, Target};
use runner::{Finding, Plan, Progress, Verdict};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
camus-fuzz run [--seconds 60] [--target NAME] [--seed 1] [--input-seconds 10] [--findings target/fuzz-findings]
camus-fuzz replay TARGET FILE     one input; ends as the target does
camus-fuzz seeds DIR              writes DIR/TARGET/*: the corpus, and what is made of each kind
camus-fuzz list                   the targets";
/// `worker` is what `run` starts.
const OPTIONS: &[&str] = &["seconds", "target", "seed", "input-seconds", "findings", "ms", "progress"];
/// Of what is made, for a fuzzer to begin with.
const SEEDS_MAX: u64 = 512;

fn main() -> ExitCode {
    match command(std::env::args().skip(1)) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

struct Args {
    words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Args {
    fn read(mut from: impl Iterator<Item = String>) -> Result<Args, String> {
        let (mut words, mut options) = (Vec::new(), BTreeMap::new());
        while let Some(arg) = from.next() {
            let Some(name) = arg.strip_prefix("--") else {
                words.push(arg);
                continue;
            };
            if !OPTIONS.contains(&name) {
                return Err(format!("there is no option --{name}"));
            }
            let value = from.next().ok_or_else(|| format!("--{name} needs a value"))?;
            options.insert(name.to_owned(), value);
        }
        Ok(Args { words, options })
    }

    fn number(&self, name: &str, usual: u64) -> Result<u64, String> {
        let Some(text) = self.options.get(name) else { return Ok(usual) };
        text.parse().map_err(|_| format!("--{name} {text}: not a number"))
    }

    fn path(&self, name: &str, usual: &str) -> PathBuf {
        self.options.get(name).map_or_else(|| PathBuf::from(usual), PathBuf::from)
    }
}

fn target(name: &str) -> Result<&'static Target, String> {
    let mut all = TARGETS.iter().chain(planted::TARGETS);
    all.find(|target| target.name == name).ok_or_else(|| format!("there is no target '{name}'"))
}

fn command(from: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let args = Args::read(from)?;
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    match words[..] {
        ["run"] => run(&args),
        ["replay", name, file] => replay(target(name)?, Path::new(file)),
        ["seeds", folder] => seeds(Path::new(folder)),
        ["list"] => {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            Ok(ExitCode::SUCCESS)
        }
        ["worker", name] => {
            let time = Duration::from_millis(args.number("ms", 0)?);
            let progress = args.path("progress", "");
            let done = runner::work(target(name)?, args.number("seed", 1)?, time, &progress);
            done.map(|()| ExitCode::SUCCESS).map_err(|fault| format!("the worker of {name}: {fault}"))
        }
        _ => Err("what is to be done?".to_owned()),
    }
}

fn run(args: &Args) -> Result<ExitCode, String> {
    let targets = match args.options.get("target") {
        Some(name) => vec![target(name)?],
        None => TARGETS.iter().collect(),
    };
    let plan = Plan {
        seed: args.number("seed", 1)?,
        input_time: Duration::from_secs(args.number("input-seconds", 10)?),
        findings: args.path("findings", "target/fuzz-findings"),
    };
    let time_ms = args.number("seconds", 60)?.saturating_mul(1000);
    let shares: u64 = targets.iter().map(|target| target.share).sum();
    let mut found = 0;
    for target in &targets {
        let time = Duration::from_millis(time_ms / shares * target.share);
        let verdict = runner::run(target, &plan, time).map_err(|fault| format!("{}: {fault}", target.name))?;
        match verdict {
            Verdict::Fine(progress) => println!("{}", fine(target, &progress)),
            Verdict::Found(finding) => {
                found += 1;
                println!("{}", told(target, &plan, &finding));
            }
        }
    }
    println!("camus-fuzz: {} of {} targets found something, seed {}", found, targets.len(), plan.seed);
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fine(target: &Target, progress: &Progress) -> String {
    let Progress { begun, peak, peak_max, peak_input } = *progress;
    format!(
        "{:<12} {begun:>9} inputs, nothing found; nearest to its bound of memory: {peak} bytes of {peak_max}, for an \
         input of {peak_input}",
        target.name
    )
}

fn told(target: &Target, plan: &Plan, finding: &Finding) -> String {
    let Finding { number, how, kept } = finding;
    let name = target.name;
    let Some(number) = number else { return format!("!! {name}: {how}, before its first input") };
    let (seed, kept) = (plan.seed, kept.display());
    format!(
        "!! {name}: {how}\n   input    number {number} of seed {seed}, kept in {kept}\n   \
         again    cargo run -p camus-fuzz -- replay {name} {kept}\n   \
         and all  cargo run -p camus-fuzz -- run --target {name} --seed {seed}"
    )
}

/// In this process: a debugger may be behind it.
fn replay(target: &Target, file: &Path) -> Result<ExitCode, String> {
    let input = std::fs::read(file).map_err(|fault| format!("{}: {fault}", file.display()))?;
    runner::limit().map_err(|fault| format!("the limits of this process can not be set: {fault}"))?;
    (target.fuzz)(&[]);
    let (peak, max) = runner::judge(target, &input);
    println!("{}: nothing found, {peak} bytes of memory of {max} ({} MiB)", target.name, max / MIB as u64);
    Ok(ExitCode::SUCCESS)
}

fn seeds(folder: &Path) -> Result<ExitCode, String> {
    for target in TARGETS {
        let folder = folder.join(target.name);
        let inputs = Inputs::new(target, 1);
        let count = inputs.whole().min(SEEDS_MAX);
        let write = |n: u64| std::fs::write(folder.join(format!("seed-{n}")), inputs.nth(n));
        let done = std::fs::create_dir_all(&folder).and_then(|()| (0..count).try_for_each(write));
        done.map_err(|fault| format!("{}: {fault}", folder.display()))?;
        println!("{}: {count} seeds", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}
