//! A consumer that is the only member of its group: joins, syncs, beats, reads, commits what it has read, and goes on
//! from there when it has to join anew.

use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC, partition};
use crate::reach::Reach;
use crate::readers::{COORDINATED_ELSEWHERE, RETRIABLE_GROUP, Reader};
use crate::wire::{
    Conn, HEARTBEAT, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP, commit_as, fetch_offset, heartbeat,
    join_group, sync_group,
};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::Op;
use camus_history::history::{By, CommitOffset, FetchOffset, Outcome};
use kafka_protocol::messages::{
    HeartbeatResponse, JoinGroupResponse, OffsetCommitResponse, OffsetFetchResponse, SyncGroupResponse,
};
use kafka_protocol::protocol::Decodable;
use std::time::Duration;

const UNKNOWN_MEMBER: i16 = 25;
const MEMBER_ID_REQUIRED: i16 = 79;
/// It is no member of this generation any more: what such a one commits takes no effect.
const FENCED: [i16; 2] = [22, UNKNOWN_MEMBER];
/// The group divides its partitions anew: join again.
const REBALANCING: i16 = 27;
const BEATS_EVERY: Duration = Duration::from_millis(1_500);

enum Asked {
    Join,
    Sync,
    Heartbeat,
    Fetch { invoked: Mono },
    Commit { offset: i64, invoked: Mono },
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Out,
    Joined,
    /// It knows what is its own, and not where it was.
    Synced,
    Reads,
}

pub struct Member {
    process: u32,
    group: String,
    partition: i32,
    reader: Reader,
    reach: Reach,
    stage: Stage,
    id: String,
    generation: i32,
    asked: Option<Asked>,
    beats_at: Mono,
    committed: i64,
    /// After the last fault: something was committed, and after that something was fetched.
    proven: (bool, bool),
}

