//! The pump's part in replication, where a shard has several voters: messages of other brokers' replicas, each
//! replica's own clock, what is kept for followers. With one voter nothing of it happens.
//!
//! An entry of another broker becomes one of this log by way of the same open group and the same readies as an own one
//! (`core.rs`); how bodies find their way to followers is in `peers.rs`.

use super::core::{Core, Out, Shard, TICK};
use super::peers::{self, EntryBody, ToPeer};
use crate::limits;
use crate::replica::{Message, MessageKind};
use crate::stats::Counters;
use crate::types::{Mono, SegmentSeq, ShardId};
use crate::wal::{NoSpaceWhy, RecordKind, Room, WalError};
use std::sync::atomic::Ordering;
use std::time::Duration;

const GIVEN_UP: Duration = Duration::from_millis(limits::REPLICA_GIVEN_UP_MS);

impl Core {
    /// There are other brokers, each with a replica of every shard.
    pub(super) fn several(&self) -> bool {
        self.config.voters.len() > 1
    }

    /// The raft id of the broker that leads the shard, as far as its replica here knows. It may not serve yet.
    pub fn leader_of(&self, shard: ShardId) -> Option<u64> {
        self.shards.get(&shard)?.replica.leader()
    }

    /// A message of another broker's replica. What comes of it is in `out` now, or after the end of the turn.
    pub fn peer(&mut self, now: Mono, from: ToPeer, out: &mut Out) {
        if self.poisoned {
            return;
        }
        if let Err(fault) = peers::check(&from) {
            tracing::warn!(core = self.config.core.0, from = from.message.from, %fault, "a message is dropped");
            return;
        }
        if from.message.kind == MessageKind::HeartbeatResponse {
            self.peers.heard(now, from.message.from, from.message.reject);
        }
        // One that follows on entries that wait would be refused for want of them.
        let is_behind = from.message.kind == MessageKind::Append && self.peers.has_parked(from.message.shard);
        let waits = if is_behind { Some(from) } else { self.take_message(now, from, out) };
        if let Some(waits) = waits {
            self.peers.park(waits);
        }
    }

    /// Gives the replica a message, and the WAL the entries that it takes. Gives the message back if the WAL has no
    /// room for them now.
    fn take_message(&mut self, now: Mono, from: ToPeer, out: &mut Out) -> Option<ToPeer> {
        let id = from.message.shard;
        let Some(shard) = self.shards.get(&id) else {
            tracing::warn!(core = self.config.core.0, shard = id.0, "a message for a shard of another core is dropped");
            return None;
        };
        // a hard state, and the entry of a new leader
        if self.wal.room_for_reserved(limits::BLOCK_BYTES) != Room::Yes {
            return Some(from);
        }
        // What the message may replace is handed to the WAL before: so all that comes of it is the message's own.
        if shard.dirty {
            self.ready_of(now, id, &[], out);
        }
        if !from.bodies.is_empty() {
            // A new term's hard state goes by itself, so that the room that is found for the entries is theirs alone.
            if from.message.term > self.shards[&id].replica.term() {
                self.step(now, id, Message { entries: Vec::new(), ..from.message.clone() }, &[], out);
            }
            if !self.has_room_for(&from.bodies) {
                return Some(from);
            }
        }
        let ToPeer { message, bodies } = from;
        self.step(now, id, message, &bodies, out);
        None
    }

    /// Tries again what found no room: of each shard in its order. What one shard waits for does not hold up another,
    /// whose entries may be those that free space.
    pub(super) fn take_parked(&mut self, now: Mono, out: &mut Out) {
        for parked in std::mem::take(&mut self.peers.parked) {
            let is_behind = self.peers.has_parked(parked.message.shard);
            let waits = if is_behind { Some(parked) } else { self.take_message(now, parked, out) };
            self.peers.parked.extend(waits);
        }
    }

    /// Batches and commands leave the last spare segment to what frees space. They may have what a leader's own leave
    /// to them: what another leader has taken has to be passed on the way to the deletion behind it.
    fn has_room_for(&self, bodies: &[EntryBody]) -> bool {
        let bytes = peers::room_bytes(bodies);
        let room = if is_ordinary(bodies) { self.wal.room_for(bytes) } else { self.wal.room_for_reserved(bytes) };
        room == Room::Yes
    }

    /// Segments that what this broker takes in as a leader leaves to entries of other leaders.
    pub(super) fn left_to_others(&self) -> usize {
        let divisor = limits::REPLICA_OTHERS_SEGMENTS_DIVISOR;
        if self.several() { self.config.wal.segments_max / divisor } else { 0 }
    }

    /// No leader is to take in more before something is deleted: the entries that this log lacks have to find room in
    /// what is left to them. If they will not, nobody is to wait.
    pub(super) fn asks_to_wait(&self) -> bool {
        let why = self.wal.no_space_why(0, self.left_to_others());
        self.several() && why == Some(NoSpaceWhy::Limit) && !self.is_left()
    }

    /// This log does not catch up any more, whatever is deleted: entries that it lacks are nowhere, or find no room.
    fn is_left(&self) -> bool {
        let finds_none = |parked: &ToPeer| {
            is_ordinary(&parked.bodies) && self.wal.no_space_why(peers::room_bytes(&parked.bodies), 0).is_some()
        };
        self.shards.values().any(|shard| shard.replica.is_left_behind()) || self.peers.parked.iter().any(finds_none)
    }

