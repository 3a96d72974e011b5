//! Whole brokers in the simulator: the nodes of all cores with their mesh, simulated disks that crash, and clients that
//! speak the wire. A seed that fails is printed; `CAMUS_TEST_SEED=<seed>` runs it alone.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod sim_kit;

use bytes::Bytes;
use camus_engine::rt::CloseReason;
use kafka_protocol::messages::{FetchResponse, InitProducerIdResponse, ProduceResponse};
use kafka_protocol::protocol::Decodable;
use sim_kit::history::{Broken, History, Sent, check};
use sim_kit::wire::{
    Conn, FETCH, INIT_PRODUCER_ID, PRODUCE, batch, fetch, fetched, init_producer_id, produce, produced, records,
};
use sim_kit::{Seed, Shape, SimBroker, seeds};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const TOPIC: &str = "t";
/// What a client tries again after: no such partition yet, no leader yet, out of order behind one that was refused,
/// over budget, no space.
const RETRIABLE: [i16; 6] = [3, 5, 6, 7, 45, 56];

// ------------------------------------------------------------------------------------------------- clients

/// A batch of an idempotent producer that is not acknowledged.
struct Unacked {
    bytes: Bytes,
    values: Vec<u64>,
    /// Its request on the current connection.
    asked: Option<i32>,
}

/// Five in flight, retries on a new connection with the same sequences, in order: as clients do.
struct Idempotent {
    number: usize,
    partition: i32,
    id: Option<(i64, i16)>,
    next_sequence: i32,
    next_number: u64,
    unacked: VecDeque<Unacked>,
    /// Something was refused: nothing new before everything is answered and sent again.
    retrying: bool,
    conn: Option<Conn>,
}

/// One at a time, never twice.
struct Plain {
    number: usize,
    partition: i32,
    next_number: u64,
    asked: Option<Vec<u64>>,
    conn: Option<Conn>,
}

/// Waits for what comes, and goes on behind it.
struct Reader {
    partition: i32,
    next: i64,
    conn: Option<Conn>,
}

/// Everybody, and what they saw.
struct Clients {
    idempotent: Vec<Idempotent>,
    plain: Vec<Plain>,
    readers: Vec<Reader>,
    history: History,
    next_value: u64,
    /// Nothing new is sent.
    winding_up: bool,
}

/// A connection to go on with, if there is one now: clients wait a little before they come back.
fn connected<'a>(conn: &'a mut Option<Conn>, broker: &mut SimBroker) -> Option<(&'a mut Conn, bool)> {
    if conn.as_ref().is_some_and(|conn| !conn.is_open(broker)) {
        *conn = None;
    }
    let mut is_new = false;
    if conn.is_none() {
        if !broker.chance(30) {
            return None;
        }
        *conn = Some(Conn::open(broker));
        is_new = true;
    } else if broker.chance(1) {
        // it loses its connection, and the answers on it
        broker.world.reset(conn.as_ref().unwrap().id);
        *conn = None;
        return None;
    }
    conn.as_mut().map(|conn| (conn, is_new))
}

impl Clients {
    fn new(partitions: i32) -> Clients {
        let idempotent = (0..4).map(|n| Idempotent {
            number: n,
            partition: n as i32 % partitions,
            id: None,
            next_sequence: 0,
            next_number: 0,
            unacked: VecDeque::new(),
            retrying: false,
            conn: None,
        });
        let plain = (4..6).map(|n| Plain {
            number: n,
            partition: n as i32 % partitions,
            next_number: 0,
            asked: None,
            conn: None,
        });
        Clients {
            idempotent: idempotent.collect(),
            plain: plain.collect(),
            readers: (0..partitions).map(|partition| Reader { partition, next: 0, conn: None }).collect(),
            history: History::default(),
            next_value: 1,
            winding_up: false,
        }
    }

    fn step(&mut self, broker: &mut SimBroker) {
        for producer in &mut self.idempotent {
            producer.step(broker, &mut self.history, &mut self.next_value, self.winding_up);
        }
        for producer in &mut self.plain {
            producer.step(broker, &mut self.history, &mut self.next_value, self.winding_up);
        }
        for reader in &mut self.readers {
            reader.step(broker, &mut self.history);
        }
        let us = broker.pick(400) as u64;
        broker.run_us(us);
    }

    /// The broker died, and every connection with it.
    fn are_cut_off(&mut self) {
        self.idempotent.iter_mut().for_each(|producer| producer.conn = None);
        self.plain.iter_mut().for_each(|producer| producer.conn = None);
        self.readers.iter_mut().for_each(|reader| reader.conn = None);
    }

    fn unacked(&self) -> usize {
        self.idempotent.iter().map(|producer| producer.unacked.len()).sum()
    }
}

/// Up to three records that nobody sent before.
fn new_values(
    broker: &mut SimBroker,
    history: &mut History,
    next_value: &mut u64,
    first_number: u64,
    sent: Sent,
) -> Vec<u64> {
    let values: Vec<u64> = (0..=broker.pick(3) as u64).map(|n| *next_value + n).collect();
    for (n, value) in values.iter().enumerate() {
        history.sent.insert(*value, Sent { number: first_number + n as u64, ..sent });
    }
    *next_value += values.len() as u64;
    values
}

