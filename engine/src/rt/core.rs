//! One core: its thread, its pinning, the shell it runs under.

#[cfg(feature = "shell-glommio")]
use super::glommio::GlommioShell;
use super::{Bell, Driver, Waker, machine, poll, uring};
use crate::io::DurableMethod;
use crate::io::buf::PoolRegions;
use crate::limits;
use crate::stats::CoreStats;
use crate::types::CoreId;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

/// What moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShellKind {
    /// One io_uring ring a core.
    Uring,
    /// epoll for the network, helper threads for the disk.
    Poll,
    /// glommio for the network, a ring of our own for the disk. In builds with the feature `shell-glommio`.
    Glommio,
}

/// What the operator asked for (`--io`, `--shell`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoChoice {
    /// io_uring; where it is not available, epoll, saying so.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll and blocking disk calls.
    Blocking,
    /// glommio or nothing; [`RtError::NotBuilt`] where it is not built in.
    Glommio,
}

/// Everything a shell needs to know of its core.
#[derive(Clone)]
pub struct CoreConfig {
    pub core: CoreId,
    /// The CPU to stay on, as the system counts them.
    pub pin: Option<usize>,
    /// The directory of the core's WAL files. It exists.
    pub wal_dir: PathBuf,
    /// Accepted connections at a time. Beyond it a new one waits in the kernel or is closed at once.
    pub conns_max: usize,
    /// The chunks of the core's pool, to be registered as they are used ([`crate::io::buf::ChunkPool::regions`]).
    pub regions: Option<PoolRegions>,
    /// How writes are made durable under io_uring; `None`: found by [`crate::io::uring::probe`].
    pub durable: Option<DurableMethod>,
    pub bell: Bell,
    pub stats: Arc<CoreStats>,
    pub tuning: Tuning,
}

/// Sizes that a test makes smaller to reach their ends.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    pub ring_entries: u32,
    pub ring_completions: u32,
    /// A power of two.
    pub recv_buffers: u16,
    pub recv_buffer_bytes: usize,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            ring_entries: limits::RING_ENTRIES,
            ring_completions: limits::RING_COMPLETIONS,
            recv_buffers: limits::RECV_BUFFERS,
            recv_buffer_bytes: limits::RECV_BUFFER_BYTES,
        }
    }
}

impl CoreConfig {
    /// Not pinned, default bounds, nothing registered.
    pub fn new(core: CoreId, wal_dir: PathBuf, bell: Bell) -> CoreConfig {
        CoreConfig {
            core,
            pin: None,
            wal_dir,
            conns_max: limits::CONNS_PER_CORE_DEFAULT,
            regions: None,
            durable: None,
            bell,
            stats: Arc::default(),
            tuning: Tuning::default(),
        }
    }
}

/// io_uring can not be used here: another shell can.
#[derive(Debug, thiserror::Error)]
#[error("io_uring is not available: {what} failed with {error}")]
pub struct RtUnavailable {
    pub what: &'static str,
    pub error: io::Error,
}

