//! What every core reads: the metadata of one moment, immutable, shared by reference.

use crate::command::Placement;
use camus_engine::shard::api::BatchRules;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// The cluster's metadata as of one entry of the meta shard's log.
///
/// Made on the meta shard's core after each change, read by all cores. Never changed: a new one takes its place.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Index of the entry; grows by at least 1 with each change.
    pub version: u64,
    pub cluster_id: String,
    by_name: BTreeMap<String, Arc<Topic>>,
    by_id: BTreeMap<Uuid, Arc<Topic>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topic {
    pub name: String,
    pub id: Uuid,
    pub replication_factor: i16,
    /// By partition number.
    pub partitions: Vec<Placement>,
    /// What was set on the topic, and nothing else; [`crate::configs::describe`] adds the defaults.
    pub configs: BTreeMap<String, String>,
    /// The settings that each batch is judged by, parsed.
    pub rules: BatchRules,
}

impl Image {
    /// An image of these topics: for tests of what reads one.
    pub fn of(version: u64, cluster_id: &str, topics: impl IntoIterator<Item = Topic>) -> Image {
        let mut image = Image { version, cluster_id: cluster_id.to_owned(), ..Image::default() };
        topics.into_iter().for_each(|topic| image.put(topic));
        image
    }

    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.by_name.get(name)
    }

    pub fn topic_by_id(&self, id: Uuid) -> Option<&Arc<Topic>> {
        self.by_id.get(&id)
    }

    /// In the order of their names.
    pub fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }

    pub fn partition_count(&self) -> usize {
        self.by_name.values().map(|t| t.partitions.len()).sum()
    }

    /// For the state machine: puts the topic in, in place of one of the same id.
    pub(crate) fn put(&mut self, topic: Topic) {
        let topic = Arc::new(topic);
        self.by_name.insert(topic.name.clone(), Arc::clone(&topic));
        self.by_id.insert(topic.id, topic);
    }

    /// For the state machine.
    pub(crate) fn remove(&mut self, id: Uuid) -> Option<Arc<Topic>> {
        let topic = self.by_id.remove(&id)?;
        self.by_name.remove(&topic.name);
        Some(topic)
    }
}
