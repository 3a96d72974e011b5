//! Commits: who may, what becomes a command, what was committed, and when nobody needs it any more.

use super::ask::{
    Commit, FetchGroup, FetchedGroup, FetchedPartition, FetchedTopic, GroupAnswer, GroupOut, GroupRefusal, GroupState,
};
use super::consumer::Epochs;
use super::coordinator::{Coordinator, UnderWay};
use crate::command::Command;
use crate::limits;
use crate::state::State;
use camus_engine::shard::api::Ticket;
use camus_engine::types::{Mono, WallMs};
use uuid::Uuid;

impl Coordinator {
    pub(super) fn commit(&mut self, now: Mono, ticket: Ticket, commit: Commit, state: &State, out: &mut GroupOut) {
        if let Err(why) = self.may_commit(now, &commit, state) {
            out.answers.push((ticket, GroupAnswer::Committed(Err(why))));
            return;
        }
        if commit.topics.iter().all(|topic| topic.partitions.is_empty()) {
            out.answers.push((ticket, GroupAnswer::Committed(Ok(Vec::new()))));
            return;
        }
        let Commit { group, at_ms, topics, .. } = commit;
        self.propose(UnderWay::Commit(ticket), Command::CommitOffsets { group, at_ms, topics }, out);
    }

    fn may_commit(&mut self, now: Mono, commit: &Commit, state: &State) -> Result<(), GroupRefusal> {
        if commit.group.len() > limits::GROUP_ID_BYTES_MAX {
            return Err(GroupRefusal::InvalidGroupId);
        }
        if commit_bytes(commit) > limits::GROUP_COMMAND_BYTES_MAX {
            return Err(GroupRefusal::CommitTooLarge);
        }
        if state.offsets().memory_bytes() > self.settings.offsets_bytes_max && is_new(commit, state) {
            return Err(GroupRefusal::CommitTooLarge);
        }
        if let Some(consumers) = self.consumers.get_mut(&commit.group) {
            return consumers.may_commit(now, commit);
        }
        let outsider = commit.generation < 0;
        let Some(group) = self.groups.get_mut(&commit.group) else {
            return match () {
                () if outsider => Ok(()),
                // The group is there, and nobody is in it; or this broker has restarted, and with an unknown group a
                // Java consumer would give up where an unknown member joins again.
                () if state.offsets().group(&commit.group).is_some() => Err(GroupRefusal::UnknownMember),
                () if was_given_out(&commit.member.id) => Err(GroupRefusal::UnknownMember),
                // the same of members that make their own ids
                () if Epochs::may_have_given(commit.generation) => Err(GroupRefusal::UnknownMember),
                () if commit.knows_not_found => Err(GroupRefusal::GroupNotFound),
                () => Err(GroupRefusal::IllegalGeneration),
            };
        };
        if outsider && group.state == GroupState::Empty {
            return Ok(());
        }
        if outsider && commit.member.id.is_empty() && commit.member.instance.is_none() {
            return Err(GroupRefusal::UnknownMember);
        }
        group.check(&commit.member)?;
        group.check_generation(commit.generation)?;
        if group.state == GroupState::CompletingRebalance {
            return Err(GroupRefusal::RebalanceInProgress);
        }
        group.heard(now, &commit.member.id);
        Ok(())
    }

    /// What the group will read next. A group, topic or partition without a commit is no error.
    pub(super) fn fetch(&self, asked: &FetchGroup, state: &State) -> Result<FetchedGroup, GroupRefusal> {
        self.may_fetch(asked)?;
        let offsets = state.offsets().group(&asked.group);
        let topics = match &asked.topics {
            Some(topics) => topics
                .iter()
                .map(|(id, partitions)| {
                    let one = |partition: &u32| FetchedPartition {
                        partition: *partition,
                        committed: offsets.and_then(|group| group.get(*id, *partition)).cloned(),
                    };
                    FetchedTopic { id: *id, name: String::new(), partitions: partitions.iter().map(one).collect() }
                })
                .collect(),
            None => {
                let image = state.image();
                let all = offsets.into_iter().flat_map(|group| group.topics());
                all.filter_map(|(id, partitions)| {
                    let one = |(partition, committed): (&u32, &crate::offsets::Committed)| FetchedPartition {
                        partition: *partition,
                        committed: Some(committed.clone()),
                    };
                    let name = image.topic_by_id(id)?.name.clone();
                    Some(FetchedTopic { id, name, partitions: partitions.iter().map(one).collect() })
                })
                .collect()
            }
        };
        Ok(FetchedGroup { topics })
    }

