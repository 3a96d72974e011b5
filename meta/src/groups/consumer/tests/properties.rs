//! Whatever clients do, and in whatever order.

use super::*;
use crate::groups::consumer::embedded;
use crate::groups::{Join, Leaver, Sync};
use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Join {
        client: usize,
        lost: bool,
    },
    /// `says`: it takes what it was told, and says what it has; `full`: and everything else again.
    Beat {
        client: usize,
        says: bool,
        full: bool,
        lost: bool,
    },
    Leave {
        client: usize,
        for_a_while: bool,
    },
    Subscribe {
        client: usize,
        topics: usize,
    },
    Prefer {
        client: usize,
        range: bool,
    },
    Grow {
        topic: u128,
    },
    Remake {
        topic: u128,
    },
    Restart,
    Passes {
        ms: u64,
    },
}

const CLIENTS: usize = 5;
const NAMES: [&str; 3] = ["t", "u", "v"];
/// What a client may subscribe to.
const CHOICES: [&[&str]; 5] = [&["t"], &["t", "u"], &["u", "v"], &["t", "u", "v"], &[]];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let client = || 0..CLIENTS;
    let step = prop_oneof![
        6 => (client(), any::<bool>()).prop_map(|(client, lost)| Step::Join { client, lost }),
        12 => (client(), any::<bool>(), any::<bool>(), 0..4u8).prop_map(|(client, says, full, lost)| {
            Step::Beat { client, says, full, lost: lost == 0 }
        }),
        2 => (client(), any::<bool>()).prop_map(|(client, for_a_while)| Step::Leave { client, for_a_while }),
        2 => (client(), 0..CHOICES.len()).prop_map(|(client, topics)| Step::Subscribe { client, topics }),
        1 => (client(), any::<bool>()).prop_map(|(client, range)| Step::Prefer { client, range }),
        1 => (1..4u128).prop_map(|topic| Step::Grow { topic }),
        1 => (1..4u128).prop_map(|topic| Step::Remake { topic }),
        1 => Just(Step::Restart),
        5 => proptest::sample::select(vec![1, 700, 4000, 11_000, 30_000]).prop_map(|ms| Step::Passes { ms }),
    ];
    proptest::collection::vec(step, 1..100)
}

struct Run {
    world: World,
    clients: Vec<Client>,
    /// Names of topics by number, 1 and up: under which id each is there now, and with how many partitions.
    topics: BTreeMap<u128, (u128, u32)>,
    made: u128,
    term: u64,
    /// Epochs of coordinators of before.
    older: BTreeSet<i32>,
}

impl Run {
    /// The first two clients are static members.
    fn new() -> Run {
        let mut world = World::new(settings());
        world.create("v", 3, 3);
        let client = |n: usize| match n {
            0 | 1 => Client::fixed(&format!("c{n}"), &format!("i{n}"), &["t"]),
            _ => Client::new(&format!("c{n}"), &["t"]),
        };
        let topics = BTreeMap::from([(1, (1, 4)), (2, (2, 2)), (3, (3, 3))]);
        let clients = (0..CLIENTS).map(client).collect();
        Run { world, clients, topics, made: 100, term: 1, older: BTreeSet::new() }
    }

