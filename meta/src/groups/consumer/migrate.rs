//! Classic members in groups of KIP-848, and groups that change from one protocol to the other while they run.
//!
//! A classic member joins a group of KIP-848 without waiting for anybody: its generation is its epoch, its leader is
//! nobody, and SyncGroup brings what the broker assigns. A heartbeat tells it to join again when its target moves; what
//! it has not given up stands in its next JoinGroup. Source: KIP-848, "online upgrade", and Kafka's implementation.

use super::embedded::{self, ByName, Subscription};
use super::group::{Classic, ConsumerGroup, ConsumerMember, Parts, Turn};
use super::heartbeat::Whose;
use crate::groups::ask::{
    GroupAnswer, GroupOut, GroupRefusal, GroupState, Join, Joined, Leaver, MemberName, Sync, Synced,
};
use crate::groups::coordinator::Coordinator;
use crate::groups::group::{Group, Member, protocols_bytes};
use crate::image::Image;
use crate::limits;
use camus_engine::types::Mono;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The protocol type of everything here.
const CONSUMER: &str = "consumer";

/// The partitions of these names that are there.
fn by_id(partitions: &ByName, image: &Image) -> Parts {
    let mut parts = Parts::new();
    for (name, numbers) in partitions {
        let Some(topic) = image.topic(name) else { continue };
        let there = numbers.iter().copied().filter(|number| (*number as usize) < topic.partitions.len());
        let there: BTreeSet<u32> = there.collect();
        if !there.is_empty() {
            parts.entry(topic.id).or_default().extend(there);
        }
    }
    parts
}

/// The same the other way round. Topics that are gone are left out.
fn by_name(parts: &Parts, image: &Image) -> ByName {
    let named = |(id, numbers): (&Uuid, &BTreeSet<u32>)| {
        Some((image.topic_by_id(*id)?.name.clone(), numbers.iter().copied().collect()))
    };
    parts.iter().filter_map(named).collect()
}

impl ConsumerGroup {
    /// A classic member joins, or joins again. It is answered at once.
    pub(super) fn join_classic(&mut self, join: Join, turn: &Turn<'_>) -> Result<Joined, (GroupRefusal, String)> {
        let brought = join.member.id.clone();
        let refused = |why| Err((why, brought.clone()));
        let said = join.protocols.first().and_then(|(_, metadata)| embedded::subscription(metadata));
        let whose = match self.whose_classic(&join) {
            Ok(whose) => whose,
            Err(why) => return refused(why),
        };
        let is_new = matches!(whose, Whose::Newcomer);
        if is_new && self.members.len() >= turn.settings.consumer_members_max {
            return refused(GroupRefusal::GroupFull);
        }
        let former = match &whose {
            Whose::Newcomer => "",
            Whose::Member => brought.as_str(),
            Whose::Successor(old) => old.as_str(),
        };
        let Some(said) = said.filter(|_| self.takes_classic(&join, former)) else {
            return refused(GroupRefusal::InconsistentProtocol);
        };
        if join.member.instance.is_none() && brought.is_empty() && join.id_required {
            return Err((GroupRefusal::MemberIdRequired, join.fresh));
        }
        let id = if brought.is_empty() { join.fresh.clone() } else { brought.clone() };
        if brought.is_empty() && (id.is_empty() || self.members.contains_key(&id)) {
            // not random enough: it comes again and gets another
            return refused(GroupRefusal::Busy);
        }
        match &whose {
            Whose::Newcomer => self.add(&id, ConsumerMember::new(turn.now)),
            Whose::Member => (),
            Whose::Successor(old) => self.replace(old, &id),
        }
        Ok(self.joined_classic(&id, join, said, is_new, turn))
    }

    fn whose_classic(&self, join: &Join) -> Result<Whose, GroupRefusal> {
        let id = &join.member.id;
        let Some(instance) = &join.member.instance else {
            // any id is taken: it may have been given out before the group was one of KIP-848
            return Ok(if self.members.contains_key(id) { Whose::Member } else { Whose::Newcomer });
        };
        match self.instances.get(instance) {
            None if id.is_empty() => Ok(Whose::Newcomer),
            None => Err(GroupRefusal::UnknownMember),
            Some(holder) if id.is_empty() => Ok(Whose::Successor(holder.clone())),
            Some(holder) if holder == id => Ok(Whose::Member),
            Some(_) => Err(GroupRefusal::FencedInstance),
        }
    }

