//! One core of the broker: its connections, its pump, and its lanes to the other cores.
//!
//! The driver of a shell ([`camus_engine::rt::Driver`]): the same in production and in the simulator. A turn: what the
//! mesh and the shell brought, requests that may start, the pump, answers, sends. Nothing here decides what a request
//! means (`api/`), what a partition does (`camus_engine::shard`) or what goes between brokers (`peer/`; joined to the
//! node in `node/cluster.rs`).

use crate::api::init_producer_id::ProducerIds;
use crate::api::session::Sessions;
use crate::api::{AfterAsk, AfterGroup, AfterMeta, AfterSleep, Ctx, Outcome, Settings, Woke, table};
use crate::conn::{Conn, Finished, RequestNo};
use crate::limits;
use crate::meta_host::{COORDINATOR, FORWARDED, MetaHost};
use crate::peer::forward::Forwards;
use crate::peer::hub::Hub;
use crate::peer::roll::{DirectoryId, Roll};
use bytes::Bytes;
use camus_engine::limits::BATCH_BYTES_DEFAULT;
use camus_engine::rt::mesh::Port;
use camus_engine::rt::{ConnId, Driver, Event, ListenerId, Rt, Turn};
use camus_engine::shard::api::{Answer, Ask, ShardTable, Ticket};
use camus_engine::shard::core::{Core, Out};
use camus_engine::stats::{CoreStats, Counters};
use camus_engine::types::{BrokerId, CoreId, Lsn, META_SHARD, Mono, PartitionId, ShardId};
use camus_engine::wal::WalError;
use camus_meta::groups::{GroupAnswer, GroupAsk};
use camus_meta::{Command, Decided, Image};
use slab::Slab;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

mod cluster;

/// What one core says to another. Plain data and shared bytes.
#[derive(Debug)]
pub enum Msg {
    Ask {
        ticket: Ticket,
        ask: Ask,
    },
    Answer {
        ticket: Ticket,
        answer: Answer,
    },
    Propose {
        ticket: Ticket,
        command: Command,
    },
    Decided {
        ticket: Ticket,
        decided: Decided,
    },
    Group {
        ticket: Ticket,
        ask: GroupAsk,
    },
    GroupAnswer {
        ticket: Ticket,
        answer: GroupAnswer,
    },
    Image(Arc<Image>),
    ImageSeen {
        version: u64,
    },
    /// The sender serves its shards and knows the metadata.
    Ready,
}

/// What all cores of a broker share. Each field has one writer, or is a flag.
#[derive(Debug)]
pub struct Broker {
    pub settings: Settings,
    pub shards: Arc<ShardTable>,
    pub cores: usize,
    /// Where to listen; the ports are known (not 0) before the cores start.
    pub listeners: Vec<Listener>,
    /// Set by the signal handler's thread, which then wakes each core.
    pub stopping: AtomicBool,
    /// Cores that have no request left after `stopping`.
    pub drained: AtomicUsize,
    /// Bytes that a core may hold for its clients: requests, parts of requests, answers.
    pub clients_bytes_max: usize,
    /// The largest request.
    pub frame_bytes_max: usize,
    /// `connections.max.idle.ms`
    pub idle_max: Duration,
    /// The brokers of the cluster, this one included, by id; one alone: no peer traffic.
    pub brokers: Vec<Member>,
    /// Where this broker takes its peers' connections: core n on the port + n. None for a lone broker.
    pub peer_listen: Option<SocketAddr>,
    /// In a cluster: the data directories of all brokers.
    pub roll: Option<Arc<Roll>>,
}

/// A broker of the cluster. All of them have the same number of cores, and so the same shards on core n.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub id: BrokerId,
    /// How clients reach it.
    pub advertised: (String, u16),
    /// Core n: port + n.
    pub peer: SocketAddr,
}

/// One address that every core listens on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub addr: SocketAddr,
    /// How clients that come through it are told to reach this broker.
    pub advertised: (String, u16),
}

/// Where a core says how it is. Called on the core's thread; must not block.
pub trait Report {
    /// Its WAL is read; its loop turns.
    fn recovered(&self);
    /// It knows the metadata, and who leads its shards: this broker, or another one. Its first records are on the
    /// media.
    fn serving(&self);
    /// It accepts connections.
    fn listening(&self);
    /// Whether the WAL can take records; said when it changes.
    fn has_space(&self, has: bool);
    /// Whether the disk has not ended anything for [`limits::DISK_HANGS_AFTER`] though the WAL waits for it; said when
    /// it changes.
    fn disk_hangs(&self, _hangs: bool) {}
    /// Whether a shard of this core has had no leader that it knows of for [`limits::LEADERLESS_AFTER`]; said when it
    /// changes. Of brokers of a cluster.
    fn leaderless(&self, _is: bool) {}
    fn stopping(&self);
    fn can_not_listen(&self, addr: SocketAddr, error: &io::Error);
    /// Another broker knows `known` as this broker's directory, and this one never took part in the cluster.
    fn kept_out(&self, _by: BrokerId, _known: DirectoryId) {}
    /// The storage lied: the process has to end now. The real one does not return.
    fn fatal(&self, error: &WalError);
}

/// A connection on this core.
struct Client {
    id: ConnId,
    conn: Conn,
    sending: bool,
    receiving: bool,
    closing: bool,
    /// In `dirty`.
    marked: bool,
    /// In `held` of the node.
    held: bool,
    running: Vec<usize>,
    /// Bytes with the kernel, and since when.
    sent_bytes: usize,
    sent_at: Mono,
    /// What `requests_bytes` and `answers_bytes` hold for this connection.
    accounted: (usize, usize),
}

/// A request that waits for answers, for the meta shard, for its group, or for time.
struct Running {
    generation: u32,
    slot: u32,
    no: RequestNo,
    missing: usize,
    waits: Waits,
    /// Something that it watches has moved before it slept.
    moved: bool,
    /// Cores at which it may have watches.
    watched: u64,
    holds: Holds,
    /// Of a client that is gone: its frame, which no connection counts any more.
    frame_bytes: usize,
}

/// What a request that waits holds beside its frame, bytes. Counted from the moment in which it is asked for, so that
/// reads that begin together do not each see the same room.
#[derive(Clone, Copy, Default)]
struct Holds {
    /// What its continuation keeps.
    kept: usize,
    /// What the reads that it waits for may bring.
    promised: usize,
    /// What they have brought.
    came: usize,
}

