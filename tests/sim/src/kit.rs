//! A whole broker in the simulator, put together as in production.
//!
//! All cores are one process on one machine: they crash together. A core that ends by itself after a fault of its disk
//! is the end of the process, and whoever runs the scenario starts it again ([`SimBroker::has_failed`]).

use camus_engine::io::buf::ChunkPool;
use camus_engine::io::sim::{Crash, Damage};
use camus_engine::limits::{SHARDS_PER_CORE, WAL_CHUNK_BYTES, WAL_GROUP_BESIDE_BYTES, WAL_SPARE_SEGMENTS_MAX};
use camus_engine::rt::Driver;
use camus_engine::rt::mesh::mesh;
use camus_engine::rt::rng::Rng;
use camus_engine::rt::sim::{SimCoreId, World};
use camus_engine::shard::api::ShardTable;
use camus_engine::shard::core::{Core, CoreConfig, RecoveredMeta};
use camus_engine::stats::CoreStats;
use camus_engine::types::{BrokerId, CoreId, Mono, ShardId};
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

pub fn addr() -> SocketAddr {
    "127.0.0.1:9092".parse().unwrap()
}

/// What the cores said of themselves in this life.
#[derive(Default)]
pub struct Said {
    pub listening: usize,
    pub fatal: Option<WalError>,
    pub no_space: bool,
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
    fn stopping(&self) {}
    fn can_not_listen(&self, addr: SocketAddr, error: &io::Error) {
        panic!("{addr}: {error}");
    }
    fn fatal(&self, error: &WalError) {
        self.0.borrow_mut().fatal = Some(error.clone());
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub cores: usize,
    pub segment_bytes: u64,
    pub segments_max: usize,
    /// What an open group holds before it is written beside another.
    pub beside_bytes: usize,
    pub clients_bytes_max: usize,
}

impl Shape {
    /// Small in everything, so that limits are met often. One log in four is full unless somebody trims.
    pub fn drawn(rng: &mut Rng) -> Shape {
        Shape {
            cores: rng.between(1, 3) as usize,
            segment_bytes: (64 * 1024) << rng.between(0, 2),
            segments_max: if rng.chance(25) { rng.between(40, 80) as usize } else { 4096 },
            beside_bytes: [0, 4096, WAL_GROUP_BESIDE_BYTES][rng.between(0, 2) as usize],
            clients_bytes_max: [100_000, 1 << 20, 64 << 20][rng.between(0, 2) as usize],
        }
    }

    /// Whether the log is so small that records have to go.
    pub fn is_tight(&self) -> bool {
        self.segments_max < 100
    }
}

/// The broker and its disks.
pub struct SimBroker {
    pub world: World<Box<dyn Driver>>,
    pub cores: Vec<SimCoreId>,
    pub said: Rc<RefCell<Said>>,
    pub broker: Arc<Broker>,
    pub stats: Vec<Arc<CoreStats>>,
    pub shape: Shape,
}

impl SimBroker {
    /// A new broker that listens.
    pub fn new(seed: u64, shape: Shape) -> SimBroker {
        let mut broker = SimBroker::down(seed, shape);
        broker.begin().expect("disks that hold nothing");
        assert!(broker.comes_up(), "a new broker does not listen");
        broker
    }

    /// A new broker that does not run yet.
    pub fn down(seed: u64, shape: Shape) -> SimBroker {
        let mut world = World::new(seed);
        let cores = (0..shape.cores).map(|_| world.add_core()).collect();
        let broker = Arc::new(broker(&shape));
        SimBroker { world, cores, said: Rc::default(), broker, stats: vec![], shape }
    }

    /// Waits until all cores listen. Whether they do.
    pub fn comes_up(&mut self) -> bool {
        let (said, cores) = (Rc::clone(&self.said), self.shape.cores);
        self.world.run_until(PATIENCE, |_| said.borrow().listening == cores)
    }

