//! Three replicas in memory: disks that flush late, a network that loses, doubles and reorders, crashes. Seeded.

use super::*;
use crate::types::{EntryId, Index, ShardId, Term};
use crate::wal::record::{RecordHead, RecordKind};
use std::collections::{BTreeMap, VecDeque};

const SHARD: ShardId = ShardId(1);
const IDS: [u64; 3] = [1, 2, 3];

/// SplitMix64: the same run for the same seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One replica with its disk. What is in `durable` survives a crash, what is in `unflushed` does not.
struct Node {
    replica: Option<Replica>,
    durable: Vec<(RecordHead, Vec<u8>)>,
    unflushed: VecDeque<(u64, Vec<(RecordHead, Vec<u8>)>)>,
    /// The log that `durable` amounts to.
    log: BTreeMap<Index, EntryId>,
    /// Entries reported as committed in this life begin after this.
    applied: Index,
    leading: Option<Term>,
    /// Proofs of leadership that were asked for: the number, and what was committed anywhere by then.
    proofs: BTreeMap<u64, Index>,
}

impl Node {
    /// What whoever sends a body does: the descriptor of an old entry comes from the WAL.
    fn look_up(&self, id: EntryId) -> Descriptor {
        let unflushed = self.unflushed.iter().flat_map(|(_, records)| records);
        let mut all = self.durable.iter().chain(unflushed).rev();
        let (head, _) = all.find(|(head, _)| head.index == id.index && head.term == id.term).expect("in the WAL");
        let crc = if head.kind == RecordKind::Batch { head.count.wrapping_mul(31) } else { 0 };
        Descriptor { kind: head.kind, len: head.count, crc }
    }
}

