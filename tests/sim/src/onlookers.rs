//! Whoever wants to know how far a group is and asks the broker that it happens to know: consoles and lag monitors,
//! which keep a connection to a coordinator that may have been replaced.

use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::readers::RETRIABLE_GROUP;
use crate::wire::{Conn, OFFSET_FETCH, fetch_offset};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::FetchOffset;
use kafka_protocol::messages::OffsetFetchResponse;
use kafka_protocol::protocol::Decodable;
use std::time::Duration;

/// An answer that does not come within this time is not waited for.
const SILENCE_MAX: Duration = Duration::from_secs(6);

/// One connection to each broker, on which it asks in turn.
pub struct Onlooker {
    process: u32,
    group: String,
    partition: i32,
    conns: Vec<Option<(Conn, Option<Mono>)>>,
}

impl Onlooker {
    /// Of a group that commits offsets of this partition.
    pub fn new(process: u32, group: String, partition: i32, brokers: usize) -> Onlooker {
        Onlooker { process, group, partition, conns: (0..brokers).map(|_| None).collect() }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let n = cluster.pick(self.conns.len());
        let Some((mut conn, mut asked)) = self.conns[n].take() else {
            if cluster.chance(10) {
                self.conns[n] = Some((Conn::open(cluster, n), None));
            }
            return;
        };
        if !conn.is_open(cluster) || conn.is_late(cluster, SILENCE_MAX) {
            return cluster.world.reset(conn.id);
        }
        for (_, body) in conn.answers(cluster) {
            let invoked = asked.take().expect("an answer is to what was asked");
            self.answered(body, invoked, cluster.now(), ledger);
        }
        if asked.is_none() && cluster.chance(10) {
            conn.send(cluster, OFFSET_FETCH, &fetch_offset(&self.group, TOPIC, self.partition));
            asked = Some(cluster.now());
        }
        self.conns[n] = Some((conn, asked));
    }

    fn answered(&self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetFetchResponse::decode(&mut body, OFFSET_FETCH).unwrap();
        if answer.error_code != 0 {
            return ledger.expect_one_of(&RETRIABLE_GROUP, answer.error_code, "an onlooker");
        }
        let told = &answer.topics[0].partitions[0];
        if told.error_code != 0 {
            return ledger.expect_one_of(&RETRIABLE_GROUP, told.error_code, "an onlooker");
        }
        let (group, partition, offset) = (self.group.clone(), partition(self.partition), told.committed_offset);
        ledger.add(self.process, invoked, now, Op::FetchOffset(FetchOffset { group, partition, offset }));
    }

    pub fn close(&mut self, cluster: &mut Cluster) {
        for (conn, _) in self.conns.iter_mut().filter_map(Option::take) {
            cluster.world.reset(conn.id);
        }
    }
}
