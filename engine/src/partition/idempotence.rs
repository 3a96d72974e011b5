//! Idempotent produce (SPEC, promise 4): a retry of what was accepted gets the original's offset, a gap is refused, an
//! old epoch is fenced. The rule is in [`judge`]; what it judges by is in [`Producers`] (committed) and [`InFlight`].
//!
//! Sources: KIP-98 and Kafka's `ProducerStateManager` / `ProducerAppendInfo`. Camus never answers
//! DUPLICATE_SEQUENCE_NUMBER, as today's Kafka does not: clients would take it for success without an offset.

use super::batch::{BatchHead, FLAG_LOG_APPEND_TIME};
use super::codec::{Reader, SnapshotError, Writer};
use crate::limits;
use crate::shard::api::Refusal;
use crate::types::{Index, Offset, ProducerEpoch, ProducerId, Sequence, WallMs};
use crate::wal::record::RecordHead;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a batch says about its producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    pub producer: ProducerId,
    pub epoch: ProducerEpoch,
    /// Of the first and the last record. The last may be the smaller number: 0 follows 2147483647.
    pub first: Sequence,
    pub last: Sequence,
}

impl Claim {
    /// None if the batch has no producer id.
    pub fn of(head: &BatchHead) -> Option<Claim> {
        Claim::new(head.producer, head.producer_epoch, head.base_sequence, head.count)
    }

    /// The same, from the head of the WAL record that carries the batch.
    pub fn of_record(head: &RecordHead) -> Option<Claim> {
        let count = i32::try_from(head.count).expect("a batch has fewer than 2^31 records");
        Claim::new(head.producer, head.producer_epoch, head.base_sequence, count)
    }

    fn new(producer: ProducerId, epoch: ProducerEpoch, first: Sequence, count: i32) -> Option<Claim> {
        assert!(count > 0, "a batch of producer {producer} has {count} records");
        (producer != ProducerId::NONE).then(|| Claim { producer, epoch, first, last: first.plus(count - 1) })
    }
}

/// With LogAppendTime, the time that the records of a stored batch have.
pub(super) fn append_time_of(head: &RecordHead) -> Option<WallMs> {
    (head.flags & FLAG_LOG_APPEND_TIME != 0).then_some(head.max_timestamp)
}

/// A batch that was accepted and committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Accepted {
    first: Sequence,
    last: Sequence,
    base_offset: Offset,
    append_time: Option<WallMs>,
}

/// The last batches of one producer in its newest epoch: never empty, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ProducerWindow {
    epoch: ProducerEpoch,
    /// At most [`limits::PRODUCER_BATCHES_MAX`].
    batches: VecDeque<Accepted>,
}

impl ProducerWindow {
    fn newest(&self) -> &Accepted {
        self.batches.back().expect("a producer is remembered for its batches")
    }
}

/// Producer state of one partition: what an idempotent retry is judged by.
///
/// Lives on the partition's core; owned by [`super::Partition`]; changed only by committed batches ([`Self::apply`]),
/// so that every replica and every restart comes to the same answer, and also whom to forget is decided by the log
/// alone. Deleting the data changes nothing here. What is proposed but not committed is in [`InFlight`], never here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producers {
    producers_max: usize,
    by_id: BTreeMap<ProducerId, ProducerWindow>,
    /// Each producer under the offset of its newest batch: the first is the one idle longest.
    by_last_use: BTreeSet<(Offset, ProducerId)>,
}

impl Default for Producers {
    fn default() -> Producers {
        Producers::with_max(limits::PRODUCERS_PER_PARTITION_MAX)
    }
}

