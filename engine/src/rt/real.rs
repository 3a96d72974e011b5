//! What the shells of this machine have in common: a core with its connections and listeners, its turn and its end. How
//! bytes are moved is each one's own ([`Kernel`]).

use super::core::{CoreConfig, RtError};
use super::machine;
use super::outgoing::Outgoing;
use super::rng::Rng;
use super::slots::Slots;
use super::{Bell, CloseReason, ConnId, Driver, Event, ListenerId, Rt, Turn, Waker};
use crate::io::Disk;
use crate::io::real::{RealDisk, Transfers};
use crate::limits::LISTENERS_MAX;
use crate::stats::CoreStats;
use crate::types::{CoreId, Mono, WallMs};
use bytes::Bytes;
use socket2::Socket;
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long accepting rests after a failure: at once would spin, since what is missing is still missing.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// How a shell gets the kernel to move bytes. Called with its type known: nothing is dispatched at run time.
pub(super) trait Kernel: Sized {
    /// How its disk reads and writes.
    type Transfers: Transfers;
    /// A connection's socket: owned, or lent by what owns it.
    type Socket: Borrow<Socket>;
    /// What it keeps of a listener, of a connection, and of what a connection sends.
    type Listener;
    type Conn;
    type Sending;
    /// What it receives into and takes completions through: apart from the core, which the driver gets meanwhile.
    type Inbox;

    /// Brings what the kernel does for listeners and dirty connections in line with what is wanted now.
    fn settle(core: &mut Core<Self>) -> Result<(), RtError>;
    /// Reports what the kernel told; returns how much it was.
    fn completions<D: Driver>(core: &mut Core<Self>, inbox: &mut Self::Inbox, driver: &mut D) -> Result<u64, RtError>;
    /// A socket that listens, as the one for this slot.
    fn listen(&mut self, socket: Socket, slot: usize) -> io::Result<Listener<Self>>;
    fn stop_listening(core: &mut Core<Self>, slot: usize);
    fn connect(core: &mut Core<Self>, socket: Socket, addr: SocketAddr) -> io::Result<ConnId>;
    fn sending(&mut self, out: Outgoing) -> Self::Sending;
    /// Begins to send what is in the connection now.
    fn send(core: &mut Core<Self>, conn: ConnId);
    /// All of it has left.
    fn sent(&mut self, sending: Option<Self::Sending>);
    /// A connection has just begun to close.
    fn closing(conn: &mut Conn<Self>);
    /// Operations on this connection that the kernel holds.
    fn holds(conn: &Conn<Self>) -> u8;
    /// The driver has stopped, and nothing but the bell is left: has it gone as well? If not, it goes now.
    fn is_over(core: &mut Core<Self>) -> bool;
}

/// A shell that blocks its thread until something happens. (One on an executor gives way instead.)
pub(super) trait Blocks: Kernel {
    /// Submits everything and waits for a completion, a wake-up, or the time `until`.
    fn wait(core: &mut Core<Self>, inbox: &mut Self::Inbox, until: Option<Mono>) -> Result<(), RtError>;
}

pub(super) struct Listener<K: Kernel> {
    pub socket: Socket,
    /// Its connections count towards `conns_max`, and none is accepted when the core has so many.
    pub counted: bool,
    /// Nothing is accepted before this.
    pub rest_until: Option<Mono>,
    pub own: K::Listener,
}

impl<K: Kernel> Listener<K> {
    pub fn new(socket: Socket, own: K::Listener) -> Listener<K> {
        Listener { socket, counted: true, rest_until: None, own }
    }

    /// Whether it accepts on a core that has its full number, or not.
    pub fn has_room(&self, full: bool) -> bool {
        !full || !self.counted
    }

    /// Does it rest after a failure?
    pub fn rests(&mut self) -> bool {
        if self.rest_until.is_some_and(|until| until <= machine::mono()) {
            self.rest_until = None;
        }
        self.rest_until.is_some()
    }
}

pub(super) struct Conn<K: Kernel> {
    pub socket: K::Socket,
    /// Of a listener that counts.
    pub counted: bool,
    pub connecting: bool,
    /// What the driver wants.
    pub want_bytes: bool,
    pub sending: Option<K::Sending>,
    pub closing: Option<CloseReason>,
    /// In `Core::dirty`.
    pub dirty: bool,
    /// The kernel knows nothing of it any more; `Closed` is waiting in `Core::local`.
    pub gone: bool,
    pub own: K::Conn,
}

impl<K: Kernel> Conn<K> {
    pub fn new(socket: K::Socket, own: K::Conn) -> Conn<K> {
        Conn {
            socket,
            counted: false,
            connecting: false,
            want_bytes: true,
            sending: None,
            closing: None,
            dirty: false,
            gone: false,
            own,
        }
    }
}

/// What was decided here rather than by the kernel, and is to be told to the driver.
pub(super) enum Local {
    Sent(ConnId),
    Closed(ConnId),
}

