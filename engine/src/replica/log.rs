//! What Raft may know of the log: positions, terms, and a descriptor for each entry. The entries lie in the WAL.

use crate::limits;
use crate::types::{EntryId, Index, ShardId, Term};
use crate::wal::record::{RecordHead, RecordKind};
use raft::eraftpb;
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::collections::VecDeque;

/// Raft's own state, which must be on the media before any entry of its term.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HardState {
    pub term: Term,
    /// Whom this replica voted for in that term; 0: nobody.
    pub vote: u64,
    /// Need not be exact on the media: recovery only gains from a larger one.
    pub commit: Index,
}

impl HardState {
    /// The record that keeps it: head and body.
    pub fn record(&self, shard: ShardId) -> (RecordHead, [u8; 8]) {
        let mut head = RecordHead::new(RecordKind::HardState, shard);
        head.term = self.term;
        head.commit = self.commit;
        (head, self.vote.to_le_bytes())
    }

    fn from_record(head: &RecordHead, body: &[u8]) -> HardState {
        let vote = body.try_into().expect("a hard state's body is the vote: 8 bytes, whole by its CRC");
        HardState { term: head.term, vote: u64::from_le_bytes(vote), commit: head.commit }
    }
}

/// What Raft carries of an entry: enough to find its bytes and to know them again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    pub kind: RecordKind,
    /// Bytes of the body.
    pub len: u32,
    /// CRC32C of the body.
    pub crc: u32,
}

const DESCRIPTOR_BYTES: usize = 10;
/// Stands for a descriptor that is in the WAL and no longer in memory.
const IN_THE_WAL: &[u8] = &[0];

impl Descriptor {
    /// The empty entry with which a leader begins its term.
    pub const NOOP: Descriptor = Descriptor { kind: RecordKind::Noop, len: 0, crc: 0 };

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(DESCRIPTOR_BYTES);
        data.extend_from_slice(&(self.kind as u16).to_le_bytes());
        data.extend_from_slice(&self.len.to_le_bytes());
        data.extend_from_slice(&self.crc.to_le_bytes());
        data
    }

    /// `None` for one that has to be looked up in the WAL. Takes only what [`Self::encode`] made in this process.
    pub(super) fn decode(data: &[u8]) -> Option<Descriptor> {
        if data.is_empty() {
            return Some(Descriptor::NOOP);
        }
        if data == IN_THE_WAL {
            return None;
        }
        let data: &[u8; DESCRIPTOR_BYTES] = data.try_into().expect("a descriptor of ours has a fixed length");
        let kind = match u16::from_le_bytes([data[0], data[1]]) {
            3 => RecordKind::Noop,
            4 => RecordKind::Batch,
            5 => RecordKind::Trim,
            6 => RecordKind::Meta,
            7 => RecordKind::Membership,
            other => panic!("record kind {other} is no entry"),
        };
        let len = u32::from_le_bytes([data[2], data[3], data[4], data[5]]);
        let crc = u32::from_le_bytes([data[6], data[7], data[8], data[9]]);
        Some(Descriptor { kind, len, crc })
    }
}

/// An entry as Raft hands it to the WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub id: EntryId,
    pub about: Descriptor,
}

/// An entry that does not follow on in the WAL: what lay between is lost.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the log of shard {shard} goes on with entry {found} of term {term}, expected {expected} or less")]
pub struct LogGap {
    pub shard: ShardId,
    pub expected: Index,
    pub found: Index,
    pub term: Term,
}

/// A shard's log as a scan of the WAL found it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecoveredLog {
    /// The last one in the WAL. Its term is at least that of the last entry: it was logged first.
    pub hard_state: Option<HardState>,
    /// Position and term of the last entry that the snapshot contains.
    pub snapshot: Option<(Index, Term)>,
    /// Where each term begins: first index and term, both growing. Entries at or below the snapshot may be among them.
    pub terms: Vec<(Index, Term)>,
    /// The last entry, or the snapshot's position; 0: there is nothing.
    pub last: Index,
    /// Up to here the caller has applied by itself what it found (it may do so up to [`Self::commit`]): it is not
    /// reported as committed again.
    pub applied: Index,
    /// The largest commit index in any record.
    pub commit: Index,
}

