//! The meta shard's state machine where it runs: commands come out of the log, images go to every core. The coordinator
//! of groups runs beside it, because it reads the state and writes the log.
//!
//! Lives on core 0 beside the pump that carries the meta shard's log. A command is answered only when every core of
//! this broker has the image that it led to: who was told that a topic exists finds it on any connection.

use bytes::Bytes;
#[cfg(feature = "planted")]
use camus_engine::planted::{Bug, is};
use camus_engine::shard::api::Ticket;
use camus_engine::shard::core::{Core, MetaCommitted, RecoveredMeta};
use camus_engine::types::{CoreId, Index, Mono, ShardId, Term, WallMs};
use camus_meta::groups::{Coordinator, GroupAnswer, GroupAsk, GroupOut, GroupRefusal, GroupSettings, Token};
use camus_meta::{Command, Decided, Image, Refused, State};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// In a ticket: the command was asked for by the coordinator of groups, and `request` is its token. No core has this
/// number.
pub const COORDINATOR: CoreId = CoreId(u16::MAX);
/// In a ticket: the command was asked for by another broker; `part` is its raft id, `request` its number for it.
pub const FORWARDED: CoreId = CoreId(u16::MAX - 1);

/// Owned by the node of core 0.
#[derive(Debug)]
pub struct MetaHost {
    state: State,
    cluster_id: String,
    leading: bool,
    /// There are other brokers: each applies the log and has the image, one of them leads.
    replicated: bool,
    bootstrapping: bool,
    /// The newest image that each core is known to have.
    seen: Vec<u64>,
    published: u64,
    /// Decisions that wait until all cores have seen them, in the order of the log.
    waiting: VecDeque<(u64, Ticket, Decided)>,
    /// Who asked for a command that is in the log and not committed. Kept where it is replicated: who leads next may
    /// write over it.
    asked: BTreeSet<Ticket>,
    proofs: Proofs,
    /// Assignments that may be given out.
    proven: Vec<(Ticket, GroupAnswer)>,
    groups: Coordinator,
    group_out: GroupOut,
}

/// What waits for a proof that the meta shard is still led from here. A leader that was replaced does not know it by
/// itself: who asks the next one would see an offset that went back, or two would own a partition in one generation.
/// One proof is under way at a time, and is for all that came before it began; the others share the next one. Each is
/// a request that some connection has in flight, and so they are bounded.
#[derive(Default, Debug)]
struct Proofs {
    /// The number of the last proof that began.
    begun: u64,
    under_way: bool,
    /// By the proof that they need.
    waiting: VecDeque<(u64, Ticket, Unproven)>,
}

#[derive(Debug)]
enum Unproven {
    /// A read of committed offsets: it is done when there is a proof.
    Fetch(GroupAsk),
    /// What a member of this generation, or in this epoch, owns: it is told when there is one.
    Given(GroupAnswer),
}

impl Proofs {
    fn wait(&mut self, ticket: Ticket, what: Unproven) {
        self.waiting.push_back((self.begun + 1, ticket, what));
    }

    /// Begins a proof for those that wait, if none is under way.
    fn begin(&mut self, core: &mut Core) {
        if !self.under_way && !self.waiting.is_empty() {
            // if it is refused, leadership is gone, and stepping down is what comes next
            (self.begun, self.under_way) = (self.begun + 1, core.prove_meta(self.begun + 1));
        }
    }
}

/// The metadata on the disk can not be what this version wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the meta shard's log can not be applied at entry {index}: {why}")]
pub struct MetaDamaged {
    pub index: u64,
    pub why: String,
}

impl MetaHost {
    pub fn recover(
        cluster_id: String,
        data_shards: Vec<ShardId>,
        cores: usize,
        message_bytes_max: u32,
        groups: GroupSettings,
        recovered: RecoveredMeta,
    ) -> Result<MetaHost, MetaDamaged> {
        let state = match recovered.snapshot {
            Some((index, bytes)) => {
                State::restore(data_shards, &bytes).map_err(|e| MetaDamaged { index: index.0, why: e.to_string() })?
            }
            None => State::new(data_shards),
        };
        let mut state = state.with_message_bytes_max(message_bytes_max);
        for (index, command) in &recovered.commands {
            let command = Command::decode(command).map_err(|e| MetaDamaged { index: index.0, why: e.to_string() })?;
            let _decided_before = state.apply(*index, &command);
        }
        Ok(MetaHost {
            state,
            cluster_id,
            leading: false,
            replicated: false,
            bootstrapping: false,
            seen: vec![0; cores],
            published: 0,
            waiting: VecDeque::new(),
            asked: BTreeSet::new(),
            proofs: Proofs::default(),
            proven: Vec::new(),
            groups: Coordinator::new(groups, Mono(0)),
            group_out: GroupOut::default(),
        })
    }

