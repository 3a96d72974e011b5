//! The other voters of this core's shards: what goes to them, what comes from them, when a replica ticks.
//!
//! Raft's messages name entries; their heads and bodies are in the WAL, and travel beside them. What is on the way to
//! one follower of one shard is a lane: its appends leave in the order in which Raft made them, since one that
//! overtakes another is refused, and each waits until its bodies are there, in memory or read from the disk. All other
//! messages pass at once. Any message may be lost, here or on the way: Raft sends again.
//!
//! In:  messages of a ready ([`Peers::post`]), ends of reads, messages of other brokers ([`check`],
//! [`Shard::take_in`]). Out: [`ToPeer`] in [`Out::peers`], reads of the disk.

use super::api::Ticket;
use super::core::{Out, Proposal, Shard, TICK};
use super::recovery;
use crate::io::{DiskDone, DiskOk, DiskOp, FileId, OpId};
use crate::limits;
use crate::replica::{Descriptor, Entry, Message, MessageEntry, MessageKind};
use crate::rt::rng::Rng;
use crate::types::{EntryId, Index, Mono, Offset, SegmentSeq, ShardId, Term};
use crate::wal::format::{RECORD_HEAD_BYTES, record_bytes};
use crate::wal::{RecordAt, RecordHead, RecordKind, Wal};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A message from or for a replica on another broker, with the entries that it names: one for each, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToPeer {
    pub message: Message,
    pub bodies: Vec<EntryBody>,
}

/// An entry as it is in the sender's WAL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryBody {
    pub head: RecordHead,
    pub body: Bytes,
}

// ------------------------------------------------------------------------------------------------- taking in

/// Why a message of another broker is dropped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{entries} entries came with {bodies} bodies")]
    Count { entries: usize, bodies: usize },
    #[error("a message of kind {0:?} came with entries")]
    Kind(MessageKind),
    #[error("entry {index}: {why}")]
    Entry { index: Index, why: &'static str },
}

/// Whether the bodies are those that the message names, and whole. The network may lie.
pub(super) fn check(from: &ToPeer) -> Result<(), Fault> {
    let ToPeer { message, bodies } = from;
    if message.entries.len() != bodies.len() {
        return Err(Fault::Count { entries: message.entries.len(), bodies: bodies.len() });
    }
    if message.kind != MessageKind::Append && !bodies.is_empty() {
        return Err(Fault::Kind(message.kind));
    }
    let mut after = message.log.index;
    for (entry, EntryBody { head, body }) in message.entries.iter().zip(bodies) {
        let index = entry.id.index;
        let fault = |why| Err(Fault::Entry { index, why });
        if index.0 != after.0.wrapping_add(1) {
            return fault("it does not follow on the one before it");
        }
        let Some(about) = entry.about else { return fault("it has no descriptor") };
        if head.shard != message.shard || !is_entry(head, entry.id) || head.kind != about.kind {
            return fault("its head is another entry's");
        }
        if !is_plausible(head) {
            return fault("its head can not be that of an entry");
        }
        if body.len() != about.len as usize || crc32c::crc32c(body) != about.crc {
            return fault("its body is not what its descriptor says");
        }
        after = index;
    }
    Ok(())
}

fn is_entry(head: &RecordHead, id: EntryId) -> bool {
    (head.term, head.index) == (id.term, id.index)
}

/// What the partitions assert of an entry is asked here, where it is no fault of ours.
fn is_plausible(head: &RecordHead) -> bool {
    match head.kind {
        RecordKind::Noop | RecordKind::Meta => true,
        RecordKind::Trim => head.base_offset >= Offset(0),
        RecordKind::Batch => head.base_offset >= Offset(0) && (1..=i32::MAX as u32).contains(&head.count),
        RecordKind::HardState | RecordKind::Snapshot | RecordKind::Membership => false,
    }
}

/// What the WAL is to be asked for, so that all of them can be appended.
pub(super) fn room_bytes(bodies: &[EntryBody]) -> usize {
    match bodies {
        [one] => one.body.len(),
        all => {
            let records: usize = all.iter().map(|entry| record_bytes(entry.body.len())).sum();
            records.saturating_sub(RECORD_HEAD_BYTES)
        }
    }
}