    /// A log at its limit that nobody waits for can lead nothing: another broker is to.
    pub(super) fn hand_over(&mut self) {
        if !self.several() || !self.is_left() || self.wal.no_space_why(0, self.left_to_others()).is_none() {
            return;
        }
        for shard in self.shards.values_mut().filter(|shard| shard.replica.is_leader()) {
            shard.replica.hand_over(|voter| !self.peers.is_at_limit(voter));
            shard.dirty = true;
        }
    }

    /// Says how many replicas of this broker are lost to their shards, and each time that it becomes more.
    pub(super) fn count_left_behind(&mut self) {
        let left = self.shards.iter().filter(|(_, shard)| shard.replica.was_left_behind());
        let shards: Vec<u32> = left.map(|(id, _)| id.0).collect();
        let count = shards.len() as u64;
        let gauge = &self.stats.counters.replicas_left_behind;
        if count > gauge.load(Ordering::Relaxed) {
            tracing::warn!(
                core = self.config.core.0,
                ?shards,
                "this broker was away for too long: replicas lack what is in the logs of others no more, and do not \
                 catch up"
            );
        }
        Counters::set(gauge, count);
    }

    /// Puts what this log has to say into what its replicas answer to heartbeats.
    pub(super) fn say_in(&self, messages: &mut [Message]) {
        for message in messages.iter_mut().filter(|message| message.kind == MessageKind::HeartbeatResponse) {
            message.reject = self.asks_to_wait();
        }
    }

    fn step(&mut self, now: Mono, id: ShardId, message: Message, arrived: &[EntryBody], out: &mut Out) {
        let shard = self.shards.get_mut(&id).expect("the caller has looked");
        let from = message.from;
        if let Err(error) = shard.replica.step(message) {
            if error.is_fatal() {
                return self.poison(WalError::Forgot { shard: id, what: error.to_string() }, out);
            }
            tracing::debug!(core = self.config.core.0, shard = id.0, from, %error, "a message is not taken");
        }
        self.ready_of(now, id, arrived, out);
    }

    pub(super) fn tick(&mut self, now: Mono) {
        let several = self.several();
        let mut next = now + TICK;
        for shard in self.shards.values_mut() {
            if !several || shard.clock.ticks(now) {
                shard.replica.tick();
                shard.dirty = true;
            }
            if several {
                next = next.min(shard.clock.next);
            }
        }
        self.next_tick = Some(next);
    }

    /// Tells everybody who leads the shard, if that is news.
    pub(super) fn note_leader(&mut self, id: ShardId) {
        let several = self.several();
        let shard = self.shards.get_mut(&id).expect("a shard of this core");
        let seen = (shard.replica.term(), shard.replica.leader());
        if seen == shard.seen {
            return;
        }
        shard.seen = seen;
        self.table.set_leader(id, seen.1.map(|leader| (leader, seen.0)));
        if several {
            shard.clock.draw(&mut self.rng);
        }
    }

    /// The segments from which on entries of a shard are kept for followers: no older one is.
    fn oldest_kept(&self, shard: &Shard, now: SegmentSeq) -> SegmentSeq {
        let max = self.config.wal.segments_max;
        let mut segments = max / limits::REPLICA_LAG_SEGMENTS_DIVISOR;
        if shard.gives_up {
            segments = segments.min(max.saturating_sub(self.left_to_others() + limits::REPLICA_OWN_SEGMENTS_MIN));
        }
        SegmentSeq(now.0.saturating_sub(u32::try_from(segments).unwrap_or(u32::MAX)))
    }

    /// The first segment with an entry that another voter may lack.
    pub(super) fn kept_for_others(&self, now: SegmentSeq) -> Option<SegmentSeq> {
        if !self.several() {
            return None;
        }
        let kept = |shard: &Shard| shard.places.of(shard.kept_from(self.oldest_kept(shard, now)));
        self.shards.values().filter_map(kept).min()
    }

    /// A voter that is away must not stop the others: where the log is at its limit, and nothing but what such a one
    /// lacks holds it there, less is kept for it. It may not catch up any more then. `own_from`: the first segment that
    /// is needed here.
    pub(super) fn give_up(&mut self, time: Mono, now: SegmentSeq, own_from: SegmentSeq) {
        if !self.several() {
            return;
        }
        let is_short = self.no_space_for_batch_why() == Some(NoSpaceWhy::Limit);
        let is_held = self.kept_for_others(now).is_some_and(|kept_from| kept_from < own_from);
        for (id, shard) in &mut self.shards {
            let lacks = shard.note_lacking(time);
            let given_up = lacks.is_some_and(|time| time >= GIVEN_UP) && (shard.gives_up || is_short && is_held);
            if given_up && !shard.gives_up {
                tracing::warn!(
                    core = self.config.core.0,
                    shard = id.0,
                    "the log is at its limit, and a broker that is away may not catch up any more"
                );
            }
            shard.gives_up = given_up;
        }
    }

    /// Forgets about entries what nobody asks for any more.
    pub(super) fn forget(&mut self, now: SegmentSeq) {
        let several = self.several();
        let oldest: Vec<SegmentSeq> = self.shards.values().map(|shard| self.oldest_kept(shard, now)).collect();
        for (shard, oldest) in self.shards.values_mut().zip(oldest) {
            // with one voter nobody asks for entries that are applied
            let kept = if several { shard.kept_from(oldest) } else { shard.applied };
            shard.replica.compact(kept);
            shard.places.forget_below(kept.min(shard.applied));
            shard.tail.forget_below(kept);
        }
    }
}

/// What may not have the last room. Whether a command frees space is not known here; it may have what is left to
/// others.
fn is_ordinary(bodies: &[EntryBody]) -> bool {
    bodies.iter().any(|entry| matches!(entry.head.kind, RecordKind::Batch | RecordKind::Meta))
}
