//! Lawful histories from a model of a log, and what the checker says of them and of their mutations.
#![allow(clippy::unwrap_used, reason = "a test may")]

use camus_history::history::{
    CommitOffset, FetchOffset, Final, Outcome, Produce, ProduceOutcome, Read, Trim, from_lines, to_lines,
};
use camus_history::{Anomaly, Event, Op, Partition, check};
use proptest::prelude::*;

const PARTITIONS: i32 = 2;
const READERS: u32 = 20;
const IDEMPOTENTS: u32 = 3;

/// What becomes of a batch.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Acked,
    /// It is in the log, and the answer is lost.
    AnswerLost,
    RequestLost,
    Refused,
    /// Without an answer, and in the log some steps later.
    Late,
    /// The connection was lost, and it was sent again and acknowledged then; both are in the log.
    Twice,
}

#[derive(Clone, Debug)]
enum Step {
    Idempotent { producer: u32, count: usize, fate: Fate },
    Plain { producer: u32, count: usize, fate: Fate },
    Read { reader: u32, partition: i32, count: usize },
    Trim { partition: i32, percent: usize, outcome: Outcome },
    Commit { outcome: Outcome, takes_effect: bool },
    FetchOffset,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Acked),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::RequestLost),
        1 => Just(Fate::Refused),
        1 => Just(Fate::Late),
        1 => Just(Fate::Twice),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![Just(Outcome::Acked), Just(Outcome::Info), Just(Outcome::Failed)]
}

fn step() -> impl Strategy<Value = Step> {
    let (count, partition) = (1..4usize, 0..PARTITIONS);
    prop_oneof![
        4 => (0..IDEMPOTENTS, count.clone(), fate())
            .prop_map(|(producer, count, fate)| Step::Idempotent { producer, count, fate }),
        3 => (10..12u32, count, fate()).prop_map(|(producer, count, fate)| Step::Plain { producer, count, fate }),
        4 => (READERS..READERS + 2, partition.clone(), 0..6usize)
            .prop_map(|(reader, partition, count)| Step::Read { reader, partition, count }),
        1 => (partition, 0..100usize, outcome())
            .prop_map(|(partition, percent, outcome)| Step::Trim { partition, percent, outcome }),
        1 => (outcome(), any::<bool>()).prop_map(|(outcome, takes_effect)| Step::Commit { outcome, takes_effect }),
        1 => Just(Step::FetchOffset),
    ]
}

/// A broker that keeps its promises.
#[derive(Default)]
struct Model {
    events: Vec<Event>,
    now_ns: u64,
    next_value: u64,
    logs: [Vec<u64>; PARTITIONS as usize],
    log_starts: [usize; PARTITIONS as usize],
    numbers: [u64; 12],
    /// Idempotent producers that got no answer send nothing more.
    ended: [bool; 12],
    late: Vec<(usize, Vec<u64>)>,
    committed: i64,
    next_commit: i64,
}

fn partition_of(producer: u32) -> i32 {
    producer as i32 % PARTITIONS
}

fn name(partition: i32) -> Partition {
    Partition::new("t", partition)
}

impl Model {
    fn event(&mut self, process: u32, op: Op) {
        self.now_ns += 10;
        self.events.push(Event { process, invoked_ns: self.now_ns, completed_ns: self.now_ns + 5, op });
    }

    fn produced(&mut self, producer: u32, first_number: u64, values: &[u64], outcome: ProduceOutcome) {
        let (partition, idempotent) = (name(partition_of(producer)), producer < 10);
        let values = values.to_vec();
        self.event(producer, Op::Produce(Produce { partition, producer, idempotent, first_number, values, outcome }));
    }

    fn new_values(&mut self, producer: u32, count: usize) -> (u64, Vec<u64>) {
        let first_number = self.numbers[producer as usize];
        let values: Vec<u64> = (self.next_value..).take(count).collect();
        self.next_value += count as u64;
        self.numbers[producer as usize] += count as u64;
        (first_number, values)
    }

    fn append(&mut self, producer: u32, values: &[u64]) -> ProduceOutcome {
        let log = &mut self.logs[partition_of(producer) as usize];
        let base_offset = log.len() as i64;
        log.extend(values);
        ProduceOutcome::Acked { base_offset }
    }

