//! What goes wrong with a cluster and when, drawn from the seed: each seed has its own mix of faults.
//!
//! With a budget at most one broker at a time is down, cut off, hung, at a stand, or so far behind that it does not
//! catch up (docs/operate.md): then two others have everything, and once all is healed everybody gets on. Slow disks
//! and ways, clocks that are wrong, resets and clients that are slow are in no budget. Without one any number of
//! brokers is hit at once.
//!
//! At most one broker's disk is damaged in a seed. A bit that rots while it is down is always found: a start that is
//! refused is a broker that stays down, for as long as the seed runs, and that is the budget. Where more is damaged
//! ([`Mode::Damage`]), a broker may have forgotten what it acknowledged, and does not know it (docs/adr/0005): its
//! assertions may end it, and what is judged is in `judgement.rs`.

use crate::clients::Clients;
use crate::faults::heal_disks;
use crate::kit::Cluster;
use crate::scenario::Mode;
use camus_engine::io::Volume;
use camus_engine::io::sim::{Crash, Damage, DiskImage};
use camus_engine::rt::rng::Rng;
use camus_engine::rt::sim::{Connects, DRIFT_PPM_MAX, HostId, Path, SimCoreId};
use camus_engine::types::{Mono, ShardId};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    // One broker is away.
    ProcessCrash,
    PowerLoss,
    /// The machine is gone without a word: its connections stay half open.
    Vanishes,
    /// A signal, and a start.
    Stop,
    Pause,
    HungDisk,
    /// The broker ends itself, and is started again.
    WriteErrors,
    FullDisk,
    /// From all others, some, or one; in both directions or one.
    Cut,
    /// Ways stop one by one, and go on in another order.
    Swizzle,
    ConnectsRefused,
    ConnectsHang,
    // Everybody is there.
    ReadErrors,
    SlowDisk,
    Spikes,
    SlowWays,
    ResetsBetweenBrokers,
    ResetsOfClients,
    PausedReader,
    WallJump,
    Drift,
    // Beyond any budget.
    AllPowerLoss,
    // Of the disk that is damaged.
    Rot,
    LostWrites,
    MisdirectedWrites,
    TornWrites,
    OldImage,
}

const ONE_IS_AWAY: [Fault; 12] = [
    Fault::ProcessCrash,
    Fault::PowerLoss,
    Fault::Vanishes,
    Fault::Stop,
    Fault::Pause,
    Fault::HungDisk,
    Fault::WriteErrors,
    Fault::FullDisk,
    Fault::Cut,
    Fault::Swizzle,
    Fault::ConnectsRefused,
    Fault::ConnectsHang,
];

const ALL_ARE_THERE: [Fault; 9] = [
    Fault::ReadErrors,
    Fault::SlowDisk,
    Fault::Spikes,
    Fault::SlowWays,
    Fault::ResetsBetweenBrokers,
    Fault::ResetsOfClients,
    Fault::PausedReader,
    Fault::WallJump,
    Fault::Drift,
];

const DAMAGE: [Fault; 5] =
    [Fault::Rot, Fault::LostWrites, Fault::MisdirectedWrites, Fault::TornWrites, Fault::OldImage];

/// Who asks a broker to stop kills it after this.
const STOP_MAX: Duration = Duration::from_secs(20);
/// How far a wall clock is off at most, ms. Beyond an hour a broker does not take the timestamps of its clients.
const WALL_OFF_MS_MAX: usize = 3_000_000;

/// What is set for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flag {
    Cut,
    Clog,
    Connects(Connects),
    /// What a way takes is as usual again.
    Speed,
}

/// What happens later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    SlowDiskEnds(SimCoreId),
    SpikesEnd(SimCoreId),
    HangEnds(SimCoreId),
    FullEnds(SimCoreId),
    PauseEnds,
    Way { from: HostId, to: HostId, flag: Flag, on: bool },
}

struct Planned {
    at: Mono,
    /// Of this broker, which is away until then.
    away: Option<usize>,
    change: Change,
}

/// One broker.
#[derive(Default)]
struct State {
    begin_at: Option<Mono>,
    /// It was asked to stop, and is killed then.
    kill_at: Option<Mono>,
    /// It refused its disk, or was taken out: it stays down.
    gone: Option<String>,
    wall_off_ms: i64,
    /// Its machine is silent until it starts.
    vanished: bool,
    /// It does not catch up any more.
    left_behind: bool,
    /// What was known of damage when a start was not refused.
    survived: Damage,
    /// What its disks were, and how many starts from now they are that again.
    images: Option<(Vec<DiskImage>, usize)>,
}

