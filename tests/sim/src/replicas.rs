//! One seed of three pumps (`pumps.rs`): writers, readers and faults of brokers, disks and the network between them;
//! then everything is healed, everybody has to get on, and what the replicas hold is read and compared.
//!
//! One broker of the three may find its log damaged when it starts. It is refused, stays away, and the others go on.

use crate::batches::{batch, epochs, records};
use crate::ledger::{Ledger, partition};
use crate::pumps::{BROKERS, Cluster, Committed, Shape, route};
use crate::scenario::{Failure, Mode, Run};
use bytes::Bytes;
use camus_engine::io::sim::Crash;
use camus_engine::rt::rng::Rng;
use camus_engine::shard::api::{Answer, Ask, BatchRules, OffsetQuery, Produced, Refusal, Route};
use camus_engine::types::{LeaderEpoch, Mono, Offset, ShardId, Term};
use camus_engine::wal::WalError;
use camus_history::history::{EpochEnd, EpochStart, Final, Outcome, Produce, ProduceOutcome, Read, Trim};
use camus_history::{Op, check};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Shard and partition id of each partition of the topic.
const PARTITIONS: [(u32, u64); 3] = [(1, 1), (1, 2), (2, 3)];
const WRITERS: std::ops::Range<u32> = 0..4;
const PLAINS: std::ops::Range<u32> = 4..6;
const READERS: std::ops::Range<u32> = 10..14;
const TRIMMER: u32 = 40;
const AUDITOR: u32 = 50;
const IN_FLIGHT_MAX: usize = 5;
/// A client that hears nothing for so long takes its question for lost.
const PATIENCE: Duration = Duration::from_millis(800);
/// After the last fault everybody gets on within this time.
const PROGRESS: Duration = Duration::from_secs(30);
/// Keeps what the scenario draws apart from what the world draws.
const SALT: u64 = 0x5eed_0fca_0503;

fn to(number: i32) -> Route {
    let (shard, partition) = PARTITIONS[number as usize];
    route(shard, partition)
}

fn pick(cluster: &mut Cluster, n: usize) -> usize {
    cluster.world.rng().between(0, n as u64 - 1) as usize
}

fn chance(cluster: &mut Cluster, percent: u64) -> bool {
    cluster.world.rng().chance(percent)
}

/// What a client takes for its partition's leader: a broker, in one of its lives, and the term. A client never goes
/// back to a leader of an older term, as Kafka's clients do not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    who: usize,
    life: u32,
    term: Term,
}

fn link(cluster: &Cluster, shard: ShardId, known: Term) -> Option<Link> {
    let who = cluster.leader(shard)?;
    let term = cluster.tables[who].leading(shard)?;
    (term >= known).then_some(Link { who, life: cluster.lives[who], term })
}

/// A question under way, on the link that it was asked on.
#[derive(Clone, Copy)]
struct Asked {
    link: Link,
    request: u64,
    at: Mono,
}

impl Asked {
    fn ask(cluster: &mut Cluster, link: Link, ask: Ask) -> Asked {
        Asked { link, request: cluster.ask(link.who, ask), at: cluster.world.now() }
    }

    /// The answer. `Err`: none will come, or nobody waits for it any more.
    fn answer(&self, cluster: &Cluster) -> Result<Option<Answer>, ()> {
        if cluster.lives[self.link.who] != self.link.life || !cluster.is_running(self.link.who) {
            return Err(());
        }
        match cluster.answer(self.link.who, self.request) {
            None if self.at + PATIENCE < cluster.world.now() => Err(()),
            answer => Ok(answer),
        }
    }
}

/// A refusal after which a client tries again.
fn is_retriable(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::NotLeader
        | Refusal::UnknownPartition
        | Refusal::FencedEpoch
        | Refusal::UnknownEpoch
        | Refusal::Busy
        | Refusal::NoSpace
        | Refusal::Storage => true,
        Refusal::OffsetOutOfRange { .. }
        | Refusal::OutOfOrderSequence { .. }
        | Refusal::OldProducerEpoch { .. }
        | Refusal::Corrupt(_)
        | Refusal::TooLarge { .. }
        | Refusal::Timestamp { .. }
        | Refusal::Invalid { .. }
        | Refusal::UnsupportedCodec => false,
    }
}

