//! The pump of one core (`shard::core::Core`) in the simulator: the same code as in production, over a disk that loses
//! power, fills up, fails and rots. A seed that fails is printed; `CAMUS_TEST_SEED=<seed>` runs it alone.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod partition_kit;
mod shard_kit;

use bytes::Bytes;
use camus_engine::io::sim::Crash;
use camus_engine::io::{FileId, Volume};
use camus_engine::partition::batch::{BatchHead, Codec};
use camus_engine::shard::api::{
    ActiveProducer, Answer, Ask, BatchRules, OffsetQuery, Packing, Producing, Refusal, Route,
};
use camus_engine::shard::core::RecoverError;
use camus_engine::types::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, WallMs};
use camus_engine::wal::{NoSpaceWhy, WalError};
use shard_kit::{Bench, NOW, Seed, Shape, Stored, batch, rest_of, rests, seeds};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

fn plain(tag: u64, count: usize, value_bytes: usize) -> Bytes {
    batch(tag, count, value_bytes, (-1, -1, -1))
}

// ------------------------------------------------------------------------------------------------- no faults

/// Lost if it fails: everything. What is acknowledged is read back at its offset, and cut off where it is cut off.
#[test]
fn what_is_produced_is_read_found_and_trimmed() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape::default());
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        let batches: Vec<_> = (0..30).map(|n| plain(n, 1 + n as usize % 3, 100)).collect();
        let mut next = 0;
        for (n, sent) in batches.iter().enumerate() {
            let produced = bench.produce(p, sent).unwrap();
            assert_eq!((produced.base_offset, produced.log_start), (Offset(next), Offset(0)));
            next += 1 + n as i64 % 3;
        }
        let stored = bench.read_all(p);
        assert_eq!(rests(&stored), batches.iter().map(rest_of).collect::<Vec<_>>());
        assert!(stored.iter().all(|s| s.epoch == 1));
        assert!(bench.read_all(q).is_empty(), "another partition has none of it");
        assert_eq!(bench.find(p, OffsetQuery::Latest).offset, Offset(next));
        // batch 7 begins behind 1+2+3+1+2+3+1 records
        let found = bench.find(p, OffsetQuery::AtOrAfter(camus_engine::types::WallMs(NOW + 7)));
        assert_eq!((found.offset, found.timestamp.0, found.epoch), (Offset(13), NOW + 7, LeaderEpoch(1)));
        assert_eq!(bench.find(p, OffsetQuery::MaxTimestamp).timestamp.0, NOW + 29);

        assert_eq!(bench.trim(p, Some(14)), Ok(Offset(14)));
        assert_eq!(bench.trim(p, Some(3)), Ok(Offset(14)), "a log start never goes back");
        let out_of_range = Refusal::OffsetOutOfRange { high_watermark: Offset(next), log_start: Offset(14) };
        assert_eq!(bench.trim(p, Some(next + 1)), Err(out_of_range.clone()));
        assert_eq!(bench.read(p, 13, 1000).unwrap_err(), out_of_range);
        assert_eq!(bench.read_all(p)[0].base, 13, "the batch that straddles the log start stays whole");
        let unknown = Route { partition: camus_engine::types::PartitionId(99), ..p };
        assert_eq!(bench.produce(unknown, &batches[0]), Err(Refusal::UnknownPartition));
        bench.delete(p);
        assert_eq!(bench.produce(p, &batches[0]), Err(Refusal::UnknownPartition));
        assert_eq!(bench.read(p, 14, 1000).unwrap_err(), Refusal::UnknownPartition);
        assert_eq!(bench.produce(q, &batches[0]).unwrap().base_offset, Offset(0));
    }
}

/// Lost if it fails: a consumer that waits for ever, or one that is told of the same batch again and again.
#[test]
fn a_watch_fires_once() {
    let mut bench = Bench::new(1, Shape::default());
    let (p, q) = (bench.add(1, 1), bench.add(2, 2));
    let watch = |bench: &mut Bench, from| {
        let request = bench.ask(Ask::Read {
            from,
            offset: Offset(0),
            bytes_max: 0,
            at_least_one: false,
            epoch: None,
            watch: true,
        });
        bench.wait(request);
        request
    };
    let (first, other) = (watch(&mut bench, p), watch(&mut bench, q));
    assert_eq!(bench.moved(first), 0);
    bench.produce(p, &plain(1, 1, 10)).unwrap();
    assert_eq!((bench.moved(first), bench.moved(other)), (1, 0));
    bench.produce(p, &plain(2, 1, 10)).unwrap();
    assert_eq!(bench.moved(first), 1, "a watch is for one time");
    let again = watch(&mut bench, p);
    bench.ask(Ask::Unwatch { request: again });
    bench.produce(p, &plain(3, 1, 10)).unwrap();
    assert_eq!(bench.moved(again), 0, "who has left is not called");
    let trimmed = watch(&mut bench, p);
    bench.trim(p, Some(1)).unwrap();
    assert_eq!(bench.moved(trimmed), 1);
    bench.delete(q);
    assert_eq!(bench.moved(other), 1, "who waits for a partition that is deleted is told");
}

/// Lost if it fails: the room that a topic with a codec was to save, or the retry of a batch that is not the same bytes
/// any more.
#[test]
fn a_batch_is_stored_in_the_codec_of_its_topic_and_its_retry_is_one() {
    let mut bench = Bench::new(1, Shape::default());
    let p = bench.add(1, 1);
    let rules = BatchRules { packing: Some(Packing { codec: Codec::Lz4, level: 9 }), ..BatchRules::default() };
    let sent = batch(1, 3, 1000, (7, 0, 0));
    for _ in 0..2 {
        let request = bench.ask(Ask::Produce { to: p, batch: sent.clone(), rules });
        let Answer::Produced(Ok(produced)) = bench.wait(request) else { panic!("it is taken") };
        assert_eq!(produced.base_offset, Offset(0));
    }
    let read = bench.read(p, 0, 1 << 20).unwrap();
    let [stored] = &read.batches[..] else { panic!("one batch") };
    assert_eq!(BatchHead::parse(stored).unwrap().codec(), Some(Codec::Lz4));
    assert!(stored.len() < sent.len());
}