struct Cluster {
    rng: Rng,
    nodes: Vec<Node>,
    network: Vec<Message>,
    /// What was committed anywhere, by position: it may never differ and never go.
    committed: BTreeMap<Index, EntryId>,
    leaders: BTreeMap<Term, usize>,
    proposed: u64,
    asked: u64,
    proved: u64,
    healed: bool,
}

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let nodes = IDS
            .iter()
            .map(|id| Node {
                replica: Some(Replica::new(SHARD, *id, &IDS, RecoveredLog::default())),
                durable: Vec::new(),
                unflushed: VecDeque::new(),
                log: BTreeMap::new(),
                applied: Index(0),
                leading: None,
                proofs: BTreeMap::new(),
            })
            .collect();
        let (network, committed, leaders) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Cluster { rng: Rng(seed), nodes, network, committed, leaders, proposed: 0, asked: 0, proved: 0, healed: false }
    }

    fn take(&mut self, at: usize, out: &mut ReadyOut) {
        let node = &mut self.nodes[at];
        let commit = node.replica.as_ref().unwrap().commit();
        let mut records = Vec::new();
        if let Some(hard_state) = out.hard_state {
            let (head, body) = hard_state.record(SHARD);
            records.push((head, body.to_vec()));
        }
        for entry in &out.entries {
            let mut head = RecordHead::new(entry.about.kind, SHARD);
            (head.term, head.index, head.commit) = (entry.id.term, entry.id.index, commit);
            head.count = entry.about.len;
            if entry.about.kind == RecordKind::Batch {
                assert_eq!(entry.about.crc, entry.about.len.wrapping_mul(31), "the descriptor is another entry's");
            }
            records.push((head, Vec::new()));
        }
        assert_eq!(records.is_empty(), out.number == 0);
        if out.number != 0 {
            node.unflushed.push_back((out.number, records));
        }
        for id in &out.committed {
            assert_eq!(id.index.0, self.nodes[at].applied.0 + 1, "commits follow on");
            self.nodes[at].applied = id.index;
            if let Some(known) = self.committed.get(&id.index) {
                assert_eq!(known, id, "two entries committed at one position");
            } else {
                let holders = self.nodes.iter().filter(|n| n.log.get(&id.index) == Some(id)).count();
                assert!(holders >= 2, "{id:?} committed with {holders} of 3 flushes");
                self.committed.insert(id.index, *id);
            }
        }
        let node = &mut self.nodes[at];
        if out.lost_leadership {
            node.proofs.clear();
            assert!(node.leading.take().is_some());
        }
        if let Some(term) = out.became_leader {
            assert!(node.leading.replace(term).is_none());
            assert_eq!(*self.leaders.entry(term).or_insert(at), at, "two leaders in {term:?}");
            let own = self.committed[&node.applied];
            assert!(own.term == term, "serves before an entry of its term is committed");
        }
        if let Some(number) = out.proved {
            let known = node.proofs[&number];
            assert!(node.applied >= known, "a proof came to who has {} of {known}", node.applied);
            node.proofs = node.proofs.split_off(&(number + 1));
            self.proved += 1;
        }
        for message in &mut out.messages {
            for entry in message.entries.iter_mut().filter(|e| e.about.is_none()) {
                entry.about = Some(self.nodes[at].look_up(entry.id));
            }
        }
        self.network.append(&mut out.messages);
    }

    fn ready(&mut self, at: usize) {
        let mut out = ReadyOut::default();
        if let Some(replica) = &mut self.nodes[at].replica {
            replica.ready(&mut out);
            self.take(at, &mut out);
        }
    }

    /// The oldest flush, or several, end.
    fn flush(&mut self, at: usize) {
        let up_to = 1 + self.rng.below(3);
        let node = &mut self.nodes[at];
        let mut number = 0;
        for _ in 0..up_to {
            let Some((n, records)) = node.unflushed.pop_front() else { break };
            for (head, body) in records {
                if head.index != Index(0) {
                    node.log.split_off(&head.index);
                    node.log.insert(head.index, EntryId { term: head.term, index: head.index });
                }
                node.durable.push((head, body));
            }
            number = n;
        }
        if number != 0 {
            let mut out = ReadyOut::default();
            node.replica.as_mut().unwrap().persisted(number, &mut out);
            self.take(at, &mut out);
        }
    }

    fn crash(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.replica = None;
        node.unflushed.clear();
        node.leading = None;
        node.proofs.clear();
    }

    fn restart(&mut self, at: usize) {
        let trust_commit = self.rng.one_in(2);
        let node = &mut self.nodes[at];
        let mut recovered = RecoveredLog::default();
        for (head, body) in &node.durable {
            recovered.record(head, body).unwrap();
        }
        assert_eq!(recovered.last, node.log.keys().last().copied().unwrap_or_default());
        if trust_commit {
            recovered.applied = recovered.commit.min(recovered.last);
        }
        node.applied = recovered.applied;
        node.replica = Some(Replica::new(SHARD, IDS[at], &IDS, recovered));
    }

    fn step(&mut self) {
        let at = self.rng.below(3) as usize;
        match self.rng.below(20) {
            0..=3 => {
                // In step they would split the votes for ever.
                if let Some(replica) = &mut self.nodes[at].replica {
                    replica.tick();
                }
            }
            4..=6 => self.flush(at),
            7..=14 => {
                for _ in 0..4 {
                    if self.network.is_empty() {
                        break;
                    }
                    let pick = self.rng.below(self.network.len() as u64) as usize;
                    let message = self.network.swap_remove(pick);
                    if !self.healed && self.rng.one_in(20) {
                        continue;
                    }
                    if !self.healed && self.rng.one_in(20) {
                        self.network.push(message.clone());
                    }
                    let to = message.to as usize - 1;
                    if let Some(replica) = &mut self.nodes[to].replica {
                        replica.step(message).unwrap();
                        if self.rng.one_in(2) {
                            self.ready(to);
                        }
                    }
                }
            }
            15..=18 => {
                if let Some(replica) = &mut self.nodes[at].replica {
                    let n = self.proposed as u32;
                    if replica.has_room() && replica.propose(RecordKind::Batch, n, n.wrapping_mul(31)).is_ok() {
                        self.proposed += 1;
                    }
                    if self.rng.one_in(4) && replica.prove_leadership(self.asked + 1).is_ok() {
                        self.asked += 1;
                        let committed = self.committed.keys().last().copied().unwrap_or_default();
                        self.nodes[at].proofs.insert(self.asked, committed);
                    }
                }
            }
            _ => match self.nodes[at].replica {
                // Leaders die more often than others: that is where entries could be lost.
                Some(_) if !self.healed => {
                    let odds = if self.nodes[at].leading.is_some() { 10 } else { 40 };
                    if self.rng.one_in(odds) {
                        self.crash(at);
                    }
                }
                Some(_) => {}
                None => self.restart(at),
            },
        }
        if self.rng.one_in(3) {
            self.ready(at);
        }
        // A network holds only so much.
        if self.network.len() > 300 {
            let excess = self.network.len() - 300;
            self.network.drain(..excess);
        }
    }

    /// All is flushed, but by `keeps` nothing, and all that is sent arrives, but for what comes from or goes to `cut`.
    fn settle(&mut self, cut: Option<usize>, keeps: Option<usize>) {
        for _ in 0..200 {
            for at in 0..3 {
                self.ready(at);
                if keeps != Some(at) {
                    self.flush(at);
                }
            }
            for message in std::mem::take(&mut self.network) {
                let (from, to) = (message.from as usize - 1, message.to as usize - 1);
                if ![Some(from), Some(to)].contains(&cut) {
                    self.nodes[to].replica.as_mut().unwrap().step(message).unwrap();
                }
            }
        }
    }
}

