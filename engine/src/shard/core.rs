//! The pump of one core: one WAL, the replicas and partitions that share it, and everything that waits for them.

use super::api::{
    Answer, Ask, BatchRules, EpochEnd, Found, OffsetQuery, Produced, ReadDone, Refusal, Route, ShardTable, Ticket,
};
use super::peers::{self, Clock, EntryBody, Peers, Seen, Tail, ToPeer};
use super::reads::{self, DiskReads, Part, ReadJob, ReadKind, Search, TimeQuery};
use super::recovery::{self, RecoveredShard};
use super::snapshot::Places;
use super::turned_away::TurnedAway;
use super::watch::Watches;
use crate::io::buf::ChunkPool;
use crate::io::{DiskDone, DiskOp, OpId, Volume};
use crate::limits;
use crate::partition::{BatchRef, Partition, Verdict, batch, pack, records};
#[cfg(feature = "planted")]
use crate::planted::{Bug, is};
use crate::replica::{HardState, ReadyOut, Replica};
use crate::rt::rng::Rng;
use crate::stats::{CoreStats, Counters};
use crate::types::{
    CoreId, EntryId, Index, LeaderEpoch, Lsn, META_SHARD, Mono, Offset, PartitionId, ProducerId, SegmentSeq, Sequence,
    ShardId, Term, WallMs,
};
use crate::wal::{NoSpaceWhy, RecordAt, RecordHead, RecordKind, Room, Wal, WalConfig, WalError, WalOut};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Raft's clock. With one voter one tick drives all replicas of the core; with several each has a clock of its own, and
/// this is the shortest it ticks.
pub const TICK: Duration = Duration::from_millis(10);
/// What it is stretched to while nothing waits and nobody's clock counts: an idle core turns this often, to be seen to
/// live (`/livez`), and for what is done once a second.
const IDLE_TICK: Duration = Duration::from_millis(500);

/// How often segments are looked at for what can be freed, and the index is weighed.
const RELEASE_EVERY: Duration = Duration::from_secs(1);

/// What a core is made with.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    pub core: CoreId,
    /// This broker's id in every Raft group, not 0.
    pub raft_id: u64,
    /// The ids of all brokers, this one's among them: each has a replica of every shard.
    pub voters: Vec<u64>,
    pub wal: WalConfig,
    /// Budget of the WAL's buffers. Above three quarters of it readers get copies, so that a slow one holds no buffer.
    pub wal_bytes_max: usize,
    /// What was read from the disk may take, in flight, kept, and in answers that are not sent.
    pub reads_bytes_max: usize,
    /// Bytes that the index of batches may take before produce is held off.
    pub index_bytes_max: usize,
}

/// What the pump wants done. Taken by the node after each call.
#[derive(Default, Debug)]
pub struct Out {
    pub disk: Vec<(OpId, DiskOp)>,
    pub answers: Vec<(Ticket, Answer)>,
    /// For the cores of other brokers that run the same shards: [`Core::peer`] takes them. Each may be lost, doubled
    /// and overtaken; none may be changed.
    pub peers: Vec<ToPeer>,
    /// Committed commands of the meta shard, in the order of the log.
    pub meta: Vec<MetaCommitted>,
    /// The meta shard is led from here, and everything before is in `meta` already.
    pub meta_leading: bool,
    /// The meta shard was led from here and is no more; if `meta_leading` is set as well, it is again, after that. What
    /// was asked for and did not come in `meta` may still be committed, or be in [`Self::meta_lost`], much later.
    pub meta_unled: bool,
    /// Commands that were asked for here and are in no log any more: another leader wrote over them.
    pub meta_lost: Vec<Ticket>,
    /// A proof that [`Core::prove_meta`] asked for: at some time after that this core led the meta shard, and all that
    /// was committed before that time was in `meta`, here or earlier.
    pub meta_proved: Option<u64>,
    /// The state of the meta shard is wanted for a snapshot at this index ([`Core::meta_snapshot`]).
    pub meta_snapshot_wanted: bool,
    /// The WAL is poisoned: the process must end. Nothing more is acknowledged.
    pub fatal: Option<WalError>,
}

/// One command of the meta shard's log that is committed.
#[derive(Clone, Debug)]
pub struct MetaCommitted {
    pub index: Index,
    /// Who asked, if it was asked of this process.
    pub ticket: Option<Ticket>,
    pub command: Bytes,
}

/// The meta shard as a recovery found it, for the state machine.
#[derive(Default, Debug)]
pub struct RecoveredMeta {
    pub snapshot: Option<(Index, Vec<u8>)>,
    pub commands: Vec<(Index, Bytes)>,
}

/// Why a core can not start on what is on its disk. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error(transparent)]
    Wal(#[from] WalError),
    /// Each record is whole, but together they can not be what was written.
    #[error("the write-ahead log in {directory} contradicts itself: {what}")]
    Inconsistent { directory: String, what: String },
}

/// An entry that is in the log and not yet applied.
pub(super) enum Proposal {
    Batch(PendingBatch),
    Trim { head: RecordHead, waiting: Option<Ticket> },
    Meta { command: Bytes, waiting: Option<Ticket> },
    Noop,
}

pub(super) struct PendingBatch {
    pub head: RecordHead,
    pub at: RecordAt,
    /// The partition counts it among its in-flight batches. False for what a recovery or a lost leadership left.
    pub proposed: bool,
    /// Who waits: the producer, and its retries.
    pub waiting: Vec<Ticket>,
    pub append_time: Option<WallMs>,
    pub appended: Mono,
}

/// One shard's copy on this core. Owned by [`Core`].
pub(super) struct Shard {
    pub replica: Replica,
    pub partitions: BTreeMap<PartitionId, Partition>,
    pub proposals: BTreeMap<Index, Proposal>,
    /// In which segments the entries lie.
    pub places: Places,
    /// Where exactly the last ones lie. Empty with one voter.
    pub tail: Tail,
    pub clock: Clock,
    /// As of the last ready.
    pub seen: Seen,
    pub applied: Index,
    /// Something was proposed or happened that the replica has to be asked about.
    pub dirty: bool,
    /// The group that holds the last record of this shard.
    pub last_lsn: Lsn,
    /// Where the newest whole snapshot begins; before it no segment is needed for the shard's state.
    pub state_from: SegmentSeq,
    /// Some voter lacks what is behind this entry, and has done so since then.
    pub lacking: Option<(Index, Mono)>,
    /// What such a one lacks is kept no longer than there is room.
    pub gives_up: bool,
}

impl Shard {
    /// The segment with the first entry that a snapshot of now does not have, if there is one.
    fn rest_from(&self) -> Option<SegmentSeq> {
        self.places.of(Index(self.applied.0 + 1))
    }

