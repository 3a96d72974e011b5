//! The shell on glommio 0.9: its executor, listener, streams and timers; the disk on a ring of our own. Behind the
//! cargo feature `shell-glommio`, for comparison (docs/adr/0001 says what it does not hold).
//!
//! One task a core, which is the pump: it polls every stream itself, so the order of work is the order in which glommio
//! told of it and no run queue comes between. What a stream waits for has a waker of its own ([`Signal`]); it notes a
//! [`Key`] and wakes the pump. Reading and writing are calls on a socket that is ready, so the network is lent no
//! memory; a connection that is paused is simply not polled.
//!
//! The disk's ring tells of its completions through the core's bell, an eventfd that glommio reads, and only while the
//! pump is parked: awake, it looks at the ring in every turn.
//!
//! Closing shuts the socket down and then waits until glommio has no poll on it any more: one that is dropped half way
//! is neither safely cancelled nor over. **What keeps the disk's `unsafe` sound** is the same as in `uring.rs`: the
//! core is dropped only after [`Core::idle`], and leaked otherwise.

use super::core::{CoreConfig, RtError};
use super::machine;
use super::outgoing::Outgoing;
use super::poll::reason;
use super::real::{self, Kernel, Local};
use super::uring::{disk_on, with_patience};
use super::{CloseReason, ConnId, Driver, Event, Turn};
use crate::io::uring::DISK_TAG;
use crate::io::uring::{RingTransfers, Submission};
use crate::types::Mono;
use futures_io::{AsyncRead, AsyncWrite};
use glommio::io::BufferedFile;
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::Timer;
use glommio::{Latency, LocalExecutor, LocalExecutorBuilder, Placement, Shares};
use io_uring::{IoUring, cqueue};
use socket2::{SockAddr, Socket};
use std::borrow::Borrow;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, Write};
use std::mem::ManuallyDrop;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Locked by glommio for each of its three rings. It moves no file of ours, so the least that it takes.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// How long the pump runs at the most before glommio looks at its rings. Its default, 100 ms, is also how late a wake
/// from another thread would be.
const PREEMPT: Duration = Duration::from_millis(1);
/// Of one connection (or listener) in one turn: then it is the others' turn.
const ROUNDS_MAX: usize = 16;
/// Parts shorter than this are put together: a stream of glommio's takes one slice a call.
const GATHER_BYTES: usize = 16 << 10;

pub(super) struct GlommioShell {
    executor: LocalExecutor,
    core: ManuallyDrop<Core>,
    inbox: Inbox,
}

impl GlommioShell {
    pub(super) fn new(config: &CoreConfig) -> Result<GlommioShell, RtError> {
        let setup = |what: String| move |error| RtError::Setup { what, error };
        let ring = with_patience("the disk's ring", || {
            let mut builder = IoUring::builder();
            builder.setup_single_issuer().setup_submit_all().setup_cqsize(config.tuning.ring_completions);
            builder.build(config.tuning.ring_entries)
        })?;
        ring.submitter()
            .register_eventfd(config.bell.fd().as_raw_fd())
            .map_err(setup("the eventfd of the disk's ring".to_owned()))?;
        let disk = disk_on(&ring, config)?;
        // The thread is pinned already, if it is to be.
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .io_memory(IO_MEMORY_BYTES)
            .make()
            .map_err(|error| setup("an executor of glommio".to_owned())(error.into()))?;
        let mut kernel = Hub {
            ring,
            backlog: VecDeque::new(),
            signals: Arc::default(),
            again: vec![],
            scratch: vec![],
            bell: BellState::default(),
            guard: Guard::new(),
        };
        kernel.disable_eventfd();
        let inbox = Inbox { recv: vec![0; config.tuning.recv_buffer_bytes], keys: vec![], done: vec![] };
        Ok(GlommioShell { executor, core: ManuallyDrop::new(Core::new(config, kernel, disk)), inbox })
    }

    pub(super) fn run<D: Driver>(self, driver: &mut D) -> Result<(), RtError> {
        let GlommioShell { executor, mut core, mut inbox } = self;
        executor.run(async {
            // The first task of an executor can be missed as well, when nothing guards it yet: it runs under glommio's
            // default, a hundred times as long, and the pump in a queue of its own.
            let queue = glommio::executor().create_task_queue(Shares::default(), Latency::Matters(PREEMPT), "pump");
            // SAFETY: it is awaited in the same expression, so it ends, or is dropped with this future, before what it
            // borrows.
            let pump = unsafe { glommio::spawn_scoped_local_into(core.serve(&mut inbox, driver), queue) };
            pump.expect("the queue has just been made").await
        })?;
        assert!(core.idle(), "the loop ended with operations in the kernel");
        drop(ManuallyDrop::into_inner(core));
        Ok(())
    }
}

