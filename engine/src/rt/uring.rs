//! The default shell: one io_uring ring a core for sockets, disk and wake-ups. Linux 6.1 or newer (single issuer,
//! deferred task run, multishot receive into provided buffers).
//!
//! One turn: settle the connections (arm, pause, finish) -> submit everything and wait, the only blocking call -> feed
//! completions to the driver in the order in which the kernel gave them -> `turn_end`.
//!
//! Life of a connection: accepted or connecting -> a multishot receive is armed while the driver wants bytes -> closing
//! (shut down; the kernel gives back every operation) -> the descriptor is closed -> `Closed` is reported -> the slot
//! is used again. `ops` counts what the kernel holds; nothing that an operation names is freed, and no id is used
//! again, while it is above 0.
//!
//! **What keeps the `unsafe` here sound**: whatever the kernel was given stays where it is until its last completion.
//! `Core` and `Inbox` are dropped only after [`Core::idle`]; on any other way out (an error, a panic of the driver)
//! they are leaked, and the process is about to end.

use super::core::{CoreConfig, RtError, RtUnavailable};
use super::machine;
use super::outgoing::Outgoing;
use super::real::{self, Blocks, Kernel, Local};
use super::{CloseReason, ConnId, Driver, Event};
use crate::io::buf::AlignedBuf;
use crate::io::uring::{DISK_TAG, RingDisk, RingTransfers, Submission, core_ring, probe};
use crate::limits::BLOCK_BYTES;
use crate::types::Mono;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A ring's memory is counted per user and given back late after a process ends: a restart has to wait for it.
const SETUP_TRIES: u32 = 6;
const SETUP_PAUSE: Duration = Duration::from_millis(500);
/// Sends that are kept for the next ones.
const SPARE_SENDS_MAX: usize = 64;
/// What a poll for the peer's end waits for; an error or a hang-up of both ways it tells without being asked.
const HANG_UP: u32 = libc::POLLRDHUP as u32;
/// Of a send that is kept, so that a small answer does not keep what a large one needed.
const SPARE_PARTS_MAX: usize = 64;
/// The one group of provided buffers.
const BUF_GROUP: u16 = 0;

/// What a completion is for: the kind in the top byte (below [`DISK_TAG`]), a slot in the low 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Op {
    Accept = 1,
    AcceptCancel,
    Connect,
    Receive,
    Send,
    /// Of a receive or a connect.
    Cancel,
    Wake,
    WakeCancel,
    /// The peer is gone, or sends no more.
    HangUp,
}

impl Op {
    fn tag(self, slot: u32) -> u64 {
        ((self as u64) << 56) | u64::from(slot)
    }

    fn untag(data: u64) -> (Op, u32) {
        const ALL: [Op; 9] = [
            Op::Accept,
            Op::AcceptCancel,
            Op::Connect,
            Op::Receive,
            Op::Send,
            Op::Cancel,
            Op::Wake,
            Op::WakeCancel,
            Op::HangUp,
        ];
        let kind = ALL.into_iter().find(|op| *op as u64 == data >> 56);
        (kind.unwrap_or_else(|| panic!("a completion of an unknown kind: {data:#x}")), data as u32)
    }
}

/// The ring is up, on the thread that will run it: it takes submissions from its maker only.
pub(super) struct UringShell {
    core: ManuallyDrop<Core>,
    inbox: ManuallyDrop<Inbox>,
}

impl UringShell {
    pub(super) fn new(config: &CoreConfig) -> Result<UringShell, RtError> {
        let tuning = &config.tuning;
        let ring = with_patience("a ring", || core_ring(tuning.ring_entries, Some(tuning.ring_completions)))?;
        let recv = with_patience("receive buffers", || RecvBufs::new(&ring, config))?;
        let disk = disk_on(&ring, config)?;
        let kernel = Ring {
            ring,
            backlog: VecDeque::new(),
            recv_buffer_bytes: u32::try_from(config.tuning.recv_buffer_bytes).expect("a receive buffer is small"),
            starved: false,
            spare: vec![],
            wake_buf: Box::new(0),
            wake_armed: false,
            wake_cancelling: false,
            wake_over: false,
        };
        let (core, inbox) = (Core::new(config, kernel, disk), Inbox { recv, done: vec![] });
        Ok(UringShell { core: ManuallyDrop::new(core), inbox: ManuallyDrop::new(inbox) })
    }

