//! The cores: one pinned thread each, with its WAL, its shards and its connections.
//!
//! Each core reads its own WAL on its own thread, side by side with the others; all listen when all serve.

use crate::board::{Board, DiskState, Phase};
use crate::errors::{self, UserError};
use crate::process;
use crate::serve::{self, Plan};
use crate::shutdown::{Shutdown, Why};
use camus_engine::io::RealVolume;
use camus_engine::io::buf::ChunkPool;
use camus_engine::limits;
use camus_engine::rt::mesh::{Port, mesh};
use camus_engine::rt::{self, Bell, CoreHandle, Driver, Event, IoChoice, Rt, RtError, ShellKind, Turn, spawn_core};
use camus_engine::shard::api::ShardTable;
use camus_engine::shard::core::{Core, CoreConfig, RecoverError};
use camus_engine::stats::CoreStats;
use camus_engine::types::{BrokerId, CoreId, Lsn, ShardId};
use camus_engine::wal::{WalConfig, WalError};
use camus_meta::groups::GroupSettings;
use camus_net::api::Settings;
use camus_net::meta_host::MetaHost;
use camus_net::node::{Broker, Listener, Msg, Node, Report};
use camus_net::peer::hub::peer_addr;
use camus_net::peer::raft_id;
use camus_net::peer::roll::DirectoryId;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How often the main thread looks whether the cores came up, or have ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// In a cluster: from then on it is said what the start waits for. A multiple of [`LOOK_EVERY`].
const WAITS_AFTER: Duration = Duration::from_secs(2);

/// A log without room for its first records for this long will not get it by itself.
const NO_ROOM_AFTER: Duration = Duration::from_secs(3);

/// The running cores. Owned by the main thread.
struct Running {
    broker: Arc<Broker>,
    board: Arc<Board>,
    bells: Vec<Bell>,
    handles: Vec<CoreHandle>,
    bound: Vec<SocketAddr>,
    /// Hold the ports, so that nobody else gets one between a core's end and ours.
    _reserved: Vec<Socket>,
}

