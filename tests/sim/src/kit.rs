//! Whole brokers in the simulator, put together as in production: one alone, or a cluster of three.
//!
//! All cores of a broker are one process on one machine: they crash together. A core that ends by itself after a fault
//! of its disk is the end of the process, and whoever runs the scenario starts it again ([`Cluster::has_failed`]).
//! Clients are on a machine of their own.

use crate::runner::last_panic;
use camus_engine::io::buf::ChunkPool;
use camus_engine::io::sim::{Crash, Damage, SimDisk};
use camus_engine::limits::{SHARDS_PER_CORE, WAL_CHUNK_BYTES, WAL_GROUP_BESIDE_BYTES, WAL_SPARE_SEGMENTS_MAX};
use camus_engine::rt::mesh::mesh;
use camus_engine::rt::rng::Rng;
use camus_engine::rt::sim::{HostId, Path, SimCoreId, World};
use camus_engine::rt::{Driver, Event, Rt, Turn};
use camus_engine::shard::api::ShardTable;
use camus_engine::shard::core::{Core, CoreConfig, RecoveredMeta};
use camus_engine::stats::CoreStats;
use camus_engine::types::{BrokerId, CoreId, Mono, ShardId, Term};
use camus_engine::wal::{WalConfig, WalError};
use camus_meta::groups::GroupSettings;
use camus_net::api::Settings;
use camus_net::meta_host::MetaHost;
use camus_net::node::{Broker, Listener, Member, Node, Report};
use camus_net::peer::roll::{DirectoryId, InMemory, Roll};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Longer than anything takes that is going to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);
const CLUSTER: &str = "sim";
/// Brokers of a cluster.
pub const BROKERS: usize = 3;
const PORT: u16 = 9092;
const PEER_PORT: u16 = 19_092;

fn ip(broker: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1 + broker as u8))
}

/// Where clients reach this broker.
pub fn addr(broker: usize) -> SocketAddr {
    SocketAddr::new(ip(broker), PORT)
}

fn peer_addr(broker: usize) -> SocketAddr {
    SocketAddr::new(ip(broker), PEER_PORT)
}

/// In the order of the brokers, from 1.
fn broker_id(broker: usize) -> BrokerId {
    BrokerId(1 + broker as i32)
}

fn raft_id(broker: usize) -> u64 {
    broker_id(broker).0 as u64 + 1
}

/// What the cores said of themselves in this life.
#[derive(Default)]
pub struct Said {
    pub listening: usize,
    pub fatal: Option<WalError>,
    pub no_space: bool,
    pub disk_hangs: bool,
    /// Cores that were told to stop.
    pub stopping: usize,
    /// The others know the broker by another data directory.
    pub kept_out: bool,
    /// A core met what can not be, and says what.
    pub panicked: Option<String>,
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
    fn kept_out(&self, _: BrokerId, _: DirectoryId) {
        self.0.borrow_mut().kept_out = true;
    }
    fn can_not_listen(&self, addr: SocketAddr, error: &io::Error) {
        panic!("{addr}: {error}");
    }
    fn fatal(&self, error: &WalError) {
        self.0.borrow_mut().fatal = Some(error.clone());
    }
}

/// A core whose panic ends its broker and not the simulation: where a disk was damaged, an assertion that ends the
/// process before a lie is told is what is asked for.
struct Guarded {
    node: Box<dyn Driver>,
    said: Rc<RefCell<Said>>,
}

impl Guarded {
    fn guard<T>(&mut self, what: impl FnOnce(&mut dyn Driver) -> T) -> Option<T> {
        if self.said.borrow().panicked.is_some() {
            return None;
        }
        let done = catch_unwind(AssertUnwindSafe(|| what(&mut *self.node)));
        if done.is_err() {
            self.said.borrow_mut().panicked = Some(last_panic());
        }
        done.ok()
    }
}