/// Lost if it fails: what an operator goes by who asks what fills the disk, and who still writes. It holds after a
/// deletion, and after a restart.
#[test]
fn a_core_tells_what_each_partition_takes_and_who_wrote_to_it() {
    let mut bench = Bench::new(1, Shape::default());
    let (p, q) = (bench.add(1, 1), bench.add(2, 2));
    let sent = [batch(1, 3, 10, (7, 0, 0)), batch(2, 1, 10, (5, 2, 0)), batch(3, 2, 10, (7, 0, 3))];
    sent.iter().for_each(|batch| assert!(bench.produce(p, batch).is_ok()));
    let other = plain(4, 1, 50);
    bench.produce(q, &other).unwrap();

    let producing = |bench: &mut Bench, of, producers_max| {
        let request = bench.ask(Ask::Producers { of, producers_max });
        let Answer::Producers(told) = bench.wait(request) else { panic!("another answer") };
        told
    };
    let active = |id, epoch, last, time| ActiveProducer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        last_sequence: Sequence(last),
        last_timestamp: WallMs(time),
    };
    let holdings = |bench: &mut Bench| {
        let request = bench.ask(Ask::Holdings { core: p.core });
        let Answer::Holdings(Ok(told)) = bench.wait(request) else { panic!("another answer") };
        told.iter().map(|holding| (holding.partition, holding.bytes)).collect::<Vec<_>>()
    };
    let bytes = |batches: &[Bytes]| batches.iter().map(|batch| batch.len() as u64).sum::<u64>();
    let both = vec![active(5, 2, 0, NOW + 2), active(7, 0, 4, NOW + 3)];
    assert_eq!(producing(&mut bench, p, 2), Ok(Producing { total: 2, active: both }));
    assert_eq!(producing(&mut bench, p, 1), Ok(Producing { total: 2, active: vec![] }), "more than were wanted");
    assert_eq!(producing(&mut bench, q, 2), Ok(Producing { total: 0, active: vec![] }));
    assert_eq!(holdings(&mut bench), [(p.partition, bytes(&sent)), (q.partition, bytes(std::slice::from_ref(&other)))]);

    bench.trim(p, Some(5)).unwrap();
    for _ in 0..2 {
        // who wrote is known longer than what was written
        let left = vec![active(5, 2, 0, -1), active(7, 0, 4, NOW + 3)];
        assert_eq!(producing(&mut bench, p, 2), Ok(Producing { total: 2, active: left }));
        assert_eq!(holdings(&mut bench)[0], (p.partition, bytes(&sent[2..])), "one straddles the log start");
        bench.crash_somehow();
        bench.start();
    }
    let unknown = Route { partition: camus_engine::types::PartitionId(99), ..p };
    assert_eq!(producing(&mut bench, unknown, 2), Err(Refusal::UnknownPartition));
}