/// Against a fault of glommio 0.9: preempted just before it takes the first task, it believes that there is none, and
/// parks with the pump ready to run. What woke the pump is used up by then, and a park lasts until something else
/// comes; so something else comes, again and again, since the fault can strike each time. (A task that arms a timer
/// anew whenever it fires does not help: it is then among those that do not run.)
struct Guard {
    timers: Vec<Timer>,
    since: Mono,
    after: Duration,
}

/// How long a park of that kind lasts, while there is traffic: at best once, at worst [`GUARDS`] times.
const GUARD: Duration = Duration::from_millis(20);
const GUARDS: u32 = 24;
/// The same after a time without any traffic.
const GUARD_IDLE: Duration = Duration::from_secs(1);

impl Guard {
    fn new() -> Guard {
        Guard { timers: vec![], since: Mono(0), after: GUARD }
    }

    /// The pump looks: at something that was signalled, or at nothing.
    fn arm(&mut self, signalled: bool, cx: &mut Context<'_>) {
        let now = machine::mono();
        let age = now.since(self.since);
        if signalled {
            self.after = GUARD;
        } else if age >= self.after {
            self.after = (2 * self.after).min(GUARD_IDLE);
        }
        if self.timers.is_empty() || age >= self.after / 2 {
            self.since = now;
            self.timers = (1..=GUARDS).map(|times| Timer::new(self.after * times)).collect();
            for timer in &mut self.timers {
                // What arms it. None is due yet; if one is, the pump looks once more.
                if Pin::new(timer).poll(cx).is_ready() {
                    cx.waker().wake_by_ref();
                }
            }
        }
    }
}

/// What has something to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Bell,
    Listener(usize),
    /// A connection, by slot: what it waited for to read, to write.
    Read(u32),
    Write(u32),
}

/// What was signalled since the pump last looked. A waker has to be `Send`, hence the lock; only the core's thread
/// takes it.
#[derive(Default)]
struct Signals(Mutex<Signalled>);

#[derive(Default)]
struct Signalled {
    keys: Vec<Key>,
    /// Of the pump, while it is parked.
    pump: Option<Waker>,
    /// When it was woken.
    since: Option<Mono>,
}

impl Signals {
    fn with<T>(&self, f: impl FnOnce(&mut Signalled) -> T) -> T {
        // What is behind the lock is whole at any time.
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// False: something was signalled, and the pump must not park.
    fn park(&self, pump: &Waker) -> bool {
        self.with(|signalled| {
            let parks = signalled.keys.is_empty();
            signalled.pump = parks.then(|| pump.clone());
            parks
        })
    }

    fn waker(self: &Arc<Self>, key: Key) -> Waker {
        Waker::from(Arc::new(Signal { key, to: self.clone() }))
    }
}

/// The waker of one thing that is waited for.
struct Signal {
    key: Key,
    to: Arc<Signals>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let pump = self.to.with(|signalled| {
            signalled.keys.push(self.key);
            let pump = signalled.pump.take();
            signalled.since = pump.is_some().then(machine::mono).or(signalled.since);
            pump
        });
        if let Some(pump) = pump {
            pump.wake();
        }
    }
}

/// The kernel's side of a core: glommio and the disk's ring. Lives on the core's thread.
struct Hub {
    ring: IoUring,
    /// What the submission queue had no room for, in order.
    backlog: VecDeque<Submission>,
    signals: Arc<Signals>,
    /// What has to be looked at without a signal.
    again: Vec<Key>,
    /// Where short parts are put together.
    scratch: Vec<u8>,
    bell: BellState,
    guard: Guard,
}

/// The read of the bell that glommio has.
#[derive(Default)]
struct BellState {
    /// A descriptor of its own for the bell, which glommio closes.
    file: Option<Rc<BufferedFile>>,
    waker: Option<Waker>,
    read: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
    /// Not to be read again.
    over: bool,
}

/// What is received, what was signalled, and the completions of the disk that are looked at.
struct Inbox {
    recv: Vec<u8>,
    keys: Vec<Key>,
    done: Vec<cqueue::Entry>,
}