fn produced(answer: Answer) -> Result<Produced, Refusal> {
    match answer {
        Answer::Produced(produced) => produced,
        other => panic!("a produce is answered with {other:?}"),
    }
}

// ------------------------------------------------------------------------------------------------- clients

struct Batch {
    invoked: Mono,
    first_number: u64,
    values: Vec<u64>,
    bytes: Bytes,
    asked: Option<Asked>,
}

/// Five batches in flight with sequences; or one without, which is never sent twice.
struct Writer {
    process: u32,
    number: i32,
    idempotent: bool,
    link: Option<Link>,
    term: Term,
    next_sequence: i32,
    next_number: u64,
    unacked: VecDeque<Batch>,
    /// Something was refused or lost: nothing new before everything is answered and sent again.
    retrying: bool,
    /// After the last fault: one batch more was sent, and acknowledged.
    proof_sent: bool,
    proven: bool,
}

impl Writer {
    fn new(process: u32, idempotent: bool) -> Writer {
        Writer {
            process,
            number: process as i32 % PARTITIONS.len() as i32,
            idempotent,
            link: None,
            term: Term(0),
            next_sequence: 0,
            next_number: 0,
            unacked: VecDeque::new(),
            retrying: false,
            proof_sent: false,
            proven: false,
        }
    }

    fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger, is_full: &mut bool) {
        self.hear(cluster, ledger, is_full);
        let shard = to(self.number).shard;
        if self.link.is_none_or(|link| link_is_old(cluster, shard, link)) {
            self.lose_link(cluster.world.now(), ledger);
            self.link = link(cluster, shard, self.term);
        }
        let Some(link) = self.link else { return };
        self.term = link.term;
        if self.retrying && self.unacked.iter().all(|batch| batch.asked.is_none()) {
            for batch in &mut self.unacked {
                batch.asked = Some(ask_to_produce(cluster, link, self.number, &batch.bytes));
            }
            self.retrying = false;
        }
        let most = if self.idempotent { IN_FLIGHT_MAX } else { 1 };
        let wanted = if ledger.calm { !self.is_done() && (self.unacked.is_empty() || !self.proof_sent) } else { true };
        if wanted && !self.retrying && self.unacked.len() < most && chance(cluster, 40) {
            self.proof_sent = ledger.calm;
            self.send_new(link, cluster, ledger);
        }
    }

    fn hear(&mut self, cluster: &Cluster, ledger: &mut Ledger, is_full: &mut bool) {
        let now = cluster.world.now();
        let mut at = 0;
        while at < self.unacked.len() {
            let answer = match self.unacked[at].asked.map(|asked| asked.answer(cluster)) {
                None | Some(Ok(None)) => {
                    at += 1;
                    continue;
                }
                Some(Ok(Some(answer))) => produced(answer),
                Some(Err(())) => {
                    self.link = None;
                    return self.lose_link(now, ledger);
                }
            };
            match answer {
                Ok(produced) => {
                    let batch = self.unacked.remove(at).expect("looked at just now");
                    self.proven |= ledger.calm;
                    self.record(&batch, now, ProduceOutcome::Acked { base_offset: produced.base_offset.0 }, ledger);
                }
                Err(refusal) => {
                    *is_full |= refusal == Refusal::NoSpace;
                    let is_behind = matches!(refusal, Refusal::OutOfOrderSequence { .. }) && self.idempotent;
                    if !is_retriable(&refusal) && !is_behind {
                        ledger.unexpected.push(format!("{}: {refusal}", self.name()));
                    }
                    if self.idempotent {
                        self.unacked[at].asked = None;
                        self.retrying = true;
                        at += 1;
                    } else {
                        // It may have been proposed before.
                        let batch = self.unacked.remove(at).expect("looked at just now");
                        self.record(&batch, now, ProduceOutcome::Info, ledger);
                    }
                }
            }
        }
    }

    /// What was asked is not answered any more: it is sent again, or given up.
    fn lose_link(&mut self, now: Mono, ledger: &mut Ledger) {
        if !self.idempotent {
            return self.finish(now, ledger);
        }
        self.unacked.iter_mut().for_each(|batch| batch.asked = None);
        self.retrying = true;
    }

    fn send_new(&mut self, link: Link, cluster: &mut Cluster, ledger: &mut Ledger) {
        let values = ledger.new_values(1 + pick(cluster, 3));
        let padding = if chance(cluster, 5) { 20_000 } else { pick(cluster, 600) };
        let producer =
            if self.idempotent { (100 + i64::from(self.process), 0, self.next_sequence) } else { (-1, -1, -1) };
        let bytes = batch(&values, padding, producer);
        let (invoked, first_number) = (cluster.world.now(), self.next_number);
        self.next_number += values.len() as u64;
        self.next_sequence += values.len() as i32;
        let asked = Some(ask_to_produce(cluster, link, self.number, &bytes));
        self.unacked.push_back(Batch { invoked, first_number, values, bytes, asked });
    }

    fn record(&self, batch: &Batch, now: Mono, outcome: ProduceOutcome, ledger: &mut Ledger) {
        let produce = Produce {
            partition: partition(self.number),
            producer: self.process,
            idempotent: self.idempotent,
            first_number: batch.first_number,
            values: batch.values.clone(),
            outcome,
        };
        ledger.add(self.process, batch.invoked, now, Op::Produce(produce));
    }

    /// What is without an answer stays so.
    fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        for batch in std::mem::take(&mut self.unacked) {
            self.record(&batch, now, ProduceOutcome::Info, ledger);
        }
    }

    fn is_done(&self) -> bool {
        self.proven && self.unacked.is_empty()
    }

    fn name(&self) -> String {
        format!("writer {} of partition {} ({} batches unacked)", self.process, self.number, self.unacked.len())
    }
}

