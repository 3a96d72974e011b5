//! One seed: a broker of some shape, clients, faults; then everything is healed, everybody has to get on, and what the
//! partitions hold is read. The judgement is `camus-history`'s.
//!
//! With damage ([`Mode::Damage`]) nobody has to get on, and a start may be refused, which ends the run: only what is
//! shown is judged (`judgement.rs`). The broker is killed once more in the end, so that a start judges the disks.

use crate::clients::{AUDITOR, Clients};
use crate::faults::Faults;
use crate::judgement;
use crate::kit::{Shape, SimBroker};
use crate::ledger::{Ledger, partition};
use crate::replicas;
use crate::wire::{Conn, LATEST};
use camus_engine::io::sim::Crash;
use camus_engine::rt::rng::Rng;
use camus_history::history::{Final, ListOffset, Which};
use camus_history::{Event, Op, check};
use std::time::Duration;

const PARTITIONS: i32 = 4;
/// After the last fault everybody gets on within this time, ms. A disk that was full is tried again once a second.
const PROGRESS_MS_MAX: u64 = 30_000;
/// After damage they get this long; who does not get on then may have lost what there was to go on with.
const PROGRESS_DAMAGED_MS_MAX: u64 = 5_000;
/// Keeps what the scenario draws apart from what the world draws.
const SALT: u64 = 0x5eed_0fca_0500;

/// What a seed is run for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Faults that a broker with one copy masks: everything is promised.
    Run,
    /// Disks are damaged as well: nothing wrong is shown.
    Damage,
    /// Three pumps, which replicate: `replicas.rs`.
    Replicas,
}

/// What is wrong with a run: one of the history's anomalies, `no-progress`, `start-refused`, `unexpected-answer`,
/// `missed-wake-up`, `replicas-differ`, or `panic`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub name: String,
    pub text: String,
}

/// One seed from start to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub seed: u64,
    pub mode: Mode,
    /// Everything that happened in the world, as one number.
    pub trace: u64,
    pub virtual_time: Duration,
    pub events: Vec<Event>,
    pub failures: Vec<Failure>,
    /// A core refused its damaged disk, and said this.
    pub refused: Option<String>,
    /// Partitions that could not be read to their end, after damage.
    pub unread: u64,
}

struct Scenario {
    mode: Mode,
    broker: SimBroker,
    clients: Clients,
    ledger: Ledger,
    faults: Faults,
    failures: Vec<Failure>,
    unread: u64,
}

/// Runs a seed for this long in virtual time, and for as long as it takes to wind up.
pub fn run(mode: Mode, seed: u64, time: Duration) -> Run {
    if mode == Mode::Replicas {
        return replicas::run(seed, time);
    }
    let mut scenario = Scenario::new(mode, seed);
    scenario.work(time);
    scenario.wind_up();
    scenario.judge(seed)
}