    /// Whether it is a consumer, and has a protocol in common with all other classic members: one day they may be
    /// alone.
    fn takes_classic(&self, join: &Join, former: &str) -> bool {
        let others = self.members.iter().filter(|(id, _)| id.as_str() != former);
        let others: Vec<&Classic> = others.filter_map(|(_, member)| member.classic.as_ref()).collect();
        let spoken = |name: &str| others.iter().all(|classic| classic.protocols.iter().any(|(other, _)| other == name));
        join.protocol_type == CONSUMER && join.protocols.iter().any(|(name, _)| spoken(name))
    }

    fn joined_classic(&mut self, id: &str, join: Join, said: Subscription, is_new: bool, turn: &Turn<'_>) -> Joined {
        let preferred = self.assignor();
        if let Some(instance) = &join.member.instance {
            self.name_instance(id, Some(instance.as_str()));
        }
        self.prefer(id, None);
        let mut changed = self.subscribe(id, said.topics);
        changed |= self.watch(id, None, Default::default());
        let classic =
            Classic { session_timeout: join.session_timeout, protocols: join.protocols, version: said.version };
        let protocol = classic.protocol().to_owned();
        self.change(id, |member| {
            member.client_id = join.client_id;
            member.client_host = join.client_host;
            member.rebalance_timeout = join.rebalance_timeout;
            member.rack = said.rack.or(member.rack.take());
            member.classic = Some(classic);
        });
        let is_other = is_new || changed || self.assignor() != preferred;
        self.go_on(is_other, changed, turn);
        self.assign_if_due(turn, false);
        self.reconcile(id, Some(&by_id(&said.owned, turn.image)), turn);
        let member = self.members.get_mut(id).expect("it is a member");
        member.heard(turn.now, turn.settings);
        // it is to come for its assignment; what it has to give up does not wait longer because it asks again
        let by = turn.now + member.rebalance_timeout;
        member.act_by = Some(member.act_by.filter(|_| !member.revoking.is_empty()).map_or(by, |before| before.min(by)));
        Joined {
            member: id.to_owned(),
            generation: member.epoch,
            protocol_type: CONSUMER.to_owned(),
            protocol,
            leader: String::new(),
            skip_assignment: false,
            members: Vec::new(),
        }
    }

    /// The classic member that says this, in the generation that it is in.
    fn classic_of(&mut self, member: &MemberName, generation: i32) -> Result<&mut ConsumerMember, GroupRefusal> {
        self.check_name(member)?;
        let known = self.members.get_mut(&member.id).filter(|known| known.classic.is_some());
        let known = known.ok_or(GroupRefusal::UnknownMember)?;
        if known.epoch == generation { Ok(known) } else { Err(GroupRefusal::IllegalGeneration) }
    }

    fn check_name(&self, member: &MemberName) -> Result<(), GroupRefusal> {
        match &member.instance {
            None => Ok(()),
            Some(instance) => match self.instances.get(instance) {
                None => Err(GroupRefusal::UnknownMember),
                Some(holder) if *holder != member.id => Err(GroupRefusal::FencedInstance),
                Some(_) => Ok(()),
            },
        }
    }

    pub(super) fn sync_classic(&mut self, sync: &Sync, turn: &Turn<'_>) -> Result<Synced, GroupRefusal> {
        let epoch = self.epoch;
        let member = self.classic_of(&sync.member, sync.generation)?;
        let Some(classic) = &member.classic else { return Err(GroupRefusal::UnknownMember) };
        let (protocol, version) = (classic.protocol().to_owned(), classic.version);
        let other_type = sync.protocol_type.as_ref().is_some_and(|said| said != CONSUMER);
        if other_type || sync.protocol.as_ref().is_some_and(|said| *said != protocol) {
            return Err(GroupRefusal::InconsistentProtocol);
        }
        member.heard(turn.now, turn.settings);
        if member.epoch != epoch && member.revoking.is_empty() {
            return Err(GroupRefusal::RebalanceInProgress);
        }
        // who has something to give up joins again when it has done so
        let by = turn.now + member.rebalance_timeout;
        let act_by = member.act_by.map_or(by, |before| before.min(by));
        member.act_by = (!member.revoking.is_empty()).then_some(act_by);
        let assignment = embedded::assignment(version, &by_name(&member.assigned, turn.image));
        Ok(Synced { protocol_type: CONSUMER.to_owned(), protocol, assignment })
    }

