//! The node's part in a cluster: what comes from other brokers goes to the pump and the meta shard's host, and what
//! these have for others to the hub. A broker that is alone does nothing of it.

use super::{Broker, Node};
use crate::limits;
use crate::meta_host::{COORDINATOR, FORWARDED, MetaHost};
use crate::peer::codec::Frame;
use crate::peer::forward::Forwards;
use crate::peer::hello::Me;
use crate::peer::hub::{Hub, peer_addr};
use crate::peer::{broker_of, raft_id};
use bytes::Bytes;
use camus_engine::rt::{ConnId, ListenerId, Rt};
use camus_engine::shard::api::Ticket;
use camus_engine::types::{BrokerId, CoreId, Lsn, META_SHARD, Mono, ShardId};
use camus_meta::{Command, Decided, Refused, decode_decided, encode_decided};
use std::sync::Arc;

/// The links of this core, if there are other brokers.
pub(super) fn hub(broker: &Broker, me: CoreId) -> Option<Hub> {
    if broker.brokers.len() < 2 {
        return None;
    }
    let ids: Vec<BrokerId> = broker.brokers.iter().map(|member| member.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "the brokers {ids:?} are in order, each once");
    assert!(ids.contains(&broker.settings.broker), "this broker is one of the brokers {ids:?}");
    let me = Me {
        broker: broker.settings.broker,
        cores: broker.cores,
        core: me,
        cluster_id: broker.settings.cluster_id.clone(),
        brokers: ids,
        roll: Arc::clone(broker.roll.as_ref().expect("a broker of a cluster knows its directory")),
    };
    Some(Hub::new(me, &broker.brokers))
}

impl Node {
    /// Lets other brokers in. Clients wait until this one serves.
    pub(super) fn join_cluster(&mut self, rt: &mut dyn Rt) {
        let Some(hub) = &mut self.hub else { return };
        self.forwards = Forwards::new(rt.random());
        let addr = self.broker.peer_listen.expect("a broker of a cluster has an address for the others");
        if let Err(error) = hub.listen(rt, addr) {
            self.report.can_not_listen(peer_addr(addr, self.me), &error);
            self.failed = true;
        }
    }

    /// Its directory is not the one that the others know. It ends: nothing that it does counts.
    pub(super) fn look_at_roll(&mut self) {
        if let Some((by, known)) = self.broker.roll.as_ref().and_then(|roll| roll.kept_out()) {
            self.report.kept_out(by, known);
            self.failed = true;
        }
    }

    /// Without a majority nobody is elected, and nothing else says so: it waits and refuses.
    pub(super) fn look_at_leaders(&mut self, now: Mono) {
        if self.hub.is_none() {
            return;
        }
        let shards = &self.broker.shards;
        let mut mine = (0..shards.len() as u32).map(ShardId).filter(|shard| shards.core(*shard) == self.me);
        if mine.all(|shard| shards.leader(shard).is_some()) {
            self.leaderless_since = None;
        } else {
            self.leaderless_since.get_or_insert(now);
        }
        let is = self.leaderless_since.is_some_and(|since| now.since(since) > limits::LEADERLESS_AFTER);
        if is != self.leaderless {
            self.leaderless = is;
            self.report.leaderless(is);
        }
    }

    pub(super) fn leave_cluster(&mut self, rt: &mut dyn Rt) {
        if let Some(hub) = &mut self.hub {
            hub.shut(rt);
        }
    }

    /// Something of this log is on the media: without it a start would take the log for a new one.
    pub(super) fn has_records(&self) -> bool {
        self.hub.is_none() || self.core.wal().durable() > Lsn(0)
    }

    /// The connection is another broker's.
    pub(super) fn of_broker(&mut self, rt: &mut dyn Rt, listener: ListenerId, conn: ConnId) -> bool {
        self.hub.as_mut().is_some_and(|hub| hub.accepted(rt, listener, conn))
    }

    /// Takes what came on a connection of another broker, if it is one.
    pub(super) fn received_of_broker(&mut self, rt: &mut dyn Rt, conn: ConnId, bytes: &[u8]) -> bool {
        let now = rt.now();
        let Some(hub) = &mut self.hub else { return false };
        if !hub.received(now, conn, bytes) {
            return false;
        }
        for (from, frame) in hub.take_arrived() {
            match frame {
                Frame::Raft(message) => self.core.peer(now, message, &mut self.out),
                Frame::Propose { number, command } => self.asked_by_broker(rt, from, number, &command),
                Frame::Decided { number, version, decided } => match decode_decided(&decided) {
                    Ok(decided) => self.forwards.decided(from, number, version, decided),
                    Err(error) => tracing::warn!(from = from.0, %error, "what a broker decided can not be read"),
                },
                Frame::Hello(_) | Frame::Ping(_) | Frame::Pong(_) => panic!("{frame:?} is between two links"),
            }
        }
        true
    }

