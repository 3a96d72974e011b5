//! What a core does when a budget of its memory (docs/adr/0006-memory.md), or of a turn's time, is spent: the pump,
//! with a disk that does at once what it is told.

#![allow(clippy::unwrap_used, reason = "a test ends where its helpers do not hold")]

mod partition_kit;

use bytes::Bytes;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::{DiskDone, DiskOk, DiskOp, FileId, Volume};
use camus_engine::limits::{
    PACK_SLOW_BYTES_MAX, PARKED_PRODUCES_MAX, WAL_CHUNK_BYTES, WAL_GROUP_BESIDE_BYTES, WAL_SPARE_SEGMENTS_MAX,
};
use camus_engine::partition::batch::Codec;
use camus_engine::shard::api::{Answer, Ask, BatchRules, Packing, Refusal, Route, ShardTable, Ticket};
use camus_engine::shard::core::{Core, CoreConfig, Out};
use camus_engine::stats::CoreStats;
use camus_engine::types::{CoreId, Mono, Offset, PartitionId, ShardId, WallMs};
use camus_engine::wal::WalConfig;
use partition_kit::{Batch, NOW, Rec};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const CORE: CoreId = CoreId(0);
const TO: Route = Route { core: CORE, shard: ShardId(1), partition: PartitionId(7) };
const POOL_CHUNKS: usize = 12;
/// Of a value that fills a chunk of the log.
const LARGE: usize = 1_000_000;

/// An empty directory.
struct Empty;

impl Volume for Empty {
    fn files(&self) -> io::Result<Vec<(FileId, u64)>> {
        Ok(Vec::new())
    }
    fn read(&self, _: FileId, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn sync(&self, _: FileId) -> io::Result<()> {
        Ok(())
    }
    fn path(&self, file: FileId) -> String {
        format!("wal/{:06}.wal", file.0)
    }
}

/// One core with one partition.
struct Host {
    core: Core,
    out: Out,
    now: Mono,
    asked: u64,
    answers: BTreeMap<u64, Answer>,
}

impl Host {
    fn new(index_bytes_max: usize) -> Host {
        let wal_bytes_max = POOL_CHUNKS * WAL_CHUNK_BYTES;
        let config = CoreConfig {
            core: CORE,
            raft_id: 1,
            voters: vec![1],
            wal: WalConfig {
                cluster: [7; 16],
                core: CORE,
                segment_bytes: 64 << 20,
                segments_max: 8,
                spares_max: WAL_SPARE_SEGMENTS_MAX,
                cache_bytes: wal_bytes_max / 2,
                beside_bytes: WAL_GROUP_BESIDE_BYTES,
            },
            wal_bytes_max,
            reads_bytes_max: 8 * 1024 * 1024,
            index_bytes_max,
        };
        let table = Arc::new(ShardTable::new(vec![CORE; 2]));
        let pool = ChunkPool::new(wal_bytes_max);
        let stats = Arc::new(CoreStats::default());
        let (core, _) = Core::recover(config, table, stats, &Empty, pool, 1).expect("an empty log");
        let mut host = Host { core, out: Out::default(), now: Mono(1), asked: 0, answers: BTreeMap::new() };
        host.core.start(host.now, &mut host.out);
        host.core.set_partitions(host.now, &[(TO.shard, TO.partition)], &mut host.out);
        host.settle();
        assert!(host.core.is_serving());
        host
    }

