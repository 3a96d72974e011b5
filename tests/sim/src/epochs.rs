//! A consumer that asks where leader epochs end, as those do that come back to a partition whose leader may have
//! changed: was what it has read cut off meanwhile?

use crate::batches::epochs;
use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::Reach;
use crate::readers::{LED_ELSEWHERE, RETRIABLE_EPOCH};
use crate::wire::{Conn, EARLIEST, FETCH, LIST_OFFSETS, fetch, fetched, list_offsets, listed, name};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{EpochEnd, EpochStart};
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::messages::{
    FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
};
use kafka_protocol::protocol::Decodable;

const OFFSET_FOR_LEADER_EPOCH: i16 = 4;
const OFFSET_OUT_OF_RANGE: i16 = 1;
const RETRIABLE: [i16; 5] = [3, 5, 6, 7, 56];
/// Epochs that it remembers: it asks about one of these.
const KNOWN_MAX: usize = 8;

enum Asked {
    Records,
    Earliest,
    End { epoch: i32, known_to: i64, invoked: Mono },
}

pub struct EpochReader {
    process: u32,
    partition: i32,
    next: i64,
    astray: bool,
    /// Epochs that it has read, and up to where, oldest first.
    known: Vec<(i32, i64)>,
    asked: Option<Asked>,
    reach: Reach,
}

impl EpochReader {
    pub fn new(process: u32, partition: i32) -> EpochReader {
        let reach = Reach::leader_of(partition);
        EpochReader { process, partition, next: 0, astray: false, known: vec![], asked: None, reach }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        for (_, body) in conn.answers(cluster) {
            match self.asked.take() {
                Some(Asked::Records) => self.found(body, cluster.now(), ledger),
                Some(Asked::Earliest) => self.begins(body, ledger),
                Some(Asked::End { epoch, known_to, invoked }) => {
                    self.ends(body, (epoch, known_to), (invoked, cluster.now()), ledger);
                }
                None => panic!("epoch reader {} got an answer that it did not ask for", self.process),
            }
        }
        if is_new {
            self.asked = None;
        }
        if self.asked.is_none() && !self.reach.is_done_here(cluster) {
            self.ask(&mut conn, is_new, cluster);
        }
        self.reach.keep(conn);
    }

    fn ask(&mut self, conn: &mut Conn, is_new: bool, cluster: &mut Cluster) {
        let at = (self.partition, self.reach.epoch());
        if self.astray {
            conn.send(cluster, LIST_OFFSETS, &list_offsets(TOPIC, at, EARLIEST));
            self.asked = Some(Asked::Earliest);
        } else if !self.known.is_empty() && (is_new || cluster.chance(10)) {
            let (epoch, known_to) = self.known[cluster.pick(self.known.len())];
            conn.send(cluster, OFFSET_FOR_LEADER_EPOCH, &epoch_end(at, epoch));
            self.asked = Some(Asked::End { epoch, known_to, invoked: cluster.now() });
        } else {
            conn.send(cluster, FETCH, &fetch(TOPIC, at, self.next, 200, 10_000));
            self.asked = Some(Asked::Records);
        }
    }

    fn found(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let found = fetched(FetchResponse::decode(&mut body, FETCH).unwrap());
        match found.error_code {
            0 => {}
            OFFSET_OUT_OF_RANGE => return self.astray = true,
            code => return self.refused(code, ledger),
        }
        for (base, epoch, end) in epochs(&found.records.unwrap_or_default()) {
            match self.known.last_mut() {
                Some((last, known_to)) if *last == epoch => *known_to = end,
                _ => {
                    self.known.push((epoch, end));
                    let start = EpochStart { partition: partition(self.partition), epoch, offset: base };
                    ledger.add(self.process, now, now, Op::EpochStart(start));
                }
            }
            self.next = end;
        }
        let surplus = self.known.len().saturating_sub(KNOWN_MAX);
        self.known.drain(..surplus);
    }

    fn begins(&mut self, mut body: Bytes, ledger: &mut Ledger) {
        let (code, offset) = listed(ListOffsetsResponse::decode(&mut body, LIST_OFFSETS).unwrap());
        if code != 0 {
            return self.refused(code, ledger);
        }
        (self.next, self.astray) = (offset, false);
    }

    fn ends(&mut self, mut body: Bytes, (epoch, known_to): (i32, i64), when: (Mono, Mono), ledger: &mut Ledger) {
        let answer = OffsetForLeaderEpochResponse::decode(&mut body, OFFSET_FOR_LEADER_EPOCH).unwrap();
        let told = &answer.topics[0].partitions[0];
        if told.error_code != 0 {
            return self.refused(told.error_code, ledger);
        }
        if told.end_offset < 0 {
            let unknown = format!("epoch {epoch} of partition {} was read and is not known", self.partition);
            return ledger.unexpected.push(unknown);
        }
        let (partition, end) = (partition(self.partition), told.end_offset);
        ledger.add(self.process, when.0, when.1, Op::EpochEnd(EpochEnd { partition, epoch, known_to, end }));
    }

    fn refused(&mut self, code: i16, ledger: &mut Ledger) {
        let expected: &[i16] = if self.reach.epoch() < 0 { &RETRIABLE } else { &RETRIABLE_EPOCH };
        ledger.expect_one_of(expected, code, "an epoch reader");
        if LED_ELSEWHERE.contains(&code) {
            self.reach.is_told_off();
        }
    }

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }
}

fn epoch_end(at: (i32, i32), epoch: i32) -> OffsetForLeaderEpochRequest {
    let partition = OffsetForLeaderPartition::default()
        .with_partition(at.0)
        .with_current_leader_epoch(at.1)
        .with_leader_epoch(epoch);
    let topic = OffsetForLeaderTopic::default().with_topic(name(TOPIC)).with_partitions(vec![partition]);
    OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(vec![topic])
}