impl Member {
    pub fn new(process: u32, partition: i32) -> Member {
        let group = format!("members-{process}");
        let reach = Reach::coordinator_of(&group);
        Member {
            process,
            group,
            partition,
            reader: Reader::new(process, partition),
            reach,
            stage: Stage::Out,
            id: String::new(),
            generation: -1,
            asked: None,
            beats_at: Mono(0),
            committed: -1,
            proven: (false, false),
        }
    }

    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        if self.stage == Stage::Reads {
            self.reader.step(cluster, ledger);
        }
        let Some((mut conn, is_new)) = self.reach.connected(cluster, ledger.calm) else { return };
        if is_new {
            self.lose_answer(cluster.now(), ledger);
        }
        for (_, body) in conn.answers(cluster) {
            match self.asked.take() {
                Some(Asked::Join) => self.joined(body, ledger),
                Some(Asked::Sync) => self.synced(body, ledger),
                Some(Asked::Heartbeat) => self.beaten(body, ledger),
                Some(Asked::Fetch { invoked }) => self.fetched(body, invoked, cluster.now(), ledger),
                Some(Asked::Commit { offset, invoked }) => {
                    self.committed(body, offset, invoked, cluster.now(), ledger);
                }
                None => panic!("{} got an answer that it did not ask for", self.name()),
            }
        }
        if self.asked.is_none() && !self.reach.is_done_here(cluster) {
            self.ask(&mut conn, cluster, ledger.calm);
        }
        self.reach.keep(conn);
    }

    fn ask(&mut self, conn: &mut Conn, cluster: &mut Cluster, calm: bool) {
        let now = cluster.now();
        match self.stage {
            Stage::Out => {
                conn.send(cluster, JOIN_GROUP, &join_group(&self.group, &self.id));
                self.asked = Some(Asked::Join);
            }
            Stage::Joined => {
                conn.send(cluster, SYNC_GROUP, &sync_group(&self.group, &self.id, self.generation));
                self.asked = Some(Asked::Sync);
            }
            Stage::Synced => self.ask_offset(conn, cluster),
            Stage::Reads if now >= self.beats_at => {
                conn.send(cluster, HEARTBEAT, &heartbeat(&self.group, &self.id, self.generation));
                self.beats_at = now + BEATS_EVERY;
                self.asked = Some(Asked::Heartbeat);
            }
            Stage::Reads if calm && self.proven.0 && !self.proven.1 => self.ask_offset(conn, cluster),
            Stage::Reads => {
                let wanted = self.reader.position() > self.committed || (calm && !self.proven.0);
                if wanted && cluster.chance(20) {
                    let offset = self.reader.position();
                    let at = (self.partition, self.reader.reach().epoch());
                    let commit = commit_as((&self.group, &self.id, self.generation), TOPIC, at, offset);
                    conn.send(cluster, OFFSET_COMMIT, &commit);
                    self.asked = Some(Asked::Commit { offset, invoked: now });
                }
            }
        }
    }

    fn ask_offset(&mut self, conn: &mut Conn, cluster: &mut Cluster) {
        let invoked = cluster.now();
        conn.send(cluster, OFFSET_FETCH, &fetch_offset(&self.group, TOPIC, self.partition));
        self.asked = Some(Asked::Fetch { invoked });
    }

    fn joined(&mut self, mut body: Bytes, ledger: &mut Ledger) {
        let answer = JoinGroupResponse::decode(&mut body, JOIN_GROUP).unwrap();
        match answer.error_code {
            0 => {
                self.id = answer.member_id.to_string();
                self.generation = answer.generation_id;
                if answer.leader != answer.member_id {
                    ledger.unexpected.push(format!("{} is not the leader of its group", self.name()));
                }
                self.stage = Stage::Joined;
            }
            MEMBER_ID_REQUIRED => self.id = answer.member_id.to_string(),
            code => self.refused(code, ledger),
        }
    }

    fn synced(&mut self, mut body: Bytes, ledger: &mut Ledger) {
        let answer = SyncGroupResponse::decode(&mut body, SYNC_GROUP).unwrap();
        match answer.error_code {
            0 => {
                if answer.assignment != "all" {
                    ledger.unexpected.push(format!("{} is given {:?}", self.name(), answer.assignment));
                }
                self.stage = Stage::Synced;
            }
            code => self.refused(code, ledger),
        }
    }

    fn beaten(&mut self, mut body: Bytes, ledger: &mut Ledger) {
        match HeartbeatResponse::decode(&mut body, HEARTBEAT).unwrap().error_code {
            0 => {}
            code => self.refused(code, ledger),
        }
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
        let offset = answer.topics[0].partitions[0].committed_offset;
        let (group, of) = (self.group.clone(), partition(self.partition));
        ledger.add(self.process, invoked, now, Op::FetchOffset(FetchOffset { group, partition: of, offset }));
        self.proven.1 |= self.proven.0;
        if self.stage == Stage::Synced {
            self.committed = offset;
            // a leader that has not heard of what was read there knows nothing of that offset
            self.reader.reach().has_heard_of(answer.topics[0].partitions[0].committed_leader_epoch);
            self.reader.seek(offset.max(0));
            self.stage = Stage::Reads;
        }
    }

    fn committed(&mut self, mut body: Bytes, offset: i64, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = OffsetCommitResponse::decode(&mut body, OFFSET_COMMIT).unwrap();
        let code = answer.topics[0].partitions[0].error_code;
        let outcome = match code {
            0 => Outcome::Acked,
            code if FENCED.contains(&code) => Outcome::Failed,
            // what was refused may have been proposed before: nobody knows
            _ => Outcome::Info,
        };
        self.record(offset, invoked, now, outcome, ledger);
        if code != 0 {
            return self.refused(code, ledger);
        }
        self.committed = offset;
        self.proven.0 |= ledger.calm;
    }

    fn record(&self, offset: i64, invoked: Mono, now: Mono, outcome: Outcome, ledger: &mut Ledger) {
        let (group, partition) = (self.group.clone(), partition(self.partition));
        // it does not join anew while a commit is under way
        let by = Some(By { member: self.id.clone(), generation: self.generation });
        let commit = CommitOffset { group, partition, offset, outcome, by };
        ledger.add(self.process, invoked, now, Op::CommitOffset(commit));
    }

    /// It joins anew, or asks another broker, or only asks again.
    fn refused(&mut self, code: i16, ledger: &mut Ledger) {
        if FENCED.contains(&code) || code == REBALANCING {
            self.stage = Stage::Out;
            if code == UNKNOWN_MEMBER {
                self.id.clear();
            }
            return;
        }
        ledger.expect_one_of(&RETRIABLE_GROUP, code, &self.name());
        if COORDINATED_ELSEWHERE.contains(&code) {
            self.reach.is_told_off();
        }
    }

    /// What it waits for, it will never know.
    fn lose_answer(&mut self, now: Mono, ledger: &mut Ledger) {
        if let Some(Asked::Commit { offset, invoked }) = self.asked.take() {
            self.record(offset, invoked, now, Outcome::Info, ledger);
        }
    }

    pub fn finish(&mut self, now: Mono, ledger: &mut Ledger) {
        self.lose_answer(now, ledger);
    }

    pub fn is_done(&self) -> bool {
        self.proven == (true, true)
    }

    pub fn name(&self) -> String {
        let Member { process, group, stage, generation, committed, .. } = self;
        format!("member {process} of {group} ({stage:?}, generation {generation}, committed {committed})")
    }

    /// To the coordinator, and to the leader of what it reads.
    pub fn reaches(&mut self) -> [&mut Reach; 2] {
        [&mut self.reach, self.reader.reach()]
    }
}
