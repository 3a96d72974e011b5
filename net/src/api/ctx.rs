//! What a core knows when it handles a request.

use crate::node::Member;
use crate::peer::broker_of;
use camus_engine::shard::api::{Route, ShardTable};
use camus_engine::types::{BrokerId, LeaderEpoch, META_SHARD, Mono, Offset, PartitionId, ShardId, WallMs};
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
    /// The brokers of the cluster, by id, this one among them.
    pub brokers: &'a [Member],
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

    /// Every broker and how this client reaches it: this one by the listener that it came through.
    pub fn reachable(&self, here: &(String, u16)) -> Vec<Reachable> {
        let me = self.settings.broker;
        let others = self.brokers.iter().filter(|broker| broker.id != me);
        // the racks of others are not known here
        let others = others.map(|other| Reachable { id: other.id, at: other.advertised.clone(), rack: None });
        let mut all: Vec<_> = others.collect();
        all.push(Reachable { id: me, at: here.clone(), rack: self.settings.rack.clone() });
        all.sort_by_key(|broker| broker.id);
        all
    }

    /// Who has a copy of each partition: every broker.
    pub fn replicas(&self) -> Vec<BrokerId> {
        let mut all: Vec<BrokerId> = self.brokers.iter().map(|broker| broker.id).collect();
        if !all.contains(&self.settings.broker) {
            all.push(self.settings.broker);
        }
        all.sort();
        all
    }

    /// Who leads the shard and since which epoch, as far as this broker knows. Itself only if it serves.
    pub fn leader(&self, shard: ShardId) -> Option<(BrokerId, LeaderEpoch)> {
        let me = self.settings.broker;
        if let Some(term) = self.shards.leading(shard) {
            return Some((me, term.leader_epoch()));
        }
        let (leader, term) = self.shards.leader(shard)?;
        let leader = broker_of(leader);
        (leader != me).then(|| (leader, term.leader_epoch()))
    }

    /// The broker that writes the metadata and coordinates groups. One that is alone always does.
    pub fn controller(&self) -> Option<BrokerId> {
        match self.brokers {
            [] | [_] => Some(self.settings.broker),
            [_, _, ..] => self.leader(META_SHARD).map(|(leader, _)| leader),
        }
    }

    /// The same, in the words of an answer.
    pub fn controller_id(&self) -> i32 {
        self.controller().map_or(-1, |broker| broker.0)
    }
}

/// How clients reach a broker.
pub struct Reachable {
    pub id: BrokerId,
    pub at: (String, u16),
    pub rack: Option<String>,
}

/// What an answer says where there is no offset.
pub const NO_OFFSET: Offset = Offset(-1);
