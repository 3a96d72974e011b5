//! The state machine of the meta shard: each command of its log, in order, on each replica.
//!
//! A log is replayed by later versions: what was decided about a command of one format must be decided the same way for
//! ever. A rule that becomes stricter needs a new format, or a check before the command is made.

use crate::command::{
    Command, Decided, DecodeError, Done, Placement, ProducerIdRange, Refused, TopicOffsets, decode, decode_first,
    encode,
};
use crate::configs;
use crate::image::{Image, Topic};
use crate::offsets::{Offsets, OffsetsSnapshot};
use crate::users::{Users, UsersSnapshot};
use camus_engine::limits;
#[cfg(feature = "planted")]
use camus_engine::planted::{Bug, is};
use camus_engine::types::{Index, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Characters of a topic name (Kafka's limit: a directory's name, minus the partition's number).
pub const TOPIC_NAME_CHARS_MAX: usize = 249;
/// Producer ids in one block.
pub const PRODUCER_ID_BLOCK_MAX: u32 = 1_000_000;

/// The cluster's metadata and what hands out its ids.
///
/// Lives on the meta shard's core; changed by committed commands only. Two replicas that applied the same commands are
/// equal, whatever snapshots they went through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Shared with every core; copied when it changes while it is shared.
    image: Arc<Image>,
    /// The last entry applied.
    applied: Index,
    /// The next partition's id, from 1. Never goes back: an id is given out once in the cluster's life.
    next_partition: u64,
    next_producer: i64,
    offsets: Offsets,
    shards: Vec<Shard>,
    /// Among the least loaded shards, the first from here on gets the next partition.
    turn: usize,
    /// `message.max.bytes` of this broker: the default of `max.message.bytes`.
    message_bytes_max: u32,
}

/// A data shard and how many partitions it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shard {
    id: ShardId,
    partitions: u32,
}

/// A snapshot holds what commands decide, and nothing of this broker's settings.
#[derive(Serialize, Deserialize)]
struct Snapshot {
    applied: u64,
    version: u64,
    cluster_id: String,
    next_partition: u64,
    next_producer: i64,
    turn: u64,
    topics: Vec<TopicSnapshot>,
}

#[derive(Serialize, Deserialize)]
struct TopicSnapshot {
    name: String,
    id: Uuid,
    replication_factor: i16,
    partitions: Vec<Placement>,
    configs: BTreeMap<String, String>,
}

/// A snapshot that can not be true. Nothing can be served from it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the metadata snapshot can not be read: {0}")]
    Decode(#[from] DecodeError),
    #[error("the metadata snapshot contradicts itself: {why}")]
    Contradiction { why: String },
}

impl State {
    /// An empty cluster whose partitions go to `data_shards`.
    pub fn new(data_shards: Vec<ShardId>) -> State {
        assert!(!data_shards.is_empty(), "partitions need a shard to live in");
        State {
            image: Arc::default(),
            applied: Index(0),
            next_partition: 1,
            next_producer: 0,
            offsets: Offsets::default(),
            shards: data_shards.into_iter().map(|id| Shard { id, partitions: 0 }).collect(),
            turn: 0,
            message_bytes_max: limits::BATCH_BYTES_DEFAULT as u32,
        }
    }

    /// With this broker's `message.max.bytes`, which topics that set none of their own go by.
    #[must_use]
    pub fn with_message_bytes_max(mut self, bytes: u32) -> State {
        self.message_bytes_max = bytes;
        let image = Arc::make_mut(&mut self.image);
        let topics: Vec<Arc<Topic>> = image.topics().cloned().collect();
        for topic in topics {
            let rules = configs::rules(&topic.configs, bytes);
            image.put(Topic { rules, ..Topic::clone(&topic) });
        }
        self
    }