/// The entry among those that came with a message.
pub(super) fn find(arrived: &[EntryBody], id: EntryId) -> Option<&EntryBody> {
    let first = arrived.first()?.head.index;
    let at = usize::try_from(id.index.0.checked_sub(first.0)?).ok()?;
    arrived.get(at).filter(|entry| is_entry(&entry.head, id))
}

impl Shard {
    /// Puts another broker's entry into the open group. Room was found before. One at a position that is taken replaces
    /// it and all after it. `lost`: who waited for a command among these.
    pub(super) fn take_in(
        &mut self,
        wal: &mut Wal,
        now: Mono,
        entry: &Entry,
        theirs: &EntryBody,
        lost: &mut Vec<Ticket>,
    ) {
        let index = entry.id.index;
        if self.proposals.last_key_value().is_some_and(|(last, _)| *last >= index) {
            lost.extend(self.proposals.split_off(&index).into_values().filter_map(replaced));
        }
        let head = RecordHead { commit: self.replica.commit(), ..theirs.head };
        let (lsn, at) = wal.append(head, &[&theirs.body], Some(entry.about.crc));
        // A command is copied: it is small, and must not hold what the message came in.
        let body = if head.kind == RecordKind::Meta { Bytes::copy_from_slice(&theirs.body) } else { Bytes::new() };
        self.appended(index, lsn, at, recovery::proposal(head, at, body, now));
    }

    /// For how long some voter has lacked the same entries that are applied here, if one does.
    pub(super) fn note_lacking(&mut self, now: Mono) -> Option<Duration> {
        let matched = self.replica.matched();
        if matched >= self.applied {
            self.lacking = None;
        } else if self.lacking.is_none_or(|(behind, _)| behind != matched) {
            self.lacking = Some((matched, now));
        }
        self.lacking.map(|(_, since)| now.since(since))
    }

    /// The first entry that is kept for the other voters: the first that some of them may lack, but within the bounds,
    /// and never one behind the first that is not applied.
    pub(super) fn kept_from(&self, oldest: SegmentSeq) -> Index {
        let lacking = Index(self.replica.matched().0 + 1);
        let bound = Index((self.replica.last().0 + 1).saturating_sub(limits::REPLICA_LAG_ENTRIES_MAX as u64));
        let kept = lacking.max(bound).max(self.places.first_in(oldest));
        kept.min(Index(self.applied.0 + 1))
    }
}

/// Whoever waited for a batch or a trim was told when the leadership was lost; a command's fate is only known now.
fn replaced(proposal: Proposal) -> Option<Ticket> {
    match proposal {
        Proposal::Meta { waiting, .. } => waiting,
        Proposal::Batch(batch) => {
            assert!(batch.waiting.is_empty(), "a batch that is replaced was proposed by a leader that is none");
            None
        }
        Proposal::Trim { waiting, .. } => {
            assert!(waiting.is_none(), "a trim that is replaced was proposed by a leader that is none");
            None
        }
        Proposal::Noop => None,
    }
}

// ------------------------------------------------------------------------------------------------- where entries lie

/// Where the last entries of a shard lie, by index: for those that followers lack. Lives in [`Shard`].
#[derive(Default, Debug)]
pub(super) struct Tail {
    /// 0: nobody is to be sent any.
    entries_max: usize,
    first: Index,
    places: VecDeque<RecordAt>,
}

impl Tail {
    pub fn new(entries_max: usize) -> Tail {
        Tail { entries_max, ..Tail::default() }
    }

    /// The entry lies there. One at a position that is taken replaces it and all after it.
    pub fn note(&mut self, index: Index, at: RecordAt) {
        if self.entries_max == 0 {
            return;
        }
        let known = index.0.checked_sub(self.first.0).and_then(|n| usize::try_from(n).ok());
        match known.filter(|n| *n <= self.places.len()) {
            Some(n) => self.places.truncate(n),
            None => self.places.clear(),
        }
        if self.places.is_empty() {
            self.first = index;
        }
        if self.places.len() == self.entries_max {
            self.places.pop_front();
            self.first = Index(self.first.0 + 1);
        }
        self.places.push_back(at);
    }

    pub fn of(&self, index: Index) -> Option<RecordAt> {
        let at = usize::try_from(index.0.checked_sub(self.first.0)?).ok()?;
        self.places.get(at).copied()
    }