    fn step(&mut self, step: &Step) {
        let world = &mut self.world;
        match *step {
            Step::Join { client, lost } => {
                let client = &mut self.clients[client];
                if client.epoch == 0 {
                    client.forget();
                    let answer = world.beat(client.full(0));
                    if !lost {
                        client.hears(&answer);
                    }
                }
            }
            Step::Beat { client, says, full, lost } => {
                let client = &mut self.clients[client];
                if client.epoch == 0 {
                    return;
                }
                if says {
                    client.has.clone_from(&client.told);
                }
                let beat = match (says, full) {
                    (true, true) => client.full(client.epoch),
                    (true, false) => Beat { owned: Some(client.owned()), ..client.quiet(client.epoch) },
                    (false, _) => client.quiet(client.epoch),
                };
                let answer = world.beat(beat);
                if !lost {
                    client.hears(&answer);
                }
            }
            Step::Leave { client, for_a_while } => {
                let client = &mut self.clients[client];
                let away = for_a_while && client.instance.is_some();
                let _ = client.leaves(world, if away { -2 } else { -1 });
            }
            Step::Subscribe { client, topics } => {
                let client = &mut self.clients[client];
                client.topics = CHOICES[topics].iter().map(|name| (*name).to_owned()).collect();
                if client.epoch != 0 {
                    let beat = Beat { topics: Some(client.topics.clone()), ..client.quiet(client.epoch) };
                    let answer = world.beat(beat);
                    client.hears(&answer);
                }
            }
            Step::Prefer { client, range } => {
                self.clients[client].assignor = Some(if range { "range" } else { "uniform" }.to_owned());
            }
            Step::Grow { topic } => {
                let (id, count) = self.topics.get_mut(&topic).expect("all are there");
                *count += 1;
                world.decide(&Command::CreatePartitions { id: Uuid::from_u128(*id), total: *count });
            }
            Step::Remake { topic } => {
                self.made += 1;
                let before = self.topics.insert(topic, (self.made, 2)).expect("all are there");
                world.decide(&Command::DeleteTopic { id: Uuid::from_u128(before.0) });
                world.create(NAMES[topic as usize - 1], self.made, 2);
            }
            Step::Restart => {
                self.term += 1;
                self.older.append(&mut world.epochs);
                world.coordinator.step_down(&mut world.out);
                world.coordinator.take_over(world.now, Term(self.term));
            }
            Step::Passes { ms } => world.passes(Duration::from_millis(ms)),
        }
    }

    /// No partition is read by two that are members: neither in one epoch nor in two.
    fn check(&mut self) {
        assert!(self.world.epochs.is_disjoint(&self.older), "an epoch of before a restart is given again");
        let Some(described) = self.world.described() else { return };
        let mut read = Set::new();
        for member in &described.members {
            let is_it = |client: &&Client| client.id == member.id && client.epoch != 0;
            for part in self.clients.iter().find(is_it).into_iter().flat_map(|client| &client.has) {
                assert!(read.insert(*part), "{part:?} has two readers: {:?} {described:?}", self.clients);
            }
        }
    }

    /// Everybody who is in does what it is told to, for long enough.
    fn calm_down(&mut self) -> Vec<usize> {
        let mut members = Vec::new();
        for round in 0..12 {
            members.clear();
            for (at, client) in self.clients.iter_mut().enumerate() {
                if client.epoch == 0 {
                    continue;
                }
                let answer = client.steps(&mut self.world);
                match answer {
                    Ok(_) => members.push(at),
                    Err(GroupRefusal::UnknownMember | GroupRefusal::FencedMemberEpoch) => {
                        let _ = client.joins(&mut self.world);
                    }
                    Err(why) => panic!("{round}: {why}"),
                }
            }
            self.check();
        }
        members
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lost if it fails: a partition with two readers, or with none; a member with two more than another; memory that
    /// is never given back.
    #[test]
    fn a_partition_has_one_owner_at_a_time_and_in_the_end_each_has_one(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
            run.check();
        }
        // who went without a word is out by then, and so is everybody else: they come back
        run.world.passes(Duration::from_secs(46));
        let members = run.calm_down();
        let clients: Vec<&Client> = members.iter().map(|at| &run.clients[*at]).collect();
        let mut wanted = Set::new();
        for (topic, (id, count)) in &run.topics {
            let name = NAMES[*topic as usize - 1];
            if clients.iter().any(|client| client.topics.iter().any(|topic| topic == name)) {
                wanted.extend(parts(Uuid::from_u128(*id), *count));
            }
        }
        let all: usize = clients.iter().map(|client| client.has.len()).sum();
        let together: Set = clients.iter().flat_map(|client| client.has.iter().copied()).collect();
        prop_assert_eq!((all, &together), (wanted.len(), &wanted));
        let same = clients.windows(2).all(|pair| pair[0].topics == pair[1].topics);
        let sizes: Vec<usize> = clients.iter().map(|client| client.has.len()).collect();
        if let Some(described) = run.world.described() {
            prop_assert!(described.members.is_empty() || described.state == ConsumersState::Stable, "{:?}", described);
            if same && described.assignor == "uniform" && !sizes.is_empty() {
                let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", sizes);
            }
        }
        run.world.passes(Duration::from_secs(2000));
        prop_assert_eq!(run.world.described(), None);
        prop_assert_eq!(run.world.coordinator.members_bytes, 0);
    }
}