    /// An entry of this shard is in the open group.
    pub fn appended(&mut self, index: Index, lsn: Lsn, at: RecordAt, proposal: Proposal) {
        self.last_lsn = lsn;
        self.places.note(index, at.segment);
        self.tail.note(index, at);
        self.proposals.insert(index, proposal);
    }
}

/// A produce that waits for room in the WAL.
struct Parked {
    ticket: Ticket,
    to: Route,
    batch: Bytes,
    rules: BatchRules,
    asked: Mono,
}

/// The pump. Lives on its core's thread; pure: time comes in, and what is to happen goes out through [`Out`].
pub struct Core {
    pub(super) config: CoreConfig,
    pub(super) wal: Wal,
    pub(super) shards: BTreeMap<ShardId, Shard>,
    pub(super) table: Arc<ShardTable>,
    pub(super) stats: Arc<CoreStats>,
    parked: VecDeque<Parked>,
    /// What was packed anew in this turn, see [`limits::PACK_WORK_PER_TURN`].
    packing_work: usize,
    /// The turn ended in the middle of that: the next one is due at once.
    packs_on: bool,
    /// Readies whose records are in groups up to this LSN, in LSN order.
    unpersisted: VecDeque<(Lsn, ShardId, u64)>,
    reads: DiskReads,
    pub(super) peers: Peers,
    /// Another voter's log is at its limit: what it is sent must find room there.
    waits_for_others: bool,
    pub(super) rng: Rng,
    watches: Watches,
    turned_away: TurnedAway,
    /// When a replica ticks next.
    pub(super) next_tick: Option<Mono>,
    next_release: Mono,
    /// As of the last look; what was appended since is not in it.
    index_bytes: usize,
    /// The first image of the metadata came: the partitions of the shards are those that exist.
    has_image: bool,
    /// The largest partition id that any image named.
    named_max: PartitionId,
    snapshots: super::snapshot::Snapshots,
    wal_out: Vec<WalOut>,
    ready: ReadyOut,
    pub(super) poisoned: bool,
}

impl Core {
    /// Reads the WAL and rebuilds every shard of this core. Nothing is served before the replicas lead. `seed`: random.
    pub fn recover(
        config: CoreConfig,
        table: Arc<ShardTable>,
        stats: Arc<CoreStats>,
        volume: &dyn Volume,
        pool: ChunkPool,
        seed: u64,
    ) -> Result<(Core, RecoveredMeta), RecoverError> {
        let tail_entries = if config.voters.len() > 1 { limits::REPLICA_LAG_ENTRIES_MAX } else { 0 };
        let mut scan = recovery::Scan::new(table.shards_of(config.core), tail_entries);
        let (wal, report) =
            Wal::recover(config.wal.clone(), volume, pool, seed, &mut |head, body, at| scan.record(head, body, at))?;
        tracing::info!(core = config.core.0, ?report, "the write-ahead log is read");
        let first = wal.segment_now().max(SegmentSeq(1));
        let (recovered, meta) = scan.finish(volume)?;
        let mut shards = BTreeMap::new();
        for (id, RecoveredShard { log, partitions, proposals, places, tail, applied, state_from }) in recovered {
            let replica = Replica::new(id, config.raft_id, &config.voters, log);
            let shard = Shard {
                replica,
                partitions,
                proposals,
                places,
                tail,
                clock: Clock::new(),
                seen: (Term(0), None),
                applied,
                dirty: true,
                last_lsn: wal.durable(),
                state_from: state_from.unwrap_or(first),
                lacking: None,
                gives_up: false,
            };
            shards.insert(id, shard);
        }
        let core = Core {
            reads: DiskReads::new(config.reads_bytes_max),
            peers: Peers::default(),
            waits_for_others: false,
            rng: Rng::new(seed),
            watches: Watches::default(),
            turned_away: TurnedAway::default(),
            snapshots: super::snapshot::Snapshots::default(),
            config,
            wal,
            shards,
            table,
            stats,
            parked: VecDeque::new(),
            packing_work: 0,
            packs_on: false,
            unpersisted: VecDeque::new(),
            next_tick: None,
            next_release: Mono(0),
            index_bytes: 0,
            has_image: false,
            named_max: PartitionId(0),
            wal_out: Vec::new(),
            ready: ReadyOut::default(),
            poisoned: false,
        };
        Ok((core, meta))
    }

    /// Asks for the first segment and, as the only voter, stands for election in each shard. With others it waits for a
    /// leader first.
    pub fn start(&mut self, now: Mono, out: &mut Out) {
        self.wal.start(&mut self.wal_out);
        self.next_tick = Some(now + TICK);
        let several = self.several();
        for shard in self.shards.values_mut() {
            if several {
                shard.clock.draw(&mut self.rng);
                shard.clock.start(now);
            } else {
                shard.replica.campaign();
            }
            shard.dirty = true;
        }
        self.settle(now, out);
    }

    /// Every shard of this core serves: it is led from here, or another broker is known to lead it.
    pub fn is_serving(&self) -> bool {
        let elsewhere = |shard: &Shard| shard.replica.leader().is_some_and(|leader| leader != self.config.raft_id);
        self.shards.iter().all(|(id, shard)| self.table.leading(*id).is_some() || elsewhere(shard))
    }

    /// Which partitions of this core exist: all others are forgotten, with their data.
    pub fn set_partitions(&mut self, now: Mono, exist: &[(ShardId, PartitionId)], out: &mut Out) {
        let wanted: BTreeSet<PartitionId> = exist.iter().map(|(_, p)| *p).collect();
        self.named_max = wanted.last().copied().unwrap_or_default().max(self.named_max);
        // Ids only grow. With several voters an image may be older than the entries of a shard: what it can not know of
        // is not gone.
        let unheard_of = if self.several() { Some(self.named_max) } else { None };
        let is_gone = |p: &PartitionId| !wanted.contains(p) && unheard_of.is_none_or(|named| *p <= named);
        for (shard, partition) in exist {
            if let Some(shard) = self.shards.get_mut(shard) {
                shard.partitions.entry(*partition).or_insert_with(|| Partition::new(*partition));
            }
        }
        for (id, shard) in &mut self.shards {
            if *id == META_SHARD {
                continue;
            }
            let gone: Vec<PartitionId> = shard.partitions.keys().filter(|p| is_gone(p)).copied().collect();
            for partition in gone {
                shard.partitions.remove(&partition);
                self.watches.moved(partition, &mut out.answers);
                for proposal in shard.proposals.values_mut() {
                    if let Proposal::Batch(batch) = proposal
                        && batch.head.partition == partition
                    {
                        batch.proposed = false;
                        for ticket in batch.waiting.drain(..) {
                            out.answers.push((ticket, Answer::Produced(Err(Refusal::UnknownPartition))));
                        }
                    }
                }
            }
        }
        Counters::set(&self.stats.counters.partitions, wanted.len() as u64);
        self.has_image = true;
        self.settle(now, out);
    }