/// Lost if it fails: the answer to whatever was asked while the log waited for its next segment.
#[test]
fn what_is_asked_while_a_segment_is_awaited_is_answered() {
    for seed in seeds(0..40) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segment_bytes: 64 * 1024, segments_max: 64, ..Shape::default() });
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        bench.produce(q, &plain(1, 10, 10)).unwrap();
        bench.disk().slow_down(Duration::from_millis(20));
        let mut requests = Vec::new();
        for n in 0..80 {
            let value_bytes = bench.world.rng().between(8, 12_000) as usize;
            requests.push(bench.send(p, &plain(2 + n, 1, value_bytes)));
            if n % 8 == 0 {
                requests.push(bench.ask(Ask::Trim { to: q, offset: Some(Offset(n as i64 / 8)) }));
            }
            if bench.world.rng().chance(30) {
                bench.run_ms(2);
            }
        }
        for request in requests {
            match bench.wait(request) {
                Answer::Produced(produced) => assert!(produced.is_ok(), "{produced:?}"),
                Answer::Trimmed(trimmed) => assert!(trimmed.is_ok() || trimmed == Err(Refusal::Busy), "{trimmed:?}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bench.read_all(p).len(), 80);
    }
}

// ------------------------------------------------------------------------------------------------- crashes

/// A batch that was sent.
struct Sent {
    bytes: Bytes,
    to: usize,
    count: i32,
    /// Index of its producer, and its first sequence.
    by: Option<(usize, i32)>,
    request: Option<u64>,
    acked: Option<i64>,
}

/// An idempotent producer of one partition, as a client is one: at most five in flight, retries in order.
struct Idempotent {
    id: i64,
    to: usize,
    next_sequence: i32,
    /// Into `Crowd::sent`, in order of their sequences.
    batches: Vec<usize>,
}

impl Idempotent {
    fn unacked(&self, sent: &[Sent]) -> Vec<usize> {
        self.batches.iter().copied().filter(|n| sent[*n].acked.is_none()).collect()
    }
}

/// Producers, and everything that they ever sent.
struct Crowd {
    routes: Vec<Route>,
    producers: Vec<Idempotent>,
    sent: Vec<Sent>,
    log_starts: Vec<i64>,
}

impl Crowd {
    fn new(bench: &mut Bench, partitions: u64) -> Crowd {
        let routes = (0..partitions).map(|n| bench.add(1 + n as u32 % 2, 10 + n)).collect();
        let producer = |n: u64| Idempotent {
            id: 100 + n as i64,
            to: (n % partitions) as usize,
            next_sequence: 0,
            batches: vec![],
        };
        let producers = (0..2 * partitions).map(producer).collect();
        Crowd { routes, producers, sent: vec![], log_starts: vec![0; partitions as usize] }
    }

    fn send(&mut self, bench: &mut Bench, by: Option<usize>, to: usize) {
        let count = bench.world.rng().between(1, 5) as i32;
        let value_bytes = if bench.world.rng().chance(10) { 9_000 } else { bench.world.rng().between(8, 600) };
        let tag = self.sent.len() as u64;
        let (by, producer) = match by {
            Some(n) => {
                let producer = &mut self.producers[n];
                let sequence = producer.next_sequence;
                producer.next_sequence += count;
                producer.batches.push(self.sent.len());
                (Some((n, sequence)), (producer.id, 0, sequence))
            }
            None => (None, (-1, -1, -1)),
        };
        let bytes = batch(tag, count as usize, value_bytes as usize, producer);
        let request = Some(bench.send(self.routes[to], &bytes));
        self.sent.push(Sent { bytes, to, count, by, request, acked: None });
    }

    /// Takes in what was answered.
    fn hear(&mut self, bench: &Bench) {
        for sent in self.sent.iter_mut().filter(|sent| sent.request.is_some()) {
            match bench.answer(sent.request.unwrap()) {
                Some(Answer::Produced(Ok(produced))) => {
                    let base = produced.base_offset.0;
                    assert!(sent.acked.is_none_or(|before| before == base), "a retry was answered with another offset");
                    sent.acked = Some(base);
                    sent.request = None;
                }
                Some(Answer::Produced(Err(refusal))) => panic!("refused: {refusal}"),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// Sends something, by somebody who may.
    fn work(&mut self, bench: &mut Bench) {
        self.hear(bench);
        match bench.world.rng().between(0, 9) {
            0..=1 => {
                let to = bench.world.rng().between(0, self.routes.len() as u64 - 1) as usize;
                self.send(bench, None, to);
            }
            2..=8 => {
                let n = bench.world.rng().between(0, self.producers.len() as u64 - 1) as usize;
                if self.producers[n].unacked(&self.sent).len() < 5 {
                    let to = self.producers[n].to;
                    self.send(bench, Some(n), to);
                }
            }
            _ => {
                // a client that has lost patience sends again what is in flight
                let n = bench.world.rng().between(0, self.producers.len() as u64 - 1) as usize;
                for again in self.producers[n].unacked(&self.sent) {
                    self.sent[again].request =
                        Some(bench.send(self.routes[self.sent[again].to], &self.sent[again].bytes));
                }
            }
        }
    }

    /// Every answer was lost with the crash: what is not acknowledged is sent again in order, and some of what is.
    fn retry_all(&mut self, bench: &mut Bench) {
        for sent in &mut self.sent {
            sent.request = None;
        }
        for n in 0..self.producers.len() {
            let acked: Vec<usize> =
                self.producers[n].batches.iter().copied().filter(|n| self.sent[*n].acked.is_some()).collect();
            let unacked = self.producers[n].unacked(&self.sent);
            // the window is five batches: what of it the unacknowledged ones leave
            let remembered = acked.iter().rev().take(5 - unacked.len());
            let again: Vec<usize> = remembered.rev().chain(&unacked).copied().collect();
            for again in again {
                let sent = &mut self.sent[again];
                sent.request = Some(bench.send(self.routes[sent.to], &sent.bytes));
            }
        }
        let asked: Vec<u64> = self.sent.iter().filter_map(|sent| sent.request).collect();
        for request in asked {
            bench.wait(request);
        }
        self.hear(bench);
        assert!(self.producers.iter().all(|producer| producer.unacked(&self.sent).is_empty()));
    }

    fn trim(&mut self, bench: &mut Bench, to: usize) {
        let end = bench.find(self.routes[to], OffsetQuery::Latest).offset.0;
        let at = bench.world.rng().between(self.log_starts[to] as u64, end as u64) as i64;
        let trimmed = bench.trim(self.routes[to], Some(at)).unwrap();
        assert_eq!(trimmed, Offset(at));
        self.log_starts[to] = at;
    }

    fn trim_all(&mut self, bench: &mut Bench, to: usize) {
        self.log_starts[to] = bench.trim(self.routes[to], None).unwrap().0;
    }

    /// Everything that the promises say of what can be read now.
    fn check(&mut self, bench: &mut Bench) {
        for to in 0..self.routes.len() {
            let start = bench.find(self.routes[to], OffsetQuery::Earliest).offset.0;
            assert!(start >= self.log_starts[to], "the log start went back to {start} from {}", self.log_starts[to]);
            self.log_starts[to] = start;
            let stored = bench.read_all(self.routes[to]);
            for pair in stored.windows(2) {
                assert_eq!(pair[0].end(), pair[1].base, "offsets are contiguous");
                assert!(pair[0].epoch <= pair[1].epoch, "the leader epoch never goes back");
            }
            let by_content: BTreeMap<Bytes, usize> =
                self.sent.iter().enumerate().map(|(n, sent)| (rest_of(&sent.bytes), n)).collect();
            let mut seen: BTreeMap<usize, i64> = BTreeMap::new();
            let mut sequences: BTreeMap<usize, i32> = BTreeMap::new();
            for batch in &stored {
                let n = *by_content.get(&batch.rest).expect("nobody sent this");
                let sent = &self.sent[n];
                assert_eq!((sent.to, i64::from(sent.count)), (to, batch.count));
                assert!(seen.insert(n, batch.base).is_none(), "batch {n} is in the log twice");
                if let Some((by, sequence)) = sent.by {
                    let before = sequences.insert(by, sequence + sent.count);
                    assert!(before.is_none_or(|before| before == sequence), "producer {by}: {before:?}, {sequence}");
                }
            }
            for (n, sent) in self.sent.iter().enumerate().filter(|(_, sent)| sent.to == to) {
                let Some(base) = sent.acked else { continue };
                if base + i64::from(sent.count) > start {
                    assert_eq!(seen.get(&n), Some(&base), "batch {n} was acknowledged and is not there");
                }
            }
        }
    }
}

/// Lost if it fails: promises 1 to 4. The core is killed at any moment, with any of its unfinished sectors written;
/// what was acknowledged is there once, in order, and a retry is answered with its offset.
#[test]
fn acknowledged_batches_survive_any_crash_once_and_in_order() {
    let mut acked = 0;
    for seed in seeds(0..60) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segment_bytes: 256 * 1024, segments_max: 64, ..Shape::default() });
        let mut crowd = Crowd::new(&mut bench, 3);
        let mut terms: Vec<_> = (0..3).map(|shard| bench.term(shard).unwrap()).collect();
        for life in 0..4 {
            for _ in 0..bench.world.rng().between(5, 60) {
                crowd.work(&mut bench);
                if bench.world.rng().chance(70) {
                    let us = bench.world.rng().between(0, 400);
                    bench.world.run_for(Duration::from_micros(us));
                }
                if life > 0 && bench.world.rng().chance(2) {
                    let to = bench.world.rng().between(0, 2) as usize;
                    crowd.trim(&mut bench, to);
                }
            }
            crowd.hear(&bench);
            bench.crash_somehow();
            if bench.world.rng().chance(30) {
                // it dies again before it serves
                bench.try_start().unwrap();
                let us = bench.world.rng().between(0, 30_000);
                bench.world.run_for(Duration::from_micros(us));
                bench.crash_somehow();
            }
            bench.start();
            for (shard, term) in terms.iter_mut().enumerate() {
                let now = bench.term(shard as u32).unwrap();
                assert!(now > *term, "shard {shard} leads in {now} after {term}");
                *term = now;
            }
            crowd.check(&mut bench);
            crowd.retry_all(&mut bench);
            crowd.check(&mut bench);
        }
        acked += crowd.sent.iter().filter(|sent| sent.acked.is_some()).count();
    }
    assert!(acked > 1_000 || seeds(0..60).end - seeds(0..60).start == 1, "{acked} batches say little");
}

// ------------------------------------------------------------------------------------------------- segments

const SMALL: Shape = Shape {
    segment_bytes: 64 * 1024,
    segments_max: 40,
    cache_bytes: 1024 * 1024,
    reads_bytes: 8 * 1024 * 1024,
    data_shards: 2,
};

/// Writes about as many segments as that.
fn fill(bench: &mut Bench, to: Route, segments: u64, tag: &mut u64) {
    let mut written = 0;
    while written < segments * SMALL.segment_bytes {
        *tag += 1;
        let batch = plain(*tag, 2, 2_000);
        written += batch.len().next_multiple_of(4096) as u64;
        bench.produce(to, &batch).unwrap();
    }
}

/// Lost if it fails: the disk, which fills up for good though everything on it was deleted.
#[test]
fn deleted_data_gives_its_segments_back() {
    for seed in seeds(0..6) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, SMALL);
        let idle = bench.add(2, 99);
        bench.produce(idle, &plain(0, 1, 10)).unwrap();
        bench.trim(idle, None).unwrap();
        let mut p = bench.add(1, 1);
        let (mut tag, mut most) = (0, 0);
        for round in 0..25 {
            fill(&mut bench, p, 5, &mut tag);
            if round % 2 == 0 {
                bench.trim(p, None).unwrap();
            } else {
                bench.delete(p);
                p = bench.add(1 + round % 4 / 2, 2 + u64::from(round));
            }
            bench.run_ms(3_000);
            most = most.max(bench.board.borrow().disk_bytes);
            if bench.world.rng().chance(30) {
                bench.crash_somehow();
                bench.start();
            }
        }
        let segments = most / SMALL.segment_bytes;
        assert!(segments <= 16, "125 segments were written and deleted five at a time, and {segments} are taken");
    }
}

