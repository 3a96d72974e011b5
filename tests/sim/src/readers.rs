//! The clients that read, and those that move what is read: readers, a group that commits, and a trimmer.

use crate::kit::SimBroker;
use crate::ledger::{Ledger, partition};
use crate::wire::{
    Conn, DELETE_RECORDS, EARLIEST, FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, commit_offset, connected,
    delete_records, fetch, fetch_offset, fetched, list_offsets, listed, records,
};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{CommitOffset, FetchOffset, ListOffset, Outcome, Read, Trim, Which};
use kafka_protocol::messages::{
    DeleteRecordsResponse, FetchResponse, ListOffsetsResponse, OffsetCommitResponse, OffsetFetchResponse,
};
use kafka_protocol::protocol::Decodable;

const OFFSET_OUT_OF_RANGE: i16 = 1;
const RETRIABLE: [i16; 5] = [3, 5, 6, 7, 56];
/// Of the group's coordinator: loading, not there yet, timed out.
const RETRIABLE_GROUP: [i16; 7] = [3, 5, 7, 14, 15, 16, 56];

/// What a reader waits for.
enum Asked {
    Records { invoked: Mono },
    Earliest { invoked: Mono },
}

/// Waits for what comes, and goes on behind it.
pub struct Reader {
    process: u32,
    partition: i32,
    next: i64,
    /// What is at `next` is gone: it has to ask where the log begins.
    astray: bool,
    asked: Option<Asked>,
    conn: Option<Conn>,
    /// It takes nothing off its connection until then.
    paused_until: Option<Mono>,
    /// When it last looked at its connection. An answer that it finds has come since.
    looked: Mono,
    /// It has not looked at all times since it asked: when its answer came is not known.
    looked_away: bool,
    /// It is done when it has read all below.
    target: Option<i64>,
}

impl Reader {
    pub fn new(process: u32, partition: i32) -> Reader {
        Reader {
            process,
            partition,
            next: 0,
            astray: false,
            asked: None,
            conn: None,
            paused_until: None,
            looked: Mono(0),
            looked_away: false,
            target: None,
        }
    }

    pub fn step(&mut self, broker: &mut SimBroker, ledger: &mut Ledger) {
        match self.paused_until {
            Some(until) if broker.now() < until => return,
            Some(_) => self.resume(broker),
            None => {}
        }
        let Some((mut conn, is_new)) = connected(self.conn.take(), broker, ledger.calm) else { return };
        if is_new {
            self.asked = None;
            // a consumer that starts again from what it committed
            if !ledger.calm && broker.chance(20) {
                self.next = (self.next - broker.pick(200) as i64).max(0);
            }
        }
        for (_, body) in conn.answers(broker) {
            match self.asked.take() {
                Some(Asked::Records { invoked }) => self.found(body, invoked, broker.now(), ledger),
                Some(Asked::Earliest { invoked }) => self.begins(body, invoked, broker.now(), ledger),
                None => panic!("{} got an answer that it did not ask for", self.name()),
            }
        }
        self.looked = broker.now();
        if self.asked.is_none() {
            self.ask(&mut conn, broker);
        }
        self.conn = Some(conn);
    }

    fn ask(&mut self, conn: &mut Conn, broker: &mut SimBroker) {
        let invoked = broker.now();
        self.looked_away = false;
        if self.astray {
            conn.send(broker, LIST_OFFSETS, &list_offsets(self.partition, EARLIEST));
            self.asked = Some(Asked::Earliest { invoked });
        } else {
            let wait_ms = broker.pick(500) as i32;
            let bytes_max = if broker.chance(20) { 1 } else { 10_000 };
            conn.send(broker, FETCH, &fetch(self.partition, self.next, wait_ms, bytes_max));
            self.asked = Some(Asked::Records { invoked });
        }
    }

    fn found(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let found = fetched(FetchResponse::decode(&mut body, FETCH).unwrap());
        match found.error_code {
            0 => {}
            OFFSET_OUT_OF_RANGE => {
                self.astray = true;
                return;
            }
            code => return ledger.expect_one_of(&RETRIABLE, code, &self.name()),
        }
        let records = records(&found.records.unwrap_or_default(), self.next);
        let from_offset = self.next;
        if records.is_empty() && !self.looked_away {
            ledger.was_empty(self.partition, from_offset, self.looked, &self.name());
        }
        if let Some((last, _)) = records.last() {
            self.next = last + 1;
        }
        let read_to = &mut ledger.read_to[self.partition as usize];
        *read_to = self.next.max(*read_to);
        let read = Read {
            partition: partition(self.partition),
            from_offset,
            records,
            high_watermark: found.high_watermark,
            log_start: found.log_start_offset,
        };
        ledger.add(self.process, invoked, now, Op::Read(read));
    }

