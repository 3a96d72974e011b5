//! All groups, their timers, and the way in.

use super::ask::{
    Described, DescribedConsumers, FetchedGroup, GroupAnswer, GroupAsk, GroupOut, GroupRefusal, GroupState, Token,
};
use super::consumer::{ConsumerGroup, ConsumerMember, Epochs, Migration};
use super::group::{Group, Member};
use crate::command::{Command, Decided, Done, Refused};
use crate::limits;
use crate::state::State;
use camus_engine::shard::api::Ticket;
use camus_engine::types::{Mono, Term, WallMs};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often offsets are looked at that nobody needs any more (Kafka's `offsets.retention.check.interval.ms`).
pub(super) const EXPIRY_EVERY: Duration = Duration::from_secs(600);
/// How long a group without members and offsets is kept, so that it can be seen that it was there.
pub(super) const EMPTY_KEPT: Duration = Duration::from_secs(600);
/// How long a new member that waits for its first generation is believed to be there (Kafka's constant).
pub(super) const NEW_MEMBER_TIMEOUT: Duration = Duration::from_secs(300);
/// How often a group is looked at at most that waits for static members.
pub(super) const ABSENT_LOOK: Duration = Duration::from_secs(1);

/// What the broker's settings say of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`
    pub session_timeout_min: Duration,
    /// `group.max.session.timeout.ms`
    pub session_timeout_max: Duration,
    /// `group.initial.rebalance.delay.ms`
    pub initial_delay: Duration,
    /// `group.max.size`
    pub members_max: usize,
    /// `group.consumer.session.timeout.ms`
    pub consumer_session_timeout: Duration,
    /// `group.consumer.heartbeat.interval.ms`
    pub consumer_heartbeat_interval: Duration,
    /// `group.consumer.max.size`
    pub consumer_members_max: usize,
    /// `group.consumer.migration.policy`
    pub migration: Migration,
    /// `offsets.retention.minutes`
    pub retention: Duration,
    /// What members may take of this broker's memory, at most [`limits::MEMBERS_BYTES_MAX`].
    pub members_bytes_max: usize,
    /// What committed offsets may take of it before new ones are refused. Known ones go on being committed.
    pub offsets_bytes_max: usize,
}

impl Default for GroupSettings {
    /// Kafka's.
    fn default() -> GroupSettings {
        GroupSettings {
            session_timeout_min: Duration::from_secs(6),
            session_timeout_max: Duration::from_secs(1800),
            initial_delay: Duration::from_secs(3),
            members_max: limits::GROUP_MEMBERS_MAX,
            consumer_session_timeout: Duration::from_secs(45),
            consumer_heartbeat_interval: Duration::from_secs(5),
            consumer_members_max: limits::GROUP_MEMBERS_MAX,
            migration: Migration::Bidirectional,
            retention: Duration::from_secs(7 * 24 * 3600),
            members_bytes_max: limits::MEMBERS_BYTES_MAX,
            offsets_bytes_max: usize::MAX,
        }
    }
}

/// A command that is under way, and what its decision means.
#[derive(Clone, Debug)]
pub(super) enum UnderWay {
    Commit(Ticket),
    /// The answers of the groups, and which of them the command takes out.
    DeleteGroups {
        ticket: Ticket,
        answers: Vec<Result<(), GroupRefusal>>,
        groups: Vec<(usize, String)>,
    },
    DeleteOffsets {
        ticket: Ticket,
        answers: Vec<Result<(), GroupRefusal>>,
    },
    Expire,
}

