//! DescribeTopicPartitions: the partitions of topics, in pages. What Metadata tells in one piece is told here in as
//! many as the client takes: where a page ends, a cursor says where the next one begins (KIP-966).

use super::messages;
use super::{Ctx, Outcome, Request};
use crate::codec::{Malformed, Reader, respond};
use crate::errors::Code;
use camus_meta::{Placement, Topic};
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{BrokerId, TopicName};
use kafka_protocol::protocol::StrBytes;
use std::collections::BTreeSet;

/// Partitions of one page, whatever the client would take: Kafka's default of `max.request.partition.size.limit`.
pub const PAGE_PARTITIONS_MAX: usize = 2000;

struct Asked {
    /// In the order of their names, each once. None: all.
    topics: BTreeSet<StrBytes>,
    partitions_max: i32,
    /// Where the page begins: a topic, and the number of a partition.
    from: Option<(StrBytes, i32)>,
}

fn read(request: &Request) -> Result<Asked, Malformed> {
    let mut r = Reader::new(&request.body, request.version >= 0);
    let topics = messages::structs(&mut r, 2, Reader::string)?;
    let partitions_max = r.i32()?;
    let from = match r.i8()? {
        ..0 => None,
        0.. => {
            let from = (r.string()?, r.i32()?);
            r.tags()?;
            Some(from)
        }
    };
    r.tags()?;
    Ok(Asked { topics: topics.into_iter().collect(), partitions_max, from })
}

/// DescribeTopicPartitions 0, flexible from 0.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    let Asked { topics, partitions_max, from } = match read(request) {
        Ok(asked) => asked,
        Err(fault) => return fault.into(),
    };
    let all = topics.is_empty();
    // the answer has no code of its own: each topic that was asked for is refused, as Kafka does it
    let refuse = |topics: BTreeSet<StrBytes>| {
        let refused = topics.into_iter().map(|name| fault(name, Code::InvalidRequest)).collect();
        respond(&DescribeTopicPartitionsResponse::default().with_topics(refused), request.version)
    };
    if !all && from.as_ref().is_some_and(|(topic, _)| !topics.contains(topic)) {
        return refuse(topics);
    }
    let (first_topic, first_partition) = from.unwrap_or_default();
    let Ok(first_partition) = usize::try_from(first_partition) else {
        // Kafka says nothing at all where no topic is named, as if there were none
        return refuse(if all { BTreeSet::from([first_topic]) } else { topics });
    };
    let mut page = Page::new(ctx, partitions_max);
    let first_of = |name: &str| if name == first_topic.as_str() { first_partition } else { 0 };
    if all {
        for topic in ctx.image.topics_from(&first_topic) {
            if !page.put(topic, first_of(&topic.name)) {
                break;
            }
        }
    } else {
        for name in topics.iter().filter(|name| **name >= first_topic) {
            let is_in = match ctx.image.topic(name) {
                Some(topic) => page.put(topic, first_of(name)),
                None => page.put_fault(name),
            };
            if !is_in {
                break;
            }
        }
    }
    let answer = DescribeTopicPartitionsResponse::default().with_topics(page.topics).with_next_cursor(page.next);
    respond(&answer, request.version)
}

/// One answer on its way.
struct Page<'a, 'c> {
    ctx: &'a Ctx<'c>,
    /// Who has a copy of each partition.
    replicas: Vec<BrokerId>,
    topics: Vec<DescribeTopicPartitionsResponseTopic>,
    /// Partitions that still fit in.
    left: usize,
    /// Where the next page begins, once this one is full.
    next: Option<Cursor>,
}

impl<'a, 'c> Page<'a, 'c> {
    fn new(ctx: &'a Ctx<'c>, partitions_max: i32) -> Page<'a, 'c> {
        let replicas = ctx.replicas().into_iter().map(|broker| BrokerId(broker.0)).collect();
        let left = usize::try_from(partitions_max).unwrap_or(0).clamp(1, PAGE_PARTITIONS_MAX);
        Page { ctx, replicas, topics: Vec::new(), left, next: None }
    }

