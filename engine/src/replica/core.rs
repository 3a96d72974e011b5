//! The replica: Raft driven by ticks, proposals, messages and the WAL's flushes.

use super::log::{Descriptor, ENTRY_BYTES, Entry, HardState, LogView, RecoveredLog};
use super::message::{Message, MessageEntry, MessageKind};
use crate::limits;
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::types::{EntryId, Index, ShardId, Term};
use crate::wal::record::RecordKind;
use raft::{RawNode, StateRole, eraftpb};
use std::collections::VecDeque;

/// Ticks without a word from a leader after which a follower asks for votes. Whoever ticks adds the jitter: Raft's own
/// is switched off, because it draws from a generator that no seed repeats.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;

/// This replica does not lead the shard, or does not serve yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this replica does not lead the shard")]
pub struct NotLeader;

/// A message that was not taken. Raft goes on without it: messages may be lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StepError {
    #[error("a message for replica {to} of shard {shard} came to replica {me} of shard {my_shard}")]
    NotForMe { shard: ShardId, to: u64, my_shard: ShardId, me: u64 },
    #[error("replica {from} is no voter of shard {shard}")]
    Stranger { shard: ShardId, from: u64 },
    #[error("entry {index} came without its descriptor")]
    NoDescriptor { index: Index },
    #[error("entry {index} came after entry {after}")]
    Disorder { index: Index, after: Index },
    #[error("raft refused the message: {why}")]
    Refused { why: String },
    /// Not to be gone on from: a disk has lost what it had acknowledged.
    #[error("this log ends at entry {last}, and its leader knows that entry {known} had been flushed here")]
    Forgot { last: Index, known: Index },
    /// The same, and it is not known whose disk.
    #[error("entry {index} is committed here, and the leader of term {term} has another one at its place")]
    Contradiction { index: Index, term: Term },
}

impl StepError {
    /// Going on would be to vote, or to be counted, for what is not there.
    pub fn is_fatal(&self) -> bool {
        matches!(self, StepError::Forgot { .. } | StepError::Contradiction { .. })
    }
}

/// What is to happen after a call, in this order: `hard_state` and then `entries` go to the WAL; `messages` are sent;
/// `committed` is applied; then the shard is served or no longer served. Reused: each call clears it first.
#[derive(Clone, Default, Debug)]
pub struct ReadyOut {
    /// To be logged before `entries`, with them or earlier.
    pub hard_state: Option<HardState>,
    /// To be logged, in this order: what was proposed here, the noop of a new leader, what a leader sent. One at a
    /// position that is taken replaces it and all after it.
    pub entries: Vec<Entry>,
    /// May be sent at once: what has to wait for the WAL is held back until it is durable.
    pub messages: Vec<Message>,
    /// Newly committed, in order. A follower and a leader may learn of it before their own WAL has flushed the entry: a
    /// majority has.
    pub committed: Vec<EntryId>,
    /// The last one of all that were ever reported in `committed`.
    pub committed_to: Index,
    /// What [`Replica::persisted`] is to be called with when `hard_state` and `entries` are durable. 0: nothing to log.
    pub number: u64,
    /// Leadership is gone: what is proposed and not committed may or may not become so under another leader. If
    /// `became_leader` is set as well, it was won again after that.
    pub lost_leadership: bool,
    /// This replica leads in this term, and with `committed` applied it has applied everything of earlier terms.
    pub became_leader: Option<Term>,
    /// A majority has said, after [`Replica::prove_leadership`] was called with this number or a later one, that it
    /// still followed this replica.
    pub proved: Option<u64>,
}

impl ReadyOut {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.number == 0
            && self.messages.is_empty()
            && self.committed.is_empty()
            && !self.lost_leadership
            && self.became_leader.is_none()
            && self.proved.is_none()
    }

    fn clear(&mut self) {
        self.hard_state = None;
        self.entries.clear();
        self.messages.clear();
        self.committed.clear();
        self.number = 0;
        self.lost_leadership = false;
        self.became_leader = None;
        self.proved = None;
    }
}

/// Messages that must not be sent before what Raft wanted logged with or before them is durable.
struct Held {
    number: u64,
    /// Something is to be logged under this number.
    logged: bool,
    messages: Vec<eraftpb::Message>,
}

