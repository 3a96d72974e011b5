//! The write-ahead log of one core.
//!
//! Everything that must survive a crash passes through here, in LSN order: entries of every shard on this core, and
//! their Raft hard state. One flush covers them all. Nothing here knows Kafka, Raft or a clock.
//!
//! In: records ([`Wal::append`]), the end of a turn, ends of disk operations. Out: [`WalOut`]: disk operations, and the
//! LSN up to which everything is on the media. Files: `record.rs` a record's head as the engine knows it; `format.rs`
//! the bytes on the disk; `writer.rs` group commit and segments; `cache.rs` the last groups in memory; `recovery.rs`
//! the scan; `flip.rs` one flipped bit told from an unfinished write; `inspect.rs` for tools; `error.rs`; `golden/`
//! images whose bytes never change.

mod cache;
mod error;
mod flip;
pub mod format;
pub mod inspect;
pub mod record;
mod recovery;
mod writer;

pub use error::{Damage, WalError, Why};
pub use record::{RecordAt, RecordHead, RecordKind};
pub use recovery::{Dropped, Owner, Role};
pub use writer::{NoSpaceWhy, RecoveryReport, Room, Wal, WalConfig, WalOut};