pub struct ClusterFaults {
    mode: Mode,
    mix: Vec<Fault>,
    /// Whose disk is damaged.
    damaged: Option<usize>,
    states: Vec<State>,
    next_at: Mono,
    planned: Vec<Planned>,
    /// Starts before which a disk may have lost its end without a trace.
    pub cuts: Vec<Mono>,
    /// A broker whose disk was not damaged refused it.
    pub refused: Option<String>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl ClusterFaults {
    /// Each kind is in every second seed.
    pub fn drawn(rng: &mut Rng, cluster: &mut Cluster, mode: Mode) -> ClusterFaults {
        let mut mix: Vec<Fault> = ONE_IS_AWAY.into_iter().chain(ALL_ARE_THERE).filter(|_| rng.chance(50)).collect();
        let brokers = cluster.brokers.len();
        let one = rng.between(0, brokers as u64 - 1) as usize;
        let mut damaged = None;
        match mode {
            Mode::Run | Mode::Replicas => damaged = rng.chance(20).then_some(one),
            Mode::NoBudget => mix.extend([Fault::AllPowerLoss].into_iter().filter(|_| rng.chance(50))),
            Mode::Damage => {
                damaged = Some(one);
                cluster.brokers[one].is_guarded = true;
                mix.push(DAMAGE[rng.between(0, DAMAGE.len() as u64 - 1) as usize]);
                mix.extend(DAMAGE.into_iter().filter(|_| rng.chance(30)));
            }
        }
        if rng.chance(50) {
            for broker in &cluster.brokers {
                cluster.world.set_drift(broker.host, drawn_drift(rng));
            }
        }
        ClusterFaults {
            mode,
            mix,
            damaged,
            states: (0..brokers).map(|_| State::default()).collect(),
            next_at: cluster.now() + ms(rng.between(100, 3_000)),
            planned: vec![],
            cuts: vec![],
            refused: None,
        }
    }

    /// Why a broker is down for good, if one is.
    pub fn gone(&self) -> Option<&String> {
        self.states.iter().find_map(|state| state.gone.as_ref())
    }

    /// Nothing holds up what a broker answers: neither the way nor a broker that stands still.
    pub fn answers_come(&self) -> bool {
        self.planned.iter().all(|planned| match planned.change {
            Change::PauseEnds | Change::Way { .. } => false,
            // As those of a lone broker: what is at the end of a log is in memory.
            Change::SlowDiskEnds(_) | Change::SpikesEnd(_) | Change::HangEnds(_) | Change::FullEnds(_) => true,
        })
    }

    pub fn step(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        if self.refused.is_some() {
            return;
        }
        for n in 0..self.states.len() {
            self.states[n].left_behind |= cluster.is_left_behind(n);
            self.tend(n, cluster);
        }
        let now = cluster.now();
        let (over, planned): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.planned).into_iter().partition(|planned| planned.at <= now);
        self.planned = planned;
        over.into_iter().for_each(|planned| change(planned.away, planned.change, cluster));
        if now >= self.next_at && !self.mix.is_empty() {
            let fault = self.mix[cluster.pick(self.mix.len())];
            if let Some(n) = self.choose(fault, cluster) {
                self.inject(fault, n, cluster, clients);
            }
            self.next_at = cluster.now() + ms(100 + cluster.pick(4_000) as u64);
        }
    }

    /// A broker that has ended is started again, one that does not end is killed.
    fn tend(&mut self, n: usize, cluster: &mut Cluster) {
        let now = cluster.now();
        let state = &mut self.states[n];
        if state.gone.is_some() {
            return;
        }
        if cluster.is_running(n) && (cluster.has_failed(n) || state.kill_at.is_some_and(|at| at <= now)) {
            cluster.crash(n, Crash::Process);
        }
        if cluster.is_running(n) {
            return;
        }
        state.kill_at = None;
        match state.begin_at {
            None => {
                let down_ms = if cluster.chance(50) { 0 } else { cluster.pick(3_000) as u64 };
                state.begin_at = Some(now + ms(down_ms));
            }
            Some(at) if at <= now => {
                state.begin_at = None;
                self.begin(n, cluster);
            }
            Some(_) => {}
        }
    }

