//! A crash at every boundary of a short life of a broker.
//!
//! A boundary is a step of the world in which an operation of a disk was started, reached the device's cache or ended,
//! or in which bytes reached a client: between two of them a crash finds the same world. One life on one core, and one
//! on two: a first start, a topic, idempotent and plain batches, a trim. It is lived again from the seed for each
//! boundary, up to there, and crashes: without power, and once more as a process. Then the broker is started again,
//! clients go on and retry what was not acknowledged, everything is read, and `camus-history` judges.
//!
//! Boundaries are counted through, from 1: first those of the life on one core, then those on two.

use crate::clients::{AUDITOR, Clients};
use crate::kit::{PATIENCE, Shape, SimBroker};
use crate::ledger::{Ledger, partition};
use crate::runner::caught;
use crate::scenario::{Failure, read_partition};
use crate::wire::{Conn, DELETE_RECORDS, LATEST, delete_records};
use camus_engine::io::sim::Crash;
use camus_engine::limits::WAL_GROUP_BESIDE_BYTES;
use camus_history::history::{Outcome, Trim};
use camus_history::{Op, check};
use std::time::Duration;

/// More boundaries than this are not tried, but every n-th.
pub const TRIED_MAX: u64 = 3_000;
const PARTITIONS: i32 = 2;
/// How often clients do something before the life is over.
const STEPS: usize = 120;
/// What CreateTopics says of a topic that is there.
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// The boundaries of both lives of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundaries {
    pub seed: u64,
    /// On one core.
    pub one: u64,
    /// On two.
    pub two: u64,
}

/// What came of the crashes at one boundary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    pub boundary: u64,
    pub cores: usize,
    pub failures: Vec<Failure>,
}

impl Boundaries {
    /// Lives both lives to their ends.
    pub fn of(seed: u64) -> Result<Boundaries, Failure> {
        let count = |cores: usize| {
            let replay = format!("replay: cargo run --release -p camus-sim -- crash-points --seed {seed}");
            caught(format!("seed {seed}, {cores} cores"), replay, || {
                let life = Life::lived(seed, cores, None);
                assert!(life.is_whole, "without a crash the life does not come to its end: {:?}", life.failures);
                life.broker.world.boundaries()
            })
        };
        Ok(Boundaries { seed, one: count(1)?, two: count(2)? })
    }

    pub fn total(&self) -> u64 {
        self.one + self.two
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
        let (cores, at) = if boundary <= self.one { (1, boundary) } else { (2, boundary - self.one) };
        let mut failures = Vec::new();
        for crash in [Crash::Power, Crash::Process] {
            let name = format!("boundary {boundary} ({cores} cores, {crash:?})");
            match caught(name, self.replay(boundary), || crashed(self.seed, cores, at, crash)) {
                Ok(found) => failures.extend(found),
                Err(panic) => failures.push(panic),
            }
        }
        Tried { boundary, cores, failures }
    }
}

/// A life that is cut off at this boundary, and what is wrong after it.
fn crashed(seed: u64, cores: usize, at: u64, crash: Crash) -> Vec<Failure> {
    let mut life = Life::lived(seed, cores, Some(at));
    assert!(life.broker.world.is_halted(), "the life has fewer boundaries than {at}");
    life.broker.crash(crash);
    life.broker.world.halt_at(None);
    life.ledger.calm = true;
    if let Err(why) = life.goes_on() {
        life.fail("no-progress", why);
    }
    life.judge()
}

struct Life {
    broker: SimBroker,
    clients: Clients,
    ledger: Ledger,
    /// Somebody was told that there is the topic.
    has_topic: bool,
    /// It came to its end.
    is_whole: bool,
    failures: Vec<Failure>,
}

impl Life {
    /// The same for the same seed and cores, up to the boundary at which the world is halted.
    fn lived(seed: u64, cores: usize, halt_at: Option<u64>) -> Life {
        let shape = Shape {
            cores,
            segment_bytes: 64 * 1024,
            segments_max: 4096,
            beside_bytes: WAL_GROUP_BESIDE_BYTES,
            clients_bytes_max: 64 << 20,
        };
        let mut life = Life {
            broker: SimBroker::down(seed, shape),
            clients: Clients::few(PARTITIONS),
            ledger: Ledger::new(PARTITIONS),
            has_topic: false,
            is_whole: false,
            failures: vec![],
        };
        life.broker.world.halt_at(halt_at);
        life.is_whole = life.lives();
        life
    }

