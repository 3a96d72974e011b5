use super::*;
use crate::command::PartitionOffset;
use crate::users::{Credential, Mechanism};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn shards(count: u32) -> Vec<ShardId> {
    (1..=count).map(ShardId).collect()
}

fn uuid(n: u8) -> Uuid {
    Uuid::from_u128(u128::from(n))
}

fn create(name: &str, n: u8, partitions: u32) -> Command {
    let (name, id, configs) = (name.to_owned(), uuid(n), BTreeMap::new());
    Command::CreateTopic { name, id, partitions, replication_factor: 1, configs }
}

/// A state machine with its log's end.
struct Run {
    state: State,
    index: u64,
}

impl Run {
    fn new(data_shards: u32) -> Run {
        Run { state: State::new(shards(data_shards)), index: 0 }
    }

    fn apply(&mut self, command: &Command) -> Decided {
        self.index += 1;
        self.state.apply(Index(self.index), command)
    }

    fn placed(&self, name: &str) -> Vec<(u64, u32)> {
        self.state.image().topic(name).unwrap().partitions.iter().map(|p| (p.partition, p.shard)).collect()
    }
}

/// Two clusters would be taken for one, or one for two.
#[test]
fn a_cluster_is_founded_once() {
    let mut run = Run::new(1);
    let found = |id: &str| Command::Bootstrap { cluster_id: id.to_owned() };
    assert!(matches!(run.apply(&found("")), Err(Refused::InvalidRequest { .. })));
    assert_eq!(run.apply(&found("abc")), Ok(Done::Bootstrapped));
    assert_eq!(run.apply(&found("abc")), Ok(Done::Bootstrapped));
    assert!(matches!(run.apply(&found("abd")), Err(Refused::InvalidRequest { .. })));
    assert_eq!((run.state.image().cluster_id.as_str(), run.state.image().version), ("abc", 2));
}

/// A topic made anew under an old name would show the records of the old one.
#[test]
fn a_recreated_topic_shares_nothing_with_the_old_one() {
    let mut run = Run::new(2);
    run.apply(&create("t", 1, 3)).unwrap();
    assert_eq!(run.placed("t"), [(1, 1), (2, 2), (3, 1)]);
    assert_eq!(run.apply(&create("t", 2, 1)), Err(Refused::TopicExists { name: "t".to_owned() }));
    let gone = run.apply(&Command::DeleteTopic { id: uuid(1) }).unwrap();
    assert_eq!(gone, Done::TopicDeleted { name: "t".to_owned(), id: uuid(1) });
    assert_eq!(run.apply(&Command::DeleteTopic { id: uuid(1) }), Err(Refused::UnknownTopicId));
    run.apply(&create("t", 2, 2)).unwrap();
    assert_eq!(run.placed("t"), [(4, 2), (5, 1)]);
    assert!(run.state.image().topic_by_id(uuid(1)).is_none());
}

/// Names become metrics and files elsewhere: what Kafka refuses, its tools can not handle.
#[test]
fn names_follow_kafkas_rule() {
    let long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "a:b", "ü", "a\0b", &long] {
        let refused = Run::new(1).apply(&create(name, 1, 1)).unwrap_err();
        let Refused::InvalidName { name: shown, .. } = refused else { panic!("{name:?}: {refused}") };
        assert!(name.starts_with(&shown) && shown.len() <= TOPIC_NAME_CHARS_MAX);
    }
    for name in ["...", "a", "A-b_c.9", &"x".repeat(249)] {
        Run::new(1).apply(&create(name, 1, 1)).unwrap();
    }
    let mut run = Run::new(1);
    run.apply(&create("a.b_c", 1, 1)).unwrap();
    assert!(
        matches!(run.apply(&create("a_b.c", 2, 1)), Err(Refused::InvalidName { why, .. }) if why.contains("'a.b_c'"))
    );
    run.apply(&create("a-b_c", 3, 1)).unwrap();
    run.apply(&create("aab_c", 4, 1)).unwrap();
}