    fn begin(&mut self, n: usize, cluster: &mut Cluster) {
        let state = &mut self.states[n];
        if std::mem::take(&mut state.vanished) {
            cluster.change_paths(n, |path| path.is_cut = false);
        }
        let is_damaged = self.damaged == Some(n);
        if is_damaged && cluster.chance(20) {
            // It rots while nobody looks.
            let core = cluster.pick(cluster.shape.cores);
            let _where = cluster.world.disk(cluster.brokers[n].cores[core]).rot_somewhere();
        }
        if let Some((images, starts)) = &mut state.images {
            *starts -= 1;
            if *starts == 0 {
                for (core, image) in cluster.brokers[n].cores.iter().zip(&*images) {
                    cluster.world.disk(*core).bring_back(image);
                }
                state.images = None;
            }
        }
        let (damage, survived) = (cluster.damage(n), state.survived);
        // One flipped bit is always known as such (docs/adr/0002).
        let may_be_unknown =
            damage.writes > survived.writes || damage.images > survived.images || damage.bits > survived.bits + 1;
        if may_be_unknown {
            self.cuts.push(cluster.now());
        }
        match cluster.begin(n) {
            Ok(()) => state.survived = damage,
            Err(why) if is_damaged && damage != Damage::default() => state.gone = Some(why),
            Err(why) => self.refused = Some(format!("broker {n}: {why}")),
        }
    }

    /// Whom it hits, if that is in the budget.
    fn choose(&self, fault: Fault, cluster: &mut Cluster) -> Option<usize> {
        if DAMAGE.contains(&fault) {
            return self.damaged.filter(|n| self.states[*n].gone.is_none());
        }
        // Leaders are hit more often than chance would have it.
        let shard = ShardId(cluster.pick(cluster.brokers[0].broker.shards.len()) as u32);
        let any = cluster.pick(cluster.brokers.len());
        let n = if cluster.chance(50) { cluster.leads(shard).unwrap_or(any) } else { any };
        if self.states[n].gone.is_some() {
            return None;
        }
        if self.mode == Mode::NoBudget || !ONE_IS_AWAY.contains(&fault) {
            return Some(n);
        }
        match (0..self.states.len()).find(|n| self.is_away(*n, cluster)) {
            None => Some(n),
            // It never rains but it pours.
            Some(away) if self.states[away].gone.is_none() && cluster.chance(30) => Some(away),
            Some(_) => None,
        }
    }

    fn is_away(&self, n: usize, cluster: &Cluster) -> bool {
        let state = &self.states[n];
        let is_asked_away = state.kill_at.is_some() || state.gone.is_some() || state.left_behind;
        is_asked_away || !cluster.is_up(n) || self.planned.iter().any(|planned| planned.away == Some(n))
    }

