//! One suite for every shell: what a driver may rely on. Each test runs on io_uring, on epoll and, with the feature
//! `shell-glommio`, on glommio; the simulator has its own in `rt/sim.rs`. What would break the process for other tests
//! runs in a child process (`child_*`, ignored).
#![allow(clippy::disallowed_methods, reason = "tests drive the shells from outside, with real clients and clocks")]
#![allow(clippy::unwrap_used, reason = "a test may")]

use bytes::Bytes;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::{
    BlockBuf, DiskDone, DiskError, DiskErrorKind, DiskOk, DiskOp, DurableMethod, FileId, OpId, RealVolume, Volume,
};
use camus_engine::limits::{BLOCK_BYTES, WAL_CHUNK_BYTES};
use camus_engine::rt::mesh::{Port, mesh_with_lanes_of};
use camus_engine::rt::{
    Bell, CloseReason, ConnId, CoreConfig, CoreHandle, Driver, Event, IoChoice, Rt, RtError, ShellKind, Turn, Waker,
    run, spawn_core,
};
use camus_engine::types::CoreId;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

macro_rules! on_each_shell {
    ($($name:ident),* $(,)?) => {
        mod uring { $(#[test] fn $name() { super::$name(super::IoChoice::Uring); })* }
        mod poll { $(#[test] fn $name() { super::$name(super::IoChoice::Blocking); })* }
        #[cfg(feature = "shell-glommio")]
        mod glommio { $(#[test] fn $name() { super::$name(super::IoChoice::Glommio); })* }
    };
}

on_each_shell!(
    a_peer_that_never_reads_stops_itself_and_nobody_else,
    a_storm_of_resets_leaves_nothing_behind,
    few_receive_buffers_lose_nothing,
    full_queues_lose_nothing,
    a_core_keeps_to_its_number_of_connections,
    a_full_core_takes_connections_that_do_not_count,
    every_wake_up_from_another_thread_is_seen,
    a_core_that_panics_is_reported,
    a_core_sleeps_until_its_deadline_and_not_beyond,
    an_outgoing_connection_comes_up_or_is_closed_with_the_reason,
    a_connection_that_is_closed_by_the_driver_ends_once,
    a_pause_takes_hold_while_bytes_keep_coming,
    while_it_spares_a_turn_brings_one_buffer_of_each_connection,
    a_few_that_have_much_to_bring_do_not_take_every_buffer,
    a_paused_connection_that_is_reset_costs_nothing_until_it_is_noticed,
    the_mesh_keeps_order_and_wakes_both_ways_under_two_threads,
    a_file_is_prepared_written_read_and_removed,
    what_is_wrong_with_a_file_is_reported_once,
    writes_in_flight_end_before_the_loop_does,
    running_out_of_descriptors_is_survived_without_spinning,
    a_short_write_and_a_failed_one_are_errors,
);

const PATIENCE: Duration = Duration::from_secs(20);

// ------------------------------------------------------------------------------------------------- an echo server

/// Answers every byte with itself. Stops receiving while much is waiting to be sent. Checks the life of each
/// connection.
struct Echo {
    conns: BTreeMap<ConnId, EchoConn>,
    /// Generation of the last user of each slot.
    last: BTreeMap<u32, u32>,
    /// Takes the two addresses: where connections count, and where they do not.
    addr: mpsc::Sender<SocketAddr>,
    stop: Arc<AtomicBool>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct EchoConn {
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
    sending: bool,
    paused: bool,
}

#[derive(Default)]
struct Seen {
    accepted: AtomicU64,
    closed: AtomicU64,
    open_max: AtomicU64,
    received: AtomicU64,
}

impl Seen {
    fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::SeqCst);
        self.accepted.load(Ordering::SeqCst) - closed
    }
}

/// What one connection may have waiting.
const WAITING_MAX: usize = 64 * 1024;

impl Echo {
    fn pump(&mut self, rt: &mut dyn Rt, id: ConnId) {
        let conn = self.conns.get_mut(&id).expect("open");
        if !conn.sending && !conn.waiting.is_empty() {
            conn.sending = true;
            conn.waiting_bytes = 0;
            rt.send(id, conn.waiting.drain(..).collect());
        }
        let pause = conn.waiting_bytes >= WAITING_MAX;
        if pause != conn.paused {
            conn.paused = pause;
            rt.set_receiving(id, !pause);
        }
    }
}

impl Driver for Echo {
    fn start(&mut self, rt: &mut dyn Rt) {
        let any = "127.0.0.1:0".parse().unwrap();
        self.addr.send(rt.listen(any).unwrap().1).unwrap();
        self.addr.send(rt.listen_beside(any).unwrap().1).unwrap();
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Accepted { conn, .. } => {
                let last = self.last.insert(conn.slot, conn.generation);
                assert!(last.is_none_or(|last| last < conn.generation), "{conn:?} has been used before");
                assert!(self.conns.keys().all(|open| open.slot != conn.slot), "{conn:?} is in use");
                self.conns.insert(conn, EchoConn::default());
                self.seen.accepted.fetch_add(1, Ordering::SeqCst);
                self.seen.open_max.fetch_max(self.conns.len() as u64, Ordering::SeqCst);
            }
            Event::Received { conn: id, bytes } => {
                assert!(!bytes.is_empty());
                self.seen.received.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                let conn = self.conns.get_mut(&id).expect("bytes only while it is open");
                conn.waiting.push_back(Bytes::copy_from_slice(bytes));
                conn.waiting_bytes += bytes.len();
                self.pump(rt, id);
            }
            Event::Sent { conn: id } => {
                self.conns.get_mut(&id).expect("sent only while it is open").sending = false;
                self.pump(rt, id);
            }
            Event::Closed { conn, .. } => {
                self.conns.remove(&conn).expect("closed once");
                self.seen.closed.fetch_add(1, Ordering::SeqCst);
            }
            Event::Connected { .. } | Event::Disk(_) => unreachable!("{event:?}"),
            Event::Woken => {}
        }
    }

    fn turn_end(&mut self, _: &mut dyn Rt) -> Turn {
        if self.stop.load(Ordering::SeqCst) { Turn::Stop } else { Turn::Wait { until: None } }
    }
}

struct EchoServer {
    addr: SocketAddr,
    beside: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: Waker,
    seen: Arc<Seen>,
    config: CoreConfig,
    handle: Option<CoreHandle>,
    _dir: tempfile::TempDir,
}

impl EchoServer {
    fn start(choice: IoChoice, change: impl FnOnce(&mut CoreConfig)) -> EchoServer {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        change(&mut config);
        let (addr, got_addr) = mpsc::channel();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let (stop2, seen2) = (stop.clone(), seen.clone());
        let make = move |_| Echo { conns: BTreeMap::new(), last: BTreeMap::new(), addr, stop: stop2, seen: seen2 };
        let handle = spawn_core(choice, config.clone(), make).unwrap();
        let expected = match choice {
            IoChoice::Auto | IoChoice::Uring => ShellKind::Uring,
            IoChoice::Blocking => ShellKind::Poll,
            IoChoice::Glommio => ShellKind::Glommio,
        };
        assert_eq!(handle.kind, expected);
        let [addr, beside] = [(); 2].map(|()| got_addr.recv_timeout(PATIENCE).unwrap());
        let waker = config.bell.waker();
        EchoServer { addr, beside, stop, waker, seen, config, handle: Some(handle), _dir: dir }
    }

    fn client(&self) -> TcpStream {
        Self::client_of(self.addr)
    }

    fn client_of(addr: SocketAddr) -> TcpStream {
        let client = TcpStream::connect(addr).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.set_nodelay(true).unwrap();
        client
    }

    fn stop(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.handle.take().unwrap().join().unwrap();
        assert_eq!(self.seen.open(), 0, "every connection was reported closed");
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

/// Byte `at` of a stream that no shift maps onto itself soon.
fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn pattern_bytes(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(pattern).collect()
}

fn round_trip(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    client.read_exact(&mut back).unwrap();
    assert!(back == bytes, "what came back is not what was sent");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sends without reading, until nothing more is taken for half a second. What was sent.
fn flood(client: &TcpStream, chunk: &[u8]) -> u64 {
    // A server that does not stop would take it all; the kernel's buffers on the way hold a part of it.
    const MOST: u64 = 64 * 1024 * 1024;
    let mut client = client;
    client.set_nonblocking(true).unwrap();
    let (mut sent, mut stuck) = (0u64, Instant::now());
    while stuck.elapsed() < Duration::from_millis(500) {
        assert!(sent < MOST, "the server takes everything");
        let at = (sent % chunk.len() as u64) as usize;
        match client.write(&chunk[at..(at + 65_536).min(chunk.len())]) {
            Ok(n) => (sent, stuck) = (sent + n as u64, Instant::now()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
    client.set_nonblocking(false).unwrap();
    sent
}

/// Lost if it fails: the broker's memory, to clients that send and do not read; or those clients' answers.
fn a_peer_that_never_reads_stops_itself_and_nobody_else(choice: IoChoice) {
    let server = EchoServer::start(choice, |_| {});
    let chunk = pattern_bytes(0, 1 << 20);
    // Several at once: a receive that is paused while bytes keep coming is the hard case.
    let floods: Vec<_> = (0..6).map(|_| server.client()).collect();
    let sent: Vec<u64> = thread::scope(|scope| {
        let flooding: Vec<_> = floods.iter().map(|client| scope.spawn(|| flood(client, &chunk))).collect();
        flooding.into_iter().map(|flooding| flooding.join().unwrap()).collect()
    });
    let received = server.seen.received.load(Ordering::SeqCst);
    let mut other = server.client();
    for n in 0..50 {
        round_trip(&mut other, &pattern_bytes(n, 1_000));
    }
    let now = server.seen.received.load(Ordering::SeqCst);
    assert_eq!(now, received + 50_000, "it still receives from those that are paused");
    for (mut client, sent) in floods.into_iter().zip(sent) {
        let (mut back, mut buf) = (0u64, vec![0; 1 << 20]);
        while back < sent {
            let n = match client.read(&mut buf) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(n > 0, "closed after {back} of {sent}");
            let mut read = &buf[..n];
            while !read.is_empty() {
                let at = (back % chunk.len() as u64) as usize;
                let (now, rest) = read.split_at(read.len().min(chunk.len() - at));
                assert!(*now == chunk[at..at + now.len()], "lost or reordered after {back} of {sent}");
                (read, back) = (rest, back + now.len() as u64);
            }
        }
        assert_eq!(back, sent);
        round_trip(&mut client, b"and it goes on");
    }
    server.stop();
}

/// Lost if it fails: descriptors and slots, until the broker takes no client any more.
fn a_storm_of_resets_leaves_nothing_behind(choice: IoChoice) {
    let server = EchoServer::start(choice, |_| {});
    for round in 0..600u32 {
        let mut client = server.client();
        if !round.is_multiple_of(3) {
            let _ = client.write_all(&[1; 3_000]);
        }
        if round.is_multiple_of(2) {
            socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        }
        if round.is_multiple_of(5) && !round.is_multiple_of(3) {
            let _ = client.read(&mut [0; 10]);
        }
    }
    round_trip(&mut server.client(), b"still there");
    eventually("all of them are closed", || server.seen.open() == 0);
    server.stop();
}

fn many_echo(server: &EchoServer, clients: usize, bytes: usize) {
    thread::scope(|scope| {
        for n in 0..clients {
            scope.spawn(move || {
                let mut client = server.client();
                let sent = pattern_bytes(n as u64 * 77, bytes);
                let mut writer = client.try_clone().unwrap();
                let to_send = sent.clone();
                scope.spawn(move || writer.write_all(&to_send).unwrap());
                let mut back = vec![0; bytes];
                client.read_exact(&mut back).unwrap();
                assert!(back == sent, "client {n}");
            });
        }
    });
}

/// Lost if it fails: a request, when more arrives at once than there are buffers for.
fn few_receive_buffers_lose_nothing(choice: IoChoice) {
    let server = EchoServer::start(choice, |config| {
        config.tuning.recv_buffers = 2;
        config.tuning.recv_buffer_bytes = 512;
    });
    many_echo(&server, 12, 200_000);
    if choice == IoChoice::Uring {
        assert!(server.config.stats.turns.recv_starved.load(Ordering::Relaxed) > 0, "there was always a buffer");
    }
    server.stop();
}

/// Lost if it fails: an operation that found the submission queue full, or an end that found the completion queue full.
fn full_queues_lose_nothing(choice: IoChoice) {
    let server = EchoServer::start(choice, |config| {
        config.tuning.ring_entries = 4;
        config.tuning.ring_completions = 8;
        config.tuning.recv_buffer_bytes = 512;
    });
    let mut crowd: Vec<_> = (0..100).map(|_| server.client()).collect();
    for round in 0..5 {
        for (n, client) in crowd.iter_mut().enumerate() {
            client.write_all(&pattern_bytes(n as u64 * 100 + round, 5_000)).unwrap();
        }
        for (n, client) in crowd.iter_mut().enumerate() {
            let mut back = vec![0; 5_000];
            client.read_exact(&mut back).unwrap();
            assert!(back == pattern_bytes(n as u64 * 100 + round, 5_000), "client {n}");
        }
    }
    drop(crowd);
    eventually("all of them are closed", || server.seen.open() == 0);
    if choice == IoChoice::Uring {
        let turns = &server.config.stats.turns;
        assert!(turns.submissions_full.load(Ordering::Relaxed) > 0, "the submission queue was never full");
        assert!(turns.completions_full.load(Ordering::Relaxed) > 0, "the completion queue was never full");
    }
    server.stop();
}

/// Lost if it fails: the bound on connections, or the clients that come after it was reached.
fn a_core_keeps_to_its_number_of_connections(choice: IoChoice) {
    let server = EchoServer::start(choice, |config| config.conns_max = 4);
    for round in 0..3 {
        // One at a time: a place is free before the next comes.
        let connect = |n: u64| {
            let mut client = server.client();
            round_trip(&mut client, b"one of four");
            assert_eq!(server.seen.open(), n + 1);
            client
        };
        let mut clients: Vec<_> = (0..4).map(connect).collect();
        let extra: Vec<_> = (0..6).map(|_| server.client()).collect();
        thread::sleep(Duration::from_millis(20));
        assert_eq!(server.seen.open(), 4, "round {round}");
        for client in &mut clients {
            round_trip(client, b"still served");
        }
        drop((clients, extra));
        // Those that waited in the kernel may still come up, find their end, and go.
        thread::sleep(Duration::from_millis(100));
        eventually("all of them are closed", || server.seen.open() == 0);
    }
    assert_eq!(server.seen.open_max.load(Ordering::SeqCst), 4);
    server.stop();
}

/// Lost if it fails: the cluster, when a broker has as many clients as it takes and another one wants to come back.
fn a_full_core_takes_connections_that_do_not_count(choice: IoChoice) {
    let server = EchoServer::start(choice, |config| config.conns_max = 2);
    let mut beside = EchoServer::client_of(server.beside);
    round_trip(&mut beside, b"takes no place");
    let connect = |_| {
        let mut client = server.client();
        round_trip(&mut client, b"one of two");
        client
    };
    let mut clients: Vec<_> = (0..2).map(connect).collect();
    let waits = server.client();
    let mut others: Vec<_> = (0..3).map(|_| EchoServer::client_of(server.beside)).collect();
    others.iter_mut().for_each(|other| round_trip(other, b"beside the full number"));
    assert_eq!(server.seen.open(), 6, "two that count, four that do not, and one waits");
    // the ends of those that do not count give nobody a place
    drop((beside, others));
    eventually("they are closed", || server.seen.open() == 2);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(server.seen.open(), 2);
    clients.iter_mut().for_each(|client| round_trip(client, b"still served"));
    drop(clients.pop());
    eventually("the one that waits is served", || server.seen.accepted.load(Ordering::SeqCst) == 7);
    drop((clients, waits));
    eventually("all of them are closed", || server.seen.open() == 0);
    server.stop();
}

// ---------------------------------------------------------------------------------------------- drivers by closure

/// A driver whose decisions are a closure's.
struct By<F>(F);

enum Step<'a> {
    Start,
    Event(Event<'a>),
    TurnEnd,
}

impl<F: FnMut(&mut dyn Rt, Step<'_>) -> Turn> Driver for By<F> {
    fn start(&mut self, rt: &mut dyn Rt) {
        (self.0)(rt, Step::Start);
    }
    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        (self.0)(rt, Step::Event(event));
    }
    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        (self.0)(rt, Step::TurnEnd)
    }
}

const IDLE: Turn = Turn::Wait { until: None };

/// Runs on this thread until the closure stops it.
fn run_by(choice: IoChoice, config: &CoreConfig, step: impl FnMut(&mut dyn Rt, Step<'_>) -> Turn) {
    run(choice, config, |_| By(step)).unwrap();
}

fn config(dir: &Path) -> CoreConfig {
    CoreConfig::new(CoreId(0), dir.to_owned(), Bell::new().unwrap())
}

/// Lost if it fails: a core sleeps while another waits for it.
fn every_wake_up_from_another_thread_is_seen(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let waker = config.bell.waker();
    let (asked, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    const WAKES: u64 = 3_000;
    let (asked2, seen2) = (asked.clone(), seen.clone());
    let other = thread::spawn(move || {
        for n in 1..=WAKES {
            asked2.store(n, Ordering::SeqCst);
            waker.wake();
            let end = Instant::now() + PATIENCE;
            // Two of three times without waiting: wakes that come while the loop is awake.
            while n.is_multiple_of(3) && seen2.load(Ordering::SeqCst) < n {
                assert!(Instant::now() < end, "wake-up {n} was lost");
                thread::yield_now();
            }
        }
    });
    run_by(choice, &config, |_, step| {
        match step {
            Step::Event(Event::Woken) => seen.store(asked.load(Ordering::SeqCst), Ordering::SeqCst),
            Step::Event(event) => unreachable!("{event:?}"),
            Step::Start | Step::TurnEnd => {}
        }
        if seen.load(Ordering::SeqCst) == WAKES { Turn::Stop } else { IDLE }
    });
    other.join().unwrap();
}

/// Lost if it fails: a broker with a dead core that looks alive.
fn a_core_that_panics_is_reported(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.pin = Some(0);
    let fails = |_| {
        By(|_: &mut dyn Rt, step: Step<'_>| {
            assert!(!matches!(step, Step::TurnEnd), "this fault is a part of the test");
            assert_eq!(thread::current().name(), Some("core-0"));
            IDLE
        })
    };
    let handle = spawn_core(choice, config.clone(), fails).unwrap();
    assert!(matches!(handle.join(), Err(RtError::Panicked { core: CoreId(0) })));
    // Nor does a directory that is not there go unnoticed.
    config.wal_dir = dir.path().join("not there");
    let refused = spawn_core(choice, config, stopping);
    assert!(matches!(&refused, Err(RtError::Setup { what, .. }) if what.contains("not there")), "{refused:?}");
}

/// Lost if it fails: Raft's ticks, or a core's idle time.
fn a_core_sleeps_until_its_deadline_and_not_beyond(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (mut turns, mut began, mut late) = (0u32, None, vec![]);
    run_by(choice, &config, |rt, step| {
        let Step::TurnEnd = step else { return IDLE };
        let now = rt.now();
        if let Some(due) = began {
            if now < due {
                // A turn of the loop's own; there may be a few.
                return Turn::Wait { until: Some(due) };
            }
            late.push(now.since(due));
        }
        turns += 1;
        if turns == 12 {
            return Turn::Stop;
        }
        let due = now + Duration::from_millis(15);
        began = Some(due);
        Turn::Wait { until: Some(due) }
    });
    late.sort_unstable();
    assert!(late[late.len() / 2] < Duration::from_millis(200), "late by {late:?}");
    let counted = config.stats.turns.turns.load(Ordering::Relaxed);
    assert!((12..40).contains(&counted), "{counted} turns for 12 deadlines: it spins");
}

/// Lost if it fails: a broker waits for a peer that is not there.
fn an_outgoing_connection_comes_up_or_is_closed_with_the_reason(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap();
    let nowhere = {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        gone.local_addr().unwrap()
    };
    let peer = thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut got = [0; 5];
        peer.read_exact(&mut got).unwrap();
        peer.write_all(b"world").unwrap();
        got
    });
    let (mut up, mut down, mut got, mut closed) = (None, None, vec![], 0);
    run_by(choice, &config(dir.path()), |rt, step| {
        match step {
            Step::Start => {
                up = Some(rt.connect(there).unwrap());
                down = Some(rt.connect(nowhere).unwrap());
            }
            Step::Event(Event::Connected { conn }) => {
                assert_eq!(Some(conn), up);
                rt.send(conn, vec![Bytes::from_static(b"hel"), Bytes::new(), Bytes::from_static(b"lo")]);
            }
            Step::Event(Event::Received { conn, bytes }) => {
                assert_eq!(Some(conn), up);
                got.extend_from_slice(bytes);
            }
            Step::Event(Event::Closed { conn, why }) => {
                closed += 1;
                let expected =
                    if Some(conn) == down { CloseReason::Error(libc::ECONNREFUSED) } else { CloseReason::Peer };
                assert_eq!(why, expected);
            }
            Step::Event(Event::Sent { conn }) => assert_eq!(Some(conn), up),
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {}
        }
        if closed == 2 { Turn::Stop } else { IDLE }
    });
    assert_eq!((&peer.join().unwrap(), &got[..]), (b"hello", &b"world"[..]));
}

/// Lost if it fails: an answer meant for one client could reach the next one in its slot.
fn a_connection_that_is_closed_by_the_driver_ends_once(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    // What a client sends comes in many parts of one turn.
    let mut config = config(dir.path());
    config.tuning.recv_buffer_bytes = 256;
    let (addr, got_addr) = mpsc::channel();
    const CLIENTS: usize = 200;
    let clients = thread::spawn(move || {
        let addr: SocketAddr = got_addr.recv().unwrap();
        for _ in 0..CLIENTS {
            let mut client = TcpStream::connect(addr).unwrap();
            client.write_all(&[7; 4_000]).unwrap();
            let _ = client.read(&mut [0; 100]);
        }
    });
    let (mut open, mut closed) = (BTreeMap::new(), 0);
    run_by(choice, &config, |rt, step| {
        match step {
            Step::Start => {
                let (_, at) = rt.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                addr.send(at).unwrap();
            }
            Step::Event(Event::Accepted { conn, .. }) => {
                assert!(open.insert(conn, (false, false)).is_none());
                rt.send(conn, vec![]);
            }
            Step::Event(Event::Sent { conn }) => {
                let (sent, closing) = open.get_mut(&conn).expect("open");
                assert!(!*closing && !*sent, "the end of a send that was cut off");
                *sent = true;
            }
            Step::Event(Event::Received { conn, .. }) => {
                let (sent, closing) = open.get_mut(&conn).expect("bytes only while it is open");
                assert!(!*closing, "bytes after the close");
                *closing = true;
                if *sent {
                    rt.send(conn, vec![Bytes::from(vec![1; 100_000])]);
                }
                rt.close(conn);
                rt.close(conn);
                rt.send(conn, vec![Bytes::from_static(b"nobody gets this")]);
            }
            Step::Event(Event::Closed { conn, why }) => {
                let (_, closing) = open.remove(&conn).expect("closed once");
                assert_eq!((closing, why), (true, CloseReason::Asked));
                rt.close(conn);
                rt.set_receiving(conn, true);
                rt.send(conn, vec![Bytes::from_static(b"nor this")]);
                closed += 1;
            }
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {}
        }
        if closed == CLIENTS { Turn::Stop } else { IDLE }
    });
    clients.join().unwrap();
}

/// A client that writes the first MiB of the pattern again and again, until it is closed.
fn write_pattern_for_ever(addr: SocketAddr) {
    let mut client = TcpStream::connect(addr).unwrap();
    let (chunk, mut sent) = (pattern_bytes(0, 1 << 20), 0u64);
    loop {
        let at = (sent % (1 << 20)) as usize;
        match client.write(&chunk[at..(at + 65_536).min(1 << 20)]) {
            Ok(n) => sent += n as u64,
            Err(_) => return,
        }
    }
}

/// Lost if it fails: the bound on what one client can make the broker take.
fn a_pause_takes_hold_while_bytes_keep_coming(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    // A receive then goes on for many buffers before it rests, and a pause often meets it on the way.
    config.tuning.recv_buffers = 1024;
    config.tuning.recv_buffer_bytes = 128;
    let (addr, got_addr) = mpsc::channel();
    let client = thread::spawn(move || {
        write_pattern_for_ever(got_addr.recv().unwrap());
    });
    // After a pause the loop is busy with other things for this many turns, and nothing may come in the later half.
    const TURNS: u32 = 60;
    let (mut conn, mut at, mut quiet, mut pauses) = (None, 0u64, 0, 0);
    let mut on = true;
    let mut stop = false;
    run_by(choice, &config, |rt, step| {
        match step {
            Step::Start => {
                let (_, listening) = rt.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                addr.send(listening).unwrap();
            }
            Step::Event(Event::Accepted { conn: new, .. }) => conn = Some(new),
            Step::Event(Event::Received { bytes, .. }) => {
                assert!(on || quiet < TURNS / 2, "bytes {quiet} turns after pause {pauses}");
                for byte in bytes {
                    assert_eq!(*byte, pattern(at % (1 << 20)), "at {at}");
                    at += 1;
                }
                if on {
                    (on, quiet, pauses) = (false, 0, pauses + 1);
                    rt.set_receiving(conn.unwrap(), false);
                }
            }
            Step::Event(Event::Closed { .. }) => stop = true,
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {
                if conn.is_none() {
                    return IDLE;
                }
                quiet += 1;
                if pauses == 400 {
                    rt.close(conn.unwrap());
                } else if !on && quiet > TURNS {
                    on = true;
                    rt.set_receiving(conn.unwrap(), true);
                }
                return if stop { Turn::Stop } else { Turn::Again };
            }
        }
        IDLE
    });
    client.join().unwrap();
}

/// Lost if it fails: the budget of a core, to clients that each bring what they have before they are paused. Receives
/// that went on by themselves before are ended, and afterwards they do again.
fn while_it_spares_a_turn_brings_one_buffer_of_each_connection(choice: IoChoice) {
    const CLIENTS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.tuning.recv_buffers = 1024;
    config.tuning.recv_buffer_bytes = 128;
    let (addr, got_addr) = mpsc::channel();
    let clients = thread::spawn(move || {
        let addr: SocketAddr = got_addr.recv().unwrap();
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| write_pattern_for_ever(addr));
            }
        });
    });
    // Turns of each part, and how many of them the kernel may take to notice.
    const TURNS: u32 = 400;
    const GRACE: u32 = 60;
    let (mut at, mut in_turn) = (BTreeMap::<ConnId, u64>::new(), BTreeMap::<ConnId, u32>::new());
    let (mut part, mut turns, mut most, mut received) = (0, 0, [0; 5], [0u64; 5]);
    let (mut accepted, mut but, mut most_but, mut stop) = (0, None, 0, false);
    run_by(choice, &config, |rt, step| {
        match step {
            Step::Start => {
                let (_, listening) = rt.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                addr.send(listening).unwrap();
            }
            Step::Event(Event::Accepted { conn, .. }) => {
                assert!(at.insert(conn, 0).is_none());
                accepted += 1;
                if part == 4 {
                    rt.close(conn);
                }
            }
            Step::Event(Event::Received { conn, bytes }) => {
                let at = at.get_mut(&conn).expect("accepted");
                for byte in bytes {
                    assert_eq!(*byte, pattern(*at % (1 << 20)), "at {at} of {conn:?}");
                    *at += 1;
                }
                *in_turn.entry(conn).or_default() += 1;
                received[part] += bytes.len() as u64;
            }
            Step::Event(Event::Closed { conn, .. }) => {
                at.remove(&conn);
                stop = at.is_empty() && accepted == CLIENTS;
            }
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {
                let came = std::mem::take(&mut in_turn);
                // A turn counts when it brought something: the clients may be slower than the loop.
                turns += u32::from(!came.is_empty());
                if turns > GRACE {
                    most_but = but.and_then(|but| came.get(&but).copied()).unwrap_or(0).max(most_but);
                    let counts = came.into_iter().filter(|(conn, _)| but != Some(*conn)).map(|(_, buffers)| buffers);
                    most[part] = counts.max().unwrap_or(0).max(most[part]);
                }
                if turns == TURNS && part < 4 {
                    (part, turns) = (part + 1, 0);
                    but = at.keys().next().copied().filter(|_| part == 3);
                    rt.set_sparing(part % 2 == 1, but);
                    if part == 4 {
                        at.keys().for_each(|conn| rt.close(*conn));
                    }
                }
                return if stop { Turn::Stop } else { Turn::Again };
            }
        }
        IDLE
    });
    clients.join().unwrap();
    assert!(most[1] == 1 && most[3] == 1, "{most:?} buffers of one connection in a turn");
    assert!(most[2] > 1, "{most:?}: it spares for ever, at a price");
    assert!(most_but > 1, "it spares the one that is to go on");
    assert!(received[..4].iter().all(|bytes| *bytes > 0), "{received:?}");
}

/// Lost if it fails: the service of everybody else, for as long as a few clients bring more than there are buffers.
fn a_few_that_have_much_to_bring_do_not_take_every_buffer(choice: IoChoice) {
    const CLIENTS: usize = 40;
    /// When one has brought this much, the others have brought something. Each has more than that in its socket.
    const MUCH: u64 = 48 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.tuning.recv_buffers = 8;
    config.tuning.recv_buffer_bytes = 512;
    let (addr, got_addr) = mpsc::channel::<SocketAddr>();
    let (waker, full) = (config.bell.waker(), Arc::new(AtomicBool::new(false)));
    let (is_full, over) = (full.clone(), Arc::new(AtomicBool::new(false)));
    let is_over = over.clone();
    let clients = thread::spawn(move || {
        let addr = got_addr.recv().unwrap();
        let conns: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(addr).unwrap()).collect();
        for conn in &conns {
            conn.set_nonblocking(true).unwrap();
            let mut sent = 0;
            eventually("its socket has that much", || {
                sent += (&*conn).write(&[7; 32 * 1024]).map_or(0, |n| n as u64);
                sent > 2 * MUCH
            });
        }
        is_full.store(true, Ordering::SeqCst);
        waker.wake();
        eventually("the server is through", || is_over.load(Ordering::SeqCst));
    });
    let (mut brought, mut begun) = (BTreeMap::<ConnId, u64>::new(), false);
    run_by(choice, &config, |rt, step| {
        match step {
            Step::Start => {
                let (_, listening) = rt.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                addr.send(listening).unwrap();
            }
            Step::Event(Event::Accepted { conn, .. }) => {
                rt.set_receiving(conn, false);
                brought.insert(conn, 0);
            }
            Step::Event(Event::Received { conn, bytes }) => *brought.get_mut(&conn).unwrap() += bytes.len() as u64,
            Step::Event(Event::Woken | Event::Closed { .. }) => {}
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {
                if !begun && full.load(Ordering::SeqCst) && brought.len() == CLIENTS {
                    begun = true;
                    brought.keys().for_each(|conn| rt.set_receiving(*conn, true));
                }
                if begun && brought.values().any(|bytes| *bytes >= MUCH) {
                    return Turn::Stop;
                }
            }
        }
        IDLE
    });
    over.store(true, Ordering::SeqCst);
    clients.join().unwrap();
    let nothing = brought.values().filter(|bytes| **bytes == 0).count();
    assert_eq!(nothing, 0, "connections that brought nothing: {brought:?}");
}

/// Lost if it fails: a core, to connections that died while nobody read from them.
fn a_paused_connection_that_is_reset_costs_nothing_until_it_is_noticed(choice: IoChoice) {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let (addr, got_addr) = mpsc::channel();
    let (accepted, is_accepted) = mpsc::channel();
    let client = thread::spawn(move || {
        let addr: SocketAddr = got_addr.recv().unwrap();
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(&[1; 2_000]).unwrap();
        // One that is reset before that is nobody's connection.
        is_accepted.recv().unwrap();
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let (mut resume, mut paused, mut closed) = (None, None, false);
    run_by(choice, &config, |rt, step| {
        match step {
            Step::Start => {
                let (_, at) = rt.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                addr.send(at).unwrap();
            }
            Step::Event(Event::Accepted { conn, .. }) => {
                rt.set_receiving(conn, false);
                (paused, resume) = (Some(conn), Some(rt.now() + Duration::from_millis(300)));
                accepted.send(()).unwrap();
            }
            Step::Event(Event::Received { .. }) => assert!(paused.is_none(), "bytes while it is paused"),
            Step::Event(Event::Closed { why, .. }) => {
                assert_eq!(why, CloseReason::Error(libc::ECONNRESET));
                closed = true;
            }
            Step::Event(event) => unreachable!("{event:?}"),
            Step::TurnEnd => {
                if resume.is_some_and(|due| rt.now() >= due) {
                    resume = None;
                    rt.set_receiving(paused.take().unwrap(), true);
                }
                if closed && resume.is_none() {
                    return Turn::Stop;
                }
                return Turn::Wait { until: resume };
            }
        }
        IDLE
    });
    client.join().unwrap();
    let turns = config.stats.turns.turns.load(Ordering::Relaxed);
    assert!(turns < 30, "{turns} turns for one connection: it spins");
}

// ------------------------------------------------------------------------------------------------------- the mesh

/// Sends numbers to the other core as fast as its lane takes them, and checks what comes. Sleeps when it can do
/// neither.
struct Crosser {
    port: Port<u64>,
    other: CoreId,
    next: u64,
    expected: u64,
    /// Sends up to this, expects up to that.
    last: (u64, u64),
    refused: Arc<AtomicU64>,
}

impl Driver for Crosser {
    fn start(&mut self, _: &mut dyn Rt) {}
    fn event(&mut self, _: &mut dyn Rt, event: Event<'_>) {
        assert!(matches!(event, Event::Woken), "{event:?}");
    }
    fn turn_end(&mut self, _: &mut dyn Rt) -> Turn {
        while let Some((from, n)) = self.port.next() {
            assert_eq!((from, n), (self.other, self.expected));
            self.expected += 1;
        }
        while self.next < self.last.0 {
            match self.port.try_send(self.other, self.next) {
                Ok(()) => self.next += 1,
                Err(n) => {
                    assert_eq!(n, self.next);
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.port.flush();
        if (self.next, self.expected) == self.last { Turn::Stop } else { IDLE }
    }
}

/// Lost if it fails: a request between two cores, its order, or both cores asleep for ever.
fn the_mesh_keeps_order_and_wakes_both_ways_under_two_threads(choice: IoChoice) {
    // One way only as well: then nothing but the room in its lane wakes the sender.
    for messages in [[30_000, 30_000], [30_000, 0]] {
        let dir = tempfile::tempdir().unwrap();
        let refused = Arc::new(AtomicU64::new(0));
        let bells = [Bell::new().unwrap(), Bell::new().unwrap()];
        let wakers: Vec<_> = bells.iter().map(Bell::waker).collect();
        let mut handles = vec![];
        for (mut port, bell) in mesh_with_lanes_of::<u64>(2, 8).into_iter().zip(bells) {
            port.set_wakers(wakers.clone());
            let (core, refused) = (port.core(), refused.clone());
            let config = CoreConfig::new(core, dir.path().to_owned(), bell);
            let (me, other) = (usize::from(core.0), 1 - usize::from(core.0));
            let last = (messages[me], messages[other]);
            let make = move |_| Crosser { port, other: CoreId(other as u16), next: 0, expected: 0, last, refused };
            handles.push(spawn_core(choice, config, make).unwrap());
        }
        eventually("both have sent and received everything", || handles.iter().all(|handle| handle.is_finished()));
        for handle in handles {
            handle.join().unwrap();
        }
        assert!(refused.load(Ordering::Relaxed) > 0, "no lane was ever full: the test shows less than it says");
    }
}

// ------------------------------------------------------------------------------------------------------- the disk

/// Submits each operation after the last has ended, and returns the ends.
fn disk_ops(choice: IoChoice, config: &CoreConfig, ops: Vec<DiskOp>) -> Vec<Result<DiskOk, DiskError>> {
    let (mut left, mut ends, mut next) = (VecDeque::from(ops), vec![], 0u64);
    let all = left.len();
    run_by(choice, config, |rt, step| {
        let submit = match step {
            Step::Start => true,
            Step::Event(Event::Disk(DiskDone { op, result })) => {
                assert_eq!(op, OpId(next), "each operation ends once");
                next += 1;
                ends.push(result);
                true
            }
            Step::Event(Event::Woken) | Step::TurnEnd => false,
            Step::Event(event) => unreachable!("{event:?}"),
        };
        if submit && let Some(op) = left.pop_front() {
            rt.disk().submit(OpId(next), op);
        }
        if ends.len() == all { Turn::Stop } else { IDLE }
    });
    ends
}

fn methods(choice: IoChoice) -> Vec<Option<DurableMethod>> {
    match choice {
        IoChoice::Blocking => vec![None],
        IoChoice::Auto | IoChoice::Uring | IoChoice::Glommio => {
            vec![None, Some(DurableMethod::Dsync), Some(DurableMethod::LinkedFsync), Some(DurableMethod::Adaptive)]
        }
    }
}

fn blocks(pool: &mut ChunkPool, len: usize, seed: u64) -> BlockBuf {
    let mut chunk = pool.take(len).expect("within the budget");
    chunk.extend(&pattern_bytes(seed, len));
    chunk.freeze()
}

/// Lost if it fails: what the log is made of.
fn a_file_is_prepared_written_read_and_removed(choice: IoChoice) {
    for method in methods(choice) {
        let dir = tempfile::tempdir().unwrap();
        let volume = RealVolume::open(dir.path(), true).unwrap();
        let mut pool = ChunkPool::new(4 * WAL_CHUNK_BYTES);
        let mut config = config(dir.path());
        config.durable = method;
        config.regions = Some(pool.regions());
        let (file, len) = (FileId(17), 3 * WAL_CHUNK_BYTES as u64);
        let small = blocks(&mut pool, 2 * BLOCK_BYTES, 1);
        let large = blocks(&mut pool, WAL_CHUNK_BYTES + BLOCK_BYTES, 2);
        let write = |at, buf: &BlockBuf| DiskOp::Write { file, at, buf: buf.clone() };
        let ops = vec![
            DiskOp::Prepare { file, len },
            write(BLOCK_BYTES as u64, &small),
            write(WAL_CHUNK_BYTES as u64, &large),
            write(BLOCK_BYTES as u64, &small),
            DiskOp::Read { file, at: 0, len: 4 * BLOCK_BYTES as u32 },
        ];
        let mut ends = disk_ops(choice, &config, ops);
        let DiskOk::Read(read) = ends.pop().unwrap().unwrap() else { panic!("not a read") };
        let zeros = [0; BLOCK_BYTES];
        assert_eq!(&read[..], [&zeros[..], &small.bytes, &zeros].concat());
        let [Ok(DiskOk::Prepared), Ok(DiskOk::Written), Ok(DiskOk::Written), Ok(DiskOk::Written)] = &ends[..] else {
            panic!("{ends:?}")
        };
        if choice != IoChoice::Blocking {
            let turns = &config.stats.turns;
            assert_eq!(turns.writes_registered.load(Ordering::Relaxed), 2, "{method:?}");
            assert_eq!(turns.writes_unregistered.load(Ordering::Relaxed), 1, "{method:?}");
        }
        // The same through the volume, as recovery will see it.
        assert_eq!(volume.files().unwrap(), [(file, len)]);
        let mut read = vec![0; large.bytes.len()];
        volume.read(file, WAL_CHUNK_BYTES as u64, &mut read).unwrap();
        assert_eq!(read, large.bytes);
        assert!(volume.read(file, len - 1, &mut [0; 2]).is_err(), "it ends before that");
        volume.sync(file).unwrap();
        let ends = disk_ops(choice, &config, vec![DiskOp::Remove { file }]);
        assert!(matches!(ends[..], [Ok(DiskOk::Removed)]), "{ends:?}");
        assert_eq!(volume.files().unwrap(), []);
    }
}

/// Lost if it fails: an error that nobody hears of, or that is heard of twice.
fn what_is_wrong_with_a_file_is_reported_once(choice: IoChoice) {
    for method in methods(choice) {
        let dir = tempfile::tempdir().unwrap();
        let volume = RealVolume::open(dir.path(), true).unwrap();
        let mut pool = ChunkPool::new(2 * WAL_CHUNK_BYTES);
        let mut config = config(dir.path());
        config.durable = method;
        std::fs::write(dir.path().join("000001.wal"), [9; BLOCK_BYTES]).unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("000002.wal")).unwrap();
        let buf = blocks(&mut pool, BLOCK_BYTES, 3);
        let block = BLOCK_BYTES as u64;
        let ops = vec![
            DiskOp::Prepare { file: FileId(1), len: block },
            DiskOp::Read { file: FileId(1), at: 0, len: 2 * BLOCK_BYTES as u32 },
            DiskOp::Read { file: FileId(3), at: 0, len: BLOCK_BYTES as u32 },
            DiskOp::Write { file: FileId(3), at: 0, buf: buf.clone() },
            DiskOp::Remove { file: FileId(3) },
            DiskOp::Write { file: FileId(2), at: block, buf },
            DiskOp::Read { file: FileId(1), at: 0, len: BLOCK_BYTES as u32 },
        ];
        let ends = disk_ops(choice, &config, ops);
        let brief = |end: &Result<DiskOk, DiskError>| end.as_ref().map(|_| ()).map_err(|e| (e.what, e.file, e.errno));
        let missing = Some(libc::ENOENT);
        let expected = [
            Err(("prepare", FileId(1), Some(libc::EEXIST))),
            Err(("read", FileId(1), None)),
            Err(("read", FileId(3), missing)),
            Err(("write", FileId(3), missing)),
            Err(("remove", FileId(3), missing)),
            Err(("write", FileId(2), Some(libc::ENOSPC))),
            Ok(()),
        ];
        assert_eq!(ends.iter().map(brief).collect::<Vec<_>>(), expected, "{method:?}");
        let full = ends[5].as_ref().unwrap_err();
        assert_eq!((full.kind, full.at), (DiskErrorKind::NoSpace, block));
        let refused = volume.files().expect_err("a device is no segment").to_string();
        assert!(refused.contains("000002.wal"), "{refused}");
        std::fs::remove_file(dir.path().join("000002.wal")).unwrap();
        let names: Vec<_> = volume.files().unwrap().iter().map(|(file, _)| *file).collect();
        assert_eq!(names, [FileId(1)]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "what could not be made leaves nothing");
    }
}

/// Lost if it fails: the last records before a stop; or memory, to a device that still reads it.
fn writes_in_flight_end_before_the_loop_does(choice: IoChoice) {
    for method in methods(choice) {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = ChunkPool::new(8 * WAL_CHUNK_BYTES);
        let mut config = config(dir.path());
        config.durable = method;
        config.regions = Some(pool.regions());
        let file = FileId(1);
        let len = 8 * WAL_CHUNK_BYTES as u64;
        let ends = disk_ops(choice, &config, vec![DiskOp::Prepare { file, len }]);
        assert!(matches!(ends[..], [Ok(DiskOk::Prepared)]), "{ends:?}");
        let (mut done, mut stopped) = (vec![], false);
        run_by(choice, &config, |rt, step| {
            match step {
                Step::Start => {
                    for n in 0..8u64 {
                        let buf = blocks(&mut pool, WAL_CHUNK_BYTES, n);
                        rt.disk().submit(OpId(n), DiskOp::Write { file, at: n * WAL_CHUNK_BYTES as u64, buf });
                    }
                    // Not needed any more when it is done: given up, but ended.
                    rt.disk().submit(OpId(8), DiskOp::Prepare { file: FileId(2), len: 1 << 30 });
                }
                Step::Event(Event::Disk(end)) => done.push(end),
                Step::Event(_) => {}
                Step::TurnEnd => {
                    assert!(!stopped, "no turn after the last one");
                    stopped = true;
                    return Turn::Stop;
                }
            }
            IDLE
        });
        done.sort_by_key(|end| end.op);
        assert_eq!(done.iter().map(|end| end.op.0).collect::<Vec<_>>(), Vec::from_iter(0..=8), "{method:?}");
        assert!(done[..8].iter().all(|end| end.result.is_ok()), "{done:?}");
        assert_eq!(pool.in_use_bytes(), 0, "every buffer came back");
        let volume = RealVolume::open(dir.path(), false).unwrap();
        let mut read = vec![0; WAL_CHUNK_BYTES];
        for n in 0..8u64 {
            volume.read(file, n * WAL_CHUNK_BYTES as u64, &mut read).unwrap();
            assert!(read == pattern_bytes(n, WAL_CHUNK_BYTES), "group {n}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the unfinished file is gone");
    }
}

// ------------------------------------------------------------------------------- what needs a process of its own

/// The child's shell, by environment: a child test does nothing without it.
const CHILD: &str = "CAMUS_SEAM_CHILD";

fn child(test: &str, choice: IoChoice) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, shell_name(choice));
    command
}

fn shell_name(choice: IoChoice) -> &'static str {
    match choice {
        IoChoice::Auto | IoChoice::Uring => "uring",
        IoChoice::Blocking => "poll",
        IoChoice::Glommio => "glommio",
    }
}

fn child_choice() -> Option<IoChoice> {
    let asked = std::env::var(CHILD).ok()?;
    [IoChoice::Uring, IoChoice::Blocking, IoChoice::Glommio].into_iter().find(|choice| shell_name(*choice) == asked)
}

fn succeeds(mut command: Command) {
    let out = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && stdout.contains("1 passed"), "{}\n{stdout}\n{stderr}", out.status);
}

fn set_limit(resource: libc::__rlimit_resource_t, to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: a plain system call on a struct of ours.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

/// Lost if it fails: the broker, to anybody who opens many connections; or a core, to a loop that spins.
fn running_out_of_descriptors_is_survived_without_spinning(choice: IoChoice) {
    let mut command = child("child_with_few_descriptors", choice);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The harness prints before and beside what is looked for.
    let mut line = |prefix: &str| {
        loop {
            let line = lines.next().expect("the child is alive").unwrap();
            if let Some((_, found)) = line.split_once(prefix) {
                return found.to_owned();
            }
        }
    };
    let addr: SocketAddr = line("listening on ").parse().unwrap();
    let mut crowd: Vec<_> = (0..80).map(|_| TcpStream::connect(addr).unwrap()).collect();
    crowd[0].set_read_timeout(Some(PATIENCE)).unwrap();
    round_trip(&mut crowd[0], b"the first is in");
    thread::sleep(Duration::from_millis(500));
    round_trip(&mut crowd[0], b"and is still served");
    drop(crowd);
    let mut client = TcpStream::connect(addr).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    round_trip(&mut client, b"there is room again");
    drop(child.stdin.take());
    let failures: u64 = line("accept failures ").parse().unwrap();
    assert!((1..400).contains(&failures), "{failures} failures: none means no test, many means that it spins");
    while lines.next().is_some() {}
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "a child process of another test"]
fn child_with_few_descriptors() {
    let Some(choice) = child_choice() else { return };
    // Before the start: a ring notes the limit when accepting is armed.
    set_limit(libc::RLIMIT_NOFILE, 48);
    let server = EchoServer::start(choice, |_| {});
    println!("listening on {}", server.addr);
    std::io::stdin().read_to_end(&mut vec![]).unwrap();
    println!("accept failures {}", server.config.stats.turns.accept_failures.load(Ordering::Relaxed));
    server.stop();
}

/// Lost if it fails: records that were acknowledged though the device took only a part of them.
fn a_short_write_and_a_failed_one_are_errors(choice: IoChoice) {
    succeeds(child("child_with_short_files", choice));
}

#[test]
#[ignore = "a child process of another test"]
fn child_with_short_files() {
    let Some(choice) = child_choice() else { return };
    // SAFETY: from here on a write beyond the limit is an error and not a signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    set_limit(libc::RLIMIT_FSIZE, 4 * BLOCK_BYTES as u64);
    for method in methods(choice) {
        let dir = tempfile::tempdir().unwrap();
        let mut pool = ChunkPool::new(4 * WAL_CHUNK_BYTES);
        let mut config = config(dir.path());
        config.durable = method;
        let (file, block) = (FileId(1), BLOCK_BYTES as u64);
        let buf = blocks(&mut pool, 2 * BLOCK_BYTES, 1);
        let ops = vec![
            DiskOp::Prepare { file, len: 4 * block },
            DiskOp::Write { file, at: 3 * block, buf: buf.clone() },
            DiskOp::Write { file, at: 4 * block, buf: buf.clone() },
            DiskOp::Write { file, at: 2 * block, buf },
            DiskOp::Prepare { file: FileId(2), len: 8 * block },
        ];
        let ends = disk_ops(choice, &config, ops);
        assert!(ends[0].is_ok() && ends[3].is_ok(), "{method:?}: {ends:?}");
        let short = ends[1].as_ref().unwrap_err();
        assert_eq!((short.kind, short.what, short.errno), (DiskErrorKind::Io, "write", None), "{method:?}: {short}");
        let failed = ends[2].as_ref().unwrap_err();
        assert_eq!((failed.what, failed.errno), ("write", Some(libc::EFBIG)), "{method:?}: {failed}");
        assert!(ends[4].is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "what could not be made leaves nothing");
    }
}

/// Lost if it fails: the broker does not start where locked memory is scarce, though it could.
#[test]
fn without_locked_memory_the_disk_writes_out_of_plain_buffers() {
    succeeds(child("child_without_locked_memory", IoChoice::Uring));
}

#[test]
#[ignore = "a child process of another test"]
fn child_without_locked_memory() {
    let Some(choice) = child_choice() else { return };
    let dir = tempfile::tempdir().unwrap();
    // Enough for a ring, not for a chunk.
    set_limit(libc::RLIMIT_MEMLOCK, 512 * 1024);
    // SAFETY: plain system calls. Root may lock what it likes (CAP_IPC_LOCK), so this process stops being it.
    unsafe {
        if libc::geteuid() == 0 {
            let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
            assert_eq!(libc::chown(path.as_ptr(), 65_534, 65_534), 0);
            assert_eq!(libc::setresuid(65_534, 65_534, 65_534), 0);
        }
    }
    let mut pool = ChunkPool::new(2 * WAL_CHUNK_BYTES);
    let mut config = config(dir.path());
    config.regions = Some(pool.regions());
    let file = FileId(1);
    let buf = blocks(&mut pool, WAL_CHUNK_BYTES, 1);
    assert!(buf.registered.is_some());
    let write = |at| DiskOp::Write { file, at, buf: buf.clone() };
    let ends = disk_ops(choice, &config, vec![DiskOp::Prepare { file, len: 2 << 20 }, write(0), write(1 << 20)]);
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let turns = &config.stats.turns;
    assert_eq!(turns.writes_registered.load(Ordering::Relaxed), 0);
    assert_eq!(turns.writes_unregistered.load(Ordering::Relaxed), 2);
    // Not even enough for a ring.
    set_limit(libc::RLIMIT_MEMLOCK, 0);
    let refused = run(IoChoice::Uring, &config, stopping);
    assert!(matches!(refused, Err(RtError::NoMemory { memlock_bytes: 0, .. })), "{:?}", refused.err());
    run(IoChoice::Auto, &config, stopping).unwrap();
}

/// Makes a driver that stops at once.
fn stopping(_: Waker) -> impl Driver {
    By(|_: &mut dyn Rt, _: Step<'_>| Turn::Stop)
}

/// Lost if it fails: a broker that could serve refuses to start where io_uring is forbidden, or says nothing of it.
#[test]
fn where_io_uring_is_forbidden_another_shell_serves() {
    succeeds(child("child_where_io_uring_is_forbidden", IoChoice::Uring));
}

#[test]
#[ignore = "a child process of another test"]
fn child_where_io_uring_is_forbidden() {
    if child_choice().is_none() {
        return;
    }
    forbid_io_uring();
    let dir = tempfile::tempdir().unwrap();
    let refused = run(IoChoice::Uring, &config(dir.path()), stopping);
    assert!(matches!(refused, Err(RtError::Unavailable(_))), "{:?}", refused.err());
    let handle = spawn_core(IoChoice::Auto, config(dir.path()), stopping).unwrap();
    assert_eq!(handle.kind, ShellKind::Poll);
    handle.join().unwrap();
}

/// As a container's seccomp profile does: io_uring_setup fails with EPERM from here on.
fn forbid_io_uring() {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        statement((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, libc::SYS_io_uring_setup as u32),
        statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: plain system calls; the filter outlives them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}
