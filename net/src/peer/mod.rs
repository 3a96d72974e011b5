//! What goes between the brokers of one cluster: a protocol of our own, over one connection for each direction.
//!
//! Core n of a broker connects to core n of each other broker and sends on its own connection only; answers come on the
//! other's (docs/adr/0013). Over it go the messages of replicas, and commands that a broker can not write itself
//! because another one leads the meta shard. Any of them may be lost: whoever sent it asks again, or gives up in time.
//!
//! Files: `codec.rs` the frames; `hello.rs` who is at the other end, and whether it may be; `link.rs` one outgoing
//! connection: when to connect, what to send, when to give up; `guest.rs` one incoming one; `hub.rs` all of one core,
//! joined to its shell; `forward.rs` the commands that were passed on; `roll.rs` which data directory each broker has.

pub mod codec;
pub mod forward;
pub mod guest;
pub mod hello;
pub mod hub;
pub mod link;
pub mod roll;

use camus_engine::types::BrokerId;

/// The id of a broker in every Raft group: never 0.
///
/// # Panics
/// If the broker's id is negative: none is.
pub fn raft_id(broker: BrokerId) -> u64 {
    u64::try_from(broker.0).expect("a broker's id is not negative") + 1
}

/// The broker of a Raft id.
pub fn broker_of(raft_id: u64) -> BrokerId {
    let id = raft_id.checked_sub(1).and_then(|id| i32::try_from(id).ok());
    BrokerId(id.expect("a raft id is that of a broker"))
}
