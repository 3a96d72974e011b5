//! The rules of the house that a compiler does not check.
//!
//! `house.rs` reads the files; `source.rs` tells Rust code from comments, strings and tests; `rules.rs` the rules on
//! code; `planted.rs` those on planted bugs; `docs.rs` the rules on documents; `wrap.rs` wraps comments that do not
//! fit. A rule is a function of the house that returns what it found, with file and line; `tests/house.rs` holds the
//! house to them, and each has a bad sample beside it that it must find.

pub mod docs;
pub mod house;
pub mod planted;
pub mod rules;
pub mod source;
pub mod wrap;

pub use house::{Finding, House};
