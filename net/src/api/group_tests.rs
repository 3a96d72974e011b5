//! The handlers of groups against a real coordinator, in every version: what one request leads to is seen by the
//! others.

use super::messages::testing::{Handler, World, encoded, survives_damage};
use super::{
    consumer_group_describe, consumer_group_heartbeat, delete_groups, describe_groups, heartbeat, join_group,
    leave_group, list_groups, offset_commit, offset_delete, offset_fetch, sync_group,
};
use crate::codec::Reader;
use bytes::Bytes;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse, DeleteGroupsRequest, DeleteGroupsResponse, DescribeGroupsRequest,
    DescribeGroupsResponse, GroupId, HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, JoinGroupResponse,
    LeaveGroupRequest, LeaveGroupResponse, ListGroupsRequest, ListGroupsResponse, OffsetCommitRequest,
    OffsetCommitResponse, OffsetDeleteRequest, OffsetDeleteResponse, OffsetFetchRequest, OffsetFetchResponse,
    SyncGroupRequest, SyncGroupResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group(name: &str) -> GroupId {
    GroupId(text(name))
}

fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

fn join_request(version: i16, member: &str, instance: Option<&str>) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
    let request = JoinGroupRequest::default()
        .with_group_id(group("g"))
        .with_session_timeout_ms(10_000)
        .with_member_id(text(member))
        .with_group_instance_id(instance.map(text))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol.with_metadata(Bytes::from_static(b"meta"))]);
    let request = if version >= 1 { request.with_rebalance_timeout_ms(20_000) } else { request };
    if version >= 8 { request.with_reason(Some(text("because"))) } else { request }
}

fn join(world: &mut World, version: i16, instance: Option<&str>) -> JoinGroupResponse {
    let first: JoinGroupResponse = world.call(join_group::handle, version, &join_request(version, "", instance));
    if first.error_code != 79 {
        return first;
    }
    assert!(version >= 4 && first.generation_id == -1 && first.members.is_empty());
    let answer: JoinGroupResponse =
        world.call(join_group::handle, version, &join_request(version, &first.member_id, instance));
    assert_eq!(answer.member_id, first.member_id);
    answer
}

fn sync(world: &mut World, version: i16, member: &str, generation: i32) -> SyncGroupResponse {
    let assignment = SyncGroupRequestAssignment::default().with_member_id(text(member));
    let request = SyncGroupRequest::default()
        .with_group_id(group("g"))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(vec![assignment.with_assignment(Bytes::from_static(b"mine"))]);
    let request = match version {
        5.. => request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range"))),
        ..5 => request,
    };
    world.call(sync_group::handle, version, &request)
}

/// A stable group `g` of one member: its id.
fn stable(world: &mut World) -> String {
    let joined = join(world, 5, None);
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!(sync(world, 3, &joined.member_id, 1).error_code, 0);
    joined.member_id.to_string()
}

fn commit_request(version: i16, member: &str, generation: i32, partitions: &[(i32, i64, &str)]) -> OffsetCommitRequest {
    let partitions = partitions.iter().map(|(number, offset, metadata)| {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*number)
            .with_committed_offset(*offset)
            .with_committed_metadata(Some(text(metadata)));
        if version >= 6 { partition.with_committed_leader_epoch(7) } else { partition }
    });
    let topics = vec![
        OffsetCommitRequestTopic::default().with_name(topic("t")).with_partitions(partitions.collect()),
        OffsetCommitRequestTopic::default()
            .with_name(topic("nope"))
            .with_partitions(vec![OffsetCommitRequestPartition::default()]),
    ];
    OffsetCommitRequest::default()
        .with_group_id(group("g"))
        .with_generation_id_or_member_epoch(generation)
        .with_member_id(text(member))
        .with_topics(topics)
}

fn commit(world: &mut World, version: i16, member: &str, generation: i32, parts: &[(i32, i64, &str)]) -> Vec<i16> {
    let answer: OffsetCommitResponse =
        world.call(offset_commit::handle, version, &commit_request(version, member, generation, parts));
    let names: Vec<&str> = answer.topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["t", "nope"]);
    answer.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.error_code).collect()
}

fn fetch_request(version: i16, topics: Option<&[(&str, &[i32])]>) -> OffsetFetchRequest {
    if version >= 8 {
        let one = |(name, numbers): &(&str, &[i32])| {
            OffsetFetchRequestTopics::default().with_name(topic(name)).with_partition_indexes(numbers.to_vec())
        };
        let of = |name| {
            OffsetFetchRequestGroup::default()
                .with_group_id(group(name))
                .with_topics(topics.map(|topics| topics.iter().map(one).collect()))
        };
        return OffsetFetchRequest::default().with_groups(vec![of("g"), of("other")]).with_require_stable(true);
    }
    let one = |(name, numbers): &(&str, &[i32])| {
        OffsetFetchRequestTopic::default().with_name(topic(name)).with_partition_indexes(numbers.to_vec())
    };
    let request = OffsetFetchRequest::default()
        .with_group_id(group("g"))
        .with_topics(topics.map(|topics| topics.iter().map(one).collect()));
    if version >= 7 { request.with_require_stable(true) } else { request }
}

