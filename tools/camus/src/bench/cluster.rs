//! What is asked of the broker before and after a run, one request at a time: versions, topic, producer ids, offsets.

use super::Progress;
use crate::client::{Client, Patience, REQUEST_TIMEOUT_MS, code_name};
use crate::errors::{self, UserError};
use kafka_protocol::error::ParseResponseErrorCode;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, FetchRequest, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest, ProduceRequest, ProducerId, SaslHandshakeRequest, TopicName,
};
use kafka_protocol::protocol::{Request, StrBytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FLUSH_MESSAGES: &str = "flush.messages";
/// A setting of topics that no other broker has.
const CAMUS_MODE: &str = "camus.mode";
/// Topics have ids instead of names in later versions of Produce and Fetch.
const NEWEST_WITH_NAMES: i16 = 12;
/// Kafka's resource type of a topic.
const RESOURCE_TOPIC: i8 = 2;
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// Until each partition has a leader.
const LEADERS_WAIT: Duration = Duration::from_secs(120);
/// Then it is looked again, and each time twice as late, up to a second: an answer about 10,000 partitions is work.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);
/// The broker goes on with what it did not finish in time.
const REQUEST_TIMED_OUT: i16 = 7;
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// A broker and the topic of the run.
#[derive(Debug)]
pub struct Cluster {
    client: Client,
    topic: String,
    pub partitions: i32,
    /// The topic was made here.
    pub made: bool,
    /// It was asked for here, and no answer came.
    pub unsure: bool,
}

/// What the broker says of the topic.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Says {
    /// It answered.
    pub asked: bool,
    /// After how many records it says that it flushes; None: it does not set it.
    pub flush_messages: Option<String>,
    /// The other side is a Camus, which flushes whatever `flush.messages` is.
    pub camus: bool,
}

/// A wait for the broker that has an end.
#[derive(Debug)]
struct Waiting {
    begun: Instant,
    pause: Duration,
}

impl Waiting {
    fn begin() -> Waiting {
        #[allow(clippy::disallowed_methods)] // a tool waits for a broker
        let begun = Instant::now();
        Waiting { begun, pause: LOOK_AGAIN }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() > LEADERS_WAIT
    }

    fn pause(&mut self) {
        #[allow(clippy::disallowed_methods)] // a tool waits for a broker
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(LOOK_AGAIN_MAX);
    }
}

/// Asking again may help. Source: `retriable` in Kafka's `Errors`.
fn is_retriable(code: i16) -> bool {
    code.err().is_some_and(|error| error.is_retriable())
}

fn name(text: &str) -> TopicName {
    TopicName(StrBytes::from_string(text.to_owned()))
}

impl Cluster {
    /// Connects, and finds out whether it may ask anything.
    pub fn connect(bootstrap: &str, topic: &str, patience: Patience) -> Result<Cluster, UserError> {
        let client = Client::connect_within(bootstrap, patience)?;
        let mut cluster = Cluster { client, topic: topic.to_owned(), partitions: 0, made: false, unsure: false };
        let sasl = cluster.client.version::<SaslHandshakeRequest>(1).is_ok();
        match cluster.client.ask(&MetadataRequest::default().with_topics(Some(Vec::new())), 12) {
            Ok(_) => Ok(cluster),
            // A listener that wants a client to authenticate closes on everything else.
            Err(e) if sasl && e.code == errors::UNREACHABLE.code => Err(errors::bench_authentication(bootstrap)),
            Err(e) => Err(e),
        }
    }

    /// The version in which the broker is asked to produce.
    pub fn produce_version(&self) -> Result<i16, UserError> {
        self.at_least::<ProduceRequest>(3)
    }

    pub fn fetch_version(&self) -> Result<i16, UserError> {
        self.at_least::<FetchRequest>(4)
    }

    /// Batches of magic 2 need this version.
    fn at_least<R: Request>(&self, least: i16) -> Result<i16, UserError> {
        let version = self.client.version::<R>(NEWEST_WITH_NAMES)?;
        if version < least {
            let why = format!("it offers API {} up to version {version}, and {least} is needed", R::KEY);
            return Err(errors::broker_answer(self.client.addr(), &why));
        }
        Ok(version)
    }