    pub fn forget_below(&mut self, index: Index) {
        while self.first < index && self.places.pop_front().is_some() {
            self.first = Index(self.first.0 + 1);
        }
    }
}

// ------------------------------------------------------------------------------------------------- sending

const AT_LIMIT_HEARD: Duration = Duration::from_millis(limits::REPLICA_AT_LIMIT_HEARD_MS);

/// Bit 62, without bit 63: the WAL's own operations have neither, the reads for readers have bit 63.
const READ_OP: u64 = 1 << 62;

/// Is it a read for a follower?
pub(super) fn is_read(op: OpId) -> bool {
    op.0 >> 62 == 1
}

/// A shard, and the raft id of one of its other voters.
type LaneId = (ShardId, u64);

/// Appends on their way to one follower.
#[derive(Default, Debug)]
struct Lane {
    /// At most [`limits::REPLICA_OUTBOX_MESSAGES_MAX`].
    queue: VecDeque<Message>,
    /// The first entries of the first message.
    found: Vec<EntryBody>,
    /// What comes next is being read.
    reading: Option<OpId>,
}

/// A read of the disk for the first message of a lane.
#[derive(Debug)]
struct Reading {
    lane: LaneId,
    run: Run,
}

/// Entries that are read at once.
#[derive(Debug)]
struct Run {
    file: FileId,
    from: u64,
    bytes: u32,
    entries: Vec<(EntryId, RecordAt)>,
}

/// What a lane does next.
enum Step {
    Send(ToPeer),
    Read(Run),
}

/// How far the first message of a lane is.
enum Found {
    /// It can be sent, or as much of it as one message may carry.
    Enough,
    OnDisk(Run),
    /// Its entries are not in the log any more.
    Lost,
}

/// What goes between this core and those of other brokers. Owned by [`super::core::Core`]. Empty with one voter.
#[derive(Default, Debug)]
pub(super) struct Peers {
    lanes: BTreeMap<LaneId, Lane>,
    /// One for each lane at most, of [`limits::REPLICA_MESSAGE_BYTES_MAX`] or one record.
    reads: BTreeMap<OpId, Reading>,
    next_read: u64,
    /// Messages that came and found no room in the WAL, in their order.
    pub parked: VecDeque<ToPeer>,
    /// Voters that have said that their log is at its limit, and when they did so last.
    at_limit: BTreeMap<u64, Mono>,
}

impl Peers {
    /// A voter has answered a heartbeat.
    pub fn heard(&mut self, now: Mono, from: u64, is_at_limit: bool) {
        if is_at_limit {
            self.at_limit.insert(from, now);
        } else {
            self.at_limit.remove(&from);
        }
    }

    /// Some voter's log is at its limit, as far as was heard lately.
    pub fn is_one_at_limit(&mut self, now: Mono) -> bool {
        self.at_limit.retain(|_, heard| now.since(*heard) < AT_LIMIT_HEARD);
        !self.at_limit.is_empty()
    }

    pub fn is_at_limit(&self, voter: u64) -> bool {
        self.at_limit.contains_key(&voter)
    }

    /// A message of this shard with entries waits for room: another one with what comes next would be refused.
    pub fn has_parked(&self, shard: ShardId) -> bool {
        self.parked.iter().any(|parked| parked.message.shard == shard)
    }

    /// Takes what a replica wants sent. Appends leave with [`Self::send`], everything else now.
    pub fn post(&mut self, messages: impl Iterator<Item = Message>, out: &mut Out) {
        for message in messages {
            if message.kind != MessageKind::Append {
                out.peers.push(ToPeer { message, bodies: Vec::new() });
                continue;
            }
            let lane = self.lanes.entry((message.shard, message.to)).or_default();
            if lane.queue.len() < limits::REPLICA_OUTBOX_MESSAGES_MAX {
                lane.queue.push_back(message);
            }
        }
    }

