//! Finding batches by time: the first, in log order, whose max timestamp is at or above a time. Timestamps are the
//! clients' and come in any order, so this is no binary search: groups of batches carry their maximum, groups of groups
//! theirs, and a search passes over the groups that have nothing late enough.

use crate::types::WallMs;
use std::collections::VecDeque;

/// Members of a group, as a power of two.
const FAN_LOG: u32 = 6;
/// Groups of 64, of 4096 and of 262144 batches.
const LEVELS: usize = 3;

/// The maxima. Batches are named by their number since the partition was loaded; their own timestamps are in the log's
/// index, and given to each search as `of`.
#[derive(Clone, Debug, Default)]
pub struct TimeIndex {
    /// Numbers of the first batch held, and of the one that will come next.
    first: u64,
    next: u64,
    /// By level, the maximum of each group, from the group of `first` on. What left a group at its front still counts
    /// in its maximum, so a group is only trusted by who enters it at its own beginning.
    maxima: [VecDeque<WallMs>; LEVELS],
}

impl TimeIndex {
    pub fn first(&self) -> u64 {
        self.first
    }

    pub fn push(&mut self, max_timestamp: WallMs) {
        for (level, maxima) in self.maxima.iter_mut().enumerate() {
            let group = (self.next >> shift(level)) - (self.first >> shift(level));
            match maxima.get_mut(group as usize) {
                Some(maximum) => *maximum = (*maximum).max(max_timestamp),
                None => maxima.push_back(max_timestamp),
            }
            assert_eq!(maxima.len() as u64, group + 1, "groups of level {level} follow each other");
        }
        self.next += 1;
    }

    /// The first `count` batches are gone.
    pub fn drop_front(&mut self, count: u64) {
        let first = self.first + count;
        assert!(first <= self.next, "{count} batches of {} can not go", self.next - self.first);
        for (level, maxima) in self.maxima.iter_mut().enumerate() {
            let groups = (first >> shift(level)) - (self.first >> shift(level));
            maxima.drain(..maxima.len().min(groups as usize));
        }
        self.first = first;
    }

    /// The first batch from number `from` on whose max timestamp is at or above `t`.
    pub fn find(&self, from: u64, t: WallMs, of: impl Fn(u64) -> WallMs) -> Option<u64> {
        let mut number = from.max(self.first);
        while number < self.next {
            match self.groups_at(number).find(|(_, maximum)| *maximum < t) {
                Some((members, _)) => number += members,
                None if of(number) >= t => return Some(number),
                None => number += 1,
            }
        }
        None
    }

    /// The largest max timestamp from number `from` on.
    pub fn max(&self, from: u64, of: impl Fn(u64) -> WallMs) -> Option<WallMs> {
        let mut number = from.max(self.first);
        let mut largest = None;
        while number < self.next {
            let (members, maximum) = self.groups_at(number).next().unwrap_or_else(|| (1, of(number)));
            largest = largest.max(Some(maximum));
            number += members;
        }
        largest
    }

    /// The groups that begin with this batch, the largest first: how many batches each spans, and its maximum.
    fn groups_at(&self, number: u64) -> impl Iterator<Item = (u64, WallMs)> + '_ {
        (0..LEVELS).rev().filter(move |level| number.trailing_zeros() >= shift(*level)).map(move |level| {
            let group = (number >> shift(level)) - (self.first >> shift(level));
            (1 << shift(level), self.maxima[level][group as usize])
        })
    }

    pub fn bytes(&self) -> usize {
        self.maxima.iter().map(|maxima| maxima.capacity() * size_of::<WallMs>()).sum()
    }
}

/// Members of a group of this level, as a power of two.
const fn shift(level: usize) -> u32 {
    FAN_LOG * (level as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Pushes and drops, as a history.
    #[derive(Clone, Debug)]
    enum Step {
        Push(Vec<i64>),
        Drop(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let pushes = prop_oneof![
            proptest::collection::vec(0..50i64, 1..400),
            (0..1000i64, 1..6000usize).prop_map(|(from, n)| (0..n as i64).map(|i| from + i).collect()),
            (0..1000i64, 1..300usize).prop_map(|(from, n)| (0..n as i64).map(|i| from - i).collect()),
        ];
        let step = prop_oneof![3 => pushes.prop_map(Step::Push), 1 => (0..5000u16).prop_map(Step::Drop)];
        proptest::collection::vec(step, 1..10)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn finds_what_a_walk_over_all_batches_finds(
            steps in steps(),
            asked in proptest::collection::vec((0..7000i64, 0..9000u64), 1..30),
        ) {
            // A wrong answer is a consumer that starts in the wrong place and misses records.
            let mut index = TimeIndex::default();
            let mut all: Vec<WallMs> = Vec::new();
            let mut first = 0;
            for step in steps {
                match step {
                    Step::Push(times) => for t in times {
                        index.push(WallMs(t));
                        all.push(WallMs(t));
                    },
                    Step::Drop(count) => {
                        let count = (count as usize).min(all.len() - first);
                        index.drop_front(count as u64);
                        first += count;
                    }
                }
                for (t, from) in &asked {
                    let live = (first as u64).max(*from) as usize;
                    let want = (live..all.len()).find(|n| all[*n] >= WallMs(*t)).map(|n| n as u64);
                    let of = |n: u64| all[n as usize];
                    prop_assert_eq!(index.find(*from, WallMs(*t), of), want);
                    let largest = all.get(live..).unwrap_or_default().iter().max().copied();
                    prop_assert_eq!(index.max(*from, of), largest);
                }
            }
        }
    }

    #[test]
    fn a_search_looks_at_few_batches() {
        // A look-up that walked all batches would hold its core for each consumer that asks.
        let mut index = TimeIndex::default();
        let late = |n: u64| WallMs(if n == 777_777 { 9 } else { 1 });
        (0..1_000_000).for_each(|n| index.push(late(n)));
        index.drop_front(63);
        let looked_at = Cell::new(0);
        let of = |n| {
            looked_at.set(looked_at.get() + 1);
            late(n)
        };
        assert_eq!(index.find(0, WallMs(5), of), Some(777_777));
        assert_eq!(index.max(0, of), Some(WallMs(9)));
        assert_eq!(index.find(777_778, WallMs(5), of), None);
        assert!(looked_at.get() < 500, "{} batches were looked at", looked_at.get());
    }
}
