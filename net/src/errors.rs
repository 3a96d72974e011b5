//! From what went wrong inside to Kafka's error codes.
//!
//! [`Code`] has no UNKNOWN_SERVER_ERROR (-1): that code can not be sent, because it can not be named. It also lacks
//! DUPLICATE_SEQUENCE_NUMBER (46), which clients take for a success without an offset, and what brokers say to brokers.

use camus_engine::shard::api::Refusal;
use camus_meta::Refused;
use camus_meta::groups::GroupRefusal;

/// Kafka's error codes, as far as a broker may send them to a client. Names and numbers are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i16)]
pub enum Code {
    None = 0,
    OffsetOutOfRange = 1,
    CorruptMessage = 2,
    UnknownTopicOrPartition = 3,
    LeaderNotAvailable = 5,
    NotLeaderOrFollower = 6,
    RequestTimedOut = 7,
    ReplicaNotAvailable = 9,
    MessageTooLarge = 10,
    OffsetMetadataTooLarge = 12,
    CoordinatorLoadInProgress = 14,
    CoordinatorNotAvailable = 15,
    NotCoordinator = 16,
    InvalidTopicException = 17,
    NotEnoughReplicas = 19,
    NotEnoughReplicasAfterAppend = 20,
    InvalidRequiredAcks = 21,
    IllegalGeneration = 22,
    InconsistentGroupProtocol = 23,
    InvalidGroupId = 24,
    UnknownMemberId = 25,
    InvalidSessionTimeout = 26,
    RebalanceInProgress = 27,
    InvalidCommitOffsetSize = 28,
    TopicAuthorizationFailed = 29,
    GroupAuthorizationFailed = 30,
    ClusterAuthorizationFailed = 31,
    InvalidTimestamp = 32,
    UnsupportedSaslMechanism = 33,
    IllegalSaslState = 34,
    UnsupportedVersion = 35,
    TopicAlreadyExists = 36,
    InvalidPartitions = 37,
    InvalidReplicationFactor = 38,
    InvalidReplicaAssignment = 39,
    InvalidConfig = 40,
    NotController = 41,
    InvalidRequest = 42,
    UnsupportedForMessageFormat = 43,
    PolicyViolation = 44,
    OutOfOrderSequenceNumber = 45,
    InvalidProducerEpoch = 47,
    InvalidTxnState = 48,
    InvalidProducerIdMapping = 49,
    InvalidTransactionTimeout = 50,
    ConcurrentTransactions = 51,
    TransactionalIdAuthorizationFailed = 53,
    SecurityDisabled = 54,
    OperationNotAttempted = 55,
    KafkaStorageError = 56,
    LogDirNotFound = 57,
    SaslAuthenticationFailed = 58,
    UnknownProducerId = 59,
    ReassignmentInProgress = 60,
    InvalidPrincipalType = 67,
    NonEmptyGroup = 68,
    GroupIdNotFound = 69,
    FetchSessionIdNotFound = 70,
    InvalidFetchSessionEpoch = 71,
    ListenerNotFound = 72,
    TopicDeletionDisabled = 73,
    FencedLeaderEpoch = 74,
    UnknownLeaderEpoch = 75,
    UnsupportedCompressionType = 76,
    OffsetNotAvailable = 78,
    MemberIdRequired = 79,
    PreferredLeaderNotAvailable = 80,
    GroupMaxSizeReached = 81,
    FencedInstanceId = 82,
    EligibleLeadersNotAvailable = 83,
    ElectionNotNeeded = 84,
    NoReassignmentInProgress = 85,
    GroupSubscribedToTopic = 86,
    InvalidRecord = 87,
    UnstableOffsetCommit = 88,
    ThrottlingQuotaExceeded = 89,
    ProducerFenced = 90,
    ResourceNotFound = 91,
    DuplicateResource = 92,
    UnacceptableCredential = 93,
    InvalidUpdateVersion = 95,
    FeatureUpdateFailed = 96,
    UnknownTopicId = 100,
    InconsistentTopicId = 103,
    InconsistentClusterId = 104,
    TransactionalIdNotFound = 105,
    FetchSessionTopicIdError = 106,
    OffsetMovedToTieredStorage = 109,
    FencedMemberEpoch = 110,
    UnreleasedInstanceId = 111,
    UnsupportedAssignor = 112,
    StaleMemberEpoch = 113,
    MismatchedEndpointType = 114,
    UnsupportedEndpointType = 115,
    UnknownSubscriptionId = 117,
    TelemetryTooLarge = 118,
    TransactionAbortable = 120,
    InvalidRegularExpression = 128,
    RebootstrapRequired = 129,
}

