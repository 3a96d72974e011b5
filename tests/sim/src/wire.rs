//! Kafka's wire from the client's side: requests, answers in the order of the requests, batches and what is in them.

use crate::batches::RECORD_TIME_MS;
pub use crate::batches::{batch, records};
use crate::kit::{Cluster, PATIENCE, addr};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use camus_engine::rt::sim::ClientId;
use camus_engine::types::Mono;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions;
/// Partitions of a topic that a member of a group of KIP-848 is given. Has the topic's id.
pub use kafka_protocol::messages::consumer_group_heartbeat_response::TopicPartitions as Told;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    BrokerId, ConsumerGroupHeartbeatRequest, CreateTopicsRequest, DeleteRecordsRequest, FetchRequest, FetchResponse,
    FindCoordinatorRequest, GroupId, HeartbeatRequest, InitProducerIdRequest, JoinGroupRequest, LeaveGroupRequest,
    ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse, OffsetCommitRequest,
    OffsetFetchRequest, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader, SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use std::collections::VecDeque;
use std::time::Duration;

pub const PRODUCE: i16 = 9;
pub const FETCH: i16 = 12;
pub const INIT_PRODUCER_ID: i16 = 4;
pub const LIST_OFFSETS: i16 = 6;
pub const OFFSET_COMMIT: i16 = 8;
/// The first version in which members of a group of KIP-848 may commit.
pub const OFFSET_COMMIT_IN_EPOCH: i16 = 9;
/// The last version with one group, not many.
pub const OFFSET_FETCH: i16 = 7;
/// The first version in which a member says in which epoch it asks.
pub const OFFSET_FETCH_IN_EPOCH: i16 = 9;
pub const DELETE_RECORDS: i16 = 2;
const CREATE_TOPICS: i16 = 5;
pub const METADATA: i16 = 9;
/// The last version with one key, not many.
pub const FIND_COORDINATOR: i16 = 3;
pub const JOIN_GROUP: i16 = 5;
pub const SYNC_GROUP: i16 = 3;
pub const HEARTBEAT: i16 = 3;
/// The last version with one member, not many.
pub const LEAVE_GROUP: i16 = 2;
/// The first version in which members make their own ids, and may subscribe by a pattern.
pub const CONSUMER_GROUP_HEARTBEAT: i16 = 1;

/// What ListOffsets is asked for.
pub const LATEST: i64 = -1;
pub const EARLIEST: i64 = -2;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

/// A connection of a client.
pub struct Conn {
    pub id: ClientId,
    bytes: Vec<u8>,
    next: i32,
    /// What is to be answered, in order: correlation id, and the version of the answer's header.
    expected: VecDeque<(i32, i16)>,
    /// Since when something is to be answered, and nothing is.
    waits_since: Option<Mono>,
}

impl Conn {
    /// To this broker.
    pub fn open(cluster: &mut Cluster, broker: usize) -> Conn {
        let id = cluster.world.connect(addr(broker));
        Conn { id, bytes: vec![], next: 1, expected: VecDeque::new(), waits_since: None }
    }

    pub fn is_open(&self, cluster: &mut Cluster) -> bool {
        cluster.world.closed(self.id).is_none()
    }

    /// Something is to be answered, and nothing came for longer than this.
    pub fn is_late(&self, cluster: &Cluster, after: Duration) -> bool {
        self.waits_since.is_some_and(|since| cluster.now().since(since) > after)
    }

    /// Its owner was away: what is to be answered is waited for from now on.
    pub fn waits_anew(&mut self, cluster: &Cluster) {
        self.waits_since = self.waits_since.map(|_| cluster.now());
    }

    /// Requests without an answer.
    pub fn owed(&self) -> usize {
        self.expected.len()
    }

