//! One core's pump in the simulator: asked by a test, killed and started again on what its disk holds.
#![allow(dead_code, reason = "each test takes what it needs")]

use crate::partition_kit::{Batch, Rec};
use bytes::Bytes;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::sim::{Crash, SimDisk};
use camus_engine::io::{DiskOp, OpId};
use camus_engine::limits::{WAL_CHUNK_BYTES, WAL_SPARE_SEGMENTS_MAX};
use camus_engine::rt::sim::{SimCoreId, World};
use camus_engine::rt::{Driver, Event, Rt, Turn};
use camus_engine::shard::api::{
    Answer, Ask, BatchRules, Found, OffsetQuery, Produced, ReadDone, Refusal, Route, ShardTable, Ticket,
};
use camus_engine::shard::core::{Core, CoreConfig, Out, RecoverError};
use camus_engine::stats::CoreStats;
use camus_engine::types::{CoreId, Mono, Offset, PartitionId, ShardId, Term};
use camus_engine::wal::{WalConfig, WalError};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub const CORE: CoreId = CoreId(0);
pub const META: ShardId = ShardId(0);
/// Longer than anything takes that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The simulator's wall clock begins here.
pub const NOW: i64 = 1_800_000_000_000;

/// A batch that no other is like: `tag` is in its records. `producer`: id, epoch, first sequence.
pub fn batch(tag: u64, count: usize, value_bytes: usize, producer: (i64, i16, i32)) -> Bytes {
    let record = |n: usize| {
        let mut value = tag.to_le_bytes().to_vec();
        value.resize(value_bytes.max(8), n as u8);
        Rec { value: Some(value), timestamp: NOW + (tag % 100_000) as i64, ..Rec::default() }
    };
    let mut batch = Batch::of((0..count).map(record).collect());
    batch.producer = producer;
    batch.bytes()
}

pub fn rests(stored: &[Stored]) -> Vec<Bytes> {
    stored.iter().map(|s| s.rest.clone()).collect()
}

/// The seeds of a test: `CAMUS_TEST_SEED` alone, if it is set.
pub fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("CAMUS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => default,
    }
}

/// Says which seed failed when the test does.
pub struct Seed(pub u64);

impl Drop for Seed {
    #[allow(clippy::print_stderr, reason = "the test's own output is where its seed is looked for")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: run it alone with CAMUS_TEST_SEED={0}", self.0);
        }
    }
}

/// What the test asks and what it is answered: outlives the pump.
#[derive(Default)]
pub struct Board {
    asks: VecDeque<(Ticket, Ask)>,
    commands: VecDeque<Bytes>,
    pub answers: BTreeMap<u64, Vec<Answer>>,
    /// Whose answer came when, in order.
    pub told: Vec<(Mono, u64)>,
    pub fatal: Option<WalError>,
    /// The meta shard's state: which partition is where. A stand-in for the real one.
    pub meta: BTreeMap<PartitionId, ShardId>,
    /// Commands applied since the cluster exists.
    pub meta_applied: u64,
    pub recovered_from_snapshot: bool,
    pub reads_from_disk: u64,
    /// Reads that have no end yet, with their bytes; and the most that these, and what is held of reads, ever were.
    reading: BTreeMap<OpId, u64>,
    pub reading_bytes_most: u64,
    pub reads_bytes_most: usize,
    pub disk_bytes: u64,
}

/// The driver: the pump, and as much of a node as it needs.
pub struct Pump {
    core: Core,
    out: Out,
    board: Rc<RefCell<Board>>,
    leading: bool,
}

impl Pump {
    fn take_out(&mut self, rt: &mut dyn Rt) {
        loop {
            let mut board = self.board.borrow_mut();
            for (op, disk_op) in self.out.disk.drain(..) {
                if let DiskOp::Read { len, .. } = &disk_op {
                    board.reads_from_disk += 1;
                    board.reading.insert(op, u64::from(*len));
                    board.reading_bytes_most = board.reading_bytes_most.max(board.reading.values().sum());
                    board.reads_bytes_most = board.reads_bytes_most.max(self.core.reads_bytes());
                }
                rt.disk().submit(op, disk_op);
            }
            if let Some(fatal) = self.out.fatal.take() {
                board.fatal = Some(fatal);
            }
            for (ticket, answer) in self.out.answers.drain(..) {
                board.told.push((rt.now(), ticket.request));
                board.answers.entry(ticket.request).or_default().push(answer);
            }
            let mut changed = std::mem::take(&mut self.out.meta_leading);
            self.leading |= changed;
            for committed in self.out.meta.drain(..) {
                apply(&mut board, &committed.command);
                changed = true;
            }
            if std::mem::take(&mut self.out.meta_snapshot_wanted) {
                self.core.meta_snapshot(snapshot(&board));
            }
            if !changed || !self.leading {
                return;
            }
            let exist: Vec<_> = board.meta.iter().map(|(partition, shard)| (*shard, *partition)).collect();
            drop(board);
            self.core.set_partitions(rt.now(), &exist, &mut self.out);
        }
    }

