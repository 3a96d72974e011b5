//! Three brokers' pumps (`shard::core::Core`) in the simulator, each with its disk, over a network that loses, doubles,
//! reorders and parts. A seed that fails is printed; `CAMUS_TEST_SEED=<seed>` runs it alone.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod partition_kit;
mod shard_kit;

use bytes::Bytes;
use camus_engine::io::sim::Crash;
use camus_engine::limits;
use camus_engine::shard::api::{Answer, Ask, Refusal, Route};
use camus_engine::types::Offset;
use camus_sim::pumps::{BROKERS, Cluster, Committed, META, Shape, route};
use shard_kit::{PATIENCE, Seed, Stored, batch, rest_of, rests, seeds};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

trait Contents {
    /// Everything committed, leader or not.
    fn contents(&mut self, who: usize, of: Route) -> Vec<Stored>;
}

impl Contents for Cluster {
    fn contents(&mut self, who: usize, of: Route) -> Vec<Stored> {
        self.bodies(who, of).into_iter().map(Stored::of).collect()
    }
}

/// One record, from a producer that sends one batch after the other.
fn nth(n: u64, value_bytes: usize) -> Bytes {
    batch(n, 1, value_bytes, (7, 0, n as i32))
}

/// All replicas come to have the same, byte for byte.
fn same_everywhere(cluster: &mut Cluster, routes: &[Route]) {
    cluster.converge(routes);
    for of in routes {
        let first = cluster.contents(0, *of);
        for who in 1..BROKERS {
            assert_eq!(cluster.contents(who, *of), first, "broker {who} has another {of:?}");
        }
    }
}

// ------------------------------------------------------------------------------------------------- what is promised

/// Lost if it fails: what was acknowledged, with the process of any broker, or with the power of one.
#[test]
fn an_acknowledged_batch_survives_the_loss_of_any_one_broker() {
    for seed in seeds(0..50) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        let mut sent = Vec::new();
        for who in 0..BROKERS {
            for _ in 0..cluster.world.rng().between(1, 10) {
                let batch = nth(sent.len() as u64, 100);
                assert_eq!(cluster.produce(p, &batch), Offset(sent.len() as i64));
                sent.push(rest_of(&batch));
            }
            // at once: what a follower has not heard of is not told to it any more
            cluster.crash_somehow(who);
            let leader = cluster.wait_leader(p.shard);
            assert_ne!(leader, who);
            let stored = cluster.contents(leader, p);
            assert!(stored.len() >= sent.len(), "{} of {} are left", stored.len(), sent.len());
            assert_eq!(rests(&stored), sent);
            cluster.start(who);
        }
        same_everywhere(&mut cluster, &[p]);
        assert_eq!(rests(&cluster.contents(0, p)), sent);
    }
}

/// Lost if it fails: what was acknowledged, when the power of all brokers fails at once.
#[test]
fn an_acknowledged_batch_is_on_the_media_of_a_majority() {
    for seed in seeds(0..20) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        let mut sent = Vec::new();
        for _ in 0..4 {
            for _ in 0..cluster.world.rng().between(1, 10) {
                let batch = nth(sent.len() as u64, 2_000);
                cluster.produce(p, &batch);
                sent.push(rest_of(&batch));
            }
            (0..BROKERS).for_each(|who| cluster.crash(who, Crash::Power));
            // one of them does not come back yet: the others have it
            let away = cluster.world.rng().between(0, BROKERS as u64 - 1) as usize;
            (0..BROKERS).filter(|who| *who != away).for_each(|who| cluster.start(who));
            let leader = cluster.wait_leader(p.shard);
            assert_eq!(rests(&cluster.contents(leader, p)), sent);
            cluster.start(away);
        }
        same_everywhere(&mut cluster, &[p]);
    }
}

