//! `camus serve`: everything around the cores, in the order in which a start goes.
//!
//! Settings, the data directory and its lock, the HTTP port, the cores, the ready line; then it waits for a reason to
//! end, and ends within the time for stopping.

use crate::board::Board;
use crate::data_dir::{self, Claim, DataDir, Identity};
use crate::errors::{self, UserError};
use crate::http::Http;
use crate::memory::Budgets;
use crate::out;
use crate::process;
use crate::roll;
use crate::settings::{ClusterBroker, Host, IoAsked, Listener, Settings};
use crate::shutdown::{Shutdown, Why, watch_signals};
use camus_engine::rt::IoChoice;
use camus_engine::types::BrokerId;
use camus_net::node::Member;
use camus_net::peer::roll::Roll;
use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Everything that the cores need to know, decided.
#[derive(Clone, Debug)]
pub struct Plan {
    pub settings: Settings,
    pub identity: Identity,
    pub data_dir: PathBuf,
    /// For each core the CPU it is pinned to, if any, and the directory of its write-ahead log.
    pub cores: Vec<CorePlan>,
    /// Of each core.
    pub budgets: Budgets,
    /// Segments that each core's log may have.
    pub wal_segments_max: usize,
    /// Connections of each core.
    pub connections_max: usize,
    /// Fetch sessions of each core.
    pub fetch_sessions_max: usize,
    /// Where to listen: each listener, resolved.
    pub listeners: Vec<SocketAddr>,
    /// The brokers of the cluster, by id, this one among them; nobody if it is alone.
    pub members: Vec<Member>,
    /// In a cluster, where core 0 lets the others connect; core N at the port + N.
    pub peer_listen: Option<SocketAddr>,
    /// In a cluster: which data directories the brokers have.
    pub roll: Option<Arc<Roll>>,
}

impl Plan {
    /// Which shell the cores may run under.
    pub fn io(&self) -> IoChoice {
        match self.settings.io {
            IoAsked::Auto => IoChoice::Auto,
            IoAsked::Uring => IoChoice::Uring,
            IoAsked::Blocking => IoChoice::Blocking,
            IoAsked::Glommio => IoChoice::Glommio,
        }
    }