/// A topic of a billion partitions would end every broker; a wrong count must not be made a right one.
#[test]
fn counts_are_bounded() {
    let mut run = Run::new(4);
    assert!(matches!(run.apply(&create("t", 1, 0)), Err(Refused::InvalidPartitions { .. })));
    let max = limits::PARTITIONS_PER_TOPIC_MAX as u32;
    for partitions in [max + 1, u32::MAX] {
        assert!(matches!(run.apply(&create("t", 1, partitions)), Err(Refused::InvalidPartitions { .. })));
    }
    run.apply(&create("t", 1, 1)).unwrap();
    for total in [0, 1, max + 1] {
        let grow = Command::CreatePartitions { id: uuid(1), total };
        assert!(matches!(run.apply(&grow), Err(Refused::InvalidPartitions { .. })));
    }
    let topics = limits::PARTITIONS_MAX / limits::PARTITIONS_PER_TOPIC_MAX;
    for n in 1..topics {
        run.apply(&create(&format!("t{n}"), 1 + n as u8, max)).unwrap();
    }
    let full = Err(Refused::TooManyPartitions { limit: limits::PARTITIONS_MAX });
    assert_eq!(run.apply(&create("last", 100, max)), full);
    run.apply(&Command::CreatePartitions { id: uuid(1), total: max }).unwrap();
    assert_eq!(run.state.image().partition_count(), limits::PARTITIONS_MAX);
    assert_eq!(run.apply(&create("last", 100, 1)), full);
    run.apply(&Command::DeleteTopic { id: uuid(2) }).unwrap();
    run.apply(&create("last", 100, 1)).unwrap();
    for factor in [0, -2, i16::MIN] {
        let mut command = create("factor", 101, 1);
        if let Command::CreateTopic { replication_factor, .. } = &mut command {
            *replication_factor = factor;
        }
        assert!(matches!(run.apply(&command), Err(Refused::InvalidReplicationFactor { .. })));
    }
    assert!(matches!(run.apply(&create("nil", 0, 1)), Err(Refused::InvalidRequest { .. })));
    assert!(matches!(run.apply(&create("taken", 1, 1)), Err(Refused::InvalidRequest { .. })));
}

/// One shard with all partitions uses one core of many.
#[test]
fn partitions_go_to_the_least_loaded_shard_in_turn() {
    let mut run = Run::new(3);
    run.apply(&create("a", 1, 1)).unwrap();
    run.apply(&create("b", 2, 1)).unwrap();
    run.apply(&create("c", 3, 4)).unwrap();
    let shards_of = |run: &Run, name| run.placed(name).into_iter().map(|p| p.1).collect::<Vec<_>>();
    assert_eq!([shards_of(&run, "a"), shards_of(&run, "b")], [[1], [2]]);
    assert_eq!(shards_of(&run, "c"), [3, 1, 2, 3]);
    run.apply(&Command::DeleteTopic { id: uuid(1) }).unwrap();
    run.apply(&create("d", 4, 2)).unwrap();
    assert_eq!(shards_of(&run, "d"), [1, 2], "1 has lost one");
    run.apply(&Command::CreatePartitions { id: uuid(4), total: 5 }).unwrap();
    assert_eq!(shards_of(&run, "d"), [1, 2, 3, 1, 2]);
}