/// Lost if it fails: an operator's view of who has fallen behind. Who does not lead does not know it, and says so.
#[test]
fn the_leader_tells_how_far_each_voter_is() {
    let p = route(1, 1);
    let mut cluster = Cluster::new(1, Shape::default(), &[p]);
    let quorum = |cluster: &mut Cluster, who| {
        let request = cluster.ask(who, Ask::Quorum { core: p.core, shard: p.shard });
        let Answer::Quorum(told) = cluster.wait(who, request) else { panic!("another answer") };
        told
    };
    cluster.produce(p, &nth(0, 100));
    cluster.converge(&[p]);
    let leader = cluster.wait_leader(p.shard);
    let told = quorum(&mut cluster, leader).expect("it leads");
    assert_eq!(told.commit, told.last);
    assert_eq!(told.voters, [1, 2, 3].map(|id| (id, told.last)));
    let (away, other) = ((leader + 1) % BROKERS, (leader + 2) % BROKERS);
    assert_eq!(quorum(&mut cluster, other), Err(Refusal::NotLeader));
    cluster.crash(away, Crash::Process);
    cluster.produce(p, &nth(1, 100));
    cluster.run_ms(300);
    let behind = quorum(&mut cluster, leader).expect("a majority is there");
    assert!(behind.commit > told.commit);
    for (at, (id, matched)) in behind.voters.iter().enumerate() {
        let is_away = at == away;
        assert_eq!(*matched, if is_away { told.last } else { behind.last }, "voter {id}");
    }
}

/// Lost if it fails: the way to the leader. A client that asks a follower whose own log is full would wait for space
/// that is no matter of its batch.
#[test]
fn a_follower_without_space_says_that_it_does_not_lead() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        cluster.produce(p, &nth(0, 100));
        cluster.run_ms(500);
        let leader = cluster.wait_leader(p.shard);
        let follower = (leader + 1) % BROKERS;
        let used = cluster.boards[follower].borrow().disk_bytes;
        cluster.disk(follower).set_capacity(used);
        let mut asked_when_full = 0;
        for n in 1..100 {
            cluster.produce(p, &nth(n, 30_000));
            let is_full = !cluster.core(follower).has_space();
            let request = cluster.send(follower, p, &nth(1_000 + n, 30_000));
            cluster.run_until(PATIENCE, |cluster| cluster.produced(follower, request).is_some());
            let answer = cluster.produced(follower, request).expect("it is answered at once");
            assert_eq!(answer.unwrap_err(), Refusal::NotLeader);
            asked_when_full += usize::from(is_full);
        }
        assert!(asked_when_full > 10, "{asked_when_full}: its log is not full");
    }
}

/// Lost if it fails: every answer, for as long as the leader's disk takes its time.
#[test]
fn the_leader_answers_when_two_followers_have_flushed_before_itself() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        cluster.produce(p, &nth(0, 100));
        cluster.run_ms(200);
        let leader = cluster.wait_leader(p.shard);
        cluster.disk(leader).hang(true);
        let mut sent = vec![rest_of(&nth(0, 100))];
        // more of them than groups can be in flight: the last ones are in none
        for n in 1..=10 {
            let batch = nth(n, 100);
            let request = cluster.send(leader, p, &batch);
            cluster.run_until(Duration::from_millis(200), |cluster| cluster.produced(leader, request).is_some());
            let produced = cluster.produced(leader, request).expect("two have it").expect("it is the leader");
            assert_eq!(produced.base_offset, Offset(n as i64));
            sent.push(rest_of(&batch));
        }
        assert!(cluster.disk(leader).in_flight() > 0, "its own flushes do not end");
        // and what is visible can be read, though it is not on the leader's media
        let (offset, bytes_max) = (Offset(0), 1_000_000);
        let ask = Ask::Read { from: p, offset, bytes_max, at_least_one: true, epoch: None, watch: false };
        let request = cluster.ask(leader, ask);
        let Answer::Read(Ok(read)) = cluster.wait(leader, request) else { panic!("nothing is read") };
        let read: Vec<_> = read.batches.into_iter().map(|batch| Stored::of(batch).rest).collect();
        assert_eq!(read, sent);
        // its power fails now: none of that is lost
        cluster.crash(leader, Crash::Power);
        let other = cluster.wait_leader(p.shard);
        assert_eq!(rests(&cluster.contents(other, p)), sent);
        cluster.heal();
        same_everywhere(&mut cluster, &[p]);
    }
}

