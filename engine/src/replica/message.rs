//! What travels between the replicas of a shard: Raft's message in a type of our own.

use super::log::Descriptor;
use crate::types::{EntryId, Index, ShardId, Term};
use raft::eraftpb;
use raft::eraftpb::MessageType;

/// The kinds that leave a replica. Snapshots are not among them (docs/adr/0003), and local ones are no messages.
/// Numbers are for the wire between brokers: never change one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MessageKind {
    Append = 1,
    AppendResponse = 2,
    RequestVote = 3,
    RequestVoteResponse = 4,
    RequestPreVote = 5,
    RequestPreVoteResponse = 6,
    Heartbeat = 7,
    HeartbeatResponse = 8,
    TimeoutNow = 9,
    ReadIndex = 10,
    ReadIndexResponse = 11,
}

impl MessageKind {
    pub const ALL: [MessageKind; 11] = [
        MessageKind::Append,
        MessageKind::AppendResponse,
        MessageKind::RequestVote,
        MessageKind::RequestVoteResponse,
        MessageKind::RequestPreVote,
        MessageKind::RequestPreVoteResponse,
        MessageKind::Heartbeat,
        MessageKind::HeartbeatResponse,
        MessageKind::TimeoutNow,
        MessageKind::ReadIndex,
        MessageKind::ReadIndexResponse,
    ];

    /// Raft says nothing with `reject` in these: it is free for what we say.
    pub fn is_heart(self) -> bool {
        matches!(self, MessageKind::Heartbeat | MessageKind::HeartbeatResponse)
    }

    fn to_raft(self) -> MessageType {
        match self {
            MessageKind::Append => MessageType::MsgAppend,
            MessageKind::AppendResponse => MessageType::MsgAppendResponse,
            MessageKind::RequestVote => MessageType::MsgRequestVote,
            MessageKind::RequestVoteResponse => MessageType::MsgRequestVoteResponse,
            MessageKind::RequestPreVote => MessageType::MsgRequestPreVote,
            MessageKind::RequestPreVoteResponse => MessageType::MsgRequestPreVoteResponse,
            MessageKind::Heartbeat => MessageType::MsgHeartbeat,
            MessageKind::HeartbeatResponse => MessageType::MsgHeartbeatResponse,
            MessageKind::TimeoutNow => MessageType::MsgTimeoutNow,
            MessageKind::ReadIndex => MessageType::MsgReadIndex,
            MessageKind::ReadIndexResponse => MessageType::MsgReadIndexResp,
        }
    }

    fn from_raft(kind: MessageType) -> MessageKind {
        let known = MessageKind::ALL.into_iter().find(|k| k.to_raft() == kind);
        known.unwrap_or_else(|| panic!("a message of kind {kind:?} never leaves a replica"))
    }
}

/// One entry of an [`MessageKind::Append`]. Its body travels beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageEntry {
    pub id: EntryId,
    /// `None` when sent: the entry is so old that only the WAL knows; whoever sends its body fills this in.
    pub about: Option<Descriptor>,
}

/// A message from one replica of a shard to another. Plain data; the fields are Raft's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub shard: ShardId,
    pub kind: MessageKind,
    pub from: u64,
    pub to: u64,
    pub term: Term,
    /// The entry that the entries follow on, or the last one in the log of who asks for a vote.
    pub log: EntryId,
    pub entries: Vec<MessageEntry>,
    pub commit: Index,
    pub commit_term: Term,
    /// Ours, not Raft's; in a heartbeat: every voter has flushed all entries up to this one. 0: nothing is known.
    pub matched: Index,
    /// In a heartbeat ours, not Raft's: what the receiver lacks is in the sender's log no more. In the response to one:
    /// the log of who answers is at its limit, and is to be waited for.
    pub reject: bool,
    pub reject_hint: Index,
    /// Opaque to others; a few bytes.
    pub context: Vec<u8>,
    pub priority: i64,
}

impl Message {
    pub(super) fn from_raft(shard: ShardId, mut message: eraftpb::Message) -> Message {
        assert!(message.request_snapshot == 0 && !message.has_snapshot(), "snapshots are not sent");
        let entries = message.take_entries();
        Message {
            shard,
            kind: MessageKind::from_raft(message.get_msg_type()),
            from: message.from,
            to: message.to,
            term: Term(message.term),
            log: EntryId { term: Term(message.log_term), index: Index(message.index) },
            entries: entries
                .iter()
                .map(|e| MessageEntry {
                    id: EntryId { term: Term(e.term), index: Index(e.index) },
                    about: Descriptor::decode(&e.data),
                })
                .collect(),
            commit: Index(message.commit),
            commit_term: Term(message.commit_term),
            matched: Index(0),
            reject: message.reject,
            reject_hint: Index(message.reject_hint),
            context: message.context.to_vec(),
            priority: message.priority,
        }
    }

    pub(super) fn into_raft(self) -> eraftpb::Message {
        let entries: Vec<_> = self
            .entries
            .iter()
            .map(|e| eraftpb::Entry {
                term: e.id.term.0,
                index: e.id.index.0,
                data: e.about.expect("checked where the message came in").encode().into(),
                ..eraftpb::Entry::default()
            })
            .collect();
        eraftpb::Message {
            msg_type: self.kind.to_raft(),
            from: self.from,
            to: self.to,
            term: self.term.0,
            log_term: self.log.term.0,
            index: self.log.index.0,
            entries: entries.into(),
            commit: self.commit.0,
            commit_term: self.commit_term.0,
            reject: self.reject,
            reject_hint: self.reject_hint.0,
            context: self.context.into(),
            priority: self.priority,
            ..eraftpb::Message::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::record::RecordKind;
    use proptest::prelude::*;

    fn messages() -> impl Strategy<Value = Message> {
        let kinds = [RecordKind::Noop, RecordKind::Batch, RecordKind::Trim, RecordKind::Meta, RecordKind::Membership];
        let entry = (any::<u64>(), any::<u64>(), proptest::sample::select(kinds.to_vec()), any::<u32>(), any::<u32>())
            .prop_map(|(term, index, kind, len, crc)| MessageEntry {
                id: EntryId { term: Term(term), index: Index(index) },
                about: Some(Descriptor { kind, len, crc }),
            });
        let ids = proptest::array::uniform8(any::<u64>());
        let rest = (proptest::collection::vec(any::<u8>(), 0..20), any::<bool>(), any::<i64>());
        (proptest::sample::select(MessageKind::ALL.to_vec()), ids, proptest::collection::vec(entry, 0..5), rest)
            .prop_map(|(kind, n, entries, (context, reject, priority))| Message {
                shard: ShardId(3),
                kind,
                from: n[0],
                to: n[1],
                term: Term(n[2]),
                log: EntryId { term: Term(n[3]), index: Index(n[4]) },
                entries,
                commit: Index(n[5]),
                commit_term: Term(n[6]),
                matched: Index(0),
                reject,
                reject_hint: Index(n[7]),
                context,
                priority,
            })
    }

    proptest! {
        /// A field that got lost on the way would be a vote or an entry that means something else.
        #[test]
        fn every_field_of_a_message_survives_the_way_through_raft(message in messages()) {
            prop_assert_eq!(Message::from_raft(message.shard, message.clone().into_raft()), message);
        }
    }
}
