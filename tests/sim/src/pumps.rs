//! Three pumps (`shard::core::Core`), as of three brokers with one core each, and a network between them that loses,
//! doubles, delays and reorders messages, and parts them. Seeded, like the world that they live in. Nothing of Kafka's
//! wire and nothing of the metadata is here: what replication promises is judged by itself.

use crate::kit::PATIENCE;
use bytes::Bytes;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::sim::{Crash, SimDisk};
use camus_engine::io::{DiskOp, Volume};
use camus_engine::limits::{WAL_CHUNK_BYTES, WAL_SPARE_SEGMENTS_MAX};
use camus_engine::rt::rng::Rng;
use camus_engine::rt::sim::{SimCoreId, World};
use camus_engine::rt::{Driver, Event, Rt, Turn};
use camus_engine::shard::api::{Answer, Ask, BatchRules, Produced, Refusal, Route, ShardTable, Ticket};
use camus_engine::shard::core::{Core, CoreConfig, Out, RecoverError};
use camus_engine::shard::peers::ToPeer;
use camus_engine::stats::CoreStats;
use camus_engine::types::{CoreId, Index, LeaderEpoch, Mono, Offset, PartitionId, ShardId, Term};
use camus_engine::wal::{WalConfig, WalError};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub const BROKERS: usize = 3;
pub const CORE: CoreId = CoreId(0);
pub const META: ShardId = ShardId(0);
/// How exactly messages come when they are due.
const SLICE: Duration = Duration::from_micros(100);

/// The way between the brokers.
pub struct Net {
    rng: Rng,
    /// By the time when it arrives, and a number: from whom, to whom, what.
    flying: BTreeMap<(Mono, u64), (usize, usize, ToPeer)>,
    sent: u64,
    pub loss_percent: u64,
    pub double_percent: u64,
    pub delay_us_max: u64,
    /// No message goes from the first to the second.
    pub cut: BTreeSet<(usize, usize)>,
    /// Entries that were sent, with their bodies.
    pub entries: u64,
}

impl Net {
    fn new(seed: u64) -> Net {
        Net {
            rng: Rng::new(seed),
            flying: BTreeMap::new(),
            sent: 0,
            loss_percent: 0,
            double_percent: 0,
            delay_us_max: 200,
            cut: BTreeSet::new(),
            entries: 0,
        }
    }

    fn send(&mut self, now: Mono, from: usize, what: &ToPeer) {
        assert_eq!(what.message.from as usize, from + 1, "nobody sends in another's name");
        assert_eq!(what.message.entries.len(), what.bodies.len());
        let to = what.message.to as usize - 1;
        self.entries += what.bodies.len() as u64;
        let copies = if self.rng.chance(self.double_percent) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.rng.chance(self.loss_percent) {
                let due = now + Duration::from_micros(self.rng.between(20, self.delay_us_max.max(20)));
                self.sent += 1;
                self.flying.insert((due, self.sent), (from, to, what.clone()));
            }
        }
    }

    fn arrived(&mut self, now: Mono) -> Vec<(usize, ToPeer)> {
        let mut all = Vec::new();
        while self.flying.first_key_value().is_some_and(|((due, _), _)| *due <= now) {
            let (_, (from, to, what)) = self.flying.pop_first().expect("just seen");
            if !self.cut.contains(&(from, to)) {
                all.push((to, what));
            }
        }
        all
    }

    /// This broker hears nobody and is heard by nobody.
    pub fn isolate(&mut self, who: usize) {
        for other in (0..BROKERS).filter(|other| *other != who) {
            self.cut.insert((who, other));
            self.cut.insert((other, who));
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        (self.loss_percent, self.double_percent, self.delay_us_max) = (0, 0, 200);
    }
}