    /// A question about a partition of this core. Answered in `out`, now or later.
    pub fn ask(&mut self, now: Mono, wall: WallMs, ticket: Ticket, ask: Ask, out: &mut Out) {
        if self.poisoned {
            refuse(ticket, &ask, Refusal::Storage, out);
            return;
        }
        match ask {
            Ask::Produce { to, batch, rules } => {
                let parked = Parked { ticket, to, batch, rules, asked: now };
                if self.parked.is_empty() {
                    if let Some(parked) = self.produce(now, wall, parked, out) {
                        self.parked.push_back(parked);
                    }
                } else if self.parked.len() < limits::PARKED_PRODUCES_MAX {
                    self.parked.push_back(parked);
                } else {
                    self.refuse(now, &parked, Refusal::Busy, out);
                }
            }
            Ask::Read { from, offset, bytes_max, at_least_one, epoch, watch } => {
                self.read(ticket, from, offset, bytes_max as usize, at_least_one, epoch, watch, out);
            }
            Ask::Unwatch { request } => self.watches.forget(ticket.core, request),
            Ask::Find { from, what, epoch } => self.find(ticket, from, what, epoch, out),
            Ask::EpochEnd { from, epoch, current } => {
                let answer = self.led(from, current).map(|(leader, partition)| partition.epoch_end(epoch, leader));
                out.answers.push((ticket, Answer::EpochEnd(answer)));
            }
            Ask::Trim { to, offset } => self.propose_trim(ticket, to, offset, out),
            Ask::Producers { of, producers_max } => {
                out.answers.push((ticket, Answer::Producers(self.producers(of, producers_max))));
            }
            Ask::Holdings { .. } => out.answers.push((ticket, Answer::Holdings(Ok(self.holdings())))),
            Ask::Quorum { shard, .. } => out.answers.push((ticket, Answer::Quorum(self.quorum(shard)))),
        }
    }

    /// Puts a command into the meta shard's log. It comes back in [`Out::meta`] when it is committed. False if it can
    /// not be written now. At the limit of the log, or on a full disk, only a command that `frees_space` is taken: what
    /// is left is for these, and any number of others may come.
    pub fn propose_meta(&mut self, ticket: Option<Ticket>, command: Bytes, frees_space: bool) -> bool {
        let is_short = !frees_space && self.room_for_own(command.len()) == Room::NoSpace;
        if self.poisoned || is_short || self.wal.room_for_reserved(command.len()) != Room::Yes {
            return false;
        }
        let Some(shard) = self.shards.get_mut(&META_SHARD) else { return false };
        let crc = crc32c::crc32c(&command);
        let Ok(entry) = shard.replica.propose(RecordKind::Meta, command.len() as u32, crc) else { return false };
        let head = entry_head(RecordKind::Meta, META_SHARD, entry, shard.replica.commit());
        let (lsn, at) = self.wal.append(head, &[&command], Some(crc));
        shard.dirty = true;
        shard.appended(entry.index, lsn, at, Proposal::Meta { command, waiting: ticket });
        true
    }

    /// Asks the other voters of the meta shard whether it is still led from here: [`Out::meta_proved`] brings `number`,
    /// or leadership is lost. False: it is not led from here as far as is known.
    pub fn prove_meta(&mut self, number: u64) -> bool {
        let Some(shard) = self.shards.get_mut(&META_SHARD) else { return false };
        if self.poisoned || shard.replica.prove_leadership(number).is_err() {
            return false;
        }
        shard.dirty = true;
        true
    }

    /// The state that [`Out::meta_snapshot_wanted`] asked for, as of everything in [`Out::meta`] so far.
    pub fn meta_snapshot(&mut self, bytes: Vec<u8>) {
        if let Some(shard) = self.shards.get(&META_SHARD) {
            let term = shard.replica.term_of(shard.applied).expect("the last applied entry stays in the log");
            self.snapshots.add(META_SHARD, shard.applied, term, bytes, shard.rest_from());
        }
    }

    /// An operation of the disk has ended.
    pub fn disk_done(&mut self, now: Mono, done: DiskDone, out: &mut Out) {
        if peers::is_read(done.op) {
            self.peers.read_done(&self.wal, done);
        } else if reads::is_read(done.op) {
            self.read_done(done, out);
        } else {
            self.wal.disk_done(now, done, &mut self.wal_out);
        }
        self.settle(now, out);
    }

    /// The end of a turn: ticks, what was parked, the replicas' readies, and the open group goes to the disk.
    pub fn turn_end(&mut self, now: Mono, wall: WallMs, out: &mut Out) {
        if self.poisoned {
            return;
        }
        if self.next_tick.is_some_and(|at| now >= at) {
            self.tick(now);
        }
        if now >= self.next_release {
            self.next_release = now + RELEASE_EVERY;
            self.release(now, out);
            self.hand_over();
            self.count_left_behind();
        }
        while let Some(parked) = self.parked.pop_front() {
            if let Some(still) = self.produce(now, wall, parked, out) {
                self.parked.push_front(still);
                break;
            }
        }
        self.packs_on = self.packing_work >= limits::PACK_WORK_PER_TURN && !self.parked.is_empty();
        self.packing_work = 0;
        self.waits_for_others = self.peers.is_one_at_limit(now);
        self.take_parked(now, out);
        self.append_snapshots();
        self.readies(now, out);
        // a ready that had to wait for room may be about records that are on the media by now
        self.durable(now, self.wal.durable(), out);
        self.wal.turn_end(now, &mut self.wal_out);
        self.settle(now, out);
        self.peers.send(&self.wal, &self.shards, out);
        self.reads.submit(&self.wal, &mut out.disk);
        let counters = &self.stats.counters;
        Counters::set(&counters.memory_wal_bytes, self.wal.memory_bytes() as u64);
        Counters::set(&counters.memory_reads_bytes, self.reads.held_bytes() as u64);
        Counters::set(&counters.wal_disk_bytes, self.wal.disk_bytes());
    }

    /// When the next turn is due though nothing happens. A poisoned core has nothing more to do.
    pub fn next_deadline(&self) -> Option<Mono> {
        if self.poisoned {
            return None;
        }
        if self.packs_on {
            return Some(Mono(0));
        }
        let tick = self.next_tick.map(|at| if self.may_rest() { at + IDLE_TICK } else { at });
        tick.into_iter().chain(self.wal.next_deadline()).min()
    }

    /// No replica needs its clock, and nothing waits for a turn: a leader without followers has nobody to hear from.
    fn may_rest(&self) -> bool {
        self.is_quiet() && self.snapshots.is_idle() && self.shards.values().all(|s| !s.dirty && s.replica.leads_alone())
    }

