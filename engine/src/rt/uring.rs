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
//! `Core` and `RecvBufs` are dropped only after [`Core::idle`]; on any other way out (an error, a panic of the driver)
//! they are leaked, and the process is about to end.

use super::core::{CoreConfig, RtError, RtUnavailable};
use super::machine;
use super::outgoing::Outgoing;
use super::rng::Rng;
use super::slots::Slots;
use super::{Bell, CloseReason, ConnId, Driver, Event, ListenerId, Rt, Turn, Waker};
use crate::io::Disk;
use crate::io::buf::AlignedBuf;
use crate::io::uring::{DISK_TAG, RingDisk, Submission, probe};
use crate::limits::{BLOCK_BYTES, LISTENERS_MAX, SEND_PARTS_MAX};
use crate::stats::CoreStats;
use crate::types::{CoreId, Mono, WallMs};
use bytes::Bytes;
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use socket2::{SockAddr, Socket};
use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// How long accepting rests after a failure: at once would spin, since what is missing is still missing.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// A ring's memory is counted per user and given back late after a process ends: a restart has to wait for it.
const SETUP_TRIES: u32 = 6;
const SETUP_PAUSE: Duration = Duration::from_millis(500);
/// Sends that are kept for the next ones.
const SPARE_SENDS_MAX: usize = 64;
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
}

impl Op {
    fn tag(self, slot: u32) -> u64 {
        ((self as u64) << 56) | u64::from(slot)
    }

    fn untag(data: u64) -> (Op, u32) {
        const ALL: [Op; 8] =
            [Op::Accept, Op::AcceptCancel, Op::Connect, Op::Receive, Op::Send, Op::Cancel, Op::Wake, Op::WakeCancel];
        let kind = ALL.into_iter().find(|op| *op as u64 == data >> 56);
        (kind.unwrap_or_else(|| panic!("a completion of an unknown kind: {data:#x}")), data as u32)
    }
}

/// The ring is up, on the thread that will run it: it takes submissions from its maker only.
pub(super) struct UringShell {
    core: ManuallyDrop<Core>,
    recv: ManuallyDrop<RecvBufs>,
}

impl UringShell {
    pub(super) fn new(config: &CoreConfig) -> Result<UringShell, RtError> {
        let setup = |what: &str| {
            let what = format!("{what} {}", config.wal_dir.display());
            move |error| RtError::Setup { what, error }
        };
        let method = match config.durable {
            Some(method) => method,
            None => probe(&config.wal_dir).map_err(setup("the WAL directory"))?,
        };
        let ring = build_ring(config)?;
        let recv = with_patience("receive buffers", || RecvBufs::new(&ring, config))?;
        let disk = RingDisk::new(
            config.core,
            config.wal_dir.clone(),
            method,
            config.regions.clone(),
            config.bell.waker(),
            config.stats.clone(),
            &ring.submitter(),
        );
        let core = Core {
            id: config.core,
            ring,
            backlog: VecDeque::new(),
            disk,
            conns: Slots::new(),
            accepted: 0,
            conns_max: config.conns_max,
            listeners: vec![],
            dirty: vec![],
            local: VecDeque::new(),
            spare: vec![],
            bell: config.bell.clone(),
            wake_buf: Box::new(0),
            wake_armed: false,
            wake_cancelling: false,
            wake_over: false,
            rng: machine::seeded(),
            stats: config.stats.clone(),
        };
        Ok(UringShell { core: ManuallyDrop::new(core), recv: ManuallyDrop::new(recv) })
    }

    pub(super) fn run<D: Driver>(mut self, driver: &mut D) -> Result<(), RtError> {
        self.core.run(&mut self.recv, driver)?;
        assert!(self.core.idle(), "the loop ended with operations in the kernel");
        // In this order: the ring goes before the memory that it was given.
        drop(ManuallyDrop::into_inner(self.core));
        drop(ManuallyDrop::into_inner(self.recv));
        Ok(())
    }
}