fn acknowledge(history: &mut History, values: &[u64], base: i64) {
    history.acked.extend(values.iter().enumerate().map(|(n, value)| (*value, base + n as i64)));
}

impl Idempotent {
    fn step(&mut self, broker: &mut SimBroker, history: &mut History, next_value: &mut u64, winding_up: bool) {
        let Some((conn, is_new)) = connected(&mut self.conn, broker) else { return };
        if is_new {
            self.unacked.iter_mut().for_each(|batch| batch.asked = None);
            self.retrying = true;
        }
        for (correlation, mut body) in conn.answers(broker) {
            if self.id.is_none() {
                let answer = InitProducerIdResponse::decode(&mut body, INIT_PRODUCER_ID).unwrap();
                match answer.error_code {
                    0 => self.id = Some((answer.producer_id.0, answer.producer_epoch)),
                    14 => {}
                    other => panic!("InitProducerId: {other}"),
                }
                continue;
            }
            let answer = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
            let at = self.unacked.iter().position(|batch| batch.asked == Some(correlation)).unwrap();
            match answer.error_code {
                0 => {
                    let batch = self.unacked.remove(at).unwrap();
                    acknowledge(history, &batch.values, answer.base_offset);
                }
                code => {
                    assert!(RETRIABLE.contains(&code), "producer {} got {code}", self.number);
                    self.unacked[at].asked = None;
                    self.retrying = true;
                }
            }
        }
        let Some((id, epoch)) = self.id else {
            if conn.owed() == 0 {
                conn.send(broker, INIT_PRODUCER_ID, &init_producer_id());
            }
            return;
        };
        if self.retrying && conn.owed() == 0 {
            for batch in &mut self.unacked {
                batch.asked = Some(conn.send(broker, PRODUCE, &produce(TOPIC, self.partition, &batch.bytes)));
            }
            self.retrying = false;
        }
        if !self.retrying && self.unacked.len() < 5 && !winding_up && broker.chance(60) {
            let sent = Sent { partition: self.partition, producer: self.number, number: 0, idempotent: true };
            let values = new_values(broker, history, next_value, self.next_number, sent);
            let bytes = batch(&values, broker.pick(200), (id, epoch, self.next_sequence));
            self.next_number += values.len() as u64;
            self.next_sequence += values.len() as i32;
            let asked = Some(conn.send(broker, PRODUCE, &produce(TOPIC, self.partition, &bytes)));
            self.unacked.push_back(Unacked { bytes, values, asked });
        }
    }
}

impl Plain {
    fn step(&mut self, broker: &mut SimBroker, history: &mut History, next_value: &mut u64, winding_up: bool) {
        let Some((conn, is_new)) = connected(&mut self.conn, broker) else { return };
        if is_new {
            self.asked = None;
        }
        for (_, mut body) in conn.answers(broker) {
            let answer = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
            let values = self.asked.take().unwrap();
            match answer.error_code {
                0 => acknowledge(history, &values, answer.base_offset),
                code => assert!(RETRIABLE.contains(&code), "producer {} got {code}", self.number),
            }
        }
        if self.asked.is_none() && !winding_up && broker.chance(40) {
            let sent = Sent { partition: self.partition, producer: self.number, number: 0, idempotent: false };
            let values = new_values(broker, history, next_value, self.next_number, sent);
            self.next_number += values.len() as u64;
            let bytes = batch(&values, broker.pick(5_000), (-1, -1, -1));
            conn.send(broker, PRODUCE, &produce(TOPIC, self.partition, &bytes));
            self.asked = Some(values);
        }
    }
}

impl Reader {
    fn step(&mut self, broker: &mut SimBroker, history: &mut History) {
        let Some((conn, _)) = connected(&mut self.conn, broker) else { return };
        for (_, mut body) in conn.answers(broker) {
            let found = fetched(FetchResponse::decode(&mut body, FETCH).unwrap());
            if found.error_code != 0 {
                let code = found.error_code;
                assert!(RETRIABLE.contains(&code), "partition {} at {}: {code}", self.partition, self.next);
                continue;
            }
            for (offset, value) in records(&found.records.unwrap_or_default(), self.next) {
                assert_eq!(offset, self.next, "a reader sees every offset");
                assert!(offset < found.high_watermark);
                self.next += 1;
                history.read.push((self.partition, offset, value));
            }
        }
        if conn.owed() == 0 {
            let wait_ms = broker.pick(500) as i32;
            let bytes_max = if broker.chance(20) { 1 } else { 10_000 };
            conn.send(broker, FETCH, &fetch(TOPIC, self.partition, self.next, wait_ms, bytes_max));
        }
    }
}

fn finally(broker: &mut SimBroker, history: &mut History, partitions: i32) {
    let mut conn = Conn::open(broker);
    for partition in 0..partitions {
        let records = conn.read_all(broker, TOPIC, partition);
        history.finally.insert(partition, records);
    }
}