    /// The WAL has space for an ordinary batch; false while the disk is full or the limit is reached.
    pub fn has_space(&self) -> bool {
        self.no_space_why().is_none()
    }

    /// Why a batch of the usual largest size is refused for want of space, if it is. While buffers or a segment are
    /// awaited this is `None`: such a batch waits and is not refused. Until every shard is led no batch is taken, and
    /// what counts is whether the elections find space: a log at its limit is no reason not to start.
    pub fn no_space_why(&self) -> Option<NoSpaceWhy> {
        if !self.is_serving() {
            return self.no_space_for_elections_why();
        }
        let others = self.waits_for_others.then_some(NoSpaceWhy::Limit);
        others.or_else(|| self.no_space_for_batch_why())
    }

    /// Why this log itself has no space for an ordinary batch that is taken in here.
    pub(super) fn no_space_for_batch_why(&self) -> Option<NoSpaceWhy> {
        let bytes = limits::BATCH_BYTES_DEFAULT.min(self.wal.record_bytes_max());
        self.wal.no_space_why(bytes, self.left_to_others())
    }

    /// For what is taken in here, and not from another leader.
    fn room_for_own(&self, bytes: usize) -> Room {
        if self.waits_for_others { Room::NoSpace } else { self.wal.room_leaving(bytes, self.left_to_others()) }
    }

    /// Why even what frees space, and the election of a start, finds no space, if so.
    pub fn no_space_for_elections_why(&self) -> Option<NoSpaceWhy> {
        self.wal.no_space_for_reserved_why(limits::BLOCK_BYTES)
    }

    /// Since when the oldest batch waits for room in the WAL, if one does.
    pub fn waits_since(&self) -> Option<Mono> {
        self.parked.front().map(|parked| parked.asked)
    }

    /// Before a shutdown: what says that everything before it is on the media. False if there is nothing to say.
    pub fn mark(&mut self, now: Mono, out: &mut Out) -> bool {
        let marked = !self.poisoned && self.wal.mark(now, &mut self.wal_out);
        self.settle(now, out);
        marked
    }

    /// Nothing that was asked waits for the disk.
    pub fn is_quiet(&self) -> bool {
        self.parked.is_empty()
            && self.unpersisted.is_empty()
            && self.wal.is_quiet()
            && self.shards.values().all(|s| s.proposals.is_empty() || self.several() && !s.replica.is_leader())
    }

    /// The partition, if this core leads it and the epoch that the client believes in is the current one.
    pub(super) fn led(&self, route: Route, epoch: Option<LeaderEpoch>) -> Result<(LeaderEpoch, &Partition), Refusal> {
        let shard = self.shards.get(&route.shard).ok_or(Refusal::NotLeader)?;
        let term = self.table.leading(route.shard).ok_or(Refusal::NotLeader)?;
        if !self.has_image {
            return Err(Refusal::UnknownPartition);
        }
        let partition = shard.partitions.get(&route.partition).ok_or(Refusal::UnknownPartition)?;
        let current = term.leader_epoch();
        match epoch {
            Some(epoch) if epoch < current => Err(Refusal::FencedEpoch),
            Some(epoch) if epoch > current => Err(Refusal::UnknownEpoch),
            _ => Ok((current, partition)),
        }
    }

    /// Appends one batch, or answers why not. Gives the request back if the WAL has no room for it now.
    fn produce(&mut self, now: Mono, wall: WallMs, mut parked: Parked, out: &mut Out) -> Option<Parked> {
        if self.packing_work >= limits::PACK_WORK_PER_TURN && pack::is_due(&parked.batch, &parked.rules) {
            return Some(parked);
        }
        let limit = self.wal.record_bytes_max();
        let repacked = self.repack(wall, &mut parked);
        let bytes = parked.batch.len();
        let done = if let Err(refusal) = repacked {
            Err(refusal)
        } else if bytes > limit {
            Err(Refusal::TooLarge { bytes, limit })
        } else {
            match self.room_for_own(bytes) {
                Room::Yes => {
                    self.stats.stages.queue.record_ns(now.0.saturating_sub(parked.asked.0));
                    self.append_batch(now, wall, &parked, out)
                }
                Room::Wait => return Some(parked),
                Room::NoSpace => Err(Refusal::NoSpace),
            }
        };
        if let Err(refusal) = done {
            Counters::add(&self.stats.counters.produce_refused_total, 1);
            self.refuse(now, &parked, refusal, out);
        }
        None
    }

    /// Packs the batch as its topic wants it, once: what room it needs is known only then.
    fn repack(&mut self, wall: WallMs, parked: &mut Parked) -> Result<(), Refusal> {
        if parked.rules.packing.is_some() {
            self.led(parked.to, None)?;
            let work = &mut self.packing_work;
            if let Some(batch) = pack::repacked(&parked.batch, &parked.rules, wall, work)? {
                parked.batch = batch;
            }
        }
        Ok(())
    }

    fn refuse(&mut self, now: Mono, parked: &Parked, refusal: Refusal, out: &mut Out) {
        if matches!(refusal, Refusal::NoSpace | Refusal::Busy) {
            self.turn_away(now, parked.to, &parked.batch);
        }
        let refusal = self.or_not_led(parked.to, refusal);
        out.answers.push((parked.ticket, Answer::Produced(Err(refusal))));
    }

    /// A batch is refused that its producer sends again: if nothing is known of the producer, this one is due before
    /// any other.
    fn turn_away(&mut self, now: Mono, to: Route, bytes: &[u8]) {
        let (Ok((_, partition)), Ok(head)) = (self.led(to, None), batch::BatchHead::parse(bytes)) else { return };
        let is_idempotent = head.producer > ProducerId::NONE && head.base_sequence >= Sequence(0);
        if is_idempotent && !partition.knows(head.producer) {
            let first = (head.producer, head.producer_epoch, head.base_sequence);
            self.turned_away.refused(now, to.partition, first);
        }
    }

    /// The log of a broker that does not lead the partition may be full as well, and says nothing of the leader's: who
    /// asks here is to go there.
    fn or_not_led(&self, to: Route, refusal: Refusal) -> Refusal {
        self.led(to, None).err().unwrap_or(refusal)
    }

