//! What the meta shard decides: each command is one entry of its log, and each replica comes to the same answer.

use crate::users::{Credential, Mechanism};
use camus_engine::types::{PartitionId, ProducerId, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// A change that is asked for. Everything that is random or comes from a clock comes in with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Once in a cluster's life, as its first command.
    Bootstrap {
        cluster_id: String,
    },
    CreateTopic {
        name: String,
        /// Random; refused if it is taken or all zero.
        id: Uuid,
        partitions: u32,
        /// As the client asked; Camus answers with it and never has fewer copies than it promises (docs/adr/0005).
        replication_factor: i16,
        /// Only what the client set; checked by [`crate::configs::check`].
        configs: BTreeMap<String, String>,
    },
    DeleteTopic {
        id: Uuid,
    },
    /// Grows the topic to `total` partitions.
    CreatePartitions {
        id: Uuid,
        total: u32,
    },
    /// Replaces the values set on a topic (`None` takes a key back to its default).
    AlterTopicConfigs {
        id: Uuid,
        set: BTreeMap<String, Option<String>>,
    },
    /// Gives the broker the next `count` producer ids; none is ever given out twice.
    TakeProducerIds {
        count: u32,
    },
    /// What a group will read next. All of it is stored or nothing; topics that are gone are left out.
    CommitOffsets {
        group: String,
        /// When it was asked for, ms since 1970.
        at_ms: i64,
        topics: Vec<TopicOffsets>,
    },
    /// Takes single offsets out.
    DeleteOffsets {
        group: String,
        /// Topic and partition.
        partitions: Vec<(Uuid, u32)>,
    },
    /// Takes all offsets of these groups out.
    DeleteGroups {
        groups: Vec<String>,
    },
    /// Takes out what the group committed before this time, ms since 1970. A commit that comes in between stays.
    ExpireOffsets {
        group: String,
        before_ms: i64,
    },
    /// Changes how a user is known; `None` takes a credential out. All of it or nothing.
    AlterCredentials {
        user: String,
        set: Vec<(Mechanism, Option<Credential>)>,
    },
}

/// What is committed of one topic.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TopicOffsets {
    pub topic: Uuid,
    pub partitions: Vec<PartitionOffset>,
}

/// What is committed of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartitionOffset {
    pub partition: u32,
    /// The next offset to read.
    pub offset: i64,
    /// Of the last record that was read; -1: not said.
    pub leader_epoch: i32,
    pub metadata: String,
}

/// The first byte of an encoded command. What is in the log under a number is read under it for ever.
const FORMAT: u8 = 1;

/// Bytes that are no command of a format that this version knows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("nothing to decode")]
    Empty,
    #[error("format {found} is not known (up to {FORMAT} is): written by a newer version?")]
    UnknownFormat { found: u8 },
    #[error("malformed: {why}")]
    Malformed { why: String },
    #[error("{bytes} bytes follow the end")]
    Trailing { bytes: usize },
}

impl Command {
    /// Whether it gives space of the log back, or the cluster can not begin without it: such a command is taken where
    /// there is no room for others (docs/adr/0002).
    pub fn frees_space(&self) -> bool {
        match self {
            Command::Bootstrap { .. } | Command::DeleteTopic { .. } | Command::AlterTopicConfigs { .. } => true,
            Command::CreateTopic { .. }
            | Command::CreatePartitions { .. }
            | Command::TakeProducerIds { .. }
            | Command::CommitOffsets { .. }
            | Command::DeleteOffsets { .. }
            | Command::DeleteGroups { .. }
            | Command::ExpireOffsets { .. }
            | Command::AlterCredentials { .. } => false,
        }
    }

    /// As it is in the log: the format's number, then the fields (postcard).
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Takes any bytes; allocates in proportion to them.
    pub fn decode(bytes: &[u8]) -> Result<Command, DecodeError> {
        decode(bytes)
    }
}

/// For the way from the broker that leads the meta shard to the one that was asked. Never in a log.
pub fn encode_decided(decided: &Decided) -> Vec<u8> {
    encode(decided)
}