    /// Puts in the partitions of the topic from number `first` on. False if not all of them fit: the page is full.
    fn put(&mut self, topic: &Topic, first: usize) -> bool {
        if self.is_full(&topic.name, first) {
            return false;
        }
        let rest = topic.partitions.iter().enumerate().skip(first);
        let partitions: Vec<_> = rest.take(self.left).map(|(number, at)| self.partition(number, at)).collect();
        let next = first + partitions.len();
        self.left -= partitions.len();
        let told = DescribeTopicPartitionsResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_string(topic.name.clone()))))
            .with_topic_id(topic.id)
            .with_partitions(partitions)
            .with_topic_authorized_operations(messages::TOPIC_OPERATIONS);
        self.topics.push(told);
        next >= topic.partitions.len() || !self.is_full(&topic.name, next)
    }

    /// The same for a topic that is not there.
    fn put_fault(&mut self, name: &StrBytes) -> bool {
        if self.is_full(name, 0) {
            return false;
        }
        let code = messages::name_fault(name).map_or(Code::UnknownTopicOrPartition, |fault| fault.code);
        self.topics.push(fault(name.clone(), code));
        true
    }

    /// If nothing more fits in, the next page begins there.
    fn is_full(&mut self, topic: &str, partition: usize) -> bool {
        if self.left == 0 {
            let name = TopicName(StrBytes::from_string(topic.to_owned()));
            self.next = Some(Cursor::default().with_topic_name(name).with_partition_index(partition as i32));
        }
        self.left == 0
    }

    fn partition(&self, number: usize, at: &Placement) -> DescribeTopicPartitionsResponsePartition {
        let told = DescribeTopicPartitionsResponsePartition::default()
            .with_partition_index(number as i32)
            .with_replica_nodes(self.replicas.clone())
            .with_isr_nodes(self.replicas.clone())
            .with_eligible_leader_replicas(Some(Vec::new()))
            .with_last_known_elr(Some(Vec::new()));
        match self.ctx.leader(at.shard()) {
            None => told.with_error_code(Code::LeaderNotAvailable.wire()).with_leader_id(BrokerId(-1)),
            Some((leader, epoch)) => told.with_leader_id(BrokerId(leader.0)).with_leader_epoch(epoch.0),
        }
    }
}

fn fault(name: StrBytes, code: Code) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default().with_error_code(code.wire()).with_name(Some(TopicName(name)))
}

#[cfg(test)]
mod tests {
    use super::super::messages::testing::{World, encoded, survives_damage, topic};
    use super::*;
    use camus_meta::Image;
    use kafka_protocol::messages::DescribeTopicPartitionsRequest;
    use kafka_protocol::messages::describe_topic_partitions_request::{Cursor as Start, TopicRequest};
    use std::sync::Arc;

    fn question(names: &[&str], partitions_max: i32, from: Option<(&str, i32)>) -> DescribeTopicPartitionsRequest {
        let name = |name: &str| TopicName(StrBytes::from_string(name.into()));
        let cursor = from.map(|(topic, n)| Start::default().with_topic_name(name(topic)).with_partition_index(n));
        DescribeTopicPartitionsRequest::default()
            .with_topics(names.iter().map(|topic| TopicRequest::default().with_name(name(topic))).collect())
            .with_response_partition_limit(partitions_max)
            .with_cursor(cursor)
    }

    type Told = Vec<(String, i16, Vec<i32>)>;

    /// (topic, code, partitions) of a page, and where the next one begins.
    fn page(
        world: &mut World,
        names: &[&str],
        partitions_max: i32,
        from: Option<(&str, i32)>,
    ) -> (Told, Option<(String, i32)>) {
        let answer: DescribeTopicPartitionsResponse = world.call(handle, 0, &question(names, partitions_max, from));
        let one = |topic: &DescribeTopicPartitionsResponseTopic| {
            let name = topic.name.as_ref().expect("each has a name").to_string();
            (name, topic.error_code, topic.partitions.iter().map(|p| p.partition_index).collect())
        };
        let next = answer.next_cursor.as_ref().map(|next| (next.topic_name.to_string(), next.partition_index));
        (answer.topics.iter().map(one).collect(), next)
    }

    fn told(expected: &[(&str, i16, &[i32])]) -> Told {
        expected.iter().map(|(name, code, numbers)| (name.to_string(), *code, numbers.to_vec())).collect()
    }

    fn at(topic: &str, partition: i32) -> Option<(String, i32)> {
        Some((topic.to_owned(), partition))
    }

    /// A tool that goes from page to page would miss partitions, see some twice, or never come to an end.
    #[test]
    fn each_page_begins_where_the_one_before_it_ended() {
        let mut world = World::new();
        let all_and_each: [&[&str]; 2] = [&[], &["t", "compact", "dark"]];
        for names in all_and_each {
            let first = page(&mut world, names, 2, None);
            assert_eq!(first, (told(&[("compact", 0, &[0]), ("dark", 0, &[0])]), at("dark", 1)));
            let second = page(&mut world, names, 2, Some(("dark", 1)));
            assert_eq!(second, (told(&[("dark", 0, &[1, 2])]), at("t", 0)));
            let third = page(&mut world, names, 2, Some(("t", 0)));
            assert_eq!(third, (told(&[("t", 0, &[0, 1])]), None));
        }
        let whole = told(&[("compact", 0, &[0]), ("dark", 0, &[0, 1, 2]), ("t", 0, &[0, 1])]);
        assert_eq!(page(&mut world, &[], 6, None), (whole.clone(), None));
        assert_eq!(page(&mut world, &[], i32::MAX, None), (whole, None));
        for least in [1, 0, -1, i32::MIN] {
            assert_eq!(page(&mut world, &[], least, None), (told(&[("compact", 0, &[0])]), at("dark", 0)));
        }
    }

