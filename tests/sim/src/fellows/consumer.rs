//! What a member of KIP-848 says: it joins with epoch 0, hears what it is to have, stops reading what it is to give up,
//! takes the rest, and says so. Meanwhile it goes on beating. When it is fenced it loses everything, and joins again
//! under the same id.

use super::{Asked, Fellow, GROUP, Says, Stage, by_coordinator, ms};
use crate::kit::Cluster;
use crate::ledger::{Ledger, TOPIC};
use crate::wire::{CONSUMER_GROUP_HEARTBEAT, Conn, beat, beat_in_full, beat_owning};
use bytes::Bytes;
use camus_engine::types::Mono;
use kafka_protocol::messages::ConsumerGroupHeartbeatResponse;
use kafka_protocol::messages::consumer_group_heartbeat_response::Assignment;
use kafka_protocol::protocol::Decodable;
use std::collections::BTreeSet;

const JOINS: i32 = 0;
const LEAVES: i32 = -1;
/// To stop reading takes up to so long, ms: a real client finishes what it has read, and commits.
const GIVES_UP_MS_MAX: usize = 2_000;

impl Fellow {
    /// Whether it had something to ask.
    pub(super) fn ask_consumer(&mut self, conn: &mut Conn, cluster: &mut Cluster, ledger: &mut Ledger) -> bool {
        let now = cluster.now();
        let (request, asked) = match self.stage {
            Stage::Out => {
                let joins = beat_in_full(beat(GROUP, &self.id, JOINS), TOPIC, self.pattern);
                (beat_owning(joins, None, vec![]), Asked::Beat { joins: true })
            }
            Stage::Leaves => (beat(GROUP, &self.id, LEAVES), Asked::Leave),
            Stage::In => {
                self.comes_to_it(now, ledger);
                if self.says == Says::Nothing && now < self.beats_at {
                    return false;
                }
                let mut request = beat(GROUP, &self.id, self.generation);
                if self.says == Says::All {
                    request = beat_in_full(request, TOPIC, self.pattern);
                }
                // who has not come to what it was given says nothing of what it has
                if self.says != Says::Nothing && self.wanted.is_none() {
                    request = beat_owning(request, self.topic.as_ref(), self.hands.keys().copied().collect());
                }
                (request, Asked::Beat { joins: false })
            }
            Stage::Joined => unreachable!("only members of the classic protocol wait for an assignment"),
        };
        conn.send(cluster, CONSUMER_GROUP_HEARTBEAT, &request);
        self.says = Says::Nothing;
        self.asked = Some((asked, now));
        true
    }

    /// When its time is over it gives up what it is to lose, takes what it is to have, and is to say so.
    fn comes_to_it(&mut self, now: Mono, ledger: &mut Ledger) {
        if now < self.gives_up_at {
            return;
        }
        let Some(wanted) = self.wanted.take() else { return };
        let loses: Vec<i32> = self.hands.keys().copied().filter(|number| !wanted.contains(number)).collect();
        self.gives_up(&loses, now, ledger);
        self.takes(&wanted, now, now, ledger);
        self.says = Says::Owned;
    }

    pub(super) fn beaten(
        &mut self,
        mut body: Bytes,
        joins: bool,
        invoked: Mono,
        cluster: &mut Cluster,
        ledger: &mut Ledger,
    ) {
        let answer = ConsumerGroupHeartbeatResponse::decode(&mut body, CONSUMER_GROUP_HEARTBEAT).unwrap();
        let now = cluster.now();
        if answer.error_code != 0 {
            self.says = Says::All;
            return self.refused(answer.error_code, now, ledger);
        }
        self.beats_at = now + ms(answer.heartbeat_interval_ms.max(0) as usize);
        if !joins {
            self.say_stays(invoked, now, ledger);
        }
        let is_moved = self.generation != answer.member_epoch;
        if is_moved {
            self.remembers(None);
        }
        (self.stage, self.generation) = (Stage::In, answer.member_epoch);
        self.assignor = by_coordinator(answer.member_epoch);
        if let Some(assignment) = answer.assignment {
            self.wanted = Some(self.numbers(assignment));
            self.gives_up_at = now + ms(cluster.pick(GIVES_UP_MS_MAX));
        }
        match self.wanted.take() {
            Some(wanted) if self.hands.keys().all(|number| wanted.contains(number)) => {
                self.takes(&wanted, invoked, now, ledger);
                self.says = Says::Owned;
            }
            wanted => {
                self.wanted = wanted;
                if is_moved {
                    self.say_assigned(invoked, now, ledger);
                }
            }
        }
    }

    fn numbers(&mut self, assignment: Assignment) -> BTreeSet<i32> {
        let mut numbers = BTreeSet::new();
        for told in assignment.topic_partitions {
            numbers.extend(told.partitions.iter().copied());
            self.topic = Some(told);
        }
        numbers
    }
}
