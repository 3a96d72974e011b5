//! The last groups of the log, in memory: what a reader at the tail wants, without a read and without a copy.

use super::format::{DiskHead, RECORD_HEAD_BYTES};
use super::record::RecordAt;
use crate::types::SegmentSeq;
use bytes::Bytes;
use std::collections::VecDeque;

/// Groups that were submitted, oldest first. Lives on the core's thread; the bytes are shared with the disk and with
/// readers, and go back to the pool when the last of them lets go.
pub(super) struct TailCache {
    groups: VecDeque<Cached>,
    bytes: usize,
    bytes_max: usize,
}

struct Cached {
    segment: SegmentSeq,
    at: u32,
    bytes: Bytes,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache { groups: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Adds the newest group, which lies at byte `at` of its segment.
    pub fn push(&mut self, segment: SegmentSeq, at: u32, bytes: Bytes) {
        if let Some(last) = self.groups.back() {
            assert!((last.segment, last.at) < (segment, at), "groups come in the order in which they lie");
        }
        self.bytes += bytes.len();
        self.groups.push_back(Cached { segment, at, bytes });
        while self.bytes > self.bytes_max {
            self.evict();
        }
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Forgets the oldest group; false when there is none.
    pub fn evict(&mut self) -> bool {
        let Some(oldest) = self.groups.pop_front() else { return false };
        self.bytes -= oldest.bytes.len();
        true
    }

    /// The body of a record, if its group is here.
    pub fn body(&self, at: RecordAt) -> Option<Bytes> {
        let after = self.groups.partition_point(|g| (g.segment, g.at) <= (at.segment, at.at));
        let group = &self.groups[after.checked_sub(1)?];
        if group.segment != at.segment {
            return None;
        }
        let from = (at.at - group.at) as usize;
        if from >= group.bytes.len() {
            return None;
        }
        let head = DiskHead::read(&group.bytes[from..from + RECORD_HEAD_BYTES]);
        assert!(head.body_bytes == at.len, "{at:?} does not name a record: its head says {} bytes", head.body_bytes);
        Some(group.bytes.slice(from + RECORD_HEAD_BYTES..from + RECORD_HEAD_BYTES + at.len as usize))
    }
}