    /// What clients of the listener at this place are told to connect to; `bound` is where it listens.
    pub fn advertised(&self, listener: usize, bound: SocketAddr) -> (String, u16) {
        match (self.settings.advertised.get(listener), self.settings.listeners.get(listener)) {
            (Some(advertised), _) => (advertised.host.clone(), advertised.port),
            (None, Some(named)) => (named.host.clone(), bound.port()),
            (None, None) => (bound.ip().to_string(), bound.port()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CorePlan {
    pub cpu: Option<usize>,
    pub dir: PathBuf,
}

/// The running cores.
pub trait Cores {
    /// Where each listener is bound, in the order of [`Plan::listeners`]; what port 0 became.
    fn bound(&self) -> Vec<SocketAddr>;
    /// Accepts nothing more, finishes what is in flight, joins the threads. `Err`: what was left when the time was up.
    fn stop(self: Box<Self>, within: Duration) -> Result<(), String>;
}

/// Starts the cores; returns when they serve, or with what does not let them. Returns early, with any error, when
/// `shutdown` is asked while they still start.
pub type StartCores<'a> = &'a dyn Fn(&Plan, &Arc<Board>, &Arc<Shutdown>) -> Result<Box<dyn Cores>, UserError>;

/// Runs the broker until it is asked to end. The data directory is this process's until this returns.
pub fn run(settings: Settings, shutdown: &Arc<Shutdown>, start_cores: StartCores<'_>) -> Result<(), UserError> {
    let host = Host::here(&settings.data_dir);
    let mut data_dir = DataDir::open(&settings.data_dir)?;
    let plan = plan(settings, &host, &mut data_dir)?;
    say_what_follows_from_nothing(&plan.settings);
    let http_max = process::http_connections_max(process::raise_limits());
    let board = Arc::new(Board::new(plan.cores.len(), plan.budgets));
    let http = start_http(&plan.settings.http, &board, http_max)?;
    watch_signals(Arc::clone(shutdown)).map_err(|e| errors::runtime(0, &format!("signals can not be watched: {e}")))?;

    let started = start_cores(&plan, &board, shutdown);
    let cores = match (started, shutdown.is_asked()) {
        (Ok(cores), _) => cores,
        // Asked to end while it started: nothing was acknowledged, so nothing is left to do.
        (Err(_), true) => return ended(shutdown),
        (Err(error), false) => return Err(error),
    };
    let bound = cores.bound();
    let kafka = match bound.first() {
        Some(addr) => addr.to_string(),
        None => plan.settings.listeners[0].to_string(),
    };
    out::line(format!("camus ready kafka={kafka} http={} cluster={}", http.addr, plan.identity.cluster_id));
    if std::io::stdout().is_terminal() {
        for line in first_steps(&kafka, &std::env::args().next().unwrap_or_else(|| "camus".to_owned())) {
            out::line(line);
        }
    }

    shutdown.wait();
    board.set_stopping();
    let stopped = cores.stop(Duration::from_millis(plan.settings.shutdown_timeout_ms));
    // What failed comes first: that not everything was finished follows from it.
    ended(shutdown)?;
    stopped.map_err(|left| errors::stop_timeout(plan.settings.shutdown_timeout_ms, &left))
}

fn ended(shutdown: &Shutdown) -> Result<(), UserError> {
    match shutdown.wait() {
        Why::Signal(_) => Ok(()),
        Why::Failed(error) => Err(error),
    }
}

/// What to do first, as lines to paste.
fn first_steps(kafka: &str, program: &str) -> [String; 3] {
    [
        format!("echo 'hello, camus' | kcat -b {kafka} -t hello -P"),
        format!("kcat -b {kafka} -t hello -C -o beginning -e"),
        format!("{program} topic describe hello --bootstrap {kafka}"),
    ]
}

fn say_what_follows_from_nothing(settings: &Settings) {
    for (name, why) in &settings.without_effect {
        tracing::warn!("{name} is accepted, but nothing follows from it yet: {why}");
    }
}

/// Decides everything that can be decided before a thread runs, and makes the directory this broker's.
fn plan(settings: Settings, host: &Host, data_dir: &mut DataDir) -> Result<Plan, UserError> {
    let cpus = settings.core_cpus(host, data_dir.identity().map(|i| i.cores))?;
    let cores = cpus.len();
    let budgets = settings.budgets(host, cores)?;
    let wal_segments_max = settings.wal_segments_max(cores)?;
    let listeners = settings.listeners.iter().map(|l| resolve("listeners", l)).collect::<Result<_, _>>()?;
    let new_id = data_dir::new_cluster_id().map_err(|e| errors::data_dir_io(data_dir.path(), "drawing its id", &e))?;
    let members = settings.brokers.iter().map(member).collect::<Result<Vec<_>, _>>()?;
    let peer_listen = settings.peer_listen.as_ref().map(|listen| resolve("camus.peer.listen", listen)).transpose()?;
    for addr in members.iter().map(|member| member.peer).chain(peer_listen) {
        if usize::from(addr.port()) + cores > usize::from(u16::MAX) {
            return Err(errors::contradiction(
                &format!("{addr} leaves no ports for {cores} cores"),
                "camus.cluster.brokers",
                "other brokers connect to each core: to this port and those after it",
                "camus settings camus.cluster.brokers",
            ));
        }
    }
    let identity = data_dir.claim_as(Claim {
        fresh_id: &new_id,
        cluster_id: settings.cluster_id.as_deref(),
        node_id: settings.node_id_given.then_some(settings.node_id),
        cores,
        brokers: &settings.brokers.iter().map(|broker| broker.id).collect::<Vec<_>>(),
    })?;
    let roll = roll::read(data_dir.path(), &identity)?.map(Arc::new);
    let core_plan = |(core, cpu): (usize, &Option<usize>)| CorePlan {
        cpu: *cpu,
        dir: data_dir.core_dir(camus_engine::types::CoreId(core as u16)),
    };
    Ok(Plan {
        identity,
        data_dir: data_dir.path().to_path_buf(),
        cores: cpus.iter().enumerate().map(core_plan).collect(),
        budgets,
        wal_segments_max,
        connections_max: settings.connections_max.div_ceil(cores),
        fetch_sessions_max: settings.fetch_sessions_max.div_ceil(cores),
        listeners,
        members,
        peer_listen,
        roll,
        settings,
    })
}

fn member(broker: &ClusterBroker) -> Result<Member, UserError> {
    Ok(Member {
        id: BrokerId(broker.id),
        advertised: (broker.clients.host.clone(), broker.clients.port),
        peer: resolve("camus.cluster.brokers", &broker.peers)?,
    })
}

/// The one address of a listener.
pub fn resolve(setting: &str, listener: &Listener) -> Result<SocketAddr, UserError> {
    let failed = |e: &std::io::Error| errors::listen(setting, &listener.to_string(), e);
    let mut addrs = (listener.host.as_str(), listener.port).to_socket_addrs().map_err(|e| failed(&e))?;
    // A name with both kinds of address: the first one of IPv4, which clients try as well.
    let all: Vec<SocketAddr> = addrs.by_ref().collect();
    let chosen = all.iter().find(|a| a.is_ipv4()).or(all.first());
    chosen.copied().ok_or_else(|| failed(&std::io::Error::other("the name has no address")))
}

fn start_http(address: &Listener, board: &Arc<Board>, connections_max: usize) -> Result<Http, UserError> {
    let addr = resolve("camus.http", address)?;
    TcpListener::bind(addr)
        .and_then(|listener| Http::start(listener, Arc::clone(board), connections_max))
        .map_err(|e| errors::listen("camus.http", &addr.to_string(), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;
    use std::path::Path;

    fn settings(dir: &Path, more: &[(&str, &str)]) -> Settings {
        let dir = dir.display().to_string();
        let all = [("camus.data.dir", dir.as_str()), ("camus.http", "127.0.0.1:0"), ("camus.cores", "1")];
        let flag = |(n, v): &(&str, &str)| ((*n).to_owned(), (*v).to_owned(), "flag".to_owned());
        let flags = all.iter().chain(more).map(flag).collect();
        Settings::resolve(&Sources { flags, ..Sources::default() }).expect("valid")
    }

    struct Fake {
        left: Option<String>,
    }

    impl Cores for Fake {
        fn bound(&self) -> Vec<SocketAddr> {
            vec![SocketAddr::from(([127, 0, 0, 1], 9))]
        }
        fn stop(self: Box<Self>, _within: Duration) -> Result<(), String> {
            self.left.map_or(Ok(()), Err)
        }
    }

    fn run_with(left: Option<&str>, why: Why) -> Result<(), UserError> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shutdown = Arc::new(Shutdown::default());
        run(settings(dir.path(), &[]), &shutdown, &|plan, _, shutdown| {
            assert_eq!(plan.identity.cores, 1);
            assert!(plan.cores[0].dir.is_dir(), "the core finds its directory");
            shutdown.ask(why.clone());
            Ok(Box::new(Fake { left: left.map(str::to_owned) }))
        })
    }

    #[test]
    fn an_orderly_end_is_no_error() {
        run_with(None, Why::Signal(15)).expect("exit status 0");
    }

    /// If this fails, a storage error or unfinished work ends with the status of an orderly stop.
    #[test]
    fn what_failed_is_the_status_and_unfinished_work_has_its_own() {
        let storage = errors::storage("core-0/000001.wal at 0", "write: EIO");
        assert_eq!(run_with(None, Why::Failed(storage.clone())).expect_err("it failed"), storage);
        assert_eq!(run_with(Some("2 answers"), Why::Failed(storage.clone())).expect_err("it failed"), storage);
        assert_eq!(
            run_with(Some("2 answers"), Why::Signal(15)).expect_err("unfinished").status,
            errors::exit::STOP_TIMEOUT
        );
    }

    /// If this fails, a start that is refused leaves a lock or a port behind, or tells the wrong reason.
    #[test]
    fn a_start_that_fails_gives_the_directory_back() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shutdown = Arc::new(Shutdown::default());
        let error = run(settings(dir.path(), &[]), &shutdown, &|_, _, _| Err(errors::runtime(0, "no io_uring")));
        assert_eq!(error.expect_err("refused").status, errors::exit::RUNTIME);
        DataDir::open(dir.path()).expect("the lock is free");
    }

    #[test]
    fn the_plan_shares_the_brokers_limits_out_over_its_cores() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host { cpus: vec![0, 1, 2, 3], memory_bytes: 8 << 30, disk_cpu: None };
        let more = [("camus.cores", "2"), ("max.connections", "101"), ("camus.wal.disk.limit", "1GiB")];
        let mut data_dir = DataDir::open(dir.path()).expect("new");
        let plan = plan(settings(dir.path(), &more), &host, &mut data_dir).expect("possible");
        assert_eq!(plan.cores.len(), 2);
        assert_eq!(plan.cores[1].cpu, Some(1));
        assert_eq!(plan.connections_max, 51);
        assert_eq!(plan.wal_segments_max, 8);
        assert_eq!(plan.fetch_sessions_max, 500);
        assert_eq!(plan.listeners, [SocketAddr::from(([127, 0, 0, 1], 9092))]);
        assert_eq!(plan.identity.node_id, 1);
        assert_eq!(plan.io(), IoChoice::Auto);
    }

    /// If this fails, clients are sent to an address where nobody listens.
    #[test]
    fn clients_are_told_what_is_advertised_or_else_where_it_listens() {
        let host = Host { cpus: vec![0], memory_bytes: 8 << 30, disk_cpu: None };
        let told = |more: &[(&str, &str)]| {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let mut data_dir = DataDir::open(dir.path()).expect("new");
            let plan = plan(settings(dir.path(), more), &host, &mut data_dir).expect("possible");
            plan.advertised(0, SocketAddr::from(([127, 0, 0, 1], 4711)))
        };
        assert_eq!(told(&[("listeners", "localhost:0")]), ("localhost".to_owned(), 4711), "what port 0 became");
        let advertised = [("listeners", "0.0.0.0:9092"), ("advertised.listeners", "broker.example:19092")];
        assert_eq!(told(&advertised), ("broker.example".to_owned(), 19092));
    }

    /// If this fails, a start that can not go on has already made the directory another broker's.
    #[test]
    fn a_refused_plan_claims_nothing() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host { cpus: vec![0], memory_bytes: 8 << 30, disk_cpu: None };
        let mut data_dir = DataDir::open(dir.path()).expect("new");
        let error = plan(settings(dir.path(), &[("camus.cores", "7-8")]), &host, &mut data_dir);
        assert_eq!(error.expect_err("no such CPU").code, "CAM-0004");
        assert_eq!(data_dir::read_identity(dir.path()).expect("readable"), None);
    }

    #[test]
    fn the_first_steps_can_be_pasted() {
        let steps = first_steps("127.0.0.1:9092", "target/release/camus");
        assert!(steps[0].starts_with("echo "));
        assert!(steps.iter().all(|s| s.contains("127.0.0.1:9092") && !s.contains('\n')));
    }
}
