//! What is to happen in a world, and when. Among what is due at one moment, what was planned first comes first.
//!
//! Turns of cores stand apart: a core has one at most, which is often planned anew for an earlier moment, and there are
//! few cores.

use crate::types::Mono;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub(super) struct Agenda<T> {
    heap: BinaryHeap<Planned<T>>,
    /// By core.
    turns: Vec<Option<Key>>,
    planned: u64,
}

/// The moment, and the number of the plan.
type Key = (Mono, u64);

#[derive(PartialEq, Eq, Debug)]
pub(super) enum Next<T> {
    /// Of this core.
    Turn(usize),
    Planned(T),
}

struct Planned<T> {
    key: Key,
    what: T,
}

impl<T> Agenda<T> {
    pub fn new() -> Agenda<T> {
        Agenda { heap: BinaryHeap::new(), turns: vec![], planned: 0 }
    }

    /// Cores are counted from 0.
    pub fn add_core(&mut self) {
        self.turns.push(None);
    }

    fn key(&mut self, at: Mono) -> Key {
        self.planned += 1;
        (at, self.planned)
    }

    pub fn plan(&mut self, at: Mono, what: T) {
        let key = self.key(at);
        self.heap.push(Planned { key, what });
    }

    /// A turn of the core at `at`, unless one comes no later.
    pub fn plan_turn(&mut self, core: usize, at: Mono) {
        if self.turns[core].is_none_or(|(planned, _)| planned > at) {
            self.turns[core] = Some(self.key(at));
        }
    }

    pub fn cancel_turn(&mut self, core: usize) {
        self.turns[core] = None;
    }

    fn next_turn(&self) -> Option<(Key, usize)> {
        self.turns.iter().enumerate().filter_map(|(core, key)| Some(((*key)?, core))).min()
    }

    /// What is next, unless that is after `end`.
    pub fn pop(&mut self, end: Option<Mono>) -> Option<(Mono, Next<T>)> {
        let is_due = |key: &Key| end.is_none_or(|end| key.0 <= end);
        let planned = self.heap.peek().map(|planned| planned.key);
        match self.next_turn() {
            Some((key, core)) if planned.is_none_or(|planned| key < planned) => is_due(&key).then(|| {
                self.turns[core] = None;
                (key.0, Next::Turn(core))
            }),
            _ if planned.is_some_and(|key| is_due(&key)) => {
                self.heap.pop().map(|planned| (planned.key.0, Next::Planned(planned.what)))
            }
            _ => None,
        }
    }
}

// The heap gives the greatest first: what is earlier is greater.
impl<T> Ord for Planned<T> {
    fn cmp(&self, other: &Planned<T>) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl<T> PartialOrd for Planned<T> {
    fn partial_cmp(&self, other: &Planned<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Planned<T> {
    fn eq(&self, other: &Planned<T>) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Planned<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::rng::Rng;
    use std::collections::BTreeMap;

    const CORES: usize = 3;

    /// Lost if it fails: what happens in a world would depend on more than its seed, or happen in another order.
    #[test]
    fn everything_comes_in_the_order_of_its_moment_and_then_of_its_plan() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut agenda = Agenda::new();
            (0..CORES).for_each(|_| agenda.add_core());
            // the same by one ordered map
            let mut model: BTreeMap<Key, Next<u64>> = BTreeMap::new();
            let mut turns = [None::<Key>; CORES];
            let mut number = 0;
            for _ in 0..500 {
                let (core, at) = (rng.between(0, CORES as u64 - 1) as usize, Mono(rng.between(0, 20)));
                match rng.between(0, 9) {
                    0..4 => {
                        number += 1;
                        agenda.plan(at, number);
                        model.insert((at, number), Next::Planned(number));
                    }
                    4..6 => {
                        agenda.plan_turn(core, at);
                        if turns[core].is_none_or(|(planned, _)| planned > at) {
                            number += 1;
                            turns[core].map(|key| model.remove(&key));
                            turns[core] = Some((at, number));
                            model.insert((at, number), Next::Turn(core));
                        }
                    }
                    6 => {
                        agenda.cancel_turn(core);
                        turns[core].take().map(|key| model.remove(&key));
                    }
                    _ => {
                        let end = rng.chance(50).then_some(at);
                        let is_due = |key: &Key| end.is_none_or(|end| key.0 <= end);
                        let due = model.first_key_value().is_some_and(|(key, _)| is_due(key));
                        let next = if due { model.pop_first() } else { None };
                        if let Some((_, Next::Turn(core))) = &next {
                            turns[*core] = None;
                        }
                        assert_eq!(agenda.pop(end), next.map(|(key, what)| (key.0, what)), "seed {seed}");
                    }
                }
            }
        }
    }
}
