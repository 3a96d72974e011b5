//! Kafka's wire from the client's side: requests, answers in the order of the requests, batches and what is in them.

pub use crate::batches::{batch, records};
use crate::kit::{PATIENCE, SimBroker, addr};
use crate::ledger::TOPIC;
use bytes::{BufMut, Bytes, BytesMut};
use camus_engine::rt::sim::ClientId;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteRecordsRequest, FetchRequest, FetchResponse, GroupId, InitProducerIdRequest,
    ListOffsetsRequest, ListOffsetsResponse, OffsetCommitRequest, OffsetFetchRequest, ProduceRequest, ProduceResponse,
    RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use std::collections::VecDeque;

pub const PRODUCE: i16 = 9;
pub const FETCH: i16 = 12;
pub const INIT_PRODUCER_ID: i16 = 4;
pub const LIST_OFFSETS: i16 = 6;
pub const OFFSET_COMMIT: i16 = 8;
/// The last version with one group, not many.
pub const OFFSET_FETCH: i16 = 7;
pub const DELETE_RECORDS: i16 = 2;
const CREATE_TOPICS: i16 = 5;

/// What ListOffsets is asked for.
pub const LATEST: i64 = -1;
pub const EARLIEST: i64 = -2;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic() -> TopicName {
    TopicName(text(TOPIC))
}

/// A connection of a client.
pub struct Conn {
    pub id: ClientId,
    bytes: Vec<u8>,
    next: i32,
    /// What is to be answered, in order: correlation id, and the version of the answer's header.
    expected: VecDeque<(i32, i16)>,
}

/// A connection to go on with, if there is one now, and whether it is new: clients wait a little before they come back,
/// and unless it is calm they lose one now and then, with the answers on it.
pub fn connected(conn: Option<Conn>, broker: &mut SimBroker, calm: bool) -> Option<(Conn, bool)> {
    match conn.filter(|conn| conn.is_open(broker)) {
        Some(conn) if !calm && broker.pick(1_000) < 3 => {
            broker.world.reset(conn.id);
            None
        }
        Some(conn) => Some((conn, false)),
        None if broker.chance(30) => Some((Conn::open(broker), true)),
        None => None,
    }
}

impl Conn {
    pub fn open(broker: &mut SimBroker) -> Conn {
        Conn { id: broker.world.connect(addr()), bytes: vec![], next: 1, expected: VecDeque::new() }
    }

    pub fn is_open(&self, broker: &mut SimBroker) -> bool {
        broker.world.closed(self.id).is_none()
    }

    /// Requests without an answer.
    pub fn owed(&self) -> usize {
        self.expected.len()
    }

    pub fn send<R: Request>(&mut self, broker: &mut SimBroker, version: i16, request: &R) -> i32 {
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
        broker.world.send(self.id, &frame);
        self.expected.push_back((correlation, <R::Response as HeaderVersion>::header_version(version)));
        correlation
    }

    /// The answers that came: correlation id and body. Each in its turn, or the simulation ends.
    pub fn answers(&mut self, broker: &mut SimBroker) -> Vec<(i32, Bytes)> {
        self.bytes.extend(broker.world.received(self.id));
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
        answers
    }

    /// One request and its answer. `None`: the connection ended, or nothing came for longer than anything takes.
    pub fn call<R: Request>(&mut self, broker: &mut SimBroker, version: i16, request: &R) -> Option<R::Response> {
        assert_eq!(self.owed(), 0, "something else is to be answered first");
        self.send(broker, version, request);
        let id = self.id;
        broker.world.run_until(PATIENCE, |world| {
            let waiting = world.waiting(id);
            let len = waiting.first_chunk().map(|len| i32::from_be_bytes(*len) as usize);
            len.is_some_and(|len| waiting.len() >= 4 + len) || world.closed(id).is_some()
        });
        let (_, mut body) = self.answers(broker).into_iter().next()?;
        let answer = R::Response::decode(&mut body, version).unwrap();
        assert!(body.is_empty(), "{} bytes behind the answer", body.len());
        Some(answer)
    }

