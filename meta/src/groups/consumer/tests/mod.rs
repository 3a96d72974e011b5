//! Groups of KIP-848 alone: time is a number, the log decides at once, and a client is what it knows of itself.
//!
//! Files: this one the world, the clients, and the rules of a group of one protocol; `migration.rs` classic members and
//! changes of protocol; `properties.rs` whatever clients do.

mod migration;
mod properties;

use crate::command::{Command, PartitionOffset, TopicOffsets};
use crate::groups::{
    Beat, Beaten, Commit, ConsumersState, Coordinator, DescribedConsumers, FetchGroup, GroupAnswer, GroupAsk,
    GroupKind, GroupOut, GroupRefusal, GroupSettings, Leaver, Listed, MemberName, Partitions,
};
use crate::limits;
use crate::state::State;
use camus_engine::shard::api::Ticket;
use camus_engine::types::{CoreId, Index, Mono, ShardId, Term, WallMs};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uuid::Uuid;

type Set = BTreeSet<(Uuid, u32)>;

/// A coordinator, the metadata, and every epoch that a member was told.
struct World {
    coordinator: Coordinator,
    state: State,
    now: Mono,
    wall: WallMs,
    out: GroupOut,
    tickets: u64,
    answers: BTreeMap<u64, GroupAnswer>,
    epochs: BTreeSet<i32>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn settings() -> GroupSettings {
    GroupSettings { initial_delay: Duration::ZERO, ..GroupSettings::default() }
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// The first partitions of a topic.
fn parts(topic: Uuid, count: u32) -> Set {
    (0..count).map(|number| (topic, number)).collect()
}

fn set(partitions: &Partitions) -> Set {
    partitions.iter().flat_map(|(topic, numbers)| numbers.iter().map(move |number| (*topic, *number))).collect()
}

impl World {
    /// With the topics `t` of four partitions (id 1) and `u` of two (id 2).
    fn new(settings: GroupSettings) -> World {
        let mut world = World {
            coordinator: Coordinator::new(settings, Mono(1)),
            state: State::new(vec![ShardId(1)]),
            now: Mono(1),
            wall: WallMs(1_000_000),
            out: GroupOut::default(),
            tickets: 0,
            answers: BTreeMap::new(),
            epochs: BTreeSet::new(),
        };
        world.coordinator.take_over(world.now, Term(1));
        // whoever was a member of before knows by now
        world.passes(ms(5000));
        world.create("t", 1, 4);
        world.create("u", 2, 2);
        world
    }

    fn decide(&mut self, command: &Command) {
        self.state.apply(Index(self.state.applied().0 + 1), command).expect("the metadata takes it");
    }

    fn create(&mut self, name: &str, id: u128, partitions: u32) {
        let (id, configs) = (Uuid::from_u128(id), BTreeMap::new());
        self.decide(&Command::CreateTopic { name: name.to_owned(), id, partitions, replication_factor: 1, configs });
    }

    /// Asks, and lets the log decide what comes of it.
    fn start(&mut self, ask: GroupAsk) -> u64 {
        self.tickets += 1;
        let ticket = Ticket { core: CoreId(0), request: self.tickets, part: 0 };
        self.coordinator.ask(self.now, ticket, ask, &self.state, &mut self.out);
        self.settle_log();
        self.tickets
    }

    fn settle_log(&mut self) {
        while !self.out.commands.is_empty() {
            for (token, command) in std::mem::take(&mut self.out.commands) {
                let decided = self.state.apply(Index(self.state.applied().0 + 1), &command);
                self.coordinator.decided(token, decided, &mut self.out);
            }
        }
        for (ticket, answer) in self.out.answers.drain(..) {
            assert!(self.answers.insert(ticket.request, answer).is_none(), "{ticket:?} was answered twice");
        }
    }

    fn ask(&mut self, ask: GroupAsk) -> GroupAnswer {
        let ticket = self.start(ask);
        self.answers.remove(&ticket).expect("answered at once")
    }

    fn beat(&mut self, beat: Beat) -> Result<Beaten, GroupRefusal> {
        match self.ask(GroupAsk::Beat(Box::new(beat))) {
            GroupAnswer::Beaten(beaten) => {
                self.epochs.extend(beaten.iter().map(|beaten| beaten.epoch).filter(|epoch| *epoch > 0));
                beaten
            }
            other => panic!("{other:?}"),
        }
    }

    fn passes(&mut self, time: Duration) {
        let end = self.now + time;
        while self.coordinator.next_deadline() <= end {
            let at = self.coordinator.next_deadline().max(self.now);
            self.wall = WallMs(self.wall.0 + at.since(self.now).as_millis() as i64);
            self.now = at;
            self.coordinator.tick(self.now, self.wall, &self.state, &mut self.out);
            self.settle_log();
            assert!(self.coordinator.next_deadline() > at, "a deadline that never ends");
        }
        self.wall = WallMs(self.wall.0 + end.since(self.now).as_millis() as i64);
        self.now = end;
    }

    fn described(&mut self) -> Option<DescribedConsumers> {
        match self.ask(GroupAsk::DescribeConsumers { groups: vec!["g".to_owned()] }) {
            GroupAnswer::ConsumersDescribed(mut described) => described.remove(0).ok(),
            other => panic!("{other:?}"),
        }
    }

    fn state_is(&mut self, state: ConsumersState) {
        assert_eq!(self.described().map(|described| described.state), Some(state));
    }

    fn commit(&mut self, member: &str, epoch: i32, offset: i64) -> Result<(), GroupRefusal> {
        let offset = PartitionOffset { partition: 0, offset, leader_epoch: -1, metadata: String::new() };
        let commit = Commit {
            group: "g".to_owned(),
            generation: epoch,
            member: MemberName { id: member.to_owned(), instance: None },
            knows_not_found: true,
            at_ms: self.wall.0,
            topics: vec![TopicOffsets { topic: id(1), partitions: vec![offset] }],
        };
        match self.ask(GroupAsk::Commit(commit)) {
            GroupAnswer::Committed(committed) => committed.map(|_| ()),
            other => panic!("{other:?}"),
        }
    }

    /// What the group has committed of partition 0 of `t`, as far as this member may know.
    fn fetched(&mut self, member: Option<&str>, epoch: i32) -> Result<Option<i64>, GroupRefusal> {
        let (member, topics) = (member.map(str::to_owned), Some(vec![(id(1), vec![0])]));
        let groups = vec![FetchGroup { group: "g".to_owned(), member, epoch, topics }];
        match self.ask(GroupAsk::Fetch { groups }) {
            GroupAnswer::Fetched(mut fetched) => {
                let fetched = fetched.remove(0)?;
                Ok(fetched.topics[0].partitions[0].committed.as_ref().map(|committed| committed.offset))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Everybody says what it has, until there is nothing new for anybody.
    fn settle(&mut self, clients: &mut [&mut Client]) {
        for _ in 0..8 {
            for client in clients.iter_mut() {
                client.steps(self).expect("it is a member");
            }
        }
        let all: usize = clients.iter().map(|client| client.has.len()).sum();
        let together: Set = clients.iter().flat_map(|client| client.has.iter().copied()).collect();
        assert_eq!(all, together.len(), "a partition has two owners: {clients:?}");
        self.state_is(ConsumersState::Stable);
    }
}

/// What a consumer knows of itself.
#[derive(Clone, Debug)]
struct Client {
    id: String,
    instance: Option<String>,
    topics: Vec<String>,
    pattern: Option<String>,
    assignor: Option<String>,
    epoch: i32,
    /// What it reads.
    has: Set,
    /// What it was told to read. Before it says what it has it takes what it was told.
    told: Set,
}

impl Client {
    fn new(id: &str, topics: &[&str]) -> Client {
        Client {
            id: id.to_owned(),
            instance: None,
            topics: topics.iter().map(|name| (*name).to_owned()).collect(),
            pattern: None,
            assignor: None,
            epoch: 0,
            has: Set::new(),
            told: Set::new(),
        }
    }

    fn fixed(id: &str, instance: &str, topics: &[&str]) -> Client {
        Client { instance: Some(instance.to_owned()), ..Client::new(id, topics) }
    }

    fn watching(id: &str, pattern: &str) -> Client {
        Client { pattern: Some(pattern.to_owned()), ..Client::new(id, &[]) }
    }

    /// Nothing but a sign of life.
    fn quiet(&self, epoch: i32) -> Beat {
        Beat {
            group: "g".to_owned(),
            member: MemberName { id: self.id.clone(), instance: self.instance.clone() },
            id_required: true,
            fresh: String::new(),
            epoch,
            client_id: "client".to_owned(),
            client_host: "/192.0.2.1".to_owned(),
            rack: None,
            rebalance_timeout: None,
            topics: None,
            pattern: None,
            assignor: None,
            owned: None,
        }
    }

    /// All that there is to say.
    fn full(&self, epoch: i32) -> Beat {
        Beat {
            rebalance_timeout: Some(ms(20_000)),
            topics: Some(self.topics.clone()),
            pattern: self.pattern.clone(),
            assignor: self.assignor.clone(),
            owned: Some(self.owned()),
            ..self.quiet(epoch)
        }
    }

    fn owned(&self) -> Partitions {
        let mut owned: BTreeMap<Uuid, Vec<u32>> = BTreeMap::new();
        for (topic, number) in &self.has {
            owned.entry(*topic).or_default().push(*number);
        }
        owned.into_iter().collect()
    }

    fn hears(&mut self, answer: &Result<Beaten, GroupRefusal>) {
        match answer {
            Ok(beaten) => {
                self.id.clone_from(&beaten.member);
                self.epoch = beaten.epoch;
                if let Some(assignment) = &beaten.assignment {
                    self.told = set(assignment);
                }
            }
            Err(GroupRefusal::UnknownMember | GroupRefusal::FencedMemberEpoch) => self.forget(),
            Err(_) => (),
        }
    }

    /// It has nothing, and is to join.
    fn forget(&mut self) {
        self.has.clear();
        self.told.clear();
        self.epoch = 0;
    }

    fn joins(&mut self, world: &mut World) -> Result<Beaten, GroupRefusal> {
        self.forget();
        let answer = world.beat(self.full(0));
        self.hears(&answer);
        answer
    }

    fn beats(&mut self, world: &mut World) -> Result<Beaten, GroupRefusal> {
        let answer = world.beat(self.quiet(self.epoch));
        self.hears(&answer);
        answer
    }

    /// Takes what it was told, gives up the rest, and says so.
    fn steps(&mut self, world: &mut World) -> Result<Beaten, GroupRefusal> {
        self.has.clone_from(&self.told);
        let answer = world.beat(Beat { owned: Some(self.owned()), ..self.quiet(self.epoch) });
        self.hears(&answer);
        answer
    }

    fn leaves(&mut self, world: &mut World, epoch: i32) -> Result<Beaten, GroupRefusal> {
        self.forget();
        world.beat(self.quiet(epoch))
    }
}

/// A group of two that have everything of `t` between them.
fn pair(world: &mut World) -> (Client, Client) {
    let (mut a, mut b) = (Client::new("a", &["t"]), Client::new("b", &["t"]));
    a.joins(world).unwrap();
    b.joins(world).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    (a, b)
}

/// Lost if it fails: a consumer that is alone reads a part of its topics, or nothing.
#[test]
fn who_is_alone_is_told_at_once_to_read_everything() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t", "u"]);
    let beaten = a.joins(&mut world).unwrap();
    assert!(beaten.epoch > 0 && beaten.member == "a" && beaten.interval == ms(5000));
    let mut all = parts(id(1), 4);
    all.extend(parts(id(2), 2));
    assert_eq!(a.told, all);
    world.state_is(ConsumersState::Stable);
}

/// Lost if it fails: a member is told again and again what it has, and stops reading each time.
#[test]
fn what_is_nothing_new_is_not_told() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    for _ in 0..3 {
        let (beaten, stepped) = (a.beats(&mut world).unwrap(), a.steps(&mut world).unwrap());
        assert_eq!((beaten.assignment, stepped.assignment), (None, None));
        assert_eq!(beaten.epoch, stepped.epoch);
    }
    let told = world.beat(a.full(a.epoch)).unwrap().assignment;
    assert_eq!(told.map(|told| set(&told)), Some(parts(id(1), 4)), "who says everything is told everything");
}

/// Lost if it fails: two members read one partition.
#[test]
fn a_partition_moves_only_when_its_owner_has_said_that_it_gave_it_up() {
    let mut world = World::new(settings());
    let (mut a, mut b) = (Client::new("a", &["t"]), Client::new("b", &["t"]));
    let first = a.joins(&mut world).unwrap().epoch;
    a.steps(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    for _ in 0..3 {
        assert!(b.steps(&mut world).is_ok() && b.told.is_empty());
    }
    let told = a.beats(&mut world).unwrap();
    assert_eq!((a.told.len(), told.epoch), (2, first), "it stays in its epoch until it has given up two");
    assert!(b.beats(&mut world).is_ok() && b.told.is_empty());
    assert!(a.beats(&mut world).is_ok() && b.beats(&mut world).is_ok() && b.told.is_empty(), "silence is no yes");
    world.state_is(ConsumersState::Reconciling);
    assert_ne!(a.steps(&mut world).unwrap().epoch, first);
    b.beats(&mut world).unwrap();
    assert_eq!(b.told.len(), 2);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(a.epoch, b.epoch);
}

/// Lost if it fails: a member is made of a request that says too little, and nobody knows what it reads.
#[test]
fn a_request_that_is_not_whole_is_refused_and_changes_nothing() {
    let mut world = World::new(settings());
    let a = Client::new("a", &["t"]);
    let join = a.full(0);
    let bad = [
        Beat { rebalance_timeout: None, ..join.clone() },
        Beat { topics: None, ..join.clone() },
        Beat { owned: None, ..join.clone() },
        Beat { owned: Some(vec![(id(1), vec![0])]), ..join.clone() },
        Beat { group: String::new(), ..join.clone() },
        Beat { group: "x".repeat(limits::GROUP_ID_BYTES_MAX + 1), ..join.clone() },
        Beat { rack: Some(String::new()), ..join.clone() },
        Beat { epoch: -3, ..join.clone() },
        Beat { epoch: -2, ..join.clone() },
        Beat { member: MemberName { id: String::new(), instance: None }, ..join.clone() },
        Beat { member: MemberName { id: "a".to_owned(), instance: Some(String::new()) }, ..join.clone() },
        Beat { topics: Some(vec!["x".repeat(limits::MEMBER_BYTES_MAX)]), ..join.clone() },
    ];
    for beat in bad {
        assert_eq!(world.beat(beat.clone()), Err(GroupRefusal::InvalidRequest), "{beat:?}");
    }
    let beat = Beat { assignor: Some("best".to_owned()), ..join.clone() };
    assert_eq!(world.beat(beat), Err(GroupRefusal::UnsupportedAssignor));
    assert_eq!(world.described(), None);
    let nameless = MemberName { id: String::new(), instance: None };
    let older = Beat { member: nameless, id_required: false, fresh: "made".to_owned(), ..join };
    assert_eq!(world.beat(older).map(|beaten| beaten.member), Ok("made".to_owned()));
}

/// Lost if it fails: a member of before goes on reading what others have now.
#[test]
fn who_says_another_epoch_is_fenced_and_who_is_nobody_is_told_so() {
    let mut world = World::new(settings());
    assert_eq!(Client::new("x", &["t"]).beats(&mut world), Err(GroupRefusal::InvalidRequest), "epoch 0 is a join");
    let (a, _) = pair(&mut world);
    for epoch in [a.epoch + 1, a.epoch + 100, 1] {
        assert_eq!(world.beat(a.quiet(epoch)), Err(GroupRefusal::FencedMemberEpoch));
    }
    assert!(world.beat(a.quiet(a.epoch)).is_ok());
    let ghost = Client::new("ghost", &["t"]);
    assert_eq!(world.beat(ghost.quiet(a.epoch)), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.beat(ghost.quiet(-1)), Err(GroupRefusal::UnknownMember));
    let elsewhere = Beat { group: "h".to_owned(), ..a.quiet(a.epoch) };
    assert_eq!(world.beat(elsewhere), Err(GroupRefusal::UnknownMember));
}

/// Lost if it fails: a member whose answer was lost is out, and gives up all that it reads.
#[test]
fn who_did_not_hear_the_last_epoch_may_say_the_one_before() {
    let mut world = World::new(settings());
    let (mut a, mut b) = (Client::new("a", &["t"]), Client::new("b", &["t"]));
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    a.beats(&mut world).unwrap();
    let before = a.clone();
    a.has.clone_from(&a.told);
    let unheard = world.beat(Beat { owned: Some(a.owned()), ..a.quiet(a.epoch) }).unwrap();
    assert_ne!(unheard.epoch, a.epoch);
    assert_eq!(world.beat(a.quiet(a.epoch)), Err(GroupRefusal::FencedMemberEpoch), "it does not say what it has");
    let has_more = Beat { owned: Some(before.owned()), ..a.quiet(a.epoch) };
    assert_eq!(world.beat(has_more), Err(GroupRefusal::FencedMemberEpoch), "it has what it gave up");
    let again = world.beat(a.full(a.epoch));
    assert_eq!(again.as_ref().map(|again| again.epoch), Ok(unheard.epoch));
    a.hears(&again);
    world.settle(&mut [&mut a, &mut b]);
    let again = a.joins(&mut world).unwrap();
    assert_eq!((again.epoch, a.told.len()), (b.epoch, 2), "who joins again gets its state");
}

/// Lost if it fails: a member that hangs in its application keeps partitions for ever that others wait for.
#[test]
fn who_does_not_give_up_within_its_rebalance_timeout_is_out() {
    let mut world = World::new(settings());
    let (mut a, mut b) = (Client::new("a", &["t"]), Client::new("b", &["t"]));
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    for _ in 0..5 {
        world.passes(ms(3900));
        assert!(a.beats(&mut world).is_ok() && b.beats(&mut world).is_ok());
    }
    world.passes(ms(4500));
    assert_eq!(a.beats(&mut world), Err(GroupRefusal::UnknownMember));
    b.steps(&mut world).unwrap();
    assert_eq!(b.told, parts(id(1), 4));
}

/// Lost if it fails: a member that died keeps its partitions for ever, or one that lives is taken for dead.
#[test]
fn a_silent_member_is_out_after_its_session_and_its_partitions_go_to_the_others() {
    let mut world = World::new(settings());
    let (mut a, mut b) = pair(&mut world);
    for _ in 0..9 {
        world.passes(ms(5000));
        a.beats(&mut world).unwrap();
    }
    assert_eq!(b.beats(&mut world), Err(GroupRefusal::UnknownMember));
    a.steps(&mut world).unwrap();
    assert_eq!(a.told, parts(id(1), 4));
    world.passes(ms(60_000));
    world.state_is(ConsumersState::Empty);
    world.passes(ms(1_300_000));
    assert_eq!(world.described(), None, "nobody needs it any more");
}

/// Lost if it fails: who leaves holds its partitions until its session ends.
#[test]
fn what_a_leaver_had_goes_to_the_others_at_once() {
    let mut world = World::new(settings());
    let (mut a, mut b) = pair(&mut world);
    assert_eq!(b.leaves(&mut world, -1).map(|left| (left.epoch, left.assignment)), Ok((-1, None)));
    assert_eq!(world.beat(b.quiet(a.epoch)), Err(GroupRefusal::UnknownMember));
    world.settle(&mut [&mut a]);
    assert_eq!(a.has, parts(id(1), 4));
    a.leaves(&mut world, -1).unwrap();
    let described = world.described().unwrap();
    assert_eq!((described.state, described.members.len()), (ConsumersState::Empty, 0));
}

/// Lost if it fails: a consumer that restarts makes all others stop reading, or loses its place for a moment's silence.
#[test]
fn a_static_member_that_comes_back_has_what_it_had_and_nobody_else_notices() {
    let mut world = World::new(settings());
    let (mut a, mut b) = (Client::fixed("a", "i", &["t"]), Client::fixed("b", "j", &["t"]));
    a.joins(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    let (had, epoch) = (a.has.clone(), b.epoch);
    assert_eq!(a.leaves(&mut world, -2).map(|left| left.epoch), Ok(-2));
    assert!(b.beats(&mut world).unwrap().assignment.is_none());
    world.state_is(ConsumersState::Reconciling);
    let mut back = Client::fixed("a2", "i", &["t"]);
    back.joins(&mut world).unwrap();
    assert_eq!((&back.told, back.epoch), (&had, epoch));
    assert!(b.beats(&mut world).is_ok_and(|beaten| beaten.assignment.is_none() && beaten.epoch == epoch));
    assert_eq!(world.beat(a.quiet(epoch)), Err(GroupRefusal::FencedInstance), "its former self is nobody now");
    back.leaves(&mut world, -2).unwrap();
    world.passes(ms(46_000));
    assert_eq!(back.joins(&mut world).map(|beaten| beaten.member), Ok("a2".to_owned()), "it was out, and is new");
}

/// Lost if it fails: two consumers with one instance id take the partitions from each other, over and over.
#[test]
fn an_instance_id_that_is_in_use_is_not_given_to_another() {
    let mut world = World::new(settings());
    let mut a = Client::fixed("a", "i", &["t"]);
    a.joins(&mut world).unwrap();
    let mut other = Client::fixed("other", "i", &["t"]);
    assert_eq!(other.joins(&mut world), Err(GroupRefusal::UnreleasedInstance));
    assert_eq!(world.beat(other.quiet(a.epoch)), Err(GroupRefusal::FencedInstance));
    assert_eq!(world.beat(other.quiet(-1)), Err(GroupRefusal::FencedInstance));
    let nobody = Client::fixed("a", "k", &["t"]);
    assert_eq!(world.beat(nobody.quiet(a.epoch)), Err(GroupRefusal::UnknownMember));
    assert!(a.steps(&mut world).is_ok());
    world.passes(ms(46_000));
    assert!(other.joins(&mut world).is_ok(), "its holder was silent for too long");
}

/// Lost if it fails: a static member whose join was answered into the void is fenced by its own instance id, which is
/// fatal in the Java client.
#[test]
fn a_static_join_that_is_repeated_by_the_same_member_gets_its_state() {
    let mut world = World::new(settings());
    let mut a = Client::fixed("a", "i", &["t"]);
    let unheard = world.beat(a.full(0)).unwrap();
    let again = a.joins(&mut world).unwrap();
    assert_eq!((again.epoch, a.told.clone()), (unheard.epoch, parts(id(1), 4)));
    a.leaves(&mut world, -2).unwrap();
    a.joins(&mut world).unwrap();
    assert_eq!(a.told, parts(id(1), 4), "the same after it has left for a while");
    world.settle(&mut [&mut a]);
}

/// Lost if it fails: new partitions are read by nobody, or those of a topic that is gone are still somebody's.
#[test]
fn topics_that_come_grow_and_go_are_noticed() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t", "later"]);
    a.joins(&mut world).unwrap();
    world.settle(&mut [&mut a]);
    let first = a.epoch;
    world.create("unrelated", 9, 3);
    world.settle(&mut [&mut a]);
    assert_eq!(a.epoch, first, "what nobody subscribes to changes nothing");
    world.create("later", 3, 2);
    world.settle(&mut [&mut a]);
    let mut all = parts(id(1), 4);
    all.extend(parts(id(3), 2));
    assert_eq!(a.has, all);
    world.decide(&Command::CreatePartitions { id: id(3), total: 5 });
    world.settle(&mut [&mut a]);
    assert!(a.has.contains(&(id(3), 4)));
    world.decide(&Command::DeleteTopic { id: id(1) });
    world.settle(&mut [&mut a]);
    assert_eq!(a.has, parts(id(3), 5));
    world.create("t", 11, 1);
    world.settle(&mut [&mut a]);
    assert!(a.has.contains(&(id(11), 0)), "made anew it is another topic");
}

/// Lost if it fails: a member reads what it subscribed to before.
#[test]
fn another_subscription_takes_and_gives() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    world.settle(&mut [&mut a]);
    a.topics = vec!["u".to_owned(), "t".to_owned(), "t".to_owned()];
    let answer = world.beat(Beat { topics: Some(a.topics.clone()), ..a.quiet(a.epoch) });
    a.hears(&answer);
    world.settle(&mut [&mut a]);
    assert_eq!(a.has.len(), 6);
    let answer = world.beat(Beat { topics: Some(vec!["u".to_owned()]), ..a.quiet(a.epoch) });
    a.hears(&answer);
    world.settle(&mut [&mut a]);
    assert_eq!(a.has, parts(id(2), 2));
    let epoch = a.epoch;
    let answer = world.beat(Beat { topics: Some(vec!["u".to_owned()]), ..a.quiet(a.epoch) });
    assert_eq!(answer.map(|beaten| beaten.epoch), Ok(epoch), "the same again changes nothing");
}

/// Lost if it fails: topics that a pattern means are not read, or others are.
#[test]
fn a_pattern_means_topics_that_are_there_and_those_that_come() {
    let mut world = World::new(settings());
    world.create("a-one", 3, 2);
    world.create("xa-one", 4, 1);
    let (mut a, mut b) = (Client::watching("a", "a-(one|late)"), Client::watching("b", "a-(one|late)"));
    a.joins(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(a.has.union(&b.has).copied().collect::<Set>(), parts(id(3), 2));
    world.create("a-late", 5, 1);
    world.passes(ms(1500));
    world.settle(&mut [&mut a, &mut b]);
    assert!(a.has.contains(&(id(5), 0)) || b.has.contains(&(id(5), 0)));
    let described = world.described().unwrap();
    assert_eq!((described.members[0].pattern.as_str(), described.members[0].topics.len()), ("a-(one|late)", 0));
    for pattern in ["(", "[a", "a**", "(?P<"] {
        let beat = Beat { pattern: Some(pattern.to_owned()), ..a.quiet(a.epoch) };
        assert_eq!(world.beat(beat), Err(GroupRefusal::InvalidPattern), "{pattern}");
    }
    assert!(a.steps(&mut world).is_ok(), "it is still what it was");
    let answer = world.beat(Beat { pattern: Some(String::new()), ..a.quiet(a.epoch) });
    a.hears(&answer);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!((a.has.len(), b.has.len()), (0, 3), "none is none");
}

/// Lost if it fails: the cost of one topic that is made is a search of all names for every heartbeat of every member.
#[test]
fn patterns_are_not_matched_again_within_a_second() {
    let mut world = World::new(settings());
    let mut a = Client::watching("a", "late-.*");
    a.joins(&mut world).unwrap();
    for n in 0..3 {
        world.create(&format!("late-{n}"), 20 + n, 1);
        a.beats(&mut world).unwrap();
    }
    assert!(a.told.len() <= 1, "{:?}", a.told);
    world.passes(ms(1500));
    a.beats(&mut world).unwrap();
    assert_eq!(a.told.len(), 3);
}

/// Lost if it fails: what an operator chose for a group is not what assigns.
#[test]
fn most_of_those_who_prefer_an_assignor_decide() {
    let mut world = World::new(settings());
    let mut a = Client { assignor: Some("range".to_owned()), ..Client::new("a", &["t", "u"]) };
    let mut b = Client { assignor: Some("range".to_owned()), ..Client::new("b", &["t", "u"]) };
    a.joins(&mut world).unwrap();
    b.joins(&mut world).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(world.described().unwrap().assignor, "range");
    assert_eq!(a.has, Set::from([(id(1), 0), (id(1), 1), (id(2), 0)]));
    for client in [&mut a, &mut b] {
        let answer = world.beat(Beat { assignor: Some("uniform".to_owned()), ..client.quiet(client.epoch) });
        client.hears(&answer);
    }
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(world.described().unwrap().assignor, "uniform");
}

/// Lost if it fails: clients without end fill the memory of the broker with members.
#[test]
fn a_full_group_and_a_full_broker_take_nobody_else_and_keep_their_members() {
    let mut world = World::new(GroupSettings { consumer_members_max: 2, ..settings() });
    let (mut a, mut b) = pair(&mut world);
    let mut c = Client::new("c", &["t"]);
    assert_eq!(c.joins(&mut world), Err(GroupRefusal::GroupFull));
    assert!(a.joins(&mut world).is_ok(), "it is a member");
    world.settle(&mut [&mut a, &mut b]);
    let mut world = World::new(GroupSettings { members_bytes_max: 2500, ..settings() });
    let mut a = Client::new("a", &["t"]);
    assert!(a.joins(&mut world).is_ok());
    assert_eq!(b.joins(&mut world), Err(GroupRefusal::Busy));
    assert!(a.steps(&mut world).is_ok());
    a.leaves(&mut world, -1).unwrap();
    assert_eq!(world.coordinator.members_bytes, 0);
}

/// Lost if it fails: a commit that was under way while its group was forgotten and made again is taken for one of the
/// new group's, and its offset goes back.
#[test]
fn a_group_that_is_made_again_gives_no_epoch_of_before() {
    let mut world = World::new(settings());
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    let (old, before) = (a.epoch, a.clone());
    assert_eq!(world.commit("a", old, 5), Ok(()));
    a.leaves(&mut world, -1).unwrap();
    world.coordinator.forget_if_empty("g");
    assert_eq!(world.described(), None);
    let mut a = Client { epoch: 0, has: Set::new(), told: Set::new(), ..before };
    a.joins(&mut world).unwrap();
    assert!(a.epoch > old, "{} after {old}", a.epoch);
    assert_eq!(world.commit("a", old, 1), Err(GroupRefusal::StaleMemberEpoch));
}

/// Lost if it fails: whoever knows a member's name takes its partitions from it while it reads them.
#[test]
fn a_member_of_kip_848_does_not_leave_by_leave_group() {
    let mut world = World::new(settings());
    let (a, b) = pair(&mut world);
    let leaver = |id: &str| Leaver { member: MemberName { id: id.to_owned(), instance: None } };
    let members = vec![leaver(&a.id), leaver("nobody")];
    let left = world.ask(GroupAsk::Leave { group: "g".to_owned(), members });
    let unknown = || Err(GroupRefusal::UnknownMember);
    assert_eq!(left, GroupAnswer::Left(Ok(vec![unknown(), unknown()])));
    assert_eq!(world.described().unwrap().members.len(), 2);
    assert!(!a.has.is_empty() && !b.has.is_empty());
}

/// Lost if it fails: members that were there all the time are out, because there was no room for what they said anew.
#[test]
fn a_known_member_is_heard_also_where_there_is_no_room_for_what_it_says() {
    let mut world = World::new(GroupSettings { members_bytes_max: 2500, ..settings() });
    let mut a = Client::new("a", &["t"]);
    a.joins(&mut world).unwrap();
    for _ in 0..4 {
        world.passes(ms(20_000));
        let grown = Client { topics: (0..100).map(|n| format!("topic-{n}")).collect(), ..a.clone() };
        assert_eq!(world.beat(grown.full(a.epoch)), Err(GroupRefusal::Busy));
    }
    assert_eq!(world.described().unwrap().members.len(), 1, "80 s, and a session has 45");
}

/// Lost if it fails: members that say little of their topics and much of themselves fill the memory of the broker.
#[test]
fn whatever_a_member_says_of_itself_is_counted_and_bounded() {
    let watches = |id: &str| Beat { topics: None, pattern: Some("^t".to_owned()), ..Client::new(id, &[]).full(0) };
    let mut world = World::new(GroupSettings { members_bytes_max: 2500, ..settings() });
    assert!(world.beat(watches("a")).is_ok());
    assert_eq!(world.beat(watches("b")), Err(GroupRefusal::Busy), "a pattern alone is a member as well");
    let mut world = World::new(GroupSettings { members_bytes_max: 6000, ..settings() });
    let long = |n: usize| format!("{n:0>width$}", width = limits::MEMBER_ID_BYTES_MAX);
    assert!(world.beat(watches(&long(1))).is_ok());
    assert_eq!(world.beat(watches(&long(2))), Err(GroupRefusal::Busy), "an id is kept as well");
    let mut world = World::new(settings());
    let too_long = || "x".repeat(limits::MEMBER_ID_BYTES_MAX + 1);
    let named = |id: String, instance: Option<String>| MemberName { id, instance };
    for beat in [
        Beat { member: named(too_long(), None), ..watches("a") },
        Beat { member: named("a".to_owned(), Some(too_long())), ..watches("a") },
        Beat { rack: Some(too_long()), ..watches("a") },
    ] {
        assert_eq!(world.beat(beat), Err(GroupRefusal::InvalidRequest));
    }
    assert_eq!(world.coordinator.members_bytes, 0);
}

/// Lost if it fails: one request of a few bytes takes gigabytes and minutes of core 0, by naming a large group again
/// and again.
#[test]
fn an_answer_about_groups_is_bounded_whatever_is_named() {
    let mut world = World::new(settings());
    let names: Vec<String> = (0..2000).map(|n| format!("{n:0>200}")).collect();
    let client = Client { topics: names, ..Client::new("a", &[]) };
    world.beat(client.full(0)).unwrap();
    for partition in 0..4 {
        let metadata = "m".repeat(100_000);
        let offset = PartitionOffset { partition, offset: 1, leader_epoch: -1, metadata };
        let topics = vec![TopicOffsets { topic: id(1), partitions: vec![offset] }];
        world.decide(&Command::CommitOffsets { group: "g".to_owned(), at_ms: 1, topics });
    }
    let many = 5000;
    let (asked, fetch) = (vec!["g".to_owned(); many], |group: &String| FetchGroup {
        group: group.clone(),
        member: None,
        epoch: -1,
        topics: None,
    });
    let said: Vec<Vec<Result<(), GroupRefusal>>> = [
        GroupAsk::DescribeConsumers { groups: asked.clone() },
        GroupAsk::Fetch { groups: asked.iter().map(fetch).collect() },
    ]
    .into_iter()
    .map(|ask| match world.ask(ask) {
        GroupAnswer::ConsumersDescribed(all) => all.into_iter().map(|one| one.map(|_| ())).collect(),
        GroupAnswer::Fetched(all) => all.into_iter().map(|one| one.map(|_| ())).collect(),
        other => panic!("{other:?}"),
    })
    .collect();
    for said in said {
        let told = said.iter().take_while(|one| one.is_ok()).count();
        assert!((2..100).contains(&told), "a few, and not {told}");
        assert_eq!(said.len(), many);
        assert!(said[told..].iter().all(|one| *one == Err(GroupRefusal::Busy)), "the others are to come again");
    }
}

/// Lost if it fails: many members that come at once hold up core 0, each with an assignment of everything.
#[test]
fn a_large_group_lets_changes_gather() {
    let mut world = World::new(settings());
    for n in 0..11 {
        world.create(&format!("large-{n}"), 100 + n, 1000);
    }
    let topics: Vec<String> = (0..11).map(|n| format!("large-{n}")).collect();
    let client = |id: &str| Client { topics: topics.clone(), ..Client::new(id, &[]) };
    let (mut a, mut b) = (client("a"), client("b"));
    a.joins(&mut world).unwrap();
    assert_eq!(a.told.len(), 11_000);
    let unchanged = b.joins(&mut world).unwrap();
    assert!(unchanged.epoch > 0 && b.told.is_empty());
    world.state_is(ConsumersState::Assigning);
    world.passes(ms(1000));
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!((a.has.len(), b.has.len()), (5500, 5500));
}

/// Lost if it fails: a member that was replaced moves the group's offsets over those of its successor.
#[test]
fn only_members_in_their_epoch_commit_and_fetch() {
    let mut world = World::new(settings());
    assert_eq!(world.commit("", -1, 1), Ok(()), "there is no group yet");
    let (a, b) = pair(&mut world);
    assert_eq!(world.commit("a", a.epoch, 5), Ok(()));
    assert_eq!(world.commit("a", a.epoch - 1, 6), Err(GroupRefusal::StaleMemberEpoch));
    assert_eq!(world.commit("a", a.epoch + 1, 6), Err(GroupRefusal::StaleMemberEpoch));
    assert_eq!(world.commit("nobody", a.epoch, 6), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.commit("", -1, 6), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.fetched(Some("b"), b.epoch), Ok(Some(5)));
    assert_eq!(world.fetched(None, -1), Ok(Some(5)));
    assert_eq!(world.fetched(Some("b"), b.epoch + 1), Err(GroupRefusal::StaleMemberEpoch));
    assert_eq!(world.fetched(Some("nobody"), b.epoch), Err(GroupRefusal::UnknownMember));
    for mut client in [a, b] {
        client.leaves(&mut world, -1).unwrap();
    }
    assert_eq!(world.commit("", -1, 7), Ok(()), "nobody is in it any more");
    assert_eq!(world.commit("a", 1, 8), Err(GroupRefusal::UnknownMember));
    assert_eq!(world.fetched(None, -1), Ok(Some(7)));
}

/// Lost if it fails: an operator sees another group than there is, or takes a running one's offsets away.
#[test]
fn a_group_is_described_listed_and_kept_as_what_it_is() {
    let mut world = World::new(settings());
    let (a, b) = pair(&mut world);
    world.commit("a", a.epoch, 5).unwrap();
    let described = world.described().unwrap();
    assert_eq!((described.epoch, described.assignment_epoch, described.assignor), (a.epoch, a.epoch, "uniform"));
    for (client, member) in [&a, &b].into_iter().zip(&described.members) {
        assert_eq!((&member.id, member.epoch, member.is_classic), (&client.id, client.epoch, false));
        assert_eq!((member.client_id.as_str(), &member.topics), ("client", &client.topics));
        for partitions in [&member.assignment, &member.target] {
            let [(topic, name, numbers)] = &partitions[..] else { panic!("{partitions:?}") };
            assert_eq!(name, "t");
            assert_eq!(numbers.iter().map(|number| (*topic, *number)).collect::<Set>(), client.has);
        }
    }
    let groups = vec!["g".to_owned()];
    assert_eq!(
        world.ask(GroupAsk::Describe { groups: groups.clone() }),
        GroupAnswer::Described(vec![Err(GroupRefusal::GroupNotFound)])
    );
    let listed = Listed {
        group: "g".to_owned(),
        protocol_type: "consumer".to_owned(),
        kind: GroupKind::Consumer,
        state: "Stable",
    };
    assert_eq!(world.ask(GroupAsk::List), GroupAnswer::Listed(vec![listed]));
    let deleted = world.ask(GroupAsk::DeleteGroups { groups: groups.clone() });
    assert_eq!(deleted, GroupAnswer::GroupsDeleted(vec![Err(GroupRefusal::NonEmptyGroup)]));
    let topics = vec![("t".to_owned(), id(1), vec![0]), ("u".to_owned(), id(2), vec![0])];
    let deleted = world.ask(GroupAsk::DeleteOffsets { group: "g".to_owned(), topics });
    assert_eq!(deleted, GroupAnswer::OffsetsDeleted(Ok(vec![Err(GroupRefusal::SubscribedToTopic), Ok(())])));
    for mut client in [a, b] {
        client.leaves(&mut world, -1).unwrap();
    }
    assert_eq!(world.ask(GroupAsk::DeleteGroups { groups }), GroupAnswer::GroupsDeleted(vec![Ok(())]));
    assert_eq!((world.described(), world.fetched(None, -1)), (None, Ok(None)));
}

/// Lost if it fails: what a member of before a restart sends late is taken for what it says now, and a partition has
/// two owners in one epoch.
#[test]
fn after_a_restart_members_are_unknown_and_no_epoch_is_given_again() {
    let mut world = World::new(settings());
    let (mut a, mut b) = pair(&mut world);
    let before = std::mem::take(&mut world.epochs);
    world.coordinator.step_down(&mut world.out);
    world.coordinator.take_over(world.now, Term(2));
    assert_eq!(world.commit("a", a.epoch, 5), Err(GroupRefusal::UnknownMember), "GROUP_ID_NOT_FOUND would be fatal");
    for client in [&mut a, &mut b] {
        assert_eq!(client.beats(&mut world), Err(GroupRefusal::UnknownMember));
        client.joins(&mut world).unwrap();
    }
    world.settle(&mut [&mut a, &mut b]);
    assert!(world.epochs.is_disjoint(&before) && !world.epochs.is_empty(), "{before:?} {:?}", world.epochs);
}

/// Lost if it fails: the first member that comes after a restart reads what another still reads, which has not heard of
/// it.
#[test]
fn after_a_restart_a_group_that_has_committed_waits_until_its_members_of_before_know() {
    let mut world = World::new(settings());
    let (mut a, mut b) = pair(&mut world);
    world.commit("a", a.epoch, 5).unwrap();
    world.coordinator.step_down(&mut world.out);
    world.coordinator.take_over(world.now, Term(2));
    a.joins(&mut world).unwrap();
    a.steps(&mut world).unwrap();
    assert!(a.told.is_empty());
    world.passes(ms(4900));
    assert_eq!(b.beats(&mut world), Err(GroupRefusal::UnknownMember));
    b.joins(&mut world).unwrap();
    a.beats(&mut world).unwrap();
    assert!(a.told.is_empty() && b.told.is_empty());
    world.passes(ms(200));
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!((a.has.len(), b.has.len()), (2, 2));
}

/// Lost if it fails: a broker that stops takes members in that it can not keep, or keeps those that go.
#[test]
fn a_broker_that_stops_lets_members_leave_and_nobody_in() {
    let mut world = World::new(settings());
    let (mut a, mut b) = pair(&mut world);
    world.coordinator.stop(&mut world.out);
    assert_eq!(b.beats(&mut world), Err(GroupRefusal::Stopping));
    assert!(a.leaves(&mut world, -1).is_ok());
}
