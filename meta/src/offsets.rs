//! What groups have committed: for each group, the next offset to read of each partition.
//!
//! Part of the meta shard's state: changed by committed commands only, in the order of the log, so that a committed
//! offset moves when its group commits and never by itself (SPEC promise 5). Not part of the image: only the
//! coordinator reads it.

use crate::command::{PartitionOffset, Refused, TopicOffsets};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// One committed offset.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Committed {
    /// The next offset to read.
    pub offset: i64,
    /// Of the last record that was read; -1: not said.
    pub leader_epoch: i32,
    /// Whatever the client wants to find again.
    pub metadata: String,
    /// When it was committed, ms since 1970.
    pub at_ms: i64,
}

/// The offsets of one group. Never empty: a group without offsets is not here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupOffsets {
    topics: BTreeMap<Uuid, BTreeMap<u32, Committed>>,
}

impl GroupOffsets {
    pub fn get(&self, topic: Uuid, partition: u32) -> Option<&Committed> {
        self.topics.get(&topic)?.get(&partition)
    }

    /// By topic, then partition.
    pub fn topics(&self) -> impl Iterator<Item = (Uuid, &BTreeMap<u32, Committed>)> {
        self.topics.iter().map(|(topic, partitions)| (*topic, partitions))
    }

    /// The oldest commit that is still there, ms since 1970.
    pub fn oldest_ms(&self) -> Option<i64> {
        self.topics.values().flat_map(BTreeMap::values).map(|committed| committed.at_ms).min()
    }
}

/// The offsets of all groups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Offsets {
    groups: BTreeMap<String, GroupOffsets>,
    /// Entries of all groups.
    count: usize,
    /// Names and metadata of all groups.
    bytes: usize,
}

/// A group's offsets in a snapshot: name, then topics, then partitions.
pub(crate) type OffsetsSnapshot = Vec<(String, Vec<(Uuid, Vec<(u32, Committed)>)>)>;

impl Offsets {
    pub fn group(&self, group: &str) -> Option<&GroupOffsets> {
        self.groups.get(group)
    }

    /// In the order of their names.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &GroupOffsets)> {
        self.groups.iter().map(|(name, offsets)| (name.as_str(), offsets))
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// What all of it takes in memory, about.
    pub fn memory_bytes(&self) -> usize {
        self.count * limits::OFFSET_BYTES_FIXED + self.bytes
    }

    /// Puts all of it in, or nothing.
    pub(crate) fn commit(&mut self, group: &str, at_ms: i64, topics: &[TopicOffsets]) -> Result<(), Refused> {
        let known = self.groups.get(group);
        let (mut count, mut bytes) = (self.count, self.bytes + if known.is_none() { group.len() } else { 0 });
        for topic in topics {
            for new in &topic.partitions {
                // a partition that stands twice in one command is counted twice: the bound is not exact to one
                let old = known.and_then(|known| known.get(topic.topic, new.partition));
                count += usize::from(old.is_none());
                bytes = (bytes + new.metadata.len()).saturating_sub(old.map_or(0, |old| old.metadata.len()));
            }
        }
        if count > limits::OFFSETS_MAX || bytes > limits::OFFSETS_BYTES_MAX {
            return Err(Refused::TooManyOffsets { limit: limits::OFFSETS_MAX, bytes_limit: limits::OFFSETS_BYTES_MAX });
        }
        if topics.iter().all(|topic| topic.partitions.is_empty()) {
            return Ok(());
        }
        if known.is_none() {
            self.bytes += group.len();
        }
        let offsets = self.groups.entry(group.to_owned()).or_default();
        for topic in topics.iter().filter(|topic| !topic.partitions.is_empty()) {
            let partitions = offsets.topics.entry(topic.topic).or_default();
            for PartitionOffset { partition, offset, leader_epoch, metadata } in &topic.partitions {
                let new = Committed { offset: *offset, leader_epoch: *leader_epoch, metadata: metadata.clone(), at_ms };
                self.bytes += metadata.len();
                match partitions.insert(*partition, new) {
                    Some(old) => self.bytes -= old.metadata.len(),
                    None => self.count += 1,
                }
            }
        }
        Ok(())
    }

    /// Takes out what `goes` says; `true` if the group had something.
    pub(crate) fn remove(&mut self, group: &str, mut goes: impl FnMut(Uuid, u32, &Committed) -> bool) -> bool {
        let Some(offsets) = self.groups.get_mut(group) else { return false };
        let (count, bytes) = (&mut self.count, &mut self.bytes);
        offsets.topics.retain(|topic, partitions| {
            partitions.retain(|partition, committed| {
                let goes = goes(*topic, *partition, committed);
                if goes {
                    *count -= 1;
                    *bytes -= committed.metadata.len();
                }
                !goes
            });
            !partitions.is_empty()
        });
        if offsets.topics.is_empty() {
            self.groups.remove(group);
            self.bytes -= group.len();
        }
        true
    }

    /// A topic is gone, and with it what was committed of it.
    pub(crate) fn remove_topic(&mut self, topic: Uuid) {
        let readers: Vec<String> =
            self.groups.iter().filter(|(_, g)| g.topics.contains_key(&topic)).map(|(name, _)| name.clone()).collect();
        for group in readers {
            self.remove(&group, |of, _, _| of == topic);
        }
    }

    pub(crate) fn snapshot(&self) -> OffsetsSnapshot {
        let partitions = |p: &BTreeMap<u32, Committed>| p.iter().map(|(n, c)| (*n, c.clone())).collect();
        let topics = |g: &GroupOffsets| g.topics.iter().map(|(topic, p)| (*topic, partitions(p))).collect();
        self.groups.iter().map(|(name, g)| (name.clone(), topics(g))).collect()
    }

    /// What a snapshot holds; refuses what no state can have written.
    pub(crate) fn restore(snapshot: OffsetsSnapshot) -> Result<Offsets, String> {
        let mut all = Offsets::default();
        for (group, topics) in snapshot {
            all.bytes += group.len();
            let mut offsets = GroupOffsets::default();
            for (topic, partitions) in topics {
                let (said, mut found) = (partitions.len(), BTreeMap::new());
                for (partition, committed) in partitions {
                    all.count += 1;
                    all.bytes += committed.metadata.len();
                    found.insert(partition, committed);
                }
                if found.is_empty() || found.len() != said || offsets.topics.insert(topic, found).is_some() {
                    return Err(format!("the offsets of group '{group}' in topic {topic} are there twice, or empty"));
                }
            }
            if offsets.topics.is_empty() || all.groups.contains_key(&group) {
                return Err(format!("group '{group}' is there twice, or without offsets"));
            }
            all.groups.insert(group, offsets);
        }
        Ok(all)
    }
}
