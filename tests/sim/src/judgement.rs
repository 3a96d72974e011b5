//! What may be wrong with a history after damage, and what may not.
//!
//! A broker with one copy can not mask damage. It may refuse to start, it may answer a read with an error, and where
//! the last groups of a log were damaged (but by more than one flipped bit), the log may end earlier at the next start,
//! without a word: nothing on the disk says that there was more (docs/adr/0002, "What can not be decided"). No more.
//!
//! So the history is cut at each start before which that can have happened. What lies between two cuts is judged as if
//! nothing had been damaged: what was acknowledged is there, and an offset has one value. Across a cut an acknowledged
//! record may be gone, another may have its offset, and marks may be lower. Nowhere may a record be shown that nobody
//! sent or that was refused, in a wrong order, twice, or with a hole before it: the log that is left is a beginning of
//! the one that was. What groups committed, who is in them, and where epochs end, is judged only where there is no cut.
//!
//! Of a cluster one broker's disk is damaged. Once that broker has started on a disk that may have lost its end, it may
//! let itself be counted for what it does not have, at that time or at any later one (docs/adr/0005, "Not done"): what
//! ended before is judged as if nothing had been damaged, and of the rest only orders, and that nothing is invented.
//!
//! A producer of which no batch is left, as on an old image of the disk, begins anywhere (KIP-98): behind a cut a hole
//! before the first record of a producer is lawful, and a hole behind it is not.

use camus_engine::types::Mono;
use camus_history::history::{Outcome, ProduceOutcome};
use camus_history::{Anomaly, Event, Op, Partition, check};
use std::collections::BTreeSet;

/// What is not lawful. `cuts`: starts before which the end of the log may have been lost.
pub fn after_damage(history: &[Event], cuts: &[Mono]) -> Vec<Anomaly> {
    if cuts.is_empty() {
        return check(history);
    }
    let mut found = orders(history);
    let mut from = Mono(0);
    for to in cuts.iter().copied().chain([Mono(u64::MAX)]) {
        let judged = check(&stretch(history, from, to)).into_iter();
        found.extend(judged.filter(|anomaly| from == Mono(0) || !is_first(anomaly)));
        from = to;
    }
    found
}

/// The same of a cluster of which one broker's disk was damaged.
pub fn after_damage_of_one(history: &[Event], cuts: &[Mono]) -> Vec<Anomaly> {
    let Some(cut) = cuts.first() else { return check(history) };
    let mut found = orders(history);
    found.extend(check(&stretch(history, Mono(0), *cut)));
    let lasts = |anomaly: &Anomaly| matches!(anomaly.name(), "invented" | "failed-but-there");
    found.extend(check(history).into_iter().filter(lasts));
    found
}

/// What was done and seen between two cuts. Of the rest, who sent what, and what may have been deleted.
fn stretch(history: &[Event], from: Mono, to: Mono) -> Vec<Event> {
    let within = |event: &Event| event.invoked_ns >= from.0 && event.completed_ns < to.0;
    let mut events = Vec::new();
    for event in history {
        let mut event = event.clone();
        let keeps = within(&event);
        match &mut event.op {
            Op::Produce(_) | Op::Read(_) | Op::ListOffset(_) | Op::Trim(_) | Op::Final(_) if keeps => {}
            Op::Produce(produce) => {
                if let ProduceOutcome::Acked { .. } = produce.outcome {
                    produce.outcome = ProduceOutcome::Info;
                }
            }
            Op::Trim(trim) => trim.outcome = Outcome::Info,
            Op::Read(_) | Op::ListOffset(_) | Op::Final(_) | Op::CommitOffset(_) | Op::FetchOffset(_) => continue,
            Op::EpochStart(_) | Op::EpochEnd(_) => continue,
            // a damaged coordinator may begin again in a term that was there before
            Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => continue,
        }
        events.push(event);
    }
    events
}

/// What is left in the end stands in the order in which it was sent, also across cuts. Each partition by itself: what
/// is lost of one may not use up the number of anomalies that are named.
fn orders(history: &[Event]) -> Vec<Anomaly> {
    let mut found = Vec::new();
    for partition in finals(history) {
        let events: Vec<Event> = history.iter().filter(|event| is_of(event, &partition)).cloned().collect();
        found.extend(check(&events).into_iter().filter(|anomaly| anomaly.name() == "order" && !is_first(anomaly)));
    }
    found
}

/// Nothing is before it of its producer, though something was sent.
fn is_first(anomaly: &Anomaly) -> bool {
    matches!(anomaly, Anomaly::Order { after: None, .. })
}

fn finals(history: &[Event]) -> BTreeSet<Partition> {
    let of = |event: &Event| if let Op::Final(last) = &event.op { Some(last.partition.clone()) } else { None };
    history.iter().filter_map(of).collect()
}

