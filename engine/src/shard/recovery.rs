//! What a core's shards are after a restart: their records, in the order of the WAL, applied as they were committed.
//!
//! A shard's log may begin at its first entry: then everything is applied, entry by entry. Or its front is gone (the
//! segments were freed): then the newest whole snapshot is the state, entries up to it are data only, and the rest is
//! applied. What is in the log but not known to be committed waits for the replica to say so.

use super::core::{PendingBatch, Proposal, RecoverError, RecoveredMeta};
use super::peers::Tail;
use super::snapshot::{self, Places};
use crate::io::Volume;
use crate::partition::Partition;
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::replica::{HardState, RecoveredLog};
use crate::types::{Index, META_SHARD, Mono, Offset, PartitionId, SegmentSeq, ShardId, Term};
use crate::wal::{RecordAt, RecordHead, RecordKind};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// One shard, ready to be given to its replica.
pub(super) struct RecoveredShard {
    pub log: RecoveredLog,
    pub partitions: BTreeMap<PartitionId, Partition>,
    pub proposals: BTreeMap<Index, Proposal>,
    pub places: Places,
    pub tail: Tail,
    pub applied: Index,
    pub state_from: Option<SegmentSeq>,
}

struct Entry {
    head: RecordHead,
    at: RecordAt,
    /// Of commands only; batches stay where they are.
    body: Bytes,
}

/// A snapshot whose parts are being read.
struct Assembly {
    index: Index,
    term: Term,
    parts: u32,
    state: Vec<u8>,
    read: u32,
    from: SegmentSeq,
}

#[derive(Default)]
struct ShardScan {
    hard_state: Option<HardState>,
    hard_state_in: SegmentSeq,
    /// Index of the first entry seen.
    first: Option<Index>,
    last: Index,
    terms: Vec<(Index, Term)>,
    commit: Index,
    applied: Index,
    pending: VecDeque<Entry>,
    places: Places,
    tail: Tail,
    snapshot: Option<(Index, Term)>,
    state_from: Option<SegmentSeq>,
    assembly: Option<Assembly>,
    partitions: BTreeMap<PartitionId, Partition>,
}

/// The scan of one core's WAL, record by record.
pub(super) struct Scan {
    shards: BTreeMap<ShardId, ShardScan>,
    meta: RecoveredMeta,
    fault: Option<String>,
}

impl Scan {
    /// `tail_entries`: of each shard, so many entries are remembered with the place where they lie.
    pub fn new(shards: impl Iterator<Item = ShardId>, tail_entries: usize) -> Scan {
        let scan = || ShardScan { tail: Tail::new(tail_entries), ..ShardScan::default() };
        Scan { shards: shards.map(|id| (id, scan())).collect(), meta: RecoveredMeta::default(), fault: None }
    }

    pub fn record(&mut self, head: &RecordHead, body: &[u8], at: RecordAt) {
        if self.fault.is_some() {
            return;
        }
        let Some(shard) = self.shards.get_mut(&head.shard) else {
            self.fault = Some(format!("{at:?} holds a record of {:?}, which is not a shard of this core", head.shard));
            return;
        };
        let done = match head.kind {
            RecordKind::HardState => shard.hard_state(head, body, at),
            RecordKind::Snapshot => shard.part(head, body, &mut self.meta),
            RecordKind::Noop | RecordKind::Batch | RecordKind::Trim | RecordKind::Meta => {
                shard.entry(head, body, at, &mut self.meta)
            }
            RecordKind::Membership => Err("a change of replicas, which this version does not know".to_owned()),
        };
        if let Err(fault) = done.and_then(|()| {
            shard.commit = shard.commit.max(head.commit);
            shard.apply(&mut self.meta)
        }) {
            self.fault = Some(format!("{at:?}, shard {}: {fault}", head.shard));
        }
    }