    pub(super) fn run<D: Driver>(mut self, driver: &mut D) -> Result<(), RtError> {
        self.core.run(&mut self.inbox, driver)?;
        assert!(self.core.idle(), "the loop ended with operations in the kernel");
        // In this order: the ring goes before the memory that it was given.
        drop(ManuallyDrop::into_inner(self.core));
        drop(ManuallyDrop::into_inner(self.inbox));
        Ok(())
    }
}

/// The disk of a core on this ring, by the method that its configuration names or a probe finds.
pub(super) fn disk_on(ring: &IoUring, config: &CoreConfig) -> Result<RingDisk, RtError> {
    let method = match config.durable {
        Some(method) => method,
        None => probe(&config.wal_dir).map_err(|error| {
            let what = format!("the WAL directory {}", config.wal_dir.display());
            RtError::Setup { what, error }
        })?,
    };
    Ok(RingDisk::new(
        config.core,
        config.wal_dir.clone(),
        method,
        config.regions.clone(),
        config.bell.waker(),
        config.stats.clone(),
        &ring.submitter(),
    ))
}

/// Tries again while memory is missing; says that io_uring is not available where that is the reason.
pub(super) fn with_patience<T>(what: &'static str, mut make: impl FnMut() -> io::Result<T>) -> Result<T, RtError> {
    for left in (0..SETUP_TRIES).rev() {
        match make() {
            Ok(made) => return Ok(made),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOMEM | libc::EAGAIN) if left > 0 => {
                    tracing::warn!(%error, what, "no memory for io_uring yet; trying again");
                    machine::pause(SETUP_PAUSE);
                }
                Some(libc::ENOMEM | libc::EAGAIN) => {
                    return Err(RtError::NoMemory { what, memlock_bytes: machine::memlock_bytes(), error });
                }
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => {
                    return Err(RtUnavailable { what, error }.into());
                }
                _ => return Err(RtError::Setup { what: what.to_owned(), error }),
            },
        }
    }
    unreachable!("the last try returns")
}

/// Buffers that the kernel picks from for what is received: a ring of descriptions that it shares with us, and the
/// memory they describe.
struct RecvBufs {
    /// Of `types::BufRingEntry`; the tail is in the first one.
    ring: AlignedBuf,
    memory: AlignedBuf,
    buffers: u16,
    bytes: usize,
    tail: u16,
}

impl RecvBufs {
    fn new(ring: &IoUring, config: &CoreConfig) -> io::Result<RecvBufs> {
        let (buffers, bytes) = (config.tuning.recv_buffers, config.tuning.recv_buffer_bytes);
        assert!(buffers.is_power_of_two() && bytes > 0, "{buffers} receive buffers of {bytes} bytes");
        let whole = |bytes: usize| AlignedBuf::zeroed(bytes.next_multiple_of(BLOCK_BYTES));
        let entries = whole(usize::from(buffers) * size_of::<types::BufRingEntry>());
        let mut bufs = RecvBufs { ring: entries, memory: whole(usize::from(buffers) * bytes), buffers, bytes, tail: 0 };
        let at = bufs.ring.as_mut_ptr() as u64;
        // SAFETY: page aligned, of that many entries, and kept until the ring is gone (see the top of this file).
        unsafe { ring.submitter().register_buf_ring_with_flags(at, buffers, BUF_GROUP, 0)? };
        for buffer in 0..buffers {
            bufs.give(buffer);
        }
        bufs.publish();
        Ok(bufs)
    }

    fn address(&mut self, buffer: u16) -> *mut u8 {
        assert!(buffer < self.buffers, "buffer {buffer} of {}", self.buffers);
        self.memory.as_mut_ptr().wrapping_add(usize::from(buffer) * self.bytes)
    }