/// Half of a change that is refused would be in force, or a key be lost that nobody named.
#[test]
fn settings_change_as_a_whole_or_not_at_all() {
    let mut run = Run::new(1);
    run.apply(&create("t", 1, 1)).unwrap();
    let alter = |pairs: &[(&str, Option<&str>)]| Command::AlterTopicConfigs {
        id: uuid(1),
        set: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.map(str::to_owned))).collect(),
    };
    let configs = |run: &Run| run.state.image().topic("t").unwrap().configs.clone();
    run.apply(&alter(&[("retention.ms", Some("5")), ("max.message.bytes", Some("600"))])).unwrap();
    assert_eq!(run.state.image().topic("t").unwrap().rules.batch_bytes_max, 600);
    let before = (configs(&run), run.state.image().version);
    for bad in [
        [("segment.ms", Some("7")), ("retention.ms", Some("x"))],
        [("segment.ms", Some("7")), ("nope", Some("1"))],
        [("segment.ms", Some("7")), ("nope", None)],
        [("min.compaction.lag.ms", Some("7")), ("max.compaction.lag.ms", Some("6"))],
    ] {
        assert!(matches!(run.apply(&alter(&bad)), Err(Refused::InvalidConfig { .. })));
    }
    run.apply(&alter(&[("retention.ms", Some("5")), ("flush.ms", None)])).unwrap();
    assert_eq!((configs(&run), run.state.image().version), before, "nothing changed, so no core hears of it");
    run.apply(&alter(&[("max.message.bytes", None)])).unwrap();
    assert_eq!(configs(&run).into_iter().collect::<Vec<_>>(), [("retention.ms".to_owned(), "5".to_owned())]);
    assert_eq!(run.state.image().topic("t").unwrap().rules.batch_bytes_max, limits::BATCH_BYTES_DEFAULT as u32);
    run.state = run.state.with_message_bytes_max(2_000_000);
    assert_eq!(run.state.image().topic("t").unwrap().rules.batch_bytes_max, 2_000_000);
}

/// Two producers with one id would be taken for each other, and records be dropped as repeats.
#[test]
fn no_producer_id_is_given_out_twice() {
    let mut run = Run::new(1);
    let take = |run: &mut Run, count| run.apply(&Command::TakeProducerIds { count });
    let block = |first, count| Ok(Done::ProducerIds { first: ProducerIdRange { first, count } });
    assert_eq!(take(&mut run, 1000), block(0, 1000));
    assert_eq!(take(&mut run, 1), block(1000, 1));
    for count in [0, PRODUCER_ID_BLOCK_MAX + 1] {
        assert!(matches!(take(&mut run, count), Err(Refused::InvalidRequest { .. })));
    }
    run.state = State::restore(shards(1), &run.state.snapshot()).unwrap();
    assert_eq!(take(&mut run, 5), block(1001, 5));
    run.state.next_producer = i64::MAX - 3;
    assert_eq!(take(&mut run, 3), block(i64::MAX - 3, 3));
    assert!(matches!(take(&mut run, 1), Err(Refused::Unavailable { .. })));
}

/// A core would keep reading an image that changes under it.
#[test]
fn an_image_that_was_handed_out_never_changes() {
    let mut run = Run::new(1);
    run.apply(&create("a", 1, 1)).unwrap();
    let old = run.state.image();
    let topic = Arc::clone(old.topic("a").unwrap());
    run.apply(&create("b", 2, 1)).unwrap();
    assert_eq!((old.version, old.topic_count(), run.state.image().topic_count()), (1, 1, 2));
    assert!(Arc::ptr_eq(&topic, run.state.image().topic("a").unwrap()), "topics are shared, not copied");
    let before = run.state.image();
    run.apply(&create("b", 3, 1)).unwrap_err();
    run.apply(&Command::TakeProducerIds { count: 1 }).unwrap();
    assert!(Arc::ptr_eq(&before, &run.state.image()), "nothing changed");
}

/// Prints what a change costs among 10,000 topics; the figures stand in `image.rs`.
#[test]
#[ignore = "prints figures: cargo test --release -p camus-meta -- --ignored --nocapture figures"]
#[allow(clippy::disallowed_methods, reason = "a stop watch")]
fn figures_of_ten_thousand_topics() {
    let mut run = Run::new(8);
    let start = std::time::Instant::now();
    let mut image = run.state.image();
    for n in 0..10_000u32 {
        let id = Uuid::from_u128(u128::from(n * 7919 % 10_007) + 1);
        let (name, configs) = (format!("topic_{n}"), BTreeMap::new());
        run.apply(&Command::CreateTopic { name, id, partitions: 1, replication_factor: 1, configs }).unwrap();
        image = run.state.image();
    }
    println!("10,000 topics made, an image after each: {:?}", start.elapsed());
    let start = std::time::Instant::now();
    for n in 0..100u32 {
        run.apply(&Command::CreatePartitions { id: Uuid::from_u128(u128::from(n) + 1), total: 2 }).unwrap();
        image = run.state.image();
    }
    println!("one change and its image: {:?}", start.elapsed() / 100);
    let start = std::time::Instant::now();
    let snapshot = run.state.snapshot();
    println!("snapshot: {} bytes, {:?}", snapshot.len(), start.elapsed());
    let start = std::time::Instant::now();
    let restored = State::restore(shards(8), &snapshot).unwrap();
    println!("restore: {:?}", start.elapsed());
    assert_eq!(restored.image(), image);
}

