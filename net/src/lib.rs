//! camus-net: the Kafka wire.
//!
//! `frame.rs` and `conn.rs` cut requests out of bytes and keep answers in order; `codec.rs` reads and writes Kafka's
//! primitive types; `errors.rs` makes error codes of refusals; `limits.rs` bounds all of it; `api/` holds one file for
//! each API, pure functions of the request and what the core knows; `meta_host.rs` runs the meta shard's state machine;
//! `node.rs` joins connections to the shards of this broker; `peer/` is what goes between brokers.
//!
//! Requests are decoded with [`codec::Reader`] only. The decoders of the `kafka-protocol` crate reserve what an array's
//! count announces, up to 2^31 elements, before they look at the bytes, and store every unknown tagged field: a request
//! of 20 bytes takes the machine's memory. The crate's messages and encoders serve for responses ([`codec::respond`]).

pub mod api;
pub mod codec;
pub mod conn;
pub mod errors;
pub mod frame;
pub mod limits;
pub mod meta_host;
pub mod node;
pub mod peer;
