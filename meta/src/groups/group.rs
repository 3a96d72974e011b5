//! One group: its members and its generation, and what follows from them without time.

use super::ask::{GroupRefusal, GroupState, Joined, JoinedMember, MemberName};
use super::coordinator::EMPTY_KEPT;
use crate::limits;
use bytes::Bytes;
use camus_engine::shard::api::Ticket;
use camus_engine::types::Mono;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One member of a group.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) instance: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) session_timeout: Duration,
    pub(super) rebalance_timeout: Duration,
    /// In the order of its preference.
    pub(super) protocols: Vec<(String, Bytes)>,
    /// What the leader of the generation gave it.
    pub(super) assignment: Bytes,
    /// Its parked JoinGroup or SyncGroup; never both.
    pub(super) joining: Option<Ticket>,
    pub(super) syncing: Option<Ticket>,
    /// It has not been in a generation yet.
    pub(super) is_new: bool,
    /// It is out when nothing is heard of it until then.
    pub(super) alive_until: Mono,
    /// Who came first leads.
    pub(super) order: u64,
}

impl Member {
    pub(super) fn speaks(&self, protocol: &str) -> Option<&Bytes> {
        self.protocols.iter().find(|(name, _)| name == protocol).map(|(_, metadata)| metadata)
    }

    /// What it takes of [`limits::MEMBERS_BYTES_MAX`].
    pub(super) fn bytes(&self) -> usize {
        let names = self.instance.as_ref().map_or(0, String::len) + self.client_id.len() + self.client_host.len();
        limits::MEMBER_BYTES_FIXED + names + protocols_bytes(&self.protocols) + self.assignment.len()
    }

    /// Silence is no sign of death while the broker owes it an answer: a parked request says that it is there. Of one
    /// that has never been in a generation nothing else was heard, so that its time is counted (a longer one).
    pub(super) fn is_heard(&self) -> bool {
        !self.is_new && (self.joining.is_some() || self.syncing.is_some())
    }
}

pub(super) fn protocols_bytes(protocols: &[(String, Bytes)]) -> usize {
    protocols.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
}

/// Until when a group that rebalances waits for its members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Preparing {
    pub(super) until: Mono,
    /// In the first join phase of an empty group the time is waited for in any case, and lengthened while members come:
    /// what is left of the longest wait.
    pub(super) initial: Option<Duration>,
}

/// One group. Lives on core 0, owned by the coordinator.
///
/// In `Stable` every member of the generation has exactly what the generation's leader sent for it. In
/// `CompletingRebalance` the leader has not sent it yet. `leader` is a member unless the group is empty.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) state: GroupState,
    /// In `PreparingRebalance` only.
    pub(super) preparing: Option<Preparing>,
    /// Until when all members must have sent SyncGroup, where one has not.
    pub(super) sync_by: Option<Mono>,
    pub(super) unsynced: BTreeSet<String>,
    pub(super) generation: i32,
    /// Empty as long as nobody has said one.
    pub(super) protocol_type: String,
    /// Of the generation; empty when there is none.
    pub(super) protocol: String,
    pub(super) leader: String,
    pub(super) members: BTreeMap<String, Member>,
    /// Instance id to member id of static members.
    pub(super) instances: BTreeMap<String, String>,
    /// Member ids that were given out and have not joined, and until when they may.
    pub(super) pending: BTreeMap<String, Mono>,
    /// Somebody came during the first join phase.
    pub(super) newcomer: bool,
    pub(super) joins: u64,
    /// When the last member went.
    pub(super) empty_since: Mono,
    /// Without members: when to see whether anybody needs it still.
    pub(super) look_again: Mono,
    /// The deadline under which the group stands in the coordinator's timers.
    pub(super) armed: Option<Mono>,
}

impl Group {
    pub(super) fn new(now: Mono) -> Group {
        Group {
            state: GroupState::Empty,
            preparing: None,
            sync_by: None,
            unsynced: BTreeSet::new(),
            generation: 0,
            protocol_type: String::new(),
            protocol: String::new(),
            leader: String::new(),
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            pending: BTreeMap::new(),
            newcomer: false,
            joins: 0,
            empty_since: now,
            look_again: now + EMPTY_KEPT,
            armed: None,
        }
    }

    /// Whether a member with these protocols has one in common with all others.
    pub(super) fn takes(&self, protocol_type: &str, protocols: &[(String, Bytes)], but: &str) -> bool {
        if protocol_type.is_empty() || protocols.is_empty() {
            return false;
        }
        let mut others = self.members.iter().filter(|(id, _)| *id != but).map(|(_, member)| member).peekable();
        if others.peek().is_none() {
            return self.state == GroupState::Empty || self.members.is_empty() || protocol_type == self.protocol_type;
        }
        let others: Vec<&Member> = others.collect();
        protocol_type == self.protocol_type
            && protocols.iter().any(|(name, _)| others.iter().all(|member| member.speaks(name).is_some()))
    }