/// Acknowledged entries would be lost, or two readers would see two logs.
#[test]
fn three_replicas_agree_and_commit_only_what_two_have_flushed() {
    let (mut elections, mut commits, mut proofs) = (0, 0, 0);
    for seed in 0..40 {
        let mut cluster = Cluster::new(seed);
        for _ in 0..6_000 {
            cluster.step();
        }
        let before = cluster.committed.clone();
        cluster.healed = true;
        let proposed = cluster.proposed;
        let mut rounds = 0;
        while cluster.proposed < proposed + 5 || cluster.nodes.iter().any(|n| n.applied.0 < before.len() as u64 + 5) {
            cluster.step();
            rounds += 1;
            assert!(rounds < 50_000, "seed {seed}: no progress after the faults ended");
        }
        for (index, id) in &before {
            assert_eq!(cluster.committed[index], *id, "seed {seed}");
        }
        elections += cluster.leaders.len();
        commits += before.len();
        proofs += cluster.proved;
    }
    assert!(elections > 100, "only {elections} elections: the test does not test");
    assert!(commits > 3_000, "only {commits} commits: the test does not test");
    assert!(proofs > 1_000, "only {proofs} proofs: the test does not test");
}

/// A committed offset would go back for who asks a coordinator that was replaced and does not know it.
#[test]
fn a_leader_that_was_replaced_proves_nothing() {
    let mut cluster = Cluster::new(11);
    cluster.healed = true;
    let prove = |cluster: &mut Cluster, at: usize| {
        let committed = cluster.committed.keys().last().copied().unwrap_or_default();
        cluster.asked += 1;
        cluster.nodes[at].proofs.insert(cluster.asked, committed);
        cluster.nodes[at].replica.as_mut().unwrap().prove_leadership(cluster.asked)
    };
    assert_eq!(prove(&mut cluster, 0), Err(NotLeader));
    cluster.nodes[0].replica.as_mut().unwrap().campaign();
    cluster.settle(None, None);
    assert_eq!(prove(&mut cluster, 0), Ok(()));
    cluster.settle(None, None);
    assert_eq!(cluster.proved, 1, "two others follow it");

    let successor = |cluster: &Cluster| (1..3).find(|at| cluster.nodes[*at].leading.is_some());
    for tick in 0..40 {
        // one at a time, so that they do not ask for the same votes
        cluster.nodes[1 + tick % 2].replica.as_mut().unwrap().tick();
        cluster.settle(Some(0), None);
    }
    assert!(cluster.nodes[0].replica.as_ref().unwrap().is_leader(), "it believes that it leads");
    let new = successor(&cluster).expect("one of the others leads");
    assert_eq!((prove(&mut cluster, 0), prove(&mut cluster, new)), (Ok(()), Ok(())));
    cluster.settle(Some(0), None);
    assert_eq!(cluster.proved, 2, "only the new one");
    assert!(cluster.nodes[0].proofs.len() == 1 && cluster.nodes[new].proofs.is_empty());
    for _ in 0..3 {
        cluster.nodes[new].replica.as_mut().unwrap().tick();
    }
    cluster.settle(None, None);
    assert_eq!((cluster.proved, cluster.nodes[0].leading), (2, None), "and it steps down when it hears of it");
}