    /// The metadata as of the last change. Costs nothing; the next change then copies the lists of references.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.image)
    }

    /// What groups have committed.
    pub fn offsets(&self) -> &Offsets {
        &self.offsets
    }

    /// The last entry applied.
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// What [`Self::apply`] would answer now, were the image the newest: for requests that only ask (`validate_only`).
    /// Producer ids can not be asked for without taking them.
    pub fn check(image: &Image, command: &Command) -> Decided {
        match command {
            Command::Bootstrap { cluster_id } => {
                check_bootstrap(image, cluster_id)?;
                Ok(Done::Bootstrapped)
            }
            Command::CreateTopic { name, id, partitions, replication_factor, configs } => {
                check_create(image, name, *id, *partitions, *replication_factor, configs)?;
                Ok(Done::TopicCreated { id: *id, partitions: *partitions })
            }
            Command::DeleteTopic { id } => {
                let topic = known(image, *id)?;
                Ok(Done::TopicDeleted { name: topic.name.clone(), id: *id })
            }
            Command::CreatePartitions { id, total } => {
                check_grow(image, known(image, *id)?, *total)?;
                Ok(Done::PartitionsCreated { id: *id, total: *total })
            }
            Command::AlterTopicConfigs { id, set } => {
                altered(known(image, *id)?, set)?;
                Ok(Done::ConfigsAltered { id: *id })
            }
            Command::AlterCredentials { user, set } => {
                image.users.check(user, set)?;
                Ok(Done::CredentialsAltered)
            }
            Command::TakeProducerIds { .. } => {
                Err(Refused::InvalidRequest { why: "producer ids are given out, not looked at".to_owned() })
            }
            Command::CommitOffsets { .. }
            | Command::DeleteOffsets { .. }
            | Command::DeleteGroups { .. }
            | Command::ExpireOffsets { .. } => {
                Err(Refused::InvalidRequest { why: "the image has no committed offsets".to_owned() })
            }
        }
    }

    /// Applies the entry at `index`. The same answer on every replica.
    ///
    /// # Panics
    /// If entries do not come in their order.
    pub fn apply(&mut self, index: Index, command: &Command) -> Decided {
        assert!(index > self.applied, "entry {index} of the meta shard after {}", self.applied);
        self.applied = index;
        match command {
            Command::Bootstrap { cluster_id } => {
                check_bootstrap(&self.image, cluster_id)?;
                if self.image.cluster_id.is_empty() {
                    self.change().cluster_id.clone_from(cluster_id);
                }
                Ok(Done::Bootstrapped)
            }
            Command::CreateTopic { name, id, partitions, replication_factor, configs } => {
                check_create(&self.image, name, *id, *partitions, *replication_factor, configs)?;
                let topic = Topic {
                    name: name.clone(),
                    id: *id,
                    replication_factor: *replication_factor,
                    partitions: (0..*partitions).map(|_| self.place()).collect(),
                    configs: configs.clone(),
                    rules: configs::rules(configs, self.message_bytes_max),
                };
                self.change().put(topic);
                Ok(Done::TopicCreated { id: *id, partitions: *partitions })
            }
            Command::DeleteTopic { id } => {
                known(&self.image, *id)?;
                let topic = self.change().remove(*id).expect("known a line ago");
                for placement in &topic.partitions {
                    self.load(placement.shard(), -1);
                }
                self.offsets.remove_topic(*id);
                Ok(Done::TopicDeleted { name: topic.name.clone(), id: *id })
            }
            Command::CreatePartitions { id, total } => {
                let mut topic = Topic::clone(known(&self.image, *id)?);
                check_grow(&self.image, &topic, *total)?;
                while topic.partitions.len() < *total as usize {
                    topic.partitions.push(self.place());
                }
                self.change().put(topic);
                Ok(Done::PartitionsCreated { id: *id, total: *total })
            }
            Command::AlterTopicConfigs { id, set } => {
                let topic = known(&self.image, *id)?;
                let configs = altered(topic, set)?;
                if configs != topic.configs {
                    let rules = configs::rules(&configs, self.message_bytes_max);
                    let topic = Topic { configs, rules, ..Topic::clone(topic) };
                    self.change().put(topic);
                }
                Ok(Done::ConfigsAltered { id: *id })
            }
            Command::TakeProducerIds { count } => {
                if *count == 0 || *count > PRODUCER_ID_BLOCK_MAX {
                    let why = format!("a block has 1 to {PRODUCER_ID_BLOCK_MAX} producer ids, not {count}");
                    return Err(Refused::InvalidRequest { why });
                }
                let first = self.next_producer;
                let next = first.checked_add(i64::from(*count));
                self.next_producer =
                    next.ok_or_else(|| Refused::Unavailable { why: "all producer ids are given out".to_owned() })?;
                Ok(Done::ProducerIds { first: ProducerIdRange { first, count: *count } })
            }
            Command::CommitOffsets { group, at_ms, topics } => {
                let there = |topic: &TopicOffsets| self.image.topic_by_id(topic.topic).is_some();
                let gone: Vec<Uuid> = topics.iter().filter(|topic| !there(topic)).map(|topic| topic.topic).collect();
                if gone.is_empty() {
                    self.offsets.commit(group, *at_ms, topics)?;
                } else {
                    let left: Vec<TopicOffsets> = topics.iter().filter(|topic| there(topic)).cloned().collect();
                    self.offsets.commit(group, *at_ms, &left)?;
                }
                Ok(Done::OffsetsCommitted { gone })
            }
            Command::DeleteOffsets { group, partitions } => {
                let named: BTreeSet<&(Uuid, u32)> = partitions.iter().collect();
                self.offsets.remove(group, |topic, partition, _| named.contains(&(topic, partition)));
                Ok(Done::OffsetsDeleted)
            }
            Command::DeleteGroups { groups } => {
                for group in groups {
                    self.offsets.remove(group, |_, _, _| true);
                }
                Ok(Done::GroupsDeleted)
            }
            Command::ExpireOffsets { group, before_ms } => {
                self.offsets.remove(group, |_, _, committed| committed.at_ms < *before_ms);
                Ok(Done::OffsetsExpired)
            }
            Command::AlterCredentials { user, set } => {
                self.image.users.check(user, set)?;
                Arc::make_mut(&mut self.change().users).alter(user, set);
                Ok(Done::CredentialsAltered)
            }
        }
    }

    /// All that commands have decided, as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let topics = self.image.topics().map(|topic| TopicSnapshot {
            name: topic.name.clone(),
            id: topic.id,
            replication_factor: topic.replication_factor,
            partitions: topic.partitions.clone(),
            configs: topic.configs.clone(),
        });
        let mut bytes = encode(&Snapshot {
            applied: self.applied.0,
            version: self.image.version,
            cluster_id: self.image.cluster_id.clone(),
            next_partition: self.next_partition,
            next_producer: self.next_producer,
            turn: self.turn as u64,
            topics: topics.collect(),
        });
        // a part of its own, which snapshots of the first version do not have; so are users, where there are some
        let offsets = self.offsets.snapshot();
        #[cfg(feature = "planted")]
        let offsets = if is(Bug::DropGroupOffsetsAtSnapshot) { Vec::new() } else { offsets };
        bytes.extend(encode(&offsets));
        if !self.image.users.is_empty() {
            bytes.extend(encode(&self.image.users.snapshot()));
        }
        bytes
    }

    /// The state of a snapshot. Partitions made from now on go to `data_shards`; those that exist stay where they are.
    pub fn restore(data_shards: Vec<ShardId>, bytes: &[u8]) -> Result<State, RestoreError> {
        let (snapshot, rest): (Snapshot, &[u8]) = decode_first(bytes)?;
        let (offsets, rest): (OffsetsSnapshot, &[u8]) =
            if rest.is_empty() { (Vec::new(), rest) } else { decode_first(rest)? };
        let users: UsersSnapshot = if rest.is_empty() { Vec::new() } else { decode(rest)? };
        let mut state = State::new(data_shards);
        state.offsets = Offsets::restore(offsets).map_err(|why| RestoreError::Contradiction { why })?;
        state.applied = Index(snapshot.applied);
        state.next_partition = snapshot.next_partition;
        state.next_producer = snapshot.next_producer;
        state.turn = usize::try_from(snapshot.turn).unwrap_or(0) % state.shards.len();
        let mut image = Image::of(snapshot.version, &snapshot.cluster_id, []);
        image.users = Arc::new(Users::restore(users).map_err(|why| RestoreError::Contradiction { why })?);
        let mut taken = std::collections::BTreeSet::new();
        for topic in snapshot.topics {
            if image.topic(&topic.name).is_some() || image.topic_by_id(topic.id).is_some() {
                return Err(RestoreError::Contradiction { why: format!("topic {} is there twice", topic.name) });
            }
            for placement in &topic.partitions {
                if placement.partition >= state.next_partition || !taken.insert(placement.partition) {
                    let why = format!("partition {} of topic {} is given out twice", placement.partition, topic.name);
                    return Err(RestoreError::Contradiction { why });
                }
                state.load(placement.shard(), 1);
            }
            configs::check(&topic.configs)
                .map_err(|e| RestoreError::Contradiction { why: format!("topic {}: {e}", topic.name) })?;
            image.put(Topic {
                rules: configs::rules(&topic.configs, state.message_bytes_max),
                name: topic.name,
                id: topic.id,
                replication_factor: topic.replication_factor,
                partitions: topic.partitions,
                configs: topic.configs,
            });
        }
        state.image = Arc::new(image);
        Ok(state)
    }

    /// The image, to be changed by the entry that is being applied.
    fn change(&mut self) -> &mut Image {
        let image = Arc::make_mut(&mut self.image);
        image.version = self.applied.0;
        image
    }

    /// A new partition's id and shard: the least loaded one, those of equal load in turn.
    fn place(&mut self) -> Placement {
        let count = self.shards.len();
        let at = (0..count)
            .map(|step| (self.turn + step) % count)
            .min_by_key(|at| self.shards[*at].partitions)
            .expect("there is a shard");
        self.turn = (at + 1) % count;
        self.shards[at].partitions += 1;
        let partition = self.next_partition;
        self.next_partition += 1;
        Placement { partition, shard: self.shards[at].id.0 }
    }

    fn load(&mut self, shard: ShardId, by: i32) {
        if let Some(shard) = self.shards.iter_mut().find(|s| s.id == shard) {
            shard.partitions = shard.partitions.checked_add_signed(by).expect("a shard lost what it had");
        }
    }
}