    /// The shards as of the end of the log.
    pub fn finish(
        mut self,
        volume: &dyn Volume,
    ) -> Result<(BTreeMap<ShardId, RecoveredShard>, RecoveredMeta), RecoverError> {
        let mut shards = BTreeMap::new();
        for (id, mut scan) in self.shards {
            scan.assembly = None;
            if self.fault.is_none()
                && let Err(fault) = scan.apply(&mut self.meta)
            {
                self.fault = Some(format!("shard {id}: {fault}"));
            }
            if self.fault.is_none() && scan.snapshot.is_none() && scan.first.is_some_and(|first| first > Index(1)) {
                let first = scan.first.unwrap_or_default();
                self.fault = Some(format!("shard {id} begins at entry {first} and there is no snapshot before it"));
            }
            #[cfg(feature = "planted")]
            if is(Bug::ReuseOffset) {
                scan.forget_uncommitted();
            }
            let pending = scan.pending.into_iter();
            let proposals = pending.map(|e| (e.head.index, proposal(e.head, e.at, e.body, Mono(0)))).collect();
            let log = RecoveredLog {
                hard_state: scan.hard_state,
                snapshot: scan.snapshot,
                terms: scan.terms,
                last: scan.last,
                applied: scan.applied,
                commit: scan.commit,
            };
            // a vote alone, of one who has heard of no entry yet, is state that must not be lost
            let has_records = scan.first.is_some() || scan.hard_state.is_some();
            let shard = RecoveredShard {
                log,
                partitions: scan.partitions,
                proposals,
                places: scan.places,
                tail: scan.tail,
                applied: scan.applied,
                state_from: scan.state_from.or(has_records.then_some(SegmentSeq(1))),
            };
            shards.insert(id, shard);
        }
        match self.fault {
            Some(what) => Err(RecoverError::Inconsistent { directory: directory(volume), what }),
            None => Ok((shards, self.meta)),
        }
    }
}

impl ShardScan {
    /// What no record says is committed was never acknowledged: it is as if it had not been written.
    #[cfg(feature = "planted")]
    fn forget_uncommitted(&mut self) {
        self.pending.clear();
        self.last = self.last.min(self.applied);
        self.terms.retain(|(from, _)| *from <= self.last);
    }

    fn hard_state(&mut self, head: &RecordHead, body: &[u8], at: RecordAt) -> Result<(), String> {
        let vote = body.try_into().map(u64::from_le_bytes).map_err(|_| "a hard state without a vote".to_owned())?;
        if let Some(before) = self.hard_state
            && head.term < before.term
        {
            return Err(format!("the term went back from {} to {}", before.term, head.term));
        }
        self.hard_state_in = at.segment;
        self.hard_state = Some(HardState { term: head.term, vote, commit: head.commit });
        Ok(())
    }

    fn entry(&mut self, head: &RecordHead, body: &[u8], at: RecordAt, meta: &mut RecoveredMeta) -> Result<(), String> {
        if self.first.is_none() {
            if self.snapshot.is_some_and(|(index, _)| head.index.0 > index.0 + 1) {
                self.forget_snapshot(meta, head.shard);
            }
            self.first = Some(head.index);
            self.last = Index(head.index.0 - 1);
        }
        if head.index <= self.last {
            if head.index <= self.applied {
                return Err(format!("entry {} is committed and was written again", head.index));
            }
            // a new leader wrote over what was never committed
            self.pending.retain(|e| e.head.index < head.index);
            self.terms.retain(|(from, _)| *from < head.index);
            // the first segment that is left may begin with entries that were replaced in a later one
            self.first = self.first.min(Some(head.index));
            self.last = Index(head.index.0 - 1);
        }
        if head.index.0 != self.last.0 + 1 {
            return Err(format!("entry {} follows entry {}", head.index, self.last));
        }
        if self.terms.last().is_none_or(|(_, term)| *term != head.term) {
            self.terms.push((head.index, head.term));
        }
        self.last = head.index;
        self.places.note(head.index, at.segment);
        self.tail.note(head.index, at);
        let body = if head.kind == RecordKind::Meta { Bytes::copy_from_slice(body) } else { Bytes::new() };
        self.pending.push_back(Entry { head: *head, at, body });
        Ok(())
    }

    fn part(&mut self, head: &RecordHead, body: &[u8], meta: &mut RecoveredMeta) -> Result<(), String> {
        let number = head.base_offset.0;
        if number == 0 {
            self.assembly = Some(Assembly {
                index: head.index,
                term: head.term,
                parts: head.count,
                state: Vec::new(),
                read: 0,
                // the hard state is written just before the first part, maybe into the segment before
                from: self.hard_state_in,
            });
        }
        let Some(assembly) = &mut self.assembly else {
            // its first parts were in a segment that is gone: an older snapshot, and a newer one follows
            return Ok(());
        };
        if assembly.index != head.index || i64::from(assembly.read) != number {
            self.assembly = None;
            return Ok(());
        }
        assembly.state.extend_from_slice(body);
        assembly.read += 1;
        if assembly.read < assembly.parts {
            return Ok(());
        }
        let whole = self.assembly.take().expect("just seen");
        self.commit = self.commit.max(head.commit);
        self.snapshot_read(head.shard, whole, meta)
    }

