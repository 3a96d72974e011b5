//! `camus topic`: makes, lists, describes and deletes topics of a running broker.

use crate::client::{Client, REQUEST_TIMEOUT_MS, code_name};
use crate::errors::UserError;
use crate::out;
use crate::settings::Listener;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, DeleteTopicsRequest, DescribeConfigsRequest, ListOffsetsRequest, MetadataRequest,
    MetadataResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
/// Kafka's resource type of a topic.
const RESOURCE_TOPIC: i8 = 2;
/// Kafka's config source of a value that was set on the topic.
const SOURCE_TOPIC: i8 = 1;

fn name(text: &str) -> TopicName {
    TopicName(StrBytes::from_string(text.to_owned()))
}

/// `partitions` and `copies`: `None` leaves it to the broker. Returns what to print.
pub fn create(
    bootstrap: &str,
    topic: &str,
    partitions: Option<i32>,
    copies: Option<i16>,
    configs: &[(String, String)],
) -> Result<String, UserError> {
    let mut client = Client::connect(bootstrap)?;
    let configs = configs.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_string(name.clone()))
            .with_value(Some(StrBytes::from_string(value.clone())))
    });
    let request = CreateTopicsRequest::default().with_timeout_ms(REQUEST_TIMEOUT_MS).with_topics(vec![
        CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(partitions.unwrap_or(-1))
            .with_replication_factor(copies.unwrap_or(-1))
            .with_configs(configs.collect()),
    ]);
    let (answer, version) = client.ask(&request, 7)?;
    let result = answer.topics.first().ok_or_else(|| nothing(&client, "CreateTopics"))?;
    client.check(
        &format!("topic '{topic}' was not made"),
        result.error_code,
        result.error_message.as_ref(),
        &format!("camus topic describe {topic} --bootstrap {bootstrap}"),
    )?;
    // The number of partitions is in the answer since version 5.
    let partitions = if version >= 5 { Some(result.num_partitions) } else { partitions };
    Ok(match partitions {
        Some(count) if count > 0 => format!("made topic '{topic}' with {}", partitions_of(count as usize)),
        _ => format!("made topic '{topic}'"),
    })
}

fn partitions_of(count: usize) -> String {
    if count == 1 { "1 partition".to_owned() } else { format!("{count} partitions") }
}

pub fn list(bootstrap: &str) -> Result<String, UserError> {
    let mut client = Client::connect(bootstrap)?;
    let metadata = metadata(&mut client, None)?;
    let mut topics: Vec<&MetadataResponseTopic> = metadata.topics.iter().collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    let mut rows = vec![["TOPIC", "PARTITIONS", "COPIES", "ID"].map(str::to_owned).to_vec()];
    for topic in topics {
        let copies = topic.partitions.iter().map(|p| p.replica_nodes.len()).max().unwrap_or(0);
        rows.push(vec![
            topic.name.as_ref().map_or("?", |n| n.0.as_str()).to_owned(),
            topic.partitions.len().to_string(),
            copies.to_string(),
            crate::data_dir::cluster_id_of(topic.topic_id.into_bytes()),
        ]);
    }
    Ok(if rows.len() == 1 { "there are no topics".to_owned() } else { out::table(&rows) })
}