/// The coordinator of all groups of this broker. Lives on core 0; owned by the meta shard's host.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) settings: GroupSettings,
    /// Those of the classic protocol. No name is in `consumers` as well.
    pub(super) groups: BTreeMap<String, Group>,
    /// Those of KIP-848.
    pub(super) consumers: BTreeMap<String, ConsumerGroup>,
    /// The epochs that they get here.
    pub(super) epochs: Epochs,
    /// The largest epoch of the groups of KIP-848 that were forgotten in this term. A new one goes on from there: had
    /// it begun anew, a commit of the old one that was under way for long could be taken for one of its own.
    pub(super) last_epoch: i32,
    /// Until then groups of before may have members that do not know of this coordinator yet.
    pub(super) held_until: Mono,
    /// When to look at a group again. Early is harmless: heartbeats do not move it.
    timers: BTreeSet<(Mono, String)>,
    pub(super) under_way: BTreeMap<Token, UnderWay>,
    next_token: u64,
    /// What all members say of themselves and are assigned.
    pub(super) members_bytes: usize,
    pub(super) started: Mono,
    next_expiry: Mono,
    stopping: bool,
}

impl Coordinator {
    pub fn new(settings: GroupSettings, now: Mono) -> Coordinator {
        Coordinator {
            settings,
            groups: BTreeMap::new(),
            consumers: BTreeMap::new(),
            epochs: Epochs::of(Term(0)),
            last_epoch: 0,
            held_until: now,
            timers: BTreeSet::new(),
            under_way: BTreeMap::new(),
            next_token: 1,
            members_bytes: 0,
            started: now,
            next_expiry: now + EXPIRY_EVERY,
            stopping: false,
        }
    }

    /// One request. Its answer is in `out` now or later, exactly once.
    pub fn ask(&mut self, now: Mono, ticket: Ticket, ask: GroupAsk, state: &State, out: &mut GroupOut) {
        match ask {
            GroupAsk::Join(join) => {
                if let Err(why) = self.may_join(&join.group) {
                    out.answers.push((ticket, GroupAnswer::Joined(Err((why, join.member.id)))));
                    return;
                }
                let group = join.group.clone();
                match self.consumers.get(&group).map(|consumers| consumers.members.is_empty()) {
                    Some(false) => self.join_consumers(now, ticket, *join, state, out),
                    Some(true) => {
                        self.forget_if_empty(&group);
                        self.join(now, ticket, *join, out);
                    }
                    None => self.join(now, ticket, *join, out),
                }
                self.arm(&group);
            }
            GroupAsk::Sync(sync) => {
                if let Err(why) = self.may_join(&sync.group) {
                    out.answers.push((ticket, GroupAnswer::Synced(Err(why))));
                    return;
                }
                let group = sync.group.clone();
                match self.consumers.contains_key(&group) {
                    true => self.sync_consumers(now, ticket, &sync, state, out),
                    false => self.sync(now, ticket, sync, out),
                }
                self.arm(&group);
            }
            GroupAsk::Heartbeat { group, generation, member } => {
                let heard = match self.consumers.contains_key(&group) {
                    true => self.heartbeat_consumers(now, &group, generation, &member, state),
                    false => check_id(&group).and_then(|()| self.heartbeat(now, &group, generation, &member)),
                };
                out.answers.push((ticket, GroupAnswer::Heartbeat(heard)));
                self.arm_for(&group, &member.id);
            }
            GroupAsk::Leave { group, members } => {
                let left = match self.consumers.contains_key(&group) {
                    true => Ok(self.leave_consumers(now, &group, &members, state, out)),
                    false => check_id(&group).map(|()| self.leave(now, &group, &members, out)),
                };
                out.answers.push((ticket, GroupAnswer::Left(left)));
                self.arm(&group);
            }
            GroupAsk::Beat(beat) => {
                let (group, leaves) = (beat.group.clone(), beat.epoch < 0);
                let member = if beat.member.id.is_empty() { beat.fresh.clone() } else { beat.member.id.clone() };
                let was_there = self.consumers.contains_key(&group);
                let beaten = match self.stopping && !leaves {
                    true => Err(GroupRefusal::Stopping),
                    false => self.beat(now, *beat, state, out),
                };
                out.answers.push((ticket, GroupAnswer::Beaten(beaten)));
                match was_there && !leaves {
                    true => self.arm_for(&group, &member),
                    false => self.arm(&group),
                }
            }
            GroupAsk::DescribeConsumers { groups } => {
                let image = state.image();
                let one = |group: &String| self.describe_consumers(group, &image);
                let described = as_far_as_it_goes(&groups, one, DescribedConsumers::bytes);
                out.answers.push((ticket, GroupAnswer::ConsumersDescribed(described)));
            }
            GroupAsk::Commit(commit) => self.commit(now, ticket, commit, state, out),
            GroupAsk::Fetch { groups } => {
                let fetched = as_far_as_it_goes(&groups, |group| self.fetch(group, state), FetchedGroup::bytes);
                out.answers.push((ticket, GroupAnswer::Fetched(fetched)));
            }
            GroupAsk::Describe { groups } => {
                let described = as_far_as_it_goes(&groups, |group| self.describe(group, state), Described::bytes);
                out.answers.push((ticket, GroupAnswer::Described(described)));
            }
            GroupAsk::List => out.answers.push((ticket, GroupAnswer::Listed(self.list(state)))),
            GroupAsk::DeleteGroups { groups } => self.delete_groups(ticket, groups, state, out),
            GroupAsk::DeleteOffsets { group, topics } => self.delete_offsets(ticket, group, topics, state, out),
        }
    }