/// What one broker is asked and has answered in this life.
#[derive(Default)]
pub struct Board {
    asks: VecDeque<(Ticket, Ask)>,
    commands: VecDeque<Bytes>,
    incoming: VecDeque<ToPeer>,
    image: Option<Vec<(ShardId, PartitionId)>>,
    pub answers: BTreeMap<u64, Answer>,
    /// Commands of the meta shard that are applied.
    pub meta: Vec<(Index, Bytes)>,
    pub fatal: Option<WalError>,
    pub reads_from_disk: u64,
    pub disk_bytes: u64,
}

/// The driver: the pump, and as much of a node as it needs.
pub struct Pump {
    core: Core,
    out: Out,
    me: usize,
    board: Rc<RefCell<Board>>,
    net: Rc<RefCell<Net>>,
    image: Vec<(ShardId, PartitionId)>,
}

impl Pump {
    fn take_out(&mut self, rt: &mut dyn Rt) {
        let mut board = self.board.borrow_mut();
        for (op, disk_op) in self.out.disk.drain(..) {
            board.reads_from_disk += u64::from(matches!(disk_op, DiskOp::Read { .. }));
            rt.disk().submit(op, disk_op);
        }
        if let Some(fatal) = self.out.fatal.take() {
            board.fatal = Some(fatal);
        }
        for (ticket, answer) in self.out.answers.drain(..) {
            if !matches!(answer, Answer::Moved) {
                let twice = board.answers.insert(ticket.request, answer);
                assert!(twice.is_none(), "request {} is answered twice", ticket.request);
            }
        }
        for committed in self.out.meta.drain(..) {
            board.meta.push((committed.index, committed.command));
        }
        for message in self.out.peers.drain(..) {
            self.net.borrow_mut().send(rt.now(), self.me, &message);
        }
        if std::mem::take(&mut self.out.meta_snapshot_wanted) {
            self.core.meta_snapshot(snapshot(&board.meta));
        }
    }

    pub fn core(&self) -> &Core {
        &self.core
    }
}

fn snapshot(meta: &[(Index, Bytes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, command) in meta {
        out.extend_from_slice(&index.0.to_le_bytes());
        out.extend_from_slice(&(command.len() as u64).to_le_bytes());
        out.extend_from_slice(command);
    }
    out
}

fn restore(mut bytes: &[u8]) -> Vec<(Index, Bytes)> {
    let mut meta = Vec::new();
    while !bytes.is_empty() {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (index, len) = (Index(word(0)), word(8) as usize);
        meta.push((index, Bytes::copy_from_slice(&bytes[16..16 + len])));
        bytes = &bytes[16 + len..];
    }
    meta
}

impl Driver for Pump {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.core.start(rt.now(), &mut self.out);
        let image = std::mem::take(&mut self.image);
        self.core.set_partitions(rt.now(), &image, &mut self.out);
        self.take_out(rt);
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Disk(done) => self.core.disk_done(rt.now(), done, &mut self.out),
            Event::Woken => {}
            other => panic!("{other:?}: there is no network here"),
        }
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        let (incoming, asks, commands, image) = {
            let mut board = self.board.borrow_mut();
            let (incoming, asks) = (std::mem::take(&mut board.incoming), std::mem::take(&mut board.asks));
            (incoming, asks, std::mem::take(&mut board.commands), board.image.take())
        };
        for message in incoming {
            self.core.peer(rt.now(), message, &mut self.out);
        }
        if let Some(image) = image {
            self.core.set_partitions(rt.now(), &image, &mut self.out);
        }
        for (ticket, ask) in asks {
            self.core.ask(rt.now(), rt.wall(), ticket, ask, &mut self.out);
        }
        for command in commands {
            self.core.propose_meta(None, command, false);
        }
        self.core.turn_end(rt.now(), rt.wall(), &mut self.out);
        self.take_out(rt);
        self.board.borrow_mut().disk_bytes = self.core.wal().disk_bytes();
        Turn::Wait { until: self.core.next_deadline() }
    }
}

