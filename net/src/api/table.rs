//! Which APIs there are: what is advertised, what is served, and by which function.
//!
//! A key or a version that is not here closes the connection, as in Kafka: there is no layout that the client would
//! understand. Only ApiVersions is answered in any version (`api_versions.rs`). A key is advertised if and only if it
//! has a row, so that nothing is offered that can not be done.

use super::{
    Ctx, Outcome, Request, alter_client_quotas, alter_configs, alter_partition_reassignments,
    alter_user_scram_credentials, api_versions, consumer_group_describe, consumer_group_heartbeat, create_acls,
    create_partitions, create_topics, delete_acls, delete_groups, delete_records, delete_topics, describe_acls,
    describe_client_quotas, describe_cluster, describe_configs, describe_groups, describe_log_dirs, describe_producers,
    describe_quorum, describe_topic_partitions, describe_user_scram_credentials, elect_leaders, fetch,
    find_coordinator, heartbeat, incremental_alter_configs, init_producer_id, join_group, leave_group,
    list_config_resources, list_groups, list_offsets, list_partition_reassignments, metadata, offset_commit,
    offset_delete, offset_fetch, offset_for_leader_epoch, produce, sync_group, update_features,
};

/// One API.
#[derive(Clone, Copy, Debug)]
pub struct Api {
    pub key: i16,
    pub name: &'static str,
    /// The lowest version that ApiVersions names. Lower than `min` for Produce only.
    pub advertised_min: i16,
    /// The versions that are served.
    pub min: i16,
    pub max: i16,
    /// The first version with compact lengths and tagged fields, in requests and responses.
    pub flexible_from: i16,
    pub handle: fn(&mut Ctx<'_>, &Request) -> Outcome,
}

pub const PRODUCE: i16 = 0;
pub const FETCH: i16 = 1;
pub const API_VERSIONS: i16 = 18;

const fn row(
    key: i16,
    name: &'static str,
    (min, max): (i16, i16),
    flexible_from: i16,
    handle: fn(&mut Ctx<'_>, &Request) -> Outcome,
) -> Api {
    Api { key, name, advertised_min: min, min, max, flexible_from, handle }
}

/// By key, ascending.
///
/// Produce is advertised from 0 though 0 to 2 are not served (their message formats are gone: KIP-896): older
/// librdkafka takes a higher minimum for "no gzip, snappy and lz4" and sends everything uncompressed. It ends at 11
/// though 12 and 13 are there (`produce.rs`): from 12 on it belongs to the newer transaction protocol (KIP-890), and a
/// broker that offers it without the rest breaks clients that go by versions (docs/adr/0004).
pub static APIS: &[Api] = &[
    Api { advertised_min: 0, ..row(PRODUCE, "Produce", (3, 11), 9, produce::handle) },
    row(FETCH, "Fetch", (4, 18), 12, fetch::handle),
    row(2, "ListOffsets", (1, 11), 6, list_offsets::handle),
    row(3, "Metadata", (0, 13), 9, metadata::handle),
    row(8, "OffsetCommit", (2, 9), 8, offset_commit::handle),
    row(9, "OffsetFetch", (1, 9), 6, offset_fetch::handle),
    row(10, "FindCoordinator", (0, 6), 3, find_coordinator::handle),
    row(11, "JoinGroup", (0, 9), 6, join_group::handle),
    row(12, "Heartbeat", (0, 4), 4, heartbeat::handle),
    row(13, "LeaveGroup", (0, 5), 4, leave_group::handle),
    row(14, "SyncGroup", (0, 5), 4, sync_group::handle),
    row(15, "DescribeGroups", (0, 6), 5, describe_groups::handle),
    row(16, "ListGroups", (0, 5), 3, list_groups::handle),
    row(API_VERSIONS, "ApiVersions", (0, 5), 3, api_versions::handle),
    row(19, "CreateTopics", (2, 7), 5, create_topics::handle),
    row(20, "DeleteTopics", (1, 6), 4, delete_topics::handle),
    row(21, "DeleteRecords", (0, 2), 2, delete_records::handle),
    row(22, "InitProducerId", (0, 5), 2, init_producer_id::handle),
    row(23, "OffsetForLeaderEpoch", (2, 4), 4, offset_for_leader_epoch::handle),
    row(29, "DescribeAcls", (1, 3), 2, describe_acls::handle),
    row(30, "CreateAcls", (1, 3), 2, create_acls::handle),
    row(31, "DeleteAcls", (1, 3), 2, delete_acls::handle),
    row(32, "DescribeConfigs", (1, 4), 4, describe_configs::handle),
    row(33, "AlterConfigs", (0, 2), 2, alter_configs::handle),
    row(35, "DescribeLogDirs", (1, 4), 2, describe_log_dirs::handle),
    row(37, "CreatePartitions", (0, 3), 2, create_partitions::handle),
    row(42, "DeleteGroups", (0, 3), 2, delete_groups::handle),
    row(43, "ElectLeaders", (0, 2), 2, elect_leaders::handle),
    row(44, "IncrementalAlterConfigs", (0, 1), 1, incremental_alter_configs::handle),
    row(45, "AlterPartitionReassignments", (0, 1), 0, alter_partition_reassignments::handle),
    row(46, "ListPartitionReassignments", (0, 0), 0, list_partition_reassignments::handle),
    row(47, "OffsetDelete", (0, 0), 1, offset_delete::handle),
    row(48, "DescribeClientQuotas", (0, 1), 1, describe_client_quotas::handle),
    row(49, "AlterClientQuotas", (0, 1), 1, alter_client_quotas::handle),
    row(50, "DescribeUserScramCredentials", (0, 0), 0, describe_user_scram_credentials::handle),
    row(51, "AlterUserScramCredentials", (0, 0), 0, alter_user_scram_credentials::handle),
    row(55, "DescribeQuorum", (0, 2), 0, describe_quorum::handle),
    row(57, "UpdateFeatures", (0, 2), 0, update_features::handle),
    row(60, "DescribeCluster", (0, 2), 0, describe_cluster::handle),
    row(61, "DescribeProducers", (0, 0), 0, describe_producers::handle),
    row(68, "ConsumerGroupHeartbeat", (0, 1), 0, consumer_group_heartbeat::handle),
    row(69, "ConsumerGroupDescribe", (0, 1), 0, consumer_group_describe::handle),
    row(74, "ListConfigResources", (0, 1), 0, list_config_resources::handle),
    row(75, "DescribeTopicPartitions", (0, 0), 0, describe_topic_partitions::handle),
];

pub fn api(key: i16) -> Option<&'static Api> {
    APIS.binary_search_by_key(&key, |api| api.key).ok().map(|at| &APIS[at])
}

impl Api {
    pub fn serves(&self, version: i16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible_from
    }
}

/// Hands the request to its API.
pub fn handle(ctx: &mut Ctx<'_>, request: &Request) -> Outcome {
    match api(request.key) {
        Some(api) if api.serves(request.version) || api.key == API_VERSIONS => (api.handle)(ctx, request),
        Some(_) => Outcome::Close("a version of an API that is not served"),
        None => Outcome::Close("an API that is not served"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key twice, or a minimum over a maximum, is fatal for strict clients; an unsorted table hides keys.
    #[test]
    fn keys_are_ascending_and_ranges_are_not_empty() {
        assert!(APIS.is_sorted_by(|a, b| a.key < b.key));
        for api in APIS {
            assert!(0 <= api.advertised_min && api.advertised_min <= api.min && api.min <= api.max, "{}", api.name);
            assert!(api.advertised_min == api.min || api.key == PRODUCE, "{}", api.name);
        }
    }

    /// A wrong first flexible version shifts every field of the request.
    #[test]
    fn flexible_versions_are_those_of_kafkas_schemas() {
        for api in APIS {
            let key = kafka_protocol::messages::ApiKey::try_from(api.key).expect("Kafka has this key");
            for version in api.min..=api.max {
                assert_eq!(
                    api.is_flexible(version),
                    key.request_header_version(version) == 2,
                    "{} {version}",
                    api.name
                );
            }
        }
    }
}