impl Code {
    /// As it stands on the wire.
    pub const fn wire(self) -> i16 {
        self as i16
    }
}

impl From<Code> for i16 {
    fn from(code: Code) -> i16 {
        code.wire()
    }
}

/// What a client is told of a refusal, in every API but Produce (see [`produce_code`]).
///
/// Fetch may use the codes 1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100 and 103 only: the Java consumer dies of any other.
/// Every refusal that a read can meet is one of these. `Busy` is KAFKA_STORAGE_ERROR for that reason: all clients take
/// it as "refresh and try again", and it is in the list.
pub fn code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::NotLeader => Code::NotLeaderOrFollower,
        Refusal::UnknownPartition => Code::UnknownTopicOrPartition,
        Refusal::OffsetOutOfRange { .. } => Code::OffsetOutOfRange,
        Refusal::FencedEpoch => Code::FencedLeaderEpoch,
        Refusal::UnknownEpoch => Code::UnknownLeaderEpoch,
        Refusal::OutOfOrderSequence { .. } => Code::OutOfOrderSequenceNumber,
        Refusal::OldProducerEpoch { .. } => Code::InvalidProducerEpoch,
        Refusal::Corrupt(_) => Code::CorruptMessage,
        Refusal::TooLarge { .. } => Code::MessageTooLarge,
        Refusal::Timestamp { .. } => Code::InvalidTimestamp,
        Refusal::Invalid { .. } => Code::InvalidRecord,
        Refusal::UnsupportedCodec => Code::UnsupportedCompressionType,
        Refusal::NoSpace => Code::KafkaStorageError,
        Refusal::Busy => Code::KafkaStorageError,
        Refusal::Storage => Code::KafkaStorageError,
    }
}

/// What a producer is told. It differs from [`code`] in one point: `Busy` is NOT_ENOUGH_REPLICAS, Kafka's word for
/// "refused before the append, try again". Every client re-sends after it (older sarama does not after 56), with its
/// own pause and without asking for metadata anew, which a busy broker does not need on top.
pub fn produce_code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Busy => Code::NotEnoughReplicas,
        other => code(other),
    }
}

/// What a client is told when the meta shard did not do what it asked.
///
/// `Unavailable` is REQUEST_TIMED_OUT: retriable in every admin client, and like a time-out it leaves open whether the
/// change will still come about. `NoLeader` is NOT_CONTROLLER: it did not, and the client asks who the controller is.
pub fn meta_code(refused: &Refused) -> Code {
    match refused {
        Refused::TopicExists { .. } => Code::TopicAlreadyExists,
        Refused::UnknownTopic => Code::UnknownTopicOrPartition,
        Refused::UnknownTopicId => Code::UnknownTopicId,
        Refused::InvalidName { .. } => Code::InvalidTopicException,
        Refused::InvalidPartitions { .. } => Code::InvalidPartitions,
        Refused::InvalidReplicationFactor { .. } => Code::InvalidReplicationFactor,
        Refused::InvalidConfig { .. } => Code::InvalidConfig,
        Refused::TooManyPartitions { .. } => Code::PolicyViolation,
        Refused::InvalidRequest { .. } => Code::InvalidRequest,
        Refused::TooManyOffsets { .. } => Code::InvalidCommitOffsetSize,
        Refused::Unavailable { .. } => Code::RequestTimedOut,
        Refused::NoLeader => Code::NotController,
        Refused::UnknownCredential => Code::ResourceNotFound,
        Refused::TooManyUsers { .. } => Code::UnacceptableCredential,
    }
}

