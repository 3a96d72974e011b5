//! Lawful histories of groups, from a model of a coordinator and of members that do as they are told or fall behind,
//! and what the checker says of them and of what is added to them.
#![allow(clippy::unwrap_used, reason = "a test may")]

use camus_history::history::{
    Assigned, Assignor, By, CommitOffset, FetchOffset, Lost, Outcome, Revoked, Stays, from_lines, to_lines,
};
use camus_history::{Anomaly, Event, Op, Partition, check};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GROUP: &str = "g";
const PARTITIONS: usize = 3;
const MEMBERS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// A member asks: it joins, hears that it is out, gives up, or gets.
    Beats {
        member: usize,
        gives_up: bool,
    },
    /// The partition is meant for this member from now on.
    Moves {
        partition: usize,
        to: usize,
    },
    /// The coordinator has not heard of the member for too long.
    Expires {
        member: usize,
    },
    /// The coordinator forgets its groups, or another one takes over.
    Restarts,
    Commits {
        member: usize,
        partition: usize,
        late: bool,
    },
    FetchesOffset {
        partition: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..MEMBERS, any::<bool>()).prop_map(|(member, gives_up)| Step::Beats { member, gives_up }),
        4 => (0..PARTITIONS, 0..MEMBERS).prop_map(|(partition, to)| Step::Moves { partition, to }),
        2 => (0..MEMBERS).prop_map(|member| Step::Expires { member }),
        1 => Just(Step::Restarts),
        4 => (0..MEMBERS, 0..PARTITIONS, any::<bool>())
            .prop_map(|(member, partition, late)| Step::Commits { member, partition, late }),
        2 => (0..PARTITIONS).prop_map(|partition| Step::FetchesOffset { partition }),
    ]
}

/// A member, as it knows itself.
#[derive(Clone, Default)]
struct Client {
    /// 0: it is to join.
    epoch: i32,
    /// The epoch before, which is over.
    former: i32,
    has: BTreeSet<usize>,
}

/// The same, as the coordinator knows it.
#[derive(Clone, Default)]
struct Known {
    epoch: i32,
    has: BTreeSet<usize>,
}

/// A group of KIP-848 whose coordinator keeps its promises.
struct Model {
    events: Vec<Event>,
    now_ns: u64,
    life: u64,
    epoch: i32,
    clients: Vec<Client>,
    known: BTreeMap<usize, Known>,
    /// Whom each partition is meant for.
    target: [usize; PARTITIONS],
    committed: [i64; PARTITIONS],
    next_offset: i64,
}

fn name(member: usize) -> String {
    format!("m{member}")
}

fn partition(number: usize) -> Partition {
    Partition::new("t", number as i32)
}

fn partitions(numbers: &BTreeSet<usize>) -> Vec<Partition> {
    numbers.iter().map(|number| partition(*number)).collect()
}

impl Model {
    fn new() -> Model {
        Model {
            events: vec![],
            now_ns: 0,
            life: 1,
            epoch: 0,
            clients: vec![Client::default(); MEMBERS],
            known: BTreeMap::new(),
            target: [0, 1, 2],
            committed: [-1; PARTITIONS],
            next_offset: 0,
        }
    }

    fn event(&mut self, member: usize, op: Op) {
        self.now_ns += 10;
        let (invoked_ns, completed_ns) = (self.now_ns, self.now_ns + 5);
        self.events.push(Event { process: member as u32, invoked_ns, completed_ns, op });
    }

    fn assigned(&mut self, member: usize) {
        let Client { epoch, has, .. } = self.clients[member].clone();
        let assignor = Assignor::Coordinator(self.life.to_string());
        let (group, partitions) = (GROUP.to_owned(), partitions(&has));
        let assigned = Assigned { group, member: name(member), generation: epoch, assignor, partitions };
        self.event(member, Op::Assigned(assigned));
    }

