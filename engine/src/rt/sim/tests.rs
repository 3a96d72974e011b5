//! What clocks, ways and pauses do to two drivers on two machines that talk.

use super::*;
use crate::types::WallMs;

const SOON: Duration = Duration::from_secs(5);

/// Accepts, and counts what comes; or connects, and sends so much; and ticks.
struct Talker {
    listens: Option<SocketAddr>,
    connects: Option<SocketAddr>,
    sends: usize,
    tick: Duration,
    ticks: Vec<(Mono, WallMs)>,
    conn: Option<ConnId>,
    received: Vec<u8>,
    /// Sends that are with the kernel.
    sent: usize,
    closed: Vec<CloseReason>,
    next: u8,
    due: Option<Mono>,
}

impl Talker {
    fn new(listens: Option<SocketAddr>, connects: Option<SocketAddr>) -> Talker {
        Talker {
            listens,
            connects,
            sends: 0,
            tick: Duration::from_secs(3600),
            ticks: vec![],
            conn: None,
            received: vec![],
            sent: 0,
            closed: vec![],
            next: 0,
            due: None,
        }
    }
}

impl Driver for Talker {
    fn start(&mut self, rt: &mut dyn Rt) {
        if let Some(addr) = self.listens {
            rt.listen(addr).expect("free");
        }
        if let Some(addr) = self.connects {
            rt.connect(addr).expect("it is tried");
        }
    }

    fn event(&mut self, _: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Accepted { conn, .. } | Event::Connected { conn } => self.conn = Some(conn),
            Event::Received { bytes, .. } => self.received.extend_from_slice(bytes),
            Event::Sent { .. } => self.sent += 1,
            Event::Closed { why, .. } => {
                self.conn = None;
                self.closed.push(why);
            }
            Event::Disk(_) => unreachable!("it has no files"),
            Event::Woken => {}
        }
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        if let Some(conn) = self.conn
            && self.sends > 0
            && self.sent == usize::from(self.next)
        {
            self.sends -= 1;
            rt.send(conn, vec![Bytes::from(vec![self.next; 10_000])]);
            self.next += 1;
        }
        let due = *self.due.get_or_insert(rt.now() + self.tick);
        if rt.now() >= due {
            self.ticks.push((rt.now(), rt.wall()));
            self.due = Some(due + self.tick);
        }
        Turn::Wait { until: self.due }
    }
}

struct Pair {
    world: World<Talker>,
    hosts: [HostId; 2],
    /// The one that connects, the one that listens.
    cores: [SimCoreId; 2],
}

fn addr() -> SocketAddr {
    "10.0.0.2:9".parse().expect("an address")
}

impl Pair {
    /// Two machines; nobody runs.
    fn new(seed: u64) -> Pair {
        let mut world = World::new(seed);
        let hosts = ["10.0.0.1", "10.0.0.2"].map(|ip| world.add_host(ip.parse().expect("an address")));
        let cores = hosts.map(|host| world.add_core_on(host));
        Pair { world, hosts, cores }
    }

    /// They are connected.
    fn connected(seed: u64) -> Pair {
        let mut pair = Pair::new(seed);
        pair.start_listener();
        pair.start_connector();
        assert!(pair.until(|pair| pair.at(0).conn.is_some() && pair.at(1).conn.is_some()));
        pair
    }

    fn start_listener(&mut self) {
        self.world.start(self.cores[1], Talker::new(Some(addr()), None));
    }

    fn start_connector(&mut self) {
        self.world.start(self.cores[0], Talker::new(None, Some(addr())));
    }

    fn at(&mut self, n: usize) -> &mut Talker {
        self.world.driver(self.cores[n]).expect("runs")
    }

    fn send(&mut self, n: usize, messages: usize) {
        self.at(n).sends += messages;
        self.world.waker(self.cores[n]).wake();
    }

    fn until(&mut self, holds: impl Fn(&mut Pair) -> bool) -> bool {
        let end = self.world.now() + SOON;
        while self.world.now() < end {
            if holds(self) {
                return true;
            }
            self.world.run_for(Duration::from_millis(1));
        }
        holds(self)
    }