/// Takes any bytes; allocates in proportion to them.
pub fn decode_decided(bytes: &[u8]) -> Result<Decided, DecodeError> {
    decode(bytes)
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![FORMAT]).expect("our own types have a form, and a vector takes it")
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let (value, rest) = decode_first(bytes)?;
    if rest.is_empty() { Ok(value) } else { Err(DecodeError::Trailing { bytes: rest.len() }) }
}

/// The value, and what follows it.
pub(crate) fn decode_first<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), DecodeError> {
    let (format, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
    if *format != FORMAT {
        return Err(DecodeError::UnknownFormat { found: *format });
    }
    postcard::take_from_bytes(body).map_err(|e| DecodeError::Malformed { why: e.to_string() })
}

/// What became of a command.
pub type Decided = Result<Done, Refused>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Done {
    Bootstrapped,
    TopicCreated {
        id: Uuid,
        partitions: u32,
    },
    TopicDeleted {
        name: String,
        id: Uuid,
    },
    PartitionsCreated {
        id: Uuid,
        total: u32,
    },
    ConfigsAltered {
        id: Uuid,
    },
    ProducerIds {
        first: ProducerIdRange,
    },
    /// `gone`: the topics that were not there any more.
    OffsetsCommitted {
        gone: Vec<Uuid>,
    },
    OffsetsDeleted,
    GroupsDeleted,
    OffsetsExpired,
    CredentialsAltered,
}

/// `first .. first + count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProducerIdRange {
    pub first: i64,
    pub count: u32,
}

impl ProducerIdRange {
    pub fn first(&self) -> ProducerId {
        ProducerId(self.first)
    }
}

/// Why the state machine did not do it. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refused {
    #[error("topic '{name}' already exists")]
    TopicExists { name: String },
    #[error("there is no such topic")]
    UnknownTopic,
    #[error("there is no topic with this id")]
    UnknownTopicId,
    #[error("the name '{name}' is not allowed: {why}")]
    InvalidName { name: String, why: String },
    #[error("{why}")]
    InvalidPartitions { why: String },
    #[error("{why}")]
    InvalidReplicationFactor { why: String },
    #[error("{why}")]
    InvalidConfig { why: String },
    #[error("the cluster has a limit of {limit} partitions")]
    TooManyPartitions { limit: usize },
    #[error("{why}")]
    InvalidRequest { why: String },
    #[error("the cluster has a limit of {limit} committed offsets, and of {bytes_limit} bytes in them")]
    TooManyOffsets { limit: usize, bytes_limit: usize },
    /// Retriable: the meta shard has no leader, or can not write now.
    #[error("the metadata can not be changed now: {why}")]
    Unavailable { why: String },
    /// Retriable: it was not written anywhere, since nobody leads the meta shard that could be asked.
    #[error("no broker leads the metadata now")]
    NoLeader,
    #[error("there is no such credential")]
    UnknownCredential,
    #[error("the cluster has a limit of {limit} users")]
    TooManyUsers { limit: usize },
}

/// Where one partition lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    pub partition: u64,
    pub shard: u32,
}