    pub(super) fn heartbeat_classic(
        &mut self,
        said: &MemberName,
        generation: i32,
        turn: &Turn<'_>,
    ) -> Result<(), GroupRefusal> {
        let member = self.classic_of(said, generation)?;
        member.heard(turn.now, turn.settings);
        self.go_on(false, false, turn);
        let member = &self.members[&said.id];
        if !self.is_to_rejoin(member, turn.held) {
            return Ok(());
        }
        let by = turn.now + member.rebalance_timeout;
        let member = self.members.get_mut(&said.id).expect("it was there a line ago");
        member.act_by = Some(member.act_by.map_or(by, |before| before.min(by)));
        Err(GroupRefusal::RebalanceInProgress)
    }

    /// Classic members leave by LeaveGroup. Those of KIP-848 do not, as in Kafka: they would read on what another has
    /// by then. True if one has left.
    pub(super) fn leave_classic(
        &mut self,
        leavers: &[Leaver],
        turn: &Turn<'_>,
    ) -> (Vec<Result<(), GroupRefusal>>, bool) {
        let mut any = false;
        let mut answers = Vec::with_capacity(leavers.len());
        for Leaver { member } in leavers {
            let id = match &member.instance {
                Some(instance) if member.id.is_empty() => self.instances.get(instance).cloned(),
                _ => Some(member.id.clone()),
            };
            let checked = match &id {
                Some(id) if *id == member.id => self.check_name(member).map(|()| id),
                Some(id) => Ok(id),
                None => Err(GroupRefusal::UnknownMember),
            };
            let answer = match checked {
                Ok(id) if self.members.get(id).is_some_and(|member| member.classic.is_some()) => {
                    self.remove(id, turn.now, turn.epochs);
                    any = true;
                    Ok(())
                }
                Ok(_) => Err(GroupRefusal::UnknownMember),
                Err(why) => Err(why),
            };
            answers.push(answer);
        }
        (answers, any)
    }

    /// A member of a classic group comes over, with what it has.
    fn take_over(&mut self, now: Mono, id: &str, member: Member, said: Subscription, has: &Parts) {
        let (session_timeout, protocols) = (member.session_timeout, member.protocols);
        let new = ConsumerMember {
            rack: said.rack,
            client_id: member.client_id,
            client_host: member.client_host,
            rebalance_timeout: member.rebalance_timeout,
            classic: Some(Classic { session_timeout, protocols, version: said.version }),
            epoch: self.epoch,
            previous_epoch: self.epoch,
            alive_until: now + session_timeout,
            ..ConsumerMember::new(now)
        };
        self.add(id, new);
        self.name_instance(id, member.instance.as_deref());
        self.subscribe(id, said.topics);
        self.hand_over(id, has);
    }

    fn is_all_classic(&self) -> bool {
        !self.members.is_empty() && self.members.values().all(|member| member.classic.is_some())
    }
}

impl Coordinator {
    /// What does not depend on the members: the same bounds as for every JoinGroup.
    pub(super) fn may_join_consumers(&self, join: &Join) -> Result<(), GroupRefusal> {
        let settings = &self.settings;
        if !(settings.session_timeout_min..=settings.session_timeout_max).contains(&join.session_timeout) {
            return Err(GroupRefusal::InvalidSessionTimeout);
        }
        let instance_bytes = join.member.instance.as_ref().map_or(0, String::len);
        let bytes = protocols_bytes(&join.protocols) + instance_bytes + join.client_id.len();
        if join.protocols.len() > limits::MEMBER_PROTOCOLS_MAX || bytes > limits::MEMBER_BYTES_MAX {
            return Err(GroupRefusal::InvalidRequest);
        }
        // its subscription stands in one of its protocols, and is taken out of it
        if self.members_bytes + 3 * bytes + 2 * limits::MEMBER_BYTES_FIXED > settings.members_bytes_max {
            return Err(GroupRefusal::Busy);
        }
        Ok(())
    }