    pub fn send<R: Request>(&mut self, cluster: &mut Cluster, version: i16, request: &R) -> i32 {
        let correlation = self.next;
        self.next += 1;
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(correlation);
        let mut frame = BytesMut::new();
        frame.put_i32(0);
        header.encode(&mut frame, R::header_version(version)).unwrap();
        request.encode(&mut frame, version).unwrap();
        let len = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&len.to_be_bytes());
        cluster.world.send(self.id, &frame);
        self.waits_since.get_or_insert(cluster.now());
        self.expected.push_back((correlation, <R::Response as HeaderVersion>::header_version(version)));
        correlation
    }

    /// The answers that came: correlation id and body. Each in its turn, or the simulation ends.
    pub fn answers(&mut self, cluster: &mut Cluster) -> Vec<(i32, Bytes)> {
        self.bytes.extend(cluster.world.received(self.id));
        let mut answers = Vec::new();
        while let Some(len) = self.bytes.first_chunk().map(|len| i32::from_be_bytes(*len) as usize) {
            if self.bytes.len() < 4 + len {
                break;
            }
            let mut frame = Bytes::copy_from_slice(&self.bytes[4..4 + len]);
            self.bytes.drain(..4 + len);
            let (correlation, version) = self.expected.pop_front().expect("an answer that nobody asked for");
            let header = ResponseHeader::decode(&mut frame, version).unwrap();
            assert_eq!(header.correlation_id, correlation, "answers come in the order of the requests");
            answers.push((correlation, frame));
        }
        if !answers.is_empty() {
            self.waits_since = (!self.expected.is_empty()).then(|| cluster.now());
        }
        answers
    }

    /// One request and its answer. `None`: the connection ended, or nothing came for longer than anything takes.
    pub fn call<R: Request>(&mut self, cluster: &mut Cluster, version: i16, request: &R) -> Option<R::Response> {
        assert_eq!(self.owed(), 0, "something else is to be answered first");
        self.send(cluster, version, request);
        let id = self.id;
        cluster.world.run_until(PATIENCE, |world| {
            let waiting = world.waiting(id);
            let len = waiting.first_chunk().map(|len| i32::from_be_bytes(*len) as usize);
            len.is_some_and(|len| waiting.len() >= 4 + len) || world.closed(id).is_some()
        });
        let (_, mut body) = self.answers(cluster).into_iter().next()?;
        let answer = R::Response::decode(&mut body, version).unwrap();
        assert!(body.is_empty(), "{} bytes behind the answer", body.len());
        Some(answer)
    }

    /// The error code.
    pub fn create_topic(&mut self, cluster: &mut Cluster, topic: &str, partitions: i32) -> Option<i16> {
        let copies = cluster.shape.brokers as i16;
        let topic = CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions)
            .with_replication_factor(copies);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(5_000);
        Some(self.call(cluster, CREATE_TOPICS, &request)?.topics[0].error_code)
    }

    /// The offset, or what is in the way of it. `at`: the partition, and the epoch of its leader.
    pub fn list_offset(
        &mut self,
        cluster: &mut Cluster,
        topic: &str,
        at: (i32, i32),
        what: i64,
    ) -> Result<i64, String> {
        let partition = at.0;
        match self.call(cluster, LIST_OFFSETS, &list_offsets(topic, at, what)).map(listed) {
            Some((0, offset)) => Ok(offset),
            Some((code, _)) => Err(format!("ListOffsets of partition {partition} got error code {code}")),
            None => Err(format!("ListOffsets of partition {partition} got no answer")),
        }
    }

    /// The log start, and every record of the partition with its offset; or what is in the way of it.
    pub fn read_all(
        &mut self,
        cluster: &mut Cluster,
        topic: &str,
        of: (i32, i32),
    ) -> Result<(i64, Vec<(i64, u64)>), String> {
        let log_start = self.list_offset(cluster, topic, of, EARLIEST)?;
        let end = self.list_offset(cluster, topic, of, LATEST)?;
        let partition = of.0;
        let (mut at, mut all) = (log_start, Vec::new());
        while at < end {
            let answer = self.call(cluster, FETCH, &fetch(topic, of, at, 0, 1 << 20));
            let answer = answer.ok_or_else(|| format!("a fetch of partition {partition} at {at} got no answer"))?;
            let found = fetched(answer);
            if found.error_code != 0 {
                return Err(format!("a fetch of partition {partition} at {at} got error code {}", found.error_code));
            }
            let records = records(&found.records.unwrap_or_default(), at);
            let Some((last, _)) = records.last() else {
                return Err(format!("a fetch of partition {partition} found nothing at {at} of {end}"));
            };
            at = last + 1;
            all.extend(records);
        }
        if log_start < end {
            // All records are of one time, so the first that is not older is the first that there is.
            let first = self.list_offset(cluster, topic, of, RECORD_TIME_MS)?;
            if first != log_start {
                return Err(format!(
                    "partition {partition} begins at {log_start}, and by time it was found to begin at {first}"
                ));
            }
        }
        Ok((log_start, all))
    }
}

// ------------------------------------------------------------------------------------------------- requests

pub fn init_producer_id() -> InitProducerIdRequest {
    InitProducerIdRequest::default().with_transactional_id(None).with_producer_id((-1).into()).with_producer_epoch(-1)
}

