//! Who is to have which partition: the assignors of the broker. Functions of the subscriptions and, for `uniform`, of
//! what was meant for each member before.

use super::group::{Parts, put};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use uuid::Uuid;

/// How often members with different subscriptions are levelled. Each round moves single partitions from members that
/// have too many; a few rounds are enough unless subscriptions overlap like the links of a chain.
const LEVEL_ROUNDS: usize = 16;
/// Levelling ends after so many steps (one takes some 100 ns): the rest is as good as it is by then, and the next
/// assignment goes on from there.
const LEVEL_STEPS_MAX: usize = 1_000_000;
/// No owner yet.
const NOBODY: usize = usize::MAX;

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
    pub(super) fn assign(self, members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Assignment {
        match self {
            Assignor::Uniform if members.windows(2).all(|pair| pair[0].says_as(&pair[1])) => uniform(members, topics),
            Assignor::Uniform => levelled(members, topics),
            Assignor::Range => range(members, topics),
        }
    }
}

/// What an assignor made.
#[derive(Debug)]
pub(super) struct Assignment {
    /// For each member, in their order.
    pub(super) given: Vec<Parts>,
    /// What it took: members, partitions and readers of topics that were looked at.
    pub(super) steps: usize,
}

/// A member, as an assignor sees it.
#[derive(Clone, Debug)]
pub(super) struct Subscriber<'a> {
    /// What `range` orders by: the instance id, which stays, or the member id.
    pub(super) name: &'a str,
    /// Topics by name. Members that said the same share one set, and are looked at as one.
    pub(super) named: Rc<BTreeSet<Uuid>>,
    /// Topics of its pattern, as shared. Not put into one set with the others: each member with a name of its own would
    /// have all topics of the pattern once more.
    pub(super) watched: Option<&'a BTreeSet<Uuid>>,
    /// What was meant for it before.
    pub(super) before: &'a Parts,
}

impl<'a> Subscriber<'a> {
    fn sets(&self) -> impl Iterator<Item = &BTreeSet<Uuid>> {
        [Some(&*self.named), self.watched].into_iter().flatten().filter(|set| !set.is_empty())
    }

    /// Whether it is one subscription, told by where it is: what is in it may be large.
    fn says_as(&self, other: &Subscriber<'_>) -> bool {
        self.sets().map(std::ptr::from_ref).eq(other.sets().map(std::ptr::from_ref))
    }

    fn subscribes(&self, topic: Uuid) -> bool {
        self.sets().any(|set| set.contains(&topic))
    }

    /// What of it can stay: what is there and subscribed to.
    fn stays(&self, topics: &'a BTreeMap<Uuid, u32>) -> impl Iterator<Item = (Uuid, u32)> {
        let there = self.before.iter().filter(|(topic, _)| self.subscribes(**topic));
        there.flat_map(move |(topic, numbers)| {
            let count = topics.get(topic).copied().unwrap_or(0);
            numbers.iter().filter(move |number| **number < count).map(move |number| (*topic, *number))
        })
    }
}