    /// A classic group becomes one of KIP-848, with its members and what they have.
    ///
    /// # Errors
    /// `GroupNotFound` if it can not: Kafka says so to whoever joins.
    pub(super) fn upgrade(
        &mut self,
        now: Mono,
        name: &str,
        image: &Image,
        out: &mut GroupOut,
    ) -> Result<(), GroupRefusal> {
        let group = &self.groups[name];
        let fits = group.members.len() <= self.settings.consumer_members_max;
        if !self.settings.migration.upgrades() || group.protocol_type != CONSUMER || !fits {
            return Err(GroupRefusal::GroupNotFound);
        }
        let mut read = BTreeMap::new();
        for (id, member) in &group.members {
            let metadata = member.speaks(&group.protocol).or(member.protocols.first().map(|(_, metadata)| metadata));
            let said = metadata.and_then(|metadata| embedded::subscription(metadata));
            let has = embedded::assigned(&member.assignment);
            let (Some(said), Some(has)) = (said, has) else { return Err(GroupRefusal::GroupNotFound) };
            read.insert(id.clone(), (said, by_id(&has, image)));
        }
        let mut group = self.take_classic(name);
        let mut consumers = ConsumerGroup::new(now);
        consumers.epoch = group.generation;
        let mut claims = Vec::with_capacity(group.members.len());
        for (id, member) in std::mem::take(&mut group.members) {
            let (said, has) = read.remove(&id).expect("each member was read");
            if let Some(ticket) = member.joining {
                let refused = (GroupRefusal::RebalanceInProgress, id.clone());
                out.answers.push((ticket, GroupAnswer::Joined(Err(refused))));
            }
            if let Some(ticket) = member.syncing {
                out.answers.push((ticket, GroupAnswer::Synced(Err(GroupRefusal::RebalanceInProgress))));
            }
            claims.push((id.clone(), by_id(&said.owned, image)));
            consumers.take_over(now, &id, member, said, &has);
        }
        // one that gives up no more than it has to may not have heard yet what it is to lose
        for (id, owned) in &claims {
            consumers.claim(id, owned);
        }
        consumers.assignment_epoch = group.generation;
        self.members_bytes += consumers.bytes;
        self.consumers.insert(name.to_owned(), consumers);
        Ok(())
    }

    /// A group of KIP-848 whose members are all classic by now becomes a classic group, which assigns anew.
    pub(super) fn downgrade_if_all_classic(&mut self, now: Mono, name: &str, image: &Image, out: &mut GroupOut) {
        let Some(consumers) = self.consumers.get(name) else { return };
        let fits = consumers.members.len() <= self.settings.members_max;
        if !consumers.is_all_classic() || !self.settings.migration.downgrades() || !fits {
            return;
        }
        let consumers = self.take_consumers(name);
        let mut group = Group::new(now);
        group.state = GroupState::Stable;
        group.generation = consumers.epoch;
        group.protocol_type = CONSUMER.to_owned();
        for (id, member) in consumers.members {
            group.joins += 1;
            let member = as_classic(now, member, group.joins, image);
            if let Some(instance) = &member.instance {
                group.instances.insert(instance.clone(), id.clone());
            }
            if group.leader.is_empty() {
                group.leader = id.clone();
            }
            self.members_bytes += member.bytes();
            group.members.insert(id, member);
        }
        group.protocol = group.vote().expect("whoever joined has a protocol in common with all others");
        self.groups.insert(name.to_owned(), group);
        self.rebalance_classic(now, name, out);
    }
}

/// A classic member, as a classic group knows it.
fn as_classic(now: Mono, member: ConsumerMember, order: u64, image: &Image) -> Member {
    let classic = member.classic.expect("all members are classic");
    let version = classic.version;
    // nobody is told this: it is what the member has until it joins anew, and counts if the group changes back
    let mut has = member.assigned;
    for (topic, numbers) in member.revoking {
        has.entry(topic).or_default().extend(numbers);
    }
    Member {
        instance: member.instance,
        client_id: member.client_id,
        client_host: member.client_host,
        session_timeout: classic.session_timeout,
        rebalance_timeout: member.rebalance_timeout,
        protocols: classic.protocols,
        assignment: embedded::assignment(version, &by_name(&has, image)),
        joining: None,
        syncing: None,
        is_new: false,
        alive_until: now + classic.session_timeout,
        order,
    }
}