impl Driver for Guarded {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.guard(|node| node.start(rt));
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        self.guard(|node| node.event(rt, event));
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        self.guard(|node| node.turn_end(rt)).unwrap_or(Turn::Wait { until: None })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// One, or [`BROKERS`].
    pub brokers: usize,
    pub cores: usize,
    pub segment_bytes: u64,
    pub segments_max: usize,
    /// What an open group holds before it is written beside another.
    pub beside_bytes: usize,
    pub clients_bytes_max: usize,
}

impl Default for Shape {
    /// A lone broker of one core.
    fn default() -> Shape {
        Shape {
            brokers: 1,
            cores: 1,
            segment_bytes: 256 * 1024,
            segments_max: 64,
            beside_bytes: WAL_GROUP_BESIDE_BYTES,
            clients_bytes_max: 64 * 1024 * 1024,
        }
    }
}

impl Shape {
    /// Small in everything, so that limits are met often. One log in four is full unless somebody trims.
    pub fn drawn(rng: &mut Rng, brokers: usize) -> Shape {
        Shape {
            brokers,
            cores: rng.between(1, 3) as usize,
            segment_bytes: (64 * 1024) << rng.between(0, 2),
            segments_max: if rng.chance(25) { rng.between(40, 80) as usize } else { 4096 },
            beside_bytes: [0, 4096, WAL_GROUP_BESIDE_BYTES][rng.between(0, 2) as usize],
            clients_bytes_max: [100_000, 1 << 20, 64 << 20][rng.between(0, 2) as usize],
        }
    }

    pub fn is_cluster(&self) -> bool {
        self.brokers > 1
    }

    /// Whether the log is so small that records have to go.
    pub fn is_tight(&self) -> bool {
        self.segments_max < 100
    }
}

/// One broker and its disks.
pub struct SimBroker {
    pub host: HostId,
    pub cores: Vec<SimCoreId>,
    pub said: Rc<RefCell<Said>>,
    pub broker: Arc<Broker>,
    pub stats: Vec<Arc<CoreStats>>,
    /// Of its data directory, and what it keeps there of the others.
    pub directory: (DirectoryId, InMemory),
    /// Its panics are its end, and not the simulation's.
    pub is_guarded: bool,
}

/// All brokers, and the world that they are in.
pub struct Cluster {
    pub world: World<Box<dyn Driver>>,
    pub brokers: Vec<SimBroker>,
    pub shape: Shape,
    wrap: Wrap,
}

/// What a core's driver is made of its node: the node itself, or something around it.
pub type Wrap = fn(Node) -> Box<dyn Driver>;

impl Cluster {
    /// New brokers that listen.
    pub fn new(seed: u64, shape: Shape) -> Cluster {
        Cluster::wrapped(seed, shape, |node| Box::new(node))
    }

    /// The same with something around each core's node.
    pub fn wrapped(seed: u64, shape: Shape, wrap: Wrap) -> Cluster {
        let mut cluster = Cluster { wrap, ..Cluster::down(seed, shape) };
        (0..shape.brokers).for_each(|n| cluster.begin(n).expect("disks that hold nothing"));
        assert!(cluster.comes_up(), "new brokers do not listen");
        cluster
    }

    /// New brokers that do not run yet.
    pub fn down(seed: u64, shape: Shape) -> Cluster {
        let mut world = World::new(seed);
        let brokers = (0..shape.brokers)
            .map(|n| {
                let host = world.add_host(ip(n));
                if shape.is_cluster() {
                    // nobody may take another machine's time for its own
                    let uptime = Duration::from_micros(world.rng().between(0, 10_000_000_000));
                    world.set_uptime(host, uptime);
                }
                let cores = (0..shape.cores).map(|_| world.add_core_on(host)).collect();
                let directory = (directory_id(n, 0), InMemory::default());
                let broker = Arc::new(broker(&shape, n, &directory));
                SimBroker { host, cores, said: Rc::default(), broker, stats: vec![], directory, is_guarded: false }
            })
            .collect();
        Cluster { world, brokers, shape, wrap: |node| Box::new(node) }
    }

