//! The shell for where io_uring is forbidden: epoll for the sockets, helper threads for the disk (`io/blocking.rs`).
//!
//! The same turn as in `uring.rs`: settle -> wait -> feed events -> `turn_end`. Readiness is level triggered, so that
//! nothing is lost when a turn takes only a part of what is there. The kernel holds no buffer of ours: a connection
//! that closes is gone with the next settling.

use super::core::{CoreConfig, RtError};
use super::machine;
use super::outgoing::Outgoing;
use super::rng::Rng;
use super::slots::Slots;
use super::{Bell, CloseReason, ConnId, Driver, Event, ListenerId, Rt, Turn, Waker};
use crate::io::Disk;
use crate::io::blocking::BlockingDisk;
use crate::limits::LISTENERS_MAX;
use crate::stats::CoreStats;
use crate::types::{CoreId, Mono, WallMs};
use bytes::Bytes;
use polling::{Event as Readiness, Events, PollMode, Poller};
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long accepting rests after a failure: at once would spin, since what is missing is still missing.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// Of one connection (or listener) in one turn: then it is the others' turn.
const ROUNDS_MAX: usize = 16;

/// Keys of the poller: the bell, then the listeners, then the connections by slot.
const BELL_KEY: usize = 0;
const LISTENER_KEYS: usize = 1;
const CONN_KEYS: usize = LISTENER_KEYS + LISTENERS_MAX;

pub(super) struct PollShell {
    core: Core,
    recv: Vec<u8>,
}

impl PollShell {
    pub(super) fn new(config: &CoreConfig) -> Result<PollShell, RtError> {
        let setup = |what: &str| {
            let what = what.to_owned();
            move |error| RtError::Setup { what, error }
        };
        std::fs::read_dir(&config.wal_dir)
            .map_err(setup(&format!("the WAL directory {}", config.wal_dir.display())))?;
        let poller = Poller::new().map_err(setup("epoll"))?;
        let bell = config.bell.clone();
        let interest = Readiness::readable(BELL_KEY);
        // SAFETY: the poller goes before its bell (the order of fields in `Core`), and with it the registration.
        unsafe { poller.add_with_mode(bell.fd(), interest, PollMode::Level) }.map_err(setup("epoll"))?;
        let core = Core {
            id: config.core,
            poller,
            disk: BlockingDisk::new(config.core, config.wal_dir.clone(), bell.waker()),
            conns: Slots::new(),
            accepted: 0,
            conns_max: config.conns_max,
            listeners: vec![],
            dirty: vec![],
            local: VecDeque::new(),
            bell,
            rng: machine::seeded(),
            stats: config.stats.clone(),
        };
        Ok(PollShell { core, recv: vec![0; config.tuning.recv_buffer_bytes] })
    }

    pub(super) fn run<D: Driver>(mut self, driver: &mut D) -> Result<(), RtError> {
        self.core.run(&mut self.recv, driver)
    }
}

struct Listener {
    socket: Socket,
    /// What the poller was told.
    polled: bool,
    rest_until: Option<Mono>,
}

struct Conn {
    socket: Socket,
    accepted: bool,
    connecting: bool,
    want_bytes: bool,
    sending: Option<Outgoing>,
    /// The socket took no more: wait until it does.
    blocked: bool,
    closing: Option<CloseReason>,
    /// What the poller was told: readable, writable. `None`: it does not know the socket.
    polled: Option<(bool, bool)>,
    dirty: bool,
    gone: bool,
}

enum Local {
    Sent(ConnId),
    Closed(ConnId),
}

/// Everything of a core but its driver and its receive buffer. Is the [`Rt`] that the driver sees.
struct Core {
    id: CoreId,
    /// Goes first: nothing may be closed that it still knows.
    poller: Poller,
    disk: BlockingDisk,
    conns: Slots<Conn>,
    accepted: usize,
    conns_max: usize,
    listeners: Vec<Option<Listener>>,
    dirty: Vec<u32>,
    local: VecDeque<Local>,
    bell: Bell,
    rng: Rng,
    stats: Arc<CoreStats>,
}