fn ask_to_produce(cluster: &mut Cluster, link: Link, number: i32, batch: &Bytes) -> Asked {
    let ask = Ask::Produce { to: to(number), batch: batch.clone(), rules: BatchRules::default() };
    Asked::ask(cluster, link, ask)
}

/// Somebody leads in a newer term, or the leader has begun another life.
fn link_is_old(cluster: &Cluster, shard: ShardId, old: Link) -> bool {
    let is_there = cluster.is_running(old.who) && cluster.lives[old.who] == old.life;
    !is_there || link(cluster, shard, old.term).is_some_and(|new| new != old)
}

enum Question {
    Records,
    End { epoch: i32, known_to: i64 },
}

/// Reads from the leader, and asks it where epochs end.
struct Reader {
    process: u32,
    number: i32,
    term: Term,
    next: i64,
    /// Epochs that it has read, and up to where, oldest first.
    known: Vec<(i32, i64)>,
    asked: Option<(Asked, Question)>,
    target: Option<i64>,
}

impl Reader {
    fn new(process: u32) -> Reader {
        let number = process as i32 % PARTITIONS.len() as i32;
        Reader { process, number, term: Term(0), next: 0, known: vec![], asked: None, target: None }
    }

    fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        if let Some((asked, _)) = &self.asked {
            match asked.answer(cluster) {
                Err(()) => self.asked = None,
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let (asked, question) = self.asked.take().expect("looked at just now");
                    self.answered(answer, question, (asked.at, cluster.world.now()), ledger);
                }
            }
        }
        let Some(link) = link(cluster, to(self.number).shard, self.term).filter(|_| self.asked.is_none()) else {
            return;
        };
        let is_new = link.term > self.term;
        self.term = link.term;
        if is_new && !ledger.calm && chance(cluster, 20) {
            // a consumer that starts again from what it committed
            self.next = (self.next - pick(cluster, 200) as i64).max(0);
            self.known.clear();
        }
        let from = to(self.number);
        if !self.known.is_empty() && (is_new || chance(cluster, 5)) {
            let (epoch, known_to) = self.known[pick(cluster, self.known.len())];
            let ask = Ask::EpochEnd { from, epoch: LeaderEpoch(epoch), current: None };
            self.asked = Some((Asked::ask(cluster, link, ask), Question::End { epoch, known_to }));
        } else {
            let (offset, epoch) = (Offset(self.next), Some(link.term.leader_epoch()));
            let ask = Ask::Read { from, offset, bytes_max: 10_000, at_least_one: true, epoch, watch: false };
            self.asked = Some((Asked::ask(cluster, link, ask), Question::Records));
        }
    }

    fn answered(&mut self, answer: Answer, question: Question, when: (Mono, Mono), ledger: &mut Ledger) {
        match (answer, question) {
            (Answer::Read(Ok(done)), Question::Records) => {
                let bytes: Vec<u8> = done.batches.concat();
                self.note_epochs(&bytes, when.1, ledger);
                let (from_offset, records) = (self.next, records(&bytes, self.next));
                if let Some((last, _)) = records.last() {
                    self.next = last + 1;
                }
                let read_to = &mut ledger.read_to[self.number as usize];
                *read_to = self.next.max(*read_to);
                let (high_watermark, log_start) = (done.high_watermark.0, done.log_start.0);
                let read = Read { partition: partition(self.number), from_offset, records, high_watermark, log_start };
                ledger.add(self.process, when.0, when.1, Op::Read(read));
            }
            (Answer::EpochEnd(Ok(told)), Question::End { epoch, known_to }) => {
                let (partition, end) = (partition(self.number), told.end.0);
                ledger.add(self.process, when.0, when.1, Op::EpochEnd(EpochEnd { partition, epoch, known_to, end }));
            }
            (Answer::Read(Err(Refusal::OffsetOutOfRange { high_watermark, log_start })), Question::Records) => {
                if log_start.0 <= self.next {
                    let name = self.name();
                    ledger.unexpected.push(format!("{name} is out of range: the log ends at {high_watermark}"));
                }
                (self.next, self.known) = (log_start.0, vec![]);
            }
            (Answer::Read(Err(refusal)), Question::Records)
            | (Answer::EpochEnd(Err(refusal)), Question::End { .. }) => {
                if !is_retriable(&refusal) {
                    ledger.unexpected.push(format!("{}: {refusal}", self.name()));
                }
            }
            (answer, _) => panic!("{} is answered with {answer:?}", self.name()),
        }
    }

    fn note_epochs(&mut self, bytes: &[u8], now: Mono, ledger: &mut Ledger) {
        for (offset, epoch, end) in epochs(bytes) {
            match self.known.last_mut() {
                Some((last, known_to)) if *last == epoch => *known_to = end,
                _ => {
                    self.known.push((epoch, end));
                    let start = EpochStart { partition: partition(self.number), epoch, offset };
                    ledger.add(self.process, now, now, Op::EpochStart(start));
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.target.is_some_and(|target| self.next >= target)
    }

    fn name(&self) -> String {
        format!("reader {} of partition {} (at {}, to {:?})", self.process, self.number, self.next, self.target)
    }
}

/// Deletes what has been read, often where it is full.
#[derive(Default)]
struct Trimmer {
    asked: Option<(Asked, i32, i64)>,
}

impl Trimmer {
    fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger, is_full: &mut bool) {
        if let Some((asked, number, offset)) = &self.asked {
            let (number, offset, invoked) = (*number, *offset, asked.at);
            let outcome = match asked.answer(cluster) {
                Ok(None) => return,
                Ok(Some(Answer::Trimmed(Ok(_)))) => Outcome::Acked,
                Ok(Some(Answer::Trimmed(Err(_)))) | Err(()) => Outcome::Info,
                Ok(Some(other)) => panic!("a trim is answered with {other:?}"),
            };
            let trim = Trim { partition: partition(number), offset, outcome };
            ledger.add(TRIMMER, invoked, cluster.world.now(), Op::Trim(trim));
            self.asked = None;
        }
        let wanted = if *is_full {
            20
        } else if ledger.calm {
            0
        } else {
            1
        };
        if !chance(cluster, wanted) {
            return;
        }
        let number = pick(cluster, PARTITIONS.len()) as i32;
        let read_to = ledger.read_to[number as usize];
        let offset = if *is_full { read_to } else { pick(cluster, read_to as usize + 1) as i64 };
        *is_full = false;
        if let Some(link) = link(cluster, to(number).shard, Term(0)) {
            let ask = Ask::Trim { to: to(number), offset: Some(Offset(offset)) };
            self.asked = Some((Asked::ask(cluster, link, ask), number, offset));
        }
    }
}

// ------------------------------------------------------------------------------------------------- faults

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Crash,
    /// Leaders die more often than others: that is where entries could be lost.
    LeaderCrash,
    PowerOfAll,
    Isolate,
    OneWayCut,
    BadNetwork,
    SlowDisk,
    HungDisk,
    Spikes,
    WriteErrors,
    ReadErrors,
    /// Of one broker in a seed, while it is down.
    Rot,
}

