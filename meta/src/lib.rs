//! camus-meta: the cluster's metadata as a pure state machine over the meta shard's log.
//!
//! `command.rs` what can be decided; `state.rs` the state machine; `image.rs` what every core reads; `configs.rs` the
//! topic settings; `offsets.rs` what groups have committed; `users.rs` what users are known by; `groups/` the
//! coordinator of consumer groups, which lives beside the state machine and is not replicated; `limits.rs` bounds all
//! of it. Nothing here does I/O, knows a clock, or draws a random number: all of it comes in with a command or a
//! request.

pub mod command;
pub mod configs;
pub mod groups;
pub mod image;
pub mod limits;
pub mod offsets;
pub mod state;
pub mod users;

pub use command::{
    Command, Decided, DecodeError, Done, PartitionOffset, Placement, ProducerIdRange, Refused, TopicOffsets,
    decode_decided, encode_decided,
};
pub use image::{Image, Topic};
pub use state::State;
pub use users::{Credential, Mechanism, Users};
