//! The clients that read, and those that move what is read: readers, a group that commits, and a trimmer.

use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::Reach;
use crate::wire::{
    Conn, DELETE_RECORDS, EARLIEST, FETCH, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, commit_offset, delete_records,
    fetch, fetch_offset, fetched, list_offsets, listed, records,
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
/// Where leaders change, the epoch that a client knows may be an old one, or newer than the broker's.
pub const RETRIABLE_EPOCH: [i16; 7] = [3, 5, 6, 7, 56, 74, 75];
/// Of these, what says that another may lead the partition by now.
pub const LED_ELSEWHERE: [i16; 5] = [3, 5, 6, 74, 75];
/// Of the group's coordinator: loading, not there yet, timed out.
pub const RETRIABLE_GROUP: [i16; 7] = [3, 5, 7, 14, 15, 16, 56];
/// Of these, what says that another may coordinate it by now.
pub const COORDINATED_ELSEWHERE: [i16; 2] = [15, 16];

/// What a reader waits for.
enum Asked {
    Records {
        invoked: Mono,
    },
    Earliest {
        invoked: Mono,
    },
    /// It wants to know no more.
    Dropped,
}

/// Waits for what comes, and goes on behind it.
pub struct Reader {
    process: u32,
    partition: i32,
    next: i64,
    /// What is at `next` is gone: it has to ask where the log begins.
    astray: bool,
    asked: Option<Asked>,
    reach: Reach,
    /// It takes nothing off its connection until then.
    paused_until: Option<Mono>,
    /// When it last looked at its connection. An answer that it finds has come since.
    looked: Mono,
    /// It has not looked at all times since it asked: when its answer came is not known.
    looked_away: bool,
    /// It is done when it has read all below.
    target: Option<i64>,
    /// The last code that it was refused with.
    refused: i16,
    /// Fetches that were answered, and not refused.
    fetches: u64,
}

impl Reader {
    pub fn new(process: u32, partition: i32) -> Reader {
        Reader {
            process,
            partition,
            next: 0,
            astray: false,
            asked: None,
            reach: Reach::leader_of(partition),
            paused_until: None,
            looked: Mono(0),
            looked_away: false,
            target: None,
            refused: 0,
            fetches: 0,
        }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        match self.paused_until {
            Some(until) if cluster.now() < until => return,
            Some(_) => self.resume(cluster),
            None => {}
        }
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.asked = None;
            // a consumer that starts again from what it committed
            if !ledger.calm && cluster.chance(20) {
                self.next = (self.next - cluster.pick(200) as i64).max(0);
            }
        }
        for (_, body) in conn.answers(cluster) {
            match self.asked.take() {
                Some(Asked::Records { invoked }) => self.found(body, invoked, cluster.now(), ledger),
                Some(Asked::Earliest { invoked }) => self.begins(body, invoked, cluster.now(), ledger),
                Some(Asked::Dropped) => {}
                None => panic!("{} got an answer that it did not ask for", self.name()),
            }
        }
        self.looked = cluster.now();
        if self.asked.is_none() && !self.reach.is_done_here(cluster) {
            self.ask(&mut conn, cluster);
        }
        self.reach.keep(conn);
    }

    fn ask(&mut self, conn: &mut Conn, cluster: &mut Cluster) {
        let invoked = cluster.now();
        self.looked_away = false;
        let at = (self.partition, self.reach.epoch());
        if self.astray {
            conn.send(cluster, LIST_OFFSETS, &list_offsets(TOPIC, at, EARLIEST));
            self.asked = Some(Asked::Earliest { invoked });
        } else {
            let wait_ms = cluster.pick(500) as i32;
            let bytes_max = if cluster.chance(20) { 1 } else { 10_000 };
            conn.send(cluster, FETCH, &fetch(TOPIC, at, self.next, wait_ms, bytes_max));
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
            code => return self.refused(code, ledger),
        }
        self.fetches += 1;
        let records = records(&found.records.unwrap_or_default(), self.next);
        let from_offset = self.next;
        if records.is_empty() && !self.looked_away {
            ledger.was_empty(self.partition, from_offset, invoked, self.looked, &self.name());
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
            return self.refused(code, ledger);
        }
        if offset <= self.next {
            let beyond = format!("{} is told that its offset is out of range; the log begins at {offset}", self.name());
            ledger.beyond.push(beyond);
        }
        (self.next, self.astray) = (offset, false);
        let list = ListOffset { partition: partition(self.partition), which: Which::Earliest, offset };
        ledger.add(self.process, invoked, now, Op::ListOffset(list));
    }

    fn refused(&mut self, code: i16, ledger: &mut Ledger) {
        self.refused = code;
        if self.reach.epoch() < 0 {
            return ledger.expect_one_of(&RETRIABLE, code, &self.name());
        }
        ledger.expect_one_of(&RETRIABLE_EPOCH, code, &self.name());
        if LED_ELSEWHERE.contains(&code) {
            self.reach.is_told_off();
        }
    }

    /// A consumer that goes on from there.
    pub fn seek(&mut self, offset: i64) {
        (self.next, self.astray) = (offset, false);
        self.asked = self.asked.take().map(|_| Asked::Dropped);
    }

    pub fn position(&self) -> i64 {
        self.next
    }

    /// How often it was shown what is there, or that nothing is.
    pub fn fetches(&self) -> u64 {
        self.fetches
    }

    /// Takes nothing until then: answers pile up on the way, and in the broker.
    pub fn pause(&mut self, until: Mono, cluster: &mut Cluster) {
        if let Some(conn) = self.reach.conn() {
            cluster.world.set_reading(conn.id, false);
            self.paused_until = Some(until);
            self.looked_away = true;
        }
    }

    pub fn resume(&mut self, cluster: &mut Cluster) {
        if let Some(conn) = self.reach.conn_mut() {
            cluster.world.set_reading(conn.id, true);
            conn.waits_anew(cluster);
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
        let Reader { process, partition, next, target, astray, refused, reach, .. } = self;
        let where_to = target.map_or(String::new(), |target| format!(", to {target}"));
        let astray = if *astray { ", astray" } else { "" };
        format!("reader {process} of partition {partition} (at {next}{where_to}{astray}, code {refused}, {reach})")
    }

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
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
    reach: Reach,
    /// After the last fault: something was committed, and after that something was fetched.
    proven: (bool, bool),
}

impl Committer {
    pub fn group_of(process: u32) -> String {
        format!("group-{process}")
    }

    pub fn new(process: u32, partition: i32, commits_percent: u64) -> Committer {
        let group = Committer::group_of(process);
        let reach = Reach::coordinator_of(&group);
        let proven = (false, false);
        Committer { process, group, partition, commits_percent, next: 0, asked: None, reach, proven }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.finish(cluster.now(), ledger);
        }
        for (_, body) in conn.answers(cluster) {
            match self.asked.take() {
                Some(AskedOfGroup::Commit { offset, invoked }) => {
                    self.committed(body, offset, invoked, cluster.now(), ledger);
                }
                Some(AskedOfGroup::Fetch { invoked }) => self.fetched(body, invoked, cluster.now(), ledger),
                None => panic!("{} got an answer that it did not ask for", self.name()),
            }
        }
        if self.asked.is_none() && !self.is_done() && !self.reach.is_done_here(cluster) && cluster.chance(20) {
            let invoked = cluster.now();
            let commits = if ledger.calm { !self.proven.0 } else { cluster.chance(self.commits_percent) };
            if commits {
                self.next += 1 + cluster.pick(10) as i64;
                conn.send(cluster, OFFSET_COMMIT, &commit_offset(&self.group, TOPIC, self.partition, self.next));
                self.asked = Some(AskedOfGroup::Commit { offset: self.next, invoked });
            } else {
                conn.send(cluster, OFFSET_FETCH, &fetch_offset(&self.group, TOPIC, self.partition));
                self.asked = Some(AskedOfGroup::Fetch { invoked });
            }
        }
        self.reach.keep(conn);
    }

    fn committed(&mut self, mut body: Bytes, offset: i64, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetCommitResponse::decode(&mut body, OFFSET_COMMIT).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        // what was refused may have been proposed before: nobody knows
        let outcome = if code == 0 { Outcome::Acked } else { Outcome::Info };
        if code != 0 {
            self.refused(code, ledger);
        }
        self.proven.0 |= ledger.calm && code == 0;
        self.record(offset, invoked, now, outcome, ledger);
    }

    fn refused(&mut self, code: i16, ledger: &mut Ledger) {
        ledger.expect_one_of(&RETRIABLE_GROUP, code, &self.name());
        if COORDINATED_ELSEWHERE.contains(&code) {
            self.reach.is_told_off();
        }
    }

    fn record(&self, offset: i64, invoked: Mono, now: Mono, outcome: Outcome, ledger: &mut Ledger) {
        let (group, partition) = (self.group.clone(), partition(self.partition));
        let commit = CommitOffset { group, partition, offset, outcome, by: None };
        ledger.add(self.process, invoked, now, Op::CommitOffset(commit));
    }

    fn fetched(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetFetchResponse::decode(&mut body, OFFSET_FETCH).unwrap();
        let code = match answer.error_code {
            0 => answer.topics[0].partitions[0].error_code,
            code => code,
        };
        if code != 0 {
            return self.refused(code, ledger);
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

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }
}

/// Deletes what has been read, now and then; when the log is small or full, often.
pub struct Trimmer {
    process: u32,
    tight: bool,
    asked: Option<(i32, i64, Mono)>,
    reach: Reach,
    /// Whose leader it talks to, where there are several brokers.
    aims_at: i32,
}

impl Trimmer {
    pub fn new(process: u32, tight: bool) -> Trimmer {
        Trimmer { process, tight, asked: None, reach: Reach::leader_of(0), aims_at: 0 }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.finish(cluster.now(), ledger);
        }
        for (_, body) in conn.answers(cluster) {
            self.answered(body, cluster.now(), ledger);
            if cluster.shape.is_cluster() && cluster.chance(70) {
                self.aims_at = cluster.pick(ledger.read_to.len()) as i32;
                self.reach.aim(self.aims_at);
                self.reach.keep(conn);
                return;
            }
        }
        let full = cluster.has_no_space();
        let wanted = if full {
            20
        } else if self.tight && !ledger.calm {
            3
        } else {
            0
        };
        let now_and_then = !ledger.calm && cluster.pick(1_000) < 2;
        if self.asked.is_none() && !self.reach.is_done_here(cluster) && (now_and_then || cluster.chance(wanted)) {
            self.ask(&mut conn, full, cluster, ledger);
        }
        self.reach.keep(conn);
    }

    fn ask(&mut self, conn: &mut Conn, full: bool, cluster: &mut Cluster, ledger: &Ledger) {
        let is_aimed = cluster.shape.is_cluster();
        let number = if is_aimed { self.aims_at as usize } else { cluster.pick(ledger.read_to.len()) };
        let read_to = ledger.read_to[number];
        // some of what has been read stays, to be looked at in the end
        let offset = if full { read_to } else { cluster.pick(read_to as usize + 1) as i64 };
        let invoked = cluster.now();
        conn.send(cluster, DELETE_RECORDS, &delete_records(TOPIC, number as i32, offset));
        self.asked = Some((number as i32, offset, invoked));
    }

    fn answered(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let answer = DeleteRecordsResponse::decode(&mut body, DELETE_RECORDS).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        // what was refused may have been proposed before: nobody knows
        let outcome = if code == 0 { Outcome::Acked } else { Outcome::Info };
        if code != 0 {
            // A leader that was replaced and has not heard of it may lack what was read elsewhere (docs/adr/0005).
            let is_behind = self.reach.epoch() >= 0 && code == OFFSET_OUT_OF_RANGE;
            if !is_behind {
                ledger.expect_one_of(&RETRIABLE, code, "the trimmer");
            }
            if LED_ELSEWHERE.contains(&code) {
                self.reach.is_told_off();
            }
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

    pub fn reach(&mut self) -> &mut Reach {
        &mut self.reach
    }
}
