//! ConsumerGroupHeartbeat: joining, staying, leaving.
//!
//! A request is looked at in this order: is it whole; whose is it; what does it change in the group; is the target
//! assignment older than the group now; how far can this member go towards its target. All of it is answered at once.

use super::assign::Assignor;
use super::group::{AWAY, ConsumerGroup, ConsumerMember, Parts, Turn};
use super::pattern::Pattern;
use crate::groups::ask::{Beat, Beaten, GroupRefusal, Partitions};
use crate::limits;
use std::collections::BTreeSet;
use uuid::Uuid;

/// The epoch that a member joins with.
const JOINS: i32 = 0;
/// The epoch that a member leaves with for good.
pub(super) const LEAVES: i32 = -1;

/// Who a request is of.
pub(super) enum Whose {
    /// A new member's.
    Newcomer,
    /// A member's of this id.
    Member,
    /// A static member's that comes back under a new id; this was its old one.
    Successor(String),
}

/// Whether the request has what it must have, and nothing that it must not. Source: KIP-848, KIP-1082.
pub(super) fn check(beat: &Beat) -> Result<(), GroupRefusal> {
    let is_empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
    let nameless = beat.member.id.is_empty() && (beat.id_required || beat.epoch != JOINS);
    let of_a_group = !beat.group.is_empty() && beat.group.len() <= limits::GROUP_ID_BYTES_MAX;
    let is_long = |text: &str| text.len() > limits::MEMBER_ID_BYTES_MAX;
    let names = [Some(&beat.member.id), beat.member.instance.as_ref(), beat.rack.as_ref()];
    if names.into_iter().flatten().any(|name| is_long(name)) {
        return Err(GroupRefusal::InvalidRequest);
    }
    if nameless || !of_a_group || is_empty(&beat.member.instance) || is_empty(&beat.rack) {
        return Err(GroupRefusal::InvalidRequest);
    }
    let is_whole = match beat.epoch {
        JOINS => {
            let says_what = beat.topics.is_some() || beat.pattern.is_some();
            beat.rebalance_timeout.is_some() && says_what && beat.owned.as_ref().is_some_and(Vec::is_empty)
        }
        AWAY => beat.member.instance.is_some(),
        epoch => epoch >= LEAVES,
    };
    if !is_whole || bytes(beat) > limits::MEMBER_BYTES_MAX {
        return Err(GroupRefusal::InvalidRequest);
    }
    match &beat.assignor {
        Some(name) if Assignor::named(name).is_none() => Err(GroupRefusal::UnsupportedAssignor),
        Some(_) | None => Ok(()),
    }
}

/// What a member would take that says this, about.
pub(super) fn bytes(beat: &Beat) -> usize {
    let options = [&beat.member.instance, &beat.member.instance, &beat.rack, &beat.pattern];
    let said: usize = options.into_iter().flatten().map(String::len).sum();
    let names: usize = beat.topics.iter().flatten().map(|name| 2 * name.len() + 48).sum();
    said + names + beat.client_id.len() + beat.client_host.len()
}

/// What the pattern of a request means, where the group does not know it.
pub(super) fn pattern(beat: &Beat, group: Option<&ConsumerGroup>) -> Result<Option<Pattern>, GroupRefusal> {
    let Some(text) = beat.pattern.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
    match group {
        Some(group) if group.knows_pattern(text) => return Ok(None),
        Some(group) if !group.has_room_for_pattern() => return Err(GroupRefusal::InvalidPattern),
        Some(_) | None => (),
    }
    Pattern::new(text).map(Some).ok_or(GroupRefusal::InvalidPattern)
}

pub(super) fn parts(partitions: &Partitions) -> Parts {
    let mut parts = Parts::new();
    for (topic, numbers) in partitions.iter().filter(|(_, numbers)| !numbers.is_empty()) {
        parts.entry(*topic).or_default().extend(numbers.iter().copied());
    }
    parts
}

pub(super) fn partitions(parts: &Parts) -> Partitions {
    parts.iter().map(|(topic, numbers)| (*topic, numbers.iter().copied().collect())).collect()
}