/// What a client is told when the coordinator of groups says no.
pub fn group_code(refusal: GroupRefusal) -> Code {
    match refusal {
        GroupRefusal::InvalidGroupId => Code::InvalidGroupId,
        GroupRefusal::UnknownMember => Code::UnknownMemberId,
        GroupRefusal::MemberIdRequired => Code::MemberIdRequired,
        GroupRefusal::FencedInstance => Code::FencedInstanceId,
        GroupRefusal::IllegalGeneration => Code::IllegalGeneration,
        GroupRefusal::InconsistentProtocol => Code::InconsistentGroupProtocol,
        GroupRefusal::InvalidSessionTimeout => Code::InvalidSessionTimeout,
        GroupRefusal::RebalanceInProgress => Code::RebalanceInProgress,
        GroupRefusal::GroupFull => Code::GroupMaxSizeReached,
        GroupRefusal::InvalidRequest => Code::InvalidRequest,
        GroupRefusal::GroupNotFound => Code::GroupIdNotFound,
        GroupRefusal::NonEmptyGroup => Code::NonEmptyGroup,
        GroupRefusal::SubscribedToTopic => Code::GroupSubscribedToTopic,
        GroupRefusal::CommitTooLarge => Code::InvalidCommitOffsetSize,
        GroupRefusal::FencedMemberEpoch => Code::FencedMemberEpoch,
        GroupRefusal::StaleMemberEpoch => Code::StaleMemberEpoch,
        GroupRefusal::UnreleasedInstance => Code::UnreleasedInstanceId,
        GroupRefusal::UnsupportedAssignor => Code::UnsupportedAssignor,
        GroupRefusal::InvalidPattern => Code::InvalidRegularExpression,
        GroupRefusal::UnsupportedVersion => Code::UnsupportedVersion,
        GroupRefusal::Busy => Code::CoordinatorLoadInProgress,
        GroupRefusal::Stopping => Code::CoordinatorNotAvailable,
        GroupRefusal::NotCoordinator => Code::NotCoordinator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use camus_engine::types::{Offset, ProducerEpoch, ProducerId, Sequence};
    use kafka_protocol::ResponseError;

    /// A member that is told the wrong code gives up, or joins again for ever.
    #[test]
    fn each_refusal_of_a_group_has_kafkas_code() {
        use GroupRefusal::*;
        let codes = [
            (IllegalGeneration, 22),
            (InconsistentProtocol, 23),
            (InvalidGroupId, 24),
            (UnknownMember, 25),
            (InvalidSessionTimeout, 26),
            (RebalanceInProgress, 27),
            (CommitTooLarge, 28),
            (InvalidRequest, 42),
            (NonEmptyGroup, 68),
            (GroupNotFound, 69),
            (MemberIdRequired, 79),
            (GroupFull, 81),
            (FencedInstance, 82),
            (SubscribedToTopic, 86),
            (FencedMemberEpoch, 110),
            (UnreleasedInstance, 111),
            (UnsupportedAssignor, 112),
            (StaleMemberEpoch, 113),
            (InvalidPattern, 128),
            (UnsupportedVersion, 35),
            (Busy, 14),
            (Stopping, 15),
            (NotCoordinator, 16),
        ];
        for (refusal, code) in codes {
            assert_eq!(group_code(refusal).wire(), code, "{refusal}");
        }
    }

    fn refusals() -> Vec<(Refusal, i16)> {
        let none = Offset(0);
        vec![
            (Refusal::NotLeader, 6),
            (Refusal::UnknownPartition, 3),
            (Refusal::OffsetOutOfRange { high_watermark: none, log_start: none }, 1),
            (Refusal::FencedEpoch, 74),
            (Refusal::UnknownEpoch, 75),
            (Refusal::OutOfOrderSequence { producer: ProducerId(1), expected: Sequence(1), found: Sequence(2) }, 45),
            (
                Refusal::OldProducerEpoch {
                    producer: ProducerId(1),
                    current: ProducerEpoch(2),
                    found: ProducerEpoch(1),
                },
                47,
            ),
            (Refusal::Corrupt("x"), 2),
            (Refusal::TooLarge { bytes: 2, limit: 1 }, 10),
            (Refusal::Timestamp { indexes: vec![] }, 32),
            (Refusal::Invalid { why: "x", indexes: vec![] }, 87),
            (Refusal::UnsupportedCodec, 76),
            (Refusal::NoSpace, 56),
            (Refusal::Busy, 56),
            (Refusal::Storage, 56),
        ]
    }

    /// A wrong number makes a client give up, or retry what it must not.
    #[test]
    fn each_refusal_has_the_code_that_clients_know() {
        for (refusal, wire) in refusals() {
            assert_eq!(code(&refusal).wire(), wire, "{refusal}");
            let produce = if refusal == Refusal::Busy { 19 } else { wire };
            assert_eq!(produce_code(&refusal).wire(), produce, "{refusal}");
        }
    }

    /// The Java consumer dies of a code that it does not know in a Fetch answer.
    #[test]
    fn a_refused_read_has_a_code_that_the_java_consumer_survives() {
        let known = [1, 2, 3, 6, 9, 29, 56, 74, 75, 78, 100, 103];
        for refusal in [
            Refusal::NotLeader,
            Refusal::UnknownPartition,
            Refusal::OffsetOutOfRange { high_watermark: Offset(0), log_start: Offset(0) },
            Refusal::FencedEpoch,
            Refusal::UnknownEpoch,
            Refusal::NoSpace,
            Refusal::Busy,
            Refusal::Storage,
        ] {
            assert!(known.contains(&code(&refusal).wire()), "{refusal}");
        }
    }

    /// A variant with another number than Kafka's would lie to every client.
    #[test]
    fn names_and_numbers_are_kafkas() {
        for wire in 1..=140_i16 {
            let Some(theirs) = ResponseError::try_from_code(wire) else { continue };
            let ours = ALL.iter().find(|c| c.wire() == wire);
            if let Some(ours) = ours {
                assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
            }
        }
        assert!(ALL.iter().all(|c| c.wire() >= 0));
    }

    const ALL: &[Code] = &[
        Code::None,
        Code::OffsetOutOfRange,
        Code::CorruptMessage,
        Code::UnknownTopicOrPartition,
        Code::LeaderNotAvailable,
        Code::NotLeaderOrFollower,
        Code::RequestTimedOut,
        Code::ReplicaNotAvailable,
        Code::MessageTooLarge,
        Code::OffsetMetadataTooLarge,
        Code::CoordinatorLoadInProgress,
        Code::CoordinatorNotAvailable,
        Code::NotCoordinator,
        Code::InvalidTopicException,
        Code::NotEnoughReplicas,
        Code::NotEnoughReplicasAfterAppend,
        Code::InvalidRequiredAcks,
        Code::IllegalGeneration,
        Code::InconsistentGroupProtocol,
        Code::InvalidGroupId,
        Code::UnknownMemberId,
        Code::InvalidSessionTimeout,
        Code::RebalanceInProgress,
        Code::InvalidCommitOffsetSize,
        Code::TopicAuthorizationFailed,
        Code::GroupAuthorizationFailed,
        Code::ClusterAuthorizationFailed,
        Code::InvalidTimestamp,
        Code::UnsupportedSaslMechanism,
        Code::IllegalSaslState,
        Code::UnsupportedVersion,
        Code::TopicAlreadyExists,
        Code::InvalidPartitions,
        Code::InvalidReplicationFactor,
        Code::InvalidReplicaAssignment,
        Code::InvalidConfig,
        Code::NotController,
        Code::InvalidRequest,
        Code::UnsupportedForMessageFormat,
        Code::PolicyViolation,
        Code::OutOfOrderSequenceNumber,
        Code::InvalidProducerEpoch,
        Code::InvalidTxnState,
        Code::InvalidProducerIdMapping,
        Code::InvalidTransactionTimeout,
        Code::ConcurrentTransactions,
        Code::TransactionalIdAuthorizationFailed,
        Code::SecurityDisabled,
        Code::OperationNotAttempted,
        Code::KafkaStorageError,
        Code::LogDirNotFound,
        Code::SaslAuthenticationFailed,
        Code::UnknownProducerId,
        Code::ReassignmentInProgress,
        Code::InvalidPrincipalType,
        Code::NonEmptyGroup,
        Code::GroupIdNotFound,
        Code::FetchSessionIdNotFound,
        Code::InvalidFetchSessionEpoch,
        Code::ListenerNotFound,
        Code::TopicDeletionDisabled,
        Code::FencedLeaderEpoch,
        Code::UnknownLeaderEpoch,
        Code::UnsupportedCompressionType,
        Code::OffsetNotAvailable,
        Code::MemberIdRequired,
        Code::PreferredLeaderNotAvailable,
        Code::GroupMaxSizeReached,
        Code::FencedInstanceId,
        Code::EligibleLeadersNotAvailable,
        Code::ElectionNotNeeded,
        Code::NoReassignmentInProgress,
        Code::GroupSubscribedToTopic,
        Code::InvalidRecord,
        Code::UnstableOffsetCommit,
        Code::ThrottlingQuotaExceeded,
        Code::ProducerFenced,
        Code::ResourceNotFound,
        Code::DuplicateResource,
        Code::UnacceptableCredential,
        Code::InvalidUpdateVersion,
        Code::FeatureUpdateFailed,
        Code::UnknownTopicId,
        Code::InconsistentTopicId,
        Code::InconsistentClusterId,
        Code::TransactionalIdNotFound,
        Code::FetchSessionTopicIdError,
        Code::OffsetMovedToTieredStorage,
        Code::FencedMemberEpoch,
        Code::UnreleasedInstanceId,
        Code::UnsupportedAssignor,
        Code::StaleMemberEpoch,
        Code::MismatchedEndpointType,
        Code::UnsupportedEndpointType,
        Code::UnknownSubscriptionId,
        Code::TelemetryTooLarge,
        Code::TransactionAbortable,
        Code::InvalidRegularExpression,
        Code::RebootstrapRequired,
    ];
}