pub fn describe(bootstrap: &str, topic: &str) -> Result<String, UserError> {
    let mut client = Client::connect(bootstrap)?;
    let metadata = metadata(&mut client, Some(topic))?;
    let found = metadata.topics.first().ok_or_else(|| nothing(&client, "Metadata"))?;
    client.check(
        &format!("topic '{topic}' can not be described"),
        found.error_code,
        None,
        &format!("camus topic list --bootstrap {bootstrap}"),
    )?;
    let mut text = format!(
        "topic {topic}   id {}   {}\n\n",
        crate::data_dir::cluster_id_of(found.topic_id.into_bytes()),
        partitions_of(found.partitions.len())
    );
    let first = offsets_of_leaders(&mut client, &metadata, found, EARLIEST)?;
    let next = offsets_of_leaders(&mut client, &metadata, found, LATEST)?;
    let mut rows =
        vec![["PARTITION", "LEADER", "EPOCH", "COPIES", "FIRST", "NEXT", "STATE"].map(str::to_owned).to_vec()];
    let mut partitions: Vec<_> = found.partitions.iter().collect();
    partitions.sort_by_key(|p| p.partition_index);
    let list = |nodes: &[BrokerId]| nodes.iter().map(|b| b.0.to_string()).collect::<Vec<_>>().join(",");
    let shown = |offsets: &[(i32, i64)], partition: i32| {
        offsets.iter().find(|(p, _)| *p == partition).map_or("-".to_owned(), |(_, offset)| offset.to_string())
    };
    for partition in partitions {
        let state = if partition.error_code == 0 { "ok".to_owned() } else { code_name(partition.error_code) };
        rows.push(vec![
            partition.partition_index.to_string(),
            partition.leader_id.0.to_string(),
            partition.leader_epoch.to_string(),
            list(&partition.replica_nodes),
            shown(&first, partition.partition_index),
            shown(&next, partition.partition_index),
            state,
        ]);
    }
    text.push_str(&out::table(&rows));
    let configs = set_configs(&mut client, topic)?;
    if !configs.is_empty() {
        text.push_str("\n\nset on this topic\n");
        let lines: Vec<String> = configs.iter().map(|(name, value)| format!("  {name} = {value}")).collect();
        text.push_str(&lines.join("\n"));
    }
    Ok(text)
}

pub fn delete(bootstrap: &str, topic: &str) -> Result<String, UserError> {
    let mut client = Client::connect(bootstrap)?;
    let request = DeleteTopicsRequest::default().with_timeout_ms(REQUEST_TIMEOUT_MS);
    // Names are in another field since version 6.
    let request = match client.version::<DeleteTopicsRequest>(6)? >= 6 {
        true => request.with_topics(vec![DeleteTopicState::default().with_name(Some(name(topic)))]),
        false => request.with_topic_names(vec![name(topic)]),
    };
    let (answer, _) = client.ask(&request, 6)?;
    let result = answer.responses.first().ok_or_else(|| nothing(&client, "DeleteTopics"))?;
    client.check(
        &format!("topic '{topic}' was not deleted"),
        result.error_code,
        result.error_message.as_ref(),
        &format!("camus topic list --bootstrap {bootstrap}"),
    )?;
    Ok(format!("deleted topic '{topic}' and its records"))
}

fn nothing(client: &Client, api: &str) -> UserError {
    crate::errors::broker_answer(client.addr(), &format!("its answer to {api} is empty"))
}

/// All topics, or this one. Never makes one.
fn metadata(client: &mut Client, topic: Option<&str>) -> Result<MetadataResponse, UserError> {
    let topics = topic.map(|t| vec![MetadataRequestTopic::default().with_name(Some(name(t)))]);
    let request = MetadataRequest::default().with_topics(topics).with_allow_auto_topic_creation(false);
    Ok(client.ask(&request, 12)?.0)
}

/// Partition and offset, from the broker that is asked and from those that lead the other partitions. One that can not
/// be reached is left out.
fn offsets_of_leaders(
    client: &mut Client,
    metadata: &MetadataResponse,
    topic: &MetadataResponseTopic,
    what: i64,
) -> Result<Vec<(i32, i64)>, UserError> {
    let mut found = offsets(client, topic, what)?;
    for broker in &metadata.brokers {
        let is_missing = |p: &MetadataResponsePartition| found.iter().all(|(known, _)| *known != p.partition_index);
        if !topic.partitions.iter().any(|p| p.leader_id == broker.node_id && is_missing(p)) {
            continue;
        }
        let port = u16::try_from(broker.port).unwrap_or_default();
        let addr = Listener { host: broker.host.to_string(), port }.to_string();
        let more = Client::connect(&addr).and_then(|mut client| offsets(&mut client, topic, what)).unwrap_or_default();
        found.extend(more);
    }
    Ok(found)
}

