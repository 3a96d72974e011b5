//! Brokers of a cluster that come back without their disks: nobody is elected who lacks what was acknowledged.

use camus_engine::io::sim::Crash;
use camus_sim::kit::{BROKERS, Cluster, PATIENCE, Shape};
use camus_sim::wire::{Conn, METADATA, PRODUCE, batch, led_by, metadata, produce, produced};
use std::rc::Rc;
use std::time::Duration;

const TOPIC: &str = "t";

fn shape(seed: u64) -> Shape {
    Shape { brokers: BROKERS, cores: 1 + seed as usize % 2, ..Shape::default() }
}

/// The broker that another one names as the partition's leader.
fn leader(cluster: &mut Cluster) -> Option<(usize, i32)> {
    let n = (0..BROKERS).find(|n| cluster.is_up(*n))?;
    let answer = Conn::open(cluster, n).call(cluster, METADATA, &metadata(TOPIC))?;
    let (host, port, epoch) = led_by(&answer, 0)?;
    cluster.at(&host, port).filter(|n| cluster.is_up(*n)).map(|n| (n, epoch))
}

/// Tries again as a client does, for as long as anything takes.
fn until<T>(cluster: &mut Cluster, what: &str, mut tries: impl FnMut(&mut Cluster) -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(done) = tries(cluster) {
            return done;
        }
        cluster.world.run_for(Duration::from_millis(50));
    }
    panic!("{what}: {}", cluster.stand());
}

fn make_topic(cluster: &mut Cluster) {
    until(cluster, "the topic is made", |cluster| {
        let n = (0..BROKERS).find(|n| cluster.is_up(*n))?;
        Conn::open(cluster, n).create_topic(cluster, TOPIC, 1).filter(|code| [0, 36].contains(code))
    });
}

/// Acknowledged, once at least.
fn put(cluster: &mut Cluster, acked: &mut Vec<u64>, count: usize) {
    for _ in 0..count {
        let value = acked.len() as u64;
        until(cluster, "a batch is acknowledged", |cluster| {
            let (n, _) = leader(cluster)?;
            let answer =
                Conn::open(cluster, n).call(cluster, PRODUCE, &produce(TOPIC, 0, &batch(&[value], 100, NOBODY)))?;
            (produced(answer).error_code == 0).then_some(())
        });
        acked.push(value);
    }
}

/// No idempotent producer.
const NOBODY: (i64, i16, i32) = (-1, -1, -1);

fn all_there(cluster: &mut Cluster, acked: &[u64]) {
    until(cluster, "everything is there", |cluster| {
        let (n, epoch) = leader(cluster)?;
        let (_, mut found) = Conn::open(cluster, n).read_all(cluster, TOPIC, (0, epoch)).ok()?;
        // what was sent again may be there twice
        found.dedup_by_key(|(_, value)| *value);
        let found: Vec<u64> = found.into_iter().map(|(_, value)| value).collect();
        (found == acked).then_some(())
    });
}

/// Nobody leads anything, for longer than any election takes.
fn nobody_leads(cluster: &mut Cluster, why: &str) {
    for _ in 0..100 {
        cluster.world.run_for(Duration::from_millis(50));
        assert_eq!(cluster.leaders(), [], "{why}");
    }
}

fn is_kept_out(cluster: &mut Cluster, n: usize) {
    let said = Rc::clone(&cluster.brokers[n].said);
    assert!(cluster.world.run_until(PATIENCE, |_| said.borrow().kept_out), "broker {n} is not told");
    assert!(cluster.world.run_until(PATIENCE, |_| true) && !cluster.is_up(n));
}

fn begin(cluster: &mut Cluster, n: usize) {
    cluster.begin(n).unwrap_or_else(|why| panic!("broker {n}: {why}"));
}

/// Lost if it fails: what the broker that lost its disk had acknowledged, when it votes for one that never had it.
#[test]
fn a_broker_that_lost_its_disk_makes_no_majority() {
    for seed in 0..12 {
        let mut cluster = Cluster::new(seed, shape(seed));
        make_topic(&mut cluster);
        let mut acked = Vec::new();
        put(&mut cluster, &mut acked, 5);
        let (leads, _) = until(&mut cluster, "it is led", leader);
        let (lost, lagging) = ((leads + 1) % BROKERS, (leads + 2) % BROKERS);
        cluster.crash(lagging, Crash::Power);
        put(&mut cluster, &mut acked, 5);
        cluster.lose_disks(lost, 0);
        begin(&mut cluster, lost);
        is_kept_out(&mut cluster, lost);
        cluster.crash(leads, Crash::Power);
        cluster.crash(lost, Crash::Process);
        begin(&mut cluster, lost);
        begin(&mut cluster, lagging);
        nobody_leads(&mut cluster, "one has forgotten, and one has never had it");
        begin(&mut cluster, leads);
        put(&mut cluster, &mut acked, 5);
        all_there(&mut cluster, &acked);
    }
}

/// Lost if it fails: everything, when two brokers that have forgotten take the third one, which has not, for away.
#[test]
fn two_brokers_without_their_disks_do_not_begin_anew() {
    for seed in 0..6 {
        let mut cluster = Cluster::new(seed, shape(seed));
        cluster.crash(0, Crash::Power);
        for n in [1, 2] {
            cluster.lose_disks(n, 0);
            begin(&mut cluster, n);
        }
        nobody_leads(&mut cluster, "the third one may have what they have forgotten");
        begin(&mut cluster, 0);
        is_kept_out(&mut cluster, 1);
        is_kept_out(&mut cluster, 2);
    }
}

/// Lost if it fails: a new cluster, or one of which a broker is away after it was new.
#[test]
fn a_new_cluster_needs_all_brokers_once_and_then_any_two() {
    for seed in 0..6 {
        let mut cluster = Cluster::down(seed, shape(seed));
        begin(&mut cluster, 0);
        begin(&mut cluster, 1);
        nobody_leads(&mut cluster, "the third one may be in a cluster of before");
        begin(&mut cluster, 2);
        assert!(cluster.comes_up(), "all of them are there: {}", cluster.stand());
        make_topic(&mut cluster);
        let mut acked = Vec::new();
        for away in 0..BROKERS {
            // all of them are down at once: what they know of each other is on their disks
            (0..BROKERS).for_each(|n| cluster.crash(n, Crash::Power));
            (0..BROKERS).filter(|n| *n != away).for_each(|n| begin(&mut cluster, n));
            put(&mut cluster, &mut acked, 3);
            all_there(&mut cluster, &acked);
            begin(&mut cluster, away);
        }
    }
}
