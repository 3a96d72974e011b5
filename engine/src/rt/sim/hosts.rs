//! The machines of a simulated world: what their clocks say, and what the ways between them do to what is sent.
//!
//! A way is one direction between two machines. TCP is what is simulated, so nothing is lost for good or out of order
//! on a connection that lives: what a packet filter drops is sent again, and comes when it may. What is not sent again
//! is a reset: who loses one goes on with half a connection until it sends something.

use crate::types::Mono;
use std::net::IpAddr;
use std::time::Duration;

/// A machine. [`HostId::CLIENTS`] is there from the beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostId(pub usize);

impl HostId {
    /// Where clients are, and every core that nobody placed.
    pub const CLIENTS: HostId = HostId(0);
}

/// Drift is at most this, parts per million: 5 %.
pub const DRIFT_PPM_MAX: i64 = 50_000;
const MILLION: i64 = 1_000_000;

/// What a machine's clocks say at a moment of the world.
///
/// Monotonic time never goes back, whatever is set here: only its rate changes, and that from now on.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostClock {
    /// The rate holds since this moment of the world, at which monotonic time was `told`.
    since: Mono,
    told: Mono,
    ppm: i64,
    /// Monotonic time when the world began.
    uptime: Duration,
    wall_offset_ms: i64,
}

impl HostClock {
    pub fn new() -> HostClock {
        HostClock { since: Mono(0), told: Mono(0), ppm: 0, uptime: Duration::ZERO, wall_offset_ms: 0 }
    }

    /// It has been up for so long when the world begins.
    pub fn set_uptime(&mut self, uptime: Duration) {
        assert_eq!((self.since, self.ppm, self.uptime), (Mono(0), 0, Duration::ZERO), "set once, before its drift");
        (self.told, self.uptime) = (Mono(0) + uptime, uptime);
    }

    pub fn set_drift(&mut self, now: Mono, ppm: i64) {
        assert!((-DRIFT_PPM_MAX..=DRIFT_PPM_MAX).contains(&ppm), "a drift of {ppm} ppm");
        (self.told, self.since, self.ppm) = (self.mono(now), now, ppm);
    }

    pub fn jump_wall(&mut self, ms: i64) {
        self.wall_offset_ms += ms;
    }

    fn rate(&self) -> u128 {
        u128::try_from(MILLION + self.ppm).expect("a clock does not go back")
    }

    pub fn mono(&self, now: Mono) -> Mono {
        let passed = now.since(self.since);
        if self.ppm == 0 {
            return self.told + passed;
        }
        self.told + Duration::from_nanos(scaled(passed, self.rate()))
    }

    /// The first moment of the world at which monotonic time is `at`, or later.
    pub fn moment_of(&self, at: Mono) -> Mono {
        let left = at.since(self.told).as_nanos() * MILLION as u128;
        let left = left.div_ceil(self.rate());
        self.since + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Ms since the world began, as this machine sees it.
    pub fn wall_ms(&self, now: Mono) -> i64 {
        let passed = self.mono(now).since(Mono(0) + self.uptime);
        self.wall_offset_ms + i64::try_from(passed.as_millis()).expect("a world lasts less than that")
    }
}

/// At this rate, ns. What is short enough is divided in 64 bits: cores look at their clocks all the time, and a wide
/// division takes longer than all else that there is to it.
fn scaled(passed: Duration, rate: u128) -> u64 {
    let narrow = u64::try_from(passed.as_nanos()).ok().and_then(|ns| ns.checked_mul(u64::try_from(rate).ok()?));
    match narrow {
        Some(product) => product / MILLION as u64,
        None => u64::try_from(passed.as_nanos() * rate / MILLION as u128).unwrap_or(u64::MAX),
    }
}

/// One machine.
pub(super) struct Host {
    /// Connections to it are to this address.
    pub ip: Option<IpAddr>,
    pub clock: HostClock,
}

/// What becomes of new connections.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Connects {
    #[default]
    Work,
    /// Answered with a reset, whoever listens.
    Refused,
    /// Not answered, until they work again.
    Hang,
}

/// What one direction between two machines does to what is sent over it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Path {
    /// Beside what a way takes at any rate.
    pub delay: Duration,
    /// Up to so much more, drawn for each piece.
    pub jitter: Duration,
    /// So many pieces in a hundred are lost and sent again after [`RESEND_AFTER`]; what follows waits for them.
    pub loss_percent: u64,
    /// Everything stops on the way and comes later.
    pub is_clogged: bool,
    /// Nothing gets through. What is sent again until it does comes later; resets do not.
    pub is_cut: bool,
    pub connects: Connects,
}

/// Before a sender that hears nothing sends again.
pub const RESEND_AFTER: Duration = Duration::from_millis(200);

impl Path {
    pub fn clogged() -> Path {
        Path { is_clogged: true, ..Path::default() }
    }

    pub fn cut() -> Path {
        Path { is_cut: true, ..Path::default() }
    }

    pub fn is_open(&self) -> bool {
        !self.is_clogged && !self.is_cut
    }

    /// For the trace.
    pub(super) fn words(&self) -> [u64; 4] {
        let flags = u64::from(self.is_clogged) | u64::from(self.is_cut) << 1 | (self.connects as u64) << 2;
        [self.delay.as_nanos() as u64, self.jitter.as_nanos() as u64, self.loss_percent, flags]
    }
}

/// The ways between all machines; as usual where nothing is set.
#[derive(Default)]
pub(super) struct Paths {
    /// By the machine from which, and to which; short where nothing is set.
    set: Vec<Vec<Path>>,
}

impl Paths {
    pub fn get(&self, from: usize, to: usize) -> Path {
        self.set.get(from).and_then(|paths| paths.get(to)).copied().unwrap_or_default()
    }

    pub fn set(&mut self, from: usize, to: usize, path: Path) {
        if self.set.len() <= from {
            self.set.resize(from + 1, vec![]);
        }
        let paths = &mut self.set[from];
        if paths.len() <= to {
            paths.resize(to + 1, Path::default());
        }
        paths[to] = path;
    }
}
