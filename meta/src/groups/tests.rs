//! The coordinator alone: time is a number, and the log decides at once or when the test lets it.

use super::*;
use crate::command::{Command, Done, PartitionOffset, Refused, TopicOffsets};
use crate::state::State;
use bytes::Bytes;
use camus_engine::shard::api::Ticket;
use camus_engine::types::{CoreId, Index, Mono, ShardId, Term, WallMs};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uuid::Uuid;

const TOPIC: Uuid = Uuid::from_u128(7);

/// A coordinator, its state, and everything that was answered.
struct World {
    coordinator: Coordinator,
    state: State,
    now: Mono,
    wall: WallMs,
    out: GroupOut,
    tickets: u64,
    names: u64,
    answers: BTreeMap<u64, GroupAnswer>,
    /// All generations that anybody was told of, in order.
    told: Vec<Joined>,
    /// Commands are decided when the test says so.
    held: bool,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn settings(delay: u64) -> GroupSettings {
    GroupSettings { initial_delay: ms(delay), ..GroupSettings::default() }
}

fn name(id: &str) -> MemberName {
    MemberName { id: id.to_owned(), instance: None }
}

fn fixed(id: &str, instance: &str) -> MemberName {
    MemberName { id: id.to_owned(), instance: Some(instance.to_owned()) }
}

fn protocols(names: &[&str]) -> Vec<(String, Bytes)> {
    names.iter().map(|n| ((*n).to_owned(), Bytes::copy_from_slice(format!("says {n}").as_bytes()))).collect()
}

impl World {
    fn new(settings: GroupSettings) -> World {
        let mut state = State::new(vec![ShardId(1)]);
        let create = Command::CreateTopic {
            name: "t".to_owned(),
            id: TOPIC,
            partitions: 4,
            replication_factor: 1,
            configs: BTreeMap::new(),
        };
        state.apply(Index(1), &create).unwrap();
        World {
            coordinator: Coordinator::new(settings, Mono(1)),
            state,
            now: Mono(1),
            wall: WallMs(1_000_000),
            out: GroupOut::default(),
            tickets: 0,
            names: 0,
            answers: BTreeMap::new(),
            told: Vec::new(),
            held: false,
        }
    }

    fn start(&mut self, ask: GroupAsk) -> u64 {
        self.tickets += 1;
        let ticket = Ticket { core: CoreId(0), request: self.tickets, part: 0 };
        self.coordinator.ask(self.now, ticket, ask, &self.state, &mut self.out);
        self.settle();
        self.tickets
    }

    fn settle(&mut self) {
        while !self.held && !self.out.commands.is_empty() {
            for (token, command) in std::mem::take(&mut self.out.commands) {
                let decided = self.state.apply(Index(self.state.applied().0 + 1), &command);
                self.coordinator.decided(token, decided, &mut self.out);
            }
        }
        for (ticket, answer) in self.out.answers.drain(..) {
            assert!(ticket.request <= self.tickets, "{ticket:?} was never asked");
            if let GroupAnswer::Joined(Ok(joined)) = &answer {
                self.told.push(joined.clone());
            }
            assert!(self.answers.insert(ticket.request, answer).is_none(), "{ticket:?} was answered twice");
        }
    }

    fn now_answered(&mut self, ask: GroupAsk) -> GroupAnswer {
        let ticket = self.start(ask);
        self.answers.get(&ticket).cloned().expect("answered at once")
    }

    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        while self.coordinator.next_deadline() <= end {
            let at = self.coordinator.next_deadline().max(self.now);
            self.wall = WallMs(self.wall.0 + at.since(self.now).as_millis() as i64);
            self.now = at;
            self.coordinator.tick(self.now, self.wall, &self.state, &mut self.out);
            self.settle();
            assert!(self.coordinator.next_deadline() > at, "a deadline that never ends");
        }
        self.wall = WallMs(self.wall.0 + end.since(self.now).as_millis() as i64);
        self.now = end;
    }

    fn joining(&mut self, member: MemberName, protocols: Vec<(String, Bytes)>) -> Join {
        self.names += 1;
        Join {
            group: "g".to_owned(),
            fresh: format!("m{}", self.names),
            member,
            id_required: false,
            may_skip_assignment: true,
            client_id: "client".to_owned(),
            client_host: "/192.0.2.1".to_owned(),
            session_timeout: ms(10_000),
            rebalance_timeout: ms(20_000),
            protocol_type: "consumer".to_owned(),
            protocols,
        }
    }

    fn join(&mut self, member: MemberName) -> u64 {
        let join = self.joining(member, protocols(&["range"]));
        self.start(GroupAsk::Join(Box::new(join)))
    }

    fn joined(&self, ticket: u64) -> Result<Joined, GroupRefusal> {
        match self.answers.get(&ticket) {
            Some(GroupAnswer::Joined(joined)) => joined.clone().map_err(|(why, _)| why),
            other => panic!("{ticket}: {other:?}"),
        }
    }