/// Something that was written into this partition, or what it holds in the end.
fn is_of(event: &Event, partition: &Partition) -> bool {
    match &event.op {
        Op::Produce(produce) => produce.partition == *partition,
        Op::Final(last) => last.partition == *partition,
        Op::Read(_) | Op::ListOffset(_) | Op::CommitOffset(_) | Op::FetchOffset(_) | Op::Trim(_) => false,
        Op::EpochStart(_) | Op::EpochEnd(_) => false,
        Op::Assigned(_) | Op::Stays(_) | Op::Revoked(_) | Op::Lost(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_history::history::{Final, Produce, Read};

    fn event(at: u64, op: Op) -> Event {
        Event { process: 1, invoked_ns: at, completed_ns: at + 1, op }
    }

    fn acked(at: u64, number: u64, value: u64, base_offset: i64) -> Event {
        let outcome = ProduceOutcome::Acked { base_offset };
        let partition = Partition::new("t", 0);
        let produce =
            Produce { partition, producer: 1, idempotent: false, first_number: number, values: vec![value], outcome };
        event(at, Op::Produce(produce))
    }

    fn read(at: u64, offset: i64, value: u64) -> Event {
        let partition = Partition::new("t", 0);
        let (records, high_watermark) = (vec![(offset, value)], offset + 1);
        event(at, Op::Read(Read { partition, from_offset: offset, records, high_watermark, log_start: 0 }))
    }

    fn last(at: u64, values: &[u64]) -> Event {
        let records = (0..).zip(values.iter().copied()).collect();
        event(at, Op::Final(Final { partition: Partition::new("t", 0), log_start: 0, records }))
    }

    fn names(history: &[Event], cuts: &[Mono]) -> Vec<&'static str> {
        let mut names: Vec<_> = after_damage(history, cuts).iter().map(Anomaly::name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Lost if it fails: the one lawful loss is called a fault, or every loss is lawful.
    #[test]
    fn a_tail_may_be_lost_before_a_cut_and_nowhere_else() {
        let history = [acked(10, 0, 7, 0), acked(20, 1, 8, 1), read(30, 1, 8), acked(60, 2, 9, 1), last(90, &[7, 9])];
        assert_eq!(names(&history, &[Mono(50)]), Vec::<&str>::new());
        assert_eq!(names(&history, &[]), ["acknowledged-lost", "inconsistent-offsets"]);
        assert_eq!(names(&history, &[Mono(5)]), ["acknowledged-lost", "inconsistent-offsets"], "nothing before it");
        assert_eq!(names(&history, &[Mono(80)]), ["inconsistent-offsets"], "two values in one stretch");
    }

    /// Lost if it fails: one damaged disk of three is an excuse for what was seen before it, or for what nobody sent.
    #[test]
    fn a_cluster_may_lose_after_a_replica_forgot_and_not_before() {
        let names = |history: &[Event], cuts: &[Mono]| {
            let mut names: Vec<_> = after_damage_of_one(history, cuts).iter().map(Anomaly::name).collect();
            names.sort_unstable();
            names.dedup();
            names
        };
        let history = [acked(10, 0, 7, 0), acked(20, 1, 8, 1), read(30, 1, 8), acked(60, 2, 9, 1), last(90, &[7, 9])];
        assert_eq!(names(&history, &[Mono(50)]), Vec::<&str>::new());
        assert_eq!(names(&history, &[]), ["acknowledged-lost", "inconsistent-offsets"]);
        let history = [acked(10, 0, 7, 0), acked(20, 1, 8, 1), read(30, 1, 7), last(90, &[7])];
        assert_eq!(names(&history, &[Mono(50)]), ["inconsistent-offsets"], "two values before it");
        let history = [acked(10, 0, 7, 0), read(60, 1, 5), last(90, &[7])];
        assert_eq!(names(&history, &[Mono(50)]), ["invented"]);
    }

    /// Lost if it fails: an old disk is called a fault of Camus, or a hole in the middle is not.
    #[test]
    fn a_producer_of_which_nothing_is_left_begins_anywhere_and_goes_on_from_there() {
        let idempotent = |at: u64, number: u64, value: u64, base_offset: i64| {
            let mut event = acked(at, number, value, base_offset);
            let Op::Produce(produce) = &mut event.op else { unreachable!() };
            produce.idempotent = true;
            event
        };
        let sent =
            [idempotent(10, 0, 7, 0), idempotent(20, 1, 8, 1), idempotent(60, 2, 9, 0), idempotent(70, 3, 10, 1)];
        let history = |left: &[u64]| sent.iter().cloned().chain([last(90, left)]).collect::<Vec<_>>();
        assert_eq!(names(&history(&[9, 10]), &[Mono(50)]), Vec::<&str>::new());
        assert!(names(&history(&[9, 10]), &[]).contains(&"order"), "nothing was lost");
        assert!(names(&history(&[7, 9]), &[Mono(50)]).contains(&"order"), "a hole behind the first one");
    }

    /// Lost if it fails: damage is an excuse for anything.
    #[test]
    fn what_is_left_is_never_out_of_order_or_invented() {
        let history = [acked(10, 0, 7, 0), acked(20, 1, 8, 1), acked(60, 2, 9, 1), last(90, &[7, 9, 8])];
        assert_eq!(names(&history, &[Mono(50)]), ["order"]);
        let history = [acked(10, 0, 7, 0), read(20, 1, 5), acked(60, 1, 9, 1), last(90, &[7, 9])];
        assert_eq!(names(&history, &[Mono(50)]), ["invented"]);
    }
}
