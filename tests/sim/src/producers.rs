//! The clients that write: idempotent producers with five batches in flight, and plain ones.

use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::Reach;
use crate::wire::{Conn, INIT_PRODUCER_ID, PRODUCE, batch, init_producer_id, produce, produced};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{Produce, ProduceOutcome};
use kafka_protocol::messages::{InitProducerIdResponse, ProduceResponse};
use kafka_protocol::protocol::Decodable;
use std::collections::VecDeque;
use std::time::Duration;

const IN_FLIGHT_MAX: usize = 5;
/// What a producer sends again after: no such partition yet, no leader yet, timed out, busy, out of order behind one
/// that was refused, over budget or no space.
const RETRIABLE: [i16; 7] = [3, 5, 6, 7, 19, 45, 56];
/// Of these, what is said before anything is done.
const DONE_NOTHING: [i16; 2] = [3, 19];
/// Of these, what says that another may lead the partition by now.
const LED_ELSEWHERE: [i16; 3] = [3, 5, 6];
const RETRIABLE_ID: [i16; 5] = [7, 14, 15, 16, 56];

/// A batch without an answer.
struct Unacked {
    invoked: Mono,
    first_number: u64,
    values: Vec<u64>,
    bytes: Bytes,
    /// Its request on the current connection.
    asked: Option<i32>,
}

/// Retries on a new connection with the same sequences, in order: as clients do.
pub struct Idempotent {
    process: u32,
    partition: i32,
    id: Option<(i64, i16)>,
    next_sequence: i32,
    next_number: u64,
    unacked: VecDeque<Unacked>,
    /// Something was refused: nothing new before everything is answered and sent again.
    retrying: bool,
    /// It can not be reached, and reaches nobody, until then: what it sends again afterwards is old.
    away_until: Option<Mono>,
    /// With this code, the last time.
    refused: i16,
    reach: Reach,
    /// One batch more after the last fault, to see whether it gets through.
    proof_sent: bool,
}

impl Idempotent {
    pub fn new(process: u32, partition: i32) -> Idempotent {
        Idempotent {
            process,
            partition,
            id: None,
            next_sequence: 0,
            next_number: 0,
            unacked: VecDeque::new(),
            retrying: false,
            away_until: None,
            refused: 0,
            reach: Reach::leader_of(partition),
            proof_sent: false,
        }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        if !ledger.calm && self.is_away(cluster) {
            return;
        }
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        self.talk(&mut conn, is_new, cluster, ledger);
        self.reach.keep(conn);
    }

    /// Who has lost its connection may stay away for some time.
    fn is_away(&mut self, cluster: &mut Cluster) -> bool {
        let now = cluster.now();
        if self.away_until.is_none_or(|until| until <= now) && self.reach.conn().is_none() && cluster.chance(3) {
            self.away_until = Some(now + Duration::from_millis(200 + cluster.pick(4_000) as u64));
        }
        self.away_until.is_some_and(|until| now < until)
    }

    fn talk(&mut self, conn: &mut Conn, is_new: bool, cluster: &mut Cluster, ledger: &mut Ledger) {
        if is_new {
            self.unacked.iter_mut().for_each(|batch| batch.asked = None);
            self.retrying = true;
        }
        for (correlation, body) in conn.answers(cluster) {
            match self.id {
                None => self.take_id(body, ledger),
                Some(_) => self.answered(correlation, body, cluster.now(), ledger),
            }
        }
        let Some(id) = self.id else {
            if conn.owed() == 0 {
                conn.send(cluster, INIT_PRODUCER_ID, &init_producer_id());
            }
            return;
        };
        if self.reach.is_done_here(cluster) {
            return;
        }
        if self.retrying && conn.owed() == 0 {
            for batch in &mut self.unacked {
                batch.asked = Some(conn.send(cluster, PRODUCE, &produce(TOPIC, self.partition, &batch.bytes)));
            }
            self.retrying = false;
        }
        let is_done = ledger.quiet || (ledger.calm && self.proof_sent);
        let may = !self.retrying && self.unacked.len() < IN_FLIGHT_MAX && !is_done;
        if may && cluster.chance(60) {
            self.proof_sent = ledger.calm;
            self.send_new(conn, id, cluster, ledger);
        }
    }

    fn take_id(&mut self, mut body: Bytes, ledger: &mut Ledger) {
        let answer = InitProducerIdResponse::decode(&mut body, INIT_PRODUCER_ID).unwrap();
        match answer.error_code {
            0 => self.id = Some((answer.producer_id.0, answer.producer_epoch)),
            code => ledger.expect_one_of(&RETRIABLE_ID, code, "a producer that asks for an id"),
        }
    }