/// An entry applied twice would give out ids twice.
#[test]
#[should_panic(expected = "entry 1 of the meta shard after 1")]
fn an_entry_is_applied_once() {
    let mut state = State::new(shards(1));
    state.apply(Index(1), &create("a", 1, 1)).unwrap();
    let _ = state.apply(Index(1), &create("b", 2, 1));
}

/// A snapshot that was changed on the way would put two topics into one partition.
#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let mut run = Run::new(1);
    run.apply(&create("a", 1, 2)).unwrap();
    let twisted = |twist: fn(&mut Snapshot)| {
        let bytes = run.state.snapshot();
        let (mut snapshot, _): (Snapshot, _) = decode_first(&bytes).unwrap();
        twist(&mut snapshot);
        State::restore(shards(1), &encode(&snapshot))
    };
    assert_eq!(twisted(|_| {}), Ok(run.state.clone()));
    assert!(matches!(twisted(|s| s.next_partition = 2), Err(RestoreError::Contradiction { .. })));
    assert!(matches!(twisted(|s| s.topics[0].partitions[1].partition = 1), Err(RestoreError::Contradiction { .. })));
    assert!(matches!(State::restore(shards(1), &[]), Err(RestoreError::Decode(DecodeError::Empty))));
}

fn group() -> impl Strategy<Value = String> {
    "[gh]".prop_map(|name| name)
}

fn offsets() -> impl Strategy<Value = Vec<PartitionOffset>> {
    let one = (0u32..3, 0i64..100, "[m]{0,3}").prop_map(|(partition, offset, metadata)| PartitionOffset {
        partition,
        offset,
        leader_epoch: 1,
        metadata,
    });
    proptest::collection::vec(one, 0..3)
}

fn offset(state: &State, group: &str, topic: u8, partition: u32) -> Option<i64> {
    state.offsets().group(group)?.get(uuid(topic), partition).map(|committed| committed.offset)
}

fn commit(group: &str, at_ms: i64, topic: u8, partition: u32, offset: i64) -> Command {
    let partitions = vec![PartitionOffset { partition, offset, leader_epoch: -1, metadata: "m".to_owned() }];
    Command::CommitOffsets {
        group: group.to_owned(),
        at_ms,
        topics: vec![TopicOffsets { topic: uuid(topic), partitions }],
    }
}

/// A group would go on at another place than it committed: a topic's offsets under its successor's name, an offset that
/// expired after it was committed anew, or one that a restart forgot.
#[test]
fn a_committed_offset_stays_until_its_group_or_its_topic_says_otherwise() {
    let mut run = Run::new(1);
    run.apply(&create("a", 1, 2)).unwrap();
    run.apply(&create("b", 2, 2)).unwrap();
    for (group, topic, partition, at) in [("g", 1, 0, 10), ("g", 2, 1, 20), ("h", 1, 1, 30)] {
        assert_eq!(run.apply(&commit(group, 5, topic, partition, at)), Ok(Done::OffsetsCommitted { gone: vec![] }));
    }
    assert_eq!(run.apply(&commit("g", 7, 1, 0, 11)), Ok(Done::OffsetsCommitted { gone: vec![] }));
    run.apply(&Command::ExpireOffsets { group: "g".to_owned(), before_ms: 7 }).unwrap();
    assert_eq!((offset(&run.state, "g", 1, 0), offset(&run.state, "g", 2, 1)), (Some(11), None));
    run.state = State::restore(shards(1), &run.state.snapshot()).unwrap();
    assert_eq!((offset(&run.state, "g", 1, 0), offset(&run.state, "h", 1, 1)), (Some(11), Some(30)));
    run.apply(&Command::DeleteTopic { id: uuid(1) }).unwrap();
    run.apply(&create("a", 3, 2)).unwrap();
    assert_eq!(run.state.offsets().count(), 0);
    assert!(run.state.offsets().group("g").is_none() && run.state.offsets().group("h").is_none());
    assert_eq!(run.apply(&commit("g", 8, 1, 0, 12)), Ok(Done::OffsetsCommitted { gone: vec![uuid(1)] }));
    assert_eq!(run.state.offsets().count(), 0, "a commit that was under way came after its topic had gone");
}