/// One broker's life and deaths. Its trace, what was acknowledged, and what was read.
fn run(seed: u64) -> (u64, usize, usize) {
    let _seed = Seed(seed);
    let partitions = 4;
    let segment_bytes = (64 << (seed / 2 % 3)) * 1024;
    let mut broker = SimBroker::new(seed, Shape { cores: 1 + seed as usize % 2, segment_bytes, ..Shape::default() });
    assert_eq!(Conn::open(&mut broker).create_topic(&mut broker, TOPIC, partitions), 0);
    let mut clients = Clients::new(partitions);
    for life in 0..3 {
        for _ in 0..20 + broker.pick(80) {
            clients.step(&mut broker);
        }
        if life == 1 && broker.chance(30) {
            broker.stop();
            assert!(broker.has_stopped(), "it does not stop");
        } else {
            broker.crash_somehow();
            if broker.chance(20) {
                broker.begin();
                let us = broker.pick(40_000) as u64;
                broker.run_us(us);
                broker.crash_somehow();
            }
        }
        clients.are_cut_off();
        broker.start();
    }
    // whoever still waits for an answer gets it now
    clients.winding_up = true;
    for _ in 0..3_000 {
        if clients.unacked() == 0 {
            break;
        }
        clients.step(&mut broker);
    }
    assert_eq!(clients.unacked(), 0, "somebody gets no answer");
    finally(&mut broker, &mut clients.history, partitions);
    if let Err(broken) = check(&clients.history) {
        panic!("{broken:?}");
    }
    (broker.world.trace_hash(), clients.history.acked.len(), clients.history.read.len())
}

/// Lost if it fails: promises 1 to 4, for all that a client can see. Brokers of one core and of two are killed at any
/// moment, also while they start.
#[test]
fn a_whole_broker_survives_crashes_in_the_simulator() {
    let (mut acked, mut read, mut runs) = (0, 0, 0);
    for seed in seeds(0..110) {
        let (_, more_acked, more_read) = run(seed);
        (acked, read, runs) = (acked + more_acked, read + more_read, runs + 1);
    }
    assert!(acked > 100 * runs / 2 && read > 100 * runs / 2, "{acked} acknowledged, {read} read in {runs} runs");
}

/// Lost if it fails: a failure that was found can not be found again.
#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 500..503 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(500).0, run(502).0);
}

// ------------------------------------------------------------------------------------------------- the checker

/// Producer 0 is idempotent and sends 1, 2, 3; producer 1 is not and sends 11, 12. All into partition 0.
fn good() -> History {
    let mut history = History::default();
    for (value, producer, number) in [(1, 0, 0), (2, 0, 1), (3, 0, 2), (11, 1, 0), (12, 1, 1)] {
        history.sent.insert(value, Sent { partition: 0, producer, number, idempotent: producer == 0 });
    }
    history.finally.insert(0, vec![(0, 1), (1, 11), (2, 2), (3, 12), (4, 3)]);
    history.acked = vec![(1, 0), (11, 1), (12, 3), (2, 2)];
    history.read = vec![(0, 0, 1), (0, 1, 11), (0, 1, 11), (0, 2, 2)];
    history
}

/// Lost if it fails: whatever the broker does would pass.
#[test]
fn the_checker_takes_a_good_history_and_names_what_is_wrong_with_a_bad_one() {
    assert_eq!(check(&good()), Ok(()));
    let broken = |change: &dyn Fn(&mut History)| {
        let mut history = good();
        change(&mut history);
        check(&history).expect_err("it is not good any more")
    };
    let log = |records: &'static [(i64, u64)]| {
        move |history: &mut History| {
            history.finally.insert(0, records.to_vec());
        }
    };
    assert_eq!(broken(&log(&[(0, 1), (1, 11), (2, 2)])), Broken::Lost { value: 12, offset: 3 });
    assert_eq!(
        broken(&log(&[(0, 1), (1, 11), (2, 2), (3, 3), (4, 12)])),
        Broken::Moved { value: 12, acked: 3, found: 4 }
    );
    assert_eq!(broken(&log(&[(0, 1), (1, 11), (3, 2)])), Broken::Gap { partition: 0, after: 1, found: 3 });
    assert_eq!(broken(&log(&[(1, 1)])), Broken::Gap { partition: 0, after: -1, found: 1 });
    assert_eq!(broken(&log(&[(0, 1), (1, 99)])), Broken::Invented { partition: 0, offset: 1, value: 99 });
    assert_eq!(
        broken(&log(&[(0, 1), (1, 11), (2, 2), (3, 12), (4, 2)])),
        Broken::Duplicate { partition: 0, value: 2, offsets: (2, 4) }
    );
    assert_eq!(
        broken(&log(&[(0, 1), (1, 3)])),
        Broken::Disorder { partition: 0, producer: 0, number: 2, after: Some(0) }
    );
    assert_eq!(broken(&log(&[(0, 2)])), Broken::Disorder { partition: 0, producer: 0, number: 1, after: None });
    assert_eq!(
        broken(&log(&[(0, 1), (1, 12), (2, 2), (3, 11)])),
        Broken::Disorder { partition: 0, producer: 1, number: 0, after: Some(1) }
    );
    assert_eq!(
        broken(&|history| history.sent.get_mut(&11).unwrap().partition = 1),
        Broken::Invented { partition: 0, offset: 1, value: 11 }
    );
    assert_eq!(
        broken(&|history| history.read.push((0, 5, 12))),
        Broken::ReadAndLost { partition: 0, offset: 5, value: 12 }
    );
    assert_eq!(
        broken(&|history| history.read.push((0, 1, 2))),
        Broken::Changed { partition: 0, offset: 1, before: 11, after: 2 }
    );
    assert_eq!(
        broken(&|history| history.read.push((0, 4, 12))),
        Broken::Changed { partition: 0, offset: 4, before: 12, after: 3 }
    );
    // What is not acknowledged may be there or not, and a producer that is not idempotent promises no order for it.
    let mut history = good();
    history.acked.retain(|(value, _)| *value < 10);
    history.read.clear();
    history.finally.insert(0, vec![(0, 1), (1, 12), (2, 2), (3, 11)]);
    assert_eq!(check(&history), Ok(()));
}