/// Lost if it fails: what a producer may retry, where a log starts and ends, who leads since when, which partitions
/// there are: all that lies in segments that were given back.
#[test]
fn state_survives_the_loss_of_the_segments_it_came_from() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, SMALL);
        let (p, q, other) = (bench.add(1, 1), bench.add(2, 2), bench.add(1, 3));
        bench.add(2, 4);
        // q is written to and trimmed once, in the beginning; p keeps some of its data
        let retries: Vec<_> = (0..5).map(|n| batch(n, 2, 50, (7, 0, 2 * n as i32))).collect();
        for (n, retry) in retries.iter().enumerate() {
            assert_eq!(bench.produce(q, retry).unwrap().base_offset, Offset(2 * n as i64));
        }
        bench.crash(Crash::Process);
        bench.start();
        bench.produce(q, &batch(5, 1, 50, (8, 3, 0))).unwrap();
        bench.trim(q, Some(11)).unwrap();
        let mut tag = 100;
        for _ in 0..3 {
            fill(&mut bench, p, 4, &mut tag);
            bench.trim(p, None).unwrap();
            bench.run_ms(3_000);
        }
        bench.delete(other);
        bench.run_ms(3_000);
        let kept = plain(1_000_000, 3, 100);
        let kept_at = bench.produce(p, &kept).unwrap().base_offset;
        let meta = bench.board.borrow().meta.clone();
        let terms: Vec<_> = (0..3).map(|shard| bench.term(shard).unwrap().0).collect();

        for life in 0..4 {
            bench.crash_somehow();
            bench.start();
            assert!(bench.board.borrow().recovered_from_snapshot, "the front of the log is still there");
            assert_eq!(bench.board.borrow().meta, meta);
            for (shard, term) in terms.iter().enumerate() {
                assert_eq!(bench.term(shard as u32).unwrap().0, term + 1 + life, "shard {shard}");
            }
            let earliest = |bench: &mut Bench, from| bench.find(from, OffsetQuery::Earliest).offset;
            let latest = |bench: &mut Bench, from| bench.find(from, OffsetQuery::Latest).offset;
            assert_eq!((earliest(&mut bench, q), latest(&mut bench, q)), (Offset(11), Offset(11)));
            assert_eq!((earliest(&mut bench, p), latest(&mut bench, p)), (kept_at, kept_at + 3));
            assert_eq!(rests(&bench.read_all(p)), [rest_of(&kept)]);
            for (n, retry) in retries.iter().enumerate() {
                assert_eq!(bench.produce(q, retry).unwrap().base_offset, Offset(2 * n as i64), "retry {n}");
            }
            let skipped = bench.produce(q, &batch(9, 1, 50, (7, 0, 20)));
            assert!(matches!(skipped, Err(Refusal::OutOfOrderSequence { .. })), "{skipped:?}");
            let fenced = bench.produce(q, &batch(9, 1, 50, (8, 2, 1)));
            assert!(matches!(fenced, Err(Refusal::OldProducerEpoch { .. })), "{fenced:?}");
            // the epochs of what is left
            let request = bench.ask(Ask::EpochEnd { from: p, epoch: LeaderEpoch(2), current: None });
            let Answer::EpochEnd(Ok(end)) = bench.wait(request) else { panic!("no epoch") };
            assert_eq!((end.epoch, end.end), (LeaderEpoch(2), kept_at + 3));
            let ms = bench.world.rng().between(0, 2_500);
            bench.run_ms(ms);
        }
        let next = bench.produce(q, &batch(10, 1, 50, (7, 0, 10))).unwrap();
        assert_eq!(next.base_offset, Offset(11));
    }
}