/// One client could fill the memory of every broker with metadata of offsets.
#[test]
fn offsets_over_the_limit_are_refused_whole_and_replacing_goes_on() {
    let mut run = Run::new(1);
    run.apply(&create("a", 1, 2)).unwrap();
    let large = |partition, fill: usize| {
        let one = |partition| PartitionOffset { partition, offset: 1, leader_epoch: 1, metadata: "m".repeat(fill) };
        let topics = vec![TopicOffsets { topic: uuid(1), partitions: vec![one(7), one(partition)] }];
        Command::CommitOffsets { group: "g".to_owned(), at_ms: 1, topics }
    };
    run.apply(&large(0, crate::limits::OFFSETS_BYTES_MAX / 3 + 1)).unwrap();
    run.apply(&large(0, crate::limits::OFFSETS_BYTES_MAX / 3 + 1)).unwrap();
    assert!(matches!(
        run.apply(&large(1, crate::limits::OFFSETS_BYTES_MAX / 3 + 1)),
        Err(Refused::TooManyOffsets { .. })
    ));
    assert_eq!((offset(&run.state, "g", 1, 0), offset(&run.state, "g", 1, 1)), (Some(1), None));
    run.apply(&Command::DeleteGroups { groups: vec!["g".to_owned()] }).unwrap();
    assert_eq!(run.state.offsets(), &crate::offsets::Offsets::default(), "its bytes are counted back");
}

/// A snapshot from before there were groups would stop the start after an update.
#[test]
fn a_snapshot_without_offsets_is_one_of_a_cluster_without_groups() {
    let mut run = Run::new(1);
    run.apply(&create("a", 1, 2)).unwrap();
    let bytes = run.state.snapshot();
    let (_, rest): (Snapshot, _) = decode_first(&bytes).unwrap();
    assert_eq!(State::restore(shards(1), &bytes[..bytes.len() - rest.len()]), Ok(run.state.clone()));
    let twice = vec![("g".to_owned(), vec![(uuid(1), vec![])])];
    let twisted = [&bytes[..bytes.len() - rest.len()], &encode(&twice as &OffsetsSnapshot)].concat();
    assert!(matches!(State::restore(shards(1), &twisted), Err(RestoreError::Contradiction { .. })));
}

fn credential(iterations: u32) -> Credential {
    Credential { salt: b"salt".to_vec(), iterations, stored_key: vec![1; 32], server_key: vec![2; 32] }
}