/// Partition and offset, of those that answer.
fn offsets(client: &mut Client, topic: &MetadataResponseTopic, what: i64) -> Result<Vec<(i32, i64)>, UserError> {
    let partition = |index: i32| {
        ListOffsetsPartition::default().with_partition_index(index).with_current_leader_epoch(-1).with_timestamp(what)
    };
    let topics = vec![
        ListOffsetsTopic::default()
            .with_name(topic.name.clone().unwrap_or_default())
            .with_partitions(topic.partitions.iter().map(|p| partition(p.partition_index)).collect()),
    ];
    let request = ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(topics);
    let (answer, _) = client.ask(&request, 9)?;
    let partitions = answer.topics.iter().flat_map(|t| &t.partitions);
    Ok(partitions.filter(|p| p.error_code == 0).map(|p| (p.partition_index, p.offset)).collect())
}

/// Name and value of what was set on the topic itself.
fn set_configs(client: &mut Client, topic: &str) -> Result<Vec<(String, String)>, UserError> {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(RESOURCE_TOPIC)
        .with_resource_name(StrBytes::from_string(topic.to_owned()))
        .with_configuration_keys(None);
    let (answer, _) = client.ask(&DescribeConfigsRequest::default().with_resources(vec![resource]), 4)?;
    let configs = answer.results.iter().filter(|r| r.error_code == 0).flat_map(|r| &r.configs);
    Ok(configs
        .filter(|c| c.config_source == SOURCE_TOPIC)
        .map(|c| (c.name.to_string(), c.value.as_ref().map_or("(hidden)".to_owned(), ToString::to_string)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake;
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::messages::api_versions_response::ApiVersion;
    use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
    use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
    use kafka_protocol::messages::describe_configs_response::{DescribeConfigsResourceResult, DescribeConfigsResult};
    use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
    use kafka_protocol::messages::{
        ApiKey, ApiVersionsResponse, CreateTopicsResponse, DeleteTopicsResponse, DescribeConfigsResponse,
        ListOffsetsResponse,
    };
    use kafka_protocol::protocol::Decodable;

    fn text(s: &'static str) -> StrBytes {
        StrBytes::from_static_str(s)
    }

    /// Has one topic `orders`; `taken` exists already; `limited` says so.
    fn answer(key: ApiKey, version: i16, request: &mut Bytes) -> Option<BytesMut> {
        match key {
            ApiKey::ApiVersions => {
                let keys = [
                    ApiKey::Metadata,
                    ApiKey::CreateTopics,
                    ApiKey::DeleteTopics,
                    ApiKey::ListOffsets,
                    ApiKey::DescribeConfigs,
                ];
                let offered = |key: ApiKey| {
                    let range = key.valid_versions();
                    ApiVersion::default()
                        .with_api_key(key as i16)
                        .with_min_version(range.min)
                        .with_max_version(range.max)
                };
                fake::body(&ApiVersionsResponse::default().with_api_keys(keys.map(offered).to_vec()), version)
            }
            ApiKey::CreateTopics => {
                let asked = CreateTopicsRequest::decode(request, version).expect("it decodes");
                let topic = &asked.topics[0];
                let result = CreatableTopicResult::default().with_name(topic.name.clone());
                let result = match topic.name.0.as_str() {
                    "taken" => {
                        result.with_error_code(36).with_error_message(Some(text("topic 'taken' already exists")))
                    }
                    _ => result.with_num_partitions(topic.num_partitions.max(1)).with_configs(Some(Vec::new())),
                };
                fake::body(&CreateTopicsResponse::default().with_topics(vec![result]), version)
            }
            ApiKey::DeleteTopics => {
                let asked = DeleteTopicsRequest::decode(request, version).expect("it decodes");
                let name = asked.topics[0].name.clone().expect("by name");
                let code = if name.0.as_str() == "orders" { 0 } else { 3 };
                let result = DeletableTopicResult::default().with_name(Some(name)).with_error_code(code);
                fake::body(&DeleteTopicsResponse::default().with_responses(vec![result]), version)
            }
            ApiKey::Metadata => {
                let asked = MetadataRequest::decode(request, version).expect("it decodes");
                assert!(!asked.allow_auto_topic_creation, "looking must not make a topic");
                let partition = |index: i32| {
                    MetadataResponsePartition::default()
                        .with_partition_index(index)
                        .with_leader_id(BrokerId(1))
                        .with_leader_epoch(3)
                        .with_replica_nodes(vec![BrokerId(1)])
                };
                let wanted = asked.topics.as_ref().and_then(|t| t[0].name.clone()).unwrap_or(name("orders"));
                let topic = MetadataResponseTopic::default().with_name(Some(wanted.clone()));
                let topic = match wanted.0.as_str() {
                    "orders" => topic.with_partitions(vec![partition(1), partition(0).with_error_code(5)]),
                    _ => topic.with_error_code(3),
                };
                fake::body(&MetadataResponse::default().with_topics(vec![topic]), version)
            }
            ApiKey::ListOffsets => {
                let asked = ListOffsetsRequest::decode(request, version).expect("it decodes");
                let offset = if asked.topics[0].partitions[0].timestamp == EARLIEST { 7 } else { 4711 };
                let found = ListOffsetsPartitionResponse::default().with_partition_index(1).with_offset(offset);
                let topic = ListOffsetsTopicResponse::default().with_name(name("orders")).with_partitions(vec![found]);
                fake::body(&ListOffsetsResponse::default().with_topics(vec![topic]), version)
            }
            ApiKey::DescribeConfigs => {
                let config = |name, value, source| {
                    DescribeConfigsResourceResult::default()
                        .with_name(text(name))
                        .with_value(Some(text(value)))
                        .with_config_source(source)
                };
                let configs = vec![config("retention.ms", "1000", SOURCE_TOPIC), config("cleanup.policy", "delete", 5)];
                let result = DescribeConfigsResult::default().with_configs(configs);
                fake::body(&DescribeConfigsResponse::default().with_results(vec![result]), version)
            }
            _ => None,
        }
    }

    fn broker() -> String {
        fake::start(answer).to_string()
    }

    #[test]
    fn a_topic_is_made_and_the_brokers_no_is_told() {
        let addr = broker();
        let configs = [("retention.ms".to_owned(), "1000".to_owned())];
        assert_eq!(create(&addr, "a", Some(3), None, &configs).expect("made"), "made topic 'a' with 3 partitions");
        assert_eq!(create(&addr, "a", None, None, &[]).expect("made"), "made topic 'a' with 1 partition");
        let error = create(&addr, "taken", None, None, &[]).expect_err("it exists");
        assert_eq!(error.code, "CAM-0302");
        assert_eq!(error.meaning, "TOPIC_ALREADY_EXISTS (36): topic 'taken' already exists");
    }

    #[test]
    fn topics_are_listed_in_columns() {
        let listed = list(&broker()).expect("listed");
        assert_eq!(listed, "TOPIC   PARTITIONS  COPIES  ID\norders  2           1       AAAAAAAAAAAAAAAAAAAAAA");
    }

    #[test]
    fn a_topic_is_described_with_its_offsets_and_what_was_set() {
        let described = describe(&broker(), "orders").expect("described");
        assert_eq!(
            described,
            "topic orders   id AAAAAAAAAAAAAAAAAAAAAA   2 partitions\n\n\
             PARTITION  LEADER  EPOCH  COPIES  FIRST  NEXT  STATE\n\
             0          1       3      1       -      -     LEADER_NOT_AVAILABLE\n\
             1          1       3      1       7      4711  ok\n\n\
             set on this topic\n  retention.ms = 1000"
        );
    }

    #[test]
    fn a_topic_is_deleted_and_an_unknown_one_is_an_error() {
        let addr = broker();
        delete(&addr, "orders").expect("deleted");
        let error = delete(&addr, "nowhere").expect_err("unknown");
        assert_eq!(error.meaning, "UNKNOWN_TOPIC_OR_PARTITION (3)");
        assert_eq!(describe(&addr, "nowhere").expect_err("unknown").status, crate::errors::exit::REFUSED);
    }
}