    fn fail(&mut self, name: &str, text: String) {
        self.failures.push(Failure { name: name.to_owned(), text });
    }

    /// Whether it came to its end: a halted world ends it early.
    fn lives(&mut self) -> bool {
        if !self.comes_up() || !self.makes_topic() {
            return false;
        }
        for step in 0..STEPS {
            if step == STEPS * 2 / 3 {
                self.trim();
            }
            self.step(400);
            if self.broker.world.is_halted() {
                return false;
            }
        }
        true
    }

    fn step(&mut self, us_max: usize) {
        self.clients.step(&mut self.broker, &mut self.ledger);
        let us = self.broker.pick(us_max) as u64;
        self.broker.run_us(us);
    }

    /// Starts the broker. Whether it listens.
    fn comes_up(&mut self) -> bool {
        match self.broker.begin() {
            Ok(()) => self.broker.comes_up(),
            Err(why) => {
                self.fail("start-refused", why);
                false
            }
        }
    }

    /// Whether there is the topic. One of which somebody was told is still there.
    fn makes_topic(&mut self) -> bool {
        let deadline = self.broker.now() + PATIENCE;
        while self.broker.now() < deadline && !self.broker.world.is_halted() {
            let code = Conn::open(&mut self.broker).create_topic(&mut self.broker, PARTITIONS);
            match code {
                Some(0) if self.has_topic => {
                    self.fail("topic-lost", "a topic that was made is made again".to_owned());
                    return true;
                }
                Some(0 | TOPIC_ALREADY_EXISTS) => {
                    self.has_topic = true;
                    return true;
                }
                Some(_) | None => self.broker.run_us(1_000),
            }
        }
        false
    }

    /// Deletes some of what has been read of the first partition.
    fn trim(&mut self) {
        let (invoked, offset) = (self.broker.now(), self.ledger.read_to[0] * 2 / 3);
        let mut conn = Conn::open(&mut self.broker);
        let answer = conn.call(&mut self.broker, DELETE_RECORDS, &delete_records(0, offset));
        let code = answer.map(|answer| answer.topics[0].partitions[0].error_code);
        // What was refused may have been proposed before: nobody knows.
        let outcome = if code == Some(0) { Outcome::Acked } else { Outcome::Info };
        let trim = Trim { partition: partition(0), offset, outcome };
        self.ledger.add(AUDITOR, invoked, self.broker.now(), Op::Trim(trim));
    }

    /// After the crash: everybody gets on, and everything is read.
    fn goes_on(&mut self) -> Result<(), String> {
        if !self.comes_up() {
            return Err("the broker does not come up".to_owned());
        }
        if !self.makes_topic() {
            return Err("the topic can not be made".to_owned());
        }
        let done = self.get_done();
        self.clients.finish(&mut self.broker, &mut self.ledger);
        done?;
        let mut conn = Conn::open(&mut self.broker);
        (0..PARTITIONS).try_for_each(|number| read_partition(&mut conn, number, &mut self.broker, &mut self.ledger))
    }

    /// Writers have what they sent acknowledged, readers reach the ends.
    fn get_done(&mut self) -> Result<(), String> {
        self.until_done(Clients::writers_not_done)?;
        let mut conn = Conn::open(&mut self.broker);
        for number in 0..PARTITIONS {
            let end = conn.list_offset(&mut self.broker, number, LATEST)?;
            self.clients.must_reach(number, end);
        }
        self.until_done(Clients::readers_not_done)
    }

    fn until_done(&mut self, not_done: fn(&Clients) -> Vec<String>) -> Result<(), String> {
        let deadline = self.broker.now() + Duration::from_secs(30);
        while self.broker.now() < deadline && !not_done(&self.clients).is_empty() {
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
