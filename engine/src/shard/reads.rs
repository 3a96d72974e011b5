//! Reads that memory can not answer: one operation of the disk for each run of neighbouring batches.

use super::api::{Found, ReadDone, Refusal, Route, Ticket};
use crate::io::{DiskDone, DiskError, DiskOk, DiskOp, FileId, OpId};
use crate::limits;
use crate::partition::BatchRef;
use crate::types::{PartitionId, SegmentSeq, WallMs};
use crate::wal::{RecordAt, RecordKind, Wal, WalError};
use bytes::Bytes;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

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
    /// Runs that are not read yet.
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

/// Consecutive parts of a job that are read at once.
#[derive(Debug)]
struct Run {
    job: usize,
    parts: Range<usize>,
}

/// The reads of one core. Bounded: [`limits::DISK_READS_IN_FLIGHT_MAX`] at the disk, the rest waits in order; a job for
/// each partition of a request in flight at most, of [`limits::DISK_READ_RUNS_MAX`] runs.
#[derive(Default, Debug)]
pub(super) struct DiskReads {
    jobs: Slab<ReadJob>,
    waiting: VecDeque<Run>,
    in_flight: BTreeMap<OpId, Run>,
    next: u64,
}

/// Is `at` near enough to the run to be read with it?
fn joins(first: RecordAt, last: RecordAt, at: RecordAt) -> bool {
    let end = u64::from(at.at) + u64::from(at.len);
    at.segment == last.segment
        && at.at > last.at
        && at.at.saturating_sub(last.at + last.len) <= limits::DISK_READ_GAP_BYTES_MAX
        && end - u64::from(first.at) <= limits::DISK_READ_BYTES_MAX
}

/// The runs that the parts make: each is one read.
fn runs(parts: &[Part]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let Part::At(at) = part else { continue };
        if let Some(run) = runs.last_mut()
            && run.end == n
            && let (Part::At(first), Part::At(last)) = (&parts[run.start], &parts[n - 1])
            && joins(*first, *last, *at)
        {
            run.end = n + 1;
        } else {
            runs.push(n..n + 1);
        }
    }
    runs
}

impl DiskReads {
    /// Takes a job; what of its parts is beyond the runs that one answer may have is left out of the answer.
    pub fn push(&mut self, ticket: Ticket, partition: PartitionId, mut parts: Vec<Part>, kind: ReadKind) {
        let mut runs = runs(&parts);
        assert!(!runs.is_empty(), "a read names what it reads");
        if let Some(over) = runs.get(limits::DISK_READ_RUNS_MAX) {
            parts.truncate(over.start);
            runs.truncate(limits::DISK_READ_RUNS_MAX);
        }
        let job = self.jobs.insert(ReadJob { ticket, partition, parts, kind, missing: runs.len() });
        self.waiting.extend(runs.into_iter().map(|parts| Run { job, parts }));
    }

    /// The first segment that a read in flight, or waiting, needs.
    pub fn first_segment(&self) -> Option<SegmentSeq> {
        let at = |part: &Part| match part {
            Part::At(at) => Some(at.segment),
            Part::Here(_) | Part::Bad => None,
        };
        self.jobs.iter().flat_map(|(_, job)| job.parts.iter().filter_map(at)).min()
    }

    /// Hands waiting reads to the disk, as far as its share goes.
    pub fn submit(&mut self, wal: &Wal, disk: &mut Vec<(OpId, DiskOp)>) {
        while self.in_flight.len() < limits::DISK_READS_IN_FLIGHT_MAX
            && let Some(run) = self.waiting.pop_front()
        {
            let op = OpId(READ_OP | self.next);
            self.next += 1;
            let parts = &self.jobs[run.job].parts[run.parts.clone()];
            let (file, at, len) = plan(wal, parts);
            disk.push((op, DiskOp::Read { file, at, len }));
            self.in_flight.insert(op, run);
        }
    }

    /// A read has ended. Gives the job back when it was the last one of it.
    pub fn done(&mut self, wal: &Wal, done: DiskDone) -> Option<ReadJob> {
        let run = self.in_flight.remove(&done.op).expect("a completion has its read");
        let job = &mut self.jobs[run.job];
        let read = done.result.map(|ok| match ok {
            DiskOk::Read(bytes) => bytes,
            DiskOk::Written | DiskOk::Prepared | DiskOk::Removed => panic!("a read ended as {ok:?}"),
        });
        let first = at_of(&job.parts[run.parts.start]);
        for part in &mut job.parts[run.parts] {
            *part = match body_of(wal, first, at_of(part), job.partition, &read) {
                Ok(body) => Part::Here(body),
                Err(error) => {
                    tracing::error!(%error, "a stored batch can not be read: it is not served");
                    Part::Bad
                }
            };
        }
        job.missing -= 1;
        (job.missing == 0).then(|| self.jobs.remove(run.job))
    }
}

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

/// The blocks that hold the whole run.
fn plan(wal: &Wal, parts: &[Part]) -> (FileId, u64, u32) {
    let (file, from, first_len) = wal.read_plan(at_of(&parts[0]));
    let (_, last_from, last_len) = wal.read_plan(at_of(&parts[parts.len() - 1]));
    let end = (last_from + u64::from(last_len)).max(from + u64::from(first_len));
    (file, from, u32::try_from(end - from).expect("a run is bounded"))
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

/// One batch out of a run that was read: checked against its checksums and against what was asked for.
fn body_of(
    wal: &Wal,
    first: RecordAt,
    at: RecordAt,
    partition: PartitionId,
    read: &Result<Bytes, DiskError>,
) -> Result<Bytes, ReadFault> {
    let read = read.as_ref().map_err(|error| ReadFault::Disk(error.clone()))?;
    let (_, run_from, _) = wal.read_plan(first);
    let (_, from, len) = wal.read_plan(at);
    let skip = (from - run_from) as usize;
    let (head, body) = wal.extract(at, &read.slice(skip..skip + len as usize))?;
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
