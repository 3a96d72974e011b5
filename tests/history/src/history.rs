//! What clients did and saw, as plain data, and as lines of JSON.
//!
//! One event a line. Every event has `process` (a client that does one thing after the other, or several at once),
//! `invoked_ns` and `completed_ns` (one monotonic clock for all processes of a history), and `op`, which says what the
//! rest of the line is. Events of one process stand in the order in which they ended. A partition is
//! `{"topic":"t","number":0}`.
//!
//! ```text
//! {"process":1,"invoked_ns":10,"completed_ns":20,"op":"produce","partition":{"topic":"t","number":0},
//!  "producer":1,"idempotent":true,"first_number":0,"values":[7,8],"outcome":{"acked":{"base_offset":0}}}
//! {...,"op":"read","partition":...,"from_offset":0,"records":[[0,7],[1,8]],"high_watermark":2,"log_start":0}
//! {...,"op":"list-offset","partition":...,"which":"latest","offset":2}
//! {...,"op":"commit-offset","group":"g","partition":...,"offset":2,"outcome":"acked"}
//! {...,"op":"commit-offset",...,"by":{"member":"m","generation":3}}
//! {...,"op":"fetch-offset","group":"g","partition":...,"offset":2}
//! {...,"op":"assigned","group":"g","member":"m","generation":3,"assignor":{"leader":"m"},"partitions":[...]}
//! {...,"op":"stays","group":"g","member":"m","generation":3}
//! {...,"op":"revoked","group":"g","member":"m","partitions":[...]}
//! {...,"op":"lost","group":"g","member":"m","generation":3,"fenced":true}
//! {...,"op":"trim","partition":...,"offset":1,"outcome":"acked"}
//! {...,"op":"epoch-start","partition":...,"epoch":3,"offset":1}
//! {...,"op":"epoch-end","partition":...,"epoch":3,"known_to":2,"end":2}
//! {...,"op":"final","partition":...,"log_start":1,"records":[[1,8]]}
//! ```
//!
//! An outcome of `produce` is `{"acked":{"base_offset":N}}`, `"info"` or `"failed"`; of the others `"acked"`, `"info"`
//! or `"failed"`. `info` means that nobody knows (a time-out, a lost connection): it may take effect later, or never.
//! `failed` means that it must never be seen. A retry that the client's library makes by itself is no event.
//!
//! Who commits is said by `by`, and need not be. What happens to members of groups is said by members themselves: an
//! `assigned` ends when the member has taken what it was given, a `revoked` and a `lost` when it has stopped reading,
//! before it tells anybody. A history without such events is not judged by them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Partition {
    pub topic: String,
    pub number: i32,
}

impl Partition {
    pub fn new(topic: &str, number: i32) -> Partition {
        Partition { topic: topic.to_owned(), number }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.number)
    }
}

/// Something that a client did, from its question to the answer, or to the moment in which it gave up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    pub process: u32,
    pub invoked_ns: u64,
    pub completed_ns: u64,
    #[serde(flatten)]
    pub op: Op,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Op {
    Produce(Produce),
    Read(Read),
    ListOffset(ListOffset),
    CommitOffset(CommitOffset),
    FetchOffset(FetchOffset),
    Assigned(Assigned),
    Stays(Stays),
    Revoked(Revoked),
    Lost(Lost),
    Trim(Trim),
    EpochStart(EpochStart),
    EpochEnd(EpochEnd),
    Final(Final),
}

/// One batch. The same value in several events is one record that was sent several times.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Produce {
    pub partition: Partition,
    pub producer: u32,
    /// Sent with sequences: a retry must not be there twice, and nothing is left out.
    pub idempotent: bool,
    /// Of the first record, among those of this producer into this partition: from 0, without a gap.
    pub first_number: u64,
    /// Each stands for one record: no two records of a history have the same.
    pub values: Vec<u64>,
    pub outcome: ProduceOutcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProduceOutcome {
    /// -1: the broker did not say where, as it may for a retry.
    Acked { base_offset: i64 },
    /// Nobody knows: it may be there, or come later.
    Info,
    /// Refused for good: it must never be there.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Acked,
    Info,
    Failed,
}

