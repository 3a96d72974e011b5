//! Which numbers the epochs of groups have.
//!
//! Members are in memory only, so a coordinator does not know which epochs the one before it gave. It must not give
//! them again: a client that makes its own member id keeps it, and what it sends late would be taken for what it says
//! now. So each term of the meta shard has numbers of its own (docs/adr/0016).

use camus_engine::types::Term;

/// Epochs of one group in one term: 2^19. Then they begin anew, when nobody remembers the first.
const BITS: u32 = 19;
/// Terms that have numbers of their own: 2^12, and with the epochs all that an `i32` has above 0.
const TERMS: u64 = 1 << (31 - BITS);
const LAST: i32 = (1 << BITS) - 1;

/// The epochs of one term. Two of them are equal or not; that one is above another means nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::groups) struct Epochs {
    base: i32,
}

impl Epochs {
    pub(in crate::groups) fn of(term: Term) -> Epochs {
        Epochs { base: i32::try_from(term.0 % TERMS).expect("12 bits") << BITS }
    }

    /// The epoch that follows: above 0, and none of another term, whoever gave this one.
    pub(in crate::groups) fn after(self, epoch: i32) -> i32 {
        if (self.base..self.base + LAST).contains(&epoch) { epoch + 1 } else { self.base + 1 }
    }

    /// Whether this is an epoch of a group of KIP-848 and no generation of a classic one: those are as many as there
    /// were rebalances, and never so large.
    pub(in crate::groups) fn may_have_given(epoch: i32) -> bool {
        epoch > LAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: a member of before a restart is taken for one of now, and moves the offsets of partitions
    /// that another has.
    #[test]
    fn no_two_terms_give_the_same_epoch() {
        for term in [1, 2, 77, TERMS - 1] {
            let (one, next) = (Epochs::of(Term(term)), Epochs::of(Term(term + 1)));
            let (mut given, mut also) = (0, 0);
            for _ in 0..10_000 {
                (given, also) = (one.after(given), next.after(also));
                assert_eq!(given >> BITS, i32::try_from(term).unwrap());
                assert_ne!(given >> BITS, also >> BITS);
            }
        }
    }

    /// Lost if it fails: an epoch of 0 or below, which would be a join or a leave; or one of the next term.
    #[test]
    fn an_epoch_is_above_0_and_stays_within_its_term() {
        for term in [0, 1, TERMS - 1, TERMS, u64::MAX] {
            let epochs = Epochs::of(Term(term));
            for from in [-2, -1, 0, 1, 5, epochs.base, epochs.base + LAST - 1, epochs.base + LAST, i32::MAX] {
                let next = epochs.after(from);
                assert!(next > 0 && next >> BITS == epochs.base >> BITS, "{from} {next}");
                assert_ne!(next, from);
            }
        }
    }
}
