//! Settings of topics, and of the broker where topics take their defaults from: what there is, what a value may be, and
//! where an effective value comes from. Names, types and defaults are Kafka's (4.x), so that its tools work unchanged.
//!
//! Values are kept as they were set and parsed where they are used. What the documentation calls "kept" has no effect
//! in Camus so far.

use camus_engine::limits;
use camus_engine::partition::batch::Codec;
use camus_engine::shard::api::{BatchRules, Packing, TimestampType};
use std::collections::BTreeMap;

/// Bytes of one value.
pub const CONFIG_VALUE_BYTES_MAX: usize = 32 * 1024;

/// Kafka's `ConfigDef.Type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Short = 4,
    Long = 5,
    Double = 6,
    List = 7,
}

impl ConfigType {
    /// As DescribeConfigs says it.
    pub fn code(self) -> i8 {
        self as i8
    }
}

/// Kafka's `DescribeConfigsResponse.ConfigSource`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum Source {
    Topic = 1,
    StaticBroker = 4,
    Default = 5,
}

impl Source {
    /// As DescribeConfigs and CreateTopics say it.
    pub fn code(self) -> i8 {
        self as i8
    }
}

/// One setting with its effective value, and the values that stand behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    pub name: &'static str,
    /// `None`: not set, and there is no default.
    pub value: Option<String>,
    pub source: Source,
    /// The strongest first; ends with the default.
    pub synonyms: Vec<Synonym>,
    pub kind: ConfigType,
    pub doc: &'static str,
    pub read_only: bool,
    pub sensitive: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Synonym {
    pub name: &'static str,
    pub value: Option<String>,
    pub source: Source,
}

/// Why settings are refused, for whoever set them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("there is no topic setting '{name}'{}", hint(.nearest))]
    Unknown { name: String, nearest: Option<&'static str> },
    #[error("'{name}' is no setting any more: {why}")]
    Removed { name: &'static str, why: &'static str },
    #[error("'{value}' is no value for {name}: {why}")]
    Invalid { name: &'static str, value: String, why: String },
    #[error("{name} is no list: set the whole value instead")]
    NotAList { name: &'static str },
    #[error("min.compaction.lag.ms ({min}) is larger than max.compaction.lag.ms ({max})")]
    CompactionLag { min: i64, max: i64 },
}

fn hint(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean '{name}'?"))
}

/// What a value may be, besides being of its type.
enum Valid {
    Any,
    AtLeast(i64),
    Between(i64, i64),
    /// 1 to 9, or -1 for the codec's own default.
    GzipLevel,
    /// 0 to 1.
    Ratio,
    OneOf(&'static [&'static str]),
    /// Each item of the list.
    EachOf(&'static [&'static str]),
    /// `*`, or items `partition:broker`.
    Throttled,
    /// Only the mode that there is.
    Mode,
}

struct TopicConfig {
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    valid: Valid,
    /// Broker settings that are its default, the strongest first, each with what its value is multiplied by.
    broker: &'static [(&'static str, i64)],
    doc: &'static str,
}

const fn config(
    name: &'static str,
    kind: ConfigType,
    default: &'static str,
    valid: Valid,
    broker: &'static [(&'static str, i64)],
    doc: &'static str,
) -> TopicConfig {
    TopicConfig { name, kind, default, valid, broker, doc }
}

const NEVER: &str = "9223372036854775807";
const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

macro_rules! kept {
    ($doc:literal) => {
        concat!($doc, " Kept for Kafka's tools; has no effect in Camus so far.")
    };
}

use ConfigType::{Boolean, Double, Int, List, Long, Short, String as Text};
use Valid::{Any, AtLeast, Between, EachOf, GzipLevel, Mode, OneOf, Ratio, Throttled};