    /// What a completion says was received into `buffer`.
    fn get(&mut self, buffer: u16, len: usize) -> &[u8] {
        assert!(len <= self.bytes, "{len} bytes in a buffer of {}", self.bytes);
        let from = self.address(buffer);
        // SAFETY: inside the allocation (checked above). The kernel handed this buffer over with the completion and
        // gets it back by `give` and `publish` only, which need `&mut self`, so not during this borrow.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// The buffer is the kernel's again, once it is published.
    fn give(&mut self, buffer: u16) {
        let (address, len) = (self.address(buffer) as u64, self.bytes as u32);
        let entries: *mut types::BufRingEntry = self.ring.as_mut_ptr().cast();
        // SAFETY: the index is masked to the ring, whose memory is aligned and initialised. The entry is ours: there
        // are as many as buffers, and the kernel looks at those before the published tail only. The setters do not
        // touch the tail, which shares the first entry.
        let entry = unsafe { &mut *entries.add(usize::from(self.tail & (self.buffers - 1))) };
        entry.set_addr(address);
        entry.set_len(len);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        let entries: *const types::BufRingEntry = self.ring.as_mut_ptr().cast_const().cast();
        // SAFETY: the tail is an aligned u16 in the first entry, which the kernel only reads.
        let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(entries).cast_mut()) };
        // Release: the kernel sees the entries before it sees the tail move over them.
        tail.store(self.tail, Ordering::Release);
    }
}

/// Where bytes are received, and the completions that are looked at.
struct Inbox {
    recv: RecvBufs,
    done: Vec<cqueue::Entry>,
}

struct ListenerState {
    open: bool,
    armed: bool,
    cancelling: bool,
    ops: u8,
}

#[derive(Default)]
struct ConnState {
    /// Where a connect goes: the kernel reads it.
    peer: Option<Box<SockAddr>>,
    /// A receive is with the kernel.
    receiving: bool,
    /// That one goes on by itself, up to 32 buffers in one turn.
    multishot: bool,
    /// It found no buffer.
    starved: bool,
    cancelling: bool,
    /// It was asked to tell when the peer hangs up.
    watched: bool,
    hung_up: bool,
    /// The receive was armed before the peer hung up: it may never tell (see [`Core::settle_conns`]).
    recheck: bool,
    /// Operations that the kernel holds.
    ops: u8,
}

/// A `send` in progress, boxed: the kernel reads `header` and `parts` when the operation is submitted.
struct Sending {
    out: Outgoing,
    header: libc::msghdr,
    /// At most `SEND_PARTS_MAX`. Not touched while the operation is with the kernel.
    parts: Vec<libc::iovec>,
}

impl Sending {
    fn new(out: Outgoing) -> Box<Sending> {
        // SAFETY: plain structs of integers and pointers, for which all zeros is a value.
        unsafe { Box::new(Sending { out, header: std::mem::zeroed(), parts: vec![] }) }
    }

    /// The operation that sends the next parts. Valid while the box stays and nothing is advanced.
    fn entry(&mut self, fd: RawFd) -> squeue::Entry {
        self.parts.clear();
        let parts = self.out.next_parts();
        self.parts
            .extend(parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }));
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len();
        // The kernel goes on by itself when the socket has room again: one completion for all parts, and not one for
        // each time that the peer has taken some.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        opcode::SendMsg::new(types::Fd(fd), &self.header).flags(flags as u32).build()
    }
}

/// The kernel's side of a core: its ring, and what waits for it. Lives on the core's thread.
struct Ring {
    ring: IoUring,
    /// What the submission queue had no room for, in order.
    backlog: VecDeque<Submission>,
    recv_buffer_bytes: u32,
    /// A receive found no buffer since the connections were settled last.
    starved: bool,
    /// To be used again.
    #[allow(clippy::vec_box, reason = "they move in and out of connections, and the kernel knows their addresses")]
    spare: Vec<Box<Sending>>,
    wake_buf: Box<u64>,
    wake_armed: bool,
    wake_cancelling: bool,
    /// Not to be armed again.
    wake_over: bool,
}

type Core = real::Core<Ring>;
type Listener = real::Listener<Ring>;
type Conn = real::Conn<Ring>;

impl Kernel for Ring {
    type Transfers = RingTransfers;
    type Socket = Socket;
    type Listener = ListenerState;
    type Conn = ConnState;
    type Sending = Box<Sending>;
    type Inbox = Inbox;

    fn settle(core: &mut Core) -> Result<(), RtError> {
        if !core.kernel.wake_armed && !core.kernel.wake_over {
            core.arm_wake();
        }
        core.settle_listeners();
        core.settle_conns();
        Ok(())
    }