    fn beats(&mut self, member: usize, gives_up: bool) {
        let client = self.clients[member].clone();
        if client.epoch == 0 {
            self.epoch += 1;
            self.known.entry(member).or_default().epoch = self.epoch;
            return self.gets(member);
        }
        let is_known = self.known.get(&member).is_some_and(|known| known.epoch == client.epoch);
        if !is_known {
            self.clients[member] = Client { former: client.epoch, ..Client::default() };
            let (group, generation) = (GROUP.to_owned(), client.epoch);
            return self.event(member, Op::Lost(Lost { group, member: name(member), generation, fenced: true }));
        }
        let stays = Stays { group: GROUP.to_owned(), member: name(member), generation: client.epoch };
        self.event(member, Op::Stays(stays));
        let loses: BTreeSet<usize> = client.has.iter().copied().filter(|p| self.target[*p] != member).collect();
        if !loses.is_empty() && !gives_up {
            // it takes its time
            return;
        }
        if !loses.is_empty() {
            self.clients[member].has.retain(|p| !loses.contains(p));
            let (group, partitions) = (GROUP.to_owned(), partitions(&loses));
            self.event(member, Op::Revoked(Revoked { group, member: name(member), partitions }));
            self.known.get_mut(&member).unwrap().has.retain(|p| !loses.contains(p));
        }
        self.gets(member);
    }

    /// What is meant for the member and nobody has. Its epoch moves on, if there is something.
    fn gets(&mut self, member: usize) {
        let taken: BTreeSet<usize> = self.known.values().flat_map(|known| known.has.iter().copied()).collect();
        let free: Vec<usize> = (0..PARTITIONS).filter(|p| self.target[*p] == member && !taken.contains(p)).collect();
        let before = self.clients[member].epoch;
        if before != 0 && free.is_empty() {
            return;
        }
        self.epoch += 1;
        let (epoch, known) = (self.epoch, self.known.get_mut(&member).unwrap());
        known.epoch = epoch;
        known.has.extend(free);
        let has = known.has.clone();
        self.clients[member] = Client { epoch, former: before, has };
        self.assigned(member);
    }

    fn commits(&mut self, member: usize, number: usize, late: bool) {
        let client = self.clients[member].clone();
        let generation = if late { client.former } else { client.epoch };
        if generation == 0 || !(late || client.has.contains(&number)) {
            return;
        }
        let is_in = self.known.get(&member).is_some_and(|known| known.epoch == generation);
        self.next_offset += 3;
        let offset = self.next_offset;
        if is_in {
            self.committed[number] = offset;
        }
        let outcome = if is_in { Outcome::Acked } else { Outcome::Failed };
        let (group, by) = (GROUP.to_owned(), Some(By { member: name(member), generation }));
        let commit = CommitOffset { group, partition: partition(number), offset, outcome, by };
        self.event(member, Op::CommitOffset(commit));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Beats { member, gives_up } => self.beats(member, gives_up),
            Step::Moves { partition, to } => self.target[partition] = to,
            Step::Expires { member } => {
                self.known.remove(&member);
            }
            Step::Restarts => {
                self.life += 1;
                self.known.clear();
            }
            Step::Commits { member, partition, late } => self.commits(member, partition, late),
            Step::FetchesOffset { partition: number } => {
                let (group, offset) = (GROUP.to_owned(), self.committed[number]);
                self.event(90, Op::FetchOffset(FetchOffset { group, partition: partition(number), offset }));
            }
        }
    }

    /// The last member gets partition 0 for itself, whatever was before.
    fn settles(&mut self) {
        self.life += 1;
        self.known.clear();
        self.target = [MEMBERS - 1; PARTITIONS];
        for _ in 0..2 {
            self.beats(MEMBERS - 1, true);
        }
        assert!(self.clients[MEMBERS - 1].has.contains(&0), "it is meant for it and nobody has it");
    }
}

fn model() -> impl Strategy<Value = Model> {
    proptest::collection::vec(step(), 0..80).prop_map(|steps| {
        let mut model = Model::new();
        steps.iter().for_each(|step| model.step(step));
        model
    })
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&to_lines(&self.events))
    }
}