impl RecoveredLog {
    /// Takes in a record of this shard, in LSN order. An entry at a position that is taken replaces it and all after
    /// it: so a follower's log was corrected. A snapshot counts when its caller has all parts: [`Self::snapshot_at`].
    pub fn record(&mut self, head: &RecordHead, body: &[u8]) -> Result<(), LogGap> {
        self.commit = self.commit.max(head.commit);
        match head.kind {
            RecordKind::HardState => self.hard_state = Some(HardState::from_record(head, body)),
            RecordKind::Snapshot => {}
            RecordKind::Noop | RecordKind::Batch | RecordKind::Trim | RecordKind::Meta | RecordKind::Membership => {
                let expected = Index(self.last.0 + 1);
                // The segments before the first entry may have been given up, their entries being in a snapshot.
                if self.last != Index(0) && head.index > expected || head.index == Index(0) {
                    return Err(LogGap { shard: head.shard, expected, found: head.index, term: head.term });
                }
                put_term(&mut self.terms, EntryId { term: head.term, index: head.index });
                self.last = head.index;
            }
        }
        Ok(())
    }

    /// A whole snapshot of everything up to `index` was found.
    pub fn snapshot_at(&mut self, index: Index, term: Term) {
        self.snapshot = Some((index, term));
        self.commit = self.commit.max(index);
        self.last = self.last.max(index);
    }
}

/// Appends an entry to the runs of terms; what was at its position or after it is gone.
fn put_term(terms: &mut Vec<(Index, Term)>, entry: EntryId) {
    while terms.last().is_some_and(|run| run.0 >= entry.index) {
        terms.pop();
    }
    match terms.last() {
        Some(run) if run.1 == entry.term => {}
        Some(run) => {
            assert!(run.1 < entry.term, "entry {} of term {} after term {}", entry.index, entry.term, run.1);
            terms.push((entry.index, entry.term));
        }
        None => terms.push((entry.index, entry.term)),
    }
}

/// The earliest position that a log can begin behind: it has every entry after it, and knows its term.
fn before_first(recovered: &RecoveredLog, snapshot: EntryId) -> EntryId {
    match recovered.terms.first() {
        Some((Index(1), _)) => EntryId { term: Term(0), index: Index(0) },
        Some((first, term)) if *first <= snapshot.index => EntryId { term: *term, index: *first },
        Some(_) | None => snapshot,
    }
}

/// Raft's view of the log. Lives in the [`super::Replica`] of a core.
pub(super) struct LogView {
    /// As of the start; Raft reads it once.
    initial: HardState,
    voters: Vec<u64>,
    /// The entry before the first one, and its term: the snapshot's, or what was compacted.
    before: EntryId,
    last: Index,
    /// Where each term begins, for positions after `before`.
    terms: Vec<(Index, Term)>,
    /// Descriptors of the last entries, at most [`limits::REPLICA_TAIL_ENTRIES_MAX`]. Empty where nobody is to be sent
    /// any.
    tail: VecDeque<Descriptor>,
}

impl LogView {
    pub fn new(shard: ShardId, voters: &[u64], recovered: &RecoveredLog) -> LogView {
        let (index, term) = recovered.snapshot.unwrap_or((Index(0), Term(0)));
        let first = recovered.terms.first().map(|run| run.0);
        assert!(
            first.is_none_or(|first| first.0 <= index.0 + 1),
            "shard {shard}: the log begins at {first:?}, the snapshot ends at {index}: entries between are lost"
        );
        assert!(recovered.last >= index, "shard {shard}: the log ends at {}, its snapshot at {index}", recovered.last);
        let mut view = LogView {
            initial: HardState::default(),
            voters: voters.to_vec(),
            before: EntryId { term: Term(0), index: Index(0) },
            last: recovered.last,
            terms: recovered.terms.clone(),
            tail: VecDeque::new(),
        };
        let snapshot = EntryId { term, index };
        // Followers may lack entries that the snapshot has: where there are any, the log begins as early as it can.
        view.compact_to(if voters.len() > 1 { before_first(recovered, snapshot) } else { snapshot });
        let last_term = view.term_of(recovered.last).expect("the last entry or the snapshot has a term");
        let mut hard_state = recovered.hard_state.unwrap_or_default();
        assert!(
            hard_state.term >= last_term,
            "shard {shard}: an entry of term {last_term} is in the WAL, the hard state of that term is not"
        );
        hard_state.commit =
            recovered.commit.max(hard_state.commit).max(recovered.applied).max(index).min(recovered.last);
        assert!(recovered.applied <= hard_state.commit, "applied {} is not in the log", recovered.applied);
        view.initial = hard_state;
        view
    }