    /// The protocol that all members speak and most prefer. `None` without members.
    pub(super) fn vote(&self) -> Option<String> {
        let first = self.members.values().next()?;
        let common: Vec<&str> = first
            .protocols
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| self.members.values().all(|member| member.speaks(name).is_some()))
            .collect();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let names = member.protocols.iter().map(|(name, _)| name.as_str());
            if let Some(choice) = names.into_iter().find(|name| common.contains(name)) {
                *votes.entry(choice).or_default() += 1;
            }
        }
        // of equal votes what the first member prefers
        let most = votes.values().copied().max()?;
        common.into_iter().find(|name| votes.get(name) == Some(&most)).map(str::to_owned)
    }

    /// Whether the member is who it says: known, and still the one that has its instance id.
    pub(super) fn check(&self, member: &MemberName) -> Result<(), GroupRefusal> {
        if let Some(instance) = &member.instance {
            match self.instances.get(instance) {
                None => return Err(GroupRefusal::UnknownMember),
                Some(id) if *id != member.id => return Err(GroupRefusal::FencedInstance),
                Some(_) => (),
            }
        }
        if self.members.contains_key(&member.id) { Ok(()) } else { Err(GroupRefusal::UnknownMember) }
    }

    pub(super) fn check_generation(&self, generation: i32) -> Result<(), GroupRefusal> {
        if generation == self.generation { Ok(()) } else { Err(GroupRefusal::IllegalGeneration) }
    }

    /// Whether nobody is missing from the join phase.
    pub(super) fn all_joined(&self) -> bool {
        self.pending.is_empty() && self.members.values().all(|member| member.joining.is_some())
    }

    pub(super) fn rebalance_timeout(&self) -> Duration {
        self.members.values().map(|member| member.rebalance_timeout).max().unwrap_or_default()
    }

    /// The generation as this member is told of it.
    pub(super) fn joined(&self, member: &str) -> Joined {
        Joined {
            member: member.to_owned(),
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            skip_assignment: false,
            members: if self.leader == member { self.roll() } else { Vec::new() },
        }
    }

    /// All members, as their leader is told of them.
    pub(super) fn roll(&self) -> Vec<JoinedMember> {
        let one = |(id, member): (&String, &Member)| JoinedMember {
            id: id.clone(),
            instance: member.instance.clone(),
            metadata: member.speaks(&self.protocol).cloned().unwrap_or_default(),
        };
        self.members.iter().map(one).collect()
    }

    /// Whether a member subscribes to this topic, as far as what it said can be read as a consumer's subscription
    /// (`ConsumerProtocolSubscription`: version, topics, the rest).
    pub(super) fn subscribes(&self, topic: &str) -> bool {
        let said = |member: &Member| match member.speaks(&self.protocol).or(member.protocols.first().map(|p| &p.1)) {
            Some(metadata) => subscription_names(metadata, topic),
            None => false,
        };
        self.protocol_type == "consumer" && self.members.values().any(said)
    }

    /// What the group's state must be, whatever came.
    pub(super) fn assert_whole(&self) {
        assert_eq!(self.preparing.is_some(), self.state == GroupState::PreparingRebalance, "{self:?}");
        assert_eq!(self.members.is_empty(), self.leader.is_empty(), "{self:?}");
        assert!(self.leader.is_empty() || self.members.contains_key(&self.leader), "{self:?}");
        assert!(self.state != GroupState::Empty || self.members.is_empty(), "{self:?}");
        assert!(self.unsynced.is_empty() || self.sync_by.is_some(), "{self:?}");
        for (instance, id) in &self.instances {
            let holder = self.members.get(id).and_then(|member| member.instance.as_ref());
            assert_eq!(holder, Some(instance), "{self:?}");
        }
        for (id, member) in &self.members {
            assert!(member.joining.is_none() || self.state == GroupState::PreparingRebalance, "{id}: {self:?}");
            assert!(member.syncing.is_none() || self.state == GroupState::CompletingRebalance, "{id}: {self:?}");
        }
    }
}

fn subscription_names(metadata: &[u8], topic: &str) -> bool {
    let take = |at: usize, n: usize| metadata.get(at..at.checked_add(n)?);
    let Some(count) = take(2, 4).map(|b| i32::from_be_bytes(b.try_into().expect("four bytes"))) else { return false };
    let mut at = 6;
    for _ in 0..count.max(0) {
        let Some(length) = take(at, 2).map(|b| u16::from_be_bytes(b.try_into().expect("two bytes"))) else {
            return false;
        };
        let Some(name) = take(at + 2, usize::from(length)) else { return false };
        if name == topic.as_bytes() {
            return true;
        }
        at += 2 + usize::from(length);
    }
    false
}