impl Producers {
    /// Remembers at most `producers_max` producers, of which there must be one at least.
    pub fn with_max(producers_max: usize) -> Producers {
        assert!(producers_max > 0, "no producer could be remembered");
        Producers { producers_max, by_id: BTreeMap::new(), by_last_use: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn knows(&self, producer: ProducerId) -> bool {
        self.by_id.contains_key(&producer)
    }

    /// Each one's id, epoch, last sequence, and the offset of its newest batch, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (ProducerId, ProducerEpoch, Sequence, Offset)> + '_ {
        self.by_id.iter().map(|(id, window)| {
            let newest = window.newest();
            (*id, window.epoch, newest.last, newest.base_offset)
        })
    }

    /// Takes a committed batch as a fact: what was judged is not judged again.
    pub fn apply(&mut self, claim: &Claim, base_offset: Offset, append_time: Option<WallMs>) {
        let window = self
            .by_id
            .entry(claim.producer)
            .or_insert_with(|| ProducerWindow { epoch: claim.epoch, batches: VecDeque::new() });
        if let Some(newest) = window.batches.back() {
            assert!(newest.base_offset < base_offset, "producer {} is told of {base_offset} late", claim.producer);
            let was_there = self.by_last_use.remove(&(newest.base_offset, claim.producer));
            assert!(was_there, "producer {} is in no order of use", claim.producer);
        }
        if window.epoch != claim.epoch {
            window.epoch = claim.epoch;
            window.batches.clear();
        }
        if window.batches.len() == limits::PRODUCER_BATCHES_MAX {
            window.batches.pop_front();
        }
        window.batches.push_back(Accepted { first: claim.first, last: claim.last, base_offset, append_time });
        self.by_last_use.insert((base_offset, claim.producer));
        if self.by_id.len() > self.producers_max {
            let (_, idle_longest) = self.by_last_use.pop_first().expect("each producer has its last use");
            self.by_id.remove(&idle_longest);
        }
        assert_eq!(self.by_id.len(), self.by_last_use.len(), "each producer has one last use");
    }

    /// Memory, bytes, roughly.
    pub fn bytes(&self) -> usize {
        let each = size_of::<ProducerWindow>() + limits::PRODUCER_BATCHES_MAX * size_of::<Accepted>() + 64;
        self.by_id.len() * each
    }

    pub(super) fn snapshot(&self, out: &mut Writer<'_>) {
        out.u32(u32::try_from(self.by_id.len()).expect("producers are bounded"));
        for (id, window) in &self.by_id {
            out.i64(id.0);
            out.i16(window.epoch.0);
            out.u8(u8::try_from(window.batches.len()).expect("a window is small"));
            for batch in &window.batches {
                out.i32(batch.first.0);
                out.i32(batch.last.0);
                out.i64(batch.base_offset.0);
                out.u8(u8::from(batch.append_time.is_some()));
                out.i64(batch.append_time.map_or(-1, |t| t.0));
            }
        }
    }

    /// `next`: where the log ends; no batch can lie there or behind.
    pub(super) fn restore(input: &mut Reader<'_>, next: Offset) -> Result<Producers, SnapshotError> {
        let mut producers = Producers::default();
        let count = input.u32()? as usize;
        if count > producers.producers_max {
            return Err(input.wrong("more producers than one partition has"));
        }
        let mut previous = ProducerId::NONE;
        for _ in 0..count {
            let id = ProducerId(input.i64()?);
            if id <= previous {
                return Err(input.wrong("producers are not in order"));
            }
            previous = id;
            let epoch = ProducerEpoch(input.i16()?);
            let batches = input.u8()? as usize;
            if epoch < ProducerEpoch(0) || batches == 0 || batches > limits::PRODUCER_BATCHES_MAX {
                return Err(input.wrong("a producer's epoch or number of batches is impossible"));
            }
            let mut window = ProducerWindow { epoch, batches: VecDeque::with_capacity(batches) };
            let mut above = Offset(-1);
            for _ in 0..batches {
                let (first, last) = (Sequence(input.i32()?), Sequence(input.i32()?));
                let base_offset = Offset(input.i64()?);
                let has_time = input.u8()?;
                let time = WallMs(input.i64()?);
                if base_offset <= above || base_offset >= next || first < Sequence(0) || last < Sequence(0) {
                    return Err(input.wrong("a producer's batch is impossible"));
                }
                above = base_offset;
                let append_time = (has_time != 0).then_some(time);
                window.batches.push_back(Accepted { first, last, base_offset, append_time });
            }
            producers.by_last_use.insert((above, id));
            producers.by_id.insert(id, window);
        }
        Ok(producers)
    }
}

/// A batch on its way: proposed, not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Flying {
    claim: Claim,
    index: Index,
}

/// What the leader has proposed and not yet seen committed, by producer. Dropped when leadership is lost; whether the
/// batches were accepted is then for the log to say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InFlight {
    /// No queue is empty; oldest first. As many entries as the core has produces in flight.
    by_id: BTreeMap<ProducerId, VecDeque<Flying>>,
}

impl InFlight {
    pub fn proposed(&mut self, claim: Claim, index: Index) {
        let queue = self.by_id.entry(claim.producer).or_default();
        if let Some(before) = queue.back() {
            assert!(before.index < index, "entry {index} was proposed behind {}", before.index);
        }
        queue.push_back(Flying { claim, index });
    }

    pub fn has(&self, producer: ProducerId) -> bool {
        self.by_id.contains_key(&producer)
    }

    /// The oldest batch of this producer is no longer on its way.
    pub fn landed(&mut self, claim: &Claim, index: Index) {
        let queue = self.by_id.get_mut(&claim.producer).expect("what lands was on its way");
        let oldest = queue.pop_front().expect("no queue is empty");
        assert_eq!(oldest, Flying { claim: *claim, index }, "batches land in the order in which they were proposed");
        if queue.is_empty() {
            self.by_id.remove(&claim.producer);
        }
    }