/// Lost if it fails: a core that does not start any more, or starts without something, because it died while segments
/// were given back, snapshots were written, or topics were deleted.
#[test]
fn a_crash_at_any_moment_of_giving_segments_back_loses_nothing() {
    let mut from_snapshots = 0;
    for seed in seeds(0..60) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segments_max: 400, ..SMALL });
        let mut crowd = Crowd::new(&mut bench, 3);
        let mut bulk = bench.add(1, 1000);
        let mut tag = 1 << 40;
        let (mut sequence, mut acked) = (0, VecDeque::new());
        for life in 0..6 {
            for _ in 0..bench.world.rng().between(1, 6) {
                let segments = bench.world.rng().between(0, 3);
                fill(&mut bench, bulk, segments, &mut tag);
                for _ in 0..bench.world.rng().between(0, 10) {
                    crowd.work(&mut bench);
                }
                let to = bench.world.rng().between(0, 2) as usize;
                match bench.world.rng().between(0, 5) {
                    0 => crowd.trim(&mut bench, to),
                    1 => (0..3).for_each(|to| crowd.trim_all(&mut bench, to)),
                    2 => {
                        bench.delete(bulk);
                        tag += 1;
                        bulk = bench.add(1 + tag as u32 % 2, 1000 + tag);
                        (sequence, acked) = (0, VecDeque::new());
                    }
                    _ => {
                        bench.trim(bulk, None).unwrap();
                    }
                }
                let batch = batch(tag << 8, 1, 20, (55, 0, sequence));
                sequence += 1;
                acked.push_back((batch.clone(), bench.produce(bulk, &batch).unwrap().base_offset));
                if acked.len() > 5 {
                    acked.pop_front();
                }
                let ms = bench.world.rng().between(0, 1_500);
                bench.run_ms(ms);
            }
            crowd.hear(&bench);
            let meta = bench.board.borrow().meta.clone();
            bench.crash_somehow();
            bench.start();
            from_snapshots += u64::from(bench.board.borrow().recovered_from_snapshot);
            assert_eq!(bench.board.borrow().meta, meta, "life {life}");
            crowd.check(&mut bench);
            crowd.retry_all(&mut bench);
            crowd.check(&mut bench);
            for (batch, offset) in &acked {
                assert_eq!(bench.produce(bulk, batch).unwrap().base_offset, *offset);
            }
        }
    }
    assert!(from_snapshots > 100 || seeds(0..60).end - seeds(0..60).start == 1, "{from_snapshots} say little");
}

// ------------------------------------------------------------------------------------------------- faults

/// Where on the disk the record with this tag lies: the file, and the byte of the tag.
fn place_of(bench: &Bench, tag: u64) -> (FileId, u64) {
    let volume = bench.disk().volume();
    for (file, len) in volume.files().unwrap() {
        let mut bytes = vec![0; len as usize];
        volume.read(file, 0, &mut bytes).unwrap();
        if let Some(at) = bytes.windows(8).position(|window| window == tag.to_le_bytes()) {
            return (file, at as u64);
        }
    }
    panic!("{tag} is nowhere");
}

const TAG: u64 = 0x1234_5678_9abc_0000;