    /// Checks the batch, gives it its offsets, and copies it into the open group. The answer comes with its commit.
    fn append_batch(&mut self, now: Mono, wall: WallMs, asked: &Parked, out: &mut Out) -> Result<(), Refusal> {
        let (ticket, to) = (asked.ticket, asked.to);
        let (epoch, _) = self.led(to, None)?;
        if self.index_bytes > self.config.index_bytes_max {
            return Err(Refusal::Busy);
        }
        let several = self.several();
        let checked = batch::validate(&asked.batch, &asked.rules, wall)?;
        let shard = self.shards.get_mut(&to.shard).expect("led by this core");
        let partition = shard.partitions.get_mut(&to.partition).expect("led by this core");
        let base_offset = match partition.check(&checked.head) {
            Verdict::Append { base_offset } => base_offset,
            Verdict::Duplicate { base_offset, append_time } => {
                Counters::add(&self.stats.counters.produce_duplicates_total, 1);
                let log_start = partition.log_start();
                out.answers.push((ticket, Answer::Produced(Ok(Produced { base_offset, log_start, append_time }))));
                return Ok(());
            }
            Verdict::AwaitOriginal { index } => {
                Counters::add(&self.stats.counters.produce_duplicates_total, 1);
                match shard.proposals.get_mut(&index) {
                    Some(Proposal::Batch(original)) => original.waiting.push(ticket),
                    Some(Proposal::Trim { .. } | Proposal::Meta { .. } | Proposal::Noop) | None => {
                        panic!("{index:?} of {:?} is in flight in its partition but not in its shard", to.shard)
                    }
                }
                return Ok(());
            }
            Verdict::Refuse(refusal) => return Err(refusal),
        };
        if !self.turned_away.is_empty() {
            let claim = (checked.head.producer, checked.head.producer_epoch, checked.head.base_sequence);
            let known = partition.knows(claim.0);
            self.turned_away.judge(now, to.partition, claim, known)?;
        }
        // One voter's own log holds it back; a majority that does not answer would not.
        if several && !shard.replica.has_room() {
            return Err(Refusal::Busy);
        }
        let stored = checked.stored(base_offset, epoch);
        let bytes = checked.bytes.len();
        let entry = shard
            .replica
            .propose(RecordKind::Batch, bytes as u32, stored.crc)
            .map_err(|_not_leader| Refusal::NotLeader)?;
        let head = checked.head.record_head(to.shard, to.partition, entry, base_offset, shard.replica.commit());
        let (lsn, at) = self.wal.append(head, &checked.stored_parts(&stored), Some(stored.crc));
        shard.dirty = true;
        partition.proposed(entry, &checked.head, base_offset, at);
        let pending = PendingBatch {
            head,
            at,
            proposed: true,
            waiting: vec![ticket],
            append_time: checked.append_time,
            appended: now,
        };
        shard.appended(entry.index, lsn, at, Proposal::Batch(pending));
        Counters::add(&self.stats.counters.produce_batches_total, 1);
        Counters::add(&self.stats.counters.produce_bytes_total, bytes as u64);
        Ok(())
    }

    fn propose_trim(&mut self, ticket: Ticket, to: Route, offset: Option<Offset>, out: &mut Out) {
        let refused = |refusal, out: &mut Out| out.answers.push((ticket, Answer::Trimmed(Err(refusal))));
        let checked = self.led(to, None).and_then(|(_, p)| Ok((p.check_trim(offset)?, p.log_start())));
        let offset = match checked {
            Ok((offset, log_start)) if offset <= log_start => {
                out.answers.push((ticket, Answer::Trimmed(Ok(log_start))));
                return;
            }
            Ok((offset, _)) => offset,
            Err(refusal) => return refused(refusal, out),
        };
        // what frees space may not wait for it
        match self.wal.room_for_reserved(0) {
            Room::Yes => {}
            Room::Wait => return refused(Refusal::Busy, out),
            Room::NoSpace => return refused(Refusal::NoSpace, out),
        }
        let shard = self.shards.get_mut(&to.shard).expect("led by this core");
        let Ok(entry) = shard.replica.propose(RecordKind::Trim, 0, 0) else {
            return refused(Refusal::NotLeader, out);
        };
        let head = RecordHead {
            partition: to.partition,
            base_offset: offset,
            ..entry_head(RecordKind::Trim, to.shard, entry, shard.replica.commit())
        };
        let (lsn, at) = self.wal.append(head, &[], None);
        shard.dirty = true;
        shard.appended(entry.index, lsn, at, Proposal::Trim { head, waiting: Some(ticket) });
    }

    /// Asks each replica that has something to say, and puts what must be durable for it into the open group.
    fn readies(&mut self, now: Mono, out: &mut Out) {
        let ids: Vec<ShardId> = self.shards.iter().filter(|(_, s)| s.dirty).map(|(id, _)| *id).collect();
        for id in ids {
            // a hard state and the entry of a new leader must fit; else the replica waits for the next turn
            if self.wal.room_for_reserved(limits::BLOCK_BYTES) != Room::Yes {
                return;
            }
            self.ready_of(now, id, &[], out);
        }
    }

    /// Asks one replica. `arrived`: the entries of the message that it was given, if it was.
    pub(super) fn ready_of(&mut self, now: Mono, id: ShardId, arrived: &[EntryBody], out: &mut Out) {
        let shard = self.shards.get_mut(&id).expect("a shard of this core");
        shard.dirty = false;
        let mut ready = std::mem::take(&mut self.ready);
        shard.replica.ready(&mut ready);
        self.log(now, id, &ready, arrived, out);
        self.react(now, id, &mut ready, out);
        self.ready = ready;
    }

    /// Puts what a ready wants on the media into the open group, and remembers whom to tell when it is there.
    fn log(&mut self, now: Mono, id: ShardId, ready: &ReadyOut, arrived: &[EntryBody], out: &mut Out) {
        let shard = self.shards.get_mut(&id).expect("a shard of this core");
        if let Some(hard_state) = ready.hard_state {
            // What the entries replace lies before this record: a recovery must not take it for committed.
            let before = ready.entries.first().map_or(hard_state.commit, |entry| Index(entry.id.index.0 - 1));
            let hard_state = HardState { commit: hard_state.commit.min(before), ..hard_state };
            let (head, body) = hard_state.record(id);
            let (lsn, _) = self.wal.append(head, &[&body], None);
            shard.last_lsn = lsn;
        }
        for entry in &ready.entries {
            if let Some(theirs) = peers::find(arrived, entry.id) {
                shard.take_in(&mut self.wal, now, entry, theirs, &mut out.meta_lost);
            } else if entry.about.kind == RecordKind::Noop {
                let head = entry_head(RecordKind::Noop, id, entry.id, shard.replica.commit());
                let (lsn, at) = self.wal.append(head, &[], None);
                shard.appended(entry.id.index, lsn, at, Proposal::Noop);
            } else {
                assert!(shard.proposals.contains_key(&entry.id.index), "{:?} was never appended", entry.id);
            }
        }
        let due = shard.last_lsn;
        #[cfg(feature = "planted")]
        let leads_others = self.config.voters.len() > 1 && shard.replica.leader() == Some(self.config.raft_id);
        #[cfg(feature = "planted")]
        let due = if is(Bug::CountOwnWrite) && leads_others { self.wal.durable() } else { due };
        if ready.number != 0 {
            self.unpersisted.push_back((due, id, ready.number));
        }
    }

