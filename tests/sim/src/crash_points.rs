//! A crash at every boundary of a short life of a broker, or of a cluster.
//!
//! A boundary is a step of the world in which an operation of a disk was started, reached the device's cache or ended,
//! or in which bytes reached a client: between two of them a crash finds the same world. One life on one core, and one
//! on two: a first start, a topic, idempotent and plain batches, a trim. It is lived again from the seed for each
//! boundary, up to there, and crashes: without power, and once more as a process. Then the broker is started again,
//! clients go on and retry what was not acknowledged, everything is read, and `camus-history` judges.
//!
//! And one life of a cluster of three, from when it has the topic: its boundaries are those of the broker that leads
//! the first partition then (what it has sent reaching another broker is one as well), and it alone crashes. The others
//! go on without it, and everything is read from them; then it starts again.
//!
//! Boundaries are counted through, from 1: first those of the life on one core, then those on two, then the cluster's.

use crate::clients::{AUDITOR, Clients};
use crate::kit::{BROKERS, Cluster, PATIENCE, Shape};
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::{find_leader, open_leader};
use crate::runner::caught;
use crate::scenario::{Failure, TOPIC_ALREADY_EXISTS, of_leader, read_partition};
use crate::wire::{Conn, DELETE_RECORDS, LATEST, delete_records};
use camus_engine::io::sim::Crash;
use camus_history::history::{Outcome, Trim};
use camus_history::{Op, check};
use std::fmt;
use std::time::Duration;

/// More boundaries than this are not tried, but every n-th.
pub const TRIED_MAX: u64 = 3_000;
const PARTITIONS: i32 = 2;
/// How often clients do something before the life is over.
const STEPS: usize = 120;

/// Whose life it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    OneCore,
    TwoCores,
    Cluster,
}

impl Kind {
    /// In the order in which their boundaries are counted.
    pub const ALL: [Kind; 3] = [Kind::OneCore, Kind::TwoCores, Kind::Cluster];

    fn shape(self) -> Shape {
        let (brokers, cores) = match self {
            Kind::OneCore => (1, 1),
            Kind::TwoCores => (1, 2),
            Kind::Cluster => (BROKERS, 1),
        };
        Shape { brokers, cores, segment_bytes: 64 * 1024, segments_max: 4096, ..Shape::default() }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::OneCore => "one core",
            Kind::TwoCores => "two cores",
            Kind::Cluster => "a leader of three",
        })
    }
}

/// The boundaries of the lives of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundaries {
    pub seed: u64,
    /// On one core.
    pub one: u64,
    /// On two.
    pub two: u64,
    /// Of a leader among three.
    pub cluster: u64,
}

/// What came of the crashes at one boundary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    pub boundary: u64,
    pub kind: Kind,
    pub failures: Vec<Failure>,
}

impl Boundaries {
    /// Lives all lives to their ends.
    pub fn of(seed: u64) -> Result<Boundaries, Failure> {
        let count = |kind: Kind| {
            let replay = format!("replay: cargo run --release -p camus-sim -- crash-points --seed {seed}");
            caught(format!("seed {seed}, {kind}"), replay, || {
                let life = Life::lived(seed, kind, None);
                assert!(life.is_whole, "without a crash the life does not come to its end: {:?}", life.failures);
                life.cluster.world.boundaries() - life.before
            })
        };
        let (one, two, cluster) = (count(Kind::OneCore)?, count(Kind::TwoCores)?, count(Kind::Cluster)?);
        Ok(Boundaries { seed, one, two, cluster })
    }

    pub fn total(&self) -> u64 {
        Kind::ALL.map(|kind| self.of_kind(kind)).iter().sum()
    }

    pub fn of_kind(&self, kind: Kind) -> u64 {
        match kind {
            Kind::OneCore => self.one,
            Kind::TwoCores => self.two,
            Kind::Cluster => self.cluster,
        }
    }

    /// Those to try if `max` are too many to try more, and which of them that is: each, or every n-th.
    pub fn chosen(&self, max: u64) -> (Vec<u64>, u64) {
        let every = self.total().div_ceil(max).max(1);
        let all = 1..=self.total();
        (all.filter(|boundary| boundary.is_multiple_of(every)).collect(), every)
    }