/// Topic, partition, offset, leader epoch, metadata, code.
type Fetched = Vec<(String, i32, i64, i32, String, i16)>;

fn fetch(world: &mut World, version: i16, topics: Option<&[(&str, &[i32])]>) -> Fetched {
    let answer: OffsetFetchResponse = world.call(offset_fetch::handle, version, &fetch_request(version, topics));
    let shown = |metadata: &Option<StrBytes>| metadata.as_ref().expect("never null").to_string();
    if version < 8 {
        let all = answer.topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p)));
        return all
            .map(|(t, p)| {
                let (epoch, metadata) = (p.committed_leader_epoch, shown(&p.metadata));
                (t.name.to_string(), p.partition_index, p.committed_offset, epoch, metadata, p.error_code)
            })
            .collect();
    }
    let groups: Vec<(&str, i16)> = answer.groups.iter().map(|g| (g.group_id.as_str(), g.error_code)).collect();
    assert_eq!(groups, [("g", 0), ("other", 0)]);
    let other = answer.groups[1].topics.iter().flat_map(|t| &t.partitions);
    assert!(other.clone().all(|p| (p.committed_offset, p.error_code) == (-1, 0)), "{answer:?}");
    let all = answer.groups[0].topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p)));
    all.map(|(t, p)| {
        let (epoch, metadata) = (p.committed_leader_epoch, shown(&p.metadata));
        (t.name.to_string(), p.partition_index, p.committed_offset, epoch, metadata, p.error_code)
    })
    .collect()
}

/// A client of some age could not join at all, or would take another's answer for its own.
#[test]
fn every_version_joins_and_leads_a_group_of_one() {
    for version in 0..=9 {
        let mut world = World::with_state();
        let joined = join(&mut world, version, None);
        assert_eq!((joined.error_code, joined.generation_id), (0, 1), "v{version}");
        assert_eq!(joined.protocol_name, Some(text("range")));
        assert_eq!(joined.protocol_type, (version >= 7).then(|| text("consumer")));
        assert_eq!((&joined.leader, joined.skip_assignment), (&joined.member_id, false));
        let [member] = &joined.members[..] else { panic!("{joined:?}") };
        assert_eq!((&member.member_id, &member.metadata[..]), (&joined.member_id, &b"meta"[..]));
        assert!(joined.member_id.starts_with("tester-"), "{joined:?}");
    }
}

/// The older client's field stands in another place, and its refusal can not be read.
#[test]
fn every_version_of_join_is_refused_in_its_own_layout() {
    for version in 0..=9 {
        let request = join_request(version, "", None).with_session_timeout_ms(1);
        let answer: JoinGroupResponse = World::with_state().call(join_group::handle, version, &request);
        assert_eq!((answer.error_code, answer.generation_id), (26, -1));
        let request = join_request(version, "", None).with_group_id(group(""));
        let answer: JoinGroupResponse = World::with_state().call(join_group::handle, version, &request);
        assert_eq!(answer.error_code, 24);
    }
}

#[test]
fn static_members_join_in_every_version_that_has_them() {
    for version in 5..=9 {
        let mut world = World::with_state();
        let first = join(&mut world, version, Some("i"));
        assert!(first.error_code == 0 && first.member_id.starts_with("i-"), "{first:?}");
        assert_eq!(first.members[0].group_instance_id, Some(text("i")));
        sync(&mut world, 3, &first.member_id, 1);
        let back = join(&mut world, version, Some("i"));
        assert_eq!((back.error_code, back.generation_id), (0, 1));
        assert_eq!(back.skip_assignment, version >= 9);
        assert_eq!(back.leader, if version >= 9 { back.member_id.clone() } else { first.member_id.clone() });
        let request = HeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_generation_id(1)
            .with_member_id(first.member_id)
            .with_group_instance_id(Some(text("i")));
        let fenced: HeartbeatResponse = world.call(heartbeat::handle, 3, &request);
        assert_eq!(fenced.error_code, 82);
    }
}