    pub fn core(&self) -> &Core {
        &self.core
    }
}

/// `+` or `-`, the partition, the shard.
fn command(sign: u8, partition: PartitionId, shard: ShardId) -> Bytes {
    let mut command = vec![sign];
    command.extend(partition.0.to_le_bytes());
    command.extend(shard.0.to_le_bytes());
    command.into()
}

fn apply(board: &mut Board, command: &[u8]) {
    let partition = PartitionId(u64::from_le_bytes(command[1..9].try_into().unwrap()));
    let shard = ShardId(u32::from_le_bytes(command[9..13].try_into().unwrap()));
    match command[0] {
        b'+' => assert!(board.meta.insert(partition, shard).is_none(), "applied twice: {command:?}"),
        b'-' => assert!(board.meta.remove(&partition).is_some(), "applied twice: {command:?}"),
        other => panic!("{other} is no command"),
    }
    board.meta_applied += 1;
}

fn snapshot(board: &Board) -> Vec<u8> {
    let mut out = board.meta_applied.to_le_bytes().to_vec();
    board.meta.iter().for_each(|(partition, shard)| out.extend_from_slice(&command(b'+', *partition, *shard)));
    out
}

fn restore(board: &mut Board, bytes: &[u8]) {
    board.meta.clear();
    bytes[8..].chunks(13).for_each(|command| apply(board, command));
    board.meta_applied = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    board.recovered_from_snapshot = true;
}

impl Driver for Pump {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.core.start(rt.now(), &mut self.out);
        self.take_out(rt);
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Disk(done) => {
                self.board.borrow_mut().reading.remove(&done.op);
                self.core.disk_done(rt.now(), done, &mut self.out);
            }
            Event::Woken => {}
            other => panic!("{other:?}: there is no network here"),
        }
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        loop {
            let next = self.board.borrow_mut().asks.pop_front();
            let Some((ticket, ask)) = next else { break };
            self.core.ask(rt.now(), rt.wall(), ticket, ask, &mut self.out);
        }
        loop {
            let next = self.board.borrow_mut().commands.pop_front();
            let Some(command) = next else { break };
            if !self.core.propose_meta(None, command.clone(), command[0] == b'-') {
                self.board.borrow_mut().commands.push_front(command);
                break;
            }
        }
        self.core.turn_end(rt.now(), rt.wall(), &mut self.out);
        self.take_out(rt);
        let mut board = self.board.borrow_mut();
        board.disk_bytes = self.core.wal().disk_bytes();
        if !board.commands.is_empty() {
            return Turn::Wait { until: Some(rt.now() + Duration::from_millis(1)) };
        }
        Turn::Wait { until: self.core.next_deadline() }
    }
}

/// What the core is made with.
#[derive(Clone, Copy)]
pub struct Shape {
    pub segment_bytes: u64,
    pub segments_max: usize,
    pub cache_bytes: usize,
    pub reads_bytes: usize,
    pub data_shards: u32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            segment_bytes: 256 * 1024,
            segments_max: 16,
            cache_bytes: 4 * 1024 * 1024,
            reads_bytes: 8 * 1024 * 1024,
            data_shards: 2,
        }
    }
}

/// One core, its disk, and the test beside it.
pub struct Bench {
    pub world: World<Pump>,
    pub core: SimCoreId,
    pub board: Rc<RefCell<Board>>,
    pub table: Arc<ShardTable>,
    shape: Shape,
    next_request: u64,
}

impl Bench {
    pub fn new(seed: u64, shape: Shape) -> Bench {
        let mut world = World::new(seed);
        let core = world.add_core();
        let mut bench = Bench {
            world,
            core,
            board: Rc::default(),
            table: Arc::new(ShardTable::new(vec![])),
            shape,
            next_request: 1,
        };
        bench.start();
        bench
    }