/// In the order of their names.
static TOPIC: &[TopicConfig] = &[
    config(
        "camus.mode",
        Text,
        "wal",
        Mode,
        &[("camus.mode", 1)],
        "When a produce is acknowledged. wal: when a majority of the shard's replicas has flushed it.",
    ),
    config(
        "cleanup.policy",
        List,
        "delete",
        EachOf(&["compact", "delete"]),
        &[("log.cleanup.policy", 1)],
        "How old records go: delete drops them by age or size, compact keeps the last record of each key; both may be \
         given. With compact each record must have a key. Nothing is compacted so far.",
    ),
    config(
        "compression.gzip.level",
        Int,
        "-1",
        GzipLevel,
        &[("compression.gzip.level", 1)],
        "The level of gzip, where compression.type asks for it; -1: the usual one.",
    ),
    config(
        "compression.lz4.level",
        Int,
        "9",
        Between(1, 17),
        &[("compression.lz4.level", 1)],
        kept!("The level of lz4, where compression.type asks for it; Camus has one only."),
    ),
    config(
        "compression.type",
        Text,
        "producer",
        OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        &[("compression.type", 1)],
        "The codec in which batches are stored; producer: as they were sent. A batch in another codec is packed anew \
         by the core that takes it, which costs that core's time: one that unpacks to over 512 KiB (for gzip and zstd; \
         for the others 4 MiB) stays in the codec that it was sent in.",
    ),
    config(
        "compression.zstd.level",
        Int,
        "3",
        Between(-131_072, 22),
        &[("compression.zstd.level", 1)],
        "The level of zstd, where compression.type asks for it. Above 9 it is 9: more takes tens of megabytes for each \
         batch.",
    ),
    config(
        "delete.retention.ms",
        Long,
        "86400000",
        AtLeast(0),
        &[("log.cleaner.delete.retention.ms", 1)],
        kept!("How long a compacted topic keeps the markers of deleted keys, ms."),
    ),
    config(
        "file.delete.delay.ms",
        Long,
        "60000",
        AtLeast(0),
        &[("log.segment.delete.delay.ms", 1)],
        kept!("How long a file stays after it was given up, ms."),
    ),
    config(
        "flush.messages",
        Long,
        NEVER,
        AtLeast(1),
        &[("log.flush.interval.messages", 1)],
        kept!("After how many records a log is flushed; Camus flushes before each acknowledgement."),
    ),
    config(
        "flush.ms",
        Long,
        NEVER,
        AtLeast(0),
        &[("log.flush.interval.ms", 1)],
        kept!("After what time a log is flushed, ms; Camus flushes before each acknowledgement."),
    ),
    config(
        "follower.replication.throttled.replicas",
        List,
        "",
        Throttled,
        &[],
        kept!("Replicas whose followers are slowed down: partition:broker pairs, or * for all."),
    ),
    config(
        "index.interval.bytes",
        Int,
        "4096",
        AtLeast(0),
        &[("log.index.interval.bytes", 1)],
        kept!("How far apart the entries of an offset index lie; Camus indexes each batch."),
    ),
    config(
        "leader.replication.throttled.replicas",
        List,
        "",
        Throttled,
        &[],
        kept!("Replicas whose leaders are slowed down: partition:broker pairs, or * for all."),
    ),
    config(
        "local.retention.bytes",
        Long,
        "-2",
        AtLeast(-2),
        &[("log.local.retention.bytes", 1)],
        kept!("What of a partition stays on local disks, bytes; -2: as retention.bytes says."),
    ),
    config(
        "local.retention.ms",
        Long,
        "-2",
        AtLeast(-2),
        &[("log.local.retention.ms", 1)],
        kept!("How long records stay on local disks, ms; -2: as retention.ms says."),
    ),
    config(
        "max.compaction.lag.ms",
        Long,
        NEVER,
        AtLeast(1),
        &[("log.cleaner.max.compaction.lag.ms", 1)],
        kept!("After what time a record is compacted at the latest, ms."),
    ),
    config(
        "max.message.bytes",
        Int,
        "1048588",
        Between(0, limits::BATCH_BYTES_MAX as i64),
        &[("message.max.bytes", 1)],
        "The largest record batch that is taken, bytes, as it was sent (compressed).",
    ),
    config(
        "message.timestamp.after.max.ms",
        Long,
        "3600000",
        AtLeast(0),
        &[("log.message.timestamp.after.max.ms", 1)],
        "How far a record's timestamp may lie after the broker's clock, ms. Not used with LogAppendTime.",
    ),
    config(
        "message.timestamp.before.max.ms",
        Long,
        NEVER,
        AtLeast(0),
        &[("log.message.timestamp.before.max.ms", 1)],
        "How far a record's timestamp may lie before the broker's clock, ms. Not used with LogAppendTime.",
    ),
    config(
        "message.timestamp.type",
        Text,
        "CreateTime",
        OneOf(&["CreateTime", "LogAppendTime"]),
        &[("log.message.timestamp.type", 1)],
        "Which time a record carries: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    config(
        "min.cleanable.dirty.ratio",
        Double,
        "0.5",
        Ratio,
        &[("log.cleaner.min.cleanable.ratio", 1)],
        kept!("The share of a log that is not compacted yet from which on it is compacted again."),
    ),
    config(
        "min.compaction.lag.ms",
        Long,
        "0",
        AtLeast(0),
        &[("log.cleaner.min.compaction.lag.ms", 1)],
        kept!("How long a record is safe from compaction, ms."),
    ),
    config(
        "min.insync.replicas",
        Int,
        "1",
        AtLeast(1),
        &[("min.insync.replicas", 1)],
        kept!("How many replicas must have a record; in Camus it is always a majority."),
    ),
    config(
        "preallocate",
        Boolean,
        "false",
        Any,
        &[("log.preallocate", 1)],
        kept!("Whether files are made at their full size; those of the write-ahead log always are."),
    ),
    config(
        "remote.copy.lag.bytes",
        Long,
        "0",
        AtLeast(-1),
        &[("log.remote.copy.lag.bytes", 1)],
        kept!("What a partition may hold before it is copied to the remote store, bytes; -1: as the local retention."),
    ),
    config(
        "remote.copy.lag.ms",
        Long,
        "0",
        AtLeast(-1),
        &[("log.remote.copy.lag.ms", 1)],
        kept!("How long records may wait before they are copied to the remote store, ms; -1: as the local retention."),
    ),
    config(
        "remote.log.copy.disable",
        Boolean,
        "false",
        Any,
        &[],
        kept!("Whether records of a tiered topic are no longer copied to the remote store."),
    ),
    config(
        "remote.log.delete.on.disable",
        Boolean,
        "false",
        Any,
        &[],
        kept!("Whether records in the remote store are deleted when tiering is switched off."),
    ),
    config("remote.storage.enable", Boolean, "false", Any, &[], kept!("Whether the topic is tiered in Kafka's sense.")),
    config(
        "retention.bytes",
        Long,
        "-1",
        AtLeast(-1),
        &[("log.retention.bytes", 1)],
        kept!("What a partition may hold before its oldest records are deleted, bytes; -1: without limit."),
    ),
    config(
        "retention.ms",
        Long,
        "604800000",
        AtLeast(-1),
        &[("log.retention.ms", 1), ("log.retention.minutes", MINUTE), ("log.retention.hours", HOUR)],
        kept!("How long records stay before they are deleted, ms; -1: for ever."),
    ),
    config(
        "segment.bytes",
        Int,
        "1073741824",
        AtLeast(14),
        &[("log.segment.bytes", 1)],
        kept!("The size of a partition's files; in Camus partitions have none of their own."),
    ),
    config(
        "segment.index.bytes",
        Int,
        "10485760",
        AtLeast(4),
        &[("log.index.size.max.bytes", 1)],
        kept!("The size of the index of a partition's file, bytes."),
    ),
    config(
        "segment.jitter.ms",
        Long,
        "0",
        AtLeast(0),
        &[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR)],
        kept!("By how much at most the roll of a partition's file is put off at random, ms."),
    ),
    config(
        "segment.ms",
        Long,
        "604800000",
        AtLeast(1),
        &[("log.roll.ms", 1), ("log.roll.hours", HOUR)],
        kept!("After what time a partition's file is closed though it is not full, ms."),
    ),
    config(
        "unclean.leader.election.enable",
        Boolean,
        "false",
        Any,
        &[("unclean.leader.election.enable", 1)],
        kept!("Whether a replica that lacks acknowledged records may lead; in Camus it never may."),
    ),
];