/// All subscribe to the same: nobody gets two more than another.
fn uniform(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Assignment {
    let mut given = vec![Parts::new(); members.len()];
    let Some(first) = members.first() else { return Assignment { given, steps: 0 } };
    let subscribed = topics.iter().filter(|(topic, _)| first.subscribes(**topic));
    let all: Vec<(Uuid, u32)> =
        subscribed.flat_map(|(topic, count)| (0..*count).map(move |number| (*topic, number))).collect();
    let steps = members.len() + topics.len() + all.len();
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
    Assignment { given, steps }
}

/// Members by what they subscribe to. A topic's readers are the members of a few sets, not each of them.
struct Readers {
    /// The members that share a set of topics, ascending.
    sets: Vec<Vec<usize>>,
    /// For each member the sets that it is in.
    of: Vec<[Option<usize>; 2]>,
    /// The topics that are there and that somebody subscribes to, by id.
    topics: Vec<Topic>,
    /// Members, partitions, and topics in each set.
    steps: usize,
}

struct Topic {
    id: Uuid,
    count: u32,
    /// Those that it is in, ascending.
    sets: Vec<usize>,
}

impl Readers {
    fn new(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Readers {
        let mut all: Vec<Topic> = topics.iter().map(|(id, n)| Topic { id: *id, count: *n, sets: Vec::new() }).collect();
        let mut known: BTreeMap<*const BTreeSet<Uuid>, usize> = BTreeMap::new();
        let mut sets: Vec<Vec<usize>> = Vec::new();
        let mut of = vec![[None; 2]; members.len()];
        let mut steps = members.len();
        for (at, member) in members.iter().enumerate() {
            for (set, place) in member.sets().zip(&mut of[at]) {
                let nth = *known.entry(std::ptr::from_ref(set)).or_insert_with(|| {
                    let mut from = 0;
                    for id in set {
                        from += all[from..].partition_point(|topic| topic.id < *id);
                        if let Some(topic) = all.get_mut(from).filter(|topic| topic.id == *id) {
                            topic.sets.push(sets.len());
                        }
                    }
                    steps += set.len();
                    sets.push(Vec::new());
                    sets.len() - 1
                });
                sets[nth].push(at);
                *place = Some(nth);
            }
        }
        all.retain(|topic| !topic.sets.is_empty());
        steps += all.iter().map(|topic| topic.count as usize).sum::<usize>();
        Readers { sets, of, topics: all, steps }
    }

    fn sets_of(&self, member: usize) -> impl Iterator<Item = usize> {
        self.of[member].into_iter().flatten()
    }
}

/// Who has the fewest, by load and number.
type Fewest = BinaryHeap<Reverse<(usize, usize)>>;

/// How many partitions each member has.
struct Loads {
    of: Vec<usize>,
    /// For each set its members. An entry holds if the load in it is the member's: each change puts in a new one, and
    /// what does not hold is dropped when it comes up.
    fewest: Vec<Fewest>,
}

impl Loads {
    fn new(of: Vec<usize>, readers: &Readers) -> Loads {
        let heap = |set: &Vec<usize>| set.iter().map(|at| Reverse((of[*at], *at))).collect();
        let fewest = readers.sets.iter().map(heap).collect();
        Loads { of, fewest }
    }

    fn set(&mut self, member: usize, load: usize, readers: &Readers) {
        self.of[member] = load;
        for set in readers.sets_of(member) {
            self.fewest[set].push(Reverse((load, member)));
        }
    }

    fn fewest_in(&mut self, set: usize) -> (usize, usize) {
        loop {
            let Reverse((load, member)) = *self.fewest[set].peek().expect("each member has an entry that holds");
            if self.of[member] == load {
                return (load, member);
            }
            self.fewest[set].pop();
        }
    }
}

/// Who of one topic's readers has the fewest: of each set the one that comes first, as of when it was looked at.
struct Choice(BTreeSet<((usize, usize), usize)>);

impl Choice {
    fn new(topic: &Topic, loads: &mut Loads) -> Choice {
        Choice(topic.sets.iter().map(|set| (loads.fewest_in(*set), *set)).collect())
    }

    fn fewest(&mut self, loads: &mut Loads) -> (usize, usize) {
        loop {
            let (seen, set) = *self.0.first().expect("a topic that is here has a reader");
            let now = loads.fewest_in(set);
            if seen == now {
                return now;
            }
            self.0.pop_first();
            self.0.insert((now, set));
        }
    }

    /// This member has fewer than before: it may be the one.
    fn fell(&mut self, member: usize, topic: &Topic, loads: &Loads, readers: &Readers) {
        for set in readers.sets_of(member).filter(|set| topic.sets.binary_search(set).is_ok()) {
            self.0.insert(((loads.of[member], member), set));
        }
    }
}

/// Subscriptions differ: each partition goes to whoever has the fewest, and from then on single ones to whoever has two
/// fewer.
fn levelled(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Assignment {
    let mut readers = Readers::new(members, topics);
    let readers_of = |topic: &Topic| topic.sets.iter().map(|set| readers.sets[*set].len()).sum::<usize>();
    // where the choice is smallest first
    let mut order: Vec<(usize, usize)> = readers.topics.iter().map(readers_of).zip(0..).collect();
    order.sort_unstable();
    let mut steps = std::mem::take(&mut readers.steps);
    let mut owners: Vec<Vec<usize>> = readers.topics.iter().map(|topic| vec![NOBODY; topic.count as usize]).collect();
    let mut load = vec![0_usize; members.len()];
    for (at, member) in members.iter().enumerate() {
        for (id, number) in member.stays(topics) {
            let nth = readers.topics.binary_search_by_key(&id, |topic| topic.id).expect("it subscribes to it");
            let owner = &mut owners[nth][number as usize];
            if *owner == NOBODY {
                *owner = at;
                load[at] += 1;
            }
        }
    }
    let mut loads = Loads::new(load, &readers);
    for (_, nth) in &order {
        let topic = &readers.topics[*nth];
        if !owners[*nth].contains(&NOBODY) {
            continue;
        }
        let mut choice = Choice::new(topic, &mut loads);
        steps += topic.sets.len() + owners[*nth].len();
        for owner in owners[*nth].iter_mut().filter(|owner| **owner == NOBODY) {
            let (least, at) = choice.fewest(&mut loads);
            loads.set(at, least + 1, &readers);
            *owner = at;
        }
    }
    steps += level(&mut owners, &mut loads, &order, &readers);
    let mut given = vec![Parts::new(); members.len()];
    for (topic, owners) in readers.topics.iter().zip(owners) {
        for (number, at) in (0..).zip(owners) {
            put(&mut given[at], (topic.id, number));
        }
    }
    Assignment { given, steps }
}

/// Moves single partitions to whoever has two fewer. Returns the steps that it took.
fn level(owners: &mut [Vec<usize>], loads: &mut Loads, order: &[(usize, usize)], readers: &Readers) -> usize {
    let mut steps = 0;
    for _ in 0..LEVEL_ROUNDS {
        let mut moved = false;
        for (_, nth) in order {
            if steps >= LEVEL_STEPS_MAX {
                return steps;
            }
            let topic = &readers.topics[*nth];
            // to look at a set is far less than to put it into the choice
            steps += owners[*nth].len() + topic.sets.len() / 8;
            let least = topic.sets.iter().map(|set| loads.fewest_in(*set).0).min().unwrap_or(0);
            if owners[*nth].iter().all(|owner| loads.of[*owner] < least + 2) {
                continue;
            }
            let mut choice = Choice::new(topic, loads);
            steps += topic.sets.len();
            for owner in &mut owners[*nth] {
                let (from, (fewest, to)) = (*owner, choice.fewest(loads));
                if loads.of[from] < fewest + 2 {
                    continue;
                }
                loads.set(from, loads.of[from] - 1, readers);
                loads.set(to, fewest + 1, readers);
                choice.fell(from, topic, loads, readers);
                *owner = to;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    steps
}

fn range(members: &[Subscriber<'_>], topics: &BTreeMap<Uuid, u32>) -> Assignment {
    let mut given = vec![Parts::new(); members.len()];
    let mut by_name: Vec<usize> = (0..members.len()).collect();
    by_name.sort_by_key(|at| members[*at].name);
    let sorted: Vec<Subscriber<'_>> = by_name.iter().map(|at| members[*at].clone()).collect();
    let Readers { sets, topics, mut steps, .. } = Readers::new(&sorted, topics);
    for topic in topics {
        // of more readers than partitions the rest get none: they are not looked at
        let mut next: BinaryHeap<Reverse<(usize, usize, usize)>> =
            topic.sets.iter().map(|set| Reverse((sets[*set][0], *set, 0))).collect();
        let mut first: Vec<usize> = Vec::new();
        while let Some(Reverse((reader, set, place))) = next.pop() {
            steps += 1;
            // who named a topic that its pattern means too comes up twice
            if first.last() != Some(&reader) {
                if first.len() == topic.count as usize {
                    break;
                }
                first.push(reader);
            }
            if let Some(reader) = sets[set].get(place + 1) {
                next.push(Reverse((*reader, set, place + 1)));
            }
        }
        if first.is_empty() {
            continue;
        }
        let each = topic.count as usize / first.len();
        let larger = topic.count as usize % first.len();
        let mut numbers = 0..topic.count;
        for (nth, reader) in first.into_iter().enumerate() {
            let size = each + usize::from(nth < larger);
            for number in numbers.by_ref().take(size) {
                put(&mut given[by_name[reader]], (topic.id, number));
            }
        }
    }
    Assignment { given, steps }
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
        watching(assignor, subscriptions, &vec![None; subscriptions.len()], before, counts).given
    }

    /// Where members have patterns besides.
    fn watching(
        assignor: Assignor,
        named: &[Rc<BTreeSet<Uuid>>],
        watched: &[Option<&BTreeSet<Uuid>>],
        before: &[Parts],
        counts: &[u32],
    ) -> Assignment {
        let names: Vec<String> = (0..named.len()).map(|n| format!("m{n:05}")).collect();
        let members: Vec<Subscriber<'_>> = (0..named.len())
            .map(|n| Subscriber {
                name: names[n].as_str(),
                named: Rc::clone(&named[n]),
                watched: watched[n],
                before: &before[n],
            })
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

    /// Lost if it fails: with thousands of topics each join of a group whose members do not all say the same holds up
    /// core 0, and with it everything that the meta shard answers.
    #[test]
    fn unequal_subscriptions_do_not_cost_topics_times_members() {
        let (topics, members) = (1000, 1000);
        let every = set(&(0..topics).collect::<Vec<_>>());
        let counts = vec![2; topics];
        let mut watched = vec![Some(&*every); members];
        watched[7] = None;
        let one_of_its_own = vec![None; members];
        let mut few = vec![set(&[]); members];
        few[7] = set(&[7]);
        let same_but_one: Vec<_> = (0..members).map(|n| if n == 7 { set(&[7]) } else { Rc::clone(&every) }).collect();
        let own_names: Vec<_> = (0..members).map(|n| set(&[n])).collect();
        for assignor in [Assignor::Uniform, Assignor::Range] {
            for (named, watched) in [(&few, &watched), (&same_but_one, &one_of_its_own), (&own_names, &watched)] {
                let first = watching(assignor, named, watched, &vec![Parts::new(); members], &counts);
                // all that one member had is to be shared out again
                let mut before = vec![Parts::new(); members];
                before[0] = (0..topics).map(|n| (topic(n), BTreeSet::from([0, 1]))).collect();
                let again = watching(assignor, named, watched, &before, &counts);
                for made in [&first, &again] {
                    assert!(made.steps <= 16 * (members + 2 * topics), "{assignor:?}: {} steps", made.steps);
                    assert_eq!(sizes(&made.given).iter().sum::<usize>(), 2 * topics);
                }
                if assignor == Assignor::Uniform {
                    for made in [first, again] {
                        assert!(sizes(&made.given).iter().all(|size| *size <= 3), "{:?}", sizes(&made.given));
                    }
                }
            }
        }
        // each with a list of its own: as many steps as there are names, and a bounded number for levelling
        let lists: Vec<_> =
            (0..members).map(|n| set(&(0..topics).filter(|t| (t + n) % 3 > 0).collect::<Vec<_>>())).collect();
        let said: usize = lists.iter().map(|list| list.len()).sum();
        for assignor in [Assignor::Uniform, Assignor::Range] {
            let made = watching(assignor, &lists, &one_of_its_own, &vec![Parts::new(); members], &counts);
            assert!(made.steps <= 3 * (said + 2 * topics) + LEVEL_STEPS_MAX, "{assignor:?}: {} steps", made.steps);
        }
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

        /// Lost if it fails: whoever names a topic that its pattern means too is counted twice, or its partitions are
        /// given to two.
        #[test]
        fn names_and_patterns_together_are_one_subscription(
            counts in proptest::collection::vec(0..12u32, 4),
            patterns in proptest::collection::vec(proptest::collection::btree_set(0..4usize, 0..4), 2),
            said in proptest::collection::vec((proptest::collection::btree_set(0..4usize, 0..3), 0..3usize), 1..7),
        ) {
            let patterns: Vec<_> =
                patterns.iter().map(|topics| set(&topics.iter().copied().collect::<Vec<_>>())).collect();
            let named: Vec<_> =
                said.iter().map(|(topics, _)| set(&topics.iter().copied().collect::<Vec<_>>())).collect();
            let watched: Vec<_> = said.iter().map(|(_, pattern)| patterns.get(*pattern).map(|set| &**set)).collect();
            let together: Vec<Rc<BTreeSet<Uuid>>> = named
                .iter()
                .zip(&watched)
                .map(|(named, watched)| {
                    Rc::new(named.iter().chain(watched.iter().copied().flatten()).copied().collect())
                })
                .collect();
            let none = vec![Parts::new(); said.len()];
            for assignor in [Assignor::Uniform, Assignor::Range] {
                let first = watching(assignor, &named, &watched, &none, &counts).given;
                assert_complete(&together, &counts, &first);
                let again = watching(assignor, &named, &watched, &first, &counts).given;
                prop_assert_eq!(moved(&first, &again), 0);
                match assignor {
                    Assignor::Range => prop_assert_eq!(first, run(assignor, &together, &none, &counts)),
                    Assignor::Uniform => {
                        let sizes = sizes(&first);
                        for (at, parts) in first.iter().enumerate() {
                            for topic in parts.keys() {
                                let poorer = |n: usize| together[n].contains(topic) && sizes[n] + 2 <= sizes[at];
                                prop_assert!(!(0..together.len()).any(poorer), "{:?}", first);
                            }
                        }
                    }
                }
            }
        }
    }
}