pub fn produce(topic: &str, partition: i32, batch: &Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch.clone()));
    let topic = TopicProduceData::default().with_name(name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

pub fn produced(answer: ProduceResponse) -> PartitionProduceResponse {
    answer.responses.into_iter().next().unwrap().partition_responses.into_iter().next().unwrap()
}

/// `at`: the partition, and the epoch of its leader as the client knows it; -1: unknown.
pub fn fetch(topic: &str, at: (i32, i32), offset: i64, wait_ms: i32, bytes_max: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(at.0)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(at.1)
        .with_last_fetched_epoch(-1)
        .with_log_start_offset(-1)
        .with_partition_max_bytes(bytes_max);
    let topic = FetchTopic::default().with_topic(name(topic)).with_partitions(vec![partition]);
    FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(wait_ms)
        .with_min_bytes(1)
        .with_max_bytes(bytes_max)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

pub fn fetched(answer: FetchResponse) -> PartitionData {
    assert_eq!(answer.error_code, 0);
    answer.responses.into_iter().next().unwrap().partitions.into_iter().next().unwrap()
}

/// `at`: the partition, and the epoch of its leader.
pub fn list_offsets(topic: &str, at: (i32, i32), what: i64) -> ListOffsetsRequest {
    let partition =
        ListOffsetsPartition::default().with_partition_index(at.0).with_timestamp(what).with_current_leader_epoch(at.1);
    let topic = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic])
}

/// Error code and offset.
pub fn listed(answer: ListOffsetsResponse) -> (i16, i64) {
    let partition = &answer.topics[0].partitions[0];
    (partition.error_code, partition.offset)
}

/// Who leads the topic's partitions.
pub fn metadata(topic: &str) -> MetadataRequest {
    let topic = MetadataRequestTopic::default().with_name(Some(name(topic)));
    MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(false)
}

/// Host and port of a partition's leader, and its epoch; or that nobody knows.
pub fn led_by(answer: &MetadataResponse, partition: i32) -> Option<(String, i32, i32)> {
    let topic = answer.topics.first()?;
    let found = topic.partitions.iter().find(|found| found.partition_index == partition)?;
    if found.error_code != 0 {
        return None;
    }
    let broker = answer.brokers.iter().find(|broker| broker.node_id == found.leader_id)?;
    Some((broker.host.to_string(), broker.port, found.leader_epoch))
}

pub fn find_coordinator(group: &str) -> FindCoordinatorRequest {
    FindCoordinatorRequest::default().with_key(text(group)).with_key_type(0)
}

const SESSION_MS: i32 = 6_000;
/// One way to divide partitions, of which the coordinator knows nothing.
const PROTOCOL: &str = "range";

pub fn join_group(group: &str, member: &str) -> JoinGroupRequest {
    let protocol = JoinGroupRequestProtocol::default().with_name(text(PROTOCOL)).with_metadata(Bytes::from("t"));
    JoinGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_session_timeout_ms(SESSION_MS)
        .with_rebalance_timeout_ms(SESSION_MS)
        .with_member_id(text(member))
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol])
}

/// Everything is this member's.
pub fn sync_group(group: &str, member: &str, generation: i32) -> SyncGroupRequest {
    let all = SyncGroupRequestAssignment::default().with_member_id(text(member)).with_assignment(Bytes::from("all"));
    SyncGroupRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id(generation)
        .with_member_id(text(member))
        .with_assignments(vec![all])
}

/// The same as a consumer that subscribes to the topic, and gives up everything before it joins: a subscription of
/// version 0, which a broker can read.
pub fn join_as_consumer(group: &str, member: &str, topic: &str) -> JoinGroupRequest {
    let mut said = BytesMut::new();
    said.put_i16(0);
    said.put_i32(1);
    put_text(&mut said, topic);
    said.put_i32(-1);
    let protocol = JoinGroupRequestProtocol::default().with_name(text(PROTOCOL)).with_metadata(said.freeze());
    join_group(group, member).with_protocols(vec![protocol])
}

/// A name, as consumers say it to each other.
fn put_text(to: &mut BytesMut, text: &str) {
    to.put_i16(text.len() as i16);
    to.put_slice(text.as_bytes());
}

/// Partitions of the topic by member, as the leader of a generation gives them.
pub fn sync_shares(
    (group, member, generation): (&str, &str, i32),
    topic: &str,
    shares: &[(String, Vec<i32>)],
) -> SyncGroupRequest {
    let one = |(member, numbers): &(String, Vec<i32>)| {
        let mut given = BytesMut::new();
        given.put_i16(0);
        given.put_i32(1);
        put_text(&mut given, topic);
        given.put_i32(numbers.len() as i32);
        numbers.iter().for_each(|number| given.put_i32(*number));
        given.put_i32(-1);
        SyncGroupRequestAssignment::default().with_member_id(text(member)).with_assignment(given.freeze())
    };
    sync_group(group, member, generation).with_assignments(shares.iter().map(one).collect())
}