/// A classic consumer that gives everything up before it joins. It reads `t`.
#[derive(Clone, Debug)]
struct Eager {
    number: usize,
    id: String,
    /// Below 0: it is to join.
    generation: i32,
    /// It has joined and is to ask for its assignment.
    joined: bool,
    has: Set,
    /// Whom it assigns to, if it leads.
    leads: Vec<String>,
    /// Its request that is not answered yet.
    waits: Option<u64>,
    joins: u32,
}

impl Eager {
    fn new(number: usize) -> Eager {
        let (id, has, leads) = (String::new(), Set::new(), Vec::new());
        Eager { number, id, generation: -1, joined: false, has, leads, waits: None, joins: 0 }
    }

    fn name(&self) -> MemberName {
        MemberName { id: self.id.clone(), instance: None }
    }

    /// It stops reading, and is to join.
    fn stops(&mut self) {
        self.has.clear();
        (self.generation, self.joined) = (-1, false);
    }

    /// The next thing that a client does: hears what it was answered, joins, asks for its assignment, or beats.
    fn acts(&mut self, world: &mut World) {
        if let Some(ticket) = self.waits {
            if let Some(answer) = world.answers.remove(&ticket) {
                self.waits = None;
                self.hears(&answer);
            }
            return;
        }
        let group = "g".to_owned();
        if self.generation < 0 {
            self.stops();
            self.joins += 1;
            let join = Join {
                group,
                member: self.name(),
                fresh: format!("old{}-{}", self.number, self.joins),
                id_required: self.number == 0,
                may_skip_assignment: true,
                client_id: "old".to_owned(),
                client_host: "/192.0.2.2".to_owned(),
                session_timeout: ms(10_000),
                rebalance_timeout: ms(15_000),
                protocol_type: "consumer".to_owned(),
                protocols: vec![("eager".to_owned(), subscription())],
            };
            self.waits = Some(world.start(GroupAsk::Join(Box::new(join))));
        } else if self.joined {
            let mut given: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
            for (number, member) in (0..4).zip(self.leads.iter().cycle()) {
                given.entry(member.as_str()).or_default().push(number);
            }
            let one = |(member, numbers): (&str, Vec<u32>)| {
                (member.to_owned(), embedded::assignment(0, &vec![("t".to_owned(), numbers)]))
            };
            let assignments = given.into_iter().map(one).collect();
            let (generation, member) = (self.generation, self.name());
            let sync = Sync { group, generation, member, protocol_type: None, protocol: None, assignments };
            self.waits = Some(world.start(GroupAsk::Sync(sync)));
        } else {
            let (generation, member) = (self.generation, self.name());
            match world.ask(GroupAsk::Heartbeat { group, generation, member }) {
                GroupAnswer::Heartbeat(Ok(())) => (),
                GroupAnswer::Heartbeat(Err(why)) => self.is_out(why),
                other => panic!("{other:?}"),
            }
        }
    }

    fn is_out(&mut self, why: GroupRefusal) {
        self.stops();
        if why == GroupRefusal::UnknownMember {
            self.id.clear();
        }
    }

    fn hears(&mut self, answer: &GroupAnswer) {
        match answer {
            GroupAnswer::Joined(Ok(joined)) => {
                self.id.clone_from(&joined.member);
                (self.generation, self.joined) = (joined.generation, true);
                self.leads = joined.members.iter().map(|member| member.id.clone()).collect();
            }
            GroupAnswer::Joined(Err((GroupRefusal::MemberIdRequired, id))) => self.id.clone_from(id),
            GroupAnswer::Joined(Err((why, _))) => self.is_out(*why),
            GroupAnswer::Synced(Ok(synced)) => {
                let assigned = embedded::assigned(&synced.assignment).expect("it can be read");
                self.has = assigned.into_iter().flat_map(|(_, numbers)| numbers).map(|n| (id(1), n)).collect();
                self.joined = false;
            }
            GroupAnswer::Synced(Err(why)) => self.is_out(*why),
            other => panic!("{other:?}"),
        }
    }

    fn leaves(&mut self, world: &mut World) {
        if self.waits.is_some() || self.id.is_empty() {
            return;
        }
        let members = vec![Leaver { member: self.name() }];
        let _ = world.ask(GroupAsk::Leave { group: "g".to_owned(), members });
        self.is_out(GroupRefusal::UnknownMember);
    }
}

