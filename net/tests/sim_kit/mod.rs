//! A lone broker of `camus-sim`'s, as tests of single promises want it, with clients that ask one thing after the
//! other.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod history;
pub mod wire;

use camus_engine::io::sim::Crash;
use camus_engine::rt::sim::SimCoreId;
use camus_engine::stats::CoreStats;
pub use camus_sim::kit::Shape;
use camus_sim::kit::{Cluster, PATIENCE, Said, Wrap};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::time::Duration;

/// The seeds of a test: `CAMUS_TEST_SEED` alone, if it is set.
pub fn seeds(default: Range<u64>) -> Range<u64> {
    match std::env::var("CAMUS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => default,
    }
}

/// Says which seed failed when the test does.
pub struct Seed(pub u64);

#[allow(clippy::print_stderr, reason = "for whoever looks at a failed test")]
impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: run it alone with CAMUS_TEST_SEED={0}", self.0);
        }
    }
}

/// The one broker of a cluster.
pub struct SimBroker(Cluster);

impl Deref for SimBroker {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        &self.0
    }
}

impl DerefMut for SimBroker {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.0
    }
}

impl SimBroker {
    /// A new broker that listens.
    pub fn new(seed: u64, shape: Shape) -> SimBroker {
        SimBroker(Cluster::new(seed, shape))
    }

    /// With something around each core's node.
    pub fn wrapped(seed: u64, shape: Shape, wrap: Wrap) -> SimBroker {
        SimBroker(Cluster::wrapped(seed, shape, wrap))
    }

    /// Starts all cores on what their disks hold.
    pub fn begin(&mut self) {
        self.0.begin(0).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Starts, and waits until clients are let in.
    pub fn start(&mut self) {
        self.begin();
        assert!(self.comes_up(), "it does not listen");
    }

    pub fn crash_somehow(&mut self) {
        let crash = if self.chance(50) { Crash::Process } else { Crash::Power };
        self.0.crash(0, crash);
    }

    /// As a signal would: what runs is finished, within the time that a broker gives itself.
    pub fn stop(&mut self) {
        self.0.ask_to_stop(0);
    }

    /// Waits for the end of all cores.
    pub fn has_stopped(&mut self) -> bool {
        let cores = self.cores().to_vec();
        self.world.run_until(PATIENCE, |world| cores.iter().all(|core| !world.is_running(*core)))
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    pub fn cores(&self) -> &[SimCoreId] {
        &self.brokers[0].cores
    }

    pub fn said(&self) -> &RefCell<Said> {
        &self.brokers[0].said
    }

    pub fn stats(&self) -> &[Arc<CoreStats>] {
        &self.brokers[0].stats
    }
}