    /// Sends the appends whose bodies are there, and reads those that are not in memory. Best when the turn's group is
    /// on the way to the disk: before that its bodies are copied.
    pub fn send(&mut self, wal: &Wal, shards: &BTreeMap<ShardId, Shard>, out: &mut Out) {
        for (id, lane) in &mut self.lanes {
            let tail = &shards.get(&id.0).expect("a shard of this core").tail;
            while let Some(step) = lane.step(wal, tail) {
                match step {
                    Step::Send(message) => out.peers.push(message),
                    Step::Read(run) => {
                        let op = OpId(READ_OP | self.next_read);
                        self.next_read += 1;
                        out.disk.push((op, DiskOp::Read { file: run.file, at: run.from, len: run.bytes }));
                        lane.reading = Some(op);
                        self.reads.insert(op, Reading { lane: *id, run });
                    }
                }
            }
        }
    }

    /// A read has ended. What it was for leaves with the next [`Self::send`].
    pub fn read_done(&mut self, wal: &Wal, done: DiskDone) {
        let Reading { lane, run } = self.reads.remove(&done.op).expect("a completion has its read");
        let Some(lane) = self.lanes.get_mut(&lane).filter(|lane| lane.reading == Some(done.op)) else { return };
        lane.reading = None;
        let bytes = match done.result {
            Ok(DiskOk::Read(bytes)) => bytes,
            Ok(ok @ (DiskOk::Written | DiskOk::Prepared | DiskOk::Removed)) => panic!("a read ended as {ok:?}"),
            Err(error) => {
                tracing::warn!(?error, "entries for a follower can not be read");
                return lane.drop_first();
            }
        };
        for (id, at) in run.entries {
            let skip = (u64::from(at.at) / BLOCK * BLOCK - run.from) as usize;
            match wal.extract(at, &bytes.slice(skip..)) {
                Ok((head, body)) if is_entry(&head, id) => lane.found.push(EntryBody { head, body }),
                Ok((head, _)) => {
                    tracing::warn!(?head, ?id, "another entry lies there: the follower does not get it");
                    return lane.drop_first();
                }
                Err(error) => {
                    tracing::warn!(%error, "an entry for a follower can not be read");
                    return lane.drop_first();
                }
            }
        }
    }

    /// Leadership of the shard is gone: its appends are not sent any more.
    pub fn forget(&mut self, shard: ShardId) {
        for (_, lane) in self.lanes.iter_mut().filter(|(id, _)| id.0 == shard) {
            *lane = Lane::default();
        }
    }

    /// Keeps a message that found no room, if its kind is worth it and the queue has an end to put it at.
    pub fn park(&mut self, from: ToPeer) {
        if from.message.kind == MessageKind::Append && self.parked.len() < limits::REPLICA_PARKED_MESSAGES_MAX {
            self.parked.push_back(from);
        }
    }
}

const BLOCK: u64 = limits::BLOCK_BYTES as u64;

impl Lane {
    fn step(&mut self, wal: &Wal, tail: &Tail) -> Option<Step> {
        while self.reading.is_none() && !self.queue.is_empty() {
            match self.find(wal, tail) {
                Found::Enough => return Some(Step::Send(self.take())),
                Found::OnDisk(run) => return Some(Step::Read(run)),
                Found::Lost => self.drop_first(),
            }
        }
        None
    }

    fn drop_first(&mut self) {
        self.queue.pop_front();
        self.found.clear();
    }

    /// Collects what the first message needs, until it has all or enough for one message.
    fn find(&mut self, wal: &Wal, tail: &Tail) -> Found {
        let message = self.queue.front().expect("the caller has looked");
        let bytes_max = bytes_max(wal);
        let mut bytes: usize = self.found.iter().map(|entry| record_bytes(entry.body.len())).sum();
        for n in self.found.len()..message.entries.len() {
            let id = message.entries[n].id;
            let Some(at) = tail.of(id.index) else { return Found::Lost };
            bytes += record_bytes(at.len as usize);
            if !self.found.is_empty() && bytes > bytes_max {
                return Found::Enough;
            }
            match wal.in_memory(at) {
                Some((head, body)) if is_entry(&head, id) => self.found.push(EntryBody { head, body }),
                // The log was corrected since.
                Some(_) => return Found::Lost,
                None => return run(&message.entries[n..], wal, tail).map_or(Found::Lost, Found::OnDisk),
            }
        }
        Found::Enough
    }

