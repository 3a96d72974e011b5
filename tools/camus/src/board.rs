//! What the cores show to the housekeeping thread: how far each is, and what each counts. Nothing here decides
//! anything.

use crate::memory::Budgets;
use camus_engine::stats::CoreStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// How far a core is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Phase {
    /// Its thread does not run yet.
    Starting = 0,
    /// It reads its write-ahead log; the loop does not turn yet.
    Recovering = 1,
    /// The loop turns, but not all of its shards have a leader that serves.
    Electing = 2,
    /// All of its shards answer.
    Serving = 3,
    /// It finishes what is in flight.
    Stopping = 4,
    /// Its thread has ended.
    Ended = 5,
}

/// Whether a core's write-ahead log can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DiskState {
    Writable = 0,
    /// Full, or at camus.wal.disk.limit: produce is refused with a retriable error, fetch goes on.
    NoSpace = 1,
    /// A write or a flush failed: the process is about to end.
    Failed = 2,
}

/// What one core shows. Written by the core's thread.
#[derive(Debug)]
pub struct CoreBoard {
    pub stats: Arc<CoreStats>,
    phase: AtomicU8,
    disk: AtomicU8,
    disk_hangs: AtomicBool,
    leaderless: AtomicBool,
    /// It leads its shards: what it may still wait for is other cores.
    leads: AtomicBool,
}

impl CoreBoard {
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub fn phase(&self) -> Phase {
        const ALL: [Phase; 6] =
            [Phase::Starting, Phase::Recovering, Phase::Electing, Phase::Serving, Phase::Stopping, Phase::Ended];
        ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub fn set_leads(&self) {
        self.leads.store(true, Ordering::Release);
    }

    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    pub fn set_disk(&self, disk: DiskState) {
        self.disk.store(disk as u8, Ordering::Release);
    }

    /// The log waits for the disk and has for seconds.
    pub fn set_disk_hangs(&self, hangs: bool) {
        self.disk_hangs.store(hangs, Ordering::Release);
    }

    /// A shard has had no leader for seconds.
    pub fn set_leaderless(&self, is: bool) {
        self.leaderless.store(is, Ordering::Release);
    }

    pub fn disk(&self) -> DiskState {
        const ALL: [DiskState; 3] = [DiskState::Writable, DiskState::NoSpace, DiskState::Failed];
        ALL[usize::from(self.disk.load(Ordering::Acquire))]
    }
}

/// The whole broker's. Shared by the cores' threads, the housekeeping thread and the main thread.
#[derive(Debug)]
pub struct Board {
    pub cores: Vec<CoreBoard>,
    /// The budgets of each core.
    pub budgets: Budgets,
    stopping: AtomicBool,
}

/// Why the broker is not ready.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reason {
    pub core: Option<usize>,
    /// For programs: never changed, never used for something else.
    pub code: &'static str,
    /// For people.
    pub detail: &'static str,
}

impl Board {
    pub fn new(cores: usize, budgets: Budgets) -> Board {
        let core = || CoreBoard {
            stats: Arc::new(CoreStats::default()),
            phase: AtomicU8::new(Phase::Starting as u8),
            disk: AtomicU8::new(DiskState::Writable as u8),
            disk_hangs: AtomicBool::new(false),
            leaderless: AtomicBool::new(false),
            leads: AtomicBool::new(false),
        };
        Board { cores: (0..cores).map(|_| core()).collect(), budgets, stopping: AtomicBool::new(false) }
    }

    /// From now on the broker is not ready, so that nobody is sent to it any more.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Empty when the broker takes produce and fetch on every core.
    pub fn reasons(&self) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if self.stopping.load(Ordering::Acquire) {
            reasons.push(Reason { core: None, code: "stopping", detail: "the broker was asked to stop" });
        }
        for (number, core) in self.cores.iter().enumerate() {
            let mut because = |code, detail| reasons.push(Reason { core: Some(number), code, detail });
            match core.phase() {
                Phase::Starting => because("starting", "the core's thread does not run yet"),
                Phase::Recovering => because("recovering", "the core reads its write-ahead log"),
                Phase::Electing => because("no_leader", "not all shards of the core have a leader that serves"),
                Phase::Serving if core.leaderless.load(Ordering::Acquire) => {
                    because("no_leader", "a shard has had no leader for seconds: no majority of the brokers is there")
                }
                Phase::Serving => {}
                Phase::Stopping => because("core_stopping", "the core finishes what is in flight"),
                Phase::Ended => because("core_ended", "the core's thread has ended"),
            }
            match core.disk() {
                DiskState::Writable => {}
                DiskState::NoSpace => because("disk_full", "the write-ahead log has no room: produce is refused"),
                DiskState::Failed => because("disk_failed", "a write or a flush of the write-ahead log failed"),
            }
            if core.disk_hangs.load(Ordering::Acquire) {
                because("disk_hangs", "the disk has not ended a write or a flush of the log for seconds");
            }
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, clients are sent to a broker that refuses them.
    #[test]
    fn a_broker_is_ready_when_every_core_serves_and_can_write() {
        let board = Board::new(2, Budgets::of_core(1 << 30, 2));
        let codes = |board: &Board| board.reasons().iter().map(|r| (r.core, r.code)).collect::<Vec<_>>();
        assert_eq!(codes(&board), [(Some(0), "starting"), (Some(1), "starting")]);
        board.cores[0].set_phase(Phase::Serving);
        board.cores[1].set_phase(Phase::Recovering);
        assert_eq!(codes(&board), [(Some(1), "recovering")]);
        board.cores[1].set_phase(Phase::Serving);
        assert_eq!(codes(&board), []);
        board.cores[0].set_disk(DiskState::NoSpace);
        assert_eq!(codes(&board), [(Some(0), "disk_full")]);
        board.cores[0].set_disk(DiskState::Writable);
        assert_eq!(codes(&board), [], "it heals by itself");
        board.cores[1].set_disk_hangs(true);
        assert_eq!(codes(&board), [(Some(1), "disk_hangs")]);
        board.cores[1].set_disk_hangs(false);
        board.cores[0].set_leaderless(true);
        assert_eq!(codes(&board), [(Some(0), "no_leader")], "a broker that has lost its majority");
        board.cores[0].set_leaderless(false);
        assert_eq!(codes(&board), []);
        board.set_stopping();
        assert_eq!(codes(&board), [(None, "stopping")]);
    }

    #[test]
    fn each_phase_and_disk_state_is_read_as_it_was_written() {
        let board = Board::new(1, Budgets::of_core(1 << 30, 1));
        let core = &board.cores[0];
        for phase in
            [Phase::Starting, Phase::Recovering, Phase::Electing, Phase::Serving, Phase::Stopping, Phase::Ended]
        {
            core.set_phase(phase);
            assert_eq!(core.phase(), phase);
        }
        for disk in [DiskState::Writable, DiskState::NoSpace, DiskState::Failed] {
            core.set_disk(disk);
            assert_eq!(core.disk(), disk);
        }
    }
}