type Core = real::Core<Hub>;
type Listener = real::Listener<Hub>;
type Conn = real::Conn<Hub>;

struct ListenerState {
    open: bool,
    from: Rc<TcpListener>,
    waker: Waker,
    accept: Option<Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>>,
}

struct ConnState {
    stream: TcpStream,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The reader, the writer will be woken.
    reading: bool,
    /// It is read in the next turn, without being told: in `Hub::again`.
    again: bool,
    blocked: bool,
    /// It is shut down, and glommio waits for nothing to read any more.
    quiet: bool,
}

/// The socket of a stream, which owns it and lies in the same connection.
struct Lent(ManuallyDrop<Socket>);

impl Borrow<Socket> for Lent {
    fn borrow(&self) -> &Socket {
        &self.0
    }
}

fn connection(stream: TcpStream) -> Conn {
    // SAFETY: open as long as the stream is, which the same `Conn` holds; and never closed by this one.
    let socket = Lent(ManuallyDrop::new(unsafe { Socket::from_raw_fd(stream.as_raw_fd()) }));
    let own =
        ConnState { stream, reader: None, writer: None, reading: false, again: false, blocked: false, quiet: false };
    Conn::new(socket, own)
}

impl ConnState {
    fn poll_read(&mut self, signals: &Arc<Signals>, slot: u32, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let waker = self.reader.get_or_insert_with(|| signals.waker(Key::Read(slot)));
        let polled = Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(waker), into);
        self.reading = polled.is_pending();
        polled
    }

    fn poll_write(&mut self, signals: &Arc<Signals>, slot: u32, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let waker = self.writer.get_or_insert_with(|| signals.waker(Key::Write(slot)));
        let polled = Pin::new(&mut self.stream).poll_write(&mut Context::from_waker(waker), bytes);
        self.blocked = polled.is_pending();
        polled
    }
}

impl Kernel for Hub {
    type Transfers = RingTransfers;
    type Socket = Lent;
    type Listener = ListenerState;
    type Conn = ConnState;
    type Sending = Outgoing;
    type Inbox = Inbox;

    fn settle(core: &mut Core) -> Result<(), RtError> {
        core.settle_listeners();
        core.settle_conns();
        Ok(())
    }

    fn completions<D: Driver>(core: &mut Core, inbox: &mut Inbox, driver: &mut D) -> Result<u64, RtError> {
        inbox.done.extend(core.kernel.ring.completion());
        let mut events = inbox.done.len() as u64;
        for entry in inbox.done.drain(..) {
            core.disk.completed(entry.user_data() & !DISK_TAG, entry.result());
        }
        inbox.keys.append(&mut core.kernel.again);
        core.kernel.signals.with(|signalled| inbox.keys.append(&mut signalled.keys));
        events += inbox.keys.len() as u64;
        for key in inbox.keys.drain(..) {
            match key {
                Key::Bell => core.read_bell()?,
                Key::Listener(slot) => core.accept(driver, slot),
                Key::Read(slot) => core.receive(&mut inbox.recv, driver, slot),
                Key::Write(slot) => core.writable(driver, slot),
            }
        }
        Ok(events)
    }

    fn listen(&mut self, socket: Socket, slot: usize) -> io::Result<Listener> {
        let fd = socket.try_clone()?.into_raw_fd();
        // SAFETY: new, and nobody else's.
        let from = Rc::new(unsafe { TcpListener::from_raw_fd(fd) });
        let waker = self.signals.waker(Key::Listener(slot));
        Ok(Listener::new(socket, ListenerState { open: true, from, waker, accept: None }))
    }

    fn stop_listening(core: &mut Core, slot: usize) {
        if let Some(Some(listener)) = core.listeners.get_mut(slot)
            && listener.own.open
        {
            listener.own.open = false;
            // Ends the accept that glommio has. An error says that it is down already.
            let _ = listener.socket.shutdown(Shutdown::Both);
        }
    }