/// An answer to a fetch. Only what lies at `from_offset` or behind it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Read {
    pub partition: Partition,
    pub from_offset: i64,
    /// Offset and value.
    pub records: Vec<(i64, u64)>,
    pub high_watermark: i64,
    /// -1: not said.
    pub log_start: i64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListOffset {
    pub partition: Partition,
    pub which: Which,
    pub offset: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Which {
    Earliest,
    Latest,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CommitOffset {
    pub group: String,
    pub partition: Partition,
    pub offset: i64,
    pub outcome: Outcome,
    /// As which member. `None`: as nobody's, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
}

/// A member of a group, in a generation of the classic protocol or an epoch of KIP-848.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct By {
    pub member: String,
    pub generation: i32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FetchOffset {
    pub group: String,
    pub partition: Partition,
    /// -1: nothing was committed.
    pub offset: i64,
}

/// Who divides the partitions of a group. Only what comes from the same one is compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Assignor {
    /// The member that leads the generation: the classic protocol. A coordinator that has forgotten its groups begins
    /// their generations anew, with leaders that nobody had before.
    Leader(String),
    /// The broker (KIP-848), in one life as the coordinator: who is a member of it at one moment is known to it.
    Coordinator(String),
}

/// From now on a member is in this generation or epoch, and has these partitions and no others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Assigned {
    pub group: String,
    pub member: String,
    pub generation: i32,
    pub assignor: Assignor,
    pub partitions: Vec<Partition>,
}

/// A member asked something and was answered as one: a heartbeat. It had then what it had when it asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stays {
    pub group: String,
    pub member: String,
    pub generation: i32,
}

/// A member has stopped reading these partitions, because it is to give them up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Revoked {
    pub group: String,
    pub member: String,
    pub partitions: Vec<Partition>,
}

/// A member has stopped reading all that it had, in this generation or epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lost {
    pub group: String,
    pub member: String,
    pub generation: i32,
    /// It was told that it is out: nothing that it commits in this generation counts any more. Else it left by itself.
    pub fenced: bool,
}

/// DeleteRecords: what lies below `offset` may go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Trim {
    pub partition: Partition,
    /// -1: all there is. Where a retention is at work, a trim to -1 with the outcome `info` says so.
    pub offset: i64,
    pub outcome: Outcome,
}

/// A batch was read at this offset, and it says that it was written in this leader epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochStart {
    pub partition: Partition,
    pub epoch: i32,
    pub offset: i64,
}

/// An answer to OffsetForLeaderEpoch: where the records of this epoch, and of those before it, end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochEnd {
    pub partition: Partition,
    pub epoch: i32,
    /// Whoever asks has read records of this epoch, or of one before it, up to here.
    pub known_to: i64,
    pub end: i64,
}

/// What the partition holds in the end: from its log start on, everything.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Final {
    pub partition: Partition,
    pub log_start: i64,
    /// Offset and value.
    pub records: Vec<(i64, u64)>,
}

/// A line that is no event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLine {
    /// From 1.
    pub line: usize,
    pub why: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the history: {}", self.line, self.why)
    }
}

impl std::error::Error for BadLine {}

/// One event a line.
pub fn to_lines(history: &[Event]) -> String {
    let mut lines = String::new();
    for event in history {
        lines.push_str(&serde_json::to_string(event).expect("an event has nothing that JSON can not say"));
        lines.push('\n');
    }
    lines
}

/// The events of these lines. Empty lines are skipped.
pub fn from_lines(lines: &str) -> Result<Vec<Event>, BadLine> {
    let mut history = Vec::new();
    for (n, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let event = serde_json::from_str(line).map_err(|error| BadLine { line: n + 1, why: error.to_string() })?;
        history.push(event);
    }
    Ok(history)
}