/// One shard's copy on this core.
///
/// Lives on the shard's core; owned by its pump. After each call that may have changed something, the pump takes
/// [`Replica::ready`] before the turn ends. The numbers of [`ReadyOut`] are persisted in their order.
pub struct Replica {
    shard: ShardId,
    me: u64,
    raw: RawNode<LogView>,
    /// What is in the WAL or on the way there, apart from the commit index.
    logged: (Term, u64),
    held: VecDeque<Held>,
    /// The last number given out, and the last one that is durable.
    number_given: u64,
    number_durable: u64,
    /// The last index that was reported as committed.
    reported: Index,
    /// Every voter has flushed all entries up to here: known as a leader, or heard from one. Stays true.
    matched: Index,
    /// Its leader has said that what this replica lacks is in its log no more.
    left_behind: bool,
    /// The term in which this replica serves: it leads, and an entry of this term was reported as committed.
    serving: Option<Term>,
}

impl Replica {
    /// `me` and `voters`: raft ids, not 0, `me` among them. A replica begins as a follower in the term that it had.
    ///
    /// # Panics
    /// If `recovered` contradicts itself: entries are missing, or the hard state of their term is.
    pub fn new(shard: ShardId, me: u64, voters: &[u64], recovered: RecoveredLog) -> Replica {
        assert!(
            voters.contains(&me) && !voters.contains(&0),
            "voters {voters:?} of shard {shard}, and {me} among them"
        );
        let view = LogView::new(shard, voters, &recovered);
        let initial = view.initial();
        let applied = recovered.applied.max(view.before());
        let config = raft::Config {
            id: me,
            election_tick: ELECTION_TICKS,
            min_election_tick: ELECTION_TICKS,
            max_election_tick: ELECTION_TICKS + 1,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: applied.0,
            max_size_per_msg: limits::REPLICA_MESSAGE_ENTRIES_MAX as u64 * ENTRY_BYTES,
            // Committed entries are taken as positions; this bounds what Raft makes of them by the way.
            max_committed_size_per_ready: limits::REPLICA_MESSAGE_ENTRIES_MAX as u64 * ENTRY_BYTES,
            max_inflight_msgs: limits::REPLICA_INFLIGHT_MESSAGES_MAX,
            check_quorum: true,
            pre_vote: true,
            batch_append: true,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw =
            RawNode::new(&config, view, &logger).expect("the configuration and the recovered log were checked above");
        Replica {
            shard,
            me,
            raw,
            logged: (initial.term, initial.vote),
            held: VecDeque::new(),
            number_given: 0,
            number_durable: 0,
            reported: applied,
            matched: Index(0),
            left_behind: false,
            serving: None,
        }
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// 10 ms of time went by (the driver's choice). Followers must not tick in step: add jitter.
    pub fn tick(&mut self) {
        // A leader that is one no more by this goes on knowing it.
        self.matched = self.matched();
        self.raw.tick();
    }

    /// Asks for votes now. A single voter leads at once and serves when its first entry is durable.
    pub fn campaign(&mut self) {
        // Raft becomes leader on what is durable only.
        if self.held.is_empty() {
            self.raw.campaign().expect("a local message is never refused");
        }
    }

    /// Leads and serves: entries can be proposed.
    pub fn is_leader(&self) -> bool {
        self.serving.is_some_and(|term| self.leads(term))
    }

    /// Leads, serves, and is the only voter: its clock decides nothing.
    pub fn leads_alone(&self) -> bool {
        self.is_leader() && self.raw.raft.prs().iter().count() == 1
    }

    /// The replica that leads as far as this one knows.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raw.raft.leader_id).filter(|id| *id != 0)
    }

    fn leads(&self, term: Term) -> bool {
        self.raw.raft.state == StateRole::Leader && self.raw.raft.term == term.0
    }

    pub fn term(&self) -> Term {
        Term(self.raw.raft.term)
    }

    /// What a majority has flushed, as far as this replica knows.
    pub fn commit(&self) -> Index {
        Index(self.raw.raft.raft_log.committed)
    }

    pub fn last(&self) -> Index {
        Index(self.raw.raft.raft_log.last_index())
    }

    /// Every voter has flushed all entries up to here, as far as this replica knows: nobody will ask for them.
    pub fn matched(&self) -> Index {
        if self.raw.raft.state != StateRole::Leader {
            return self.matched;
        }
        let least = self.raw.raft.prs().iter().map(|(_, progress)| progress.matched).min().unwrap_or_default();
        self.matched.max(Index(least))
    }

    /// As a leader that serves: the last entry that each voter has flushed as far as this replica knows, by id.
    pub fn voters(&self) -> Option<Vec<(u64, Index)>> {
        let of = |(id, progress): (&u64, &raft::Progress)| (*id, Index(progress.matched));
        let mut voters: Vec<(u64, Index)> = self.raw.raft.prs().iter().map(of).collect();
        voters.sort_unstable();
        self.is_leader().then_some(voters)
    }

    /// What this replica lacks is in its leader's log no more: it gets no entries from it, ever.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind && self.raw.raft.state == StateRole::Follower
    }

