//! What goes wrong with one broker and when, drawn from the seed: each seed has its own mix of faults, and some have
//! none. What goes wrong with a cluster is in `cluster_faults.rs`.
//!
//! Damage (rot, and writes that report success and are not there) is in the mix only where a scenario asks for it: with
//! one copy no broker masks it.

use crate::clients::Clients;
use crate::kit::Cluster;
use camus_engine::io::Volume;
use camus_engine::io::sim::{Crash, Damage, DiskImage};
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
    /// A copy of the disk is made now, and the disk is that copy when the broker starts the next time but one.
    OldImage,
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
/// Seeds with damage in which old images are brought back, in a hundred.
const OLD_IMAGES_PERCENT: u64 = 15;

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
    /// What the disks were, by core, and how many starts from now they are that again.
    images: Option<(Vec<DiskImage>, usize)>,
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
            if rng.chance(OLD_IMAGES_PERCENT) {
                mix.push(Fault::OldImage);
            }
        }
        Faults {
            mix,
            damages,
            survived: Damage::default(),
            next_at: now + ms(rng.between(100, 3_000)),
            begin_at: None,
            lasting: vec![],
            images: None,
            cuts: vec![],
            refused: None,
        }
    }

    pub fn step(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        if self.refused.is_some() {
            return;
        }
        let now = cluster.now();
        if cluster.has_failed(0) && self.begin_at.is_none() {
            cluster.crash(0, Crash::Process);
        }
        if !cluster.is_running(0) && self.begin_at.is_none() {
            let down_ms = if cluster.chance(50) { 0 } else { cluster.pick(500) as u64 };
            self.begin_at = Some(now + ms(down_ms));
        }
        if self.begin_at.is_some_and(|at| at <= now) {
            self.begin_at = None;
            self.begin(cluster);
        }
        self.end_what_is_over(cluster);
        if now >= self.next_at && !self.mix.is_empty() {
            let fault = self.mix[cluster.pick(self.mix.len())];
            self.inject(fault, cluster, clients);
            self.next_at = cluster.now() + ms(100 + cluster.pick(5_000) as u64);
        }
    }

    fn begin(&mut self, cluster: &mut Cluster) {
        if self.damages && cluster.chance(20) {
            // It rots while nobody looks.
            let n = cluster.pick(cluster.brokers[0].cores.len());
            let _where = cluster.world.disk(cluster.brokers[0].cores[n]).rot_somewhere();
        }
        if let Some((images, starts)) = &mut self.images {
            *starts -= 1;
            if *starts == 0 {
                for (core, image) in cluster.brokers[0].cores.iter().zip(&*images) {
                    cluster.world.disk(*core).bring_back(image);
                }
                self.images = None;
            }
        }
        let damage = cluster.damage(0);
        // One flipped bit is always known as such. Anything else in the last groups may look like a write that was
        // never there (docs/adr/0002).
        if damage.writes > self.survived.writes
            || damage.images > self.survived.images
            || damage.bits > self.survived.bits + 1
        {
            self.cuts.push(cluster.now());
        }
        match cluster.begin(0) {
            Ok(()) => self.survived = damage,
            Err(why) => self.refused = Some(why),
        }
    }

    fn inject(&mut self, fault: Fault, cluster: &mut Cluster, clients: &mut Clients) {
        let n = cluster.pick(cluster.brokers[0].cores.len());
        let core = cluster.brokers[0].cores[n];
        let disk = cluster.world.disk(core);
        match fault {
            Fault::ProcessCrash => cluster.crash(0, Crash::Process),
            Fault::PowerLoss => cluster.crash(0, Crash::Power),
            Fault::Stop => {
                if cluster.is_running(0) && !cluster.stop(0) {
                    // A disk that hangs, or an operator without patience.
                    cluster.crash(0, Crash::Process);
                }
            }
            Fault::SlowDisk => {
                disk.slow_down(Duration::from_micros(500 + cluster.pick(20_000) as u64));
                self.last(2_000, Lasting::Slow(core), cluster);
            }
            Fault::Spikes => {
                disk.spike(1 + cluster.pick(20) as u64, ms(1 + cluster.pick(300) as u64));
                self.last(5_000, Lasting::Spikes(core), cluster);
            }
            Fault::HungDisk => {
                disk.hang(true);
                self.last(5_000, Lasting::Hang(core), cluster);
            }
            Fault::WriteErrors => disk.fail_writes(1 + cluster.pick(3) as u32),
            Fault::ReadErrors => disk.fail_reads(1 + cluster.pick(5) as u32),
            Fault::FullDisk => {
                let files = disk.volume().files().expect("a simulated disk lists its files");
                let used: u64 = files.iter().map(|(_, len)| len).sum();
                disk.set_capacity(used + cluster.pick(3) as u64 * cluster.shape.segment_bytes);
                self.last(5_000, Lasting::Full(core), cluster);
            }
            Fault::Resets => clients.reset_some(cluster),
            Fault::PausedReader => {
                let for_ms = 100 + cluster.pick(5_000) as u64;
                clients.pause_a_reader(for_ms, cluster);
            }
            Fault::Rot => {
                let _where = disk.rot_somewhere();
            }
            Fault::LostWrites => disk.lose_writes(1 + cluster.pick(3) as u32),
            Fault::MisdirectedWrites => disk.misdirect_writes(1 + cluster.pick(3) as u32),
            Fault::TornWrites => disk.tear_writes(1 + cluster.pick(3) as u32),
            Fault::OldImage => {
                if self.images.is_none() {
                    let image = |core: &SimCoreId| cluster.world.disk(*core).image();
                    self.images = Some((cluster.brokers[0].cores.iter().map(image).collect(), 2));
                }
            }
        }
    }

    /// It ends within this time.
    fn last(&mut self, ms_max: usize, what: Lasting, cluster: &mut Cluster) {
        let until = cluster.now() + ms(1 + cluster.pick(ms_max) as u64);
        self.lasting.push((until, what));
    }

    fn end_what_is_over(&mut self, cluster: &mut Cluster) {
        let now = cluster.now();
        self.lasting.retain(|(until, what)| {
            if *until <= now {
                end(*what, cluster);
            }
            *until > now
        });
    }

    /// Everything works from now on. A broker that is down is started again at the next step.
    pub fn heal(&mut self, cluster: &mut Cluster, clients: &mut Clients) {
        self.mix.clear();
        for (_, what) in std::mem::take(&mut self.lasting) {
            end(what, cluster);
        }
        heal_disks(cluster, 0);
        self.begin_at = self.begin_at.map(|_| cluster.now());
        clients.resume_readers(cluster);
    }
}

/// Nothing that was asked for goes wrong any more.
pub fn heal_disks(cluster: &Cluster, n: usize) {
    for core in &cluster.brokers[n].cores {
        let disk = cluster.world.disk(*core);
        disk.fail_writes(0);
        disk.fail_reads(0);
        disk.lose_writes(0);
        disk.misdirect_writes(0);
        disk.tear_writes(0);
    }
}

fn end(what: Lasting, cluster: &mut Cluster) {
    match what {
        Lasting::Slow(core) => cluster.world.disk(core).slow_down(Duration::ZERO),
        Lasting::Spikes(core) => cluster.world.disk(core).spike(0, Duration::ZERO),
        Lasting::Hang(core) => cluster.world.disk(core).hang(false),
        Lasting::Full(core) => cluster.world.disk(core).set_capacity(u64::MAX),
    }
}