    /// The first message with what was found for it. What of it was not found stays, as a message that follows on.
    fn take(&mut self) -> ToPeer {
        let bodies = std::mem::take(&mut self.found);
        let mut message = self.queue.pop_front().expect("the caller has looked");
        let rest = message.entries.split_off(bodies.len());
        if let Some(last) = message.entries.last().filter(|_| !rest.is_empty()) {
            let rest = Message { log: last.id, entries: rest, ..message.clone() };
            self.queue.push_front(rest);
        }
        for (entry, EntryBody { head, body }) in message.entries.iter_mut().zip(&bodies) {
            entry.about.get_or_insert_with(|| Descriptor {
                kind: head.kind,
                len: u32::try_from(body.len()).expect("a body is at most WAL_RECORD_BYTES_MAX"),
                crc: crc32c::crc32c(body),
            });
        }
        ToPeer { message, bodies }
    }
}

/// What one message carries at most, unless one entry is larger. Who takes it in has as large a log.
fn bytes_max(wal: &Wal) -> usize {
    limits::REPLICA_MESSAGE_BYTES_MAX.min(wal.record_bytes_max() / 2)
}

/// The entries from the first one on that are read at once. `None`: the first one can not be read.
fn run(entries: &[MessageEntry], wal: &Wal, tail: &Tail) -> Option<Run> {
    let first = tail.of(entries.first()?.id.index)?;
    if !wal.is_durable(first) || wal.file_of(first.segment).is_none() {
        return None;
    }
    let (file, from, mut bytes) = wal.read_plan(first);
    let mut run = Vec::new();
    for entry in entries {
        let Some(at) = tail.of(entry.id.index).filter(|at| at.segment == first.segment && *at >= first) else { break };
        let (_, begin, len) = wal.read_plan(at);
        let both = begin + u64::from(len) - from;
        let too_much = both > bytes_max(wal) as u64 || !wal.is_durable(at) || wal.cached(at).is_some();
        if too_much && !run.is_empty() {
            break;
        }
        bytes = bytes.max(u32::try_from(both).expect("inside a segment"));
        run.push((entry.id, at));
    }
    Some(Run { file, from, bytes, entries: run })
}

// ------------------------------------------------------------------------------------------------- time

/// When a replica with followers ticks: every [`TICK`] to twice that, drawn anew whenever its term or its leader
/// changes. In step, replicas would ask for votes at once and split them for ever.
#[derive(Debug)]
pub(super) struct Clock {
    every: Duration,
    pub next: Mono,
}

impl Clock {
    pub fn new() -> Clock {
        Clock { every: TICK, next: Mono(0) }
    }

    pub fn draw(&mut self, rng: &mut Rng) {
        let us = TICK.as_micros() as u64;
        self.every = Duration::from_micros(rng.between(us, 2 * us));
    }

    /// From now on.
    pub fn start(&mut self, now: Mono) {
        self.next = now + self.every;
    }

    /// Whether the replica is to tick now. A tick that came late is not made up for.
    pub fn ticks(&mut self, now: Mono) -> bool {
        let due = now >= self.next;
        if due {
            self.start(now);
        }
        due
    }
}

