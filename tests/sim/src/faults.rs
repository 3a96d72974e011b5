//! What goes wrong and when, drawn from the seed: each seed has its own mix of faults, and some have none.
//!
//! Damage (rot, and writes that report success and are not there) is in the mix only where a scenario asks for it: with
//! one copy no broker masks it.

use crate::clients::Clients;
use crate::kit::SimBroker;
use camus_engine::io::Volume;
use camus_engine::io::sim::{Crash, Damage};
use camus_engine::rt::rng::Rng;
use camus_engine::rt::sim::SimCoreId;
use camus_engine::types::Mono;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    ProcessCrash,
    PowerLoss,
    /// A signal, and a start.
    Stop,
    SlowDisk,
    /// Some operations take long, the others do not.
    Spikes,
    HungDisk,
    /// The broker ends itself, and is started again.
    WriteErrors,
    ReadErrors,
    FullDisk,
    Resets,
    PausedReader,
    Rot,
    LostWrites,
    MisdirectedWrites,
    TornWrites,
}

const ALL: [Fault; 11] = [
    Fault::ProcessCrash,
    Fault::PowerLoss,
    Fault::Stop,
    Fault::SlowDisk,
    Fault::Spikes,
    Fault::HungDisk,
    Fault::WriteErrors,
    Fault::ReadErrors,
    Fault::FullDisk,
    Fault::Resets,
    Fault::PausedReader,
];

const DAMAGE: [Fault; 4] = [Fault::Rot, Fault::LostWrites, Fault::MisdirectedWrites, Fault::TornWrites];

/// A fault that ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lasting {
    Slow(SimCoreId),
    Spikes(SimCoreId),
    Hang(SimCoreId),
    Full(SimCoreId),
}