    pub fn clear(&mut self) {
        self.by_id.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

/// What becomes of a batch with a producer id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// It is due: append it.
    Due,
    /// It was accepted before.
    Duplicate {
        base_offset: Offset,
        append_time: Option<WallMs>,
    },
    /// It was proposed before, as this entry, whose fate it shares.
    InFlight {
        index: Index,
    },
    Refused(Refusal),
}

/// The rule, in the order in which a batch meets it. Committed and in-flight batches count as one history.
pub fn judge(producers: &Producers, in_flight: &InFlight, claim: &Claim) -> Judgement {
    let flying = in_flight.by_id.get(&claim.producer);
    let window = producers.by_id.get(&claim.producer);
    let newest_flying = flying.and_then(|queue| queue.back()).map(|flying| (flying.claim.epoch, flying.claim.last));
    let newest = newest_flying.or(window.map(|window| (window.epoch, window.newest().last)));
    // Nothing is known: whatever came before was forgotten, so any first sequence will do.
    let Some((epoch, last)) = newest else { return Judgement::Due };
    if claim.epoch < epoch {
        let (producer, current, found) = (claim.producer, epoch, claim.epoch);
        return Judgement::Refused(Refusal::OldProducerEpoch { producer, current, found });
    }
    let same = |first, last| (first, last) == (claim.first, claim.last);
    let expected = if claim.epoch > epoch {
        Sequence(0)
    } else {
        for flying in flying.into_iter().flatten().rev().filter(|flying| flying.claim.epoch == epoch) {
            if same(flying.claim.first, flying.claim.last) {
                return Judgement::InFlight { index: flying.index };
            }
        }
        for batch in window.filter(|window| window.epoch == epoch).iter().flat_map(|window| window.batches.iter().rev())
        {
            if same(batch.first, batch.last) {
                return Judgement::Duplicate { base_offset: batch.base_offset, append_time: batch.append_time };
            }
        }
        last.plus(1)
    };
    if claim.first == expected {
        return Judgement::Due;
    }
    Judgement::Refused(Refusal::OutOfOrderSequence { producer: claim.producer, expected, found: claim.first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(producer: i64, epoch: i16, first: i32, count: i32) -> Claim {
        Claim::new(ProducerId(producer), ProducerEpoch(epoch), Sequence(first), count).unwrap()
    }

    #[test]
    fn the_producer_idle_longest_is_forgotten_first() {
        // Without the bound, memory grows with every producer that ever wrote; with another victim, a live producer
        // would lose its retries.
        let mut producers = Producers::with_max(2);
        let none = InFlight::default();
        producers.apply(&claim(1, 0, 0, 1), Offset(0), None);
        producers.apply(&claim(2, 0, 0, 1), Offset(1), None);
        producers.apply(&claim(1, 0, 1, 1), Offset(2), None);
        producers.apply(&claim(3, 0, 0, 1), Offset(3), None);
        assert_eq!(producers.len(), 2);
        let duplicate = |base| Judgement::Duplicate { base_offset: Offset(base), append_time: None };
        assert_eq!(judge(&producers, &none, &claim(1, 0, 0, 1)), duplicate(0));
        assert_eq!(judge(&producers, &none, &claim(3, 0, 0, 1)), duplicate(3));
        // 2 is unknown now: any sequence is its first.
        assert_eq!(judge(&producers, &none, &claim(2, 0, 77, 1)), Judgement::Due);
    }

    #[test]
    fn a_forgotten_producer_with_batches_in_flight_keeps_its_sequence() {
        // Whom to forget is the log's to say, or a restart would come to another answer. What flies is judged all the
        // same.
        let mut producers = Producers::with_max(1);
        let mut in_flight = InFlight::default();
        producers.apply(&claim(1, 0, 0, 1), Offset(0), None);
        in_flight.proposed(claim(1, 0, 1, 1), Index(9));
        producers.apply(&claim(2, 0, 0, 1), Offset(1), None);
        assert_eq!(judge(&producers, &in_flight, &claim(1, 0, 1, 1)), Judgement::InFlight { index: Index(9) });
        assert_eq!(judge(&producers, &in_flight, &claim(1, 0, 2, 1)), Judgement::Due);
        assert!(matches!(judge(&producers, &in_flight, &claim(1, 0, 3, 1)), Judgement::Refused(_)));
    }

    #[test]
    fn an_epoch_in_flight_fences_the_one_before_it() {
        // The old producer could slip a batch in behind the new one's first.
        let mut producers = Producers::default();
        let mut in_flight = InFlight::default();
        producers.apply(&claim(1, 0, 0, 3), Offset(0), None);
        in_flight.proposed(claim(1, 1, 0, 3), Index(9));
        assert!(matches!(
            judge(&producers, &in_flight, &claim(1, 0, 3, 1)),
            Judgement::Refused(Refusal::OldProducerEpoch { current: ProducerEpoch(1), found: ProducerEpoch(0), .. })
        ));
        // The new epoch's first batch looks like the old one's, and is not its duplicate.
        assert_eq!(judge(&producers, &in_flight, &claim(1, 1, 0, 3)), Judgement::InFlight { index: Index(9) });
        in_flight.clear();
        assert_eq!(judge(&producers, &in_flight, &claim(1, 1, 0, 3)), Judgement::Due);
        assert!(matches!(judge(&producers, &in_flight, &claim(1, 0, 0, 3)), Judgement::Duplicate { .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_restore_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            // A panic here would be a broker that can not start.
            let _ = Producers::restore(&mut Reader::new(&bytes), Offset(100));
        }
    }
}