/// Everything of a core but its driver and its inbox. Is the [`Rt`] that the driver sees.
pub(super) struct Core<K: Kernel> {
    /// Goes first: nothing may be closed that it still knows.
    pub kernel: K,
    pub id: CoreId,
    pub disk: RealDisk<K::Transfers>,
    pub conns: Slots<Conn<K>>,
    /// Of them, those that count towards `conns_max`.
    counted: usize,
    conns_max: usize,
    pub listeners: Vec<Option<Listener<K>>>,
    /// Slots for which the kernel may not be doing what is wanted.
    pub dirty: Vec<u32>,
    pub local: VecDeque<Local>,
    /// A turn is to bring little of each connection, but for one.
    sparing: bool,
    spares_not: Option<ConnId>,
    pub bell: Bell,
    rng: Rng,
    pub stats: Arc<CoreStats>,
}

impl<K: Kernel> Core<K> {
    pub fn new(config: &CoreConfig, kernel: K, disk: RealDisk<K::Transfers>) -> Core<K> {
        Core {
            kernel,
            id: config.core,
            disk,
            conns: Slots::new(),
            counted: 0,
            conns_max: config.conns_max,
            listeners: vec![],
            dirty: vec![],
            local: VecDeque::new(),
            sparing: false,
            spares_not: None,
            bell: config.bell.clone(),
            rng: machine::seeded(),
            stats: config.stats.clone(),
        }
    }

    /// A turn but for its wait: reports what happened, and lets the driver decide.
    pub fn turn<D: Driver>(&mut self, inbox: &mut K::Inbox, driver: &mut D) -> Result<Turn, RtError> {
        let began = machine::mono();
        let events = self.events(inbox, driver)?;
        let turn = driver.turn_end(self);
        self.stats.turns.turn(machine::mono().0.saturating_sub(began.0), events);
        Ok(turn)
    }

    /// After the driver's last turn: every operation ends before the loop does. Closes what is left, each time anew,
    /// since the driver may have asked for more. True: it is over. If not, its ends are still to be waited for and
    /// reported.
    pub fn wind_up(&mut self) -> Result<bool, RtError> {
        for slot in 0..self.listeners.len() {
            K::stop_listening(self, slot);
        }
        for id in self.conns.ids() {
            self.begin_close(id, CloseReason::Asked);
        }
        K::settle(self)?;
        // The bell is the last to go: the disk's helper rings it.
        Ok(self.is_empty() && self.local.is_empty() && K::is_over(self))
    }

    /// No connection, no listener, nothing for the disk.
    pub fn is_empty(&self) -> bool {
        self.conns.len() == 0 && self.disk.outstanding() == 0 && self.listeners.iter().all(Option::is_none)
    }

    /// Accepts no more for now, but at listeners that do not count: the core has its full number.
    pub fn is_full(&self) -> bool {
        self.counted >= self.conns_max
    }

    pub fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RtError + use<K> {
        let core = self.id;
        move |error| RtError::Loop { core, what, error }
    }

    /// How long to wait at the most: until this time, or until a listener has rested.
    pub fn timeout(&self, until: Option<Mono>) -> Option<Duration> {
        let rest = self.listeners.iter().flatten().filter_map(|listener| listener.rest_until).min();
        until.into_iter().chain(rest).min().map(|until| until.since(machine::mono()))
    }

    /// Reports what happened; returns how much it was.
    pub fn events<D: Driver>(&mut self, inbox: &mut K::Inbox, driver: &mut D) -> Result<u64, RtError> {
        let mut events = 0;
        if self.bell.parking().awake() {
            driver.event(self, Event::Woken);
            events += 1;
        }
        events += K::completions(self, inbox, driver)?;
        K::settle(self)?;
        // Only what is there now: what these events lead to belongs to the next turn.
        for _ in 0..self.local.len() {
            let Some(local) = self.local.pop_front() else { break };
            events += 1;
            match local {
                Local::Sent(id) => self.report_sent(driver, id),
                Local::Closed(id) => {
                    let conn = self.conns.remove(id).expect("closed once");
                    assert_eq!(K::holds(&conn), 0, "{id:?} is closed with operations in the kernel");
                    self.counted -= usize::from(conn.counted);
                    let why = conn.closing.expect("only what is closing gets closed");
                    drop(conn);
                    driver.event(self, Event::Closed { conn: id, why });
                }
            }
        }
        for _ in 0..self.disk.outstanding() {
            let Some(done) = self.disk.next_done() else { break };
            events += 1;
            driver.event(self, Event::Disk(done));
        }
        Ok(events)
    }