    fn completions<D: Driver>(core: &mut Core, inbox: &mut Inbox, driver: &mut D) -> Result<u64, RtError> {
        let Inbox { recv, done } = inbox;
        done.extend(core.kernel.ring.completion());
        let events = done.len() as u64;
        for entry in done.drain(..) {
            core.completed(recv, driver, entry.user_data(), entry.result(), entry.flags());
        }
        Ok(events)
    }

    fn listen(&mut self, socket: Socket, _slot: usize) -> io::Result<Listener> {
        Ok(Listener::new(socket, ListenerState { open: true, armed: false, cancelling: false, ops: 0 }))
    }

    fn stop_listening(core: &mut Core, slot: usize) {
        if let Some(Some(listener)) = core.listeners.get_mut(slot) {
            listener.own.open = false;
        }
    }

    fn connect(core: &mut Core, socket: Socket, addr: SocketAddr) -> io::Result<ConnId> {
        let peer = Box::new(SockAddr::from(addr));
        let fd = types::Fd(socket.as_raw_fd());
        let entry = opcode::Connect::new(fd, peer.as_ptr().cast(), peer.len()).build();
        let own = ConnState { peer: Some(peer), ops: 1, ..ConnState::default() };
        let id = core.conns.insert(Conn { connecting: true, ..Conn::new(socket, own) });
        core.kernel.push(entry.user_data(Op::Connect.tag(id.slot)));
        Ok(id)
    }

    fn sending(&mut self, out: Outgoing) -> Box<Sending> {
        match self.spare.pop() {
            Some(mut spare) => {
                spare.out = out;
                spare
            }
            None => Sending::new(out),
        }
    }

    fn send(core: &mut Core, id: ConnId) {
        let conn = core.conns.get(id).expect("checked by the caller");
        let sending = conn.sending.as_mut().expect("checked by the caller");
        conn.own.ops += 1;
        let entry = sending.entry(conn.socket.as_raw_fd()).user_data(Op::Send.tag(id.slot));
        core.kernel.push(entry);
    }

    fn sent(&mut self, sending: Option<Box<Sending>>) {
        self.spare.extend(sending.filter(|sending| sending.parts.capacity() <= SPARE_PARTS_MAX));
        self.spare.truncate(SPARE_SENDS_MAX);
    }

    /// What the kernel holds of it ends soon.
    fn closing(conn: &mut Conn) {
        if !conn.connecting {
            // An error says that it is down already.
            let _ = conn.socket.shutdown(Shutdown::Both);
        }
    }

    fn holds(conn: &Conn) -> u8 {
        conn.own.ops
    }

    fn is_over(core: &mut Core) -> bool {
        let idle = core.idle();
        if !idle {
            core.kernel.cancel_wake();
        }
        idle
    }
}

impl Blocks for Ring {
    fn wait(core: &mut Core, inbox: &mut Inbox, until: Option<Mono>) -> Result<(), RtError> {
        inbox.recv.publish();
        let timeout = core.timeout(until);
        let is_due = timeout.is_some_and(|timeout| timeout.is_zero());
        let rests =
            !is_due && core.local.is_empty() && !core.disk.has_done() && core.kernel.ring.completion().is_empty();
        let all_queued = core.fill_queue(rests)?;
        let ring = &mut core.kernel.ring;
        let at_hand = !all_queued
            || !core.local.is_empty()
            || core.disk.has_done()
            || is_due
            || ring.submission().cq_overflow()
            || !ring.completion().is_empty();
        let want = usize::from(!at_hand && core.bell.parking().sleep());
        core.enter(want, timeout.filter(|_| want > 0)).map(|_| ())
    }
}

impl Ring {
    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(Submission::One(entry));
    }

    fn cancel_wake(&mut self) {
        self.wake_over = true;
        if self.wake_armed && !self.wake_cancelling {
            self.wake_cancelling = true;
            self.push(opcode::AsyncCancel::new(Op::Wake.tag(0)).build().user_data(Op::WakeCancel.tag(0)));
        }
    }
}

impl Core {
    /// Nothing of ours is with the kernel or with a helper.
    fn idle(&self) -> bool {
        let waking = self.kernel.wake_armed || self.kernel.wake_cancelling;
        self.is_empty() && self.kernel.backlog.is_empty() && !waking
    }