/// A user who was changed, or taken out, would come in with what is not valid any more.
#[test]
fn a_credential_is_the_last_that_was_set_also_after_a_snapshot() {
    let mut run = Run::new(1);
    let alter = |user: &str, mechanism, credential: Option<u32>| Command::AlterCredentials {
        user: user.to_owned(),
        set: vec![(mechanism, credential.map(self::credential))],
    };
    let known = |run: &Run, user: &str| -> Vec<(Mechanism, u32)> {
        let image = run.state.image();
        image.users.user(user).into_iter().flatten().map(|(m, c)| (*m, c.iterations)).collect()
    };
    let before = run.state.snapshot();
    for (mechanism, iterations) in
        [(Mechanism::ScramSha256, 1), (Mechanism::ScramSha512, 2), (Mechanism::ScramSha256, 3)]
    {
        assert_eq!(run.apply(&alter("u", mechanism, Some(iterations))), Ok(Done::CredentialsAltered));
    }
    assert_eq!(known(&run, "u"), [(Mechanism::ScramSha256, 3), (Mechanism::ScramSha512, 2)]);
    run.state = State::restore(shards(1), &run.state.snapshot()).unwrap();
    assert_eq!(known(&run, "u"), [(Mechanism::ScramSha256, 3), (Mechanism::ScramSha512, 2)]);
    // all of it or nothing
    let half = Command::AlterCredentials {
        user: "v".to_owned(),
        set: vec![(Mechanism::ScramSha256, Some(credential(1))), (Mechanism::ScramSha512, None)],
    };
    assert_eq!(run.apply(&half), Err(Refused::UnknownCredential));
    assert!(run.state.image().users.user("v").is_none());
    run.apply(&alter("u", Mechanism::ScramSha256, None)).unwrap();
    assert_eq!(run.apply(&alter("u", Mechanism::ScramSha256, None)), Err(Refused::UnknownCredential));
    assert_eq!(known(&run, "u"), [(Mechanism::ScramSha512, 2)]);
    run.apply(&alter("u", Mechanism::ScramSha512, None)).unwrap();
    assert!(run.state.image().users.is_empty());
    let no_users = run.state.snapshot();
    assert_eq!(no_users.len(), before.len(), "a snapshot without users is as it was before there were any");
}

/// Whoever may set users could fill the memory of every core.
#[test]
fn users_are_bounded_and_known_ones_go_on() {
    let mut run = Run::new(1);
    let set = |n: usize| Command::AlterCredentials {
        user: format!("u{n}"),
        set: vec![(Mechanism::ScramSha256, Some(credential(1)))],
    };
    for n in 0..crate::limits::USERS_MAX {
        run.apply(&set(n)).unwrap();
    }
    assert!(matches!(run.apply(&set(crate::limits::USERS_MAX)), Err(Refused::TooManyUsers { .. })));
    run.apply(&set(0)).unwrap();
}

/// A key in a log or a panic's text is one to try passwords against.
#[test]
fn a_credential_does_not_show_its_keys() {
    let shown = format!("{:?}", credential(4096));
    assert_eq!(shown, "Credential { iterations: 4096, .. }");
}

fn commands() -> impl Strategy<Value = Command> {
    let name = proptest::sample::select(vec!["a", "b", "c", "d.e", "d_e", "", "bad name"]);
    let id = || (0u8..9).prop_map(uuid);
    let pair = proptest::sample::select(vec![
        ("retention.ms", "1"),
        ("retention.ms", "2"),
        ("max.message.bytes", "700"),
        ("cleanup.policy", "compact"),
        ("nope", "1"),
        ("retention.ms", "x"),
    ])
    .prop_map(|(k, v)| (k.to_owned(), v.to_owned()));
    let configs = proptest::collection::btree_map(pair.clone().prop_map(|p| p.0), pair.clone().prop_map(|p| p.1), 0..2);
    let create = (name, id(), 0u32..9, -1i16..4, configs).prop_map(|(name, id, partitions, factor, configs)| {
        Command::CreateTopic { name: name.to_owned(), id, partitions, replication_factor: factor, configs }
    });
    let set = proptest::collection::vec((pair, any::<bool>()), 0..3)
        .prop_map(|v| v.into_iter().map(|((k, v), keep)| (k, keep.then_some(v))).collect());
    prop_oneof![
        6 => create,
        3 => id().prop_map(|id| Command::DeleteTopic { id }),
        2 => (id(), 0u32..20).prop_map(|(id, total)| Command::CreatePartitions { id, total }),
        2 => (id(), set).prop_map(|(id, set)| Command::AlterTopicConfigs { id, set }),
        1 => (0u32..100).prop_map(|count| Command::TakeProducerIds { count }),
        1 => "[xy]?".prop_map(|cluster_id| Command::Bootstrap { cluster_id }),
        4 => (group(), 0i64..9, id(), offsets()).prop_map(|(group, at_ms, topic, partitions)| {
            Command::CommitOffsets { group, at_ms, topics: vec![TopicOffsets { topic, partitions }] }
        }),
        1 => (group(), id(), 0u32..3)
            .prop_map(|(group, topic, n)| Command::DeleteOffsets { group, partitions: vec![(topic, n)] }),
        1 => group().prop_map(|group| Command::DeleteGroups { groups: vec![group] }),
        1 => (group(), 0i64..9).prop_map(|(group, before_ms)| Command::ExpireOffsets { group, before_ms }),
    ]
}