    /// How this boundary is tried alone.
    pub fn replay(&self, boundary: u64) -> String {
        let seed = self.seed;
        format!("replay: cargo run --release -p camus-sim -- crash-points --seed {seed} --only {boundary}")
    }

    /// Crashes there, in both ways.
    pub fn try_one(&self, boundary: u64) -> Tried {
        let (kind, at) = if boundary <= self.one {
            (Kind::OneCore, boundary)
        } else if boundary <= self.one + self.two {
            (Kind::TwoCores, boundary - self.one)
        } else {
            (Kind::Cluster, boundary - self.one - self.two)
        };
        let mut failures = Vec::new();
        for crash in [Crash::Power, Crash::Process] {
            let name = format!("boundary {boundary} ({kind}, {crash:?})");
            match caught(name, self.replay(boundary), || crashed(self.seed, kind, at, crash)) {
                Ok(found) => failures.extend(found),
                Err(panic) => failures.push(panic),
            }
        }
        Tried { boundary, kind, failures }
    }
}

/// A life that is cut off at this boundary, and what is wrong after it.
fn crashed(seed: u64, kind: Kind, at: u64, crash: Crash) -> Vec<Failure> {
    let mut life = Life::lived(seed, kind, Some(at));
    assert!(life.cluster.world.is_halted(), "the life has fewer boundaries than {at}");
    life.cluster.crash(life.leader, crash);
    life.cluster.world.halt_at(None);
    life.ledger.calm = true;
    let goes_on = match kind {
        Kind::OneCore | Kind::TwoCores => life.starts_again().and_then(|()| life.goes_on()),
        Kind::Cluster => life.goes_on().and_then(|()| life.starts_again()),
    };
    if let Err(why) = goes_on {
        life.fail("no-progress", why);
    }
    life.judge()
}

struct Life {
    cluster: Cluster,
    clients: Clients,
    ledger: Ledger,
    /// Who crashes.
    leader: usize,
    /// Boundaries before those that count.
    before: u64,
    /// Somebody was told that there is the topic.
    has_topic: bool,
    /// It came to its end.
    is_whole: bool,
    failures: Vec<Failure>,
}

impl Life {
    /// The same for the same seed and kind, up to the boundary at which the world is halted.
    fn lived(seed: u64, kind: Kind, halt_at: Option<u64>) -> Life {
        let mut life = Life {
            cluster: Cluster::down(seed, kind.shape()),
            clients: Clients::few(PARTITIONS),
            ledger: Ledger::new(PARTITIONS),
            leader: 0,
            before: 0,
            has_topic: false,
            is_whole: false,
            failures: vec![],
        };
        life.is_whole = match kind {
            Kind::OneCore | Kind::TwoCores => {
                life.cluster.world.halt_at(halt_at);
                life.comes_up() && life.makes_topic() && life.lives()
            }
            Kind::Cluster => {
                life.is_a_cluster() && {
                    life.cluster.world.watch_boundaries_of(life.cluster.brokers[life.leader].host);
                    life.before = life.cluster.world.boundaries();
                    life.cluster.world.halt_at(halt_at.map(|at| life.before + at));
                    life.lives()
                }
            }
        };
        life
    }

    fn fail(&mut self, name: &str, text: String) {
        self.failures.push(Failure { name: name.to_owned(), text });
    }

    /// All brokers are up, there is the topic, and it is known who leads.
    fn is_a_cluster(&mut self) -> bool {
        if !self.comes_up() || !self.makes_topic() {
            return false;
        }
        match find_leader(&mut self.cluster, 0) {
            Ok(leader) => self.leader = leader,
            Err(why) => self.fail("no-progress", why),
        }
        self.failures.is_empty()
    }

    /// Whether it came to its end: a halted world ends it early.
    fn lives(&mut self) -> bool {
        for step in 0..STEPS {
            if step == STEPS * 2 / 3 {
                self.trim();
            }
            self.step(400);
            if self.cluster.world.is_halted() {
                return false;
            }
        }
        true
    }