/// The term that a replica is in, and who leads in it, as far as it knows.
pub(super) type Seen = (Term, Option<u64>);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> RecordAt {
        RecordAt { segment: SegmentSeq(1), at: n * 128, len: 1 }
    }

    fn append(bodies: &[(u64, &'static str)]) -> ToPeer {
        let shard = ShardId(1);
        let entry = |&(index, body): &(u64, &'static str)| {
            let body = body.as_bytes();
            let id = EntryId { term: Term(3), index: Index(index) };
            let about = Descriptor { kind: RecordKind::Meta, len: body.len() as u32, crc: crc32c::crc32c(body) };
            let head = RecordHead { term: id.term, index: id.index, ..RecordHead::new(RecordKind::Meta, shard) };
            (MessageEntry { id, about: Some(about) }, EntryBody { head, body: Bytes::from_static(body) })
        };
        let (entries, bodies) = bodies.iter().map(entry).unzip();
        let message = Message {
            shard,
            kind: MessageKind::Append,
            from: 1,
            to: 2,
            term: Term(3),
            log: EntryId { term: Term(2), index: Index(6) },
            entries,
            commit: Index(6),
            commit_term: Term(0),
            matched: Index(0),
            reject: false,
            reject_hint: Index(0),
            context: Vec::new(),
            priority: 0,
        };
        ToPeer { message, bodies }
    }

    /// A follower would store, flush and count what its leader never wrote.
    #[test]
    fn bodies_that_are_not_the_entries_are_refused() {
        let good = append(&[(7, "one"), (8, "two")]);
        assert_eq!(check(&good), Ok(()));
        let mut bad = good.clone();
        bad.bodies.pop();
        assert_eq!(check(&bad), Err(Fault::Count { entries: 2, bodies: 1 }));
        let mut bad = good.clone();
        bad.bodies[1].body = Bytes::from_static(b"owt");
        assert!(matches!(check(&bad), Err(Fault::Entry { index: Index(8), .. })));
        let mut bad = good.clone();
        bad.bodies[0].head.term = Term(2);
        assert!(matches!(check(&bad), Err(Fault::Entry { index: Index(7), .. })));
        let mut bad = good.clone();
        bad.bodies[0].head.kind = RecordKind::Noop;
        assert!(matches!(check(&bad), Err(Fault::Entry { index: Index(7), .. })));
        let mut bad = good.clone();
        bad.message.entries[1].about = None;
        assert!(matches!(check(&bad), Err(Fault::Entry { index: Index(8), .. })));
        assert!(matches!(check(&append(&[(8, "gap")])), Err(Fault::Entry { index: Index(8), .. })));
        let mut bad = good;
        bad.message.kind = MessageKind::Heartbeat;
        assert_eq!(check(&bad), Err(Fault::Kind(MessageKind::Heartbeat)));
    }

    /// A follower would get another entry's bytes, or none though they are there.
    #[test]
    fn a_tail_knows_the_last_entries_and_forgets_what_was_replaced() {
        let mut tail = Tail::new(4);
        assert_eq!(tail.of(Index(1)), None);
        for n in 5..=7 {
            tail.note(Index(n), at(n as u32));
        }
        assert_eq!([4, 5, 7, 8].map(|n| tail.of(Index(n))), [None, Some(at(5)), Some(at(7)), None]);
        tail.note(Index(6), at(20));
        assert_eq!([5, 6, 7].map(|n| tail.of(Index(n))), [Some(at(5)), Some(at(20)), None]);
        for n in 7..=9 {
            tail.note(Index(n), at(n as u32));
        }
        assert_eq!([5, 6, 9].map(|n| tail.of(Index(n))), [None, Some(at(20)), Some(at(9))]);
        tail.forget_below(Index(9));
        assert_eq!([8, 9].map(|n| tail.of(Index(n))), [None, Some(at(9))]);
        tail.forget_below(Index(30));
        tail.note(Index(10), at(10));
        assert_eq!([9, 10].map(|n| tail.of(Index(n))), [None, Some(at(10))]);
        let mut none = Tail::new(0);
        none.note(Index(1), at(1));
        assert_eq!(none.of(Index(1)), None);
    }

    /// A follower would wait for ever for entries that one message can not carry, or get them with a hole.
    #[test]
    fn a_message_that_is_sent_in_part_leaves_the_rest_to_follow_on() {
        let ToPeer { mut message, bodies } = append(&[(7, "one"), (8, "two"), (9, "three")]);
        message.entries[0].about = None;
        let mut lane = Lane { queue: VecDeque::from([message]), found: bodies[..2].to_vec(), reading: None };
        let first = lane.take();
        assert_eq!((first.message.entries.len(), first.message.log.index), (2, Index(6)));
        assert_eq!(check(&first), Ok(()));
        lane.found = bodies[2..].to_vec();
        let second = lane.take();
        assert_eq!((second.message.entries.len(), second.message.log), (1, first.message.entries[1].id));
        assert_eq!(check(&second), Ok(()));
        assert!(lane.queue.is_empty());
    }

    /// The WAL would be asked for less than the entries take, and end the process.
    #[test]
    fn room_is_asked_for_with_every_head() {
        let bodies = append(&[(7, "one"), (8, "two"), (9, "three")]).bodies;
        assert_eq!(room_bytes(&[]), 0);
        assert_eq!(room_bytes(&bodies[..1]), 3);
        assert_eq!(room_bytes(&bodies), 16 + 2 * (RECORD_HEAD_BYTES + 16));
    }
}
