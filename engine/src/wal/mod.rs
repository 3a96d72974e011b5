//! The write-ahead log of one core.
//!
//! Everything that must survive a crash passes through here, in LSN order: entries of every shard on this core, and
//! their Raft hard state. One flush covers them all. Nothing here knows Kafka, Raft or a clock.

pub mod record;
pub use record::{RecordAt, RecordHead, RecordKind};