/// Why a core did not start, or ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RtError {
    /// Forbidden (seccomp, `kernel.io_uring_disabled`), not built in, or too old a kernel (6.1 is the floor).
    #[error(transparent)]
    Unavailable(#[from] RtUnavailable),
    /// Memory for a ring could not be had, also after waiting: RLIMIT_MEMLOCK is too low, or the memory is gone.
    #[error("no memory for {what} (limit for locked memory: {memlock_bytes} bytes): {error}")]
    NoMemory { what: &'static str, memlock_bytes: u64, error: io::Error },
    #[error("this build has no shell on glommio: it needs the cargo feature shell-glommio")]
    NotBuilt,
    #[error("{what}: {error}")]
    Setup { what: String, error: io::Error },
    /// The loop's own system call failed. What was in flight is unknown: the process has to end.
    #[error("the loop of core {core} failed: {what}: {error}")]
    Loop { core: CoreId, what: &'static str, error: io::Error },
    #[error("the thread of core {core} panicked")]
    Panicked { core: CoreId },
}

enum Shell {
    Uring(uring::UringShell),
    Poll(poll::PollShell),
    #[cfg(feature = "shell-glommio")]
    Glommio(GlommioShell),
}

impl Shell {
    fn build(choice: IoChoice, config: &CoreConfig) -> Result<Shell, RtError> {
        let uring = || uring::UringShell::new(config).map(Shell::Uring);
        let poll = || poll::PollShell::new(config).map(Shell::Poll);
        match choice {
            IoChoice::Uring => uring(),
            IoChoice::Blocking => poll(),
            #[cfg(feature = "shell-glommio")]
            IoChoice::Glommio => GlommioShell::new(config).map(Shell::Glommio),
            #[cfg(not(feature = "shell-glommio"))]
            IoChoice::Glommio => Err(RtError::NotBuilt),
            IoChoice::Auto => match uring() {
                Err(reason @ (RtError::Unavailable(_) | RtError::NoMemory { .. })) => {
                    tracing::warn!(core = %config.core, %reason, "going on with epoll and blocking disk calls: slower");
                    poll()
                }
                built => built,
            },
        }
    }

    fn kind(&self) -> ShellKind {
        match self {
            Shell::Uring(_) => ShellKind::Uring,
            Shell::Poll(_) => ShellKind::Poll,
            #[cfg(feature = "shell-glommio")]
            Shell::Glommio(_) => ShellKind::Glommio,
        }
    }

    fn run<D: Driver>(self, driver: &mut D) -> Result<(), RtError> {
        match self {
            Shell::Uring(shell) => shell.run(driver),
            Shell::Poll(shell) => shell.run(driver),
            #[cfg(feature = "shell-glommio")]
            Shell::Glommio(shell) => shell.run(driver),
        }
    }
}

/// Runs a core on the calling thread until its driver stops it, and gives the driver back. `make` is called when the
/// shell is up, with the waker of this core; it may block (recovery).
pub fn run<D: Driver>(choice: IoChoice, config: &CoreConfig, make: impl FnOnce(Waker) -> D) -> Result<D, RtError> {
    let shell = Shell::build(choice, config)?;
    let mut driver = make(config.bell.waker());
    shell.run(&mut driver)?;
    Ok(driver)
}

/// A core that runs on a thread of its own.
#[derive(Debug)]
pub struct CoreHandle {
    pub core: CoreId,
    /// The shell that it came up under.
    pub kind: ShellKind,
    thread: thread::JoinHandle<Result<(), RtError>>,
}

impl CoreHandle {
    /// Waits until the core has ended.
    pub fn join(self) -> Result<(), RtError> {
        let core = self.core;
        self.thread.join().unwrap_or(Err(RtError::Panicked { core }))
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts a core: a thread of its own, named `core-N`, pinned if the configuration says so. Returns when its shell is
/// up, or with the reason why none is. `make` is called after that, on the new thread, and may block (recovery); what
/// it makes never leaves the thread.
pub fn spawn_core<D: Driver>(
    choice: IoChoice,
    config: CoreConfig,
    make: impl FnOnce(Waker) -> D + Send + 'static,
) -> Result<CoreHandle, RtError> {
    let core = config.core;
    machine::remember_cpus();
    let (up, is_up) = mpsc::sync_channel(1);
    let body = move || {
        if let Some(cpu) = config.pin
            && !core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
        {
            tracing::warn!(%core, cpu, "the thread could not be pinned; it runs wherever the system puts it");
        }
        let shell = match Shell::build(choice, &config) {
            Ok(shell) => shell,
            Err(error) => {
                // The caller waits for this; if it is gone, nobody wants to know.
                let _ = up.send(Err(error));
                return Ok(());
            }
        };
        let _ = up.send(Ok(shell.kind()));
        let mut driver = make(config.bell.waker());
        shell.run(&mut driver)
    };
    let setup = |error| RtError::Setup { what: format!("the thread of core {core}"), error };
    let thread = machine::spawn(format!("core-{core}"), body).map_err(setup)?;
    let kind = is_up.recv().map_err(|_| RtError::Panicked { core })??;
    Ok(CoreHandle { core, kind, thread })
}