    /// There are other brokers with a replica of the log.
    pub fn set_replicated(&mut self) {
        self.replicated = true;
    }

    pub fn is_leading(&self) -> bool {
        self.leading
    }

    /// Puts a command into the log; the answer comes through [`Self::next_answer`], or at once if it can not be
    /// written.
    pub fn propose(&mut self, core: &mut Core, ticket: Ticket, command: &Command) -> Option<Decided> {
        let unavailable = |why: &str| Some(Err(Refused::Unavailable { why: why.to_owned() }));
        if !self.leading && self.replicated {
            return Some(Err(Refused::NoLeader));
        }
        if !self.leading {
            return unavailable("the meta shard has no leader yet");
        }
        let bytes: Bytes = command.encode().into();
        if !core.propose_meta(Some(ticket), bytes, command.frees_space()) {
            return unavailable("its log has no room");
        }
        if self.replicated {
            self.asked.insert(ticket);
        }
        None
    }

    /// A request to a group; its answer is among [`Self::take_group_answers`], now or later.
    pub fn ask_group(&mut self, core: &mut Core, now: Mono, ticket: Ticket, ask: GroupAsk) {
        if !self.leading && self.replicated {
            self.group_out.answers.push((ticket, ask.refused(GroupRefusal::NotCoordinator)));
            return;
        }
        if !self.leading && matches!(ask, GroupAsk::Beat(_)) {
            // in which term it will be led is not known, and so not which epochs are new
            self.group_out.answers.push((ticket, ask.refused(GroupRefusal::Busy)));
            return;
        }
        let needs_proof = self.replicated && matches!(ask, GroupAsk::Fetch { .. });
        #[cfg(feature = "planted")]
        let needs_proof = needs_proof && !is(Bug::CoordinateUnproven);
        if needs_proof {
            self.proofs.wait(ticket, Unproven::Fetch(ask));
            return self.proofs.begin(core);
        }
        self.groups.ask(now, ticket, ask, &self.state, &mut self.group_out);
        self.propose_of_groups(core);
    }

    /// A proof of this number has come: the meta shard was led from here after it began.
    pub fn proved(&mut self, core: &mut Core, now: Mono, number: u64) {
        if number == self.proofs.begun {
            self.proofs.under_way = false;
        }
        while let Some((_, ticket, what)) = self.proofs.waiting.pop_front_if(|(needed, ..)| *needed <= number) {
            match what {
                Unproven::Fetch(ask) => self.groups.ask(now, ticket, ask, &self.state, &mut self.group_out),
                Unproven::Given(answer) => self.proven.push((ticket, answer)),
            }
        }
        self.proofs.begin(core);
    }

    pub fn tick_groups(&mut self, core: &mut Core, now: Mono, wall: WallMs) {
        if self.coordinates() && self.groups.next_deadline() <= now {
            self.groups.tick(now, wall, &self.state, &mut self.group_out);
            self.propose_of_groups(core);
        }
    }

    /// When [`Self::tick_groups`] has something to do.
    pub fn next_group_deadline(&self) -> Option<Mono> {
        self.coordinates().then(|| self.groups.next_deadline())
    }

    fn coordinates(&self) -> bool {
        self.leading || !self.replicated
    }

    /// Who leads has applied what was acknowledged, and among several each applies what it hears of. One that is alone
    /// and does not lead yet has a part of its log to come.
    fn has_an_image_to_show(&self) -> bool {
        self.leading || self.replicated
    }

    /// The broker stops: nobody waits for a group any more.
    pub fn stop_groups(&mut self) {
        self.groups.stop(&mut self.group_out);
    }

    /// What became of a command with a ticket of [`COORDINATOR`].
    pub fn group_decided(&mut self, ticket: Ticket, decided: Decided) {
        self.groups.decided(Token(ticket.request), decided, &mut self.group_out);
    }

    pub fn has_group_answers(&self) -> bool {
        !(self.group_out.answers.is_empty() && self.proven.is_empty())
    }

    /// Answers to requests to groups, each once. Assignments are among them when it is proven that they are not given
    /// out by a coordinator that was replaced.
    pub fn take_group_answers(&mut self, core: &mut Core) -> Vec<(Ticket, GroupAnswer)> {
        let mut answers = std::mem::take(&mut self.proven);
        for (ticket, answer) in std::mem::take(&mut self.group_out.answers) {
            if self.replicated && gives_partitions(&answer) {
                self.proofs.wait(ticket, Unproven::Given(answer));
            } else {
                answers.push((ticket, answer));
            }
        }
        self.proofs.begin(core);
        answers
    }