    fn inject(&mut self, fault: Fault, n: usize, cluster: &mut Cluster, clients: &mut Clients) {
        let core = cluster.pick(cluster.shape.cores);
        let core = cluster.brokers[n].cores[core];
        let disk = cluster.world.disk(core);
        match fault {
            Fault::ProcessCrash => cluster.crash(n, Crash::Process),
            Fault::PowerLoss => cluster.crash(n, Crash::Power),
            Fault::Vanishes => {
                cluster.change_paths(n, |path| path.is_cut = true);
                cluster.crash(n, Crash::Power);
                self.states[n].vanished = true;
            }
            Fault::Stop => {
                if cluster.is_running(n) && self.states[n].kill_at.is_none() {
                    cluster.ask_to_stop(n);
                    self.states[n].kill_at = Some(cluster.now() + STOP_MAX);
                }
            }
            Fault::Pause => {
                cluster.set_paused(n, true);
                self.later(6_000, Some(n), Change::PauseEnds, cluster);
            }
            Fault::HungDisk => {
                disk.hang(true);
                self.later(5_000, Some(n), Change::HangEnds(core), cluster);
            }
            Fault::WriteErrors => disk.fail_writes(1 + cluster.pick(3) as u32),
            Fault::FullDisk => {
                let files = disk.volume().files().expect("a simulated disk lists its files");
                let used: u64 = files.iter().map(|(_, len)| len).sum();
                disk.set_capacity(used + cluster.pick(3) as u64 * cluster.shape.segment_bytes);
                self.later(5_000, Some(n), Change::FullEnds(core), cluster);
            }
            Fault::Cut => self.set_ways(n, Flag::Cut, cluster),
            Fault::Swizzle => self.swizzle(n, cluster),
            Fault::ConnectsRefused => self.set_ways(n, Flag::Connects(Connects::Refused), cluster),
            Fault::ConnectsHang => self.set_ways(n, Flag::Connects(Connects::Hang), cluster),
            Fault::ReadErrors => disk.fail_reads(1 + cluster.pick(5) as u32),
            Fault::SlowDisk => {
                disk.slow_down(Duration::from_micros(500 + cluster.pick(20_000) as u64));
                self.later(2_000, None, Change::SlowDiskEnds(core), cluster);
            }
            Fault::Spikes => {
                disk.spike(1 + cluster.pick(20) as u64, ms(1 + cluster.pick(300) as u64));
                self.later(5_000, None, Change::SpikesEnd(core), cluster);
            }
            Fault::SlowWays => self.set_ways(n, Flag::Speed, cluster),
            Fault::ResetsBetweenBrokers => {
                for other in cluster.others(n).into_iter().filter(|other| *other != HostId::CLIENTS) {
                    cluster.world.reset_between(cluster.brokers[n].host, other, 50);
                }
            }
            Fault::ResetsOfClients => clients.reset_some(cluster),
            Fault::PausedReader => {
                let for_ms = 100 + cluster.pick(5_000) as u64;
                clients.pause_a_reader(for_ms, cluster);
            }
            Fault::WallJump => {
                let off_ms = cluster.pick(2 * WALL_OFF_MS_MAX) as i64 - WALL_OFF_MS_MAX as i64;
                let was_off_ms = std::mem::replace(&mut self.states[n].wall_off_ms, off_ms);
                cluster.world.jump_wall(cluster.brokers[n].host, off_ms - was_off_ms);
            }
            Fault::Drift => {
                let ppm = drawn_drift(cluster.world.rng());
                cluster.world.set_drift(cluster.brokers[n].host, ppm);
            }
            Fault::AllPowerLoss => (0..cluster.brokers.len()).for_each(|n| cluster.crash(n, Crash::Power)),
            Fault::Rot => {
                let _where = disk.rot_somewhere();
            }
            Fault::LostWrites => disk.lose_writes(1 + cluster.pick(3) as u32),
            Fault::MisdirectedWrites => disk.misdirect_writes(1 + cluster.pick(3) as u32),
            Fault::TornWrites => disk.tear_writes(1 + cluster.pick(3) as u32),
            Fault::OldImage => {
                if self.states[n].images.is_none() {
                    let image = |core: &SimCoreId| cluster.world.disk(*core).image();
                    self.states[n].images = Some((cluster.brokers[n].cores.iter().map(image).collect(), 2));
                }
            }
        }
    }

    /// It ends within this time.
    fn later(&mut self, ms_max: usize, away: Option<usize>, change: Change, cluster: &mut Cluster) {
        let at = cluster.now() + ms(1 + cluster.pick(ms_max) as u64);
        self.planned.push(Planned { at, away, change });
    }

    /// Between this broker and all machines, the other brokers, one machine, or clients; in both directions or one.
    fn set_ways(&mut self, n: usize, flag: Flag, cluster: &mut Cluster) {
        let mut others = cluster.others(n);
        match cluster.pick(4) {
            0 => others.retain(|other| *other != HostId::CLIENTS),
            1 => others = vec![others[cluster.pick(others.len())]],
            2 if flag != Flag::Cut || cluster.chance(50) => others = vec![HostId::CLIENTS],
            _ => {}
        }
        let (forth, back) = [(true, true), (true, true), (true, false), (false, true)][cluster.pick(4)];
        let me = cluster.brokers[n].host;
        let at = cluster.now() + ms(1 + cluster.pick(6_000) as u64);
        let away = (flag != Flag::Speed).then_some(n);
        for other in others {
            for (from, to, wanted) in [(me, other, forth), (other, me, back)] {
                if wanted {
                    set_way(from, to, flag, true, cluster);
                    self.planned.push(Planned { at, away, change: Change::Way { from, to, flag, on: false } });
                }
            }
        }
    }