/// Of version 0, to topic `t`.
fn subscription() -> Bytes {
    let mut to = BytesMut::new();
    to.put_i16(0);
    to.put_i32(1);
    to.put_i16(1);
    to.put_slice(b"t");
    to.put_i32(-1);
    to.freeze()
}

#[derive(Clone, Debug)]
enum Turn {
    New(usize),
    NewJoins(usize),
    NewLeaves(usize),
    Old(usize),
    OldLeaves(usize),
    Passes(u64),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        6 => (0..2usize).prop_map(Turn::New),
        2 => (0..2usize).prop_map(Turn::NewJoins),
        2 => (0..2usize).prop_map(Turn::NewLeaves),
        16 => (0..3usize).prop_map(Turn::Old),
        1 => (0..3usize).prop_map(Turn::OldLeaves),
        4 => proptest::sample::select(vec![1, 700, 4000, 11_000, 30_000]).prop_map(Turn::Passes),
    ];
    proptest::collection::vec(turn, 1..150)
}

/// A group in which two consumers of KIP-848 and three classic ones come and go.
struct Mixed {
    world: World,
    new: Vec<Client>,
    old: Vec<Eager>,
}

impl Mixed {
    fn turn(&mut self, turn: &Turn) {
        let world = &mut self.world;
        match *turn {
            Turn::New(at) => {
                if self.new[at].epoch != 0 {
                    let _ = self.new[at].steps(world);
                }
            }
            Turn::NewJoins(at) => {
                if self.new[at].epoch == 0 {
                    let _ = self.new[at].joins(world);
                }
            }
            Turn::NewLeaves(at) => {
                let _ = self.new[at].leaves(world, -1);
            }
            Turn::Old(at) => self.old[at].acts(world),
            Turn::OldLeaves(at) => self.old[at].leaves(world),
            Turn::Passes(time) => world.passes(ms(time)),
        }
    }

    /// Who is in the group, whatever its protocol is.
    fn members(&mut self) -> BTreeSet<String> {
        if let Some(described) = self.world.described() {
            return described.members.into_iter().map(|member| member.id).collect();
        }
        match self.world.ask(GroupAsk::Describe { groups: vec!["g".to_owned()] }) {
            GroupAnswer::Described(mut described) => {
                described.remove(0).into_iter().flat_map(|group| group.members).map(|member| member.id).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// What all members read; no partition is read by two.
    fn read(&mut self) -> Set {
        let members = self.members();
        let new = self.new.iter().filter(|client| client.epoch != 0 && members.contains(&client.id));
        let old = self.old.iter().filter(|client| members.contains(&client.id));
        let mut read = Set::new();
        for part in new.flat_map(|client| &client.has).chain(old.flat_map(|client| &client.has)) {
            assert!(read.insert(*part), "{part:?} has two readers: {:?} {:?}", self.new, self.old);
        }
        read
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lost if it fails: while a group changes its protocol, or has members of both, a partition has two readers, or in
    /// the end none.
    #[test]
    fn members_of_both_protocols_share_a_group_and_no_partition(turns in turns()) {
        let new = ["a", "b"].map(|id| Client::new(id, &["t"])).to_vec();
        let mut run = Mixed { world: World::new(settings()), new, old: (0..3).map(Eager::new).collect() };
        for turn in &turns {
            run.turn(turn);
            run.read();
        }
        run.world.passes(Duration::from_secs(400));
        // the classic ones come back, and those of KIP-848 that are still there; a classic one that waited to join when
        // the group became one of KIP-848 leaves a member behind that nobody is, until its session ends
        for _ in 0..60 {
            for at in 0..3 {
                run.turn(&Turn::Old(at));
                run.read();
            }
            for at in 0..2 {
                if run.new[at].epoch != 0 && run.new[at].steps(&mut run.world).is_err() {
                    let _ = run.new[at].joins(&mut run.world);
                }
            }
            run.read();
            run.world.passes(ms(500));
        }
        prop_assert_eq!(run.read(), parts(id(1), 4), "{:?} {:?}", run.new, run.old);
        run.world.passes(Duration::from_secs(2000));
        prop_assert_eq!(run.world.coordinator.members_bytes, 0);
    }
}