    fn run_ms(&mut self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    fn set(&mut self, from: usize, to: usize, path: Path) {
        self.world.set_path(self.hosts[from], self.hosts[to], path);
    }
}

/// What so many messages are.
fn messages(count: u8) -> Vec<u8> {
    (0..count).flat_map(|n| vec![n; 10_000]).collect()
}

/// Lost if it fails: a fault of the network that loses what TCP would not, or changes its order, is taken for the
/// broker's.
#[test]
fn a_clogged_way_holds_everything_and_lets_it_through_later_in_its_order() {
    for seed in 0..20 {
        let mut pair = Pair::connected(seed);
        pair.send(0, 3);
        let us = pair.world.rng().between(0, 1_000);
        pair.world.run_for(Duration::from_micros(us));
        pair.set(0, 1, Path::clogged());
        let came = pair.at(1).received.len();
        pair.send(1, 2);
        pair.run_ms(500);
        assert!(pair.at(1).received.len() == came, "seed {seed}: something came over a clogged way");
        assert!(pair.at(0).received == messages(2), "seed {seed}: the other direction works");
        pair.set(0, 1, Path::default());
        assert!(pair.until(|pair| pair.at(1).received == messages(3)), "seed {seed}");
        assert!(pair.at(0).closed.is_empty() && pair.at(1).closed.is_empty());
    }
}

/// Lost if it fails: a sender behind a one-way cut never feels it, and nothing that waits for it is ever tested.
#[test]
fn a_cut_way_back_fills_the_window_of_the_sender() {
    for seed in 0..10 {
        let mut pair = Pair::connected(seed);
        // what is sent gets through, and no word of it comes back
        pair.set(1, 0, Path::cut());
        pair.send(0, 40);
        pair.run_ms(1_000);
        let (sent, received) = (pair.at(0).sent, pair.at(1).received.len());
        assert!(sent < 20, "seed {seed}: {sent} sends ended without a word from the other side");
        assert!(received > 0 && received <= 128 * 1024, "seed {seed}: {received} bytes came");
        pair.set(1, 0, Path::default());
        assert!(pair.until(|pair| pair.at(1).received == messages(40)), "seed {seed}");
    }
}

/// Lost if it fails: half connections, which a broker meets whenever a machine is gone without a word.
#[test]
fn who_loses_a_reset_learns_of_the_end_when_it_sends() {
    for seed in 0..20 {
        let mut pair = Pair::connected(seed);
        pair.set(1, 0, Path::cut());
        pair.set(0, 1, Path::cut());
        pair.world.crash(pair.cores[1], Crash::Power);
        pair.run_ms(200);
        assert!(pair.at(0).conn.is_some(), "seed {seed}: nobody told it");
        pair.set(0, 1, Path::default());
        pair.set(1, 0, Path::default());
        pair.run_ms(200);
        assert!(pair.at(0).conn.is_some(), "seed {seed}: it has not said anything");
        pair.send(0, 1);
        assert!(pair.until(|pair| pair.at(0).closed == [CloseReason::Error(libc::ECONNRESET)]), "seed {seed}");
    }
}

/// Lost if it fails: a connect in the middle of a partition is the one case that always works.
#[test]
fn connects_are_refused_or_hang_until_they_work() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.start_listener();
        let refused = Path { connects: Connects::Refused, ..Path::default() };
        pair.set(0, 1, refused);
        pair.start_connector();
        assert!(pair.until(|pair| pair.at(0).closed == [CloseReason::Error(libc::ECONNREFUSED)]), "seed {seed}");
        assert!(pair.at(1).conn.is_none());

        let hangs = Path { connects: Connects::Hang, ..Path::default() };
        for (forth, back) in [(hangs, Path::default()), (Path::cut(), Path::default()), (Path::default(), Path::cut())]
        {
            let mut pair = Pair::new(seed);
            pair.start_listener();
            pair.set(0, 1, forth);
            pair.set(1, 0, back);
            pair.start_connector();
            pair.run_ms(1_000);
            assert!(pair.at(0).conn.is_none() && pair.at(0).closed.is_empty(), "seed {seed}: it hangs");
            assert!(pair.at(1).conn.is_none());
            pair.set(0, 1, Path::default());
            pair.set(1, 0, Path::default());
            assert!(pair.until(|pair| pair.at(0).conn.is_some() && pair.at(1).conn.is_some()), "seed {seed}");
            pair.send(0, 3);
            assert!(pair.until(|pair| pair.at(1).received == messages(3)), "seed {seed}");
        }
    }
}

