//! One seed: a broker or a cluster of some shape, clients, faults; then everything is healed, everybody has to get on,
//! and what the partitions hold is read; of a cluster often without one of its brokers. The judgement is
//! `camus-history`'s.
//!
//! With damage ([`Mode::Damage`]) nobody has to get on, and a start may be refused, which ends the run of a lone
//! broker: only what is shown is judged (`judgement.rs`). Brokers are killed once more in the end, so that a start
//! judges the disks.

use crate::clients::{AUDITOR, Clients};
use crate::cluster_faults::ClusterFaults;
use crate::faults::Faults;
use crate::fellows;
use crate::judgement;
use crate::kit::{BROKERS, Cluster, PATIENCE, Shape};
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::open_leader;
use crate::replicas;
use crate::wire::{Conn, LATEST};
use camus_engine::io::sim::Crash;
use camus_engine::rt::rng::Rng;
use camus_engine::types::{Mono, ShardId, Term};
use camus_history::history::{Final, ListOffset, Which};
use camus_history::{Event, Op, check};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PARTITIONS: i32 = 4;
/// After the last fault everybody gets on within this time, ms. A disk that was full is tried again once a second.
const PROGRESS_MS_MAX: u64 = 30_000;
/// After damage they get this long; who does not get on then may have lost what there was to go on with.
const PROGRESS_DAMAGED_MS_MAX: u64 = 5_000;
/// Keeps what the scenario draws apart from what the world draws.
const SALT: u64 = 0x5eed_0fca_0500;
/// And what chooses between a broker and a cluster apart from both.
const SHAPE_SALT: u64 = 0x0b10_7e25;
/// And what chooses what the members of a group speak.
const FELLOWS_SALT: u64 = 0x0fe1_10a5;
/// What CreateTopics says of a topic that is there.
pub const TOPIC_ALREADY_EXISTS: i16 = 36;

/// What a seed is run for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Faults that a broker with one copy masks, or of a cluster one broker at a time: everything is promised.
    Run,
    /// Any number of a cluster's brokers at once: nothing wrong is shown, and nothing is lost.
    NoBudget,
    /// Disks are damaged as well: nothing wrong is shown.
    Damage,
    /// Three pumps, which replicate: `replicas.rs`.
    Replicas,
}

/// How seeds are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    pub mode: Mode,
    /// `None`: a lone broker in about half of the seeds.
    pub brokers: Option<usize>,
}

impl From<Mode> for Setup {
    fn from(mode: Mode) -> Setup {
        Setup { mode, brokers: None }
    }
}

impl Setup {
    fn brokers_of(&self, seed: u64) -> usize {
        match (self.brokers, self.mode) {
            (Some(brokers), _) => brokers,
            (None, Mode::NoBudget | Mode::Replicas) => BROKERS,
            (None, Mode::Run | Mode::Damage) => {
                if Rng::new(seed ^ SHAPE_SALT).chance(50) {
                    1
                } else {
                    BROKERS
                }
            }
        }
    }
}

/// What is wrong with a run: one of the history's anomalies, `no-progress`, `start-refused`, `unexpected-answer`,
/// `offset-out-of-range`, `two-leaders`, `forgot`, `missed-wake-up`, `replicas-differ`, or `panic`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub name: String,
    pub text: String,
}

/// One seed from start to end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub seed: u64,
    pub setup: Setup,
    /// For how long it was asked to run.
    pub time: Duration,
    pub brokers: usize,
    /// Everything that happened in the world, as one number.
    pub trace: u64,
    pub virtual_time: Duration,
    pub events: Vec<Event>,
    pub failures: Vec<Failure>,
    /// A broker refused its damaged disk, and said this.
    pub refused: Option<String>,
    /// Partitions that could not be read to their end, after damage.
    pub unread: u64,
    /// One broker was lost for good while another one could not catch up: nobody had to get on, and not everybody did.
    pub beyond_budget: bool,
}

enum Trouble {
    One(Faults),
    Several(ClusterFaults),
}

impl Trouble {
    fn step(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        match self {
            Trouble::One(faults) => faults.step(cluster, clients),
            Trouble::Several(faults) => faults.step(cluster, clients),
        }
    }

    fn heal(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        match self {
            Trouble::One(faults) => faults.heal(cluster, clients),
            Trouble::Several(faults) => faults.heal(cluster, clients),
        }
    }

    /// There is nothing to go on with.
    fn refused(&self) -> Option<&String> {
        match self {
            Trouble::One(faults) => faults.refused.as_ref(),
            Trouble::Several(faults) => faults.refused.as_ref(),
        }
    }

