//! The layouts of requests: which fields each has in which versions.
//!
//! Written down here a second time, from Kafka's schemas, so that what is made of it is not made by the code that reads
//! it. Test `what_is_made_is_a_request_of_its_version` holds it against the decoders of `kafka-protocol`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A field, in the versions that have it.
#[derive(Clone, Debug)]
pub struct Field {
    pub kind: Kind,
    since: i16,
    until: i16,
    null_since: Option<i16>,
    /// Among the tagged fields at the end of its struct, under this number.
    pub tag: Option<u32>,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Bool,
    /// Of so many bytes. `among`: what clients send; empty: anything.
    Int {
        bytes: usize,
        among: &'static [i64],
    },
    Uuid,
    Text,
    Blob,
    Records,
    Struct(Vec<Field>),
    /// One that may be null, behind a byte that says so.
    Maybe(Vec<Field>),
    Structs(Vec<Field>),
    /// An array of what is no struct: its elements have no tagged fields.
    Many(Box<Kind>),
}

impl Field {
    fn since(mut self, version: i16) -> Field {
        self.since = version;
        self
    }

    fn until(mut self, version: i16) -> Field {
        self.until = version;
        self
    }

    /// May be null from this version on.
    fn null(mut self, version: i16) -> Field {
        self.null_since = Some(version);
        self
    }

    fn tag(mut self, tag: u32) -> Field {
        self.tag = Some(tag);
        self
    }

    pub fn is_in(&self, version: i16) -> bool {
        (self.since..=self.until).contains(&version)
    }

    pub fn is_nullable(&self, version: i16) -> bool {
        self.null_since.is_some_and(|since| version >= since)
    }
}

fn field(kind: Kind) -> Field {
    Field { kind, since: 0, until: i16::MAX, null_since: None, tag: None }
}

fn flag() -> Field {
    field(Kind::Bool)
}

fn int8(among: &'static [i64]) -> Field {
    field(Kind::Int { bytes: 1, among })
}

fn int16(among: &'static [i64]) -> Field {
    field(Kind::Int { bytes: 2, among })
}

fn int32(among: &'static [i64]) -> Field {
    field(Kind::Int { bytes: 4, among })
}

fn int64(among: &'static [i64]) -> Field {
    field(Kind::Int { bytes: 8, among })
}

fn uuid() -> Field {
    field(Kind::Uuid)
}

fn text() -> Field {
    field(Kind::Text)
}

fn blob() -> Field {
    field(Kind::Blob)
}

fn records() -> Field {
    field(Kind::Records)
}

fn one(fields: Vec<Field>) -> Field {
    field(Kind::Struct(fields))
}

fn maybe(fields: Vec<Field>) -> Field {
    field(Kind::Maybe(fields)).null(0)
}

fn array(fields: Vec<Field>) -> Field {
    field(Kind::Structs(fields))
}

fn texts() -> Field {
    field(Kind::Many(Box::new(Kind::Text)))
}

fn int32s(among: &'static [i64]) -> Field {
    field(Kind::Many(Box::new(Kind::Int { bytes: 4, among })))
}

fn int8s(among: &'static [i64]) -> Field {
    field(Kind::Many(Box::new(Kind::Int { bytes: 1, among })))
}

/// Numbers of partitions: topics of the targets have three.
const PARTITION: &[i64] = &[0, 1, 2, 3, -1];
const EPOCH: &[i64] = &[-1, 0, 1, 2];
const GENERATION: &[i64] = &[-1, 0, 1, 2];
const BROKER: &[i64] = &[1, 2, 3, -1, 9];
const TIMEOUT_MS: &[i64] = &[0, 100, 6000, 30_000, 300_000];
/// Topics, brokers, their loggers, client metrics and groups, in the APIs of configuration.
const RESOURCE: &[i64] = &[2, 4, 8, 16, 32];
/// Any, and the kinds, of what ACLs are about.
const ACL: &[i64] = &[1, 2, 3, 4];

/// The fields of the request of this key, in order. `None`: nobody has written them down.
pub fn layout(key: i16) -> Option<&'static [Field]> {
    static LAYOUTS: OnceLock<BTreeMap<i16, Vec<Field>>> = OnceLock::new();
    LAYOUTS.get_or_init(layouts).get(&key).map(Vec::as_slice)
}