    /// The same, as the last leader said it that was heard of: it stays while there is none.
    pub fn was_left_behind(&self) -> bool {
        self.left_behind && !self.is_leader()
    }

    /// As a leader: whether what the other voter lacks is compacted here.
    fn leaves_behind(&self, other: u64) -> bool {
        let next = self.raw.raft.prs().get(other).map(|progress| progress.next_idx);
        next.is_some_and(|next| next <= self.raw.store().before().0)
    }

    /// As a leader that serves: has a voter lead that has every entry and was heard of lately, if one of these is
    /// `fit`. Until that is done, or has not come about in the time of an election, nothing can be proposed.
    pub fn hand_over(&mut self, fit: impl Fn(u64) -> bool) {
        let (me, last) = (self.me, self.last().0);
        let has_all = |progress: &raft::Progress| progress.matched == last && progress.recent_active;
        let is_next =
            |(id, progress): (&u64, &raft::Progress)| (*id != me && has_all(progress) && fit(*id)).then_some(*id);
        let to = self.raw.raft.prs().iter().find_map(is_next);
        if let Some(to) = to.filter(|_| self.is_leader()) {
            self.raw.transfer_leader(to);
        }
    }

    /// The term, vote and commit index of now: what has to be in a segment that outlives the one with the last record.
    pub fn hard_state(&self) -> HardState {
        HardState { term: self.logged.0, vote: self.logged.1, commit: self.commit() }
    }

    /// The term of an entry that is in the log.
    pub fn term_of(&self, index: Index) -> Option<Term> {
        if index < self.raw.store().before() || index > self.last() {
            return None;
        }
        self.raw.raft.raft_log.term(index.0).ok().map(Term)
    }

    /// Whether proposals should go on: the entries that wait for a majority are bounded.
    pub fn has_room(&self) -> bool {
        (self.last().0 - self.commit().0) < limits::REPLICA_UNCOMMITTED_ENTRIES_MAX as u64
    }

    /// Gives an entry its place in the log. `crc`: CRC32C of the body as it will be in the WAL. The entry comes back in
    /// the next [`ReadyOut::entries`].
    pub fn propose(&mut self, kind: RecordKind, body_len: u32, crc: u32) -> Result<EntryId, NotLeader> {
        if !self.is_leader() {
            return Err(NotLeader);
        }
        let index = Index(self.last().0 + 1);
        let data = Descriptor { kind, len: body_len, crc }.encode();
        self.raw.propose(Vec::new(), data).map_err(|_| NotLeader)?;
        assert_eq!(self.last(), index, "a proposal is exactly one entry");
        Ok(EntryId { term: self.term(), index })
    }

    /// Asks a majority whether it still follows this replica (Raft's read index): a leader that was replaced does not
    /// know it before it asks. The answer is [`ReadyOut::proved`], with a number that only grows and is chosen by the
    /// caller; it does not come if leadership is lost. Messages that are lost are sent again with the heartbeats.
    pub fn prove_leadership(&mut self, number: u64) -> Result<(), NotLeader> {
        if !self.is_leader() {
            return Err(NotLeader);
        }
        self.raw.read_index(number.to_le_bytes().to_vec());
        Ok(())
    }