/// Settings of older Kafka versions that people still have in their scripts.
static REMOVED: &[(&str, &str)] = &[
    ("message.downconversion.enable", "Kafka 4.0 removed it, records are never converted down"),
    ("message.format.version", "Kafka 4.0 removed it, records are stored in format 2"),
    (
        "message.timestamp.difference.max.ms",
        "Kafka 4.0 removed it, use message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    ),
];

struct BrokerConfig {
    name: &'static str,
    kind: ConfigType,
    default: Option<&'static str>,
    doc: &'static str,
}

const fn broker(
    name: &'static str,
    kind: ConfigType,
    default: Option<&'static str>,
    doc: &'static str,
) -> BrokerConfig {
    BrokerConfig { name, kind, default, doc }
}

/// In the order of their names. All are read when the broker starts: none can be changed through the admin API.
static BROKER: &[BrokerConfig] = &[
    broker("advertised.listeners", Text, None, "The addresses that clients are told to connect to."),
    broker("auto.create.topics.enable", Boolean, Some("true"), "Whether a topic is made when a client asks for it."),
    broker("broker.id", Int, Some("0"), "The id of this broker."),
    broker("broker.rack", Text, None, "Where this broker stands, for clients that read from the nearest replica."),
    broker("camus.mode", Text, Some("wal"), "The default of camus.mode."),
    broker("compression.gzip.level", Int, Some("-1"), "The default of compression.gzip.level."),
    broker("compression.lz4.level", Int, Some("9"), "The default of compression.lz4.level."),
    broker("compression.type", Text, Some("producer"), "The default of compression.type."),
    broker("compression.zstd.level", Int, Some("3"), "The default of compression.zstd.level."),
    broker("connections.max.idle.ms", Long, Some("600000"), "After what time an idle connection is closed, ms."),
    broker("default.replication.factor", Short, Some("1"), "The replication factor of topics that ask for none."),
    broker("delete.topic.enable", Boolean, Some("true"), "Whether topics can be deleted: they can."),
    broker("fetch.max.bytes", Int, Some("57671680"), "What one fetch returns at most, bytes."),
    broker("group.initial.rebalance.delay.ms", Int, Some("3000"), "How long a new group waits for more members, ms."),
    broker("group.max.session.timeout.ms", Int, Some("1800000"), "The longest session timeout of a member, ms."),
    broker("group.max.size", Int, Some("10000"), "Members of one group."),
    broker("group.min.session.timeout.ms", Int, Some("6000"), "The shortest session timeout of a member, ms."),
    broker("listeners", Text, None, "The addresses on which the broker listens."),
    broker("log.cleaner.delete.retention.ms", Long, Some("86400000"), "The default of delete.retention.ms."),
    broker("log.cleaner.enable", Boolean, Some("true"), "Whether logs are compacted; kept, not so far."),
    broker("log.cleaner.max.compaction.lag.ms", Long, Some(NEVER), "The default of max.compaction.lag.ms."),
    broker("log.cleaner.min.cleanable.ratio", Double, Some("0.5"), "The default of min.cleanable.dirty.ratio."),
    broker("log.cleaner.min.compaction.lag.ms", Long, Some("0"), "The default of min.compaction.lag.ms."),
    broker("log.cleanup.policy", List, Some("delete"), "The default of cleanup.policy."),
    broker("log.dirs", Text, None, "The directories with the data."),
    broker("log.flush.interval.messages", Long, Some(NEVER), "The default of flush.messages."),
    broker("log.flush.interval.ms", Long, None, "The default of flush.ms."),
    broker("log.index.interval.bytes", Int, Some("4096"), "The default of index.interval.bytes."),
    broker("log.index.size.max.bytes", Int, Some("10485760"), "The default of segment.index.bytes."),
    broker("log.local.retention.bytes", Long, Some("-2"), "The default of local.retention.bytes."),
    broker("log.local.retention.ms", Long, Some("-2"), "The default of local.retention.ms."),
    broker(
        "log.message.timestamp.after.max.ms",
        Long,
        Some("3600000"),
        "The default of message.timestamp.after.max.ms.",
    ),
    broker("log.message.timestamp.before.max.ms", Long, Some(NEVER), "The default of message.timestamp.before.max.ms."),
    broker("log.message.timestamp.type", Text, Some("CreateTime"), "The default of message.timestamp.type."),
    broker("log.preallocate", Boolean, Some("false"), "The default of preallocate."),
    broker("log.remote.copy.lag.bytes", Long, Some("0"), "The default of remote.copy.lag.bytes."),
    broker("log.remote.copy.lag.ms", Long, Some("0"), "The default of remote.copy.lag.ms."),
    broker("log.retention.bytes", Long, Some("-1"), "The default of retention.bytes."),
    broker("log.retention.hours", Int, Some("168"), "The default of retention.ms, in hours."),
    broker("log.retention.minutes", Int, None, "The default of retention.ms, in minutes; goes before the hours."),
    broker("log.retention.ms", Long, None, "The default of retention.ms; goes before minutes and hours."),
    broker("log.roll.hours", Int, Some("168"), "The default of segment.ms, in hours."),
    broker("log.roll.jitter.hours", Int, Some("0"), "The default of segment.jitter.ms, in hours."),
    broker("log.roll.jitter.ms", Long, None, "The default of segment.jitter.ms; goes before the hours."),
    broker("log.roll.ms", Long, None, "The default of segment.ms; goes before the hours."),
    broker("log.segment.bytes", Int, Some("1073741824"), "The default of segment.bytes."),
    broker("log.segment.delete.delay.ms", Long, Some("60000"), "The default of file.delete.delay.ms."),
    broker("max.connections", Int, Some("10000"), "Client connections of this broker."),
    broker("max.incremental.fetch.session.cache.slots", Int, Some("1000"), "Fetch sessions that are remembered."),
    broker("message.max.bytes", Int, Some("1048588"), "The default of max.message.bytes."),
    broker("min.insync.replicas", Int, Some("1"), "The default of min.insync.replicas."),
    broker("node.id", Int, Some("0"), "The id of this broker."),
    broker("num.partitions", Int, Some("1"), "The partitions of topics that ask for no number."),
    broker("offset.metadata.max.bytes", Int, Some("4096"), "What may be kept beside a committed offset, bytes."),
    broker("offsets.retention.minutes", Int, Some("10080"), "How long committed offsets outlive a group's members."),
    broker("process.roles", List, Some("broker,controller"), "Each broker of Camus is both."),
    broker("socket.request.max.bytes", Int, Some("104857600"), "The largest request that is read, bytes."),
    broker("unclean.leader.election.enable", Boolean, Some("false"), "The default of unclean.leader.election.enable."),
];

fn find(name: &str) -> Option<&'static TopicConfig> {
    TOPIC.binary_search_by(|config| config.name.cmp(name)).ok().map(|at| &TOPIC[at])
}