fn build_ring(config: &CoreConfig) -> Result<IoUring, RtError> {
    let ring = with_patience("a ring", || {
        IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(config.tuning.ring_completions)
            .build(config.tuning.ring_entries)
    })?;
    if !(ring.params().is_feature_nodrop() && ring.params().is_feature_ext_arg()) {
        let error = io::Error::from_raw_os_error(libc::ENOSYS);
        return Err(RtUnavailable { what: "a ring that loses no completion", error }.into());
    }
    Ok(ring)
}

/// Tries again while memory is missing; says that io_uring is not available where that is the reason.
fn with_patience<T>(what: &'static str, mut make: impl FnMut() -> io::Result<T>) -> Result<T, RtError> {
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

struct Listener {
    socket: Socket,
    open: bool,
    armed: bool,
    cancelling: bool,
    ops: u8,
    /// Not before this.
    rest_until: Option<Mono>,
}

struct Conn {
    socket: Socket,
    accepted: bool,
    connecting: bool,
    /// Where a connect goes: the kernel reads it.
    peer: Option<Box<SockAddr>>,
    /// What the driver wants.
    want_bytes: bool,
    /// A receive is with the kernel.
    receiving: bool,
    cancelling: bool,
    sending: Option<Box<Sending>>,
    closing: Option<CloseReason>,
    /// Operations that the kernel holds.
    ops: u8,
    /// In `Core::dirty`.
    dirty: bool,
    /// Its descriptor is closed; `Closed` is waiting in `Core::local`.
    gone: bool,
}

impl Conn {
    fn new(socket: Socket) -> Conn {
        Conn {
            socket,
            accepted: false,
            connecting: false,
            peer: None,
            want_bytes: true,
            receiving: false,
            cancelling: false,
            sending: None,
            closing: None,
            ops: 0,
            dirty: false,
            gone: false,
        }
    }
}

/// A `send` in progress, boxed: the kernel reads `header` and `parts` when the operation is submitted.
struct Sending {
    out: Outgoing,
    header: libc::msghdr,
    parts: [libc::iovec; SEND_PARTS_MAX],
}

impl Sending {
    fn new(out: Outgoing) -> Box<Sending> {
        // SAFETY: plain structs of integers and pointers, for which all zeros is a value.
        unsafe { Box::new(Sending { out, header: std::mem::zeroed(), parts: std::mem::zeroed() }) }
    }

    /// The operation that sends the next parts. Valid while the box stays and nothing is advanced.
    fn entry(&mut self, fd: RawFd) -> squeue::Entry {
        let mut count = 0;
        for (slot, part) in self.parts.iter_mut().zip(self.out.next_parts()) {
            *slot = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
            count += 1;
        }
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = count;
        opcode::SendMsg::new(types::Fd(fd), &self.header).flags(libc::MSG_NOSIGNAL as u32).build()
    }
}

/// What was decided here rather than by the kernel, and is to be told to the driver.
enum Local {
    Sent(ConnId),
    Closed(ConnId),
}

/// Everything of a core but its driver and its receive buffers. Is the [`Rt`] that the driver sees.
struct Core {
    id: CoreId,
    ring: IoUring,
    /// What the submission queue had no room for, in order.
    backlog: VecDeque<Submission>,
    disk: RingDisk,
    conns: Slots<Conn>,
    /// Of them, the accepted ones.
    accepted: usize,
    conns_max: usize,
    listeners: Vec<Option<Listener>>,
    /// Slots whose operations may not be what is wanted.
    dirty: Vec<u32>,
    local: VecDeque<Local>,
    /// To be used again.
    #[allow(clippy::vec_box, reason = "they move in and out of connections, and the kernel knows their addresses")]
    spare: Vec<Box<Sending>>,
    bell: Bell,
    wake_buf: Box<u64>,
    wake_armed: bool,
    wake_cancelling: bool,
    /// Not to be armed again.
    wake_over: bool,
    rng: Rng,
    stats: Arc<CoreStats>,
}

impl Core {
    fn run<D: Driver>(&mut self, recv: &mut RecvBufs, driver: &mut D) -> Result<(), RtError> {
        let mut done: Vec<cqueue::Entry> = vec![];
        driver.start(self);
        let mut turn = Turn::Again;
        while turn != Turn::Stop {
            let until = match turn {
                Turn::Wait { until } => until,
                Turn::Again | Turn::Stop => Some(Mono(0)),
            };
            self.settle();
            self.wait(recv, until)?;
            let began = machine::mono();
            let events = self.events(recv, driver, &mut done);
            turn = driver.turn_end(self);
            self.stats.turns.turn(machine::mono().0.saturating_sub(began.0), events);
        }
        self.wind_up(recv, driver, &mut done)
    }

    /// After the driver's last turn: every operation ends before the loop does. Its ends are still reported.
    fn wind_up<D: Driver>(
        &mut self,
        recv: &mut RecvBufs,
        driver: &mut D,
        done: &mut Vec<cqueue::Entry>,
    ) -> Result<(), RtError> {
        self.disk.stop();
        loop {
            // Each time anew: the driver may have asked for more.
            self.listeners.iter_mut().flatten().for_each(|listener| listener.open = false);
            for id in self.conns.ids() {
                self.begin_close(id, CloseReason::Asked);
            }
            self.settle();
            // The bell is the last to go: the disk's helper rings it.
            if self.conns.len() == 0
                && self.disk.outstanding() == 0
                && self.listeners.iter().all(Option::is_none)
                && self.local.is_empty()
            {
                if self.idle() {
                    return Ok(());
                }
                self.cancel_wake();
            }
            self.wait(recv, None)?;
            self.events(recv, driver, done);
        }
    }

    /// Nothing of ours is with the kernel or with a helper.
    fn idle(&self) -> bool {
        let listening = self.listeners.iter().any(Option::is_some);
        let waking = self.wake_armed || self.wake_cancelling;
        self.conns.len() == 0 && self.backlog.is_empty() && self.disk.outstanding() == 0 && !listening && !waking
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RtError + use<> {
        let core = self.id;
        move |error| RtError::Loop { core, what, error }
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(Submission::One(entry));
    }

    /// Moves what is to be submitted into the submission queue, submitting as often as it is full. False: the kernel
    /// takes no more before completions are taken from it.
    fn fill_queue(&mut self) -> Result<bool, RtError> {
        self.disk.issue(&self.ring.submitter(), |submission| self.backlog.push_back(submission));
        loop {
            {
                let mut queue = self.ring.submission();
                while let Some(next) = self.backlog.front() {
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
                    self.backlog.pop_front();
                }
            }
            if self.backlog.is_empty() {
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
            let queue = self.ring.submission();
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
        let no_iowait = want > 0 && self.ring.params().is_feature_no_iowait();
        let flags = if no_iowait { EnterFlags::NO_IOWAIT } else { EnterFlags::empty() };
        match self.ring.submitter().submit_with_args_and_flags(want, &args, flags) {
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

    /// Submits everything and waits for a completion, a wake-up, or the time `until`.
    fn wait(&mut self, recv: &mut RecvBufs, until: Option<Mono>) -> Result<(), RtError> {
        recv.publish();
        let all_queued = self.fill_queue()?;
        let rest = self.listeners.iter().flatten().filter_map(|listener| listener.rest_until).min();
        let timeout = until.into_iter().chain(rest).min().map(|until| until.since(machine::mono()));
        let at_hand = !all_queued
            || !self.local.is_empty()
            || self.disk.has_done()
            || timeout.is_some_and(|timeout| timeout.is_zero())
            || self.ring.submission().cq_overflow()
            || !self.ring.completion().is_empty();
        let want = usize::from(!at_hand && self.bell.parking().sleep());
        self.enter(want, timeout.filter(|_| want > 0)).map(|_| ())
    }

    /// Reports what happened; returns how much it was.
    fn events<D: Driver>(&mut self, recv: &mut RecvBufs, driver: &mut D, done: &mut Vec<cqueue::Entry>) -> u64 {
        let mut events = 0;
        if self.bell.parking().awake() {
            driver.event(self, Event::Woken);
            events += 1;
        }
        done.extend(self.ring.completion());
        for entry in done.drain(..) {
            events += 1;
            self.completed(recv, driver, entry.user_data(), entry.result(), entry.flags());
        }
        self.settle();
        // Only what is there now: what these events lead to belongs to the next turn.
        for _ in 0..self.local.len() {
            let Some(local) = self.local.pop_front() else { break };
            events += 1;
            match local {
                Local::Sent(id) => self.report_sent(driver, id),
                Local::Closed(id) => {
                    let conn = self.conns.remove(id).expect("closed once");
                    assert_eq!(conn.ops, 0, "{id:?} is closed with operations in the kernel");
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
        events
    }

    fn completed<D: Driver>(&mut self, recv: &mut RecvBufs, driver: &mut D, data: u64, result: i32, flags: u32) {
        if data & DISK_TAG != 0 {
            return self.disk.completed(data & !DISK_TAG, result);
        }
        let (op, slot) = Op::untag(data);
        match op {
            Op::Wake => self.wake_armed = false,
            Op::WakeCancel => self.wake_cancelling = false,
            Op::Accept => self.accept_completed(driver, slot, result, cqueue::more(flags)),
            Op::AcceptCancel => {
                let listener = self.listeners[slot as usize].as_mut().expect("a listener stays while ops > 0");
                listener.cancelling = false;
                listener.ops -= 1;
            }
            Op::Receive => {
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                let open = conn.closing.is_none();
                if let Some(buffer) = cqueue::buffer_select(flags) {
                    if let Ok(len @ 1..) = usize::try_from(result)
                        && open
                    {
                        let bytes = recv.get(buffer, len);
                        driver.event(self, Event::Received { conn: id, bytes });
                    }
                    recv.give(buffer);
                }
                if result == -libc::ENOBUFS {
                    self.stats.turns.recv_starved.fetch_add(1, Ordering::Relaxed);
                }
                if !cqueue::more(flags) {
                    let conn = self.conns.get(id).expect("a connection stays while ops > 0");
                    conn.receiving = false;
                    conn.ops -= 1;
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
                conn.cancelling = false;
                conn.ops -= 1;
                if conn.receiving && result == -libc::ENOENT {
                    self.stats.turns.pauses_repeated.fetch_add(1, Ordering::Relaxed);
                }
                self.mark_dirty(id);
            }
            Op::Connect => {
                let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
                conn.connecting = false;
                conn.peer = None;
                conn.ops -= 1;
                let open = conn.closing.is_none();
                self.mark_dirty(id);
                match result {
                    0 if open => driver.event(self, Event::Connected { conn: id }),
                    _ => self.begin_close(id, CloseReason::Error(-result)),
                }
            }
            Op::Send => self.send_completed(driver, slot, result),
        }
    }

    fn accept_completed<D: Driver>(&mut self, driver: &mut D, slot: u32, result: i32, more: bool) {
        let full = self.accepted >= self.conns_max;
        let listener = self.listeners[slot as usize].as_mut().expect("a listener stays while ops > 0");
        if !more {
            listener.armed = false;
            listener.ops -= 1;
        }
        let open = listener.open;
        if result < 0 {
            if ![libc::ECANCELED, libc::ECONNABORTED, libc::EINTR].contains(&-result) {
                listener.rest_until = Some(machine::mono() + ACCEPT_RETRY);
                self.stats.turns.accept_failures.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        // SAFETY: the kernel made this descriptor for us, and nobody else has it.
        let socket = unsafe { Socket::from_raw_fd(result) };
        if full || !open {
            self.stats.turns.conns_refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // It may be gone already: then nobody needs to know of it.
        let peer = socket.peer_addr().and_then(|peer| machine::address(&peer));
        let Ok(peer) = machine::prepare(&socket).and(peer) else { return };
        let id = self.conns.insert(Conn { accepted: true, ..Conn::new(socket) });
        self.accepted += 1;
        self.mark_dirty(id);
        driver.event(self, Event::Accepted { listener: ListenerId(slot as u16), conn: id, peer });
    }

    fn send_completed<D: Driver>(&mut self, driver: &mut D, slot: u32, result: i32) {
        let (id, conn) = self.conns.at(slot).expect("a connection stays while ops > 0");
        conn.ops -= 1;
        if conn.closing.is_some() {
            return self.mark_dirty(id);
        }
        let sending = conn.sending.as_mut().expect("a send is kept until it ends");
        match usize::try_from(result) {
            Ok(taken) => sending.out.advance(taken),
            Err(_) if [libc::EINTR, libc::EAGAIN].contains(&-result) => {}
            Err(_) => return self.begin_close(id, CloseReason::Error(-result)),
        }
        if sending.out.is_done() { self.report_sent(driver, id) } else { self.arm_send(id) }
    }

    fn report_sent<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && conn.closing.is_none()
        {
            self.spare.extend(conn.sending.take());
            self.spare.truncate(SPARE_SENDS_MAX);
            driver.event(self, Event::Sent { conn: id });
        }
    }

    fn arm_send(&mut self, id: ConnId) {
        let conn = self.conns.get(id).expect("checked by the caller");
        let sending = conn.sending.as_mut().expect("checked by the caller");
        conn.ops += 1;
        let entry = sending.entry(conn.socket.as_raw_fd()).user_data(Op::Send.tag(id.slot));
        self.push(entry);
    }

    fn arm_wake(&mut self) {
        let entry =
            opcode::Read::new(types::Fd(self.bell.fd().as_raw_fd()), (&raw mut *self.wake_buf).cast(), 8).build();
        self.push(entry.user_data(Op::Wake.tag(0)));
        self.wake_armed = true;
    }

    fn cancel_wake(&mut self) {
        self.wake_over = true;
        if self.wake_armed && !self.wake_cancelling {
            self.wake_cancelling = true;
            self.push(opcode::AsyncCancel::new(Op::Wake.tag(0)).build().user_data(Op::WakeCancel.tag(0)));
        }
    }

    fn mark_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get(id)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(id.slot);
        }
    }

    /// Starts a close; the first reason counts. What the kernel holds ends by itself soon after the shutdown.
    fn begin_close(&mut self, id: ConnId, why: CloseReason) {
        let Some(conn) = self.conns.get(id) else { return };
        if conn.closing.is_none() {
            conn.closing = Some(why);
            if !conn.connecting {
                // An error says that it is down already.
                let _ = conn.socket.shutdown(Shutdown::Both);
            }
        }
        self.mark_dirty(id);
    }

    /// Brings the operations of listeners and changed connections in line with what is wanted now.
    fn settle(&mut self) {
        if !self.wake_armed && !self.wake_over {
            self.arm_wake();
        }
        self.settle_listeners();
        while let Some(slot) = self.dirty.pop() {
            let Some((id, conn)) = self.conns.at(slot) else { continue };
            conn.dirty = false;
            let fd = types::Fd(conn.socket.as_raw_fd());
            if conn.closing.is_some() && conn.ops == 0 {
                if !conn.gone {
                    conn.gone = true;
                    self.local.push_back(Local::Closed(id));
                }
                continue;
            }
            let idle = !conn.receiving && !conn.connecting;
            let wanted = conn.closing.is_none() && (conn.want_bytes || conn.connecting);
            if wanted && idle {
                conn.receiving = true;
                conn.ops += 1;
                let entry = opcode::RecvMulti::new(fd, BUF_GROUP).build();
                self.backlog.push_back(Submission::One(entry.user_data(Op::Receive.tag(slot))));
            } else if !wanted && !idle && !conn.cancelling {
                let op = if conn.connecting { Op::Connect } else { Op::Receive };
                conn.cancelling = true;
                conn.ops += 1;
                let entry = opcode::AsyncCancel::new(op.tag(slot)).build();
                self.backlog.push_back(Submission::One(entry.user_data(Op::Cancel.tag(slot))));
            }
        }
    }

    fn settle_listeners(&mut self) {
        let full = self.accepted >= self.conns_max;
        for (slot, entry) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = entry else { continue };
            let slot = slot as u32;
            if listener.rest_until.is_some_and(|until| until <= machine::mono()) {
                listener.rest_until = None;
            }
            let wanted = listener.open && !full && listener.rest_until.is_none();
            if wanted && !listener.armed {
                listener.armed = true;
                listener.ops += 1;
                let fd = types::Fd(listener.socket.as_raw_fd());
                let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
                self.backlog.push_back(Submission::One(entry.user_data(Op::Accept.tag(slot))));
            } else if !wanted && listener.armed && !listener.cancelling {
                listener.cancelling = true;
                listener.ops += 1;
                let entry = opcode::AsyncCancel::new(Op::Accept.tag(slot)).build();
                self.backlog.push_back(Submission::One(entry.user_data(Op::AcceptCancel.tag(slot))));
            } else if !listener.open && listener.ops == 0 {
                *entry = None;
            }
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
        let listener = Listener { socket, open: true, armed: false, cancelling: false, ops: 0, rest_until: None };
        self.listeners.push(Some(listener));
        Ok((ListenerId(self.listeners.len() as u16 - 1), addr))
    }

    fn stop_listening(&mut self, listener: ListenerId) {
        if let Some(Some(listener)) = self.listeners.get_mut(usize::from(listener.0)) {
            listener.open = false;
        }
    }

    fn connect(&mut self, addr: SocketAddr) -> io::Result<ConnId> {
        let peer = Box::new(SockAddr::from(addr));
        let conn = Conn::new(machine::outgoing(addr)?);
        let fd = types::Fd(conn.socket.as_raw_fd());
        let entry = opcode::Connect::new(fd, peer.as_ptr().cast(), peer.len()).build();
        let id = self.conns.insert(Conn { connecting: true, peer: Some(peer), ops: 1, ..conn });
        self.push(entry.user_data(Op::Connect.tag(id.slot)));
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
        let sending = match self.spare.pop() {
            Some(mut spare) => {
                spare.out = out;
                spare
            }
            None => Sending::new(out),
        };
        state.sending = Some(sending);
        if empty {
            self.local.push_back(Local::Sent(conn));
        } else {
            self.arm_send(conn);
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let entries = core.backlog.drain(..).map(|submission| match submission {
            Submission::One(entry) => Op::untag(entry.get_user_data()).0,
            Submission::Linked(..) => panic!("only the disk links"),
        });
        entries.filter(|op| *op != Op::Wake).collect()
    }

    /// Lost if it fails: the bound on what a client can make the broker take: a multishot receive that is just being
    /// queued again is not found by its cancel (ENOENT), and goes on.
    #[test]
    fn a_pause_that_did_not_find_its_receive_is_asked_for_again_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = CoreConfig::new(CoreId(0), dir.path().to_owned(), Bell::new().expect("a descriptor"));
        let UringShell { core, recv } = UringShell::new(&config).expect("a ring");
        // Nothing is ever submitted to the ring, so both may be dropped.
        let (mut core, mut recv) = (ManuallyDrop::into_inner(core), ManuallyDrop::into_inner(recv));
        let mut driver = Told::default();
        let (socket, _peer) = Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("sockets");
        let conn = core.conns.insert(Conn::new(socket));
        core.mark_dirty(conn);
        core.settle();
        assert_eq!(asked(&mut core), [Op::Receive]);
        core.set_receiving(conn, false);
        core.settle();
        core.settle();
        assert_eq!(asked(&mut core), [Op::Cancel], "once, while there is no answer");
        core.completed(&mut recv, &mut driver, Op::Cancel.tag(conn.slot), -libc::ENOENT, 0);
        core.settle();
        assert_eq!(asked(&mut core), [Op::Cancel]);
        // Its answer comes before the receive's end: the pause is complete with the latter only.
        core.completed(&mut recv, &mut driver, Op::Cancel.tag(conn.slot), 0, 0);
        core.set_receiving(conn, true);
        core.settle();
        assert_eq!(asked(&mut core), [], "it is still armed, as far as one knows");
        core.completed(&mut recv, &mut driver, Op::Receive.tag(conn.slot), -libc::ECANCELED, 0);
        core.settle();
        assert_eq!(asked(&mut core), [Op::Receive], "and armed anew, since it is wanted");
        // A close waits for everything that the kernel holds.
        core.close(conn);
        core.settle();
        assert_eq!(asked(&mut core), [Op::Cancel]);
        core.completed(&mut recv, &mut driver, Op::Receive.tag(conn.slot), 0, 0);
        core.settle();
        assert!(core.local.is_empty() && core.conns.get(conn).is_some(), "the cancel has not ended");
        core.completed(&mut recv, &mut driver, Op::Cancel.tag(conn.slot), -libc::ENOENT, 0);
        core.settle();
        assert!(matches!(core.local.pop_front(), Some(Local::Closed(id)) if id == conn));
        assert_eq!(driver.0, Vec::<String>::new());
        drop(core);
    }
}
