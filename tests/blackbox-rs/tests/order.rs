//! SPEC promises 1 and 4, over the wire of a real broker.
#![allow(clippy::disallowed_methods, reason = "producers are threads here")]

use camus_blackbox::{Broker, Conn, Ids, OUT_OF_ORDER, PLAIN, Produced, batch, pause};

/// Batch `b` of a producer holds the records `3b`, `3b + 1`, `3b + 2`; it is the only one that writes the topic.
const SIZE: i64 = 3;

fn numbered(ids: Ids, b: i64) -> Vec<u8> {
    let values: Vec<Vec<u8>> = (b * SIZE..(b + 1) * SIZE).map(|n| n.to_string().into_bytes()).collect();
    batch(ids, (b * SIZE) as i32, &values)
}

fn at_its_place(b: i64) -> Produced {
    Produced { error: 0, base_offset: b * SIZE }
}

fn assert_reads_back(conn: &mut Conn, topic: &str, batches: i64) {
    let expected: Vec<Vec<u8>> = (0..batches * SIZE).map(|n| n.to_string().into_bytes()).collect();
    assert_eq!(conn.read_all(topic), expected, "each record once, in the order of the sequence");
}

/// Lost otherwise: the order in which a producer sent its records, when others write the same partition.
#[test]
fn concurrent_producers_keep_each_send_order() {
    const PRODUCERS: usize = 6;
    const EACH: usize = 150;
    let broker = Broker::start();
    broker.connect().create_topic("shared", 1);
    let acked: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|me| {
                let mut conn = broker.connect();
                scope.spawn(move || {
                    let send = |n| {
                        let done = conn.produce("shared", &batch(PLAIN, -1, &[format!("{me}:{n}").into_bytes()]));
                        assert_eq!(done.error, 0);
                        done.base_offset
                    };
                    (0..EACH).map(send).collect()
                })
            })
            .collect();
        producers.into_iter().map(|p| p.join().expect("the producer ended well")).collect()
    });
    let log = broker.connect().read_all("shared");
    assert_eq!(log.len(), PRODUCERS * EACH, "each record once");
    for (me, offsets) in acked.iter().enumerate() {
        assert!(offsets.is_sorted(), "producer {me}: its offsets grow in the order of its sends");
        for (n, offset) in offsets.iter().enumerate() {
            assert_eq!(
                log[*offset as usize],
                format!("{me}:{n}").into_bytes(),
                "the record is where it was said to be"
            );
        }
    }
}

/// Lost otherwise: a record, doubled or moved, when five batches are in flight and each is sent again. The broker is
/// frozen while everything is sent, so originals and retries (behind them on the same connection) meet it at once.
#[test]
fn idempotent_inflight_retries_keep_order() {
    let broker = Broker::start();
    let mut conn = broker.connect();
    conn.create_topic("retried", 1);
    let ids = conn.init_producer_id();
    for round in 0..30 {
        let five = round * 5..round * 5 + 5;
        if round % 2 == 0 {
            broker.freeze();
        }
        let sent: Vec<(i64, i32)> = five
            .clone()
            .chain(five.clone())
            .chain(five)
            .map(|b| (b, conn.send_produce("retried", &numbered(ids, b), 30_000)))
            .collect();
        broker.thaw();
        for (b, correlation) in sent {
            assert_eq!(conn.receive_produce(correlation), Ok(at_its_place(b)), "batch {b}");
        }
    }
    assert_reads_back(&mut conn, "retried", 150);
}

/// Lost otherwise: the same, when the retries come on a new connection while the originals still lie in the old one.
/// A retry may overtake its predecessor; then it is refused with 45 and the client sends it again, in order.
#[test]
fn retries_on_a_new_connection_meet_their_originals_in_flight() {
    let broker = Broker::start();
    let mut control = broker.connect();
    control.create_topic("moved", 1);
    let ids = control.init_producer_id();
    let mut old = broker.connect();
    for round in 0..30 {
        let five = round * 5..round * 5 + 5;
        let mut new = broker.connect();
        broker.freeze();
        let originals: Vec<_> =
            five.clone().map(|b| (b, old.send_produce("moved", &numbered(ids, b), 30_000))).collect();
        let retries: Vec<_> = five.clone().map(|b| (b, new.send_produce("moved", &numbered(ids, b), 30_000))).collect();
        broker.thaw();
        for (b, correlation) in retries {
            let done = new.receive_produce(correlation).expect("a retry is answered");
            assert!(done == at_its_place(b) || done.error == OUT_OF_ORDER, "batch {b}: {done:?}");
        }
        for (b, correlation) in originals {
            let done = old.receive_produce(correlation).expect("an original is answered");
            assert!(done == at_its_place(b) || done.error == OUT_OF_ORDER, "batch {b}: {done:?}");
        }
        for b in five {
            assert_eq!(new.produce("moved", &numbered(ids, b)), at_its_place(b), "batch {b}, sent again in order");
        }
        old = new;
    }
    assert_reads_back(&mut control, "moved", 150);
}

/// Lost otherwise: the records between, if what skips ahead were appended, or parked and appended later.
#[test]
fn a_sequence_that_skips_ahead_is_refused_and_never_parked() {
    let broker = Broker::start();
    let mut conn = broker.connect();
    conn.create_topic("gap", 1);
    let ids = conn.init_producer_id();
    assert_eq!(conn.produce("gap", &numbered(ids, 0)), at_its_place(0));
    assert_eq!(conn.produce("gap", &numbered(ids, 2)).error, OUT_OF_ORDER);
    assert_eq!(conn.produce("gap", &numbered(ids, 1)), at_its_place(1));
    pause(100);
    assert_reads_back(&mut conn, "gap", 2);
    assert_eq!(conn.produce("gap", &numbered(ids, 2)), at_its_place(2));
    assert_reads_back(&mut conn, "gap", 3);
}
