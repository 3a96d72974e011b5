//! The loop of one core, and what a core may ask of it.
//!
//! A [`Driver`] decides, a shell moves bytes. One turn: the shell waits for completions, feeds each to
//! [`Driver::event`] in the order in which it got them, calls [`Driver::turn_end`], and submits everything at once. So
//! the order of work in production is the order in the simulator.
//!
//! Every operation ends in exactly one completion; a buffer is the kernel's until its last one. No type of a shell is
//! seen outside its file.
//!
//! To run the cores of a broker: make a [`Bell`] and a [`crate::io::buf::ChunkPool`] for each, give every core's
//! [`mesh::Port`] the wakers of all, then [`spawn_core`] each. The driver is made on the core's own thread, after the
//! shell is up.
//!
//! Files: `uring.rs` the default shell (one io_uring ring a core); `poll.rs` epoll and helper threads for the disk,
//! where io_uring is forbidden; `glommio.rs` a third, behind the feature `shell-glommio`; `real.rs` what these share;
//! `sim.rs` one thread, virtual time, seeded; `core.rs` threads, pinning, the choice of a shell; `mesh.rs` the bounded
//! lanes between cores; `wake.rs` how a foreign thread reaches a loop; `slots.rs` connection ids; `outgoing.rs` what is
//! being sent; `machine.rs` clock, chance and sockets of this machine; `rng.rs` chance from a seed.

use crate::io::{Disk, DiskDone};
use crate::types::{Mono, WallMs};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::net::SocketAddr;

mod core;
#[cfg(feature = "shell-glommio")]
mod glommio;
mod machine;
pub mod mesh;
mod outgoing;
mod poll;
mod real;
pub mod rng;
pub mod sim;
mod slots;
mod uring;
pub mod wake;
pub use self::core::{CoreConfig, CoreHandle, IoChoice, RtError, RtUnavailable, ShellKind, Tuning, run, spawn_core};
pub use machine::raise_descriptor_limit;
pub(crate) use machine::{memlock_bytes, spawn_helper};
pub use wake::{Bell, Waker};

/// A connection. `slot` is dense and used again; `generation` tells its users apart, so that a late completion can not
/// meet a new owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId {
    pub slot: u32,
    pub generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u16);

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The driver closed it.
    Asked,
    /// The peer closed its side (FIN).
    Peer,
    /// Reset, timed out, unreachable: the errno.
    Error(i32),
}

/// What happened. The driver sees each once.
pub enum Event<'a> {
    /// A client connected; receiving is on.
    Accepted {
        listener: ListenerId,
        conn: ConnId,
        peer: SocketAddr,
    },
    /// An outgoing connection is up; receiving is on. (A failed one is `Closed`.)
    Connected {
        conn: ConnId,
    },
    /// Bytes came. Valid during the call only: copy what is kept.
    Received {
        conn: ConnId,
        bytes: &'a [u8],
    },
    /// The whole of what [`Rt::send`] was given is with the kernel; the next may be sent.
    Sent {
        conn: ConnId,
    },
    /// The connection is gone, and so is every operation on it. The last event of a connection, exactly once.
    Closed {
        conn: ConnId,
        why: CloseReason,
    },
    Disk(DiskDone),
    /// A [`Waker`] was used since the last turn.
    Woken,
}

/// What the shell does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Wait for completions, but not beyond this time.
    Wait { until: Option<Mono> },
    /// There is more work at hand: look for completions without waiting.
    Again,
    /// Everything is done: leave the loop. What the kernel still holds is waited for first.
    Stop,
}

/// What a core may ask of its shell, from inside a callback. All calls return at once.
pub trait Rt {
    /// Monotonic. Read anew on each call (a vDSO read in production), so that stages can be timed.
    fn now(&self) -> Mono;
    fn wall(&self) -> WallMs;
    /// Not for secrets. Seeded in the simulator.
    fn random(&mut self) -> u64;