impl Holds {
    fn bytes(&self) -> usize {
        self.kept + self.promised.max(self.came)
    }
}

enum Waits {
    Answers(Vec<Option<Answer>>, AfterAsk),
    Decisions(Vec<Option<Decided>>, AfterMeta),
    Group(Option<GroupAnswer>, AfterGroup),
    Sleep(Mono, AfterSleep),
}

/// One core of a broker. Lives on its thread.
pub struct Node {
    me: CoreId,
    broker: Arc<Broker>,
    stats: Arc<CoreStats>,
    core: Core,
    out: Out,
    meta: Option<MetaHost>,
    port: Port<Msg>,
    /// The links to other brokers, where there are any.
    hub: Option<Hub>,
    /// Commands that another broker was asked to write. On core 0.
    forwards: Forwards,
    /// What did not fit into a lane, by core. Bounded by what is in flight: nothing new starts while one is long.
    outbox: Vec<VecDeque<Msg>>,
    image: Arc<Image>,
    clients: Vec<Option<Client>>,
    dirty: VecDeque<u32>,
    requests: Slab<Running>,
    generation: u32,
    sleepers: BTreeSet<(Mono, u64)>,
    sessions: Sessions,
    producer_ids: ProducerIds,
    listeners: Vec<ListenerId>,
    ready: Vec<bool>,
    /// Connections that may start requests again when there is room.
    held: Vec<u32>,
    /// What connections hold for requests.
    requests_bytes: usize,
    /// What they hold for answers that are not sent.
    answers_bytes: usize,
    /// What requests that wait hold beside their frames: reads under way, and what was read before them.
    reads_bytes: usize,
    /// Of that, what the continuation that ran last keeps for its request.
    kept_bytes: usize,
    /// The frame of the request that is begun for a client that is gone.
    gone_frame_bytes: usize,
    /// Over budget one connection goes on, so that there is an end to it: its slot.
    owner: Option<u32>,
    /// Since when what it brings is counted, and how much that is.
    owner_since: Option<Mono>,
    owner_brought: usize,
    /// The shell receives little at a time, until then at least.
    spares_until: Option<Mono>,
    /// But of the one that has the turn.
    spares_not: Option<ConnId>,
    /// The budget was spent when the last turn ended.
    was_full: bool,
    next_idle_check: Mono,
    stop_by: Option<Mono>,
    drained: bool,
    /// The log says that all of it is on the media.
    marked: bool,
    report: Box<dyn Report>,
    had_space: bool,
    /// What of the WAL was durable when that moved last, or when there was nothing to wait for; and when.
    disk_moved: Option<(Lsn, Mono)>,
    disk_hung: bool,
    /// Since when a shard of this core has no leader; and whether that was said.
    leaderless_since: Option<Mono>,
    leaderless: bool,
    failed: bool,
}

impl Node {
    /// `meta` is the meta shard's state machine, on core 0 only.
    pub fn new(
        me: CoreId,
        broker: Arc<Broker>,
        stats: Arc<CoreStats>,
        core: Core,
        meta: Option<MetaHost>,
        port: Port<Msg>,
        report: Box<dyn Report>,
    ) -> Node {
        assert_eq!(meta.is_some(), me == CoreId(0), "the meta shard lives on core 0");
        let cores = broker.cores;
        let hub = cluster::hub(&broker, me);
        let mut meta = meta;
        if let Some(meta) = meta.as_mut().filter(|_| hub.is_some()) {
            meta.set_replicated();
        }
        Node {
            me,
            sessions: Sessions::default(),
            stats,
            core,
            out: Out::default(),
            meta,
            port,
            hub,
            forwards: Forwards::new(0),
            outbox: (0..cores).map(|_| VecDeque::new()).collect(),
            image: Arc::new(Image::default()),
            clients: Vec::new(),
            dirty: VecDeque::new(),
            requests: Slab::new(),
            generation: 0,
            sleepers: BTreeSet::new(),
            producer_ids: ProducerIds::default(),
            listeners: Vec::new(),
            ready: vec![false; cores],
            held: Vec::new(),
            requests_bytes: 0,
            answers_bytes: 0,
            reads_bytes: 0,
            kept_bytes: 0,
            gone_frame_bytes: 0,
            owner: None,
            owner_since: None,
            owner_brought: 0,
            spares_until: None,
            spares_not: None,
            was_full: false,
            next_idle_check: Mono(0),
            stop_by: None,
            drained: false,
            marked: false,
            report,
            had_space: true,
            disk_moved: None,
            disk_hung: false,
            leaderless_since: None,
            leaderless: false,
            failed: false,
            broker,
        }
    }

    // ---- between cores

    fn post(&mut self, to: CoreId, msg: Msg) {
        let outbox = &mut self.outbox[to.0 as usize];
        if !outbox.is_empty() {
            outbox.push_back(msg);
        } else if let Err(msg) = self.port.try_send(to, msg) {
            outbox.push_back(msg);
        }
    }

    fn others(&self) -> Vec<CoreId> {
        (0..self.broker.cores).map(|c| CoreId(c as u16)).filter(|c| *c != self.me).collect()
    }

    /// A disk that hangs fails nothing, so nobody else says so.
    fn look_at_disk(&mut self, now: Mono) {
        let durable = self.core.wal().durable();
        let hangs = match self.disk_moved {
            Some((before, since)) if before == durable && !self.core.wal().is_quiet() => {
                now.since(since) > limits::DISK_HANGS_AFTER
            }
            _ => {
                self.disk_moved = Some((durable, now));
                false
            }
        };
        if hangs != self.disk_hung {
            self.disk_hung = hangs;
            self.report.disk_hangs(hangs);
        }
    }

    fn empty_outboxes(&mut self) {
        for (to, outbox) in self.outbox.iter_mut().enumerate() {
            while let Some(msg) = outbox.pop_front() {
                if let Err(msg) = self.port.try_send(CoreId(to as u16), msg) {
                    outbox.push_front(msg);
                    break;
                }
            }
        }
    }

    /// Too much waits for other cores: nothing new starts.
    fn is_congested(&self) -> bool {
        self.outbox.iter().any(|o| o.len() > limits::OUTBOX_MAX)
    }

    /// Requests have half of the clients' budget. Above three quarters of it only one of the connections that hold much
    /// goes on.
    fn is_over_budget(&self) -> bool {
        self.requests_bytes > self.broker.clients_bytes_max / 2 / 4 * 3
    }