    /// Turns, and what they ask of the disk, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.core.turn_end(self.now, WallMs(NOW), &mut self.out);
            for (op, asked) in std::mem::take(&mut self.out.disk) {
                let ok = match asked {
                    DiskOp::Write { .. } => DiskOk::Written,
                    DiskOp::Prepare { .. } => DiskOk::Prepared,
                    DiskOp::Remove { .. } => DiskOk::Removed,
                    DiskOp::Read { .. } => panic!("all that is asked for is in memory"),
                };
                self.core.disk_done(self.now, DiskDone { op, result: Ok(ok) }, &mut self.out);
            }
        }
        for (ticket, answer) in self.out.answers.drain(..) {
            self.answers.insert(ticket.request, answer);
        }
    }

    fn ask(&mut self, ask: Ask) -> u64 {
        self.asked += 1;
        let ticket = Ticket { core: CORE, request: self.asked, part: 0 };
        self.core.ask(self.now, WallMs(NOW), ticket, ask, &mut self.out);
        self.asked
    }

    fn produce(&mut self, value_bytes: usize) -> u64 {
        let record = Rec { value: Some(vec![7; value_bytes]), timestamp: NOW, ..Rec::default() };
        let batch = Batch::of(vec![record]).bytes();
        self.ask(Ask::Produce { to: TO, batch, rules: BatchRules::default() })
    }

    fn answered(&mut self, request: u64) -> Option<Result<Offset, Refusal>> {
        match self.answers.get(&request) {
            Some(Answer::Produced(result)) => Some(result.clone().map(|p| p.base_offset)),
            None => None,
            Some(other) => panic!("a produce was answered with {other:?}"),
        }
    }

    fn produced(&mut self, value_bytes: usize) -> Result<Offset, Refusal> {
        let request = self.produce(value_bytes);
        self.settle();
        self.answered(request).expect("it is answered")
    }

    fn read(&mut self, offset: Offset) -> Bytes {
        let (bytes_max, at_least_one) = (1, true);
        let request = self.ask(Ask::Read { from: TO, offset, bytes_max, at_least_one, epoch: None, watch: false });
        self.settle();
        match self.answers.remove(&request) {
            Some(Answer::Read(Ok(mut done))) => done.batches.remove(0),
            other => panic!("a read was answered with {other:?}"),
        }
    }

    fn held_bytes(&self) -> usize {
        self.core.wal().memory_bytes()
    }

    fn after(&mut self, time: Duration) {
        self.now = self.now + time;
        self.settle();
    }
}

/// Lost if it fails: the log's buffers, to readers that take their time; or, with copies always, the speed of all.
#[test]
fn readers_get_copies_only_when_the_buffers_of_the_log_run_short() {
    let mut host = Host::new(usize::MAX);
    let mut slow = Vec::new();
    loop {
        let offset = host.produced(LARGE).expect("there is room");
        if host.held_bytes() > POOL_CHUNKS * WAL_CHUNK_BYTES / 4 * 3 {
            let held = host.held_bytes();
            let (one, two) = (host.read(offset), host.read(offset));
            assert_eq!(one, two);
            assert_ne!(one.as_ptr(), two.as_ptr(), "a slow reader holds a buffer of the log");
            drop((one, two));
            assert_eq!(host.held_bytes(), held);
            break;
        }
        let (one, two) = (host.read(offset), host.read(offset));
        assert_eq!(one.as_ptr(), two.as_ptr(), "it was copied though there is room");
        slow.push(one);
        assert!(slow.len() < POOL_CHUNKS, "what readers hold is not counted");
    }
}

/// Lost if it fails: memory, or batches, or their order: what has no room in the log waits, so many and no more.
#[test]
fn batches_without_room_wait_in_order_and_too_many_are_refused() {
    let mut host = Host::new(usize::MAX);
    // No turn in between, so the log's buffers are spent before the disk is asked for anything.
    let large: Vec<u64> = (0..=POOL_CHUNKS).map(|_| host.produce(LARGE)).collect();
    let small: Vec<u64> = (0..PARKED_PRODUCES_MAX).map(|_| host.produce(10)).collect();
    let one_too_many = host.produce(10);
    assert!(host.held_bytes() <= POOL_CHUNKS * WAL_CHUNK_BYTES);
    host.settle();
    assert_eq!(host.answered(one_too_many), Some(Err(Refusal::Busy)), "the queue has no end");
    let answers = large.iter().chain(&small).map(|request| host.answered(*request).expect("it is answered"));
    let (taken, refused): (Vec<_>, Vec<_>) = answers.collect::<Vec<_>>().into_iter().partition(Result::is_ok);
    assert!(refused.len() < POOL_CHUNKS && refused.iter().all(|r| *r == Err(Refusal::Busy)), "{refused:?}");
    let offsets = taken.into_iter().map(|offset| offset.expect("only these").0);
    assert!(offsets.eq(0..(large.len() + small.len() - refused.len()) as i64), "not in their order");
}

