//! What clients did and saw, in the order in which it ended.

use camus_engine::types::Mono;
use camus_history::{Event, Op, Partition};

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
    /// By partition: behind the last record that somebody read.
    pub read_to: Vec<i64>,
    /// No more faults, and nothing new but what shows that everybody gets on.
    pub calm: bool,
    last_value: u64,
}

impl Ledger {
    pub fn new(partitions: i32) -> Ledger {
        Ledger { read_to: vec![0; partitions as usize], ..Ledger::default() }
    }

    pub fn add(&mut self, process: u32, invoked: Mono, completed: Mono, op: Op) {
        self.events.push(Event { process, invoked_ns: invoked.0, completed_ns: completed.0, op });
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