    /// Moves what is to be submitted into the submission queue, submitting as often as it is full. False: the kernel
    /// takes no more before completions are taken from it. `rests`: the driver has nothing to do now.
    fn fill_queue(&mut self, rests: bool) -> Result<bool, RtError> {
        self.disk.issue(&self.kernel.ring.submitter(), rests, |submission| self.kernel.backlog.push_back(submission));
        loop {
            {
                let mut queue = self.kernel.ring.submission();
                while let Some(next) = self.kernel.backlog.front() {
                    // SAFETY: everything that an entry names outlives it: receive buffers, the bell's buffer and
                    // whatever a connection or the disk holds for an operation stay in place until its completion is
                    // seen, and all of that is leaked rather than dropped when the loop ends otherwise (top of this
                    // file).
                    let pushed = unsafe {
                        match next {
                            Submission::One(entry) => queue.push(entry),
                            Submission::Linked(first, second) => queue.push_multiple(&[first.clone(), second.clone()]),
                        }
                    };
                    if pushed.is_err() {
                        break;
                    }
                    self.kernel.backlog.pop_front();
                }
            }
            if self.kernel.backlog.is_empty() {
                return Ok(true);
            }
            self.stats.turns.submissions_full.fetch_add(1, Ordering::Relaxed);
            if !self.enter(0, None)? {
                return Ok(false);
            }
        }
    }

    /// The system call: submits the queue and waits for `want` completions, not beyond `timeout`. False: nothing was
    /// submitted, though there was something to submit.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> Result<bool, RtError> {
        let (queued, flagged, overflow) = {
            let queue = self.kernel.ring.submission();
            (queue.len(), queue.taskrun() || queue.cq_overflow(), queue.cq_overflow())
        };
        if overflow {
            self.stats.turns.completions_full.fetch_add(1, Ordering::Relaxed);
        }
        if queued == 0 && want == 0 && !flagged {
            return Ok(true);
        }
        let timespec = timeout.map(types::Timespec::from);
        let mut args = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        // A core that waits for work is idle, not waiting for the disk, whatever the accounting says since 6.5.
        let no_iowait = want > 0 && self.kernel.ring.params().is_feature_no_iowait();
        let flags = if no_iowait { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
        match self.kernel.ring.submitter().submit_with_args_and_flags(want, &args, flags) {
            Ok(taken) => {
                if taken < queued {
                    // Short of memory in the middle: a link may have been cut there.
                    self.disk.cut_short();
                }
                Ok(queued == 0 || taken > 0)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(queued == 0),
                _ => Err(self.failed("io_uring_enter")(error)),
            },
        }
    }