    fn not_back(&self, cluster: &Cluster) -> Vec<String> {
        match self {
            // whoever has one broker alone notices that it is down
            Trouble::One(_) => vec![],
            Trouble::Several(faults) => faults.not_back(cluster),
        }
    }

    /// Nobody has to get on.
    fn are_too_many(&self) -> bool {
        matches!(self, Trouble::Several(faults) if faults.are_too_many())
    }

    fn cuts(&self) -> &[Mono] {
        match self {
            Trouble::One(faults) => &faults.cuts,
            Trouble::Several(faults) => &faults.cuts,
        }
    }

    /// For the report: the same, or that one broker of several did not start.
    fn said(&self) -> Option<String> {
        let gone = match self {
            Trouble::One(_) => None,
            Trouble::Several(faults) => faults.gone(),
        };
        self.refused().or(gone).cloned()
    }
}

struct Scenario {
    setup: Setup,
    cluster: Cluster,
    clients: Clients,
    ledger: Ledger,
    faults: Trouble,
    /// Who has led which shard in which term.
    led: BTreeMap<(ShardId, Term), usize>,
    /// Who leads which shard now, as far as they know themselves. And whether one has two, of whom one is late.
    leaders: Vec<(ShardId, Term, usize)>,
    is_led_twice: bool,
    failures: Vec<Failure>,
    unread: u64,
    beyond_budget: bool,
}

/// Runs a seed for this long in virtual time, and for as long as it takes to wind up.
pub fn run(setup: impl Into<Setup>, seed: u64, time: Duration) -> Run {
    let setup = setup.into();
    if setup.mode == Mode::Replicas {
        return replicas::run(seed, time);
    }
    let mut scenario = Scenario::new(setup, seed);
    scenario.work(time);
    scenario.wind_up();
    scenario.judge(seed, time)
}

impl Scenario {
    fn new(setup: Setup, seed: u64) -> Scenario {
        let mut rng = Rng::new(seed ^ SALT);
        let shape = Shape::drawn(&mut rng, setup.brokers_of(seed));
        let fellows = fellows::Kind::drawn(&mut Rng::new(seed ^ FELLOWS_SALT), shape.is_cluster());
        let mut cluster = Cluster::new(seed, shape);
        make_topic(&mut cluster, PARTITIONS).expect("the topic can be made");
        let faults = if shape.is_cluster() {
            Trouble::Several(ClusterFaults::drawn(&mut rng, &mut cluster, setup.mode))
        } else {
            Trouble::One(Faults::drawn(&mut rng, cluster.now(), setup.mode == Mode::Damage))
        };
        Scenario {
            setup,
            cluster,
            clients: Clients::new(PARTITIONS, shape.is_tight(), shape.is_cluster(), fellows),
            ledger: Ledger::new(PARTITIONS),
            faults,
            led: BTreeMap::new(),
            leaders: vec![],
            is_led_twice: false,
            failures: vec![],
            unread: 0,
            beyond_budget: false,
        }
    }

    /// Bursts of work, some of them short and with silence behind them, and pauses in which only brokers do something.
    fn work(&mut self, time: Duration) {
        let end = self.cluster.now() + time;
        while self.cluster.now() < end && self.faults.refused().is_none() {
            if self.cluster.chance(60) {
                for _ in 0..20 + self.cluster.pick(60) {
                    self.step(400);
                }
            } else if self.cluster.chance(40) {
                for _ in 0..1 + self.cluster.pick(10) {
                    self.step(400);
                }
                self.ledger.quiet = true;
                for _ in 0..60 + self.cluster.pick(100) {
                    self.step(5_000);
                }
                self.ledger.quiet = false;
            } else {
                let us = self.cluster.pick(120_000) as u64;
                for _ in 0..10 {
                    self.look_at_leaders();
                    self.faults.step(&mut self.cluster, &mut self.clients);
                    self.cluster.run_us(us);
                }
            }
        }
    }

    fn step(&mut self, us_max: usize) {
        // before clients look at what came, it is known whether something held it up
        self.look_at_leaders();
        self.clients.step(&mut self.cluster, &mut self.ledger);
        self.faults.step(&mut self.cluster, &mut self.clients);
        let us = self.cluster.pick(us_max) as u64;
        self.cluster.run_us(us);
    }

