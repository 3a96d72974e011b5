//! Groups of KIP-848: the broker assigns, and members come to what is meant for them one by one.
//!
//! A group has an epoch, which grows when a member comes, goes or subscribes to something else, or when the topics that
//! it subscribes to change. For the newest epoch the broker makes a target assignment. A member has an epoch too: that
//! of the last target that it has come to. It is brought there by its heartbeats: first it gives up what it is to lose,
//! and says so; then it gets what nobody has any more. So no partition is in two hands, and nobody stops reading what
//! it keeps. All of it is answered at once; nothing here waits.
//!
//! Epochs are those of a term (`epochs.rs`, docs/adr/0016), because members are in memory only.
//!
//! In: [`Beat`], and what classic members of such a group ask (JoinGroup, SyncGroup, Heartbeat, LeaveGroup). Out: what
//! they are answered.
//!
//! Files: `group.rs` one group and its steps; `heartbeat.rs` ConsumerGroupHeartbeat; `assign.rs` the assignors;
//! `pattern.rs` subscriptions by pattern; `migrate.rs` classic members, and groups that change their protocol;
//! `embedded.rs` what those say to each other; `epochs.rs` the numbers of epochs. This file: how the coordinator hands
//! its groups to all of them, and what is described.

mod assign;
mod embedded;
mod epochs;
mod group;
mod heartbeat;
mod migrate;
mod pattern;
#[cfg(test)]
mod tests;

pub(super) use epochs::Epochs;
pub(super) use group::{ConsumerGroup, ConsumerMember};

use self::group::{Parts, Turn};
use super::ask::{
    Beat, Beaten, Commit, DescribedConsumer, DescribedConsumers, FetchGroup, GroupAnswer, GroupOut, GroupRefusal,
    GroupState, Join, Leaver, MemberName, NamedPartitions, Sync,
};
use super::coordinator::{Coordinator, EMPTY_KEPT};
use crate::image::Image;
use crate::limits;
use crate::state::State;
#[cfg(feature = "planted")]
use camus_engine::planted::{Bug, is};
use camus_engine::shard::api::Ticket;
use camus_engine::types::Mono;

/// Which groups may change their protocol while they have members (`group.consumer.migration.policy`). A group without
/// members always may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Migration {
    Disabled,
    /// A classic group becomes one of KIP-848 when the first member of that kind joins.
    Upgrade,
    /// The other way round, when the last one leaves.
    Downgrade,
    Bidirectional,
}

impl Migration {
    pub(super) fn upgrades(self) -> bool {
        match self {
            Migration::Upgrade | Migration::Bidirectional => true,
            Migration::Disabled | Migration::Downgrade => false,
        }
    }

    pub(super) fn downgrades(self) -> bool {
        match self {
            Migration::Downgrade | Migration::Bidirectional => true,
            Migration::Disabled | Migration::Upgrade => false,
        }
    }
}

impl Coordinator {
    /// ConsumerGroupHeartbeat.
    pub(super) fn beat(
        &mut self,
        now: Mono,
        beat: Beat,
        state: &State,
        out: &mut GroupOut,
    ) -> Result<Beaten, GroupRefusal> {
        heartbeat::check(&beat)?;
        let name = beat.group.clone();
        if beat.epoch < 0 {
            let left = self.step(now, &name, state, |group, turn| group.leave(&beat, turn));
            if left.unwrap_or(Err(GroupRefusal::UnknownMember))? {
                self.downgrade_if_all_classic(now, &name, &state.image(), out);
            }
            let interval = self.settings.consumer_heartbeat_interval;
            return Ok(Beaten { member: beat.member.id, epoch: beat.epoch, interval, assignment: None });
        }
        let id = if beat.member.id.is_empty() { beat.fresh.clone() } else { beat.member.id.clone() };
        let pattern = heartbeat::pattern(&beat, self.consumers.get(&name))?;
        if let Err(why) = self.admit_beat(now, &beat, &id, &state.image(), out) {
            // there is no room for more of it, but it is there
            self.step(now, &name, state, |group, turn| group.hear(&id, beat.epoch, turn));
            return Err(why);
        }
        let beaten = self.step(now, &name, state, |group, turn| group.beat(beat, &id, pattern.as_ref(), turn));
        let beaten = beaten.expect("the group was admitted");
        if beaten.is_err() {
            // it may have been upgraded for this one alone
            self.downgrade_if_all_classic(now, &name, &state.image(), out);
        }
        beaten
    }