/// Lost if it fails: a full disk would end in a broker that hangs, lies, dies, or has to be restarted.
#[test]
fn a_full_disk_refuses_produces_serves_reads_and_heals_by_itself() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, SMALL);
        let p = bench.add(1, 1);
        bench.produce(p, &plain(0, 1, 10)).unwrap();
        bench.run_ms(500);
        bench.disk().set_capacity(bench.board.borrow().disk_bytes);
        let (mut stored, mut refused) = (vec![rest_of(&plain(0, 1, 10))], 0);
        for n in 0..30 {
            let batches: Vec<_> = (0..8).map(|m| plain(1 + 8 * n + m, 1, 3_000)).collect();
            let requests: Vec<_> = batches.iter().map(|batch| bench.send(p, batch)).collect();
            for (request, batch) in requests.into_iter().zip(&batches) {
                match bench.wait(request) {
                    Answer::Produced(Ok(_)) => stored.push(rest_of(batch)),
                    Answer::Produced(Err(Refusal::NoSpace)) => refused += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(refused > 50, "{refused}: the disk is not full");
        assert_eq!(rests(&bench.read_all(p)), stored);
        assert!(bench.board.borrow().fatal.is_none());
        // a full disk is no reason not to start
        bench.crash_somehow();
        bench.start();
        assert_eq!(rests(&bench.read_all(p)), stored);
        bench.disk().set_capacity(u64::MAX);
        bench.run_ms(3_000);
        for n in 0..30 {
            bench.produce(p, &plain(1_000 + n, 1, 3_000)).unwrap();
        }
    }
}

/// Lost if it fails: a log that reached its limit would stay full, though everything in it was deleted.
#[test]
fn a_log_at_its_limit_takes_deletions_and_heals_by_them() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segments_max: 8, ..SMALL });
        let mut p = bench.add(1, 1);
        let mut tag = 0;
        for round in 0..6 {
            let mut requests = Vec::new();
            for _ in 0..200 {
                tag += 1;
                requests.push(bench.send(p, &plain(tag, 1, 3_000)));
            }
            let answers: Vec<_> = requests.into_iter().map(|request| bench.wait(request)).collect();
            let is_full = |answer: &Answer| matches!(answer, Answer::Produced(Err(Refusal::NoSpace)));
            assert!(answers.iter().any(is_full), "the log is not full");
            // each life takes a segment
            for _ in 0..bench.world.rng().between(0, 4) {
                bench.crash_somehow();
                bench.start();
            }
            if round % 2 == 0 {
                bench.trim(p, None).unwrap();
            } else {
                bench.delete(p);
                p = bench.add(1, 2 + round);
            }
            for _ in 0..bench.world.rng().between(0, 2) {
                bench.crash_somehow();
                bench.start();
            }
            bench.run_ms(5_000);
            bench.produce(p, &plain(tag << 20, 1, 3_000)).unwrap();
        }
    }
}

/// Lost if it fails: the first batch of a producer, if it is refused and the one behind it is taken for the first.
#[test]
fn a_first_batch_that_was_refused_is_due_before_those_behind_it() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segments_max: 8, ..SMALL });
        let (full, p) = (bench.add(1, 1), bench.add(1, 2));
        let mut tag = 0;
        while bench.produce(full, &plain(tag, 1, 3_000)).is_ok() {
            tag += 1;
        }
        let of = |sequence: i32| batch(1 << 40 | sequence as u64, 1, 3_000, (9, 0, sequence));
        assert_eq!(bench.produce(p, &of(0)).unwrap_err(), Refusal::NoSpace);
        bench.trim(full, None).unwrap();
        bench.run_ms(5_000);
        // those that were under way behind it
        for sequence in 1..5 {
            let refused = bench.produce(p, &of(sequence)).unwrap_err();
            assert!(matches!(refused, Refusal::OutOfOrderSequence { .. }), "{refused}");
        }
        for sequence in 0..5 {
            assert_eq!(bench.produce(p, &of(sequence)).unwrap().base_offset.0, i64::from(sequence));
        }
        // whom nothing is known of begins anywhere
        bench.produce(p, &batch(1 << 41, 1, 10, (10, 0, 77))).unwrap();
    }
}

/// Lost if it fails: a log at its limit whose reserve is spent on commits of offsets, and which takes no deletion then.
#[test]
fn at_the_limit_commands_that_free_nothing_leave_the_reserve_alone() {
    for seed in seeds(0..3) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { segments_max: 8, ..SMALL });
        let p = bench.add(1, 1);
        let mut tag = 0;
        loop {
            tag += 1;
            if bench.produce(p, &plain(tag, 1, 3_000)).is_err() {
                break;
            }
        }
        // many times what the reserve takes
        bench.flood(1, 100..40_100);
        bench.run_ms(2_000);
        let waiting = bench.commands_waiting();
        assert!(waiting > 0, "the log took commands beyond its limit");
        bench.trim(p, None).expect("the reserve is for this");
        bench.run_ms(2_000);
        assert!(bench.commands_waiting() < waiting, "what was deleted makes room");
    }
}

/// Lost if it fails: a broker at its limit that does not come back, or takes the disk beyond it restart by restart.
#[test]
fn at_the_limit_every_start_serves_and_takes_deletions_and_the_disk_holds() {
    for seed in seeds(0..3) {
        let _seed = Seed(seed);
        let shape = Shape { segment_bytes: 1024 * 1024, segments_max: 4, ..SMALL };
        let mut bench = Bench::new(seed, shape);
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        for n in 0..200 {
            bench.produce(q, &plain(n, 1, 10)).unwrap();
        }
        let (mut tag, mut stored) = (1_000, Vec::new());
        let space = |bench: &mut Bench| bench.world.driver(bench.core).expect("it runs").core().no_space_why();
        for life in 0..60 {
            for _ in 0..100 {
                tag += 1;
                let batch = plain(tag, 1, 100_000);
                match bench.produce(p, &batch) {
                    Ok(_) => stored.push(rest_of(&batch)),
                    Err(refusal) => {
                        assert_eq!(refusal, Refusal::NoSpace);
                        break;
                    }
                }
            }
            assert_eq!(space(&mut bench), Some(NoSpaceWhy::Limit), "readiness says what producers are told");
            assert!(bench.board.borrow().disk_bytes <= 6 << 20, "{} restarts", life);
            bench.trim(q, Some(life)).unwrap();
            let us = bench.world.rng().between(0, 600_000);
            bench.world.run_for(Duration::from_micros(us));
            bench.crash_somehow();
            bench.try_start().unwrap();
            let (core, mut told) = (bench.core, false);
            let serves = bench.world.run_until(Duration::from_secs(30), |world| {
                let core = world.driver(core).expect("it runs").core();
                told |= !core.is_serving() && !core.has_space();
                core.is_serving()
            });
            assert!(serves, "it does not serve");
            assert!(!told, "who waits for a start that comes would be told that it can not");
        }
        assert_eq!(rests(&bench.read_all(p)), stored);
        assert_eq!(bench.read_all(q)[0].base, 59);
        bench.trim(p, None).unwrap();
        bench.trim(q, None).unwrap();
        bench.run_ms(5_000);
        assert_eq!(space(&mut bench), None, "deletions bring it back");
        bench.produce(p, &plain(1 << 30, 1, 100_000)).unwrap();
        bench.run_ms(5_000);
        assert!(bench.board.borrow().disk_bytes <= 4 << 20, "and the disk gets back what was over the limit");
    }
}

