//! The simulated shell: any number of cores, their disks and their network on one thread, in virtual time, from a seed.
//!
//! The same seed and the same calls give the same run, told by [`World::trace_hash`]. What varies from seed to seed is
//! what varies in life: how long the disk takes and in which order its operations end, how bytes are cut and delayed on
//! the way, when a core gets its turn, what a crash leaves.
//!
//! A test plays the clients ([`World::connect`]) and the operator ([`World::crash`], [`World::pause`], faults of a
//! [`SimDisk`]). Cores stand on machines ([`HostId`]), each with a clock of its own; what the network does to bytes is
//! set for each direction between two of them ([`World::set_path`]).
//!
//! Files: `sim/agenda.rs` what is to happen next; `sim/hosts.rs` clocks and ways; `sim/links.rs` connections;
//! `sim/tests.rs` what faults do to a driver.

use super::rng::Rng;
use super::slots::Slots;
use super::{CloseReason, ConnId, Driver, Event, ListenerId, Rt, Turn, Waker};
use crate::io::sim::{Crash, SimCoreDisk, SimDisk, Stuck};
use crate::io::{Disk, DiskDone};
use crate::types::{Mono, WallMs};
use agenda::{Agenda, Next};
use bytes::Bytes;
use hosts::{Host, HostClock, Paths};
use links::{End, Link, Links, Stage, WINDOW_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

mod agenda;
#[cfg(test)]
#[path = "sim/tests.rs"]
mod fault_tests;
mod hosts;
mod links;
pub use hosts::{Connects, DRIFT_PPM_MAX, HostId, Path, RESEND_AFTER};

/// The wall clock at the start, ms since 1970.
const WALL_START_MS: i64 = 1_800_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SimCoreId(pub usize);

/// A client's connection, played by the test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClientId(usize);

/// Everything there is. `D` is usually `Box<dyn Driver>`.
pub struct World<D: Driver> {
    drivers: Vec<Option<D>>,
    inner: Inner,
}

struct Inner {
    now: Mono,
    rng: Rng,
    agenda: Agenda<Action>,
    hosts: Vec<Host>,
    paths: Paths,
    /// What a way holds up, in the order in which it would have come.
    held: BTreeMap<(usize, usize), VecDeque<Action>>,
    cores: Vec<Core>,
    listeners: Vec<Listening>,
    next_port: u16,
    links: Links,
    /// By number, in the order in which they connected.
    clients: Vec<Client>,
    /// Some core was woken.
    woken: Arc<AtomicBool>,
    trace: u64,
    /// Something happened in this step after which a crash leaves another world than before it.
    at_boundary: bool,
    boundaries: u64,
    halt_at: Option<u64>,
    /// Only this host's boundaries count.
    watched: Option<usize>,
}

#[derive(Debug)]
enum Action {
    DiskDue {
        core: usize,
        life: u32,
        token: u64,
    },
    Arrive {
        link: u64,
    },
    Deliver {
        link: u64,
        from: usize,
        bytes: Bytes,
    },
    /// The sender has closed; nothing follows.
    Fin {
        link: u64,
        from: usize,
    },
    Reset {
        link: u64,
        to: usize,
        errno: i32,
    },
}

struct Core {
    /// Counts restarts: what was due to an earlier life is dropped.
    life: u32,
    running: bool,
    host: usize,
    /// It gets no turns, as after SIGSTOP.
    paused: bool,
    /// After `Turn::Stop`: waits for the disk.
    stopping: bool,
    inbox: VecDeque<Inbox>,
    conns: Slots<Conn>,
    wake: Arc<AtomicBool>,
    disk: SimCoreDisk,
    rng: Rng,
    next_listener: u16,
}

enum Inbox {
    Accepted { listener: ListenerId, conn: ConnId, peer: SocketAddr },
    Connected(ConnId),
    Received(ConnId, Bytes),
    Sent(ConnId),
    Closed(ConnId),
    Disk(DiskDone),
    Woken,
}

struct Conn {
    link: u64,
    /// Which end of the link this is.
    side: usize,
    receiving: bool,
    sending: bool,
    connecting: bool,
    closing: Option<CloseReason>,
}

struct Listening {
    addr: SocketAddr,
    core: usize,
    id: ListenerId,
}

#[derive(Default)]
struct Client {
    link: u64,
    received: Vec<u8>,
    paused: bool,
    closed: Option<CloseReason>,
}

impl<D: Driver> World<D> {
    pub fn new(seed: u64) -> World<D> {
        World {
            drivers: vec![],
            inner: Inner {
                now: Mono(1),
                rng: Rng::new(seed),
                agenda: Agenda::new(),
                hosts: vec![Host { ip: None, clock: HostClock::new() }],
                paths: Paths::default(),
                held: BTreeMap::new(),
                cores: vec![],
                listeners: vec![],
                next_port: 10_000,
                links: Links::default(),
                clients: vec![],
                woken: Arc::default(),
                trace: 0xcbf2_9ce4_8422_2325,
                at_boundary: false,
                boundaries: 0,
                halt_at: None,
                watched: None,
            },
        }
    }

    /// A core that does not run yet, with a new disk.
    pub fn add_core(&mut self) -> SimCoreId {
        let disk = SimDisk::new(self.inner.rng.u64());
        self.add_core_with(disk)
    }

    pub fn add_core_with(&mut self, disk: SimDisk) -> SimCoreId {
        self.put_core(HostId::CLIENTS, disk)
    }

    /// A machine, whose clocks say what the world's do.
    pub fn add_host(&mut self, ip: IpAddr) -> HostId {
        let hosts = &mut self.inner.hosts;
        assert!(hosts.iter().all(|host| host.ip != Some(ip)), "{ip} is another machine's");
        hosts.push(Host { ip: Some(ip), clock: HostClock::new() });
        HostId(hosts.len() - 1)
    }

    /// A core of this machine that does not run yet, with a new disk.
    pub fn add_core_on(&mut self, host: HostId) -> SimCoreId {
        let disk = SimDisk::new(self.inner.rng.u64());
        self.put_core(host, disk)
    }

    fn put_core(&mut self, host: HostId, disk: SimDisk) -> SimCoreId {
        assert!(host.0 < self.inner.hosts.len(), "{host:?} is there");
        self.drivers.push(None);
        self.inner.agenda.add_core();
        self.inner.cores.push(Core {
            life: 0,
            running: false,
            host: host.0,
            paused: false,
            stopping: false,
            inbox: VecDeque::new(),
            conns: Slots::new(),
            wake: Arc::default(),
            disk: SimCoreDisk { disk, now: Mono(0) },
            rng: self.inner.rng.fork(),
            next_listener: 0,
        });
        SimCoreId(self.drivers.len() - 1)
    }

    /// Stays valid over crashes; for the mesh.
    pub fn waker(&self, core: SimCoreId) -> Waker {
        self.inner.waker(core.0)
    }

    pub fn disk(&self, core: SimCoreId) -> SimDisk {
        self.inner.cores[core.0].disk.disk.clone()
    }

    /// Runs a driver on a core that does not run.
    pub fn start(&mut self, core: SimCoreId, mut driver: D) {
        let state = &mut self.inner.cores[core.0];
        assert!(!state.running, "{core:?} runs");
        (state.running, state.stopping) = (true, false);
        driver.start(&mut self.inner.rt(core.0));
        self.drivers[core.0] = Some(driver);
        self.inner.after_callbacks(core.0);
        self.inner.plan_turn(core.0, self.inner.now);
        self.inner.pass_boundary();
    }

    /// The driver, also after its stop; not after a crash.
    pub fn driver(&mut self, core: SimCoreId) -> Option<&mut D> {
        self.drivers[core.0].as_mut()
    }

    pub fn is_running(&self, core: SimCoreId) -> bool {
        self.inner.cores[core.0].running
    }

    /// The core is gone at once; its disk is as the crash leaves it, its connections are reset.
    pub fn crash(&mut self, core: SimCoreId, crash: Crash) {
        self.drivers[core.0] = None;
        self.inner.end_life(core.0);
        self.inner.cores[core.0].disk.disk.crash(crash);
        self.inner.note(&[10, core.0 as u64]);
    }

    /// The process of this core stands still, as after SIGSTOP: what comes for it waits, as far as sockets hold it, and
    /// its disk goes on with what it was asked for. Time passes all the same.
    pub fn pause(&mut self, core: SimCoreId) {
        let state = &mut self.inner.cores[core.0];
        if state.running && !state.paused {
            state.paused = true;
            self.inner.agenda.cancel_turn(core.0);
            self.inner.note(&[11, core.0 as u64, 1]);
        }
    }

    /// It goes on. Harmless on a core that is not paused.
    pub fn resume(&mut self, core: SimCoreId) {
        if !std::mem::take(&mut self.inner.cores[core.0].paused) {
            return;
        }
        self.inner.note(&[11, core.0 as u64, 0]);
        self.inner.plan_turn(core.0, self.inner.now);
        let ends = |link: &Link| {
            let is_mine = |end: &End| matches!(end, End::Core(of, _) if *of == core.0);
            link.ends.iter().position(is_mine)
        };
        let mine: Vec<(u64, usize)> =
            self.inner.links.iter().filter_map(|(id, link)| Some((id, ends(link)?))).collect();
        for (link, side) in mine {
            self.inner.take_arrived(link, 1 - side);
        }
    }

    /// The machine has been up for so long when the world begins. Before anything else is done to its clock.
    pub fn set_uptime(&mut self, host: HostId, uptime: Duration) {
        assert!(self.inner.cores.iter().all(|core| core.host != host.0 || core.life == 0 && !core.running));
        self.inner.hosts[host.0].clock.set_uptime(uptime);
    }

    /// From now on its clocks gain so much, or lose it: at most [`DRIFT_PPM_MAX`] either way.
    pub fn set_drift(&mut self, host: HostId, ppm: i64) {
        let now = self.inner.now;
        self.inner.hosts[host.0].clock.set_drift(now, ppm);
        self.inner.note(&[12, host.0 as u64, ppm as u64]);
        // Deadlines were planned by the old rate.
        for core in 0..self.inner.cores.len() {
            let state = &self.inner.cores[core];
            if state.host == host.0 && state.running {
                self.inner.plan_turn(core, now);
            }
        }
    }

    /// Its wall clock jumps, forwards or back. Its monotonic clock does not.
    pub fn jump_wall(&mut self, host: HostId, ms: i64) {
        self.inner.hosts[host.0].clock.jump_wall(ms);
        self.inner.note(&[13, host.0 as u64, ms as u64]);
    }

    /// What the way from one machine to another is like now.
    pub fn path(&self, from: HostId, to: HostId) -> Path {
        self.inner.path(from.0, to.0)
    }

    /// It is like that from now on. What it held up comes, if it lets it through.
    pub fn set_path(&mut self, from: HostId, to: HostId, path: Path) {
        let inner = &mut self.inner;
        let [a, b, c, d] = path.words();
        inner.note(&[9, from.0 as u64, to.0 as u64, a, b, c, d]);
        inner.paths.set(from.0, to.0, path);
        if path.is_open() {
            inner.tell_taken(from.0, to.0);
        }
        // A connection is made over both directions.
        inner.release(from.0, to.0);
        inner.release(to.0, from.0);
    }

    /// So many in a hundred of the connections between two machines are over at once, for both ends: what is on the way
    /// is lost, in the middle of a frame.
    pub fn reset_between(&mut self, a: HostId, b: HostId, percent: u64) {
        let inner = &mut self.inner;
        let is_between = |(_, link): &(u64, &Link)| [[a.0, b.0], [b.0, a.0]].contains(&link.hosts);
        let between: Vec<u64> = inner.links.iter().filter(is_between).map(|(id, _)| id).collect();
        for link in between {
            if inner.rng.chance(percent) {
                inner.break_link(link);
            }
        }
    }

    pub fn now(&self) -> Mono {
        self.inner.now
    }

    /// Everything that has happened, as one number.
    pub fn trace_hash(&self) -> u64 {
        self.inner.trace
    }

    /// For the test's own choices, so that they follow the seed too.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.inner.rng
    }

    /// How many steps so far had a boundary in them, at which a crash leaves another world than before it: an operation
    /// of a disk was started, reached the device's cache, or ended, or bytes reached a client. A start may be one too.
    pub fn boundaries(&self) -> u64 {
        self.inner.boundaries
    }

    /// The world stands still once it has seen so many boundaries, and with it time; `None`: it goes on.
    pub fn halt_at(&mut self, boundaries: Option<u64>) {
        self.inner.halt_at = boundaries;
    }

    /// Only this machine's boundaries count from now on: its disks', and what it has sent reaching anybody else.
    pub fn watch_boundaries_of(&mut self, host: HostId) {
        self.inner.watched = Some(host.0);
    }

    pub fn is_halted(&self) -> bool {
        self.inner.halt_at.is_some_and(|halt_at| self.inner.boundaries >= halt_at)
    }

    /// Does what is next. False: nothing is, or the world is halted.
    pub fn step(&mut self) -> bool {
        self.step_before(None)
    }

    /// The same, unless it is after `end`.
    fn step_before(&mut self, end: Option<Mono>) -> bool {
        if self.is_halted() {
            return false;
        }
        self.inner.pick_up_wakes();
        let Some((at, next)) = self.inner.agenda.pop(end) else { return false };
        self.inner.now = self.inner.now.max(at);
        match next {
            Next::Turn(core) => self.turn(core),
            Next::Planned(action) => {
                let Some(action) = self.inner.gets_through(action) else { return true };
                match action {
                    Action::DiskDue { core, life, token } => self.inner.disk_due(core, life, token),
                    Action::Arrive { link } => self.inner.arrive(link),
                    Action::Deliver { link, from, bytes } => self.inner.deliver(link, from, bytes),
                    Action::Fin { link, from } => self.inner.fin(link, from),
                    Action::Reset { link, to, errno } => self.inner.reset_end(link, to, errno),
                }
            }
        }
        self.inner.pass_boundary();
        true
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.inner.now + time;
        while self.step_before(Some(end)) {}
        if !self.is_halted() {
            self.inner.now = end;
        }
    }

    /// Runs until `holds`, looking after each step, for at most `time`. Whether it came to hold.
    pub fn run_until(&mut self, time: Duration, mut holds: impl FnMut(&mut World<D>) -> bool) -> bool {
        let end = self.inner.now + time;
        loop {
            if holds(self) {
                return true;
            }
            if self.step_before(Some(end)) {
                continue;
            }
            if self.is_halted() {
                return false;
            }
            self.inner.now = end;
            return holds(self);
        }
    }

    /// Begins a client's connection. What is sent before it is up waits.
    pub fn connect(&mut self, addr: SocketAddr) -> ClientId {
        self.connect_from(HostId::CLIENTS, addr)
    }

    /// The same from another machine.
    pub fn connect_from(&mut self, host: HostId, addr: SocketAddr) -> ClientId {
        let inner = &mut self.inner;
        let client = ClientId(inner.clients.len());
        let link = inner.open_link(End::Client(client), host.0, addr);
        inner.clients.push(Client { link, ..Client::default() });
        client
    }

    pub fn send(&mut self, client: ClientId, bytes: &[u8]) {
        let Client { link, closed, .. } = self.inner.client(client);
        let link = *link;
        if closed.is_none() && !bytes.is_empty() {
            let way = &mut self.inner.links.open(link).ways[0];
            assert!(!way.fin, "{client:?} has closed");
            way.waiting.push_back(Bytes::copy_from_slice(bytes));
            self.inner.push_on(link, 0);
        }
    }

    /// What came since the last call.
    pub fn received(&mut self, client: ClientId) -> Vec<u8> {
        std::mem::take(&mut self.inner.client(client).received)
    }

    /// The same, left where it is.
    pub fn waiting(&self, client: ClientId) -> &[u8] {
        &self.inner.clients[client.0].received
    }

    /// Off: the client reads no more, and what is sent to it piles up on the way.
    pub fn set_reading(&mut self, client: ClientId, on: bool) {
        let state = self.inner.client(client);
        state.paused = !on;
        let link = state.link;
        if on {
            self.inner.take_arrived(link, 1);
        }
    }

    /// Closes after everything that was sent.
    pub fn close(&mut self, client: ClientId) {
        let state = self.inner.client(client);
        if state.closed.is_none() {
            state.closed = Some(CloseReason::Asked);
            let link = state.link;
            self.inner.leave(link, 0, false);
        }
    }

    /// Resets: what is on the way is lost.
    pub fn reset(&mut self, client: ClientId) {
        let state = self.inner.client(client);
        if state.closed.is_none() {
            state.closed = Some(CloseReason::Asked);
            let link = state.link;
            self.inner.leave(link, 0, true);
        }
    }

    /// Why the connection is gone, if it is.
    pub fn closed(&mut self, client: ClientId) -> Option<CloseReason> {
        self.inner.client(client).closed
    }

    fn turn(&mut self, core: usize) {
        let inner = &mut self.inner;
        if !inner.cores[core].running || inner.cores[core].paused {
            return;
        }
        let Some(mut driver) = self.drivers[core].take() else { return };
        let stopping = inner.cores[core].stopping;
        // Only what is there now: what these events lead to belongs to the next turn.
        for _ in 0..inner.cores[core].inbox.len() {
            let Some(next) = inner.cores[core].inbox.pop_front() else { break };
            inner.report(core, &mut driver, next);
        }
        let turn = if stopping { Turn::Stop } else { driver.turn_end(&mut inner.rt(core)) };
        inner.note(&[1, core as u64]);
        inner.after_callbacks(core);
        let more = !inner.cores[core].inbox.is_empty();
        match turn {
            Turn::Wait { until } => {
                if more {
                    inner.plan_turn(core, inner.now);
                } else if let Some(until) = until {
                    let at = inner.clock(core).moment_of(until);
                    inner.plan_turn(core, at);
                }
            }
            Turn::Again => inner.plan_turn(core, inner.now),
            Turn::Stop => inner.wind_up(core),
        }
        self.drivers[core] = Some(driver);
    }
}