/// Lost if it fails: memory, to small batches without end: 32 bytes of index each, for as long as they are kept.
#[test]
fn an_index_over_its_budget_refuses_produce_until_records_are_deleted() {
    let mut host = Host::new(10_000);
    let mut appended = 0;
    let refusal = loop {
        match host.produced(10) {
            Ok(_) => appended += 1,
            Err(refusal) => break refusal,
        }
        assert!(appended < 10_000, "the index is not weighed");
        if appended % 100 == 0 {
            host.after(Duration::from_secs(1));
        }
    };
    assert_eq!(refusal, Refusal::Busy);
    assert!(!host.read(Offset(0)).is_empty(), "fetch goes on");
    host.ask(Ask::Trim { to: TO, offset: None });
    host.settle();
    host.after(Duration::from_secs(1));
    assert_eq!(host.produced(10), Ok(Offset(appended)));
}

/// Lost if it fails: a percent of a core, and the sleep of its cores, to every broker that has nothing to do; or time,
/// when something waits for a turn that nobody brings.
#[test]
fn an_idle_core_rests_and_one_on_which_something_waits_does_not() {
    let mut host = Host::new(usize::MAX);
    host.produced(10).expect("there is room");
    host.after(Duration::from_secs(1));
    let rest = |host: &Host| host.core.next_deadline().expect("it goes on").since(host.now);
    assert!(rest(&host) >= Duration::from_millis(400), "it turns again after {:?}", rest(&host));
    assert!(rest(&host) <= Duration::from_secs(1), "nobody sees that it lives for {:?}", rest(&host));
    (0..=POOL_CHUNKS).for_each(|_| {
        host.produce(LARGE);
    });
    assert!(host.core.waits_since().is_some());
    assert!(rest(&host) <= Duration::from_millis(10), "what waits is looked after in {:?}", rest(&host));
}

/// One request of a few KiB would hold a core for a minute, and everybody whom it serves; in a cluster it would cost
/// the core its leadership.
#[test]
fn batches_that_are_packed_anew_share_the_core_with_others() {
    let mut host = Host::new(1 << 20);
    let packing = Some(Packing { codec: Codec::Gzip, level: 1 });
    let rules = BatchRules { packing, ..BatchRules::default() };
    let record = |n: i64| Rec { value: Some(vec![7; PACK_SLOW_BYTES_MAX - 200]), timestamp: NOW + n, ..Rec::default() };
    let asked: Vec<u64> = (0..5)
        .map(|n| {
            let batch = Batch { codec: 4, ..Batch::of(vec![record(n)]) }.bytes();
            host.ask(Ask::Produce { to: TO, batch, rules })
        })
        .collect();
    let mut turns = 0;
    while host.core.waits_since().is_some() {
        assert!(turns < 10, "each turn takes one of them");
        let waiting = host.core.next_deadline();
        if turns > 0 {
            assert_eq!(waiting, Some(Mono(0)), "the next turn is due at once");
        }
        let (bytes_max, at_least_one) = (1, true);
        let read = Ask::Read { from: TO, offset: Offset(0), bytes_max, at_least_one, epoch: None, watch: false };
        let read = host.ask(read);
        host.core.turn_end(host.now, WallMs(NOW), &mut host.out);
        assert!(host.out.answers.iter().any(|(ticket, _)| ticket.request == read), "who reads is served meanwhile");
        host.out.answers.retain(|(ticket, _)| ticket.request != read);
        turns += 1;
    }
    assert!(turns >= 3, "no turn takes all of them, and not {turns}");
    host.settle();
    assert_ne!(host.core.next_deadline(), Some(Mono(0)), "nothing is left to do");
    let offsets: Vec<_> = asked.into_iter().map(|request| host.answered(request).expect("it is answered")).collect();
    assert_eq!(offsets, (0..5).map(|n| Ok(Offset(n))).collect::<Vec<_>>(), "in the order in which they came");
}