fn find_broker(name: &str) -> Option<&'static BrokerConfig> {
    BROKER.binary_search_by(|config| config.name.cmp(name)).ok().map(|at| &BROKER[at])
}

fn find_or_why(name: &str) -> Result<&'static TopicConfig, ConfigError> {
    if let Some(config) = find(name) {
        return Ok(config);
    }
    if let Some((name, why)) = REMOVED.iter().find(|removed| removed.0 == name) {
        return Err(ConfigError::Removed { name, why });
    }
    let shown = shorten(name, 80);
    // A broker's name for a topic's setting is a mistake that is easily made.
    let of_broker = TOPIC.iter().find(|config| config.broker.iter().any(|(broker, _)| *broker == name));
    let nearest = of_broker.map(|config| config.name).or_else(|| {
        let near = TOPIC.iter().map(|config| (strsim::jaro_winkler(config.name, &shown), config.name));
        near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.85).map(|(_, name)| name)
    });
    Err(ConfigError::Unknown { name: shown, nearest })
}

fn shorten(text: &str, bytes_max: usize) -> String {
    let end = text.floor_char_boundary(bytes_max);
    if end < text.len() { format!("{}...", &text[..end]) } else { text.to_owned() }
}

/// Whether there is such a topic setting.
pub fn known(name: &str) -> Result<(), ConfigError> {
    find_or_why(name).map(|_| ())
}