/// What each core is made with.
#[derive(Clone, Copy)]
pub struct Shape {
    pub segment_bytes: u64,
    pub segments_max: usize,
    pub cache_bytes: usize,
    pub data_shards: u32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { segment_bytes: 256 * 1024, segments_max: 64, cache_bytes: 4 * 1024 * 1024, data_shards: 2 }
    }
}

/// A batch as a replica's index has it: what may never differ between two of them.
pub type Committed = (Offset, u32, LeaderEpoch);

/// The brokers, and the test beside them.
pub struct Cluster {
    pub world: World<Pump>,
    pub cores: Vec<SimCoreId>,
    pub boards: Vec<Rc<RefCell<Board>>>,
    pub tables: Vec<Arc<ShardTable>>,
    pub stats: Vec<Arc<CoreStats>>,
    pub net: Rc<RefCell<Net>>,
    /// Counts starts: an answer of an earlier life does not come.
    pub lives: Vec<u32>,
    pub image: Vec<(ShardId, PartitionId)>,
    shape: Shape,
    next_request: u64,
}

impl Cluster {
    /// Starts all brokers with these partitions.
    pub fn new(seed: u64, shape: Shape, routes: &[Route]) -> Cluster {
        let mut world = World::new(seed);
        let cores: Vec<_> = (0..BROKERS).map(|_| world.add_core()).collect();
        let net = Rc::new(RefCell::new(Net::new(world.rng().u64())));
        let mut cluster = Cluster {
            world,
            cores,
            boards: (0..BROKERS).map(|_| Rc::default()).collect(),
            tables: (0..BROKERS).map(|_| Arc::new(ShardTable::new(vec![]))).collect(),
            stats: vec![Arc::default(); BROKERS],
            net,
            lives: vec![0; BROKERS],
            image: routes.iter().map(|route| (route.shard, route.partition)).collect(),
            shape,
            next_request: 1,
        };
        for who in 0..BROKERS {
            cluster.start(who);
        }
        cluster
    }

    /// Starts a broker on what its disk holds.
    pub fn start(&mut self, who: usize) {
        self.begin(who).unwrap_or_else(|error| panic!("broker {who} does not start: {error}"));
    }

    /// The same; if it refuses its disk, why.
    pub fn begin(&mut self, who: usize) -> Result<(), RecoverError> {
        let shape = self.shape;
        let table = Arc::new(ShardTable::new(vec![CORE; shape.data_shards as usize + 1]));
        let wal_bytes_max = 12 * WAL_CHUNK_BYTES;
        let config = CoreConfig {
            core: CORE,
            raft_id: who as u64 + 1,
            voters: (1..=BROKERS as u64).collect(),
            wal: WalConfig {
                cluster: [7; 16],
                core: CORE,
                segment_bytes: shape.segment_bytes,
                segments_max: shape.segments_max,
                spares_max: WAL_SPARE_SEGMENTS_MAX,
                cache_bytes: shape.cache_bytes,
                beside_bytes: 0,
            },
            wal_bytes_max,
            reads_bytes_max: 8 * 1024 * 1024,
            index_bytes_max: 64 * 1024 * 1024,
        };
        let seed = self.world.rng().u64();
        let volume = self.disk(who).volume();
        let (stats, pool) = (Arc::new(CoreStats::default()), ChunkPool::new(wal_bytes_max));
        self.stats[who] = Arc::clone(&stats);
        let (core, meta) = Core::recover(config, Arc::clone(&table), stats, &volume, pool, seed)?;
        let board = Rc::new(RefCell::new(Board::default()));
        {
            let mut board = board.borrow_mut();
            board.meta = meta.snapshot.map(|(_, bytes)| restore(&bytes)).unwrap_or_default();
            board.meta.extend(meta.commands);
        }
        (self.boards[who], self.tables[who]) = (Rc::clone(&board), table);
        self.lives[who] += 1;
        let (net, image) = (Rc::clone(&self.net), self.image.clone());
        self.world.start(self.cores[who], Pump { core, out: Out::default(), me: who, board, net, image });
        Ok(())
    }