const FAULTS: [Fault; 12] = [
    Fault::Crash,
    Fault::LeaderCrash,
    Fault::PowerOfAll,
    Fault::Isolate,
    Fault::OneWayCut,
    Fault::BadNetwork,
    Fault::SlowDisk,
    Fault::HungDisk,
    Fault::Spikes,
    Fault::WriteErrors,
    Fault::ReadErrors,
    Fault::Rot,
];

struct Replicas {
    cluster: Cluster,
    mix: Vec<Fault>,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    trimmer: Trimmer,
    ledger: Ledger,
    failures: Vec<Failure>,
    /// What any replica has shown as committed: no other may show anything else there.
    seen: BTreeMap<(Route, Offset), Committed>,
    /// Whose disk was damaged, and whether it refused to start on it.
    damaged: Option<usize>,
    refused: Option<String>,
    /// A write was refused for want of space.
    is_full: bool,
    /// It can not go on: a broker that must start does not.
    is_over: bool,
    steps: u64,
}

/// Runs a seed for this long in virtual time, and for as long as it takes to wind up.
pub fn run(seed: u64, time: Duration) -> Run {
    let mut replicas = Replicas::new(seed);
    let end = replicas.cluster.world.now() + time;
    while replicas.cluster.world.now() < end && !replicas.is_over {
        replicas.step(4_000);
        if chance(&mut replicas.cluster, 2) {
            replicas.fault();
        }
        if chance(&mut replicas.cluster, 2) {
            replicas.recover();
        }
    }
    if !replicas.is_over {
        replicas.wind_up();
    }
    replicas.judge(seed, time)
}