fn known(image: &Image, id: Uuid) -> Result<&Arc<Topic>, Refused> {
    image.topic_by_id(id).ok_or(Refused::UnknownTopicId)
}

fn check_bootstrap(image: &Image, cluster_id: &str) -> Result<(), Refused> {
    if cluster_id.is_empty() {
        return Err(Refused::InvalidRequest { why: "a cluster id is not empty".to_owned() });
    }
    if !image.cluster_id.is_empty() && image.cluster_id != cluster_id {
        let why = format!("this is cluster '{}', not '{cluster_id}'", image.cluster_id);
        return Err(Refused::InvalidRequest { why });
    }
    Ok(())
}

fn check_create(
    image: &Image,
    name: &str,
    id: Uuid,
    partitions: u32,
    replication_factor: i16,
    set: &BTreeMap<String, String>,
) -> Result<(), Refused> {
    check_name(name)?;
    if image.topic(name).is_some() {
        return Err(Refused::TopicExists { name: name.to_owned() });
    }
    if let Some(other) = colliding(image, name) {
        let why = format!("it differs from topic '{other}' only by '.' and '_', which are one in metric names");
        return Err(Refused::InvalidName { name: name.to_owned(), why });
    }
    if id.is_nil() || image.topic_by_id(id).is_some() {
        return Err(Refused::InvalidRequest { why: format!("the topic id {id} can not be used, try again") });
    }
    if partitions == 0 {
        return Err(Refused::InvalidPartitions { why: "a topic has at least 1 partition".to_owned() });
    }
    check_partitions(image, 0, partitions)?;
    if replication_factor != -1 && replication_factor <= 0 {
        let why = format!("the replication factor is larger than 0, or -1 for the default, not {replication_factor}");
        return Err(Refused::InvalidReplicationFactor { why });
    }
    configs::check(set).map_err(|e| Refused::InvalidConfig { why: e.to_string() })
}

