//! Classic members among those of KIP-848, and groups that change their protocol while they run.

use super::*;
use crate::groups::consumer::embedded;
use crate::groups::{Described, GroupState, Join, Joined, Leaver, Migration, Sync};
use bytes::{BufMut, Bytes, BytesMut};

/// What a classic consumer says of itself: `ConsumerProtocolSubscription` of version 1.
fn says(topics: &[&str], owned: &[u32]) -> Bytes {
    let mut to = BytesMut::new();
    let text = |to: &mut BytesMut, text: &str| {
        to.put_i16(text.len() as i16);
        to.put_slice(text.as_bytes());
    };
    to.put_i16(1);
    to.put_i32(topics.len() as i32);
    for topic in topics {
        text(&mut to, topic);
    }
    to.put_i32(-1);
    to.put_i32(1);
    text(&mut to, "t");
    to.put_i32(owned.len() as i32);
    for number in owned {
        to.put_u32(*number);
    }
    to.freeze()
}

/// A classic consumer that gives up no more than it has to (its protocol is called `sticky` here).
struct Old {
    id: String,
    generation: i32,
    has: Vec<u32>,
}

impl Old {
    fn new() -> Old {
        Old { id: String::new(), generation: -1, has: Vec::new() }
    }

    fn name(&self) -> MemberName {
        MemberName { id: self.id.clone(), instance: None }
    }

    fn joining(&self, fresh: &str) -> Join {
        Join {
            group: "g".to_owned(),
            member: self.name(),
            fresh: fresh.to_owned(),
            id_required: false,
            may_skip_assignment: true,
            client_id: "old".to_owned(),
            client_host: "/192.0.2.2".to_owned(),
            session_timeout: ms(10_000),
            rebalance_timeout: ms(20_000),
            protocol_type: "consumer".to_owned(),
            protocols: vec![("sticky".to_owned(), says(&["t"], &self.has))],
        }
    }

    fn joins(&mut self, world: &mut World, fresh: &str) -> Joined {
        let joined = world.joined(self.joining(fresh)).expect("it may join");
        (self.id, self.generation) = (joined.member.clone(), joined.generation);
        joined
    }