    /// Time has passed: members that are silent go, groups that waited long enough go on.
    pub fn tick(&mut self, now: Mono, wall: WallMs, state: &State, out: &mut GroupOut) {
        while let Some((at, _)) = self.timers.first()
            && *at <= now
        {
            let (_, name) = self.timers.pop_first().expect("there is a first");
            if let Some(group) = self.groups.get_mut(&name) {
                group.armed = None;
            }
            if let Some(group) = self.consumers.get_mut(&name) {
                group.armed = None;
            }
            self.look_at(now, &name, state, out);
            self.arm(&name);
        }
        if self.next_expiry <= now {
            self.next_expiry = now + EXPIRY_EVERY;
            self.expire(now, wall, state, out);
        }
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_deadline(&self) -> Mono {
        self.timers.first().map_or(self.next_expiry, |(at, _)| (*at).min(self.next_expiry))
    }

    /// What became of a command.
    ///
    /// # Panics
    /// If the coordinator has no such command under way.
    pub fn decided(&mut self, token: Token, decided: Decided, out: &mut GroupOut) {
        let under_way = self.under_way.remove(&token).expect("a command is decided once");
        let refused = decided.as_ref().err().map(|refused| match refused {
            Refused::TooManyOffsets { .. } => GroupRefusal::CommitTooLarge,
            _ => GroupRefusal::Busy,
        });
        match (under_way, decided) {
            (UnderWay::Commit(ticket), Ok(Done::OffsetsCommitted { gone })) => {
                out.answers.push((ticket, GroupAnswer::Committed(Ok(gone))));
            }
            (UnderWay::Commit(ticket), _) => {
                let why = refused.expect("a commit is decided as one");
                out.answers.push((ticket, GroupAnswer::Committed(Err(why))));
            }
            (UnderWay::DeleteGroups { ticket, mut answers, groups }, _) => {
                for (at, group) in groups {
                    match refused {
                        Some(why) => answers[at] = Err(why),
                        None => self.forget_if_empty(&group),
                    }
                }
                out.answers.push((ticket, GroupAnswer::GroupsDeleted(answers)));
            }
            (UnderWay::DeleteOffsets { ticket, answers }, _) => {
                let answer = refused.map_or(Ok(answers), Err);
                out.answers.push((ticket, GroupAnswer::OffsetsDeleted(answer)));
            }
            // what is refused now is tried at the next look
            (UnderWay::Expire, _) => (),
        }
    }

    /// The broker stops: whoever waits is told, and nobody waits from here on. Commits and fetches go on.
    pub fn stop(&mut self, out: &mut GroupOut) {
        self.stopping = true;
        self.tell_waiting(GroupRefusal::Stopping, out);
    }

    /// Another broker coordinates the groups from here on: whoever waits is told, members are forgotten. Every command
    /// that is under way was decided before.
    ///
    /// # Panics
    /// If one was not.
    pub fn step_down(&mut self, out: &mut GroupOut) {
        assert!(self.under_way.is_empty(), "{} commands of groups have no end", self.under_way.len());
        self.tell_waiting(GroupRefusal::NotCoordinator, out);
        self.groups.clear();
        self.consumers.clear();
        self.timers.clear();
        self.members_bytes = 0;
    }

    /// This broker coordinates the groups from now on, in this term of the meta shard. It knows no member: they come.
    pub fn take_over(&mut self, now: Mono, term: Term) {
        self.started = now;
        self.next_expiry = now + EXPIRY_EVERY;
        (self.epochs, self.last_epoch) = (Epochs::of(term), 0);
        // by then who was a member of before has asked for the coordinator, and been told that it is unknown
        self.held_until = now + self.settings.consumer_heartbeat_interval;
    }

    fn tell_waiting(&mut self, why: GroupRefusal, out: &mut GroupOut) {
        for (id, member) in self.groups.values_mut().flat_map(|group| group.members.iter_mut()) {
            if let Some(ticket) = member.joining.take() {
                out.answers.push((ticket, GroupAnswer::Joined(Err((why, id.clone())))));
            }
            if let Some(ticket) = member.syncing.take() {
                out.answers.push((ticket, GroupAnswer::Synced(Err(why))));
            }
        }
    }

    fn may_join(&self, group: &str) -> Result<(), GroupRefusal> {
        if self.stopping { Err(GroupRefusal::Stopping) } else { check_id(group) }
    }

    pub(super) fn propose(&mut self, under_way: UnderWay, command: Command, out: &mut GroupOut) {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.under_way.insert(token, under_way);
        out.commands.push((token, command));
    }

    /// Puts the group's next deadline among the timers. A group that nobody needs any more goes.
    fn arm(&mut self, name: &str) {
        let Some(group) = self.groups.get_mut(name) else { return self.arm_consumers(name) };
        group.assert_whole();
        let silent = group.members.values().filter(|m| !m.is_heard()).map(|m| m.alive_until);
        let pending = group.pending.values().copied();
        let fixed = [group.preparing.map(|p| p.until), group.sync_by];
        let empty = (group.state == GroupState::Empty).then_some(group.look_again);
        let next = silent.chain(pending).chain(fixed.into_iter().flatten()).chain(empty).min();
        if next != group.armed {
            if let Some(before) = group.armed {
                self.timers.remove(&(before, name.to_owned()));
            }
            if let Some(next) = next {
                self.timers.insert((next, name.to_owned()));
            }
            group.armed = next;
        }
    }

    /// The same of a group of KIP-848.
    fn arm_consumers(&mut self, name: &str) {
        let Some(group) = self.consumers.get_mut(name) else { return };
        let next = group.deadline();
        if group.armed != Some(next) {
            if let Some(before) = group.armed.replace(next) {
                self.timers.remove(&(before, name.to_owned()));
            }
            self.timers.insert((next, name.to_owned()));
        }
    }

    /// A heartbeat moves the time of one member only, and mostly to later, for which nothing needs to be done: looking
    /// at a group too early is harmless.
    fn arm_for(&mut self, name: &str, member: &str) {
        let Some(group) = self.consumers.get(name) else { return };
        let due = group.members.get(member).map(ConsumerMember::deadline);
        if group.armed.is_none_or(|armed| due.is_some_and(|due| due < armed)) {
            self.arm_consumers(name);
        }
    }

    /// What time has brought to one group.
    fn look_at(&mut self, now: Mono, name: &str, state: &State, out: &mut GroupOut) {
        if self.consumers.contains_key(name) {
            return self.look_at_consumers(now, name, state, out);
        }
        self.time_passed(now, name, out);
        let Some(group) = self.groups.get_mut(name) else { return };
        let empty = group.state == GroupState::Empty && group.pending.is_empty();
        if empty && (group.generation == 0 || group.look_again <= now) {
            group.look_again = now + EMPTY_KEPT;
            if state.offsets().group(name).is_none() {
                self.forget_if_empty(name);
            }
        }
    }

    /// Takes a group without members out of memory. What it committed is elsewhere.
    pub(super) fn forget_if_empty(&mut self, name: &str) {
        if self.groups.get(name).is_some_and(|g| g.state == GroupState::Empty && g.members.is_empty()) {
            self.take_classic(name);
        }
        if self.consumers.get(name).is_some_and(|group| group.members.is_empty()) {
            self.take_consumers(name);
        }
    }

    /// Room for one group more. Those that are empty are kept for what a description says of them; at the bound the one
    /// goes that is empty for the longest time, and its offsets stay.
    pub(super) fn make_room_for_group(&mut self) -> Result<(), GroupRefusal> {
        if self.groups.len() + self.consumers.len() < limits::GROUPS_MAX {
            return Ok(());
        }
        let classic =
            self.groups.iter().filter(|(_, group)| group.state == GroupState::Empty && group.pending.is_empty());
        let classic = classic.map(|(name, group)| (group.empty_since, name));
        let consumers = self.consumers.iter().filter(|(_, group)| group.members.is_empty());
        let consumers = consumers.map(|(name, group)| (group.empty_since, name));
        let (_, oldest) = classic.chain(consumers).min().ok_or(GroupRefusal::Busy)?;
        let oldest = oldest.clone();
        self.forget_if_empty(&oldest);
        Ok(())
    }

    /// Takes a group out, to forget it or to make another of it.
    ///
    /// # Panics
    /// If there is no such group.
    pub(super) fn take_classic(&mut self, name: &str) -> Group {
        let group = self.groups.remove(name).expect("there is such a group");
        let members: usize = group.members.values().map(Member::bytes).sum();
        self.members_bytes -= members + group.pending.len() * limits::MEMBER_BYTES_FIXED;
        if let Some(armed) = group.armed {
            self.timers.remove(&(armed, name.to_owned()));
        }
        group
    }

    /// The same of a group of KIP-848.
    pub(super) fn take_consumers(&mut self, name: &str) -> ConsumerGroup {
        let group = self.consumers.remove(name).expect("there is such a group");
        self.last_epoch = self.last_epoch.max(group.epoch);
        self.members_bytes -= group.bytes;
        if let Some(armed) = group.armed {
            self.timers.remove(&(armed, name.to_owned()));
        }
        group
    }
}

pub(super) fn check_id(group: &str) -> Result<(), GroupRefusal> {
    match group.len() {
        1..=limits::GROUP_ID_BYTES_MAX => Ok(()),
        _ => Err(GroupRefusal::InvalidGroupId),
    }
}

/// What is said of each, in their order, until it is as much as one answer may have. The first is always said; whoever
/// asked for too many asks again for the others, or gets nowhere with the same name over and over.
fn as_far_as_it_goes<A, T>(
    asked: &[A],
    one: impl Fn(&A) -> Result<T, GroupRefusal>,
    bytes: impl Fn(&T) -> usize,
) -> Vec<Result<T, GroupRefusal>> {
    let mut left = limits::GROUP_ANSWER_BYTES_MAX;
    let say = |asked: &A| {
        if left == 0 {
            return Err(GroupRefusal::Busy);
        }
        let said = one(asked)?;
        left = left.saturating_sub(bytes(&said));
        Ok(said)
    };
    asked.iter().map(say).collect()
}