// ------------------------------------------------------------------------------------------------- single promises

/// One connection on each core: the kernel (here: the seed) chooses, so until each has one.
fn one_conn_on_each_core(broker: &mut SimBroker) -> Vec<Conn> {
    let mut conns: Vec<Option<Conn>> = broker.cores().iter().map(|_| None).collect();
    while conns.iter().any(Option::is_none) {
        let before: Vec<u64> = opened(broker);
        let mut conn = Conn::open(broker);
        assert_eq!(conn.init_producer_id(broker).error_code, 0);
        let core = opened(broker).iter().zip(before).position(|(now, before)| *now > before).unwrap();
        conns[core] = Some(conn);
    }
    conns.into_iter().flatten().collect()
}

fn opened(broker: &SimBroker) -> Vec<u64> {
    broker.stats().iter().map(|stats| stats.counters.connections_total.load(Ordering::Relaxed)).collect()
}

fn batches_of_cores(broker: &SimBroker) -> Vec<u64> {
    broker.stats().iter().map(|stats| stats.counters.produce_batches_total.load(Ordering::Relaxed)).collect()
}

/// Lost if it fails: a client on the wrong core would be refused half of its partitions, or get answers in disorder.
#[test]
fn a_connection_on_one_core_serves_partitions_of_the_other() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 2, ..Shape::default() });
        let mut conns = one_conn_on_each_core(&mut broker);
        assert_eq!(conns[1].create_topic(&mut broker, TOPIC, 8), 0, "the meta shard is on core 0");
        for (n, conn) in conns.iter_mut().enumerate() {
            let before = batches_of_cores(&broker);
            assert_eq!(conn.topics(&mut broker), [(TOPIC.to_owned(), (0..8).collect::<Vec<_>>())]);
            // all at once: the answers come from both cores, and in the order of the requests
            for value in 0..40u64 {
                let bytes = batch(&[100 * n as u64 + value], 10, (-1, -1, -1));
                conn.send(&mut broker, PRODUCE, &produce(TOPIC, value as i32 % 8, &bytes));
            }
            let mut answers = Vec::new();
            for _ in 0..10_000 {
                broker.run_us(100);
                answers.extend(conn.answers(&mut broker));
                if conn.owed() == 0 {
                    break;
                }
            }
            for (value, (_, mut body)) in answers.into_iter().enumerate() {
                let part = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
                assert_eq!((part.error_code, part.base_offset), (0, (n * 5 + value / 8) as i64), "value {value}");
            }
            let after = batches_of_cores(&broker);
            assert_eq!([after[0] - before[0], after[1] - before[1]], [20, 20], "half of the partitions on each core");
        }
        for conn in &mut conns {
            for partition in 0..8 {
                let found = conn.read_all(&mut broker, TOPIC, partition);
                let expected: Vec<_> =
                    (0..2).flat_map(|n| (0..5).map(move |m| 100 * n + 8 * m + partition as u64)).collect();
                assert_eq!(found.iter().map(|(_, value)| *value).collect::<Vec<_>>(), expected);
            }
        }
        // who waits on one core hears of what comes in through the other
        let [first, second] = &mut conns[..] else { unreachable!("two cores") };
        for partition in 0..8 {
            first.send(&mut broker, FETCH, &fetch(TOPIC, partition, 10, 20_000, 1_000));
            broker.run_ms(50);
            assert!(first.answers(&mut broker).is_empty());
            assert_eq!(second.produce(&mut broker, TOPIC, partition, &batch(&[7], 0, (-1, -1, -1))), (0, 10));
            broker.run_ms(100);
            let (_, mut body) = first.answers(&mut broker).pop().expect("it is woken, and not by its time");
            let found = fetched(FetchResponse::decode(&mut body, FETCH).unwrap());
            assert_eq!(records(&found.records.unwrap(), 10), [(10, 7)]);
        }
    }
}

