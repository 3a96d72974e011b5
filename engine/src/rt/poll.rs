//! The shell for where io_uring is forbidden: epoll for the sockets, helper threads for the disk (`io/blocking.rs`).
//!
//! The same turn as in `uring.rs`: settle -> wait -> feed events -> `turn_end`. Readiness is level triggered, so that
//! nothing is lost when a turn takes only a part of what is there. The kernel holds no buffer of ours: a connection
//! that closes is gone with the next settling.

use super::core::{CoreConfig, RtError};
use super::machine;
use super::outgoing::Outgoing;
use super::real::{self, Blocks, Kernel, Local};
use super::{CloseReason, ConnId, Driver, Event};
use crate::io::blocking::{BlockingDisk, BlockingTransfers};
use crate::limits::LISTENERS_MAX;
use crate::types::Mono;
use polling::{Event as Readiness, Events, PollMode, Poller};
use socket2::{SockAddr, Socket};
use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Of one connection (or listener) in one turn: then it is the others' turn.
const ROUNDS_MAX: usize = 16;

/// Keys of the poller: the bell, then the listeners, then the connections by slot.
const BELL_KEY: usize = 0;
const LISTENER_KEYS: usize = 1;
const CONN_KEYS: usize = LISTENER_KEYS + LISTENERS_MAX;

pub(super) struct PollShell {
    core: Core,
    inbox: Inbox,
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
        let interest = Readiness::readable(BELL_KEY);
        // SAFETY: the poller goes before its bell (the order of fields in `Core`), and with it the registration.
        unsafe { poller.add_with_mode(config.bell.fd(), interest, PollMode::Level) }.map_err(setup("epoll"))?;
        let disk = BlockingDisk::new(config.core, config.wal_dir.clone(), config.bell.waker());
        let inbox = Inbox { recv: vec![0; config.tuning.recv_buffer_bytes], ready: Events::new() };
        Ok(PollShell { core: Core::new(config, Epoll { poller }, disk), inbox })
    }

    pub(super) fn run<D: Driver>(mut self, driver: &mut D) -> Result<(), RtError> {
        self.core.run(&mut self.inbox, driver)
    }
}

/// The kernel's side of a core. Lives on the core's thread.
struct Epoll {
    poller: Poller,
}

/// What is received, and what the poller tells.
struct Inbox {
    recv: Vec<u8>,
    ready: Events,
}

type Core = real::Core<Epoll>;
type Listener = real::Listener<Epoll>;
type Conn = real::Conn<Epoll>;

struct ListenerState {
    /// What the poller was told.
    polled: bool,
}

#[derive(Default)]
struct ConnState {
    /// The socket took no more: wait until it does.
    blocked: bool,
    /// What the poller was told: readable, writable. `None`: it does not know the socket.
    polled: Option<(bool, bool)>,
}

impl Kernel for Epoll {
    type Transfers = BlockingTransfers;
    type Socket = Socket;
    type Listener = ListenerState;
    type Conn = ConnState;
    type Sending = Outgoing;
    type Inbox = Inbox;

    fn settle(core: &mut Core) -> Result<(), RtError> {
        core.settle_listeners()?;
        core.settle_conns()
    }

    fn completions<D: Driver>(core: &mut Core, inbox: &mut Inbox, driver: &mut D) -> Result<u64, RtError> {
        let mut events = 0;
        for readiness in inbox.ready.iter() {
            events += 1;
            match readiness.key {
                // It was readable and only this loop reads it, so this does not block.
                BELL_KEY => core.bell.fd().read_exact(&mut [0; 8]).map_err(core.failed("read of the eventfd"))?,
                key if key < CONN_KEYS => core.accept(driver, key - LISTENER_KEYS),
                key => core.ready(&mut inbox.recv, driver, (key - CONN_KEYS) as u32, &readiness),
            }
        }
        Ok(events)
    }

    fn listen(&mut self, socket: Socket, slot: usize) -> io::Result<Listener> {
        socket.set_nonblocking(true)?;
        let interest = Readiness::readable(LISTENER_KEYS + slot);
        // SAFETY: deleted before it is closed (`stop_listening`), or closed after the poller.
        unsafe { self.poller.add_with_mode(socket.as_raw_fd(), interest, PollMode::Level) }?;
        Ok(Listener::new(socket, ListenerState { polled: true }))
    }

    fn stop_listening(core: &mut Core, slot: usize) {
        if let Some(listener) = core.listeners.get_mut(slot).and_then(Option::take) {
            // The kernel forgets a descriptor that is closed in any case.
            let _ = core.kernel.poller.delete(&listener.socket);
        }
    }