/// Lost if it fails: two histories, one of them acknowledged by a broker that nobody follows.
#[test]
fn a_minority_acknowledges_nothing_and_its_suffix_is_replaced_and_never_seen() {
    for seed in seeds(0..50) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        cluster.produce(p, &nth(0, 100));
        cluster.run_ms(200);
        let old = cluster.wait_leader(p.shard);
        cluster.net.borrow_mut().isolate(old);
        let alone: Vec<_> = (0..5).map(|n| batch(1_000 + n, 1, 100, (8, 0, n as i32))).collect();
        let requests: Vec<_> = alone.iter().map(|batch| cluster.send(old, p, batch)).collect();
        cluster.wait_other_leader(p.shard, old);
        let kept: Vec<_> = (1..=3).map(|n| nth(n, 100)).collect();
        for (n, batch) in kept.iter().enumerate() {
            assert_eq!(cluster.produce(p, batch), Offset(1 + n as i64));
        }
        assert_eq!(cluster.committed(old, p).len(), 1, "it sees what nobody else has");
        if cluster.world.rng().chance(30) {
            // its suffix is on its media, or is not
            cluster.run_ms(5);
            cluster.crash_somehow(old);
            cluster.start(old);
        }
        let life = cluster.lives[old];
        cluster.net.borrow_mut().heal();
        same_everywhere(&mut cluster, &[p]);
        if life == 1 {
            for request in requests {
                assert_eq!(cluster.produced(old, request).expect("it is answered"), Err(Refusal::NotLeader));
            }
        }
        let mut expected = vec![rest_of(&nth(0, 100))];
        expected.extend(kept.iter().map(rest_of));
        assert_eq!(rests(&cluster.contents(old, p)), expected);
        // and it can be sent again, as if it had never been
        for (n, batch) in alone.iter().enumerate() {
            assert_eq!(cluster.produce(p, batch), Offset(4 + n as i64));
        }
        same_everywhere(&mut cluster, &[p]);
    }
}

/// Lost if it fails: time, whenever a leader dies: seconds in which nobody can write.
#[test]
fn two_seconds_after_a_leader_is_killed_batches_are_acknowledged_again() {
    for seed in seeds(0..50) {
        let _seed = Seed(seed);
        let p = route(1, 1);
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        let mut n = 0;
        for _ in 0..3 {
            cluster.produce(p, &nth(n, 100));
            n += 1;
            let old = cluster.wait_leader(p.shard);
            cluster.crash_somehow(old);
            let killed = cluster.world.now();
            cluster.wait_other_leader(p.shard, old);
            cluster.produce(p, &nth(n, 100));
            n += 1;
            let took = cluster.world.now().since(killed);
            assert!(took <= Duration::from_secs(2), "it took {took:?}");
            cluster.start(old);
            cluster.run_ms(300);
        }
    }
}

/// Lost if it fails: a follower that was away for long, for good: what it lacks is in no memory any more.
#[test]
fn a_restarted_follower_catches_up_from_the_disk_of_its_leader() {
    for seed in seeds(0..3) {
        let _seed = Seed(seed);
        let (p, q) = (route(1, 1), route(2, 2));
        let shape = Shape { cache_bytes: 64 * 1024, ..Shape::default() };
        let mut cluster = Cluster::new(seed, shape, &[p, q]);
        cluster.produce(p, &nth(0, 100));
        let leader = cluster.wait_leader(p.shard);
        let away = (leader + 1) % BROKERS;
        cluster.crash_somehow(away);
        // more entries than Raft remembers the lengths and checksums of, and more bytes than the log caches
        let total = limits::REPLICA_TAIL_ENTRIES_MAX as u64 + 500;
        let mut next = 1;
        while next < total {
            let leader = cluster.wait_leader(p.shard);
            let last = (next + 200).min(total);
            let requests: Vec<_> = (next..last).map(|n| cluster.send(leader, p, &nth(n, 60))).collect();
            for request in requests {
                let Answer::Produced(produced) = cluster.wait(leader, request) else { panic!("no produce") };
                produced.unwrap();
            }
            cluster.produce(q, &batch(next, 1, 5_000, (-1, -1, -1)));
            next = last;
        }
        let before = cluster.boards[leader].borrow().reads_from_disk;
        cluster.start(away);
        same_everywhere(&mut cluster, &[p, q]);
        assert_eq!(cluster.contents(away, p).len() as u64, total);
        let leader_now = cluster.wait_leader(p.shard);
        let reads = cluster.boards[leader].borrow().reads_from_disk - before;
        assert!(reads > 0 || leader_now != leader, "nothing was read: the test does not test");
        // it has all: it may lead
        (0..BROKERS).filter(|who| *who != away).for_each(|who| cluster.crash(who, Crash::Process));
        let other = (0..BROKERS).find(|who| *who != away).unwrap();
        cluster.start(other);
        cluster.wait_leader(p.shard);
        assert_eq!(cluster.produce(p, &nth(total, 60)), Offset(total as i64));
    }
}