    /// Takes what the broker, or the leader, gave it.
    fn syncs(&mut self, world: &mut World, assignments: Vec<(String, Bytes)>) -> Result<(), GroupRefusal> {
        let sync = Sync {
            group: "g".to_owned(),
            generation: self.generation,
            member: self.name(),
            protocol_type: Some("consumer".to_owned()),
            protocol: Some("sticky".to_owned()),
            assignments,
        };
        match world.ask(GroupAsk::Sync(sync)) {
            GroupAnswer::Synced(synced) => {
                let assigned = embedded::assigned(&synced?.assignment).expect("it can be read");
                self.has = assigned.into_iter().flat_map(|(_, numbers)| numbers).collect();
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    fn beats(&self, world: &mut World) -> Result<(), GroupRefusal> {
        let (group, generation, member) = ("g".to_owned(), self.generation, self.name());
        match world.ask(GroupAsk::Heartbeat { group, generation, member }) {
            GroupAnswer::Heartbeat(heard) => heard,
            other => panic!("{other:?}"),
        }
    }

    /// Does what a heartbeat tells it to, until it tells it nothing.
    fn catches_up(&mut self, world: &mut World) {
        for _ in 0..5 {
            match self.beats(world) {
                Ok(()) => return,
                Err(GroupRefusal::RebalanceInProgress) => {
                    self.joins(world, "");
                    self.syncs(world, Vec::new()).expect("it has just joined");
                }
                Err(why) => panic!("{why}"),
            }
        }
    }

    fn set(&self) -> Set {
        self.has.iter().map(|number| (id(1), *number)).collect()
    }
}

impl World {
    fn joined(&mut self, join: Join) -> Result<Joined, GroupRefusal> {
        match self.ask(GroupAsk::Join(Box::new(join))) {
            GroupAnswer::Joined(joined) => joined.map_err(|(why, _)| why),
            other => panic!("{other:?}"),
        }
    }

    fn classic(&mut self) -> Option<Described> {
        match self.ask(GroupAsk::Describe { groups: vec!["g".to_owned()] }) {
            GroupAnswer::Described(mut described) => described.remove(0).ok(),
            other => panic!("{other:?}"),
        }
    }

    /// The classic member leaves.
    fn leaves(&mut self, old: &Old) -> Result<(), GroupRefusal> {
        let members = vec![Leaver { member: old.name() }];
        match self.ask(GroupAsk::Leave { group: "g".to_owned(), members }) {
            GroupAnswer::Left(Ok(left)) => left[0],
            other => panic!("{other:?}"),
        }
    }
}

/// A stable classic group whose only member reads all of `t`.
fn classic_group(world: &mut World) -> Old {
    let mut old = Old::new();
    let joined = old.joins(world, "old");
    assert_eq!((&joined.leader, joined.members.len()), (&joined.member, 1));
    let all = embedded::assignment(1, &vec![("t".to_owned(), vec![0, 1, 2, 3])]);
    old.syncs(world, vec![(old.id.clone(), all)]).unwrap();
    assert_eq!(old.has, [0, 1, 2, 3]);
    old
}

/// Lost if it fails: while the consumers of a group are upgraded one by one, a partition is read by two or by nobody.
#[test]
fn a_classic_member_shares_with_one_of_kip_848_and_gives_up_before_the_other_gets() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    let mut old = Old::new();
    let joined = old.joins(&mut world, "old");
    assert_eq!((joined.leader.as_str(), joined.members.len(), joined.protocol.as_str()), ("", 0, "sticky"));
    old.syncs(&mut world, Vec::new()).unwrap();
    assert!(old.has.is_empty() && old.beats(&mut world).is_ok(), "nothing is free yet");
    a.beats(&mut world).unwrap();
    assert!(old.beats(&mut world).is_ok(), "nor is it now");
    a.steps(&mut world).unwrap();
    assert_eq!(old.beats(&mut world), Err(GroupRefusal::RebalanceInProgress));
    old.catches_up(&mut world);
    assert_eq!((a.has.len(), old.has.len()), (2, 2));
    assert!(a.has.is_disjoint(&old.set()));
    world.state_is(ConsumersState::Stable);
    let mut b = Client::new("b", &["t"]);
    b.joins(&mut world).unwrap();
    let before = old.generation;
    assert_eq!(old.beats(&mut world), Err(GroupRefusal::RebalanceInProgress));
    old.joins(&mut world, "");
    assert_eq!(old.generation, before, "it has not given up anything yet");
    b.steps(&mut world).unwrap();
    assert!(b.told.is_empty());
    old.syncs(&mut world, Vec::new()).unwrap();
    assert_eq!(old.has.len(), 1);
    old.catches_up(&mut world);
    world.settle(&mut [&mut a, &mut b]);
    old.catches_up(&mut world);
    assert_ne!(old.generation, before);
    assert_eq!((a.has.len(), b.has.len(), old.has.len()), (2, 1, 1));
    let described = world.described().unwrap();
    let kinds: Vec<bool> = described.members.iter().map(|member| member.is_classic).collect();
    assert_eq!(kinds, [false, false, true]);
}

/// Lost if it fails: a classic member of such a group moves offsets that are not its own any more.
#[test]
fn a_classic_member_commits_in_its_generation_and_is_heard_by_it() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    let mut old = Old::new();
    old.joins(&mut world, "old");
    old.syncs(&mut world, Vec::new()).unwrap();
    assert_eq!(world.commit("old", old.generation - 1, 5), Err(GroupRefusal::IllegalGeneration));
    for _ in 0..3 {
        world.passes(ms(8000));
        assert_eq!(world.commit("old", old.generation, 6), Ok(()));
    }
    world.passes(ms(10_001));
    assert_eq!(world.commit("old", old.generation, 7), Err(GroupRefusal::UnknownMember));
    assert_eq!(old.beats(&mut world), Err(GroupRefusal::UnknownMember));
}

/// Lost if it fails: new partitions are read by nobody, where nobody but classic members is heard.
#[test]
fn a_classic_member_is_told_of_new_partitions() {
    let mut world = World::new(GroupSettings { migration: Migration::Disabled, ..settings() });
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    let mut old = Old::new();
    old.joins(&mut world, "old");
    old.syncs(&mut world, Vec::new()).unwrap();
    a.leaves(&mut world, -1).unwrap();
    old.catches_up(&mut world);
    assert_eq!(old.has, [0, 1, 2, 3]);
    world.decide(&Command::CreatePartitions { id: id(1), total: 6 });
    assert_eq!(old.beats(&mut world), Err(GroupRefusal::RebalanceInProgress));
    old.catches_up(&mut world);
    assert_eq!(old.has, [0, 1, 2, 3, 4, 5]);
}

/// Lost if it fails: a classic member that hangs holds what others wait for.
#[test]
fn a_classic_member_that_does_not_do_what_it_is_told_to_is_out() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    let mut never_syncs = Old::new();
    never_syncs.joins(&mut world, "one");
    let mut never_rejoins = Old::new();
    never_rejoins.joins(&mut world, "two");
    never_rejoins.syncs(&mut world, Vec::new()).unwrap();
    for _ in 0..7 {
        world.passes(ms(4900));
        a.steps(&mut world).unwrap();
        let _ = (never_syncs.beats(&mut world), never_rejoins.beats(&mut world));
    }
    assert_eq!(world.described().unwrap().members.len(), 1);
    world.settle(&mut [&mut a]);
    assert_eq!(a.has, parts(id(1), 4));
}