proptest! {
    /// Replicas that disagree, a restart that forgets, an id given out twice: each would be data under a wrong name.
    #[test]
    fn replicas_agree_and_snapshots_lose_nothing(
        commands in proptest::collection::vec(commands(), 1..80),
        cut in any::<prop::sample::Index>(),
        data_shards in 1u32..5,
    ) {
        let cut = cut.index(commands.len());
        let (mut one, mut two) = (Run::new(data_shards), Run::new(data_shards));
        let (mut partitions, mut producers, mut ids) = (BTreeSet::new(), 0, BTreeSet::new());
        for (n, command) in commands.iter().enumerate() {
            if n == cut {
                let restored = State::restore(shards(data_shards), &two.state.snapshot()).unwrap();
                prop_assert_eq!(&restored, &two.state);
                two.state = restored;
            }
            let (before, checked) = (one.state.image(), State::check(&one.state.image(), command));
            let decided = one.apply(command);
            let decoded = Command::decode(&command.encode()).unwrap();
            prop_assert_eq!(&decided, &two.apply(&decoded));
            let in_the_image = !matches!(
                command,
                Command::TakeProducerIds { .. }
                    | Command::CommitOffsets { .. }
                    | Command::DeleteOffsets { .. }
                    | Command::DeleteGroups { .. }
                    | Command::ExpireOffsets { .. }
            );
            if in_the_image {
                prop_assert_eq!(&checked, &decided);
            }
            let after = one.state.image();
            if decided.is_err() {
                prop_assert!(Arc::ptr_eq(&before, &after));
            }
            // Every partition that is there now and was not before has a new id.
            for topic in after.topics() {
                let old = before.topic_by_id(topic.id).filter(|old| old.name == topic.name);
                let kept = old.map_or(0, |old| old.partitions.len());
                if let Some(old) = old {
                    prop_assert_eq!(&old.partitions[..], &topic.partitions[..kept]);
                }
                for placement in &topic.partitions[kept..] {
                    prop_assert!(partitions.insert(placement.partition), "{:?} given out twice", placement);
                    prop_assert!((1..=data_shards).contains(&placement.shard));
                }
            }
            if let Ok(Done::ProducerIds { first }) = decided {
                prop_assert_eq!(first.first, producers);
                producers += i64::from(first.count);
            }
            // Both ways into the image lead to the same topics.
            ids.clear();
            for topic in after.topics() {
                prop_assert!(Arc::ptr_eq(topic, after.topic(&topic.name).unwrap()));
                prop_assert!(Arc::ptr_eq(topic, after.topic_by_id(topic.id).unwrap()));
                prop_assert_eq!(topic.rules, configs::rules(&topic.configs, limits::BATCH_BYTES_DEFAULT as u32));
                ids.insert(topic.id);
            }
            prop_assert_eq!(ids.len(), after.topic_count());
            prop_assert!(after.topics().map(|t| &t.name).is_sorted());
            prop_assert_eq!(after.partition_count(), after.topics().map(|t| t.partitions.len()).sum::<usize>());
        }
        prop_assert_eq!(&one.state, &two.state);
    }

    /// Loads that drift apart from what is there would fill one shard.
    #[test]
    fn shards_of_a_growing_cluster_stay_level(counts in proptest::collection::vec(1u32..20, 1..30)) {
        let mut run = Run::new(7);
        for (n, count) in counts.iter().enumerate() {
            run.apply(&create(&format!("t{n}"), 1 + n as u8, *count)).unwrap();
            let loads = run.state.shards.iter().map(|s| s.partitions);
            prop_assert!(loads.clone().max().unwrap() - loads.min().unwrap() <= 1);
        }
    }

    #[test]
    fn any_bytes_restore_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = State::restore(shards(1), &[&[1], &bytes[..]].concat());
    }
}