/// Starts every core; returns when all of them serve, or with the first thing that does not let them.
pub fn start(plan: &Plan, board: &Arc<Board>, shutdown: &Arc<Shutdown>) -> Result<Box<dyn serve::Cores>, UserError> {
    let count = plan.cores.len();
    let connections_max = connections_max(plan);
    let cluster = crate::data_dir::uuid_of(&plan.identity.cluster_id)
        .ok_or_else(|| errors::data_dir_identity(&plan.data_dir, "its cluster id is no id"))?;
    let (mut reserved, bound) = reserve("listeners", &plan.listeners)?;
    let of_peers = |addr: SocketAddr| (0..count).map(move |core| peer_addr(addr, CoreId(core as u16)));
    let peer_ports: Vec<SocketAddr> = plan.peer_listen.into_iter().flat_map(of_peers).collect();
    reserved.extend(reserve("camus.peer.listen", &peer_ports)?.0);
    let broker = Arc::new(broker(plan, &bound));
    let runtime = |core: usize, e: &dyn std::fmt::Display| errors::runtime(core as u16, &e.to_string());
    let bells: Vec<Bell> =
        (0..count).map(|core| Bell::new().map_err(|e| runtime(core, &e))).collect::<Result<_, _>>()?;
    let mut ports: Vec<Port<Msg>> = mesh(count);
    for port in &mut ports {
        port.set_wakers(bells.iter().map(Bell::waker).collect());
    }
    let (told, recovered) = mpsc::sync_channel(count);
    let mut running =
        Running { broker, board: Arc::clone(board), bells, handles: Vec::new(), bound, _reserved: reserved };
    for (n, port) in ports.into_iter().enumerate() {
        let core = CoreId(n as u16);
        let pool = ChunkPool::new(plan.budgets.wal_bytes);
        let mut config = rt::CoreConfig::new(core, plan.cores[n].dir.clone(), running.bells[n].clone());
        config.pin = plan.cores[n].cpu;
        config.conns_max = connections_max;
        config.durable = plan.settings.sync_method;
        config.regions = Some(pool.regions());
        config.stats = Arc::clone(&board.cores[n].stats);
        let make = Make {
            core,
            cluster,
            cluster_id: plan.identity.cluster_id.clone(),
            data_dir: plan.data_dir.clone(),
            dir: plan.cores[n].dir.clone(),
            segment_bytes: plan.settings.wal_segment_bytes,
            segments_max: plan.wal_segments_max,
            wal_bytes: plan.budgets.wal_bytes,
            reads_bytes: plan.budgets.reads_bytes,
            index_bytes: plan.budgets.index_bytes,
            broker: Arc::clone(&running.broker),
            stats: Arc::clone(&board.cores[n].stats),
            said: Said {
                core,
                broker: Arc::clone(&running.broker),
                board: Arc::clone(board),
                shutdown: Arc::clone(shutdown),
                data_dir: plan.data_dir.clone(),
                runs: Cell::new(false),
            },
        };
        board.cores[n].set_phase(Phase::Recovering);
        let told = told.clone();
        let driver = move |_waker| -> Box<dyn Driver> {
            match make.node(pool, port) {
                Ok(node) => {
                    // The main thread waits for one word of each core; if it is gone, nobody wants it.
                    let _ = told.send(Ok(()));
                    Box::new(node)
                }
                Err(error) => {
                    let _ = told.send(Err(error));
                    Box::new(Halt)
                }
            }
        };
        let io = io_choice(&running.handles, plan.io());
        let handle = match spawn_core(io, config, driver) {
            Ok(handle) => handle,
            Err(error) if n == 0 => return Err(errors::of_rt(core, &error)),
            Err(error) => end_at_once(&errors::of_rt(core, &error)),
        };
        if n == 0 && handle.kind == ShellKind::Poll && plan.io() == IoChoice::Auto {
            tracing::warn!("io_uring can not be used here: going on with epoll and blocking disk calls (slower)");
        }
        running.handles.push(handle);
    }
    drop(told);
    for core in 0..count {
        let word = recovered.recv().unwrap_or_else(|_| Err(errors::core_failed(core as u16, "its thread ended")));
        if let Err(error) = word {
            // None of them listens, so nothing was acknowledged and nobody needs to be waited for: a sound core would
            // wait out its grace, for those that never come up.
            end_at_once(&error);
        }
    }
    let mut waited = Duration::ZERO;
    while !running.are_serving() {
        waited += LOOK_EVERY;
        if waited == WAITS_AFTER
            && let Some(roll) = &plan.roll
        {
            let until = if roll.is_formed() { "a majority is there" } else { "all of them have been there once" };
            tracing::info!("waiting for the other brokers: clients are let in when {until}");
        }
        if waited > NO_ROOM_AFTER
            && let Some(core) = running.board.cores.iter().position(|c| c.disk() == DiskState::NoSpace && !c.leads())
        {
            let needed = plan.settings.wal_segment_bytes;
            let why = "the file system is full, or camus.wal.disk.limit is reached and nothing can be freed";
            end_at_once(&errors::disk_full_at_start(&plan.cores[core].dir, needed, why));
        }
        if shutdown.is_asked() {
            running.abandon(shutdown);
            // any error will do: whoever asked is told why it ended
            return Err(errors::core_failed(0, "it was asked to stop while it started"));
        }
        #[allow(clippy::disallowed_methods)] // the main thread has nothing else to do
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(Box::new(running))
}

/// Connections of each core: what the settings give it, or less where there are no descriptors for so many.
fn connections_max(plan: &Plan) -> usize {
    let descriptors = match rt::raise_descriptor_limit() {
        Ok(descriptors) => descriptors,
        Err(error) => {
            tracing::warn!(%error, "how many descriptors are allowed can not be asked");
            return plan.connections_max;
        }
    };
    let (cores, asked) = (plan.cores.len(), plan.connections_max);
    let others = plan.members.len().saturating_sub(1);
    let possible = process::connections_max(descriptors, cores, plan.listeners.len(), others);
    if possible < asked {
        tracing::warn!(
            "{descriptors} descriptors are allowed: each core takes {possible} connections, not {asked}; raise \
             `ulimit -Hn`"
        );
    }
    asked.min(possible)
}

/// Shard 0 on core 0, and [`limits::SHARDS_PER_CORE`] data shards on each core.
fn shard_table(cores: usize) -> ShardTable {
    let data = (0..limits::SHARDS_PER_CORE).flat_map(|_| (0..cores).map(|core| CoreId(core as u16)));
    ShardTable::new(std::iter::once(CoreId(0)).chain(data).collect())
}

fn broker(plan: &Plan, bound: &[SocketAddr]) -> Broker {
    let settings = &plan.settings;
    let cores = plan.cores.len();
    let listener = |(n, addr): (usize, &SocketAddr)| Listener { addr: *addr, advertised: plan.advertised(n, *addr) };
    let listeners = bound.iter().enumerate().map(listener).collect();
    Broker {
        settings: Settings {
            broker: BrokerId(plan.identity.node_id),
            cluster_id: plan.identity.cluster_id.clone(),
            rack: settings.rack.clone(),
            num_partitions: settings.num_partitions,
            default_replication_factor: settings.default_replication_factor,
            auto_create_topics: settings.auto_create_topics,
            message_bytes_max: settings.message_bytes_max,
            fetch_sessions_max: plan.fetch_sessions_max,
            fetch_bytes_max: settings.fetch_bytes_max,
            offset_metadata_bytes_max: settings.offset_metadata_bytes_max,
            groups: GroupSettings {
                members_bytes_max: settings.groups.members_bytes_max.min(plan.budgets.groups_bytes / 2),
                offsets_bytes_max: plan.budgets.groups_bytes / 2,
                ..settings.groups
            },
            given: given(plan),
        },
        shards: Arc::new(shard_table(cores)),
        cores,
        listeners,
        stopping: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        clients_bytes_max: plan.budgets.clients_bytes,
        idle_max: Duration::from_millis(settings.connections_idle_ms_max),
        frame_bytes_max: limits::FRAME_BYTES_MAX.min(plan.budgets.clients_bytes / 2),
        brokers: plan.members.clone(),
        peer_listen: plan.peer_listen,
        roll: plan.roll.clone(),
    }
}

/// The settings, and under Kafka's name what its tools look for there.
fn given(plan: &Plan) -> Vec<(String, String)> {
    let directory = std::path::absolute(&plan.data_dir).unwrap_or_else(|_| plan.data_dir.clone());
    let mut given = plan.settings.pairs().to_vec();
    given.push(("log.dirs".to_owned(), directory.display().to_string()));
    given
}

/// How long the port of a broker that was just killed may stay taken: its ring is taken down after it is gone, and with
/// it its listeners.
const PORT_FREE_AFTER: Duration = Duration::from_secs(5);

/// Binds each address without listening: what port 0 became is known, and the port is ours, before a core starts.
fn reserve(setting: &str, listeners: &[SocketAddr]) -> Result<(Vec<Socket>, Vec<SocketAddr>), UserError> {
    let bind = |addr: SocketAddr| -> io::Result<(Socket, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        // Shared with our cores only after it is bound: another broker that listens there refuses it, instead of
        // sharing its clients with us.
        socket.bind(&SockAddr::from(addr))?;
        socket.set_reuse_port(true)?;
        let bound = socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("no internet address"))?;
        Ok((socket, bound))
    };
    let bind_soon = |addr: SocketAddr| {
        let mut waited = Duration::ZERO;
        loop {
            match bind(addr) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && waited < PORT_FREE_AFTER => {
                    #[allow(clippy::disallowed_methods)] // the main thread has nothing else to do
                    std::thread::sleep(LOOK_EVERY);
                    waited += LOOK_EVERY;
                }
                done => return done.map_err(|error| errors::listen(setting, &addr.to_string(), &error)),
            }
        }
    };
    let bound: Vec<(Socket, SocketAddr)> = listeners.iter().map(|addr| bind_soon(*addr)).collect::<Result<_, _>>()?;
    Ok(bound.into_iter().unzip())
}

