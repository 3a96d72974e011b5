//! Joining, leaving, and the generations of one group.
//!
//! A generation begins when the join phase ends: by its deadline, or as soon as everybody is there. Its leader then
//! sends the assignment with SyncGroup. Source of the rules: Kafka's `GroupMetadataManager`, the classic protocol.

use super::ask::{GroupAnswer, GroupOut, GroupRefusal, GroupState, Join, Joined, Leaver, MemberName, Sync, Synced};
use super::coordinator::{ABSENT_LOOK, Coordinator, EMPTY_KEPT, GroupSettings, NEW_MEMBER_TIMEOUT};
use super::group::{Group, Member, Preparing, protocols_bytes};
use crate::limits;
use bytes::Bytes;
use camus_engine::shard::api::Ticket;
use camus_engine::types::Mono;
use std::collections::BTreeMap;
use std::time::Duration;

/// At once, or parked (`None`), or refused with the id that the answer carries.
type Step = Result<Option<Joined>, (GroupRefusal, String)>;

impl Coordinator {
    pub(super) fn join(&mut self, now: Mono, ticket: Ticket, join: Join, out: &mut GroupOut) {
        let answer = match self.admit(now, &join) {
            Ok(()) => self.at(now, &join.group, out).expect("it was admitted").join(ticket, join),
            Err(why) => Err((why, join.member.id)),
        };
        match answer {
            Ok(None) => (),
            Ok(Some(joined)) => out.answers.push((ticket, GroupAnswer::Joined(Ok(joined)))),
            Err(refused) => out.answers.push((ticket, GroupAnswer::Joined(Err(refused)))),
        }
    }

    /// What does not depend on the group's members. Makes the group if there is none.
    fn admit(&mut self, now: Mono, join: &Join) -> Result<(), GroupRefusal> {
        let settings = &self.settings;
        if !(settings.session_timeout_min..=settings.session_timeout_max).contains(&join.session_timeout) {
            return Err(GroupRefusal::InvalidSessionTimeout);
        }
        let instance_bytes = join.member.instance.as_ref().map_or(0, String::len);
        let bytes = protocols_bytes(&join.protocols) + instance_bytes + join.client_id.len();
        let is_long = instance_bytes > limits::MEMBER_ID_BYTES_MAX;
        if is_long || join.protocols.len() > limits::MEMBER_PROTOCOLS_MAX || bytes > limits::MEMBER_BYTES_MAX {
            return Err(GroupRefusal::InvalidRequest);
        }
        if self.members_bytes + bytes + 2 * limits::MEMBER_BYTES_FIXED > settings.members_bytes_max {
            return Err(GroupRefusal::Busy);
        }
        if !self.groups.contains_key(&join.group) {
            if !join.member.id.is_empty() {
                return Err(GroupRefusal::UnknownMember);
            }
            if join.protocol_type.is_empty() || join.protocols.is_empty() {
                return Err(GroupRefusal::InconsistentProtocol);
            }
            self.make_room_for_group()?;
            self.groups.insert(join.group.clone(), Group::new(now));
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, now: Mono, ticket: Ticket, sync: Sync, out: &mut GroupOut) {
        let answer = match self.at(now, &sync.group, out) {
            Some(mut steps) => steps.sync(ticket, sync),
            None => Err(GroupRefusal::UnknownMember),
        };
        match answer {
            Ok(None) => (),
            Ok(Some(synced)) => out.answers.push((ticket, GroupAnswer::Synced(Ok(synced)))),
            Err(why) => out.answers.push((ticket, GroupAnswer::Synced(Err(why)))),
        }
    }

    pub(super) fn heartbeat(
        &mut self,
        now: Mono,
        group: &str,
        generation: i32,
        member: &MemberName,
    ) -> Result<(), GroupRefusal> {
        let group = self.groups.get_mut(group).ok_or(GroupRefusal::UnknownMember)?;
        group.check(member)?;
        group.check_generation(generation)?;
        group.heard(now, &member.id);
        match group.state {
            GroupState::Stable | GroupState::CompletingRebalance => Ok(()),
            GroupState::PreparingRebalance => Err(GroupRefusal::RebalanceInProgress),
            GroupState::Empty => Err(GroupRefusal::UnknownMember),
        }
    }

    pub(super) fn leave(
        &mut self,
        now: Mono,
        group: &str,
        leavers: &[Leaver],
        out: &mut GroupOut,
    ) -> Vec<Result<(), GroupRefusal>> {
        match self.at(now, group, out) {
            Some(mut steps) => steps.leave(leavers),
            None => leavers.iter().map(|_| Err(GroupRefusal::UnknownMember)).collect(),
        }
    }

    pub(super) fn time_passed(&mut self, now: Mono, group: &str, out: &mut GroupOut) {
        if let Some(mut steps) = self.at(now, group, out) {
            steps.time_passed();
        }
    }

    /// A group that has just become a classic one needs a generation of its own.
    pub(super) fn rebalance_classic(&mut self, now: Mono, group: &str, out: &mut GroupOut) {
        self.at(now, group, out).expect("it has just become one").prepare();
    }

    fn at<'a>(&'a mut self, now: Mono, group: &str, out: &'a mut GroupOut) -> Option<Steps<'a>> {
        let group = self.groups.get_mut(group)?;
        Some(Steps { now, settings: &self.settings, bytes: &mut self.members_bytes, group, out })
    }
}

impl Group {
    /// The member is alive: its time begins anew.
    pub(super) fn heard(&mut self, now: Mono, member: &str) {
        if let Some(member) = self.members.get_mut(member) {
            member.alive_until = now + member.session_timeout;
        }
    }
}

/// One group, with all that a step of it needs.
struct Steps<'a> {
    now: Mono,
    settings: &'a GroupSettings,
    /// Of the members of all groups.
    bytes: &'a mut usize,
    group: &'a mut Group,
    out: &'a mut GroupOut,
}

