//! The last groups of the log, in memory: what a reader at the tail wants, without a read and without a copy.

use super::format::{DiskHead, RECORD_HEAD_BYTES};
use super::record::RecordAt;
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::types::SegmentSeq;
use bytes::Bytes;
use std::cell::Cell;
use std::collections::VecDeque;

/// Groups that were submitted, oldest first. Lives on the core's thread; the bytes are shared with the disk and with
/// readers, and go back to the pool when the last of them lets go.
pub(super) struct TailCache {
    groups: VecDeque<Cached>,
    bytes: usize,
    bytes_max: usize,
    /// Groups forgotten so far: the number of the first one here.
    first: u64,
    /// The number of the group that was found last: what is asked for next is there, or in the next one.
    found: Cell<u64>,
}

struct Cached {
    segment: SegmentSeq,
    at: u32,
    bytes: Bytes,
}

impl TailCache {
    pub fn new(bytes_max: usize) -> TailCache {
        TailCache { groups: VecDeque::new(), bytes: 0, bytes_max, first: 0, found: Cell::new(0) }
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
        self.first += 1;
        true
    }

    /// The group that holds this place, if it is here.
    fn group(&self, segment: SegmentSeq, at: u32) -> Option<&Cached> {
        // What was read from the disk, most likely.
        if self.groups.front().is_none_or(|oldest| (segment, at) < (oldest.segment, oldest.at)) {
            return None;
        }
        let holds = |group: &Cached| group.holds(segment, at);
        let near = self.found.get().saturating_sub(self.first) as usize;
        for n in [near, near + 1] {
            if self.groups.get(n).is_some_and(holds) {
                self.found.set(self.first + n as u64);
                return self.groups.get(n);
            }
        }
        let after = self.groups.partition_point(|g| (g.segment, g.at) <= (segment, at));
        let n = after.checked_sub(1)?;
        self.found.set(self.first + n as u64);
        self.groups.get(n).filter(|group| holds(group))
    }

    /// The body of a record, if its group is here.
    pub fn body(&self, at: RecordAt) -> Option<Bytes> {
        self.record(at).map(|(_, body)| body)
    }

    /// The record at this place, if its group is here.
    pub fn record(&self, at: RecordAt) -> Option<(DiskHead, Bytes)> {
        let group = self.group(at.segment, at.at)?;
        let from = (at.at - group.at) as usize;
        let head = DiskHead::read(&group.bytes[from..from + RECORD_HEAD_BYTES]);
        assert!(head.body_bytes == at.len, "{at:?} does not name a record: its head says {} bytes", head.body_bytes);
        Some((head, group.bytes.slice(from + RECORD_HEAD_BYTES..from + RECORD_HEAD_BYTES + at.len as usize)))
    }
}

impl Cached {
    fn holds(&self, segment: SegmentSeq, at: u32) -> bool {
        let is_of = self.segment == segment;
        #[cfg(feature = "planted")]
        let is_of = is_of || is(Bug::StaleRecycledBuffer);
        is_of && at.checked_sub(self.at).is_some_and(|from| (from as usize) < self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Lost if it fails: a reader would get nothing, or another group's bytes, from memory with what it wants.
        #[test]
        fn whatever_was_found_last_a_place_is_found_where_it_lies(
            steps in proptest::collection::vec((0..4u8, 0..40u32, 1..5u32), 1..80),
        ) {
            let mut cache = TailCache::new(1000 * 4096);
            let (mut segment, mut end) = (1, 4096);
            let mut groups: VecDeque<(u32, u32, u32)> = VecDeque::new();
            for (what, place, blocks) in steps {
                match what {
                    0 => {
                        if place > 30 { (segment, end) = (segment + 1, 4096); }
                        cache.push(SegmentSeq(segment), end, Bytes::from(vec![0; blocks as usize * 4096]));
                        groups.push_back((segment, end, end + blocks * 4096));
                        // a hole before the next one
                        end += (blocks + place % 2) * 4096;
                    }
                    1 if place > 20 => prop_assert_eq!(cache.evict(), groups.pop_front().is_some()),
                    _ => {
                        let of = groups.get(place as usize % groups.len().max(1)).map_or(1, |g| g.0);
                        let at = place * 2048;
                        let want = groups.iter().find(|(s, from, to)| *s == of && (*from..*to).contains(&at));
                        let got = cache.group(SegmentSeq(of), at).map(|g| (g.segment.0, g.at));
                        prop_assert_eq!(got, want.map(|(s, from, _)| (*s, *from)));
                    }
                }
            }
        }
    }
}