/// Lost if it fails: a client of another kind joins consumers and gets bytes that it can not read.
#[test]
fn only_consumers_join_consumers() {
    let mut world = World::new(settings());
    Client::new("a", &["t"]).joins(&mut world).unwrap();
    let join = Old::new().joining("old");
    let connect = Join { protocol_type: "connect".to_owned(), ..join.clone() };
    assert_eq!(world.joined(connect), Err(GroupRefusal::InconsistentProtocol));
    let unreadable = Join { protocols: vec![("x".to_owned(), Bytes::new())], ..join.clone() };
    assert_eq!(world.joined(unreadable), Err(GroupRefusal::InconsistentProtocol));
    let hasty = Join { session_timeout: ms(1), ..join.clone() };
    assert_eq!(world.joined(hasty), Err(GroupRefusal::InvalidSessionTimeout));
    let needs_id = Join { id_required: true, ..join.clone() };
    match world.ask(GroupAsk::Join(Box::new(needs_id))) {
        GroupAnswer::Joined(Err((GroupRefusal::MemberIdRequired, fresh))) => assert_eq!(fresh, "old"),
        other => panic!("{other:?}"),
    }
    assert!(world.joined(join).is_ok());
    let other = Join { protocols: vec![("other".to_owned(), says(&["t"], &[]))], ..Old::new().joining("new") };
    assert_eq!(world.joined(other), Err(GroupRefusal::InconsistentProtocol), "one day they may be alone");
}

/// Lost if it fails: an upgrade stops all consumers of a group at once, or gives a partition to a second one.
#[test]
fn a_classic_group_becomes_one_of_kip_848_and_its_members_keep_what_they_have() {
    let mut world = World::new(settings());
    let mut old = classic_group(&mut world);
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    assert!(a.told.is_empty(), "its owner has not given anything up");
    assert_eq!(world.classic(), None);
    old.catches_up(&mut world);
    world.settle(&mut [&mut a]);
    assert_eq!((a.has.len(), old.has.len()), (2, 2));
    assert!(a.has.is_disjoint(&old.set()));
    assert_eq!(world.leaves(&old), Ok(()));
    world.settle(&mut [&mut a]);
    assert_eq!(a.has, parts(id(1), 4));
}

/// Lost if it fails: a classic member that has not yet heard which partition it is to lose reads it beside the one of
/// KIP-848 that came meanwhile.
#[test]
fn what_a_classic_member_says_that_it_has_is_nobody_elses_after_the_upgrade() {
    let mut world = World::new(settings());
    let mut old = classic_group(&mut world);
    let less = embedded::assignment(1, &vec![("t".to_owned(), vec![0])]);
    old.joins(&mut world, "");
    let had = old.has.clone();
    old.syncs(&mut world, vec![(old.id.clone(), less)]).unwrap();
    assert_eq!(old.has, [0]);
    old.has = had;
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    assert!(a.told.is_empty(), "{:?}", a.told);
    old.catches_up(&mut world);
    world.settle(&mut [&mut a]);
    assert_eq!((a.has.len(), old.has.len()), (2, 2));
}

