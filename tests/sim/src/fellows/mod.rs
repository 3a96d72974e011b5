//! A group of several members, of one protocol or of both, that have the topic's partitions between them. They come and
//! go, die, and stand still for so long that they are taken for dead; what they are told they do as real clients do it:
//! they stop reading before they say that they have given up, and lose everything when they hear that they are out.
//! Now and then one commits late, as what it was before: that must not count.
//!
//! In the history a member says what it has, in which generation or epoch, and when it asked and was answered as a
//! member (`camus-history` judges that no partition has two owners, and that nobody commits who is out). When it is
//! calm, each partition has to come to one member, be read by it and committed.
//!
//! Files: `classic.rs` what members of the classic protocol say, `consumer.rs` what those of KIP-848 say. This file:
//! what they have in common, and the group.

mod classic;
mod consumer;

use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::Reach;
use crate::readers::{COORDINATED_ELSEWHERE, RETRIABLE_GROUP, Reader};
use crate::wire::{
    Conn, OFFSET_COMMIT, OFFSET_COMMIT_IN_EPOCH, OFFSET_FETCH, OFFSET_FETCH_IN_EPOCH, Told, commit_as, fetch_offset,
    fetch_offset_as,
};
use bytes::Bytes;
use camus_engine::rt::rng::Rng;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{Assigned, Assignor, By, CommitOffset, FetchOffset, Lost, Outcome, Revoked, Stays};
use kafka_protocol::messages::{OffsetCommitResponse, OffsetFetchResponse};
use kafka_protocol::protocol::Decodable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const GROUP: &str = "fellows";

const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const REBALANCING: i16 = 27;
const FENCED_EPOCH: i16 = 110;
const STALE_EPOCH: i16 = 113;
/// Of a commit: it was refused before anything was done with it.
const NOT_A_MEMBER: [i16; 4] = [ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED_EPOCH, STALE_EPOCH];
/// Who was refused asks again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// A member that has left comes back after this.
const BACK_AFTER: Duration = Duration::from_millis(1_200);
/// Epochs of a group in one term of the meta shard, in bits: docs/adr/0016. What is above them names the coordinator.
const EPOCH_BITS: u32 = 19;
/// What members of KIP-848 subscribe to instead of the topic's name: all of these mean it.
const PATTERNS: [Option<&str>; 3] = [None, Some("[a-t]"), Some("t|other-.*")];

fn ms(ms: usize) -> Duration {
    Duration::from_millis(ms as u64)
}

/// The broker assigns, in the term that this epoch is of.
fn by_coordinator(epoch: i32) -> Assignor {
    Assignor::Coordinator((epoch >> EPOCH_BITS).to_string())
}

/// What a group's members speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Classic,
    Consumer,
    /// The group changes its protocol when the one member of KIP-848 comes and goes.
    Mixed,
}

impl Kind {
    /// Most clusters have such a group, and every second lone broker.
    pub fn drawn(rng: &mut Rng, is_cluster: bool) -> Option<Kind> {
        let kind = [Kind::Classic, Kind::Consumer, Kind::Mixed][rng.between(0, 2) as usize];
        rng.chance(if is_cluster { 75 } else { 50 }).then_some(kind)
    }