/// Lost if it fails: a topic, or the promise that no two producers have one id.
#[test]
fn topics_and_producer_ids_survive_restarts() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 1 + seed as usize % 2, ..Shape::default() });
        let mut ids = std::collections::BTreeSet::new();
        for life in 0..4 {
            for mut conn in one_conn_on_each_core(&mut broker) {
                for _ in 0..3 {
                    let answer = conn.init_producer_id(&mut broker);
                    assert!(ids.insert(answer.producer_id.0), "{} was given out before", answer.producer_id.0);
                }
            }
            let mut conn = Conn::open(&mut broker);
            assert_eq!(conn.create_topic(&mut broker, &format!("t{life}"), 1 + life), 0);
            assert_eq!(conn.create_topic(&mut broker, "t0", 1), 36, "it exists");
            broker.crash_somehow();
            broker.start();
            let mut conn = Conn::open(&mut broker);
            let expected: Vec<_> = (0..=life).map(|n| (format!("t{n}"), (0..=n).collect::<Vec<_>>())).collect();
            assert_eq!(conn.topics(&mut broker), expected);
        }
    }
}

/// Lost if it fails: a topic made anew under an old name would show the records of the old one, or one core would go on
/// serving what another has deleted.
#[test]
fn the_partitions_of_a_deleted_topic_vanish_on_all_cores() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 2, ..Shape::default() });
        let mut conns = one_conn_on_each_core(&mut broker);
        assert_eq!(conns[0].create_topic(&mut broker, TOPIC, 4), 0);
        for partition in 0..4 {
            assert_eq!(conns[1].produce(&mut broker, TOPIC, partition, &batch(&[1, 2], 0, (5, 0, 0))), (0, 0));
        }
        let held = |broker: &SimBroker| -> Vec<u64> {
            broker.stats().iter().map(|stats| stats.counters.partitions.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(held(&broker), [2, 2]);
        // somebody waits for each partition
        let mut waiting = Conn::open(&mut broker);
        waiting.send(&mut broker, FETCH, &fetch(TOPIC, seed as i32 % 4, 2, 20_000, 1_000));
        broker.run_ms(50);
        assert_eq!(conns[1].delete_topic(&mut broker, TOPIC), 0);
        assert_eq!(held(&broker), [0, 0]);
        broker.run_ms(100);
        let (_, mut body) = waiting.answers(&mut broker).pop().expect("it does not wait for what is gone");
        assert_eq!(fetched(FetchResponse::decode(&mut body, FETCH).unwrap()).error_code, 3);
        for crash in [false, true] {
            if crash {
                broker.crash_somehow();
                broker.start();
                conns = one_conn_on_each_core(&mut broker);
            }
            for conn in &mut conns {
                assert!(conn.topics(&mut broker).is_empty());
                for partition in 0..4 {
                    assert_eq!(conn.produce(&mut broker, TOPIC, partition, &batch(&[3], 0, (5, 0, 2))).0, 3);
                    assert_eq!(conn.fetch(&mut broker, TOPIC, partition, 0).error_code, 3);
                }
            }
        }
        assert_eq!(conns[0].create_topic(&mut broker, TOPIC, 4), 0);
        for partition in 0..4 {
            assert!(conns[1].read_all(&mut broker, TOPIC, partition).is_empty());
            assert_eq!(conns[1].produce(&mut broker, TOPIC, partition, &batch(&[9], 0, (5, 0, 0))), (0, 0));
        }
        broker.crash_somehow();
        broker.start();
        let mut conn = Conn::open(&mut broker);
        for partition in 0..4 {
            assert_eq!(conn.read_all(&mut broker, TOPIC, partition), [(0, 9)]);
        }
    }
}

/// Lost if it fails: answers to what was done, whenever a broker is stopped for an upgrade.
#[test]
fn a_graceful_stop_answers_what_is_in_flight() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 1 + seed as usize % 2, ..Shape::default() });
        let mut conn = Conn::open(&mut broker);
        assert_eq!(conn.create_topic(&mut broker, TOPIC, 2), 0);
        let mut sleeping = Conn::open(&mut broker);
        sleeping.send(&mut broker, FETCH, &fetch(TOPIC, 0, 0, 600_000, 1_000));
        broker.run_ms(30);
        let mut producers: Vec<_> = (0..4).map(|_| Conn::open(&mut broker)).collect();
        for conn in &mut producers {
            assert_eq!(conn.init_producer_id(&mut broker).error_code, 0);
        }
        for (n, conn) in producers.iter_mut().enumerate() {
            for value in 0..5 {
                let bytes = batch(&[10 * n as u64 + value], 100, (-1, -1, -1));
                conn.send(&mut broker, PRODUCE, &produce(TOPIC, 1, &bytes));
            }
        }
        let us = broker.pick(2_000) as u64;
        broker.run_us(us);
        broker.stop();
        let before = broker.world.now();
        assert!(broker.has_stopped(), "it does not stop");
        let took = broker.world.now().since(before);
        assert!(took < std::time::Duration::from_secs(2), "it took {took:?}");
        broker.run_ms(100);
        assert_eq!(sleeping.answers(&mut broker).len(), 1, "a long poll is answered, not cut off");
        let mut acked = Vec::new();
        for (n, conn) in producers.iter_mut().enumerate() {
            // a whole number of answers, from the first on
            for (value, (_, mut body)) in conn.answers(&mut broker).into_iter().enumerate() {
                let part = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
                assert_eq!(part.error_code, 0);
                acked.push((part.base_offset, 10 * n as u64 + value as u64));
            }
            assert_eq!(broker.world.closed(conn.id), Some(CloseReason::Peer));
        }
        broker.start();
        let stored = Conn::open(&mut broker).read_all(&mut broker, TOPIC, 1);
        for record in &acked {
            assert!(stored.contains(record), "{record:?} was acknowledged");
        }
        assert_eq!(stored.len(), acked.len(), "what was begun was answered");
    }
}

