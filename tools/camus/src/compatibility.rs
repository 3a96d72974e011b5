//! The first part of `docs/compatibility.md`: what of Kafka's protocol is served, from the very table that serves it,
//! and the settings of topics, from the table that judges them.
//!
//! What is missing is listed with the keys that it will bring, and disappears from the page when they are all there.

use camus_meta::configs;
use camus_net::api::table::{APIS, Api, api};
use std::collections::BTreeMap;

/// What a reader of the table has to know besides the versions, while the key at the second place is not served (or
/// always, without one).
const NOTES: &[(i16, Option<i16>, &str)] = &[
    (0, None, "named from 0 on, because older librdkafka takes a higher minimum for \"no compression\"; 0 to 2 close"),
    (0, Some(ADD_PARTITIONS_TO_TXN), "12 and 13 come with transactions ([0004](adr/0004-wire-codec.md))"),
    (10, Some(JOIN_GROUP), "answers that no coordinator is up"),
    (18, None, "any version is answered; one that is not served with error 35 and the range (KIP-511)"),
    (22, Some(ADD_PARTITIONS_TO_TXN), "for idempotent producers; with a transactional id INVALID_REQUEST"),
    (29, None, NO_ACLS),
    (30, None, NO_ACLS),
    (31, None, NO_ACLS),
    (32, None, "topics and brokers; loggers, groups and client metrics have no settings of their own"),
    (35, None, "the size of a partition is that of its batches as they are stored"),
    (43, None, "nothing is to be done: replicas elect their leader themselves, and none is preferred"),
    (44, None, "topics; a broker's settings are in its file"),
    (45, None, "each broker has a copy of everything: other replicas are INVALID_REPLICA_ASSIGNMENT"),
    (46, None, "none is ever under way"),
    (48, None, "there are none"),
    (49, None, "one that is set is refused with UNSUPPORTED_VERSION"),
    (50, Some(SASL_HANDSHAKE), "nobody is asked for a password yet"),
    (51, Some(SASL_HANDSHAKE), "kept for the time when passwords are asked for"),
    (55, None, "the meta shard, as `__cluster_metadata`; only its leader knows how far the others are"),
    (57, None, "a feature stays at its level: another is INVALID_UPDATE_VERSION"),
    (61, None, "who is remembered for retries"),
    (68, None, "a pattern that needs too large a table is refused ([0016](adr/0016-consumer-groups-of-kip-848.md))"),
    (74, None, "topics and brokers"),
];

const NO_ACLS: &str = "there are no ACLs: SECURITY_DISABLED";

const JOIN_GROUP: i16 = 11;
const SASL_HANDSHAKE: i16 = 17;
const ADD_PARTITIONS_TO_TXN: i16 = 24;

/// What is not there: the keys that it needs (none: it is no API), and what a client meets until then.
const NOT_YET: &[(&str, &[i16], &str)] = &[
    (
        "Consumer groups",
        &[8, 9, 11, 12, 13, 14, 15, 16, 42, 47],
        "consumers assign partitions themselves and keep their own offsets",
    ),
    ("Consumer groups of KIP-848", &[68, 69], "clients with `group.protocol=consumer` say that it is not there"),
    ("Share and streams groups (KIP-932, KIP-1071)", &[76, 88], "clients say that they are not there"),
    (
        "Transactions",
        &[24, 25, 26, 28],
        "a transactional id is refused; `read_committed` reads like `read_uncommitted`",
    ),
    ("SASL", &[17, 36], "the connection is closed"),
    ("TLS", &[], "a listener is PLAINTEXT; the bytes of a TLS hello close the connection"),
    ("ACLs", &[], "everybody may do everything"),
    ("Client quotas", &[], "`throttle_time_ms` is 0"),
    ("Client telemetry (KIP-714)", &[71, 72], "clients send none"),
    ("A replication factor", &[], "it is kept and answered; each broker of the cluster has a copy of everything"),
    (
        "Retention and compaction",
        &[],
        "their settings are kept; records stay until their topic is deleted or DeleteRecords",
    ),
    ("The object tier", &[], "everything is on the local disk; ListOffsets by -5 finds nothing"),
];