    fn completed<D: Driver>(&mut self, recv: &mut RecvBufs, driver: &mut D, data: u64, result: i32, flags: u32) {
        if data & DISK_TAG != 0 {
            return self.disk.completed(data & !DISK_TAG, result);
        }
        let (op, slot) = Op::untag(data);
        match op {
            Op::Wake => self.kernel.wake_armed = false,
            Op::WakeCancel => self.kernel.wake_cancelling = false,
            Op::Accept => self.accept_completed(driver, slot, result, cqueue::more(flags)),
            Op::AcceptCancel => {
                let listener = self.listeners[slot as usize].as_mut().expect("a listener stays while ops > 0");
                listener.own.cancelling = false;
                listener.own.ops -= 1;
            }
            Op::Receive => {
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                let open = conn.closing.is_none();
                if let Some(buffer) = cqueue::buffer_select(flags) {
                    if let Ok(len @ 1..) = usize::try_from(result)
                        && open
                    {
                        conn.own.starved = false;
                        let bytes = recv.get(buffer, len);
                        driver.event(self, Event::Received { conn: id, bytes });
                    }
                    recv.give(buffer);
                }
                if result == -libc::ENOBUFS {
                    let conn = self.conns.get(id).expect("a connection stays while ops > 0");
                    conn.own.starved = true;
                    self.kernel.starved = true;
                    self.stats.turns.recv_starved.fetch_add(1, Ordering::Relaxed);
                }
                if !cqueue::more(flags) {
                    let conn = self.conns.get(id).expect("a connection stays while ops > 0");
                    conn.own.receiving = false;
                    conn.own.ops -= 1;
                    match result {
                        0 => self.begin_close(id, CloseReason::Peer),
                        // Paused, out of buffers (they are given back in this turn), interrupted: armed anew if wanted.
                        1.. => {}
                        _ if [libc::ECANCELED, libc::ENOBUFS, libc::EINTR, libc::EAGAIN].contains(&-result) => {}
                        _ => self.begin_close(id, CloseReason::Error(-result)),
                    }
                }
                self.mark_dirty(id);
            }
            Op::Cancel => {
                // A multishot receive that is just being queued again is not found (ENOENT). Its pause is complete when
                // its own last completion comes; until then `settle` cancels again.
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                conn.own.cancelling = false;
                conn.own.ops -= 1;
                conn.own.recheck |= conn.own.hung_up && conn.own.receiving && result != 0;
                if conn.own.receiving && result == -libc::ENOENT {
                    self.stats.turns.pauses_repeated.fetch_add(1, Ordering::Relaxed);
                }
                self.mark_dirty(id);
            }
            Op::Connect => {
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                conn.connecting = false;
                conn.own.peer = None;
                conn.own.ops -= 1;
                let open = conn.closing.is_none();
                self.mark_dirty(id);
                match result {
                    0 if open => driver.event(self, Event::Connected { conn: id }),
                    _ => self.begin_close(id, CloseReason::Error(-result)),
                }
            }
            Op::Send => self.send_completed(driver, slot, result),
            Op::HangUp => {
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                conn.own.hung_up = true;
                conn.own.recheck = conn.own.receiving;
                conn.own.ops -= 1;
                self.mark_dirty(id);
            }
        }
    }