    pub fn initial(&self) -> HardState {
        self.initial
    }

    /// The position before the first entry.
    pub fn before(&self) -> Index {
        self.before.index
    }

    pub fn term_of(&self, index: Index) -> Option<Term> {
        if index == self.before.index {
            return Some(self.before.term);
        }
        if index < self.before.index || index > self.last {
            return None;
        }
        let run = self.terms.partition_point(|run| run.0 <= index);
        Some(self.terms[run.checked_sub(1).expect("the first run begins after `before`")].1)
    }

    /// Takes in what was handed to the WAL.
    pub fn append(&mut self, entry: Entry) {
        let index = entry.id.index;
        assert!(
            index > self.before.index && index.0 <= self.last.0 + 1,
            "entry {index} does not follow on {}",
            self.last
        );
        let gone = (self.last.0 + 1 - index.0) as usize;
        self.tail.truncate(self.tail.len().saturating_sub(gone));
        put_term(&mut self.terms, entry.id);
        self.last = index;
        if self.voters.len() > 1 {
            if self.tail.len() == limits::REPLICA_TAIL_ENTRIES_MAX {
                self.tail.pop_front();
            }
            self.tail.push_back(entry.about);
        }
    }

    /// Forgets the entries up to `index`, which is in the log.
    pub fn compact(&mut self, index: Index) {
        if index > self.before.index {
            let term = self.term_of(index).expect("only what is in the log is compacted");
            self.compact_to(EntryId { term, index });
        }
    }

    fn compact_to(&mut self, before: EntryId) {
        self.before = before;
        let next = Index(before.index.0 + 1);
        let runs_gone = self.terms.partition_point(|run| run.0 <= next).saturating_sub(1);
        self.terms.drain(..runs_gone);
        if self.last <= before.index {
            self.terms.clear();
        } else if let Some(first) = self.terms.first_mut() {
            first.0 = first.0.max(next);
        }
    }

    fn entry(&self, index: Index) -> eraftpb::Entry {
        let back = (self.last.0 - index.0) as usize;
        let known = self.tail.len().checked_sub(back + 1).map(|at| self.tail[at].encode());
        eraftpb::Entry {
            index: index.0,
            term: self.term_of(index).expect("the range was checked").0,
            data: known.map_or_else(|| IN_THE_WAL.into(), Into::into),
            ..eraftpb::Entry::default()
        }
    }
}