    /// The error code.
    pub fn create_topic(&mut self, broker: &mut SimBroker, partitions: i32) -> Option<i16> {
        let topic =
            CreatableTopic::default().with_name(topic()).with_num_partitions(partitions).with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(5_000);
        Some(self.call(broker, CREATE_TOPICS, &request)?.topics[0].error_code)
    }

    /// The offset, or what is in the way of it.
    pub fn list_offset(&mut self, broker: &mut SimBroker, partition: i32, what: i64) -> Result<i64, String> {
        match self.call(broker, LIST_OFFSETS, &list_offsets(partition, what)).map(listed) {
            Some((0, offset)) => Ok(offset),
            Some((code, _)) => Err(format!("ListOffsets of partition {partition} got error code {code}")),
            None => Err(format!("ListOffsets of partition {partition} got no answer")),
        }
    }

    /// The log start, and every record of the partition with its offset; or what is in the way of it.
    pub fn read_all(&mut self, broker: &mut SimBroker, partition: i32) -> Result<(i64, Vec<(i64, u64)>), String> {
        let log_start = self.list_offset(broker, partition, EARLIEST)?;
        let end = self.list_offset(broker, partition, LATEST)?;
        let (mut at, mut all) = (log_start, Vec::new());
        while at < end {
            let answer = self.call(broker, FETCH, &fetch(partition, at, 0, 1 << 20));
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
        Ok((log_start, all))
    }
}

// ------------------------------------------------------------------------------------------------- requests

pub fn init_producer_id() -> InitProducerIdRequest {
    InitProducerIdRequest::default().with_transactional_id(None).with_producer_id((-1).into()).with_producer_epoch(-1)
}

pub fn produce(partition: i32, batch: &Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch.clone()));
    let topic = TopicProduceData::default().with_name(topic()).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

pub fn produced(answer: ProduceResponse) -> PartitionProduceResponse {
    answer.responses.into_iter().next().unwrap().partition_responses.into_iter().next().unwrap()
}

pub fn fetch(partition: i32, offset: i64, wait_ms: i32, bytes_max: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_last_fetched_epoch(-1)
        .with_log_start_offset(-1)
        .with_partition_max_bytes(bytes_max);
    let topic = FetchTopic::default().with_topic(topic()).with_partitions(vec![partition]);
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

pub fn list_offsets(partition: i32, what: i64) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(partition)
        .with_timestamp(what)
        .with_current_leader_epoch(-1);
    let topic = ListOffsetsTopic::default().with_name(topic()).with_partitions(vec![partition]);
    ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic])
}

/// Error code and offset.
pub fn listed(answer: ListOffsetsResponse) -> (i16, i64) {
    let partition = &answer.topics[0].partitions[0];
    (partition.error_code, partition.offset)
}

/// As somebody who is no member: generation -1.
pub fn commit_offset(group: &str, partition: i32, offset: i64) -> OffsetCommitRequest {
    let partition =
        OffsetCommitRequestPartition::default().with_partition_index(partition).with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default().with_name(topic()).with_partitions(vec![partition]);
    OffsetCommitRequest::default().with_group_id(GroupId(text(group))).with_topics(vec![topic])
}

pub fn fetch_offset(group: &str, partition: i32) -> OffsetFetchRequest {
    let topic = OffsetFetchRequestTopic::default().with_name(topic()).with_partition_indexes(vec![partition]);
    OffsetFetchRequest::default().with_group_id(GroupId(text(group))).with_topics(Some(vec![topic]))
}

pub fn delete_records(partition: i32, offset: i64) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default().with_partition_index(partition).with_offset(offset);
    let topic = DeleteRecordsTopic::default().with_name(topic()).with_partitions(vec![partition]);
    DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
}