    /// A term has one leader. And it is noted when answers are held up, or leaders are not those that they were.
    fn look_at_leaders(&mut self) {
        if self.setup.mode != Mode::Damage
            && self.failures.is_empty()
            && let Some(what) = self.cluster.forgot()
        {
            self.fail("forgot", what);
        }
        let Trouble::Several(faults) = &self.faults else { return };
        let leaders = self.cluster.leaders();
        let is_new = leaders != self.leaders;
        if is_new {
            let shards: BTreeSet<ShardId> = leaders.iter().map(|(shard, ..)| *shard).collect();
            self.is_led_twice = shards.len() < leaders.len();
        }
        if is_new || self.is_led_twice || !faults.answers_come() {
            self.ledger.unsettled = Some(self.cluster.now());
        }
        for (shard, term, n) in &leaders {
            let leader = *self.led.entry((*shard, *term)).or_insert(*n);
            if leader != *n && self.failures.is_empty() {
                self.fail("two-leaders", format!("brokers {leader} and {n} led shard {shard} in term {term}"));
            }
        }
        self.leaders = leaders;
    }

    fn fail(&mut self, name: &str, text: String) {
        self.failures.push(Failure { name: name.to_owned(), text });
    }

    /// Steps until nobody is left, for at most the time in which everybody has to get on. Who is left: clients, and
    /// brokers that nobody would start while it is looked what there is.
    fn until_done(&mut self, not_done: fn(&Clients) -> Vec<String>) -> Vec<String> {
        let ms = match self.setup.mode {
            Mode::Run | Mode::NoBudget | Mode::Replicas => PROGRESS_MS_MAX,
            Mode::Damage => PROGRESS_DAMAGED_MS_MAX,
        };
        let deadline = self.cluster.now() + Duration::from_millis(ms);
        loop {
            let mut left = not_done(&self.clients);
            if self.setup.mode == Mode::Run {
                left.extend(self.faults.not_back(&self.cluster));
            }
            if left.is_empty() || self.cluster.now() >= deadline || self.faults.refused().is_some() {
                return left;
            }
            self.step(2_000);
        }
    }

    /// No more faults: everybody gets on, and what there is then is read.
    fn wind_up(&mut self) {
        self.faults.heal(&mut self.cluster, &mut self.clients);
        self.ledger.calm = true;
        if self.setup.mode == Mode::Damage {
            for n in 0..self.cluster.brokers.len() {
                let crash = if self.cluster.chance(50) { Crash::Process } else { Crash::Power };
                self.cluster.crash(n, crash);
            }
        }
        let stuck = self.until_done(Clients::writers_not_done);
        let ended = if stuck.is_empty() { self.readers_end() } else { Err(stuck.join(", ")) };
        self.clients.finish(&mut self.cluster, &mut self.ledger);
        match (self.setup.mode, self.faults.refused().cloned()) {
            (Mode::Run | Mode::NoBudget | Mode::Replicas, Some(why)) => self.fail("start-refused", why),
            (Mode::Run | Mode::Replicas, None) => {
                let got_on = ended.and_then(|()| self.read_finally());
                self.beyond_budget = got_on.is_err() && self.faults.are_too_many();
                if let Err(why) = got_on
                    && !self.beyond_budget
                {
                    let brokers = self.cluster.stand();
                    self.fail("no-progress", format!("{why}; {brokers}"));
                    // What is there may say why.
                    self.unread = self.read_what_is_left();
                }
            }
            (Mode::Damage, Some(why)) => {
                if self.cluster.shape.is_cluster() {
                    self.fail("start-refused", why);
                }
            }
            (Mode::NoBudget | Mode::Damage, None) => self.unread = self.read_what_is_left(),
        }
    }

    /// The readers reach the ends of their partitions.
    fn readers_end(&mut self) -> Result<(), String> {
        let mut lone = None;
        for number in 0..PARTITIONS {
            let invoked = self.cluster.now();
            let offset = self.end_of(number, &mut lone)?;
            let list = ListOffset { partition: partition(number), which: Which::Latest, offset };
            self.ledger.add(AUDITOR, invoked, self.cluster.now(), Op::ListOffset(list));
            self.clients.must_reach(number, offset);
        }
        let stuck = self.until_done(Clients::readers_not_done);
        if stuck.is_empty() { Ok(()) } else { Err(stuck.join(", ")) }
    }

    /// With one broker all is asked on one connection, `lone`.
    fn end_of(&mut self, number: i32, lone: &mut Option<Conn>) -> Result<i64, String> {
        if self.cluster.shape.is_cluster() {
            return of_leader(&mut self.cluster, number, |conn, of, cluster| {
                conn.list_offset(cluster, TOPIC, of, LATEST)
            });
        }
        let conn = lone.get_or_insert_with(|| Conn::open(&mut self.cluster, 0));
        conn.list_offset(&mut self.cluster, TOPIC, (number, -1), LATEST)
    }