    fn answered(&mut self, correlation: i32, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let answer = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
        let at = self.unacked.iter().position(|batch| batch.asked == Some(correlation)).unwrap();
        match answer.error_code {
            0 => {
                let batch = self.unacked.remove(at).unwrap();
                self.record(&batch, now, ProduceOutcome::Acked { base_offset: answer.base_offset }, ledger);
            }
            code => {
                ledger.expect_one_of(&RETRIABLE, code, &self.name());
                self.unacked[at].asked = None;
                self.retrying = true;
                self.refused = code;
                if LED_ELSEWHERE.contains(&code) {
                    self.reach.is_told_off();
                }
            }
        }
    }

    fn send_new(&mut self, conn: &mut Conn, id: (i64, i16), cluster: &mut Cluster, ledger: &mut Ledger) {
        let values = ledger.new_values(1 + cluster.pick(3));
        let bytes = batch(&values, cluster.pick(200), (id.0, id.1, self.next_sequence));
        let (invoked, first_number) = (cluster.now(), self.next_number);
        self.next_number += values.len() as u64;
        self.next_sequence += values.len() as i32;
        let asked = Some(conn.send(cluster, PRODUCE, &produce(TOPIC, self.partition, &bytes)));
        self.unacked.push_back(Unacked { invoked, first_number, values, bytes, asked });
    }

    fn record(&self, batch: &Unacked, now: Mono, outcome: ProduceOutcome, ledger: &mut Ledger) {
        let produce = Produce {
            partition: partition(self.partition),
            producer: self.process,
            idempotent: true,
            first_number: batch.first_number,
            values: batch.values.clone(),
            outcome,
        };
        ledger.add(self.process, batch.invoked, now, Op::Produce(produce));
    }

    /// What is without an answer stays so.
    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        for batch in std::mem::take(&mut self.unacked) {
            self.record(&batch, now, ProduceOutcome::Info, ledger);
        }
    }

    pub fn is_done(&self) -> bool {
        self.proof_sent && self.unacked.is_empty()
    }

    pub fn name(&self) -> String {
        let Idempotent { process, partition, refused, .. } = self;
        let (unacked, reach) = (self.unacked.len(), &self.reach);
        format!("idempotent producer {process} of partition {partition} ({unacked} unacked, code {refused}, {reach})")
    }

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }
}

/// One batch at a time, never sent twice.
pub struct Plain {
    process: u32,
    partition: i32,
    next_number: u64,
    asked: Option<Asked>,
    reach: Reach,
    /// Something was acknowledged after the last fault.
    proven: bool,
}

struct Asked {
    invoked: Mono,
    first_number: u64,
    values: Vec<u64>,
}

impl Plain {
    pub fn new(process: u32, partition: i32) -> Plain {
        Plain { process, partition, next_number: 0, asked: None, reach: Reach::leader_of(partition), proven: false }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.finish(cluster.now(), ledger);
        }
        for (_, body) in conn.answers(cluster) {
            self.answered(body, cluster.now(), ledger);
        }
        let is_done = ledger.quiet || (ledger.calm && self.proven);
        let may = self.asked.is_none() && !self.reach.is_done_here(cluster) && !is_done;
        if may && cluster.chance(40) {
            let values = ledger.new_values(1 + cluster.pick(3));
            let (invoked, first_number) = (cluster.now(), self.next_number);
            self.next_number += values.len() as u64;
            let bytes = batch(&values, cluster.pick(5_000), (-1, -1, -1));
            conn.send(cluster, PRODUCE, &produce(TOPIC, self.partition, &bytes));
            self.asked = Some(Asked { invoked, first_number, values });
        }
        self.reach.keep(conn);
    }

    fn answered(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let answer = produced(ProduceResponse::decode(&mut body, PRODUCE).unwrap());
        let outcome = match answer.error_code {
            0 => ProduceOutcome::Acked { base_offset: answer.base_offset },
            code if DONE_NOTHING.contains(&code) => ProduceOutcome::Failed,
            code => {
                ledger.expect_one_of(&RETRIABLE, code, &self.name());
                ProduceOutcome::Info
            }
        };
        if LED_ELSEWHERE.contains(&answer.error_code) {
            self.reach.is_told_off();
        }
        self.proven |= ledger.calm && answer.error_code == 0;
        self.record(now, outcome, ledger);
    }

    fn record(&mut self, now: Mono, outcome: ProduceOutcome, ledger: &mut Ledger) {
        let Some(Asked { invoked, first_number, values }) = self.asked.take() else { return };
        let produce = Produce {
            partition: partition(self.partition),
            producer: self.process,
            idempotent: false,
            first_number,
            values,
            outcome,
        };
        ledger.add(self.process, invoked, now, Op::Produce(produce));
    }

    /// What is without an answer stays so.
    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        self.record(now, ProduceOutcome::Info, ledger);
    }

    pub fn is_done(&self) -> bool {
        self.proven && self.asked.is_none()
    }

    pub fn name(&self) -> String {
        format!("plain producer {} of partition {}", self.process, self.partition)
    }

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }
}