fn layouts() -> BTreeMap<i16, Vec<Field>> {
    let topic_by_name_or_id = || [text().until(12), uuid().since(13)];
    let named = |partitions: Field| array(vec![text(), partitions]);
    let mut all = BTreeMap::new();
    let mut api = |key: i16, fields: Vec<Field>| assert!(all.insert(key, fields).is_none(), "key {key} stands twice");

    // Produce
    let [name, id] = topic_by_name_or_id();
    let partitions = array(vec![int32(PARTITION), records().null(0)]);
    api(0, vec![text().null(3), int16(&[-1, 0, 1]), int32(TIMEOUT_MS), array(vec![name, id, partitions])]);
    // Fetch
    let [name, id] = topic_by_name_or_id();
    let [forgotten_name, forgotten_id] = topic_by_name_or_id();
    let partition = vec![
        int32(PARTITION),
        int32(EPOCH).since(9),
        int64(&[0, 1, 3, 5, 6, -1]),
        int32(&[-1]).since(12),
        int64(&[-1, 0]).since(5),
        int32(&[1 << 20, 1, 0, 55 << 20]),
        uuid().since(17).tag(0),
        int64(&[]).since(18).tag(1),
    ];
    api(
        1,
        vec![
            int32(&[-1]).until(14),
            int32(&[0, 100, 500]),
            int32(&[0, 1, 1000]),
            int32(&[1 << 20, 55 << 20, 1]),
            int8(&[0, 1]),
            int32(&[0, 0, 1, 7]).since(7),
            int32(&[-1, 0, 1]).since(7),
            array(vec![name, id, array(partition)]),
            array(vec![forgotten_name, forgotten_id, int32s(PARTITION)]).since(7),
            text().since(11),
            text().null(12).since(12).tag(0),
            one(vec![int32(&[-1]), int64(&[-1])]).since(15).tag(1),
        ],
    );
    // ListOffsets
    let partition = vec![int32(PARTITION), int32(EPOCH).since(4), int64(&[-1, -2, -3, -4, -5, -6, 0, 1])];
    api(2, vec![int32(&[-1]), int8(&[0, 1]).since(2), named(array(partition)), int32(TIMEOUT_MS).since(10)]);
    // Metadata
    api(
        3,
        vec![
            array(vec![uuid().since(10), text().null(10)]).null(1),
            flag().since(4),
            flag().since(8).until(10),
            flag().since(8),
        ],
    );
    // OffsetCommit
    let partition = vec![int32(PARTITION), int64(&[0, 1, 5, -1]), int32(EPOCH).since(6), text().null(0)];
    api(
        8,
        vec![
            text(),
            int32(GENERATION),
            text(),
            text().null(7).since(7),
            int64(&[-1]).since(2).until(4),
            named(array(partition)),
        ],
    );
    // OffsetFetch
    let group = vec![text(), text().null(9).since(9), int32(&[-1, 0]).since(9), named(int32s(PARTITION)).null(8)];
    api(9, vec![text().until(7), named(int32s(PARTITION)).null(2).until(7), array(group).since(8), flag().since(7)]);
    // FindCoordinator
    api(10, vec![text().until(3), int8(&[0, 1]).since(1), texts().since(4)]);
    // JoinGroup
    api(
        11,
        vec![
            text(),
            int32(TIMEOUT_MS),
            int32(TIMEOUT_MS).since(1),
            text(),
            text().null(5).since(5),
            text(),
            array(vec![text(), blob()]),
            text().null(8).since(8),
        ],
    );
    // Heartbeat
    api(12, vec![text(), int32(GENERATION), text(), text().null(3).since(3)]);
    // LeaveGroup
    let member = vec![text(), text().null(3), text().null(5).since(5)];
    api(13, vec![text(), text().until(2), array(member).since(3)]);
    // SyncGroup
    api(
        14,
        vec![
            text(),
            int32(GENERATION),
            text(),
            text().null(3).since(3),
            text().null(5).since(5),
            text().null(5).since(5),
            array(vec![text(), blob()]),
        ],
    );
    // DescribeGroups
    api(15, vec![texts(), flag().since(3)]);
    // ListGroups
    api(16, vec![texts().since(4), texts().since(5)]);
    // ApiVersions
    api(18, vec![text().since(3), text().since(3), text().null(5).since(5), int32(BROKER).since(5)]);
    // CreateTopics
    let topic = vec![
        text(),
        int32(&[-1, 1, 2, 3, 5, 100]),
        int16(&[-1, 1, 3]),
        array(vec![int32(PARTITION), int32s(BROKER)]),
        array(vec![text(), text().null(0)]),
    ];
    api(19, vec![array(topic), int32(TIMEOUT_MS), flag()]);
    // DeleteTopics
    api(20, vec![array(vec![text().null(6), uuid()]).since(6), texts().until(5), int32(TIMEOUT_MS)]);
    // DeleteRecords
    api(21, vec![named(array(vec![int32(PARTITION), int64(&[-1, 0, 1, 5])])), int32(TIMEOUT_MS)]);
    // InitProducerId
    api(22, vec![text().null(0), int32(TIMEOUT_MS), int64(&[-1, 0, 1]).since(3), int16(&[-1, 0]).since(3)]);
    // OffsetForLeaderEpoch
    let partition = vec![int32(PARTITION), int32(EPOCH), int32(EPOCH)];
    api(23, vec![int32(&[-1, -2]).since(3), named(array(partition))]);
    // DescribeAcls, CreateAcls, DeleteAcls
    let filter = || {
        let (resource, name, pattern) = (int8(ACL), text().null(0), int8(&[1, 2, 3]));
        vec![resource, name, pattern.since(1), text().null(0), text().null(0), int8(ACL), int8(&[1, 2, 3])]
    };
    api(29, filter());
    let made = vec![int8(ACL), text(), int8(&[3, 4]).since(1), text(), text(), int8(ACL), int8(&[2, 3])];
    api(30, vec![array(made)]);
    api(31, vec![array(filter())]);
    // DescribeConfigs
    api(32, vec![array(vec![int8(RESOURCE), text(), texts().null(0)]), flag(), flag().since(3)]);
    // AlterConfigs
    api(33, vec![array(vec![int8(RESOURCE), text(), array(vec![text(), text().null(0)])]), flag()]);
    // DescribeLogDirs
    api(35, vec![named(int32s(PARTITION)).null(0)]);
    // CreatePartitions
    let topic = vec![text(), int32(&[1, 3, 4, 6, 100]), array(vec![int32s(BROKER)]).null(0)];
    api(37, vec![array(topic), int32(TIMEOUT_MS), flag()]);
    // DeleteGroups
    api(42, vec![texts()]);
    // ElectLeaders
    api(43, vec![int8(&[0, 1]).since(1), named(int32s(PARTITION)).null(0), int32(TIMEOUT_MS)]);
    // IncrementalAlterConfigs
    let change = vec![text(), int8(&[0, 1, 2, 3]), text().null(0)];
    api(44, vec![array(vec![int8(RESOURCE), text(), array(change)]), flag()]);
    // AlterPartitionReassignments, ListPartitionReassignments
    let partition = vec![int32(PARTITION), int32s(BROKER).null(0)];
    api(45, vec![int32(TIMEOUT_MS), flag().since(1), named(array(partition))]);
    api(46, vec![int32(TIMEOUT_MS), named(int32s(PARTITION)).null(0)]);
    // OffsetDelete
    api(47, vec![text(), named(array(vec![int32(PARTITION)]))]);
    // DescribeClientQuotas, AlterClientQuotas
    api(48, vec![array(vec![text(), int8(&[0, 1, 2]), text().null(0)]), flag()]);
    let change = vec![text(), int64(&[]), flag()];
    api(49, vec![array(vec![array(vec![text(), text().null(0)]), array(change)]), flag()]);
    // DescribeUserScramCredentials
    api(50, vec![array(vec![text()]).null(0)]);
    // AlterUserScramCredentials
    let set = vec![text(), int8(&[0, 1, 2]), int32(&[4096, 8192, 1]), blob(), blob()];
    api(51, vec![array(vec![text(), int8(&[0, 1, 2])]), array(set)]);
    // DescribeQuorum
    api(55, vec![named(array(vec![int32(PARTITION)]))]);
    // UpdateFeatures
    let update = vec![text(), int16(&[0, 1, 2]), flag().until(0), int8(&[1, 2, 3]).since(1)];
    api(57, vec![int32(TIMEOUT_MS), array(update), flag().since(1)]);
    // DescribeCluster
    api(60, vec![flag(), int8(&[1, 2]).since(1), flag().since(2)]);
    // DescribeProducers
    api(61, vec![named(int32s(PARTITION))]);
    // ConsumerGroupHeartbeat
    api(
        68,
        vec![
            text(),
            text(),
            int32(&[0, 0, 1, 2, -1, -2]),
            text().null(0),
            text().null(0),
            int32(TIMEOUT_MS),
            texts().null(0),
            text().null(1).since(1),
            text().null(0),
            array(vec![uuid(), int32s(PARTITION)]).null(0),
        ],
    );
    // ConsumerGroupDescribe
    api(69, vec![texts(), flag()]);
    // ListConfigResources
    api(74, vec![int8s(RESOURCE).since(1)]);
    // DescribeTopicPartitions
    api(75, vec![array(vec![text()]), int32(&[2000, 1, 0, 5]), maybe(vec![text(), int32(PARTITION)])]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_net::api::table;

    /// An API without a layout would be fuzzed with bytes that are no request of it.
    #[test]
    fn every_api_has_a_layout_and_nothing_else_has() {
        let served: Vec<i16> = table::APIS.iter().map(|api| api.key).collect();
        assert_eq!(layouts().into_keys().collect::<Vec<_>>(), served);
    }
}