/// A leader with a slow disk would hold up every answer of its shard, though two followers have flushed.
#[test]
fn two_followers_commit_without_the_leaders_own_flush() {
    let mut cluster = Cluster::new(7);
    cluster.healed = true;
    cluster.nodes[0].replica.as_mut().unwrap().campaign();
    cluster.settle(None, None);
    assert_eq!(cluster.nodes[0].leading, Some(Term(1)));
    let entry = cluster.nodes[0].replica.as_mut().unwrap().propose(RecordKind::Batch, 0, 0).unwrap();
    cluster.settle(None, Some(0));
    assert_eq!(cluster.committed.get(&entry.index), Some(&entry));
    assert!(!cluster.nodes[0].log.contains_key(&entry.index), "the leader has not flushed it");
    assert_eq!(cluster.nodes[0].applied, entry.index);
}

/// From replica 2 to replica 1.
fn message(kind: MessageKind, term: u64, entries: Vec<MessageEntry>) -> Message {
    Message {
        shard: SHARD,
        kind,
        from: 2,
        to: 1,
        term: Term(term),
        log: EntryId { term: Term(0), index: Index(0) },
        entries,
        commit: Index(0),
        commit_term: Term(0),
        matched: Index(0),
        reject: false,
        reject_hint: Index(0),
        context: Vec::new(),
        priority: 0,
    }
}

/// A replica would go on, and vote, without what it had acknowledged; or Raft would end the process without saying why.
#[test]
fn a_log_that_lacks_what_the_leader_knows_of_is_not_gone_on_with() {
    let mut cluster = Cluster::new(7);
    cluster.healed = true;
    cluster.nodes[0].replica.as_mut().unwrap().campaign();
    cluster.settle(None, None);
    let replica = cluster.nodes[0].replica.as_mut().unwrap();
    assert_eq!((replica.last(), replica.commit()), (Index(1), Index(1)));
    let beats = |commit: u64| Message { commit: Index(commit), ..message(MessageKind::Heartbeat, 9, vec![]) };
    let forgot = replica.step(beats(2)).unwrap_err();
    assert_eq!(forgot, StepError::Forgot { last: Index(1), known: Index(2) });
    let other = MessageEntry { id: EntryId { term: Term(9), index: Index(1) }, about: Some(Descriptor::NOOP) };
    let contradiction = replica.step(message(MessageKind::Append, 9, vec![other])).unwrap_err();
    assert_eq!(contradiction, StepError::Contradiction { index: Index(1), term: Term(9) });
    assert!(forgot.is_fatal() && contradiction.is_fatal());
    assert_eq!(replica.step(Message { term: Term(0), ..beats(2) }), Ok(()), "one of an old term says nothing");
    assert_eq!(replica.step(beats(1)), Ok(()));
}

/// A peer that is confused, or a stranger, must not move a replica.
#[test]
fn messages_of_others_are_refused() {
    let mut replica = Replica::new(SHARD, 1, &IDS, RecoveredLog::default());
    let entry = MessageEntry { id: EntryId { term: Term(9), index: Index(1) }, about: None };
    let message = message(MessageKind::Append, 9, vec![entry]);
    assert!(matches!(replica.step(message.clone()), Err(StepError::NoDescriptor { .. })));
    assert!(matches!(replica.step(Message { from: 4, ..message.clone() }), Err(StepError::Stranger { .. })));
    assert!(matches!(replica.step(Message { to: 3, ..message.clone() }), Err(StepError::NotForMe { .. })));
    assert!(matches!(replica.step(Message { shard: ShardId(2), ..message.clone() }), Err(StepError::NotForMe { .. })));
    let far = MessageEntry { id: EntryId { term: Term(9), index: Index(2) }, about: Some(Descriptor::NOOP) };
    assert!(matches!(replica.step(Message { entries: vec![far], ..message }), Err(StepError::Disorder { .. })));
    assert_eq!(replica.term(), Term(0));
}