/// Lost if it fails: promise 7. A write that failed would be acknowledged, or tried again into success.
#[test]
fn nothing_is_acknowledged_after_a_failed_write() {
    let mut lost_in_time = 0;
    for seed in seeds(0..40) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape::default());
        let p = bench.add(1, 1);
        let mut sent = Vec::new();
        for n in 0..20 {
            let batch = plain(n, 1, 200);
            sent.push((bench.send(p, &batch), batch));
            let us = bench.world.rng().between(0, 300);
            bench.world.run_for(Duration::from_micros(us));
        }
        bench.disk().fail_writes(1);
        for n in 20..40 {
            let batch = plain(n, 1, 200);
            sent.push((bench.send(p, &batch), batch));
            let us = bench.world.rng().between(0, 300);
            bench.world.run_for(Duration::from_micros(us));
        }
        bench.run_ms(60);
        assert!(bench.board.borrow().fatal.is_some(), "the process would go on");
        let core = bench.world.driver(bench.core).expect("it runs").core();
        assert_eq!(core.next_deadline(), None, "a deadline that has passed would keep the thread busy");
        assert_eq!((0..3).filter_map(|shard| bench.term(shard)).count(), 0, "nobody leads here any more");
        let acked = |bench: &Bench, request| match bench.answer(request) {
            Some(Answer::Produced(Ok(produced))) => Some(produced.base_offset.0),
            _ => None,
        };
        let acked: Vec<_> = sent.iter().map(|(request, batch)| (acked(&bench, *request), batch.clone())).collect();
        lost_in_time += acked.iter().filter(|(offset, _)| offset.is_none()).count();
        // what came after is refused, and not with a success
        for ask in [
            Ask::Produce { to: p, batch: plain(99, 1, 10), rules: BatchRules::default() },
            Ask::Trim { to: p, offset: Some(Offset(1)) },
        ] {
            let request = bench.ask(ask);
            let answer = bench.wait(request);
            let refused =
                matches!(answer, Answer::Produced(Err(Refusal::Storage)) | Answer::Trimmed(Err(Refusal::Storage)));
            assert!(refused, "{answer:?}");
        }
        bench.crash_somehow();
        bench.start();
        let stored = bench.read_all(p);
        for (offset, batch) in acked {
            let Some(offset) = offset else { continue };
            let found = stored.iter().find(|stored| stored.base == offset).map(|stored| &stored.rest);
            assert_eq!(found, Some(&rest_of(&batch)), "offset {offset} was acknowledged");
        }
    }
    assert!(lost_in_time > 0, "every write had ended before the fault");
}

/// Lost if it fails: promise 8. A consumer would get bytes that nobody wrote, or nothing of what is whole.
#[test]
fn a_batch_that_rots_is_refused_and_its_neighbours_are_served() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { cache_bytes: 0, ..Shape::default() });
        let (p, q) = (bench.add(1, 1), bench.add(1, 2));
        let batches: Vec<_> = (0..20).map(|n| plain(TAG + n, 1, 1_000)).collect();
        for batch in &batches {
            bench.produce(p, batch).unwrap();
            bench.produce(q, batch).unwrap();
        }
        let (file, at) = place_of(&bench, TAG + 7);
        bench.disk().rot(file, at + bench.world.rng().between(0, 900));
        assert_eq!(bench.read(p, 7, 10_000).unwrap_err(), Refusal::Storage);
        let before = bench.read(p, 0, 1_000_000).unwrap();
        assert_eq!(before.batches.len(), 7, "what is before it is served");
        let after = bench.read(p, 8, 1_000_000).unwrap();
        let after: Vec<_> = after.batches.into_iter().map(|batch| Stored::of(batch).rest).collect();
        assert_eq!(after, batches[8..].iter().map(rest_of).collect::<Vec<_>>());
        assert_eq!(bench.read_all(q).len(), 20, "another partition has nothing to do with it");
        assert!(bench.board.borrow().fatal.is_none(), "a read that fails is no reason to end");
        bench.produce(p, &plain(TAG + 100, 1, 10)).unwrap();
        // it was acknowledged: the core does not start as if nothing were
        bench.run_ms(1_000);
        bench.crash_somehow();
        let refused = bench.try_start();
        assert!(matches!(refused, Err(RecoverError::Wal(WalError::Damaged(_)))), "{refused:?}");
    }
}

/// Lost if it fails: a reader gets an error for good after one that passed, or a time query finds what is not there.
#[test]
fn a_read_that_fails_is_refused_once() {
    let mut bench = Bench::new(3, Shape { cache_bytes: 0, ..Shape::default() });
    let p = bench.add(1, 1);
    (0..10).for_each(|n| {
        bench.produce(p, &plain(n, 1, 1_000)).unwrap();
    });
    bench.disk().fail_reads(1);
    assert_eq!(bench.read(p, 3, 1_000).unwrap_err(), Refusal::Storage);
    assert_eq!(bench.read_all(p).len(), 10);
    bench.disk().fail_reads(1);
    let request = bench.ask(Ask::Find { from: p, what: OffsetQuery::MaxTimestamp, epoch: None });
    assert!(matches!(bench.wait(request), Answer::Found(Err(Refusal::Storage))));
    assert_eq!(bench.find(p, OffsetQuery::MaxTimestamp).offset, Offset(9));
}