/// Lost if it fails: classic consumers that are rolled back to are without a group.
#[test]
fn when_the_last_member_of_kip_848_goes_the_rest_is_a_classic_group_again() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    let mut old = Old::new();
    old.joins(&mut world, "old");
    old.syncs(&mut world, Vec::new()).unwrap();
    a.leaves(&mut world, -1).unwrap();
    assert_eq!(world.described(), None);
    assert_eq!(world.classic().map(|classic| classic.state), Some(GroupState::PreparingRebalance));
    let joined = old.joins(&mut world, "");
    assert_eq!((&joined.leader, joined.members.len()), (&old.id, 1));
    let all = embedded::assignment(1, &vec![("t".to_owned(), vec![0, 1, 2, 3])]);
    old.syncs(&mut world, vec![(old.id.clone(), all)]).unwrap();
    assert_eq!(world.classic().map(|classic| classic.state), Some(GroupState::Stable));
    assert_eq!(world.leaves(&old), Ok(()));
    world.passes(ms(1_300_000));
    assert_eq!((world.classic(), world.coordinator.members_bytes), (None, 0));
    // the same when it is silent instead
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    let mut old = Old::new();
    old.joins(&mut world, "old");
    old.syncs(&mut world, Vec::new()).unwrap();
    for _ in 0..6 {
        world.passes(ms(8000));
        let _ = old.beats(&mut world);
    }
    assert_eq!(world.classic().map(|classic| classic.state), Some(GroupState::PreparingRebalance));
}

/// Lost if it fails: an operator who wants groups to stay what they are finds them changed.
#[test]
fn a_group_with_members_changes_its_protocol_only_where_the_policy_allows_it() {
    for migration in [Migration::Disabled, Migration::Downgrade] {
        let mut world = World::new(GroupSettings { migration, ..settings() });
        let old = classic_group(&mut world);
        assert_eq!(Client::new("a", &["t"]).joins(&mut world), Err(GroupRefusal::GroupNotFound));
        assert_eq!(old.beats(&mut world), Ok(()));
    }
    for migration in [Migration::Disabled, Migration::Upgrade] {
        let mut world = World::new(GroupSettings { migration, ..settings() });
        let mut a = Client::new("a", &["t"]);
        a.joins(&mut world).unwrap();
        a.steps(&mut world).unwrap();
        let mut old = Old::new();
        old.joins(&mut world, "old");
        old.syncs(&mut world, Vec::new()).unwrap();
        a.leaves(&mut world, -1).unwrap();
        old.catches_up(&mut world);
        assert_eq!(old.has.len(), 4, "it goes on in the group that it is in");
        world.state_is(ConsumersState::Stable);
    }
}

/// Lost if it fails: a group id that was used once can never be used with the other protocol.
#[test]
fn a_group_without_members_becomes_whatever_joins_it() {
    let mut world = World::new(GroupSettings { migration: Migration::Disabled, ..settings() });
    let old = classic_group(&mut world);
    assert_eq!(world.leaves(&old), Ok(()));
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    assert_eq!((a.told.len(), world.classic()), (4, None));
    a.leaves(&mut world, -1).unwrap();
    classic_group(&mut world);
    assert_eq!(world.described(), None);
}

/// Lost if it fails: a classic static consumer that is upgraded waits for its own session to end.
#[test]
fn a_static_member_changes_its_protocol_and_keeps_what_it_has() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    let mut join = Old::new().joining("old");
    join.member.instance = Some("i".to_owned());
    world.joined(join).unwrap();
    a.beats(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    let mut new = Client::fixed("new", "i", &["t"]);
    new.joins(&mut world).unwrap();
    world.settle(&mut [&mut a, &mut new]);
    assert_eq!((a.has.len(), new.has.len()), (2, 2));
    let described = world.described().unwrap();
    assert!(described.members.iter().all(|member| !member.is_classic), "{described:?}");
}
