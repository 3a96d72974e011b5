//! What one produce and one fetch cost on the core that serves them: allocations and the seam's operations, counted
//! where they can be counted exactly, around the node of a simulated core. Lost if one of these fails: the figures in
//! docs/architecture.md, and with them the reason why the broker is as fast as it is.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod sim_kit;

use allocation_counter::{measure, opt_out};
use bytes::Bytes;
use camus_engine::io::{Disk, DiskOp, DurableMethod, OpId};
use camus_engine::rt::{ConnId, Driver, Event, ListenerId, Rt, Turn, Waker};
use camus_engine::types::{Mono, WallMs};
use camus_net::node::Node;
use sim_kit::wire::{Conn, batch};
use sim_kit::{Shape, SimBroker};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

/// Of the core, since it began.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    allocations: u64,
    allocated_bytes: u64,
    /// Turns in which anything happened: as many times the core was awake.
    turns: u64,
    receives: u64,
    received_bytes: u64,
    sends: u64,
    sent_parts: u64,
    writes: u64,
    written_bytes: u64,
    reads: u64,
}

thread_local! {
    static COST: Cell<Cost> = Cell::default();
}

fn count(change: impl FnOnce(&mut Cost)) {
    let mut cost = COST.get();
    change(&mut cost);
    COST.set(cost);
}

/// A node whose allocations are counted; not those of the simulated shell below it.
struct Counted {
    node: Node,
    events: u64,
}

struct Below<'a>(&'a mut dyn Rt);

impl Counted {
    fn around<T>(&mut self, does: impl FnOnce(&mut Node) -> T) -> T {
        let mut result = None;
        let node = &mut self.node;
        let info = measure(|| result = Some(does(node)));
        count(|c| {
            c.allocations += info.count_total;
            c.allocated_bytes += info.bytes_total;
        });
        result.unwrap()
    }
}

impl Driver for Counted {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.node.start(rt);
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        self.events += 1;
        if let Event::Received { bytes, .. } = &event {
            count(|c| {
                c.receives += 1;
                c.received_bytes += bytes.len() as u64;
            });
        }
        self.around(|node| node.event(&mut Below(rt), event));
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        if std::mem::take(&mut self.events) > 0 {
            count(|c| c.turns += 1);
        }
        self.around(|node| node.turn_end(&mut Below(rt)))
    }
}

fn below<T>(does: impl FnOnce() -> T) -> T {
    let mut result = None;
    opt_out(|| result = Some(does()));
    result.unwrap()
}

impl Rt for Below<'_> {
    fn now(&self) -> Mono {
        self.0.now()
    }
    fn wall(&self) -> WallMs {
        self.0.wall()
    }
    fn random(&mut self) -> u64 {
        self.0.random()
    }
    fn listen(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        self.0.listen(addr)
    }
    fn listen_beside(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        self.0.listen_beside(addr)
    }
    fn stop_listening(&mut self, listener: ListenerId) {
        self.0.stop_listening(listener);
    }
    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        self.0.connect(addr)
    }
    fn set_receiving(&mut self, conn: ConnId, on: bool) {
        below(|| self.0.set_receiving(conn, on));
    }
    fn set_sparing(&mut self, on: bool, but: Option<ConnId>) {
        below(|| self.0.set_sparing(on, but));
    }
    fn send(&mut self, conn: ConnId, parts: Vec<Bytes>) {
        count(|c| {
            c.sends += 1;
            c.sent_parts += parts.len() as u64;
        });
        below(|| self.0.send(conn, parts));
    }
    fn close(&mut self, conn: ConnId) {
        below(|| self.0.close(conn));
    }
    fn disk(&mut self) -> &mut dyn Disk {
        self
    }
    fn waker(&self) -> Waker {
        self.0.waker()
    }
}

impl Disk for Below<'_> {
    fn submit(&mut self, op: OpId, what: DiskOp) {
        count(|c| match &what {
            DiskOp::Write { buf, .. } => {
                c.writes += 1;
                c.written_bytes += buf.bytes.len() as u64;
            }
            DiskOp::Read { .. } => c.reads += 1,
            DiskOp::Prepare { .. } | DiskOp::Remove { .. } => {}
        });
        below(|| self.0.disk().submit(op, what));
    }
    fn method(&self) -> DurableMethod {
        DurableMethod::LinkedFsync
    }
}

