//! How a client finds whom it talks to, as Kafka's clients do: any broker is asked who leads a partition or coordinates
//! a group, and asked anew after a refusal, a silence, or a connection that ended.
//!
//! An epoch of a leader that is older than one that was heard of is not believed, and requests that have a field for it
//! carry it: a leader that has not heard of its successor refuses them.
//!
//! With one broker there is nobody to look for.

use crate::kit::{Cluster, PATIENCE};
use crate::ledger::TOPIC;
use crate::wire::{Conn, FIND_COORDINATOR, METADATA, find_coordinator, led_by, metadata};
use bytes::Bytes;
use kafka_protocol::messages::{FindCoordinatorResponse, MetadataResponse};
use kafka_protocol::protocol::Decodable;
use std::fmt;
use std::time::Duration;

/// A connection on which nothing comes for so long is given up. Longer than a fetch or a join waits for others.
const SILENCE_MAX: Duration = Duration::from_secs(6);
/// The same of a broker that is asked whom to talk to.
const LOOK_MAX: Duration = Duration::from_secs(1);

pub enum Whom {
    LeaderOf(i32),
    CoordinatorOf(String),
}

/// A client's way to whoever serves it.
pub struct Reach {
    whom: Whom,
    at: Option<usize>,
    /// The last epoch of a leader that it heard of; -1: none.
    epoch: i32,
    conn: Option<Conn>,
    /// Where it asks whom to talk to.
    looks: Option<Conn>,
    /// It was told that it talks to the wrong one.
    is_wrong: bool,
}

impl fmt::Display for Reach {
    /// For whoever asks why it does not get on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owed = self.conn.as_ref().map_or(0, Conn::owed);
        write!(f, "broker {:?}, epoch {}, {owed} requests unanswered", self.at, self.epoch)
    }
}

impl Reach {
    pub fn leader_of(partition: i32) -> Reach {
        Reach::new(Whom::LeaderOf(partition))
    }

    pub fn coordinator_of(group: &str) -> Reach {
        Reach::new(Whom::CoordinatorOf(group.to_owned()))
    }

    fn new(whom: Whom) -> Reach {
        Reach { whom, at: None, epoch: -1, conn: None, looks: None, is_wrong: false }
    }

    /// From now on another partition's leader is wanted. What is to be answered is answered before.
    pub fn aim(&mut self, partition: i32) {
        (self.whom, self.epoch, self.is_wrong) = (Whom::LeaderOf(partition), -1, true);
    }

    /// A connection to go on with, if there is one now, and whether it is new: clients wait a little before they come
    /// back, and unless it is calm they lose one now and then, with the answers on it. Given back by [`Self::keep`].
    pub fn connected(&mut self, cluster: &mut Cluster, calm: bool) -> Option<(Conn, bool)> {
        match self.conn.take().filter(|conn| conn.is_open(cluster)) {
            Some(conn) if !calm && cluster.pick(1_000) < 3 => {
                cluster.world.reset(conn.id);
                None
            }
            Some(conn) if cluster.shape.is_cluster() => self.stays(conn, cluster).map(|conn| (conn, false)),
            Some(conn) => Some((conn, false)),
            None if !cluster.chance(30) => None,
            None if !cluster.shape.is_cluster() => Some((Conn::open(cluster, 0), true)),
            None => {
                // it may be gone, or be another by now
                if self.conn_was_lost(cluster) {
                    self.at = None;
                }
                let broker = self.look(cluster)?;
                self.is_wrong = false;
                Some((Conn::open(cluster, broker), true))
            }
        }
    }

    pub fn keep(&mut self, conn: Conn) {
        self.conn = Some(conn);
    }

    /// The answer says that another serves it by now.
    pub fn is_told_off(&mut self) {
        self.is_wrong = true;
    }

    /// Nothing more is to be asked here: what was asked is waited for, and then another broker is looked for.
    pub fn is_done_here(&self, cluster: &Cluster) -> bool {
        self.is_wrong && cluster.shape.is_cluster()
    }

    /// Of the leader's partition, as it is known.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// It heard of this epoch elsewhere: leaders of older ones are not believed from now on.
    pub fn has_heard_of(&mut self, epoch: i32) {
        if epoch > self.epoch {
            (self.epoch, self.is_wrong) = (epoch, true);
        }
    }