/// All cores run under one shell: the one that the first came up under.
fn io_choice(started: &[CoreHandle], asked: IoChoice) -> IoChoice {
    match started.first().map(|first| first.kind) {
        Some(ShellKind::Uring) => IoChoice::Uring,
        Some(ShellKind::Poll) => IoChoice::Blocking,
        Some(ShellKind::Glommio) => IoChoice::Glommio,
        None => asked,
    }
}

/// What a core's thread makes its node from.
struct Make {
    core: CoreId,
    cluster: [u8; 16],
    cluster_id: String,
    data_dir: PathBuf,
    dir: PathBuf,
    segment_bytes: u64,
    segments_max: usize,
    wal_bytes: usize,
    reads_bytes: usize,
    index_bytes: usize,
    broker: Arc<Broker>,
    stats: Arc<CoreStats>,
    said: Said,
}

impl Make {
    /// Reads the WAL and puts the node together. On the core's thread.
    fn node(self, pool: ChunkPool, port: Port<Msg>) -> Result<Node, UserError> {
        let Make { core, broker, stats, said, .. } = self;
        let volume = RealVolume::open(&self.dir, true)
            .map_err(|error| errors::data_dir_io(&self.dir, "opening the write-ahead log", &error))?;
        let own_id = raft_id(broker.settings.broker);
        let voters = match &broker.brokers[..] {
            [] => vec![own_id],
            brokers => brokers.iter().map(|member| raft_id(member.id)).collect(),
        };
        let config = CoreConfig {
            core,
            raft_id: own_id,
            voters,
            wal: WalConfig {
                cluster: self.cluster,
                core,
                segment_bytes: self.segment_bytes,
                segments_max: self.segments_max,
                spares_max: (self.segments_max / limits::WAL_SPARES_KEPT_DIVISOR).max(limits::WAL_SPARE_SEGMENTS_MAX),
                cache_bytes: self.wal_bytes / 2,
                beside_bytes: limits::WAL_GROUP_BESIDE_BYTES,
            },
            wal_bytes_max: self.wal_bytes,
            reads_bytes_max: self.reads_bytes,
            index_bytes_max: self.index_bytes,
        };
        let seed = crate::data_dir::random_u64()
            .map_err(|error| errors::data_dir_io(&self.dir, "drawing a random number", &error))?;
        let (pump, recovered) =
            Core::recover(config, Arc::clone(&broker.shards), Arc::clone(&stats), &volume, pool, seed)
                .map_err(|error| refused(&self.data_dir, core, &error))?;
        if pump.wal().durable() == Lsn(0) && crate::data_dir::was_begun(&self.data_dir, core)? {
            return Err(errors::wal_missing(&self.dir, core, errors::NO_GROUP_LEFT));
        }
        let meta = if core == CoreId(0) {
            let data = (1..broker.shards.len() as u32).map(ShardId).collect();
            let host = MetaHost::recover(
                self.cluster_id,
                data,
                broker.cores,
                broker.settings.message_bytes_max,
                broker.settings.groups,
                recovered,
            )
            .map_err(|error| {
                errors::wal_damaged(&self.data_dir, &self.dir.display().to_string(), &error.to_string())
            })?;
            Some(host)
        } else {
            None
        };
        Ok(Node::new(core, broker, stats, pump, meta, port, Box::new(said)))
    }
}