/// Lost if it fails: a client's requests come in another order than it sent them, and the broker is blamed.
#[test]
fn what_is_sent_before_a_connection_has_arrived_comes_first_whatever_the_way_does() {
    for seed in 0..200 {
        let mut pair = Pair::new(seed);
        pair.start_listener();
        let from = pair.hosts[0];
        pair.set(0, 1, Path::cut());
        let client = pair.world.connect_from(from, addr());
        let mut sent = vec![];
        for n in 0..40u8 {
            if n == 20 {
                pair.set(0, 1, Path::default());
            }
            pair.world.send(client, &[n; 50]);
            sent.extend([n; 50]);
            let us = pair.world.rng().between(0, 300);
            pair.world.run_for(Duration::from_micros(us));
        }
        let leaves = seed % 2 == 0;
        if leaves {
            pair.world.close(client);
        }
        assert!(pair.until(|pair| pair.at(1).received.len() == sent.len()), "seed {seed}: some of it is lost");
        assert!(pair.at(1).received == sent, "seed {seed}: in another order");
        assert!(!leaves || pair.until(|pair| pair.at(1).closed == [CloseReason::Peer]), "seed {seed}");
    }
}

/// Lost if it fails: the half of a connection, for each client that has gone before it was there.
#[test]
fn who_leaves_before_a_connection_has_arrived_is_heard_of_when_it_does() {
    for (seed, reset, listens) in (0..40).map(|seed| (seed, seed % 2 == 0, seed % 4 < 2)) {
        let mut pair = Pair::new(seed);
        if listens {
            pair.start_listener();
        }
        let from = pair.hosts[0];
        pair.set(0, 1, Path::cut());
        let client = pair.world.connect_from(from, addr());
        pair.world.send(client, b"before");
        if reset {
            pair.world.reset(client)
        } else {
            pair.world.close(client)
        }
        pair.run_ms(20);
        assert_eq!(pair.world.inner.links.len(), 1, "seed {seed}: it has not arrived");
        pair.set(0, 1, Path::default());
        pair.run_ms(20);
        assert_eq!(pair.world.inner.links.len(), 0, "seed {seed}");
        if listens {
            let why = if reset { CloseReason::Error(libc::ECONNRESET) } else { CloseReason::Peer };
            let received: &[u8] = if reset { b"" } else { b"before" };
            assert_eq!((pair.at(1).closed.clone(), pair.at(1).received.clone()), (vec![why], received.to_vec()));
        }
    }
}

/// Lost if it fails: no connection ever ends within a frame but by a crash.
#[test]
fn a_reset_between_two_machines_ends_both_ends_in_the_middle_of_what_is_sent() {
    let mut cut_off = 0;
    for seed in 0..20 {
        let mut pair = Pair::connected(seed);
        pair.send(0, 30);
        let us = pair.world.rng().between(0, 5_000);
        pair.world.run_for(Duration::from_micros(us));
        let [a, b] = pair.hosts;
        pair.world.reset_between(b, a, 100);
        pair.run_ms(100);
        for n in 0..2 {
            assert_eq!(pair.at(n).closed, [CloseReason::Error(libc::ECONNRESET)], "seed {seed}, end {n}");
        }
        let received = pair.at(1).received.len();
        cut_off += usize::from(!received.is_multiple_of(10_000));
        assert_eq!(pair.world.inner.links.len(), 0, "seed {seed}");
    }
    assert!(cut_off > 3, "{cut_off} were in the middle of a message");
}

/// Lost if it fails: a way that is called slow or lossy is not.
#[test]
fn a_way_takes_as_long_as_it_is_told_to_and_losses_cost_time() {
    for (path, at_least) in [
        (Path { delay: Duration::from_millis(30), ..Path::default() }, 30),
        (Path { loss_percent: 100, ..Path::default() }, 200),
    ] {
        let mut pair = Pair::connected(7);
        pair.set(0, 1, path);
        pair.send(0, 1);
        pair.run_ms(at_least - 1);
        assert!(pair.at(1).received.is_empty(), "{path:?}");
        assert!(pair.until(|pair| pair.at(1).received == messages(1)), "{path:?}");
    }
}

