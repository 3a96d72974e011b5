//! A whole broker in the simulator, put together as in production, with clients that speak the wire.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod history;
pub mod wire;

use camus_engine::io::buf::ChunkPool;
use camus_engine::io::sim::Crash;
use camus_engine::limits::{SHARDS_PER_CORE, WAL_CHUNK_BYTES, WAL_GROUP_BESIDE_BYTES, WAL_SPARE_SEGMENTS_MAX};
use camus_engine::rt::Driver;
use camus_engine::rt::mesh::mesh;
use camus_engine::rt::sim::{SimCoreId, World};
use camus_engine::shard::api::ShardTable;
use camus_engine::shard::core::{Core, CoreConfig};
use camus_engine::stats::CoreStats;
use camus_engine::types::{BrokerId, CoreId, ShardId};
use camus_engine::wal::{WalConfig, WalError};
use camus_meta::groups::GroupSettings;
use camus_net::api::Settings;
use camus_net::meta_host::MetaHost;
use camus_net::node::{Broker, Listener, Node, Report};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Longer than anything takes that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);
const CLUSTER: &str = "sim";

/// The seeds of a test: `CAMUS_TEST_SEED` alone, if it is set.
pub fn seeds(default: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("CAMUS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => default,
    }
}

/// Says which seed failed when the test does.
pub struct Seed(pub u64);

#[allow(clippy::print_stderr, reason = "for whoever looks at a failed test")]
impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was seed {0}: run it alone with CAMUS_TEST_SEED={0}", self.0);
        }
    }
}

pub fn addr() -> SocketAddr {
    "127.0.0.1:9092".parse().unwrap()
}

/// What the cores said of themselves in this life.
#[derive(Default)]
pub struct Said {
    pub listening: usize,
    pub fatal: Option<WalError>,
    pub stopping: usize,
    pub no_space: bool,
    pub disk_hangs: bool,
}

struct Reporter(Rc<RefCell<Said>>);

impl Report for Reporter {
    fn recovered(&self) {}
    fn serving(&self) {}
    fn listening(&self) {
        self.0.borrow_mut().listening += 1;
    }
    fn has_space(&self, has: bool) {
        self.0.borrow_mut().no_space = !has;
    }
    fn disk_hangs(&self, hangs: bool) {
        self.0.borrow_mut().disk_hangs = hangs;
    }
    fn stopping(&self) {
        self.0.borrow_mut().stopping += 1;
    }
    fn can_not_listen(&self, addr: SocketAddr, error: &io::Error) {
        panic!("{addr}: {error}");
    }
    fn fatal(&self, error: &WalError) {
        self.0.borrow_mut().fatal = Some(error.clone());
    }
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub cores: usize,
    pub segment_bytes: u64,
    pub segments_max: usize,
    pub clients_bytes_max: usize,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { cores: 1, segment_bytes: 256 * 1024, segments_max: 64, clients_bytes_max: 64 * 1024 * 1024 }
    }
}

/// The broker, its disks, and the test beside it.
pub struct SimBroker {
    pub world: World<Box<dyn Driver>>,
    pub cores: Vec<SimCoreId>,
    pub said: Rc<RefCell<Said>>,
    pub broker: Arc<Broker>,
    pub stats: Vec<Arc<CoreStats>>,
    shape: Shape,
    wrap: fn(Node) -> Box<dyn Driver>,
}

impl SimBroker {
    pub fn new(seed: u64, shape: Shape) -> SimBroker {
        SimBroker::wrapped(seed, shape, |node| Box::new(node))
    }

    /// With something around each core's node.
    pub fn wrapped(seed: u64, shape: Shape, wrap: fn(Node) -> Box<dyn Driver>) -> SimBroker {
        let mut world = World::new(seed);
        let cores = (0..shape.cores).map(|_| world.add_core()).collect();
        let broker = Arc::new(broker(&shape));
        let mut broker = SimBroker { world, cores, said: Rc::default(), broker, stats: vec![], shape, wrap };
        broker.start();
        broker
    }