    /// A snapshot is whole. With all entries before it applied it says nothing new; else it is the state.
    fn snapshot_read(&mut self, shard: ShardId, whole: Assembly, meta: &mut RecoveredMeta) -> Result<(), String> {
        if self.first.is_none() && whole.index > self.applied {
            // No entry lies between it and the one before it: those lay in front of both, in a segment that is gone.
            self.forget_snapshot(meta, shard);
        }
        if self.is_applying() {
            self.apply_up_to(self.commit.min(whole.index).max(self.applied), meta)?;
            if self.applied < whole.index {
                return Err(format!("a snapshot at {} of which only {} is in the log", whole.index, self.applied));
            }
        } else if self.first.is_some_and(|first| first.0 > whole.index.0 + 1) {
            // Entries behind it lay in front of it, in a segment that is gone: a newer snapshot follows.
            return Ok(());
        } else {
            if shard == META_SHARD {
                meta.snapshot = Some((whole.index, whole.state));
                meta.commands.clear();
            } else {
                self.partitions = snapshot::decode(&whole.state).ok_or("a snapshot that can not be read")?;
            }
            let last = whole.index;
            #[cfg(feature = "planted")]
            let last = if is(Bug::ApplyTwice) { Index(last.0.saturating_sub(1)) } else { last };
            while self.pending.front().is_some_and(|e| e.head.index <= last) {
                let entry = self.pending.pop_front().expect("just seen");
                if entry.head.kind == RecordKind::Batch
                    && let Some(partition) = self.partitions.get_mut(&entry.head.partition)
                {
                    partition.recovered_data_only(&entry.head, entry.at);
                }
            }
            if let Some((id, (from, to))) = self.partitions.iter().find_map(|(id, p)| Some((id, p.torn()?))) {
                return Err(format!("partition {id}: offsets {from} to {to} are in no segment"));
            }
            self.applied = whole.index;
            if self.last < whole.index {
                self.last = whole.index;
            }
        }
        self.snapshot = Some((whole.index, whole.term));
        // entries behind its state may lie in front of it
        let rest_from = self.places.of(Index(whole.index.0 + 1));
        self.state_from = Some(rest_from.map_or(whole.from, |rest| rest.min(whole.from)));
        Ok(())
    }

    /// Entries behind the snapshot that was read lay in front of it, in a segment that is gone: a newer one follows.
    fn forget_snapshot(&mut self, meta: &mut RecoveredMeta, shard: ShardId) {
        if shard == META_SHARD {
            *meta = RecoveredMeta::default();
        }
        (self.snapshot, self.state_from, self.applied) = (None, None, Index(0));
        self.partitions.clear();
    }

    /// Is the state that of all entries up to `applied`?
    fn is_applying(&self) -> bool {
        self.snapshot.is_some() || self.first.is_none_or(|first| first == Index(1)) && self.first.is_some()
    }

    fn apply(&mut self, meta: &mut RecoveredMeta) -> Result<(), String> {
        if self.assembly.is_some() || !self.is_applying() {
            return Ok(());
        }
        self.apply_up_to(self.commit, meta)
    }

    fn apply_up_to(&mut self, up_to: Index, meta: &mut RecoveredMeta) -> Result<(), String> {
        while self.pending.front().is_some_and(|e| e.head.index <= up_to) {
            let entry = self.pending.pop_front().expect("just seen");
            let head = entry.head;
            match head.kind {
                RecordKind::Batch => {
                    // One that is not there though this is not its first batch was deleted before the snapshot.
                    let is_first = head.base_offset == Offset(0);
                    if self.snapshot.is_some() && !is_first && !self.partitions.contains_key(&head.partition) {
                        self.applied = head.index;
                        continue;
                    }
                    let partition =
                        self.partitions.entry(head.partition).or_insert_with(|| Partition::new(head.partition));
                    if partition.next_offset() != head.base_offset {
                        return Err(format!(
                            "partition {}: offset {} follows {}",
                            head.partition,
                            head.base_offset,
                            partition.next_offset()
                        ));
                    }
                    partition.recovered(&head, entry.at);
                }
                RecordKind::Trim => {
                    if let Some(partition) = self.partitions.get_mut(&head.partition) {
                        partition.trim(head.base_offset).map_err(|e| e.to_string())?;
                    }
                }
                RecordKind::Meta => meta.commands.push((head.index, entry.body)),
                RecordKind::Noop => {}
                RecordKind::HardState | RecordKind::Snapshot | RecordKind::Membership => {
                    return Err(format!("{:?} is no entry", head.kind));
                }
            }
            self.applied = head.index;
        }
        Ok(())
    }
}