    fn sync_as(&mut self, member: MemberName, generation: i32, assignments: &[(&str, &str)]) -> u64 {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        let assignments = assignments.iter().map(|(id, what)| ((*id).to_owned(), bytes(what))).collect();
        let (group, protocol_type, protocol) = ("g".to_owned(), Some("consumer".to_owned()), None);
        self.start(GroupAsk::Sync(Sync { group, generation, member, protocol_type, protocol, assignments }))
    }

    fn synced(&self, ticket: u64) -> Result<Bytes, GroupRefusal> {
        match self.answers.get(&ticket) {
            Some(GroupAnswer::Synced(synced)) => synced.clone().map(|synced| synced.assignment),
            other => panic!("{ticket}: {other:?}"),
        }
    }

    fn beat(&mut self, member: MemberName, generation: i32) -> Result<(), GroupRefusal> {
        match self.now_answered(GroupAsk::Heartbeat { group: "g".to_owned(), generation, member }) {
            GroupAnswer::Heartbeat(heard) => heard,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, member: MemberName) -> Result<(), GroupRefusal> {
        match self.now_answered(GroupAsk::Leave { group: "g".to_owned(), members: vec![Leaver { member }] }) {
            GroupAnswer::Left(Ok(left)) => left[0],
            other => panic!("{other:?}"),
        }
    }

    fn commit_ask(&self, member: MemberName, generation: i32, offset: i64) -> GroupAsk {
        let offset = PartitionOffset { partition: 0, offset, leader_epoch: -1, metadata: String::new() };
        GroupAsk::Commit(Commit {
            group: "g".to_owned(),
            generation,
            member,
            knows_not_found: true,
            at_ms: self.wall.0,
            topics: vec![TopicOffsets { topic: TOPIC, partitions: vec![offset] }],
        })
    }

    fn commit(&mut self, member: MemberName, generation: i32, offset: i64) -> Result<(), GroupRefusal> {
        let ask = self.commit_ask(member, generation, offset);
        match self.now_answered(ask) {
            GroupAnswer::Committed(committed) => committed.map(|gone| assert!(gone.is_empty())),
            other => panic!("{other:?}"),
        }
    }

    fn committed(&mut self) -> Option<i64> {
        let topics = Some(vec![(TOPIC, vec![0])]);
        let groups = vec![FetchGroup { group: "g".to_owned(), member: None, epoch: -1, topics }];
        match self.now_answered(GroupAsk::Fetch { groups }) {
            GroupAnswer::Fetched(fetched) => {
                let fetched = fetched[0].as_ref().expect("it may be fetched");
                fetched.topics[0].partitions[0].committed.as_ref().map(|c| c.offset)
            }
            other => panic!("{other:?}"),
        }
    }

    fn described(&mut self) -> Option<Described> {
        match self.now_answered(GroupAsk::Describe { groups: vec!["g".to_owned()] }) {
            GroupAnswer::Described(mut described) => described.remove(0).ok(),
            other => panic!("{other:?}"),
        }
    }

    /// Two members of one stable generation, the leader first.
    fn pair(&mut self) -> (String, String, i32) {
        let one = self.join(name(""));
        let two = self.join(name(""));
        self.passes(ms(6000));
        let (one, two) = (self.joined(one).unwrap(), self.joined(two).unwrap());
        assert_eq!((&one.leader, one.generation), (&one.member, two.generation));
        let (leader, follower) = (one.member, two.member);
        let waits = self.sync_as(name(&follower), two.generation, &[]);
        let led = self.sync_as(name(&leader), one.generation, &[(&leader, "L"), (&follower, "F")]);
        assert_eq!((self.synced(led).unwrap(), self.synced(waits).unwrap()), ("L".into(), "F".into()));
        (leader, follower, one.generation)
    }
}

/// A consumer would start with partitions that are taken from it a moment later, once for each further member.
#[test]
fn the_first_generation_waits_for_more_members_but_not_for_ever() {
    let mut world = World::new(settings(3000));
    let mut tickets = vec![world.join(name(""))];
    for _ in 0..20 {
        world.passes(ms(2000));
        tickets.push(world.join(name("")));
    }
    let first = world.joined(tickets[0]).expect("the rebalance timeout of 20 s is over");
    assert_eq!(first.generation, 1);
    assert!((7..=11).contains(&first.members.len()), "{}", first.members.len());
}

/// A group that is alone would pay the delay though nobody else is to come, where the operator switched it off.
#[test]
fn without_the_delay_a_generation_begins_at_once() {
    let mut world = World::new(settings(0));
    let ticket = world.join(name(""));
    assert_eq!(world.joined(ticket).map(|joined| joined.generation), Ok(1));
}

/// A partition would have two readers, or none: the leader's word reaches each member, and nobody else.
#[test]
fn each_member_gets_what_the_leader_gave_it() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    assert_eq!(world.beat(name(&leader), generation), Ok(()));
    let described = world.described().unwrap();
    let got: BTreeMap<_, _> = described.members.iter().map(|m| (m.id.clone(), m.assignment.clone())).collect();
    assert_eq!(got, BTreeMap::from([(leader, "L".into()), (follower, "F".into())]));
}

