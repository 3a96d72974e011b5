//! A partition as its core sees it: which offsets it holds and where they lie, and who wrote them.
//!
//! Pure: bytes, clocks, the WAL and Raft are elsewhere. The leader asks [`Partition::check`] what becomes of a batch,
//! proposes it, and says so ([`Partition::proposed`]); when the shard's majority has it, [`Partition::committed`] makes
//! it visible. A restart tells the same story from WAL record heads ([`Partition::recovered`]) and must end in the same
//! state: everything that decides about a client's batch is derived from committed records alone.
//!
//! In:  batch heads, commits, recovered record heads, trims.  Out: [`Verdict`], [`CommittedBatch`], [`BatchRef`].
//! Files: `batch.rs` the batch header and what a client's batch must obey; `records.rs` the records inside, packed or
//! not; `pack.rs` packs a batch in another codec; `idempotence.rs` producers and their retries; `epochs.rs` leader
//! epochs; `time.rs` finding batches by time; `log.rs` offset -> where it lies; `codec.rs` the bytes of a snapshot.

pub mod batch;
mod codec;
pub mod epochs;
pub mod idempotence;
mod log;
pub mod pack;
pub mod records;
pub mod time;

pub use codec::SnapshotError;

#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::shard::api::{ActiveProducer, EpochEnd, Producing, Refusal};
use crate::types::{EntryId, Index, LeaderEpoch, Offset, PartitionId, ProducerId, SegmentSeq, WallMs};
use crate::wal::record::{RecordAt, RecordHead, RecordKind};
use batch::BatchHead;
use codec::{Reader, Writer};
use epochs::Epochs;
use idempotence::{Claim, InFlight, Judgement, Producers};
use log::{Entry, Log};
use std::collections::VecDeque;

/// The first byte of a snapshot. Another layout gets another number.
const SNAPSHOT_VERSION: u8 = 1;

/// What is to happen with a batch that obeys the rules of its topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Propose it with these offsets, then call [`Partition::proposed`].
    Append {
        base_offset: Offset,
    },
    /// It is in the log; with LogAppendTime, since when.
    Duplicate {
        base_offset: Offset,
        append_time: Option<WallMs>,
    },
    /// It was proposed as this entry: answer when that commits ([`CommittedBatch`] is the answer), refuse if it is
    /// lost.
    AwaitOriginal {
        index: Index,
    },
    Refuse(Refusal),
}

/// A batch that is now visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommittedBatch {
    pub entry: EntryId,
    pub base_offset: Offset,
    pub count: u32,
    /// With LogAppendTime, the time of its records.
    pub append_time: Option<WallMs>,
}

/// A visible batch, and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRef {
    pub base_offset: Offset,
    pub count: u32,
    pub at: RecordAt,
    pub max_timestamp: WallMs,
    pub epoch: LeaderEpoch,
}

/// A batch on its way: proposed, not committed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    entry: EntryId,
    batch: Entry,
    claim: Option<Claim>,
    append_time: Option<WallMs>,
}

/// One partition. Lives on the core of its shard; nothing else knows it.
///
/// Always true: `log start <= high watermark <= next offset`; none of them ever goes back, but for the next offset when
/// leadership is lost with batches in flight.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    /// Committed, and so are the next two. The log's end is the high watermark.
    log: Log,
    epochs: Epochs,
    producers: Producers,
    /// Behind the log's end, contiguous, oldest first, Raft indexes ascending.
    pending: VecDeque<Pending>,
    in_flight: InFlight,
}