/// An entry that is in the log and not known to be committed, and that nobody here has proposed. `body`: of a command.
pub(super) fn proposal(head: RecordHead, at: RecordAt, body: Bytes, appended: Mono) -> Proposal {
    match head.kind {
        RecordKind::Batch => Proposal::Batch(PendingBatch {
            head,
            at,
            proposed: false,
            waiting: Vec::new(),
            append_time: None,
            appended,
        }),
        RecordKind::Trim => Proposal::Trim { head, waiting: None },
        RecordKind::Meta => Proposal::Meta { command: body, waiting: None },
        RecordKind::Noop => Proposal::Noop,
        RecordKind::HardState | RecordKind::Snapshot | RecordKind::Membership => {
            panic!("{:?} is no entry", head.kind)
        }
    }
}

/// The directory that the messages name.
fn directory(volume: &dyn Volume) -> String {
    let path = volume.path(crate::io::FileId(0));
    path.rsplit_once('/').map_or(path.clone(), |(directory, _)| directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::sim::SimDisk;

    const DATA: ShardId = ShardId(1);

    fn at(segment: u32) -> RecordAt {
        RecordAt { segment: SegmentSeq(segment), at: 64, len: 8 }
    }

    fn entry(shard: ShardId, kind: RecordKind, index: u64) -> RecordHead {
        RecordHead { term: Term(1), index: Index(index), commit: Index(index), ..RecordHead::new(kind, shard) }
    }

    fn part(shard: ShardId, index: u64) -> RecordHead {
        RecordHead { base_offset: Offset(0), count: 1, ..entry(shard, RecordKind::Snapshot, index) }
    }

    fn scanned(records: &[(RecordHead, &[u8], u32)]) -> Result<(RecoveredShard, RecoveredMeta), RecoverError> {
        let mut scan = Scan::new([META_SHARD, DATA].into_iter(), 4);
        for (head, body, segment) in records {
            scan.record(head, body, at(*segment));
        }
        let shard = records[0].0.shard;
        let (mut shards, meta) = scan.finish(&SimDisk::new(1).volume())?;
        Ok((shards.remove(&shard).expect("it was asked for"), meta))
    }

    /// A broker that does not start, though nothing is missing. The snapshot at 7 was taken before entry 8 and written
    /// behind it; when the one at 8 was whole, the segment with entry 8 was given back, and the one at 7 stayed.
    #[test]
    fn an_old_snapshot_whose_next_entries_are_gone_gives_way_to_the_newer_one() {
        let records = [(part(META_SHARD, 7), &b"old"[..], 3), (part(META_SHARD, 8), b"new", 4)];
        let (shard, meta) = scanned(&records).expect("nothing is missing");
        assert_eq!(meta.snapshot, Some((Index(8), b"new".to_vec())));
        assert_eq!((shard.applied, shard.log.last), (Index(8), Index(8)));
        let data = [(part(DATA, 7), &b""[..], 3), (part(DATA, 9), b"", 4)];
        assert_eq!(scanned(&data).expect("nothing is missing").0.log.snapshot, Some((Index(9), Term(1))));
    }

    /// Its sibling: several such in a row, and entries behind the last one.
    #[test]
    fn what_follows_the_newest_of_several_snapshots_is_applied() {
        let records = [
            (part(META_SHARD, 7), &b"7"[..], 3),
            (part(META_SHARD, 8), b"8", 3),
            (part(META_SHARD, 11), b"11", 4),
            (entry(META_SHARD, RecordKind::Meta, 12), b"12", 4),
        ];
        let (shard, meta) = scanned(&records).expect("nothing is missing");
        assert_eq!(meta.snapshot, Some((Index(11), b"11".to_vec())));
        assert_eq!(meta.commands, [(Index(12), Bytes::from_static(b"12"))]);
        assert_eq!((shard.applied, shard.log.last), (Index(12), Index(12)));
    }

    /// A log that lost entries in its middle would be taken for a whole one.
    #[test]
    fn a_snapshot_of_entries_that_are_not_in_a_log_that_has_its_front_is_refused() {
        let records = [(entry(META_SHARD, RecordKind::Meta, 1), &b"1"[..], 1), (part(META_SHARD, 3), b"3", 1)];
        let refused = scanned(&records).err().expect("entries 2 and 3 are missing");
        assert!(refused.to_string().contains("a snapshot at 3 of which only 1 is in the log"), "{refused}");
    }

    /// The same snapshot twice, as a start after a start writes it, says nothing new.
    #[test]
    fn a_snapshot_of_what_is_applied_changes_nothing() {
        let records = [
            (part(META_SHARD, 7), &b"7"[..], 3),
            (entry(META_SHARD, RecordKind::Meta, 8), b"8", 3),
            (part(META_SHARD, 8), b"not read", 4),
        ];
        let (_, meta) = scanned(&records).expect("nothing is missing");
        assert_eq!(meta.snapshot, Some((Index(7), b"7".to_vec())));
        assert_eq!(meta.commands, [(Index(8), Bytes::from_static(b"8"))]);
    }
}