/// A start that what is on the disk does not allow.
fn refused(data_dir: &Path, core: CoreId, error: &RecoverError) -> UserError {
    match error {
        RecoverError::Wal(error) => errors::of_wal(data_dir, core, error),
        RecoverError::Inconsistent { directory, what } => errors::wal_damaged(data_dir, directory, what),
    }
}

/// What a core says of itself, for the health page and for the main thread. Ends with the core's node: a thread that
/// ends though nobody asked it to ends the process, since half a broker is worse than none.
struct Said {
    core: CoreId,
    broker: Arc<Broker>,
    board: Arc<Board>,
    shutdown: Arc<Shutdown>,
    data_dir: PathBuf,
    /// Its loop turns.
    runs: Cell<bool>,
}

impl Drop for Said {
    fn drop(&mut self) {
        if self.runs.get() {
            self.phase(Phase::Ended);
            if !self.broker.stopping.load(Ordering::Acquire) {
                let why = errors::core_failed(self.core.0, "its thread ended");
                self.shutdown.ask(Why::Failed(why));
            }
        }
    }
}

impl Said {
    fn phase(&self, phase: Phase) {
        self.board.cores[self.core.0 as usize].set_phase(phase);
    }
}

/// Tells the person, and ends the process as it is.
fn end_at_once(error: &UserError) -> ! {
    crate::out::error(error);
    #[allow(clippy::disallowed_methods)] // whatever other threads do, they do nothing more
    std::process::exit(i32::from(error.status))
}

impl Report for Said {
    fn recovered(&self) {
        self.runs.set(true);
        self.phase(Phase::Electing);
    }

    fn serving(&self) {
        self.board.cores[self.core.0 as usize].set_leads();
        // Its first records are on the media, and it does not listen yet.
        if let Err(error) = crate::data_dir::note_begun(&self.data_dir, self.core) {
            end_at_once(&errors::data_dir_io(&self.data_dir, "noting that a log was begun", &error));
        }
    }

    fn listening(&self) {
        self.phase(Phase::Serving);
    }