    /// A retry is the library's and no event; what was refused is not there, and what follows stands behind the rest.
    fn idempotent(&mut self, producer: u32, count: usize, fate: Fate) {
        if self.ended[producer as usize] {
            return;
        }
        let (first_number, values) = self.new_values(producer, count);
        let outcome = match fate {
            Fate::Acked | Fate::Late | Fate::Twice => self.append(producer, &values),
            Fate::AnswerLost => {
                self.append(producer, &values);
                ProduceOutcome::Info
            }
            Fate::RequestLost => ProduceOutcome::Info,
            Fate::Refused => ProduceOutcome::Failed,
        };
        self.ended[producer as usize] = outcome == ProduceOutcome::Info;
        self.produced(producer, first_number, &values, outcome);
    }

    fn plain(&mut self, producer: u32, count: usize, fate: Fate) {
        let (first_number, values) = self.new_values(producer, count);
        let outcome = match fate {
            Fate::Acked => self.append(producer, &values),
            Fate::AnswerLost => {
                self.append(producer, &values);
                ProduceOutcome::Info
            }
            Fate::RequestLost => ProduceOutcome::Info,
            Fate::Refused => ProduceOutcome::Failed,
            Fate::Late => {
                self.late.push((partition_of(producer) as usize, values.clone()));
                ProduceOutcome::Info
            }
            Fate::Twice => {
                self.append(producer, &values);
                self.produced(producer, first_number, &values, ProduceOutcome::Info);
                self.append(producer, &values)
            }
        };
        self.produced(producer, first_number, &values, outcome);
    }

    fn read(&mut self, reader: u32, partition: i32, count: usize) {
        let (log, start) = (&self.logs[partition as usize], self.log_starts[partition as usize]);
        // from somewhere, so that later reads see earlier offsets too
        let from = start + (log.len() - start) * (self.now_ns as usize % 7) / 7;
        let records = (from as i64..).zip(log[from..].iter().copied()).take(count).collect();
        let (high_watermark, log_start) = (log.len() as i64, start as i64);
        let (partition, from_offset) = (name(partition), from as i64);
        self.event(reader, Op::Read(Read { partition, from_offset, records, high_watermark, log_start }));
    }

    fn trim(&mut self, partition: i32, percent: usize, outcome: Outcome) {
        let start = self.log_starts[partition as usize];
        let offset = start + (self.logs[partition as usize].len() - start) * percent / 100;
        // without an answer it may have happened or not
        if outcome == Outcome::Acked || (outcome == Outcome::Info && percent.is_multiple_of(2)) {
            self.log_starts[partition as usize] = offset;
        }
        self.event(40, Op::Trim(Trim { partition: name(partition), offset: offset as i64, outcome }));
    }

    fn commit(&mut self, outcome: Outcome, takes_effect: bool) {
        self.next_commit += 3;
        let offset = self.next_commit;
        if outcome == Outcome::Acked || (outcome == Outcome::Info && takes_effect) {
            self.committed = offset;
        }
        let (group, partition) = ("g".to_owned(), name(0));
        self.event(30, Op::CommitOffset(CommitOffset { group, partition, offset, outcome, by: None }));
    }

    fn fetch_offset(&mut self) {
        let (group, partition, offset) = ("g".to_owned(), name(0), self.committed);
        self.event(31, Op::FetchOffset(FetchOffset { group, partition, offset }));
    }

    fn step(&mut self, step: &Step) {
        if self.late.len() > 2 {
            self.arrive();
        }
        match *step {
            Step::Idempotent { producer, count, fate } => self.idempotent(producer, count, fate),
            Step::Plain { producer, count, fate } => self.plain(producer, count, fate),
            Step::Read { reader, partition, count } => self.read(reader, partition, count),
            Step::Trim { partition, percent, outcome } => self.trim(partition, percent, outcome),
            Step::Commit { outcome, takes_effect } => self.commit(outcome, takes_effect),
            Step::FetchOffset => self.fetch_offset(),
        }
    }

    fn arrive(&mut self) {
        let (partition, values) = self.late.remove(0);
        self.logs[partition].extend(values);
    }

    /// Something of each kind is always there for a mutation: three records of an idempotent producer, one of a plain
    /// one, and a read of them. Then what the partitions hold.
    fn end(mut self) -> Vec<Event> {
        while !self.late.is_empty() {
            self.arrive();
        }
        for _ in 0..3 {
            self.idempotent(LAST, 1, Fate::Acked);
        }
        self.plain(10, 1, Fate::Acked);
        for partition in 0..PARTITIONS {
            self.read(READERS, partition, 100);
        }
        for partition in 0..PARTITIONS {
            let (log, start) = (&self.logs[partition as usize], self.log_starts[partition as usize]);
            let records = (start as i64..).zip(log[start..].iter().copied()).collect();
            let (partition, log_start) = (name(partition), start as i64);
            self.event(50, Op::Final(Final { partition, log_start, records }));
        }
        self.events
    }
}