    /// The whole budget of clients is spent: small ones wait as well.
    fn is_full(&self) -> bool {
        self.requests_bytes + self.answers_bytes + self.reads_bytes > self.broker.clients_bytes_max
    }

    /// Answers have the other half. Above it no fetch begins, and at twice as much nothing but produces, whose answers
    /// are small.
    fn is_short_for_answers(&self) -> bool {
        self.answers_bytes > self.broker.clients_bytes_max / 2
    }

    /// What reads under way may bring counts before it is there: no fetch begins when it has no room.
    fn is_short_for_reads(&self) -> bool {
        self.answers_bytes + self.reads_bytes > self.broker.clients_bytes_max / 2
    }

    /// The next request has to wait until others have taken their answers, or are closed because they do not.
    fn is_held_back(&self, slot: u32) -> bool {
        let client = self.clients.get(slot as usize).and_then(Option::as_ref);
        match client.and_then(|c| c.conn.next_key()) {
            None | Some(table::PRODUCE) => false,
            Some(table::FETCH) => self.is_short_for_reads(),
            Some(_) => self.answers_bytes > self.broker.clients_bytes_max,
        }
    }

    /// May this connection begin a request that it has brought? That takes no memory, and gives some back when it ends.
    fn may_begin(&self, slot: u32) -> bool {
        !self.is_congested() && !self.is_held_back(slot)
    }

    /// May this connection receive?
    fn may_go_on(&mut self, slot: u32) -> bool {
        if !self.may_begin(slot) {
            return false;
        }
        let is_small = |c: &Client| c.conn.requests_bytes() <= limits::CONN_SMALL_BYTES;
        if !self.is_over_budget() || (!self.is_full() && self.client(slot).is_some_and(|c| is_small(c))) {
            return true;
        }
        if self.owner.is_none() && !self.only_waits(slot) {
            self.owner = Some(slot);
            self.owner_since = None;
        }
        self.owner == Some(slot)
    }

    /// Everything that runs for this connection waits for others, or for time: to let it go on frees nothing.
    fn only_waits(&self, slot: u32) -> bool {
        let Some(client) = self.clients.get(slot as usize).and_then(Option::as_ref) else { return true };
        let sleeps = |key: &usize| matches!(self.requests[*key].waits, Waits::Sleep(..));
        !client.running.is_empty() && client.running.iter().all(sleeps)
    }

    fn received_from(&mut self, rt: &mut dyn Rt, from: CoreId, msg: Msg) {
        match msg {
            Msg::Ask { ticket, ask } => self.core.ask(rt.now(), rt.wall(), ticket, ask, &mut self.out),
            Msg::Answer { ticket, answer } => self.answered(rt, ticket, answer),
            Msg::Propose { ticket, command } => self.propose(rt, ticket, &command),
            Msg::Decided { ticket, decided } => self.decided(rt, ticket, decided),
            Msg::Group { ticket, ask } => self.ask_group(rt, ticket, ask),
            Msg::GroupAnswer { ticket, answer } => self.group_answered(rt, ticket, answer),
            Msg::Image(image) => {
                let version = image.version;
                self.see(rt, image);
                self.post(from, Msg::ImageSeen { version });
            }
            Msg::ImageSeen { version } => {
                if let Some(meta) = &mut self.meta {
                    meta.seen(from, version);
                }
            }
            Msg::Ready => self.ready[from.0 as usize] = true,
        }
    }

    /// A newer image: partitions of this core come and go with it.
    fn see(&mut self, rt: &mut dyn Rt, image: Arc<Image>) {
        let mine: Vec<(ShardId, PartitionId)> = image
            .topics()
            .flat_map(|t| t.partitions.iter())
            .filter(|p| self.broker.shards.core(p.shard()) == self.me)
            .map(|p| (p.shard(), p.partition()))
            .collect();
        self.core.set_partitions(rt.now(), &mine, &mut self.out);
        self.image = image;
    }

    fn propose(&mut self, rt: &mut dyn Rt, ticket: Ticket, command: &Command) {
        if self.forward(rt.now(), ticket, command) {
            return;
        }
        let refused = match &mut self.meta {
            Some(meta) => meta.propose(&mut self.core, ticket, command),
            None => panic!("{ticket:?} came to a core without the meta shard"),
        };
        if let Some(decided) = refused {
            self.decide(rt, 0, ticket, decided);
        }
    }

    fn ask_group(&mut self, rt: &mut dyn Rt, ticket: Ticket, ask: GroupAsk) {
        match &mut self.meta {
            Some(meta) => meta.ask_group(&mut self.core, rt.now(), ticket, ask),
            None => panic!("{ticket:?} came to a core without the coordinator"),
        }
    }

    /// `version`: of the image in which it can be seen.
    fn decide(&mut self, rt: &mut dyn Rt, version: u64, ticket: Ticket, decided: Decided) {
        if ticket.core == FORWARDED {
            self.tell_broker(version, ticket, &decided);
        } else if ticket.core == COORDINATOR {
            let meta = self.meta.as_mut().expect("the coordinator lives beside the meta shard");
            meta.group_decided(ticket, decided);
        } else if ticket.core == self.me {
            self.decided(rt, ticket, decided);
        } else {
            self.post(ticket.core, Msg::Decided { ticket, decided });
        }
    }

    // ---- requests

    fn running(&mut self, request: u64) -> Option<&mut Running> {
        let (generation, key) = ((request >> 32) as u32, (request & 0xffff_ffff) as usize);
        self.requests.get_mut(key).filter(|r| r.generation == generation)
    }

    fn take(&mut self, key: usize) -> Running {
        let running = self.requests.remove(key);
        self.reads_bytes -= running.holds.bytes();
        self.requests_bytes -= running.frame_bytes;
        running
    }

    /// The request waits, and holds this meanwhile.
    fn hold(&mut self, request: u64, holds: Holds) {
        if let Some(running) = self.running(request) {
            running.holds = holds;
            self.reads_bytes += holds.bytes();
        }
    }

    fn answered(&mut self, rt: &mut dyn Rt, ticket: Ticket, answer: Answer) {
        let Some(running) = self.running(ticket.request) else { return };
        if matches!(answer, Answer::Moved) {
            if matches!(running.waits, Waits::Sleep(..)) {
                self.wake(rt, ticket.request, Woke::Moved);
            } else {
                running.moved = true;
            }
            return;
        }
        let Waits::Answers(answers, _) = &mut running.waits else { return };
        let held = running.holds.bytes();
        running.holds.came += read_bytes(&answer);
        let more = running.holds.bytes() - held;
        let part = &mut answers[ticket.part as usize];
        assert!(part.is_none(), "{ticket:?} was answered twice");
        *part = Some(answer);
        running.missing -= 1;
        let is_whole = running.missing == 0;
        self.reads_bytes += more;
        if is_whole {
            self.go_on(rt, ticket.request);
        }
    }