/// Lost if it fails: the disks of all brokers, which fill up though everything on them was deleted; or a broker that
/// does not start, or not with the same, on what is left.
#[test]
fn deleted_data_gives_its_segments_back_on_every_replica() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let (p, q) = (route(1, 1), route(2, 2));
        let shape = Shape { segment_bytes: 64 * 1024, segments_max: 40, ..Shape::default() };
        let mut cluster = Cluster::new(seed, shape, &[p, q]);
        cluster.produce(q, &batch(9, 1, 10, (9, 0, 0)));
        // the oldest record of any partition holds all segments behind it (docs/adr/0010)
        cluster.trim(q, None);
        let mut n = 0;
        for round in 0..10 {
            for _ in 0..60 {
                cluster.produce(p, &nth(n, 4_000));
                n += 1;
            }
            cluster.trim(p, None);
            cluster.run_ms(3_000);
            if round % 3 == 2 {
                let who = cluster.world.rng().between(0, BROKERS as u64 - 1) as usize;
                cluster.crash_somehow(who);
                cluster.run_ms(500);
                cluster.start(who);
                cluster.run_ms(1_000);
            }
        }
        cluster.run_ms(3_000);
        same_everywhere(&mut cluster, &[p, q]);
        for who in 0..BROKERS {
            let segments = cluster.boards[who].borrow().disk_bytes / shape.segment_bytes;
            assert!(segments <= 20, "broker {who} keeps {segments} segments of the 80 that were written and deleted");
        }
        // a retry of the last is known to whoever leads next, from a snapshot
        for _ in 0..3 {
            let leader = cluster.wait_leader(p.shard);
            cluster.crash_somehow(leader);
            cluster.wait_other_leader(p.shard, leader);
            assert_eq!(cluster.produce(p, &nth(n - 1, 4_000)), Offset(n as i64 - 1));
            assert_eq!(cluster.produce(q, &batch(9, 1, 10, (9, 0, 0))), Offset(0));
            cluster.start(leader);
            cluster.run_ms(500);
        }
    }
}

/// Three brokers of which the first leads `p`, the second `q`, and the third none of them.
fn led_by_two(cluster: &mut Cluster, p: Route, q: Route) -> (usize, usize, usize) {
    for _ in 0..50 {
        let (a, b) = (cluster.wait_leader(p.shard), cluster.wait_leader(q.shard));
        if a != b {
            return (a, b, BROKERS - a - b);
        }
        cluster.crash(a, Crash::Process);
        cluster.run_ms(700);
        cluster.start(a);
        cluster.run_ms(700);
    }
    panic!("one broker leads all");
}

/// Fills `q` until its leader takes no more. What is written is deleted again, where that can be heard of.
fn fill(cluster: &mut Cluster, q: Route, leader: usize, n: &mut u64) {
    for round in 0..1_000 {
        let request = cluster.send(leader, q, &nth(*n, 4_000));
        let Answer::Produced(done) = cluster.wait(leader, request) else { panic!("it was produced") };
        match done {
            Ok(_) => *n += 1,
            Err(Refusal::NoSpace) => return,
            Err(other) => panic!("{other}"),
        }
        if round % 20 == 19 {
            cluster.trim(q, None);
            cluster.run_ms(1_500);
        }
    }
    panic!("the log is not at its limit after {n} batches");
}