/// The idempotent producer that is never without an answer. Its partition is 0, as that of the plain producer 10.
const LAST: u32 = 8;

fn lawful() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(step(), 0..60).prop_map(|steps| {
        let mut model = Model { next_value: 1, committed: -1, ..Model::default() };
        steps.iter().for_each(|step| model.step(step));
        model.end()
    })
}

fn last_log(history: &mut [Event]) -> &mut Final {
    let is_it = |event: &Event| matches!(&event.op, Op::Final(last) if last.partition == name(0));
    let at = history.iter().position(is_it).unwrap();
    let Op::Final(last) = &mut history[at].op else { unreachable!("found above") };
    last
}

/// Where in the final log the records of the last producer are.
fn of_last_producer(history: &mut [Event]) -> Vec<usize> {
    let mut values = Vec::new();
    for event in history.iter() {
        if let Op::Produce(produce) = &event.op
            && produce.producer == LAST
        {
            values.extend(produce.values.clone());
        }
    }
    let records = &last_log(history).records;
    values.iter().map(|value| records.iter().position(|(_, there)| there == value).unwrap()).collect()
}

fn names(history: &[Event]) -> Vec<&'static str> {
    check(history).iter().map(Anomaly::name).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_lawful_history_shows_nothing(history in lawful()) {
        prop_assert_eq!(check(&history), []);
        prop_assert_eq!(from_lines(&to_lines(&history)), Ok(history));
    }

    #[test]
    fn a_lost_record_is_found(mut history in lawful(), nth in 0..3usize, moves_up in any::<bool>()) {
        let at = of_last_producer(&mut history)[nth];
        let last = last_log(&mut history);
        last.records.remove(at);
        if moves_up {
            last.records.iter_mut().skip(at).for_each(|(offset, _)| *offset -= 1);
        }
        let names = names(&history);
        prop_assert!(names.contains(&"acknowledged-lost"), "{names:?}");
        prop_assert_eq!(names.contains(&"gap"), !moves_up);
    }

    #[test]
    fn swapped_records_are_found(mut history in lawful(), nth in 0..2usize) {
        let at = of_last_producer(&mut history);
        let records = &mut last_log(&mut history).records;
        (records[at[nth]].1, records[at[nth + 1]].1) = (records[at[nth + 1]].1, records[at[nth]].1);
        let names = names(&history);
        prop_assert!(names.contains(&"order") && names.contains(&"moved"), "{names:?}");
    }

    #[test]
    fn a_record_that_is_there_twice_is_found(mut history in lawful(), nth in 0..3usize) {
        let at = of_last_producer(&mut history)[nth];
        let last = last_log(&mut history);
        let (end, value) = (last.log_start + last.records.len() as i64, last.records[at].1);
        last.records.push((end, value));
        prop_assert_eq!(names(&history), ["duplicate"]);
    }

    #[test]
    fn a_lowered_high_watermark_is_found(mut history in lawful(), by in 1..4i64) {
        let now_ns = history.last().unwrap().completed_ns + 5;
        let last = last_log(&mut history);
        let high_watermark = last.log_start + last.records.len() as i64 - by;
        let (partition, log_start) = (name(0), last.log_start);
        let read = Read { partition, from_offset: high_watermark, records: vec![], high_watermark, log_start };
        let (process, op) = (READERS, Op::Read(read));
        history.push(Event { process, invoked_ns: now_ns, completed_ns: now_ns + 5, op });
        prop_assert_eq!(names(&history), ["high-watermark-back"]);
    }

    #[test]
    fn a_read_of_something_else_is_found(mut history in lawful()) {
        let at = of_last_producer(&mut history);
        let (was, other) = (last_log(&mut history).records[at[0]], last_log(&mut history).records[at[1]].1);
        for event in &mut history {
            if let Op::Read(read) = &mut event.op
                && read.partition == name(0)
            {
                read.records.iter_mut().filter(|record| **record == was).for_each(|record| record.1 = other);
            }
        }
        let names = names(&history);
        prop_assert!(names.iter().all(|name| *name == "inconsistent-offsets"), "{names:?}");
    }
}