    fn step(&mut self, us_max: usize) {
        self.clients.step(&mut self.cluster, &mut self.ledger);
        let us = self.cluster.pick(us_max) as u64;
        self.cluster.run_us(us);
    }

    /// Starts every broker that does not run. Whether all listen.
    fn comes_up(&mut self) -> bool {
        for n in 0..self.cluster.brokers.len() {
            if !self.cluster.is_running(n)
                && let Err(why) = self.cluster.begin(n)
            {
                self.fail("start-refused", why);
                return false;
            }
        }
        self.cluster.comes_up()
    }

    /// Whether there is the topic. One of which somebody was told is still there.
    fn makes_topic(&mut self) -> bool {
        let deadline = self.cluster.now() + PATIENCE;
        while self.cluster.now() < deadline && !self.cluster.world.is_halted() {
            let n = if self.cluster.shape.is_cluster() { self.cluster.pick(BROKERS) } else { 0 };
            let code = Conn::open(&mut self.cluster, n).create_topic(&mut self.cluster, TOPIC, PARTITIONS);
            match code {
                Some(0) if self.has_topic => {
                    self.fail("topic-lost", "a topic that was made is made again".to_owned());
                    return true;
                }
                Some(0 | TOPIC_ALREADY_EXISTS) => {
                    self.has_topic = true;
                    return true;
                }
                Some(_) | None => self.cluster.run_us(1_000),
            }
        }
        false
    }

    /// Deletes some of what has been read of the first partition.
    fn trim(&mut self) {
        let (invoked, offset) = (self.cluster.now(), self.ledger.read_to[0] * 2 / 3);
        // nobody leads it, if the world is halted before that is known
        let Ok((mut conn, _)) = open_leader(&mut self.cluster, 0) else { return };
        let answer = conn.call(&mut self.cluster, DELETE_RECORDS, &delete_records(TOPIC, 0, offset));
        let code = answer.map(|answer| answer.topics[0].partitions[0].error_code);
        // What was refused may have been proposed before: nobody knows.
        let outcome = if code == Some(0) { Outcome::Acked } else { Outcome::Info };
        let trim = Trim { partition: partition(0), offset, outcome };
        self.ledger.add(AUDITOR, invoked, self.cluster.now(), Op::Trim(trim));
    }

    /// Who crashed is there again.
    fn starts_again(&mut self) -> Result<(), String> {
        if !self.comes_up() {
            return Err("a broker does not come up".to_owned());
        }
        if !self.makes_topic() {
            return Err("the topic can not be made".to_owned());
        }
        Ok(())
    }

    /// Everybody gets on, and everything is read.
    fn goes_on(&mut self) -> Result<(), String> {
        let done = self.get_done();
        self.clients.finish(&mut self.cluster, &mut self.ledger);
        done?;
        let mut lone = None;
        (0..PARTITIONS).try_for_each(|number| read_partition(&mut lone, number, &mut self.cluster, &mut self.ledger))
    }

    /// Writers have what they sent acknowledged, readers reach the ends.
    fn get_done(&mut self) -> Result<(), String> {
        self.until_done(Clients::writers_not_done)?;
        for number in 0..PARTITIONS {
            let end =
                of_leader(&mut self.cluster, number, |conn, of, cluster| conn.list_offset(cluster, TOPIC, of, LATEST))?;
            self.clients.must_reach(number, end);
        }
        self.until_done(Clients::readers_not_done)
    }

    fn until_done(&mut self, not_done: fn(&Clients) -> Vec<String>) -> Result<(), String> {
        let deadline = self.cluster.now() + Duration::from_secs(30);
        while self.cluster.now() < deadline && !not_done(&self.clients).is_empty() {
            self.step(2_000);
        }
        let stuck = not_done(&self.clients);
        if stuck.is_empty() { Ok(()) } else { Err(stuck.join(", ")) }
    }

    fn judge(mut self) -> Vec<Failure> {
        for text in std::mem::take(&mut self.ledger.unexpected) {
            self.fail("unexpected-answer", text);
        }
        for anomaly in check(&self.ledger.events) {
            self.fail(anomaly.name(), anomaly.to_string());
        }
        self.failures
    }
}
