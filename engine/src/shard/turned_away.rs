//! Producers whose first batch was refused, to be sent again.
//!
//! Of a producer that a partition knows nothing of, any first sequence is due (KIP-98): what it wrote before may have
//! been forgotten. But an idempotent producer has five batches under way. If the first one is refused for want of
//! space, and there is space again when the second one comes, the second would be taken for the first, and the first,
//! sent again, would be out of order for ever: the client gives it up. So it is remembered what was refused, and only
//! that is due. The others are told that they are out of order, as they are behind a batch of a producer that is known,
//! and clients send them again after it.

use super::api::Refusal;
use crate::limits;
use crate::types::{Mono, PartitionId, ProducerEpoch, ProducerId, Sequence};
use std::collections::VecDeque;
use std::time::Duration;

/// Longer than clients go on sending one batch (`delivery.timeout.ms` is 2 minutes): who gave it up may begin anywhere.
const KEPT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct First {
    partition: PartitionId,
    producer: ProducerId,
    epoch: ProducerEpoch,
    sequence: Sequence,
    since: Mono,
}

/// Lives on the partitions' core; owned by its pump. In memory only, and bounded: who is forgotten is judged as one of
/// whom nothing is known.
#[derive(Debug, Default)]
pub(super) struct TurnedAway {
    /// Oldest first; one for each partition and producer.
    all: VecDeque<First>,
}

impl TurnedAway {
    /// A batch of a producer that the partition does not know was refused, and will be sent again. The first one of an
    /// epoch counts: those behind it are refused for its sake.
    pub fn refused(
        &mut self,
        now: Mono,
        partition: PartitionId,
        (producer, epoch, sequence): (ProducerId, ProducerEpoch, Sequence),
    ) {
        self.forget_old(now);
        match self.position(partition, producer) {
            Some(at) if self.all[at].epoch >= epoch => return,
            Some(at) => drop(self.all.remove(at)),
            None if self.all.len() == limits::TURNED_AWAY_PRODUCERS_MAX => drop(self.all.pop_front()),
            None => {}
        }
        self.all.push_back(First { partition, producer, epoch, sequence, since: now });
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a batch that would be taken is the one that is due. `known`: the partition knows its producer, and has
    /// judged it by that.
    pub fn judge(
        &mut self,
        now: Mono,
        partition: PartitionId,
        (producer, epoch, found): (ProducerId, ProducerEpoch, Sequence),
        known: bool,
    ) -> Result<(), Refusal> {
        self.forget_old(now);
        let Some(at) = self.position(partition, producer) else { return Ok(()) };
        let First { epoch: of, sequence: expected, .. } = self.all[at];
        if known {
            self.all.remove(at);
        } else if epoch == of && found != expected {
            return Err(Refusal::OutOfOrderSequence { producer, expected, found });
        }
        Ok(())
    }

    fn position(&self, partition: PartitionId, producer: ProducerId) -> Option<usize> {
        self.all.iter().position(|first| (first.partition, first.producer) == (partition, producer))
    }

    fn forget_old(&mut self, now: Mono) {
        while self.all.pop_front_if(|first| now.since(first.since) >= KEPT).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: PartitionId = PartitionId(7);

    fn batch(producer: i64, epoch: i16, sequence: i32) -> (ProducerId, ProducerEpoch, Sequence) {
        (ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence))
    }

    /// What is due of it, if anything but any is.
    fn expects(all: &mut TurnedAway, now: Mono, producer: i64, epoch: i16) -> Option<i32> {
        match all.judge(now, HERE, batch(producer, epoch, i32::MAX), false) {
            Ok(()) => None,
            Err(Refusal::OutOfOrderSequence { expected, .. }) => Some(expected.0),
            Err(other) => panic!("{other}"),
        }
    }

    /// A batch would be lost: the one behind it is taken for the first.
    #[test]
    fn the_first_batch_that_was_refused_is_due_and_no_other() {
        let (mut all, now) = (TurnedAway::default(), Mono(5));
        assert_eq!(expects(&mut all, now, 1, 0), None);
        all.refused(now, HERE, batch(1, 0, 40));
        all.refused(now, HERE, batch(1, 0, 50));
        assert_eq!(expects(&mut all, now, 1, 0), Some(40));
        assert_eq!(expects(&mut all, now, 2, 0), None, "another producer");
        assert_eq!(all.judge(now, PartitionId(8), batch(1, 0, 50), false), Ok(()), "another partition");
        assert_eq!(all.judge(now, HERE, batch(1, 0, 40), false), Ok(()));
        assert_eq!(expects(&mut all, now, 1, 0), Some(40), "it may be lost with this leadership");
        assert_eq!(all.judge(now, HERE, batch(1, 0, 50), true), Ok(()), "the partition knows it by now");
        assert_eq!(expects(&mut all, now, 1, 0), None);
    }

    /// A producer that gave up and began anew would be refused for ever.
    #[test]
    fn a_new_epoch_or_a_long_time_begins_anew() {
        let (mut all, now) = (TurnedAway::default(), Mono(5));
        all.refused(now, HERE, batch(1, 0, 40));
        assert_eq!(expects(&mut all, now, 1, 1), None, "it has another epoch");
        all.refused(now, HERE, batch(1, 1, 0));
        assert_eq!((expects(&mut all, now, 1, 0), expects(&mut all, now, 1, 1)), (None, Some(0)));
        all.refused(now, HERE, batch(1, 0, 40));
        assert_eq!(expects(&mut all, now, 1, 1), Some(0), "an old epoch changes nothing");
        assert_eq!(expects(&mut all, now + KEPT, 1, 1), None);
        assert!(all.all.is_empty());
    }

    /// Memory would grow with every producer that meets a full disk.
    #[test]
    fn they_are_bounded_and_the_oldest_is_forgotten() {
        let mut all = TurnedAway::default();
        for producer in 0..=limits::TURNED_AWAY_PRODUCERS_MAX as i64 {
            all.refused(Mono(1), HERE, batch(producer, 0, 3));
        }
        assert_eq!(all.all.len(), limits::TURNED_AWAY_PRODUCERS_MAX);
        assert_eq!((expects(&mut all, Mono(1), 0, 0), expects(&mut all, Mono(1), 1, 0)), (None, Some(3)));
    }
}
