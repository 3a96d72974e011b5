//! What the coordinator is asked, and what it says. Plain data: it crosses cores through the mesh.

use crate::command::{Command, TopicOffsets};
use crate::offsets::Committed;
use bytes::Bytes;
use camus_engine::shard::api::Ticket;
use std::time::Duration;
use uuid::Uuid;

/// A request to a group. Bytes and names in it are copies: it keeps no frame of a client alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupAsk {
    Join(Box<Join>),
    Sync(Sync),
    Heartbeat {
        group: String,
        generation: i32,
        member: MemberName,
    },
    Leave {
        group: String,
        members: Vec<Leaver>,
    },
    Commit(Commit),
    Fetch {
        groups: Vec<FetchGroup>,
    },
    Describe {
        groups: Vec<String>,
    },
    /// ConsumerGroupHeartbeat (KIP-848).
    Beat(Box<Beat>),
    /// ConsumerGroupDescribe.
    DescribeConsumers {
        groups: Vec<String>,
    },
    List,
    DeleteGroups {
        groups: Vec<String>,
    },
    /// OffsetDelete: topics by name and id, with their partitions.
    DeleteOffsets {
        group: String,
        topics: Vec<(String, Uuid, Vec<u32>)>,
    },
}

/// Who says it: the member id, and of static members the instance id as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberName {
    pub id: String,
    pub instance: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    pub group: String,
    /// The id is empty in a first join.
    pub member: MemberName,
    /// The id that a new member gets: random, so that it is nobody else's.
    pub fresh: String,
    /// Whether a new member has to come again with its id before it counts (KIP-394; JoinGroup 4 and up).
    pub id_required: bool,
    /// Whether the client understands that it leads and is not to assign (KIP-814; JoinGroup 9 and up).
    pub may_skip_assignment: bool,
    pub client_id: String,
    pub client_host: String,
    pub session_timeout: Duration,
    pub rebalance_timeout: Duration,
    pub protocol_type: String,
    /// Names and what the member says under each of them, in the order of its preference.
    pub protocols: Vec<(String, Bytes)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sync {
    pub group: String,
    pub generation: i32,
    pub member: MemberName,
    /// As the client knows them; `None` before SyncGroup 5.
    pub protocol_type: Option<String>,
    pub protocol: Option<String>,
    /// Of the leader: member id and what it is assigned.
    pub assignments: Vec<(String, Bytes)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaver {
    /// The id may be empty when the instance is named.
    pub member: MemberName,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    pub group: String,
    /// Below 0: whoever commits is not a member.
    pub generation: i32,
    pub member: MemberName,
    /// Whether the client knows GROUP_ID_NOT_FOUND and member epochs (OffsetCommit 9 and up).
    pub knows_not_found: bool,
    /// When it was asked for, ms since 1970.
    pub at_ms: i64,
    pub topics: Vec<TopicOffsets>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchGroup {
    pub group: String,
    /// Who asks, where it says so (OffsetFetch 9 and up): only groups of KIP-848 look at it.
    pub member: Option<String>,
    /// Below 0: not said.
    pub epoch: i32,
    /// Topics and partitions; `None`: all that was committed.
    pub topics: Option<Vec<(Uuid, Vec<u32>)>>,
}

/// Partitions by topic.
pub type Partitions = Vec<(Uuid, Vec<u32>)>;

/// A member of a group of KIP-848 says that it is there, and what it has. What is `None` is as it was said before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    pub group: String,
    /// The id may be empty where the broker makes it.
    pub member: MemberName,
    /// Whether members make their own ids (ConsumerGroupHeartbeat 1 and up: KIP-1082).
    pub id_required: bool,
    /// The id of a new member that brings none: random, so that it is nobody else's.
    pub fresh: String,
    /// As the member was told last; 0 joins, -1 leaves, -2 is a static member that leaves and means to come back.
    pub epoch: i32,
    pub client_id: String,
    pub client_host: String,
    pub rack: Option<String>,
    pub rebalance_timeout: Option<Duration>,
    /// Names that it subscribes to, which need not be there.
    pub topics: Option<Vec<String>>,
    /// A pattern that it subscribes to besides; empty: none.
    pub pattern: Option<String>,
    /// The assignor that it prefers.
    pub assignor: Option<String>,
    /// All that it has and has not given up yet.
    pub owned: Option<Partitions>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupAnswer {
    /// The member's id comes along with a refusal too: the new one with [`GroupRefusal::MemberIdRequired`].
    Joined(Result<Joined, (GroupRefusal, String)>),
    Synced(Result<Synced, GroupRefusal>),
    Heartbeat(Result<(), GroupRefusal>),
    /// For all of it, or for each member.
    Left(Result<Vec<Result<(), GroupRefusal>>, GroupRefusal>),
    /// `gone`: topics that were deleted meanwhile.
    Committed(Result<Vec<Uuid>, GroupRefusal>),
    Fetched(Vec<Result<FetchedGroup, GroupRefusal>>),
    /// For each group.
    Described(Vec<Result<Described, GroupRefusal>>),
    Beaten(Result<Beaten, GroupRefusal>),
    /// For each group. [`GroupRefusal::GroupNotFound`]: there is none of this name, or it is none of KIP-848.
    ConsumersDescribed(Vec<Result<DescribedConsumers, GroupRefusal>>),
    Listed(Vec<Listed>),
    /// For each group.
    GroupsDeleted(Vec<Result<(), GroupRefusal>>),
    /// For all of it, or for each topic.
    OffsetsDeleted(Result<Vec<Result<(), GroupRefusal>>, GroupRefusal>),
    /// To a question that has no refusal of its own (Fetch and the descriptions): nothing is answered.
    Refused(GroupRefusal),
}

impl GroupAsk {
    /// The answer that refuses all of it, in the shape that it has. A List is never refused: nothing is listed.
    pub fn refused(self, why: GroupRefusal) -> GroupAnswer {
        match self {
            GroupAsk::Join(join) => GroupAnswer::Joined(Err((why, join.member.id))),
            GroupAsk::Sync(_) => GroupAnswer::Synced(Err(why)),
            GroupAsk::Heartbeat { .. } => GroupAnswer::Heartbeat(Err(why)),
            GroupAsk::Leave { .. } => GroupAnswer::Left(Err(why)),
            GroupAsk::Commit(_) => GroupAnswer::Committed(Err(why)),
            GroupAsk::Beat(_) => GroupAnswer::Beaten(Err(why)),
            GroupAsk::Fetch { .. } | GroupAsk::Describe { .. } | GroupAsk::DescribeConsumers { .. } => {
                GroupAnswer::Refused(why)
            }
            GroupAsk::List => GroupAnswer::Listed(Vec::new()),
            GroupAsk::DeleteGroups { groups } => GroupAnswer::GroupsDeleted(groups.iter().map(|_| Err(why)).collect()),
            GroupAsk::DeleteOffsets { .. } => GroupAnswer::OffsetsDeleted(Err(why)),
        }
    }
}

/// A generation, as one of its members is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    pub member: String,
    pub generation: i32,
    pub protocol_type: String,
    pub protocol: String,
    pub leader: String,
    pub skip_assignment: bool,
    /// All members, for the leader; nobody for the others.
    pub members: Vec<JoinedMember>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedMember {
    pub id: String,
    pub instance: Option<String>,
    /// What it says under the protocol that was chosen.
    pub metadata: Bytes,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Synced {
    pub protocol_type: String,
    pub protocol: String,
    pub assignment: Bytes,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedGroup {
    pub topics: Vec<FetchedTopic>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedTopic {
    pub id: Uuid,
    /// Empty if all topics were not asked for.
    pub name: String,
    pub partitions: Vec<FetchedPartition>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedPartition {
    pub partition: u32,
    pub committed: Option<Committed>,
}

/// What a member of a group of KIP-848 is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beaten {
    pub member: String,
    pub epoch: i32,
    /// How soon it is to be heard again.
    pub interval: Duration,
    /// What it is to have now; `None`: as it was told before.
    pub assignment: Option<Partitions>,
}

/// What a classic group is doing. The names are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupState {
    Empty,
    PreparingRebalance,
    CompletingRebalance,
    Stable,
}

impl GroupState {
    pub fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Stable => "Stable",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    pub state: GroupState,
    pub protocol_type: String,
    /// Empty unless the group is stable, as are metadata and assignments of its members.
    pub protocol: String,
    pub members: Vec<DescribedMember>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedMember {
    pub id: String,
    pub instance: Option<String>,
    pub client_id: String,
    pub client_host: String,
    pub metadata: Bytes,
    pub assignment: Bytes,
}

/// What a group of KIP-848 is doing. The names are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConsumersState {
    Empty,
    /// The target assignment is older than the group.
    Assigning,
    /// A member does not have yet what the target assignment means for it.
    Reconciling,
    Stable,
}

impl ConsumersState {
    pub fn name(self) -> &'static str {
        match self {
            ConsumersState::Empty => "Empty",
            ConsumersState::Assigning => "Assigning",
            ConsumersState::Reconciling => "Reconciling",
            ConsumersState::Stable => "Stable",
        }
    }
}

/// A group of KIP-848.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedConsumers {
    pub state: ConsumersState,
    pub epoch: i32,
    pub assignment_epoch: i32,
    pub assignor: &'static str,
    pub members: Vec<DescribedConsumer>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedConsumer {
    pub id: String,
    pub instance: Option<String>,
    pub rack: Option<String>,
    pub epoch: i32,
    pub client_id: String,
    pub client_host: String,
    pub topics: Vec<String>,
    /// Empty: none.
    pub pattern: String,
    /// Topics that are gone are not among them.
    pub assignment: NamedPartitions,
    pub target: NamedPartitions,
    /// It speaks the classic protocol.
    pub is_classic: bool,
}

/// Partitions by topic, with its name.
pub type NamedPartitions = Vec<(Uuid, String, Vec<u32>)>;

impl FetchedGroup {
    /// What it takes of an answer, bytes, about. So with the others below.
    pub(super) fn bytes(&self) -> usize {
        let metadata = |one: &FetchedPartition| one.committed.as_ref().map_or(0, |committed| committed.metadata.len());
        let topic = |topic: &FetchedTopic| -> usize {
            topic.partitions.iter().map(|one| ANSWER_PART_BYTES + metadata(one)).sum()
        };
        self.topics.iter().map(|one| ANSWER_PART_BYTES + one.name.len() + topic(one)).sum()
    }
}

impl Described {
    pub(super) fn bytes(&self) -> usize {
        let member = |one: &DescribedMember| {
            let words = [one.id.len(), one.instance.as_ref().map_or(0, String::len), one.client_id.len()];
            words.iter().sum::<usize>() + one.client_host.len() + one.metadata.len() + one.assignment.len()
        };
        self.members.iter().map(|one| ANSWER_PART_BYTES + member(one)).sum()
    }
}

impl DescribedConsumers {
    pub(super) fn bytes(&self) -> usize {
        let parts = |of: &NamedPartitions| -> usize {
            of.iter().map(|(_, name, numbers)| ANSWER_PART_BYTES + name.len() + 4 * numbers.len()).sum()
        };
        let text = |of: &Option<String>| of.as_ref().map_or(0, String::len);
        let member = |one: &DescribedConsumer| {
            let words = [one.id.len(), text(&one.instance), text(&one.rack), one.client_id.len(), one.pattern.len()];
            let names: usize = one.topics.iter().map(|name| ANSWER_PART_BYTES / 2 + name.len()).sum();
            words.iter().sum::<usize>() + one.client_host.len() + names + parts(&one.assignment) + parts(&one.target)
        };
        self.members.iter().map(|one| ANSWER_PART_BYTES + member(one)).sum()
    }
}

/// A member, a topic or a partition of an answer besides its texts, in memory and on the wire.
const ANSWER_PART_BYTES: usize = 64;

/// By which protocol a group works. The names are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKind {
    Classic,
    /// KIP-848.
    Consumer,
}

impl GroupKind {
    pub fn name(self) -> &'static str {
        match self {
            GroupKind::Classic => "classic",
            GroupKind::Consumer => "consumer",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub group: String,
    pub protocol_type: String,
    pub kind: GroupKind,
    /// As Kafka names it.
    pub state: &'static str,
}

/// Why the coordinator says no.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupRefusal {
    #[error("the group id is not allowed")]
    InvalidGroupId,
    #[error("the group does not know this member")]
    UnknownMember,
    #[error("come again with the member id of this answer")]
    MemberIdRequired,
    #[error("another member has this instance id")]
    FencedInstance,
    #[error("the group is in another generation")]
    IllegalGeneration,
    #[error("the group has another protocol type, or no protocol in common with this member")]
    InconsistentProtocol,
    #[error("the session timeout is out of the broker's bounds")]
    InvalidSessionTimeout,
    #[error("the group is rebalancing: join again")]
    RebalanceInProgress,
    #[error("the group has as many members as it may have")]
    GroupFull,
    #[error("the request is not allowed")]
    InvalidRequest,
    #[error("there is no such group")]
    GroupNotFound,
    #[error("the group has members")]
    NonEmptyGroup,
    #[error("members of the group subscribe to this topic")]
    SubscribedToTopic,
    #[error("the commit is too large")]
    CommitTooLarge,
    #[error("the member's epoch is not the group's: give up all partitions and join again")]
    FencedMemberEpoch,
    #[error("the member has another epoch by now")]
    StaleMemberEpoch,
    #[error("another member has this instance id and has not left")]
    UnreleasedInstance,
    #[error("there is no such assignor: 'uniform' and 'range' are there")]
    UnsupportedAssignor,
    #[error("the pattern is none of RE2, or is too large")]
    InvalidPattern,
    #[error("a member of this group commits with version 9 of OffsetCommit or a later one")]
    UnsupportedVersion,
    /// Retriable: no room for more, or the log can not be written now.
    #[error("the coordinator can not do it now")]
    Busy,
    /// Retriable: the broker stops.
    #[error("the coordinator is going away")]
    Stopping,
    /// Retriable: another broker coordinates groups.
    #[error("this broker coordinates no groups")]
    NotCoordinator,
}

/// Names a command of the coordinator, so that its decision finds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Token(pub u64);

/// What is to happen. Filled by the coordinator, emptied by whoever runs it.
#[derive(Debug, Default)]
pub struct GroupOut {
    pub answers: Vec<(Ticket, GroupAnswer)>,
    /// Each of them is decided by [`Coordinator::decided`](super::Coordinator::decided), also if it could not be
    /// written.
    pub commands: Vec<(Token, Command)>,
}