#[test]
fn every_version_takes_its_assignment_and_beats() {
    for version in 0..=5 {
        let mut world = World::with_state();
        let joined = join(&mut world, 5, None);
        let synced = sync(&mut world, version, &joined.member_id, 1);
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"mine"[..]));
        assert_eq!(synced.protocol_name, (version >= 5).then(|| text("range")));
        assert_eq!(sync(&mut world, version, &joined.member_id, 2).error_code, 22);
        assert_eq!(sync(&mut world, version, "x", 1).error_code, 25);
        for (generation, member, code) in [(1, joined.member_id.as_str(), 0), (2, &joined.member_id, 22), (1, "x", 25)]
        {
            let request = HeartbeatRequest::default()
                .with_group_id(group("g"))
                .with_generation_id(generation)
                .with_member_id(text(member));
            let answer: HeartbeatResponse = world.call(heartbeat::handle, version.min(4), &request);
            assert_eq!(answer.error_code, code);
        }
    }
}

/// A member that leaves and is not taken out holds its partitions until its session ends.
#[test]
fn every_version_leaves() {
    for version in 0..=5 {
        let mut world = World::with_state();
        let member = stable(&mut world);
        let leaving = |members: &[&str]| match version {
            ..3 => LeaveGroupRequest::default().with_group_id(group("g")).with_member_id(text(members[0])),
            3.. => {
                let one = |id: &&str| {
                    let member = MemberIdentity::default().with_member_id(text(id));
                    if version >= 5 { member.with_reason(Some(text("done"))) } else { member }
                };
                LeaveGroupRequest::default().with_group_id(group("g")).with_members(members.iter().map(one).collect())
            }
        };
        let answer: LeaveGroupResponse = world.call(leave_group::handle, version, &leaving(&["nobody", &member]));
        let codes: Vec<i16> = answer.members.iter().map(|member| member.error_code).collect();
        match version {
            ..3 => assert_eq!((answer.error_code, codes), (25, vec![])),
            3.. => assert_eq!((answer.error_code, codes), (0, vec![25, 0])),
        }
        if version < 3 {
            let answer: LeaveGroupResponse = world.call(leave_group::handle, version, &leaving(&[&member]));
            assert_eq!(answer.error_code, 0);
        }
        let answer: DescribeGroupsResponse =
            world.call(describe_groups::handle, 5, &DescribeGroupsRequest::default().with_groups(vec![group("g")]));
        assert_eq!(answer.groups[0].group_state.as_str(), "Empty");
    }
}

/// A group that goes on anywhere else than it committed reads twice, or never.
#[test]
fn what_any_version_commits_every_version_fetches() {
    for committing in 2..=9 {
        let mut world = World::with_state();
        let member = stable(&mut world);
        let long = "x".repeat(4097);
        let partitions = [(0, 41, ""), (1, 5, "note"), (0, 42, "last"), (2, 1, ""), (-1, 1, ""), (1, 6, long.as_str())];
        let codes = commit(&mut world, committing, &member, 1, &partitions);
        assert_eq!(codes, [0, 0, 0, 3, 3, 12, 3]);
        let epoch = if committing >= 6 { 7 } else { -1 };
        for fetching in 1..=9 {
            let epoch = if fetching >= 5 { epoch } else { -1 };
            let asked: &[(&str, &[i32])] = &[("nope", &[3]), ("t", &[1, 0, 55, -1]), ("dark", &[0])];
            let none = |topic: &str, number| (topic.to_owned(), number, -1, -1, String::new(), 0);
            let t = |number, offset, metadata: &str| ("t".to_owned(), number, offset, epoch, metadata.to_owned(), 0);
            let expected =
                vec![none("nope", 3), t(1, 5, "note"), t(0, 42, "last"), none("t", 55), none("t", -1), none("dark", 0)];
            assert_eq!(fetch(&mut world, fetching, Some(asked)), expected, "committed with {committing}");
            if fetching >= 2 {
                assert_eq!(fetch(&mut world, fetching, None), [t(0, 42, "last"), t(1, 5, "note")], "v{fetching}");
            }
        }
    }
}

#[test]
fn commits_that_are_refused_are_so_for_each_partition_and_store_nothing() {
    for version in 2..=9 {
        let mut world = World::with_state();
        let unknown = if version >= 9 { 69 } else { 22 };
        assert_eq!(commit(&mut world, version, "x", 3, &[(0, 1, "")]), [unknown, unknown]);
        let member = stable(&mut world);
        for (by, generation, code) in [(member.as_str(), 2, 22), ("x", 1, 25), ("", -1, 25)] {
            assert_eq!(commit(&mut world, version, by, generation, &[(0, 1, "")]), [code, code]);
        }
        assert!(world.commands.is_empty());
    }
}

