//! A consumer that asks where leader epochs end, as those do that come back to a partition whose leader may have
//! changed: was what it has read cut off meanwhile?

use crate::batches::epochs;
use crate::kit::SimBroker;
use crate::ledger::{Ledger, partition};
use crate::wire::{Conn, EARLIEST, FETCH, LIST_OFFSETS, connected, fetch, fetched, list_offsets, listed};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{EpochEnd, EpochStart};
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::messages::{
    FetchResponse, ListOffsetsResponse, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, TopicName,
};
use kafka_protocol::protocol::{Decodable, StrBytes};

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
    conn: Option<Conn>,
}

impl EpochReader {
    pub fn new(process: u32, partition: i32) -> EpochReader {
        EpochReader { process, partition, next: 0, astray: false, known: vec![], asked: None, conn: None }
    }

    pub fn step(&mut self, broker: &mut SimBroker, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = connected(self.conn.take(), broker, ledger.calm) else { return };
        for (_, body) in conn.answers(broker) {
            match self.asked.take() {
                Some(Asked::Records) => self.found(body, broker.now(), ledger),
                Some(Asked::Earliest) => self.begins(body, ledger),
                Some(Asked::End { epoch, known_to, invoked }) => {
                    self.ends(body, (epoch, known_to), (invoked, broker.now()), ledger);
                }
                None => panic!("epoch reader {} got an answer that it did not ask for", self.process),
            }
        }
        if is_new {
            self.asked = None;
        }
        if self.asked.is_none() {
            self.ask(&mut conn, is_new, broker);
        }
        self.conn = Some(conn);
    }

    fn ask(&mut self, conn: &mut Conn, is_new: bool, broker: &mut SimBroker) {
        if self.astray {
            conn.send(broker, LIST_OFFSETS, &list_offsets(self.partition, EARLIEST));
            self.asked = Some(Asked::Earliest);
        } else if !self.known.is_empty() && (is_new || broker.chance(10)) {
            let (epoch, known_to) = self.known[broker.pick(self.known.len())];
            conn.send(broker, OFFSET_FOR_LEADER_EPOCH, &epoch_end(self.partition, epoch));
            self.asked = Some(Asked::End { epoch, known_to, invoked: broker.now() });
        } else {
            conn.send(broker, FETCH, &fetch(self.partition, self.next, 200, 10_000));
            self.asked = Some(Asked::Records);
        }
    }

    fn found(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let found = fetched(FetchResponse::decode(&mut body, FETCH).unwrap());
        match found.error_code {
            0 => {}
            OFFSET_OUT_OF_RANGE => return self.astray = true,
            code => return ledger.expect_one_of(&RETRIABLE, code, "an epoch reader"),
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
            return ledger.expect_one_of(&RETRIABLE, code, "an epoch reader");
        }
        (self.next, self.astray) = (offset, false);
    }

    fn ends(&mut self, mut body: Bytes, (epoch, known_to): (i32, i64), when: (Mono, Mono), ledger: &mut Ledger) {
        let answer = OffsetForLeaderEpochResponse::decode(&mut body, OFFSET_FOR_LEADER_EPOCH).unwrap();
        let told = &answer.topics[0].partitions[0];
        if told.error_code != 0 {
            return ledger.expect_one_of(&RETRIABLE, told.error_code, "an epoch reader");
        }
        if told.end_offset < 0 {
            let unknown = format!("epoch {epoch} of partition {} was read and is not known", self.partition);
            return ledger.unexpected.push(unknown);
        }
        let (partition, end) = (partition(self.partition), told.end_offset);
        ledger.add(self.process, when.0, when.1, Op::EpochEnd(EpochEnd { partition, epoch, known_to, end }));
    }

    pub fn conn_mut(&mut self) -> &mut Option<Conn> {
        &mut self.conn
    }
}

fn epoch_end(partition: i32, epoch: i32) -> OffsetForLeaderEpochRequest {
    let partition = OffsetForLeaderPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(-1)
        .with_leader_epoch(epoch);
    let name = TopicName(StrBytes::from_static_str(crate::ledger::TOPIC));
    let topic = OffsetForLeaderTopic::default().with_topic(name).with_partitions(vec![partition]);
    OffsetForLeaderEpochRequest::default().with_replica_id((-1).into()).with_topics(vec![topic])
}