    /// Begins to accept. Each core may listen on the same address (SO_REUSEPORT). Port 0 lets the system choose.
    fn listen(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)>;
    /// The same for connections that do not count towards [`CoreConfig::conns_max`] and are accepted when it is
    /// reached. Whoever listens bounds their number.
    fn listen_beside(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)>;
    /// Accepts no more; connections stay.
    fn stop_listening(&mut self, listener: ListenerId);
    /// Ends in `Connected` or `Closed`.
    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId>;
    /// Backpressure: off stops `Received` soon (what the kernel has handed over already still comes).
    fn set_receiving(&mut self, conn: ConnId, on: bool);
    /// Memory is short (on), or is not any more: while it is on, a turn brings one receive buffer of each connection
    /// (`but` one) and not what it has, so that a pause is in time. Soon: what the kernel is about to hand over still
    /// comes. Costs CPU for each byte received, and on its way to `on` for each connection. A shell that has no such
    /// thing leaves it out.
    fn set_sparing(&mut self, _on: bool, _but: Option<ConnId>) {}
    /// Sends all of `parts`, in order, and ends in `Sent` (or in `Closed`). One at a time per connection.
    ///
    /// # Panics
    /// When the last one has not ended.
    fn send(&mut self, conn: ConnId, parts: Vec<Bytes>);
    /// Ends the connection: `Closed` follows. What is being sent is cut off. Harmless on one that is gone.
    fn close(&mut self, conn: ConnId);

    fn disk(&mut self) -> &mut dyn Disk;
    fn waker(&self) -> Waker;
}

/// What a core decides. Lives on the core's thread and never leaves it; never blocks.
pub trait Driver {
    /// Once, before the first turn.
    fn start(&mut self, rt: &mut dyn Rt);
    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>);
    /// After the events of a turn, also when there was none (the time of the last [`Turn::Wait`] is up).
    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn;
}

/// What a shell counts about itself; read by the metrics. Shared with the housekeeping thread.
#[derive(Default, Debug)]
pub struct LoopStats {
    pub turns: std::sync::atomic::AtomicU64,
    pub events: std::sync::atomic::AtomicU64,
    /// ns of the longest turn since the last read of the metrics (from wake to submit).
    pub turn_ns_max: std::sync::atomic::AtomicU64,
    /// ns spent in turns (not waiting).
    pub busy_ns: std::sync::atomic::AtomicU64,
    /// Connections that were closed at once, since the core had its full number.
    pub conns_refused: std::sync::atomic::AtomicU64,
    /// Times that accepting failed (out of descriptors, mostly) and was tried again later.
    pub accept_failures: std::sync::atomic::AtomicU64,
    /// Receives that found no buffer and were armed anew.
    pub recv_starved: std::sync::atomic::AtomicU64,
    /// Times that the submission queue had no room for what a turn asked for, and that completions outgrew theirs.
    pub submissions_full: std::sync::atomic::AtomicU64,
    pub completions_full: std::sync::atomic::AtomicU64,
    /// Pauses of a receive that had to be asked for again, since bytes came at that moment.
    pub pauses_repeated: std::sync::atomic::AtomicU64,
    /// Disk writes out of a registered buffer, and those out of others.
    pub writes_registered: std::sync::atomic::AtomicU64,
    pub writes_unregistered: std::sync::atomic::AtomicU64,
}

impl LoopStats {
    /// One turn of `ns` with `events`.
    pub(crate) fn turn(&self, ns: u64, events: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        self.turns.fetch_add(1, Relaxed);
        self.events.fetch_add(events, Relaxed);
        self.busy_ns.fetch_add(ns, Relaxed);
        self.turn_ns_max.fetch_max(ns, Relaxed);
    }
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn start(&mut self, rt: &mut dyn Rt) {
        (**self).start(rt);
    }
    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        (**self).event(rt, event);
    }
    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        (**self).turn_end(rt)
    }
}

impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Accepted { listener, conn, peer } => write!(f, "Accepted({listener:?}, {conn:?}, {peer})"),
            Event::Connected { conn } => write!(f, "Connected({conn:?})"),
            Event::Received { conn, bytes } => write!(f, "Received({conn:?}, {} bytes)", bytes.len()),
            Event::Sent { conn } => write!(f, "Sent({conn:?})"),
            Event::Closed { conn, why } => write!(f, "Closed({conn:?}, {why:?})"),
            Event::Disk(done) => write!(f, "Disk({done:?})"),
            Event::Woken => f.write_str("Woken"),
        }
    }
}