/// One request could put more into the metadata's log than a record of it takes.
#[test]
fn a_commit_over_the_limit_is_refused_whole() {
    let long = "x".repeat(4096);
    let partitions: Vec<(i32, i64, &str)> = (0..200).map(|n| (n % 2, 1, long.as_str())).collect();
    let codes = commit(&mut World::with_state(), 8, "", -1, &partitions);
    assert!(codes.iter().all(|code| *code == 28), "{codes:?}");
}

#[test]
fn every_version_describes_a_group_and_one_that_is_not_there() {
    for version in 0..=6 {
        let mut world = World::with_state();
        let member = stable(&mut world);
        let request = DescribeGroupsRequest::default().with_groups(vec![group("g"), group("nope")]);
        let request = if version >= 3 { request.with_include_authorized_operations(true) } else { request };
        let answer: DescribeGroupsResponse = world.call(describe_groups::handle, version, &request);
        let [known, unknown] = &answer.groups[..] else { panic!("{answer:?}") };
        let said = (known.group_state.as_str(), known.protocol_type.as_str(), known.protocol_data.as_str());
        assert_eq!((known.error_code, said), (0, ("Stable", "consumer", "range")));
        let it = &known.members[0];
        assert_eq!((it.member_id.as_str(), it.client_id.as_str()), (member.as_str(), "tester"));
        assert_eq!((it.client_host.as_str(), &it.member_assignment[..]), ("/192.0.2.7", &b"mine"[..]));
        assert_eq!(known.authorized_operations, if version >= 3 { 3400 } else { i32::MIN });
        let code = if version >= 6 { 69 } else { 0 };
        assert_eq!((unknown.error_code, unknown.group_state.as_str()), (code, "Dead"));
        assert_eq!(unknown.error_message.is_some(), version >= 6);
        assert_eq!(unknown.authorized_operations, if (3..6).contains(&version) { 3400 } else { i32::MIN });
    }
}

/// Lost if it fails: a tool that asks for a group without a name by mistake is told that there is one, or that the
/// group has died.
#[test]
fn a_group_without_a_name_is_described_as_kafka_does() {
    let mut world = World::with_state();
    stable(&mut world);
    let request = DescribeGroupsRequest::default().with_groups(vec![group(""), group("g")]);
    for version in 0..=6 {
        let answer: DescribeGroupsResponse = world.call(describe_groups::handle, version, &request);
        let told: Vec<_> = answer.groups.iter().map(|g| (g.error_code, g.group_state.as_str())).collect();
        assert_eq!(told, [(if version >= 6 { 69 } else { 0 }, "Dead"), (0, "Stable")]);
    }
    for (elsewhere, code) in [(false, 69), (true, 16)] {
        world.coordinated_elsewhere = elsewhere;
        for version in 0..=1 {
            let asked = describe_request(&["", "nope", ""]);
            let answer: ConsumerGroupDescribeResponse = world.call(consumer_group_describe::handle, version, &asked);
            let told: Vec<_> = answer.groups.iter().map(|g| (g.group_id.as_str(), g.error_code)).collect();
            assert_eq!(told, [("", 24), ("nope", code), ("", 24)]);
            assert!(answer.groups.iter().all(|g| g.authorized_operations == i32::MIN && g.error_message.is_some()));
        }
    }
}

/// A client that is told that its group is empty, or has committed nothing, begins anew; told that another broker has
/// it, it asks which one.
#[test]
fn a_broker_that_coordinates_no_groups_says_so_in_every_version() {
    let mut world = World::with_state();
    world.coordinated_elsewhere = true;
    for version in 1..=9 {
        let request = fetch_request(version, Some(&[("t", &[0, 1])]));
        let answer: OffsetFetchResponse = world.call(offset_fetch::handle, version, &request);
        let codes: Vec<i16> = match version {
            ..2 => answer.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code).collect(),
            2..8 => vec![answer.error_code; 2],
            8.. => answer.groups.iter().map(|g| g.error_code).collect(),
        };
        assert_eq!(codes, [16, 16], "version {version}");
    }
    for version in 0..=6 {
        let request = DescribeGroupsRequest::default().with_groups(vec![group("g"), group("h")]);
        let answer: DescribeGroupsResponse = world.call(describe_groups::handle, version, &request);
        let told: Vec<_> = answer.groups.iter().map(|g| (g.group_id.as_str(), g.error_code)).collect();
        assert_eq!(told, [("g", 16), ("h", 16)]);
    }
    for version in 0..=9 {
        let answer: JoinGroupResponse = world.call(join_group::handle, version, &join_request(version, "m", None));
        assert_eq!(answer.error_code, 16);
    }
    for version in 0..=1 {
        let answer = beat(&mut world, version, &beat_request(version, "m", 0));
        assert_eq!(answer.error_code, 16);
        let answer: ConsumerGroupDescribeResponse =
            world.call(consumer_group_describe::handle, version, &describe_request(&["g"]));
        assert_eq!((answer.groups[0].error_code, answer.groups[0].group_id.as_str()), (16, "g"));
    }
    // clients ask every broker and put the lists together
    let answer: ListGroupsResponse = world.call(list_groups::handle, 5, &ListGroupsRequest::default());
    assert_eq!((answer.error_code, answer.groups.len()), (0, 0));
}

