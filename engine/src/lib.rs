//! camus-engine: everything a shard is, and nothing about Kafka's wire or the cluster's metadata.
//!
//! The rooms, from the machine upwards: `rt` (the loop of one core and the lanes between cores), `io` (the disk),
//! `wal` (what survives a crash), `replica` (Raft), `partition` (offsets and producers), `shard` (the pump that drives
//! all of these on one core). Decisions are pure: a room takes inputs and returns what is to happen as data.
pub mod crc;
pub mod io;
pub mod limits;
pub mod partition;
#[cfg(feature = "planted")]
pub mod planted;
pub mod replica;
pub mod rt;
pub mod shard;
pub mod stats;
pub mod types;
pub mod wal;