    fn connect(core: &mut Core, socket: Socket, addr: SocketAddr) -> io::Result<ConnId> {
        socket.set_nonblocking(true)?;
        let began = socket.connect(&SockAddr::from(addr));
        let id = core.conns.insert(Conn { connecting: true, ..Conn::new(socket, ConnState::default()) });
        match began {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => core.begin_close(id, reason(&error)),
            _ => core.mark_dirty(id),
        }
        Ok(id)
    }

    fn sending(&mut self, out: Outgoing) -> Outgoing {
        out
    }

    /// With the next settling.
    fn send(core: &mut Core, conn: ConnId) {
        core.mark_dirty(conn);
    }

    fn sent(&mut self, _: Option<Outgoing>) {}

    /// It is shut down when the poller has forgotten it.
    fn closing(_: &mut Conn) {}

    fn holds(_: &Conn) -> u8 {
        0
    }

    fn is_over(_: &mut Core) -> bool {
        true
    }
}

impl Blocks for Epoll {
    fn wait(core: &mut Core, inbox: &mut Inbox, until: Option<Mono>) -> Result<(), RtError> {
        let timeout = core.timeout(until);
        let at_hand = !core.local.is_empty() || !core.dirty.is_empty() || core.disk.has_done();
        let now = at_hand || timeout.is_some_and(|timeout| timeout.is_zero());
        let timeout = if now || !core.bell.parking().sleep() { Some(Duration::ZERO) } else { timeout };
        inbox.ready.clear();
        match core.kernel.poller.wait(&mut inbox.ready, timeout) {
            Err(error) if error.kind() != ErrorKind::Interrupted => Err(core.failed("epoll_wait")(error)),
            _ => Ok(()),
        }
    }
}

impl Core {
    fn accept<D: Driver>(&mut self, driver: &mut D, slot: usize) {
        for _ in 0..ROUNDS_MAX {
            let full = self.is_full();
            let Some(Some(listener)) = self.listeners.get_mut(slot) else { return };
            if !listener.has_room(full) || listener.rest_until.is_some() {
                return;
            }
            match listener.socket.accept() {
                Ok((socket, peer)) => {
                    let peer = socket.set_nonblocking(true).and_then(|()| machine::address(&peer));
                    self.report_accepted(driver, slot, Conn::new(socket, ConnState::default()), peer);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
                Err(_) => return self.accept_failed(slot),
            }
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
        if readiness.writable && conn.own.blocked {
            conn.own.blocked = false;
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
        let rounds = if self.spares(id) { 1 } else { ROUNDS_MAX };
        for _ in 0..rounds {
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
            if conn.own.blocked || conn.connecting || conn.closing.is_some() || out.is_done() {
                return;
            }
            let parts: Vec<IoSlice<'_>> = out.next_parts().map(IoSlice::new).collect();
            match conn.socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL) {
                Ok(taken) => {
                    drop(parts);
                    out.advance(taken);
                    if out.is_done() {
                        return self.local.push_back(Local::Sent(id));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => conn.own.blocked = true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.begin_close(id, reason(&error)),
            }
        }
        self.mark_dirty(id);
    }

    fn settle_conns(&mut self) -> Result<(), RtError> {
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
                    if conn.own.polled.take().is_some() {
                        self.kernel.poller.delete(&conn.socket).map_err(failed)?;
                    }
                    // An error says that it is down already.
                    let _ = conn.socket.shutdown(Shutdown::Both);
                    self.local.push_back(Local::Closed(id));
                }
                continue;
            }
            let wanted = (conn.want_bytes && !conn.connecting, conn.own.blocked || conn.connecting);
            if conn.own.polled == Some(wanted) {
                continue;
            }
            let interest = Readiness::new(CONN_KEYS + slot as usize, wanted.0, wanted.1);
            let told = match conn.own.polled {
                // SAFETY: the socket is deleted from the poller before it is closed (above), or goes after the poller.
                None => unsafe { self.kernel.poller.add_with_mode(&conn.socket, interest, PollMode::Level) },
                Some(_) => self.kernel.poller.modify_with_mode(&conn.socket, interest, PollMode::Level),
            };
            told.map_err(failed)?;
            conn.own.polled = Some(wanted);
        }
        Ok(())
    }

    fn settle_listeners(&mut self) -> Result<(), RtError> {
        let full = self.is_full();
        let failed = self.failed("epoll_ctl");
        for (slot, listener) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = listener else { continue };
            let wanted = !listener.rests() && listener.has_room(full);
            if wanted != listener.own.polled {
                let interest = Readiness::new(LISTENER_KEYS + slot, wanted, false);
                if let Err(error) = self.kernel.poller.modify_with_mode(&listener.socket, interest, PollMode::Level) {
                    return Err(failed(error));
                }
                listener.own.polled = wanted;
            }
        }
        Ok(())
    }
}

pub(super) fn reason(error: &io::Error) -> CloseReason {
    CloseReason::Error(error.raw_os_error().unwrap_or(libc::EIO))
}