    fn has_space(&self, has: bool) {
        let disk = if has { DiskState::Writable } else { DiskState::NoSpace };
        self.board.cores[self.core.0 as usize].set_disk(disk);
        if has {
            tracing::info!(core = self.core.0, "the write-ahead log has room again: produce is accepted");
        } else {
            tracing::warn!(core = self.core.0, "the write-ahead log has no room: produce is refused until it has");
        }
    }

    fn disk_hangs(&self, hangs: bool) {
        self.board.cores[self.core.0 as usize].set_disk_hangs(hangs);
        if hangs {
            tracing::warn!(core = self.core.0, "the disk has not ended a write or a flush of the log for seconds");
        } else {
            tracing::info!(core = self.core.0, "the disk goes on");
        }
    }

    fn leaderless(&self, is: bool) {
        self.board.cores[self.core.0 as usize].set_leaderless(is);
        if is {
            tracing::warn!(
                core = self.core.0,
                "a shard has had no leader for seconds: is a majority of brokers there?"
            );
        } else {
            tracing::info!(core = self.core.0, "all shards have a leader again");
        }
    }

    fn stopping(&self) {
        self.phase(Phase::Stopping);
    }

    fn can_not_listen(&self, addr: SocketAddr, error: &io::Error) {
        let of_clients = self.broker.listeners.iter().any(|listener| listener.addr == addr);
        let setting = if of_clients { "listeners" } else { "camus.peer.listen" };
        self.shutdown.ask(Why::Failed(errors::listen(setting, &addr.to_string(), error)));
    }

    fn kept_out(&self, by: BrokerId, known: DirectoryId) {
        let me = self.broker.settings.broker.0;
        let own = self.broker.roll.as_ref().map_or(DirectoryId::NONE, |roll| roll.own()).to_string();
        let error = errors::disk_replaced(&self.data_dir, me, &own, by.0, &known.to_string());
        self.shutdown.ask(Why::Failed(error));
    }

    fn fatal(&self, error: &WalError) {
        self.board.cores[self.core.0 as usize].set_disk(DiskState::Failed);
        // Nothing may be acknowledged any more, on any core: not even a moment later.
        end_at_once(&errors::of_wal(&self.data_dir, self.core, error));
    }
}

impl Running {
    fn are_serving(&self) -> bool {
        self.board.cores.iter().all(|c| c.phase() == Phase::Serving)
    }

    /// Asked to end while it started. Where a core listens already, all may have acknowledged something: asks them to
    /// end, and waits for those that can. Else there is nothing to wait for.
    fn abandon(&mut self, shutdown: &Shutdown) {
        if !self.board.cores.iter().any(|c| c.phase() == Phase::Serving) {
            match shutdown.wait() {
                Why::Failed(error) => end_at_once(&error),
                #[allow(clippy::disallowed_methods)] // nothing of it is needed any more
                Why::Signal(_) => std::process::exit(i32::from(errors::exit::OK)),
            }
        }
        self.ask_to_stop();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }

    fn ask_to_stop(&self) {
        self.broker.stopping.store(true, Ordering::Release);
        for bell in &self.bells {
            bell.waker().wake();
        }
    }
}

impl serve::Cores for Running {
    fn bound(&self) -> Vec<SocketAddr> {
        self.bound.clone()
    }

    fn stop(mut self: Box<Self>, within: Duration) -> Result<(), String> {
        self.ask_to_stop();
        let mut left = within;
        while !self.handles.iter().all(CoreHandle::is_finished) && !left.is_zero() {
            #[allow(clippy::disallowed_methods)] // the main thread has nothing else to do
            std::thread::sleep(LOOK_EVERY);
            left = left.saturating_sub(LOOK_EVERY);
        }
        let late: Vec<String> =
            self.handles.iter().filter(|h| !h.is_finished()).map(|h| format!("core {}", h.core)).collect();
        if !late.is_empty() {
            return Err(format!("{} still has work in flight", late.join(", ")));
        }
        for handle in self.handles.drain(..) {
            handle.join().map_err(|error: RtError| error.to_string())?;
        }
        Ok(())
    }
}

/// Stands in for a node that could not be made: the core ends in its first turn.
struct Halt;

impl Driver for Halt {
    fn start(&mut self, _: &mut dyn Rt) {}
    fn event(&mut self, _: &mut dyn Rt, _: Event<'_>) {}
    fn turn_end(&mut self, _: &mut dyn Rt) -> Turn {
        Turn::Stop
    }
}