    /// A stream that is made of a socket on its way is writable when that has ended.
    fn connect(core: &mut Core, socket: Socket, addr: SocketAddr) -> io::Result<ConnId> {
        socket.set_nonblocking(true)?;
        let began = socket.connect(&SockAddr::from(addr));
        // SAFETY: given away by its owner in the same line.
        let stream = unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) };
        let id = core.conns.insert(Conn { connecting: true, ..connection(stream) });
        match began {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => core.begin_close(id, reason(&error)),
            _ => core.kernel.again.push(Key::Write(id.slot)),
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

    /// What glommio waits for ends soon.
    fn closing(conn: &mut Conn) {
        // An error says that it is down already.
        let _ = conn.socket.0.shutdown(Shutdown::Both);
    }

    fn holds(conn: &Conn) -> u8 {
        u8::from(conn.own.reading) + u8::from(conn.own.blocked)
    }

    fn is_over(core: &mut Core) -> bool {
        if core.kernel.bell.read.is_some() && !core.kernel.bell.over {
            core.kernel.bell.over = true;
            // It can not fail: the descriptor is ours, and each read resets the count.
            core.bell.fd().write_all(&1u64.to_ne_bytes()).expect("an eventfd takes a 1");
        }
        core.idle()
    }
}

impl Hub {
    fn disable_eventfd(&mut self) {
        self.ring.completion().disable_eventfd();
    }

    /// From now on the ring rings the bell. False: there is something in it already.
    fn enable_eventfd(&mut self) -> bool {
        self.ring.completion().enable_eventfd();
        // Either the kernel sees this flag after it has added a completion, or the completion is seen here.
        fence(Ordering::SeqCst);
        let overflow = self.ring.submission().cq_overflow();
        self.ring.completion().is_empty() && !overflow
    }
}

impl Core {
    /// The loop of `real.rs`, but it gives way to glommio where that one blocks.
    async fn serve<D: Driver>(&mut self, inbox: &mut Inbox, driver: &mut D) -> Result<(), RtError> {
        driver.start(self);
        let mut turn = Turn::Again;
        while let Some(until) = turn.deadline() {
            Hub::settle(self)?;
            self.wait(until).await?;
            turn = self.turn(inbox, driver)?;
        }
        self.disk.stop();
        while !self.wind_up()? {
            self.wait(None).await?;
            self.events(inbox, driver)?;
        }
        if let Some(Ok(file)) = self.kernel.bell.file.take().map(Rc::try_unwrap) {
            file.close().await.map_err(|error| self.failed("close of the eventfd")(error.into()))?;
        }
        // What glommio made goes before glommio.
        self.kernel.guard.timers.clear();
        Ok(())
    }

    /// Nothing of ours is with the kernel, with glommio or with a helper.
    fn idle(&self) -> bool {
        self.is_empty() && self.kernel.backlog.is_empty() && self.kernel.bell.read.is_none()
    }

    /// Submits everything and waits for a completion, a wake-up, or the time `until`.
    async fn wait(&mut self, until: Option<Mono>) -> Result<(), RtError> {
        let all_submitted = self.submit()?;
        // Not while it is read: each look at a read of glommio's leaves one more waker with it.
        if self.kernel.bell.read.is_none() {
            self.read_bell()?;
        }
        let timeout = self.timeout(until);
        let at_hand = !all_submitted
            || !self.local.is_empty()
            || !self.dirty.is_empty()
            || !self.kernel.again.is_empty()
            || self.disk.has_done()
            || timeout.is_some_and(|timeout| timeout.is_zero());
        if at_hand || !self.bell.parking().sleep() {
            // Glommio looks at its rings when it thinks that it is time.
            if glommio::executor().need_preempt() {
                let guard = &mut self.kernel.guard;
                let armed = poll_fn(|cx| {
                    guard.arm(true, cx);
                    Poll::Ready(())
                });
                armed.await;
                glommio::yield_if_needed().await;
            }
            return Ok(());
        }
        if self.kernel.enable_eventfd() {
            let signals = self.kernel.signals.clone();
            let mut timer = timeout.map(Timer::new);
            let guard = &mut self.kernel.guard;
            let parked = poll_fn(|cx| {
                let due = timer.as_mut().is_some_and(|timer| Pin::new(timer).poll(cx).is_ready());
                let parks = signals.park(cx.waker());
                guard.arm(!parks, cx);
                if due || !parks { Poll::Ready(()) } else { Poll::Pending }
            });
            parked.await;
            let since = self.kernel.signals.with(|signalled| {
                signalled.pump = None;
                signalled.since.take()
            });
            // Said as what it may be: the thread may also have waited for its CPU that long.
            if let Some(ms) = since.map(|since| machine::mono().since(since).as_millis())
                && ms >= GUARD.as_millis()
            {
                tracing::debug!(core = %self.id, ms, "the pump ran late: glommio parked, or the thread had no CPU");
            }
        }
        self.kernel.disable_eventfd();
        Ok(())
    }