impl ConsumerGroup {
    /// A member joins or says that it is there. `id`: its own, or the one that it gets; `pattern`: what it subscribes
    /// to besides, where the group does not know it.
    pub(super) fn beat(
        &mut self,
        beat: Beat,
        id: &str,
        pattern: Option<&Pattern>,
        turn: &Turn<'_>,
    ) -> Result<Beaten, GroupRefusal> {
        let owned = beat.owned.as_ref().map(parts);
        let whose = self.whose(&beat, id, owned.as_ref())?;
        let is_new = matches!(whose, Whose::Newcomer);
        if is_new && self.members.len() >= turn.settings.consumer_members_max {
            return Err(GroupRefusal::GroupFull);
        }
        let says_all = beat.rebalance_timeout.is_some() && (beat.topics.is_some() || beat.pattern.is_some());
        let is_full = beat.epoch == JOINS || (says_all && owned.is_some());
        let preferred = self.assignor();
        match &whose {
            Whose::Newcomer => self.add(id, ConsumerMember::new(turn.now)),
            Whose::Member => (),
            Whose::Successor(old) => self.replace(old, id),
        }
        if let Some(instance) = &beat.member.instance {
            self.name_instance(id, Some(instance.as_str()));
        }
        let changed = self.say(beat, id, pattern, turn);
        let is_other = is_new || changed || self.assignor() != preferred;
        self.go_on(is_other, changed, turn);
        self.assign_if_due(turn, true);
        let moved = self.reconcile(id, owned.as_ref(), turn);
        let member = self.members.get_mut(id).expect("it is a member");
        member.heard(turn.now, turn.settings);
        Ok(Beaten {
            member: id.to_owned(),
            epoch: member.epoch,
            interval: turn.settings.consumer_heartbeat_interval,
            assignment: (is_full || moved).then(|| partitions(&member.assigned)),
        })
    }

    fn whose(&self, beat: &Beat, id: &str, owned: Option<&Parts>) -> Result<Whose, GroupRefusal> {
        let joins = beat.epoch == JOINS;
        let holder = match &beat.member.instance {
            None => Some(id),
            Some(instance) => self.instances.get(instance).map(String::as_str),
        };
        let known = self.members.get(id);
        match holder {
            // under its own name, whether or not it has heard what it was answered last
            Some(holder) if holder == id => match known {
                Some(member) => member.check_epoch(beat.epoch, owned).map(|()| Whose::Member),
                None if joins => Ok(Whose::Newcomer),
                None => Err(GroupRefusal::UnknownMember),
            },
            Some(holder) if joins => {
                let former = &self.members[holder];
                match known {
                    // two members would be one
                    Some(_) => Err(GroupRefusal::UnreleasedInstance),
                    None if former.epoch == AWAY || former.classic.is_some() => Ok(Whose::Successor(holder.to_owned())),
                    None => Err(GroupRefusal::UnreleasedInstance),
                }
            }
            Some(_) => Err(GroupRefusal::FencedInstance),
            None if joins && known.is_some() => Ok(Whose::Member),
            None if joins => Ok(Whose::Newcomer),
            None => Err(GroupRefusal::UnknownMember),
        }
    }

    /// Takes what the member says of itself. True if it subscribes to something else than before.
    fn say(&mut self, beat: Beat, id: &str, pattern: Option<&Pattern>, turn: &Turn<'_>) -> bool {
        let mut changed = false;
        if let Some(assignor) = beat.assignor.as_deref() {
            self.prefer(id, Assignor::named(assignor));
        }
        if let Some(names) = beat.topics {
            changed |= self.subscribe(id, names);
        }
        if let Some(text) = &beat.pattern {
            let topics: BTreeSet<Uuid> = pattern.map(|pattern| pattern.among(turn.image)).unwrap_or_default();
            changed |= self.watch(id, Some(text.as_str()).filter(|text| !text.is_empty()), topics);
        }
        self.change(id, |member| {
            member.client_id = beat.client_id;
            member.client_host = beat.client_host;
            member.rebalance_timeout = beat.rebalance_timeout.unwrap_or(member.rebalance_timeout);
            member.rack = beat.rack.or(member.rack.take());
            if member.classic.take().is_some() && member.revoking.is_empty() {
                // it is not to come for its assignment any more
                member.act_by = None;
            }
        });
        changed
    }

    /// What a member said may mean another assignment: the group gets the next epoch then.
    pub(super) fn go_on(&mut self, is_other: bool, subscribes_else: bool, turn: &Turn<'_>) {
        let topics = self.look_at_topics(turn, subscribes_else);
        if is_other || topics {
            self.bump(turn.epochs);
        }
    }

    /// A member leaves, for good or for a while. True if it is not in the group any more.
    pub(super) fn leave(&mut self, beat: &Beat, turn: &Turn<'_>) -> Result<bool, GroupRefusal> {
        let id = beat.member.id.as_str();
        if let Some(instance) = &beat.member.instance {
            match self.instances.get(instance) {
                None => return Err(GroupRefusal::UnknownMember),
                Some(holder) if holder != id => return Err(GroupRefusal::FencedInstance),
                Some(_) => (),
            }
        }
        if !self.members.contains_key(id) {
            return Err(GroupRefusal::UnknownMember);
        }
        if beat.epoch == AWAY {
            self.leave_for_a_while(id, turn);
            return Ok(false);
        }
        self.remove(id, turn.now, turn.epochs);
        Ok(true)
    }
}