    fn accept_completed<D: Driver>(&mut self, driver: &mut D, slot: u32, result: i32, more: bool) {
        let full = self.is_full();
        let listener = self.listeners[slot as usize].as_mut().expect("a listener stays while ops > 0");
        if !more {
            listener.own.armed = false;
            listener.own.ops -= 1;
        }
        let (open, full) = (listener.own.open, !listener.has_room(full));
        if result < 0 {
            if ![libc::ECANCELED, libc::ECONNABORTED, libc::EINTR].contains(&-result) {
                self.accept_failed(slot as usize);
            }
            return;
        }
        // SAFETY: the kernel made this descriptor for us, and nobody else has it.
        let socket = unsafe { Socket::from_raw_fd(result) };
        if full || !open {
            self.stats.turns.conns_refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let peer = socket.peer_addr().and_then(|peer| machine::address(&peer));
        self.report_accepted(driver, slot as usize, Conn::new(socket, ConnState::default()), peer);
    }

    fn send_completed<D: Driver>(&mut self, driver: &mut D, slot: u32, result: i32) {
        let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
        conn.own.ops -= 1;
        if conn.closing.is_some() {
            return self.mark_dirty(id);
        }
        let sending = conn.sending.as_mut().expect("a send is kept until it ends");
        match usize::try_from(result) {
            Ok(taken) => sending.out.advance(taken),
            Err(_) if [libc::EINTR, libc::EAGAIN].contains(&-result) => {}
            Err(_) => return self.begin_close(id, CloseReason::Error(-result)),
        }
        if sending.out.is_done() { self.report_sent(driver, id) } else { Ring::send(self, id) }
    }

    fn arm_wake(&mut self) {
        let (fd, into) = (types::Fd(self.bell.fd().as_raw_fd()), &raw mut *self.kernel.wake_buf);
        let entry = opcode::Read::new(fd, into.cast(), 8).build();
        self.kernel.push(entry.user_data(Op::Wake.tag(0)));
        self.kernel.wake_armed = true;
    }

    /// A multishot receive loses the end of a connection that comes right behind bytes: the kernel counts both wake-ups
    /// as one, reads the bytes, and waits for a third (Linux before "io_uring/poll: fix multishot recv missing EOF on
    /// wakeup race"). So each connection is also polled for its end, once; then its receive is armed anew, and finds
    /// what there is: bytes, and the end.
    ///
    /// While memory is short the receives are single ones, so that the driver sees each buffer before the next is
    /// filled; multishot ones are ended first. Single are also those of connections that found no buffer, and these
    /// come first, in the order in which they found none: a few with much to bring would take all buffers each time.
    fn settle_conns(&mut self) {
        let recv_bytes = self.kernel.recv_buffer_bytes;
        let mut dirty = std::mem::take(&mut self.dirty);
        if std::mem::take(&mut self.kernel.starved) {
            dirty.sort_by_key(|slot| !self.conns.at(*slot).is_some_and(|(_, conn)| conn.own.starved));
        }
        for slot in dirty.drain(..) {
            let Some((id, _)) = self.conns.at(slot) else { continue };
            let sparing = self.spares(id);
            let conn = self.conns.get(id).expect("just seen");
            conn.dirty = false;
            let fd = types::Fd(conn.socket.as_raw_fd());
            if conn.closing.is_some() && conn.own.ops == 0 {
                if !conn.gone {
                    conn.gone = true;
                    self.local.push_back(Local::Closed(id));
                }
                continue;
            }
            let idle = !conn.own.receiving && !conn.connecting;
            let wanted = conn.closing.is_none() && (conn.want_bytes || conn.connecting);
            let ended = std::mem::take(&mut conn.own.recheck);
            let again = (ended || sparing && conn.own.multishot) && conn.own.receiving;
            if wanted && idle {
                conn.own.receiving = true;
                conn.own.ops += 1;
                conn.own.multishot = !sparing && !conn.own.starved;
                let entry = if !conn.own.multishot {
                    let entry = opcode::Recv::new(fd, std::ptr::null_mut(), recv_bytes).buf_group(BUF_GROUP).build();
                    entry.flags(squeue::Flags::BUFFER_SELECT)
                } else {
                    opcode::RecvMulti::new(fd, BUF_GROUP).build()
                };
                self.kernel.push(entry.user_data(Op::Receive.tag(slot)));
                if !std::mem::replace(&mut conn.own.watched, true) {
                    conn.own.ops += 1;
                    let entry = opcode::PollAdd::new(fd, HANG_UP).build();
                    self.kernel.push(entry.user_data(Op::HangUp.tag(slot)));
                }
            } else if (!wanted && !idle || again) && !conn.own.cancelling {
                let op = if conn.connecting { Op::Connect } else { Op::Receive };
                conn.own.cancelling = true;
                conn.own.ops += 1;
                let entry = opcode::AsyncCancel::new(op.tag(slot)).build();
                self.kernel.push(entry.user_data(Op::Cancel.tag(slot)));
            }
        }
        // Nothing came in between: it keeps its memory.
        self.dirty = dirty;
    }

    fn settle_listeners(&mut self) {
        let full = self.is_full();
        for (slot, entry) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = entry else { continue };
            let slot = slot as u32;
            let wanted = !listener.rests() && listener.own.open && listener.has_room(full);
            if wanted && !listener.own.armed {
                listener.own.armed = true;
                listener.own.ops += 1;
                let fd = types::Fd(listener.socket.as_raw_fd());
                let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
                self.kernel.push(entry.user_data(Op::Accept.tag(slot)));
            } else if !wanted && listener.own.armed && !listener.own.cancelling {
                listener.own.cancelling = true;
                listener.own.ops += 1;
                let entry = opcode::AsyncCancel::new(Op::Accept.tag(slot)).build();
                self.kernel.push(entry.user_data(Op::AcceptCancel.tag(slot)));
            } else if !listener.own.open && listener.own.ops == 0 {
                *entry = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bell, Rt, Turn};
    use super::*;
    use crate::types::CoreId;

    /// Keeps what it was told.
    #[derive(Default)]
    struct Told(Vec<String>);

    impl Driver for Told {
        fn start(&mut self, _: &mut dyn Rt) {}
        fn event(&mut self, _: &mut dyn Rt, event: Event<'_>) {
            self.0.push(format!("{event:?}"));
        }
        fn turn_end(&mut self, _: &mut dyn Rt) -> Turn {
            Turn::Stop
        }
    }

    /// Plays the kernel: what is asked of it, by kind.
    fn asked(core: &mut Core) -> Vec<Op> {
        let entries = core.kernel.backlog.drain(..).map(|submission| match submission {
            Submission::One(entry) => Op::untag(entry.get_user_data()).0,
            Submission::Linked(..) => panic!("only the disk links"),
        });
        entries.filter(|op| *op != Op::Wake).collect()
    }

    /// Of a core whose ring nothing is ever submitted to, so that it may be dropped.
    fn with_one_connection() -> (Core, Inbox, ConnId) {
        let dir = tempfile::tempdir().expect("a directory");
        let config = CoreConfig::new(CoreId(0), dir.path().to_owned(), Bell::new().expect("a descriptor"));
        let UringShell { core, inbox } = UringShell::new(&config).expect("a ring");
        let (mut core, inbox) = (ManuallyDrop::into_inner(core), ManuallyDrop::into_inner(inbox));
        let (socket, _) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("sockets");
        let conn = core.conns.insert(Conn::new(socket, ConnState::default()));
        core.mark_dirty(conn);
        (core, inbox, conn)
    }

    /// Lost if it fails: the bound on what a client can make the broker take: a multishot receive that is just being
    /// queued again is not found by its cancel (ENOENT), and goes on.
    #[test]
    fn a_pause_that_did_not_find_its_receive_is_asked_for_again_until_it_ends() {
        let (mut core, mut inbox, conn) = with_one_connection();
        let mut driver = Told::default();
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Receive, Op::HangUp]);
        core.set_receiving(conn, false);
        Ring::settle(&mut core).expect("nothing can fail");
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Cancel], "once, while there is no answer");
        core.completed(&mut inbox.recv, &mut driver, Op::Cancel.tag(conn.slot), -libc::ENOENT, 0);
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Cancel]);
        // Its answer comes before the receive's end: the pause is complete with the latter only.
        core.completed(&mut inbox.recv, &mut driver, Op::Cancel.tag(conn.slot), 0, 0);
        core.set_receiving(conn, true);
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [], "it is still armed, as far as one knows");
        core.completed(&mut inbox.recv, &mut driver, Op::Receive.tag(conn.slot), -libc::ECANCELED, 0);
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Receive], "and armed anew, since it is wanted");
        // A close waits for everything that the kernel holds.
        core.close(conn);
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Cancel]);
        core.completed(&mut inbox.recv, &mut driver, Op::Receive.tag(conn.slot), 0, 0);
        core.completed(&mut inbox.recv, &mut driver, Op::HangUp.tag(conn.slot), 0, 0);
        Ring::settle(&mut core).expect("nothing can fail");
        assert!(core.local.is_empty() && core.conns.get(conn).is_some(), "the cancel has not ended");
        core.completed(&mut inbox.recv, &mut driver, Op::Cancel.tag(conn.slot), -libc::ENOENT, 0);
        Ring::settle(&mut core).expect("nothing can fail");
        assert!(matches!(core.local.pop_front(), Some(Local::Closed(id)) if id == conn));
        assert_eq!(driver.0, Vec::<String>::new());
        drop(core);
    }

    /// Lost if it fails: a descriptor, and the memory of half a request, for each client that is reset at the wrong
    /// moment, until it has been idle for long: the kernel does not tell of an end right behind bytes.
    #[test]
    fn an_end_that_the_receive_does_not_tell_of_is_looked_for_when_the_peer_hangs_up() {
        let (mut core, mut inbox, conn) = with_one_connection();
        let mut driver = Told::default();
        let mut done = |core: &mut Core, op: Op, result| {
            core.completed(&mut inbox.recv, &mut driver, op.tag(conn.slot), result, 0);
            Ring::settle(core).expect("nothing can fail");
            asked(core)
        };
        Ring::settle(&mut core).expect("nothing can fail");
        assert_eq!(asked(&mut core), [Op::Receive, Op::HangUp]);
        assert_eq!(
            done(&mut core, Op::HangUp, i32::from(libc::POLLRDHUP)),
            [Op::Cancel],
            "the receive may sleep over it"
        );
        assert_eq!(done(&mut core, Op::Cancel, -libc::ENOENT), [Op::Cancel], "until it is ended");
        assert_eq!(done(&mut core, Op::Cancel, 0), []);
        assert_eq!(done(&mut core, Op::Receive, -libc::ECANCELED), [Op::Receive], "what is left is received");
        assert_eq!(done(&mut core, Op::Receive, -libc::ECONNRESET), []);
        assert!(matches!(core.local.pop_front(), Some(Local::Closed(id)) if id == conn));
        drop(core);
    }
}