impl Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard_state = eraftpb::HardState {
            term: self.initial.term.0,
            vote: self.initial.vote,
            commit: self.initial.commit.0,
            ..eraftpb::HardState::default()
        };
        let members = eraftpb::ConfState { voters: self.voters.clone(), ..eraftpb::ConfState::default() };
        Ok(RaftState::new(hard_state, members))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low <= self.before.index.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last.0 + 1, "entries {low}..{high} of a log that ends at {}", self.last);
        let wanted = usize::try_from(high - low).expect("positions fit");
        let count = match max_size.into() {
            Some(bytes) => wanted.min((bytes / ENTRY_BYTES).max(1) as usize),
            None => wanted,
        };
        Ok((low..low + count as u64).map(|index| self.entry(Index(index))).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        match self.term_of(Index(index)) {
            Some(term) => Ok(term.0),
            None if index < self.before.index.0 => Err(raft::Error::Store(StorageError::Compacted)),
            None => Err(raft::Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.index.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last.0)
    }

    /// No snapshot is ever sent: what a follower lacks is still in its leader's WAL (docs/adr/0003, not done).
    fn snapshot(&self, _request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

/// What an entry counts for where Raft asks for a limit in bytes: a little more than its size there.
pub(super) const ENTRY_BYTES: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: RecordKind, index: u64, term: u64, commit: u64) -> RecordHead {
        let mut head = RecordHead::new(kind, ShardId(1));
        head.index = Index(index);
        head.term = Term(term);
        head.commit = Index(commit);
        head
    }

    /// A follower's corrected entries would come back from the dead if recovery kept what they replaced.
    #[test]
    fn a_replaced_suffix_stays_replaced_after_recovery() {
        let mut log = RecoveredLog::default();
        for index in 1..=5 {
            log.record(&head(RecordKind::Batch, index, 1, 2), &[]).unwrap();
        }
        log.record(&head(RecordKind::Noop, 3, 4, 2), &[]).unwrap();
        log.hard_state = Some(HardState { term: Term(4), vote: 0, commit: Index(2) });
        assert_eq!((log.last, log.terms.clone()), (Index(3), vec![(Index(1), Term(1)), (Index(3), Term(4))]));
        let view = LogView::new(ShardId(1), &[1], &log);
        assert_eq!(view.term_of(Index(2)), Some(Term(1)));
        assert_eq!(view.term_of(Index(3)), Some(Term(4)));
        assert_eq!(view.term_of(Index(4)), None);
    }

    /// A hole in the log would let entries after it be served in place of the lost ones.
    #[test]
    fn an_entry_that_does_not_follow_on_is_refused() {
        let mut log = RecoveredLog::default();
        log.record(&head(RecordKind::Batch, 7, 1, 0), &[]).unwrap();
        log.record(&head(RecordKind::Batch, 8, 1, 0), &[]).unwrap();
        let gap = log.record(&head(RecordKind::Batch, 10, 1, 0), &[]).unwrap_err();
        assert_eq!((gap.expected, gap.found), (Index(9), Index(10)));
    }

    /// Entries below a snapshot whose segments are gone must not be missed, those above it must be kept.
    #[test]
    fn a_log_begins_after_its_snapshot() {
        let mut log = RecoveredLog::default();
        for index in 40..=50 {
            log.record(&head(RecordKind::Batch, index, if index < 47 { 2 } else { 3 }, 45), &[]).unwrap();
        }
        log.snapshot_at(Index(44), Term(2));
        log.record(&head(RecordKind::HardState, 0, 3, 48), &9u64.to_le_bytes()).unwrap();
        let view = LogView::new(ShardId(1), &[9], &log);
        assert_eq!(view.initial(), HardState { term: Term(3), vote: 9, commit: Index(48) });
        assert_eq!((view.first_index().unwrap(), view.last_index().unwrap()), (45, 50));
        assert_eq!([44, 45, 46, 47].map(|i| view.term_of(Index(i)).unwrap().0), [2, 2, 2, 3]);
        assert_eq!(view.term_of(Index(43)), None);
    }

    /// A follower that was away while a snapshot was written would never catch up after its leader's restart.
    #[test]
    fn with_followers_a_log_begins_at_its_first_entry() {
        let mut log = RecoveredLog::default();
        for index in 40..=50 {
            log.record(&head(RecordKind::Batch, index, if index < 43 { 2 } else { 3 }, 45), &[]).unwrap();
        }
        log.snapshot_at(Index(46), Term(3));
        log.applied = Index(46);
        log.record(&head(RecordKind::HardState, 0, 3, 48), &9u64.to_le_bytes()).unwrap();
        let view = LogView::new(ShardId(1), &[7, 8, 9], &log);
        assert_eq!((view.first_index().unwrap(), view.last_index().unwrap()), (41, 50));
        assert_eq!([40, 42, 43, 50].map(|i| view.term_of(Index(i)).unwrap().0), [2, 2, 3, 3]);
        assert_eq!(view.term_of(Index(39)), None);
    }

    /// A follower would store a record whose length and checksum are another's.
    #[test]
    fn descriptors_of_the_tail_stay_with_their_entries() {
        let mut view = LogView::new(ShardId(1), &[1, 2, 3], &RecoveredLog::default());
        let about = |n: u64| Descriptor { kind: RecordKind::Batch, len: n as u32, crc: 7 * n as u32 };
        let extra = 10;
        let total = limits::REPLICA_TAIL_ENTRIES_MAX as u64 + extra;
        for n in 1..=total {
            view.append(Entry { id: EntryId { term: Term(1), index: Index(n) }, about: about(n) });
        }
        let read = |view: &LogView, n| Descriptor::decode(&view.entry(Index(n)).data);
        assert_eq!(read(&view, extra), None);
        assert_eq!(read(&view, extra + 1), Some(about(extra + 1)));
        assert_eq!(read(&view, total), Some(about(total)));
        view.append(Entry { id: EntryId { term: Term(2), index: Index(total - 3) }, about: Descriptor::NOOP });
        assert_eq!(read(&view, total - 3), Some(Descriptor::NOOP));
        assert_eq!(read(&view, total - 4), Some(about(total - 4)));
        assert_eq!(view.term_of(Index(total - 2)), None);
    }
}