/// A member that died would keep its partitions for ever.
#[test]
fn a_silent_member_is_out_after_its_session_and_its_partitions_go_to_the_others() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    for _ in 0..2 {
        world.passes(ms(4000));
        assert_eq!(world.beat(name(&leader), generation), Ok(()));
    }
    world.passes(ms(3000));
    assert_eq!(world.beat(name(&leader), generation), Err(GroupRefusal::RebalanceInProgress));
    let again = world.join(name(&leader));
    let joined = world.joined(again).expect("nobody else is left to wait for");
    assert_eq!((joined.generation, joined.members.len()), (generation + 1, 1));
    assert_eq!(world.beat(name(&follower), generation), Err(GroupRefusal::UnknownMember));
}

/// A member that hangs in its application would stop the whole group.
#[test]
fn who_does_not_rejoin_within_the_rebalance_timeout_is_out() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    let new = world.join(name(""));
    for _ in 0..5 {
        world.passes(ms(4000));
        let _ = world.beat(name(&leader), generation);
        let _ = world.beat(name(&follower), generation);
    }
    assert_eq!(world.joined(new).map(|joined| joined.members.len()), Ok(1));
    assert_eq!(world.beat(name(&leader), generation), Err(GroupRefusal::UnknownMember));
}

/// The followers of a leader that dies before it has assigned would wait for ever.
#[test]
fn a_leader_that_never_assigns_is_out_and_its_followers_join_again() {
    let mut world = World::new(settings(0));
    let (leader, follower, generation) = {
        let one = world.join(name(""));
        let one = world.joined(one).unwrap();
        let two = world.join(name(""));
        let again = world.join(name(&one.member));
        assert_eq!(world.joined(again).unwrap().generation, 2);
        (one.member, world.joined(two).unwrap().member, 2)
    };
    let waits = world.sync_as(name(&follower), generation, &[]);
    world.passes(ms(11_000));
    assert_eq!(world.synced(waits), Err(GroupRefusal::RebalanceInProgress));
    assert_eq!(world.beat(name(&leader), generation), Err(GroupRefusal::UnknownMember));
    let again = world.join(name(&follower));
    assert_eq!(world.joined(again).unwrap().leader, follower);
}

/// A member that takes no assignment reads nothing, and its partitions are read by nobody.
#[test]
fn who_never_takes_its_assignment_is_out() {
    let mut world = World::new(settings(0));
    let ticket = world.join(name(""));
    let member = world.joined(ticket).unwrap().member;
    for _ in 0..7 {
        world.passes(ms(3000));
        let _ = world.beat(name(&member), 1);
    }
    assert_eq!(world.described().unwrap().state, GroupState::Empty);
}

/// Members that were given an id and never came back would hold up every generation.
#[test]
fn an_id_that_nobody_comes_back_with_holds_up_nobody_for_longer_than_its_session() {
    let mut world = World::new(settings(0));
    let ticket = world.join(name(""));
    let member = world.joined(ticket).unwrap().member;
    world.sync_as(name(&member), 1, &[]);
    let mut join = world.joining(name(""), protocols(&["range"]));
    join.id_required = true;
    match world.now_answered(GroupAsk::Join(Box::new(join))) {
        GroupAnswer::Joined(Err((GroupRefusal::MemberIdRequired, id))) => assert!(!id.is_empty()),
        other => panic!("{other:?}"),
    }
    let again = world.join(name(&member));
    assert!(!world.answers.contains_key(&again), "it waits for the one that was announced");
    world.passes(ms(10_001));
    assert_eq!(world.joined(again).map(|joined| joined.generation), Ok(2));
}

/// A retry whose first answer was lost would start rebalance after rebalance.
#[test]
fn a_join_that_is_repeated_unchanged_gets_the_same_generation() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    let again = world.join(name(&follower));
    assert_eq!(world.joined(again).map(|joined| joined.generation), Ok(generation));
    let again = world.sync_as(name(&follower), generation, &[]);
    assert_eq!(world.synced(again), Ok("F".into()));
    assert_eq!(world.beat(name(&leader), generation), Ok(()));
}

/// A request whose answer never comes blocks its connection for ever.
#[test]
fn a_join_that_is_repeated_while_it_waits_takes_the_place_of_the_first() {
    let mut world = World::new(settings(3000));
    let (leader, _, generation) = world.pair();
    let first = world.join(name(&leader));
    let second = world.join(name(&leader));
    assert_eq!(world.joined(first), Err(GroupRefusal::RebalanceInProgress));
    world.passes(ms(20_000));
    assert_eq!(world.joined(second).map(|joined| joined.generation), Ok(generation + 1));
}