impl Inner {
    fn rt(&mut self, core: usize) -> SimRt<'_> {
        self.cores[core].disk.now = self.now;
        SimRt { inner: self, core }
    }

    fn waker(&self, core: usize) -> Waker {
        let (wake, any) = (Arc::clone(&self.cores[core].wake), Arc::clone(&self.woken));
        Waker::new(move || {
            wake.store(true, Ordering::Relaxed);
            any.store(true, Ordering::Relaxed);
        })
    }

    fn clock(&self, core: usize) -> &HostClock {
        &self.hosts[self.cores[core].host].clock
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        &mut self.clients[client.0]
    }

    /// FNV-1a over everything that happens.
    fn note(&mut self, what: &[u64]) {
        for word in what.iter().chain(&[self.now.0]) {
            for byte in word.to_le_bytes() {
                self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
    }

    /// Something happened on this host that a crash may not take back, or may.
    fn at_boundary_of(&mut self, host: usize) {
        self.at_boundary |= self.watched.is_none_or(|watched| watched == host);
    }

    fn pass_boundary(&mut self) {
        self.boundaries += u64::from(std::mem::take(&mut self.at_boundary));
    }

    fn plan(&mut self, at: Mono, action: Action) {
        self.agenda.plan(at.max(self.now), action);
    }

    /// A turn of the core at `at` or soon after it, unless one comes before.
    fn plan_turn(&mut self, core: usize, at: Mono) {
        if self.cores[core].paused {
            return;
        }
        let at = at.max(self.now) + Duration::from_nanos(self.rng.between(500, 20_000));
        self.agenda.plan_turn(core, at);
    }

    fn tell(&mut self, core: usize, what: Inbox) {
        self.cores[core].inbox.push_back(what);
        self.plan_turn(core, self.now);
    }

    fn pick_up_wakes(&mut self) {
        if !self.woken.load(Ordering::Relaxed) {
            return;
        }
        let mut any_waits = false;
        for core in 0..self.cores.len() {
            let state = &self.cores[core];
            if !state.running || state.paused {
                // It hears of it when it runs.
                any_waits |= state.wake.load(Ordering::Relaxed);
            } else if state.wake.swap(false, Ordering::Relaxed) {
                self.tell(core, Inbox::Woken);
            }
        }
        self.woken.store(any_waits, Ordering::Relaxed);
    }

    /// Takes over what the driver has started on its disk.
    fn after_callbacks(&mut self, core: usize) {
        let (life, host) = (self.cores[core].life, self.cores[core].host);
        for (token, due) in self.cores[core].disk.disk.take_started() {
            self.at_boundary_of(host);
            self.plan(due, Action::DiskDue { core, life, token });
        }
    }

    fn disk_due(&mut self, core: usize, life: u32, token: u64) {
        if self.cores[core].life != life {
            return;
        }
        let host = self.cores[core].host;
        match self.cores[core].disk.disk.complete(token) {
            Ok(done) => {
                self.at_boundary_of(host);
                self.note(&[2, core as u64, done.op.0, u64::from(done.result.is_ok())]);
                self.tell(core, Inbox::Disk(done));
            }
            Err(Stuck::Flushes(ends)) => {
                self.at_boundary_of(host);
                self.note(&[7, core as u64, token]);
                self.plan(ends, Action::DiskDue { core, life, token });
            }
            Err(Stuck::Hangs) => {
                self.plan(self.now + Duration::from_millis(1), Action::DiskDue { core, life, token });
            }
            Err(Stuck::Gone) => {}
        }
    }

    fn report<D: Driver>(&mut self, core: usize, driver: &mut D, what: Inbox) {
        let conns = &mut self.cores[core].conns;
        let open = |conns: &mut Slots<Conn>, conn| conns.get(conn).is_some_and(|state| state.closing.is_none());
        // What came before the peer's end is told before it, also when both are there already.
        let ended = |conns: &mut Slots<Conn>, conn| {
            conns.get(conn).is_some_and(|state| state.closing == Some(CloseReason::Peer))
        };
        match what {
            Inbox::Accepted { listener, conn, peer } => {
                if ended(conns, conn) || open(conns, conn) {
                    driver.event(&mut self.rt(core), Event::Accepted { listener, conn, peer });
                } else {
                    // It came and went before anybody was told.
                    conns.remove(conn);
                    self.cores[core].inbox.retain(|next| !matches!(next, Inbox::Closed(gone) if *gone == conn));
                }
            }
            Inbox::Connected(conn) => {
                if open(conns, conn) {
                    driver.event(&mut self.rt(core), Event::Connected { conn });
                }
            }
            Inbox::Received(conn, bytes) => {
                if ended(conns, conn) || open(conns, conn) {
                    driver.event(&mut self.rt(core), Event::Received { conn, bytes: &bytes });
                }
            }
            Inbox::Sent(conn) => {
                if open(conns, conn) {
                    conns.get(conn).expect("open").sending = false;
                    driver.event(&mut self.rt(core), Event::Sent { conn });
                }
            }
            Inbox::Closed(conn) => {
                let why = conns.remove(conn).expect("closed once").closing.expect("it is closing");
                driver.event(&mut self.rt(core), Event::Closed { conn, why });
            }
            Inbox::Disk(done) => driver.event(&mut self.rt(core), Event::Disk(done)),
            Inbox::Woken => driver.event(&mut self.rt(core), Event::Woken),
        }
    }

    /// The driver has stopped: connections end, the disk is waited for.
    fn wind_up(&mut self, core: usize) {
        self.cores[core].stopping = true;
        self.listeners.retain(|listening| listening.core != core);
        for conn in self.cores[core].conns.ids() {
            self.close_conn(core, conn, CloseReason::Asked, false);
        }
        let state = &mut self.cores[core];
        if !state.inbox.is_empty() {
            self.plan_turn(core, self.now);
        } else if state.disk.disk.in_flight() == 0 {
            state.running = false;
            state.life += 1;
        }
    }

    fn end_life(&mut self, core: usize) {
        for conn in self.cores[core].conns.ids() {
            self.close_conn(core, conn, CloseReason::Asked, true);
        }
        self.listeners.retain(|listening| listening.core != core);
        let state = &mut self.cores[core];
        state.life += 1;
        (state.running, state.paused) = (false, false);
        state.inbox.clear();
        state.conns = Slots::new();
        self.agenda.cancel_turn(core);
    }

    // ------------------------------------------------------------------------------------------------- the network

    fn latency(&mut self) -> Duration {
        let us = if self.rng.chance(2) { self.rng.between(1_000, 20_000) } else { self.rng.between(20, 400) };
        Duration::from_micros(us)
    }

    fn path(&self, from: usize, to: usize) -> Path {
        self.paths.get(from, to)
    }

    /// The same over a way that may be slow.
    fn latency_of(&mut self, from: usize, to: usize) -> Duration {
        let mut latency = self.latency();
        let path = self.path(from, to);
        latency += path.delay;
        if path.jitter > Duration::ZERO {
            latency += Duration::from_nanos(self.rng.between(0, path.jitter.as_nanos() as u64));
        }
        if path.loss_percent > 0 && self.rng.chance(path.loss_percent) {
            latency += RESEND_AFTER;
        }
        latency
    }

    /// Of what one end of this link sends.
    fn latency_on(&mut self, link: u64, from: usize) -> Duration {
        let hosts = self.links.open(link).hosts;
        self.latency_of(hosts[from], hosts[1 - from])
    }

    /// What is due on a way that lets nothing through waits there, or is lost: `None`.
    fn gets_through(&mut self, action: Action) -> Option<Action> {
        let (link, from) = match &action {
            Action::Arrive { link } => (*link, 0),
            Action::Deliver { link, from, .. } | Action::Fin { link, from } => (*link, *from),
            Action::Reset { link, to, .. } => (*link, 1 - *to),
            Action::DiskDue { .. } => return Some(action),
        };
        let Some(state) = self.links.get(link) else { return Some(action) };
        let hosts = state.hosts;
        let (there, back) = (self.path(hosts[from], hosts[1 - from]), self.path(hosts[1 - from], hosts[from]));
        let state = self.links.open(link);
        let waits = if let Action::Arrive { .. } = &action {
            !there.is_open() || !back.is_open() || there.connects == Connects::Hang
        } else if let Action::Reset { to, .. } = &action
            && there.is_cut
        {
            state.half_open[*to] = true;
            return None;
        } else {
            !there.is_open()
        };
        if !waits {
            return Some(action);
        }
        self.held.entry((hosts[from], hosts[1 - from])).or_default().push_back(action);
        None
    }

    /// What waited on this way is under way again, in its order. What does not get through waits anew.
    fn release(&mut self, from: usize, to: usize) {
        let Some(held) = self.held.remove(&(from, to)) else { return };
        let mut at = self.now;
        for action in held {
            at = at.max(self.now + self.latency_of(from, to));
            // What is sent from now on comes behind it.
            match &action {
                Action::Deliver { link, from, .. } => {
                    if let Some(state) = self.links.get_mut(*link) {
                        state.ways[*from].last_due = state.ways[*from].last_due.max(at);
                    }
                }
                Action::Arrive { .. } | Action::DiskDue { .. } | Action::Fin { .. } | Action::Reset { .. } => {}
            }
            self.plan(at, action);
        }
    }

    /// Senders learn what receivers took while no word of it got through from `from` to `to`.
    fn tell_taken(&mut self, from: usize, to: usize) {
        let all: Vec<(u64, usize)> = self.links.iter().flat_map(|(link, _)| [(link, 0), (link, 1)]).collect();
        for (link, side) in all {
            let Some(state) = self.links.get_mut(link) else { continue };
            let way = &mut state.ways[side];
            if (state.hosts[1 - side], state.hosts[side]) == (from, to) && way.untold > 0 {
                way.window -= std::mem::take(&mut way.untold);
                self.push_on(link, side);
            }
        }
    }

    fn break_link(&mut self, link: u64) {
        self.note(&[8, link]);
        for side in 0..2 {
            self.close_end(link, side, CloseReason::Error(libc::ECONNRESET));
        }
        self.links.remove(link);
    }

    fn open_link(&mut self, from: End, host: usize, to: SocketAddr) -> u64 {
        let there = self.hosts.iter().position(|host| host.ip == Some(to.ip())).unwrap_or(HostId::CLIENTS.0);
        let at = self.now + self.latency_of(host, there);
        let link = self.links.insert(Link::new(from, to, [host, there]));
        self.plan(at, Action::Arrive { link });
        link
    }

    /// The connector's first packet has reached the address.
    fn arrive(&mut self, link: u64) {
        let Some(state) = self.links.get(link) else { return };
        let (from, to, hosts) = (state.ends[0], state.to, state.hosts);
        self.note(&[3, link]);
        let here: Vec<(usize, ListenerId)> =
            self.listeners.iter().filter(|listening| listening.addr == to).map(|l| (l.core, l.id)).collect();
        if here.is_empty() || self.path(hosts[0], hosts[1]).connects == Connects::Refused {
            let before = std::mem::replace(&mut self.links.open(link).stage, Stage::Refused);
            if let Stage::Left { .. } = before {
                return self.links.remove(link);
            }
            return self.reset_end(link, 0, libc::ECONNREFUSED);
        }
        let (core, listener) = here[self.rng.between(0, here.len() as u64 - 1) as usize];
        let conn = self.cores[core].conns.insert(Conn::new(link, 1, false));
        let ip = self.hosts[hosts[0]].ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let peer = SocketAddr::new(ip, 40_000 + (link % 20_000) as u16);
        let state = self.links.open(link);
        state.ends[1] = End::Core(core, conn);
        let before = std::mem::replace(&mut state.stage, Stage::Arrived);
        self.tell(core, Inbox::Accepted { listener, conn, peer });
        match from {
            End::Core(core, conn) => {
                if let Some(state) = self.cores[core].conns.get(conn) {
                    state.connecting = false;
                    self.tell(core, Inbox::Connected(conn));
                }
            }
            End::Client(_) => self.push_on(link, 0),
            End::Nobody => {
                let Stage::Left { reset } = before else { unreachable!("it was there until it left") };
                self.end_way(link, 0, reset);
            }
        }
    }

    /// Takes what the sender has waiting, as far as the window goes, and puts it on the way in pieces.
    fn push_on(&mut self, link: u64, from: usize) {
        loop {
            let Some(state) = self.links.get_mut(link) else { return };
            if state.stage != Stage::Arrived {
                return;
            }
            let way = &mut state.ways[from];
            let room = WINDOW_BYTES.saturating_sub(way.window);
            let Some(first) = way.waiting.front_mut() else { break };
            if room == 0 {
                return;
            }
            // Small pieces are rare: most of what is sent together arrives together.
            let most = if self.rng.chance(20) { 100 } else { 32 * 1024 };
            let piece = (self.rng.between(1, most) as usize).min(room).min(first.len());
            let bytes = first.split_to(piece);
            if first.is_empty() {
                way.waiting.pop_front();
            }
            way.window += piece;
            let last_due = way.last_due;
            let due = (self.now + self.latency_on(link, from)).max(last_due);
            self.links.open(link).ways[from].last_due = due;
            self.plan(due, Action::Deliver { link, from, bytes });
        }
        // Everything is with the kernel.
        let state = self.links.open(link);
        if let End::Core(core, conn) = state.ends[from]
            && let Some(state) = self.cores[core].conns.get(conn)
            && state.sending
            && state.closing.is_none()
            && !self.cores[core].inbox.iter().any(|next| matches!(next, Inbox::Sent(sent) if *sent == conn))
        {
            self.tell(core, Inbox::Sent(conn));
        }
    }

    fn deliver(&mut self, link: u64, from: usize, bytes: Bytes) {
        let hash = u64::from(crc32c::crc32c(&bytes));
        self.note(&[4, link, from as u64, bytes.len() as u64, hash]);
        let Some(state) = self.links.get_mut(link) else { return };
        if std::mem::take(&mut state.half_open[from]) {
            // The other machine knows nothing of this connection, and says so.
            let at = self.now + self.latency_on(link, 1 - from);
            self.plan(at, Action::Reset { link, to: from, errno: libc::ECONNRESET });
        }
        let state = self.links.open(link);
        state.ways[from].arrived.push_back(bytes);
        self.take_arrived(link, from);
    }

    /// Gives the receiver what has arrived, if it takes it.
    fn take_arrived(&mut self, link: u64, from: usize) {
        while let Some(state) = self.links.get_mut(link) {
            let (to, hosts) = (state.ends[1 - from], state.hosts);
            let takes = match to {
                End::Nobody => true,
                End::Client(client) => !self.clients[client.0].paused,
                End::Core(core, conn) => {
                    let core = &mut self.cores[core];
                    !core.paused && core.conns.get(conn).is_some_and(|conn| conn.receiving)
                }
            };
            let is_told = self.paths.get(hosts[1 - from], hosts[from]).is_open();
            let way = &mut state.ways[from];
            if !takes {
                return;
            }
            let Some(bytes) = way.arrived.pop_front() else {
                // All is taken: now the end is seen.
                if way.fin {
                    self.close_end(link, 1 - from, CloseReason::Peer);
                }
                return;
            };
            if is_told {
                way.window -= bytes.len();
            } else {
                way.untold += bytes.len();
            }
            match to {
                End::Nobody => {}
                End::Client(client) => {
                    self.at_boundary_of(hosts[from]);
                    self.client(client).received.extend_from_slice(&bytes);
                }
                End::Core(core, conn) => {
                    // Another machine has it: that counts where one machine's crash is looked at.
                    self.at_boundary |= self.watched == Some(hosts[from]) && hosts[0] != hosts[1];
                    self.tell(core, Inbox::Received(conn, bytes));
                }
            }
            self.push_on(link, from);
        }
    }

    fn fin(&mut self, link: u64, from: usize) {
        self.note(&[5, link, from as u64]);
        if let Some(state) = self.links.get_mut(link) {
            state.ways[from].fin = true;
            self.take_arrived(link, from);
        }
        let is_over = |link: &Link| link.ends.iter().all(|end| matches!(end, End::Nobody));
        if self.links.get(link).is_some_and(is_over) {
            self.links.remove(link);
        }
    }

    fn reset_end(&mut self, link: u64, to: usize, errno: i32) {
        self.note(&[6, link, to as u64]);
        self.close_end(link, to, CloseReason::Error(errno));
    }

    /// One end learns that the connection is over.
    fn close_end(&mut self, link: u64, side: usize, why: CloseReason) {
        let Some(state) = self.links.get(link) else { return };
        match state.ends[side] {
            End::Nobody => {}
            End::Core(core, conn) => self.close_conn(core, conn, why, false),
            End::Client(client) => {
                let state = self.client(client);
                if state.closed.is_none() {
                    state.closed = Some(why);
                    self.leave(link, side, false);
                }
            }
        }
    }

    fn close_conn(&mut self, core: usize, conn: ConnId, why: CloseReason, reset: bool) {
        let Some(state) = self.cores[core].conns.get(conn) else { return };
        if state.closing.is_some() {
            return;
        }
        state.closing = Some(why);
        let (link, side) = (state.link, state.side);
        self.leave(link, side, reset);
        self.tell(core, Inbox::Closed(conn));
    }

    /// One end has closed: the other is told after everything that is on the way, or at once by a reset.
    fn leave(&mut self, link: u64, side: usize, reset: bool) {
        let Some(state) = self.links.get_mut(link) else { return };
        let client = matches!(state.ends[side], End::Client(_));
        let other = matches!(state.ends[1 - side], End::Core(..) | End::Client(_));
        state.ends[side] = End::Nobody;
        if reset || !client {
            state.ways[side].waiting.clear();
        }
        match state.stage {
            Stage::Connecting => state.stage = Stage::Left { reset },
            Stage::Arrived if other => self.end_way(link, side, reset),
            Stage::Left { .. } | Stage::Refused | Stage::Arrived => self.links.remove(link),
        }
    }

    /// Nothing more is sent that way.
    fn end_way(&mut self, link: u64, side: usize, reset: bool) {
        if reset {
            let at = self.now + self.latency_on(link, side);
            self.plan(at, Action::Reset { link, to: 1 - side, errno: libc::ECONNRESET });
            return;
        }
        let state = self.links.open(link);
        let mut last_due = state.ways[side].last_due;
        // A client's close comes after all that it has sent, whatever the window says.
        for bytes in std::mem::take(&mut state.ways[side].waiting) {
            let way = &mut self.links.open(link).ways[side];
            way.window += bytes.len();
            last_due = last_due.max(self.now + Duration::from_micros(self.rng.between(20, 400)));
            self.plan(last_due, Action::Deliver { link, from: side, bytes });
        }
        let at = last_due.max(self.now + self.latency_on(link, side));
        self.plan(at, Action::Fin { link, from: side });
        // What the other end sends from now on goes nowhere.
        self.take_arrived(link, 1 - side);
    }
}

impl Conn {
    fn new(link: u64, side: usize, connecting: bool) -> Conn {
        Conn { link, side, receiving: true, sending: false, connecting, closing: None }
    }
}

/// What one core sees of the world.
struct SimRt<'a> {
    inner: &'a mut Inner,
    core: usize,
}