    /// Waits until all cores listen. Whether they do.
    pub fn comes_up(&mut self) -> bool {
        let said: Vec<_> = self.brokers.iter().map(|broker| Rc::clone(&broker.said)).collect();
        let cores = self.shape.cores;
        self.world.run_until(PATIENCE, |_| said.iter().all(|said| said.borrow().listening == cores))
    }

    /// Starts all cores of a broker on what their disks hold. Clients are let in later. If one refuses its disk, none
    /// runs, and why is the error.
    pub fn begin(&mut self, n: usize) -> Result<(), String> {
        let shape = self.shape;
        let SimBroker { cores, is_guarded, .. } = &self.brokers[n];
        let (cores, is_guarded) = (cores.clone(), *is_guarded);
        let broker = Arc::new(broker(&shape, n, &self.brokers[n].directory));
        let said: Rc<RefCell<Said>> = Rc::default();
        let stats: Vec<Arc<CoreStats>> = (0..shape.cores).map(|_| Arc::default()).collect();
        self.brokers[n].said = Rc::clone(&said);
        self.brokers[n].broker = Arc::clone(&broker);
        self.brokers[n].stats.clone_from(&stats);
        let wakers: Vec<_> = cores.iter().map(|core| self.world.waker(*core)).collect();
        let mut nodes = Vec::new();
        for (c, mut port) in mesh(shape.cores).into_iter().enumerate() {
            port.set_wakers(wakers.clone());
            let core = CoreId(c as u16);
            let config = config(core, &shape, n);
            let wal_bytes_max = config.wal_bytes_max;
            let (shards, stats) = (Arc::clone(&broker.shards), Arc::clone(&stats[c]));
            let volume = self.world.disk(cores[c]).volume();
            let seed = self.world.rng().u64();
            let pool = ChunkPool::new(wal_bytes_max);
            let (pump, recovered) = Core::recover(config, shards, Arc::clone(&stats), &volume, pool, seed)
                .map_err(|error| format!("core {c} does not start: {error}"))?;
            let meta = if c == 0 { Some(metadata(&broker, recovered)?) } else { None };
            let report = Box::new(Reporter(Rc::clone(&said)));
            nodes.push(Node::new(core, Arc::clone(&broker), stats, pump, meta, port, report));
        }
        for (core, node) in cores.into_iter().zip(nodes) {
            let node = (self.wrap)(node);
            let driver = if is_guarded { Box::new(Guarded { node, said: Rc::clone(&said) }) } else { node };
            self.world.start(core, driver);
        }
        Ok(())
    }

    /// What was done to all disks of a broker that no log masks.
    pub fn damage(&self, n: usize) -> Damage {
        let all = self.brokers[n].cores.iter().map(|core| self.world.disk(*core).damage());
        all.fold(Damage::default(), |a, b| Damage {
            writes: a.writes + b.writes,
            bits: a.bits + b.bits,
            images: a.images + b.images,
        })
    }

    /// All cores of a broker at once.
    pub fn crash(&mut self, n: usize, crash: Crash) {
        for core in self.brokers[n].cores.clone() {
            self.world.crash(core, crash);
        }
    }

    /// Its machine gets new disks: the broker does not run, and has a directory that nobody knows and that holds
    /// nothing.
    pub fn lose_disks(&mut self, n: usize, lost_before: u8) {
        self.crash(n, Crash::Process);
        for core in self.brokers[n].cores.clone() {
            self.world.disk(core).bring_back(&SimDisk::new(0).image());
        }
        self.brokers[n].directory = (directory_id(n, lost_before + 1), InMemory::default());
    }

    /// As a signal would: what runs is finished, within the time that a broker gives itself. Whether it ended.
    pub fn stop(&mut self, n: usize) -> bool {
        self.ask_to_stop(n);
        let cores = self.brokers[n].cores.clone();
        self.world.run_until(PATIENCE, |world| cores.iter().all(|core| !world.is_running(*core)))
    }