/// Members would read partitions by two strategies at once.
#[test]
fn the_protocol_of_a_generation_is_one_that_all_members_speak() {
    let mut world = World::new(settings(3000));
    let asks = [protocols(&["x", "y"]), protocols(&["y", "z"]), protocols(&["z", "x"]), protocols(&["x", "y", "z"])];
    let tickets: Vec<u64> = asks
        .into_iter()
        .map(|protocols| {
            let join = world.joining(name(""), protocols);
            world.start(GroupAsk::Join(Box::new(join)))
        })
        .collect();
    assert_eq!(world.joined(tickets[2]), Err(GroupRefusal::InconsistentProtocol));
    let mut other = world.joining(name(""), protocols(&["y"]));
    other.protocol_type = "connect".to_owned();
    let other = world.start(GroupAsk::Join(Box::new(other)));
    assert_eq!(world.joined(other), Err(GroupRefusal::InconsistentProtocol));
    world.passes(ms(20_000));
    for ticket in [tickets[0], tickets[1], tickets[3]] {
        assert_eq!(world.joined(ticket).unwrap().protocol, "y");
    }
    assert_eq!(world.joined(tickets[0]).unwrap().members[0].metadata, Bytes::from("says y"));
}

/// A consumer that restarts within its session would make all others stop reading; or two with one instance id would
/// both read.
#[test]
fn a_static_member_returns_to_its_assignment_and_fences_whoever_had_it() {
    let mut world = World::new(settings(0));
    let ticket = world.join(fixed("", "i"));
    let old = world.joined(ticket).unwrap().member;
    let ticket = world.sync_as(fixed(&old, "i"), 1, &[(&old, "kept")]);
    assert_eq!(world.synced(ticket), Ok("kept".into()));
    let ticket = world.join(fixed("", "i"));
    let back = world.joined(ticket).unwrap();
    assert_eq!((back.generation, back.skip_assignment, back.members.len()), (1, true, 1));
    assert!(back.member != old && back.leader == back.member);
    let fenced = Err(GroupRefusal::FencedInstance);
    assert_eq!(world.beat(fixed(&old, "i"), 1), fenced);
    assert_eq!(world.commit(fixed(&old, "i"), 1, 5), fenced);
    let ticket = world.sync_as(fixed(&back.member, "i"), 1, &[]);
    assert_eq!(world.synced(ticket), Ok("kept".into()));
    assert_eq!(world.commit(fixed(&back.member, "i"), 1, 5), Ok(()));
    assert_eq!(world.leave(fixed("", "i")), Ok(()));
    assert_eq!(world.described().unwrap().state, GroupState::Empty);
}

/// Two members of one client would hold core 0 for ever: a wait of no time for a member that does not come is over at
/// once, again and again.
#[test]
fn static_members_that_need_no_time_to_come_are_not_looked_at_without_end() {
    let mut world = World::new(settings(3000));
    let mut join = |instance: &str, rebalance_timeout: Duration| {
        let join = Join { rebalance_timeout, ..world.joining(fixed("", instance), protocols(&["range"])) };
        world.start(GroupAsk::Join(Box::new(join)))
    };
    let (a, b) = (join("a", ms(300_000)), join("b", ms(0)));
    world.passes(ms(6000));
    let (a, b) = (world.joined(a).unwrap(), world.joined(b).unwrap());
    let given = [(a.member.as_str(), "x"), (b.member.as_str(), "y")];
    for (joined, instance) in [(&a, "a"), (&b, "b")] {
        let assignments = if joined.leader == joined.member { &given[..] } else { &[] };
        world.sync_as(fixed(&joined.member, instance), joined.generation, assignments);
    }
    assert_eq!(world.described().unwrap().state, GroupState::Stable);
    assert_eq!(world.leave(fixed(&a.member, "a")), Ok(()));
    world.passes(ms(5000));
    assert_eq!(world.described().unwrap().members.len(), 1, "its session is not over");
    world.passes(ms(20_000));
    assert_eq!(world.described().unwrap().state, GroupState::Empty, "it never came");
}

/// Names of groups that come and go would be all that there can be, and no new group could begin for a week.
#[test]
fn a_new_group_takes_the_place_of_the_one_that_is_empty_for_the_longest_time() {
    let mut world = World::new(settings(0));
    let mut visit = |group: String, stays: bool| {
        let join = Join { group: group.clone(), ..world.joining(name(""), protocols(&["range"])) };
        let ticket = world.start(GroupAsk::Join(Box::new(join)));
        let member = world.joined(ticket)?.member;
        world.passes(ms(1));
        if !stays {
            let members = vec![Leaver { member: name(&member) }];
            assert!(matches!(world.now_answered(GroupAsk::Leave { group, members }), GroupAnswer::Left(Ok(_))));
        }
        Ok::<usize, GroupRefusal>(world.coordinator.groups.len())
    };
    assert_eq!(visit("stays".to_owned(), true), Ok(1));
    for n in 1..crate::limits::GROUPS_MAX {
        assert!(visit(format!("g{n}"), false).is_ok());
    }
    assert_eq!(visit("one more".to_owned(), true), Ok(crate::limits::GROUPS_MAX));
    assert!(!world.coordinator.groups.contains_key("g1") && world.coordinator.groups.contains_key("g2"));
    assert!(world.coordinator.groups.contains_key("stays"));
}

