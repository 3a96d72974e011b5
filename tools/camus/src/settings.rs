//! Every setting of the broker: one table, and the typed form that the rest of the binary reads.
//!
//! A setting comes from a flag, the environment, the file or its default, in that order. Kafka's names are used for
//! what Kafka has; what is Camus's own begins with `camus.`. An unknown key stops the start and names the nearest one.

use crate::doctor::reader::Reader;
use crate::errors::{self, UserError};
use crate::memory::{self, Budgets};
use camus_engine::io::DurableMethod;
use camus_engine::limits;
use camus_meta::groups::{GroupSettings, Migration};
use camus_meta::limits as group_limits;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What values a setting takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Bool,
    Int {
        min: i64,
        max: i64,
    },
    /// A size with a unit (`64MiB`) or plain bytes.
    Bytes {
        min: u64,
        max: u64,
    },
    /// The same, or `auto`.
    BytesOrAuto {
        min: u64,
        max: u64,
    },
    Choice(&'static [&'static str]),
    /// `auto`, a number of cores, or a list of CPUs (`0,2,4-7`).
    Cores,
    /// `[PLAINTEXT://]HOST:PORT`, several with commas.
    Listeners,
    /// `HOST:PORT`.
    Address,
    /// `ID@HOST:PORT/HOST:PORT`, several with commas.
    Brokers,
    /// A UUID in base64.
    ClusterId,
    Text,
}

/// Whether something follows from a setting yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Works,
    /// Taken, checked and shown to clients, but nothing follows from it yet; the text says what is missing.
    NotYet(&'static str),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    pub kind: Kind,
    /// As it would be written in the file; empty where there is none.
    pub default: &'static str,
    pub unit: &'static str,
    pub effect: Effect,
    pub doc: &'static str,
}

const NO_RETENTION: Effect =
    Effect::NotYet("records are kept until their topic is deleted or DeleteRecords removes them");
const ONE_BROKER: Effect = Effect::NotYet("each broker of the cluster keeps a copy of everything");

macro_rules! settings {
    ($($name:literal, $kind:expr, $default:literal, $unit:literal, $effect:expr, $doc:literal;)*) => {
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            kind: $kind,
            default: $default,
            unit: $unit,
            effect: $effect,
            doc: $doc,
        }),*];
    };
}

settings! {
    "node.id", Kind::Int { min: 0, max: i32::MAX as i64 }, "1", "", Effect::Works,
        "The number of this broker in its cluster. Remembered by the data directory.";
    "broker.rack", Kind::Text, "", "", Effect::Works,
        "Where the broker stands, as clients are told (client.rack).";
    "listeners", Kind::Listeners, "127.0.0.1:9092", "", Effect::Works,
        "Where Kafka clients connect. Flag --listen. Port 0 lets the system choose. Plaintext only: there is no TLS \
         and no authentication yet, so the default is the loopback.";
    "advertised.listeners", Kind::Listeners, "", "", Effect::Works,
        "What clients are told to connect to, one for each listener; as `listeners` where nothing is said. Needed \
         when a listener is 0.0.0.0 or [::].";
    "max.connections", Kind::Int { min: 1, max: 1_000_000 }, "10000", "connections", Effect::Works,
        "Client connections of the whole broker, shared out evenly over its cores. One too many is closed at once.";
    "connections.max.idle.ms", Kind::Int { min: 1_000, max: i64::MAX }, "600000", "ms", Effect::Works,
        "A connection that owes nothing and is owed nothing for this long is closed.";
    "num.partitions", Kind::Int { min: 1, max: limits::PARTITIONS_PER_TOPIC_MAX as i64 },
        "1", "partitions", Effect::Works,
        "Partitions of a topic that is made without a number.";
    "default.replication.factor", Kind::Int { min: 1, max: i16::MAX as i64 }, "1", "copies", ONE_BROKER,
        "Copies of a topic that is made without a number.";
    "auto.create.topics.enable", Kind::Bool, "true", "", Effect::Works,
        "Whether a producer's or consumer's question for a topic makes it. Where nothing is said it does so on a \
         broker that is alone, and not in a cluster: there a misspelt name would be a topic on every disk.";
    "message.max.bytes", Kind::Bytes { min: 1, max: limits::BATCH_BYTES_MAX as u64 }, "1048588", "bytes", Effect::Works,
        "The largest record batch, as sent (compressed). Topics may set max.message.bytes.";
    "fetch.max.bytes", Kind::Bytes { min: 1024, max: limits::FRAME_BYTES_MAX as u64 },
        "57671680", "bytes", Effect::Works,
        "What one fetch returns at most, whatever the client asks for; the first batch always fits.";
    "max.incremental.fetch.session.cache.slots", Kind::Int { min: 0, max: 1_000_000 },
        "1000", "sessions", Effect::Works,
        "Fetch sessions of the whole broker, shared out evenly over its cores. Without one a consumer sends full \
         fetches.";
    "group.initial.rebalance.delay.ms", Kind::Int { min: 0, max: 600_000 }, "3000", "ms", Effect::Works,
        "How long the first generation of an empty group waits for more members.";
    "group.min.session.timeout.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "6000", "ms", Effect::Works,
        "The shortest session timeout that a member may ask for.";
    "group.max.session.timeout.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "1800000", "ms", Effect::Works,
        "The longest session timeout that a member may ask for.";
    "group.max.size", Kind::Int { min: 1, max: group_limits::GROUP_MEMBERS_MAX as i64 },
        "10000", "members", Effect::Works,
        "Members of one group. One more is refused.";
    "group.consumer.session.timeout.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "45000", "ms", Effect::Works,
        "How long a member of a group of KIP-848 may be silent before it is taken out.";
    "group.consumer.min.session.timeout.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "45000", "ms", Effect::Works,
        "The shortest group.consumer.session.timeout.ms.";
    "group.consumer.max.session.timeout.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "60000", "ms", Effect::Works,
        "The longest group.consumer.session.timeout.ms.";
    "group.consumer.heartbeat.interval.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "5000", "ms", Effect::Works,
        "How often a member of a group of KIP-848 is told to be heard. After a restart of the broker a group that has \
         committed is given no partitions for as long, so that members of before have stopped reading.";
    "group.consumer.min.heartbeat.interval.ms", Kind::Int { min: 1, max: i32::MAX as i64 }, "5000", "ms", Effect::Works,
        "The shortest group.consumer.heartbeat.interval.ms.";
    "group.consumer.max.heartbeat.interval.ms", Kind::Int { min: 1, max: i32::MAX as i64 },
        "15000", "ms", Effect::Works,
        "The longest group.consumer.heartbeat.interval.ms.";
    "group.consumer.max.size", Kind::Int { min: 1, max: group_limits::GROUP_MEMBERS_MAX as i64 },
        "10000", "members", Effect::Works,
        "Members of one group of KIP-848. One more is refused.";
    "group.consumer.migration.policy", Kind::Choice(&["disabled", "upgrade", "downgrade", "bidirectional"]),
        "bidirectional", "", Effect::Works,
        "Which groups change their protocol while they have members. upgrade: a classic group of consumers when the \
         first member of KIP-848 joins. downgrade: the other way round when the last one leaves.";
    "offset.metadata.max.bytes", Kind::Bytes { min: 0, max: 32_767 }, "4096", "bytes", Effect::Works,
        "What a client may store beside a committed offset.";
    "offsets.retention.minutes", Kind::Int { min: 1, max: i32::MAX as i64 }, "10080", "minutes", Effect::Works,
        "How long committed offsets outlive the last of: their commit, the last member of their group, and a restart \
         of the broker.";
    "log.retention.hours", Kind::Int { min: -1, max: i32::MAX as i64 }, "168", "hours", NO_RETENTION,
        "How long records are kept; log.retention.minutes and log.retention.ms beat it. -1: for ever.";
    "log.retention.minutes", Kind::Int { min: -1, max: i32::MAX as i64 }, "", "minutes", NO_RETENTION,
        "The same in minutes.";
    "log.retention.ms", Kind::Int { min: -1, max: i64::MAX }, "", "ms", NO_RETENTION,
        "The same in milliseconds.";
    "log.retention.bytes", Kind::Int { min: -1, max: i64::MAX }, "-1", "bytes", NO_RETENTION,
        "How much of a partition is kept. -1: no limit.";
    "camus.data.dir", Kind::Text, "camus-data", "", Effect::Works,
        "Where everything lies that must survive. Flag --data-dir. One process has it at a time.";
    "camus.http", Kind::Address, "127.0.0.1:9644", "", Effect::Works,
        "Where /livez, /readyz and /metrics are. Flag --http.";
    "camus.cores", Kind::Cores, "auto", "cores", Effect::Works,
        "Pinned threads: a number, or the CPUs to use (`0,2,4-7`; one CPU as `3,`). Flag --cores. auto: what the \
         data directory was made with, or half the CPUs, 1 to 4, for a new one. The number can not change later. \
         Where one CPU takes all interrupts of the disk of the data, a number begins with that one.";
    "camus.memory", Kind::BytesOrAuto { min: memory::PER_CORE_BYTES_MIN, max: 1 << 44 }, "auto", "bytes", Effect::Works,
        "What buffers, caches, queues and indexes may hold, all cores together; at least 128 MiB for each core. \
         auto: a quarter of the memory, at most 1 GiB for each core.";
    "camus.wal.segment.bytes", Kind::Bytes { min: 2 * limits::WAL_RECORD_BYTES_MAX as u64, max: 1 << 30 },
        "64MiB", "bytes", Effect::Works,
        "Size of a segment file of the write-ahead log; rounded up to 4 KiB.";
    "camus.wal.disk.limit", Kind::Bytes { min: 256 << 20, max: 1 << 50 }, "8GiB", "bytes", Effect::Works,
        "What the write-ahead logs of this broker may take on the disk, shared out evenly over its cores; at least 4 \
         segments for each. At the limit produce is refused with a retriable error; in a cluster at three quarters \
         of it, since the rest is for what other brokers have taken.";
    "camus.wal.sync.method", Kind::Choice(&["auto", "dsync", "fsync", "adaptive"]), "auto", "", Effect::Works,
        "How io_uring makes a write of the log durable; all of them do. dsync: one write that the kernel makes \
         durable. fsync: a write and a flush linked to it. adaptive: dsync for a write alone on a core that rests, \
         else fsync. auto: dsync where the device has no volatile cache or takes single writes past it, else adaptive.";
    "camus.io", Kind::Choice(&["auto", "uring", "blocking"]), "auto", "", Effect::Works,
        "How the kernel is asked. auto: io_uring, or blocking calls where it is forbidden, saying so. uring: nothing \
         else will do. Flag --io.";
    "camus.shell", Kind::Choice(&["auto", "uring", "poll", "glommio"]), "auto", "", Effect::Works,
        "What drives a core, by name. auto: as camus.io says. uring: as camus.io = uring. poll: as camus.io = \
         blocking. glommio: for comparison, in builds with the cargo feature shell-glommio only; it stalls under load \
         (docs/adr/0001). Flag --shell.";
    "camus.shutdown.timeout.ms", Kind::Int { min: 100, max: 600_000 }, "8000", "ms", Effect::Works,
        "After SIGTERM: how long what is in flight may take.";
    "camus.log", Kind::Text, "info", "", Effect::Works,
        "What is logged to standard error: error, warn, info, debug, trace, or by module \
         (`info,camus_engine::wal=debug`).";
    "camus.cluster.brokers", Kind::Brokers, "", "", Effect::Works,
        "The brokers of a cluster, this one among them, the same list on each of them: the id (node.id), where clients \
         reach it, and behind a slash where the other brokers do. Core N of a broker is at the second port + N. Each \
         has a copy of everything; what a majority has on the disk is acknowledged. None for a broker that is alone. \
         Remembered by the data directory: the ids can not be changed later.";
    "camus.cluster.id", Kind::ClusterId, "", "", Effect::Works,
        "The cluster that a new data directory belongs to, 22 characters (`head -c 16 /dev/urandom | basenc \
         --base64url | tr -d =`). Needed with camus.cluster.brokers, the same on all of them; a broker that is alone \
         draws one.";
    "camus.peer.listen", Kind::Address, "", "", Effect::Works,
        "Where this broker lets the others of its cluster connect, core N at the port + N; the address that \
         camus.cluster.brokers has for it where nothing is said. Neither encrypted nor authenticated: for a network \
         that only brokers are in.";
}