/// Whether a topic may have these settings: each one, and all together.
pub fn check(configs: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, value) in configs {
        let config = find_or_why(name)?;
        config.check(value).map_err(|why| ConfigError::Invalid {
            name: config.name,
            value: shorten(value, 80),
            why,
        })?;
    }
    let lag = |name| long(configs, name);
    let (min, max) = (lag("min.compaction.lag.ms"), lag("max.compaction.lag.ms"));
    if min > max { Err(ConfigError::CompactionLag { min, max }) } else { Ok(()) }
}

/// The value of a list after `items` (comma-separated) are added to what is in force; those that are in it stay once.
pub fn appended(configs: &BTreeMap<String, String>, name: &str, items: &str) -> Result<String, ConfigError> {
    let mut list = list_now(configs, name)?;
    for item in split(items) {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    Ok(list.join(","))
}

/// The value of a list after `items` (comma-separated) are taken from what is in force.
pub fn subtracted(configs: &BTreeMap<String, String>, name: &str, items: &str) -> Result<String, ConfigError> {
    let gone: Vec<&str> = split(items).collect();
    let mut list = list_now(configs, name)?;
    list.retain(|item| !gone.contains(item));
    Ok(list.join(","))
}

fn list_now<'a>(configs: &'a BTreeMap<String, String>, name: &str) -> Result<Vec<&'a str>, ConfigError> {
    let config = find_or_why(name)?;
    if config.kind != List {
        return Err(ConfigError::NotAList { name: config.name });
    }
    Ok(split(configs.get(name).map_or(config.default, String::as_str)).collect())
}

/// The items of a list; an empty text has none.
fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// A checked integer that is set, or its default.
fn long(configs: &BTreeMap<String, String>, name: &'static str) -> i64 {
    let config = find(name).expect("our own code asks for settings that there are");
    let set = configs.get(name).map_or(config.default, String::as_str);
    set.trim().parse().expect("values are checked before they are kept")
}

/// What each batch of a topic is judged by. `message_bytes_max`: the broker's `message.max.bytes`.
///
/// # Panics
/// If the settings were not checked.
pub fn rules(configs: &BTreeMap<String, String>, message_bytes_max: u32) -> BatchRules {
    let set_bytes_max = configs.contains_key("max.message.bytes").then(|| long(configs, "max.message.bytes"));
    let bytes_max = set_bytes_max.unwrap_or_else(|| i64::from(message_bytes_max));
    let append_time = configs.get("message.timestamp.type").is_some_and(|v| v == "LogAppendTime");
    BatchRules {
        batch_bytes_max: bytes_max.clamp(0, limits::BATCH_BYTES_MAX as i64) as u32,
        timestamps: if append_time { TimestampType::LogAppendTime } else { TimestampType::CreateTime },
        before_max_ms: long(configs, "message.timestamp.before.max.ms"),
        after_max_ms: long(configs, "message.timestamp.after.max.ms"),
        compacted: configs.get("cleanup.policy").is_some_and(|v| split(v).any(|policy| policy == "compact")),
        packing: packing(configs),
    }
}

/// How batches are to be packed; `None`: as they were sent.
fn packing(configs: &BTreeMap<String, String>) -> Option<Packing> {
    let level = |name| i32::try_from(long(configs, name)).expect("a level is checked before it is kept");
    let (codec, level) = match configs.get("compression.type")?.as_str() {
        "uncompressed" => (Codec::None, 0),
        "gzip" => (Codec::Gzip, level("compression.gzip.level")),
        "snappy" => (Codec::Snappy, 0),
        "lz4" => (Codec::Lz4, level("compression.lz4.level")),
        "zstd" => (Codec::Zstd, level("compression.zstd.level")),
        _ => return None,
    };
    Some(Packing { codec, level })
}

/// All settings of a topic that has `configs` set. `broker`: names and effective values of this broker; one that is not
/// its default counts as set. In the order of their names.
pub fn describe(configs: &BTreeMap<String, String>, broker: &[(&str, String)]) -> Vec<Described> {
    TOPIC.iter().map(|config| config.describe(configs.get(config.name), broker)).collect()
}

/// All settings of this broker; `broker` as for [`describe`]. In the order of their names.
pub fn describe_broker(broker: &[(&str, String)]) -> Vec<Described> {
    let describe = |config: &BrokerConfig| {
        let set = broker.iter().find(|(name, _)| *name == config.name).map(|(_, value)| value.clone());
        let default = Synonym { name: config.name, value: config.default.map(str::to_owned), source: Source::Default };
        let mut synonyms = Vec::new();
        if set.is_some() && set != default.value {
            synonyms.push(Synonym { name: config.name, value: set, source: Source::StaticBroker });
        }
        if default.value.is_some() || synonyms.is_empty() {
            synonyms.push(default);
        }
        Described {
            name: config.name,
            value: synonyms[0].value.clone(),
            source: synonyms[0].source,
            synonyms,
            kind: config.kind,
            doc: config.doc,
            read_only: true,
            sensitive: false,
        }
    };
    BROKER.iter().map(describe).collect()
}

