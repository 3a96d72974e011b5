//! camus-net: the Kafka wire.
//!
//! `frame.rs` and `conn.rs` cut requests out of bytes and keep answers in order; `api/` holds one file for each API,
//! pure functions of the request and what the core knows; `node.rs` joins connections to the shards of this broker.