/// Classic generations: who leads one gives each partition to one member; some never hear of it.
fn generations() -> impl Strategy<Value = Vec<Event>> {
    let one = (proptest::collection::vec(0..MEMBERS, PARTITIONS), any::<[bool; MEMBERS]>(), any::<bool>());
    proptest::collection::vec(one, 1..12).prop_map(|all| {
        let (mut events, mut now_ns, mut generation, mut life) = (vec![], 0, 0, 0);
        for (owners, hears, restarts) in all {
            if restarts {
                (generation, life) = (0, life + 1);
            }
            generation += 1;
            for member in (0..MEMBERS).filter(|member| hears[*member]) {
                now_ns += 10;
                let has: BTreeSet<usize> = (0..PARTITIONS).filter(|p| owners[*p] == member).collect();
                // ids are of a life, and so are leaders
                let id = |member: usize| format!("m{member}-{life}");
                let op = Op::Assigned(Assigned {
                    group: GROUP.to_owned(),
                    member: id(member),
                    generation,
                    assignor: Assignor::Leader(id(0)),
                    partitions: partitions(&has),
                });
                events.push(Event { process: member as u32, invoked_ns: now_ns, completed_ns: now_ns + 5, op });
            }
        }
        events
    })
}

fn gives_something(event: &Event) -> Option<Assigned> {
    let Op::Assigned(assigned) = &event.op else { return None };
    (!assigned.partitions.is_empty()).then(|| assigned.clone())
}

fn names(history: &[Event]) -> Vec<&'static str> {
    check(history).iter().map(Anomaly::name).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Lost if it fails: a checker that cries wolf is switched off.
    #[test]
    fn a_group_that_keeps_its_promises_shows_nothing(model in model()) {
        prop_assert_eq!(check(&model.events), []);
        prop_assert_eq!(from_lines(&to_lines(&model.events)), Ok(model.events));
    }

    /// Lost if it fails: a partition that is given on before it is given up.
    #[test]
    fn a_second_owner_is_found(mut model in model(), says in 1..4usize) {
        model.settles();
        let (owner, thief) = (MEMBERS - 1, MEMBERS);
        model.clients.push(Client { epoch: model.epoch + 1, former: 0, has: BTreeSet::from([0]) });
        model.assigned(thief);
        for _ in 0..says {
            for member in [owner, thief] {
                let (group, generation) = (GROUP.to_owned(), model.clients[member].epoch);
                model.event(member, Op::Stays(Stays { group, member: name(member), generation }));
            }
        }
        prop_assert_eq!(names(&model.events), ["owned-twice"]);
    }

    /// Lost if it fails: a commit in an epoch that nobody looks at.
    #[test]
    fn a_commit_of_before_is_found(mut model in model(), fenced in any::<bool>()) {
        model.settles();
        let owner = MEMBERS - 1;
        let before = model.clients[owner].epoch;
        if fenced {
            model.known.clear();
            model.beats(owner, true);
        } else {
            model.clients[owner].epoch = before + 1;
            model.assigned(owner);
        }
        let (group, by) = (GROUP.to_owned(), Some(By { member: name(owner), generation: before }));
        let (partition, offset, outcome) = (partition(0), 1_000_000, Outcome::Acked);
        model.event(owner, Op::CommitOffset(CommitOffset { group, partition, offset, outcome, by }));
        prop_assert_eq!(names(&model.events), ["fenced-commit"]);
    }

    /// Lost if it fails: generations of the classic protocol that are whole are called broken, or broken ones whole.
    #[test]
    fn classic_generations_are_compared_by_themselves(mut history in generations()) {
        prop_assert_eq!(check(&history), []);
        let Some(mut stolen) = history.iter().rev().find_map(gives_something) else { return Ok(()) };
        stolen.member = "thief".to_owned();
        stolen.partitions.truncate(1);
        let at_ns = history.last().unwrap().completed_ns + 5;
        let op = Op::Assigned(stolen);
        history.push(Event { process: 99, invoked_ns: at_ns, completed_ns: at_ns + 5, op });
        prop_assert_eq!(names(&history), ["owned-twice"]);
    }
}