    pub fn crash(&mut self, who: usize, crash: Crash) {
        self.world.crash(self.cores[who], crash);
    }

    /// Either kind of crash.
    pub fn crash_somehow(&mut self, who: usize) {
        let crash = if self.world.rng().chance(50) { Crash::Process } else { Crash::Power };
        self.crash(who, crash);
    }

    pub fn is_running(&self, who: usize) -> bool {
        self.world.is_running(self.cores[who])
    }

    pub fn running(&self) -> Vec<usize> {
        (0..BROKERS).filter(|who| self.is_running(*who)).collect()
    }

    pub fn disk(&self, who: usize) -> SimDisk {
        self.world.disk(self.cores[who])
    }

    pub fn core(&mut self, who: usize) -> &Core {
        self.world.driver(self.cores[who]).expect("it runs").core()
    }

    // ---- time

    fn slice(&mut self, time: Duration) {
        self.world.run_for(time.min(SLICE));
        let arrived = self.net.borrow_mut().arrived(self.world.now());
        for (to, message) in arrived {
            if self.is_running(to) {
                self.boards[to].borrow_mut().incoming.push_back(message);
                self.world.waker(self.cores[to]).wake();
            }
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            self.slice(end.since(self.world.now()));
        }
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.run_for(Duration::from_millis(ms));
    }

    pub fn run_until(&mut self, time: Duration, mut holds: impl FnMut(&mut Cluster) -> bool) -> bool {
        let end = self.world.now() + time;
        while !holds(self) {
            if self.world.now() >= end {
                return false;
            }
            self.slice(SLICE);
        }
        true
    }

    // ---- who leads

    /// The broker that leads and serves the shard in the highest term, as far as those that run say.
    pub fn leader(&self, shard: ShardId) -> Option<usize> {
        let leading = |who: usize| self.tables[who].leading(shard).map(|term| (term, who));
        self.running().into_iter().filter_map(leading).max().map(|(_, who)| who)
    }

    pub fn term(&self, shard: ShardId) -> Option<Term> {
        self.leader(shard).and_then(|who| self.tables[who].leading(shard))
    }

    pub fn wait_leader(&mut self, shard: ShardId) -> usize {
        let found = self.run_until(PATIENCE, |cluster| cluster.leader(shard).is_some());
        assert!(found, "nobody leads {shard}");
        self.leader(shard).expect("just seen")
    }

    /// A leader that is not this one.
    pub fn wait_other_leader(&mut self, shard: ShardId, than: usize) -> usize {
        let other = |cluster: &mut Cluster| cluster.leader(shard).is_some_and(|who| who != than);
        assert!(self.run_until(PATIENCE, other), "nobody else leads {shard}");
        self.leader(shard).expect("just seen")
    }

    // ---- questions

    pub fn ask(&mut self, who: usize, ask: Ask) -> u64 {
        let request = self.next_request;
        self.next_request += 1;
        self.boards[who].borrow_mut().asks.push_back((Ticket { core: CORE, request, part: 0 }, ask));
        self.world.waker(self.cores[who]).wake();
        request
    }

    pub fn answer(&self, who: usize, request: u64) -> Option<Answer> {
        self.boards[who].borrow().answers.get(&request).cloned()
    }

    pub fn wait(&mut self, who: usize, request: u64) -> Answer {
        let answered = self.run_until(PATIENCE, |cluster| cluster.answer(who, request).is_some());
        assert!(answered, "request {request} to broker {who} is not answered");
        self.answer(who, request).expect("just seen")
    }

    pub fn send(&mut self, who: usize, to: Route, batch: &Bytes) -> u64 {
        self.ask(who, Ask::Produce { to, batch: batch.clone(), rules: BatchRules::default() })
    }

    pub fn produced(&self, who: usize, request: u64) -> Option<Result<Produced, Refusal>> {
        match self.answer(who, request)? {
            Answer::Produced(produced) => Some(produced),
            other => panic!("{other:?}"),
        }
    }