    pub fn disk(&self) -> SimDisk {
        self.world.disk(self.core)
    }

    /// Starts the core on what its disk holds, and waits until it serves.
    pub fn start(&mut self) {
        self.try_start().unwrap_or_else(|error| panic!("it does not start: {error}"));
        let table = Arc::clone(&self.table);
        let shards = self.shape.data_shards;
        let serves = |_: &mut World<Pump>| (0..=shards).all(|shard| table.leading(ShardId(shard)).is_some());
        assert!(self.world.run_until(PATIENCE, serves), "it does not serve");
    }

    pub fn try_start(&mut self) -> Result<(), RecoverError> {
        let shape = self.shape;
        self.table = Arc::new(ShardTable::new(vec![CORE; shape.data_shards as usize + 1]));
        let wal_bytes_max = 12 * WAL_CHUNK_BYTES;
        let config = CoreConfig {
            core: CORE,
            raft_id: 1,
            voters: vec![1],
            wal: WalConfig {
                cluster: [7; 16],
                core: CORE,
                segment_bytes: shape.segment_bytes,
                segments_max: shape.segments_max,
                spares_max: WAL_SPARE_SEGMENTS_MAX,
                cache_bytes: shape.cache_bytes,
                beside_bytes: 0, // many groups in flight: the hard case
            },
            wal_bytes_max,
            reads_bytes_max: shape.reads_bytes,
            index_bytes_max: 64 * 1024 * 1024,
        };
        let seed = self.world.rng().u64();
        let (table, stats) = (Arc::clone(&self.table), Arc::new(CoreStats::default()));
        let volume = self.disk().volume();
        let pool = ChunkPool::new(wal_bytes_max);
        let (core, meta) = Core::recover(config, table, stats, &volume, pool, seed)?;
        self.board = Rc::default();
        {
            let mut board = self.board.borrow_mut();
            if let Some((_, bytes)) = &meta.snapshot {
                restore(&mut board, bytes);
            }
            meta.commands.iter().for_each(|(_, command)| apply(&mut board, command));
        }
        let pump = Pump { core, out: Out::default(), board: Rc::clone(&self.board), leading: false };
        self.world.start(self.core, pump);
        Ok(())
    }

    pub fn crash(&mut self, crash: Crash) {
        self.world.crash(self.core, crash);
    }

    /// Either kind of crash.
    pub fn crash_somehow(&mut self) {
        let crash = if self.world.rng().chance(50) { Crash::Process } else { Crash::Power };
        self.crash(crash);
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    // ---- the metadata

    fn change(&mut self, command: Bytes) {
        let before = self.board.borrow().meta_applied;
        self.board.borrow_mut().commands.push_back(command);
        self.world.waker(self.core).wake();
        let board = Rc::clone(&self.board);
        assert!(self.world.run_until(PATIENCE, |_| board.borrow().meta_applied > before), "no decision");
    }

    pub fn add(&mut self, shard: u32, partition: u64) -> Route {
        self.change(command(b'+', PartitionId(partition), ShardId(shard)));
        Route { core: CORE, shard: ShardId(shard), partition: PartitionId(partition) }
    }

    /// Asks for this many partitions more, and waits for none of them. What is not taken is asked for again.
    pub fn flood(&mut self, shard: u32, partitions: std::ops::Range<u64>) {
        let commands = partitions.map(|partition| command(b'+', PartitionId(partition), ShardId(shard)));
        self.board.borrow_mut().commands.extend(commands);
        self.world.waker(self.core).wake();
    }

    pub fn commands_waiting(&self) -> usize {
        self.board.borrow().commands.len()
    }

    pub fn delete(&mut self, route: Route) {
        self.change(command(b'-', route.partition, route.shard));
    }

    pub fn term(&self, shard: u32) -> Option<Term> {
        self.table.leading(ShardId(shard))
    }

    // ---- questions

    /// Asks, and goes on.
    pub fn ask(&mut self, ask: Ask) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        self.board.borrow_mut().asks.push_back((Ticket { core: CORE, request, part: 0 }, ask));
        self.world.waker(self.core).wake();
        request
    }

    /// The answer, if it is there.
    pub fn answer(&self, request: u64) -> Option<Answer> {
        let board = self.board.borrow();
        board.answers.get(&request)?.iter().find(|answer| !matches!(answer, Answer::Moved)).cloned()
    }

