//! Every bound of the metadata that is not a bound of the engine, with its unit last and its reason beside it.

/// Bytes of a group's name. Kafka has no limit but the 32,767 of its strings; nobody names a group like that.
pub const GROUP_ID_BYTES_MAX: usize = 1024;
/// Groups that have members, or had some. One more takes the place of an empty one, or is told to come again.
pub const GROUPS_MAX: usize = 20_000;
/// The largest value that `group.max.size` may take, and its default.
pub const GROUP_MEMBERS_MAX: usize = 10_000;
/// Member ids of one group that are given out and not yet used to join (Kafka has no limit).
pub const GROUP_PENDING_MAX: usize = GROUP_MEMBERS_MAX;
/// A member's id, its instance id, its rack, bytes: each stands in several places. Clients make ids of 36 bytes; those
/// of the broker are longer by the client's own name.
pub const MEMBER_ID_BYTES_MAX: usize = 1024;
/// What one member may say of itself to its group: names and metadata of all its protocols, bytes.
pub const MEMBER_BYTES_MAX: usize = 1024 * 1024;
/// Protocols of one member. Clients have fewer than ten.
pub const MEMBER_PROTOCOLS_MAX: usize = 100;
/// What a member, or a member id that waits to be used, takes besides what it says of itself, bytes.
pub const MEMBER_BYTES_FIXED: usize = 1024;
/// All members of all groups, with what they say of themselves and are assigned, bytes. It lives in core 0's memory.
pub const MEMBERS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A subscribed pattern, bytes. The longest name of a topic is 249.
pub const PATTERN_BYTES_MAX: usize = 1024;
/// How often a pattern may repeat a part, as in RE2.
pub const PATTERN_REPEAT_MAX: u32 = 1000;
/// What a pattern may take with its repetitions written out, bytes. All of this is given back at once: no pattern is
/// kept ready.
pub const PATTERN_NFA_BYTES_MAX: usize = 64 * 1024;
/// What the sets of steps may take that the states of its table stand for, bytes: some 600 states.
pub const PATTERN_SETS_BYTES_MAX: usize = 48 * 1024;
/// The bytes of its table times the empty steps: with the two above it bounds the time that making one takes, to some
/// 10 ms. The table itself is 305 KiB at most.
pub const PATTERN_WORK_MAX: usize = 2_500_000;
/// How deep a pattern may be nested.
pub const PATTERN_NEST_MAX: u32 = 50;
/// Different patterns of one group: each is matched against the names of all topics, on core 0.
pub const GROUP_PATTERNS_MAX: usize = 32;
/// What a partition takes that is meant for a member of a consumer group, and again while the member has it, bytes.
pub const GROUP_PARTITION_BYTES: usize = 64;
/// Steps of an assignment of a consumer group (members, partitions and names that were looked at; 50 to 200 ns each)
/// up to which the next one is made with the next change. After a larger one changes gather for a while, so that many
/// members that come at once do not hold up core 0.
pub const ASSIGN_AT_ONCE_MAX: usize = 10_000;
/// How long changes gather at least, and at most: well below the 45 s after which a silent member is out.
pub const ASSIGN_PAUSE_MS: u64 = 1000;
pub const ASSIGN_PAUSE_MAX_MS: u64 = 10_000;
/// Steps for each millisecond of that: assignments of one group take a few per cent of core 0.
pub const ASSIGN_STEPS_PER_PAUSE_MS: usize = 200;

/// Committed offsets of all groups: a hundred groups that read every partition of the cluster would be ten times as
/// many, and each takes about 100 bytes in memory and 30 in a snapshot.
pub const OFFSETS_MAX: usize = 1_000_000;
/// What a committed offset takes in memory besides its metadata, bytes, with its places in the maps.
pub const OFFSET_BYTES_FIXED: usize = 128;
/// Names of groups and metadata of offsets, bytes, all together.
pub const OFFSETS_BYTES_MAX: usize = 64 * 1024 * 1024;
/// One command of the meta shard's log that a group asks for, bytes. Larger commits are refused whole
/// (INVALID_COMMIT_OFFSET_SIZE, as in Kafka when a commit is over `message.max.bytes`).
pub const GROUP_COMMAND_BYTES_MAX: usize = 512 * 1024;
/// What one answer says of groups, bytes, about, and one group besides: who is in them, or what they committed. The
/// groups that are left are told to come again. A name costs nothing to ask for, and may be named again and again.
pub const GROUP_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Groups that one DeleteGroups removes; the others are told to come again.
pub const GROUPS_DELETED_AT_ONCE_MAX: usize = 500;

/// Users with credentials; all of them are in each core's image. A credential takes a few hundred bytes.
pub const USERS_MAX: usize = 10_000;
/// A user's name, bytes.
pub const USER_NAME_BYTES_MAX: usize = 1024;
/// A salt, bytes. Kafka's tools make 26.
pub const SALT_BYTES_MAX: usize = 256;

const _: () = assert!(GROUP_COMMAND_BYTES_MAX < camus_engine::limits::WAL_GROUP_BYTES_MAX);
const _: () = assert!(GROUP_ID_BYTES_MAX * GROUPS_DELETED_AT_ONCE_MAX <= GROUP_COMMAND_BYTES_MAX);
const _: () = assert!(MEMBER_BYTES_MAX <= MEMBERS_BYTES_MAX / 16);