impl SimRt<'_> {
    fn me(&mut self) -> &mut Core {
        &mut self.inner.cores[self.core]
    }
}

impl Rt for SimRt<'_> {
    fn now(&self) -> Mono {
        self.inner.clock(self.core).mono(self.inner.now)
    }

    fn wall(&self) -> WallMs {
        WallMs(WALL_START_MS + self.inner.clock(self.core).wall_ms(self.inner.now))
    }

    fn random(&mut self) -> u64 {
        self.me().rng.u64()
    }

    fn listen(&mut self, mut addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        if addr.port() == 0 {
            addr.set_port(self.inner.next_port);
            self.inner.next_port += 1;
        }
        let id = ListenerId(self.me().next_listener);
        self.me().next_listener += 1;
        self.inner.listeners.push(Listening { addr, core: self.core, id });
        Ok((id, addr))
    }

    fn listen_beside(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        self.listen(addr)
    }

    fn stop_listening(&mut self, listener: ListenerId) {
        let core = self.core;
        self.inner.listeners.retain(|listening| (listening.core, listening.id) != (core, listener));
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        let link = self.inner.links.next();
        let conn = self.me().conns.insert(Conn::new(link, 0, true));
        let host = self.inner.cores[self.core].host;
        let opened = self.inner.open_link(End::Core(self.core, conn), host, addr);
        assert_eq!(opened, link);
        Ok(conn)
    }

    fn set_receiving(&mut self, conn: ConnId, on: bool) {
        let Some(state) = self.me().conns.get(conn) else { return };
        state.receiving = on;
        let (link, from) = (state.link, 1 - state.side);
        if on && state.closing.is_none() {
            self.inner.take_arrived(link, from);
        }
    }

    fn send(&mut self, conn: ConnId, parts: Vec<Bytes>) {
        let Some(state) = self.me().conns.get(conn) else { return };
        if state.closing.is_some() {
            return;
        }
        assert!(!state.sending && !state.connecting, "{conn:?} can not send now");
        state.sending = true;
        let (link, side) = (state.link, state.side);
        let way = &mut self.inner.links.open(link).ways[side];
        way.waiting.extend(parts.into_iter().filter(|part| !part.is_empty()));
        self.inner.push_on(link, side);
    }

    fn close(&mut self, conn: ConnId) {
        self.inner.close_conn(self.core, conn, CloseReason::Asked, false);
    }

    fn disk(&mut self) -> &mut dyn Disk {
        &mut self.me().disk
    }

    fn waker(&self) -> Waker {
        self.inner.waker(self.core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::buf::ChunkPool;
    use crate::io::{DiskOk, DiskOp, FileId, OpId, Volume};
    use crate::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES};
    use crate::rt::mesh::{Port, mesh_with_lanes_of};
    use crate::types::CoreId;

    const FILE: FileId = FileId(1);
    const BLOCKS: u64 = 256;
    const SOON: Duration = Duration::from_secs(10);

    fn addr() -> SocketAddr {
        "127.0.0.1:9092".parse().expect("an address")
    }

    /// Answers every byte with itself, after it is on the disk. What is acknowledged is what a crash may not take.
    struct Echo {
        pool: ChunkPool,
        conns: BTreeMap<ConnId, (Vec<Bytes>, bool)>,
        writing: BTreeMap<OpId, (ConnId, Bytes)>,
        next: u64,
        ready: bool,
        stop: bool,
        waiting_max: usize,
        seen: u64,
    }

    impl Echo {
        fn new(next: u64) -> Echo {
            let pool = ChunkPool::new(BLOCKS as usize * WAL_CHUNK_BYTES);
            let (conns, writing) = (BTreeMap::new(), BTreeMap::new());
            Echo { pool, conns, writing, next, ready: next > 0, stop: false, waiting_max: 0, seen: 0 }
        }

        fn pump(&mut self, rt: &mut dyn Rt, id: ConnId) {
            let Some((waiting, sending)) = self.conns.get_mut(&id) else { return };
            self.waiting_max = self.waiting_max.max(waiting.len());
            if !*sending && !waiting.is_empty() {
                *sending = true;
                rt.send(id, std::mem::take(waiting));
            }
            rt.set_receiving(id, self.conns[&id].0.len() < 20);
        }
    }

    impl Driver for Echo {
        fn start(&mut self, rt: &mut dyn Rt) {
            rt.listen(addr()).expect("free");
            if !self.ready {
                let len = BLOCKS * BLOCK_BYTES as u64;
                rt.disk().submit(OpId(u64::MAX), DiskOp::Prepare { file: FILE, len });
            }
        }

        fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
            match event {
                Event::Accepted { conn, .. } => {
                    assert!(self.conns.insert(conn, (vec![], false)).is_none());
                }
                Event::Received { conn, bytes } => {
                    self.seen += bytes.len() as u64;
                    let bytes = Bytes::copy_from_slice(bytes);
                    if self.next < BLOCKS && self.ready && bytes.len() <= BLOCK_BYTES - 2 {
                        let mut chunk = self.pool.take(1).expect("in the budget");
                        chunk.extend(&(bytes.len() as u16).to_le_bytes());
                        chunk.extend(&bytes);
                        chunk.pad_to_block();
                        let op = OpId(self.next);
                        let at = self.next * BLOCK_BYTES as u64;
                        rt.disk().submit(op, DiskOp::Write { file: FILE, at, buf: chunk.freeze() });
                        self.writing.insert(op, (conn, bytes));
                        self.next += 1;
                    } else {
                        self.conns.get_mut(&conn).expect("open").0.push(bytes);
                        self.pump(rt, conn);
                    }
                }
                Event::Sent { conn } => {
                    self.conns.get_mut(&conn).expect("open").1 = false;
                    self.pump(rt, conn);
                }
                Event::Closed { conn, .. } => {
                    self.conns.remove(&conn).expect("closed once");
                }
                Event::Disk(done) => match done.result.expect("no faults here") {
                    DiskOk::Prepared => self.ready = true,
                    DiskOk::Written => {
                        let (conn, bytes) = self.writing.remove(&done.op).expect("once");
                        if let Some((waiting, _)) = self.conns.get_mut(&conn) {
                            waiting.push(bytes);
                            self.pump(rt, conn);
                        }
                    }
                    DiskOk::Read(_) | DiskOk::Removed => unreachable!("not asked for"),
                },
                Event::Connected { .. } => unreachable!("it connects nowhere"),
                Event::Woken => {}
            }
        }

        fn turn_end(&mut self, _: &mut dyn Rt) -> Turn {
            if self.stop { Turn::Stop } else { Turn::Wait { until: None } }
        }
    }

    fn echo_world(seed: u64) -> (World<Echo>, SimCoreId) {
        let mut world = World::new(seed);
        let core = world.add_core();
        world.start(core, Echo::new(0));
        assert!(world.run_until(SOON, |world| world.driver(core).expect("runs").ready));
        (world, core)
    }

    /// One message at a time on each of some connections; then a crash in the middle of it.
    fn busy_run(seed: u64) -> (u64, usize) {
        let (mut world, core) = echo_world(seed);
        let clients: Vec<_> = (0..5).map(|_| world.connect(addr())).collect();
        let mut acked = vec![];
        for round in 0..12u8 {
            for (n, client) in clients.iter().enumerate() {
                world.send(*client, &[1 + round * 5 + n as u8]);
            }
            world.run_for(Duration::from_micros(700));
            for client in &clients {
                acked.extend(world.received(*client));
            }
        }
        world.crash(core, Crash::Power);
        // Whoever was answered finds it on the disk.
        let volume = world.disk(core).volume();
        let mut found = vec![0; (BLOCKS as usize) * BLOCK_BYTES];
        volume.read(FILE, 0, &mut found).expect("prepared");
        let blocks: Vec<&[u8]> = found.chunks(BLOCK_BYTES).collect();
        for message in &acked {
            let holds = |block: &&[u8]| {
                let len = usize::from(u16::from_le_bytes([block[0], block[1]]));
                block[2..2 + len].contains(message)
            };
            assert!(blocks.iter().any(holds), "seed {seed}: {message} was answered and is lost");
        }
        world.run_for(Duration::from_millis(50));
        for client in &clients {
            // Refused, if it was slow to come.
            let ends = [libc::ECONNRESET, libc::ECONNREFUSED].map(|errno| Some(CloseReason::Error(errno)));
            assert!(ends.contains(&world.closed(*client)), "seed {seed}: {:?}", world.closed(*client));
        }
        world.start(core, Echo::new(BLOCKS));
        let client = world.connect(addr());
        world.send(client, b"again");
        assert!(world.run_until(SOON, |world| world.waiting(client) == b"again"));
        (world.trace_hash(), acked.len())
    }

    /// Lost if it fails: a failure that was found can not be found again.
    #[test]
    fn the_same_seed_gives_the_same_run_and_a_crash_takes_nothing_that_was_answered() {
        let mut hashes = std::collections::BTreeSet::new();
        let mut acked = 0;
        for seed in 0..40 {
            let run = busy_run(seed);
            assert_eq!(run, busy_run(seed));
            hashes.insert(run.0);
            acked += run.1;
        }
        assert_eq!(hashes.len(), 40, "different seeds give different runs");
        assert!(acked > 500, "{acked} answers");
    }

    /// Lost if it fails: a driver that ignores backpressure would pass.
    #[test]
    fn a_client_that_never_reads_stops_itself_and_nobody_else() {
        for seed in 0..3 {
            let (mut world, core) = echo_world(seed);
            let flood = world.connect(addr());
            world.set_reading(flood, false);
            let sent: Vec<u8> = (0..1_500_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            world.send(flood, &sent);
            world.run_for(Duration::from_secs(5));
            let seen = world.driver(core).expect("runs").seen;
            assert!(seen < 1_000_000, "seed {seed}: it took {seen} bytes");
            let other = world.connect(addr());
            for n in 0..20u8 {
                world.send(other, &[n; 100]);
                assert!(world.run_until(SOON, |world| world.waiting(other).len() == 100));
                assert_eq!(world.received(other), [n; 100]);
            }
            assert_eq!(world.driver(core).expect("runs").seen, seen + 2_000, "seed {seed}");
            world.set_reading(flood, true);
            assert!(world.run_until(SOON, |world| world.waiting(flood).len() >= sent.len()));
            let mut back = world.received(flood);
            // Small pieces go by the disk and may overtake each other; nothing is lost.
            let mut sorted = sent;
            back.sort_unstable();
            sorted.sort_unstable();
            assert!(back == sorted, "seed {seed}");
        }
    }

    /// Lost if it fails: slots and links, until a long run dies of them; or a close that nobody hears of.
    #[test]
    fn every_connection_ends_once_however_it_ends() {
        for seed in 0..20 {
            let (mut world, core) = echo_world(seed);
            for round in 0..60 {
                let client = world.connect(addr());
                if round % 3 > 0 {
                    world.send(client, &[1; 300]);
                }
                let pause = world.rng().between(0, 900);
                world.run_for(Duration::from_micros(pause));
                if world.rng().chance(50) { world.close(client) } else { world.reset(client) }
            }
            world.run_for(Duration::from_secs(1));
            assert!(world.driver(core).expect("runs").conns.is_empty(), "seed {seed}");
            assert_eq!(world.inner.cores[core.0].conns.len(), 0, "seed {seed}");
            assert_eq!(world.inner.links.len(), 0, "seed {seed}");
            let nowhere = world.connect("127.0.0.1:1".parse().expect("an address"));
            world.run_for(Duration::from_secs(1));
            assert_eq!(world.closed(nowhere), Some(CloseReason::Error(libc::ECONNREFUSED)));
        }
    }

    /// Lost if it fails: the last records before a stop.
    #[test]
    fn writes_in_flight_end_before_a_stopped_core_does() {
        for seed in 0..10 {
            let (mut world, core) = echo_world(seed);
            let client = world.connect(addr());
            world.send(client, &[3; 2_000]);
            assert!(world.run_until(SOON, |world| !world.driver(core).expect("runs").writing.is_empty()));
            world.driver(core).expect("runs").stop = true;
            world.waker(core).wake();
            assert!(world.run_until(SOON, |world| !world.is_running(core)));
            let driver = world.driver(core).expect("it stopped, it did not crash");
            assert!(driver.writing.is_empty() && driver.conns.is_empty(), "seed {seed}");
        }
    }

    /// Lost if it fails: a crash that is meant for one moment comes at another, or at none.
    #[test]
    fn a_world_halts_at_every_boundary_and_always_at_the_same() {
        let told = |halt_at| {
            let (mut world, core) = echo_world(5);
            let before = world.boundaries();
            world.halt_at(halt_at);
            let client = world.connect(addr());
            world.send(client, &[3; 100]);
            world.run_for(Duration::from_millis(100));
            let in_flight = world.disk(core).in_flight();
            (world.boundaries() - before, world.trace_hash(), in_flight, world.received(client).len())
        };
        let (all, _, _, received) = told(None);
        assert!(all >= 4 && received == 100, "{all} boundaries");
        let (first, ..) = echo_world(5);
        let points: Vec<_> = (1..=all).map(|n| told(Some(first.boundaries() + n))).collect();
        assert!((1..=all).eq(points.iter().map(|point| point.0)));
        assert!(points.windows(2).all(|pair| pair[0].1 != pair[1].1 && pair[0].3 <= pair[1].3));
        let in_flight = points.iter().filter(|point| point.2 > 0 && point.3 == 0).count();
        assert!(in_flight >= 2, "it is begun, and it is in the cache");
        assert_eq!(points, (1..=all).map(|n| told(Some(first.boundaries() + n))).collect::<Vec<_>>());
    }

    struct Crosser {
        port: Port<u64>,
        next: u64,
        expected: u64,
        refused: u64,
    }

    impl Driver for Crosser {
        fn start(&mut self, _: &mut dyn Rt) {}
        fn event(&mut self, _: &mut dyn Rt, _: Event<'_>) {}
        fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
            let other = CoreId(1 - self.port.core().0);
            // Not always everything: the other one has to wait.
            let most = rt.random() % 12;
            for _ in 0..most {
                let Some((_, n)) = self.port.next() else { break };
                assert_eq!(n, self.expected);
                self.expected += 1;
            }
            while self.next < 2_000 && self.port.try_send(other, self.next).is_ok() {
                self.next += 1;
            }
            self.refused += u64::from(self.next < 2_000);
            self.port.flush();
            match (self.next, self.expected) {
                (2_000, 2_000) => Turn::Stop,
                _ if most == 0 || self.expected < self.next => Turn::Again,
                _ => Turn::Wait { until: None },
            }
        }
    }

    /// Lost if it fails: cores of a simulated broker that do not reach each other, or not always in the same way.
    #[test]
    fn the_mesh_connects_simulated_cores() {
        for seed in 0..10 {
            let mut world = World::new(seed);
            let cores = [world.add_core(), world.add_core()];
            let wakers = cores.map(|core| world.waker(core)).to_vec();
            for (core, mut port) in cores.into_iter().zip(mesh_with_lanes_of(2, 8)) {
                port.set_wakers(wakers.clone());
                world.start(core, Crosser { port, next: 0, expected: 0, refused: 0 });
            }
            assert!(world.run_until(SOON, |world| cores.iter().all(|core| !world.is_running(*core))), "seed {seed}");
            assert!(world.driver(cores[0]).expect("stopped").refused > 0);
        }
    }

    /// Lost if it fails: a driver's timers in every simulated test.
    #[test]
    fn a_deadline_is_met_in_virtual_time() {
        struct Ticks(u32);
        impl Driver for Ticks {
            fn start(&mut self, _: &mut dyn Rt) {}
            fn event(&mut self, _: &mut dyn Rt, _: Event<'_>) {}
            fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
                self.0 += 1;
                Turn::Wait { until: Some(rt.now() + Duration::from_millis(10)) }
            }
        }
        let mut world = World::new(1);
        let core = world.add_core();
        world.start(core, Ticks(0));
        world.run_for(Duration::from_secs(60));
        let ticks = world.driver(core).expect("runs").0;
        assert!((5_900..=6_001).contains(&ticks), "{ticks} ticks in a minute");
    }
}