impl Core {
    fn run<D: Driver>(&mut self, recv: &mut [u8], driver: &mut D) -> Result<(), RtError> {
        let mut ready = Events::new();
        driver.start(self);
        let mut turn = Turn::Again;
        while turn != Turn::Stop {
            let until = match turn {
                Turn::Wait { until } => until,
                Turn::Again | Turn::Stop => Some(Mono(0)),
            };
            self.settle()?;
            self.wait(&mut ready, until)?;
            let began = machine::mono();
            let events = self.events(recv, driver, &ready)?;
            turn = driver.turn_end(self);
            self.stats.turns.turn(machine::mono().0.saturating_sub(began.0), events);
        }
        // After the driver's last turn: every operation ends before the loop does. Its ends are still reported.
        self.disk.stop();
        loop {
            for listener in &mut self.listeners {
                close_listener(&self.poller, listener);
            }
            for id in self.conns.ids() {
                self.begin_close(id, CloseReason::Asked);
            }
            self.settle()?;
            if self.conns.len() == 0 && self.disk.outstanding() == 0 && self.local.is_empty() {
                return Ok(());
            }
            self.wait(&mut ready, None)?;
            self.events(recv, driver, &ready)?;
        }
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RtError + use<> {
        let core = self.id;
        move |error| RtError::Loop { core, what, error }
    }

    fn wait(&mut self, ready: &mut Events, until: Option<Mono>) -> Result<(), RtError> {
        let rest = self.listeners.iter().flatten().filter_map(|listener| listener.rest_until).min();
        let timeout = until.into_iter().chain(rest).min().map(|until| until.since(machine::mono()));
        let at_hand = !self.local.is_empty() || !self.dirty.is_empty() || self.disk.has_done();
        let now = at_hand || timeout.is_some_and(|timeout| timeout.is_zero());
        let timeout = if now || !self.bell.parking().sleep() { Some(Duration::ZERO) } else { timeout };
        ready.clear();
        match self.poller.wait(ready, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(self.failed("epoll_wait")(error)),
            _ => Ok(()),
        }
    }

    /// Reports what happened; returns how much it was.
    fn events<D: Driver>(&mut self, recv: &mut [u8], driver: &mut D, ready: &Events) -> Result<u64, RtError> {
        let mut events = 0;
        if self.bell.parking().awake() {
            driver.event(self, Event::Woken);
            events += 1;
        }
        for readiness in ready.iter() {
            events += 1;
            match readiness.key {
                // It was readable and only this loop reads it, so this does not block.
                BELL_KEY => self.bell.fd().read_exact(&mut [0; 8]).map_err(self.failed("read of the eventfd"))?,
                key if key < CONN_KEYS => self.accept(driver, key - LISTENER_KEYS),
                key => self.ready(recv, driver, (key - CONN_KEYS) as u32, &readiness),
            }
        }
        self.settle()?;
        // Only what is there now: what these events lead to belongs to the next turn.
        for _ in 0..self.local.len() {
            let Some(local) = self.local.pop_front() else { break };
            events += 1;
            match local {
                Local::Sent(id) => {
                    if let Some(conn) = self.conns.get(id)
                        && conn.closing.is_none()
                    {
                        conn.sending = None;
                        driver.event(self, Event::Sent { conn: id });
                    }
                }
                Local::Closed(id) => {
                    let conn = self.conns.remove(id).expect("closed once");
                    self.accepted -= usize::from(conn.accepted);
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

    fn accept<D: Driver>(&mut self, driver: &mut D, slot: usize) {
        for _ in 0..ROUNDS_MAX {
            let full = self.accepted >= self.conns_max;
            let Some(Some(listener)) = self.listeners.get_mut(slot) else { return };
            if full || listener.rest_until.is_some() {
                return;
            }
            let (socket, peer) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) => {
                    continue;
                }
                Err(_) => {
                    listener.rest_until = Some(machine::mono() + ACCEPT_RETRY);
                    self.stats.turns.accept_failures.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            };
            // It may be gone already: then nobody needs to know of it.
            let prepared = socket.set_nonblocking(true).and_then(|()| machine::prepare(&socket));
            let Ok(peer) = prepared.and_then(|()| machine::address(&peer)) else { continue };
            let id = self.conns.insert(Conn { accepted: true, ..Conn::new(socket) });
            self.accepted += 1;
            self.mark_dirty(id);
            driver.event(self, Event::Accepted { listener: ListenerId(slot as u16), conn: id, peer });
        }
    }

    /// A connection can do something.
    fn ready<D: Driver>(&mut self, recv: &mut [u8], driver: &mut D, slot: u32, readiness: &Readiness) {
        let Some((id, conn)) = self.conns.at(slot) else { return };
        if conn.closing.is_some() {
            return;
        }
        let failed = readiness.is_err() == Some(true) || readiness.is_interrupt();
        if conn.connecting {
            if readiness.writable || failed {
                self.connected(driver, id);
            }
            return;
        }
        if readiness.writable && conn.blocked {
            conn.blocked = false;
            self.mark_dirty(id);
        }
        let Some(conn) = self.conns.get(id) else { return };
        if readiness.readable && conn.want_bytes {
            self.receive(recv, driver, id);
        } else if failed && !conn.want_bytes {
            // Nothing is read that would tell; and epoll reports it for ever.
            match conn.socket.take_error() {
                Ok(None) => self.begin_close(id, CloseReason::Peer),
                Ok(Some(error)) | Err(error) => self.begin_close(id, reason(&error)),
            }
        }
    }

    fn connected<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let conn = self.conns.get(id).expect("checked by the caller");
        conn.connecting = false;
        let error = conn.socket.take_error();
        self.mark_dirty(id);
        match error {
            Ok(None) => driver.event(self, Event::Connected { conn: id }),
            Ok(Some(error)) | Err(error) => self.begin_close(id, reason(&error)),
        }
    }

    fn receive<D: Driver>(&mut self, recv: &mut [u8], driver: &mut D, id: ConnId) {
        for _ in 0..ROUNDS_MAX {
            // The driver may have paused or closed it meanwhile.
            let Some(conn) = self.conns.get(id) else { return };
            if !conn.want_bytes || conn.closing.is_some() {
                return;
            }
            match (&conn.socket).read(recv) {
                Ok(0) => return self.begin_close(id, CloseReason::Peer),
                Ok(len) => driver.event(self, Event::Received { conn: id, bytes: &recv[..len] }),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.begin_close(id, reason(&error)),
            }
        }
    }

    /// Sends as much as the socket takes.
    fn push_out(&mut self, id: ConnId) {
        for _ in 0..ROUNDS_MAX {
            let Some(conn) = self.conns.get(id) else { return };
            let Some(out) = &mut conn.sending else { return };
            if conn.blocked || conn.connecting || conn.closing.is_some() || out.is_done() {
                return;
            }
            let parts: Vec<IoSlice<'_>> = out.next_parts().map(|part| IoSlice::new(part)).collect();
            match conn.socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL) {
                Ok(taken) => {
                    drop(parts);
                    out.advance(taken);
                    if out.is_done() {
                        return self.local.push_back(Local::Sent(id));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => conn.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.begin_close(id, reason(&error)),
            }
        }
        self.mark_dirty(id);
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id.slot);
        }
    }

    fn begin_close(&mut self, id: ConnId, why: CloseReason) {
        if let Some(conn) = self.conns.get(id)
            && conn.closing.is_none()
        {
            conn.closing = Some(why);
            self.mark_dirty(id);
        }
    }

    /// Brings what the poller watches in line with what is wanted now.
    fn settle(&mut self) -> Result<(), RtError> {
        self.settle_listeners()?;
        // Those that become dirty meanwhile have more to send than their share: the next turn.
        for slot in std::mem::take(&mut self.dirty) {
            let Some((id, conn)) = self.conns.at(slot) else { continue };
            conn.dirty = false;
            self.push_out(id);
            let failed = self.failed("epoll_ctl");
            let Some(conn) = self.conns.get(id) else { continue };
            if conn.closing.is_some() {
                if !conn.gone {
                    conn.gone = true;
                    if conn.polled.take().is_some() {
                        self.poller.delete(&conn.socket).map_err(failed)?;
                    }
                    // An error says that it is down already.
                    let _ = conn.socket.shutdown(Shutdown::Both);
                    self.local.push_back(Local::Closed(id));
                }
                continue;
            }
            let wanted = (conn.want_bytes && !conn.connecting, conn.blocked || conn.connecting);
            if conn.polled == Some(wanted) {
                continue;
            }
            let interest = Readiness::new(CONN_KEYS + slot as usize, wanted.0, wanted.1);
            let told = match conn.polled {
                // SAFETY: the socket is deleted from the poller before it is closed (above), or goes after the poller.
                None => unsafe { self.poller.add_with_mode(&conn.socket, interest, PollMode::Level) },
                Some(_) => self.poller.modify_with_mode(&conn.socket, interest, PollMode::Level),
            };
            told.map_err(failed)?;
            conn.polled = Some(wanted);
        }
        Ok(())
    }

    fn settle_listeners(&mut self) -> Result<(), RtError> {
        let full = self.accepted >= self.conns_max;
        let failed = self.failed("epoll_ctl");
        for (slot, listener) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = listener else { continue };
            if listener.rest_until.is_some_and(|until| until <= machine::mono()) {
                listener.rest_until = None;
            }
            let wanted = !full && listener.rest_until.is_none();
            if wanted != listener.polled {
                let interest = Readiness::new(LISTENER_KEYS + slot, wanted, false);
                if let Err(error) = self.poller.modify_with_mode(&listener.socket, interest, PollMode::Level) {
                    return Err(failed(error));
                }
                listener.polled = wanted;
            }
        }
        Ok(())
    }
}

fn close_listener(poller: &Poller, listener: &mut Option<Listener>) {
    if let Some(listener) = listener.take() {
        // The kernel forgets a descriptor that is closed in any case.
        let _ = poller.delete(&listener.socket);
    }
}

fn reason(error: &io::Error) -> CloseReason {
    CloseReason::Error(error.raw_os_error().unwrap_or(libc::EIO))
}

impl Conn {
    fn new(socket: Socket) -> Conn {
        Conn {
            socket,
            accepted: false,
            connecting: false,
            want_bytes: true,
            sending: None,
            blocked: false,
            closing: None,
            polled: None,
            dirty: false,
            gone: false,
        }
    }
}

impl Rt for Core {
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
        if self.listeners.len() >= LISTENERS_MAX {
            return Err(io::Error::other(format!("a core has at most {LISTENERS_MAX} listeners")));
        }
        let (socket, addr) = machine::listener(addr)?;
        socket.set_nonblocking(true)?;
        let slot = self.listeners.len();
        let interest = Readiness::readable(LISTENER_KEYS + slot);
        // SAFETY: deleted before it is closed (`close_listener`), or closed after the poller.
        unsafe { self.poller.add_with_mode(socket.as_raw_fd(), interest, PollMode::Level) }?;
        self.listeners.push(Some(Listener { socket, polled: true, rest_until: None }));
        Ok((ListenerId(slot as u16), addr))
    }

    fn stop_listening(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listeners.get_mut(usize::from(listener.0)) {
            close_listener(&self.poller, listener);
        }
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        let socket = machine::outgoing(addr)?;
        socket.set_nonblocking(true)?;
        let began = socket.connect(&SockAddr::from(addr));
        let id = self.conns.insert(Conn { connecting: true, ..Conn::new(socket) });
        match began {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => self.begin_close(id, reason(&error)),
            _ => self.mark_dirty(id),
        }
        Ok(id)
    }

    fn set_receiving(&mut self, conn: ConnId, on: bool) {
        if let Some(state) = self.conns.get(conn)
            && state.want_bytes != on
        {
            state.want_bytes = on;
            self.mark_dirty(conn);
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
        state.sending = Some(out);
        if empty {
            self.local.push_back(Local::Sent(conn));
        } else {
            self.mark_dirty(conn);
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