/// Names that people bring along and that are called otherwise here.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("log.dirs", "camus.data.dir"),
    ("log.dir", "camus.data.dir"),
    ("broker.id", "node.id"),
    ("data.dir", "camus.data.dir"),
    ("http", "camus.http"),
    ("cores", "camus.cores"),
    ("memory", "camus.memory"),
    ("listen", "listeners"),
    ("port", "listeners"),
    ("num.network.threads", "camus.cores"),
    ("num.io.threads", "camus.cores"),
    ("log.segment.bytes", "camus.wal.segment.bytes"),
];

/// The environment variable of a setting: `CAMUS_` and the name in capitals, without a leading `camus.`.
pub fn env_name(name: &str) -> String {
    let own = name.strip_prefix("camus.").unwrap_or(name);
    format!("CAMUS_{}", own.replace('.', "_").to_uppercase())
}

/// Variables of ours that are not settings.
const ENV_CONFIG: &str = "CAMUS_CONFIG";
const ENV_TEST_PREFIX: &str = "CAMUS_TEST_";

/// The setting of this name.
pub fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|s| s.name == name)
}

/// The setting that was probably meant.
pub fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    if let Some((_, ours)) = OTHER_NAMES.iter().find(|(theirs, _)| *theirs == lower) {
        return Some(ours);
    }
    let likeness = |name: &str| {
        let own = name.strip_prefix("camus.").unwrap_or(name);
        strsim::jaro_winkler(name, &lower).max(strsim::jaro_winkler(own, &lower))
    };
    SETTINGS
        .iter()
        .map(|s| (likeness(s.name), s.name))
        .filter(|(likeness, _)| *likeness > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Where values come from, strongest last.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Path and text of the configuration file.
    pub file: Option<(PathBuf, String)>,
    /// The environment; what does not begin with `CAMUS_` is not looked at.
    pub env: Vec<(String, String)>,
    /// Name, value, and how it was written.
    pub flags: Vec<(String, String, String)>,
}

/// What the settings that say `auto` look at.
#[derive(Clone, Debug)]
pub struct Host {
    /// CPUs that this process may run on, ascending.
    pub cpus: Vec<usize>,
    pub memory_bytes: u64,
    /// The one CPU that takes all interrupts of the disk of the data, where a single one does.
    pub disk_cpu: Option<usize>,
}

