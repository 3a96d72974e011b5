//! Who is to have which partition: the assignors of the broker. Functions of the subscriptions and, for `uniform`, of
//! what was meant for each member before.

use super::group::{Parts, put};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use uuid::Uuid;

/// How often members with different subscriptions are levelled. Each round moves single partitions from members that
/// have too many; a few rounds are enough unless subscriptions overlap like the links of a chain.
const LEVEL_ROUNDS: usize = 16;

/// The names are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::groups) enum Assignor {
    /// Equally many for each, and as few as possible change hands.
    Uniform,
    /// Of each topic a range for each, so that partitions of one number come together.
    Range,
}

impl Assignor {
    pub(super) fn named(name: &str) -> Option<Assignor> {
        match name {
            "uniform" => Some(Assignor::Uniform),
            "range" => Some(Assignor::Range),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// For each of the members what it is to have. `topics`: how many partitions the topics have that are there; each
    /// partition of a topic that somebody subscribes to is somebody's.
    pub(super) fn assign(self, members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Vec<Parts> {
        match self {
            Assignor::Uniform if members.windows(2).all(|pair| pair[0].topics == pair[1].topics) => {
                uniform(members, topics)
            }
            Assignor::Uniform => levelled(members, topics),
            Assignor::Range => range(members, topics),
        }
    }
}

/// A member, as an assignor sees it.
#[derive(Clone, Debug)]
pub(super) struct Subscriber<'a> {
    /// What `range` orders by: the instance id, which stays, or the member id.
    pub(super) name: &'a str,
    /// Shared by members that said the same.
    pub(super) topics: Rc<BTreeSet<Uuid>>,
    /// What was meant for it before.
    pub(super) before: &'a Parts,
}

impl Subscriber<'_> {
    /// What of it can stay: what is there and subscribed to.
    fn stays<'a>(&'a self, topics: &'a BTreeMap<Uuid, u32>) -> impl Iterator<Item = (Uuid, u32)> + 'a {
        let there = self.before.iter().filter(move |(topic, _)| self.topics.contains(*topic));
        there.flat_map(move |(topic, numbers)| {
            let count = topics.get(topic).copied().unwrap_or(0);
            numbers.iter().filter(move |number| **number < count).map(move |number| (*topic, *number))
        })
    }
}

/// All subscribe to the same: nobody gets two more than another.
fn uniform(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Vec<Parts> {
    let mut given = vec![Parts::new(); members.len()];
    let Some(first) = members.first() else { return given };
    let subscribed = topics.iter().filter(|(topic, _)| first.topics.contains(*topic));
    let all: Vec<(Uuid, u32)> =
        subscribed.flat_map(|(topic, count)| (0..*count).map(move |number| (*topic, number))).collect();
    let (least, mut larger) = (all.len() / members.len(), all.len() % members.len());
    let mut kept = BTreeSet::new();
    let mut missing = vec![0; members.len()];
    for (at, member) in members.iter().enumerate() {
        let stays: Vec<(Uuid, u32)> = member.stays(topics).filter(|part| !kept.contains(part)).collect();
        let mut share = least;
        if stays.len() > least && larger > 0 {
            (share, larger) = (least + 1, larger - 1);
        }
        for part in stays.iter().take(share) {
            kept.insert(*part);
            put(&mut given[at], *part);
        }
        missing[at] = share.saturating_sub(stays.len());
    }
    // what is left of the larger shares goes to those that have the least, in turn
    let sizes: Vec<usize> = given.iter().map(|parts| parts.values().map(BTreeSet::len).sum()).collect();
    for (size, missing) in sizes.iter().zip(&mut missing) {
        if larger > 0 && size + *missing == least {
            *missing += 1;
            larger -= 1;
        }
    }
    let mut turn: VecDeque<usize> = (0..members.len()).filter(|at| missing[*at] > 0).collect();
    for part in all.into_iter().filter(|part| !kept.contains(part)) {
        let at = turn.pop_front().expect("the shares are as many as the partitions");
        put(&mut given[at], part);
        missing[at] -= 1;
        if missing[at] > 0 {
            turn.push_back(at);
        }
    }
    given
}

/// Subscriptions differ: each partition goes to whoever has the fewest, and from then on single ones to whoever has two
/// fewer.
fn levelled(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Vec<Parts> {
    let mut load = vec![0_usize; members.len()];
    let mut owners: BTreeMap<(Uuid, u32), usize> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        for part in member.stays(topics) {
            owners.entry(part).or_insert_with(|| {
                load[at] += 1;
                at
            });
        }
    }
    let mut order = readers(members, topics);
    // where the choice is smallest first
    order.sort_by_key(|(_, _, readers)| readers.len());
    for (topic, count, readers) in &order {
        let mut by_load: BTreeSet<(usize, usize)> = readers.iter().map(|at| (load[*at], *at)).collect();
        for number in 0..*count {
            owners.entry((*topic, number)).or_insert_with(|| {
                let (least, at) = by_load.pop_first().expect("a topic that is here has a reader");
                load[at] = least + 1;
                by_load.insert((least + 1, at));
                at
            });
        }
    }
    for _ in 0..LEVEL_ROUNDS {
        let mut moved = false;
        for (topic, count, readers) in &order {
            let mut by_load: BTreeSet<(usize, usize)> = readers.iter().map(|at| (load[*at], *at)).collect();
            for number in 0..*count {
                let owner = owners.get_mut(&(*topic, number)).expect("each partition was given above");
                let (least, to) = *by_load.first().expect("a topic that is here has a reader");
                let from = *owner;
                if load[from] < least + 2 {
                    continue;
                }
                by_load.remove(&(load[from], from));
                by_load.remove(&(least, to));
                load[from] -= 1;
                load[to] += 1;
                by_load.insert((load[from], from));
                by_load.insert((load[to], to));
                *owner = to;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mut given = vec![Parts::new(); members.len()];
    for (part, at) in owners {
        put(&mut given[at], part);
    }
    given
}

fn range(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Vec<Parts> {
    let mut given = vec![Parts::new(); members.len()];
    for (topic, count, mut readers) in readers(members, topics) {
        readers.sort_by_key(|at| members[*at].name);
        let each = count as usize / readers.len();
        let larger = count as usize % readers.len();
        let mut numbers = 0..count;
        for (nth, at) in readers.into_iter().enumerate() {
            let size = each + usize::from(nth < larger);
            for number in numbers.by_ref().take(size) {
                put(&mut given[at], (topic, number));
            }
        }
    }
    given
}

/// The topics that somebody subscribes to, with how many partitions they have, and who does.
fn readers(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Vec<(Uuid, u32, Vec<usize>)> {
    let mut all: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
    for (at, member) in members.iter().enumerate() {
        for topic in member.topics.iter().filter(|topic| topics.contains_key(*topic)) {
            all.entry(*topic).or_default().push(at);
        }
    }
    all.into_iter().map(|(topic, readers)| (topic, topics[&topic], readers)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn topic(n: usize) -> Uuid {
        Uuid::from_u128(n as u128 + 1)
    }

    fn set(topics: &[usize]) -> Rc<BTreeSet<Uuid>> {
        Rc::new(topics.iter().map(|n| topic(*n)).collect())
    }

    fn sizes(given: &[Parts]) -> Vec<usize> {
        given.iter().map(|parts| parts.values().map(BTreeSet::len).sum()).collect()
    }

    /// What changes hands: partitions that are meant for another than before, of those that were meant for one.
    fn moved(before: &[Parts], after: &[Parts]) -> usize {
        let lost = |(before, after): (&Parts, &Parts)| -> usize {
            let still = |topic: &Uuid, number: &u32| after.get(topic).is_some_and(|parts| parts.contains(number));
            before.iter().map(|(topic, parts)| parts.iter().filter(|number| !still(topic, number)).count()).sum()
        };
        before.iter().zip(after).map(lost).sum()
    }

    fn run(assignor: Assignor, subscriptions: &[Rc<BTreeSet<Uuid>>], before: &[Parts], counts: &[u32]) -> Vec<Parts> {
        let names: Vec<String> = (0..subscriptions.len()).map(|n| format!("m{n:03}")).collect();
        let members: Vec<Subscriber<'_>> = subscriptions
            .iter()
            .zip(before)
            .zip(&names)
            .map(|((topics, before), name)| Subscriber { name: name.as_str(), topics: Rc::clone(topics), before })
            .collect();
        let topics = counts.iter().enumerate().map(|(n, count)| (topic(n), *count)).collect();
        assignor.assign(&members, &topics)
    }

    /// Each partition that somebody subscribes to is meant for one who does, and for nobody else.
    fn assert_complete(subscriptions: &[Rc<BTreeSet<Uuid>>], counts: &[u32], given: &[Parts]) {
        let mut seen = BTreeSet::new();
        for (subscribed, parts) in subscriptions.iter().zip(given) {
            for (topic, numbers) in parts {
                assert!(subscribed.contains(topic) && !numbers.is_empty(), "{given:?}");
                for number in numbers {
                    assert!(seen.insert((*topic, *number)), "{topic} {number} is meant for two: {given:?}");
                }
            }
        }
        for (n, count) in counts.iter().enumerate() {
            let wanted = subscriptions.iter().any(|subscribed| subscribed.contains(&topic(n)));
            let found = seen.iter().filter(|(of, number)| *of == topic(n) && number < count).count();
            assert_eq!(found, if wanted { *count as usize } else { 0 }, "topic {n}: {given:?}");
        }
    }

    /// Lost if it fails: a new member takes partitions from all others, and each of them stops reading for a moment.
    #[test]
    fn a_newcomer_takes_no_more_than_its_share_and_moves_nothing_else() {
        let same = vec![set(&[0, 1]); 3];
        let first = run(Assignor::Uniform, &same[..2], &vec![Parts::new(); 2], &[4, 5]);
        assert_eq!(sizes(&first), [5, 4]);
        let mut before = first;
        before.push(Parts::new());
        let second = run(Assignor::Uniform, &same, &before, &[4, 5]);
        assert_eq!((sizes(&second), moved(&before, &second)), (vec![3, 3, 3], 3));
    }

    /// Lost if it fails: a consumer that joins two topics by their partition numbers reads halves that do not fit.
    #[test]
    fn range_gives_partitions_of_one_number_to_one_member() {
        let given = run(Assignor::Range, &vec![set(&[0, 1]); 2], &vec![Parts::new(); 2], &[4, 4]);
        for topic in [topic(0), topic(1)] {
            assert_eq!(given[0][&topic], BTreeSet::from([0, 1]));
            assert_eq!(given[1][&topic], BTreeSet::from([2, 3]));
        }
        let given = run(Assignor::Range, &vec![set(&[0]); 3], &vec![Parts::new(); 3], &[2]);
        assert_eq!(sizes(&given), [1, 1, 0]);
    }

    /// Lost if it fails: members that subscribe to less are given what others could take, or stay without.
    #[test]
    fn whoever_can_read_little_gets_it_where_others_have_more_to_choose_from() {
        let subscriptions = [set(&[0, 1]), set(&[1]), set(&[0])];
        let given = run(Assignor::Uniform, &subscriptions, &vec![Parts::new(); 3], &[3, 3]);
        assert_complete(&subscriptions, &[3, 3], &given);
        assert_eq!(sizes(&given), [2, 2, 2]);
    }

    proptest! {
        /// Lost if it fails: a partition that nobody reads, or two; a member that has two more than another; a
        /// rebalance that moves partitions for nothing.
        #[test]
        fn equal_subscriptions_are_shared_out_evenly_and_stay_where_they_are(
            counts in proptest::collection::vec(0..12u32, 1..5),
            members in 1..9usize,
            then in 1..9usize,
        ) {
            let every: Vec<usize> = (0..counts.len()).collect();
            for assignor in [Assignor::Uniform, Assignor::Range] {
                let same = vec![set(&every); members];
                let first = run(assignor, &same, &vec![Parts::new(); members], &counts);
                assert_complete(&same, &counts, &first);
                let again = run(assignor, &same, &first, &counts);
                prop_assert_eq!(moved(&first, &again), 0);
                let mut before = first;
                before.resize(then, Parts::new());
                let same = vec![set(&every); then];
                let after = run(assignor, &same, &before, &counts);
                assert_complete(&same, &counts, &after);
                if assignor == Assignor::Uniform {
                    let (sizes, had) = (sizes(&after), sizes(&before));
                    prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                    let share = counts.iter().map(|count| *count as usize).sum::<usize>() / then;
                    let too_many: usize = had.iter().map(|had| had.saturating_sub(share)).sum();
                    prop_assert!(moved(&before, &after) <= too_many);
                }
            }
        }

        /// Lost if it fails: the same where members subscribe to different topics.
        #[test]
        fn different_subscriptions_are_all_read_and_nobody_could_give_to_a_member_with_two_less(
            counts in proptest::collection::vec(0..12u32, 4),
            subscriptions in proptest::collection::vec(proptest::collection::btree_set(0..4usize, 0..4), 1..7),
        ) {
            let sets: Vec<_> =
                subscriptions.iter().map(|topics| set(&topics.iter().copied().collect::<Vec<_>>())).collect();
            for assignor in [Assignor::Uniform, Assignor::Range] {
                let none = vec![Parts::new(); sets.len()];
                let first = run(assignor, &sets, &none, &counts);
                assert_complete(&sets, &counts, &first);
                let again = run(assignor, &sets, &first, &counts);
                assert_complete(&sets, &counts, &again);
                prop_assert_eq!(moved(&first, &again), 0);
                if assignor == Assignor::Uniform {
                    let sizes = sizes(&first);
                    for (at, parts) in first.iter().enumerate() {
                        for topic in parts.keys() {
                            let poorer = |n: usize| sets[n].contains(topic) && sizes[n] + 2 <= sizes[at];
                            prop_assert!(!(0..sets.len()).any(poorer), "{:?}", first);
                        }
                    }
                }
            }
        }
    }
}
