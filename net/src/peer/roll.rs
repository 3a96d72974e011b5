//! The roll of a cluster: which data directory each of its brokers has, and whether this broker takes part yet.
//!
//! A broker that comes back with an empty directory has forgotten what it acknowledged and for whom it voted. Counted
//! all the same it could make a majority that lacks acknowledged records. So a directory has an id of its own, each
//! broker remembers that of every other one for good, and speaks with no other directory (docs/adr/0013). What is
//! remembered is on the media before anything of the other broker is taken.

use super::hello::Mismatch;
use camus_engine::types::BrokerId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use uuid::Uuid;

/// Names a data directory for its whole life: drawn when the directory is made. Never [`DirectoryId::NONE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryId(Uuid);

impl DirectoryId {
    /// Stands where none is known.
    pub const NONE: DirectoryId = DirectoryId(Uuid::nil());

    /// Of random bytes.
    pub fn random(bytes: [u8; 16]) -> DirectoryId {
        DirectoryId(uuid::Builder::from_random_bytes(bytes).into_uuid())
    }

    pub fn from_bytes(bytes: [u8; 16]) -> DirectoryId {
        DirectoryId(Uuid::from_bytes(bytes))
    }

    pub fn bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// As it is shown; `None` where it is no id, or [`DirectoryId::NONE`].
    pub fn parse(text: &str) -> Option<DirectoryId> {
        Uuid::parse_str(text).ok().filter(|id| !id.is_nil()).map(DirectoryId)
    }
}

impl fmt::Display for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a broker remembers of the others for its whole life.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// Grows, and never changes.
    pub directories: BTreeMap<BrokerId, DirectoryId>,
    /// Every other broker has said that it remembers this one's directory. Stays true.
    pub formed: bool,
}

/// Puts what is remembered where it survives a crash. Called on a core's thread, once or twice for each broker of the
/// cluster in the life of a directory; returns when it is on the media.
pub trait Keep: fmt::Debug + Send + Sync {
    fn keep(&self, known: &Known) -> io::Result<()>;
}

/// Keeps in memory: for brokers of the simulator, whose processes it outlives.
#[derive(Clone, Debug, Default)]
pub struct InMemory(Arc<Mutex<Known>>);

impl InMemory {
    pub fn known(&self) -> Known {
        self.0.lock().expect("nobody panics with it").clone()
    }
}

impl Keep for InMemory {
    fn keep(&self, known: &Known) -> io::Result<()> {
        self.0.lock().expect("nobody panics with it").clone_from(known);
        Ok(())
    }
}

/// What a hello says of directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// The sender's own.
    pub theirs: DirectoryId,
    /// The one that the sender knows the receiver by; [`DirectoryId::NONE`] if it knows none.
    pub yours: DirectoryId,
}

/// Whether who says this may be talked to; `own` and `known` are the receiver's.
pub fn check(own: DirectoryId, known: Option<DirectoryId>, said: Said) -> Result<(), Mismatch> {
    if said.theirs == DirectoryId::NONE {
        return Err(Mismatch::NoDirectory);
    }
    if let Some(known) = known.filter(|known| *known != said.theirs) {
        return Err(Mismatch::Directory { theirs: said.theirs, known });
    }
    if said.yours != own && said.yours != DirectoryId::NONE {
        return Err(Mismatch::Replaced { ours: own, known: said.yours });
    }
    Ok(())
}

/// Shared by the cores of one broker: each of them meets the others.
///
/// A broker takes part, which is to say that messages of its replicas leave and are taken, once it is formed: it
/// remembers the directory of each other broker, and each of them remembers its own. A directory that was formed is the
/// only one of its broker that ever will be, as long as one of the others keeps what it remembers: to be formed, a
/// second one would need that other's word, which is given once.
#[derive(Debug)]
pub struct Roll {
    own: DirectoryId,
    others: BTreeSet<BrokerId>,
    /// As in `met`, for who only asks.
    formed: AtomicBool,
    met: Mutex<Met>,
    keep: Box<dyn Keep>,
}

#[derive(Debug)]
struct Met {
    /// As it was kept.
    known: Known,
    /// Who has said in this life that it remembers this broker's directory.
    remembered_by: BTreeSet<BrokerId>,
    /// Who has said, while this broker was not formed, that it remembers another one; and which.
    kept_out: Option<(BrokerId, DirectoryId)>,
}

impl Roll {
    /// `known`: what was kept in earlier lives. `others`: the other brokers of the cluster.
    ///
    /// # Panics
    /// If `own` is none, or a cluster is formed of which not every directory is known: whoever reads it has looked.
    pub fn new(own: DirectoryId, others: BTreeSet<BrokerId>, known: Known, keep: Box<dyn Keep>) -> Roll {
        assert_ne!(own, DirectoryId::NONE, "a directory has an id");
        let all = others.iter().all(|other| known.directories.contains_key(other));
        assert!(!known.formed || all, "a cluster was formed of {others:?}, and known is {known:?}");
        let formed = AtomicBool::new(known.formed);
        let met = Mutex::new(Met { known, remembered_by: BTreeSet::new(), kept_out: None });
        Roll { own, others, formed, met, keep }
    }