    fn read_finally(&mut self) -> Result<(), String> {
        if let Trouble::Several(faults) = &mut self.faults
            && self.cluster.chance(50)
        {
            faults.lose_one(&mut self.cluster);
        }
        let mut lone = None;
        (0..PARTITIONS).try_for_each(|number| read_partition(&mut lone, number, &mut self.cluster, &mut self.ledger))
    }

    /// How many partitions can not be read.
    fn read_what_is_left(&mut self) -> u64 {
        let mut unread = 0;
        for number in 0..PARTITIONS {
            let read = read_partition(&mut None, number, &mut self.cluster, &mut self.ledger);
            unread += u64::from(read.is_err());
        }
        unread
    }

    fn judge(mut self, seed: u64, time: Duration) -> Run {
        // Who lost the end of a log without a trace may be told what no client knows what to do with.
        if self.faults.cuts().is_empty() {
            for text in std::mem::take(&mut self.ledger.unexpected) {
                self.fail("unexpected-answer", text);
            }
            for text in std::mem::take(&mut self.ledger.beyond) {
                self.fail("offset-out-of-range", text);
            }
            for text in std::mem::take(&mut self.ledger.slept) {
                self.fail("missed-wake-up", text);
            }
        }
        let (events, cuts, brokers) = (&self.ledger.events, self.faults.cuts(), self.cluster.brokers.len());
        let anomalies = match self.setup.mode {
            Mode::Run | Mode::NoBudget | Mode::Replicas => check(events),
            Mode::Damage if brokers == 1 => judgement::after_damage(events, cuts),
            Mode::Damage => judgement::after_damage_of_one(events, cuts),
        };
        for anomaly in anomalies {
            self.fail(anomaly.name(), anomaly.to_string());
        }
        Run {
            seed,
            setup: self.setup,
            time,
            brokers,
            trace: self.cluster.world.trace_hash(),
            virtual_time: Duration::from_nanos(self.cluster.now().0),
            events: self.ledger.events,
            failures: self.failures,
            refused: self.faults.said(),
            unread: self.unread,
            beyond_budget: self.beyond_budget,
        }
    }
}

/// Makes the topic. An error: nobody has come to do it.
fn make_topic(cluster: &mut Cluster, partitions: i32) -> Result<(), String> {
    let deadline = cluster.now() + PATIENCE;
    let mut last = None;
    while cluster.now() < deadline {
        let n = if cluster.shape.is_cluster() { cluster.pick(cluster.shape.brokers) } else { 0 };
        last = Conn::open(cluster, n).create_topic(cluster, TOPIC, partitions);
        if matches!(last, Some(0 | TOPIC_ALREADY_EXISTS)) {
            return Ok(());
        }
        cluster.run_us(10_000);
    }
    Err(format!("{last:?}"))
}

/// Asks whoever leads the partition, until there is an answer.
pub fn of_leader<T>(
    cluster: &mut Cluster,
    number: i32,
    what: impl Fn(&mut Conn, (i32, i32), &mut Cluster) -> Result<T, String>,
) -> Result<T, String> {
    let deadline = cluster.now() + PATIENCE;
    loop {
        let done = open_leader(cluster, number).and_then(|(mut conn, epoch)| {
            let done = what(&mut conn, (number, epoch), cluster);
            cluster.world.reset(conn.id);
            done
        });
        if done.is_ok() || cluster.now() >= deadline || cluster.world.is_halted() {
            return done;
        }
        cluster.run_us(20_000);
    }
}

/// What a partition holds in the end. With one broker all is asked on one connection, `lone`.
pub fn read_partition(
    lone: &mut Option<Conn>,
    number: i32,
    cluster: &mut Cluster,
    ledger: &mut Ledger,
) -> Result<(), String> {
    let mut invoked = cluster.now();
    let (log_start, records) = if cluster.shape.is_cluster() {
        of_leader(cluster, number, |conn, of, cluster| {
            let asked = cluster.now();
            conn.read_all(cluster, TOPIC, of).map(|read| (asked, read))
        })
        .map(|(asked, read)| {
            invoked = asked;
            read
        })?
    } else {
        let conn = lone.get_or_insert_with(|| Conn::open(cluster, 0));
        conn.read_all(cluster, TOPIC, (number, -1))?
    };
    let last = Final { partition: partition(number), log_start, records };
    ledger.add(AUDITOR, invoked, cluster.now(), Op::Final(last));
    Ok(())
}
