//! The judgement on who has a partition of a group, and on who commits.
//!
//! What a coordinator knew and when is in no history; what its members were told, and when they asked, is. Where the
//! broker assigns, a member that has a partition, asks, and is answered as a member, had that partition at the
//! coordinator's from when it took it until it asked: it had not said yet that it gives it up, and was not out. Two
//! members can not have done so at one moment. A member of which nothing more is heard may be out without knowing it,
//! and what it believes to have says nothing.
//!
//! In the classic protocol a member that was left behind goes on reading until it hears of it, so there only members of
//! one generation are compared. Generations of different leaders, and coordinators that know nothing of each other,
//! have nothing to do with each other ([`Assignor`]).
//!
//! A commit is judged by when it was sent: what was under way when its member was told something else may still count.

use crate::anomaly::{Anomaly, Found};
use crate::history::{Assigned, Assignor, CommitOffset, Event, Lost, Op, Outcome, Partition, Revoked};
use std::collections::BTreeMap;

/// A partition that a member has.
#[derive(Clone, Copy)]
struct Taken {
    from_ns: u64,
    /// When it asked last, of what it was answered to as a member.
    known_to_ns: Option<u64>,
}

/// A member, as far as the history is read.
struct Member<'a> {
    generation: i32,
    assignor: &'a Assignor,
    has: BTreeMap<&'a Partition, Taken>,
}

/// A stretch of time in which a member had a partition for certain.
#[derive(Clone, Copy)]
struct Held<'a> {
    from_ns: u64,
    to_ns: u64,
    member: &'a str,
    generation: i32,
}

/// Of one group, coordinator and partition.
type Of<'a> = (&'a str, &'a str, &'a Partition);

#[derive(Default)]
struct Groups<'a> {
    /// By group and member id.
    members: BTreeMap<(&'a str, &'a str), Member<'a>>,
    held: BTreeMap<Of<'a>, Vec<Held<'a>>>,
    /// Whom the leader of a generation gave a partition: by group, leader, generation and partition.
    given: BTreeMap<(&'a str, &'a str, i32, &'a Partition), &'a str>,
    /// Generations of members that are over, and since when the member knows.
    over: BTreeMap<(&'a str, &'a str, i32), u64>,
}

/// No partition is two members' at once, and nothing is committed in a generation that is over for its member.
pub(crate) fn check_groups(history: &[Event], found: &mut Found) {
    let mut groups = Groups::default();
    for event in history {
        let at_ns = event.completed_ns;
        match &event.op {
            Op::Assigned(assigned) => groups.assigned(assigned, at_ns, found),
            Op::Stays(stays) => groups.stays(&stays.group, &stays.member, event.invoked_ns),
            Op::Revoked(revoked) => groups.revoked(revoked),
            Op::Lost(lost) => groups.lost(lost, at_ns),
            Op::CommitOffset(commit) => groups.committed(commit, event, found),
            Op::Produce(_) | Op::Read(_) | Op::ListOffset(_) | Op::FetchOffset(_) | Op::Trim(_) | Op::Final(_) => {}
            Op::EpochStart(_) | Op::EpochEnd(_) => {}
        }
    }
    let left: Vec<(&str, &str)> = groups.members.keys().copied().collect();
    for (group, member) in left {
        groups.ends(group, member);
    }
    for (of, held) in groups.held {
        check_held(of, held, found);
    }
}