    pub fn moved(&self, request: u64) -> usize {
        let board = self.board.borrow();
        let answers = board.answers.get(&request).map_or(&[][..], |answers| answers);
        answers.iter().filter(|answer| matches!(answer, Answer::Moved)).count()
    }

    pub fn wait(&mut self, request: u64) -> Answer {
        let board = Rc::clone(&self.board);
        let answered = |_: &mut World<Pump>| {
            let board = board.borrow();
            board.answers.get(&request).is_some_and(|all| all.iter().any(|answer| !matches!(answer, Answer::Moved)))
        };
        if !self.world.run_until(PATIENCE, answered) {
            let board = self.board.borrow();
            let in_flight = self.disk().in_flight();
            let core = self.world.driver(self.core).expect("it runs").core();
            panic!(
                "request {request} is not answered: quiet {}, space {}, waits {:?}, fatal {:?}, {} at the disk, \
                 {} bytes on it",
                core.is_quiet(),
                core.has_space(),
                core.waits_since(),
                board.fatal,
                in_flight,
                core.wal().disk_bytes(),
            );
        }
        self.answer(request).unwrap()
    }

    pub fn send(&mut self, to: Route, batch: &Bytes) -> u64 {
        self.ask(Ask::Produce { to, batch: batch.clone(), rules: BatchRules::default() })
    }

    pub fn produce(&mut self, to: Route, batch: &Bytes) -> Result<Produced, Refusal> {
        let request = self.send(to, batch);
        match self.wait(request) {
            Answer::Produced(produced) => produced,
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, from: Route, offset: i64, bytes_max: u32) -> Result<ReadDone, Refusal> {
        let offset = Offset(offset);
        let request = self.ask(Ask::Read { from, offset, bytes_max, at_least_one: true, epoch: None, watch: false });
        match self.wait(request) {
            Answer::Read(read) => read,
            other => panic!("{other:?}"),
        }
    }

    /// All batches from the log start to the high watermark.
    pub fn read_all(&mut self, from: Route) -> Vec<Stored> {
        let mut at = self.find(from, OffsetQuery::Earliest).offset.0;
        let end = self.find(from, OffsetQuery::Latest).offset.0;
        let mut all = Vec::new();
        while at < end {
            let bytes_max = self.world.rng().between(1, 100_000) as u32;
            let read = self.read(from, at, bytes_max).unwrap_or_else(|refusal| panic!("{from:?} at {at}: {refusal}"));
            assert!(!read.batches.is_empty(), "nothing at {at} of {end}");
            for batch in read.batches {
                let stored = Stored::of(batch);
                assert!(stored.base <= at && at < stored.end(), "asked for {at}, got {stored:?}");
                at = stored.end();
                all.push(stored);
            }
        }
        all
    }

    pub fn find(&mut self, from: Route, what: OffsetQuery) -> Found {
        let request = self.ask(Ask::Find { from, what, epoch: None });
        match self.wait(request) {
            Answer::Found(found) => found.unwrap_or_else(|refusal| panic!("{from:?}: {refusal}")),
            other => panic!("{other:?}"),
        }
    }

    /// Asks again while the core is busy.
    pub fn trim(&mut self, to: Route, offset: Option<i64>) -> Result<Offset, Refusal> {
        loop {
            let request = self.ask(Ask::Trim { to, offset: offset.map(Offset) });
            match self.wait(request) {
                Answer::Trimmed(Err(Refusal::Busy)) => self.run_ms(1),
                Answer::Trimmed(trimmed) => return trimmed,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A batch as it was read.
#[derive(Clone, PartialEq, Eq)]
pub struct Stored {
    pub base: i64,
    pub count: i64,
    pub epoch: i32,
    /// What the broker does not change: from the magic on.
    pub rest: Bytes,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{}, {}) epoch {}, {} bytes", self.base, self.end(), self.epoch, self.rest.len())
    }
}

impl Stored {
    pub fn of(batch: Bytes) -> Stored {
        let base = i64::from_be_bytes(batch[0..8].try_into().unwrap());
        let epoch = i32::from_be_bytes(batch[12..16].try_into().unwrap());
        let count = i32::from_be_bytes(batch[57..61].try_into().unwrap());
        Stored { base, count: count.into(), epoch, rest: batch.slice(16..) }
    }

    pub fn end(&self) -> i64 {
        self.base + self.count
    }
}

/// What identifies a batch: all but what the broker writes into it.
pub fn rest_of(batch: &Bytes) -> Bytes {
    batch.slice(16..)
}
