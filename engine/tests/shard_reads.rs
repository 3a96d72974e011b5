//! Reads of what is not in memory (`shard/reads.rs`), in the simulator: what is answered is what was written, whoever
//! reads what beside whom, and however little memory there is for it. `CAMUS_TEST_SEED=<seed>` runs one seed alone.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod partition_kit;
mod shard_kit;

use bytes::Bytes;
use camus_engine::limits::{BLOCK_BYTES, DISK_READ_BYTES_IN_FLIGHT_MAX, DISK_READ_BYTES_MAX};
use camus_engine::shard::api::{Answer, Ask, OffsetQuery, ReadDone, Refusal, Route};
use camus_engine::types::Offset;
use partition_kit::{Batch, Rec};
use shard_kit::{Bench, Seed, Shape, Stored, rest_of, seeds};
use std::time::Duration;

/// A batch of one record that no other is like.
fn batch(tag: u64, value_bytes: usize) -> Bytes {
    let mut value = tag.to_le_bytes().to_vec();
    value.resize(value_bytes.max(8), tag as u8);
    Batch::of(vec![Rec { value: Some(value), timestamp: 1_800_000_000_000, ..Rec::default() }]).bytes()
}

fn ask(bench: &mut Bench, from: Route, offset: usize, bytes_max: u32) -> u64 {
    let offset = Offset(offset as i64);
    bench.ask(Ask::Read { from, offset, bytes_max, at_least_one: true, epoch: None, watch: false })
}

/// Answered is what was written from there on, without a hole, within the limit but for the first. Returns how many.
fn check(read: ReadDone, written: &[Bytes], offset: usize, bytes_max: u32) -> usize {
    let bytes: usize = read.batches.iter().map(Bytes::len).sum();
    assert!(bytes <= bytes_max as usize || read.batches.len() == 1, "{bytes} bytes of {bytes_max}");
    assert_eq!(read.batches.is_empty(), offset == written.len());
    let count = read.batches.len();
    for (n, got) in read.batches.into_iter().enumerate() {
        let got = Stored::of(got);
        assert_eq!(got.base, (offset + n) as i64);
        assert_eq!(got.rest, rest_of(&written[offset + n]), "batch {}", offset + n);
    }
    count
}

/// Lost if it fails: promise 1 for whoever comes late. Partitions lie among each other in the log, are read at once by
/// many, in order and not, with much memory and hardly any, and now and then a read fails.
#[test]
fn whoever_reads_what_at_once_gets_what_was_written_and_memory_is_bounded() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let reads_bytes = [0, 64 * 1024, 1024 * 1024, 8 * 1024 * 1024][seed as usize % 4];
        let cache_bytes = [0, 0, 256 * 1024][seed as usize % 3];
        let (segment_bytes, segments_max) = (1024 * 1024, 24);
        let shape = Shape { segment_bytes, segments_max, cache_bytes, reads_bytes, ..Shape::default() };
        let mut bench = Bench::new(seed, shape);
        let routes: Vec<Route> = (0..5).map(|n| bench.add(1 + n % 2, 1 + u64::from(n))).collect();
        let mut written: Vec<Vec<Bytes>> = vec![vec![]; routes.len()];
        let mut largest = 0;
        for tag in 0..400 {
            let of = bench.world.rng().between(0, routes.len() as u64 - 1) as usize;
            let most = if bench.world.rng().chance(5) { 90_000 } else { 3_000 };
            let value_bytes = bench.world.rng().between(1, most) as usize;
            let sent = batch(tag, value_bytes);
            largest = largest.max(sent.len());
            bench.send(routes[of], &sent);
            written[of].push(sent);
        }
        for (route, written) in routes.iter().zip(&written) {
            let board = bench.board.clone();
            assert!(bench.world.run_until(shard_kit::PATIENCE, |_| board.borrow().answers.len() >= 400));
            assert_eq!(bench.find(*route, OffsetQuery::Latest).offset.0, written.len() as i64);
        }
        // readers that go on where they were, each with its own appetite, and some that look here and there
        let mut readers: Vec<(usize, usize, u32)> = (0..8)
            .map(|n| (n % routes.len(), 0, [1, 5_000, 60_000, 1_000_000][bench.world.rng().between(0, 3) as usize]))
            .collect();
        for _ in 0..12 {
            if bench.world.rng().chance(10) {
                bench.disk().fail_reads(1);
            }
            bench.disk().slow_down(Duration::from_micros(bench.world.rng().between(0, 20_000)));
            let mut asked = vec![];
            for (n, (of, at, bytes_max)) in readers.iter_mut().enumerate() {
                if bench.world.rng().chance(10) {
                    *at = bench.world.rng().between(0, written[*of].len() as u64) as usize;
                }
                asked.push((n, ask(&mut bench, routes[*of], *at, *bytes_max)));
                if bench.world.rng().chance(50) {
                    let us = bench.world.rng().between(0, 5_000);
                    bench.world.run_for(Duration::from_micros(us));
                }
            }
            for (n, request) in asked {
                let (of, at, bytes_max) = &mut readers[n];
                match bench.wait(request) {
                    Answer::Read(Ok(read)) => *at += check(read, &written[*of], *at, *bytes_max),
                    Answer::Read(Err(Refusal::Storage)) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        bench.disk().fail_reads(0);
        for (route, written) in routes.iter().zip(&written) {
            let all: Vec<Bytes> = bench.read_all(*route).into_iter().map(|stored| stored.rest).collect();
            assert_eq!(all, written.iter().map(rest_of).collect::<Vec<_>>());
        }
        let board = bench.board.borrow();
        let one = DISK_READ_BYTES_MAX.max(largest + 2 * BLOCK_BYTES);
        assert!(board.reading_bytes_most as usize <= DISK_READ_BYTES_IN_FLIGHT_MAX.max(one));
        // What answers hold is beyond what is read next by one read.
        let most = board.reads_bytes_most;
        assert!(most <= reads_bytes + one || reads_bytes < one, "{most} bytes of {reads_bytes}");
    }
}

/// Lost if it fails: flat latency. Consumers that come late would fill the device's queue, and each acknowledgement
/// would wait behind all of their reads.
#[test]
fn cold_consumers_leave_the_disk_to_produce() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let (segment_bytes, segments_max, reads_bytes) = (8 * 1024 * 1024, 12, 64 * 1024 * 1024);
        let shape = Shape { segment_bytes, segments_max, cache_bytes: 0, reads_bytes, ..Shape::default() };
        let mut bench = Bench::new(seed, shape);
        let (p, q) = (bench.add(1, 1), bench.add(2, 2));
        let written: Vec<Bytes> = (0..400).map(|tag| batch(tag, 60_000)).collect();
        written.chunks(20).for_each(|some| {
            let sent: Vec<_> = some.iter().map(|batch| bench.send(p, batch)).collect();
            sent.into_iter().for_each(|request| assert!(matches!(bench.wait(request), Answer::Produced(Ok(_)))));
        });
        bench.disk().slow_down(Duration::from_millis(10));
        let readers: Vec<u64> = (0..80).map(|n| ask(&mut bench, p, n * 5, 300_000)).collect();
        bench.world.run_for(Duration::from_millis(1));
        assert_eq!(bench.produce(q, &batch(1, 1_000)).unwrap().base_offset, Offset(0));
        let answered = readers.iter().filter(|reader| bench.answer(**reader).is_some()).count();
        assert!(answered < readers.len(), "the reads were over before the produce: nothing was tested");
        for (n, reader) in readers.into_iter().enumerate() {
            let Answer::Read(Ok(read)) = bench.wait(reader) else { panic!("reader {n}") };
            assert_eq!(check(read, &written, n * 5, 300_000), 4);
        }
        let most = bench.board.borrow().reading_bytes_most as usize;
        assert!(most <= DISK_READ_BYTES_IN_FLIGHT_MAX, "{most} bytes were being read at once");
        assert!(most > DISK_READ_BYTES_IN_FLIGHT_MAX / 2, "{most} bytes keep no device busy");
    }
}