    /// The signal alone.
    pub fn ask_to_stop(&mut self, n: usize) {
        let broker = &self.brokers[n];
        broker.broker.stopping.store(true, Ordering::Release);
        for core in &broker.cores {
            self.world.waker(*core).wake();
        }
    }

    pub fn set_paused(&mut self, n: usize, on: bool) {
        for core in self.brokers[n].cores.clone() {
            if on { self.world.pause(core) } else { self.world.resume(core) }
        }
    }

    pub fn is_running(&self, n: usize) -> bool {
        self.brokers[n].cores.iter().any(|core| self.world.is_running(*core))
    }

    /// It runs, and clients are let in.
    pub fn is_up(&self, n: usize) -> bool {
        self.is_running(n) && self.brokers[n].said.borrow().listening == self.shape.cores
    }

    /// A core found its storage at fault, or met what can not be: the process would have ended at once.
    pub fn has_failed(&self, n: usize) -> bool {
        let said = self.brokers[n].said.borrow();
        said.fatal.is_some() || said.panicked.is_some()
    }

    /// It was away for so long that it lacks what the others have no more: it is a broker less for its shards.
    pub fn is_left_behind(&self, n: usize) -> bool {
        self.brokers[n].stats.iter().any(|stats| stats.counters.replicas_left_behind.load(Ordering::Relaxed) > 0)
    }

    /// A broker has ended since its log lacks what the others know that it had.
    pub fn forgot(&self) -> Option<String> {
        let forgot = |broker: &SimBroker| match &broker.said.borrow().fatal {
            Some(error @ WalError::Forgot { .. }) => Some(error.to_string()),
            _ => None,
        };
        self.brokers.iter().find_map(forgot)
    }

    /// One of the brokers.
    pub fn has_no_space(&self) -> bool {
        self.brokers.iter().any(|broker| broker.said.borrow().no_space)
    }

    /// Whichever broker serves the partition, as the brokers themselves see it.
    pub fn leads(&self, shard: ShardId) -> Option<usize> {
        let leading = |n: &usize| self.is_running(*n) && self.brokers[*n].broker.shards.leading(shard).is_some();
        (0..self.brokers.len()).filter(leading).max_by_key(|n| self.brokers[*n].broker.shards.leading(shard))
    }

    /// Who serves which shard, and since which term, as the brokers themselves see it.
    pub fn leaders(&self) -> Vec<(ShardId, Term, usize)> {
        let mut all = Vec::new();
        for n in (0..self.brokers.len()).filter(|n| self.is_running(*n)) {
            let shards = &self.brokers[n].broker.shards;
            let shard = |s| Some((ShardId(s), shards.leading(ShardId(s))?, n));
            all.extend((0..shards.len() as u32).filter_map(shard));
        }
        all
    }

    /// The ways between a broker and all other machines, in both directions.
    pub fn change_paths(&mut self, n: usize, change: impl Fn(&mut Path)) {
        let me = self.brokers[n].host;
        for other in self.others(n) {
            for (from, to) in [(me, other), (other, me)] {
                let mut path = self.world.path(from, to);
                change(&mut path);
                self.world.set_path(from, to, path);
            }
        }
    }

    /// Every machine but this broker's.
    pub fn others(&self, n: usize) -> Vec<HostId> {
        let brokers = self.brokers.iter().map(|broker| broker.host);
        brokers.filter(|host| *host != self.brokers[n].host).chain([HostId::CLIENTS]).collect()
    }

