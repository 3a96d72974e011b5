//! A log for people and tools: `camus wal dump`, `camus wal verify`. Reads only, and never with a running broker.

use super::error::WalError;
use super::format::{GroupHeader, SegmentHeader};
use super::record::{RecordAt, RecordHead};
use super::recovery::{self, Dropped, Owner, Role};
use crate::io::{FileId, Volume};
use crate::types::Lsn;

/// What a walk of the log comes by, in its order.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    Segment {
        file: FileId,
        header: &'a SegmentHeader,
    },
    /// Byte `at` of the segment before.
    Group {
        at: u32,
        header: &'a GroupHeader,
    },
    /// A record of the group before.
    Record {
        head: &'a RecordHead,
        body: &'a [u8],
        at: RecordAt,
    },
}

/// What a log is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Path, length, what it is to the log. Empty when the log is not whole.
    pub files: Vec<(String, u64, Role)>,
    pub segments: u64,
    pub groups: u64,
    pub records: u64,
    /// LSNs of the first and the last whole group; both 0 if there is none.
    pub first: Lsn,
    pub last: Lsn,
    /// What is known to have been acknowledged. 0 when the log is not whole.
    pub acknowledged: Lsn,
    /// An unfinished write after the last group.
    pub dropped: Option<Dropped>,
    /// Why a broker would not start on it. `None`: it would.
    pub refusal: Option<WalError>,
}

/// Shows each whole segment, group and record, in order, up to the end of the log or to what is wrong with it.
pub fn walk(volume: &dyn Volume, owner: Owner, show: &mut dyn FnMut(Seen<'_>)) -> Report {
    let mut report = Report {
        files: Vec::new(),
        segments: 0,
        groups: 0,
        records: 0,
        first: Lsn(0),
        last: Lsn(0),
        acknowledged: Lsn(0),
        dropped: None,
        refusal: None,
    };
    let mut now = None;
    let scan = recovery::scan(volume, owner, false, &mut |segment, group| {
        if now != Some(segment.sequence()) {
            now = Some(segment.sequence());
            report.segments += 1;
            show(Seen::Segment { file: segment.file, header: &segment.header });
        }
        show(Seen::Group { at: group.at, header: &group.header });
        report.groups += 1;
        if report.first == Lsn(0) {
            report.first = group.lsn();
        }
        report.last = group.lsn();
        for (head, body, at) in group.records() {
            let len = u32::try_from(body.len()).expect("a body is at most WAL_RECORD_BYTES_MAX");
            report.records += 1;
            show(Seen::Record { head: &head, body, at: RecordAt { segment: segment.sequence(), at, len } });
        }
        Ok(())
    });
    match scan {
        Ok(scan) => {
            report.files = scan.files.iter().map(|(file, bytes, role)| (volume.path(*file), *bytes, *role)).collect();
            report.acknowledged = scan.durable;
            report.dropped = scan.dropped;
        }
        Err(refusal) => report.refusal = Some(refusal),
    }
    report
}

/// Judges the log as a start would, and changes nothing.
pub fn verify(volume: &dyn Volume, owner: Owner) -> Report {
    walk(volume, owner, &mut |_| {})
}