/// One broker, `c`, has a full log: the leader of `p` has deleted all of it, and can not tell it.
fn with_a_full_follower(seed: u64, p: Route, q: Route) -> (Cluster, (usize, usize, usize), u64) {
    let shape = Shape { segment_bytes: 64 * 1024, segments_max: 40, ..Shape::default() };
    let mut cluster = Cluster::new(seed, shape, &[p, q]);
    let (a, b, c) = led_by_two(&mut cluster, p, q);
    for n in 0..110 {
        cluster.produce(p, &nth(n, 4_000));
    }
    cluster.run_ms(200);
    cluster.net.borrow_mut().cut.extend([(a, c), (c, a)]);
    cluster.trim(p, None);
    let mut n = 0;
    fill(&mut cluster, q, b, &mut n);
    assert_eq!((cluster.leader(p.shard), cluster.leader(q.shard)), (Some(a), Some(b)), "nobody else was elected");
    (cluster, (a, b, c), n)
}

/// Lost if it fails: a broker for good, whose log is full of what the others have deleted: the deletion comes behind
/// entries that it has no room for.
#[test]
fn a_follower_at_its_limit_is_waited_for_until_a_deletion_frees_it() {
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let (p, q) = (route(1, 1), route(2, 2));
        let (mut cluster, (a, b, c), mut n) = with_a_full_follower(seed, p, q);
        let full = cluster.boards[c].borrow().disk_bytes;
        assert!(full <= 40 * 64 * 1024, "it stays within the limit");
        // The leader waits though all in its own log was deleted, and says so where its health is asked for.
        cluster.trim(q, None);
        cluster.run_ms(3_000);
        let space = [a, b].map(|who| cluster.core(who).has_space());
        assert_eq!(space, [true, false], "only who leads the full one waits");
        let request = cluster.send(b, q, &nth(n, 4_000));
        assert!(matches!(cluster.wait(b, request), Answer::Produced(Err(Refusal::NoSpace))));
        cluster.heal();
        let goes_on = |cluster: &mut Cluster| cluster.core(b).has_space();
        assert!(cluster.run_until(Duration::from_secs(10), goes_on), "it is waited for though it could be freed");
        for _ in 0..60 {
            assert_eq!(cluster.produce(q, &nth(n, 4_000)), Offset(n as i64));
            n += 1;
        }
        same_everywhere(&mut cluster, &[p, q]);
        assert!(cluster.core(c).has_space());
    }
}

/// Lost if it fails: two of three brokers, when the third is away: their logs are full of what it lacks, and stay so
/// whatever is deleted.
#[test]
fn a_broker_that_is_away_does_not_keep_the_logs_of_the_others_full() {
    for (seed, segments_max) in [4, 5, 6, 7, 8, 9, 12, 24].into_iter().enumerate() {
        let _seed = Seed(seed as u64);
        let p = route(1, 1);
        let shape = Shape { segment_bytes: 64 * 1024, segments_max, ..Shape::default() };
        let mut cluster = Cluster::new(seed as u64, shape, &[p]);
        cluster.produce(p, &nth(0, 4_000));
        let mut n = 1;
        let leader = cluster.wait_leader(p.shard);
        let away = if seed % 2 == 0 { leader } else { (leader + 1) % BROKERS };
        cluster.crash(away, Crash::Power);
        cluster.run_ms(2_000);
        for round in 0..3 {
            let leader = cluster.wait_leader(p.shard);
            loop {
                let request = cluster.send(leader, p, &nth(n, 4_000));
                match cluster.wait(leader, request) {
                    Answer::Produced(Ok(_)) => n += 1,
                    Answer::Produced(Err(Refusal::NoSpace)) => break,
                    other => panic!("{other:?}"),
                }
            }
            cluster.trim(p, None);
            let goes_on = |cluster: &mut Cluster| {
                let leader = cluster.leader(p.shard);
                leader.is_some_and(|leader| cluster.core(leader).has_space())
            };
            let heals = cluster.run_until(Duration::from_secs(40), goes_on);
            assert!(heals, "a log of {segments_max} segments is full in round {round}, and nothing is in it");
        }
        cluster.produce(p, &nth(n, 4_000));
    }
}