    /// Hands the disk's operations to its ring. False: it takes no more before completions are taken from it.
    fn submit(&mut self) -> Result<bool, RtError> {
        let Hub { ring, backlog, .. } = &mut self.kernel;
        // Whether the pump is going to park is not known yet.
        self.disk.issue(&ring.submitter(), false, |submission| backlog.push_back(submission));
        loop {
            let queued = {
                let mut queue = ring.submission();
                while let Some(next) = backlog.front() {
                    // SAFETY: the disk keeps whatever an entry names until its completion is seen, and is leaked rather
                    // than dropped when the loop ends otherwise (top of this file).
                    let pushed = unsafe {
                        match next {
                            Submission::One(entry) => queue.push(entry),
                            Submission::Linked(first, second) => queue.push_multiple(&[first.clone(), second.clone()]),
                        }
                    };
                    if pushed.is_err() {
                        break;
                    }
                    backlog.pop_front();
                }
                queue.len()
            };
            if queued == 0 {
                return Ok(backlog.is_empty());
            }
            if !backlog.is_empty() {
                self.stats.turns.submissions_full.fetch_add(1, Ordering::Relaxed);
            }
            match ring.submit() {
                Ok(taken) => {
                    if taken < queued {
                        // Short of memory in the middle: a link may have been cut there.
                        self.disk.cut_short();
                        return Ok(false);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => return Ok(false),
                    _ => return Err(self.failed("io_uring_enter")(error)),
                },
            }
        }
    }

    /// Keeps glommio reading the bell, until that is over.
    fn read_bell(&mut self) -> Result<(), RtError> {
        let failed = self.failed("read of the eventfd");
        let Hub { bell, signals, .. } = &mut self.kernel;
        loop {
            let Some(read) = &mut bell.read else {
                if bell.over {
                    return Ok(());
                }
                if bell.file.is_none() {
                    let fd = match self.bell.fd().try_clone() {
                        Ok(fd) => fd.into_raw_fd(),
                        Err(error) => return Err(failed(error)),
                    };
                    // SAFETY: new, and nobody else's.
                    bell.file = Some(Rc::new(unsafe { BufferedFile::from_raw_fd(fd) }));
                }
                let file = bell.file.clone().expect("just made");
                bell.read = Some(Box::pin(async move { file.read_at(0, 8).await.map(drop).map_err(io::Error::from) }));
                continue;
            };
            let waker = bell.waker.get_or_insert_with(|| signals.waker(Key::Bell));
            match read.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(())) => bell.read = None,
                Poll::Ready(Err(error)) => return Err(failed(error)),
            }
        }
    }

    fn accept<D: Driver>(&mut self, driver: &mut D, slot: usize) {
        for _ in 0..ROUNDS_MAX {
            let full = self.is_full();
            let Some(Some(listener)) = self.listeners.get_mut(slot) else { return };
            let (resting, full) = (listener.rest_until.is_some(), !listener.has_room(full));
            let own = &mut listener.own;
            if own.accept.is_none() {
                if !own.open || full || resting {
                    return;
                }
                let from = own.from.clone();
                own.accept = Some(Box::pin(async move { from.accept().await.map_err(io::Error::from) }));
            }
            let accept = own.accept.as_mut().expect("just made, if it was not there");
            let Poll::Ready(accepted) = accept.as_mut().poll(&mut Context::from_waker(&own.waker)) else { return };
            own.accept = None;
            match accepted {
                Ok(_) if full || !own.open => {
                    self.stats.turns.conns_refused.fetch_add(1, Ordering::Relaxed);
                }
                Ok(stream) => {
                    let peer = stream.peer_addr().map_err(io::Error::from);
                    self.report_accepted(driver, slot, connection(stream), peer);
                }
                Err(_) if !own.open => return,
                Err(error) if [ErrorKind::Interrupted, ErrorKind::ConnectionAborted].contains(&error.kind()) => {}
                Err(_) => return self.accept_failed(slot),
            }
        }
        self.kernel.again.push(Key::Listener(slot));
    }

    fn receive<D: Driver>(&mut self, recv: &mut [u8], driver: &mut D, slot: u32) {
        let Some((id, conn)) = self.conns.at(slot) else { return };
        (conn.own.reading, conn.own.again) = (false, false);
        if conn.closing.is_some() {
            return self.mark_dirty(id);
        }
        let rounds = if self.spares(id) { 1 } else { ROUNDS_MAX };
        for _ in 0..rounds {
            // The driver may have paused or closed it meanwhile.
            let Some((id, conn)) = self.conns.at(slot) else { return };
            if !conn.want_bytes || conn.connecting || conn.closing.is_some() {
                return;
            }
            match conn.own.poll_read(&self.kernel.signals, slot, recv) {
                Poll::Pending => return,
                Poll::Ready(Ok(0)) => return self.begin_close(id, CloseReason::Peer),
                Poll::Ready(Ok(len)) => driver.event(self, Event::Received { conn: id, bytes: &recv[..len] }),
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return self.begin_close(id, reason(&error)),
            }
        }
        self.read_again(slot);
    }

    /// Once, however often it is asked for.
    fn read_again(&mut self, slot: u32) {
        if let Some((_, conn)) = self.conns.at(slot)
            && !std::mem::replace(&mut conn.own.again, true)
        {
            self.kernel.again.push(Key::Read(slot));
        }
    }

    /// What a connection waited for to write, or to be connected, has come.
    fn writable<D: Driver>(&mut self, driver: &mut D, slot: u32) {
        let Some((id, conn)) = self.conns.at(slot) else { return };
        conn.own.blocked = false;
        if !conn.connecting || conn.closing.is_some() {
            return self.mark_dirty(id);
        }
        match conn.own.poll_write(&self.kernel.signals, slot, &[]) {
            Poll::Pending => {}
            Poll::Ready(Ok(_)) => {
                conn.connecting = false;
                self.mark_dirty(id);
                driver.event(self, Event::Connected { conn: id });
            }
            Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {
                self.kernel.again.push(Key::Write(slot));
            }
            Poll::Ready(Err(error)) => self.begin_close(id, reason(&error)),
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
            let Hub { scratch, signals, .. } = &mut self.kernel;
            let bytes = next_slice(out, scratch);
            match conn.own.poll_write(signals, id.slot, bytes) {
                Poll::Pending => {}
                Poll::Ready(Ok(taken)) => {
                    out.advance(taken);
                    if out.is_done() {
                        return self.local.push_back(Local::Sent(id));
                    }
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return self.begin_close(id, reason(&error)),
            }
        }
        self.mark_dirty(id);
    }

    fn settle_conns(&mut self) {
        // Those that become dirty meanwhile have more to do than their share: the next turn.
        for slot in std::mem::take(&mut self.dirty) {
            let Some((id, conn)) = self.conns.at(slot) else { continue };
            conn.dirty = false;
            self.push_out(id);
            let Some(conn) = self.conns.get(id) else { continue };
            if conn.closing.is_some() {
                self.let_go(id);
            } else if conn.want_bytes && !conn.connecting && !conn.own.reading {
                self.read_again(slot);
            }
        }
    }

    /// A connection that is closing: when glommio waits for nothing of it any more, it is gone.
    fn let_go(&mut self, id: ConnId) {
        let conn = self.conns.get(id).expect("checked by the caller");
        if conn.gone {
            return;
        }
        if !conn.own.quiet && !conn.own.reading {
            // Asks without reading: what the peer has sent and nobody has read makes the kernel reset the connection,
            // and a peer that is blocked by a full window learns of the end by nothing else.
            conn.own.quiet = conn.own.poll_read(&self.kernel.signals, id.slot, &mut []).is_ready();
        }
        if conn.own.quiet && !conn.own.blocked {
            conn.gone = true;
            self.local.push_back(Local::Closed(id));
        }
    }

    fn settle_listeners(&mut self) {
        let full = self.is_full();
        for (slot, entry) in self.listeners.iter_mut().enumerate() {
            let Some(listener) = entry else { continue };
            let rests = listener.rests();
            if listener.own.accept.is_some() {
                continue;
            }
            let key = Key::Listener(slot);
            if !listener.own.open {
                *entry = None;
            } else if listener.has_room(full) && !rests && !self.kernel.again.contains(&key) {
                self.kernel.again.push(key);
            }
        }
    }
}

/// What is to be sent next, as one slice.
fn next_slice<'a>(out: &'a Outgoing, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let mut parts = out.next_parts();
    let first = parts.next().expect("checked by the caller");
    if first.len() >= GATHER_BYTES {
        return first;
    }
    scratch.clear();
    for part in std::iter::once(first).chain(parts) {
        let room = GATHER_BYTES - scratch.len();
        scratch.extend_from_slice(&part[..part.len().min(room)]);
        if part.len() >= room {
            break;
        }
    }
    scratch
}