fn broker() -> SimBroker {
    let shape = Shape { segment_bytes: 16 * 1024 * 1024, ..Shape::default() };
    SimBroker::wrapped(5, shape, |node| Box::new(Counted { node, events: 0 }))
}

/// The cost of one of `n` equal things, after some that do not count.
fn each(n: u64, mut does: impl FnMut()) -> Cost {
    for _ in 0..64 {
        does();
    }
    let before = COST.get();
    for _ in 0..n {
        does();
    }
    let after = COST.get();
    let one = |a: u64, b: u64| (a - b).div_ceil(n);
    Cost {
        allocations: one(after.allocations, before.allocations),
        allocated_bytes: one(after.allocated_bytes, before.allocated_bytes),
        turns: one(after.turns, before.turns),
        receives: one(after.receives, before.receives),
        received_bytes: one(after.received_bytes, before.received_bytes),
        sends: one(after.sends, before.sends),
        sent_parts: one(after.sent_parts, before.sent_parts),
        writes: one(after.writes, before.writes),
        written_bytes: one(after.written_bytes, before.written_bytes),
        reads: one(after.reads, before.reads),
    }
}

#[allow(clippy::print_stdout, reason = "seen with --nocapture: the source of the table in docs/architecture.md")]
fn say(what: &str, cost: Cost) {
    println!("{what}: {cost:?}");
}

#[test]
fn one_produce_of_1_kib_is_one_write_one_send_and_few_allocations() {
    let mut broker = broker();
    let mut conn = Conn::open(&mut broker);
    assert_eq!(conn.create_topic(&mut broker, "t", 1), 0);
    let batch = batch(&[1], 1016, (-1, -1, -1));
    let cost = each(256, || assert_eq!(conn.produce(&mut broker, "t", 0, &batch).0, 0));
    say("a produce of 1 KiB", cost);
    assert_eq!((cost.writes, cost.sends, cost.reads), (1, 1, 0));
    assert_eq!(cost.written_bytes, 4096);
    assert!(cost.allocations <= 30 && cost.allocated_bytes <= 4096, "{cost:?}");
}

#[test]
fn a_produce_of_64_kib_is_one_write_one_send_and_no_more_allocations() {
    let mut broker = broker();
    let mut conn = Conn::open(&mut broker);
    assert_eq!(conn.create_topic(&mut broker, "t", 1), 0);
    let batch = batch(&[1; 63], 1016, (-1, -1, -1));
    let cost = each(128, || assert_eq!(conn.produce(&mut broker, "t", 0, &batch).0, 0));
    say("a produce of 64 KiB", cost);
    assert_eq!((cost.writes, cost.sends, cost.reads), (1, 1, 0));
    assert!(cost.allocations <= 34 && cost.allocated_bytes <= 3 * batch.len() as u64, "{cost:?}");
    assert!(cost.written_bytes as f64 <= 1.1 * batch.len() as f64, "{} for {}", cost.written_bytes, batch.len());
}

#[test]
fn a_fetch_of_what_is_in_memory_copies_nothing() {
    let mut broker = broker();
    let mut conn = Conn::open(&mut broker);
    assert_eq!(conn.create_topic(&mut broker, "t", 1), 0);
    let batch = batch(&[1; 63], 1016, (-1, -1, -1));
    for _ in 0..16 {
        assert_eq!(conn.produce(&mut broker, "t", 0, &batch).0, 0);
    }
    let cost = each(64, || assert!(conn.fetch(&mut broker, "t", 0, 0).records.unwrap().len() > 15 * 64 * 1024));
    say("a fetch of 1 MiB in memory", cost);
    assert_eq!((cost.writes, cost.sends, cost.reads), (0, 1, 0));
    assert!(cost.allocations <= 60 && cost.allocated_bytes <= 16 * 1024, "{cost:?}");
}