pub struct Faults {
    mix: Vec<Fault>,
    /// Disks are damaged.
    damages: bool,
    /// What was known of damage when a start was not refused.
    survived: Damage,
    next_at: Mono,
    /// The broker is down, and is started again then.
    begin_at: Option<Mono>,
    lasting: Vec<(Mono, Lasting)>,
    /// Starts before which the end of the log may have been lost without a trace.
    pub cuts: Vec<Mono>,
    /// A core refused its disk: there is no broker any more.
    pub refused: Option<String>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Faults {
    /// Each kind is in every second seed. With `damages` one kind of damage at least.
    pub fn drawn(rng: &mut Rng, now: Mono, damages: bool) -> Faults {
        let mut mix: Vec<Fault> = ALL.into_iter().filter(|_| rng.chance(50)).collect();
        if damages {
            mix.push(DAMAGE[rng.between(0, DAMAGE.len() as u64 - 1) as usize]);
            mix.extend(DAMAGE.into_iter().filter(|_| rng.chance(30)));
        }
        Faults {
            mix,
            damages,
            survived: Damage::default(),
            next_at: now + ms(rng.between(100, 3_000)),
            begin_at: None,
            lasting: vec![],
            cuts: vec![],
            refused: None,
        }
    }

    pub fn step(&mut self, broker: &mut SimBroker, clients: &mut Clients) {
        if self.refused.is_some() {
            return;
        }
        let now = broker.now();
        if broker.has_failed() && self.begin_at.is_none() {
            broker.crash(Crash::Process);
        }
        if !broker.is_running() && self.begin_at.is_none() {
            let down_ms = if broker.chance(50) { 0 } else { broker.pick(500) as u64 };
            self.begin_at = Some(now + ms(down_ms));
        }
        if self.begin_at.is_some_and(|at| at <= now) {
            self.begin_at = None;
            self.begin(broker);
        }
        self.end_what_is_over(broker);
        if now >= self.next_at && !self.mix.is_empty() {
            let fault = self.mix[broker.pick(self.mix.len())];
            self.inject(fault, broker, clients);
            self.next_at = broker.now() + ms(100 + broker.pick(5_000) as u64);
        }
    }

    fn begin(&mut self, broker: &mut SimBroker) {
        if self.damages && broker.chance(20) {
            // It rots while nobody looks.
            let n = broker.pick(broker.cores.len());
            let _where = broker.world.disk(broker.cores[n]).rot_somewhere();
        }
        let damage = broker.damage();
        // One flipped bit is always known as such. Anything else in the last groups may look like a write that was
        // never there (docs/adr/0002).
        if damage.writes > self.survived.writes || damage.bits > self.survived.bits + 1 {
            self.cuts.push(broker.now());
        }
        match broker.begin() {
            Ok(()) => self.survived = damage,
            Err(why) => self.refused = Some(why),
        }
    }

    fn inject(&mut self, fault: Fault, broker: &mut SimBroker, clients: &mut Clients) {
        let n = broker.pick(broker.cores.len());
        let core = broker.cores[n];
        let disk = broker.world.disk(core);
        match fault {
            Fault::ProcessCrash => broker.crash(Crash::Process),
            Fault::PowerLoss => broker.crash(Crash::Power),
            Fault::Stop => {
                if broker.is_running() && !broker.stop() {
                    // A disk that hangs, or an operator without patience.
                    broker.crash(Crash::Process);
                }
            }
            Fault::SlowDisk => {
                disk.slow_down(Duration::from_micros(500 + broker.pick(20_000) as u64));
                self.last(2_000, Lasting::Slow(core), broker);
            }
            Fault::Spikes => {
                disk.spike(1 + broker.pick(20) as u64, ms(1 + broker.pick(300) as u64));
                self.last(5_000, Lasting::Spikes(core), broker);
            }
            Fault::HungDisk => {
                disk.hang(true);
                self.last(5_000, Lasting::Hang(core), broker);
            }
            Fault::WriteErrors => disk.fail_writes(1 + broker.pick(3) as u32),
            Fault::ReadErrors => disk.fail_reads(1 + broker.pick(5) as u32),
            Fault::FullDisk => {
                let files = disk.volume().files().expect("a simulated disk lists its files");
                let used: u64 = files.iter().map(|(_, len)| len).sum();
                disk.set_capacity(used + broker.pick(3) as u64 * broker.shape.segment_bytes);
                self.last(5_000, Lasting::Full(core), broker);
            }
            Fault::Resets => clients.reset_some(broker),
            Fault::PausedReader => {
                let for_ms = 100 + broker.pick(5_000) as u64;
                clients.pause_a_reader(for_ms, broker);
            }
            Fault::Rot => {
                let _where = disk.rot_somewhere();
            }
            Fault::LostWrites => disk.lose_writes(1 + broker.pick(3) as u32),
            Fault::MisdirectedWrites => disk.misdirect_writes(1 + broker.pick(3) as u32),
            Fault::TornWrites => disk.tear_writes(1 + broker.pick(3) as u32),
        }
    }

    /// It ends within this time.
    fn last(&mut self, ms_max: usize, what: Lasting, broker: &mut SimBroker) {
        let until = broker.now() + ms(1 + broker.pick(ms_max) as u64);
        self.lasting.push((until, what));
    }

    fn end_what_is_over(&mut self, broker: &mut SimBroker) {
        let now = broker.now();
        self.lasting.retain(|(until, what)| {
            if *until <= now {
                end(*what, broker);
            }
            *until > now
        });
    }

    /// Everything works from now on. A broker that is down is started again at the next step.
    pub fn heal(&mut self, broker: &mut SimBroker, clients: &mut Clients) {
        self.mix.clear();
        for (_, what) in std::mem::take(&mut self.lasting) {
            end(what, broker);
        }
        for core in &broker.cores {
            let disk = broker.world.disk(*core);
            disk.fail_writes(0);
            disk.fail_reads(0);
            disk.lose_writes(0);
            disk.misdirect_writes(0);
            disk.tear_writes(0);
        }
        self.begin_at = self.begin_at.map(|_| broker.now());
        clients.resume_readers(broker);
    }
}

fn end(what: Lasting, broker: &mut SimBroker) {
    match what {
        Lasting::Slow(core) => broker.world.disk(core).slow_down(Duration::ZERO),
        Lasting::Spikes(core) => broker.world.disk(core).spike(0, Duration::ZERO),
        Lasting::Hang(core) => broker.world.disk(core).hang(false),
        Lasting::Full(core) => broker.world.disk(core).set_capacity(u64::MAX),
    }
}