    /// Takes single offsets out of a group, except of topics that its members subscribe to.
    pub(super) fn delete_offsets(
        &mut self,
        ticket: Ticket,
        group: String,
        topics: Vec<(String, Uuid, Vec<u32>)>,
        state: &State,
        out: &mut GroupOut,
    ) {
        let (members, consumers) = (self.groups.get(&group), self.consumers.get(&group));
        let is_there = members.is_some() || consumers.is_some() || state.offsets().group(&group).is_some();
        let in_use = members.filter(|group| group.state != GroupState::Empty);
        let refused = match in_use {
            _ if !is_there => Some(GroupRefusal::GroupNotFound),
            Some(members) if members.protocol_type != "consumer" => Some(GroupRefusal::NonEmptyGroup),
            Some(_) | None => None,
        };
        if let Some(why) = refused {
            out.answers.push((ticket, GroupAnswer::OffsetsDeleted(Err(why))));
            return;
        }
        let answers: Vec<Result<(), GroupRefusal>> = topics
            .iter()
            .map(|(name, id, _)| {
                let reads = in_use.is_some_and(|members| members.subscribes(name));
                let also = consumers.is_some_and(|members| members.subscribes(name, *id));
                if reads || also { Err(GroupRefusal::SubscribedToTopic) } else { Ok(()) }
            })
            .collect();
        let allowed = topics.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        let partitions: Vec<(Uuid, u32)> =
            allowed.flat_map(|((_, id, partitions), _)| partitions.iter().map(|partition| (*id, *partition))).collect();
        if partitions.is_empty() {
            out.answers.push((ticket, GroupAnswer::OffsetsDeleted(Ok(answers))));
        } else if partitions.len() * 24 > limits::GROUP_COMMAND_BYTES_MAX {
            out.answers.push((ticket, GroupAnswer::OffsetsDeleted(Err(GroupRefusal::InvalidRequest))));
        } else {
            let under_way = UnderWay::DeleteOffsets { ticket, answers };
            self.propose(under_way, Command::DeleteOffsets { group, partitions }, out);
        }
    }

    /// Offsets that are older than the retention, of groups that have had no members for as long. Of a group that had
    /// no members since the start it is not known when the last one went: the start counts.
    pub(super) fn expire(&mut self, now: Mono, wall: WallMs, state: &State, out: &mut GroupOut) {
        let retention = self.settings.retention;
        let before_ms = wall.0.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX));
        let mut expired = Vec::new();
        for (name, offsets) in state.offsets().groups() {
            if self.consumers.get(name).is_some_and(|group| !group.members.is_empty()) {
                continue;
            }
            let quiet_since = match self.groups.get(name) {
                None if self.consumers.contains_key(name) => self.consumers[name].empty_since,
                Some(group) if group.state != GroupState::Empty || !group.pending.is_empty() => continue,
                Some(group) => group.empty_since,
                None => self.started,
            };
            if now.since(quiet_since) >= retention && offsets.oldest_ms().is_some_and(|oldest| oldest < before_ms) {
                expired.push(name.to_owned());
            }
        }
        for group in expired.into_iter().take(limits::GROUPS_DELETED_AT_ONCE_MAX) {
            self.propose(UnderWay::Expire, Command::ExpireOffsets { group, before_ms }, out);
        }
    }
}

/// Would one of these offsets be remembered beside those that are there?
fn is_new(commit: &Commit, state: &State) -> bool {
    let Some(known) = state.offsets().group(&commit.group) else { return true };
    let mut all = commit.topics.iter().flat_map(|t| t.partitions.iter().map(|p| (t.topic, p.partition)));
    all.any(|(topic, partition)| known.get(topic, partition).is_none())
}

/// Whether this has the form of the member ids that brokers give out: a name, and a random UUID.
fn was_given_out(member: &str) -> bool {
    let tail = member.len().checked_sub(36).and_then(|at| member.get(at..));
    tail.is_some_and(|tail| Uuid::try_parse(tail).is_ok())
}

/// What the command takes in the log, about (and never less).
fn commit_bytes(commit: &Commit) -> usize {
    let topic = |topic: &crate::command::TopicOffsets| {
        topic.partitions.iter().map(|partition| 30 + partition.metadata.len()).sum::<usize>() + 24
    };
    commit.group.len() + commit.topics.iter().map(topic).sum::<usize>() + 32
}
