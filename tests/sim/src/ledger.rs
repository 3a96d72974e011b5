//! What clients did and saw, in the order in which it ended.

use camus_engine::types::Mono;
use camus_history::history::ProduceOutcome;
use camus_history::{Event, Op, Partition};
use std::time::Duration;

/// No answer is on its way for longer, to a client that takes what comes.
const WAY: Duration = Duration::from_millis(150);

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
    /// Fetches that slept though there was something for them.
    pub slept: Vec<String>,
    /// By partition: how far it was acknowledged, and since when somebody knows. Both only grow.
    acked: Vec<Vec<(i64, Mono)>>,
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

    /// A fetch at this offset has found nothing, and its answer came after this moment: had somebody known long before
    /// that there is a record?
    pub fn was_empty(&mut self, number: i32, offset: i64, not_before: Mono, whose: &str) {
        let acked = &self.acked[number as usize];
        let Some((end, since)) = acked.get(acked.partition_point(|(end, _)| *end <= offset)) else { return };
        if *since + WAY < not_before {
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