/// Lost if it fails: the bandwidth of the disk. Each answer would wait for reads that begin when it is asked for.
#[test]
fn who_reads_in_order_finds_the_next_answer_read() {
    let (segment_bytes, segments_max, reads_bytes) = (8 * 1024 * 1024, 12, 64 * 1024 * 1024);
    let shape = Shape { segment_bytes, segments_max, cache_bytes: 0, reads_bytes, ..Shape::default() };
    let mut bench = Bench::new(1, shape);
    let (p, q) = (bench.add(1, 1), bench.add(2, 2));
    let written: Vec<Bytes> = (0..300).map(|tag| batch(tag, 30_000)).collect();
    written.chunks(20).for_each(|some| {
        let sent: Vec<_> = some.iter().flat_map(|batch| [bench.send(p, batch), bench.send(q, batch)]).collect();
        sent.into_iter().for_each(|request| assert!(matches!(bench.wait(request), Answer::Produced(Ok(_)))));
    });
    let slow = Duration::from_millis(10);
    bench.disk().slow_down(slow);
    let (mut at, mut waited) = (0, vec![]);
    while at < written.len() {
        let before = bench.world.now();
        let request = ask(&mut bench, p, at, 400_000);
        let Answer::Read(Ok(read)) = bench.wait(request) else { panic!("offset {at}") };
        waited.push(bench.world.now().since(before) >= slow);
        at += check(read, &written, at, 400_000);
        // the consumer works on what it got
        bench.world.run_for(2 * slow);
    }
    assert!(waited[0], "the first one had to be read");
    assert!(waited.len() > 20 && waited[3..].iter().all(|waited| !waited), "{waited:?}");
    // Another partition that lies among it was read with it, as far as it is kept.
    let reads = bench.board.borrow().reads_from_disk;
    assert!(reads <= 40, "{reads} reads of 1 MiB for 19 MiB");
}

/// Lost if it fails: the time from a produce to its consumer. What wakes it would come a turn later, or at a tick, or
/// before the producer's own answer.
#[test]
fn who_waits_for_records_is_told_in_the_turn_that_acknowledges_them() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let mut bench = Bench::new(seed, Shape::default());
        let p = bench.add(1, 1);
        for n in 0..20 {
            let (offset, bytes_max) = (Offset(n), 1_000_000);
            let watch =
                bench.ask(Ask::Read { from: p, offset, bytes_max, at_least_one: true, epoch: None, watch: true });
            assert!(matches!(bench.wait(watch), Answer::Read(Ok(read)) if read.batches.is_empty()));
            let ms = bench.world.rng().between(0, 30);
            bench.run_ms(ms);
            let produce = bench.send(p, &batch(n as u64, 1_000));
            assert!(matches!(bench.wait(produce), Answer::Produced(Ok(_))));
            let board = bench.board.borrow();
            let [.., (acknowledged, first), (woken, second)] = board.told[..] else { panic!("both are told") };
            assert_eq!((first, second, acknowledged), (produce, watch, woken));
        }
    }
}
