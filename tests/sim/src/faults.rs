//! What goes wrong and when, drawn from the seed: each seed has its own mix of faults, and some have none.

use crate::clients::Clients;
use crate::kit::SimBroker;
use camus_engine::io::Volume;
use camus_engine::io::sim::Crash;
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
    HungDisk,
    /// The broker ends itself, and is started again.
    WriteErrors,
    ReadErrors,
    FullDisk,
    Resets,
    PausedReader,
}

const ALL: [Fault; 10] = [
    Fault::ProcessCrash,
    Fault::PowerLoss,
    Fault::Stop,
    Fault::SlowDisk,
    Fault::HungDisk,
    Fault::WriteErrors,
    Fault::ReadErrors,
    Fault::FullDisk,
    Fault::Resets,
    Fault::PausedReader,
];

/// A fault that ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lasting {
    Slow(SimCoreId),
    Hang(SimCoreId),
    Full(SimCoreId),
}

pub struct Faults {
    mix: Vec<Fault>,
    next_at: Mono,
    /// The broker is down, and is started again then.
    begin_at: Option<Mono>,
    lasting: Vec<(Mono, Lasting)>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

impl Faults {
    /// Each kind is in every second seed.
    pub fn drawn(rng: &mut Rng, now: Mono) -> Faults {
        let mix = ALL.into_iter().filter(|_| rng.chance(50)).collect();
        Faults { mix, next_at: now + ms(rng.between(100, 3_000)), begin_at: None, lasting: vec![] }
    }

    pub fn step(&mut self, broker: &mut SimBroker, clients: &mut Clients) {
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
            broker.begin();
        }
        self.end_what_is_over(broker);
        if now >= self.next_at && !self.mix.is_empty() {
            let fault = self.mix[broker.pick(self.mix.len())];
            self.inject(fault, broker, clients);
            self.next_at = broker.now() + ms(100 + broker.pick(5_000) as u64);
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
        }
        self.begin_at = self.begin_at.map(|_| broker.now());
        clients.resume_readers(broker);
    }
}

fn end(what: Lasting, broker: &mut SimBroker) {
    match what {
        Lasting::Slow(core) => broker.world.disk(core).slow_down(Duration::ZERO),
        Lasting::Hang(core) => broker.world.disk(core).hang(false),
        Lasting::Full(core) => broker.world.disk(core).set_capacity(u64::MAX),
    }
}