/// This part of the page. What it says besides the tables is held by the tests that it names.
pub fn page() -> String {
    let mut text = String::from(
        "\
Which part of Kafka's protocol Camus speaks. What is served is advertised by ApiVersions and the other way round, so a
client that asks says by itself what is missing. A key or a version that is not in the table closes the connection, as
in Kafka.

## APIs
| key | API | versions | |
|---|---|---|---|
",
    );
    for api in APIS {
        text.push_str(&format!("| {} | {} | {} to {} | {} |\n", api.key, api.name, api.min, api.max, notes(api)));
    }
    text.push_str(
        "
| claim | test |
|---|---|
| Exactly the keys of the table are advertised | `every_version_names_exactly_the_keys_of_the_table`, \
         `test_what_is_not_there_is_not_advertised` |
| Another key or version closes the connection | `what_is_not_served_is_a_fault`, `test_an_unknown_api_closes`, \
         `test_a_version_that_is_not_advertised_closes` |
| This part of the page is the table | `the_page_of_apis_is_what_the_table_has` |

## Records
| claim | test |
|---|---|
| Batches of message format 2 are stored as they came, whatever their codec (none, gzip, snappy, lz4, zstd) | \
         `honest_batches_of_every_codec_come_through_unchanged`, `the_stored_batch_differs_in_offset_and_epoch_only` |
| `compression.type` packs them anew, and changes nothing else | \
         `every_codec_is_packed_into_every_other_and_nothing_else_changes`, `test_a_topic_with_a_codec_of_its_own` |
| Older message formats are refused | `test_an_old_or_unknown_message_format_is_refused` |
| `message.timestamp.type=LogAppendTime` | `log_append_time_changes_the_time_and_nothing_else` |
| A batch of one producer is read by the clients of others | `test_another_client_reads_the_same_log` |

## Clients
| client | test |
|---|---|
| librdkafka, through confluent-kafka | `test_librdkafka_reads_back_what_it_wrote`, `test_librdkafka_admin` |
| kafka-python | `test_kafka_python_reads_back_what_it_wrote` |
| aiokafka | `test_aiokafka_reads_back_what_it_wrote` |
",
    );
    text.push_str(
        "
## Topic settings
Those of Kafka 4.4, with its names, types and defaults; another name is refused with the nearest. What has no effect
says so, here and in DescribeConfigs.

| setting | default | |
|---|---|---|
",
    );
    for setting in configs::describe(&BTreeMap::new(), &[]) {
        let default = setting.value.unwrap_or_default();
        text.push_str(&format!("| `{}` | {default} | {} |\n", setting.name, setting.doc));
    }
    text.push_str(
        "
| claim | test |
|---|---|
| Every setting of Kafka is there; an unknown one is refused | `every_topic_setting_of_kafka_is_there`, \
         `an_unknown_setting_is_refused_with_the_nearest_name` |
| Values are judged by type and range | `values_are_judged_by_type_and_range` |
| What concerns a batch is judged by it | `rules_follow_the_settings` |

## Not there yet
| what | until then |
|---|---|
",
    );
    for (what, keys, until_then) in NOT_YET {
        if keys.is_empty() || keys.iter().any(|key| api(*key).is_none()) {
            text.push_str(&format!("| {what} | {until_then} |\n"));
        }
    }
    text
}

fn notes(of: &Api) -> String {
    let applies = |unless: &Option<i16>| unless.is_none_or(|key| api(key).is_none());
    let notes = NOTES.iter().filter(|(key, unless, _)| *key == of.key && applies(unless));
    notes.map(|(_, _, note)| *note).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::assert_house_part;

    /// If this fails, the page promises versions that are not served, or hides some: run `CAMUS_TEST_BLESS=1 cargo test
    /// -p camus`.
    #[test]
    fn the_page_of_apis_is_what_the_table_has() {
        assert_house_part("docs/compatibility.md", "camus compatibility", &page());
    }

    /// If this fails, a note stands at no API, and nobody reads it.
    #[test]
    fn each_note_has_its_api() {
        for (key, _, note) in NOTES {
            assert!(api(*key).is_some(), "{note}");
        }
        for (what, keys, _) in NOT_YET {
            assert!(keys.is_sorted_by(|a, b| a < b), "{what}: {keys:?}");
        }
    }
}
