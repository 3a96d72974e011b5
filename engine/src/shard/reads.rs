//! Reads that memory can not answer.
//!
//! What is read is an *extent*: a run of whole blocks of one segment, with whatever lies in it. All partitions of a
//! core share its log, so one extent serves whoever wants something in it: those who waited for it, and, as long as
//! there is memory to keep it, those who come later. Wants that lie near each other are read at once, whoever has
//! them. Who reads a partition in order finds the next extents read when it comes for them ([`Stream`]).
//!
//! In: wants, with who waits ([`DiskReads::push`]), readers as they go on ([`DiskReads::follow`]), ends of reads
//! ([`DiskReads::done`]). Out: reads for the disk ([`DiskReads::submit`]), jobs whose parts are all there.

use super::api::{Found, ReadDone, Refusal, Route, Ticket};
use crate::io::{DiskDone, DiskError, DiskOk, DiskOp, OpId};
use crate::limits;
use crate::partition::BatchRef;
use crate::types::{Offset, PartitionId, SegmentSeq, WallMs};
use crate::wal::format::RECORD_HEAD_BYTES;
use crate::wal::{RecordAt, RecordKind, Wal, WalError};
use bytes::Bytes;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bit 63: the WAL's own operations have it clear.
const READ_OP: u64 = 1 << 63;

/// Is it an operation of these reads? Else it is the WAL's.
pub(super) fn is_read(op: OpId) -> bool {
    op.0 & READ_OP != 0
}

/// A batch of an answer: in memory, or to be read.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Here(Bytes),
    At(RecordAt),
    /// It was read and is not what was written, or could not be read.
    Bad,
}

/// The batches of one answer, of which at least one has to be read, and who waits for it.
#[derive(Debug)]
pub(super) struct ReadJob {
    pub ticket: Ticket,
    pub partition: PartitionId,
    /// In the order of their offsets.
    pub parts: Vec<Part>,
    pub kind: ReadKind,
    /// Waiters of this job that are not served yet.
    missing: usize,
}

#[derive(Debug)]
pub(super) enum ReadKind {
    /// The marks of the moment in which the read was asked for; the batches are added.
    Fetch(ReadDone),
    /// The batch that a time query has to look into.
    Search(Search, BatchRef),
}

/// A time query on its way through the batches that may hold its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub from: Route,
    pub query: TimeQuery,
    pub best: Option<Found>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TimeQuery {
    /// The record with the largest timestamp.
    Max,
    /// The first record at or after this time.
    AtOrAfter(WallMs),
}

/// The first byte of an extent, at a block's boundary.
type Place = (SegmentSeq, u32);

/// Whole blocks of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    segment: SegmentSeq,
    from: u32,
    end: u32,
}

impl Span {
    /// The blocks that hold a record.
    fn of(at: RecordAt) -> Span {
        const BLOCK: u32 = limits::BLOCK_BYTES as u32;
        let end = at.at + RECORD_HEAD_BYTES as u32 + at.len;
        Span { segment: at.segment, from: at.at / BLOCK * BLOCK, end: end.next_multiple_of(BLOCK) }
    }

    fn place(&self) -> Place {
        (self.segment, self.from)
    }

    fn bytes(&self) -> usize {
        (self.end - self.from) as usize
    }

    fn holds(&self, other: Span) -> bool {
        self.segment == other.segment && self.from <= other.from && other.end <= self.end
    }

    /// Both at once, if `next` begins behind this one, near enough that it is worth it.
    fn joined(&self, next: Span) -> Option<Span> {
        let near = next.segment == self.segment
            && next.from >= self.from
            && next.from <= self.end.saturating_add(limits::DISK_READ_GAP_BYTES_MAX);
        let both = Span { end: self.end.max(next.end), ..*self };
        (near && both.bytes() <= limits::DISK_READ_BYTES_MAX).then_some(both)
    }
}

/// Parts of a job that lie in one extent.
#[derive(Debug)]
struct Waiter {
    job: usize,
    parts: Range<usize>,
}

