//! Kafka's wire from the client's side, as tests of single promises ask: one thing, and its answer.

use super::SimBroker;
use bytes::Bytes;
use camus_sim::wire::{self, LIST_OFFSETS, METADATA, listed, name};
pub use camus_sim::wire::{
    FETCH, INIT_PRODUCER_ID, PRODUCE, batch, fetched, init_producer_id, produce, produced, records,
};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{
    DeleteTopicsRequest, FetchRequest, FetchResponse, InitProducerIdResponse, MetadataRequest, MetadataResponse,
    ProduceResponse,
};
use kafka_protocol::protocol::Request;
use std::ops::{Deref, DerefMut};

const DELETE_TOPICS: i16 = 4;

/// A connection of a client.
pub struct Conn(wire::Conn);

impl Deref for Conn {
    type Target = wire::Conn;
    fn deref(&self) -> &wire::Conn {
        &self.0
    }
}

impl DerefMut for Conn {
    fn deref_mut(&mut self) -> &mut wire::Conn {
        &mut self.0
    }
}

impl Conn {
    pub fn open(broker: &mut SimBroker) -> Conn {
        Conn(wire::Conn::open(broker, 0))
    }

    /// One request and its answer.
    pub fn call<R: Request>(&mut self, broker: &mut SimBroker, version: i16, request: &R) -> R::Response {
        self.0.call(broker, version, request).expect("the connection ended")
    }

    /// The error code.
    pub fn create_topic(&mut self, broker: &mut SimBroker, topic: &str, partitions: i32) -> i16 {
        self.0.create_topic(broker, topic, partitions).expect("the connection ended")
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
        listed(self.call(broker, LIST_OFFSETS, &wire::list_offsets(topic, (partition, -1), what)))
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

/// By a client that knows no leader's epoch.
pub fn fetch(topic: &str, partition: i32, offset: i64, wait_ms: i32, bytes_max: i32) -> FetchRequest {
    wire::fetch(topic, (partition, -1), offset, wait_ms, bytes_max)
}