/// A client from before KIP-814 that hears that it leads assigns anew, from members that it was not told of.
#[test]
fn an_older_static_leader_is_not_told_that_it_leads() {
    let mut world = World::new(settings(0));
    let ticket = world.join(fixed("", "i"));
    let old = world.joined(ticket).unwrap().member;
    world.sync_as(fixed(&old, "i"), 1, &[(&old, "kept")]);
    let mut join = world.joining(fixed("", "i"), protocols(&["range"]));
    join.may_skip_assignment = false;
    let ticket = world.start(GroupAsk::Join(Box::new(join)));
    let back = world.joined(ticket).unwrap();
    assert_eq!((back.leader, back.skip_assignment, back.members.len()), (old, false, 0));
}

/// One client could fill the memory of the broker with members.
#[test]
fn a_full_group_takes_nobody_else_and_keeps_its_members() {
    let mut world = World::new(GroupSettings { members_max: 2, ..settings(3000) });
    let (leader, _, generation) = world.pair();
    let third = world.join(name(""));
    assert_eq!(world.joined(third), Err(GroupRefusal::GroupFull));
    assert_eq!(world.beat(name(&leader), generation), Ok(()));
    let mut large = world.joining(name(""), vec![("x".to_owned(), vec![0; crate::limits::MEMBER_BYTES_MAX].into())]);
    large.group = "other".to_owned();
    let large = world.start(GroupAsk::Join(Box::new(large)));
    assert_eq!(world.joined(large), Err(GroupRefusal::InvalidRequest));
}

/// Groups without end could fill the memory of the broker with offsets; those that are there must not stop for them.
#[test]
fn at_the_memory_budget_new_members_and_offsets_are_refused_and_known_ones_go_on() {
    let mut world = World::new(GroupSettings { offsets_bytes_max: 100, ..settings(3000) });
    let (leader, _, generation) = world.pair();
    assert_eq!(world.commit(name(&leader), generation, 10), Ok(()));
    assert!(world.state.offsets().memory_bytes() > 100);
    assert_eq!(world.commit(name(&leader), generation, 11), Ok(()), "it is known");
    let GroupAsk::Commit(commit) = world.commit_ask(name(""), -1, 5) else { panic!("it is a commit") };
    let other = GroupAsk::Commit(Commit { group: "other".to_owned(), ..commit });
    assert_eq!(world.now_answered(other), GroupAnswer::Committed(Err(GroupRefusal::CommitTooLarge)));
    let mut world = World::new(GroupSettings { members_bytes_max: 3000, ..settings(3000) });
    let first = world.join(name(""));
    world.passes(ms(10_000));
    assert!(world.joined(first).is_ok());
    let second = world.join(name(""));
    assert_eq!(world.joined(second), Err(GroupRefusal::Busy));
}

/// A member that was replaced would move the group's offsets over those of its successor.
#[test]
fn only_the_members_of_the_generation_commit() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    assert_eq!(world.commit(name(&leader), generation, 10), Ok(()));
    assert_eq!(world.commit(name(&leader), generation - 1, 4), Err(GroupRefusal::IllegalGeneration));
    assert_eq!(world.commit(name(""), -1, 4), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.leave(name(&follower)), Ok(()));
    assert_eq!(world.commit(name(&follower), generation, 4), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.commit(name(&leader), generation, 11), Ok(()), "before it joins again it may commit what it read");
    let again = world.join(name(&leader));
    let joined = world.joined(again).unwrap();
    assert_eq!(world.commit(name(&leader), joined.generation, 4), Err(GroupRefusal::RebalanceInProgress));
    assert_eq!(world.committed(), Some(11));
}

/// A consumer whose broker restarted would give up (GROUP_ID_NOT_FOUND) where it has only to join again.
#[test]
fn a_member_of_before_a_restart_is_unknown_whether_or_not_its_group_has_committed() {
    let mut world = World::new(settings(0));
    let given = name("client-0b2f1f2e-8c5c-4a3e-9d0e-0123456789ab");
    assert_eq!(world.commit(given.clone(), 3, 5), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.commit(name("x"), 3, 5), Err(GroupRefusal::GroupNotFound));
    assert_eq!(world.commit(name(""), -1, 5), Ok(()));
    for member in [given, name("x")] {
        assert_eq!(world.commit(member.clone(), 3, 6), Err(GroupRefusal::UnknownMember));
        assert_eq!(world.beat(member, 3), Err(GroupRefusal::UnknownMember));
    }
    assert_eq!(world.committed(), Some(5));
}