#[test]
fn every_version_lists_groups_and_filters_by_what_it_can_name() {
    for version in 0..=5 {
        let mut world = World::with_state();
        stable(&mut world);
        let mut listed = |states: &[&str], types: &[&str]| -> Vec<(String, String, String)> {
            let names = |names: &[&str]| names.iter().map(|name| text(name)).collect();
            let request = ListGroupsRequest::default().with_states_filter(names(states));
            let answer: ListGroupsResponse =
                world.call(list_groups::handle, version, &request.with_types_filter(names(types)));
            let said = |g: &kafka_protocol::messages::list_groups_response::ListedGroup| {
                (g.group_id.to_string(), g.group_state.to_string(), g.group_type.to_string())
            };
            answer.groups.iter().map(said).collect()
        };
        let state = if version >= 4 { "Stable" } else { "" };
        let all = vec![("g".to_owned(), state.to_owned(), if version >= 5 { "classic" } else { "" }.to_owned())];
        assert_eq!(listed(&[], &[]), all);
        if version >= 4 {
            assert_eq!(listed(&["empty"], &[]), []);
            assert_eq!(listed(&["EMPTY", "stable"], &[]), all);
        }
        if version >= 5 {
            assert_eq!(listed(&[], &["consumer"]), []);
            assert_eq!(listed(&[], &["Classic"]), all);
        }
    }
}

#[test]
fn groups_and_offsets_are_deleted_once_nobody_uses_them() {
    for version in 0..=2 {
        let mut world = World::with_state();
        assert_eq!(commit(&mut world, 2, "", -1, &[(0, 4, ""), (1, 5, "")]), [0, 0, 3]);
        let one = |number| OffsetDeleteRequestPartition::default().with_partition_index(number);
        let topics = vec![
            OffsetDeleteRequestTopic::default().with_name(topic("t")).with_partitions(vec![one(0), one(9)]),
            OffsetDeleteRequestTopic::default().with_name(topic("nope")).with_partitions(vec![one(0)]),
        ];
        let request = OffsetDeleteRequest::default().with_group_id(group("g")).with_topics(topics);
        let answer: OffsetDeleteResponse = world.call(offset_delete::handle, 0, &request);
        let codes = answer.topics.iter().flat_map(|t| &t.partitions).map(|p| p.error_code);
        assert_eq!((answer.error_code, codes.collect::<Vec<_>>()), (0, vec![0, 3, 3]));
        assert_eq!(fetch(&mut world, 5, None).iter().map(|found| found.1).collect::<Vec<_>>(), [1]);
        let request = DeleteGroupsRequest::default().with_groups_names(vec![group("g"), group("nope")]);
        let answer: DeleteGroupsResponse = world.call(delete_groups::handle, version, &request);
        assert_eq!(answer.results.iter().map(|r| r.error_code).collect::<Vec<_>>(), [0, 69]);
        assert_eq!(fetch(&mut world, 5, None), []);
        let request = OffsetDeleteRequest::default().with_group_id(group("g"));
        let answer: OffsetDeleteResponse = world.call(offset_delete::handle, 0, &request);
        assert_eq!(answer.error_code, 69);
    }
}

/// An operator would be told a number, and not why the group stays.
#[test]
fn the_newest_delete_groups_says_why() {
    let mut world = World::with_state();
    let request = DeleteGroupsRequest::default().with_groups_names(vec![group("nope")]);
    // the request has not changed since version 2
    let answer = world.run(delete_groups::handle, 3, encoded(&request, 2)).expect("answered");
    let mut r = Reader::new(&answer, true);
    let why = "there is no such group";
    let mut result = |r: &mut Reader<'_>| {
        assert_eq!((r.string()?.as_str(), r.i16()?, r.nullable_string()?.as_deref()), ("nope", 69, Some(why)));
        r.tags()
    };
    assert_eq!(r.i32(), Ok(0));
    assert_eq!(r.array(4, &mut result).map(|results| results.len()), Ok(1));
    assert_eq!((r.tags(), r.left()), (Ok(()), 0));
}

