//! What a member of the classic protocol says: it joins, and gives up everything before; if it leads it assigns; it
//! beats, and joins anew when it is told to. In a group of KIP-848 nobody leads, and the broker assigns.

use super::{Asked, Fellow, GROUP, Stage, by_coordinator};
use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC};
use crate::wire::{
    Conn, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, assigned, heartbeat, join_as_consumer, leave_group,
    sync_shares,
};
use bytes::Bytes;
use camus_engine::types::Mono;
use camus_history::history::Assignor;
use kafka_protocol::messages::{HeartbeatResponse, JoinGroupResponse, SyncGroupResponse};
use kafka_protocol::protocol::Decodable;
use std::collections::BTreeSet;
use std::time::Duration;

const MEMBER_ID_REQUIRED: i16 = 79;
const BEATS_EVERY: Duration = Duration::from_millis(1_000);

impl Fellow {
    /// Whether it had something to ask.
    pub(super) fn ask_classic(&mut self, conn: &mut Conn, cluster: &mut Cluster) -> bool {
        let now = cluster.now();
        let asked = match self.stage {
            Stage::Out => {
                conn.send(cluster, JOIN_GROUP, &join_as_consumer(GROUP, &self.id, TOPIC));
                Asked::Join
            }
            Stage::Joined => {
                let sync = sync_shares((GROUP, self.id.as_str(), self.generation), TOPIC, &self.shares());
                conn.send(cluster, SYNC_GROUP, &sync);
                Asked::Sync
            }
            Stage::Leaves => {
                conn.send(cluster, LEAVE_GROUP, &leave_group(GROUP, &self.id));
                Asked::Leave
            }
            Stage::In if now >= self.beats_at => {
                conn.send(cluster, HEARTBEAT, &heartbeat(GROUP, &self.id, self.generation));
                self.beats_at = now + BEATS_EVERY;
                Asked::Heartbeat
            }
            Stage::In => return false,
        };
        self.asked = Some((asked, now));
        true
    }

    /// Another one each time, so that partitions move. Nothing from who does not lead.
    fn shares(&self) -> Vec<(String, Vec<i32>)> {
        let mut shares: Vec<(String, Vec<i32>)> = self.roll.iter().map(|id| (id.clone(), vec![])).collect();
        if !shares.is_empty() {
            for number in 0..self.readers.len() {
                let at = (number + self.generation as usize) % shares.len();
                shares[at].1.push(number as i32);
            }
        }
        shares
    }

    pub(super) fn joined(&mut self, mut body: Bytes, now: Mono, ledger: &mut Ledger) {
        let answer = JoinGroupResponse::decode(&mut body, JOIN_GROUP).unwrap();
        match answer.error_code {
            0 => {
                self.id = answer.member_id.to_string();
                self.generation = answer.generation_id;
                self.roll = answer.members.iter().map(|member| member.member_id.to_string()).collect();
                self.assignor = match answer.leader.to_string() {
                    nobody if nobody.is_empty() => by_coordinator(self.generation),
                    leader => Assignor::Leader(leader),
                };
                self.stage = Stage::Joined;
            }
            MEMBER_ID_REQUIRED => self.id = answer.member_id.to_string(),
            code => self.refused(code, now, ledger),
        }
    }

    pub(super) fn synced(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        let answer = SyncGroupResponse::decode(&mut body, SYNC_GROUP).unwrap();
        if answer.error_code != 0 {
            return self.refused(answer.error_code, now, ledger);
        }
        let numbers: BTreeSet<i32> = assigned(answer.assignment, TOPIC).into_iter().collect();
        (self.stage, self.beats_at) = (Stage::In, now + BEATS_EVERY);
        self.takes(&numbers, invoked, now, ledger);
    }

    pub(super) fn heard(&mut self, mut body: Bytes, invoked: Mono, now: Mono, ledger: &mut Ledger) {
        match HeartbeatResponse::decode(&mut body, HEARTBEAT).unwrap().error_code {
            0 => self.say_stays(invoked, now, ledger),
            code => self.refused(code, now, ledger),
        }
    }
}