    /// Some ways stop, one after the other, and go on one after the other. With a budget only this broker's.
    fn swizzle(&mut self, n: usize, cluster: &mut Cluster) {
        let hosts: Vec<HostId> = cluster.others(n).into_iter().chain([cluster.brokers[n].host]).collect();
        let me = cluster.brokers[n].host;
        let now = cluster.now();
        for from in &hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                let is_mine = [*from, *to].contains(&me);
                if !(is_mine || self.mode == Mode::NoBudget) || cluster.chance(40) {
                    continue;
                }
                let (stops, goes_on) = (cluster.pick(2_000) as u64, 2_000 + cluster.pick(3_000) as u64);
                for (at, on) in [(stops, true), (goes_on, false)] {
                    let change = Change::Way { from: *from, to: *to, flag: Flag::Clog, on };
                    self.planned.push(Planned { at: now + ms(at), away: Some(n), change });
                }
            }
        }
    }

    /// Everything works from now on, but for a disk that was damaged. Brokers that are down are started again at the
    /// next step.
    pub fn heal(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        self.mix.clear();
        for planned in std::mem::take(&mut self.planned) {
            if !matches!(planned.change, Change::Way { .. }) {
                change(planned.away, planned.change, cluster);
            }
        }
        cluster.heal_paths();
        let now = cluster.now();
        for n in 0..self.states.len() {
            heal_disks(cluster, n);
            self.states[n].vanished = false;
            self.states[n].begin_at = self.states[n].begin_at.map(|_| now);
            let is_needed = (0..self.states.len()).any(|other| other != n && self.states[other].left_behind);
            let is_in = !is_needed && self.states[n].gone.is_none();
            if self.mode == Mode::Run && cluster.damage(n) != Damage::default() && is_in {
                // Its operator has seen that its disk is at fault.
                cluster.crash(n, Crash::Process);
                self.states[n].gone = Some("its disk was damaged: it is taken out".to_owned());
            }
        }
        clients.resume_readers(cluster);
    }

    /// Brokers that are not back: in the end each that is not gone has to come up, also one that was asked to stop
    /// before the last fault was over.
    pub fn not_back(&self, cluster: &Cluster) -> Vec<String> {
        let is_back = |n: usize| {
            let state = &self.states[n];
            let is_up = cluster.is_up(n) && !cluster.has_failed(n) && state.kill_at.is_none();
            state.gone.is_some() || is_up
        };
        let names = (0..self.states.len()).filter(|n| !is_back(*n)).map(|n| format!("broker {n} is not back"));
        names.collect()
    }

    /// One broker is down for good, and another one does not catch up: for some shards there is no majority any more.
    pub fn are_too_many(&self) -> bool {
        let lost = |state: &&State| state.gone.is_some() || state.left_behind;
        self.gone().is_some() && self.states.iter().filter(lost).count() > 1
    }

    /// One broker is lost for good, if all are there and have everything: what was acknowledged is with the others.
    pub fn lose_one(&mut self, cluster: &mut Cluster) {
        if self.gone().is_none() && !self.states.iter().any(|state| state.left_behind) {
            let n = cluster.pick(self.states.len());
            cluster.crash(n, Crash::Power);
            self.states[n].gone = Some("it is lost in the end".to_owned());
        }
    }
}

fn drawn_drift(rng: &mut Rng) -> i64 {
    rng.between(0, 2 * DRIFT_PPM_MAX as u64) as i64 - DRIFT_PPM_MAX
}

fn set_way(from: HostId, to: HostId, flag: Flag, on: bool, cluster: &mut Cluster) {
    let mut path = cluster.world.path(from, to);
    match flag {
        Flag::Cut => path.is_cut = on,
        Flag::Clog => path.is_clogged = on,
        Flag::Connects(connects) => path.connects = if on { connects } else { Connects::Work },
        Flag::Speed if on => {
            path.delay = Duration::from_micros(cluster.pick(20_000) as u64);
            path.jitter = Duration::from_micros(cluster.pick(20_000) as u64);
            path.loss_percent = cluster.pick(5) as u64;
        }
        Flag::Speed => {
            let usual = Path::default();
            (path.delay, path.jitter, path.loss_percent) = (usual.delay, usual.jitter, usual.loss_percent);
        }
    }
    cluster.world.set_path(from, to, path);
}

fn change(of: Option<usize>, change: Change, cluster: &mut Cluster) {
    match change {
        Change::SlowDiskEnds(core) => cluster.world.disk(core).slow_down(Duration::ZERO),
        Change::SpikesEnd(core) => cluster.world.disk(core).spike(0, Duration::ZERO),
        Change::HangEnds(core) => cluster.world.disk(core).hang(false),
        Change::FullEnds(core) => cluster.world.disk(core).set_capacity(u64::MAX),
        Change::PauseEnds => cluster.set_paused(of.expect("one broker stands still"), false),
        Change::Way { from, to, flag, on } => set_way(from, to, flag, on, cluster),
    }
}