impl Placement {
    pub fn partition(&self) -> PartitionId {
        PartitionId(self.partition)
    }
    pub fn shard(&self) -> ShardId {
        ShardId(self.shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn examples() -> Vec<(Command, &'static str)> {
        let id = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        let configs = BTreeMap::from([("retention.ms".to_owned(), "5".to_owned())]);
        let offset = PartitionOffset { partition: 2, offset: 5, leader_epoch: 7, metadata: "mm".to_owned() };
        let topics = vec![TopicOffsets { topic: id, partitions: vec![offset] }];
        let set = BTreeMap::from([("a".to_owned(), Some("b".to_owned())), ("c".to_owned(), None)]);
        vec![
            (Command::Bootstrap { cluster_id: "abc".to_owned() }, "010003616263"),
            (
                Command::CreateTopic { name: "t".to_owned(), id, partitions: 300, replication_factor: -1, configs },
                "01010174100102030405060708090a0b0c0d0e0f10ac0201010c726574656e74696f6e2e6d730135",
            ),
            (Command::DeleteTopic { id }, "0102100102030405060708090a0b0c0d0e0f10"),
            (Command::CreatePartitions { id, total: 7 }, "0103100102030405060708090a0b0c0d0e0f1007"),
            (Command::AlterTopicConfigs { id, set }, "0104100102030405060708090a0b0c0d0e0f10020161010162016300"),
            (Command::TakeProducerIds { count: 1000 }, "0105e807"),
            (
                Command::CommitOffsets { group: "g".to_owned(), at_ms: 3, topics },
                "010601670601100102030405060708090a0b0c0d0e0f1001020a0e026d6d",
            ),
            (
                Command::DeleteOffsets { group: "g".to_owned(), partitions: vec![(id, 2)] },
                "0107016701100102030405060708090a0b0c0d0e0f1002",
            ),
            (Command::DeleteGroups { groups: vec!["g".to_owned(), "h".to_owned()] }, "01080201670168"),
            (Command::ExpireOffsets { group: "g".to_owned(), before_ms: 3 }, "0109016706"),
            (
                Command::AlterCredentials {
                    user: "u".to_owned(),
                    set: vec![
                        (Mechanism::ScramSha256, None),
                        (
                            Mechanism::ScramSha512,
                            Some(Credential {
                                salt: vec![1, 2],
                                iterations: 4096,
                                stored_key: vec![3],
                                server_key: vec![4, 5],
                            }),
                        ),
                    ],
                },
                "010a0175020000010102010280200103020405",
            ),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// A cluster's metadata would be unreadable after an upgrade: these bytes are in logs.
    #[test]
    fn the_bytes_of_each_command_never_change() {
        for (command, golden) in examples() {
            assert_eq!(hex(&command.encode()), golden, "{command:?}");
            assert_eq!(Command::decode(&command.encode()), Ok(command));
        }
    }

    /// A newer version's command must stop an older one, not be taken for something else.
    #[test]
    fn what_is_not_understood_is_refused() {
        assert_eq!(Command::decode(&[]), Err(DecodeError::Empty));
        assert_eq!(Command::decode(&[2, 0, 0]), Err(DecodeError::UnknownFormat { found: 2 }));
        assert!(matches!(Command::decode(&[1, 99]), Err(DecodeError::Malformed { .. })));
        let mut long = examples().remove(0).0.encode();
        long.push(0);
        assert_eq!(Command::decode(&long), Err(DecodeError::Trailing { bytes: 1 }));
    }

    /// A length that nothing stands behind must not be allocated.
    #[test]
    fn declared_lengths_beyond_the_input_are_refused() {
        let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        for head in [&[1u8, 0][..], &[1, 1], &[1, 2], &[1, 1, 1, b't'], &[1, 4]] {
            let bytes = [head, &endless[..]].concat();
            assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed { .. })), "{bytes:?}");
        }
    }

    /// A broker would tell its client another end of the command than the one that it had.
    #[test]
    fn what_was_decided_is_told_as_it_was() {
        let id = Uuid::from_u128(7);
        for decided in [
            Ok(Done::TopicCreated { id, partitions: 3 }),
            Ok(Done::ProducerIds { first: ProducerIdRange { first: 5000, count: 1000 } }),
            Err(Refused::TopicExists { name: "t".to_owned() }),
            Err(Refused::TooManyOffsets { limit: 1, bytes_limit: 2 }),
            Err(Refused::NoLeader),
        ] {
            assert_eq!(decode_decided(&encode_decided(&decided)), Ok(decided));
        }
        assert_eq!(decode_decided(&[]), Err(DecodeError::Empty));
        assert!(decode_decided(&[1, 9]).is_err());
    }

    proptest! {
        /// The decoder is given what a disk or a peer gives: it may refuse and never panic.
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(command) = Command::decode(&bytes) {
                prop_assert_eq!(Command::decode(&command.encode()), Ok(command));
            }
        }

        #[test]
        fn damaged_commands_decode_or_are_refused(at in any::<prop::sample::Index>(), value in any::<u8>()) {
            for (command, _) in examples() {
                let mut bytes = command.encode();
                let at = at.index(bytes.len());
                bytes[at] = value;
                if let Ok(other) = Command::decode(&bytes) {
                    prop_assert_eq!(Command::decode(&other.encode()), Ok(other));
                }
            }
        }
    }
}