/// Lost if it fails: every broker, when one of them lacks what no log has any more. It can not be healed by deletions,
/// so it is not waited for, and what it leads would be refused for ever.
#[test]
fn a_log_that_is_left_behind_is_not_waited_for_and_leads_nothing() {
    let mut handed_over = 0;
    for seed in seeds(0..5) {
        let _seed = Seed(seed);
        let (p, q) = (route(1, 1), route(2, 2));
        let (mut cluster, (_, b, c), mut n) = with_a_full_follower(seed, p, q);
        // many times what is kept for a follower
        cluster.trim(q, None);
        cluster.run_ms(2_000);
        for m in 110..500 {
            cluster.produce(p, &nth(m, 4_000));
            if m % 20 == 19 {
                cluster.trim(p, None);
                cluster.run_ms(1_200);
            }
        }
        cluster.heal();
        let goes_on = |cluster: &mut Cluster| cluster.core(b).has_space();
        assert!(cluster.run_until(Duration::from_secs(10), goes_on), "nothing can free it, and it is waited for");
        let left =
            |cluster: &Cluster, who: usize| cluster.stats[who].counters.replicas_left_behind.load(Ordering::Relaxed);
        let is_told = |cluster: &mut Cluster| left(cluster, c) > 0;
        assert!(cluster.run_until(Duration::from_secs(3), is_told), "who runs it is not told");
        assert_eq!(left(&cluster, b), 0);
        for _ in 0..20 {
            assert_eq!(cluster.produce(q, &nth(n, 4_000)), Offset(n as i64));
            n += 1;
        }
        assert!(!cluster.core(c).has_space(), "the test does not test: it was freed");
        // It may be elected where it has everything. It hands over to one that has room.
        for _ in 0..6 {
            let leader = cluster.wait_leader(META);
            cluster.crash(leader, Crash::Process);
            cluster.run_ms(600);
            cluster.start(leader);
            handed_over += u32::from(cluster.leader(META) == Some(c));
            let moved = |cluster: &mut Cluster| cluster.leader(META).is_some_and(|leader| leader != c);
            assert!(cluster.run_until(Duration::from_secs(5), moved), "it goes on leading");
            cluster.run_ms(600);
        }
    }
    assert!(handed_over > 0, "it was never elected: the test does not test");
}

/// Lost if it fails: the metadata, which would differ from broker to broker.
#[test]
fn commands_of_the_meta_shard_are_applied_on_every_replica_in_one_order() {
    const COMMANDS: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let mut cluster = Cluster::new(seed, Shape::default(), &[]);
        for (n, command) in COMMANDS.into_iter().enumerate() {
            cluster.propose_meta(command);
            let all_have = |cluster: &mut Cluster| cluster.boards.iter().all(|b| b.borrow().meta.len() > n);
            assert!(cluster.run_until(PATIENCE, all_have), "command {n} is not applied everywhere");
            let who = cluster.world.rng().between(0, BROKERS as u64 - 1) as usize;
            cluster.crash_somehow(who);
            cluster.start(who);
            cluster.wait_leader(META);
            let all_have = |cluster: &mut Cluster| cluster.boards.iter().all(|b| b.borrow().meta.len() > n);
            assert!(cluster.run_until(PATIENCE, all_have), "command {n} is forgotten");
        }
        let first = cluster.boards[0].borrow().meta.clone();
        assert_eq!(first.iter().map(|(_, command)| command.as_ref()).collect::<Vec<_>>(), COMMANDS);
        assert!(cluster.boards.iter().all(|board| board.borrow().meta == first));
    }
}

/// Lost if it fails: the data of a new topic on each broker that hears of its batches before it hears of the topic.
#[test]
fn a_replica_that_has_not_heard_of_a_partition_keeps_its_batches() {
    for seed in seeds(0..10) {
        let _seed = Seed(seed);
        let (p, new) = (route(1, 1), route(1, 5));
        let mut cluster = Cluster::new(seed, Shape::default(), &[p]);
        cluster.produce(p, &nth(0, 100));
        let leader = cluster.wait_leader(p.shard);
        let late = (leader + 1) % BROKERS;
        (0..BROKERS).filter(|who| *who != late).for_each(|who| cluster.tell(who, &[p, new]));
        cluster.run_ms(5);
        cluster.produce(new, &nth(0, 100));
        // an image that is older than the batches
        cluster.tell(late, &[p]);
        cluster.run_ms(100);
        cluster.produce(new, &nth(1, 100));
        cluster.tell(late, &[p, new]);
        same_everywhere(&mut cluster, &[p, new]);
        assert_eq!(cluster.contents(late, new).len(), 2);
        // once it has heard of it, it also hears that it is gone
        (0..BROKERS).for_each(|who| cluster.tell(who, &[p]));
        cluster.run_ms(100);
        assert!((0..BROKERS).all(|who| cluster.committed(who, new).is_empty()));
    }
}