    fn protocols(self) -> [Protocol; 3] {
        match self {
            Kind::Classic => [Protocol::Classic; 3],
            Kind::Consumer => [Protocol::Consumer; 3],
            Kind::Mixed => [Protocol::Classic, Protocol::Consumer, Protocol::Classic],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    Classic,
    Consumer,
}

/// The group.
pub struct Fellows {
    partitions: i32,
    all: Vec<Fellow>,
}

impl Fellows {
    /// Nobody, where there is no such group.
    pub fn new(first_process: u32, kind: Option<Kind>, partitions: i32) -> Fellows {
        let protocols = kind.map(Kind::protocols).into_iter().flatten();
        let all = (first_process..).zip(protocols).zip(PATTERNS);
        let one = |((process, protocol), pattern)| Fellow::new(process, protocol, pattern, partitions);
        Fellows { partitions, all: all.map(one).collect() }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        self.all.iter_mut().for_each(|fellow| fellow.step(cluster, ledger));
    }

    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        self.all.iter_mut().for_each(|fellow| fellow.lose_answer(now, ledger));
    }

    /// To the coordinator, and to the leaders of what they read.
    pub fn reaches(&mut self) -> impl Iterator<Item = &mut Reach> {
        self.all.iter_mut().flat_map(Fellow::reaches)
    }

    /// Since it is calm, each partition has to have come to one member that has read it, committed, and seen it.
    pub fn not_done(&self) -> Vec<String> {
        let left: Vec<i32> = (0..self.partitions).filter(|number| !self.is_served(*number)).collect();
        if self.all.is_empty() || left.is_empty() {
            return vec![];
        }
        let members: Vec<String> = self.all.iter().map(Fellow::name).collect();
        let members = members.join("; ");
        vec![format!("partitions {left:?} are not served by one member of group {GROUP} each: {members}")]
    }

    fn is_served(&self, number: i32) -> bool {
        let mut owners = self.all.iter().filter(|fellow| fellow.hands.contains_key(&number));
        let (first, second) = (owners.next(), owners.next());
        second.is_none() && first.is_some_and(|fellow| fellow.serves(number))
    }
}

/// How far a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It is to join.
    Out,
    /// Of the classic protocol: it is to ask for its assignment.
    Joined,
    In,
    /// It has stopped reading, and is to say that it leaves.
    Leaves,
}

/// A partition that it has.
struct Hand {
    /// It knows where the group is, and reads.
    is_placed: bool,
    committed: i64,
    /// When it was calm first: how often the reader had been answered.
    fetches_before: Option<u64>,
    /// When it was calm: something was committed, and after that something was fetched.
    proven: (bool, bool),
}

impl Hand {
    fn new() -> Hand {
        Hand { is_placed: false, committed: -1, fetches_before: None, proven: (false, false) }
    }
}

/// What a member of KIP-848 has to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    Nothing,
    /// It has come to what it was given.
    Owned,
    /// What it said last may not have been heard.
    All,
}

enum Asked {
    Join,
    Sync,
    Heartbeat,
    Beat { joins: bool },
    Leave,
    Fetch { number: i32 },
    Commit { by: By, number: i32, offset: i64, is_late: bool },
}

/// A commit that is sent when it must not count any more.
struct Late {
    by: By,
    number: i32,
    offset: i64,
}

/// One member.
struct Fellow {
    process: u32,
    protocol: Protocol,
    pattern: Option<&'static str>,
    reach: Reach,
    /// By partition. Of what it does not have they stand still, and remember whom they heard of.
    readers: Vec<Reader>,
    hands: BTreeMap<i32, Hand>,
    stage: Stage,
    /// Empty: the broker is to make one.
    id: String,
    lives: u32,
    /// Or epoch; 0: it is in none.
    generation: i32,
    assignor: Assignor,
    asked: Option<(Asked, Mono)>,
    beats_at: Mono,
    again_at: Mono,
    /// It does nothing until then, whatever it has.
    away_until: Mono,
    late: Option<Late>,
    /// Of the classic protocol: whom it assigns to, if it leads.
    roll: Vec<String>,
    /// Of KIP-848: what it was given and has not come to, since it has to give something up first. And until then it
    /// takes its time.
    wanted: Option<BTreeSet<i32>>,
    gives_up_at: Mono,
    says: Says,
    /// Has the topic's id.
    topic: Option<Told>,
}