impl<'a> Groups<'a> {
    fn assigned(&mut self, assigned: &'a Assigned, at_ns: u64, found: &mut Found) {
        let Assigned { group, member, generation, assignor, partitions } = assigned;
        let key = (group.as_str(), member.as_str());
        let before = self.members.get(&key).map(|known| (known.generation, known.assignor));
        if let Some((before, other)) = before {
            if before != *generation {
                self.over.entry((key.0, key.1, before)).or_insert(at_ns);
            }
            if other != assignor {
                self.ends(key.0, key.1);
            }
        }
        self.over.remove(&(key.0, key.1, *generation));
        if let Assignor::Leader(leader) = assignor {
            for partition in partitions {
                let of = (key.0, leader.as_str(), *generation, partition);
                let first = *self.given.entry(of).or_insert(key.1);
                if first != key.1 {
                    let members = (first.to_owned(), member.clone());
                    found.push(owned_twice(key.0, partition, *generation, members, at_ns));
                }
            }
        }
        let gone: Vec<&'a Partition> = match self.members.get(&key) {
            Some(known) => known.has.keys().copied().filter(|partition| !partitions.contains(*partition)).collect(),
            None => Vec::new(),
        };
        for partition in gone {
            self.gives_up(key, partition);
        }
        let fresh = Member { generation: *generation, assignor, has: BTreeMap::new() };
        let known = self.members.entry(key).or_insert(fresh);
        (known.generation, known.assignor) = (*generation, assignor);
        for partition in partitions {
            known.has.entry(partition).or_insert(Taken { from_ns: at_ns, known_to_ns: None });
        }
    }

    fn stays(&mut self, group: &'a str, member: &'a str, asked_ns: u64) {
        let Some(known) = self.members.get_mut(&(group, member)) else { return };
        for taken in known.has.values_mut().filter(|taken| taken.from_ns <= asked_ns) {
            taken.known_to_ns = Some(taken.known_to_ns.map_or(asked_ns, |before| before.max(asked_ns)));
        }
    }

    fn revoked(&mut self, revoked: &'a Revoked) {
        for partition in &revoked.partitions {
            self.gives_up((revoked.group.as_str(), revoked.member.as_str()), partition);
        }
    }

    fn lost(&mut self, lost: &'a Lost, at_ns: u64) {
        let (group, member) = (lost.group.as_str(), lost.member.as_str());
        self.ends(group, member);
        if lost.fenced {
            self.over.entry((group, member, lost.generation)).or_insert(at_ns);
        }
    }

    fn committed(&mut self, commit: &'a CommitOffset, event: &Event, found: &mut Found) {
        let Some(by) = commit.by.as_ref().filter(|_| commit.outcome == Outcome::Acked) else { return };
        let over = self.over.get(&(commit.group.as_str(), by.member.as_str(), by.generation));
        if over.is_some_and(|since_ns| *since_ns < event.invoked_ns) {
            found.push(Anomaly::FencedCommit {
                group: commit.group.clone(),
                partition: commit.partition.clone(),
                member: by.member.clone(),
                generation: by.generation,
                at_ns: event.completed_ns,
                offset: commit.offset,
            });
        }
    }

    /// All that the member has ends.
    fn ends(&mut self, group: &'a str, member: &'a str) {
        let partitions: Vec<&'a Partition> = match self.members.get(&(group, member)) {
            Some(known) => known.has.keys().copied().collect(),
            None => return,
        };
        for partition in partitions {
            self.gives_up((group, member), partition);
        }
    }

    /// The member does not have the partition any more: until when it had it for certain is kept.
    fn gives_up(&mut self, (group, member): (&'a str, &'a str), partition: &Partition) {
        let Some(known) = self.members.get_mut(&(group, member)) else { return };
        let Some((partition, taken)) = known.has.remove_entry(partition) else { return };
        let assignor: &'a Assignor = known.assignor;
        let Assignor::Coordinator(coordinator) = assignor else { return };
        let Some(to_ns) = taken.known_to_ns else { return };
        let held = Held { from_ns: taken.from_ns, to_ns, member, generation: known.generation };
        self.held.entry((group, coordinator.as_str(), partition)).or_default().push(held);
    }
}

/// Stretches of one member do not overlap by themselves.
fn check_held((group, _, partition): Of<'_>, mut held: Vec<Held<'_>>, found: &mut Found) {
    held.sort_by_key(|held| (held.from_ns, held.to_ns));
    let mut last: Option<Held<'_>> = None;
    for one in held {
        if let Some(before) = last
            && before.member != one.member
            && one.from_ns < before.to_ns
        {
            let members = (before.member.to_owned(), one.member.to_owned());
            found.push(owned_twice(group, partition, one.generation, members, one.from_ns));
        }
        if last.is_none_or(|before| before.to_ns < one.to_ns) {
            last = Some(one);
        }
    }
}

fn owned_twice(group: &str, partition: &Partition, generation: i32, members: (String, String), at_ns: u64) -> Anomaly {
    Anomaly::OwnedTwice { group: group.to_owned(), partition: partition.clone(), generation, members, at_ns }
}