    fn propose_of_groups(&mut self, core: &mut Core) {
        for (token, command) in std::mem::take(&mut self.group_out.commands) {
            let ticket = Ticket { core: COORDINATOR, request: token.0, part: 0 };
            if let Some(refused) = self.propose(core, ticket, &command) {
                self.groups.decided(token, refused, &mut self.group_out);
            }
        }
    }

    /// The meta shard is led from here: an empty cluster gets its first command, and groups come here.
    pub fn lead(&mut self, now: Mono, term: Term) {
        self.leading = true;
        self.groups.take_over(now, term);
    }

    /// Another broker leads, or will. Whoever waits for a command that is not committed is told so: it may or may not
    /// come about. Whoever waits for a group is sent to the other.
    pub fn step_down(&mut self) {
        (self.leading, self.bootstrapping) = (false, false);
        let unknown = || Refused::Unavailable { why: "its leadership changed meanwhile".to_owned() };
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (of_groups, others): (VecDeque<_>, VecDeque<_>) = all.partition(|(_, to, _)| to.core == COORDINATOR);
        self.waiting = others;
        for (_, ticket, decided) in of_groups {
            self.group_decided(ticket, decided);
        }
        for ticket in std::mem::take(&mut self.asked) {
            self.refuse(ticket, unknown());
        }
        self.proofs.under_way = false;
        for (_, ticket, what) in self.proofs.waiting.drain(..) {
            let answer = match what {
                Unproven::Fetch(ask) => ask.refused(GroupRefusal::NotCoordinator),
                Unproven::Given(GroupAnswer::Beaten(_)) => GroupAnswer::Beaten(Err(GroupRefusal::NotCoordinator)),
                Unproven::Given(_) => GroupAnswer::Synced(Err(GroupRefusal::NotCoordinator)),
            };
            self.group_out.answers.push((ticket, answer));
        }
        self.groups.step_down(&mut self.group_out);
    }

    /// The command of this ticket is in no log any more.
    pub fn lost(&mut self, ticket: Ticket) {
        if self.asked.remove(&ticket) {
            self.refuse(ticket, Refused::NoLeader);
        }
    }

    /// Tells whoever asked for a command that it did not come about here. There is no image to wait for.
    fn refuse(&mut self, ticket: Ticket, refused: Refused) {
        match ticket.core {
            COORDINATOR => self.group_decided(ticket, Err(refused)),
            _ => self.waiting.push_back((0, ticket, Err(refused))),
        }
    }

    /// The first command of a cluster, as soon as it can be written.
    pub fn bootstrap(&mut self, core: &mut Core) {
        if self.leading && !self.bootstrapping && self.state.image().cluster_id.is_empty() {
            let command = Command::Bootstrap { cluster_id: self.cluster_id.clone() };
            self.bootstrapping = core.propose_meta(None, command.encode().into(), command.frees_space());
        }
    }

    /// # Panics
    /// If a committed command can not be decoded: it was encoded by this broker, so the memory or the disk lies.
    pub fn committed(&mut self, committed: MetaCommitted) {
        let MetaCommitted { index, ticket, command } = committed;
        let command = Command::decode(&command).unwrap_or_else(|e| panic!("entry {index} of the meta shard: {e}"));
        let decided = self.state.apply(index, &command);
        // who was told that nobody knows is not told again
        if let Some(ticket) = ticket.filter(|ticket| !self.replicated || self.asked.remove(ticket)) {
            self.waiting.push_back((self.state.image().version, ticket, decided));
        }
    }

    /// The image, if it is newer than what was last taken from here.
    pub fn publish(&mut self) -> Option<Arc<Image>> {
        let image = self.state.image();
        if !self.has_an_image_to_show() || image.cluster_id.is_empty() || image.version == self.published {
            return None;
        }
        self.published = image.version;
        Some(image)
    }

    pub fn seen(&mut self, core: CoreId, version: u64) {
        let seen = &mut self.seen[core.0 as usize];
        *seen = version.max(*seen);
    }

    /// The newest image that every core has.
    pub fn seen_everywhere(&self) -> u64 {
        self.seen.iter().copied().min().unwrap_or(0)
    }

    /// The next decision that every core has seen, and the version of the image that it led to.
    pub fn next_answer(&mut self) -> Option<(u64, Ticket, Decided)> {
        let everywhere = self.seen_everywhere();
        self.waiting.pop_front_if(|(version, _, _)| *version <= everywhere)
    }

    pub fn snapshot(&self) -> Vec<u8> {
        self.state.snapshot()
    }

    pub fn applied(&self) -> Index {
        self.state.applied()
    }
}

/// Whether it tells a member what it has: only who leads the meta shard may say so.
fn gives_partitions(answer: &GroupAnswer) -> bool {
    let is_new = matches!(answer, GroupAnswer::Beaten(Ok(beaten)) if beaten.assignment.is_some());
    is_new || matches!(answer, GroupAnswer::Synced(Ok(_)))
}