    /// A topic that was deleted between two pages would end the walk, or a name that can not exist be waited for.
    #[test]
    fn a_topic_that_is_not_there_is_told_of_and_the_walk_goes_on() {
        let mut world = World::new();
        let (topics, next) = page(&mut world, &["nope", "a b", "t", "t"], 10, None);
        assert_eq!((topics, next), (told(&[("a b", 17, &[]), ("nope", 3, &[]), ("t", 0, &[0, 1])]), None));
        let gone = page(&mut world, &["t", "gone", "compact"], 10, Some(("gone", 3)));
        assert_eq!(gone, (told(&[("gone", 3, &[]), ("t", 0, &[0, 1])]), None));
        let gone = page(&mut world, &[], 10, Some(("gone", 3)));
        assert_eq!(gone, (told(&[("t", 0, &[0, 1])]), None));
        let grown_smaller = page(&mut world, &["t"], 10, Some(("t", 99)));
        assert_eq!(grown_smaller, (told(&[("t", 0, &[])]), None));
    }

    /// A tool that mixed two walks up would take the page of one for the next of the other, and miss topics.
    #[test]
    fn a_page_that_begins_at_no_topic_asked_for_is_refused() {
        let mut world = World::new();
        let refused = (told(&[("compact", 42, &[]), ("t", 42, &[])]), None);
        for topic in ["dark", "gone", "a", "zz", " ", ""] {
            assert_eq!(page(&mut world, &["t", "compact"], 10, Some((topic, 0))), refused, "'{topic}'");
        }
        assert_eq!(page(&mut world, &["t", "compact"], 10, Some(("t", -1))), refused);
        assert_eq!(page(&mut world, &[], 10, Some(("dark", -1))), (told(&[("dark", 42, &[])]), None));
        let (whole, next) = page(&mut world, &[], 10, Some(("", 0)));
        assert_eq!((whole.len(), next), (3, None));
        let (named, next) = page(&mut world, &["", "t"], 10, Some(("", 0)));
        assert_eq!((named, next), (told(&[("", 17, &[]), ("t", 0, &[0, 1])]), None));
    }

    /// A tool would believe a partition led that is not, or look for copies where none are.
    #[test]
    fn each_partition_has_its_leader_its_epoch_and_its_copies() {
        let mut world = World::of_three();
        let answer: DescribeTopicPartitionsResponse = world.call(handle, 0, &question(&["dark"], 10, None));
        let topic = &answer.topics[0];
        assert_eq!((topic.topic_id.as_u128(), topic.is_internal), (0xa3, false));
        assert_eq!(topic.topic_authorized_operations, 3576);
        let led: Vec<_> = topic.partitions.iter().map(|p| (p.leader_id.0, p.leader_epoch, p.error_code)).collect();
        assert_eq!(led, [(4, 7, 0), (-1, -1, 5), (7, 11, 0)]);
        for p in &topic.partitions {
            let all = [2, 4, 7].map(BrokerId);
            assert_eq!((&p.replica_nodes[..], &p.isr_nodes[..]), (&all[..], &all[..]));
            assert_eq!((&p.eligible_leader_replicas, &p.last_known_elr), (&Some(vec![]), &Some(vec![])));
            assert!(p.offline_replicas.is_empty());
        }
    }

    /// A request of a few bytes would be answered with all partitions of the cluster.
    #[test]
    fn a_page_has_a_largest_size() {
        let mut world = World::new();
        world.image = Arc::new(Image::of(1, "cluster-1", [topic("large", 1, 5000, &[])]));
        let (topics, next) = page(&mut world, &[], i32::MAX, Some(("large", 100)));
        assert_eq!(topics[0].2, (100..2100).collect::<Vec<i32>>());
        assert_eq!(next, at("large", 2100));
    }

    #[test]
    fn no_bytes_end_in_a_panic() {
        survives_damage(handle, 0..=0, |version| encoded(&question(&["t", "nope"], 3, Some(("t", 1))), version));
    }
}
