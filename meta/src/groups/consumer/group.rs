//! One group of KIP-848: its members, what is meant for each, what each has, and how it comes from one to the other.
//! Nothing here knows a request.

use super::assign::{Assignment, Assignor, Subscriber};
use super::epochs::Epochs;
use super::pattern::Pattern;
use crate::groups::ask::{ConsumersState, GroupRefusal};
use crate::groups::coordinator::{EMPTY_KEPT, GroupSettings};
use crate::groups::group::protocols_bytes;
use crate::image::Image;
use crate::limits;
use bytes::Bytes;
#[cfg(feature = "planted")]
use camus_engine::planted::{Bug, is};
use camus_engine::types::Mono;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// The epoch of a static member that has left for a while. Source: KIP-848.
pub(super) const AWAY: i32 = -2;
/// How often a group's patterns are matched against the names of all topics, when topics change.
const PATTERNS_EVERY: Duration = Duration::from_secs(1);

/// Partitions by topic; no topic is there without one.
pub(in crate::groups) type Parts = BTreeMap<Uuid, BTreeSet<u32>>;

pub(super) fn put(parts: &mut Parts, (topic, number): (Uuid, u32)) {
    parts.entry(topic).or_default().insert(number);
}

pub(super) fn count(parts: &Parts) -> usize {
    parts.values().map(BTreeSet::len).sum()
}

fn each(parts: &Parts) -> impl Iterator<Item = (Uuid, u32)> {
    parts.iter().flat_map(|(topic, numbers)| numbers.iter().map(move |number| (*topic, *number)))
}

/// Whether they have a partition in common.
fn meet(one: &Parts, other: &Parts) -> bool {
    one.iter().any(|(topic, numbers)| other.get(topic).is_some_and(|others| !numbers.is_disjoint(others)))
}

/// Whether all of `one` is in `other`.
fn is_within(one: &Parts, other: &Parts) -> bool {
    one.iter().all(|(topic, numbers)| other.get(topic).is_some_and(|others| numbers.is_subset(others)))
}

/// A member that speaks the classic protocol in a group of KIP-848.
#[derive(Clone, Debug)]
pub(in crate::groups) struct Classic {
    pub(super) session_timeout: Duration,
    /// In the order of its preference.
    pub(super) protocols: Vec<(String, Bytes)>,
    /// Of what it says under them.
    pub(super) version: i16,
}

impl Classic {
    /// The protocol that it is told: its own choice, because nobody but the broker assigns.
    pub(super) fn protocol(&self) -> &str {
        self.protocols.first().map_or("", |(name, _)| name)
    }
}

/// One member.
///
/// `assigned` is what it may have, `revoking` what it has to give up before it goes on, `target` what it is to have in
/// the end. No partition is in `assigned` or `revoking` of two members: [`ConsumerGroup::taken`] holds all of them.
#[derive(Clone, Debug)]
pub(in crate::groups) struct ConsumerMember {
    /// Of its own id, which is the key that it stands under.
    pub(super) id_bytes: usize,
    pub(super) instance: Option<String>,
    pub(super) rack: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout: Duration,
    pub(super) assignor: Option<Assignor>,
    /// Names that it subscribes to, sorted, each once.
    pub(super) names: Vec<String>,
    pub(super) pattern: Option<String>,
    pub(super) classic: Option<Classic>,
    /// What it was told last, and before that. A member that has not heard the last may say the one before.
    pub(super) epoch: i32,
    pub(super) previous_epoch: i32,
    pub(super) assigned: Parts,
    pub(super) revoking: Parts,
    /// Something of its target was not free when it was looked at last.
    pub(super) lacking: bool,
    pub(super) target: Parts,
    /// It is out when nothing is heard of it until then.
    pub(super) alive_until: Mono,
    /// It is out if it has not done until then what it was told to: to give up partitions, or a classic member to join
    /// again or to ask for its assignment.
    pub(super) act_by: Option<Mono>,
}