/// An extent that is to be read.
#[derive(Debug)]
struct Want {
    span: Span,
    /// None: it is read ahead.
    waiters: Vec<Waiter>,
}

/// Why something is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// Together with others it could not be read.
    Again,
    Asked,
    Ahead,
}

#[derive(Debug)]
struct Flight {
    span: Span,
    waiters: Vec<Waiter>,
    held: Held,
}

/// Bytes of one read, counted from its submission until the last reference to them is dropped, on whichever thread.
#[derive(Debug)]
struct Held {
    sum: Arc<AtomicUsize>,
    bytes: usize,
}

impl Held {
    fn new(sum: &Arc<AtomicUsize>, bytes: usize) -> Held {
        sum.fetch_add(bytes, Ordering::Relaxed);
        Held { sum: Arc::clone(sum), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What was read, with its count.
struct Counted {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// An extent in memory.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    span: Span,
    bytes: Bytes,
}

/// Somebody who reads a partition from its older part on, in order: what comes next is read before it is asked for.
#[derive(Debug)]
struct Stream {
    partition: PartitionId,
    /// Its last answer.
    answered: Range<Offset>,
    /// Up to here it is read, or on its way.
    ahead: Offset,
    /// Bytes of the log that are read for what lies between the last answer and there.
    ahead_bytes: usize,
    /// What these may be. Grows with each answer that follows on the one before.
    window_bytes: usize,
}

/// The reads of one core. Lives on its thread.
///
/// Bounded: operations and bytes at the disk by [`limits::DISK_READS_IN_FLIGHT_MAX`] and
/// [`limits::DISK_READ_BYTES_IN_FLIGHT_MAX`], so that a write never waits behind more than these; memory by the budget
/// that it is made with, and one read over it. What waits is a job for each partition of a request in flight at most,
/// with [`limits::DISK_READ_RUNS_MAX`] wants each, and what is wanted ahead for [`limits::READ_STREAMS_MAX`] readers.
#[derive(Debug)]
pub(super) struct DiskReads {
    bytes_max: usize,
    jobs: Slab<ReadJob>,
    wants: BTreeMap<Place, Want>,
    /// Wants that somebody waits for, oldest first, and those that are read ahead. One that is not in `wants` any more
    /// was read with another.
    asked: VecDeque<Place>,
    ahead: VecDeque<Place>,
    /// Parts whose extent could not be read: each by itself, since it may be another's blocks that are bad.
    again: VecDeque<(Span, Waiter)>,
    flights: BTreeMap<OpId, Flight>,
    flight_bytes: usize,
    /// What was read and is kept, by its place and its number; and the same, oldest first.
    kept: BTreeMap<(Place, u64), Extent>,
    kept_order: VecDeque<(Place, u64)>,
    kept_bytes: usize,
    /// In flight, kept, or in answers that are not sent.
    held: Arc<AtomicUsize>,
    /// The one used longest ago first.
    streams: VecDeque<Stream>,
    next: u64,
}

/// The parts from `start` on that are read at once, and the blocks that they lie in.
fn run(parts: &[Part], start: usize) -> (Range<usize>, Span) {
    let (mut end, mut span) = (start + 1, Span::of(at_of(&parts[start])));
    while let Some(Part::At(at)) = parts.get(end)
        && let Some(both) = span.joined(Span::of(*at))
    {
        (end, span) = (end + 1, both);
    }
    (start..end, span)
}

impl DiskReads {
    /// `bytes_max`: what the reads may hold, in flight, kept and in answers.
    pub fn new(bytes_max: usize) -> DiskReads {
        DiskReads {
            bytes_max,
            jobs: Slab::new(),
            wants: BTreeMap::new(),
            asked: VecDeque::new(),
            ahead: VecDeque::new(),
            again: VecDeque::new(),
            flights: BTreeMap::new(),
            flight_bytes: 0,
            kept: BTreeMap::new(),
            kept_order: VecDeque::new(),
            kept_bytes: 0,
            held: Arc::default(),
            streams: VecDeque::new(),
            next: 0,
        }
    }

    /// Bytes of all reads: in flight, kept, or in answers that are not sent.
    pub fn held_bytes(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The batch out of what was read before, if it is there. `near`: the extent in which the last one was found.
    pub fn kept(&self, wal: &Wal, partition: PartitionId, at: RecordAt, near: &mut Option<Extent>) -> Option<Part> {
        let span = Span::of(at);
        if !near.as_ref().is_some_and(|extent| extent.span.holds(span)) {
            *near = Some(self.extent(span)?.clone());
        }
        near.as_ref().map(|extent| self.part_of(wal, extent, at, partition))
    }

    /// The kept extent that these blocks lie in.
    fn extent(&self, span: Span) -> Option<&Extent> {
        let before = self.kept.range(..=(span.place(), u64::MAX)).rev().take(OVERLAPS_MAX);
        before.map(|(_, extent)| extent).find(|extent| extent.span.holds(span))
    }

    /// One batch of an extent, checked. A copy if readers hold so much that there is little room to read into.
    fn part_of(&self, wal: &Wal, extent: &Extent, at: RecordAt, partition: PartitionId) -> Part {
        let lent = self.held_bytes().saturating_sub(self.flight_bytes + self.kept_bytes);
        match body_of(wal, extent, at, partition) {
            Ok(body) if lent > self.bytes_max / 2 => Part::Here(Bytes::copy_from_slice(&body)),
            Ok(body) => Part::Here(body),
            Err(error) => {
                tracing::error!(%error, "a stored batch can not be read: it is not served");
                Part::Bad
            }
        }
    }

    /// Takes a job; what of its parts is beyond the reads that one answer may have is left out of the answer.
    pub fn push(&mut self, ticket: Ticket, partition: PartitionId, mut parts: Vec<Part>, kind: ReadKind) {
        let job = self.jobs.vacant_key();
        let (mut missing, mut n) = (0, 0);
        while n < parts.len() {
            if !matches!(parts[n], Part::At(_)) {
                n += 1;
                continue;
            }
            if missing == limits::DISK_READ_RUNS_MAX {
                parts.truncate(n);
                break;
            }
            missing += 1;
            n = self.wait(job, &parts, n);
        }
        assert!(missing > 0, "a read names what it reads");
        self.jobs.insert(ReadJob { ticket, partition, parts, kind, missing });
    }

    /// Lets the job wait for the part at `n` and those behind it that come with it; returns where these end.
    fn wait(&mut self, job: usize, parts: &[Part], n: usize) -> usize {
        let first = Span::of(at_of(&parts[n]));
        let within = |span: Span| {
            let more = parts[n + 1..].iter();
            n + 1 + more.take_while(|part| matches!(part, Part::At(at) if span.holds(Span::of(*at)))).count()
        };
        if let Some(flight) = self.flights.values_mut().find(|flight| flight.span.holds(first)) {
            let end = within(flight.span);
            flight.waiters.push(Waiter { job, parts: n..end });
            return end;
        }
        let before = self.wants.range_mut(..=first.place()).next_back();
        if let Some((place, want)) = before.filter(|(_, want)| want.span.holds(first)) {
            let end = within(want.span);
            if want.waiters.is_empty() {
                self.asked.push_back(*place);
            }
            want.waiters.push(Waiter { job, parts: n..end });
            return end;
        }
        let (range, span) = run(parts, n);
        let end = range.end;
        self.want(span).push(Waiter { job, parts: range });
        self.asked.push_back(span.place());
        end
    }

    /// The want that begins where `span` does, as long as that at least.
    fn want(&mut self, span: Span) -> &mut Vec<Waiter> {
        let want = self.wants.entry(span.place()).or_insert(Want { span, waiters: vec![] });
        want.span.end = want.span.end.max(span.end);
        &mut want.waiters
    }

    /// Somebody has read `answered` of a partition, `bytes` long, and there is more behind it. If that follows on an
    /// answer before: from where on, and how many bytes, are to be read ahead for the next one ([`Self::read_ahead`]).
    pub fn follow(&mut self, partition: PartitionId, answered: Range<Offset>, bytes: usize) -> Option<(Offset, usize)> {
        // Not only exactly behind: a client may have got less of the last answer than was found for it.
        let goes_on = |stream: &Stream| {
            let Range { start, end } = stream.answered;
            stream.partition == partition && start < answered.start && answered.start <= end
        };
        let Some(n) = self.streams.iter().position(goes_on) else {
            while self.streams.len() >= limits::READ_STREAMS_MAX {
                self.streams.pop_front();
            }
            let ahead = answered.end;
            self.streams.push_back(Stream { partition, answered, ahead, ahead_bytes: 0, window_bytes: bytes });
            return None;
        };
        let mut stream = self.streams.remove(n).expect("just found");
        let share = self.bytes_max / 2 / (self.streams.len() + 1);
        stream.window_bytes = (stream.window_bytes.max(bytes) * 2).min(limits::READ_AHEAD_BYTES_MAX).min(share);
        if stream.ahead <= answered.end {
            (stream.ahead, stream.ahead_bytes) = (answered.end, 0);
        } else {
            // Of what is ahead, this answer has taken its share.
            let offsets = |from: Offset| (stream.ahead.0 - from.0).unsigned_abs() as f64;
            let left = offsets(answered.end) / offsets(stream.answered.end).max(1.0);
            stream.ahead_bytes = (stream.ahead_bytes as f64 * left.min(1.0)) as usize;
        }
        stream.answered = answered;
        let (from, room) = (stream.ahead, stream.window_bytes.saturating_sub(stream.ahead_bytes));
        // Not in small pieces.
        let worth = room > 0 && room >= stream.window_bytes / 4;
        self.streams.push_back(stream);
        worth.then_some((from, room))
    }

    /// Reads these batches ahead, for the reader that [`Self::follow`] spoke of: about `bytes` of the log, in whole
    /// reads.
    pub fn read_ahead(&mut self, batches: impl Iterator<Item = BatchRef>, bytes: usize) {
        let (mut sum, mut open): (usize, Option<Span>) = (0, None);
        let stream = self.streams.back_mut().expect("it has just gone on");
        let mut spans = vec![];
        for batch in batches {
            let span = Span::of(batch.at);
            // With what lies between: it is read as well.
            match open.and_then(|open| open.joined(span).map(|both| (both, both.bytes() - open.bytes()))) {
                Some((both, more)) => (open, sum) = (Some(both), sum + more),
                None if sum >= bytes => break,
                None => {
                    spans.extend(open.replace(span));
                    sum += span.bytes();
                }
            }
            stream.ahead = Offset(batch.base_offset.0 + i64::from(batch.count));
        }
        stream.ahead_bytes += sum;
        for span in spans.into_iter().chain(open) {
            if self.extent(span).is_none() && !self.flights.values().any(|flight| flight.span.holds(span)) {
                self.want(span);
                self.ahead.push_back(span.place());
            }
        }
    }

    /// The first segment that a read in flight, or waiting, needs.
    pub fn first_segment(&self) -> Option<SegmentSeq> {
        let at = |part: &Part| match part {
            Part::At(at) => Some(at.segment),
            Part::Here(_) | Part::Bad => None,
        };
        let waiting = self.jobs.iter().flat_map(|(_, job)| job.parts.iter().filter_map(at)).min();
        waiting.into_iter().chain(self.wants.keys().next().map(|(segment, _)| *segment)).min()
    }

    /// Hands waiting reads to the disk, as far as its share goes.
    pub fn submit(&mut self, wal: &Wal, disk: &mut Vec<(OpId, DiskOp)>) {
        while let Some((want, source)) = self.next_want() {
            let bytes = want.span.bytes();
            // One read goes on in any case.
            let waits = !self.flights.is_empty();
            let full = self.flights.len() >= limits::DISK_READS_IN_FLIGHT_MAX
                || self.flight_bytes + bytes > limits::DISK_READ_BYTES_IN_FLIGHT_MAX;
            if full && waits {
                return self.put_back(want, source);
            }
            while self.held_bytes() + bytes > self.bytes_max && self.forget_oldest() {}
            let short = self.held_bytes() + bytes > self.bytes_max;
            if short && source == Source::Ahead {
                // It is read when it is asked for.
                continue;
            }
            if short && waits {
                return self.put_back(want, source);
            }
            let Span { segment, from, .. } = want.span;
            let file = wal.file_of(segment).expect("a segment is read while it is needed");
            let op = OpId(READ_OP | self.next);
            self.next += 1;
            disk.push((op, DiskOp::Read { file, at: from.into(), len: want.span.end - from }));
            self.flight_bytes += bytes;
            let held = Held::new(&self.held, bytes);
            self.flights.insert(op, Flight { span: want.span, waiters: want.waiters, held });
        }
    }

    /// Takes what is to be read next, with what lies near it.
    fn next_want(&mut self) -> Option<(Want, Source)> {
        if let Some((span, waiter)) = self.again.pop_front() {
            return Some((Want { span, waiters: vec![waiter] }, Source::Again));
        }
        loop {
            let (place, source) = match self.asked.pop_front() {
                Some(place) => (place, Source::Asked),
                None => (self.ahead.pop_front()?, Source::Ahead),
            };
            let Some(mut want) = self.wants.remove(&place) else { continue };
            while let Some((next, span)) = self.wants.range(place..).next().map(|(place, want)| (*place, want.span))
                && let Some(both) = want.span.joined(span)
            {
                want.span = both;
                want.waiters.extend(self.wants.remove(&next).expect("just seen").waiters);
            }
            return Some((want, source));
        }
    }

    fn put_back(&mut self, mut want: Want, source: Source) {
        let place = want.span.place();
        match source {
            Source::Again => {
                let waiter = want.waiters.pop().expect("it has one");
                return self.again.push_front((want.span, waiter));
            }
            Source::Asked => self.asked.push_front(place),
            Source::Ahead => self.ahead.push_front(place),
        }
        let twice = self.wants.insert(place, want);
        assert!(twice.is_none(), "it was taken out just now");
    }

    /// Forgets what was read and kept longest ago; false if there is nothing.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.kept_order.pop_front() else { return false };
        let extent = self.kept.remove(&oldest).expect("both have the same");
        self.kept_bytes -= extent.span.bytes();
        true
    }

    /// A read has ended. Gives the jobs back of which it was the last one.
    pub fn done(&mut self, wal: &Wal, done: DiskDone) -> Vec<ReadJob> {
        let Flight { span, waiters, held } = self.flights.remove(&done.op).expect("a completion has its read");
        self.flight_bytes -= span.bytes();
        let read = match done.result {
            Ok(DiskOk::Read(bytes)) => Ok(bytes),
            Ok(ok @ (DiskOk::Written | DiskOk::Prepared | DiskOk::Removed)) => panic!("a read ended as {ok:?}"),
            Err(error) => Err(error),
        };
        let extent = match read {
            Ok(bytes) => Extent { span, bytes: Bytes::from_owner(Counted { bytes, _held: held }) },
            Err(error) => return self.failed(span, waiters, error),
        };
        self.kept_bytes += span.bytes();
        self.kept.insert((span.place(), self.next), extent.clone());
        self.kept_order.push_back((span.place(), self.next));
        self.next += 1;
        let mut whole = vec![];
        for Waiter { job, parts } in waiters {
            for n in parts {
                let at = at_of(&self.jobs[job].parts[n]);
                self.jobs[job].parts[n] = self.part_of(wal, &extent, at, self.jobs[job].partition);
            }
            whole.extend(self.served(job));
        }
        whole
    }

    /// An extent could not be read. What is wanted of it is tried by itself, unless it was all of it.
    fn failed(&mut self, span: Span, waiters: Vec<Waiter>, error: DiskError) -> Vec<ReadJob> {
        let mut whole = vec![];
        for Waiter { job, parts } in waiters {
            let fault = ReadFault::Disk(error.clone());
            self.jobs[job].missing += parts.len();
            for n in parts {
                let alone = Span::of(at_of(&self.jobs[job].parts[n]));
                if alone == span {
                    tracing::error!(error = %fault, "a stored batch can not be read: it is not served");
                    self.jobs[job].parts[n] = Part::Bad;
                    self.jobs[job].missing -= 1;
                } else {
                    self.again.push_back((alone, Waiter { job, parts: n..n + 1 }));
                }
            }
            whole.extend(self.served(job));
        }
        whole
    }

    /// One waiter of the job has what it waited for.
    fn served(&mut self, job: usize) -> Option<ReadJob> {
        self.jobs[job].missing -= 1;
        (self.jobs[job].missing == 0).then(|| self.jobs.remove(job))
    }
}

/// Extents that are looked at for one that holds a record: those that begin before it, nearest first. They overlap only
/// where two readers began at different batches.
const OVERLAPS_MAX: usize = 4;

impl ReadJob {
    /// The batches up to the first that can not be served; an error if that is the first of all.
    pub fn bodies(parts: Vec<Part>) -> Result<Vec<Bytes>, Refusal> {
        let mut bodies = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Here(body) => bodies.push(body),
                Part::Bad if bodies.is_empty() => return Err(Refusal::Storage),
                Part::Bad => break,
                Part::At(at) => panic!("{at:?} was never read"),
            }
        }
        Ok(bodies)
    }
}

fn at_of(part: &Part) -> RecordAt {
    match part {
        Part::At(at) => *at,
        Part::Here(_) | Part::Bad => panic!("a run has only parts that are to be read"),
    }
}

/// Why a batch that was read is not served.
#[derive(Debug, thiserror::Error)]
enum ReadFault {
    #[error(transparent)]
    Disk(DiskError),
    #[error(transparent)]
    Wal(#[from] WalError),
    #[error("{at:?} holds another record than batch of {partition:?}: {found}")]
    Other { at: RecordAt, partition: PartitionId, found: String },
}

/// One batch of an extent: checked against its checksums and against what was asked for.
fn body_of(wal: &Wal, extent: &Extent, at: RecordAt, partition: PartitionId) -> Result<Bytes, ReadFault> {
    let span = Span::of(at);
    let skip = (span.from - extent.span.from) as usize;
    let (head, body) = wal.extract(at, &extent.bytes.slice(skip..skip + span.bytes()))?;
    if head.kind != RecordKind::Batch || head.partition != partition {
        return Err(ReadFault::Other { at, partition, found: format!("{head:?}") });
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, at: u32, len: u32) -> Part {
        Part::At(RecordAt { segment: SegmentSeq(segment), at, len })
    }

    fn runs(parts: &[Part]) -> Vec<Range<usize>> {
        let (mut runs, mut n) = (vec![], 0);
        while n < parts.len() {
            if !matches!(parts[n], Part::At(_)) {
                n += 1;
                continue;
            }
            let (range, _) = run(parts, n);
            n = range.end;
            runs.push(range);
        }
        runs
    }

    /// If this fails, a cold fetch reads the same blocks again for each batch, or megabytes for nothing.
    #[test]
    fn neighbours_are_read_at_once_and_strangers_are_not() {
        let parts = [at(1, 4096, 1000), at(1, 8192, 1000), Part::Here(Bytes::new()), at(1, 12288, 9), at(2, 4096, 9)];
        assert_eq!(runs(&parts), [0..2, 3..4, 4..5]);
        assert_eq!(runs(&[at(1, 4096, 9), at(1, 4096 + limits::DISK_READ_GAP_BYTES_MAX * 2, 9)]), [0..1, 1..2]);
        let large = limits::DISK_READ_BYTES_MAX as u32;
        assert_eq!(runs(&[at(1, 4096, large), at(1, 4096 + large, 9)]), [0..1, 1..2], "a run is bounded");
    }

    #[test]
    fn what_is_before_a_damaged_batch_is_served() {
        let here = Part::Here(Bytes::from_static(b"x"));
        let bodies = ReadJob::bodies(vec![here.clone(), Part::Bad, here]).expect("the first is whole");
        assert_eq!(bodies, [Bytes::from_static(b"x")]);
        assert_eq!(ReadJob::bodies(vec![Part::Bad]), Err(Refusal::Storage));
    }
}