    /// Whether there is memory for what the member says. Makes the group, if there is none and the member joins.
    fn admit_beat(
        &mut self,
        now: Mono,
        beat: &Beat,
        id: &str,
        image: &Image,
        out: &mut GroupOut,
    ) -> Result<(), GroupRefusal> {
        let group = self.consumers.get(&beat.group);
        if group.is_none() && beat.epoch != 0 {
            return Err(GroupRefusal::UnknownMember);
        }
        let would_take = heartbeat::bytes(beat) + 2 * id.len() + limits::MEMBER_BYTES_FIXED;
        // a static member that comes back under another id has the place of the one that it was
        let before = group.and_then(|group| group.instances.get(beat.member.instance.as_deref()?));
        let taken = |id: &str| group.map_or(0, |group| group.takes(id));
        let more = would_take.saturating_sub(taken(id).max(before.map_or(0, |before| taken(before))));
        if more > 0 && self.members_bytes + more > self.settings.members_bytes_max {
            return Err(GroupRefusal::Busy);
        }
        if group.is_some() {
            return Ok(());
        }
        match self.groups.get(&beat.group).map(|classic| classic.state) {
            Some(GroupState::Empty) => self.forget_if_empty(&beat.group),
            Some(GroupState::PreparingRebalance | GroupState::CompletingRebalance | GroupState::Stable) => {
                return self.upgrade(now, &beat.group, image, out);
            }
            None => self.make_room_for_group()?,
        }
        let mut fresh = ConsumerGroup::new(now);
        fresh.epoch = self.last_epoch;
        self.consumers.insert(beat.group.clone(), fresh);
        Ok(())
    }

