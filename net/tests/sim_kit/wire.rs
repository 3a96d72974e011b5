//! Kafka's wire from the client's side: requests, answers in the order of the requests, batches and what is in them.

use super::{PATIENCE, SimBroker, addr};
use bytes::{BufMut, Bytes, BytesMut};
use camus_engine::rt::sim::ClientId;
pub use camus_sim::batches::{batch, records};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, FetchResponse, InitProducerIdRequest,
    InitProducerIdResponse, ListOffsetsRequest, MetadataRequest, MetadataResponse, ProduceRequest, ProduceResponse,
    RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use std::collections::VecDeque;

pub const PRODUCE: i16 = 9;
pub const FETCH: i16 = 12;
pub const INIT_PRODUCER_ID: i16 = 4;
const LIST_OFFSETS: i16 = 6;
const METADATA: i16 = 9;
const CREATE_TOPICS: i16 = 5;
const DELETE_TOPICS: i16 = 4;

pub fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// A connection of a client.
pub struct Conn {
    pub id: ClientId,
    bytes: Vec<u8>,
    next: i32,
    /// What is to be answered, in order: correlation id, and the version of the answer's header.
    expected: VecDeque<(i32, i16)>,
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

    /// The answers that came: correlation id and body. Each in its turn, or the test ends.
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

    /// One request and its answer. `None`: the connection ended.
    pub fn try_call<R: Request>(&mut self, broker: &mut SimBroker, version: i16, request: &R) -> Option<R::Response> {
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

    pub fn call<R: Request>(&mut self, broker: &mut SimBroker, version: i16, request: &R) -> R::Response {
        self.try_call(broker, version, request).expect("the connection ended")
    }

    // ---- what tests ask for

    /// The error code.
    pub fn create_topic(&mut self, broker: &mut SimBroker, topic: &str, partitions: i32) -> i16 {
        let topic =
            CreatableTopic::default().with_name(name(topic)).with_num_partitions(partitions).with_replication_factor(1);
        let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(5_000);
        self.call(broker, CREATE_TOPICS, &request).topics[0].error_code
    }

    pub fn delete_topic(&mut self, broker: &mut SimBroker, topic: &str) -> i16 {
        let request = DeleteTopicsRequest::default().with_topic_names(vec![name(topic)]).with_timeout_ms(5_000);
        self.call(broker, DELETE_TOPICS, &request).responses[0].error_code
    }

    /// Partitions with a leader, by topic.
    pub fn topics(&mut self, broker: &mut SimBroker) -> Vec<(String, Vec<i32>)> {
        let request = MetadataRequest::default().with_topics(None);
        let answer: MetadataResponse = self.call(broker, METADATA, &request);
        let of = |t: &kafka_protocol::messages::metadata_response::MetadataResponseTopic| {
            assert!(t.partitions.iter().all(|p| p.error_code == 0 && p.leader_id.0 == 1), "{t:?}");
            t.partitions.iter().map(|p| p.partition_index).collect::<Vec<_>>()
        };
        answer.topics.iter().map(|t| (t.name.as_ref().unwrap().to_string(), of(t))).collect()
    }

    pub fn init_producer_id(&mut self, broker: &mut SimBroker) -> InitProducerIdResponse {
        self.call(broker, INIT_PRODUCER_ID, &init_producer_id())
    }

    pub fn produce(&mut self, broker: &mut SimBroker, topic: &str, partition: i32, batch: &Bytes) -> (i16, i64) {
        let answer: ProduceResponse = self.call(broker, PRODUCE, &produce(topic, partition, batch));
        let part = produced(answer);
        (part.error_code, part.base_offset)
    }

    pub fn fetch(&mut self, broker: &mut SimBroker, topic: &str, partition: i32, offset: i64) -> PartitionData {
        let answer: FetchResponse = self.call(broker, FETCH, &fetch(topic, partition, offset, 0, 1 << 20));
        fetched(answer)
    }

    /// -1 the end, -2 the beginning. Error code and offset.
    pub fn list_offset(&mut self, broker: &mut SimBroker, topic: &str, partition: i32, what: i64) -> (i16, i64) {
        let partition = ListOffsetsPartition::default()
            .with_partition_index(partition)
            .with_timestamp(what)
            .with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
        let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic]);
        let answer = self.call(broker, LIST_OFFSETS, &request);
        let part = &answer.topics[0].partitions[0];
        (part.error_code, part.offset)
    }

    /// Every record of the partition: offset and value.
    pub fn read_all(&mut self, broker: &mut SimBroker, topic: &str, partition: i32) -> Vec<(i64, u64)> {
        let (_, mut at) = self.list_offset(broker, topic, partition, -2);
        let (_, end) = self.list_offset(broker, topic, partition, -1);
        let mut all = Vec::new();
        while at < end {
            let found = self.fetch(broker, topic, partition, at);
            assert_eq!(found.error_code, 0, "{topic}/{partition} at {at}");
            let records = records(&found.records.unwrap_or_default(), at);
            at = records.last().unwrap_or_else(|| panic!("{topic}/{partition}: nothing at {at} of {end}")).0 + 1;
            all.extend(records);
        }
        all
    }
}

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

pub fn fetch(topic: &str, partition: i32, offset: i64, wait_ms: i32, bytes_max: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
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