/// The partitions of the topic that a member is given, by whoever assigns.
pub fn assigned(mut given: Bytes, topic: &str) -> Vec<i32> {
    let mut all = Vec::new();
    if given.is_empty() {
        return all;
    }
    let _version = given.get_i16();
    for _ in 0..given.get_i32() {
        let name_bytes = given.get_i16() as usize;
        let name = given.split_to(name_bytes);
        assert_eq!(&name[..], topic.as_bytes(), "nobody subscribes to another topic");
        for _ in 0..given.get_i32() {
            all.push(given.get_i32());
        }
    }
    all
}

pub fn leave_group(group: &str, member: &str) -> LeaveGroupRequest {
    LeaveGroupRequest::default().with_group_id(GroupId(text(group))).with_member_id(text(member))
}

/// A member of a group of KIP-848 is there. Epoch 0: it joins, -1: it leaves.
pub fn beat(group: &str, member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
}

/// The same with all that does not change: it subscribes to the topic by its name, or by a pattern.
pub fn beat_in_full(
    beat: ConsumerGroupHeartbeatRequest,
    topic: &str,
    pattern: Option<&str>,
) -> ConsumerGroupHeartbeatRequest {
    let names = if pattern.is_some() { vec![] } else { vec![name(topic)] };
    beat.with_rebalance_timeout_ms(SESSION_MS)
        .with_subscribed_topic_names(Some(names))
        .with_subscribed_topic_regex(pattern.map(text))
}

/// The same with what the member has, of the topic with the id that it was told.
pub fn beat_owning(
    beat: ConsumerGroupHeartbeatRequest,
    topic: Option<&Told>,
    numbers: Vec<i32>,
) -> ConsumerGroupHeartbeatRequest {
    let one = |told: &Told| TopicPartitions::default().with_topic_id(told.topic_id).with_partitions(numbers.clone());
    let owned = topic.filter(|_| !numbers.is_empty()).map(one);
    beat.with_topic_partitions(Some(owned.into_iter().collect()))
}

pub fn heartbeat(group: &str, member: &str, generation: i32) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(GroupId(text(group)))
        .with_generation_id(generation)
        .with_member_id(text(member))
}

/// As a member. `epoch`: of the leader from which it has read.
pub fn commit_as(
    (group, member, generation): (&str, &str, i32),
    topic: &str,
    (partition, epoch): (i32, i32),
    offset: i64,
) -> OffsetCommitRequest {
    let mut commit = commit_offset(group, topic, partition, offset);
    commit.topics[0].partitions[0].committed_leader_epoch = epoch;
    commit.with_member_id(text(member)).with_generation_id_or_member_epoch(generation)
}

/// As somebody who is no member: generation -1.
pub fn commit_offset(group: &str, topic: &str, partition: i32, offset: i64) -> OffsetCommitRequest {
    let partition =
        OffsetCommitRequestPartition::default().with_partition_index(partition).with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    OffsetCommitRequest::default().with_group_id(GroupId(text(group))).with_topics(vec![topic])
}

pub fn fetch_offset(group: &str, topic: &str, partition: i32) -> OffsetFetchRequest {
    let topic = OffsetFetchRequestTopic::default().with_name(name(topic)).with_partition_indexes(vec![partition]);
    OffsetFetchRequest::default().with_group_id(GroupId(text(group))).with_topics(Some(vec![topic]))
}

/// As a member of a group of KIP-848, in this epoch.
pub fn fetch_offset_as((group, member, epoch): (&str, &str, i32), topic: &str, partition: i32) -> OffsetFetchRequest {
    let topic = OffsetFetchRequestTopics::default().with_name(name(topic)).with_partition_indexes(vec![partition]);
    let group = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId(text(group)))
        .with_member_id(Some(text(member)))
        .with_member_epoch(epoch)
        .with_topics(Some(vec![topic]));
    OffsetFetchRequest::default().with_groups(vec![group])
}

pub fn delete_records(topic: &str, partition: i32, offset: i64) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
    let topic = DeleteRecordsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
    DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost if it fails: members of a simulated group read other partitions than their leader gave them.
    #[test]
    fn what_a_leader_gives_its_members_read() {
        let shares = [("a".to_owned(), vec![0, 3]), ("b".to_owned(), vec![])];
        let sync = sync_shares(("g", "a", 3), "t", &shares);
        let read: Vec<Vec<i32>> =
            sync.assignments.iter().map(|given| assigned(given.assignment.clone(), "t")).collect();
        assert_eq!(read, [vec![0, 3], vec![]]);
        assert_eq!(assigned(Bytes::new(), "t"), Vec::<i32>::new());
    }
}
