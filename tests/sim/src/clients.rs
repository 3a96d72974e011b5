//! All clients of a broker, or of a cluster.

use crate::epochs::EpochReader;
use crate::fellows::{Fellows, GROUP, Kind};
use crate::kit::{BROKERS, Cluster};
use crate::ledger::Ledger;
use crate::members::Member;
use crate::onlookers::Onlooker;
use crate::producers::{Idempotent, Plain};
use crate::reach::Reach;
use crate::readers::{Committer, Reader, Trimmer};

/// Processes of a history: which numbers belong to whom.
const IDEMPOTENTS: std::ops::Range<u32> = 0..4;
const PLAINS: std::ops::Range<u32> = 4..6;
const READERS: u32 = 10;
const EPOCH_READERS: std::ops::Range<u32> = 20..22;
const COMMITTERS: std::ops::Range<u32> = 30..33;
const TRIMMER: u32 = 40;
/// Whoever looks in the end.
pub const AUDITOR: u32 = 50;
const MEMBERS: std::ops::Range<u32> = 60..62;
/// As many as there are committers: each looks at one's group.
const ONLOOKERS: u32 = 70;
/// Looks at the group of the fellows.
const FELLOWS_ONLOOKER: u32 = 75;
const FELLOWS: u32 = 80;

/// The last of those that commit does so seldom: what it committed is old.
fn commits_percent(process: u32) -> u64 {
    if process + 1 == COMMITTERS.end { 3 } else { 70 }
}

pub struct Clients {
    idempotents: Vec<Idempotent>,
    plains: Vec<Plain>,
    readers: Vec<Reader>,
    epoch_readers: Vec<EpochReader>,
    committers: Vec<Committer>,
    members: Vec<Member>,
    fellows: Fellows,
    onlookers: Vec<Onlooker>,
    trimmer: Trimmer,
}

impl Clients {
    /// Two readers a partition. `tight`: the log is so small that what is read has to go. `grouped`: some are each the
    /// only member of a group. `fellows`: what some speak that are one group.
    pub fn new(partitions: i32, tight: bool, grouped: bool, fellows: Option<Kind>) -> Clients {
        let of = |process: u32| process as i32 % partitions;
        let members = if grouped { MEMBERS } else { 0..0 };
        Clients {
            idempotents: IDEMPOTENTS.map(|process| Idempotent::new(process, of(process))).collect(),
            plains: PLAINS.map(|process| Plain::new(process, of(process))).collect(),
            readers: (0..2 * partitions).map(|n| Reader::new(READERS + n as u32, n % partitions)).collect(),
            epoch_readers: EPOCH_READERS.map(|process| EpochReader::new(process, of(process))).collect(),
            committers: COMMITTERS
                .map(|process| Committer::new(process, of(process), commits_percent(process)))
                .collect(),
            members: members.map(|process| Member::new(process, of(process))).collect(),
            fellows: Fellows::new(FELLOWS, fellows, partitions),
            onlookers: if grouped { onlookers(of, fellows.is_some()) } else { vec![] },
            trimmer: Trimmer::new(TRIMMER, tight),
        }
    }

    /// Two idempotent producers, a plain one, and a reader a partition.
    pub fn few(partitions: i32) -> Clients {
        let of = |process: u32| process as i32 % partitions;
        Clients {
            idempotents: IDEMPOTENTS.take(2).map(|process| Idempotent::new(process, of(process))).collect(),
            plains: PLAINS.take(1).map(|process| Plain::new(process, of(process))).collect(),
            readers: (0..partitions).map(|n| Reader::new(READERS + n as u32, n)).collect(),
            epoch_readers: vec![],
            committers: vec![],
            members: vec![],
            fellows: Fellows::new(FELLOWS, None, partitions),
            onlookers: vec![],
            trimmer: Trimmer::new(TRIMMER, false),
        }
    }