impl Host {
    /// This machine, for data that lie there. The directory need not exist yet.
    pub fn here(data_dir: &Path) -> Host {
        let cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect();
        let cpus = if cpus.is_empty() { vec![0] } else { cpus };
        let absolute = std::path::absolute(data_dir).unwrap_or_default();
        let disk_cpu = absolute.ancestors().find_map(|dir| std::fs::metadata(dir).ok()).and_then(|found| {
            let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
            Reader::here().interrupt_cpu(major, minor, cpus.len())
        });
        Host { cpus, memory_bytes: memory::host_bytes(), disk_cpu }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// One of `camus.cluster.brokers`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterBroker {
    pub id: i32,
    /// Where clients reach it.
    pub clients: Listener,
    /// Where the other brokers do: its core 0.
    pub peers: Listener,
}

/// `camus.cores` as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CoresAsked {
    Auto,
    Number(usize),
    Cpus(Vec<usize>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoAsked {
    Auto,
    Uring,
    Blocking,
    Glommio,
}

/// What `camus.wal.sync.method` says; `None`: what the device asks for. Blocking calls have one way only.
fn sync_method(method: &Given, io: IoAsked, io_place: &str) -> Result<Option<DurableMethod>, UserError> {
    let asked = match method.value.as_str() {
        "dsync" => DurableMethod::Dsync,
        "fsync" => DurableMethod::LinkedFsync,
        "adaptive" => DurableMethod::Adaptive,
        _ => return Ok(None),
    };
    if io == IoAsked::Blocking {
        return Err(errors::contradiction(
            &format!("camus.wal.sync.method = {} does not go with blocking calls", method.value),
            &format!("{}, {io_place}", method.place),
            "a thread writes and then calls fdatasync: there is nothing to choose",
            "camus settings camus.wal.sync.method",
        ));
    }
    Ok(Some(asked))
}

/// What `camus.io` and `camus.shell` say together.
fn io_asked(io: &Given, shell: &Given) -> Result<IoAsked, UserError> {
    match (shell.value.as_str(), io.value.as_str()) {
        ("glommio", _) if !cfg!(feature = "shell-glommio") => Err(errors::bad_value(
            "camus.shell",
            "glommio",
            "this build has no shell on glommio; one with the cargo feature shell-glommio has: cargo build --release \
             -p camus --features shell-glommio",
            &shell.place,
        )),
        ("auto", "auto") => Ok(IoAsked::Auto),
        ("auto" | "uring", "uring") | ("uring", "auto") => Ok(IoAsked::Uring),
        ("auto" | "poll", "blocking") | ("poll", "auto") => Ok(IoAsked::Blocking),
        ("glommio", "auto" | "uring") => Ok(IoAsked::Glommio),
        (name, how) => Err(errors::contradiction(
            &format!("camus.shell = {name} does not go with camus.io = {how}"),
            &format!("{}, {}", shell.place, io.place),
            "the shell that is named asks the kernel in another way",
            "camus settings camus.shell",
        )),
    }
}

/// All settings, typed and checked against each other. What depends on the number of cores is asked for with it, since
/// the data directory may decide it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    pub node_id: i32,
    /// Whether somebody said it (the data directory decides otherwise).
    pub node_id_given: bool,
    pub rack: Option<String>,
    pub listeners: Vec<Listener>,
    /// One for each listener, or none at all: then a listener is advertised as it is bound.
    pub advertised: Vec<Listener>,
    pub connections_max: usize,
    pub connections_idle_ms_max: u64,
    pub num_partitions: i32,
    pub default_replication_factor: i16,
    pub auto_create_topics: bool,
    pub message_bytes_max: u32,
    pub fetch_bytes_max: u32,
    pub fetch_sessions_max: usize,
    pub groups: GroupSettings,
    pub offset_metadata_bytes_max: usize,
    pub data_dir: PathBuf,
    pub http: Listener,
    pub cores: CoresAsked,
    pub wal_segment_bytes: u64,
    pub wal_disk_limit_bytes: u64,
    pub io: IoAsked,
    /// How a write of the log is made durable; `None`: what a probe of the device finds.
    pub sync_method: Option<DurableMethod>,
    pub shutdown_timeout_ms: u64,
    pub log: String,
    /// By id; nobody if this broker is alone.
    pub brokers: Vec<ClusterBroker>,
    pub cluster_id: Option<String>,
    /// In a cluster, where this broker's core 0 lets the others connect.
    pub peer_listen: Option<Listener>,
    /// Settings that somebody set and from which nothing follows yet: name, why.
    pub without_effect: Vec<(&'static str, &'static str)>,
    memory_bytes: Option<u64>,
    memory_place: String,
    wal_disk_limit_place: String,
    pairs: Vec<(String, String)>,
}

/// A value and where it came from.
#[derive(Clone, Debug)]
struct Given {
    value: String,
    place: String,
    default: bool,
}

/// Whether the times of groups of KIP-848 are within their own bounds.
fn check_consumer_times(given: &BTreeMap<&'static str, Given>) -> Result<(), UserError> {
    const TIMES: [(&str, &str, &str, &str); 2] = [
        (
            "group.consumer.session.timeout.ms",
            "group.consumer.min.session.timeout.ms",
            "group.consumer.max.session.timeout.ms",
            "camus settings group.consumer.session.timeout.ms",
        ),
        (
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "camus settings group.consumer.heartbeat.interval.ms",
        ),
    ];
    let ms = |name: &str| given[name].value.parse::<i64>().expect("it was checked");
    for (name, least, most, run) in TIMES {
        if !(ms(least)..=ms(most)).contains(&ms(name)) {
            let places = [name, least, most].map(|name| &given[name]);
            let place = places.iter().find(|given| !given.default).map_or(&places[0].place, |given| &given.place);
            return Err(errors::contradiction(
                &format!("{name} is {} ms, and its bounds are {} to {} ms", ms(name), ms(least), ms(most)),
                place,
                "members would be told what the broker does not allow",
                run,
            ));
        }
    }
    let (session, interval) = ("group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms");
    if ms(session) <= ms(interval) {
        let place = if given[interval].default { &given[session].place } else { &given[interval].place };
        return Err(errors::contradiction(
            &format!("members are to be heard every {} ms, and are taken out after {} ms", ms(interval), ms(session)),
            place,
            "no member would stay in its group",
            "camus settings group.consumer.session.timeout.ms",
        ));
    }
    Ok(())
}

impl Settings {
    /// Reads all sources; refuses what is unknown, of the wrong type, out of range, or contradictory.
    pub fn resolve(sources: &Sources) -> Result<Settings, UserError> {
        let mut given: BTreeMap<&'static str, Given> = SETTINGS
            .iter()
            .map(|s| (s.name, Given { value: s.default.to_owned(), place: "default".to_owned(), default: true }))
            .collect();
        if let Some((path, text)) = &sources.file {
            for (name, value, line) in read_toml(path, text)? {
                let place = format!("{}:{line}", path.display());
                put(&mut given, &name, value, place)?;
            }
        }
        for (variable, value) in sources.env.iter().filter(|(v, _)| v.starts_with("CAMUS_")) {
            if variable == ENV_CONFIG || variable.starts_with(ENV_TEST_PREFIX) {
                continue;
            }
            let place = format!("environment: {variable}");
            match SETTINGS.iter().find(|s| env_name(s.name) == *variable) {
                Some(setting) => put(&mut given, setting.name, value.clone(), place)?,
                None => {
                    let name = variable["CAMUS_".len()..].to_lowercase().replace('_', ".");
                    let hint = nearest(&name).map(env_name);
                    return Err(errors::unknown_setting(variable, &place, hint.as_deref()));
                }
            }
        }
        for (name, value, place) in &sources.flags {
            put(&mut given, name, value.clone(), place.clone())?;
        }
        for setting in SETTINGS {
            let given = &given[setting.name];
            if !(given.value.is_empty() && setting.default.is_empty()) {
                check(setting, &given.value)
                    .map_err(|why| errors::bad_value(setting.name, &given.value, &why, &given.place))?;
            }
        }
        Settings::typed(&given)
    }