/// Lost if it fails: the operator's hours. A disk that hangs fails nothing, so somebody else has to say so.
#[test]
fn a_disk_that_hangs_is_said_and_so_is_its_end() {
    let mut broker = SimBroker::new(1, Shape::default());
    let mut conn = Conn::open(&mut broker);
    assert_eq!(conn.create_topic(&mut broker, TOPIC, 1), 0);
    let said = |broker: &SimBroker| broker.said().borrow().disk_hangs;
    broker.run_ms(20_000);
    assert!(!said(&broker), "nothing waits for the disk");
    broker.world.disk(broker.cores()[0]).hang(true);
    conn.send(&mut broker, PRODUCE, &produce(TOPIC, 0, &batch(&[1], 100, (-1, -1, -1))));
    broker.run_ms(4_000);
    assert!(!said(&broker), "it may just be slow");
    broker.run_ms(2_000);
    assert!(said(&broker));
    broker.world.disk(broker.cores()[0]).hang(false);
    broker.run_ms(1_000);
    assert!(!said(&broker), "it goes on");
    assert_eq!(conn.answers(&mut broker).len(), 1, "and so does what waited");
}

/// Lost if it fails: one client that never reads takes the memory, or the turn, of all others.
#[test]
fn a_client_that_never_reads_is_bounded_and_the_others_go_on() {
    for seed in seeds(0..2) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 1 + seed as usize % 2, ..Shape::default() });
        let mut conn = Conn::open(&mut broker);
        assert_eq!(conn.create_topic(&mut broker, TOPIC, 2), 0);
        for value in 0..10 {
            assert_eq!(conn.produce(&mut broker, TOPIC, 0, &batch(&[value], 50_000, (-1, -1, -1))).0, 0);
        }
        let mut deaf = Conn::open(&mut broker);
        broker.world.set_reading(deaf.id, false);
        for _ in 0..25 {
            deaf.send(&mut broker, FETCH, &fetch(TOPIC, 0, 0, 0, 300_000));
        }
        let mut most = 0;
        for value in 0..100 {
            assert_eq!(conn.produce(&mut broker, TOPIC, 1, &batch(&[value], 100, (-1, -1, -1))).0, 0);
            let held: u64 =
                broker.stats().iter().map(|s| s.counters.memory_clients_bytes.load(Ordering::Relaxed)).sum();
            most = most.max(held);
        }
        assert!(most < 2_500_000, "{most} bytes are held for a client that takes nothing");
        assert_eq!(deaf.answers(&mut broker).len(), 0);
        broker.world.set_reading(deaf.id, true);
        let mut answers = 0;
        for _ in 0..2_000 {
            broker.run_ms(5);
            answers += deaf.answers(&mut broker).len();
            if answers == 25 {
                break;
            }
        }
        assert_eq!(answers, 25, "when it reads again, it gets everything");
    }
}

/// On one core or two, with little memory for clients: partition 0 of two has eight batches of 500 KB.
fn with_large_batches(seed: u64, clients_bytes_max: usize) -> (SimBroker, Conn) {
    let shape = Shape { cores: 1 + seed as usize % 2, clients_bytes_max, segment_bytes: 1 << 20, ..Shape::default() };
    let mut broker = SimBroker::new(seed, shape);
    let mut conn = Conn::open(&mut broker);
    assert_eq!(conn.create_topic(&mut broker, TOPIC, 2), 0);
    for value in 0..8 {
        assert_eq!(conn.produce(&mut broker, TOPIC, 0, &batch(&[value], 500_000, (-1, -1, -1))).0, 0);
    }
    (broker, conn)
}