    /// Each does what there is to do now.
    pub fn step(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        self.idempotents.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.plains.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.readers.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.epoch_readers.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.committers.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.members.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.fellows.step(cluster, ledger);
        self.onlookers.iter_mut().for_each(|client| client.step(cluster, ledger));
        self.trimmer.step(cluster, ledger);
    }

    /// Some of them lose their connections in one moment, as when a switch does.
    pub fn reset_some(&mut self, cluster: &mut Cluster) {
        for reach in self.reaches() {
            if let Some(open) = reach.conn()
                && cluster.chance(50)
            {
                cluster.world.reset(open.id);
            }
        }
    }

    fn reaches(&mut self) -> Vec<&mut Reach> {
        let mut all: Vec<&mut Reach> = Vec::new();
        all.extend(self.idempotents.iter_mut().map(Idempotent::reach));
        all.extend(self.plains.iter_mut().map(Plain::reach));
        all.extend(self.readers.iter_mut().map(Reader::reach));
        all.extend(self.epoch_readers.iter_mut().map(EpochReader::reach));
        all.extend(self.committers.iter_mut().map(Committer::reach));
        all.extend(self.members.iter_mut().flat_map(Member::reaches));
        all.extend(self.fellows.reaches());
        all.push(self.trimmer.reach());
        all
    }

    /// One of the readers takes nothing for this long.
    pub fn pause_a_reader(&mut self, ms: u64, cluster: &mut Cluster) {
        let n = cluster.pick(self.readers.len());
        let until = cluster.now() + std::time::Duration::from_millis(ms);
        self.readers[n].pause(until, cluster);
    }

    pub fn resume_readers(&mut self, cluster: &mut Cluster) {
        self.readers.iter_mut().for_each(|reader| reader.resume(cluster));
    }

    /// Readers are done when they have read what is below the end of their partition.
    pub fn must_reach(&mut self, partition: i32, end: i64) {
        for reader in self.readers.iter_mut().filter(|reader| reader.partition() == partition) {
            reader.must_reach(end);
        }
    }

    /// Of those that write and commit, whoever has not shown that it gets on.
    pub fn writers_not_done(&self) -> Vec<String> {
        let idempotents = self.idempotents.iter().filter(|client| !client.is_done()).map(Idempotent::name);
        let plains = self.plains.iter().filter(|client| !client.is_done()).map(Plain::name);
        let committers = self.committers.iter().filter(|client| !client.is_done()).map(Committer::name);
        let members = self.members.iter().filter(|client| !client.is_done()).map(Member::name);
        idempotents.chain(plains).chain(committers).chain(members).chain(self.fellows.not_done()).collect()
    }

    pub fn readers_not_done(&self) -> Vec<String> {
        self.readers.iter().filter(|reader| !reader.is_done()).map(Reader::name).collect()
    }

    /// They leave. What they wait for still, they will never know.
    pub fn finish(&mut self, cluster: &mut Cluster, ledger: &mut Ledger) {
        let now = cluster.now();
        self.idempotents.iter_mut().for_each(|client| client.finish(now, ledger));
        self.plains.iter_mut().for_each(|client| client.finish(now, ledger));
        self.committers.iter_mut().for_each(|client| client.finish(now, ledger));
        self.members.iter_mut().for_each(|client| client.finish(now, ledger));
        self.fellows.finish(now, ledger);
        self.trimmer.finish(now, ledger);
        self.reaches().into_iter().for_each(|reach| reach.close(cluster));
        self.onlookers.iter_mut().for_each(|client| client.close(cluster));
    }
}

fn onlookers(of: impl Fn(u32) -> i32, has_fellows: bool) -> Vec<Onlooker> {
    let look = |(n, process)| Onlooker::new(ONLOOKERS + n, Committer::group_of(process), of(process), BROKERS);
    let fellows = has_fellows.then(|| Onlooker::new(FELLOWS_ONLOOKER, GROUP.to_owned(), 0, BROKERS));
    (0..).zip(COMMITTERS).map(look).chain(fellows).collect()
}