    /// Starts all cores on what their disks hold.
    pub fn begin(&mut self) {
        let shape = self.shape;
        self.said = Rc::default();
        self.broker = Arc::new(broker(&shape));
        self.stats = (0..shape.cores).map(|_| Arc::default()).collect();
        let wakers: Vec<_> = self.cores.iter().map(|core| self.world.waker(*core)).collect();
        let mut nodes = Vec::new();
        for (n, mut port) in mesh(shape.cores).into_iter().enumerate() {
            port.set_wakers(wakers.clone());
            let core = CoreId(n as u16);
            let wal_bytes_max = 12 * WAL_CHUNK_BYTES;
            let config = CoreConfig {
                core,
                raft_id: 2,
                voters: vec![2],
                wal: WalConfig {
                    cluster: [3; 16],
                    core,
                    segment_bytes: shape.segment_bytes,
                    segments_max: shape.segments_max,
                    spares_max: WAL_SPARE_SEGMENTS_MAX,
                    cache_bytes: wal_bytes_max / 2,
                    beside_bytes: WAL_GROUP_BESIDE_BYTES,
                },
                wal_bytes_max,
                reads_bytes_max: 8 * 1024 * 1024,
                index_bytes_max: 64 * 1024 * 1024,
            };
            let (shards, stats) = (Arc::clone(&self.broker.shards), Arc::clone(&self.stats[n]));
            let volume = self.world.disk(self.cores[n]).volume();
            let seed = self.world.rng().u64();
            let pool = ChunkPool::new(wal_bytes_max);
            let (pump, recovered) = Core::recover(config, shards, stats, &volume, pool, seed)
                .unwrap_or_else(|error| panic!("core {n} does not start: {error}"));
            let data = (1..self.broker.shards.len() as u32).map(ShardId).collect();
            let meta = (n == 0).then(|| {
                MetaHost::recover(CLUSTER.to_owned(), data, shape.cores, 1 << 20, GroupSettings::default(), recovered)
                    .unwrap_or_else(|error| panic!("{error}"))
            });
            let report = Box::new(Reporter(Rc::clone(&self.said)));
            let broker = Arc::clone(&self.broker);
            nodes.push(Node::new(core, broker, Arc::clone(&self.stats[n]), pump, meta, port, report));
        }
        for (core, node) in self.cores.clone().into_iter().zip(nodes) {
            self.world.start(core, (self.wrap)(node));
        }
    }

    /// Starts, and waits until clients are let in.
    pub fn start(&mut self) {
        self.begin();
        let (said, cores) = (Rc::clone(&self.said), self.shape.cores);
        assert!(self.world.run_until(PATIENCE, |_| said.borrow().listening == cores), "it does not listen");
    }

    /// All cores at once: they are one process on one machine.
    pub fn crash(&mut self, crash: Crash) {
        for core in self.cores.clone() {
            self.world.crash(core, crash);
        }
    }

    pub fn crash_somehow(&mut self) {
        let crash = if self.world.rng().chance(50) { Crash::Process } else { Crash::Power };
        self.crash(crash);
    }

    /// As a signal would: what runs is finished, within the time that a broker gives itself.
    pub fn stop(&mut self) {
        self.broker.stopping.store(true, Ordering::Release);
        for core in &self.cores {
            self.world.waker(*core).wake();
        }
    }

    /// Waits for the end of all cores.
    pub fn has_stopped(&mut self) -> bool {
        let cores = self.cores.clone();
        self.world.run_until(PATIENCE, |world| cores.iter().all(|core| !world.is_running(*core)))
    }

    pub fn is_running(&self) -> bool {
        self.cores.iter().any(|core| self.world.is_running(*core))
    }

    pub fn run_ms(&mut self, ms: u64) {
        self.world.run_for(Duration::from_millis(ms));
    }

    pub fn run_us(&mut self, us: u64) {
        self.world.run_for(Duration::from_micros(us));
    }

    /// A number below `n`.
    pub fn pick(&mut self, n: usize) -> usize {
        self.world.rng().between(0, n as u64 - 1) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.world.rng().chance(percent)
    }
}

fn broker(shape: &Shape) -> Broker {
    let data = (0..SHARDS_PER_CORE).flat_map(|_| (0..shape.cores).map(|core| CoreId(core as u16)));
    let table = ShardTable::new(std::iter::once(CoreId(0)).chain(data).collect());
    Broker {
        settings: Settings {
            broker: BrokerId(1),
            cluster_id: CLUSTER.to_owned(),
            rack: None,
            num_partitions: 1,
            default_replication_factor: 1,
            auto_create_topics: false,
            message_bytes_max: 1 << 20,
            fetch_sessions_max: 1_000,
            fetch_bytes_max: 55 << 20,
            given: vec![],
            groups: GroupSettings::default(),
            offset_metadata_bytes_max: 4096,
        },
        shards: Arc::new(table),
        cores: shape.cores,
        listeners: vec![Listener { addr: addr(), advertised: ("localhost".to_owned(), 9092) }],
        stopping: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        clients_bytes_max: shape.clients_bytes_max,
        frame_bytes_max: 16 * 1024 * 1024,
        idle_max: Duration::from_secs(600),
        brokers: vec![],
        peer_listen: None,
    }
}