/// Lost if it fails: the time of everybody on that core, to a few clients that ask for much and read nothing. A reader
/// that is only slow is closed for their sake last, and not at all once there is memory again.
#[test]
fn answers_that_nobody_takes_hold_up_nobody_else_and_are_bounded() {
    for seed in seeds(0..4) {
        let _seed = Seed(seed);
        let budget = 4 << 20;
        let (mut broker, mut conn) = with_large_batches(seed, budget);
        let mut slow = Conn::open(&mut broker);
        broker.world.set_reading(slow.id, false);
        slow.send(&mut broker, FETCH, &fetch(TOPIC, 1, 0, 0, 1_000));
        let mut deaf: Vec<Conn> = Vec::new();
        let (mut slowest, mut most) = (std::time::Duration::ZERO, 0);
        for value in 0..400 {
            if value % 10 == 0 {
                let mut one = Conn::open(&mut broker);
                broker.world.set_reading(one.id, false);
                one.send(&mut broker, FETCH, &fetch(TOPIC, 0, 0, 0, 55 << 20));
                deaf.push(one);
            }
            let begun = broker.world.now();
            assert_eq!(conn.produce(&mut broker, TOPIC, 1, &batch(&[value], 100, (-1, -1, -1))).0, 0);
            slowest = slowest.max(broker.world.now().since(begun));
            let held = broker.stats().iter().map(|s| s.counters.memory_clients_bytes.load(Ordering::Relaxed)).max();
            most = most.max(held.unwrap());
            broker.run_ms(20);
        }
        assert!(slowest < std::time::Duration::from_millis(200), "another client waited for {slowest:?}");
        assert!(most < budget as u64, "{most} bytes are held for clients that take nothing");
        // readers get their turn: whoever was in the way is gone
        let begun = broker.world.now();
        assert_eq!(conn.fetch(&mut broker, TOPIC, 0, 0).error_code, 0);
        assert!(broker.world.now().since(begun) < std::time::Duration::from_secs(2));
        let open: u64 = broker.stats().iter().map(|s| s.counters.connections.load(Ordering::Relaxed)).sum();
        assert!((2..20).contains(&open), "{open} of {} are still there", deaf.len() + 2);
        broker.world.set_reading(slow.id, true);
        broker.run_ms(100);
        assert_eq!(slow.answers(&mut broker).len(), 1, "it was slow, and in nobody's way");
    }
}

/// Lost if it fails: memory. Fetches that begin in one moment each saw the same room, and together took many times of
/// it.
#[test]
fn fetches_that_begin_together_share_the_room_for_answers() {
    for seed in seeds(0..4) {
        let _seed = Seed(seed);
        let budget: u64 = 6 << 20;
        let (mut broker, _) = with_large_batches(seed, budget as usize);
        // nothing is in memory then: reads take their time
        broker.stop();
        assert!(broker.has_stopped());
        broker.start();
        let mut readers: Vec<Conn> = (0..60).map(|_| Conn::open(&mut broker)).collect();
        for reader in &mut readers {
            reader.send(&mut broker, FETCH, &fetch(TOPIC, 0, 0, 0, 55 << 20));
            broker.world.set_reading(reader.id, false);
        }
        let mut most = 0;
        for _ in 0..400 {
            broker.run_us(50);
            let held = broker.stats().iter().map(|s| s.counters.memory_clients_bytes.load(Ordering::Relaxed)).max();
            most = most.max(held.unwrap());
        }
        assert!((1 << 20..budget).contains(&most), "{most} bytes are held for fetches");
        let mut answered = 0;
        for _ in 0..2_000 {
            for reader in &mut readers {
                broker.world.set_reading(reader.id, true);
                answered += reader.answers(&mut broker).len();
            }
            if answered == 60 {
                break;
            }
            broker.run_ms(1);
        }
        assert_eq!(answered, 60, "each is answered when those before it took theirs");
    }
}

/// Lost if it fails: the time of everybody on that core, to senders of half requests that never end, a byte at a time.
#[test]
fn senders_of_half_requests_do_not_hold_up_small_ones_and_are_closed_for_large_ones() {
    for seed in seeds(0..4) {
        let _seed = Seed(seed);
        let shape = Shape {
            cores: 1 + seed as usize % 2,
            clients_bytes_max: 32 << 20,
            segment_bytes: 2 << 20,
            ..Shape::default()
        };
        let mut broker = SimBroker::new(seed, shape);
        let mut conn = Conn::open(&mut broker);
        assert_eq!(conn.create_topic(&mut broker, TOPIC, 2), 0);
        let mut slow: Vec<Conn> = (0..60).map(|_| Conn::open(&mut broker)).collect();
        for sender in &mut slow {
            broker.world.send(sender.id, &(900_000_i32).to_be_bytes());
            broker.world.send(sender.id, &vec![0; 400_000]);
        }
        broker.run_ms(50);
        let mut slowest = std::time::Duration::ZERO;
        for value in 0..200 {
            slow.iter().for_each(|sender| broker.world.send(sender.id, &[0]));
            let begun = broker.world.now();
            assert_eq!(conn.produce(&mut broker, TOPIC, 1, &batch(&[value], 1_000, (-1, -1, -1))).0, 0);
            slowest = slowest.max(broker.world.now().since(begun));
            broker.run_ms(20);
        }
        assert!(slowest < std::time::Duration::from_millis(100), "a small request waited for {slowest:?}");
        let mut large = Conn::open(&mut broker);
        let begun = broker.world.now();
        assert_eq!(large.produce(&mut broker, TOPIC, 0, &batch(&[7], 900_000, (-1, -1, -1))).0, 0);
        let took = broker.world.now().since(begun);
        assert!(took < std::time::Duration::from_secs(40), "a large request waited for {took:?}");
        let gone = slow.iter().filter(|sender| broker.world.closed(sender.id).is_some()).count();
        assert!(gone > 0, "nobody was closed");
    }
}