impl Fellow {
    fn new(process: u32, protocol: Protocol, pattern: Option<&'static str>, partitions: i32) -> Fellow {
        let mut fellow = Fellow {
            process,
            protocol,
            pattern,
            reach: Reach::coordinator_of(GROUP),
            readers: (0..partitions).map(|number| Reader::new(process, number)).collect(),
            hands: BTreeMap::new(),
            stage: Stage::Out,
            id: String::new(),
            lives: 0,
            generation: 0,
            assignor: by_coordinator(0),
            asked: None,
            beats_at: Mono(0),
            again_at: Mono(0),
            // one after the other, so that what the first has is to be shared
            away_until: Mono(0) + ms(500 + 400 * (process % 4) as usize),
            late: None,
            roll: vec![],
            wanted: None,
            gives_up_at: Mono(0),
            says: Says::Nothing,
            topic: None,
        };
        fellow.is_born();
        fellow
    }

    /// As a new process: members of KIP-848 make their own ids.
    fn is_born(&mut self) {
        self.lives += 1;
        self.id = match self.protocol {
            Protocol::Classic => String::new(),
            Protocol::Consumer => format!("{GROUP}-{}-{}", self.process, self.lives),
        };
    }

    fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        if cluster.now() < self.away_until && !ledger.calm {
            return;
        }
        for (number, hand) in self.hands.iter_mut().filter(|(_, hand)| hand.is_placed) {
            let reader = &mut self.readers[*number as usize];
            if ledger.calm {
                hand.fetches_before.get_or_insert(reader.fetches());
            }
            reader.step(cluster, ledger);
        }
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.lose_answer(cluster.now(), ledger);
        }
        for (_, body) in conn.answers(cluster) {
            self.answered(body, cluster, ledger);
        }
        let may_ask = self.asked.is_none() && cluster.now() >= self.again_at;
        if may_ask && !self.reach.is_done_here(cluster) {
            self.ask(&mut conn, cluster, ledger);
        }
        self.reach.keep(conn);
    }

    fn ask(&mut self, conn: &mut Conn, cluster: &mut Cluster, ledger: &mut Ledger) {
        if !ledger.calm && (self.strays(conn, cluster, ledger) || self.commits_late(conn, cluster)) {
            return;
        }
        let has_asked = match self.protocol {
            Protocol::Classic => self.ask_classic(conn, cluster),
            Protocol::Consumer => self.ask_consumer(conn, cluster, ledger),
        };
        if !has_asked && self.stage == Stage::In {
            self.ask_offsets(conn, cluster, ledger.calm);
        }
    }

    /// Now and then it leaves, dies, or stands still.
    fn strays(&mut self, conn: &Conn, cluster: &mut Cluster, ledger: &mut Ledger) -> bool {
        if self.stage != Stage::In || cluster.pick(3_000) != 0 {
            return false;
        }
        let now = cluster.now();
        match cluster.pick(4) {
            0 | 1 => {
                self.loses_all(now, false, ledger);
                self.stage = Stage::Leaves;
            }
            2 => {
                self.loses_all(now, false, ledger);
                cluster.world.reset(conn.id);
                self.is_born();
                self.away_until = now + ms(200 + cluster.pick(2_000));
            }
            _ => self.away_until = now + ms(5_000 + cluster.pick(4_000)),
        }
        true
    }

    /// As what it was before, if it is something else by now.
    fn commits_late(&mut self, conn: &mut Conn, cluster: &mut Cluster) -> bool {
        let now = (self.id.as_str(), self.generation);
        let is_over = self.late.as_ref().is_some_and(|late| (late.by.member.as_str(), late.by.generation) != now);
        if !is_over || !cluster.chance(3) {
            return false;
        }
        let Some(Late { by, number, offset }) = self.late.take() else { return false };
        self.ask_commit(conn, cluster, by, (number, offset), true);
        true
    }

    /// Where to read on, or that it has read.
    fn ask_offsets(&mut self, conn: &mut Conn, cluster: &mut Cluster, calm: bool) {
        let is_to_look = |hand: &Hand| !hand.is_placed || (calm && hand.proven == (true, false));
        let looked_for = self.hands.iter().find(|(_, hand)| is_to_look(hand)).map(|(number, _)| *number);
        if let Some(number) = looked_for {
            return self.ask_offset(conn, cluster, number);
        }
        let mut read = Vec::new();
        for (number, hand) in &self.hands {
            let position = self.readers[*number as usize].position();
            if position > hand.committed || (calm && !hand.proven.0) {
                read.push((*number, position));
            }
        }
        if !read.is_empty() && cluster.chance(20) {
            let what = read[cluster.pick(read.len())];
            let by = self.by();
            self.ask_commit(conn, cluster, by, what, false);
        }
    }

    fn ask_offset(&mut self, conn: &mut Conn, cluster: &mut Cluster, number: i32) {
        match self.protocol {
            Protocol::Classic => conn.send(cluster, OFFSET_FETCH, &fetch_offset(GROUP, TOPIC, number)),
            Protocol::Consumer => {
                let me = (GROUP, self.id.as_str(), self.generation);
                conn.send(cluster, OFFSET_FETCH_IN_EPOCH, &fetch_offset_as(me, TOPIC, number))
            }
        };
        self.asked = Some((Asked::Fetch { number }, cluster.now()));
    }

    fn ask_commit(
        &mut self,
        conn: &mut Conn,
        cluster: &mut Cluster,
        by: By,
        (number, offset): (i32, i64),
        is_late: bool,
    ) {
        let at = (number, self.readers[number as usize].reach().epoch());
        let commit = commit_as((GROUP, by.member.as_str(), by.generation), TOPIC, at, offset);
        conn.send(cluster, self.commit_version(), &commit);
        self.asked = Some((Asked::Commit { by, number, offset, is_late }, cluster.now()));
    }

    fn commit_version(&self) -> i16 {
        match self.protocol {
            Protocol::Classic => OFFSET_COMMIT,
            Protocol::Consumer => OFFSET_COMMIT_IN_EPOCH,
        }
    }

    fn answered(&mut self, body: Bytes, cluster: &mut Cluster, ledger: &mut Ledger) {
        let now = cluster.now();
        let Some((asked, invoked)) = self.asked.take() else {
            panic!("{} got an answer that it did not ask for", self.name());
        };
        match asked {
            Asked::Join => self.joined(body, now, ledger),
            Asked::Sync => self.synced(body, invoked, now, ledger),
            Asked::Heartbeat => self.heard(body, invoked, now, ledger),
            Asked::Beat { joins } => self.beaten(body, joins, invoked, cluster, ledger),
            Asked::Leave => self.has_left(now),
            Asked::Fetch { number } => self.fetched(body, number, invoked, now, ledger),
            Asked::Commit { by, number, offset, is_late } => {
                let code = self.committed(body, by, (number, offset), (invoked, now), ledger);
                match code {
                    // what it was is over, and says nothing of what it is
                    _ if is_late && (code == REBALANCING || NOT_A_MEMBER.contains(&code)) => {}
                    0 if is_late => {}
                    0 => self.has_committed(number, offset, ledger.calm),
                    _ => self.refused(code, now, ledger),
                }
            }
        }
    }

    fn fetched(&mut self, mut body: Bytes, number: i32, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        // the code, or the offset and the epoch of the leader from which it was read
        let told = match self.protocol {
            Protocol::Classic => {
                let answer = OffsetFetchResponse::decode(&mut body, OFFSET_FETCH).unwrap();
                match answer.error_code {
                    0 => {
                        let told = &answer.topics[0].partitions[0];
                        (told.error_code, told.committed_offset, told.committed_leader_epoch)
                    }
                    code => (code, -1, -1),
                }
            }
            Protocol::Consumer => {
                let answer = OffsetFetchResponse::decode(&mut body, OFFSET_FETCH_IN_EPOCH).unwrap();
                match answer.groups[0].error_code {
                    0 => {
                        let told = &answer.groups[0].topics[0].partitions[0];
                        (told.error_code, told.committed_offset, told.committed_leader_epoch)
                    }
                    code => (code, -1, -1),
                }
            }
        };
        let (code, offset, epoch) = told;
        if code != 0 {
            return self.refused(code, now, ledger);
        }
        let fetch = FetchOffset { group: GROUP.to_owned(), partition: partition(number), offset };
        ledger.add(self.process, invoked, now, Op::FetchOffset(fetch));
        let Some(hand) = self.hands.get_mut(&number) else { return };
        hand.proven.1 |= hand.proven.0;
        if !hand.is_placed {
            (hand.is_placed, hand.committed) = (true, offset);
            let reader = &mut self.readers[number as usize];
            // a leader that has not heard of what was read there knows nothing of that offset
            reader.reach().has_heard_of(epoch);
            reader.seek(offset.max(0));
        }
    }

    /// What became of a commit: the code.
    fn committed(&self, mut body: Bytes, by: By, what: (i32, i64), when: (Mono, Mono), ledger: &mut Ledger) -> i16 {
        let answer = OffsetCommitResponse::decode(&mut body, self.commit_version()).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        let outcome = match code {
            0 => Outcome::Acked,
            code if NOT_A_MEMBER.contains(&code) => Outcome::Failed,
            // what was refused may have been proposed before: nobody knows
            _ => Outcome::Info,
        };
        self.record(by, what, when, outcome, ledger);
        code
    }

    fn record(
        &self,
        by: By,
        (number, offset): (i32, i64),
        (invoked, now): (Mono, Mono),
        outcome: Outcome,
        ledger: &mut Ledger,
    ) {
        let (group, partition) = (GROUP.to_owned(), partition(number));
        let commit = CommitOffset { group, partition, offset, outcome, by: Some(by) };
        ledger.add(self.process, invoked, now, Op::CommitOffset(commit));
    }

    fn has_committed(&mut self, number: i32, offset: i64, calm: bool) {
        if let Some(hand) = self.hands.get_mut(&number) {
            hand.committed = offset;
            hand.proven.0 |= calm;
        }
    }

    /// It is out, or joins anew, or asks another broker, or only asks again.
    fn refused(&mut self, code: i16, now: Mono, ledger: &mut Ledger) {
        let is_classic = self.protocol == Protocol::Classic;
        match code {
            UNKNOWN_MEMBER => {
                self.loses_all(now, true, ledger);
                if is_classic {
                    self.id.clear();
                }
            }
            FENCED_EPOCH if !is_classic => self.loses_all(now, true, ledger),
            ILLEGAL_GENERATION if is_classic => self.loses_all(now, true, ledger),
            REBALANCING if is_classic => self.gives_up_all(now, ledger),
            // its next heartbeat says in which epoch it is
            STALE_EPOCH if !is_classic => (self.beats_at, self.again_at) = (now, now + AGAIN_AFTER),
            code => {
                self.again_at = now + AGAIN_AFTER;
                ledger.expect_one_of(&RETRIABLE_GROUP, code, &self.name());
                if COORDINATED_ELSEWHERE.contains(&code) {
                    self.reach.is_told_off();
                }
            }
        }
    }

    fn by(&self) -> By {
        By { member: self.id.clone(), generation: self.generation }
    }

    /// What it could commit late one day.
    fn remembers(&mut self, number: Option<i32>) {
        let placed = |number: &i32| self.hands.get(number).is_some_and(|hand| hand.is_placed);
        let Some(number) = number.into_iter().chain(self.hands.keys().copied()).find(placed) else { return };
        if self.late.is_none() {
            let offset = self.readers[number as usize].position();
            self.late = Some(Late { by: self.by(), number, offset });
        }
    }

    /// It has these from now on, and no others.
    fn takes(&mut self, numbers: &BTreeSet<i32>, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        self.hands.retain(|number, _| numbers.contains(number));
        for number in numbers {
            self.hands.entry(*number).or_insert_with(Hand::new);
        }
        self.say_assigned(invoked, now, ledger);
    }

    /// It stops reading these, because it is to give them up.
    fn gives_up(&mut self, numbers: &[i32], now: Mono, ledger: &mut Ledger) {
        self.remembers(numbers.first().copied());
        self.hands.retain(|number, _| !numbers.contains(number));
        if !numbers.is_empty() {
            let partitions = numbers.iter().map(|number| partition(*number)).collect();
            let revoked = Revoked { group: GROUP.to_owned(), member: self.id.clone(), partitions };
            ledger.add(self.process, now, now, Op::Revoked(revoked));
        }
    }

    /// And joins anew.
    fn gives_up_all(&mut self, now: Mono, ledger: &mut Ledger) {
        let all: Vec<i32> = self.hands.keys().copied().collect();
        self.gives_up(&all, now, ledger);
        self.stage = Stage::Out;
    }

    /// It stops reading all that it has, and is in no generation any more.
    fn loses_all(&mut self, now: Mono, fenced: bool, ledger: &mut Ledger) {
        self.remembers(None);
        if self.generation != 0 {
            let By { member, generation } = self.by();
            let lost = Lost { group: GROUP.to_owned(), member, generation, fenced };
            ledger.add(self.process, now, now, Op::Lost(lost));
        }
        self.hands.clear();
        (self.stage, self.generation, self.wanted) = (Stage::Out, 0, None);
    }

    fn say_assigned(&self, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let partitions = self.hands.keys().map(|number| partition(*number)).collect();
        let (By { member, generation }, assignor) = (self.by(), self.assignor.clone());
        let assigned = Assigned { group: GROUP.to_owned(), member, generation, assignor, partitions };
        ledger.add(self.process, invoked, now, Op::Assigned(assigned));
    }

    fn say_stays(&self, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let By { member, generation } = self.by();
        let stays = Stays { group: GROUP.to_owned(), member, generation };
        ledger.add(self.process, invoked, now, Op::Stays(stays));
    }

    /// It comes back, as the same process: one of KIP-848 keeps its id.
    fn has_left(&mut self, now: Mono) {
        self.stage = Stage::Out;
        self.away_until = now + BACK_AFTER;
        if self.protocol == Protocol::Classic {
            self.id.clear();
        }
    }

    /// What it waits for, it will never know.
    fn lose_answer(&mut self, now: Mono, ledger: &mut Ledger) {
        self.says = Says::All;
        match self.asked.take() {
            Some((Asked::Commit { by, number, offset, .. }, invoked)) => {
                self.record(by, (number, offset), (invoked, now), Outcome::Info, ledger);
            }
            Some((Asked::Leave, _)) => self.has_left(now),
            Some((Asked::Join | Asked::Sync | Asked::Heartbeat | Asked::Beat { .. } | Asked::Fetch { .. }, _)) => {}
            None => {}
        }
    }

    /// Since it is calm it has read the partition, committed, and seen what it committed.
    fn serves(&self, number: i32) -> bool {
        let reader = &self.readers[number as usize];
        let has_read = |hand: &Hand| hand.fetches_before.is_some_and(|before| reader.fetches() > before);
        self.hands.get(&number).is_some_and(|hand| hand.proven == (true, true) && has_read(hand))
    }

    fn name(&self) -> String {
        let Fellow { process, protocol, stage, id, generation, reach, .. } = self;
        let has: Vec<&i32> = self.hands.keys().collect();
        format!("fellow {process} ({protocol:?}, {stage:?} as {id:?} in {generation}, has {has:?}, {reach})")
    }

    fn reaches(&mut self) -> impl Iterator<Item = &mut Reach> {
        std::iter::once(&mut self.reach).chain(self.readers.iter_mut().map(Reader::reach))
    }
}