    pub(super) fn closed_of_broker(&mut self, rt: &mut dyn Rt, conn: ConnId) -> bool {
        let Some(hub) = &mut self.hub else { return false };
        let ours = hub.closed(rt, conn);
        for broker in hub.take_lost() {
            self.forwards.lost(broker);
        }
        ours
    }

    /// What the pump has for the replicas of other brokers.
    pub(super) fn post_messages(&mut self) {
        for message in std::mem::take(&mut self.out.peers) {
            let hub = self.hub.as_mut().expect("a broker that is alone has nobody to write to");
            // one that is lost here is sent again by its replica
            hub.post(broker_of(message.message.to), &Frame::Raft(message));
        }
    }

    // ---- commands for the meta shard

    /// Passes a command on to the broker that leads the meta shard, if this one does not; or keeps it for a moment, if
    /// nobody can be asked now. False: it is to be written here, or refused.
    pub(super) fn forward(&mut self, now: Mono, ticket: Ticket, command: &Command) -> bool {
        let leads = self.meta.as_ref().is_none_or(MetaHost::is_leading);
        if self.hub.is_none() || leads || ticket.core == COORDINATOR || ticket.core == FORWARDED && !self.is_elected() {
            return false;
        }
        let bytes = Bytes::from(command.encode());
        if bytes.len() > limits::PEER_COMMAND_BYTES_MAX {
            return false;
        }
        self.pass_on(now, ticket, bytes.clone()) || self.forwards.hold(now, ticket, command.clone(), bytes)
    }

    /// This broker is to lead the meta shard, and perhaps does not serve it yet.
    fn is_elected(&self) -> bool {
        let leader = self.broker.shards.leader(META_SHARD);
        leader.is_some_and(|(leader, _)| broker_of(leader) == self.broker.settings.broker)
    }

    fn pass_on(&mut self, now: Mono, ticket: Ticket, command: Bytes) -> bool {
        let Some(hub) = &mut self.hub else { return false };
        let Some((leader, _)) = self.broker.shards.leader(META_SHARD) else { return false };
        let to = broker_of(leader);
        // what came from another broker goes no further
        if ticket.core == FORWARDED || !hub.is_up(to) || !self.forwards.has_room() {
            return false;
        }
        let number = self.forwards.begin(now, ticket, to);
        let is_sent = hub.post(to, &Frame::Propose { number, command });
        if !is_sent {
            self.forwards.forget(number);
        }
        is_sent
    }

    /// Tries again what waits for somebody to lead. What waited for long is refused: it was written nowhere.
    fn try_held(&mut self, rt: &mut dyn Rt) {
        let now = rt.now();
        while let Some(held) = self.forwards.next_held() {
            if self.meta.as_ref().is_some_and(MetaHost::is_leading) {
                self.propose(rt, held.ticket, &held.command);
            } else if now >= held.until || held.ticket.core == FORWARDED && !self.is_elected() {
                self.decide(rt, 0, held.ticket, Err(Refused::NoLeader));
            } else if !self.pass_on(now, held.ticket, held.bytes.clone()) {
                return self.forwards.hold_on(held);
            }
        }
    }

    /// Another broker's command: it is answered as an own one, to that broker.
    fn asked_by_broker(&mut self, rt: &mut dyn Rt, from: BrokerId, number: u64, command: &[u8]) {
        let part = u32::try_from(raft_id(from)).expect("a broker's id has 31 bits");
        let ticket = Ticket { core: FORWARDED, request: number, part };
        match Command::decode(command) {
            Ok(command) if self.meta.is_some() => self.propose(rt, ticket, &command),
            Ok(_) => tracing::warn!(from = from.0, core = self.me.0, "a command came to a core without the meta shard"),
            Err(error) => tracing::warn!(from = from.0, %error, "a broker's command can not be read"),
        }
    }

    pub(super) fn tell_broker(&mut self, version: u64, ticket: Ticket, decided: &Decided) {
        let Some(hub) = &mut self.hub else { return };
        let decided = encode_decided(decided).into();
        // one that is lost is given up in time by whoever waits
        hub.post(broker_of(ticket.part.into()), &Frame::Decided { number: ticket.request, version, decided });
    }

    /// Answers those whose command has come to an end at another broker, and tries again what waits for one. True if
    /// there was an answer.
    pub(super) fn end_forwards(&mut self, rt: &mut dyn Rt) -> bool {
        if self.hub.is_none() {
            return false;
        }
        self.try_held(rt);
        let seen = self.meta.as_ref().map_or(0, |meta| meta.seen_everywhere());
        let over = self.forwards.take(rt.now(), seen);
        let any = !over.is_empty();
        for (ticket, decided) in over {
            self.decide(rt, 0, ticket, decided);
        }
        any
    }
}