    /// A socket was accepted. A peer without an address, or an error on the way to it, says that it is gone already:
    /// then nobody needs to know of it.
    pub fn report_accepted<D: Driver>(
        &mut self,
        driver: &mut D,
        slot: usize,
        conn: Conn<K>,
        peer: io::Result<SocketAddr>,
    ) {
        let Ok(peer) = machine::prepare(conn.socket.borrow()).and(peer) else { return };
        let counted = self.listeners[slot].as_ref().is_none_or(|listener| listener.counted);
        let id = self.conns.insert(Conn { counted, ..conn });
        self.counted += usize::from(counted);
        self.mark_dirty(id);
        driver.event(self, Event::Accepted { listener: ListenerId(slot as u16), conn: id, peer });
    }

    pub fn accept_failed(&mut self, slot: usize) {
        let listener = self.listeners[slot].as_mut().expect("it has just told of the failure");
        listener.rest_until = Some(machine::mono() + ACCEPT_RETRY);
        self.stats.turns.accept_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub fn report_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && conn.closing.is_none()
        {
            self.kernel.sent(conn.sending.take());
            driver.event(self, Event::Sent { conn: id });
        }
    }

    pub fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id.slot);
        }
    }

    /// Is a turn to bring little of it?
    pub fn spares(&self, id: ConnId) -> bool {
        self.sparing && self.spares_not != Some(id)
    }

    /// Starts a close; the first reason counts. What the kernel holds ends by itself soon after.
    pub fn begin_close(&mut self, id: ConnId, why: CloseReason) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.closing.is_none() {
            conn.closing = Some(why);
            K::closing(conn);
        }
        self.mark_dirty(id);
    }
}

impl<K: Blocks> Core<K> {
    /// Until the driver stops, and then until every operation has ended.
    pub fn run<D: Driver>(&mut self, inbox: &mut K::Inbox, driver: &mut D) -> Result<(), RtError> {
        driver.start(self);
        let mut turn = Turn::Again;
        while let Some(until) = turn.deadline() {
            K::settle(self)?;
            K::wait(self, inbox, until)?;
            turn = self.turn(inbox, driver)?;
        }
        self.disk.stop();
        while !self.wind_up()? {
            K::wait(self, inbox, None)?;
            self.events(inbox, driver)?;
        }
        Ok(())
    }
}

impl Turn {
    /// Until when the loop may wait before the next turn. `None`: there is none.
    pub(super) fn deadline(self) -> Option<Option<Mono>> {
        match self {
            Turn::Wait { until } => Some(until),
            Turn::Again => Some(Some(Mono(0))),
            Turn::Stop => None,
        }
    }
}

impl<K: Kernel> Rt for Core<K> {
    fn now(&self) -> Mono {
        machine::mono()
    }

    fn wall(&self) -> WallMs {
        machine::wall()
    }

    fn random(&mut self) -> u64 {
        self.rng.u64()
    }

    fn listen(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        let slot = self.listeners.len();
        if slot >= LISTENERS_MAX {
            return Err(io::Error::other(format!("a core has at most {LISTENERS_MAX} listeners")));
        }
        let (socket, addr) = machine::listener(addr)?;
        self.listeners.push(Some(self.kernel.listen(socket, slot)?));
        Ok((ListenerId(slot as u16), addr))
    }

    fn listen_beside(&mut self, addr: SocketAddr) -> io::Result<(ListenerId, SocketAddr)> {
        let (id, addr) = self.listen(addr)?;
        let listener = self.listeners[usize::from(id.0)].as_mut().expect("just made");
        listener.counted = false;
        Ok((id, addr))
    }

    fn stop_listening(&mut self, listener: ListenerId) {
        K::stop_listening(self, usize::from(listener.0));
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        K::connect(self, machine::outgoing(addr)?, addr)
    }

    fn set_receiving(&mut self, conn: ConnId, on: bool) {
        if let Some(state) = self.conns.get(conn)
            && state.want_bytes != on
        {
            state.want_bytes = on;
            self.mark_dirty(conn);
        }
    }

    fn set_sparing(&mut self, on: bool, but: Option<ConnId>) {
        if std::mem::replace(&mut self.sparing, on) != on && on {
            for id in self.conns.ids() {
                self.mark_dirty(id);
            }
        }
        if let Some(before) = std::mem::replace(&mut self.spares_not, but)
            && on
        {
            self.mark_dirty(before);
        }
    }

    fn send(&mut self, conn: ConnId, parts: Vec<Bytes>) {
        let Some(state) = self.conns.get(conn) else { return };
        if state.closing.is_some() {
            return;
        }
        assert!(state.sending.is_none() && !state.connecting, "{conn:?} can not send now");
        let out = Outgoing::new(parts);
        let empty = out.is_done();
        state.sending = Some(self.kernel.sending(out));
        if empty {
            self.local.push_back(Local::Sent(conn));
        } else {
            K::send(self, conn);
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.begin_close(conn, CloseReason::Asked);
    }

    fn disk(&mut self) -> &mut dyn Disk {
        &mut self.disk
    }

    fn waker(&self) -> Waker {
        self.bell.waker()
    }
}
