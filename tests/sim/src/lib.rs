//! Whole brokers in the simulator: one thread, virtual time, and one seed from which everything follows.
//!
//! In: a seed and how long to run ([`scenario::run`]). Out: what the clients did and saw (`camus-history`), what is
//! wrong with it, and the trace's hash, by which a replay is known to be the same.
//!
//! Files: `kit.rs` one broker or three put together as in production, on simulated disks; `wire.rs` Kafka's wire from
//! the client's side, `batches.rs` the batches on it, `reach.rs` how a client finds whom it talks to; `ledger.rs` what
//! clients did and saw; `producers.rs`, `readers.rs`, `members.rs` and `onlookers.rs` the clients, `fellows/` several
//! that are one group, `epochs.rs` one that asks where leader epochs end, `clients.rs` all of them; `faults.rs` what
//! goes wrong with one broker and when, `cluster_faults.rs` with a cluster; `scenario.rs` one seed from start to
//! judgement; `judgement.rs` what damage may do to what clients saw, and what not; `crash_points.rs` a crash at every
//! boundary of a short life; `pumps.rs` three pumps without Kafka's wire, `replicas.rs` one seed of them; `planted.rs`
//! mistakes that have to be found; `runner.rs` many seeds on some threads, `figures.rs` how fast they are; `page.rs`
//! pages whose tables are made.
#![allow(clippy::unwrap_used, reason = "a simulation that meets what can not be ends, and its seed is named")]

pub mod batches;
pub mod clients;
pub mod cluster_faults;
pub mod crash_points;
pub mod epochs;
pub mod faults;
pub mod fellows;
pub mod figures;
pub mod judgement;
pub mod kit;
pub mod ledger;
pub mod members;
pub mod onlookers;
pub mod page;
pub mod planted;
pub mod producers;
pub mod pumps;
pub mod reach;
pub mod readers;
pub mod replicas;
pub mod runner;
pub mod scenario;
pub mod wire;