    /// From values that each passed [`check`].
    fn typed(given: &BTreeMap<&'static str, Given>) -> Result<Settings, UserError> {
        let text = |name: &str| given[name].value.clone();
        let int = |name: &str| given[name].value.parse::<i64>().expect("it was checked");
        let ms = |name: &str| Duration::from_millis(int(name) as u64);
        let bytes = |name: &str| parse_bytes(&given[name].value).expect("it was checked");
        let small = |name: &str| u32::try_from(bytes(name)).expect("its range fits");
        let list = |name: &str| parse_listeners(&given[name].value).expect("it was checked");
        let listeners = list("listeners");
        let io = io_asked(&given["camus.io"], &given["camus.shell"])?;
        let advertised =
            if given["advertised.listeners"].value.is_empty() { Vec::new() } else { list("advertised.listeners") };
        let given_as = |name: &str| Some(given[name].value.as_str()).filter(|value| !value.is_empty());
        let brokers = given_as("camus.cluster.brokers").map(|text| parse_brokers(text).expect("it was checked"));
        let peer_listen = given_as("camus.peer.listen").map(|text| parse_address(text).expect("it was checked"));
        let settings = Settings {
            brokers: brokers.unwrap_or_default(),
            cluster_id: given_as("camus.cluster.id").map(str::to_owned),
            peer_listen,
            node_id: int("node.id") as i32,
            node_id_given: !given["node.id"].default,
            rack: Some(text("broker.rack")).filter(|r| !r.is_empty()),
            listeners,
            advertised,
            connections_max: int("max.connections") as usize,
            connections_idle_ms_max: int("connections.max.idle.ms") as u64,
            num_partitions: int("num.partitions") as i32,
            default_replication_factor: int("default.replication.factor") as i16,
            auto_create_topics: parse_bool(&text("auto.create.topics.enable")).expect("it was checked"),
            message_bytes_max: small("message.max.bytes"),
            fetch_bytes_max: small("fetch.max.bytes"),
            fetch_sessions_max: int("max.incremental.fetch.session.cache.slots") as usize,
            groups: GroupSettings {
                session_timeout_min: ms("group.min.session.timeout.ms"),
                session_timeout_max: ms("group.max.session.timeout.ms"),
                initial_delay: ms("group.initial.rebalance.delay.ms"),
                members_max: int("group.max.size") as usize,
                consumer_session_timeout: ms("group.consumer.session.timeout.ms"),
                consumer_heartbeat_interval: ms("group.consumer.heartbeat.interval.ms"),
                consumer_members_max: int("group.consumer.max.size") as usize,
                migration: match text("group.consumer.migration.policy").as_str() {
                    "disabled" => Migration::Disabled,
                    "upgrade" => Migration::Upgrade,
                    "downgrade" => Migration::Downgrade,
                    _ => Migration::Bidirectional,
                },
                retention: Duration::from_secs(60 * int("offsets.retention.minutes") as u64),
                // what they may take of memory is known when the cores are
                ..GroupSettings::default()
            },
            offset_metadata_bytes_max: bytes("offset.metadata.max.bytes") as usize,
            data_dir: PathBuf::from(text("camus.data.dir")),
            http: parse_address(&text("camus.http")).expect("it was checked"),
            cores: parse_cores(&text("camus.cores")).expect("it was checked"),
            wal_segment_bytes: bytes("camus.wal.segment.bytes").next_multiple_of(limits::BLOCK_BYTES as u64),
            wal_disk_limit_bytes: bytes("camus.wal.disk.limit"),
            io,
            sync_method: sync_method(&given["camus.wal.sync.method"], io, &given["camus.io"].place)?,
            shutdown_timeout_ms: int("camus.shutdown.timeout.ms") as u64,
            log: text("camus.log"),
            without_effect: SETTINGS
                .iter()
                .filter(|s| !given[s.name].default)
                .filter_map(|s| match s.effect {
                    Effect::Works => None,
                    Effect::NotYet(why) => Some((s.name, why)),
                })
                .collect(),
            memory_bytes: Some(text("camus.memory")).filter(|t| t != "auto").map(|_| bytes("camus.memory")),
            memory_place: given["camus.memory"].place.clone(),
            wal_disk_limit_place: given["camus.wal.disk.limit"].place.clone(),
            pairs: given
                .iter()
                .filter(|(_, g)| !g.value.is_empty())
                .map(|(name, g)| ((*name).to_owned(), g.value.clone()))
                .collect(),
        };
        settings.check_listeners(&given["listeners"].place, &given["advertised.listeners"].place)?;
        let settings = settings.in_cluster(given)?;
        let (least, most) = (&given["group.min.session.timeout.ms"], &given["group.max.session.timeout.ms"]);
        if settings.groups.session_timeout_min > settings.groups.session_timeout_max {
            return Err(errors::contradiction(
                &format!(
                    "the shortest session timeout, {} ms, is longer than the longest, {} ms",
                    least.value, most.value
                ),
                if least.default { &most.place } else { &least.place },
                "no member could join a group",
                "camus settings group.min.session.timeout.ms",
            ));
        }
        check_consumer_times(given)?;
        Ok(settings)
    }

    /// Whether what is said of the cluster goes together, and with the rest; puts in what follows from it.
    fn in_cluster(mut self, given: &BTreeMap<&'static str, Given>) -> Result<Settings, UserError> {
        let place = &given["camus.cluster.brokers"].place;
        if self.brokers.is_empty() {
            return match &self.peer_listen {
                None => Ok(self),
                Some(listen) => Err(errors::contradiction(
                    &format!("other brokers may connect to {listen}, and there are none"),
                    &given["camus.peer.listen"].place,
                    "a broker that is alone talks to nobody",
                    "camus settings camus.cluster.brokers",
                )),
            };
        }
        if !self.node_id_given {
            return Err(errors::contradiction(
                "this broker does not say which one of the cluster it is",
                place,
                "in a cluster each broker has an id of its own",
                &format!("camus serve --set node.id={}", self.brokers[0].id),
            ));
        }
        let Some(own) = self.brokers.iter().find(|broker| broker.id == self.node_id) else {
            let ids: Vec<String> = self.brokers.iter().map(|broker| broker.id.to_string()).collect();
            return Err(errors::contradiction(
                &format!("this broker's id, {}, is not among the brokers {}", self.node_id, ids.join(", ")),
                place,
                "the list is the same on all brokers and names each of them, this one too",
                "camus settings camus.cluster.brokers",
            ));
        };
        if self.cluster_id.is_none() {
            return Err(errors::contradiction(
                "the brokers of a cluster are named, and the cluster's id is not",
                place,
                "by its id a broker knows those that belong to it from those of another cluster",
                "head -c 16 /dev/urandom | basenc --base64url | tr -d =   (once, for camus.cluster.id of all of them)",
            ));
        }
        let reached = if self.advertised.is_empty() { &self.listeners } else { &self.advertised };
        if !reached.contains(&own.clients) {
            let reached: Vec<String> = reached.iter().map(ToString::to_string).collect();
            return Err(errors::contradiction(
                &format!(
                    "clients are told to reach this broker at {}, and it is at {}",
                    own.clients,
                    reached.join(", ")
                ),
                place,
                "the other brokers send clients to the address in the list: it is one that this broker listens at",
                &format!("camus serve --listen {} --set node.id={}", own.clients, own.id),
            ));
        }
        let peer_listen = self.peer_listen.take().unwrap_or_else(|| own.peers.clone());
        if peer_listen.port == 0 {
            return Err(errors::contradiction(
                "the port for other brokers is 0",
                &given["camus.peer.listen"].place,
                "they have to know it before this broker starts",
                "camus settings camus.peer.listen",
            ));
        }
        self.peer_listen = Some(peer_listen);
        if given["auto.create.topics.enable"].default {
            self.auto_create_topics = false;
        }
        Ok(self)
    }