    fn begins(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let (code, offset) = listed(ListOffsetsResponse::decode(&mut body, LIST_OFFSETS).unwrap());
        if code != 0 {
            return ledger.expect_one_of(&RETRIABLE, code, &self.name());
        }
        if offset <= self.next {
            let beyond = format!("{} is told that its offset is out of range; the log begins at {offset}", self.name());
            ledger.unexpected.push(beyond);
        }
        (self.next, self.astray) = (offset, false);
        let list = ListOffset { partition: partition(self.partition), which: Which::Earliest, offset };
        ledger.add(self.process, invoked, now, Op::ListOffset(list));
    }

    /// Takes nothing until then: answers pile up on the way, and in the broker.
    pub fn pause(&mut self, until: Mono, broker: &mut SimBroker) {
        if let Some(conn) = &self.conn {
            broker.world.set_reading(conn.id, false);
            self.paused_until = Some(until);
            self.looked_away = true;
        }
    }

    pub fn resume(&mut self, broker: &mut SimBroker) {
        if let Some(conn) = &self.conn {
            broker.world.set_reading(conn.id, true);
        }
        self.paused_until = None;
    }

    pub fn must_reach(&mut self, offset: i64) {
        self.target = Some(offset);
    }

    pub fn is_done(&self) -> bool {
        self.target.is_some_and(|target| self.next >= target)
    }

    pub fn partition(&self) -> i32 {
        self.partition
    }

    pub fn name(&self) -> String {
        format!("reader {} of partition {} (at {}, to {:?})", self.process, self.partition, self.next, self.target)
    }

    pub fn conn_mut(&mut self) -> &mut Option<Conn> {
        &mut self.conn
    }
}

/// What a group waits for.
enum AskedOfGroup {
    Commit { offset: i64, invoked: Mono },
    Fetch { invoked: Mono },
}

/// A consumer that commits under a group's name without being its member, as those with assigned partitions do.
pub struct Committer {
    process: u32,
    group: String,
    partition: i32,
    /// How often it commits, and does not ask what it committed.
    commits_percent: u64,
    next: i64,
    asked: Option<AskedOfGroup>,
    conn: Option<Conn>,
    /// After the last fault: something was committed, and after that something was fetched.
    proven: (bool, bool),
}

impl Committer {
    pub fn new(process: u32, partition: i32, commits_percent: u64) -> Committer {
        let (group, proven) = (format!("group-{process}"), (false, false));
        Committer { process, group, partition, commits_percent, next: 0, asked: None, conn: None, proven }
    }

    pub fn step(&mut self, broker: &mut SimBroker, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = connected(self.conn.take(), broker, ledger.calm) else { return };
        if is_new {
            self.finish(broker.now(), ledger);
        }
        for (_, body) in conn.answers(broker) {
            match self.asked.take() {
                Some(AskedOfGroup::Commit { offset, invoked }) => {
                    self.committed(body, offset, invoked, broker.now(), ledger);
                }
                Some(AskedOfGroup::Fetch { invoked }) => self.fetched(body, invoked, broker.now(), ledger),
                None => panic!("{} got an answer that it did not ask for", self.name()),
            }
        }
        if self.asked.is_none() && !self.is_done() && broker.chance(20) {
            let invoked = broker.now();
            let commits = if ledger.calm { !self.proven.0 } else { broker.chance(self.commits_percent) };
            if commits {
                self.next += 1 + broker.pick(10) as i64;
                conn.send(broker, OFFSET_COMMIT, &commit_offset(&self.group, self.partition, self.next));
                self.asked = Some(AskedOfGroup::Commit { offset: self.next, invoked });
            } else {
                conn.send(broker, OFFSET_FETCH, &fetch_offset(&self.group, self.partition));
                self.asked = Some(AskedOfGroup::Fetch { invoked });
            }
        }
        self.conn = Some(conn);
    }