/// Lost if it fails: memory, to fetches of many partitions that wait as long as they like; or all other fetches.
#[test]
fn long_polls_that_hold_too_much_are_answered_early() {
    for seed in seeds(0..2) {
        let _seed = Seed(seed);
        let shape = Shape { cores: 1 + seed as usize % 2, clients_bytes_max: 100_000, ..Shape::default() };
        let mut broker = SimBroker::new(seed, shape);
        let mut conn = Conn::open(&mut broker);
        assert_eq!(conn.create_topic(&mut broker, TOPIC, 2), 0);
        let mut sleepers: Vec<Conn> = (0..600).map(|_| Conn::open(&mut broker)).collect();
        for sleeper in &mut sleepers {
            sleeper.send(&mut broker, FETCH, &fetch(TOPIC, 1, 0, i32::MAX, 1_000));
        }
        for value in 0..20 {
            assert_eq!(conn.produce(&mut broker, TOPIC, 0, &batch(&[value], 10, (-1, -1, -1))).0, 0);
            assert_eq!(conn.fetch(&mut broker, TOPIC, 0, value as i64).error_code, 0);
        }
        let answered: usize = sleepers.iter_mut().map(|sleeper| sleeper.answers(&mut broker).len()).sum();
        assert!((1..600).contains(&answered), "{answered} of 600 were answered early");
    }
}

/// Lost if it fails: records of a producer that sends and closes, as those with acks=0 do. Its requests and its end
/// may be seen in the same turn; another broker takes what it has received.
#[test]
fn whole_requests_of_a_client_that_closes_at_once_take_effect() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut broker = SimBroker::new(seed, Shape { cores: 1 + seed as usize % 2, ..Shape::default() });
        let mut conn = Conn::open(&mut broker);
        assert_eq!(conn.create_topic(&mut broker, TOPIC, 3), 0);
        for value in 0..20 {
            let acks = -i16::from(value % 2 == 0);
            let bytes = batch(&[value], 100, (-1, -1, -1));
            let mut brief = Conn::open(&mut broker);
            broker.run_ms(10);
            brief.send(&mut broker, PRODUCE, &produce(TOPIC, 0, &bytes).with_acks(acks));
            broker.world.close(brief.id);
        }
        // more than a connection may have begun, and half of one more
        let mut brief = Conn::open(&mut broker);
        broker.run_ms(10);
        for value in 0..200 {
            let bytes = batch(&[value], 0, (-1, -1, -1));
            brief.send(&mut broker, PRODUCE, &produce(TOPIC, 1, &bytes).with_acks(0));
        }
        broker.world.send(brief.id, &[0, 0, 1, 0, 0, 0, 0, 9]);
        broker.world.close(brief.id);
        broker.run_ms(2_000);
        let mut values: Vec<u64> = conn.read_all(&mut broker, TOPIC, 0).into_iter().map(|(_, value)| value).collect();
        values.sort_unstable();
        assert_eq!(values, (0..20).collect::<Vec<_>>());
        let values: Vec<u64> = conn.read_all(&mut broker, TOPIC, 1).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, (0..200).collect::<Vec<_>>(), "all of them, in their order");
        assert!(broker.stats().iter().all(|s| s.counters.memory_clients_bytes.load(Ordering::Relaxed) == 0));
    }
}

/// Lost if it fails: a broker that is over its memory would stop for good, and not only go slowly.
#[test]
fn over_the_memory_budget_requests_go_through_one_at_a_time() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let shape = Shape { cores: 1 + seed as usize % 2, clients_bytes_max: 40_000, ..Shape::default() };
        let mut broker = SimBroker::new(seed, shape);
        assert_eq!(Conn::open(&mut broker).create_topic(&mut broker, TOPIC, 2), 0);
        // somebody waits for data, for longer than anybody has patience
        let mut sleeping = Conn::open(&mut broker);
        sleeping.send(&mut broker, FETCH, &fetch(TOPIC, 1, 0, i32::MAX, 1_000));
        let mut conns: Vec<_> = (0..12).map(|_| Conn::open(&mut broker)).collect();
        for round in 0..3 {
            for (n, conn) in conns.iter_mut().enumerate() {
                let bytes = batch(&[100 * round + n as u64], 30_000, (-1, -1, -1));
                conn.send(&mut broker, PRODUCE, &produce(TOPIC, 0, &bytes));
            }
        }
        let mut answers: VecDeque<i16> = VecDeque::new();
        for _ in 0..40_000 {
            broker.run_us(500);
            for conn in &mut conns {
                for (_, mut body) in conn.answers(&mut broker) {
                    answers.push_back(produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap()).error_code);
                }
            }
            if answers.len() == 36 {
                break;
            }
        }
        assert_eq!(answers, vec![0; 36]);
        assert_eq!(Conn::open(&mut broker).read_all(&mut broker, TOPIC, 0).len(), 36);
    }
}