    /// What a ready said besides what is to be written: commits, leadership.
    fn react(&mut self, now: Mono, id: ShardId, ready: &mut ReadyOut, out: &mut Out) {
        if ready.lost_leadership {
            self.table.set_leading(id, None);
            self.lose(id, out);
            if id == META_SHARD {
                (out.meta_leading, out.meta_unled) = (false, true);
            }
        }
        self.say_in(&mut ready.messages);
        self.peers.post(ready.messages.drain(..), out);
        self.note_leader(id);
        if let Some(last) = ready.committed.last() {
            self.apply(now, id, last.index, out);
        }
        if id == META_SHARD {
            out.meta_proved = out.meta_proved.max(ready.proved);
        }
        if let Some(term) = ready.became_leader {
            self.table.set_leading(id, Some(term));
            tracing::info!(core = self.config.core.0, shard = id.0, term = term.0, "leading");
            if id == META_SHARD {
                out.meta_leading = true;
            }
        }
    }

    /// Nothing more is acknowledged, and nobody is led: the process is to end.
    pub(super) fn poison(&mut self, error: WalError, out: &mut Out) {
        self.poisoned = true;
        for id in self.shards.keys() {
            self.table.set_leading(*id, None);
            self.table.set_leader(*id, None);
        }
        out.fatal = Some(error);
    }

    /// Applies committed entries, in order, and answers those who waited for them.
    fn apply(&mut self, now: Mono, id: ShardId, up_to: Index, out: &mut Out) {
        // Before the first image a partition that is not there yet is one whose first entries were never applied; after
        // it, one that was deleted. With several voters the shard may be ahead of the image: ids only grow, so a larger
        // one than any that was named is new.
        let known = if self.has_image { Some((self.several(), self.named_max)) } else { None };
        let is_new = |id: PartitionId| known.is_none_or(|(several, named)| several && id > named);
        let shard = self.shards.get_mut(&id).expect("a shard of this core");
        let exists = |partitions: &mut BTreeMap<PartitionId, Partition>, id: PartitionId| {
            if is_new(id) {
                partitions.entry(id).or_insert_with(|| Partition::new(id));
            }
        };
        while shard.applied < up_to {
            let index = Index(shard.applied.0 + 1);
            let proposal = shard.proposals.remove(&index);
            match proposal {
                Some(Proposal::Batch(batch)) => {
                    exists(&mut shard.partitions, batch.head.partition);
                    let Some(partition) = shard.partitions.get_mut(&batch.head.partition) else {
                        // deleted in the meantime: the entry is applied to nothing
                        shard.applied = index;
                        continue;
                    };
                    if batch.proposed {
                        partition.committed(index);
                    } else {
                        let head = batch.head;
                        #[cfg(feature = "planted")]
                        let head = if is(Bug::ForgetInFlight) {
                            RecordHead { producer: crate::types::ProducerId::NONE, ..head }
                        } else {
                            head
                        };
                        partition.recovered(&head, batch.at);
                    }
                    self.stats.stages.commit.record_ns(now.0.saturating_sub(batch.appended.0));
                    let produced = Produced {
                        base_offset: batch.head.base_offset,
                        log_start: partition.log_start(),
                        append_time: batch.append_time,
                    };
                    for ticket in batch.waiting {
                        out.answers.push((ticket, Answer::Produced(Ok(produced))));
                    }
                    self.watches.moved(batch.head.partition, &mut out.answers);
                }
                Some(Proposal::Trim { head, waiting }) => {
                    exists(&mut shard.partitions, head.partition);
                    let trimmed = match shard.partitions.get_mut(&head.partition) {
                        Some(partition) => partition.trim(head.base_offset),
                        None => Err(Refusal::UnknownPartition),
                    };
                    self.watches.moved(head.partition, &mut out.answers);
                    if let Some(ticket) = waiting {
                        out.answers.push((ticket, Answer::Trimmed(trimmed)));
                    }
                }
                Some(Proposal::Meta { command, waiting }) => {
                    out.meta.push(MetaCommitted { index, ticket: waiting, command });
                }
                Some(Proposal::Noop) => {}
                None => panic!("{index:?} of {id:?} is committed but was never appended"),
            }
            shard.applied = index;
        }
    }

    /// Leadership is gone: those who wait are told, and what is in the log is applied if it commits after all.
    fn lose(&mut self, id: ShardId, out: &mut Out) {
        self.peers.forget(id);
        let shard = self.shards.get_mut(&id).expect("a shard of this core");
        for proposal in shard.proposals.values_mut() {
            match proposal {
                Proposal::Batch(batch) => {
                    batch.proposed = false;
                    for ticket in batch.waiting.drain(..) {
                        out.answers.push((ticket, Answer::Produced(Err(Refusal::NotLeader))));
                    }
                }
                Proposal::Trim { waiting, .. } => {
                    if let Some(ticket) = waiting.take() {
                        out.answers.push((ticket, Answer::Trimmed(Err(Refusal::NotLeader))));
                    }
                }
                Proposal::Meta { .. } | Proposal::Noop => {}
            }
        }
        for (id, partition) in &mut shard.partitions {
            partition.drop_uncommitted();
            // who waits for more is to ask another broker
            self.watches.moved(*id, &mut out.answers);
        }
    }

    /// Carries out what the WAL decided, until it has nothing more to say.
    fn settle(&mut self, now: Mono, out: &mut Out) {
        let mut wal_out = std::mem::take(&mut self.wal_out);
        for said in wal_out.drain(..) {
            match said {
                WalOut::Disk(op, disk_op) => out.disk.push((op, disk_op)),
                WalOut::GroupWritten { ns, bytes } => {
                    self.stats.stages.wal_write.record_ns(ns);
                    Counters::add(&self.stats.counters.wal_groups_total, 1);
                    Counters::add(&self.stats.counters.wal_bytes_total, u64::from(bytes));
                }
                WalOut::Durable(lsn) => self.durable(now, lsn, out),
                WalOut::Poisoned(error) => self.poison(error, out),
            }
        }
        self.wal_out = wal_out;
    }

    /// Everything up to `lsn` is on the media: the replicas may count it.
    fn durable(&mut self, now: Mono, lsn: Lsn, out: &mut Out) {
        if self.poisoned {
            return;
        }
        while let Some((at, id, number)) = self.unpersisted.front().copied() {
            if at > lsn {
                break;
            }
            // With several voters what comes may be more than was proposed: a hard state that has no room yet.
            let is_dirty = self.several() && self.shards.get(&id).is_some_and(|shard| shard.dirty);
            if is_dirty && self.wal.room_for_reserved(limits::BLOCK_BYTES) != Room::Yes {
                break;
            }
            self.unpersisted.pop_front();
            let mut ready = std::mem::take(&mut self.ready);
            let shard = self.shards.get_mut(&id).expect("a shard of this core");
            shard.replica.persisted(number, &mut ready);
            shard.dirty = true;
            // what was proposed since the last ready comes with it
            self.log(now, id, &ready, &[], out);
            self.react(now, id, &mut ready, out);
            self.ready = ready;
        }
        for (shard, from) in self.snapshots.durable(lsn) {
            if let Some(shard) = self.shards.get_mut(&shard) {
                shard.state_from = from;
            }
        }
    }