impl Partition {
    /// An empty partition.
    pub fn new(id: PartitionId) -> Partition {
        Partition {
            id,
            log: Log::default(),
            epochs: Epochs::default(),
            producers: Producers::default(),
            pending: VecDeque::new(),
            in_flight: InFlight::default(),
        }
    }

    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// Judges a batch that [`batch::validate`] took. Changes nothing. The leader's alone to ask.
    pub fn check(&self, head: &BatchHead) -> Verdict {
        let due = Verdict::Append { base_offset: self.next_offset() };
        let Some(claim) = Claim::of(head) else { return due };
        match idempotence::judge(&self.producers, &self.in_flight, &claim) {
            Judgement::Due => due,
            Judgement::Duplicate { base_offset, append_time } => Verdict::Duplicate { base_offset, append_time },
            Judgement::InFlight { index } => Verdict::AwaitOriginal { index },
            Judgement::Refused(refusal) => Verdict::Refuse(refusal),
        }
    }

    /// Something of this producer was accepted, or is on its way: its next sequence is known.
    pub fn knows(&self, producer: ProducerId) -> bool {
        self.producers.knows(producer) || self.in_flight.has(producer)
    }

    /// The batch was proposed with the offset that [`Self::check`] named, and lies at `at` in the WAL.
    pub fn proposed(&mut self, entry: EntryId, head: &BatchHead, base_offset: Offset, at: RecordAt) {
        let expected = self.next_offset();
        assert_eq!(base_offset, expected, "partition {}: offsets are contiguous", self.id);
        if let Some(before) = self.pending.back() {
            assert!(before.entry < entry, "partition {}: {entry:?} is proposed behind {:?}", self.id, before.entry);
        }
        let count = u32::try_from(head.count).expect("a checked batch has records");
        let batch = Entry { base_offset, max_timestamp: head.max_timestamp, at, count };
        let claim = Claim::of(head);
        if let Some(claim) = claim {
            self.in_flight.proposed(claim, entry.index);
        }
        self.pending.push_back(Pending { entry, batch, claim, append_time: head.append_time() });
    }

    /// The shard's log is committed up to `index`, one call for each entry, in order: the high watermark moves if the
    /// entry is a batch of this partition.
    pub fn committed(&mut self, index: Index) -> Option<CommittedBatch> {
        let oldest = self.pending.front()?.entry.index;
        assert!(oldest >= index, "partition {}: entry {index} commits, but {oldest} did not", self.id);
        if oldest != index {
            return None;
        }
        let Pending { entry, batch, claim, append_time } = self.pending.pop_front()?;
        if let Some(claim) = &claim {
            self.in_flight.landed(claim, index);
        }
        self.apply(entry, batch, claim, append_time);
        Some(CommittedBatch { entry, base_offset: batch.base_offset, count: batch.count, append_time })
    }

    /// A committed batch, from the head of its WAL record alone: the same as proposed and committed.
    pub fn recovered(&mut self, head: &RecordHead, at: RecordAt) {
        assert!(self.pending.is_empty(), "partition {}: recovery comes before any proposal", self.id);
        let batch = self.entry_of(head, at);
        let entry = EntryId { term: head.term, index: head.index };
        self.apply(entry, batch, Claim::of_record(head), idempotence::append_time_of(head));
    }

    /// A committed batch that the snapshot, from which this partition was restored, has behind it: only where it lies
    /// is news. In offset order, and before any [`Self::recovered`].
    pub fn recovered_data_only(&mut self, head: &RecordHead, at: RecordAt) {
        let batch = self.entry_of(head, at);
        self.log.push_below_snapshot(batch);
    }

    fn entry_of(&self, head: &RecordHead, at: RecordAt) -> Entry {
        assert_eq!((head.kind, head.partition), (RecordKind::Batch, self.id), "a record of another kind or partition");
        Entry { base_offset: head.base_offset, max_timestamp: head.max_timestamp, at, count: head.count }
    }

    /// Everything that a committed batch changes.
    fn apply(&mut self, entry: EntryId, batch: Entry, claim: Option<Claim>, append_time: Option<WallMs>) {
        self.log.push(batch);
        self.epochs.note(entry.term.leader_epoch(), batch.base_offset);
        // Also here, so that what is known does not depend on whether the trim came before the batch.
        self.epochs.prune(self.log.start());
        if let Some(claim) = claim {
            self.producers.apply(&claim, batch.base_offset, append_time);
        }
    }