fn check_grow(image: &Image, topic: &Topic, total: u32) -> Result<(), Refused> {
    let now = topic.partitions.len();
    if total as usize <= now {
        let why = format!("topic '{}' has {now} partitions; the new total must be larger, {total} is not", topic.name);
        return Err(Refused::InvalidPartitions { why });
    }
    check_partitions(image, now, total)
}

fn check_partitions(image: &Image, now: usize, total: u32) -> Result<(), Refused> {
    let (total, limit) = (total as usize, limits::PARTITIONS_PER_TOPIC_MAX);
    if total > limit {
        return Err(Refused::InvalidPartitions { why: format!("a topic has at most {limit} partitions, not {total}") });
    }
    if image.partition_count() - now + total > limits::PARTITIONS_MAX {
        return Err(Refused::TooManyPartitions { limit: limits::PARTITIONS_MAX });
    }
    Ok(())
}

/// The topic's settings with the change made, checked as a whole.
fn altered(topic: &Topic, set: &BTreeMap<String, Option<String>>) -> Result<BTreeMap<String, String>, Refused> {
    let mut configs = topic.configs.clone();
    for (name, value) in set {
        match value {
            Some(value) => {
                configs.insert(name.clone(), value.clone());
            }
            None => {
                configs::known(name).map_err(|e| Refused::InvalidConfig { why: e.to_string() })?;
                configs.remove(name);
            }
        }
    }
    configs::check(&configs).map_err(|e| Refused::InvalidConfig { why: e.to_string() })?;
    Ok(configs)
}

/// Whether a topic may have this name (Kafka's rule: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`).
pub fn check_name(name: &str) -> Result<(), Refused> {
    let why = if name.is_empty() {
        "it is empty".to_owned()
    } else if name == "." || name == ".." {
        "'.' and '..' are directories".to_owned()
    } else if let Some(bad) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')) {
        format!("it has a {bad:?}; only ASCII letters and digits, '.', '_' and '-' are allowed")
    } else if name.len() > TOPIC_NAME_CHARS_MAX {
        format!("it has {} characters, the limit is {TOPIC_NAME_CHARS_MAX}", name.len())
    } else {
        return Ok(());
    };
    let mut name = name.to_owned();
    name.truncate(name.floor_char_boundary(TOPIC_NAME_CHARS_MAX));
    Err(Refused::InvalidName { name, why })
}

/// A topic whose metrics would have the same names: Kafka turns '.' into '_' there and refuses such pairs.
fn colliding<'a>(image: &'a Image, name: &str) -> Option<&'a str> {
    if !name.contains(['.', '_']) {
        return None;
    }
    let same = |a: u8, b: u8| a == b || matches!((a, b), (b'.', b'_') | (b'_', b'.'));
    let mut names = image.topics().map(|topic| topic.name.as_str());
    names.find(|other| other.len() == name.len() && other.bytes().zip(name.bytes()).all(|(a, b)| same(a, b)))
}

#[cfg(test)]
mod tests;