    /// Frees the segments that nothing needs, and begins snapshots where only old state holds one back.
    fn release(&mut self, time: Mono, out: &mut Out) {
        let now = self.wal.segment_now();
        let data_from =
            self.shards.values().flat_map(|s| s.partitions.values()).filter_map(Partition::first_segment).min();
        let pending_from = self
            .shards
            .values()
            .flat_map(|s| s.proposals.values())
            .filter_map(|p| match p {
                Proposal::Batch(batch) => Some(batch.at.segment),
                Proposal::Trim { .. } | Proposal::Meta { .. } | Proposal::Noop => None,
            })
            .min();
        let read_from = self.reads.first_segment();
        let own_from = data_from.into_iter().chain(pending_from).chain(read_from).min().unwrap_or(now);
        self.give_up(time, now, own_from);
        let data_from = self.kept_for_others(now).map_or(own_from, |kept_from| own_from.min(kept_from));
        let state_from = self.shards.values().map(|s| s.state_from).min().unwrap_or(now);
        self.wal.release_below(data_from.min(state_from), &mut self.wal_out);
        self.forget(now);
        if state_from < data_from && self.snapshots.is_idle() {
            for (id, shard) in &self.shards {
                if shard.state_from >= data_from {
                    continue;
                }
                if *id == META_SHARD {
                    out.meta_snapshot_wanted = true;
                } else {
                    let bytes = super::snapshot::encode(&shard.partitions);
                    let term = shard.replica.term_of(shard.applied).expect("the last applied entry stays in the log");
                    self.snapshots.add(*id, shard.applied, term, bytes, shard.rest_from());
                }
            }
        }
        self.index_bytes = self.shards.values().flat_map(|s| s.partitions.values()).map(Partition::index_bytes).sum();
        Counters::set(&self.stats.counters.memory_index_bytes, self.index_bytes as u64);
    }

    /// Puts the parts of snapshots into the open group, as far as there is room.
    fn append_snapshots(&mut self) {
        while let Some(part) = self.snapshots.next_part() {
            if self.wal.room_for_reserved(part.body.len() + limits::BLOCK_BYTES) != Room::Yes {
                return;
            }
            let part = self.snapshots.take_part().expect("just seen");
            let shard = self.shards.get(&part.shard).expect("a shard of this core");
            if part.number == 0 {
                // the segment with the last one may go when the snapshot is there
                let (head, body) = shard.replica.hard_state().record(part.shard);
                let (_, at) = self.wal.append(head, &[&body], None);
                self.snapshots.begin(&part, at.segment);
            }
            let (lsn, _) = self.wal.append(part.head(shard.replica.commit()), &[&part.body], None);
            self.snapshots.appended(&part, lsn);
        }
    }

    fn read(
        &mut self,
        ticket: Ticket,
        from: Route,
        offset: Offset,
        bytes_max: usize,
        at_least_one: bool,
        epoch: Option<LeaderEpoch>,
        watch: bool,
        out: &mut Out,
    ) {
        let partition = match self.led(from, epoch) {
            Ok((_, partition)) => partition,
            Err(refusal) => return out.answers.push((ticket, Answer::Read(Err(refusal)))),
        };
        let batches = match partition.read_from(offset) {
            Ok(batches) => batches,
            Err(refusal) => return out.answers.push((ticket, Answer::Read(Err(refusal)))),
        };
        let mut done = ReadDone {
            batches: Vec::new(),
            high_watermark: partition.high_watermark(),
            last_stable: partition.last_stable(),
            log_start: partition.log_start(),
        };
        let copies = self.wal.memory_bytes() > self.config.wal_bytes_max / 4 * 3;
        let mut bytes = 0;
        let mut parts = Vec::new();
        // Was it read from the disk, or has it to be? And up to where.
        let (mut is_cold, mut is_whole, mut near, mut end) = (false, true, None, offset);
        let mut has_more = false;
        for batch in batches {
            let len = batch.at.len as usize;
            if bytes + len > bytes_max && !(at_least_one && bytes == 0) {
                has_more = true;
                break;
            }
            bytes += len;
            end = Offset(batch.base_offset.0 + i64::from(batch.count));
            parts.push(match self.body_here(batch.at) {
                Some(body) if copies => Part::Here(Bytes::copy_from_slice(&body)),
                Some(body) => Part::Here(body),
                None => {
                    is_cold = true;
                    self.reads.kept(&self.wal, from.partition, batch.at, &mut near).unwrap_or_else(|| {
                        is_whole = false;
                        Part::At(batch.at)
                    })
                }
            });
        }
        if watch {
            self.watches.add(ticket, from.partition);
        }
        if is_whole {
            let answer = ReadJob::bodies(parts).map(|bodies| {
                Counters::add(&self.stats.counters.fetch_bytes_total, bytes as u64);
                done.batches = bodies;
                done
            });
            out.answers.push((ticket, Answer::Read(answer)));
        } else {
            self.reads.push(ticket, from.partition, parts, ReadKind::Fetch(done));
        }
        if is_cold && has_more {
            self.read_ahead(from, offset..end, bytes);
        }
    }

    /// What a reader that goes through a partition in order is going to ask for next.
    fn read_ahead(&mut self, from: Route, answered: Range<Offset>, bytes: usize) {
        let Some((next, bytes)) = self.reads.follow(from.partition, answered, bytes) else { return };
        let partition = self.shards.get(&from.shard).and_then(|shard| shard.partitions.get(&from.partition));
        if let Some(Ok(batches)) = partition.map(|partition| partition.read_from(next)) {
            let several = self.several();
            let on_disk = |at| self.wal.cached(at).is_none() && (!several || self.wal.is_durable(at));
            self.reads.read_ahead(batches.take_while(|batch| on_disk(batch.at)), bytes);
        }
    }

    /// A committed batch, if it is in memory. With several voters it may be committed by others before it is on the
    /// media here: then it is in memory, and must not be read from there.
    fn body_here(&self, at: RecordAt) -> Option<Bytes> {
        let cached = self.wal.cached(at);
        if cached.is_none() && self.several() {
            return self.wal.in_memory(at).map(|(_, body)| body);
        }
        cached
    }