    fn decided(&mut self, rt: &mut dyn Rt, ticket: Ticket, decided: Decided) {
        let Some(running) = self.running(ticket.request) else { return };
        let Waits::Decisions(all, _) = &mut running.waits else { return };
        all[ticket.part as usize] = Some(decided);
        running.missing -= 1;
        if running.missing == 0 {
            self.go_on(rt, ticket.request);
        }
    }

    fn group_answered(&mut self, rt: &mut dyn Rt, ticket: Ticket, answer: GroupAnswer) {
        let Some(running) = self.running(ticket.request) else { return };
        let Waits::Group(waiting, _) = &mut running.waits else { return };
        assert!(waiting.is_none(), "{ticket:?} was answered twice");
        *waiting = Some(answer);
        self.go_on(rt, ticket.request);
    }

    /// Everything that the request waited for is there.
    fn go_on(&mut self, rt: &mut dyn Rt, request: u64) {
        let running = self.take((request & 0xffff_ffff) as usize);
        let outcome = match running.waits {
            Waits::Answers(answers, then) => {
                let answers = answers.into_iter().map(|a| a.expect("none is missing")).collect();
                self.with_ctx(rt, |ctx| then(ctx, answers))
            }
            Waits::Decisions(all, then) => {
                let all = all.into_iter().map(|d| d.expect("none is missing")).collect();
                self.with_ctx(rt, |ctx| then(ctx, all))
            }
            Waits::Group(answer, then) => {
                let answer = answer.expect("none is missing");
                self.with_ctx(rt, |ctx| then(ctx, answer))
            }
            Waits::Sleep(..) => panic!("a sleeping request is woken, not gone on with"),
        };
        self.follow(rt, running.slot, running.no, request, running.moved, running.watched, outcome);
    }

    fn wake(&mut self, rt: &mut dyn Rt, request: u64, woke: Woke) {
        let running = self.take((request & 0xffff_ffff) as usize);
        let Waits::Sleep(until, then) = running.waits else { panic!("only a sleeping request is woken") };
        self.sleepers.remove(&(until, request));
        let outcome = self.with_ctx(rt, |ctx| then(ctx, woke));
        self.follow(rt, running.slot, running.no, request, false, running.watched, outcome);
    }

