//! Who is at the other end of a link, and whether it may be.
//!
//! Each end says who it is and whom it believes the other to be. What does not fit is a setting that is wrong at one of
//! the two, so both say in their logs what it is.

use super::codec::PROTOCOL_VERSION;
use super::roll::{DirectoryId, Roll, Said};
use camus_engine::types::{BrokerId, CoreId};
use std::sync::Arc;

/// The first bytes of a hello: another program's are others.
pub const MAGIC: u64 = u64::from_le_bytes(*b"CAMUSPER");

/// The first frame of each direction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    pub magic: u64,
    pub version: u16,
    pub from: BrokerId,
    /// Whom the sender believes to talk to.
    pub to: BrokerId,
    /// Of the sender. Which core runs which shard follows from it.
    pub cores: u16,
    /// Of the sender; the same at both ends.
    pub core: u16,
    pub cluster_id: String,
    /// All brokers of the cluster, in order: they vote.
    pub brokers: Vec<BrokerId>,
    /// The sender's.
    pub directory: DirectoryId,
    /// The receiver's as far as the sender remembers one.
    pub yours: DirectoryId,
}

/// Why two brokers do not talk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    #[error("it is no broker of Camus: what it says begins with {magic:#018x}")]
    Magic { magic: u64 },
    #[error("it speaks version {theirs} of the protocol between brokers, this broker {PROTOCOL_VERSION}")]
    Version { theirs: u16 },
    #[error("it belongs to the cluster {theirs:?}, this broker to {ours:?}: look at camus.cluster.id of both")]
    Cluster { theirs: String, ours: String },
    #[error("it has the brokers {theirs:?}, this broker {ours:?}: look at camus.cluster.brokers of both")]
    Brokers { theirs: Vec<i32>, ours: Vec<i32> },
    #[error("it is broker {theirs}, not {expected}: look at its address in camus.cluster.brokers")]
    Sender { theirs: BrokerId, expected: BrokerId },
    #[error("broker {theirs} is not another broker of the cluster: look at its node.id")]
    Stranger { theirs: BrokerId },
    #[error("it takes this broker for {theirs}, this is {ours}: look at its camus.cluster.brokers")]
    Receiver { theirs: BrokerId, ours: BrokerId },
    #[error("it has {theirs} cores, this broker {ours}: all brokers of a cluster have the same number (camus.cores)")]
    Cores { theirs: u16, ours: u16 },
    #[error("its core {theirs} talks to core {ours}: each core has the port after that of the core before it")]
    Core { theirs: u16, ours: u16 },
    #[error(
        "it came with the data directory {theirs}, and had {known}: its disk was lost or replaced, and with it what it \
         had acknowledged. It is kept out; the others go on without it (docs/operate.md)"
    )]
    Directory { theirs: DirectoryId, known: DirectoryId },
    #[error(
        "it remembers the data directory {known} of this broker, which has {ours}: the disk was lost or replaced, or \
         another directory is configured here (docs/operate.md)"
    )]
    Replaced { ours: DirectoryId, known: DirectoryId },
    #[error("it does not say which data directory it has")]
    NoDirectory,
    #[error("which data directory it has can not be noted: {why}")]
    NotKept { why: String },
}

/// What one core says of itself; the same to all but for whom it talks to.
#[derive(Clone, Debug)]
pub struct Me {
    pub broker: BrokerId,
    pub cores: usize,
    pub core: CoreId,
    pub cluster_id: String,
    pub brokers: Vec<BrokerId>,
    /// Of all cores of this broker.
    pub roll: Arc<Roll>,
}

impl Me {
    pub fn hello(&self, to: BrokerId) -> Hello {
        Hello {
            magic: MAGIC,
            version: PROTOCOL_VERSION,
            from: self.broker,
            to,
            cores: self.cores as u16,
            core: self.core.0,
            cluster_id: self.cluster_id.clone(),
            brokers: self.brokers.clone(),
            directory: self.roll.own(),
            yours: self.roll.of(to),
        }
    }

