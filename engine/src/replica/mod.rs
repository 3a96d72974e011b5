//! One shard's copy on this core: Raft, and nothing of what the entries mean.
//!
//! The engine is the `raft` crate, driven without I/O and without a clock. It sees terms, positions and a descriptor of
//! 10 bytes for each entry; the bytes themselves stay in the WAL, which is the log. No type of that crate is seen
//! outside this room, and its protobuf never parses a byte: what travels between brokers is our [`Message`]
//! (docs/adr/0003).
//!
//! An entry is committed when a majority of the voters has flushed it (docs/adr/0005). A replica counts itself only
//! after [`Replica::persisted`]. A single broker is a group with one voter and takes the same way.
//!
//! In:  ticks, proposals, messages, [`Replica::persisted`].
//! Out: [`ReadyOut`]: what the WAL is to hold, what is to be sent, what is committed, who leads.
//! Files: `core.rs` the replica; `log.rs` what Raft may know of the log, and how it is found again after a restart;
//! `message.rs` what travels between brokers; `simulated.rs` three replicas in memory, with faults.

mod core;
mod log;
mod message;
#[cfg(test)]
mod simulated;

pub use self::core::{NotLeader, ReadyOut, Replica, StepError};
pub use self::log::{Descriptor, Entry, HardState, LogGap, RecoveredLog};
pub use self::message::{Message, MessageEntry, MessageKind};