    /// All ways are as they were in the beginning.
    pub fn heal_paths(&mut self) {
        let hosts: Vec<HostId> = self.brokers.iter().map(|broker| broker.host).chain([HostId::CLIENTS]).collect();
        for from in &hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                self.world.set_path(*from, *to, Path::default());
            }
        }
    }

    /// Whose address this is.
    pub fn at(&self, host: &str, port: i32) -> Option<usize> {
        (0..self.brokers.len()).find(|n| addr(*n).ip().to_string() == host && i32::from(addr(*n).port()) == port)
    }

    /// How it stands, for a report.
    pub fn stand(&self) -> String {
        let one = |n: usize| {
            let said = self.brokers[n].said.borrow();
            let listening = said.listening;
            let running = if self.is_running(n) { "runs" } else { "is down" };
            let space = if said.no_space { ", and has no space" } else { "" };
            format!("broker {n} {running}, {listening} cores listen{space}; ")
        };
        let all: String = (0..self.brokers.len()).map(one).collect();
        format!("{all}{:?}", self.shape)
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

fn metadata(broker: &Broker, recovered: RecoveredMeta) -> Result<MetaHost, String> {
    let data = (1..broker.shards.len() as u32).map(ShardId).collect();
    let groups = broker.settings.groups;
    MetaHost::recover(CLUSTER.to_owned(), data, broker.cores, 1 << 20, groups, recovered)
        .map_err(|error| format!("the metadata does not start: {error}"))
}

fn config(core: CoreId, shape: &Shape, n: usize) -> CoreConfig {
    let wal_bytes_max = 12 * WAL_CHUNK_BYTES;
    CoreConfig {
        core,
        raft_id: raft_id(n),
        voters: (0..shape.brokers).map(raft_id).collect(),
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

/// A cluster's groups do not wait for long for others to join: brokers come and go every few seconds. And members of
/// KIP-848, which beat as often as they are told to, are taken for dead as soon as classic ones.
fn groups(shape: &Shape) -> GroupSettings {
    let given = GroupSettings {
        consumer_session_timeout: Duration::from_secs(6),
        consumer_heartbeat_interval: Duration::from_millis(500),
        ..GroupSettings::default()
    };
    if shape.is_cluster() { GroupSettings { initial_delay: Duration::from_millis(200), ..given } } else { given }
}

fn members(shape: &Shape) -> Vec<Member> {
    let member = |n| Member { id: broker_id(n), advertised: (ip(n).to_string(), PORT), peer: peer_addr(n) };
    (0..shape.brokers).map(member).collect()
}

/// Of the data directory that this broker has after it has lost so many.
fn directory_id(n: usize, lost: u8) -> DirectoryId {
    DirectoryId::from_bytes([[1 + n as u8; 8], [lost; 8]].concat().try_into().expect("16 bytes"))
}

fn roll(shape: &Shape, n: usize, (own, kept): &(DirectoryId, InMemory)) -> Roll {
    let others = (0..shape.brokers).filter(|other| *other != n).map(broker_id).collect();
    Roll::new(*own, others, kept.known(), Box::new(kept.clone()))
}

fn broker(shape: &Shape, n: usize, directory: &(DirectoryId, InMemory)) -> Broker {
    let data = (0..SHARDS_PER_CORE).flat_map(|_| (0..shape.cores).map(|core| CoreId(core as u16)));
    let table = ShardTable::new(std::iter::once(CoreId(0)).chain(data).collect());
    Broker {
        settings: Settings {
            broker: broker_id(n),
            cluster_id: CLUSTER.to_owned(),
            rack: None,
            num_partitions: 1,
            default_replication_factor: 1,
            auto_create_topics: false,
            message_bytes_max: 1 << 20,
            fetch_sessions_max: 1_000,
            fetch_bytes_max: 55 << 20,
            given: vec![],
            groups: groups(shape),
            offset_metadata_bytes_max: 4096,
        },
        shards: Arc::new(table),
        cores: shape.cores,
        listeners: vec![Listener { addr: addr(n), advertised: (ip(n).to_string(), PORT) }],
        brokers: members(shape),
        peer_listen: shape.is_cluster().then(|| peer_addr(n)),
        roll: shape.is_cluster().then(|| Arc::new(roll(shape, n, directory))),
        stopping: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        clients_bytes_max: shape.clients_bytes_max,
        frame_bytes_max: 16 * 1024 * 1024,
        idle_max: Duration::from_secs(600),
    }
}