/// A member would wait for an answer that no broker owes it any more, or a coordinator of later would believe in
/// members that have been with another one meanwhile.
#[test]
fn when_another_broker_coordinates_whoever_waits_is_told_and_members_are_forgotten() {
    let mut world = World::new(settings(3000));
    let (leader, follower, generation) = world.pair();
    assert_eq!(world.commit(name(&leader), generation, 5), Ok(()));
    let joining = world.join(name(""));
    world.coordinator.step_down(&mut world.out);
    world.settle();
    assert_eq!(world.joined(joining), Err(GroupRefusal::NotCoordinator));
    world.coordinator.take_over(world.now, Term(2));
    for member in [leader, follower] {
        assert_eq!(world.beat(name(&member), generation), Err(GroupRefusal::UnknownMember));
    }
    assert_eq!(world.committed(), Some(5), "what was committed is in the log");
    let again = world.join(name(""));
    world.passes(ms(6000));
    assert_eq!(world.joined(again).map(|joined| joined.members.len()), Ok(1));
    world.passes(ms(60_000));
}

/// Each question has an answer of its own shape: another one would end the broker.
#[test]
fn a_broker_that_coordinates_nothing_refuses_each_question_in_its_shape() {
    let mut world = World::new(settings(0));
    let why = GroupRefusal::NotCoordinator;
    let join = GroupAsk::Join(Box::new(world.joining(name("m"), protocols(&["range"]))));
    assert_eq!(join.refused(why), GroupAnswer::Joined(Err((why, "m".to_owned()))));
    assert_eq!(world.commit_ask(name("m"), 1, 5).refused(why), GroupAnswer::Committed(Err(why)));
    let groups = vec!["g".to_owned(), "h".to_owned()];
    let deleted = GroupAsk::DeleteGroups { groups: groups.clone() }.refused(why);
    assert_eq!(deleted, GroupAnswer::GroupsDeleted(vec![Err(why), Err(why)]));
    assert_eq!(GroupAsk::Describe { groups }.refused(why), GroupAnswer::Refused(why));
    assert_eq!(GroupAsk::List.refused(why), GroupAnswer::Listed(Vec::new()));
}

/// A commit that was answered before it is in the log is lost with the power.
#[test]
fn a_commit_is_answered_when_it_is_decided_and_as_it_was_decided() {
    let mut world = World::new(settings(0));
    world.held = true;
    let ask = world.commit_ask(name(""), -1, 5);
    let (good, bad) = (world.start(ask.clone()), world.start(ask));
    assert!(world.answers.is_empty());
    let [first, second] = <[_; 2]>::try_from(std::mem::take(&mut world.out.commands)).unwrap();
    world.coordinator.decided(second.0, Err(Refused::Unavailable { why: "no room".to_owned() }), &mut world.out);
    world.coordinator.decided(first.0, Ok(Done::OffsetsCommitted { gone: vec![TOPIC] }), &mut world.out);
    world.settle();
    assert_eq!(world.answers[&bad], GroupAnswer::Committed(Err(GroupRefusal::Busy)));
    assert_eq!(world.answers[&good], GroupAnswer::Committed(Ok(vec![TOPIC])));
}

/// A group's place in its topics would be lost while it is in use, or kept for ever when nobody needs it.
#[test]
fn offsets_expire_only_of_groups_without_members_and_never_sooner_than_the_retention() {
    let retention = Duration::from_secs(3600);
    let mut world = World::new(GroupSettings { retention, ..settings(0) });
    let ticket = world.join(name(""));
    let member = world.joined(ticket).unwrap().member;
    world.sync_as(name(&member), 1, &[]);
    assert_eq!(world.commit(name(&member), 1, 5), Ok(()));
    for _ in 0..2000 {
        world.passes(ms(5000));
        assert_eq!(world.beat(name(&member), 1), Ok(()));
    }
    assert_eq!(world.committed(), Some(5), "an old commit of a member that lives stays");
    assert_eq!(world.leave(name(&member)), Ok(()));
    world.passes(retention - ms(1));
    assert_eq!(world.committed(), Some(5));
    world.passes(ms(1_300_000));
    assert_eq!(world.committed(), None);
    world.passes(ms(1_300_000));
    assert_eq!(world.described(), None, "and of the group nothing is left");
}

/// An administrator's command would take a running group's offsets away.
#[test]
fn groups_and_offsets_in_use_are_not_deleted() {
    let mut world = World::new(settings(0));
    let mut subscription = vec![0, 0, 0, 0, 0, 1, 0, 1, b't'];
    subscription.extend([255; 4]);
    let join = world.joining(name(""), vec![("range".to_owned(), subscription.into())]);
    let ticket = world.start(GroupAsk::Join(Box::new(join)));
    let member = world.joined(ticket).unwrap().member;
    world.sync_as(name(&member), 1, &[]);
    assert_eq!(world.commit(name(&member), 1, 5), Ok(()));
    let delete = GroupAsk::DeleteGroups { groups: vec!["g".to_owned(), "h".to_owned()] };
    let topics = vec![("t".to_owned(), TOPIC, vec![0]), ("u".to_owned(), Uuid::from_u128(8), vec![0])];
    let delete_offsets = GroupAsk::DeleteOffsets { group: "g".to_owned(), topics };
    let (in_use, unknown) = (Err(GroupRefusal::NonEmptyGroup), Err(GroupRefusal::GroupNotFound));
    assert_eq!(world.now_answered(delete.clone()), GroupAnswer::GroupsDeleted(vec![in_use, unknown]));
    let answers = vec![Err(GroupRefusal::SubscribedToTopic), Ok(())];
    assert_eq!(world.now_answered(delete_offsets.clone()), GroupAnswer::OffsetsDeleted(Ok(answers)));
    assert_eq!(world.committed(), Some(5));
    assert_eq!(world.leave(name(&member)), Ok(()));
    assert_eq!(world.now_answered(delete_offsets), GroupAnswer::OffsetsDeleted(Ok(vec![Ok(()), Ok(())])));
    assert_eq!(world.committed(), None);
    assert_eq!(world.now_answered(delete.clone()), GroupAnswer::GroupsDeleted(vec![Ok(()), unknown]));
    assert_eq!(world.now_answered(delete), GroupAnswer::GroupsDeleted(vec![unknown, unknown]));
}