impl Replicas {
    fn new(seed: u64) -> Replicas {
        let mut rng = Rng::new(seed ^ SALT);
        let shape = Shape {
            segment_bytes: (64 * 1024) << rng.between(0, 2),
            // One whose log is at its limit goes on only when others delete something (docs/adr/0005, "Not done").
            segments_max: 4096,
            // With little in memory much of what is sent again comes from the disk.
            cache_bytes: if rng.chance(50) { 32 * 1024 } else { 4 * 1024 * 1024 },
            ..Shape::default()
        };
        let routes: Vec<Route> = (0..PARTITIONS.len() as i32).map(to).collect();
        Replicas {
            cluster: Cluster::new(seed, shape, &routes),
            mix: FAULTS.into_iter().filter(|_| rng.chance(60)).collect(),
            writers: WRITERS.map(|n| Writer::new(n, true)).chain(PLAINS.map(|n| Writer::new(n, false))).collect(),
            readers: READERS.map(Reader::new).collect(),
            trimmer: Trimmer::default(),
            ledger: Ledger::new(PARTITIONS.len() as i32),
            failures: vec![],
            seen: BTreeMap::new(),
            damaged: None,
            refused: None,
            is_full: false,
            is_over: false,
            steps: 0,
        }
    }

    fn fail(&mut self, name: &str, text: String) {
        self.failures.push(Failure { name: name.to_owned(), text });
    }

    fn step(&mut self, us_max: u64) {
        let (cluster, ledger) = (&mut self.cluster, &mut self.ledger);
        for who in cluster.running() {
            let fatal = cluster.boards[who].borrow().fatal.clone();
            if let Some(error) = fatal {
                if let WalError::Forgot { .. } = &error {
                    self.failures.push(Failure { name: "forgot".to_owned(), text: error.to_string() });
                }
                cluster.crash(who, Crash::Process);
            }
        }
        self.writers.iter_mut().for_each(|writer| writer.step(cluster, ledger, &mut self.is_full));
        self.readers.iter_mut().for_each(|reader| reader.step(cluster, ledger));
        self.trimmer.step(cluster, ledger, &mut self.is_full);
        let us = cluster.world.rng().between(100, us_max);
        cluster.run_for(Duration::from_micros(us));
        self.steps += 1;
        if self.steps.is_multiple_of(200) {
            self.compare();
        }
    }

    /// What one replica has shown as committed, no other may show otherwise, ever.
    fn compare(&mut self) {
        for number in 0..PARTITIONS.len() as i32 {
            for who in self.cluster.running() {
                for batch in self.cluster.committed(who, to(number)) {
                    let before = *self.seen.entry((to(number), batch.0)).or_insert(batch);
                    if before != batch {
                        let text = format!("partition {number}: broker {who} has {batch:?}, and there was {before:?}");
                        return self.fail("replicas-differ", text);
                    }
                }
            }
        }
    }