    pub fn own(&self) -> DirectoryId {
        self.own
    }

    /// This broker takes part.
    pub fn is_formed(&self) -> bool {
        self.formed.load(Ordering::Acquire)
    }

    /// [`DirectoryId::NONE`] if none is known.
    pub fn of(&self, broker: BrokerId) -> DirectoryId {
        self.met().known.directories.get(&broker).copied().unwrap_or(DirectoryId::NONE)
    }

    /// Another broker of the cluster says who it is, and everything else fits. If it may be talked to, its directory is
    /// remembered when this returns.
    pub fn meet(&self, broker: BrokerId, said: Said) -> Result<(), Mismatch> {
        let mut met = self.met();
        let fits = check(self.own, met.known.directories.get(&broker).copied(), said);
        if let Err(Mismatch::Replaced { known, .. }) = fits
            && !met.known.formed
        {
            met.kept_out = Some((broker, known));
        }
        fits?;
        let mut known = met.known.clone();
        known.directories.entry(broker).or_insert(said.theirs);
        let mut remembered_by = met.remembered_by.clone();
        if said.yours == self.own {
            remembered_by.insert(broker);
        }
        known.formed |= self.others.is_subset(&remembered_by);
        if known != met.known {
            self.keep.keep(&known).map_err(|error| Mismatch::NotKept { why: error.to_string() })?;
        }
        self.formed.store(known.formed, Ordering::Release);
        (met.known, met.remembered_by) = (known, remembered_by);
        Ok(())
    }

    /// This directory never took part and never will: another one has its place. Who says so, and which.
    pub fn kept_out(&self) -> Option<(BrokerId, DirectoryId)> {
        self.met().kept_out
    }

    fn met(&self) -> MutexGuard<'_, Met> {
        self.met.lock().expect("a core that panics ends the process")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn id(n: u8) -> DirectoryId {
        DirectoryId::from_bytes([n; 16])
    }

    /// A disk that keeps, or fails.
    #[derive(Clone, Debug, Default)]
    pub struct Kept(Arc<Mutex<(Known, bool)>>);

    impl Keep for Kept {
        fn keep(&self, known: &Known) -> io::Result<()> {
            let mut disk = self.0.lock().unwrap();
            if disk.1 {
                return Err(io::Error::other("no space"));
            }
            disk.0 = known.clone();
            Ok(())
        }
    }

    impl Kept {
        fn known(&self) -> Known {
            self.0.lock().unwrap().0.clone()
        }
    }

    /// Of broker `me` of three with this directory.
    pub fn roll(me: i32, own: DirectoryId, disk: &Kept) -> Roll {
        let others = [1, 2, 3].into_iter().filter(|id| *id != me).map(BrokerId).collect();
        Roll::new(own, others, disk.known(), Box::new(disk.clone()))
    }

    /// A broker that lost its disk would vote, and be counted, as if it still had what it acknowledged.
    #[test]
    fn a_broker_with_another_directory_than_it_had_is_told_apart_at_both_ends() {
        let (own, old, new) = (id(1), id(2), id(9));
        let said = |theirs, yours| Said { theirs, yours };
        assert_eq!(check(own, None, said(old, DirectoryId::NONE)), Ok(()), "the first time");
        assert_eq!(check(own, Some(old), said(old, own)), Ok(()), "ever after");
        assert_eq!(check(own, Some(old), said(old, DirectoryId::NONE)), Ok(()), "its notes are younger than ours");
        assert_eq!(
            check(own, None, said(DirectoryId::NONE, own)),
            Err(Mismatch::NoDirectory),
            "nobody can be known so"
        );
        let other = Err(Mismatch::Directory { theirs: new, known: old });
        assert_eq!(check(own, Some(old), said(new, DirectoryId::NONE)), other);
        assert_eq!(check(own, Some(old), said(new, own)), other);
        // the new one, on what the others say
        assert_eq!(check(new, None, said(own, old)), Err(Mismatch::Replaced { ours: new, known: old }));
        assert_eq!(check(new, Some(own), said(own, old)), Err(Mismatch::Replaced { ours: new, known: old }));
    }

    /// Two brokers of three that are both new could elect one of them, while the third has what was acknowledged.
    #[test]
    fn a_broker_takes_part_when_all_others_remember_it_and_for_good() {
        let disk = Kept::default();
        let first = roll(1, id(1), &disk);
        let hello = |theirs, yours| Said { theirs: id(theirs), yours };
        assert_eq!(first.meet(BrokerId(2), hello(2, id(1))), Ok(()));
        assert_eq!(first.meet(BrokerId(3), hello(3, DirectoryId::NONE)), Ok(()));
        assert!(!first.is_formed(), "broker 3 has not said that it remembers this one");
        assert_eq!((first.of(BrokerId(2)), first.of(BrokerId(3))), (id(2), id(3)));
        assert_eq!(first.meet(BrokerId(3), hello(3, id(1))), Ok(()));
        assert!(first.is_formed() && disk.known().formed);
        assert!(first.meet(BrokerId(2), hello(2, id(9))).is_err());
        assert_eq!(first.kept_out(), None, "it took part, whatever one of them says");
        let new = roll(1, id(9), &Kept::default());
        assert!(new.meet(BrokerId(2), hello(2, id(1))).is_err());
        assert_eq!((new.kept_out(), new.of(BrokerId(2))), (Some((BrokerId(2), id(1))), DirectoryId::NONE));
        let again = roll(1, id(1), &disk);
        assert!(again.is_formed() && again.meet(BrokerId(2), hello(7, id(1))).is_err());
        assert_eq!(again.of(BrokerId(2)), id(2));
    }