    /// A message from another replica. What comes of it is in the next [`Replica::ready`].
    pub fn step(&mut self, mut message: Message) -> Result<(), StepError> {
        let Message { shard, from, to, .. } = message;
        if shard != self.shard || to != self.me {
            return Err(StepError::NotForMe { shard, to, my_shard: self.shard, me: self.me });
        }
        if from == self.me || self.raw.raft.prs().get(from).is_none() {
            return Err(StepError::Stranger { shard, from });
        }
        let mut after = message.log.index;
        for entry in &message.entries {
            if entry.about.is_none() {
                return Err(StepError::NoDescriptor { index: entry.id.index });
            }
            if message.kind == MessageKind::Append && entry.id.index.0 != after.0 + 1 {
                return Err(StepError::Disorder { index: entry.id.index, after });
            }
            after = entry.id.index;
        }
        self.compare(&message)?;
        let matched = if message.kind == MessageKind::Heartbeat { message.matched } else { Index(0) };
        let is_of_its_leader = message.kind == MessageKind::Heartbeat && message.term >= self.term();
        // ours, not Raft's
        let says = if message.kind.is_heart() { std::mem::take(&mut message.reject) } else { false };
        self.raw.step(message.into_raft()).map_err(|e| StepError::Refused { why: e.to_string() })?;
        self.matched = self.matched.max(matched.min(self.last()));
        if is_of_its_leader {
            self.left_behind = says;
        }
        Ok(())
    }