    /// Makes the topic, or takes the one that is there if it has as many partitions; waits until each has a leader.
    pub fn topic_ready(
        &mut self,
        partitions: i32,
        stop: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<(), UserError> {
        let request = CreateTopicsRequest::default().with_timeout_ms(REQUEST_TIMEOUT_MS).with_topics(vec![
            CreatableTopic::default()
                .with_name(name(&self.topic))
                .with_num_partitions(partitions)
                .with_replication_factor(1),
        ]);
        self.unsure = true;
        let (answer, _) = self.client.ask(&request, 7)?;
        self.unsure = false;
        let result = answer.topics.first().ok_or_else(|| self.nothing("CreateTopics"))?;
        if result.error_code == REQUEST_TIMED_OUT {
            self.made = true;
        } else if result.error_code != TOPIC_ALREADY_EXISTS {
            let what = format!("topic '{}' was not made", self.topic);
            let run = format!("camus topic list --bootstrap {}", self.client.addr());
            self.client.check(&what, result.error_code, result.error_message.as_ref(), &run)?;
            self.made = true;
        }
        self.wait_for_leaders(Some(partitions), stop, progress)
    }

    /// Takes the topic as it is.
    pub fn topic_as_it_is(&mut self, stop: &AtomicBool, progress: &mut Progress) -> Result<(), UserError> {
        self.wait_for_leaders(None, stop, progress)
    }

    fn wait_for_leaders(
        &mut self,
        wanted: Option<i32>,
        stop: &AtomicBool,
        progress: &mut Progress,
    ) -> Result<(), UserError> {
        let mut waited = Waiting::begin();
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(errors::bench_interrupted());
            }
            let found = self.metadata()?;
            let there = found.partitions.len();
            let led: Vec<BrokerId> = found
                .partitions
                .iter()
                .filter(|p| p.error_code == 0 && p.leader_id.0 >= 0)
                .map(|p| p.leader_id)
                .collect();
            if found.error_code == 0 && there > 0 {
                if let Some(wanted) = wanted.filter(|w| *w as usize != there && !self.made) {
                    return Err(errors::bench_topic(&self.topic, self.client.addr(), there, wanted));
                }
                if led.len() == there && wanted.is_none_or(|w| w as usize == there) {
                    if led.iter().any(|leader| *leader != led[0]) {
                        return Err(errors::bench_spread(&self.topic, self.client.addr()));
                    }
                    self.partitions = there as i32;
                    return self.wait_until_served(stop, progress);
                }
            } else if wanted.is_none() || waited.is_over() {
                let what = format!("topic '{}' can not be used", self.topic);
                let run = format!("camus topic list --bootstrap {}", self.client.addr());
                self.client.check(&what, found.error_code, None, &run)?;
            }
            if waited.is_over() {
                let (led, all) = (led.len(), wanted.map_or(there, |w| w as usize));
                return Err(errors::bench_leaders(&self.topic, self.client.addr(), led, all, LEADERS_WAIT.as_secs()));
            }
            progress.say(&format!("{} of {} partitions have a leader", led.len(), wanted.unwrap_or(there as i32)));
            waited.pause();
        }
    }

    /// Leaders that are named may not know it yet: whoever produces then is refused. They do when they tell offsets.
    fn wait_until_served(&mut self, stop: &AtomicBool, progress: &mut Progress) -> Result<(), UserError> {
        let mut waited = Waiting::begin();
        loop {
            let (_, failed) = self.try_offsets(LATEST)?;
            let Some((_, code, count)) = failed.filter(|(_, code, _)| is_retriable(*code)) else { return Ok(()) };
            if stop.load(Ordering::Relaxed) {
                return Err(errors::bench_interrupted());
            }
            if waited.is_over() {
                let (led, all) = (self.partitions as usize - count, self.partitions as usize);
                return Err(errors::bench_leaders(&self.topic, self.client.addr(), led, all, LEADERS_WAIT.as_secs()));
            }
            progress.say(&format!("{count} of {} partitions: {}", self.partitions, code_name(code)));
            waited.pause();
        }
    }

    fn metadata(&mut self) -> Result<MetadataResponseTopic, UserError> {
        let topics = vec![MetadataRequestTopic::default().with_name(Some(name(&self.topic)))];
        let request = MetadataRequest::default().with_topics(Some(topics)).with_allow_auto_topic_creation(false);
        let (answer, _) = self.client.ask(&request, 12)?;
        answer.topics.into_iter().next().ok_or_else(|| self.nothing("Metadata"))
    }

    fn nothing(&self, api: &str) -> UserError {
        errors::broker_answer(self.client.addr(), &format!("its answer to {api} is empty"))
    }

    /// A producer id of its own, and its epoch.
    pub fn producer_id(&mut self) -> Result<(i64, i16), UserError> {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(60_000)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let mut waited = Waiting::begin();
        loop {
            let (answer, _) = self.client.ask(&request, 4)?;
            // The coordinator may be busy with its first start.
            if !is_retriable(answer.error_code) || waited.is_over() {
                let run = "camus bench ...   (without --idempotent)";
                self.client.check("no producer id was given", answer.error_code, None, run)?;
                return Ok((answer.producer_id.0, answer.producer_epoch));
            }
            waited.pause();
        }
    }

    /// First offset and end of each partition, in the order of their numbers.
    pub fn offsets(&mut self) -> Result<Vec<(i32, i64, i64)>, UserError> {
        let first = self.offsets_at(EARLIEST)?;
        let end = self.offsets_at(LATEST)?;
        Ok((0..self.partitions).zip(first).zip(end).map(|((p, first), end)| (p, first, end)).collect())
    }

    fn offsets_at(&mut self, timestamp: i64) -> Result<Vec<i64>, UserError> {
        let mut waited = Waiting::begin();
        loop {
            let (offsets, failed) = self.try_offsets(timestamp)?;
            let Some((partition, code, _)) = failed else { return Ok(offsets) };
            if !is_retriable(code) || waited.is_over() {
                let what = format!("the offsets of '{}'-{partition} are not known", self.topic);
                let run = format!("camus topic describe {} --bootstrap {}", self.topic, self.client.addr());
                self.client.check(&what, code, None, &run)?;
            }
            waited.pause();
        }
    }

    /// The offsets, and of what failed: a partition, its error, and how many there are.
    fn try_offsets(&mut self, timestamp: i64) -> Result<(Vec<i64>, Option<(i32, i16, usize)>), UserError> {
        let partitions = (0..self.partitions).map(|p| {
            ListOffsetsPartition::default()
                .with_partition_index(p)
                .with_current_leader_epoch(-1)
                .with_timestamp(timestamp)
        });
        let topic = ListOffsetsTopic::default().with_name(name(&self.topic)).with_partitions(partitions.collect());
        let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![topic]);
        let (answer, _) = self.client.ask(&request, 6)?;
        let topic = answer.topics.first().ok_or_else(|| self.nothing("ListOffsets"))?;
        let mut offsets = vec![0; self.partitions as usize];
        for partition in &topic.partitions {
            if let Some(offset) = offsets.get_mut(partition.partition_index as usize) {
                *offset = partition.offset;
            }
        }
        let failed = || topic.partitions.iter().filter(|p| p.error_code != 0);
        let first = failed().next().map(|p| (p.partition_index, p.error_code, failed().count()));
        Ok((offsets, first))
    }

    /// What the topic's settings say of flushing, if the broker tells.
    pub fn says(&mut self) -> Says {
        self.ask_says().unwrap_or_default()
    }

    fn ask_says(&mut self) -> Option<Says> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(RESOURCE_TOPIC)
            .with_resource_name(StrBytes::from_string(self.topic.clone()))
            .with_configuration_keys(Some([FLUSH_MESSAGES, CAMUS_MODE].map(StrBytes::from_static_str).to_vec()));
        let (answer, _) = self.client.ask(&DescribeConfigsRequest::default().with_resources(vec![resource]), 4).ok()?;
        let configs = &answer.results.first()?.configs;
        let value = |name: &str| {
            let config = configs.iter().find(|c| c.name.as_str() == name)?;
            config.value.as_ref().map(|value| value.as_str().to_owned())
        };
        // Kafka's default is the largest long: never.
        let flush_messages = value(FLUSH_MESSAGES).filter(|value| value.parse() != Ok(i64::MAX));
        Some(Says { asked: true, flush_messages, camus: value(CAMUS_MODE).is_some() })
    }

    /// On a connection of its own: on the one before, an answer may be on its way that nobody waits for any more.
    /// Takes no longer than `time`, nor than until `stop` is set.
    pub fn delete_topic(&mut self, time: Duration, stop: Option<Arc<AtomicBool>>) -> Result<(), UserError> {
        #[allow(clippy::disallowed_methods)] // a tool waits for a broker
        let until = Some(Instant::now() + time);
        self.client = Client::connect_within(self.client.addr(), Patience { answer: time, until, stop })?;
        let broker_ms = i32::try_from(time.as_millis()).unwrap_or(i32::MAX).min(REQUEST_TIMEOUT_MS);
        let request = DeleteTopicsRequest::default().with_timeout_ms(broker_ms);
        // Names are in another field since version 6.
        let request = match self.client.version::<DeleteTopicsRequest>(6)? >= 6 {
            true => request.with_topics(vec![DeleteTopicState::default().with_name(Some(name(&self.topic)))]),
            false => request.with_topic_names(vec![name(&self.topic)]),
        };
        let (answer, _) = self.client.ask(&request, 6)?;
        let result = answer.responses.first().ok_or_else(|| self.nothing("DeleteTopics"))?;
        if result.error_code == REQUEST_TIMED_OUT {
            return Ok(());
        }
        let what = format!("topic '{}' was not deleted", self.topic);
        let run = format!("camus topic delete {} --bootstrap {}", self.topic, self.client.addr());
        self.client.check(&what, result.error_code, result.error_message.as_ref(), &run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake;
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::{ApiKey, ApiVersionsResponse};

    /// Lost if it fails: the reason. A listener with SASL only says what it offers, and closes.
    #[test]
    fn a_listener_that_wants_authentication_is_named() {
        let addr = fake::start(|key, version, _| match key {
            ApiKey::ApiVersions => {
                let offers = [ApiKey::Metadata, ApiKey::SaslHandshake]
                    .map(|key| ApiVersion::default().with_api_key(key as i16).with_min_version(0).with_max_version(1));
                fake::body(&ApiVersionsResponse::default().with_api_keys(offers.to_vec()), version)
            }
            _ => None,
        });
        let error = Cluster::connect(&addr.to_string(), "t", Patience::default()).expect_err("it closes");
        assert_eq!((error.code, error.place), ("CAM-0602", addr.to_string()));
    }

    #[test]
    fn what_passes_by_itself_is_told_from_what_does_not() {
        assert!([3, 5, 6, 14, 15].into_iter().all(is_retriable));
        assert!([0, 10, 29, 36].into_iter().all(|code| !is_retriable(code)));
    }
}