/// Lost if it fails: a process that stands still is only slow, or one that goes on has lost what came meanwhile.
#[test]
fn a_paused_process_takes_nothing_and_goes_on_where_it_was() {
    let all = messages(200);
    for seed in 0..5 {
        let mut pair = Pair::connected(seed);
        pair.send(0, 200);
        let us = pair.world.rng().between(0, 2_000);
        pair.world.run_for(Duration::from_micros(us));
        let core = pair.cores[1];
        pair.world.pause(core);
        let came = pair.at(1).received.len();
        pair.run_ms(2_000);
        assert_eq!(pair.at(1).received.len(), came, "seed {seed}: it ran");
        let sent = pair.at(0).sent;
        assert!(sent < 150, "seed {seed}: {sent} messages are with a process that does not take them");
        pair.world.resume(core);
        assert!(pair.until(|pair| pair.at(1).received == all), "seed {seed}");
        // killed while it stands still: it is gone, and another may run
        pair.world.pause(core);
        pair.world.crash(core, Crash::Process);
        pair.start_listener();
        assert!(pair.until(|pair| !pair.at(0).closed.is_empty()), "seed {seed}");
    }
}

/// Lost if it fails: timers never run at another pace than those of others, or time goes back.
#[test]
fn clocks_drift_and_jump_and_monotonic_time_never_goes_back() {
    let mut pair = Pair::new(3);
    let [fast, slow] = pair.hosts;
    pair.world.set_uptime(fast, Duration::from_secs(1_000));
    for (core, host) in pair.cores.into_iter().zip(pair.hosts) {
        let mut talker = Talker::new(None, None);
        talker.tick = Duration::from_millis(10);
        pair.world.start(core, talker);
        pair.world.set_drift(host, if host == fast { DRIFT_PPM_MAX } else { -DRIFT_PPM_MAX });
    }
    pair.run_ms(10_000);
    let (gains, loses) = (pair.at(0).ticks.len(), pair.at(1).ticks.len());
    assert!((1_045..=1_050).contains(&gains) && (945..=950).contains(&loses), "{gains} and {loses} ticks in 10 s");
    assert!(pair.at(0).ticks[0].0 >= Mono(0) + Duration::from_secs(1_000), "it has been up for long");
    let before = pair.at(1).ticks.last().expect("there are some").1;
    pair.world.jump_wall(slow, -60_000);
    pair.world.set_drift(slow, DRIFT_PPM_MAX);
    pair.world.set_drift(slow, 0);
    pair.run_ms(1_000);
    let after = pair.at(1).ticks.last().expect("there are some").1;
    assert!((-59_100..=-58_900).contains(&(after.0 - before.0)), "the wall clock went from {before:?} to {after:?}");
    for n in 0..2 {
        assert!(pair.at(n).ticks.windows(2).all(|pair| pair[0].0 < pair[1].0), "monotonic time went back");
    }
    assert!((98..=102).contains(&(pair.at(1).ticks.len() - loses)), "it ticks as the world does");
}

/// Lost if it fails: a failure that was found under such faults can not be found again.
#[test]
fn the_same_faults_at_the_same_time_give_the_same_run() {
    let run = |seed| {
        let mut pair = Pair::connected(seed);
        pair.world.set_drift(pair.hosts[1], 700);
        pair.send(0, 20);
        pair.set(0, 1, Path { jitter: Duration::from_millis(20), loss_percent: 10, ..Path::default() });
        pair.run_ms(20);
        pair.set(0, 1, Path::cut());
        pair.world.pause(pair.cores[0]);
        pair.run_ms(20);
        pair.set(0, 1, Path::default());
        pair.world.resume(pair.cores[0]);
        pair.run_ms(3_000);
        let [a, b] = pair.hosts;
        pair.world.reset_between(a, b, 50);
        pair.run_ms(100);
        (pair.world.trace_hash(), pair.at(1).received.len())
    };
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed).0, run(seed + 1).0);
        assert_eq!(run(seed).1, 200_000, "seed {seed}");
    }
}

/// Lost if it fails: crashes at the boundaries of one machine are tried at those of another.
#[test]
fn only_the_boundaries_of_the_watched_machine_count() {
    let count = |watched: Option<usize>| {
        let mut pair = Pair::connected(1);
        if let Some(n) = watched {
            pair.world.watch_boundaries_of(pair.hosts[n]);
        }
        let before = pair.world.boundaries();
        pair.send(0, 5);
        pair.run_ms(100);
        pair.world.boundaries() - before
    };
    // without a watch what reaches another core is no boundary: only disks and clients are
    assert_eq!(count(None), 0);
    assert!(count(Some(0)) >= 5, "what it sent has reached another machine");
    assert_eq!(count(Some(1)), 0);
}