    // ---- faults

    fn fault(&mut self) {
        if self.mix.is_empty() {
            return;
        }
        let fault = self.mix[pick(&mut self.cluster, self.mix.len())];
        let cluster = &mut self.cluster;
        let who = pick(cluster, BROKERS);
        match fault {
            Fault::Crash if cluster.is_running(who) => cluster.crash_somehow(who),
            Fault::Crash => {}
            Fault::LeaderCrash => {
                let (shard, _) = PARTITIONS[pick(cluster, PARTITIONS.len())];
                if let Some(leader) = cluster.leader(ShardId(shard)) {
                    cluster.crash_somehow(leader);
                }
            }
            Fault::PowerOfAll => cluster.running().into_iter().for_each(|who| cluster.crash(who, Crash::Power)),
            Fault::Isolate => cluster.net.borrow_mut().isolate(who),
            Fault::OneWayCut => {
                cluster.net.borrow_mut().cut.insert((who, (who + 1) % BROKERS));
            }
            Fault::BadNetwork => {
                let mut net = cluster.net.borrow_mut();
                (net.loss_percent, net.double_percent, net.delay_us_max) = (10, 10, 5_000);
            }
            Fault::SlowDisk => cluster.disk(who).slow_down(Duration::from_millis(20)),
            Fault::HungDisk => cluster.disk(who).hang(true),
            Fault::Spikes => cluster.disk(who).spike(10, Duration::from_millis(200)),
            Fault::WriteErrors => cluster.disk(who).fail_writes(1),
            Fault::ReadErrors => cluster.disk(who).fail_reads(3),
            Fault::Rot if self.damaged.is_none() => {
                if cluster.is_running(who) {
                    cluster.crash_somehow(who);
                }
                let _where = cluster.disk(who).rot_somewhere();
                self.damaged = Some(who);
            }
            Fault::Rot => {}
        }
    }

    fn recover(&mut self) {
        for who in 0..BROKERS {
            if chance(&mut self.cluster, 40) {
                self.start(who);
            }
            if chance(&mut self.cluster, 40) {
                self.soothe(who);
            }
        }
        if chance(&mut self.cluster, 40) {
            self.cluster.net.borrow_mut().heal();
        }
    }

    /// Its disk works again.
    fn soothe(&mut self, who: usize) {
        let disk = self.cluster.disk(who);
        disk.hang(false);
        disk.slow_down(Duration::ZERO);
        disk.spike(0, Duration::ZERO);
        disk.fail_writes(0);
        disk.fail_reads(0);
    }

    /// Starts a broker that is down, unless its disk was refused.
    fn start(&mut self, who: usize) {
        if self.cluster.is_running(who) || self.is_away(who) {
            return;
        }
        let Err(error) = self.cluster.begin(who) else { return };
        let text = format!("broker {who} does not start: {error}");
        if self.damaged == Some(who) {
            self.refused = Some(text);
        } else {
            self.is_over = true;
            self.fail("start-refused", text);
        }
    }

    /// It refused its damaged disk.
    fn is_away(&self, who: usize) -> bool {
        self.refused.is_some() && self.damaged == Some(who)
    }

    // ---- the end

    fn wind_up(&mut self) {
        self.mix.clear();
        self.ledger.calm = true;
        self.cluster.net.borrow_mut().heal();
        for who in 0..BROKERS {
            self.soothe(who);
            self.start(who);
        }
        let ended = self.get_done().and_then(|()| self.look());
        let now = self.cluster.world.now();
        for writer in &mut self.writers {
            writer.finish(now, &mut self.ledger);
        }
        self.compare();
        if let Err(why) = ended {
            let stand = self.stand();
            self.fail("no-progress", format!("{why}; {stand}"));
        }
    }

    /// How each broker stands.
    fn stand(&mut self) -> String {
        let mut all = Vec::new();
        for who in 0..BROKERS {
            if !self.cluster.is_running(who) {
                all.push(format!("broker {who} is down"));
                continue;
            }
            let core = self.cluster.core(who);
            let leaders = [0, 1, 2].map(|shard| core.leader_of(ShardId(shard)));
            let space = (core.no_space_why(), core.no_space_for_elections_why());
            all.push(format!("broker {who} follows {leaders:?}, and has no space because of {space:?}"));
        }
        all.join(", ")
    }