    /// Produces at whoever leads, again and again if it is not the one. Use batches with a producer.
    pub fn produce(&mut self, to: Route, batch: &Bytes) -> Offset {
        for _ in 0..100 {
            let who = self.wait_leader(to.shard);
            let request = self.send(who, to, batch);
            let life = self.lives[who];
            self.run_until(Duration::from_secs(1), |cluster| cluster.produced(who, request).is_some());
            if self.lives[who] == life
                && let Some(Ok(produced)) = self.produced(who, request)
            {
                return produced.base_offset;
            }
            self.run_ms(5);
        }
        panic!("a batch is not taken");
    }

    pub fn trim(&mut self, to: Route, offset: Option<Offset>) {
        for _ in 0..100 {
            let who = self.wait_leader(to.shard);
            let request = self.ask(who, Ask::Trim { to, offset });
            if let Answer::Trimmed(Ok(_)) = self.wait(who, request) {
                return;
            }
            self.run_ms(10);
        }
        panic!("a trim is not taken");
    }

    pub fn propose_meta(&mut self, command: &'static [u8]) {
        let who = self.wait_leader(META);
        self.boards[who].borrow_mut().commands.push_back(Bytes::from_static(command));
        self.world.waker(self.cores[who]).wake();
    }

    /// Which partitions there are, told to one broker.
    pub fn tell(&mut self, who: usize, image: &[Route]) {
        let image = image.iter().map(|route| (route.shard, route.partition)).collect();
        self.boards[who].borrow_mut().image = Some(image);
        self.world.waker(self.cores[who]).wake();
    }

    // ---- what a replica has

    pub fn committed(&mut self, who: usize, of: Route) -> Vec<Committed> {
        let batches = self.core(who).batches(of.shard, of.partition);
        batches.into_iter().map(|batch| (batch.base_offset, batch.count, batch.epoch)).collect()
    }

    /// Every committed batch, from the broker's memory or its disk, leader or not.
    pub fn bodies(&mut self, who: usize, of: Route) -> Vec<Bytes> {
        let volume = self.disk(who).volume();
        let core = self.core(who);
        let body = |at| match core.wal().in_memory(at) {
            Some((_, body)) => body,
            None => {
                let (file, from, len) = core.wal().read_plan(at);
                let mut bytes = vec![0; len as usize];
                volume.read(file, from, &mut bytes).expect("the segment is there");
                core.wal().extract(at, &Bytes::from(bytes)).expect("the record is whole").1
            }
        };
        core.batches(of.shard, of.partition).into_iter().map(|batch| body(batch.at)).collect()
    }

    /// Ends every fault, and starts who does not run.
    pub fn heal(&mut self) {
        self.net.borrow_mut().heal();
        for who in 0..BROKERS {
            self.disk(who).hang(false);
            self.disk(who).slow_down(Duration::ZERO);
            if !self.is_running(who) {
                self.start(who);
            }
        }
    }

    /// Until all replicas have the same of these partitions, which goes on being so for a moment.
    pub fn converge(&mut self, routes: &[Route]) {
        let mut same = 0;
        for _ in 0..1_500 {
            self.run_ms(20);
            let is_same = routes.iter().all(|of| {
                let all: Vec<_> = (0..BROKERS).map(|who| self.committed(who, *of)).collect();
                all.windows(2).all(|pair| pair[0] == pair[1])
            });
            same = if is_same { same + 1 } else { 0 };
            if same == 10 {
                return;
            }
        }
        for of in routes {
            let lens: Vec<_> = (0..BROKERS).map(|who| self.committed(who, *of).len()).collect();
            assert!(lens.windows(2).all(|pair| pair[0] == pair[1]), "replicas of {of:?} have {lens:?} batches");
        }
        panic!("the replicas do not come to rest");
    }
}

pub fn route(shard: u32, partition: u64) -> Route {
    Route { core: CORE, shard: ShardId(shard), partition: PartitionId(partition) }
}