/// A first heartbeat of a consumer of topic `t`.
fn beat_request(version: i16, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group("g"))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(20_000)
        .with_subscribed_topic_names(Some(vec![topic("t")]))
        .with_topic_partitions(Some(Vec::new()));
    if version >= 1 { request.with_subscribed_topic_regex(Some(text("com.*"))) } else { request }
}

fn beat(world: &mut World, version: i16, request: &ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse {
    world.call(consumer_group_heartbeat::handle, version, request)
}

fn describe_request(names: &[&str]) -> ConsumerGroupDescribeRequest {
    ConsumerGroupDescribeRequest::default()
        .with_group_ids(names.iter().map(|name| group(name)).collect())
        .with_include_authorized_operations(true)
}

/// Lost if it fails: a consumer of the newer protocol can not join, or takes another's partitions for its own.
#[test]
fn both_versions_join_beat_and_leave_a_group_of_kip_848() {
    for version in 0..=1 {
        let mut world = World::with_state();
        let joined = beat(&mut world, version, &beat_request(version, if version == 0 { "" } else { "m" }, 0));
        assert_eq!((joined.error_code, joined.error_message.clone(), joined.heartbeat_interval_ms), (0, None, 5000));
        let member = joined.member_id.expect("it is told who it is");
        assert!(joined.member_epoch > 0 && !member.is_empty() && (version == 0 || member == text("m")));
        let told: Vec<_> = joined.assignment.expect("it joins").topic_partitions;
        let told: Vec<_> = told.into_iter().map(|t| (t.topic_id, t.partitions)).collect();
        let (t, compact) = (Uuid::from_u128(0xa1), Uuid::from_u128(0xa2));
        let mut expected = vec![(t, vec![0, 1])];
        if version >= 1 {
            expected.push((compact, vec![0]));
        }
        assert_eq!(told, expected, "v{version}: the pattern means a topic besides");
        let owned = expected
            .iter()
            .map(|(topic, numbers)| TopicPartitions::default().with_topic_id(*topic).with_partitions(numbers.clone()));
        let quiet = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_member_id(member.clone())
            .with_member_epoch(joined.member_epoch)
            .with_subscribed_topic_names(None)
            .with_topic_partitions(Some(owned.collect()));
        let again = beat(&mut world, version, &quiet);
        assert_eq!((again.error_code, again.member_epoch, again.assignment), (0, joined.member_epoch, None));
        for (epoch, id, code) in [(joined.member_epoch + 1, member.as_str(), 110), (joined.member_epoch, "x", 25)] {
            let wrong = quiet.clone().with_member_epoch(epoch).with_member_id(text(id));
            let answer = beat(&mut world, version, &wrong);
            assert_eq!((answer.error_code, answer.member_id), (code, None));
            assert!(answer.error_message.is_some());
        }
        let left = beat(&mut world, version, &quiet.clone().with_member_epoch(-1));
        assert_eq!((left.error_code, left.member_epoch, left.heartbeat_interval_ms), (0, -1, 0));
    }
}

/// Lost if it fails: a client that has left sets its clock by the answer, and beats on for a group that it is not in.
#[test]
fn who_leaves_is_not_told_to_come_back() {
    for epoch in [-1, -2] {
        let mut world = World::with_state();
        let request = beat_request(1, "m", 0).with_instance_id(Some(text("i")));
        assert_eq!(beat(&mut world, 1, &request).heartbeat_interval_ms, 5000);
        let left = beat(&mut world, 1, &request.with_member_epoch(epoch));
        assert_eq!((left.error_code, left.member_epoch, left.heartbeat_interval_ms), (0, epoch, 0));
    }
}

/// Lost if it fails: members that were never given a name share one, and each takes the other's partitions.
#[test]
fn a_blank_name_is_no_name() {
    for version in 0..=1 {
        let good = beat_request(version, "m", 0);
        let answer = |request: ConsumerGroupHeartbeatRequest| {
            let answer = beat(&mut World::with_state(), version, &request);
            assert_eq!(answer.error_message.is_some(), answer.error_code != 0);
            answer.error_code
        };
        for blank in [" ", "\t \n", "\u{1}"] {
            assert_eq!(answer(good.clone().with_group_id(group(blank))), 42);
            assert_eq!(answer(good.clone().with_instance_id(Some(text(blank)))), 42);
            assert_eq!(answer(good.clone().with_rack_id(Some(text(blank)))), 42);
            let nameless = good.clone().with_member_id(text(blank));
            assert_eq!(answer(nameless.clone()), if version >= 1 { 42 } else { 0 });
            assert_eq!(answer(nameless.clone().with_member_epoch(-1)), 42);
            assert_eq!(answer(nameless.with_member_epoch(3)), 42);
        }
        // Java's `trim` takes no such blank off
        assert_eq!(answer(good.with_group_id(group("\u{a0}"))), 0);
    }
}

/// Lost if it fails: one member fills the memory of core 0 with its name, and the group can not be described any more
/// in a version whose strings are shorter than it.
#[test]
fn a_member_has_no_name_that_older_answers_can_not_say() {
    for (bytes, code) in [(1024, 0), (1025, 42), (40_000, 42)] {
        let long = text(&"x".repeat(bytes));
        for version in 0..=1 {
            let good = beat_request(version, "m", 0);
            let named = [
                good.clone().with_member_id(long.clone()),
                good.clone().with_instance_id(Some(long.clone())),
                good.with_rack_id(Some(long.clone())),
            ];
            for request in named {
                let answer = beat(&mut World::with_state(), version, &request);
                let why = answer.error_message.unwrap_or_default();
                assert_eq!((answer.error_code, why.contains("at most 1024 bytes")), (code, code != 0));
            }
        }
        for version in (5..=9).filter(|version| *version >= 6 || bytes < 1 << 15) {
            let joined = join(&mut World::with_state(), version, Some(&long));
            assert_eq!(joined.error_code, code, "v{version}");
            let request = join_request(version, &long, None);
            let answer: JoinGroupResponse = World::with_state().call(join_group::handle, version, &request);
            assert_eq!((answer.error_code, answer.member_id), (if code == 0 { 25 } else { code }, long.clone()));
        }
    }
}

/// Lost if it fails: a client takes a fault of its own for one of the broker's, and tries for ever.
#[test]
fn each_fault_of_a_heartbeat_of_kip_848_has_kafkas_code() {
    for version in 0..=1 {
        let good = beat_request(version, "m", 0);
        let code =
            |request: ConsumerGroupHeartbeatRequest| beat(&mut World::with_state(), version, &request).error_code;
        assert_eq!(code(good.clone().with_rebalance_timeout_ms(-1)), 42);
        assert_eq!(code(good.clone().with_topic_partitions(None)), 42);
        assert_eq!(code(good.clone().with_group_id(group(""))), 42);
        assert_eq!(code(good.clone().with_instance_id(Some(text("")))), 42);
        assert_eq!(code(good.clone().with_rack_id(Some(text("")))), 42);
        assert_eq!(code(good.clone().with_member_epoch(-3)), 42);
        assert_eq!(code(good.clone().with_server_assignor(Some(text("best")))), 112);
        assert_eq!(code(good.clone().with_member_epoch(5)), 25);
        if version >= 1 {
            assert_eq!(code(good.clone().with_member_id(text(""))), 42);
            assert_eq!(code(good.with_subscribed_topic_regex(Some(text("a**")))), 128);
        }
    }
}

/// Lost if it fails: an operator sees neither who is in a group nor what each reads, or takes one kind of group for the
/// other.
#[test]
fn both_versions_describe_groups_of_kip_848_and_no_others() {
    for version in 0..=1 {
        let mut world = World::with_state();
        let joined = beat(&mut world, 0, &beat_request(0, "m", 0).with_instance_id(Some(text("i"))));
        let answer: ConsumerGroupDescribeResponse =
            world.call(consumer_group_describe::handle, version, &describe_request(&["g", "nope"]));
        let [known, unknown] = &answer.groups[..] else { panic!("{answer:?}") };
        let said = (known.error_code, known.group_state.as_str(), known.assignor_name.as_str());
        assert_eq!(said, (0, "Stable", "uniform"));
        assert_eq!((known.group_epoch, known.assignment_epoch), (joined.member_epoch, joined.member_epoch));
        assert_eq!(known.authorized_operations, 3400);
        let [member] = &known.members[..] else { panic!("{known:?}") };
        assert_eq!((member.member_id.as_str(), member.instance_id.clone()), ("m", Some(text("i"))));
        assert_eq!((member.client_id.as_str(), member.client_host.as_str()), ("tester", "/192.0.2.7"));
        assert_eq!((&member.subscribed_topic_names[..], member.member_epoch), (&[topic("t")][..], joined.member_epoch));
        for has in [&member.assignment, &member.target_assignment] {
            let [has] = &has.topic_partitions[..] else { panic!("{has:?}") };
            assert_eq!((has.topic_name.as_str(), has.topic_id), ("t", Uuid::from_u128(0xa1)));
            assert_eq!(has.partitions, [0, 1]);
        }
        assert_eq!(member.member_type, if version >= 1 { 1 } else { -1 });
        assert_eq!((unknown.error_code, unknown.group_id.as_str()), (69, "nope"));
        assert!(unknown.error_message.is_some());
        let classic: DescribeGroupsResponse =
            world.call(describe_groups::handle, 6, &DescribeGroupsRequest::default().with_groups(vec![group("g")]));
        assert_eq!((classic.groups[0].error_code, classic.groups[0].group_state.as_str()), (69, "Dead"));
        let listed: ListGroupsResponse = world.call(list_groups::handle, 5, &ListGroupsRequest::default());
        let [listed] = &listed.groups[..] else { panic!("{listed:?}") };
        let said = (listed.group_type.as_str(), listed.group_state.as_str(), listed.protocol_type.as_str());
        assert_eq!(said, ("consumer", "Stable", "consumer"));
    }
    let mut world = World::with_state();
    stable(&mut world);
    let answer: ConsumerGroupDescribeResponse =
        world.call(consumer_group_describe::handle, 1, &describe_request(&["g"]));
    assert_eq!(answer.groups[0].error_code, 69);
}

/// Lost if it fails: a member that was replaced moves, or reads, the offsets of partitions that are another's.
#[test]
fn members_of_kip_848_commit_and_fetch_in_their_epoch() {
    let mut world = World::with_state();
    let joined = beat(&mut world, 1, &beat_request(1, "m", 0));
    assert_eq!(commit(&mut world, 9, "m", joined.member_epoch, &[(0, 4, "")]), [0, 3]);
    assert_eq!(commit(&mut world, 9, "m", joined.member_epoch + 1, &[(0, 5, "")]), [113, 113]);
    assert_eq!(commit(&mut world, 9, "x", joined.member_epoch, &[(0, 5, "")]), [25, 25]);
    assert_eq!(commit(&mut world, 8, "m", joined.member_epoch, &[(0, 5, "")]), [35, 35]);
    let epoch = joined.member_epoch;
    let asks = [(Some("m"), epoch, 0), (None, -1, 0), (Some("m"), epoch + 1, 113), (Some("x"), epoch, 25)];
    for (member, epoch, code) in asks {
        let one = OffsetFetchRequestTopics::default().with_name(topic("t")).with_partition_indexes(vec![0]);
        let of = OffsetFetchRequestGroup::default()
            .with_group_id(group("g"))
            .with_member_id(member.map(text))
            .with_member_epoch(epoch)
            .with_topics(Some(vec![one]));
        let request = OffsetFetchRequest::default().with_groups(vec![of]);
        let answer: OffsetFetchResponse = world.call(offset_fetch::handle, 9, &request);
        let offsets = answer.groups[0].topics.iter().flat_map(|t| &t.partitions).map(|p| p.committed_offset);
        let offsets: Vec<i64> = offsets.collect();
        assert_eq!(answer.groups[0].error_code, code);
        assert_eq!(offsets, if code == 0 { vec![4] } else { vec![] });
    }
}

#[test]
fn no_bytes_end_in_a_panic() {
    let asked: &[(&str, &[i32])] = &[("t", &[0, 1])];
    let requests: [(Handler, i16, i16, &dyn Fn(i16) -> Bytes); 12] = [
        (consumer_group_heartbeat::handle, 0, 1, &|v| encoded(&beat_request(v, "m", 0), v)),
        (consumer_group_describe::handle, 0, 1, &|v| encoded(&describe_request(&["g", "h"]), v)),
        (join_group::handle, 0, 9, &|v| encoded(&join_request(v, "", None), v)),
        (sync_group::handle, 0, 5, &|v| encoded(&SyncGroupRequest::default().with_group_id(group("g")), v)),
        (heartbeat::handle, 0, 4, &|v| encoded(&HeartbeatRequest::default().with_group_id(group("g")), v)),
        (leave_group::handle, 0, 5, &|v| encoded(&LeaveGroupRequest::default().with_group_id(group("g")), v)),
        (offset_commit::handle, 2, 9, &|v| encoded(&commit_request(v, "", -1, &[(0, 1, "m")]), v)),
        (offset_fetch::handle, 1, 9, &|v| encoded(&fetch_request(v, Some(asked)), v)),
        (describe_groups::handle, 0, 6, &|v| {
            encoded(&DescribeGroupsRequest::default().with_groups(vec![group("g")]), v)
        }),
        (list_groups::handle, 0, 5, &|v| encoded(&ListGroupsRequest::default(), v)),
        (delete_groups::handle, 0, 3, &|v| {
            encoded(&DeleteGroupsRequest::default().with_groups_names(vec![group("g")]), v.min(2))
        }),
        (offset_delete::handle, 0, 0, &|v| encoded(&OffsetDeleteRequest::default().with_group_id(group("g")), v)),
    ];
    for (handler, min, max, whole) in requests {
        survives_damage(handler, min..=max, whole);
    }
}
