//! Fuzz targets: what comes from outside (the wire, the disk) must never panic, hang, or take memory without bound.
//!
//! A target is a function of bytes. Two things run it: libFuzzer (`fuzz/`), which finds its inputs by what they cover,
//! and the runner of this crate (`camus-fuzz`), which needs no fuzzer and no nightly toolchain: its inputs are what is
//! kept (`corpus/`), what `make` makes, and changes of both, all of it from one number.
//!
//! Files: one for each target; `schema.rs` and `make.rs` write requests, right and wrong; `mutate.rs` changes bytes;
//! `inputs.rs` says which input comes when. Of the binary: `runner.rs`, `planted.rs`.

pub mod batches;
pub mod corpus;
pub mod frames;
pub mod inputs;
pub mod make;
pub mod meta;
mod mutate;
pub mod peer_frames;
pub mod requests;
pub mod rng;
pub mod schema;
pub mod wal_image;

use rng::Rng;

pub const KIB: usize = 1024;
pub const MIB: usize = 1024 * KIB;

/// An input is no larger than this.
pub const INPUT_BYTES_MAX: usize = 32 * KIB;

/// Something that takes bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// Takes any bytes. Panics where a promise is broken.
    pub fuzz: fn(&[u8]),
    /// What `fuzz` may hold of the heap at one time for these bytes: a multiple of them, and what it takes at any rate.
    pub heap_bytes_max: fn(&[u8]) -> usize,
    /// The input of this number, from 0 on.
    pub make: fn(&mut Rng, u64) -> Vec<u8>,
    /// So many of them are given to the target as they are made, in every run, however short it is.
    pub whole: fn() -> u64,
    /// See [`corpus`].
    pub corpus: &'static str,
    /// Of the time of a run, beside the others.
    pub share: u64,
}

pub static TARGETS: &[Target] =
    &[frames::TARGET, requests::TARGET, batches::TARGET, wal_image::TARGET, peer_frames::TARGET, meta::TARGET];