    /// Whether whoever says this may be at the other end. If so, its directory is remembered from now on. `expected`:
    /// who was connected to, if it was this end's doing.
    pub fn check(&self, theirs: &Hello, expected: Option<BrokerId>) -> Result<(), Mismatch> {
        if theirs.magic != MAGIC {
            return Err(Mismatch::Magic { magic: theirs.magic });
        }
        if theirs.version != PROTOCOL_VERSION {
            return Err(Mismatch::Version { theirs: theirs.version });
        }
        if theirs.cluster_id != self.cluster_id {
            return Err(Mismatch::Cluster { theirs: theirs.cluster_id.clone(), ours: self.cluster_id.clone() });
        }
        if let Some(expected) = expected.filter(|expected| *expected != theirs.from) {
            return Err(Mismatch::Sender { theirs: theirs.from, expected });
        }
        if theirs.brokers != self.brokers {
            let ids = |brokers: &[BrokerId]| brokers.iter().map(|broker| broker.0).collect();
            return Err(Mismatch::Brokers { theirs: ids(&theirs.brokers), ours: ids(&self.brokers) });
        }
        if theirs.from == self.broker || !self.brokers.contains(&theirs.from) {
            return Err(Mismatch::Stranger { theirs: theirs.from });
        }
        if theirs.to != self.broker {
            return Err(Mismatch::Receiver { theirs: theirs.to, ours: self.broker });
        }
        if usize::from(theirs.cores) != self.cores {
            return Err(Mismatch::Cores { theirs: theirs.cores, ours: self.cores as u16 });
        }
        if theirs.core != self.core.0 {
            return Err(Mismatch::Core { theirs: theirs.core, ours: self.core.0 });
        }
        self.roll.meet(theirs.from, Said { theirs: theirs.directory, yours: theirs.yours })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::roll::tests::{Kept, id, roll};
    use super::*;

    pub fn me(broker: i32) -> Me {
        Me {
            broker: BrokerId(broker),
            cores: 2,
            core: CoreId(1),
            cluster_id: "c".to_owned(),
            brokers: [1, 2, 3].map(BrokerId).to_vec(),
            roll: Arc::new(roll(broker, id(broker as u8), &Kept::default())),
        }
    }

    /// Two clusters would take each other's votes, or a shard would be sent to a core that has another one.
    #[test]
    fn whoever_does_not_fit_is_told_apart_by_what_does_not() {
        let ours = me(1);
        let good = me(2).hello(BrokerId(1));
        assert_eq!(ours.check(&good, None), Ok(()));
        assert_eq!(ours.check(&good, Some(BrokerId(2))), Ok(()));
        assert!(matches!(ours.check(&good, Some(BrokerId(3))), Err(Mismatch::Sender { .. })));
        let bad = |change: fn(&mut Hello)| {
            let mut hello = good.clone();
            change(&mut hello);
            ours.check(&hello, None).expect_err("it does not fit")
        };
        assert!(matches!(bad(|h| h.magic = 1), Mismatch::Magic { .. }));
        assert!(matches!(bad(|h| h.version += 1), Mismatch::Version { .. }));
        assert!(matches!(bad(|h| h.cluster_id.push('x')), Mismatch::Cluster { .. }));
        assert!(matches!(bad(|h| h.brokers = vec![BrokerId(1), BrokerId(2)]), Mismatch::Brokers { .. }));
        assert!(matches!(bad(|h| h.from = BrokerId(1)), Mismatch::Stranger { .. }));
        assert!(matches!(bad(|h| h.from = BrokerId(9)), Mismatch::Stranger { .. }));
        assert!(matches!(bad(|h| h.to = BrokerId(3)), Mismatch::Receiver { .. }));
        assert!(matches!(bad(|h| h.cores = 1), Mismatch::Cores { .. }));
        assert!(matches!(bad(|h| h.core = 0), Mismatch::Core { .. }));
        assert!(matches!(bad(|h| h.directory = id(9)), Mismatch::Directory { .. }));
        assert!(matches!(bad(|h| h.yours = id(9)), Mismatch::Replaced { .. }));
        let said = bad(|h| h.cores = 1).to_string();
        assert!(said.contains("camus.cores"), "{said}");
    }

    /// A broker of another cluster, or on a wrong port, would take the place of the one that is to come.
    #[test]
    fn nobody_is_remembered_who_does_not_fit() {
        let ours = me(1);
        let good = me(2).hello(BrokerId(1));
        let other = Hello { cluster_id: "another".to_owned(), ..good.clone() };
        assert!(ours.check(&other, None).is_err());
        assert_eq!(ours.hello(BrokerId(2)).yours, DirectoryId::NONE);
        assert_eq!(ours.check(&good, None), Ok(()));
        assert_eq!(ours.hello(BrokerId(2)).yours, id(2), "and it is told so");
    }
}