impl ConsumerMember {
    pub(super) fn new(now: Mono) -> ConsumerMember {
        ConsumerMember {
            id_bytes: 0,
            instance: None,
            rack: None,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout: Duration::ZERO,
            assignor: None,
            names: Vec::new(),
            pattern: None,
            classic: None,
            epoch: 0,
            previous_epoch: 0,
            assigned: Parts::new(),
            revoking: Parts::new(),
            lacking: false,
            target: Parts::new(),
            alive_until: now,
            act_by: None,
        }
    }

    /// What it takes of [`limits::MEMBERS_BYTES_MAX`]. A name stands in the group once more, and so does its instance
    /// id, with its own id.
    fn bytes(&self) -> usize {
        let options = [&self.instance, &self.rack, &self.pattern];
        let said = options.into_iter().flatten().map(String::len).sum::<usize>();
        let names = self.names.iter().map(|name| 2 * name.len() + 48).sum::<usize>();
        let protocols = self.classic.as_ref().map_or(0, |classic| protocols_bytes(&classic.protocols));
        let parts = count(&self.assigned) + count(&self.revoking) + count(&self.target);
        let instance = self.instance.as_ref().map_or(0, String::len);
        let client = self.client_id.len() + self.client_host.len() + 2 * self.id_bytes + instance;
        limits::MEMBER_BYTES_FIXED + said + names + protocols + client + parts * limits::GROUP_PARTITION_BYTES
    }

    fn tell(&mut self, epoch: i32) {
        if epoch != self.epoch {
            (self.previous_epoch, self.epoch) = (self.epoch, epoch);
        }
    }

    /// Whether it may say this epoch, and have what it says that it has.
    pub(super) fn check_epoch(&self, epoch: i32, owned: Option<&Parts>) -> Result<(), GroupRefusal> {
        // who joins again begins anew, with nothing in its hands
        if epoch == 0 || epoch == self.epoch {
            return Ok(());
        }
        // the answer that told it the next one was lost
        let has_not_heard = epoch == self.previous_epoch && owned.is_some_and(|owned| is_within(owned, &self.assigned));
        if has_not_heard { Ok(()) } else { Err(GroupRefusal::FencedMemberEpoch) }
    }

    /// What a request that changes nothing (a commit, a fetch) may say.
    pub(super) fn check_exact(&self, epoch: i32) -> Result<(), GroupRefusal> {
        match &self.classic {
            _ if epoch == self.epoch => Ok(()),
            None => Err(GroupRefusal::StaleMemberEpoch),
            Some(_) => Err(GroupRefusal::IllegalGeneration),
        }
    }

    pub(super) fn heard(&mut self, now: Mono, settings: &GroupSettings) {
        let session = self.classic.as_ref().map_or(settings.consumer_session_timeout, |c| c.session_timeout);
        self.alive_until = now + session;
    }

    /// When to look whether it is still there.
    pub(in crate::groups) fn deadline(&self) -> Mono {
        self.act_by.map_or(self.alive_until, |by| by.min(self.alive_until))
    }
}

/// A pattern that members subscribe to.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    members: usize,
    /// What it meant when it was looked at.
    topics: BTreeSet<Uuid>,
}

/// What stands when a group takes a step.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) now: Mono,
    pub(super) image: &'a Image,
    pub(super) epochs: Epochs,
    pub(super) settings: &'a GroupSettings,
    /// Nothing is given out yet: members of before a restart may still have it.
    pub(super) held: bool,
    /// What members may still take, bytes.
    pub(super) room: usize,
}