    fn check_listeners(&self, place: &str, advertised_place: &str) -> Result<(), UserError> {
        if self.advertised.is_empty() {
            if let Some(open) = self.listeners.iter().find(|l| is_wildcard(&l.host)) {
                return Err(errors::contradiction(
                    &format!("the listener {open} is every address of this host, and none of them is advertised"),
                    place,
                    "clients are told an address to connect to, and they can not connect to this one",
                    &format!("camus serve --listen {open} --set advertised.listeners=NAME:{}", open.port),
                ));
            }
        } else if self.advertised.len() != self.listeners.len() {
            return Err(errors::contradiction(
                &format!("{} listeners, but {} advertised ones", self.listeners.len(), self.advertised.len()),
                advertised_place,
                "each listener is advertised by the one at its place in the list",
                "camus settings advertised.listeners",
            ));
        }
        if let Some(open) = self.advertised.iter().find(|l| is_wildcard(&l.host)) {
            return Err(errors::contradiction(
                &format!("{open} can not be advertised"),
                advertised_place,
                "no client can connect to it: name the host as its clients see it",
                &format!("camus serve --set advertised.listeners=NAME:{}", open.port),
            ));
        }
        Ok(())
    }

    /// The CPU of each core, where it is to be pinned. `made_with`: the number that the data directory remembers.
    pub fn core_cpus(&self, host: &Host, made_with: Option<usize>) -> Result<Vec<Option<usize>>, UserError> {
        let count = match &self.cores {
            CoresAsked::Cpus(cpus) => {
                if let Some(missing) = cpus.iter().find(|c| !host.cpus.contains(c)) {
                    return Err(errors::contradiction(
                        &format!("CPU {missing} is not one that this process may use"),
                        "camus.cores",
                        &format!("the CPUs are {:?}", host.cpus),
                        "nproc; taskset -pc $$",
                    ));
                }
                return Ok(cpus.iter().copied().map(Some).collect());
            }
            CoresAsked::Number(count) => *count,
            CoresAsked::Auto => made_with.unwrap_or((host.cpus.len() / 2).clamp(1, 4)),
        };
        // More threads than CPUs: pinning two on one would only make both slow.
        if count > host.cpus.len() {
            return Ok(vec![None; count]);
        }
        // The first core goes where the disk's interrupts come: a durable write then ends without waking another CPU.
        let mut cpus = host.cpus.clone();
        cpus.sort_by_key(|cpu| Some(*cpu) != host.disk_cpu);
        Ok(cpus[..count].iter().copied().map(Some).collect())
    }

    /// `camus.memory` in bytes for this many cores.
    pub fn memory_bytes(&self, host: &Host, cores: usize) -> Result<u64, UserError> {
        let least = memory::PER_CORE_BYTES_MIN * cores as u64;
        match self.memory_bytes {
            None => Ok(memory::default_bytes(host.memory_bytes, cores)),
            Some(bytes) if bytes < least => Err(errors::contradiction(
                &format!("{} of memory are too little for {cores} cores", crate::out::bytes(bytes)),
                &self.memory_place,
                &format!("each core needs {}", crate::out::bytes(memory::PER_CORE_BYTES_MIN)),
                &format!("camus serve --set camus.memory={}MiB", least >> 20),
            )),
            Some(bytes) => Ok(bytes),
        }
    }

    /// Segments that one core's log may have, of the broker's disk limit.
    pub fn wal_segments_max(&self, cores: usize) -> Result<usize, UserError> {
        let segments = self.wal_disk_limit_bytes / cores as u64 / self.wal_segment_bytes;
        if segments < 4 {
            return Err(errors::contradiction(
                &format!(
                    "a disk limit of {} leaves {segments} segments of {} for each of {cores} cores",
                    crate::out::bytes(self.wal_disk_limit_bytes),
                    crate::out::bytes(self.wal_segment_bytes)
                ),
                &self.wal_disk_limit_place,
                "each core needs 4: the one it writes, its spare ones, and one to free",
                "camus settings camus.wal.disk.limit",
            ));
        }
        Ok(usize::try_from(segments).expect("a count of files"))
    }

    pub fn budgets(&self, host: &Host, cores: usize) -> Result<Budgets, UserError> {
        Ok(Budgets::of_core(self.memory_bytes(host, cores)?, cores))
    }

    /// Every setting that has a value, by name, as DescribeConfigs shows it.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }
}

fn put(given: &mut BTreeMap<&'static str, Given>, name: &str, value: String, place: String) -> Result<(), UserError> {
    let Some(setting) = find(name) else {
        return Err(errors::unknown_setting(name, &place, nearest(name)));
    };
    given.insert(setting.name, Given { value: value.trim().to_owned(), place, default: false });
    Ok(())
}

/// Name, value and line of every key of the file.
fn read_toml(path: &Path, text: &str) -> Result<Vec<(String, String, usize)>, UserError> {
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let root = toml::de::DeTable::parse(text)
        .map_err(|e| errors::bad_config_file(path, e.span().map(|s| line_of(s.start)), e.message()))?;
    let mut found = Vec::new();
    // Depth is bounded by the parser.
    let mut open = vec![(String::new(), root.get_ref())];
    while let Some((prefix, table)) = open.pop() {
        for (key, value) in table {
            let name = match prefix.is_empty() {
                true => key.get_ref().to_string(),
                false => format!("{prefix}.{}", key.get_ref()),
            };
            match value.get_ref().as_table() {
                Some(inner) => open.push((name, inner)),
                None => {
                    let line = line_of(key.span().start);
                    let text = toml_value(value.get_ref()).ok_or_else(|| {
                        errors::bad_config_file(
                            path,
                            Some(line),
                            &format!("'{name}' has a value of a type that no setting takes"),
                        )
                    })?;
                    found.push((name, text, line));
                }
            }
        }
    }
    found.sort_by_key(|(_, _, line)| *line);
    Ok(found)
}

fn toml_value(value: &toml::de::DeValue<'_>) -> Option<String> {
    use toml::de::DeValue;
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Array(items) => {
            let items: Option<Vec<String>> = items.iter().map(|item| toml_value(item.get_ref())).collect();
            items.map(|i| i.join(","))
        }
        DeValue::Datetime(_) | DeValue::Table(_) => None,
    }
}

/// Whether `value` is one for the setting; if not, what it takes.
fn check(setting: &Setting, value: &str) -> Result<(), String> {
    let takes = || format!("it takes {}", range(&setting.kind));
    let right = match setting.kind {
        Kind::Bool => parse_bool(value).is_some(),
        Kind::Int { min, max } => value.parse::<i64>().is_ok_and(|n| (min..=max).contains(&n)),
        Kind::Bytes { min, max } => parse_bytes(value).is_some_and(|n| (min..=max).contains(&n)),
        Kind::BytesOrAuto { min, max } => {
            value == "auto" || parse_bytes(value).is_some_and(|n| (min..=max).contains(&n))
        }
        Kind::Choice(choices) => choices.contains(&value),
        Kind::Cores => return parse_cores(value).map(|_| ()),
        Kind::Listeners => return parse_listeners(value).map(|_| ()),
        Kind::Address => return parse_address(value).map(|_| ()),
        Kind::Brokers => return parse_brokers(value).map(|_| ()),
        Kind::ClusterId => crate::data_dir::uuid_of(value).is_some(),
        Kind::Text => !value.is_empty(),
    };
    if right { Ok(()) } else { Err(takes()) }
}