    /// Whether what a leader says can be, with what is in this log. Raft would end the process without a word on which
    /// disk is at fault.
    fn compare(&self, message: &Message) -> Result<(), StepError> {
        let (last, commit) = (self.last(), self.commit());
        match message.kind {
            _ if message.term < self.term() => Ok(()),
            // a leader says no more of what is committed than this replica has said that it has
            MessageKind::Heartbeat if message.commit > last => Err(StepError::Forgot { last, known: message.commit }),
            MessageKind::Append => {
                let other = |entry: &&MessageEntry| {
                    entry.id.index <= commit && self.term_of(entry.id.index).is_some_and(|term| term != entry.id.term)
                };
                match message.entries.iter().find(other) {
                    Some(entry) => Err(StepError::Contradiction { index: entry.id.index, term: message.term }),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// What is to be done now. Cheap when there is nothing.
    pub fn ready(&mut self, out: &mut ReadyOut) {
        out.clear();
        self.collect(out);
    }

    /// Everything up to `number` is durable. What comes of it is in `out`, as from [`Replica::ready`]: commits, and
    /// messages that had to wait.
    ///
    /// # Panics
    /// If the number was not given out, or a larger one was durable before: an order that can not be.
    pub fn persisted(&mut self, number: u64, out: &mut ReadyOut) {
        assert!(
            self.number_durable < number && number <= self.number_given,
            "shard {}: ready {number} is durable after {}, given out were {}",
            self.shard,
            self.number_durable,
            self.number_given
        );
        out.clear();
        self.number_durable = number;
        let mut up_to = None;
        while let Some(held) = self.held.pop_front_if(|held| !held.logged || held.number <= number) {
            up_to = Some(held.number);
            self.send(held.messages, out);
        }
        if let Some(up_to) = up_to {
            self.raw.on_persist_ready(up_to);
        }
        self.collect(out);
    }

    /// Forgets the entries below `below`. What is not applied, and the last applied one, stays.
    pub fn compact(&mut self, below: Index) {
        let applied = self.raw.raft.raft_log.applied;
        let up_to = below.0.saturating_sub(1).min(applied);
        self.raw.mut_store().compact(Index(up_to));
    }

    fn send(&self, messages: Vec<eraftpb::Message>, out: &mut ReadyOut) {
        let mended = messages.into_iter().filter_map(|m| self.mend(Message::from_raft(self.shard, m)));
        out.messages.extend(mended.map(|m| self.with_ours(m)));
    }

    /// Followers hear in heartbeats what nobody needs any more: one of them may lead next, and gives it to others. And
    /// whether they are left behind.
    fn with_ours(&self, mut message: Message) -> Message {
        if message.kind == MessageKind::Heartbeat {
            message.matched = self.matched();
            message.reject = self.leaves_behind(message.to);
        }
        message
    }

    /// raft 0.7 with `batch_append` adds entries to a waiting Append without any, even where they do not follow on its
    /// position (a rejection moved it back in between). Its receiver would acknowledge entries that it does not have.
    /// The position is put right; where that can not be known any more the message is lost, as any message may be.
    fn mend(&self, mut message: Message) -> Option<Message> {
        let Some(first) = message.entries.first() else { return Some(message) };
        let before = Index(first.id.index.0 - 1);
        if message.kind == MessageKind::Append && message.log.index != before {
            if !self.leads(message.term) {
                return None;
            }
            message.log = EntryId { term: self.term_of(before)?, index: before };
        }
        Some(message)
    }

    fn collect(&mut self, out: &mut ReadyOut) {
        while self.raw.has_ready() {
            let mut ready = self.raw.ready();
            let number = ready.number();
            assert!(ready.snapshot().is_empty(), "nobody sends snapshots");

            let mut logged = false;
            if let Some(hard_state) = ready.hs() {
                let vote = (Term(hard_state.term), hard_state.vote);
                // A commit index alone is not worth a record: each entry's record carries it.
                if vote != self.logged {
                    assert!(vote.0 >= self.logged.0, "the term went back from {} to {}", self.logged.0, vote.0);
                    self.logged = vote;
                    let commit = Index(hard_state.commit);
                    out.hard_state = Some(HardState { term: vote.0, vote: vote.1, commit });
                    logged = true;
                }
            }
            for entry in ready.take_entries() {
                let id = EntryId { term: Term(entry.term), index: Index(entry.index) };
                let about = Descriptor::decode(&entry.data).expect("what is to be logged came with its descriptor");
                let entry = Entry { id, about };
                self.raw.mut_store().append(entry);
                out.entries.push(entry);
                logged = true;
            }
            for state in ready.take_read_states() {
                out.proved = out.proved.max(state.request_ctx.try_into().ok().map(u64::from_le_bytes));
            }
            let messages = ready.take_messages();
            self.send(messages, out);
            let waiting = ready.take_persisted_messages();
            self.raw.advance_append_async(ready);

            #[cfg(feature = "planted")]
            let waiting = if is(Bug::VoteAfterLostTail) {
                self.send(waiting, out);
                Vec::new()
            } else {
                waiting
            };
            if logged {
                out.number = number;
                self.number_given = number;
                self.held.push_back(Held { number, logged, messages: waiting });
            } else if self.held.is_empty() {
                self.raw.on_persist_ready(number);
                self.send(waiting, out);
            } else {
                self.held.push_back(Held { number, logged, messages: waiting });
            }
            // Raft's own count of what is applied follows what is committed and durable here.
            self.raw.advance_apply();
        }

        let commit = self.commit();
        assert!(self.reported <= commit, "shard {}: commit went back from {} to {commit}", self.shard, self.reported);
        for index in self.reported.0 + 1..=commit.0 {
            let term = self.term_of(Index(index)).expect("what is committed is in the log");
            out.committed.push(EntryId { term, index: Index(index) });
        }
        self.reported = commit;
        out.committed_to = commit;

        if self.serving.is_some() && !self.is_leader() {
            self.serving = None;
            out.lost_leadership = true;
        }
        let is_caught_up = self.term_of(commit) == Some(self.term());
        #[cfg(feature = "planted")]
        let is_caught_up = is_caught_up || is(Bug::LeadBeforeOwnTerm);
        if self.serving.is_none() && self.leads(self.term()) && is_caught_up {
            self.serving = Some(self.term());
            out.became_leader = self.serving;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId(5);

    fn run_until_quiet(replica: &mut Replica, wal: &mut RecoveredLog) -> Vec<EntryId> {
        let (mut out, mut committed) = (ReadyOut::default(), Vec::new());
        replica.ready(&mut out);
        loop {
            committed.extend(&out.committed);
            if out.number == 0 {
                return committed;
            }
            log(wal, &out, replica.commit());
            let number = out.number;
            replica.persisted(number, &mut out);
        }
    }

    /// What the pump does: a record for the hard state, then one for each entry.
    fn log(wal: &mut RecoveredLog, out: &ReadyOut, commit: Index) {
        if let Some(hard_state) = out.hard_state {
            let (head, body) = hard_state.record(SHARD);
            wal.record(&head, &body).unwrap();
        }
        for entry in &out.entries {
            let mut head = crate::wal::record::RecordHead::new(entry.about.kind, SHARD);
            (head.term, head.index, head.commit) = (entry.id.term, entry.id.index, commit);
            wal.record(&head, &[]).unwrap();
        }
    }

    /// An acknowledgement before the flush would be lost with the power.
    #[test]
    fn nothing_commits_before_the_wal_has_it() {
        let mut replica = Replica::new(SHARD, 1, &[1], RecoveredLog::default());
        let mut out = ReadyOut::default();
        assert_eq!(replica.propose(RecordKind::Batch, 10, 1), Err(NotLeader));
        replica.campaign();
        replica.ready(&mut out);
        assert_eq!(out.hard_state, Some(HardState { term: Term(1), vote: 1, commit: Index(0) }));
        assert_eq!(out.entries.iter().map(|e| (e.id.index.0, e.about)).collect::<Vec<_>>(), [(1, Descriptor::NOOP)]);
        assert!(out.became_leader.is_none() && !replica.is_leader() && out.committed.is_empty());
        assert_eq!(replica.propose(RecordKind::Batch, 10, 1), Err(NotLeader), "the term's first entry is not durable");

        let first = out.number;
        replica.persisted(first, &mut out);
        assert_eq!((out.became_leader, out.committed_to, out.number), (Some(Term(1)), Index(1), 0));

        let one = replica.propose(RecordKind::Batch, 100, 11).unwrap();
        replica.ready(&mut out);
        let number_one = out.number;
        let two = replica.propose(RecordKind::Trim, 8, 12).unwrap();
        let three = replica.propose(RecordKind::Meta, 9, 13).unwrap();
        replica.ready(&mut out);
        let number_three = out.number;
        assert_eq!(out.entries.iter().map(|e| e.id).collect::<Vec<_>>(), [two, three]);
        assert_eq!(out.entries[1].about, Descriptor { kind: RecordKind::Meta, len: 9, crc: 13 });
        assert!(out.committed.is_empty() && out.hard_state.is_none());
        replica.ready(&mut out);
        assert!(out.is_empty());
        replica.persisted(number_one, &mut out);
        assert_eq!((out.committed.clone(), replica.commit()), (vec![one], one.index));
        replica.persisted(number_three, &mut out);
        assert_eq!((out.committed.clone(), out.committed_to), (vec![two, three], three.index));
        replica.ready(&mut out);
        assert!(out.is_empty(), "a commit alone is not worth a record: {out:?}");
    }

    /// A flush reported out of order would commit what is not durable.
    #[test]
    #[should_panic(expected = "is durable after")]
    fn a_number_that_was_never_given_out_is_refused() {
        let mut replica = Replica::new(SHARD, 1, &[1], RecoveredLog::default());
        replica.campaign();
        replica.ready(&mut ReadyOut::default());
        replica.persisted(99, &mut ReadyOut::default());
    }

    /// Entries that were acknowledged would be gone after kill -9, or a client would see an epoch go back.
    #[test]
    fn a_restart_leads_in_the_next_term_with_all_that_is_durable() {
        let mut wal = RecoveredLog::default();
        let mut seen = Vec::new();
        for life in 1..=20u64 {
            let mut recovered = wal.clone();
            // Half of the lives apply what the records say is committed by themselves, as recovery does.
            recovered.applied = if life % 2 == 0 { recovered.commit.min(recovered.last) } else { Index(0) };
            let applied = recovered.applied;
            let mut replica = Replica::new(SHARD, 1, &[1], recovered);
            assert!(!replica.is_leader());
            replica.campaign();
            let mut committed = run_until_quiet(&mut replica, &mut wal);
            assert_eq!(replica.term(), Term(life));
            assert!(replica.is_leader());
            for n in 0..7 {
                seen.push(replica.propose(RecordKind::Batch, n, n).unwrap());
            }
            committed.extend(run_until_quiet(&mut replica, &mut wal));
            let expected: Vec<_> = seen.iter().filter(|e| e.index > applied).copied().collect();
            committed.retain(|e| seen.contains(e));
            assert_eq!(committed, expected);
            // Handed to the WAL, killed before the flush: it may come back or not. Here it does not.
            replica.propose(RecordKind::Batch, 1, 1).unwrap();
            replica.ready(&mut ReadyOut::default());
        }
        assert_eq!(wal.last, Index(20 * 8));
        assert_eq!(wal.terms.len(), 20);
    }

    /// What is durable and not known to be committed was perhaps acknowledged: a single voter must keep it.
    #[test]
    fn durable_entries_commit_after_a_restart_though_no_record_says_so() {
        let mut wal = RecoveredLog::default();
        let mut replica = Replica::new(SHARD, 1, &[1], wal.clone());
        replica.campaign();
        run_until_quiet(&mut replica, &mut wal);
        let entries: Vec<_> = (0..5).map(|n| replica.propose(RecordKind::Batch, n, n).unwrap()).collect();
        let mut out = ReadyOut::default();
        replica.ready(&mut out);
        log(&mut wal, &out, replica.commit());
        assert_eq!(wal.commit, Index(1));
        drop(replica);

        let mut replica = Replica::new(SHARD, 1, &[1], wal.clone());
        replica.campaign();
        let committed = run_until_quiet(&mut replica, &mut wal);
        assert_eq!(committed[1..6], entries);
        assert_eq!(committed[6], EntryId { term: Term(2), index: Index(7) });
    }

    /// Three replicas whose disks flush and whose messages arrive at once, unless they go from or to `deaf`.
    fn exchange(replicas: &mut [Replica], deaf: Option<u64>, said: &mut Vec<Message>) {
        let mut out = ReadyOut::default();
        loop {
            let mut flying = Vec::new();
            for replica in replicas.iter_mut() {
                replica.ready(&mut out);
                flying.append(&mut out.messages);
                while out.number != 0 {
                    let number = out.number;
                    replica.persisted(number, &mut out);
                    flying.append(&mut out.messages);
                }
            }
            flying.retain(|message| deaf != Some(message.to) && deaf != Some(message.from));
            if flying.is_empty() {
                return;
            }
            for mut message in flying {
                said.push(message.clone());
                message.entries.iter_mut().for_each(|entry| {
                    entry.about.get_or_insert(Descriptor { kind: RecordKind::Batch, len: 1, crc: 1 });
                });
                let _refused = replicas[message.to as usize - 1].step(message);
            }
        }
    }

    fn three_led_by_the_first() -> Vec<Replica> {
        let ids = [1, 2, 3];
        let new = |id: &u64| Replica::new(SHARD, *id, &ids, RecoveredLog::default());
        let mut replicas: Vec<Replica> = ids.iter().map(new).collect();
        replicas[0].campaign();
        exchange(&mut replicas, None, &mut Vec::new());
        assert!(replicas[0].is_leader());
        replicas
    }

    /// Others would wait for ever for a replica that no deletion can help; or not for one that only lags.
    #[test]
    fn a_voter_is_told_that_it_is_left_behind_when_what_it_lacks_is_compacted() {
        let mut replicas = three_led_by_the_first();
        for n in 0..20 {
            replicas[0].propose(RecordKind::Batch, 1, 1).unwrap();
            exchange(&mut replicas, Some(3), &mut Vec::new());
            assert_eq!(replicas[0].commit(), Index(n + 2));
        }
        let heartbeat = |replicas: &mut [Replica]| {
            for _ in 0..2 * HEARTBEAT_TICKS {
                replicas[0].tick();
                exchange(replicas, None, &mut Vec::new());
            }
            [replicas[1].is_left_behind(), replicas[2].is_left_behind()]
        };
        let mut lagging = three_led_by_the_first();
        assert_eq!(heartbeat(&mut lagging), [false, false]);
        replicas[0].compact(Index(15));
        assert_eq!(heartbeat(&mut replicas), [false, true]);
        assert_eq!(replicas[2].last(), Index(1), "it got nothing");
    }

    /// A full log would go on leading; or one would lead that lacks entries, or has no room either.
    #[test]
    fn a_leader_hands_over_to_a_fit_voter_that_has_everything() {
        let mut replicas = three_led_by_the_first();
        replicas[0].propose(RecordKind::Batch, 1, 1).unwrap();
        exchange(&mut replicas, Some(2), &mut Vec::new());
        replicas[0].hand_over(|voter| voter == 2);
        exchange(&mut replicas, Some(2), &mut Vec::new());
        assert!(replicas[0].is_leader(), "the only fit one lacks an entry");
        replicas[0].hand_over(|_| true);
        exchange(&mut replicas, None, &mut Vec::new());
        assert!(!replicas[0].is_leader() && replicas[2].is_leader());
        assert_eq!(replicas[0].leader(), Some(3));
    }

    /// What is ours in a message must not reach Raft, nor be lost.
    #[test]
    fn a_heartbeat_and_its_response_may_carry_what_raft_does_not_know() {
        let mut replicas = three_led_by_the_first();
        let mut said = Vec::new();
        (0..HEARTBEAT_TICKS).for_each(|_| replicas[0].tick());
        exchange(&mut replicas, None, &mut said);
        let heart: Vec<_> = said.into_iter().filter(|message| message.kind.is_heart()).collect();
        assert!(heart.len() >= 4, "{heart:?}");
        for message in heart {
            let to = message.to as usize - 1;
            replicas[to].step(Message { reject: true, ..message.clone() }).unwrap();
            assert_eq!(replicas[to].is_left_behind(), message.kind == MessageKind::Heartbeat);
        }
        exchange(&mut replicas, None, &mut Vec::new());
        assert!(replicas[0].is_leader());
    }

    /// A lost hard state could let this replica vote twice in one term: two leaders.
    #[test]
    #[should_panic(expected = "the hard state of that term is not")]
    fn entries_without_their_hard_state_are_refused() {
        let recovered = RecoveredLog { terms: vec![(Index(1), Term(3))], last: Index(4), ..RecoveredLog::default() };
        Replica::new(SHARD, 1, &[1], recovered);
    }

    /// Compaction must not take what a restart still needs, and the log must go on after it.
    #[test]
    fn the_log_goes_on_after_compaction() {
        let mut wal = RecoveredLog::default();
        let mut replica = Replica::new(SHARD, 1, &[1], RecoveredLog::default());
        replica.campaign();
        run_until_quiet(&mut replica, &mut wal);
        for n in 0..100 {
            replica.propose(RecordKind::Batch, n, n).unwrap();
        }
        replica.compact(Index(50));
        run_until_quiet(&mut replica, &mut wal);
        assert_eq!(replica.term_of(Index(2)), Some(Term(1)), "what was not applied then is not compacted");
        replica.compact(Index(1000));
        assert_eq!(replica.term_of(Index(100)), None);
        assert_eq!(replica.term_of(replica.last()), Some(Term(1)));
        replica.propose(RecordKind::Batch, 1, 1).unwrap();
        assert_eq!(run_until_quiet(&mut replica, &mut wal).len(), 1);

        wal.snapshot_at(Index(90), Term(1));
        wal.applied = Index(90);
        let mut replica = Replica::new(SHARD, 1, &[1], wal.clone());
        replica.campaign();
        let committed = run_until_quiet(&mut replica, &mut wal);
        assert_eq!(committed.first().unwrap().index, Index(91));
        assert_eq!(committed.last().unwrap().term, Term(2));
    }

    /// Prints what Raft costs a single voter; the figures stand in docs/adr/0003.
    #[test]
    #[ignore = "prints figures: cargo test --release -p camus-engine -- --ignored --nocapture figures_of_raft"]
    #[allow(clippy::disallowed_methods, reason = "a stop watch")]
    fn figures_of_raft() {
        for batch in [1u32, 8, 64] {
            let mut replica = Replica::new(SHARD, 1, &[1], RecoveredLog::default());
            replica.campaign();
            run_until_quiet(&mut replica, &mut RecoveredLog::default());
            let (mut out, rounds) = (ReadyOut::default(), 300_000 / batch);
            let start = std::time::Instant::now();
            for round in 0..rounds {
                for n in 0..batch {
                    replica.propose(RecordKind::Batch, n, round).unwrap();
                }
                replica.ready(&mut out);
                let number = out.number;
                replica.persisted(number, &mut out);
                assert_eq!(out.committed.len(), batch as usize);
            }
            let each = start.elapsed() / (rounds * batch);
            println!("{batch} entries a flush: {each:?} an entry from proposal to commit");
        }
        let recovered = RecoveredLog {
            hard_state: Some(HardState { term: Term(1), vote: 1, commit: Index(0) }),
            terms: vec![(Index(1), Term(1))],
            last: Index(1_000_000),
            ..RecoveredLog::default()
        };
        let start = std::time::Instant::now();
        let mut replica = Replica::new(SHARD, 1, &[1], recovered);
        replica.campaign();
        let committed = run_until_quiet(&mut replica, &mut RecoveredLog::default());
        println!("a restart that commits {} entries: {:?}", committed.len(), start.elapsed());
    }
}