impl Scenario {
    fn new(mode: Mode, seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ SALT);
        let shape = Shape::drawn(&mut rng);
        let mut broker = SimBroker::new(seed, shape);
        let created = Conn::open(&mut broker).create_topic(&mut broker, PARTITIONS);
        assert_eq!(created, Some(0), "the topic can not be made");
        let faults = Faults::drawn(&mut rng, broker.now(), mode == Mode::Damage);
        Scenario {
            mode,
            broker,
            clients: Clients::new(PARTITIONS, shape.is_tight()),
            ledger: Ledger::new(PARTITIONS),
            faults,
            failures: vec![],
            unread: 0,
        }
    }

    /// Bursts of work, some of them short and with silence behind them, and pauses in which only the broker does
    /// something.
    fn work(&mut self, time: Duration) {
        let end = self.broker.now() + time;
        while self.broker.now() < end && self.faults.refused.is_none() {
            if self.broker.chance(60) {
                for _ in 0..20 + self.broker.pick(60) {
                    self.step(400);
                }
            } else if self.broker.chance(40) {
                for _ in 0..1 + self.broker.pick(10) {
                    self.step(400);
                }
                self.ledger.quiet = true;
                for _ in 0..60 + self.broker.pick(100) {
                    self.step(5_000);
                }
                self.ledger.quiet = false;
            } else {
                let us = self.broker.pick(120_000) as u64;
                for _ in 0..10 {
                    self.faults.step(&mut self.broker, &mut self.clients);
                    self.broker.run_us(us);
                }
            }
        }
    }

    fn step(&mut self, us_max: usize) {
        self.clients.step(&mut self.broker, &mut self.ledger);
        self.faults.step(&mut self.broker, &mut self.clients);
        let us = self.broker.pick(us_max) as u64;
        self.broker.run_us(us);
    }

    fn fail(&mut self, name: &str, text: String) {
        self.failures.push(Failure { name: name.to_owned(), text });
    }

    /// Steps until nobody is left, for at most the time in which everybody has to get on. Who is left.
    fn until_done(&mut self, not_done: fn(&Clients) -> Vec<String>) -> Vec<String> {
        let ms = match self.mode {
            Mode::Run | Mode::Replicas => PROGRESS_MS_MAX,
            Mode::Damage => PROGRESS_DAMAGED_MS_MAX,
        };
        let deadline = self.broker.now() + Duration::from_millis(ms);
        while self.broker.now() < deadline && self.faults.refused.is_none() && !not_done(&self.clients).is_empty() {
            self.step(2_000);
        }
        not_done(&self.clients)
    }

    /// No more faults: everybody gets on, and what there is then is read.
    fn wind_up(&mut self) {
        self.faults.heal(&mut self.broker, &mut self.clients);
        self.ledger.calm = true;
        if self.mode == Mode::Damage {
            let crash = if self.broker.chance(50) { Crash::Process } else { Crash::Power };
            self.broker.crash(crash);
        }
        let stuck = self.until_done(Clients::writers_not_done);
        let ended = if stuck.is_empty() { self.readers_end() } else { Err(stuck.join(", ")) };
        self.clients.finish(&mut self.broker, &mut self.ledger);
        match (self.mode, self.faults.refused.clone()) {
            (Mode::Run | Mode::Replicas, Some(why)) => self.fail("start-refused", why),
            (Mode::Run | Mode::Replicas, None) => {
                if let Err(why) = ended.and_then(|()| self.read_finally()) {
                    let broker = self.broker.stand();
                    self.fail("no-progress", format!("{why}; {broker}"));
                    // What is there may say why.
                    self.unread = self.read_what_is_left();
                }
            }
            (Mode::Damage, Some(_)) => {}
            (Mode::Damage, None) => self.unread = self.read_what_is_left(),
        }
    }

    /// The readers reach the ends of their partitions.
    fn readers_end(&mut self) -> Result<(), String> {
        let mut conn = Conn::open(&mut self.broker);
        for number in 0..PARTITIONS {
            let invoked = self.broker.now();
            let offset = conn.list_offset(&mut self.broker, number, LATEST)?;
            let list = ListOffset { partition: partition(number), which: Which::Latest, offset };
            self.ledger.add(AUDITOR, invoked, self.broker.now(), Op::ListOffset(list));
            self.clients.must_reach(number, offset);
        }
        let stuck = self.until_done(Clients::readers_not_done);
        if stuck.is_empty() { Ok(()) } else { Err(stuck.join(", ")) }
    }

    fn read_finally(&mut self) -> Result<(), String> {
        let mut conn = Conn::open(&mut self.broker);
        (0..PARTITIONS).try_for_each(|number| read_partition(&mut conn, number, &mut self.broker, &mut self.ledger))
    }

    /// How many partitions can not be read.
    fn read_what_is_left(&mut self) -> u64 {
        let mut unread = 0;
        for number in 0..PARTITIONS {
            let mut conn = Conn::open(&mut self.broker);
            let read = read_partition(&mut conn, number, &mut self.broker, &mut self.ledger);
            unread += u64::from(read.is_err());
        }
        unread
    }

    fn judge(mut self, seed: u64) -> Run {
        // Who lost the end of a log without a trace may be told what no client knows what to do with.
        if self.faults.cuts.is_empty() {
            for text in std::mem::take(&mut self.ledger.unexpected) {
                self.fail("unexpected-answer", text);
            }
            for text in std::mem::take(&mut self.ledger.slept) {
                self.fail("missed-wake-up", text);
            }
        }
        let anomalies = match self.mode {
            Mode::Run | Mode::Replicas => check(&self.ledger.events),
            Mode::Damage => judgement::after_damage(&self.ledger.events, &self.faults.cuts),
        };
        for anomaly in anomalies {
            self.fail(anomaly.name(), anomaly.to_string());
        }
        Run {
            seed,
            mode: self.mode,
            trace: self.broker.world.trace_hash(),
            virtual_time: Duration::from_nanos(self.broker.now().0),
            events: self.ledger.events,
            failures: self.failures,
            refused: self.faults.refused,
            unread: self.unread,
        }
    }
}

/// What a partition holds in the end.
pub fn read_partition(conn: &mut Conn, number: i32, broker: &mut SimBroker, ledger: &mut Ledger) -> Result<(), String> {
    let invoked = broker.now();
    let (log_start, records) = conn.read_all(broker, number)?;
    let last = Final { partition: partition(number), log_start, records };
    ledger.add(AUDITOR, invoked, broker.now(), Op::Final(last));
    Ok(())
}