    /// One step of a group of KIP-848, and what it makes of the memory of members. `None`: there is no such group.
    fn step<T>(
        &mut self,
        now: Mono,
        name: &str,
        state: &State,
        step: impl FnOnce(&mut ConsumerGroup, &Turn<'_>) -> T,
    ) -> Option<T> {
        let image = state.image();
        let turn = Turn {
            now,
            image: &image,
            epochs: self.epochs,
            settings: &self.settings,
            held: now < self.held_until && state.offsets().group(name).is_some(),
            room: self.settings.members_bytes_max.saturating_sub(self.members_bytes),
        };
        let group = self.consumers.get_mut(name)?;
        let before = group.bytes;
        let done = step(group, &turn);
        #[cfg(test)]
        group.assert_whole();
        self.members_bytes = self.members_bytes - before + group.bytes;
        Some(done)
    }

    /// A JoinGroup to a group of KIP-848 with members.
    pub(super) fn join_consumers(&mut self, now: Mono, ticket: Ticket, join: Join, state: &State, out: &mut GroupOut) {
        let name = join.group.clone();
        let answer = match self.may_join_consumers(&join) {
            Ok(()) => {
                let joined = self.step(now, &name, state, |group, turn| group.join_classic(join, turn));
                joined.expect("there is such a group")
            }
            Err(why) => Err((why, join.member.id)),
        };
        if answer.is_ok() {
            // a static member may have taken the place of the last one that was not classic
            self.downgrade_if_all_classic(now, &name, &state.image(), out);
        }
        out.answers.push((ticket, GroupAnswer::Joined(answer)));
    }

    pub(super) fn sync_consumers(&mut self, now: Mono, ticket: Ticket, sync: &Sync, state: &State, out: &mut GroupOut) {
        let synced = self.step(now, &sync.group, state, |group, turn| group.sync_classic(sync, turn));
        let synced = synced.unwrap_or(Err(GroupRefusal::UnknownMember));
        out.answers.push((ticket, GroupAnswer::Synced(synced)));
    }

    pub(super) fn heartbeat_consumers(
        &mut self,
        now: Mono,
        group: &str,
        generation: i32,
        member: &MemberName,
        state: &State,
    ) -> Result<(), GroupRefusal> {
        let heard = self.step(now, group, state, |group, turn| group.heartbeat_classic(member, generation, turn));
        heard.unwrap_or(Err(GroupRefusal::UnknownMember))
    }

    pub(super) fn leave_consumers(
        &mut self,
        now: Mono,
        name: &str,
        leavers: &[Leaver],
        state: &State,
        out: &mut GroupOut,
    ) -> Vec<Result<(), GroupRefusal>> {
        let left = self.step(now, name, state, |group, turn| group.leave_classic(leavers, turn));
        let (answers, any) = left.expect("there is such a group");
        if any {
            self.downgrade_if_all_classic(now, name, &state.image(), out);
        }
        answers
    }

    /// What time has brought to one group of KIP-848.
    pub(super) fn look_at_consumers(&mut self, now: Mono, name: &str, state: &State, out: &mut GroupOut) {
        let gone = self.step(now, name, state, |group, turn| group.time_passed(turn.now, turn.epochs));
        if gone == Some(true) {
            self.downgrade_if_all_classic(now, name, &state.image(), out);
        }
        let Some(group) = self.consumers.get_mut(name) else { return };
        if group.members.is_empty() && group.look_again <= now {
            group.look_again = now + EMPTY_KEPT;
            if state.offsets().group(name).is_none() {
                self.forget_if_empty(name);
            }
        }
    }

    /// `None`: there is no such group of KIP-848.
    pub(super) fn describe_consumers(&self, name: &str, image: &Image) -> Result<DescribedConsumers, GroupRefusal> {
        let group = self.consumers.get(name).ok_or(GroupRefusal::GroupNotFound)?;
        let members = group.members.iter().map(|(id, member)| describe(id, member, image));
        Ok(DescribedConsumers {
            state: group.state(),
            epoch: group.epoch,
            assignment_epoch: group.assignment_epoch,
            assignor: group.assignor().name(),
            members: members.collect(),
        })
    }

    /// Whether this member may be told what the group has committed. Classic groups do not ask.
    pub(super) fn may_fetch(&self, asked: &FetchGroup) -> Result<(), GroupRefusal> {
        let Some(group) = self.consumers.get(&asked.group) else { return Ok(()) };
        let id = asked.member.as_deref().unwrap_or_default();
        if id.is_empty() && asked.epoch < 0 {
            return Ok(());
        }
        group.members.get(id).ok_or(GroupRefusal::UnknownMember)?.check_exact(asked.epoch)
    }
}

impl ConsumerGroup {
    /// Whether this commit is a member's in its epoch, or an administrator's while there are no members.
    pub(super) fn may_commit(&mut self, now: Mono, commit: &Commit) -> Result<(), GroupRefusal> {
        if commit.generation < 0 && self.members.is_empty() {
            return Ok(());
        }
        let member = self.members.get_mut(&commit.member.id).ok_or(GroupRefusal::UnknownMember)?;
        if member.classic.is_none() && !commit.knows_not_found {
            return Err(GroupRefusal::UnsupportedVersion);
        }
        let epoch = commit.generation;
        #[cfg(feature = "planted")]
        let epoch = if is(Bug::CommitInAnyEpoch) { member.epoch } else { epoch };
        member.check_exact(epoch)?;
        // of a classic member a commit is a sign of life; one of KIP-848 has its heartbeats for that
        if let Some(classic) = &member.classic {
            member.alive_until = now + classic.session_timeout;
        }
        Ok(())
    }
}

fn describe(id: &str, member: &ConsumerMember, image: &Image) -> DescribedConsumer {
    DescribedConsumer {
        id: id.to_owned(),
        instance: member.instance.clone(),
        rack: member.rack.clone(),
        epoch: member.epoch,
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        topics: member.names.clone(),
        pattern: member.pattern.clone().unwrap_or_default(),
        assignment: named(&member.assigned, image),
        target: named(&member.target, image),
        is_classic: member.classic.is_some(),
    }
}

fn named(parts: &Parts, image: &Image) -> NamedPartitions {
    let there = parts.iter().filter_map(|(topic, numbers)| {
        let name = image.topic_by_id(*topic)?.name.clone();
        Some((*topic, name, numbers.iter().copied().collect()))
    });
    there.collect()
}