/// Lost if it fails: promise 1, as soon as writes end in another order than they began.
#[test]
fn a_slow_disk_keeps_the_order() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape::default());
        let p = bench.add(1, 1);
        let batches: Vec<_> = (0..200).map(|n| batch(n, 1, 100, (9, 0, n as i32))).collect();
        let mut requests = Vec::new();
        for (n, batch) in batches.iter().enumerate() {
            let slow = bench.world.rng().between(0, 3);
            bench.disk().slow_down(Duration::from_millis(if n % 7 == 0 { 10 * slow } else { 0 }));
            requests.push(bench.send(p, batch));
            let us = bench.world.rng().between(0, 200);
            bench.world.run_for(Duration::from_micros(us));
            // nothing is visible before it is acknowledged, and what is acknowledged is visible
            let acked = requests.iter().take_while(|request| bench.answer(**request).is_some()).count() as i64;
            let latest = bench.find(p, OffsetQuery::Latest).offset.0;
            assert!(latest >= acked);
        }
        for (n, request) in requests.into_iter().enumerate() {
            let Answer::Produced(Ok(produced)) = bench.wait(request) else { panic!("batch {n}") };
            assert_eq!(produced.base_offset, Offset(n as i64));
        }
        assert_eq!(rests(&bench.read_all(p)), batches.iter().map(rest_of).collect::<Vec<_>>());
    }
}

/// Lost if it fails: a fetch that spans memory and disk would skip, repeat or reorder.
#[test]
fn a_read_takes_what_is_in_memory_from_there_and_the_rest_from_the_disk() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { cache_bytes: 128 * 1024, segments_max: 64, ..Shape::default() });
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        let batches: Vec<_> = (0..120).map(|n| plain(n, 2, 2_000)).collect();
        for (n, batch) in batches.iter().enumerate() {
            bench.produce(p, batch).unwrap();
            if n % 3 == 0 {
                bench.produce(q, &plain(1_000 + n as u64, 1, 500)).unwrap();
            }
        }
        let before = bench.board.borrow().reads_from_disk;
        let tail = bench.read(p, 230, u32::MAX).unwrap();
        assert_eq!((tail.batches.len(), bench.board.borrow().reads_from_disk), (5, before), "the tail is in memory");
        let all = bench.read(p, 0, u32::MAX).unwrap();
        let all: Vec<_> = all.batches.into_iter().map(|batch| Stored::of(batch).rest).collect();
        assert_eq!(all, batches.iter().map(rest_of).collect::<Vec<_>>());
        let reads = bench.board.borrow().reads_from_disk - before;
        assert!((1..=16).contains(&reads), "{reads} reads");
        // many at once wait for each other, and all come
        let requests: Vec<_> = (0..100)
            .map(|n| {
                let (offset, bytes_max) = (Offset(n * 2), 50_000);
                bench.ask(Ask::Read { from: p, offset, bytes_max, at_least_one: true, epoch: None, watch: false })
            })
            .collect();
        for (n, request) in requests.into_iter().enumerate() {
            let Answer::Read(Ok(read)) = bench.wait(request) else { panic!("read {n}") };
            assert_eq!(Stored::of(read.batches[0].clone()).base, n as i64 * 2);
        }
    }
}

/// Lost if it fails: the process dies, or a reader gets the bytes of another record, because the segment that is being
/// read was given back and used again.
#[test]
fn what_is_being_read_may_be_trimmed() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape { cache_bytes: 0, ..SMALL });
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        let mut tag = 0;
        for _ in 0..6 {
            let start = bench.find(p, OffsetQuery::Latest).offset.0;
            fill(&mut bench, p, 4, &mut tag);
            bench.disk().slow_down(Duration::from_millis(bench.world.rng().between(0, 1_500)));
            let end = bench.find(p, OffsetQuery::Latest).offset.0;
            let requests: Vec<_> = (0..60)
                .map(|_| {
                    let offset = bench.world.rng().between(start as u64, end as u64 - 1) as i64;
                    let (from, bytes_max) = (p, 3_000);
                    let offset_ = Offset(offset);
                    let ask =
                        Ask::Read { from, offset: offset_, bytes_max, at_least_one: true, epoch: None, watch: false };
                    (offset, bench.ask(ask))
                })
                .collect();
            bench.trim(p, None).unwrap();
            bench.run_ms(1_500);
            bench.disk().slow_down(Duration::ZERO);
            fill(&mut bench, q, 3, &mut tag);
            bench.trim(q, None).unwrap();
            for (offset, request) in requests {
                match bench.wait(request) {
                    Answer::Read(Ok(read)) => {
                        let first = Stored::of(read.batches[0].clone());
                        assert!(first.base <= offset && offset < first.end());
                    }
                    Answer::Read(Err(Refusal::OffsetOutOfRange { .. })) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Lost if it fails: the producers of a shard with more state than one record holds.
#[test]
fn a_snapshot_in_parts_is_one_state() {
    let mut bench = Bench::new(5, Shape { segment_bytes: 1024 * 1024, segments_max: 40, ..Shape::default() });
    let routes = [bench.add(1, 1), bench.add(1, 2)];
    let first = |n: u64| batch(n, 1, 8, (1 + n as i64, 0, 0));
    let mut offsets = Vec::new();
    for wave in 0..18 {
        let requests: Vec<_> =
            (0..1_000).map(|n| bench.send(routes[n as usize % 2], &first(wave * 1_000 + n))).collect();
        for request in requests {
            let Answer::Produced(Ok(produced)) = bench.wait(request) else { panic!("wave {wave}") };
            offsets.push(produced.base_offset);
        }
    }
    let bulk = bench.add(2, 3);
    let mut tag = 1 << 20;
    for _ in 0..5 {
        fill(&mut bench, bulk, 64, &mut tag);
        [bulk, routes[0], routes[1]].into_iter().for_each(|route| {
            bench.trim(route, None).unwrap();
        });
        bench.run_ms(3_000);
    }
    for _ in 0..2 {
        bench.crash(Crash::Power);
        bench.start();
        assert!(bench.board.borrow().recovered_from_snapshot, "the front of the log is still there");
        for n in (0..18_000).step_by(500) {
            let produced = bench.produce(routes[n as usize % 2], &first(n)).unwrap();
            assert_eq!(produced.base_offset, offsets[n as usize], "producer {n} is forgotten");
        }
    }
}