// ------------------------------------------------------------------------------------------------- everything at once

/// A producer that sends one batch after the other, each until it is acknowledged.
struct Client {
    id: i64,
    to: Route,
    sent: Vec<Bytes>,
    acked: Vec<Offset>,
    /// The broker, its life, the request, and how long it is waited for.
    asked: Option<(usize, u32, u64, u32)>,
    next_sequence: i32,
}

impl Client {
    fn new(n: i64, to: Route) -> Client {
        Client { id: 100 + n, to, sent: vec![], acked: vec![], asked: None, next_sequence: 0 }
    }

    fn is_done(&self) -> bool {
        self.sent.len() == self.acked.len()
    }

    fn begin(&mut self, cluster: &mut Cluster) {
        let (count, large) = (cluster.world.rng().between(1, 3), cluster.world.rng().chance(5));
        let value_bytes = if large { 20_000 } else { cluster.world.rng().between(8, 600) };
        let tag = ((self.id as u64) << 32) | self.sent.len() as u64;
        self.sent.push(batch(tag, count as usize, value_bytes as usize, (self.id, 0, self.next_sequence)));
        self.next_sequence += count as i32;
    }

    /// Hears, and sends what is due to whoever leads.
    fn work(&mut self, cluster: &mut Cluster) {
        if let Some((who, life, request, patience)) = self.asked {
            let heard = if cluster.lives[who] == life { cluster.produced(who, request) } else { None };
            match heard {
                Some(Ok(produced)) => {
                    self.acked.push(produced.base_offset);
                    self.asked = None;
                }
                Some(Err(
                    Refusal::NotLeader | Refusal::Busy | Refusal::NoSpace | Refusal::OutOfOrderSequence { .. },
                )) => self.asked = None,
                Some(Err(refusal)) => panic!("{refusal}"),
                None if patience == 0 || cluster.lives[who] != life || !cluster.is_running(who) => self.asked = None,
                None => self.asked = Some((who, life, request, patience - 1)),
            }
        }
        if self.asked.is_none()
            && !self.is_done()
            && let Some(who) = cluster.leader(self.to.shard)
        {
            let request = cluster.send(who, self.to, &self.sent[self.acked.len()]);
            self.asked = Some((who, cluster.lives[who], request, 400));
        }
    }
}

/// What one replica has seen committed no other may see otherwise, ever.
fn agree(cluster: &mut Cluster, routes: &[Route], known: &mut BTreeMap<Route, Vec<Committed>>) {
    for of in routes {
        let known = known.entry(*of).or_default();
        for who in cluster.running() {
            let has = cluster.committed(who, *of);
            let both = has.len().min(known.len());
            assert_eq!(has[..both], known[..both], "broker {who} has another {of:?}");
            if has.len() > known.len() {
                *known = has;
            }
        }
    }
}

fn fault(cluster: &mut Cluster) {
    let who = cluster.world.rng().between(0, BROKERS as u64 - 1) as usize;
    match cluster.world.rng().between(0, 9) {
        0..=2 if cluster.is_running(who) => cluster.crash_somehow(who),
        3 => {
            // leaders die more often than others: that is where entries could be lost
            if let Some(leader) = cluster.leader(route(1, 0).shard) {
                cluster.crash_somehow(leader);
            }
        }
        4 => cluster.net.borrow_mut().isolate(who),
        5 => {
            let other = (who + 1) % BROKERS;
            cluster.net.borrow_mut().cut.insert((who, other));
        }
        6 => {
            let mut net = cluster.net.borrow_mut();
            (net.loss_percent, net.double_percent, net.delay_us_max) = (10, 10, 5_000);
        }
        7 => cluster.disk(who).slow_down(Duration::from_millis(20)),
        8 => cluster.disk(who).hang(true),
        _ => cluster.net.borrow_mut().heal(),
    }
}