    fn committed(&mut self, mut body: Bytes, offset: i64, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetCommitResponse::decode(&mut body, OFFSET_COMMIT).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        // what was refused may have been proposed before: nobody knows
        let outcome = if code == 0 { Outcome::Acked } else { Outcome::Info };
        if code != 0 {
            ledger.expect_one_of(&RETRIABLE_GROUP, code, &self.name());
        }
        self.proven.0 |= ledger.calm && code == 0;
        self.record(offset, invoked, now, outcome, ledger);
    }

    fn record(&self, offset: i64, invoked: Mono, now: Mono, outcome: Outcome, ledger: &mut Ledger) {
        let (group, partition) = (self.group.clone(), partition(self.partition));
        ledger.add(self.process, invoked, now, Op::CommitOffset(CommitOffset { group, partition, offset, outcome }));
    }

    fn fetched(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetFetchResponse::decode(&mut body, OFFSET_FETCH).unwrap();
        let code = match answer.error_code {
            0 => answer.topics[0].partitions[0].error_code,
            code => code,
        };
        if code != 0 {
            return ledger.expect_one_of(&RETRIABLE_GROUP, code, &self.name());
        }
        self.proven.1 |= self.proven.0;
        let offset = answer.topics[0].partitions[0].committed_offset;
        let (group, partition) = (self.group.clone(), partition(self.partition));
        ledger.add(self.process, invoked, now, Op::FetchOffset(FetchOffset { group, partition, offset }));
    }

    /// What is without an answer stays so.
    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        if let Some(AskedOfGroup::Commit { offset, invoked }) = self.asked.take() {
            self.record(offset, invoked, now, Outcome::Info, ledger);
        }
    }

    pub fn is_done(&self) -> bool {
        self.proven == (true, true)
    }

    pub fn name(&self) -> String {
        format!("committer {} of partition {} (at {})", self.process, self.partition, self.next)
    }

    pub fn conn_mut(&mut self) -> &mut Option<Conn> {
        &mut self.conn
    }
}

/// Deletes what has been read, now and then; when the log is small or full, often.
pub struct Trimmer {
    process: u32,
    tight: bool,
    asked: Option<(i32, i64, Mono)>,
    conn: Option<Conn>,
}

impl Trimmer {
    pub fn new(process: u32, tight: bool) -> Trimmer {
        Trimmer { process, tight, asked: None, conn: None }
    }

    pub fn step(&mut self, broker: &mut SimBroker, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = connected(self.conn.take(), broker, ledger.calm) else { return };
        if is_new {
            self.finish(broker.now(), ledger);
        }
        for (_, body) in conn.answers(broker) {
            self.answered(body, broker.now(), ledger);
        }
        let full = broker.has_no_space();
        let wanted = if full {
            20
        } else if self.tight && !ledger.calm {
            3
        } else {
            0
        };
        let now_and_then = !ledger.calm && broker.pick(1_000) < 2;
        if self.asked.is_none() && (now_and_then || broker.chance(wanted)) {
            self.ask(&mut conn, full, broker, ledger);
        }
        self.conn = Some(conn);
    }

    fn ask(&mut self, conn: &mut Conn, full: bool, broker: &mut SimBroker, ledger: &Ledger) {
        let number = broker.pick(ledger.read_to.len());
        let read_to = ledger.read_to[number];
        // some of what has been read stays, to be looked at in the end
        let offset = if full { read_to } else { broker.pick(read_to as usize + 1) as i64 };
        let invoked = broker.now();
        conn.send(broker, DELETE_RECORDS, &delete_records(number as i32, offset));
        self.asked = Some((number as i32, offset, invoked));
    }

    fn answered(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let answer = DeleteRecordsResponse::decode(&mut body, DELETE_RECORDS).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        // what was refused may have been proposed before: nobody knows
        let outcome = if code == 0 { Outcome::Acked } else { Outcome::Info };
        if code != 0 {
            ledger.expect_one_of(&RETRIABLE, code, "the trimmer");
        }
        self.record(now, outcome, ledger);
    }

    fn record(&mut self, now: Mono, outcome: Outcome, ledger: &mut Ledger) {
        let Some((number, offset, invoked)) = self.asked.take() else { return };
        let trim = Trim { partition: partition(number), offset, outcome };
        ledger.add(self.process, invoked, now, Op::Trim(trim));
    }

    /// What is without an answer stays so.
    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        self.record(now, Outcome::Info, ledger);
    }

    pub fn conn_mut(&mut self) -> &mut Option<Conn> {
        &mut self.conn
    }
}
