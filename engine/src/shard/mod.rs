//! The pump of one core: drives the WAL, the replicas and the partitions of this core, and answers what is asked of
//! them.
//!
//! In:  [`api::Ask`]s with a [`api::Ticket`] each, disk completions, ticks. Out: one [`api::Answer`] for each ticket.
//! Files: `api.rs` what may be asked and answered; `core.rs` the pump; `recovery.rs` the shards after a restart;
//! `snapshot.rs` their state in the WAL; `reads.rs` reads of the disk; `watch.rs` who waits for a partition to move.

pub mod api;
pub mod core;
mod reads;
mod recovery;
mod snapshot;
mod watch;