fn recover(cluster: &mut Cluster) {
    for who in 0..BROKERS {
        if !cluster.is_running(who) && cluster.world.rng().chance(40) {
            cluster.start(who);
        }
        if cluster.world.rng().chance(40) {
            cluster.disk(who).hang(false);
            cluster.disk(who).slow_down(Duration::ZERO);
        }
    }
    if cluster.world.rng().chance(40) {
        cluster.net.borrow_mut().heal();
    }
}

/// Lost if it fails: promises 1 to 4 of a cluster. Brokers die, disks hang, the network does what networks do; what was
/// acknowledged is there once, at its offset, in its producer's order, and the same on all replicas.
#[test]
fn idempotent_batches_are_there_once_on_every_replica_whatever_fails() {
    let (mut acked, mut terms) = (0, 0);
    for seed in seeds(0..50) {
        let _seed = Seed(seed);
        let routes = [route(1, 1), route(1, 2), route(2, 3)];
        // little is in memory: much of what is sent again comes from the disk
        let cache_bytes = if seed % 2 == 0 { 32 * 1024 } else { 4 * 1024 * 1024 };
        let shape = Shape { segment_bytes: 128 * 1024, segments_max: 400, cache_bytes, ..Shape::default() };
        let mut cluster = Cluster::new(seed, shape, &routes);
        let mut clients: Vec<_> = (0..6).map(|n| Client::new(n, routes[n as usize % 3])).collect();
        let mut known = BTreeMap::new();
        for step in 0..1_500 {
            for client in &mut clients {
                if client.is_done() && cluster.world.rng().chance(50) {
                    client.begin(&mut cluster);
                }
                client.work(&mut cluster);
            }
            let us = cluster.world.rng().between(100, 4_000);
            cluster.run_for(Duration::from_micros(us));
            if cluster.world.rng().chance(2) {
                fault(&mut cluster);
            }
            if cluster.world.rng().chance(2) {
                recover(&mut cluster);
            }
            if step % 50 == 0 {
                agree(&mut cluster, &routes, &mut known);
            }
        }
        cluster.heal();
        let mut rounds = 0;
        while clients.iter().any(|client| !client.is_done()) {
            clients.iter_mut().for_each(|client| client.work(&mut cluster));
            cluster.run_ms(2);
            rounds += 1;
            assert!(rounds < 10_000, "no progress after the faults ended");
        }
        same_everywhere(&mut cluster, &routes);
        agree(&mut cluster, &routes, &mut known);
        check(&mut cluster, &routes, &clients);
        assert!(cluster.boards.iter().all(|board| board.borrow().fatal.is_none()));
        acked += clients.iter().map(|client| client.acked.len()).sum::<usize>();
        terms += cluster.term(routes[0].shard).map_or(0, |term| term.0);
    }
    if seeds(0..50).end - seeds(0..50).start > 1 {
        assert!(acked > 5_000, "{acked} batches say little");
        assert!(terms > 150, "{terms} terms say little");
    }
}

fn check(cluster: &mut Cluster, routes: &[Route], clients: &[Client]) {
    for of in routes {
        let stored = cluster.contents(0, *of);
        let mut next = 0;
        for batch in &stored {
            assert_eq!(batch.base, next, "offsets are contiguous");
            next = batch.end();
        }
        assert!(stored.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch), "a leader epoch went back");
        let mut expected = 0;
        for client in clients.iter().filter(|client| client.to == *of) {
            let at = |rest: Bytes| stored.iter().filter(move |s| s.rest == rest).map(|s| Offset(s.base));
            for (batch, acked) in client.sent.iter().zip(&client.acked) {
                assert!(at(rest_of(batch)).eq([*acked]), "producer {}: once, at its offset", client.id);
            }
            assert!(client.acked.is_sorted(), "producer {}: in its order", client.id);
            expected += client.sent.len();
        }
        assert_eq!(stored.len(), expected, "somebody else wrote to {of:?}");
    }
}