    fn get_done(&mut self) -> Result<(), String> {
        self.until_done(|replicas| {
            replicas.writers.iter().filter(|writer| !writer.is_done()).map(Writer::name).collect()
        })?;
        for number in 0..PARTITIONS.len() as i32 {
            let (_, end) = self.bounds(number)?;
            for reader in self.readers.iter_mut().filter(|reader| reader.number == number) {
                reader.target = Some(end);
            }
        }
        self.until_done(|replicas| {
            replicas.readers.iter().filter(|reader| !reader.is_done()).map(Reader::name).collect()
        })
    }

    fn until_done(&mut self, not_done: fn(&Replicas) -> Vec<String>) -> Result<(), String> {
        let deadline = self.cluster.world.now() + PROGRESS;
        while !not_done(self).is_empty() {
            if self.cluster.world.now() > deadline || self.is_over {
                return Err(not_done(self).join(", "));
            }
            self.step(4_000);
            for who in 0..BROKERS {
                self.start(who);
            }
        }
        Ok(())
    }

    /// The log start and the end of a partition, as its leader has them.
    fn bounds(&mut self, number: i32) -> Result<(i64, i64), String> {
        Ok((self.find(number, OffsetQuery::Earliest)?, self.find(number, OffsetQuery::Latest)?))
    }

    /// Asks whoever leads, until there is an answer.
    fn find(&mut self, number: i32, what: OffsetQuery) -> Result<i64, String> {
        let (cluster, from) = (&mut self.cluster, to(number));
        let deadline = cluster.world.now() + PROGRESS;
        while cluster.world.now() < deadline {
            if let Some(who) = cluster.leader(from.shard) {
                let request = cluster.ask(who, Ask::Find { from, what, epoch: None });
                cluster.run_until(PATIENCE, |cluster| cluster.answer(who, request).is_some());
                if let Some(Answer::Found(Ok(found))) = cluster.answer(who, request) {
                    return Ok(found.offset.0);
                }
            }
            cluster.run_ms(20);
        }
        Err(format!("partition {number}: nobody says where {what:?} is"))
    }

    /// All replicas come to hold the same, and that is what the partitions hold.
    fn look(&mut self) -> Result<(), String> {
        for number in 0..PARTITIONS.len() as i32 {
            let invoked = self.cluster.world.now();
            let (log_start, end) = self.bounds(number)?;
            let deadline = invoked + PROGRESS;
            while !self.all_have(number, log_start, end) {
                if self.cluster.world.now() > deadline {
                    return Err(format!("partition {number}: a replica does not come to its end, {end}"));
                }
                self.cluster.run_ms(20);
            }
            let running = self.cluster.running();
            let first = self.cluster.bodies(running[0], to(number)).concat();
            let held = records(&first, log_start);
            for who in &running[1..] {
                let bytes = self.cluster.bodies(*who, to(number)).concat();
                if records(&bytes, log_start) != held {
                    let text = format!("partition {number}: brokers {} and {who} hold different records", running[0]);
                    self.fail("replicas-differ", text);
                }
            }
            let last = Final { partition: partition(number), log_start, records: held };
            self.ledger.add(AUDITOR, invoked, self.cluster.world.now(), Op::Final(last));
        }
        Ok(())
    }

    /// Every replica has committed the partition up to its end.
    fn all_have(&mut self, number: i32, log_start: i64, end: i64) -> bool {
        self.cluster.running().into_iter().all(|who| {
            let committed = self.cluster.committed(who, to(number));
            let last = committed.last().map_or(log_start, |(base, count, _)| base.0 + i64::from(*count));
            last == end
        })
    }

    fn judge(mut self, seed: u64, time: Duration) -> Run {
        for text in std::mem::take(&mut self.ledger.unexpected) {
            self.fail("unexpected-answer", text);
        }
        for anomaly in check(&self.ledger.events) {
            self.fail(anomaly.name(), anomaly.to_string());
        }
        Run {
            seed,
            setup: Mode::Replicas.into(),
            time,
            brokers: BROKERS,
            trace: self.cluster.world.trace_hash(),
            virtual_time: Duration::from_nanos(self.cluster.world.now().0),
            events: self.ledger.events,
            failures: self.failures,
            refused: self.refused,
            unread: 0,
            beyond_budget: false,
        }
    }
}