    pub fn conn(&self) -> Option<&Conn> {
        self.conn.as_ref()
    }

    pub fn conn_mut(&mut self) -> &mut Option<Conn> {
        &mut self.conn
    }

    /// It leaves.
    pub fn close(&mut self, cluster: &mut Cluster) {
        for conn in [self.conn.take(), self.looks.take()].into_iter().flatten() {
            cluster.world.reset(conn.id);
        }
    }

    fn conn_was_lost(&mut self, cluster: &mut Cluster) -> bool {
        self.at.is_some() && cluster.chance(50)
    }

    fn stays(&mut self, conn: Conn, cluster: &mut Cluster) -> Option<Conn> {
        let is_late = conn.is_late(cluster, SILENCE_MAX);
        if is_late || (self.is_done_here(cluster) && conn.owed() == 0) {
            cluster.world.reset(conn.id);
            self.at = None;
            return None;
        }
        Some(conn)
    }

    /// Whom to talk to, once somebody has said so.
    fn look(&mut self, cluster: &mut Cluster) -> Option<usize> {
        if self.at.is_some() {
            return self.at;
        }
        let Some(mut conn) = self.looks.take() else {
            let broker = cluster.pick(cluster.shape.brokers);
            let mut conn = Conn::open(cluster, broker);
            match &self.whom {
                Whom::LeaderOf(_) => conn.send(cluster, METADATA, &metadata(TOPIC)),
                Whom::CoordinatorOf(group) => conn.send(cluster, FIND_COORDINATOR, &find_coordinator(group)),
            };
            self.looks = Some(conn);
            return None;
        };
        let answer = conn.answers(cluster).into_iter().next();
        if answer.is_none() && conn.is_open(cluster) && !conn.is_late(cluster, LOOK_MAX) {
            self.looks = Some(conn);
            return None;
        }
        cluster.world.reset(conn.id);
        self.at = answer.and_then(|(_, body)| self.told(body, cluster));
        self.at
    }

    /// What the answer says, if it is to be believed.
    fn told(&mut self, mut body: Bytes, cluster: &Cluster) -> Option<usize> {
        let (host, port) = match &self.whom {
            Whom::LeaderOf(partition) => {
                let answer = MetadataResponse::decode(&mut body, METADATA).unwrap();
                let (host, port, epoch) = led_by(&answer, *partition)?;
                if epoch < self.epoch {
                    return None;
                }
                self.epoch = epoch;
                (host, port)
            }
            Whom::CoordinatorOf(_) => {
                let answer = FindCoordinatorResponse::decode(&mut body, FIND_COORDINATOR).unwrap();
                if answer.error_code != 0 {
                    return None;
                }
                (answer.host.to_string(), answer.port)
            }
        };
        let found = cluster.at(&host, port);
        assert!(found.is_some(), "clients are sent to {host}:{port}, where nobody is");
        found
    }
}

/// Asks around until it is known who leads the partition: a connection there, and the epoch. For whoever looks in the
/// end.
pub fn open_leader(cluster: &mut Cluster, partition: i32) -> Result<(Conn, i32), String> {
    if !cluster.shape.is_cluster() {
        return Ok((Conn::open(cluster, 0), -1));
    }
    let (reach, conn) = reached(cluster, partition)?;
    Ok((conn, reach.epoch()))
}

/// The broker that leads the partition.
pub fn find_leader(cluster: &mut Cluster, partition: i32) -> Result<usize, String> {
    let (reach, conn) = reached(cluster, partition)?;
    cluster.world.reset(conn.id);
    Ok(reach.at.expect("it was found"))
}

fn reached(cluster: &mut Cluster, partition: i32) -> Result<(Reach, Conn), String> {
    let deadline = cluster.now() + PATIENCE;
    let mut reach = Reach::leader_of(partition);
    while cluster.now() < deadline {
        if let Some((conn, _)) = reach.connected(cluster, true) {
            return Ok((reach, conn));
        }
        cluster.run_us(1_000);
    }
    reach.close(cluster);
    Err(format!("nobody knows who leads partition {partition}"))
}