    fn find(&mut self, ticket: Ticket, from: Route, what: OffsetQuery, epoch: Option<LeaderEpoch>, out: &mut Out) {
        let (current, partition) = match self.led(from, epoch) {
            Ok(led) => led,
            Err(refusal) => return out.answers.push((ticket, Answer::Found(Err(refusal)))),
        };
        let at = |offset, epoch| Found { offset, timestamp: WallMs(-1), epoch };
        let (first, query) = match what {
            OffsetQuery::Latest => {
                return out.answers.push((ticket, Answer::Found(Ok(at(partition.last_stable(), current)))));
            }
            OffsetQuery::Earliest | OffsetQuery::EarliestLocal => {
                let start = partition.log_start();
                let epoch = if start < partition.high_watermark() { partition.epoch_of(start) } else { current };
                return out.answers.push((ticket, Answer::Found(Ok(at(start, epoch)))));
            }
            OffsetQuery::MaxTimestamp | OffsetQuery::AtOrAfter(_) if partition.missing().is_some() => {
                return out.answers.push((ticket, Answer::Found(Err(Refusal::Storage))));
            }
            OffsetQuery::LatestTiered => return out.answers.push((ticket, Answer::Found(Ok(NOT_FOUND)))),
            OffsetQuery::MaxTimestamp => (partition.find_max_timestamp(), TimeQuery::Max),
            OffsetQuery::AtOrAfter(time) => (partition.find_time(time), TimeQuery::AtOrAfter(time)),
        };
        self.search(ticket, Search { from, query, best: None }, first, out);
    }

    /// Looks into one batch after the other until a time query is answered: one batch, or two at the log start.
    fn search(&mut self, ticket: Ticket, mut search: Search, mut next: Option<BatchRef>, out: &mut Out) {
        while let Some(batch) = next {
            let Some(body) = self.body_here(batch.at) else {
                let parts = vec![Part::At(batch.at)];
                return self.reads.push(ticket, search.from.partition, parts, ReadKind::Search(search, batch));
            };
            match self.look(&mut search, &batch, &body) {
                Ok(further) => next = further,
                Err(refusal) => return out.answers.push((ticket, Answer::Found(Err(refusal)))),
            }
        }
        out.answers.push((ticket, Answer::Found(Ok(search.best.unwrap_or(NOT_FOUND)))));
    }

    /// Looks into one batch, and says which one is next if the answer may be elsewhere.
    fn look(&self, search: &mut Search, batch: &BatchRef, body: &Bytes) -> Result<Option<BatchRef>, Refusal> {
        let (_, partition) = self.led(search.from, None)?;
        let start = partition.log_start();
        let behind = batch.base_offset + i64::from(batch.count);
        let hit = match search.query {
            TimeQuery::Max => records::max_timestamp(body, start)?,
            TimeQuery::AtOrAfter(time) => records::first_at_or_after(body, time, start)?,
        };
        let hit = hit.map(|(offset, timestamp)| Found { offset, timestamp, epoch: batch.epoch });
        match search.query {
            TimeQuery::AtOrAfter(time) => {
                search.best = hit;
                Ok(if hit.is_some() { None } else { partition.find_time_from(behind, time) })
            }
            TimeQuery::Max => {
                let best = search.best.map_or(WallMs(-1), |b| b.timestamp);
                search.best = hit.filter(|h| h.timestamp > best).or(search.best);
                let best = search.best.map_or(WallMs(-1), |b| b.timestamp);
                let straddles = batch.base_offset < start;
                let rest = if straddles { partition.find_max_timestamp_from(behind) } else { None };
                Ok(rest.filter(|r| r.max_timestamp > best))
            }
        }
    }

    fn read_done(&mut self, done: DiskDone, out: &mut Out) {
        Counters::add(&self.stats.counters.fetch_disk_reads_total, 1);
        for job in self.reads.done(&self.wal, done) {
            self.read_whole(job, out);
        }
    }

    /// Everything that the job waited for is there, or can not be had.
    fn read_whole(&mut self, job: ReadJob, out: &mut Out) {
        let ReadJob { ticket, parts, kind, .. } = job;
        let answer = match (kind, ReadJob::bodies(parts)) {
            (ReadKind::Fetch(mut done), bodies) => Answer::Read(bodies.map(|bodies| {
                let bytes: usize = bodies.iter().map(Bytes::len).sum();
                Counters::add(&self.stats.counters.fetch_bytes_total, bytes as u64);
                done.batches = bodies;
                done
            })),
            (ReadKind::Search(mut search, batch), Ok(bodies)) => match self.look(&mut search, &batch, &bodies[0]) {
                Ok(further) => return self.search(ticket, search, further, out),
                Err(refusal) => Answer::Found(Err(refusal)),
            },
            (ReadKind::Search(..), Err(refusal)) => Answer::Found(Err(refusal)),
        };
        out.answers.push((ticket, answer));
    }

    /// Bytes of what was read from the disk: in flight, kept, and in answers that are not sent.
    pub fn reads_bytes(&self) -> usize {
        self.reads.held_bytes()
    }

    /// For metrics and tests.
    pub fn wal(&self) -> &Wal {
        &self.wal
    }

    /// What this replica knows to be committed of a partition, leader or not. For tests.
    pub fn batches(&self, shard: ShardId, partition: PartitionId) -> Vec<BatchRef> {
        let partition = self.shards.get(&shard).and_then(|shard| shard.partitions.get(&partition));
        let batches = partition.and_then(|p| p.read_from(p.log_start()).ok().map(Iterator::collect));
        batches.unwrap_or_default()
    }
}

/// What a query answers when there is no such record.
const NOT_FOUND: Found = Found { offset: Offset(-1), timestamp: WallMs(-1), epoch: LeaderEpoch(-1) };

fn entry_head(kind: RecordKind, shard: ShardId, entry: EntryId, commit: Index) -> RecordHead {
    RecordHead { term: entry.term, index: entry.index, commit, ..RecordHead::new(kind, shard) }
}

/// Answers a question with a refusal, in the shape that it asks for.
fn refuse(ticket: Ticket, ask: &Ask, refusal: Refusal, out: &mut Out) {
    let answer = match ask {
        Ask::Produce { .. } => Answer::Produced(Err(refusal)),
        Ask::Read { .. } => Answer::Read(Err(refusal)),
        Ask::Find { .. } => Answer::Found(Err(refusal)),
        Ask::EpochEnd { .. } => Answer::EpochEnd(Err::<EpochEnd, Refusal>(refusal)),
        Ask::Trim { .. } => Answer::Trimmed(Err(refusal)),
        Ask::Producers { .. } => Answer::Producers(Err(refusal)),
        Ask::Holdings { .. } => Answer::Holdings(Err(refusal)),
        Ask::Quorum { .. } => Answer::Quorum(Err(refusal)),
        Ask::Unwatch { .. } => return,
    };
    out.answers.push((ticket, answer));
}