/// A broker that is told to stop would wait for members that wait for it.
#[test]
fn when_the_broker_stops_nobody_is_left_waiting() {
    let mut world = World::new(settings(3000));
    let (leader, _, generation) = world.pair();
    let waits = world.join(name(&leader));
    world.coordinator.stop(&mut world.out);
    world.settle();
    assert_eq!(world.joined(waits), Err(GroupRefusal::Stopping));
    let late = world.join(name(""));
    assert_eq!(world.joined(late), Err(GroupRefusal::Stopping));
    assert_eq!(world.commit(name(&leader), generation, 5), Ok(()), "what was read can still be committed");
}

/// What a member of the random run knows of itself.
#[derive(Clone, Debug, Default)]
struct Client {
    id: String,
    instance: Option<String>,
    generation: i32,
    leads: Vec<String>,
    waits: Option<u64>,
}

impl Client {
    fn name(&self) -> MemberName {
        MemberName { id: self.id.clone(), instance: self.instance.clone() }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Join {
        client: usize,
        protocols: usize,
        id_required: bool,
    },
    Sync {
        client: usize,
        omits: bool,
    },
    Beat {
        client: usize,
        generation: i32,
    },
    Leave {
        client: usize,
    },
    Commit {
        client: usize,
    },
    Passes {
        ms: u64,
    },
    /// The client forgets what it waits for, as if its connection were cut.
    Cut {
        client: usize,
    },
    Forget {
        client: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..5usize;
    let step = prop_oneof![
        8 => (client(), 0..3usize, any::<bool>())
            .prop_map(|(client, protocols, id_required)| Step::Join { client, protocols, id_required }),
        8 => (client(), any::<bool>()).prop_map(|(client, omits)| Step::Sync { client, omits }),
        3 => (client(), -1..2i32).prop_map(|(client, generation)| Step::Beat { client, generation }),
        2 => client().prop_map(|client| Step::Leave { client }),
        2 => client().prop_map(|client| Step::Commit { client }),
        4 => proptest::sample::select(vec![1, 500, 4000, 11_000, 30_000]).prop_map(|ms| Step::Passes { ms }),
        1 => client().prop_map(|client| Step::Cut { client }),
        1 => client().prop_map(|client| Step::Forget { client }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Random clients, and what is known of the generations from what they were told.
struct Run {
    world: World,
    clients: Vec<Client>,
    /// What the leader of a generation sent first: member to assignment.
    assigned: BTreeMap<i32, BTreeMap<String, Bytes>>,
    commits: i64,
    committed: Option<i64>,
}

impl Run {
    fn new(statics: bool) -> Run {
        let client = |n: usize| Client { instance: (statics && n < 2).then(|| format!("i{n}")), ..Client::default() };
        Run {
            world: World::new(settings(3000)),
            clients: (0..5).map(client).collect(),
            assigned: BTreeMap::new(),
            commits: 0,
            committed: None,
        }
    }

    fn newest(&self) -> i32 {
        self.world.told.iter().map(|joined| joined.generation).max().unwrap_or(0)
    }

    fn step(&mut self, step: &Step) {
        let sets = [&["range"][..], &["range", "sticky"], &["sticky", "range"]];
        match *step {
            Step::Join { client, protocols: set, id_required } => {
                if self.clients[client].waits.is_some() {
                    return;
                }
                let mut join = self.world.joining(self.clients[client].name(), protocols(sets[set]));
                join.id_required = id_required;
                self.clients[client].waits = Some(self.world.start(GroupAsk::Join(Box::new(join))));
            }
            Step::Sync { client, omits } => {
                let it = self.clients[client].clone();
                if it.waits.is_some() || it.id.is_empty() {
                    return;
                }
                let named = it.leads.iter().skip(usize::from(omits));
                let sent: Vec<(String, String)> =
                    named.map(|id| (id.clone(), format!("{id} in {}", it.generation))).collect();
                if !it.leads.is_empty() {
                    let bytes = |what: &str| Bytes::copy_from_slice(what.as_bytes());
                    let sent = sent.iter().map(|(id, what)| (id.clone(), bytes(what))).collect();
                    self.assigned.entry(it.generation).or_insert(sent);
                }
                let sent: Vec<(&str, &str)> = sent.iter().map(|(id, what)| (id.as_str(), what.as_str())).collect();
                self.clients[client].waits = Some(self.world.sync_as(it.name(), it.generation, &sent));
            }
            Step::Beat { client, generation } => {
                let it = self.clients[client].clone();
                if self.world.beat(it.name(), it.generation + generation).is_ok() {
                    assert_eq!(it.generation + generation, self.newest(), "an old generation is still alive");
                }
            }
            Step::Leave { client } => {
                let it = self.clients[client].clone();
                if self.world.leave(it.name()).is_ok() {
                    assert_eq!(self.world.beat(it.name(), it.generation), Err(GroupRefusal::UnknownMember));
                }
            }
            Step::Commit { client } => {
                let it = self.clients[client].clone();
                self.commits += 1;
                if it.generation > 0 && self.world.commit(it.name(), it.generation, self.commits).is_ok() {
                    assert_eq!(it.generation, self.newest(), "a member of an old generation has committed");
                    self.committed = Some(self.commits);
                }
            }
            Step::Passes { ms } => self.world.passes(Duration::from_millis(ms)),
            Step::Cut { client } => self.clients[client].waits = None,
            Step::Forget { client } => {
                let instance = self.clients[client].instance.clone();
                self.clients[client] = Client { instance, ..Client::default() };
            }
        }
        self.hear();
        assert_eq!(self.world.committed(), self.committed, "an offset moved by itself");
    }

    /// The clients take what they were answered.
    fn hear(&mut self) {
        for client in &mut self.clients {
            let Some(answer) = client.waits.and_then(|ticket| self.world.answers.get(&ticket)) else { continue };
            client.waits = None;
            match answer {
                GroupAnswer::Joined(Ok(joined)) => {
                    client.id.clone_from(&joined.member);
                    client.generation = joined.generation;
                    client.leads = joined.members.iter().map(|m| m.id.clone()).collect();
                    if joined.skip_assignment {
                        client.leads.clear();
                    }
                }
                GroupAnswer::Joined(Err((GroupRefusal::MemberIdRequired, id))) => client.id.clone_from(id),
                GroupAnswer::Joined(Err((GroupRefusal::UnknownMember | GroupRefusal::FencedInstance, _))) => {
                    client.id.clear();
                }
                GroupAnswer::Joined(Err(_)) | GroupAnswer::Synced(_) => (),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Of each generation everybody was told the same, and a stable one has what its leader sent.
    fn check(&mut self, statics: bool) {
        let mut generations: BTreeMap<i32, Vec<&Joined>> = BTreeMap::new();
        for joined in &self.world.told {
            generations.entry(joined.generation).or_default().push(joined);
        }
        for (generation, told) in generations.iter().filter(|_| !statics) {
            let leaders: BTreeSet<&str> = told.iter().map(|joined| joined.leader.as_str()).collect();
            let spoken: BTreeSet<&str> = told.iter().map(|joined| joined.protocol.as_str()).collect();
            assert_eq!((leaders.len(), spoken.len()), (1, 1), "generation {generation}: {told:?}");
            let roll = told.iter().find(|joined| joined.member == joined.leader).map(|joined| &joined.members);
            let roll: BTreeSet<&str> = roll.into_iter().flatten().map(|member| member.id.as_str()).collect();
            let members: BTreeSet<&str> = told.iter().map(|joined| joined.member.as_str()).collect();
            assert_eq!(roll, members, "generation {generation}: the leader was not told of all");
        }
        let newest = self.newest();
        let Some(described) = self.world.described().filter(|described| described.state == GroupState::Stable) else {
            return;
        };
        let sent = self.assigned.get(&newest).expect("a stable group was assigned by its leader");
        for member in described.members.iter().filter(|member| !statics || member.instance.is_none()) {
            assert_eq!(sent.get(&member.id).cloned().unwrap_or_default(), member.assignment, "generation {newest}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A partition with two readers, a reader with another's partitions, a connection that waits for ever, or an offset
    /// that goes back: whatever clients do, and in whatever order.
    #[test]
    fn generations_are_whole_and_every_question_is_answered_once(steps in steps(), statics in any::<bool>()) {
        let mut run = Run::new(statics);
        for step in &steps {
            run.step(step);
            run.check(statics);
        }
        run.world.passes(Duration::from_secs(400));
        let lost: Vec<u64> = (1..=run.world.tickets).filter(|ticket| !run.world.answers.contains_key(ticket)).collect();
        prop_assert!(lost.is_empty(), "{lost:?} were never answered");
        if let Some(described) = run.world.described() {
            prop_assert!(described.members.is_empty(), "{described:?} lives without a sign of life");
        }
        prop_assert_eq!(run.world.coordinator.members_bytes, 0);
    }
}
