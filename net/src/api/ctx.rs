//! What a core knows when it handles a request.

use camus_engine::shard::api::{Route, ShardTable};
use camus_engine::types::{BrokerId, Mono, Offset, PartitionId, ShardId, WallMs};
use camus_meta::Image;
use camus_meta::groups::GroupSettings;
use std::sync::Arc;

/// What does not change while the broker runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub broker: BrokerId,
    pub cluster_id: String,
    pub rack: Option<String>,
    /// `num.partitions`
    pub num_partitions: i32,
    /// `default.replication.factor`
    pub default_replication_factor: i16,
    /// `auto.create.topics.enable`
    pub auto_create_topics: bool,
    /// `message.max.bytes`
    pub message_bytes_max: u32,
    /// `max.incremental.fetch.session.cache.slots`, for each core
    pub fetch_sessions_max: usize,
    /// `fetch.max.bytes` (broker side): what one fetch may return, bytes
    pub fetch_bytes_max: u32,
    /// `offset.metadata.max.bytes`
    pub offset_metadata_bytes_max: usize,
    /// What the coordinator goes by.
    pub groups: GroupSettings,
    /// Every other setting that has a value, under Kafka's name where Kafka has it: for DescribeConfigs.
    pub given: Vec<(String, String)>,
}

/// The world of one request on one core.
pub struct Ctx<'a> {
    pub now: Mono,
    pub wall: WallMs,
    pub image: &'a Arc<Image>,
    pub shards: &'a ShardTable,
    pub settings: &'a Settings,
    pub sessions: &'a mut super::session::Sessions,
    /// What this core may give out of the producer ids; more come with [`camus_meta::Command::TakeProducerIds`].
    pub producer_ids: &'a mut super::init_producer_id::ProducerIds,
    pub random: &'a mut dyn FnMut() -> u64,
    /// What one fetch may return now, bytes, beside the settings: a part of what is left of the memory for answers.
    pub fetch_room_bytes: usize,
    /// Said by a handler or continuation whose request goes on waiting: what it keeps in memory meanwhile, bytes.
    pub kept_bytes: usize,
}

impl Ctx<'_> {
    pub fn route(&self, shard: ShardId, partition: PartitionId) -> Route {
        Route { core: self.shards.core(shard), shard, partition }
    }
}

/// What an answer says where there is no offset.
pub const NO_OFFSET: Offset = Offset(-1);
