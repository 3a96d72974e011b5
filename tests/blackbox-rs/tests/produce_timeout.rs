//! SPEC promise 4: a produce that timed out may still commit, and its idempotent retry returns the first offset.
//!
//! The client's patience ends while the broker is frozen (SIGSTOP), so that nobody knows what became of the request.

use camus_blackbox::{Broker, NoAnswer, Produced, batch, pause};

fn one(n: i64) -> Vec<Vec<u8>> {
    vec![n.to_string().into_bytes()]
}

fn numbers(count: i64) -> Vec<Vec<u8>> {
    (0..count).map(|n| n.to_string().into_bytes()).collect()
}

/// Lost otherwise: exactly-once for every producer whose request took longer than its timeout.
#[test]
fn a_retry_after_a_timeout_returns_the_first_offset() {
    let broker = Broker::start();
    let mut control = broker.connect();
    control.create_topic("late", 1);
    let ids = control.init_producer_id();
    for n in 0..8 {
        let mut first = broker.connect();
        broker.freeze();
        let sent = first.send_produce("late", &batch(ids, n as i32, &one(n)), 100);
        first.patience(250);
        assert_eq!(first.receive_produce(sent), Err(NoAnswer::Silent), "the client gives up");
        if n % 2 == 0 {
            drop(first); // and closes; or keeps the connection and never looks at it again
            broker.thaw();
            let mut second = broker.connect();
            let retry = second.produce("late", &batch(ids, n as i32, &one(n)));
            assert_eq!(retry, Produced { error: 0, base_offset: n }, "record {n}");
        } else {
            // The retry is on its way before the broker has seen the original.
            let mut second = broker.connect();
            let retry = second.send_produce("late", &batch(ids, n as i32, &one(n)), 30_000);
            broker.thaw();
            let answer = second.receive_produce(retry);
            assert_eq!(answer, Ok(Produced { error: 0, base_offset: n }), "record {n}");
            first.patience(20_000);
            let late = first.receive_produce(sent).expect("the original is answered too");
            // It may say that the time was up; it may not name another offset.
            assert!(late == Produced { error: 0, base_offset: n } || late.error == 7, "record {n}: {late:?}");
        }
    }
    assert_eq!(control.read_all("late"), numbers(8), "each record once, in order");
}

/// Lost otherwise: a record, or its single copy, when the connection is cut with the request on the way.
#[test]
fn a_retry_after_a_cut_connection_returns_the_first_offset() {
    let broker = Broker::start();
    let mut control = broker.connect();
    control.create_topic("cut", 1);
    let ids = control.init_producer_id();
    for n in 0..200 {
        let mut first = broker.connect();
        first.send_produce("cut", &batch(ids, n as i32, &one(n)), 30_000);
        pause(n as u64 % 4);
        drop(first);
        let retry = broker.connect().produce("cut", &batch(ids, n as i32, &one(n)));
        assert_eq!(retry, Produced { error: 0, base_offset: n }, "record {n}");
    }
    assert_eq!(control.read_all("cut"), numbers(200), "each record once, in order");
}

/// Lost otherwise: the same over a crash: the broker dies after the client gave up, and comes back.
#[test]
fn a_retry_after_a_timeout_and_kill_9_returns_the_first_offset() {
    let mut broker = Broker::start();
    let mut control = broker.connect();
    control.create_topic("crash", 1);
    let ids = control.init_producer_id();
    for n in 0..6 {
        let mut first = broker.connect();
        broker.freeze();
        let sent = first.send_produce("crash", &batch(ids, n as i32, &one(n)), 100);
        first.patience(150);
        assert_eq!(first.receive_produce(sent), Err(NoAnswer::Silent), "the client gives up");
        if n % 3 > 0 {
            broker.thaw(); // it may or may not get to write the record before it dies
            pause(n as u64 % 3 * 2 - 2);
        }
        broker.kill_9();
        broker.start_again();
        control = broker.connect();
        control.wait_for_leaders("crash", 1);
        for _ in 0..2 {
            let retry = control.produce("crash", &batch(ids, n as i32, &one(n)));
            assert_eq!(retry, Produced { error: 0, base_offset: n }, "record {n}");
        }
    }
    assert_eq!(control.read_all("crash"), numbers(6), "each record once, in order");
}