    /// Starts all cores on what their disks hold. Clients are let in later. If one refuses its disk, none runs, and why
    /// is the error.
    pub fn begin(&mut self) -> Result<(), String> {
        let shape = self.shape;
        self.said = Rc::default();
        self.broker = Arc::new(broker(&shape));
        self.stats = (0..shape.cores).map(|_| Arc::default()).collect();
        let wakers: Vec<_> = self.cores.iter().map(|core| self.world.waker(*core)).collect();
        let mut nodes = Vec::new();
        for (n, mut port) in mesh(shape.cores).into_iter().enumerate() {
            port.set_wakers(wakers.clone());
            let core = CoreId(n as u16);
            let config = config(core, &shape);
            let wal_bytes_max = config.wal_bytes_max;
            let (shards, stats) = (Arc::clone(&self.broker.shards), Arc::clone(&self.stats[n]));
            let volume = self.world.disk(self.cores[n]).volume();
            let seed = self.world.rng().u64();
            let pool = ChunkPool::new(wal_bytes_max);
            let (pump, recovered) = Core::recover(config, shards, stats, &volume, pool, seed)
                .map_err(|error| format!("core {n} does not start: {error}"))?;
            let meta = if n == 0 { Some(self.metadata(recovered)?) } else { None };
            let report = Box::new(Reporter(Rc::clone(&self.said)));
            let broker = Arc::clone(&self.broker);
            nodes.push(Node::new(core, broker, Arc::clone(&self.stats[n]), pump, meta, port, report));
        }
        for (core, node) in self.cores.clone().into_iter().zip(nodes) {
            self.world.start(core, Box::new(node));
        }
        Ok(())
    }

    fn metadata(&self, recovered: RecoveredMeta) -> Result<MetaHost, String> {
        let data = (1..self.broker.shards.len() as u32).map(ShardId).collect();
        let (cores, groups) = (self.shape.cores, GroupSettings::default());
        MetaHost::recover(CLUSTER.to_owned(), data, cores, 1 << 20, groups, recovered)
            .map_err(|error| format!("the metadata does not start: {error}"))
    }

    /// What was done to all disks that no log masks.
    pub fn damage(&self) -> Damage {
        let all = self.cores.iter().map(|core| self.world.disk(*core).damage());
        all.fold(Damage::default(), |a, b| Damage { writes: a.writes + b.writes, bits: a.bits + b.bits })
    }

    /// All cores at once.
    pub fn crash(&mut self, crash: Crash) {
        for core in self.cores.clone() {
            self.world.crash(core, crash);
        }
    }

    /// As a signal would: what runs is finished, within the time that a broker gives itself. Whether it ended.
    pub fn stop(&mut self) -> bool {
        self.broker.stopping.store(true, Ordering::Release);
        for core in &self.cores {
            self.world.waker(*core).wake();
        }
        let cores = self.cores.clone();
        self.world.run_until(PATIENCE, |world| cores.iter().all(|core| !world.is_running(*core)))
    }

    pub fn is_running(&self) -> bool {
        self.cores.iter().any(|core| self.world.is_running(*core))
    }

    /// A core found its storage at fault: the process would have ended at once.
    pub fn has_failed(&self) -> bool {
        self.said.borrow().fatal.is_some()
    }

    pub fn has_no_space(&self) -> bool {
        self.said.borrow().no_space
    }

    /// How it stands, for a report.
    pub fn stand(&self) -> String {
        let (said, shape) = (self.said.borrow(), self.shape);
        let listening = said.listening;
        let running = if self.is_running() { "runs" } else { "is down" };
        let space = if said.no_space { ", and has no space" } else { "" };
        format!("the broker {running}, {listening} cores listen{space}; {shape:?}")
    }

    pub fn now(&self) -> Mono {
        self.world.now()
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

fn config(core: CoreId, shape: &Shape) -> CoreConfig {
    let wal_bytes_max = 12 * WAL_CHUNK_BYTES;
    CoreConfig {
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
            beside_bytes: shape.beside_bytes,
        },
        wal_bytes_max,
        reads_bytes_max: 8 * 1024 * 1024,
        index_bytes_max: 64 * 1024 * 1024,
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
