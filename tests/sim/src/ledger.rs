//! What clients did and saw, in the order in which it ended.

use camus_engine::types::Mono;
use camus_history::history::ProduceOutcome;
use camus_history::{Event, Op, Partition};
use std::time::Duration;

/// No answer is on its way for longer, to a client that takes what comes.
const WAY: Duration = Duration::from_millis(150);
/// What a slow way held up in a cluster has come so long after the way is as usual again.
const SETTLING: Duration = Duration::from_secs(1);

pub const TOPIC: &str = "t";

pub fn partition(number: i32) -> Partition {
    Partition::new(TOPIC, number)
}

/// What all clients write into.
#[derive(Default)]
pub struct Ledger {
    pub events: Vec<Event>,
    /// Answers that no client knows what to do with.
    pub unexpected: Vec<String>,
    /// Readers that were told that what comes next is out of range, of a log that begins before.
    pub beyond: Vec<String>,
    /// Fetches that slept though there was something for them.
    pub slept: Vec<String>,
    /// By partition: how far it was acknowledged, and since when somebody knows. Both only grow.
    acked: Vec<Vec<(i64, Mono)>>,
    /// Of a cluster: when answers were held up last, or a leader changed.
    pub unsettled: Option<Mono>,
    /// By partition: behind the last record that somebody read.
    pub read_to: Vec<i64>,
    /// No more faults, and nothing new but what shows that everybody gets on.
    pub calm: bool,
    /// Nothing new for now: what was sent is answered, and readers wait for more.
    pub quiet: bool,
    last_value: u64,
}

impl Ledger {
    pub fn new(partitions: i32) -> Ledger {
        let partitions = partitions as usize;
        Ledger { read_to: vec![0; partitions], acked: vec![vec![]; partitions], ..Ledger::default() }
    }

    pub fn add(&mut self, process: u32, invoked: Mono, completed: Mono, op: Op) {
        if let Op::Produce(produce) = &op
            && let ProduceOutcome::Acked { base_offset: base @ 0.. } = produce.outcome
        {
            let (end, acked) = (base + produce.values.len() as i64, &mut self.acked[produce.partition.number as usize]);
            if acked.last().is_none_or(|(last, _)| *last < end) {
                acked.push((end, completed));
            }
        }
        self.events.push(Event { process, invoked_ns: invoked.0, completed_ns: completed.0, op });
    }

    /// A fetch at this offset, asked then, has found nothing, and its answer came after this moment: had somebody known
    /// long before that there is a record? In a cluster that counts where nothing held it up and nobody else led
    /// meanwhile: a way that is cut or slow is late, and a leader that has not heard of its successor has nothing to
    /// wake anybody for.
    pub fn was_empty(&mut self, number: i32, offset: i64, asked: Mono, not_before: Mono, whose: &str) {
        let acked = &self.acked[number as usize];
        let Some((end, since)) = acked.get(acked.partition_point(|(end, _)| *end <= offset)) else { return };
        let is_settled = self.unsettled.is_none_or(|last| last + SETTLING < asked.min(*since));
        if is_settled && *since + WAY < not_before {
            let slept = format!("{whose} was told that nothing is at {offset}, long after {end} was acknowledged");
            self.slept.push(slept);
        }
    }

    /// Values that nobody sent before.
    pub fn new_values(&mut self, count: usize) -> Vec<u64> {
        let first = self.last_value + 1;
        self.last_value += count as u64;
        (first..=self.last_value).collect()
    }

    /// A refusal that a client tries again after, or one that is noted.
    pub fn expect_one_of(&mut self, expected: &[i16], code: i16, whose: &str) {
        if !expected.contains(&code) {
            self.unexpected.push(format!("{whose} got error code {code}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_history::history::Produce;

    /// How many fetches are said to have slept: a record was acknowledged at 10 s, a fetch asked at 9.8 s found
    /// nothing, and its answer came after so many ms. Something was wrong at `unsettled`.
    fn slept(answered_ms: u64, unsettled_ms: Option<u64>) -> usize {
        let at = |ms: u64| Mono(ms * 1_000_000);
        let outcome = ProduceOutcome::Acked { base_offset: 4 };
        let produce = Produce {
            partition: partition(0),
            producer: 1,
            idempotent: true,
            first_number: 0,
            values: vec![7],
            outcome,
        };
        let mut ledger = Ledger { unsettled: unsettled_ms.map(at), ..Ledger::new(1) };
        ledger.add(1, at(9_900), at(10_000), Op::Produce(produce));
        ledger.was_empty(0, 5, at(9_800), at(answered_ms), "who is at the end");
        ledger.was_empty(0, 4, at(9_800), at(answered_ms), "who is before it");
        ledger.slept.len()
    }

    /// Lost if it fails: a fetch sleeps on with a record there for it, or one is said to whose answer was on its way.
    #[test]
    fn a_fetch_that_slept_is_told_from_one_that_was_answered_before() {
        assert_eq!(slept(10_100, None), 0);
        assert_eq!(slept(10_200, None), 1);
    }

    /// Lost if it fails: no cluster's fetch is ever said to have slept, or those are that a fault held up.
    #[test]
    fn in_a_cluster_a_fetch_has_slept_only_if_nothing_held_it_up() {
        assert_eq!(slept(10_200, Some(8_700)), 1);
        assert_eq!(slept(10_200, Some(8_900)), 0);
        assert_eq!(slept(10_200, Some(10_100)), 0);
    }
}
