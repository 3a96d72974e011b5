//! What the meta shard decides: each command is one entry of its log, and each replica comes to the same answer.

use camus_engine::types::{PartitionId, ProducerId, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A change that is asked for. Everything that is random or comes from a clock comes in with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Once in a cluster's life, as its first command.
    Bootstrap {
        cluster_id: String,
    },
    CreateTopic {
        name: String,
        /// Random; refused if it is taken or all zero.
        id: Uuid,
        partitions: u32,
        /// As the client asked; Camus answers with it and never has fewer copies than it promises (docs/adr/0005).
        replication_factor: i16,
        /// Only what the client set; checked by [`crate::configs::check`].
        configs: BTreeMap<String, String>,
    },
    DeleteTopic {
        id: Uuid,
    },
    /// Grows the topic to `total` partitions.
    CreatePartitions {
        id: Uuid,
        total: u32,
    },
    /// Replaces the values set on a topic (`None` takes a key back to its default).
    AlterTopicConfigs {
        id: Uuid,
        set: BTreeMap<String, Option<String>>,
    },
    /// Gives the broker the next `count` producer ids; none is ever given out twice.
    TakeProducerIds {
        count: u32,
    },
}

/// What became of a command.
pub type Decided = Result<Done, Refused>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Done {
    Bootstrapped,
    TopicCreated { id: Uuid, partitions: u32 },
    TopicDeleted { name: String, id: Uuid },
    PartitionsCreated { id: Uuid, total: u32 },
    ConfigsAltered { id: Uuid },
    ProducerIds { first: ProducerIdRange },
}

/// `first .. first + count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProducerIdRange {
    pub first: i64,
    pub count: u32,
}

impl ProducerIdRange {
    pub fn first(&self) -> ProducerId {
        ProducerId(self.first)
    }
}

/// Why the state machine did not do it. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    #[error("topic '{name}' exists already")]
    TopicExists { name: String },
    #[error("there is no such topic")]
    UnknownTopic,
    #[error("there is no topic with this id")]
    UnknownTopicId,
    #[error("the name '{name}' is not allowed: {why}")]
    InvalidName { name: String, why: String },
    #[error("{why}")]
    InvalidPartitions { why: String },
    #[error("{why}")]
    InvalidReplicationFactor { why: String },
    #[error("{why}")]
    InvalidConfig { why: String },
    #[error("the cluster has a limit of {limit} partitions")]
    TooManyPartitions { limit: usize },
    #[error("{why}")]
    InvalidRequest { why: String },
    /// Retriable: the meta shard has no leader, or can not write now.
    #[error("the metadata can not be changed now: {why}")]
    Unavailable { why: String },
}

/// Where one partition lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    pub partition: u64,
    pub shard: u32,
}

impl Placement {
    pub fn partition(&self) -> PartitionId {
        PartitionId(self.partition)
    }
    pub fn shard(&self) -> ShardId {
        ShardId(self.shard)
    }
}