/// One group. Lives on core 0, owned by the coordinator. Source of the rules: KIP-848 and Kafka's implementation.
#[derive(Clone, Debug)]
pub(in crate::groups) struct ConsumerGroup {
    pub(in crate::groups) epoch: i32,
    /// Of the target assignment: another than the group's where that is to be made anew.
    pub(super) assignment_epoch: i32,
    pub(in crate::groups) members: BTreeMap<String, ConsumerMember>,
    /// Instance id to member id of static members.
    pub(super) instances: BTreeMap<String, String>,
    /// How many members subscribe to each name.
    names: BTreeMap<String, usize>,
    patterns: BTreeMap<String, Watched>,
    /// How many members prefer `uniform` and `range`.
    wishes: [usize; 2],
    /// Topics that are subscribed to and there, with how many partitions they have: as of the image of this version.
    topics: BTreeMap<Uuid, u32>,
    image_version: u64,
    patterns_due: Mono,
    assign_due: Mono,
    /// All that members have or have to give up.
    taken: BTreeSet<(Uuid, u32)>,
    /// Partitions of the target assignment.
    targeted: usize,
    /// What its members take of [`limits::MEMBERS_BYTES_MAX`].
    pub(in crate::groups) bytes: usize,
    /// When the last member went.
    pub(in crate::groups) empty_since: Mono,
    /// Without members: when to see whether anybody needs it still.
    pub(in crate::groups) look_again: Mono,
    /// The deadline under which the group stands in the coordinator's timers.
    pub(in crate::groups) armed: Option<Mono>,
}

impl ConsumerGroup {
    pub(super) fn new(now: Mono) -> ConsumerGroup {
        ConsumerGroup {
            epoch: 0,
            assignment_epoch: 0,
            members: BTreeMap::new(),
            instances: BTreeMap::new(),
            names: BTreeMap::new(),
            patterns: BTreeMap::new(),
            wishes: [0; 2],
            topics: BTreeMap::new(),
            image_version: 0,
            patterns_due: now,
            assign_due: now,
            taken: BTreeSet::new(),
            targeted: 0,
            bytes: 0,
            empty_since: now,
            look_again: now + EMPTY_KEPT,
            armed: None,
        }
    }

    pub(super) fn state(&self) -> ConsumersState {
        let is_there = |member: &ConsumerMember| {
            member.epoch == self.assignment_epoch && member.revoking.is_empty() && !member.lacking
        };
        match () {
            () if self.members.is_empty() => ConsumersState::Empty,
            () if self.epoch != self.assignment_epoch => ConsumersState::Assigning,
            () if self.members.values().all(is_there) => ConsumersState::Stable,
            () => ConsumersState::Reconciling,
        }
    }