impl TopicConfig {
    fn describe(&self, set: Option<&String>, broker: &[(&str, String)]) -> Described {
        // What is effective, in the topic's own unit; the synonyms say it in theirs.
        let mut effective: Option<(String, Source)> = None;
        let mut synonyms = Vec::new();
        if let Some(value) = set {
            effective = Some((value.clone(), Source::Topic));
            synonyms.push(Synonym { name: self.name, value: Some(value.clone()), source: Source::Topic });
        }
        for (name, factor) in self.broker {
            let Some((_, value)) = broker.iter().find(|(broker, _)| broker == name) else { continue };
            if find_broker(name).is_some_and(|known| known.default == Some(value.as_str())) {
                continue;
            }
            effective.get_or_insert_with(|| (scaled(value, *factor), Source::StaticBroker));
            synonyms.push(Synonym { name, value: Some(value.clone()), source: Source::StaticBroker });
        }
        let default = self.broker.iter().find_map(|(name, _)| Some((*name, find_broker(name)?.default?)));
        let (name, default) = default.unwrap_or((self.name, self.default));
        synonyms.push(Synonym { name, value: Some(default.to_owned()), source: Source::Default });
        let (value, source) = effective.unwrap_or_else(|| (self.default.to_owned(), Source::Default));
        Described {
            name: self.name,
            value: Some(value),
            source,
            synonyms,
            kind: self.kind,
            doc: self.doc,
            read_only: false,
            sensitive: false,
        }
    }

    fn check(&self, value: &str) -> Result<(), String> {
        if value.len() > CONFIG_VALUE_BYTES_MAX {
            return Err(format!("it has {} bytes, the limit is {CONFIG_VALUE_BYTES_MAX}", value.len()));
        }
        let number = || -> Result<i64, String> {
            let limit = if self.kind == Int { i64::from(i32::MAX) } else { i64::MAX };
            let number = value.trim().parse::<i64>().ok().filter(|n| *n <= limit && *n >= -limit - 1);
            number.ok_or_else(|| "it is no whole number of this size".to_owned())
        };
        match self.valid {
            Any => match self.kind {
                Boolean if !["true", "false"].iter().any(|b| value.trim().eq_ignore_ascii_case(b)) => {
                    Err("it is neither true nor false".to_owned())
                }
                Int | Long | Short => number().map(|_| ()),
                Boolean | Text | List | Double => Ok(()),
            },
            AtLeast(min) => match number()? {
                n if n < min => Err(format!("it is below {min}")),
                _ => Ok(()),
            },
            Between(min, max) => match number()? {
                n if n < min || n > max => Err(format!("it is not between {min} and {max}")),
                _ => Ok(()),
            },
            GzipLevel => match number()? {
                -1 | 1..=9 => Ok(()),
                _ => Err("it is not between 1 and 9, and not -1".to_owned()),
            },
            Ratio => match value.trim().parse::<f64>() {
                Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(()),
                _ => Err("it is no number between 0 and 1".to_owned()),
            },
            OneOf(values) if values.contains(&value) => Ok(()),
            OneOf(values) => Err(format!("it is not one of {}", values.join(", "))),
            EachOf(values) => match split(value).find(|item| !values.contains(item)) {
                Some(_) => Err(format!("it may hold {}", values.join(", "))),
                None => Ok(()),
            },
            Throttled => {
                let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let pair = |item: &str| item.split_once(':').is_some_and(|(p, b)| digits(p) && digits(b));
                if value.trim() == "*" || split(value).all(pair) {
                    Ok(())
                } else {
                    Err("it is neither * nor a list of partition:broker pairs".to_owned())
                }
            }
            // A mode that acknowledges by other rules than it says would be a lie about durability.
            Mode if value == "wal" => Ok(()),
            Mode if value == "r2" => Err("this version has no bucket yet; only wal can be chosen".to_owned()),
            Mode => Err("it is not wal".to_owned()),
        }
    }
}

