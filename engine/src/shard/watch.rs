//! Who waits for a partition to move: parked fetches, one shot each.

use super::api::{Answer, Ticket};
use crate::types::{CoreId, PartitionId};
use std::collections::BTreeMap;

/// The watches of one core's partitions. Owned by [`super::core::Core`].
///
/// Bounded by the requests in flight: a request has at most one watch per partition that it named, and its node forgets
/// them when it ends.
#[derive(Default, Debug)]
pub(super) struct Watches {
    by_partition: BTreeMap<PartitionId, Vec<Ticket>>,
    by_request: BTreeMap<(CoreId, u64), Vec<PartitionId>>,
}

impl Watches {
    pub fn add(&mut self, ticket: Ticket, partition: PartitionId) {
        let waiting = self.by_partition.entry(partition).or_default();
        if waiting.contains(&ticket) {
            return;
        }
        waiting.push(ticket);
        self.by_request.entry((ticket.core, ticket.request)).or_default().push(partition);
    }

    /// Tells everyone who watches the partition, once.
    pub fn moved(&mut self, partition: PartitionId, answers: &mut Vec<(Ticket, Answer)>) {
        let Some(waiting) = self.by_partition.remove(&partition) else { return };
        for ticket in waiting {
            let key = (ticket.core, ticket.request);
            if let Some(partitions) = self.by_request.get_mut(&key) {
                partitions.retain(|p| *p != partition);
                if partitions.is_empty() {
                    self.by_request.remove(&key);
                }
            }
            answers.push((ticket, Answer::Moved));
        }
    }

    /// The request is over.
    pub fn forget(&mut self, core: CoreId, request: u64) {
        for partition in self.by_request.remove(&(core, request)).unwrap_or_default() {
            if let Some(waiting) = self.by_partition.get_mut(&partition) {
                waiting.retain(|t| t.core != core || t.request != request);
                if waiting.is_empty() {
                    self.by_partition.remove(&partition);
                }
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.by_partition.is_empty() && self.by_request.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(request: u64, part: u32) -> Ticket {
        Ticket { core: CoreId(0), request, part }
    }

    #[test]
    fn a_watch_fires_once_and_leaves_nothing_behind() {
        let (mut watches, mut answers) = (Watches::default(), Vec::new());
        watches.add(ticket(1, 0), PartitionId(7));
        watches.add(ticket(1, 1), PartitionId(8));
        watches.add(ticket(2, 0), PartitionId(7));
        watches.moved(PartitionId(7), &mut answers);
        watches.moved(PartitionId(7), &mut answers);
        assert_eq!(answers.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [ticket(1, 0), ticket(2, 0)]);
        watches.forget(CoreId(0), 1);
        assert!(watches.is_empty());
    }

    #[test]
    fn a_request_that_is_over_is_not_told() {
        let (mut watches, mut answers) = (Watches::default(), Vec::new());
        watches.add(ticket(1, 0), PartitionId(7));
        watches.add(ticket(2, 0), PartitionId(7));
        watches.forget(CoreId(0), 1);
        watches.moved(PartitionId(7), &mut answers);
        assert_eq!(answers.iter().map(|(t, _)| *t).collect::<Vec<_>>(), [ticket(2, 0)]);
        assert!(watches.is_empty());
    }
}
