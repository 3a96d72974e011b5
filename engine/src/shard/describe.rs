//! What a core tells of itself to those who look after a cluster: who writes to a partition, what each partition takes,
//! and how far the replicas of a shard are. Nothing here changes anything.

use super::api::{Holding, Producing, Quorum, Refusal, Route};
use super::core::Core;
use crate::types::ShardId;

impl Core {
    /// Who wrote to the partition and is remembered. The leader's to answer: another replica may be behind.
    pub(super) fn producers(&self, of: Route, producers_max: u32) -> Result<Producing, Refusal> {
        let (_, partition) = self.led(of, None)?;
        Ok(partition.producing(producers_max as usize))
    }

    /// What there is of each partition here, leader or not.
    pub(super) fn holdings(&self) -> Vec<Holding> {
        let partitions = self.shards.values().flat_map(|shard| &shard.partitions);
        partitions.map(|(id, partition)| Holding { partition: *id, bytes: partition.data_bytes() }).collect()
    }

    /// How far the replicas of the shard are.
    pub(super) fn quorum(&self, shard: ShardId) -> Result<Quorum, Refusal> {
        let replica = &self.shards.get(&shard).ok_or(Refusal::NotLeader)?.replica;
        let voters = replica.voters().ok_or(Refusal::NotLeader)?;
        Ok(Quorum { commit: replica.commit(), last: replica.last(), voters })
    }
}