fn scaled(value: &str, factor: i64) -> String {
    if factor == 1 {
        return value.to_owned();
    }
    // -1 stays "without limit" in every unit.
    match value.trim().parse::<i64>() {
        Ok(number) if number >= 0 => number.saturating_mul(factor).to_string(),
        Ok(_) | Err(_) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn why(name: &str, value: &str) -> String {
        check(&set(&[(name, value)])).unwrap_err().to_string()
    }

    fn described(configs: &[(&str, &str)], broker: &[(&str, &str)], name: &str) -> Described {
        let broker: Vec<_> = broker.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        describe(&set(configs), &broker).into_iter().find(|d| d.name == name).unwrap()
    }

    fn chain(described: &Described) -> Vec<(&str, &str, i8)> {
        described.synonyms.iter().map(|s| (s.name, s.value.as_deref().unwrap(), s.source.code())).collect()
    }

    /// A setting out of place would not be found, one with a wrong default would be refused when it is set back.
    #[test]
    fn the_tables_are_sorted_and_their_defaults_are_valid() {
        assert!(TOPIC.is_sorted_by(|a, b| a.name < b.name));
        assert!(BROKER.is_sorted_by(|a, b| a.name < b.name));
        for config in TOPIC {
            config.check(config.default).unwrap_or_else(|why| panic!("{}: {why}", config.name));
            assert!(config.doc.len() > 20, "{}", config.name);
            let effective: Vec<String> = config
                .broker
                .iter()
                .map(|(name, factor)| (find_broker(name).unwrap_or_else(|| panic!("no {name}")).default, factor))
                .filter_map(|(default, factor)| default.map(|value| scaled(value, *factor)))
                .collect();
            assert!(effective.iter().all(|value| value == config.default), "{}: {effective:?}", config.name);
        }
    }

    /// Kafka's tools set and show these; one that is missing breaks a deployment script.
    #[test]
    fn every_topic_setting_of_kafka_is_there() {
        let kafka = "cleanup.policy compression.gzip.level compression.lz4.level compression.type \
            compression.zstd.level delete.retention.ms file.delete.delay.ms flush.messages flush.ms \
            follower.replication.throttled.replicas index.interval.bytes leader.replication.throttled.replicas \
            local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes \
            message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type \
            min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate remote.copy.lag.bytes \
            remote.copy.lag.ms remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable \
            retention.bytes retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms \
            unclean.leader.election.enable";
        let ours: Vec<&str> = TOPIC.iter().map(|c| c.name).filter(|name| *name != "camus.mode").collect();
        assert_eq!(ours, kafka.split_whitespace().collect::<Vec<_>>());
    }

    /// Whoever mistypes a setting would believe that it is in force.
    #[test]
    fn an_unknown_setting_is_refused_with_the_nearest_name() {
        assert_eq!(
            why("retention.msec", "1"),
            "there is no topic setting 'retention.msec'; did you mean 'retention.ms'?"
        );
        assert_eq!(
            why("log.retention.hours", "1"),
            "there is no topic setting 'log.retention.hours'; did you mean 'retention.ms'?"
        );
        assert_eq!(why("zzz", "1"), "there is no topic setting 'zzz'");
        assert!(why("message.format.version", "2.8").contains("Kafka 4.0 removed it"));
        assert!(why(&"x".repeat(100_000), "1").len() < 200);
    }

    /// A value that is taken and not understood fails later, where nobody looks.
    #[test]
    fn values_are_judged_by_type_and_range() {
        let good = [
            ("retention.ms", "-1"),
            ("retention.ms", " 77 "),
            ("flush.ms", NEVER),
            ("max.message.bytes", "0"),
            ("compression.gzip.level", "-1"),
            ("compression.zstd.level", "-131072"),
            ("preallocate", "TRUE"),
            ("min.cleanable.dirty.ratio", "1"),
            ("cleanup.policy", "compact"),
            ("cleanup.policy", "delete, compact"),
            ("cleanup.policy", ""),
            ("leader.replication.throttled.replicas", "*"),
            ("leader.replication.throttled.replicas", "0:1,15:2"),
            ("message.timestamp.type", "LogAppendTime"),
            ("camus.mode", "wal"),
        ];
        for (name, value) in good {
            assert_eq!(check(&set(&[(name, value)])), Ok(()), "{name}={value}");
        }
        let bad = [
            ("retention.ms", "-2"),
            ("retention.ms", "abc"),
            ("retention.ms", ""),
            ("retention.ms", "9223372036854775808"),
            ("segment.bytes", "2147483648"),
            ("max.message.bytes", "-5"),
            ("max.message.bytes", "16777217"),
            ("compression.gzip.level", "0"),
            ("compression.type", "GZIP"),
            ("preallocate", "yes"),
            ("min.cleanable.dirty.ratio", "1.1"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("cleanup.policy", "shred"),
            ("leader.replication.throttled.replicas", "0"),
            ("message.timestamp.type", "logappendtime"),
            ("camus.mode", "r2"),
            ("camus.mode", "fast"),
        ];
        for (name, value) in bad {
            assert!(why(name, value).contains(name), "{name}={value}");
        }
        assert!(why("retention.ms", &"9".repeat(1_000_000)).len() < 300);
        assert_eq!(
            why("compression.lz4.level", "18"),
            "'18' is no value for compression.lz4.level: it is not between 1 and 17"
        );
    }

    /// Two settings may each be fine and together never let a record be compacted.
    #[test]
    fn settings_are_judged_together() {
        let lags = |min, max| check(&set(&[("min.compaction.lag.ms", min), ("max.compaction.lag.ms", max)]));
        assert_eq!(lags("5", "5"), Ok(()));
        assert_eq!(lags("6", "5"), Err(ConfigError::CompactionLag { min: 6, max: 5 }));
    }

    /// Schema Registry and Connect decide by the source whether they may start.
    #[test]
    fn synonyms_run_from_the_topic_down_to_the_default() {
        let plain = described(&[], &[], "cleanup.policy");
        assert_eq!((plain.value.as_deref(), plain.source.code(), plain.kind.code()), (Some("delete"), 5, 7));
        assert_eq!(chain(&plain), [("log.cleanup.policy", "delete", 5)]);

        let own = described(&[("retention.ms", "123456")], &[("log.retention.hours", "24")], "retention.ms");
        assert_eq!((own.value.as_deref(), own.source.code(), own.kind.code()), (Some("123456"), 1, 5));
        let expected =
            [("retention.ms", "123456", 1), ("log.retention.hours", "24", 4), ("log.retention.hours", "168", 5)];
        assert_eq!(chain(&own), expected);

        let broker = described(&[], &[("log.retention.hours", "24")], "retention.ms");
        assert_eq!((broker.value.as_deref(), broker.source.code()), (Some("86400000"), 4));
        let both = described(&[], &[("log.retention.hours", "24"), ("log.retention.minutes", "2")], "retention.ms");
        assert_eq!((both.value.as_deref(), both.source.code()), (Some("120000"), 4));
        let endless = described(&[], &[("log.retention.hours", "-1")], "retention.ms");
        assert_eq!(endless.value.as_deref(), Some("-1"));

        let same = described(&[], &[("message.max.bytes", "1048588")], "max.message.bytes");
        assert_eq!(same.source, Source::Default);
        assert_eq!(chain(&described(&[], &[], "remote.storage.enable")), [("remote.storage.enable", "false", 5)]);
        assert_eq!(described(&[], &[], "flush.ms").value.as_deref(), Some(NEVER));
    }

    /// An operator reads the broker's settings here: what was set must not be shown as the default.
    #[test]
    fn broker_settings_say_what_was_set() {
        let pairs = [("num.partitions", "6".to_owned()), ("message.max.bytes", "1048588".to_owned())];
        let all = describe_broker(&pairs);
        let of = |name: &str| all.iter().find(|d| d.name == name).unwrap();
        assert_eq!(chain(of("num.partitions")), [("num.partitions", "6", 4), ("num.partitions", "1", 5)]);
        assert_eq!(of("message.max.bytes").source, Source::Default);
        assert_eq!((of("log.dirs").value.clone(), of("log.dirs").source), (None, Source::Default));
        assert!(all.iter().all(|d| d.read_only && !d.sensitive && !d.synonyms.is_empty()));
    }

    /// A batch would be judged by other rules than the topic's owner set.
    #[test]
    fn rules_follow_the_settings() {
        assert_eq!(rules(&set(&[]), limits::BATCH_BYTES_DEFAULT as u32), BatchRules::default());
        assert_eq!(rules(&set(&[]), 2_000_000).batch_bytes_max, 2_000_000);
        let configs = set(&[
            ("max.message.bytes", " 500 "),
            ("message.timestamp.type", "LogAppendTime"),
            ("message.timestamp.before.max.ms", "1"),
            ("message.timestamp.after.max.ms", "2"),
            ("cleanup.policy", "delete,compact"),
        ]);
        let expected = BatchRules {
            batch_bytes_max: 500,
            timestamps: TimestampType::LogAppendTime,
            before_max_ms: 1,
            after_max_ms: 2,
            compacted: true,
            packing: None,
        };
        assert_eq!(rules(&configs, 2_000_000), expected);
        let packing =
            |settings: &[(&str, &str)]| rules(&set(settings), 1).packing.map(|packing| (packing.codec, packing.level));
        assert_eq!(packing(&[("compression.type", "producer"), ("compression.gzip.level", "1")]), None);
        assert_eq!(packing(&[("compression.type", "uncompressed")]), Some((Codec::None, 0)));
        assert_eq!(packing(&[("compression.type", "gzip")]), Some((Codec::Gzip, -1)));
        let levelled = [("compression.type", "zstd"), ("compression.zstd.level", " 7 ")];
        assert_eq!(packing(&levelled), Some((Codec::Zstd, 7)));
    }

    /// A list that is changed twice would grow, or lose what somebody else set.
    #[test]
    fn lists_are_appended_to_and_subtracted_from() {
        assert_eq!(appended(&set(&[]), "cleanup.policy", "compact").unwrap(), "delete,compact");
        let both = set(&[("cleanup.policy", "delete,compact")]);
        assert_eq!(appended(&both, "cleanup.policy", "compact, delete").unwrap(), "delete,compact");
        assert_eq!(subtracted(&both, "cleanup.policy", "delete").unwrap(), "compact");
        assert_eq!(subtracted(&both, "cleanup.policy", "x,compact,delete").unwrap(), "");
        assert_eq!(appended(&both, "retention.ms", "5"), Err(ConfigError::NotAList { name: "retention.ms" }));
        assert!(matches!(appended(&both, "nope", "5"), Err(ConfigError::Unknown { .. })));
    }

    proptest! {
        /// What was let in is parsed without asking again, on every core.
        #[test]
        fn what_is_checked_can_be_used(
            at in any::<prop::sample::Index>(),
            value in prop_oneof![".{0,12}", " ?-?[0-9]{1,20} ?", "[a-zA-Z,:*0-9]{0,20}"],
        ) {
            let name = TOPIC[at.index(TOPIC.len())].name;
            let configs = set(&[(name, &value)]);
            if check(&configs).is_ok() {
                rules(&configs, 1);
                let described = describe(&configs, &[]).into_iter().find(|d| d.name == name).unwrap();
                prop_assert_eq!(described.value, Some(value));
            }
        }
    }
}
