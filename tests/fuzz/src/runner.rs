//! One target, in a process of its own that may die: whoever watches it knows which input it was.
//!
//! The worker goes through the inputs and writes into a file, before each, its number. It ends itself by a panic, or is
//! ended by the system (out of memory, out of stack); one that stays at an input is killed. In each case the number is
//! in the file, and the input is made again from it.

use camus_fuzz::inputs::Inputs;
use camus_fuzz::{MIB, Target};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// What a worker may have of memory for data, whoever asks for it: our code, or C behind it (zstd).
pub const DATA_BYTES_MAX: u64 = 256 * MIB as u64;
/// How often it is looked where a worker is.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub struct Plan {
    pub seed: u64,
    /// An input that takes longer hangs.
    pub input_time: Duration,
    /// The folder where inputs are kept that found something.
    pub findings: PathBuf,
}

/// Where a worker is, and the input that came nearest to its bound of memory so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Inputs, the one that it is at included.
    pub begun: u64,
    pub peak: u64,
    pub peak_max: u64,
    pub peak_input: u64,
}

const PROGRESS_BYTES: usize = 32;

impl Progress {
    fn bytes(&self) -> [u8; PROGRESS_BYTES] {
        let mut bytes = [0; PROGRESS_BYTES];
        let fields = [self.begun, self.peak, self.peak_max, self.peak_input];
        for (to, field) in bytes.chunks_exact_mut(8).zip(fields) {
            to.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; PROGRESS_BYTES]) -> Progress {
        let mut fields = [0; 4];
        for (field, from) in fields.iter_mut().zip(bytes.chunks_exact(8)) {
            *field = u64::from_le_bytes(from.try_into().expect("a chunk has eight bytes"));
        }
        let [begun, peak, peak_max, peak_input] = fields;
        Progress { begun, peak, peak_max, peak_input }
    }

    fn took(&mut self, peak: u64, max: u64, input: usize) {
        let share = |peak: u64, max: u64| peak as f64 / max.max(1) as f64;
        if share(peak, max) > share(self.peak, self.peak_max) {
            (self.peak, self.peak_max, self.peak_input) = (peak, max, input as u64);
        }
    }
}

pub enum Verdict {
    Fine(Progress),
    Found(Finding),
}

pub struct Finding {
    /// Of the input. `None`: there was none yet.
    pub number: Option<u64>,
    pub how: String,
    /// The file with the input.
    pub kept: PathBuf,
}

/// Runs a worker to its end, and looks that it goes on.
pub fn run(target: &Target, plan: &Plan, time: Duration) -> io::Result<Verdict> {
    let name = target.name;
    std::fs::create_dir_all(&plan.findings)?;
    let path = plan.findings.join(format!(".progress-{name}-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    file.write_all_at(&Progress::default().bytes(), 0)?;
    let worker = Command::new(std::env::current_exe()?)
        .args(["worker", name, "--seed", &plan.seed.to_string(), "--ms", &time.as_millis().to_string(), "--progress"])
        .arg(&path)
        .spawn();
    let ended = worker.and_then(|mut worker| watch(&mut worker, &file, plan.input_time));
    let progress = read(&file)?;
    std::fs::remove_file(&path)?;
    let how = match ended? {
        Ended::Itself(status) if status.success() => return Ok(Verdict::Fine(progress)),
        Ended::Itself(status) if status.code().is_some() => format!("a panic ({status}; it is told above)"),
        Ended::Itself(status) => format!("ended by the system, perhaps for want of memory or stack ({status})"),
        Ended::Stuck => format!("an input takes longer than {:?}", plan.input_time),
    };
    let number = progress.begun.checked_sub(1);
    let kept = plan.findings.join(format!("{name}-{}-{}", plan.seed, number.unwrap_or(0)));
    if let Some(number) = number {
        std::fs::write(&kept, Inputs::new(target, plan.seed).nth(number))?;
    }
    Ok(Verdict::Found(Finding { number, how, kept }))
}

enum Ended {
    Itself(ExitStatus),
    /// And was killed.
    Stuck,
}

fn watch(worker: &mut Child, file: &File, input_time: Duration) -> io::Result<Ended> {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = worker.try_wait()? {
            return Ok(Ended::Itself(status));
        }
        let begun = read(file)?.begun;
        if begun != seen {
            (seen, since) = (begun, Instant::now());
        } else if since.elapsed() > input_time {
            // Should it have ended just now, it ended late.
            worker.kill()?;
            worker.wait()?;
            return Ok(Ended::Stuck);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn read(file: &File) -> io::Result<Progress> {
    let mut bytes = [0; PROGRESS_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Progress::of(&bytes))
}

/// The worker: all inputs that a run has at any rate, and then as many as there is time for.
pub fn work(target: &Target, seed: u64, time: Duration, progress: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(progress)?;
    limit()?;
    let inputs = Inputs::new(target, seed);
    let (whole, began) = (inputs.whole(), Instant::now());
    // What a target makes once is no input's.
    (target.fuzz)(&[]);
    let mut progress = Progress::default();
    while progress.begun < whole || began.elapsed() < time {
        let input = inputs.nth(progress.begun);
        progress.begun += 1;
        file.write_all_at(&progress.bytes(), 0)?;
        let (peak, max) = judge(target, &input);
        progress.took(peak, max, input.len());
    }
    file.write_all_at(&progress.bytes(), 0)
}

/// Sets the limits of this process: its memory, and that it leaves no image of it behind.
pub fn limit() -> io::Result<()> {
    let at_most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, at_most(DATA_BYTES_MAX))?;
    setrlimit(Resource::Core, at_most(0))?;
    Ok(())
}

/// Gives an input to the target; what it held of the heap at most, and what it may.
///
/// # Panics
/// If the target does, or if it held more.
pub fn judge(target: &Target, input: &[u8]) -> (u64, u64) {
    let took = allocation_counter::measure(|| (target.fuzz)(input));
    let (peak, max) = (took.bytes_max, (target.heap_bytes_max)(input) as u64);
    let bytes = input.len();
    assert!(peak <= max, "{}: an input of {bytes} bytes took {peak} bytes of memory, {max} are allowed", target.name);
    (peak, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a finding is said of another input.
    #[test]
    fn progress_is_read_as_it_was_written() {
        let progress = Progress { begun: 1, peak: u64::MAX, peak_max: 3, peak_input: 1 << 40 };
        assert_eq!(Progress::of(&progress.bytes()), progress);
    }

    #[test]
    fn the_input_nearest_to_its_bound_is_remembered() {
        let mut progress = Progress::default();
        for (peak, max, input) in [(10, 100, 1), (30, 200, 2), (40, 500, 3)] {
            progress.took(peak, max, input);
        }
        assert_eq!((progress.peak, progress.peak_max, progress.peak_input), (30, 200, 2));
    }
}