    /// After a crash a broker would take part with whom it has forgotten.
    #[test]
    fn nothing_is_known_that_could_not_be_kept() {
        let disk = Kept::default();
        let first = roll(1, id(1), &disk);
        let said = Said { theirs: id(2), yours: id(1) };
        disk.0.lock().unwrap().1 = true;
        assert!(matches!(first.meet(BrokerId(2), said), Err(Mismatch::NotKept { .. })));
        assert_eq!(first.of(BrokerId(2)), DirectoryId::NONE);
        disk.0.lock().unwrap().1 = false;
        assert_eq!(first.meet(BrokerId(2), said), Ok(()));
        disk.0.lock().unwrap().1 = true;
        assert_eq!(first.meet(BrokerId(2), said), Ok(()), "what is kept is not written again");
        let last = Said { theirs: id(3), yours: id(1) };
        assert!(first.meet(BrokerId(3), last).is_err() && !first.is_formed());
    }

    /// What may happen to three brokers while they meet.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// One connects to another, and that one answers; or the connection breaks before the answer.
        Greet {
            from: usize,
            to: usize,
            is_answered: bool,
        },
        Restart(usize),
        LoseDisk(usize),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..3usize, 1..3usize, any::<bool>())
                .prop_map(|(from, n, is_answered)| Step::Greet { from, to: (from + n) % 3, is_answered }),
            2 => (0..3usize).prop_map(Step::Restart),
            1 => (0..3usize).prop_map(Step::LoseDisk),
        ]
    }

    struct World {
        disks: [Kept; 3],
        rolls: [Roll; 3],
        /// Of each broker: the directories that took part in the cluster.
        formed: [BTreeSet<[u8; 16]>; 3],
        made: u8,
    }

    impl World {
        fn new() -> World {
            let disks: [Kept; 3] = Default::default();
            let rolls = [0, 1, 2].map(|n| roll(n as i32 + 1, id(n as u8 + 1), &disks[n]));
            World { disks, rolls, formed: Default::default(), made: 3 }
        }

        /// One hello, and whether it is welcome.
        fn hello(&self, from: usize, to: usize) -> bool {
            let (from_id, to_id) = (BrokerId(from as i32 + 1), BrokerId(to as i32 + 1));
            let said = Said { theirs: self.rolls[from].own(), yours: self.rolls[from].of(to_id) };
            self.rolls[to].meet(from_id, said).is_ok()
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Greet { from, to, is_answered } => {
                    // who refuses says who it is as well
                    self.hello(from, to);
                    if is_answered {
                        self.hello(to, from);
                    }
                }
                Step::Restart(n) => self.rolls[n] = roll(n as i32 + 1, self.rolls[n].own(), &self.disks[n]),
                Step::LoseDisk(n) => {
                    self.disks[n] = Kept::default();
                    self.made += 1;
                    self.rolls[n] = roll(n as i32 + 1, id(self.made), &self.disks[n]);
                }
            }
            for (roll, formed) in self.rolls.iter().zip(&mut self.formed) {
                if roll.is_formed() {
                    formed.insert(*roll.own().bytes());
                }
            }
        }
    }

    proptest! {
        /// Whatever comes in between: a second directory of a broker would be counted beside the first one, and two
        /// majorities would have no broker in common that remembers.
        #[test]
        fn no_two_directories_of_a_broker_take_part_while_one_other_keeps_its_disk(
            keeps in 0..3usize,
            steps in prop::collection::vec(any_step(), 0..60),
        ) {
            let mut world = World::new();
            for step in steps.into_iter().filter(|step| !matches!(step, Step::LoseDisk(n) if *n == keeps)) {
                world.step(step);
                for n in (0..3).filter(|n| *n != keeps) {
                    prop_assert!(world.formed[n].len() <= 1, "broker {n}: {:?}", world.formed[n]);
                }
            }
        }

        /// A new cluster would never begin: whatever broke before, brokers that keep their disks and meet take part.
        #[test]
        fn brokers_that_keep_their_disks_come_together(steps in prop::collection::vec(any_step(), 0..30)) {
            let mut world = World::new();
            for step in steps.into_iter().filter(|step| !matches!(step, Step::LoseDisk(_))) {
                world.step(step);
            }
            for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                prop_assert!(world.hello(from, to) && world.hello(to, from));
            }
            prop_assert!(world.rolls.iter().all(Roll::is_formed));
        }
    }
}
