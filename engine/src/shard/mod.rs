//! The pump of one core: drives the WAL, the replicas and the partitions of this core, and answers what is asked of
//! them.
//!
//! In:  [`api::Ask`]s with a [`api::Ticket`] each, messages of other brokers, disk completions, ticks. Out: one
//! [`api::Answer`] for each ticket, messages for other brokers.
//! Files: `api.rs` what may be asked and answered; `core.rs` the pump; `replication.rs` its part with several voters;
//! `peers.rs` what goes to the others and comes from them; `recovery.rs` the shards after a restart; `snapshot.rs`
//! their state in the WAL; `reads.rs` reads of the disk; `turned_away.rs` producers whose first batch was refused;
//! `watch.rs` who waits for a partition to move; `describe.rs` what those are told who look after a cluster.

pub mod api;
pub mod core;
mod describe;
pub mod peers;
mod reads;
mod recovery;
mod replication;
mod snapshot;
mod turned_away;
mod watch;