/// What a kind of setting takes, in words.
pub fn range(kind: &Kind) -> String {
    let size = |n: u64| crate::out::bytes(n);
    let number = |n: i64| match n {
        i64::MAX => "2^63 - 1".to_owned(),
        n if n == i64::from(i32::MAX) => "2^31 - 1".to_owned(),
        n => n.to_string(),
    };
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Int { min, max } if min == max => format!("only {min}"),
        Kind::Int { min, max } => format!("a whole number, {} to {}", number(*min), number(*max)),
        Kind::Bytes { min, max } => format!("a size, {} to {}", size(*min), size(*max)),
        Kind::BytesOrAuto { min, max } => format!("auto, or a size, {} to {}", size(*min), size(*max)),
        Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
        Kind::Cores => format!("auto, a number, 1 to {}, or a list of CPUs", limits::CORES_MAX),
        Kind::Listeners => "HOST:PORT, several with commas".to_owned(),
        Kind::Address => "HOST:PORT".to_owned(),
        Kind::Brokers => "ID@HOST:PORT/HOST:PORT, several with commas".to_owned(),
        Kind::ClusterId => "a UUID in base64 (URL-safe, 22 characters)".to_owned(),
        Kind::Text => "text".to_owned(),
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// `64MiB`, `64 MiB`, `64M`, `8g`, `1048576`: units are powers of 1024.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim().replace('_', "");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1u64 << shift)
}

fn parse_cores(text: &str) -> Result<CoresAsked, String> {
    let why = || format!("it takes {}", range(&Kind::Cores));
    if text == "auto" {
        return Ok(CoresAsked::Auto);
    }
    if let Ok(number) = text.parse::<usize>() {
        return if (1..=limits::CORES_MAX).contains(&number) { Ok(CoresAsked::Number(number)) } else { Err(why()) };
    }
    let mut cpus = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().map_err(|_| why())?, to.parse::<usize>().map_err(|_| why())?);
        if from > to || to - from >= limits::CORES_MAX {
            return Err(why());
        }
        cpus.extend(from..=to);
    }
    let unique: std::collections::BTreeSet<usize> = cpus.iter().copied().collect();
    if cpus.is_empty() || cpus.len() > limits::CORES_MAX || unique.len() != cpus.len() {
        return Err(why());
    }
    Ok(CoresAsked::Cpus(cpus))
}

fn parse_address(text: &str) -> Result<Listener, String> {
    let why = || "it takes HOST:PORT (an IPv6 address in brackets: [::1]:9092)".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(why)?;
    let port: u16 = port.parse().map_err(|_| why())?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(why)?,
        None if host.contains(':') => return Err(why()),
        None => host,
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
        return Err(why());
    }
    Ok(Listener { host: host.to_owned(), port })
}

fn parse_listeners(text: &str) -> Result<Vec<Listener>, String> {
    let listeners: Result<Vec<Listener>, String> = text
        .split(',')
        .map(|item| {
            let item = item.trim();
            match item.split_once("://") {
                None => parse_address(item),
                Some(("PLAINTEXT", address)) => parse_address(address),
                Some((protocol, _)) => Err(format!("there is only PLAINTEXT yet, no {protocol}")),
            }
        })
        .collect();
    listeners.and_then(|l| if l.len() <= LISTENERS_MAX { Ok(l) } else { Err(format!("at most {LISTENERS_MAX}")) })
}

/// Sorted by id.
fn parse_brokers(text: &str) -> Result<Vec<ClusterBroker>, String> {
    let why = || format!("it takes {}", range(&Kind::Brokers));
    let one = |item: &str| {
        let (id, addresses) = item.trim().split_once('@').ok_or_else(why)?;
        let (clients, peers) = addresses.split_once('/').ok_or_else(why)?;
        let id = id.parse::<i32>().ok().filter(|id| *id >= 0).ok_or_else(why)?;
        let (clients, peers) = (parse_address(clients)?, parse_address(peers)?);
        for address in [&clients, &peers] {
            if address.port == 0 || is_wildcard(&address.host) {
                return Err(format!("nobody can connect to {address}: name the host and the port"));
            }
        }
        Ok(ClusterBroker { id, clients, peers })
    };
    let mut brokers: Vec<ClusterBroker> = text.split(',').map(one).collect::<Result<_, String>>()?;
    brokers.sort_by_key(|broker| broker.id);
    if !(2..=limits::BROKERS_MAX).contains(&brokers.len()) {
        return Err(format!("a cluster has 2 to {} brokers; leave it out for one that is alone", limits::BROKERS_MAX));
    }
    let twice = |same: fn(&ClusterBroker, &ClusterBroker) -> bool| {
        brokers.iter().enumerate().find(|(at, one)| brokers[..*at].iter().any(|other| same(one, other))).map(|(_, b)| b)
    };
    if let Some(broker) = twice(|a, b| a.id == b.id) {
        return Err(format!("the id {} is there twice", broker.id));
    }
    if let Some(broker) = twice(|a, b| a.clients == b.clients || a.peers == b.peers) {
        return Err(format!("broker {} has the address of another one", broker.id));
    }
    Ok(brokers)
}

/// Listeners of one broker.
const LISTENERS_MAX: usize = 4;