    pub(in crate::groups) fn state_name(&self) -> &'static str {
        self.state().name()
    }

    /// What most members prefer that prefer one; `uniform` where nobody does.
    pub(super) fn assignor(&self) -> Assignor {
        let [uniform, range] = self.wishes;
        if range > uniform { Assignor::Range } else { Assignor::Uniform }
    }

    /// When to look at the group by itself.
    pub(in crate::groups) fn deadline(&self) -> Mono {
        self.members.values().map(ConsumerMember::deadline).min().unwrap_or(self.look_again)
    }

    /// What this member takes now, bytes; nothing if it is none.
    pub(super) fn takes(&self, id: &str) -> usize {
        self.members.get(id).map_or(0, ConsumerMember::bytes)
    }

    pub(super) fn knows_pattern(&self, text: &str) -> bool {
        self.patterns.contains_key(text)
    }

    pub(super) fn has_room_for_pattern(&self) -> bool {
        self.patterns.len() < limits::GROUP_PATTERNS_MAX
    }

    /// Whether a member subscribes to this topic.
    pub(in crate::groups) fn subscribes(&self, name: &str, id: Uuid) -> bool {
        self.names.contains_key(name) || self.patterns.values().any(|watched| watched.topics.contains(&id))
    }

    /// Puts a new member in. It has nothing, and nothing is meant for it yet.
    pub(super) fn add(&mut self, id: &str, member: ConsumerMember) {
        assert!(member.names.is_empty() && member.pattern.is_none() && member.assignor.is_none(), "said after this");
        let member = ConsumerMember { id_bytes: id.len(), ..member };
        self.bytes += member.bytes();
        let before = self.members.insert(id.to_owned(), member);
        assert!(before.is_none(), "member {id} is there twice");
    }

    /// Changes what the group knows of a member and nobody counts.
    pub(super) fn change(&mut self, id: &str, with: impl FnOnce(&mut ConsumerMember)) {
        let member = self.members.get_mut(id).expect("it is a member");
        let before = member.bytes();
        with(member);
        self.bytes = self.bytes - before + member.bytes();
    }

    /// The member has this instance id from now on, or none.
    pub(super) fn name_instance(&mut self, id: &str, instance: Option<&str>) {
        let before = self.members[id].instance.clone();
        if before.as_deref() == instance {
            return;
        }
        if let Some(before) = before {
            self.instances.remove(&before);
        }
        if let Some(instance) = instance {
            self.instances.insert(instance.to_owned(), id.to_owned());
        }
        self.change(id, |member| member.instance = instance.map(str::to_owned));
    }

    /// A static member comes back under another id: it gets what its former self has and is meant to have, and joins
    /// anew.
    pub(super) fn replace(&mut self, old: &str, new: &str) {
        let mut member = self.members.remove(old).expect("instances name members");
        (member.epoch, member.previous_epoch, member.act_by) = (0, 0, None);
        let before = member.bytes();
        member.id_bytes = new.len();
        self.bytes = self.bytes - before + member.bytes();
        let instance = member.instance.clone().expect("a static member has an instance id");
        self.instances.insert(instance, new.to_owned());
        let before = self.members.insert(new.to_owned(), member);
        assert!(before.is_none(), "member {new} is there already");
    }

    /// A static member goes and means to come back: what it has stays its own, what it was to give up is free.
    pub(super) fn leave_for_a_while(&mut self, id: &str, turn: &Turn<'_>) {
        let revoking = std::mem::take(&mut self.members.get_mut(id).expect("it is a member").revoking);
        release(&mut self.taken, &revoking);
        self.bytes -= count(&revoking) * limits::GROUP_PARTITION_BYTES;
        let member = self.members.get_mut(id).expect("it is a member");
        (member.epoch, member.previous_epoch, member.act_by) = (AWAY, AWAY, None);
        member.heard(turn.now, turn.settings);
    }

    /// A known member was heard, though what it said was not taken.
    pub(super) fn hear(&mut self, id: &str, epoch: i32, turn: &Turn<'_>) {
        if let Some(member) = self.members.get_mut(id).filter(|member| epoch > 0 && member.epoch == epoch) {
            member.heard(turn.now, turn.settings);
        }
    }

    /// Takes a member out. The group needs another assignment.
    pub(super) fn remove(&mut self, id: &str, now: Mono, epochs: Epochs) {
        self.subscribe(id, Vec::new());
        self.watch(id, None, BTreeSet::new());
        self.prefer(id, None);
        let member = self.members.remove(id).expect("only members are removed");
        self.bytes -= member.bytes();
        if let Some(instance) = &member.instance {
            self.instances.remove(instance);
        }
        release(&mut self.taken, &member.assigned);
        release(&mut self.taken, &member.revoking);
        self.targeted -= count(&member.target);
        self.epoch = epochs.after(self.epoch);
        if self.members.is_empty() {
            assert!(self.taken.is_empty() && self.names.is_empty() && self.patterns.is_empty(), "{self:?}");
            assert!(self.bytes == 0 && self.targeted == 0 && self.instances.is_empty(), "{self:?}");
            self.topics.clear();
            self.assignment_epoch = self.epoch;
            self.empty_since = now;
            self.look_again = now + EMPTY_KEPT;
        }
    }

    /// Takes out who was silent for too long, or did not do what it was told to. True if there was one.
    pub(in crate::groups) fn time_passed(&mut self, now: Mono, epochs: Epochs) -> bool {
        let late = self.members.iter().filter(|(_, member)| member.deadline() <= now);
        let late: Vec<String> = late.map(|(id, _)| id.clone()).collect();
        for id in &late {
            self.remove(id, now, epochs);
        }
        !late.is_empty()
    }

    /// The member prefers this assignor.
    pub(super) fn prefer(&mut self, id: &str, assignor: Option<Assignor>) {
        let member = self.members.get_mut(id).expect("it is a member");
        if let Some(before) = member.assignor {
            self.wishes[before as usize] -= 1;
        }
        if let Some(assignor) = assignor {
            self.wishes[assignor as usize] += 1;
        }
        member.assignor = assignor;
    }

    /// The member subscribes to these names. True if it was to others.
    pub(super) fn subscribe(&mut self, id: &str, mut names: Vec<String>) -> bool {
        names.retain(|name| !name.is_empty());
        names.sort();
        names.dedup();
        let before = &self.members[id].names;
        if *before == names {
            return false;
        }
        for name in before {
            let left = self.names.get_mut(name).expect("each name of a member is counted");
            *left -= 1;
            if *left == 0 {
                self.names.remove(name);
            }
        }
        for name in &names {
            *self.names.entry(name.clone()).or_default() += 1;
        }
        self.change(id, |member| member.names = names);
        true
    }

    /// The member subscribes to this pattern besides, or to none. `topics`: what it means, where the group does not
    /// know it. True if it was another.
    pub(super) fn watch(&mut self, id: &str, pattern: Option<&str>, topics: BTreeSet<Uuid>) -> bool {
        let before = self.members[id].pattern.clone();
        if before.as_deref() == pattern {
            return false;
        }
        if let Some(before) = before {
            let watched = self.patterns.get_mut(&before).expect("each pattern of a member is counted");
            watched.members -= 1;
            if watched.members == 0 {
                self.bytes -= watched.bytes(&before);
                self.patterns.remove(&before);
            }
        }
        if let Some(pattern) = pattern {
            if let Some(watched) = self.patterns.get_mut(pattern) {
                watched.members += 1;
            } else {
                let watched = Watched { members: 1, topics };
                self.bytes += watched.bytes(pattern);
                self.patterns.insert(pattern.to_owned(), watched);
            }
        }
        self.change(id, |member| member.pattern = pattern.map(str::to_owned));
        true
    }

    /// Sees which topics the group subscribes to, where the topics or its subscriptions are others than they were. True
    /// if it is not the same topics and partitions any more.
    pub(super) fn look_at_topics(&mut self, turn: &Turn<'_>, changed: bool) -> bool {
        let image = turn.image;
        let stale = self.image_version != image.version;
        if stale && (self.patterns.is_empty() || self.patterns_due <= turn.now) {
            self.image_version = image.version;
            self.match_patterns(turn);
        } else if !changed {
            return false;
        }
        let mut topics = BTreeMap::new();
        let named = self.names.keys().filter_map(|name| image.topic(name));
        let watched = self.patterns.values().flat_map(|watched| &watched.topics);
        for topic in named.chain(watched.filter_map(|id| image.topic_by_id(*id))) {
            topics.insert(topic.id, u32::try_from(topic.partitions.len()).expect("partitions are numbered in 32 bits"));
        }
        let differs = topics != self.topics;
        self.topics = topics;
        differs
    }

    fn match_patterns(&mut self, turn: &Turn<'_>) {
        if self.patterns.is_empty() {
            return;
        }
        self.patterns_due = turn.now + PATTERNS_EVERY;
        for (text, watched) in &mut self.patterns {
            let pattern = Pattern::new(text).expect("it was a pattern when it was put in");
            let before = watched.bytes(text);
            watched.topics = pattern.among(turn.image);
            self.bytes = self.bytes - before + watched.bytes(text);
        }
    }

    /// The group is another: what was assigned is to be assigned anew.
    pub(super) fn bump(&mut self, epochs: Epochs) {
        self.epoch = epochs.after(self.epoch);
    }

    /// Makes the target assignment, where it is older than the group. `soon`: a large group may let changes gather.
    pub(super) fn assign_if_due(&mut self, turn: &Turn<'_>, soon: bool) {
        if self.assignment_epoch == self.epoch {
            return;
        }
        if self.assignment_epoch != 0 {
            let partitions: usize = self.topics.values().map(|count| *count as usize).sum();
            let more = 2 * partitions.saturating_sub(self.targeted) * limits::GROUP_PARTITION_BYTES;
            if more > turn.room || (soon && turn.now < self.assign_due) {
                return;
            }
        }
        let steps = self.assign(turn.image);
        if steps > limits::ASSIGN_AT_ONCE_MAX {
            let pause = u64::try_from(steps / limits::ASSIGN_STEPS_PER_PAUSE_MS).unwrap_or(u64::MAX);
            let pause = pause.clamp(limits::ASSIGN_PAUSE_MS, limits::ASSIGN_PAUSE_MAX_MS);
            self.assign_due = turn.now + Duration::from_millis(pause);
        }
    }

    /// Returns the steps that it took.
    fn assign(&mut self, image: &Image) -> usize {
        let Assignment { given, steps } = self.targets(image);
        self.targeted = 0;
        for (member, target) in self.members.values_mut().zip(given) {
            let (before, after) = (count(&member.target), count(&target));
            self.bytes = self.bytes - before * limits::GROUP_PARTITION_BYTES + after * limits::GROUP_PARTITION_BYTES;
            self.targeted += after;
            member.target = target;
        }
        self.assignment_epoch = self.epoch;
        steps
    }

    /// What each member is to have, in their order.
    fn targets(&self, image: &Image) -> Assignment {
        // many members say the same, and it is the same then; by hash, because lists that are almost the same take
        // long to compare
        let mut meant: BTreeMap<u64, Vec<(&[String], Rc<BTreeSet<Uuid>>)>> = BTreeMap::new();
        let mut subscribers = Vec::with_capacity(self.members.len());
        let mut names_read = 0;
        for (id, member) in &self.members {
            let names = member.names.as_slice();
            names_read += names.len();
            let mut hasher = DefaultHasher::new();
            names.hash(&mut hasher);
            let alike = meant.entry(hasher.finish()).or_default();
            let nth = alike.iter().position(|(said, _)| *said == names).unwrap_or_else(|| {
                let topics = names.iter().filter_map(|name| image.topic(name)).map(|topic| topic.id);
                alike.push((names, Rc::new(topics.collect())));
                alike.len() - 1
            });
            let named = Rc::clone(&alike[nth].1);
            let watched = member.pattern.as_ref().and_then(|pattern| self.patterns.get(pattern));
            let watched = watched.map(|watched| &watched.topics);
            let name = member.instance.as_deref().unwrap_or(id);
            subscribers.push(Subscriber { name, named, watched, before: &member.target });
        }
        let made = self.assignor().assign(&subscribers, &self.topics);
        Assignment { steps: made.steps + names_read, ..made }
    }

    /// One step of a member towards its target. `owned`: all that it has, where it says so. True if it is assigned
    /// something else now.
    ///
    /// What it is to lose it loses first: it keeps its epoch until it has said that it has none of it any more. Then it
    /// has the epoch of the target, and gets what is free of it, at once or later.
    pub(super) fn reconcile(&mut self, id: &str, owned: Option<&Parts>, turn: &Turn<'_>) -> bool {
        let target_epoch = self.assignment_epoch;
        let member = self.members.get_mut(id).expect("it is a member");
        let bytes = member.bytes();
        let mut epoch = member.epoch;
        if !member.revoking.is_empty() {
            if owned.is_none_or(|owned| meet(owned, &member.revoking)) {
                return false;
            }
            release(&mut self.taken, &std::mem::take(&mut member.revoking));
            // below the target's: had the target not moved on, there would be nothing more to give up
            epoch = turn.epochs.after(epoch);
        } else if member.epoch == target_epoch && !member.lacking {
            return false;
        }
        let before = std::mem::take(&mut member.assigned);
        let (mut stays, mut goes) = (Parts::new(), Parts::new());
        for (topic, number) in each(&before) {
            let wanted = member.target.get(&topic).is_some_and(|numbers| numbers.contains(&number));
            put(if wanted { &mut stays } else { &mut goes }, (topic, number));
        }
        member.assigned = stays;
        member.lacking = false;
        let is_to_give_up = !goes.is_empty() && owned.is_none_or(|owned| meet(owned, &goes));
        #[cfg(feature = "planted")]
        let is_to_give_up = is_to_give_up && !is(Bug::GiveBeforeGivenUp);
        if is_to_give_up {
            member.revoking = goes;
            member.act_by = Some(turn.now + member.rebalance_timeout);
            member.tell(epoch);
        } else {
            release(&mut self.taken, &goes);
            for (topic, number) in each(&member.target) {
                if member.assigned.get(&topic).is_some_and(|numbers| numbers.contains(&number)) {
                    continue;
                }
                if turn.held || !self.taken.insert((topic, number)) {
                    member.lacking = true;
                } else {
                    put(&mut member.assigned, (topic, number));
                }
            }
            member.act_by = None;
            member.tell(target_epoch);
        }
        let changed = member.assigned != before;
        self.bytes = self.bytes - bytes + member.bytes();
        changed
    }

    /// What a member is given that has it already: an upgrade finds it so. What another has it does not get.
    pub(super) fn hand_over(&mut self, id: &str, parts: &Parts) {
        let member = self.members.get_mut(id).expect("it is a member");
        let before = member.bytes();
        for (topic, number) in each(parts) {
            if self.taken.insert((topic, number)) {
                put(&mut member.assigned, (topic, number));
                put(&mut member.target, (topic, number));
                self.targeted += 1;
            }
        }
        self.bytes = self.bytes - before + member.bytes();
    }

    /// What a member says that it has besides: nobody else gets it before it has given it up.
    pub(super) fn claim(&mut self, id: &str, parts: &Parts) {
        let member = self.members.get_mut(id).expect("it is a member");
        let before = member.bytes();
        for part in each(parts) {
            if self.taken.insert(part) {
                put(&mut member.assigned, part);
            }
        }
        self.bytes = self.bytes - before + member.bytes();
    }

    /// Whether a classic member has to join again: the group is another, or it has something to give up, or all that it
    /// waits for is free.
    pub(super) fn is_to_rejoin(&self, member: &ConsumerMember, held: bool) -> bool {
        let waits = |(topic, number): (Uuid, u32)| {
            let has = member.assigned.get(&topic).is_some_and(|numbers| numbers.contains(&number));
            !has && self.taken.contains(&(topic, number))
        };
        member.epoch != self.epoch
            || !member.revoking.is_empty()
            || (member.lacking && !held && !each(&member.target).any(waits))
    }

    /// What the group's state must be, whatever came. It looks at every partition: for tests.
    #[cfg(test)]
    pub(super) fn assert_whole(&self) {
        let mut all = BTreeSet::new();
        for (id, member) in &self.members {
            for part in each(&member.assigned).chain(each(&member.revoking)) {
                assert!(all.insert(part), "{part:?} has a second owner, {id}: {self:#?}");
            }
            let named = member.instance.as_ref().map(|instance| self.instances.get(instance));
            assert!(named.is_none_or(|holder| holder == Some(id)), "{id}: {self:#?}");
        }
        assert_eq!(all, self.taken, "{self:#?}");
        let bytes: usize = self.members.values().map(ConsumerMember::bytes).sum();
        let watched: usize = self.patterns.iter().map(|(text, watched)| watched.bytes(text)).sum();
        assert_eq!(bytes + watched, self.bytes, "{self:#?}");
        assert_eq!(self.members.values().map(|member| count(&member.target)).sum::<usize>(), self.targeted);
        let statics = self.members.values().filter(|member| member.instance.is_some()).count();
        assert_eq!(statics, self.instances.len(), "{self:#?}");
    }
}

impl Watched {
    fn bytes(&self, text: &str) -> usize {
        text.len() + 64 + 48 * self.topics.len()
    }
}

/// Nobody has these any more.
fn release(taken: &mut BTreeSet<(Uuid, u32)>, parts: &Parts) {
    for part in each(parts) {
        assert!(taken.remove(&part), "{part:?} was somebody's and is not taken");
    }
}