    /// The first offsets between log start and high watermark that no batch was told for. After a recovery, when every
    /// trim is applied, and if the partition still exists: lost data.
    pub fn missing(&self) -> Option<(Offset, Offset)> {
        self.log.missing()
    }

    /// The same behind the first batch that is there. Ask when the batches below the snapshot were told, before the
    /// first behind it: anything but None is lost data. Below the first batch, the segments may have been given back
    /// after a trim or a deletion that is newer than the snapshot.
    pub fn torn(&self) -> Option<(Offset, Offset)> {
        self.log.torn()
    }

    /// Leadership is lost: what was proposed may commit or not, under another leader. Its offsets are free, and retries
    /// are judged by what is committed.
    pub fn drop_uncommitted(&mut self) {
        self.pending.clear();
        self.in_flight.clear();
    }

    /// The offset behind the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.log.end()
    }

    /// The same as the high watermark until there are transactions.
    pub fn last_stable(&self) -> Offset {
        self.log.end()
    }

    /// The first offset that may be read.
    pub fn log_start(&self) -> Offset {
        self.log.start()
    }

    /// The offset that the next batch gets: behind everything proposed.
    pub fn next_offset(&self) -> Offset {
        self.pending.back().map_or(self.log.end(), |last| last.batch.end())
    }

    /// Visible batches from the one that holds `offset` on; none at the high watermark. What is missing is refused.
    pub fn read_from(&self, offset: Offset) -> Result<impl Iterator<Item = BatchRef> + '_, Refusal> {
        self.check_offset(offset)?;
        if self.missing().is_some_and(|(_, behind)| offset < behind) {
            return Err(Refusal::Storage);
        }
        let visible = self.log.from(offset);
        #[cfg(feature = "planted")]
        let visible = visible.chain(self.pending.iter().filter(|_| is(Bug::ServePastHighWatermark)).map(|p| &p.batch));
        Ok(visible.map(|entry| self.batch_ref(entry)))
    }

    /// The first batch, in log order, that has a timestamp at or above `t`. The record is in it, unless the batch
    /// straddles the log start: then it may be below, and the search goes on with [`Self::find_time_from`] behind the
    /// batch. Look inside with [`records::first_at_or_after`].
    pub fn find_time(&self, t: WallMs) -> Option<BatchRef> {
        self.find_time_from(self.log.start(), t)
    }

    /// The same, among the batches from the one that holds `from` on.
    pub fn find_time_from(&self, from: Offset, t: WallMs) -> Option<BatchRef> {
        self.log.find_time(from, t).map(|entry| self.batch_ref(entry))
    }

    /// The batch with the largest timestamp, the first of them; None if there is none, or if no record has a time. Look
    /// inside with [`records::max_timestamp`]. If the batch straddles the log start, the record may be below it, and
    /// the answer is the larger of what is left in this batch and [`Self::find_max_timestamp_from`] behind it.
    pub fn find_max_timestamp(&self) -> Option<BatchRef> {
        self.find_max_timestamp_from(self.log.start())
    }

    /// The same, among the batches from the one that holds `from` on.
    pub fn find_max_timestamp_from(&self, from: Offset) -> Option<BatchRef> {
        let entry = self.log.find_max_timestamp(from)?;
        (entry.max_timestamp >= WallMs(0)).then(|| self.batch_ref(entry))
    }

    /// The answer to OffsetForLeaderEpoch. `current` is the epoch of the leader that answers.
    pub fn epoch_end(&self, requested: LeaderEpoch, current: LeaderEpoch) -> EpochEnd {
        self.epochs.end_of(requested, current, self.log.start(), self.log.end())
    }

    /// The epoch in which the record at `offset` was written; -1 if nothing is known.
    pub fn epoch_of(&self, offset: Offset) -> LeaderEpoch {
        self.epochs.of(offset)
    }

    /// Whether the records below `offset` may be deleted, before a trim is proposed: what it would make the log start.
    pub fn check_trim(&self, offset: Option<Offset>) -> Result<Offset, Refusal> {
        let offset = offset.unwrap_or(self.log.end());
        if offset < Offset(0) || offset > self.log.end() {
            return Err(self.out_of_range());
        }
        Ok(offset.max(self.log.start()))
    }

    /// Deletes the records below `offset`: the log start moves there, never back. Returns the log start. Producers are
    /// remembered all the same.
    pub fn trim(&mut self, offset: Offset) -> Result<Offset, Refusal> {
        let start = self.check_trim(Some(offset))?;
        self.log.trim(start);
        self.epochs.prune(start);
        Ok(start)
    }

    /// Who wrote to it and is remembered (see [`Producing`]).
    pub fn producing(&self, producers_max: usize) -> Producing {
        let total = self.producers.len();
        if total > producers_max {
            return Producing { total, active: Vec::new() };
        }
        let active = self.producers.iter().map(|(id, epoch, last_sequence, newest)| {
            let batch = self.log.from(newest).next().filter(|batch| batch.base_offset == newest);
            let last_timestamp = batch.map_or(WallMs(-1), |batch| batch.max_timestamp);
            ActiveProducer { id, epoch, last_sequence, last_timestamp }
        });
        Producing { total, active: active.collect() }
    }

    /// What its visible batches take in the log, bytes, as they are stored.
    pub fn data_bytes(&self) -> u64 {
        self.log.data_bytes()
    }

    /// The oldest WAL segment that holds anything of this partition's data, committed or not.
    pub fn first_segment(&self) -> Option<SegmentSeq> {
        self.log.first_segment().or_else(|| self.pending.front().map(|first| first.batch.at.segment))
    }

    /// Memory, bytes, roughly.
    pub fn index_bytes(&self) -> usize {
        let pending = self.pending.capacity() * size_of::<Pending>();
        self.log.bytes() + self.epochs.bytes() + self.producers.bytes() + pending
    }

    /// What is committed, without the index of batches. The same state gives the same bytes.
    pub fn snapshot(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.u8(SNAPSHOT_VERSION);
        out.i64(self.log.start().0);
        out.i64(self.log.end().0);
        self.epochs.snapshot(&mut out);
        #[cfg(feature = "planted")]
        if is(Bug::DropProducersAtSnapshot) {
            return Producers::default().snapshot(&mut out);
        }
        self.producers.snapshot(&mut out);
    }

    /// The partition as [`Self::snapshot`] saw it; then come [`Self::recovered_data_only`] for the batches below it and
    /// [`Self::recovered`] for those behind.
    pub fn restore(id: PartitionId, bytes: &[u8]) -> Result<Partition, SnapshotError> {
        let mut input = Reader::new(bytes);
        if input.u8()? != SNAPSHOT_VERSION {
            return Err(input.wrong("its version is not known"));
        }
        let (start, end) = (Offset(input.i64()?), Offset(input.i64()?));
        if start < Offset(0) || start > end {
            return Err(input.wrong("the log can not start and end there"));
        }
        let epochs = Epochs::restore(&mut input, end)?;
        let producers = Producers::restore(&mut input, end)?;
        if !input.is_at_end() {
            return Err(input.wrong("there are bytes behind the last field"));
        }
        Ok(Partition { log: Log::restored(start, end), epochs, producers, ..Partition::new(id) })
    }

    fn check_offset(&self, offset: Offset) -> Result<(), Refusal> {
        if offset < self.log.start() || offset > self.log.end() {
            return Err(self.out_of_range());
        }
        Ok(())
    }

    fn out_of_range(&self) -> Refusal {
        Refusal::OffsetOutOfRange { high_watermark: self.log.end(), log_start: self.log.start() }
    }

    fn batch_ref(&self, entry: &Entry) -> BatchRef {
        BatchRef {
            base_offset: entry.base_offset,
            count: entry.count,
            at: entry.at,
            max_timestamp: entry.max_timestamp,
            epoch: self.epochs.of(entry.base_offset),
        }
    }
}