fn is_wildcard(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

/// `docs/settings.md`.
pub fn page() -> String {
    let mut text = String::from(
        "# Settings

<!-- Written by `camus settings --markdown`; a test compares. Change tools/camus/src/settings.rs. -->

A setting comes from a flag, the environment, the file or its default, in that order: `--set num.partitions=3`,
`CAMUS_NUM_PARTITIONS=3`, `num.partitions = 3` in the TOML file named by `--config` (or `CAMUS_CONFIG`). Keys may be
written with dots or in tables. Kafka's names are used for what Kafka has; what is Camus's own begins with `camus.`.
Sizes take KiB, MiB, GiB, TiB (powers of 1024) or plain bytes. An unknown key stops the start and names the nearest one.
All settings are read once, at the start.

",
    );
    for setting in SETTINGS {
        text.push_str(&describe(setting, true));
    }
    text.push_str("## Exit statuses\n\n| status | meaning |\n|---|---|\n");
    for (status, meaning) in errors::exit::ALL {
        text.push_str(&format!("| {status} | {meaning} |\n"));
    }
    text
}

/// All settings in columns, for the terminal.
pub fn overview() -> String {
    let mut rows = vec![["SETTING", "DEFAULT", "TAKES"].map(str::to_owned).to_vec()];
    rows.extend(SETTINGS.iter().map(|s| vec![s.name.to_owned(), s.default.to_owned(), range(&s.kind)]));
    crate::out::table(&rows)
}

/// One setting, for the page or for the terminal.
pub fn describe(setting: &Setting, markdown: bool) -> String {
    let default = if setting.default.is_empty() { "none" } else { setting.default };
    let unit = if setting.unit.is_empty() { String::new() } else { format!(" ({})", setting.unit) };
    let mut text = match markdown {
        true => format!("## `{}`\n{}\n\n", setting.name, wrapped(setting.doc, 118)),
        false => format!("{}\n{}\n\n", setting.name, wrapped(setting.doc, 78)),
    };
    text.push_str(&format!(
        "- takes: {}{unit}\n- default: {default}\n- environment: {}\n",
        range(&setting.kind),
        env_name(setting.name)
    ));
    if let Effect::NotYet(why) = setting.effect {
        text.push_str(&format!("- accepted, without effect yet: {why}\n"));
    }
    text.push('\n');
    text
}

fn wrapped(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.len() + 1 + word.len() > columns {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_golden, assert_house_file};

    fn from_flags(flags: &[(&str, &str)]) -> Result<Settings, UserError> {
        let flags = flags.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned(), format!("--set {n}={v}"))).collect();
        Settings::resolve(&Sources { flags, ..Sources::default() })
    }

    fn from_file(text: &str) -> Result<Settings, UserError> {
        Settings::resolve(&Sources { file: Some((PathBuf::from("camus.toml"), text.to_owned())), ..Sources::default() })
    }

    fn from_env(variables: &[(&str, &str)]) -> Result<Settings, UserError> {
        let env = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Settings::resolve(&Sources { env, ..Sources::default() })
    }

    fn host(cpus: usize) -> Host {
        Host { cpus: (0..cpus).collect(), memory_bytes: 8 << 30, disk_cpu: None }
    }

    /// If this fails, an operator's flag or variable is overridden by something weaker.
    #[test]
    fn flags_beat_environment_beats_file_beats_default() {
        let mut sources = Sources::default();
        assert_eq!(Settings::resolve(&sources).expect("defaults hold").num_partitions, 1);
        sources.file = Some((PathBuf::from("camus.toml"), "num.partitions = 2".to_owned()));
        assert_eq!(Settings::resolve(&sources).expect("valid").num_partitions, 2);
        sources.env.push(("CAMUS_NUM_PARTITIONS".to_owned(), "3".to_owned()));
        assert_eq!(Settings::resolve(&sources).expect("valid").num_partitions, 3);
        sources.flags.push(("num.partitions".to_owned(), "4".to_owned(), "--set".to_owned()));
        assert_eq!(Settings::resolve(&sources).expect("valid").num_partitions, 4);
    }

    #[test]
    fn every_default_is_a_value_that_the_setting_takes() {
        for setting in SETTINGS.iter().filter(|s| !s.default.is_empty()) {
            check(setting, setting.default).unwrap_or_else(|why| panic!("{}: {why}", setting.name));
        }
        let settings = Settings::resolve(&Sources::default()).expect("defaults hold");
        assert_eq!(settings.listeners, [Listener { host: "127.0.0.1".to_owned(), port: 9092 }]);
        assert_eq!(settings.wal_disk_limit_bytes, 8 << 30);
        assert_eq!(settings.message_bytes_max as usize, limits::BATCH_BYTES_DEFAULT);
        assert_eq!(settings.wal_segment_bytes, limits::WAL_SEGMENT_BYTES);
        assert!(settings.without_effect.is_empty());
        assert!(settings.pairs().contains(&("num.partitions".to_owned(), "1".to_owned())));
    }

    /// If this fails, the broker runs under another shell than the one that was asked for, and says nothing.
    #[test]
    fn a_shell_is_chosen_by_name_where_it_is_built_in_and_goes_with_how_the_kernel_is_asked() {
        let io = |pairs: &[(&str, &str)]| from_flags(pairs).map(|settings| settings.io);
        assert_eq!(io(&[("camus.shell", "poll")]), Ok(IoAsked::Blocking));
        assert_eq!(io(&[("camus.shell", "uring"), ("camus.io", "uring")]), Ok(IoAsked::Uring));
        assert_eq!(io(&[("camus.shell", "auto"), ("camus.io", "blocking")]), Ok(IoAsked::Blocking));
        for wrong in [("uring", "blocking"), ("poll", "uring")] {
            let refused = io(&[("camus.shell", wrong.0), ("camus.io", wrong.1)]).expect_err("they contradict");
            assert_eq!(refused.code, "CAM-0004", "{wrong:?}");
        }
        let glommio = io(&[("camus.shell", "glommio")]);
        if cfg!(feature = "shell-glommio") {
            assert_eq!(glommio, Ok(IoAsked::Glommio));
        } else {
            let refused = glommio.expect_err("it is not built in").to_string();
            assert!(refused.contains("--features shell-glommio"), "{refused}");
        }
    }

    /// If this fails, writes are made durable in another way than the one that was asked for, and a comparison of the
    /// ways is one of a way with itself.
    #[test]
    fn the_way_to_a_durable_write_is_the_one_that_is_named() {
        let method = |pairs: &[(&str, &str)]| from_flags(pairs).map(|settings| settings.sync_method);
        assert_eq!(method(&[]), Ok(None), "the device decides");
        for (name, named) in [
            ("dsync", DurableMethod::Dsync),
            ("fsync", DurableMethod::LinkedFsync),
            ("adaptive", DurableMethod::Adaptive),
        ] {
            assert_eq!(method(&[("camus.wal.sync.method", name)]), Ok(Some(named)));
            let refused = method(&[("camus.wal.sync.method", name), ("camus.shell", "poll")]);
            assert_eq!(refused.expect_err("blocking calls have one way").code, "CAM-0004");
        }
    }

    #[test]
    fn names_and_environment_names_are_unique() {
        let names: std::collections::BTreeSet<_> = SETTINGS.iter().map(|s| s.name).collect();
        let variables: std::collections::BTreeSet<_> = SETTINGS.iter().map(|s| env_name(s.name)).collect();
        assert_eq!((names.len(), variables.len()), (SETTINGS.len(), SETTINGS.len()));
        assert_eq!(env_name("camus.memory"), "CAMUS_MEMORY");
        assert_eq!(env_name("camus.wal.disk.limit"), "CAMUS_WAL_DISK_LIMIT");
        assert_eq!(env_name("log.retention.ms"), "CAMUS_LOG_RETENTION_MS");
        assert!(OTHER_NAMES.iter().all(|(theirs, ours)| find(ours).is_some() && find(theirs).is_none()));
    }

    /// If this fails, a misspelt setting is ignored, or its error does not help.
    #[test]
    fn messages_for_wrong_settings_are_as_they_were() {
        let unwilling = |result: Result<Settings, UserError>| result.expect_err("it must be refused").to_string();
        let text = [
            unwilling(from_flags(&[("num.partition", "3")])),
            unwilling(from_flags(&[("zebra", "3")])),
            unwilling(from_file("# a comment\n\n[camus]\nmemroy = \"1GiB\"\n")),
            unwilling(from_file("log.dirs = \"/data\"")),
            unwilling(from_env(&[("CAMUS_WAL_DISK_LIMITS", "1GiB")])),
            unwilling(from_flags(&[("num.partitions", "many")])),
            unwilling(from_file("num.partitions = 0")),
            unwilling(from_env(&[("CAMUS_MEMORY", "12 elephants")])),
            unwilling(from_flags(&[("camus.io", "magic")])),
            unwilling(from_flags(&[("camus.shell", "poll"), ("camus.io", "uring")])),
            unwilling(from_flags(&[("camus.wal.sync.method", "dsync"), ("camus.io", "blocking")])),
            unwilling(from_flags(&[("camus.cores", "0")])),
            unwilling(from_flags(&[("camus.cores", "1,1")])),
            unwilling(from_flags(&[("listeners", "SSL://0.0.0.0:9093")])),
            unwilling(from_flags(&[("listeners", "localhost")])),
            unwilling(from_flags(&[("listeners", "0.0.0.0:9092")])),
            unwilling(from_flags(&[("advertised.listeners", "a:1,b:2")])),
            unwilling(from_flags(&[("advertised.listeners", "0.0.0.0:1")])),
            unwilling(from_file("num.partitions = \n")),
            unwilling(from_file("num.partitions = 1979-05-27\n")),
            unwilling(from_flags(&[("default.replication.factor", "0")])),
            unwilling(from_flags(&[("camus.cluster.brokers", "1@a:1/a:2")])),
            unwilling(from_flags(&[("camus.cluster.brokers", "1@a:1/a:2,1@b:1/b:2")])),
            unwilling(from_flags(&[("camus.cluster.brokers", "1@a:1/a:2,2@b:1/a:2")])),
            unwilling(from_flags(&[("camus.cluster.brokers", "1@a:1,2@b:1")])),
            unwilling(from_flags(&[("camus.cluster.brokers", "1@a:1/0.0.0.0:2,2@b:1/b:2")])),
            unwilling(from_flags(&[("camus.cluster.id", "mine")])),
            unwilling(from_flags(&[("camus.peer.listen", "0.0.0.0:9192")])),
            unwilling(from_flags(&[BROKERS])),
            unwilling(from_flags(&[BROKERS, ("node.id", "3")])),
            unwilling(from_flags(&[BROKERS, ("node.id", "2")])),
            unwilling(from_flags(&[BROKERS, ("node.id", "2"), ("camus.cluster.id", "HS86S1xtfo-QABAgMEBQYA")])),
            from_flags(&[("camus.memory", "128MiB")])
                .expect("alone it is valid")
                .memory_bytes(&host(8), 2)
                .expect_err("too little for two")
                .to_string(),
            from_flags(&[("camus.wal.disk.limit", "256MiB"), ("camus.wal.segment.bytes", "128MiB")])
                .expect("alone they are valid")
                .wal_segments_max(1)
                .expect_err("two segments")
                .to_string(),
            from_flags(&[("camus.cores", "0,9")])
                .expect("alone it is valid")
                .core_cpus(&host(2), None)
                .expect_err("no such CPU")
                .to_string(),
        ];
        assert_golden("settings_errors.txt", &text.join("\n\n"));
    }

    const BROKERS: (&str, &str) = ("camus.cluster.brokers", "2@b:9092/b:9192, 1@127.0.0.1:9092/10.0.0.1:9192");

    /// If this fails, a broker votes under another one's id, or waits where nobody connects.
    #[test]
    fn a_broker_finds_itself_in_the_list_of_its_cluster() {
        let id = ("camus.cluster.id", "HS86S1xtfo-QABAgMEBQYA");
        let settings = from_flags(&[BROKERS, id, ("node.id", "1")]).expect("valid");
        assert_eq!(settings.brokers.iter().map(|b| b.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(settings.peer_listen.expect("its own").to_string(), "10.0.0.1:9192");
        let listen = [BROKERS, id, ("node.id", "1"), ("camus.peer.listen", "0.0.0.0:9192")];
        assert_eq!(from_flags(&listen).expect("valid").peer_listen.expect("said").to_string(), "0.0.0.0:9192");
        let alone = from_flags(&[id]).expect("valid");
        assert!(alone.brokers.is_empty() && alone.peer_listen.is_none());
    }

    /// If this fails, a misspelt name becomes a topic on every broker, or a first try of Camus needs a setting.
    #[test]
    fn a_question_makes_a_topic_where_a_broker_is_alone_or_where_it_is_said() {
        let makes = |more: &[(&str, &str)]| from_flags(more).expect("valid").auto_create_topics;
        let (id, node) = (("camus.cluster.id", "HS86S1xtfo-QABAgMEBQYA"), ("node.id", "1"));
        let said = |value| ("auto.create.topics.enable", value);
        assert!(makes(&[]) && !makes(&[said("false")]));
        assert!(!makes(&[BROKERS, id, node]) && makes(&[BROKERS, id, node, said("true")]));
    }

    #[test]
    fn the_file_takes_dots_tables_lists_and_plain_values() {
        let settings = from_file(
            "num.partitions = 12\nlisteners = [\"127.0.0.1:1\", \"PLAINTEXT://[::1]:2\"]\n\
             [camus]\nmemory = \"1 GiB\"\nwal.segment.bytes = 0x4000000\n[auto.create.topics]\nenable = false\n",
        )
        .expect("valid");
        assert_eq!(settings.num_partitions, 12);
        assert_eq!(settings.listeners.iter().map(ToString::to_string).collect::<Vec<_>>(), ["127.0.0.1:1", "[::1]:2"]);
        assert_eq!(settings.memory_bytes(&host(1), 1).expect("enough"), 1 << 30);
        assert_eq!(settings.wal_segment_bytes, 64 << 20);
        assert!(!settings.auto_create_topics);
    }

    #[test]
    fn variables_of_others_and_of_tests_are_left_alone() {
        from_env(&[("CAMUS", "1"), ("HOME", "/"), ("CAMUS_TEST_BLESS", "1"), ("CAMUS_CONFIG", "x")]).expect("not ours");
    }

    #[test]
    fn accepted_settings_without_effect_are_named() {
        let settings = from_flags(&[("log.retention.ms", "1000")]).expect("Kafka has it");
        assert_eq!(settings.without_effect.len(), 1);
        assert_eq!(settings.without_effect[0].0, "log.retention.ms");
    }

    #[test]
    fn cores_are_pinned_where_there_are_cpus_for_them() {
        let cpus = |asked: &str, have: usize, made_with: Option<usize>| {
            from_flags(&[("camus.cores", asked)]).expect("valid").core_cpus(&host(have), made_with).expect("possible")
        };
        assert_eq!(cpus("2", 4, None), [Some(0), Some(1)]);
        assert_eq!(cpus("3,", 4, None), [Some(3)]);
        assert_eq!(cpus("0,2-3", 4, None), [Some(0), Some(2), Some(3)]);
        assert_eq!(cpus("auto", 2, None), [Some(0)]);
        assert_eq!(cpus("auto", 64, None).len(), 4);
        assert_eq!(cpus("auto", 2, Some(2)).len(), 2, "the data directory decides");
        assert_eq!(cpus("4", 2, None), [None; 4], "more threads than CPUs are not pinned");
    }

    /// Lost if it fails: each durable write wakes a CPU more; or what was asked for by number is another one.
    #[test]
    fn the_first_core_goes_to_the_cpu_that_takes_the_disks_interrupts() {
        let cpus = |asked: &str, disk_cpu| {
            let host = Host { disk_cpu, ..host(4) };
            from_flags(&[("camus.cores", asked)]).expect("valid").core_cpus(&host, None).expect("possible")
        };
        assert_eq!(cpus("3", Some(2)), [Some(2), Some(0), Some(1)]);
        assert_eq!(cpus("1", Some(9)), [Some(0)], "that is none of ours");
        assert_eq!(cpus("1,3", Some(3)), [Some(1), Some(3)], "they were named");
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_bytes("64MiB"), Some(64 << 20));
        assert_eq!(parse_bytes("8 g"), Some(8 << 30));
        assert_eq!(parse_bytes("1_000"), Some(1000));
        assert_eq!(parse_bytes("17179869184 TiB"), None, "more than 64 bits");
        assert_eq!(parse_bytes("-1"), None);
        assert_eq!(parse_bytes(""), None);
    }

    /// If this fails, the page tells of settings that are not there: run `CAMUS_TEST_BLESS=1 cargo test -p camus`.
    #[test]
    fn the_page_of_settings_is_what_the_program_has() {
        assert_house_file("docs/settings.md", &page());
    }
}
