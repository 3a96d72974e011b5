//! The coordinator of consumer groups: who is in a group, which generation it is in, who is assigned what.
//!
//! A pure state machine. It lives on core 0 beside the meta shard's [`crate::State`], in which the committed offsets
//! are; a commit becomes one command of that shard's log and is answered when it is decided. Membership is in memory
//! only: after a restart members are unknown (UNKNOWN_MEMBER_ID), join again and go on at the offsets that were
//! committed (docs/adr/0011). There are two protocols. In the classic one (KIP-62, KIP-345, KIP-394, KIP-814) members
//! agree on generations and one of them assigns; in that of KIP-848 (`consumer/`) the broker assigns.
//!
//! In: [`GroupAsk`] with the [`Ticket`](camus_engine::shard::api::Ticket) that its answer goes to, the decisions on its
//! commands, and time. Out: [`GroupOut`]: answers and commands. Each ask has exactly one answer; those of JoinGroup and
//! SyncGroup may come much later (they are parked until the group has its members, or its assignment).
//!
//! Files: `ask.rs` what is asked and answered; `group.rs` one group's members and what can be said of them without
//! time; `coordinator.rs` all groups, their timers, and the way in; `join.rs` joining and the generations; `offsets.rs`
//! commits; `admin.rs` describe, list, delete. `consumer/`: groups of KIP-848.

mod admin;
mod ask;
mod consumer;
mod coordinator;
mod group;
mod join;
mod offsets;
#[cfg(test)]
mod tests;

pub use ask::{
    Beat, Beaten, Commit, ConsumersState, Described, DescribedConsumer, DescribedConsumers, DescribedMember,
    FetchGroup, FetchedGroup, FetchedPartition, FetchedTopic, GroupAnswer, GroupAsk, GroupKind, GroupOut, GroupRefusal,
    GroupState, Join, Joined, JoinedMember, Leaver, Listed, MemberName, NamedPartitions, Partitions, Sync, Synced,
    Token,
};
pub use consumer::Migration;
pub use coordinator::{Coordinator, GroupSettings};