    fn with_ctx(&mut self, rt: &mut dyn Rt, f: impl FnOnce(&mut Ctx<'_>) -> Outcome) -> Outcome {
        let (now, wall) = (rt.now(), rt.wall());
        let mut random = || rt.random();
        let taken = self.answers_bytes + self.reads_bytes;
        let fetch_room_bytes = (self.broker.clients_bytes_max / 2).saturating_sub(taken) / limits::FETCH_SHARE;
        let mut ctx = Ctx {
            now,
            wall,
            image: &self.image,
            shards: &self.broker.shards,
            brokers: &self.broker.brokers,
            settings: &self.broker.settings,
            sessions: &mut self.sessions,
            producer_ids: &mut self.producer_ids,
            random: &mut random,
            fetch_room_bytes,
            kept_bytes: 0,
        };
        let outcome = f(&mut ctx);
        self.kept_bytes = ctx.kept_bytes;
        outcome
    }

    /// Carries out what a handler wants, until the request is over or waits.
    fn follow(
        &mut self,
        rt: &mut dyn Rt,
        slot: u32,
        no: RequestNo,
        old: u64,
        mut moved: bool,
        mut watched: u64,
        mut outcome: Outcome,
    ) {
        self.not_running(slot, (old & 0xffff_ffff) as usize);
        // each round ends the request, parks it, or runs a continuation, of which a handler has few
        loop {
            match outcome {
                Outcome::Reply(reply) => return self.finish(rt, slot, no, old, watched, Finished::Reply(reply)),
                Outcome::Silent => return self.finish(rt, slot, no, old, watched, Finished::Silent),
                Outcome::Close(why) => return self.finish(rt, slot, no, old, watched, Finished::Close(why)),
                Outcome::Ask(asks, then) if asks.is_empty() => {
                    outcome = self.with_ctx(rt, |ctx| then(ctx, Vec::new()));
                }
                Outcome::Ask(asks, then) => {
                    let missing = asks.len();
                    let waits = Waits::Answers((0..missing).map(|_| None).collect(), then);
                    let request = self.park(slot, no, old, moved, watched, missing, waits);
                    let mut holds = Holds { kept: self.kept_bytes, ..Holds::default() };
                    for (part, ask) in asks.into_iter().enumerate() {
                        let ticket = Ticket { core: self.me, request, part: part as u32 };
                        let promised = promised_bytes(&ask);
                        let to = ask.core().expect("an unwatch is no question");
                        if matches!(ask, Ask::Read { watch: true, .. }) {
                            watched |= 1 << to.0;
                        }
                        if to == self.me {
                            self.core.ask(rt.now(), rt.wall(), ticket, ask, &mut self.out);
                        } else {
                            self.post(to, Msg::Ask { ticket, ask });
                        }
                        // what memory answers at once is known, and counts as it is
                        let at_once = self.out.answers.last().filter(|(to, _)| *to == ticket);
                        holds.promised += at_once.map_or(promised, |(_, answer)| read_bytes(answer));
                    }
                    if let Some(running) = self.running(request) {
                        running.watched = watched;
                    }
                    self.hold(request, holds);
                    return;
                }
                Outcome::Meta(commands, then) if commands.is_empty() => {
                    outcome = self.with_ctx(rt, |ctx| then(ctx, Vec::new()));
                }
                Outcome::Meta(commands, then) => {
                    let missing = commands.len();
                    let waits = Waits::Decisions((0..missing).map(|_| None).collect(), then);
                    let request = self.park(slot, no, old, moved, watched, missing, waits);
                    for (part, command) in commands.into_iter().enumerate() {
                        let ticket = Ticket { core: self.me, request, part: part as u32 };
                        if self.meta.is_some() {
                            self.propose(rt, ticket, &command);
                        } else {
                            self.post(CoreId(0), Msg::Propose { ticket, command });
                        }
                    }
                    return;
                }
                Outcome::Group(ask, then) => {
                    let request = self.park(slot, no, old, moved, watched, 1, Waits::Group(None, then));
                    let ticket = Ticket { core: self.me, request, part: 0 };
                    if self.meta.is_some() {
                        self.ask_group(rt, ticket, ask);
                    } else {
                        self.post(CoreId(0), Msg::Group { ticket, ask });
                    }
                    return;
                }
                Outcome::Sleep(until, then) => {
                    let stopping = self.stop_by.is_some();
                    if moved || until <= rt.now() || stopping {
                        let woke = if moved { Woke::Moved } else { Woke::Deadline };
                        moved = false;
                        outcome = self.with_ctx(rt, |ctx| then(ctx, woke));
                        continue;
                    }
                    let request = self.park(slot, no, old, false, watched, 0, Waits::Sleep(until, then));
                    self.sleepers.insert((until, request));
                    self.hold(request, Holds { kept: self.kept_bytes, ..Holds::default() });
                    return;
                }
            }
        }
    }

    /// The request is over: its answer waits for its turn on the connection.
    fn finish(&mut self, rt: &dyn Rt, slot: u32, no: RequestNo, request: u64, watched: u64, what: Finished) {
        self.unwatch(request, watched);
        if let Some(client) = self.client(slot) {
            client.conn.finished(rt.now(), no, what);
        }
        self.account(slot);
        self.mark(slot);
    }

    /// Keeps the request under its old name if it had one: its watches know it by that.
    fn park(
        &mut self,
        slot: u32,
        no: RequestNo,
        old: u64,
        moved: bool,
        watched: u64,
        missing: usize,
        waits: Waits,
    ) -> u64 {
        let generation = if old == NEW { self.next_generation() } else { (old >> 32) as u32 };
        let key = self.requests.insert(Running {
            generation,
            slot,
            no,
            missing,
            waits,
            moved,
            watched,
            holds: Holds::default(),
            frame_bytes: if slot == GONE { self.gone_frame_bytes } else { 0 },
        });
        self.requests_bytes += self.requests[key].frame_bytes;
        if old != NEW {
            // nothing was put in between: the slab gives the key back that was freed last
            assert_eq!(key as u64, old & 0xffff_ffff, "a request keeps its name while it lives");
        }
        let request = (u64::from(generation) << 32) | key as u64;
        if let Some(client) = self.client(slot) {
            client.running.push(key);
        }
        request
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn not_running(&mut self, slot: u32, key: usize) {
        if let Some(client) = self.client(slot) {
            client.running.retain(|k| *k != key);
        }
    }

    fn unwatch(&mut self, request: u64, watched: u64) {
        for core in 0..self.broker.cores {
            if watched & (1 << core) == 0 {
                continue;
            }
            let (to, ask) = (CoreId(core as u16), Ask::Unwatch { request });
            let ticket = Ticket { core: self.me, request, part: 0 };
            if to == self.me {
                self.core.ask(Mono(0), camus_engine::types::WallMs(0), ticket, ask, &mut self.out);
            } else {
                self.post(to, Msg::Ask { ticket, ask });
            }
        }
    }

    // ---- connections

    fn client(&mut self, slot: u32) -> Option<&mut Client> {
        self.clients.get_mut(slot as usize).and_then(Option::as_mut)
    }

    fn client_of(&mut self, id: ConnId) -> Option<&mut Client> {
        self.client(id.slot).filter(|c| c.id == id)
    }

    fn mark(&mut self, slot: u32) {
        if let Some(client) = self.client(slot)
            && !client.marked
        {
            client.marked = true;
            self.dirty.push_back(slot);
        }
    }

    /// Brings the core's sums in line with what the connection holds now.
    fn account(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        let (requests, answers) = (client.conn.requests_bytes(), client.conn.answers_bytes());
        self.requests_bytes = self.requests_bytes - client.accounted.0 + requests;
        self.answers_bytes = self.answers_bytes - client.accounted.1 + answers;
        client.accounted = (requests, answers);
    }

    fn close(&mut self, rt: &mut dyn Rt, slot: u32, why: &str) {
        if let Some(client) = self.client(slot)
            && !client.closing
        {
            client.closing = true;
            let id = client.id;
            tracing::debug!(core = self.me.0, ?id, why, "connection closed by us");
            rt.close(id);
        }
    }

    fn opened(&mut self, now: Mono, listener: ListenerId, id: ConnId, peer: IpAddr) {
        let slot = id.slot as usize;
        let number = self.listeners.iter().position(|l| *l == listener).expect("accepted by a listener of ours");
        let advertised = self.broker.listeners[number].advertised.clone();
        if self.clients.len() <= slot {
            self.clients.resize_with(slot + 1, || None);
        }
        assert!(self.clients[slot].is_none(), "{id:?} was opened over another");
        self.clients[slot] = Some(Client {
            id,
            conn: Conn::new(now, advertised, peer, self.broker.frame_bytes_max),
            sending: false,
            receiving: true,
            closing: false,
            marked: false,
            held: false,
            running: Vec::new(),
            sent_bytes: 0,
            sent_at: now,
            accounted: (0, 0),
        });
        let counters = &self.stats.counters;
        Counters::add(&counters.connections_total, 1);
        Counters::add(&counters.connections, 1);
    }

    /// The connection is gone, and so is everything that was to be answered on it. Produces that came whole take
    /// effect.
    fn closed(&mut self, rt: &mut dyn Rt, id: ConnId) {
        if self.client_of(id).is_none() {
            return;
        }
        let Some(mut client) = self.clients[id.slot as usize].take() else { return };
        while self.stop_by.is_none()
            && !client.closing
            && !self.is_congested()
            && let Some(request) = client.conn.begin_unanswered(rt.now())
        {
            Counters::add(&self.stats.counters.requests_total, 1);
            self.gone_frame_bytes = request.body.len();
            let outcome = self.with_ctx(rt, |ctx| table::handle(ctx, &request));
            self.follow(rt, GONE, RequestNo(0), NEW, false, 0, outcome);
        }
        self.requests_bytes -= client.accounted.0;
        self.answers_bytes -= client.accounted.1;
        if self.owner == Some(id.slot) {
            self.owner = None;
        }
        for key in client.running {
            let running = self.take(key);
            let request = (u64::from(running.generation) << 32) | key as u64;
            if let Waits::Sleep(until, _) = running.waits {
                self.sleepers.remove(&(until, request));
            }
            self.unwatch(request, running.watched);
        }
        self.stats.counters.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Starts what may start, sends what is answered, and receives or does not.
    fn tend(&mut self, rt: &mut dyn Rt, slot: u32) {
        match self.client(slot) {
            Some(client) => client.marked = false,
            None => return,
        }
        while self.stop_by.is_none() && self.may_begin(slot) {
            let now = rt.now();
            let Some(client) = self.client(slot) else { return };
            let Some((no, request)) = client.conn.begin(now) else { break };
            Counters::add(&self.stats.counters.requests_total, 1);
            let outcome = self.with_ctx(rt, |ctx| table::handle(ctx, &request));
            self.stats.stages.decode.record_ns(rt.now().0.saturating_sub(request.received.0));
            self.follow(rt, slot, no, NEW, false, 0, outcome);
        }
        self.account(slot);
        let goes_on = self.may_go_on(slot);
        let now = rt.now();
        let Some(client) = self.client(slot) else { return };
        if client.closing {
            return;
        }
        if !client.sending {
            let mut parts = Vec::new();
            client.conn.take_output(&mut parts);
            if !parts.is_empty() {
                client.sent_bytes = parts.iter().map(Bytes::len).sum();
                client.sent_at = now;
                client.sending = true;
                rt.send(client.id, parts);
            } else if let Some(why) = client.conn.is_over() {
                return self.close(rt, slot, why);
            }
        }
        let wanted = client.conn.wants_bytes() && goes_on;
        if wanted != client.receiving {
            client.receiving = wanted;
            let id = client.id;
            rt.set_receiving(id, wanted);
        }
        if !goes_on && !client.held {
            client.held = true;
            self.held.push(slot);
        }
    }

    // ---- the turn

    /// Takes what the pump said. True if there was anything.
    fn take_out(&mut self, rt: &mut dyn Rt) -> bool {
        let mut any = false;
        if let Some(error) = self.out.fatal.take() {
            self.failed = true;
            self.report.fatal(&error);
            return false;
        }
        for (op, disk_op) in self.out.disk.drain(..) {
            rt.disk().submit(op, disk_op);
        }
        self.post_messages();
        for (ticket, answer) in std::mem::take(&mut self.out.answers) {
            any = true;
            if ticket.core == self.me {
                self.answered(rt, ticket, answer);
            } else {
                self.post(ticket.core, Msg::Answer { ticket, answer });
            }
        }
        if let Some(mut meta) = self.meta.take() {
            for ticket in std::mem::take(&mut self.out.meta_lost) {
                any = true;
                meta.lost(ticket);
            }
            for committed in std::mem::take(&mut self.out.meta) {
                any = true;
                meta.committed(committed);
            }
            if std::mem::take(&mut self.out.meta_unled) {
                any = true;
                meta.step_down();
            }
            if std::mem::take(&mut self.out.meta_leading) {
                let term = self.broker.shards.leading(META_SHARD).expect("who leads has said so in the table");
                meta.lead(rt.now(), term);
            }
            if let Some(number) = self.out.meta_proved.take() {
                any = true;
                meta.proved(&mut self.core, rt.now(), number);
            }
            meta.bootstrap(&mut self.core);
            if std::mem::take(&mut self.out.meta_snapshot_wanted) {
                self.core.meta_snapshot(meta.snapshot());
            }
            if let Some(image) = meta.publish() {
                any = true;
                for core in self.others() {
                    self.post(core, Msg::Image(Arc::clone(&image)));
                }
                meta.seen(self.me, image.version);
                self.see(rt, image);
            }
            self.meta = Some(meta);
            while let Some((version, ticket, decided)) = self.meta.as_mut().and_then(MetaHost::next_answer) {
                any = true;
                self.decide(rt, version, ticket, decided);
            }
            any |= self.end_forwards(rt);
            // one that has to be proven first has the pump do something, too
            any |= self.meta.as_ref().is_some_and(MetaHost::has_group_answers);
            let answers = self.meta.as_mut().map(|meta| meta.take_group_answers(&mut self.core)).unwrap_or_default();
            for (ticket, answer) in answers {
                if ticket.core == self.me {
                    self.group_answered(rt, ticket, answer);
                } else {
                    self.post(ticket.core, Msg::GroupAnswer { ticket, answer });
                }
            }
        }
        any
    }

    /// Serves as soon as this core knows the metadata, and leads its shards or knows who does; listens when all cores
    /// do.
    fn come_up(&mut self, rt: &mut dyn Rt) {
        if !self.ready[self.me.0 as usize] {
            self.look_at_roll();
            if !self.core.is_serving() || self.image.cluster_id.is_empty() || !self.has_records() {
                return;
            }
            self.ready[self.me.0 as usize] = true;
            self.report.serving();
            for core in self.others() {
                self.post(core, Msg::Ready);
            }
        }
        if self.listeners.is_empty() && self.stop_by.is_none() && self.ready.iter().all(|r| *r) {
            for listener in &self.broker.listeners {
                match rt.listen(listener.addr) {
                    Ok((id, _)) => self.listeners.push(id),
                    Err(error) => {
                        self.report.can_not_listen(listener.addr, &error);
                        self.failed = true;
                        return;
                    }
                }
            }
            self.report.listening();
        }
    }

    /// Told to stop: no new connections or requests; what runs is finished, within its grace.
    fn stop(&mut self, rt: &mut dyn Rt) {
        if self.stop_by.is_none() && self.broker.stopping.load(Ordering::Acquire) {
            self.stop_by = Some(rt.now() + limits::STOP_GRACE);
            self.report.stopping();
            for listener in &self.listeners {
                rt.stop_listening(*listener);
            }
            let sleeping: Vec<u64> = self.sleepers.iter().map(|(_, request)| *request).collect();
            for request in sleeping {
                self.wake(rt, request, Woke::Deadline);
            }
            if let Some(meta) = &mut self.meta {
                meta.stop_groups();
            }
        }
    }

    fn may_leave(&mut self, rt: &mut dyn Rt) -> bool {
        let Some(stop_by) = self.stop_by else { return false };
        let over = rt.now() >= stop_by;
        let answered = self.requests.is_empty() && self.clients.iter().flatten().all(|c| c.closing || !c.sending);
        if (answered || over) && !self.drained {
            self.drained = true;
            self.broker.drained.fetch_add(1, Ordering::AcqRel);
            for slot in 0..self.clients.len() {
                self.close(rt, slot as u32, "the broker stops");
            }
        }
        let all = self.broker.drained.load(Ordering::Acquire) == self.broker.cores;
        if self.drained && all {
            self.leave_cluster(rt);
        }
        if over {
            return self.drained;
        }
        if !self.drained || !all || !self.core.is_quiet() || self.clients.iter().any(Option::is_some) {
            return false;
        }
        if !self.marked {
            self.marked = true;
            if self.core.mark(rt.now(), &mut self.out) {
                self.take_out(rt);
                return false;
            }
        }
        true
    }

    /// Connections on which nothing happened for long, and nothing is owed, are closed.
    fn close_idle(&mut self, rt: &mut dyn Rt) {
        let now = rt.now();
        if now < self.next_idle_check {
            return;
        }
        self.next_idle_check = now + limits::IDLE_CHECK_EVERY;
        let idle_max = self.broker.idle_max;
        let is_idle = |c: &Client| c.conn.idle_since().is_some_and(|since| now.since(since) > idle_max);
        let idle: Vec<u32> =
            self.clients.iter().flatten().filter(|c| !c.closing && is_idle(c)).map(|c| c.id.slot).collect();
        for slot in idle {
            self.close(rt, slot, "it was idle for connections.max.idle.ms");
        }
    }

    /// Once half of what requests may take is taken, a turn brings little of each connection: soon nobody but small
    /// ones and one large one may go on, and what all the others bring before they are paused is not to be much.
    fn spare(&mut self, rt: &mut dyn Rt) {
        let now = rt.now();
        let owner = self.owner.and_then(|slot| self.client(slot)).map(|c| c.id);
        if self.requests_bytes > self.broker.clients_bytes_max / 2 / 2 {
            let began = self.spares_until.replace(now + limits::SPARE_FOR).is_none();
            if began || self.spares_not != owner {
                rt.set_sparing(true, owner);
            }
        } else if self.spares_until.is_some_and(|until| until <= now) {
            self.spares_until = None;
            rt.set_sparing(false, owner);
        }
        self.spares_not = owner;
    }

    /// The connection that has the turn, and brings a request so slowly that the others would wait for ever, is closed.
    fn close_slow(&mut self, rt: &mut dyn Rt) {
        let Some(slot) = self.owner.filter(|_| self.is_over_budget()) else { return };
        let now = rt.now();
        let since = *self.owner_since.get_or_insert_with(|| {
            self.owner_brought = 0;
            now
        });
        if now.since(since) < limits::TURN_LOOK_EVERY {
            return;
        }
        self.owner_since = None;
        let is_slow = |c: &Client| !c.closing && c.running.is_empty() && c.conn.is_receiving_part();
        if self.owner_brought < limits::TURN_BYTES_MIN && self.client(slot).is_some_and(|c| is_slow(c)) {
            self.close(rt, slot, "its request comes slowly, and there is no memory for those of others");
        }
    }

    /// Fetches that wait for records hold what they ask for. When that alone takes the room of answers, those that hold
    /// most are answered with what there is.
    fn answer_early(&mut self, rt: &mut dyn Rt) {
        let half = self.broker.clients_bytes_max / 2;
        if self.reads_bytes <= half {
            return;
        }
        let holds = |request: &u64| self.requests[(request & 0xffff_ffff) as usize].holds.bytes();
        let mut asleep: Vec<(usize, u64)> =
            self.sleepers.iter().map(|(_, request)| (holds(request), *request)).collect();
        asleep.sort_unstable();
        while self.reads_bytes > half
            && let Some((_, request)) = asleep.pop()
        {
            self.wake(rt, request, Woke::Deadline);
        }
    }

    /// Clients that neither send nor take anything are closed when memory runs short: soon, and those that hold most
    /// first, when answers are over their half; the one that others wait for; and after long, all that are stuck.
    fn shed(&mut self, rt: &mut dyn Rt) {
        let now = rt.now();
        let clients_bytes_max = self.broker.clients_bytes_max;
        let starved = self.core.waits_since().is_some_and(|since| now.since(since) > limits::WAL_STARVED);
        if self.requests_bytes + self.answers_bytes <= clients_bytes_max / 2 && !starved {
            return;
        }
        let sends_nothing = |c: &Client, long| !c.closing && c.sending && now.since(c.sent_at) > long;
        if self.is_short_for_answers() {
            let closing: usize = self.clients.iter().flatten().filter(|c| c.closing).map(|c| c.accounted.1).sum();
            let mut excess = (self.answers_bytes - closing).saturating_sub(clients_bytes_max / 2);
            let is_deaf = |c: &&Client| sends_nothing(c, limits::CLIENT_STUCK_SHORT);
            let mut deaf: Vec<(usize, u32)> =
                self.clients.iter().flatten().filter(is_deaf).map(|c| (c.accounted.1, c.id.slot)).collect();
            deaf.sort_unstable();
            while excess > 0
                && let Some((bytes, slot)) = deaf.pop()
            {
                excess = excess.saturating_sub(bytes);
                self.close(rt, slot, "it does not take its answers, and there is no memory for those of others");
            }
        }
        let is_stuck = |c: &&Client| {
            let has_the_turn = Some(c.id.slot) == self.owner;
            let long = if has_the_turn || starved { limits::CLIENT_STUCK_SHORT } else { limits::CLIENT_STUCK };
            let holds = c.conn.memory_bytes() > 0 && !c.closing;
            holds && c.running.is_empty() && sends_nothing(c, long)
        };
        let stuck: Vec<u32> = self.clients.iter().flatten().filter(is_stuck).map(|c| c.id.slot).collect();
        for slot in stuck {
            self.close(rt, slot, "it neither sends nor takes anything, and memory is short");
        }
    }
}

/// While the broker stops, how often a core looks whether all others have come to their end.
const LEAVE_LOOK_EVERY: Duration = Duration::from_millis(5);
/// What a read may bring: the bytes that it asks for, and where one batch comes at any rate, an ordinary one.
fn promised_bytes(ask: &Ask) -> usize {
    match ask {
        Ask::Read { bytes_max, at_least_one, .. } => {
            (*bytes_max as usize).max(if *at_least_one { BATCH_BYTES_DEFAULT } else { 0 })
        }
        _ => 0,
    }
}

/// What a read has brought.
fn read_bytes(answer: &Answer) -> usize {
    match answer {
        Answer::Read(Ok(done)) => done.batches.iter().map(Bytes::len).sum(),
        _ => 0,
    }
}

/// A request that has not waited yet.
const NEW: u64 = u64::MAX;
/// The slot of requests whose client has gone: no connection has it.
const GONE: u32 = u32::MAX;

impl Driver for Node {
    fn start(&mut self, rt: &mut dyn Rt) {
        self.report.recovered();
        self.join_cluster(rt);
        self.core.start(rt.now(), &mut self.out);
        self.take_out(rt);
    }

    fn event(&mut self, rt: &mut dyn Rt, event: Event<'_>) {
        match event {
            Event::Accepted { listener, conn, .. } if self.of_broker(rt, listener, conn) => {}
            Event::Accepted { listener, conn, peer } => self.opened(rt.now(), listener, conn, peer.ip()),
            Event::Connected { conn } => match &mut self.hub {
                Some(hub) => hub.connected(rt.now(), conn),
                None => panic!("{conn:?}: this node connects to nobody"),
            },
            Event::Received { conn, bytes } if self.received_of_broker(rt, conn, bytes) => {}
            Event::Received { conn, bytes } => {
                let now = rt.now();
                // what comes before a pause takes hold of all of them
                let tight = self.is_over_budget() && self.owner != Some(conn.slot);
                let Some(client) = self.client_of(conn) else { return };
                if client.closing {
                    return;
                }
                if tight {
                    client.conn.received_tight(now, bytes)
                } else {
                    client.conn.received(now, bytes)
                }
                if self.owner == Some(conn.slot) {
                    self.owner_brought += bytes.len();
                }
                self.account(conn.slot);
                self.mark(conn.slot);
            }
            Event::Sent { conn } if self.hub.as_mut().is_some_and(|hub| hub.sent(conn)) => {}
            Event::Sent { conn } => {
                let now = rt.now();
                let Some(client) = self.client_of(conn) else { return };
                client.sending = false;
                client.conn.sent(now, client.sent_bytes);
                client.sent_bytes = 0;
                let took = now.since(client.sent_at);
                self.stats.stages.send.record_ns(took.as_nanos() as u64);
                self.account(conn.slot);
                self.mark(conn.slot);
            }
            Event::Closed { conn, .. } if self.closed_of_broker(rt, conn) => {}
            Event::Closed { conn, .. } => self.closed(rt, conn),
            Event::Disk(done) => self.core.disk_done(rt.now(), done, &mut self.out),
            Event::Woken => {}
        }
    }

    fn turn_end(&mut self, rt: &mut dyn Rt) -> Turn {
        if self.failed {
            return Turn::Stop;
        }
        self.stop(rt);
        self.empty_outboxes();
        let mut taken = 0;
        while taken < limits::MESH_PER_TURN_MAX
            && let Some((from, msg)) = self.port.next()
        {
            self.received_from(rt, from, msg);
            taken += 1;
        }
        let now = rt.now();
        while let Some((until, request)) = self.sleepers.first().copied()
            && until <= now
        {
            self.wake(rt, request, Woke::Deadline);
        }
        if let Some(meta) = &mut self.meta {
            meta.tick_groups(&mut self.core, now, rt.wall());
        }
        let over = self.is_over_budget();
        let owner_is_done = self.owner.is_some_and(|slot| {
            self.only_waits(slot) || self.client(slot).is_none_or(|c| c.conn.requests_bytes() == 0)
        });
        if !over || owner_is_done {
            self.owner = None;
        }
        let turn_of = self.owner.filter(|slot| self.client(*slot).is_some_and(|c| c.conn.requests_bytes() > 0));
        let short = self.is_short_for_reads();
        let full = self.is_full();
        let small_may = std::mem::replace(&mut self.was_full, full) && !full;
        if !self.is_congested() && if over { self.owner.is_none() || small_may } else { !short } {
            for slot in std::mem::take(&mut self.held) {
                if let Some(client) = self.client(slot) {
                    client.held = false;
                }
                self.mark(slot);
            }
        }
        let mut unfinished = false;
        for round in 0.. {
            while let Some(slot) = self.dirty.pop_front() {
                self.tend(rt, slot);
            }
            self.core.turn_end(rt.now(), rt.wall(), &mut self.out);
            let more = self.take_out(rt);
            if self.failed {
                return Turn::Stop;
            }
            // what the last answers led to may be with our own pump already: it is asked again at once
            unfinished = more || !self.dirty.is_empty();
            if !unfinished || round >= limits::ROUNDS_PER_TURN_MAX {
                break;
            }
        }
        self.come_up(rt);
        let has_space = self.core.has_space();
        if has_space != self.had_space {
            self.had_space = has_space;
            self.report.has_space(has_space);
        }
        self.look_at_disk(rt.now());
        self.look_at_leaders(rt.now());
        self.spare(rt);
        self.shed(rt);
        self.close_slow(rt);
        self.answer_early(rt);
        self.close_idle(rt);
        if let Some(hub) = &mut self.hub {
            hub.flush(rt);
        }
        self.empty_outboxes();
        self.port.flush();
        let clients_bytes = self.requests_bytes + self.answers_bytes + self.reads_bytes;
        Counters::set(&self.stats.counters.memory_clients_bytes, clients_bytes as u64);
        if self.may_leave(rt) {
            return Turn::Stop;
        }
        // what ended in this turn made room for those that wait: nobody else will say so
        let turn_is_over = turn_of.is_some_and(|slot| self.client(slot).is_none_or(|c| c.conn.requests_bytes() == 0));
        let room = short && !self.is_short_for_reads() || over && !self.is_over_budget() || over && turn_is_over;
        let freed = room && !self.held.is_empty();
        if taken == limits::MESH_PER_TURN_MAX || unfinished || freed || !self.dirty.is_empty() {
            return Turn::Again;
        }
        let groups = self.meta.as_ref().and_then(MetaHost::next_group_deadline);
        let peers = self.hub.as_ref().and_then(Hub::deadline).into_iter().chain(self.forwards.deadline()).min();
        let sleeper = self.sleepers.first().map(|(until, _)| *until);
        let waits = [self.core.next_deadline(), sleeper, self.stop_by, groups, peers];
        // what the other cores say of their end comes as a counter
        let leaving = self.stop_by.is_some().then(|| rt.now() + LEAVE_LOOK_EVERY);
        let blocked = self.outbox.iter().any(|o| !o.is_empty()).then(|| rt.now() + Duration::from_millis(1));
        let short = self.is_over_budget() || self.is_short_for_reads();
        let shed = short.then(|| rt.now() + limits::SHED_EVERY);
        Turn::Wait { until: waits.into_iter().flatten().chain(leaving).chain(blocked).chain(shed).min() }
    }
}
