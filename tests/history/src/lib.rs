//! Histories of clients, and the judgement on them: the same for the simulator and for tests of real processes.
//!
//! In: a history ([`Event`]s, in memory or as lines of JSON). Out: what is wrong with it ([`Anomaly`]). Nothing here
//! knows a broker, a clock or chance.
//!
//! Files: `history.rs` the events and their format; `check.rs` the judgement on logs; `marks.rs` the judgement on what
//! must not go back; `groups.rs` the judgement on who has a partition of a group, and who commits; `epochs.rs` the
//! judgement on where leader epochs end; `anomaly.rs` what can be wrong, with its name and its text.

mod anomaly;
mod check;
mod epochs;
mod groups;
pub mod history;
mod marks;

pub use anomaly::{ANOMALIES_MAX, Anomaly};
pub use check::check;
pub use history::{Event, Op, Partition};