impl Steps<'_> {
    fn join(&mut self, ticket: Ticket, join: Join) -> Step {
        let id = join.member.id.clone();
        let holder = match &join.member.instance {
            Some(instance) if id.is_empty() => self.group.instances.get(instance).cloned().unwrap_or_default(),
            _ => id.clone(),
        };
        if self.is_full(&holder) {
            if self.group.members.contains_key(&id) {
                self.remove(&id);
                self.after_removal();
            }
            return Err((GroupRefusal::GroupFull, id));
        }
        if !self.group.takes(&join.protocol_type, &join.protocols, &holder) {
            return Err((GroupRefusal::InconsistentProtocol, id));
        }
        if id.is_empty() {
            return self.join_anew(ticket, join, holder);
        }
        if join.member.instance.is_none() && self.group.pending.remove(&id).is_some() {
            *self.bytes -= limits::MEMBER_BYTES_FIXED;
            self.add(ticket, id, join);
            return Ok(None);
        }
        self.group.check(&join.member).map_err(|why| (why, id.clone()))?;
        let unchanged = self.group.members[&id].protocols == join.protocols;
        let again = match self.group.state {
            GroupState::PreparingRebalance => true,
            // its answer was lost
            GroupState::CompletingRebalance => !unchanged,
            // the leader wants a new assignment
            GroupState::Stable => !unchanged || self.group.leader == id,
            GroupState::Empty => return Err((GroupRefusal::UnknownMember, id)),
        };
        if again {
            self.rejoin(&id, ticket, join);
            self.rebalance();
            return Ok(None);
        }
        self.group.heard(self.now, &id);
        Ok(Some(self.group.joined(&id)))
    }

    /// A first join, without a member id. `holder`: the member that has its instance id already.
    fn join_anew(&mut self, ticket: Ticket, join: Join, holder: String) -> Step {
        let fresh = join.fresh.clone();
        if self.group.members.contains_key(&fresh) || self.group.pending.contains_key(&fresh) || fresh.is_empty() {
            // not random enough: it comes again and gets another
            return Err((GroupRefusal::Busy, String::new()));
        }
        if !holder.is_empty() {
            return self.replace(&holder, ticket, join);
        }
        if join.member.instance.is_none() && join.id_required {
            if self.group.pending.len() >= limits::GROUP_PENDING_MAX {
                return Err((GroupRefusal::GroupFull, String::new()));
            }
            self.group.pending.insert(fresh.clone(), self.now + join.session_timeout);
            *self.bytes += limits::MEMBER_BYTES_FIXED;
            return Err((GroupRefusal::MemberIdRequired, fresh));
        }
        self.add(ticket, fresh, join);
        Ok(None)
    }

    fn is_full(&self, member: &str) -> bool {
        let (group, max) = (&self.group, self.settings.members_max);
        let known = group.members.get(member);
        match group.state {
            GroupState::Empty => false,
            GroupState::PreparingRebalance => {
                let waiting = group.members.values().filter(|m| m.joining.is_some()).count();
                waiting >= max && known.is_none_or(|m| m.joining.is_none())
            }
            GroupState::CompletingRebalance | GroupState::Stable => group.members.len() >= max && known.is_none(),
        }
    }

    fn add(&mut self, ticket: Ticket, id: String, join: Join) {
        let group = &mut *self.group;
        if group.members.is_empty() {
            group.protocol_type = join.protocol_type;
            group.leader = id.clone();
        }
        if let Some(instance) = &join.member.instance {
            group.instances.insert(instance.clone(), id.clone());
        }
        group.newcomer = true;
        group.joins += 1;
        let member = Member {
            instance: join.member.instance,
            client_id: join.client_id,
            client_host: join.client_host,
            session_timeout: join.session_timeout,
            rebalance_timeout: join.rebalance_timeout,
            protocols: join.protocols,
            assignment: Bytes::new(),
            joining: Some(ticket),
            syncing: None,
            is_new: true,
            alive_until: self.now + NEW_MEMBER_TIMEOUT,
            order: group.joins,
        };
        *self.bytes += member.bytes();
        group.members.insert(id, member);
        self.rebalance();
    }

    /// The member says anew what it is, and waits for the next generation.
    fn rejoin(&mut self, id: &str, ticket: Ticket, join: Join) {
        self.take_over(id, join);
        let member = self.group.members.get_mut(id).expect("it was checked");
        if let Some(before) = member.joining.replace(ticket) {
            // the same member on another connection: only its last question counts
            let refused = (GroupRefusal::RebalanceInProgress, id.to_owned());
            self.out.answers.push((before, GroupAnswer::Joined(Err(refused))));
        }
    }

    fn take_over(&mut self, id: &str, join: Join) {
        let member = self.group.members.get_mut(id).expect("it is a member");
        *self.bytes -= member.bytes();
        member.protocols = join.protocols;
        member.session_timeout = join.session_timeout;
        member.rebalance_timeout = join.rebalance_timeout;
        member.client_id = join.client_id;
        member.client_host = join.client_host;
        *self.bytes += member.bytes();
        member.alive_until = self.now + if member.is_new { NEW_MEMBER_TIMEOUT } else { member.session_timeout };
    }

    /// A static member came back without its id (KIP-345): it gets a new one, and whoever has the old one is fenced.
    fn replace(&mut self, old: &str, ticket: Ticket, join: Join) -> Step {
        let (fresh, may_skip) = (join.fresh.clone(), join.may_skip_assignment);
        let group = &mut *self.group;
        let mut member = group.members.remove(old).expect("instances name members");
        let fenced = GroupRefusal::FencedInstance;
        if let Some(ticket) = member.joining.take() {
            self.out.answers.push((ticket, GroupAnswer::Joined(Err((fenced, old.to_owned())))));
        }
        if let Some(ticket) = member.syncing.take() {
            self.out.answers.push((ticket, GroupAnswer::Synced(Err(fenced))));
        }
        let instance = member.instance.clone().expect("a static member has an instance id");
        group.instances.insert(instance, fresh.clone());
        if group.unsynced.remove(old) {
            group.unsynced.insert(fresh.clone());
        }
        if group.leader == old {
            group.leader = fresh.clone();
        }
        group.members.insert(fresh.clone(), member);
        self.take_over(&fresh, join);
        let group = &mut *self.group;
        if group.state == GroupState::Stable && group.vote().as_ref() == Some(&group.protocol) {
            let mut joined = group.joined(&fresh);
            if group.leader == fresh {
                match may_skip {
                    true => joined.skip_assignment = true,
                    // a client that does not know better would assign anew if it were told that it leads
                    false => {
                        joined.leader = old.to_owned();
                        joined.members = Vec::new();
                    }
                }
            }
            return Ok(Some(joined));
        }
        group.members.get_mut(&fresh).expect("put in above").joining = Some(ticket);
        self.rebalance();
        Ok(None)
    }

    /// The group needs a new generation, or is on its way to one.
    fn rebalance(&mut self) {
        match self.group.state {
            GroupState::PreparingRebalance => self.complete_if_all_joined(),
            GroupState::Empty | GroupState::CompletingRebalance | GroupState::Stable => self.prepare(),
        }
    }

    fn prepare(&mut self) {
        let (now, group) = (self.now, &mut *self.group);
        for member in group.members.values_mut() {
            if let Some(ticket) = member.syncing.take() {
                self.out.answers.push((ticket, GroupAnswer::Synced(Err(GroupRefusal::RebalanceInProgress))));
                member.alive_until = now + member.session_timeout;
            }
        }
        group.unsynced.clear();
        group.sync_by = None;
        group.newcomer = false;
        let longest = group.rebalance_timeout();
        let from_empty = group.state == GroupState::Empty;
        group.state = GroupState::PreparingRebalance;
        if from_empty {
            let delay = self.settings.initial_delay.min(longest);
            group.preparing = Some(Preparing { until: now + delay, initial: Some(longest - delay) });
            if delay.is_zero() {
                self.complete();
            }
        } else {
            group.preparing = Some(Preparing { until: now + longest, initial: None });
            self.complete_if_all_joined();
        }
    }

    fn complete_if_all_joined(&mut self) {
        let waits = self.group.preparing.is_some_and(|preparing| preparing.initial.is_none());
        if waits && self.group.all_joined() {
            self.complete();
        }
    }

    /// The join phase ends, and a generation begins with whoever is there.
    fn complete(&mut self) {
        let absent = self.group.members.iter().filter(|(_, m)| m.joining.is_none() && m.instance.is_none());
        let absent: Vec<String> = absent.map(|(id, _)| id.clone()).collect();
        for id in absent {
            self.remove(&id);
        }
        let (now, group) = (self.now, &mut *self.group);
        let first = group.members.iter().filter(|(_, m)| m.joining.is_some()).min_by_key(|(_, m)| m.order);
        let first = first.map(|(id, _)| id.clone());
        match (&first, group.members.is_empty()) {
            (None, false) => {
                // static members only, and none of them has come: their time is not over. They may have said that they
                // need none: looked at again at once, they would be looked at for ever
                let wait = group.rebalance_timeout().max(ABSENT_LOOK);
                group.preparing = Some(Preparing { until: now + wait, initial: None });
                return;
            }
            (Some(first), _) if group.members[&group.leader].joining.is_none() => group.leader = first.clone(),
            (Some(_), _) | (None, true) => (),
        }
        group.generation = group.generation.checked_add(1).unwrap_or(1);
        group.preparing = None;
        if group.members.is_empty() {
            group.state = GroupState::Empty;
            group.protocol = String::new();
            group.empty_since = now;
            group.look_again = now + EMPTY_KEPT;
            return;
        }
        group.protocol = group.vote().expect("whoever joins has a protocol in common with all others");
        group.state = GroupState::CompletingRebalance;
        group.unsynced = group.members.keys().cloned().collect();
        group.sync_by = Some(now + group.rebalance_timeout());
        let mut told = Vec::new();
        for (id, member) in &mut group.members {
            member.is_new = false;
            member.alive_until = now + member.session_timeout;
            *self.bytes -= member.assignment.len();
            member.assignment = Bytes::new();
            told.extend(member.joining.take().map(|ticket| (ticket, id.clone())));
        }
        for (ticket, id) in told {
            self.out.answers.push((ticket, GroupAnswer::Joined(Ok(group.joined(&id)))));
        }
    }

    fn sync(&mut self, ticket: Ticket, sync: Sync) -> Result<Option<Synced>, GroupRefusal> {
        let group = &mut *self.group;
        let id = &sync.member.id;
        group.check(&sync.member)?;
        group.check_generation(sync.generation)?;
        let other_type = sync.protocol_type.is_some_and(|said| said != group.protocol_type);
        let other_protocol = sync.protocol.is_some_and(|said| said != group.protocol);
        if group.state != GroupState::PreparingRebalance && (other_type || other_protocol) {
            return Err(GroupRefusal::InconsistentProtocol);
        }
        match group.state {
            GroupState::Empty => return Err(GroupRefusal::UnknownMember),
            GroupState::PreparingRebalance => return Err(GroupRefusal::RebalanceInProgress),
            GroupState::Stable => {
                group.heard(self.now, id);
                self.synced(id);
                let assignment = self.group.members[id].assignment.clone();
                return Ok(Some(self.answer(assignment)));
            }
            GroupState::CompletingRebalance => (),
        }
        if group.leader == *id {
            let given: usize = sync.assignments.iter().map(|(_, assignment)| assignment.len()).sum();
            if *self.bytes + given > self.settings.members_bytes_max {
                return Err(GroupRefusal::Busy);
            }
        }
        group.heard(self.now, id);
        let member = group.members.get_mut(id).expect("it was checked");
        if let Some(before) = member.syncing.replace(ticket) {
            self.out.answers.push((before, GroupAnswer::Synced(Err(GroupRefusal::RebalanceInProgress))));
        }
        let leads = group.leader == *id;
        self.synced(id);
        if leads {
            self.assign(sync.assignments);
        }
        Ok(None)
    }

    /// The member has come for its assignment.
    fn synced(&mut self, id: &str) {
        self.group.unsynced.remove(id);
        if self.group.unsynced.is_empty() {
            self.group.sync_by = None;
        }
    }

    /// The leader has spoken: everybody gets what it gave them, and who was not named gets nothing.
    fn assign(&mut self, assignments: Vec<(String, Bytes)>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        self.group.state = GroupState::Stable;
        let mut told = Vec::new();
        for (id, member) in &mut self.group.members {
            member.assignment = assignments.remove(id).unwrap_or_default();
            *self.bytes += member.assignment.len();
            if let Some(ticket) = member.syncing.take() {
                member.alive_until = self.now + member.session_timeout;
                told.push((ticket, member.assignment.clone()));
            }
        }
        for (ticket, assignment) in told {
            let synced = self.answer(assignment);
            self.out.answers.push((ticket, GroupAnswer::Synced(Ok(synced))));
        }
    }

    fn answer(&self, assignment: Bytes) -> Synced {
        Synced { protocol_type: self.group.protocol_type.clone(), protocol: self.group.protocol.clone(), assignment }
    }

    fn leave(&mut self, leavers: &[Leaver]) -> Vec<Result<(), GroupRefusal>> {
        let mut answers = Vec::with_capacity(leavers.len());
        let mut any = false;
        for Leaver { member } in leavers {
            let members = self.group.members.len();
            answers.push(self.leave_one(member));
            any |= self.group.members.len() < members;
        }
        if any {
            self.after_removal();
        }
        self.complete_if_all_joined();
        answers
    }

    fn leave_one(&mut self, member: &MemberName) -> Result<(), GroupRefusal> {
        let id = match &member.instance {
            // whoever administers the group knows instances only
            Some(instance) if member.id.is_empty() => {
                self.group.instances.get(instance).cloned().ok_or(GroupRefusal::UnknownMember)?
            }
            None if self.group.pending.remove(&member.id).is_some() => {
                *self.bytes -= limits::MEMBER_BYTES_FIXED;
                return Ok(());
            }
            _ => {
                self.group.check(member)?;
                member.id.clone()
            }
        };
        self.remove(&id);
        Ok(())
    }

    /// Takes a member out. Whatever it waits for is answered: it is unknown now.
    fn remove(&mut self, id: &str) {
        let group = &mut *self.group;
        let member = group.members.remove(id).expect("only members are removed");
        *self.bytes -= member.bytes();
        if let Some(instance) = &member.instance {
            group.instances.remove(instance);
        }
        group.unsynced.remove(id);
        if group.unsynced.is_empty() {
            group.sync_by = None;
        }
        if group.leader == id {
            let next = group.members.iter().min_by_key(|(_, m)| m.order);
            group.leader = next.map(|(id, _)| id.clone()).unwrap_or_default();
        }
        if let Some(ticket) = member.joining {
            let refused = (GroupRefusal::UnknownMember, id.to_owned());
            self.out.answers.push((ticket, GroupAnswer::Joined(Err(refused))));
        }
        if let Some(ticket) = member.syncing {
            self.out.answers.push((ticket, GroupAnswer::Synced(Err(GroupRefusal::UnknownMember))));
        }
    }

    /// Members are gone: the rest needs a new generation, or nobody is missing from the next one any more.
    fn after_removal(&mut self) {
        match self.group.state {
            GroupState::Empty => (),
            GroupState::PreparingRebalance => self.complete_if_all_joined(),
            GroupState::CompletingRebalance | GroupState::Stable => self.prepare(),
        }
    }

    fn time_passed(&mut self) {
        let now = self.now;
        let pending = self.group.pending.len();
        self.group.pending.retain(|_, until| *until > now);
        *self.bytes -= (pending - self.group.pending.len()) * limits::MEMBER_BYTES_FIXED;
        let silent = self.group.members.iter().filter(|(_, m)| !m.is_heard() && m.alive_until <= now);
        let mut gone: Vec<String> = silent.map(|(id, _)| id.clone()).collect();
        if self.group.sync_by.is_some_and(|by| by <= now) {
            gone.extend(self.group.unsynced.iter().filter(|id| !gone.contains(id)).cloned().collect::<Vec<_>>());
        }
        let any = !gone.is_empty();
        for id in gone {
            self.remove(&id);
        }
        if any {
            self.after_removal();
        }
        self.complete_if_all_joined();
        let Some(preparing) = self.group.preparing else { return };
        if preparing.until > now {
            return;
        }
        match preparing.initial {
            Some(left) if self.group.newcomer && left > Duration::ZERO => {
                let delay = self.settings.initial_delay.min(left);
                self.group.newcomer = false;
                self.group.preparing = Some(Preparing { until: now + delay, initial: Some(left - delay) });
            }
            Some(_) | None => self.complete(),
        }
    }
}
