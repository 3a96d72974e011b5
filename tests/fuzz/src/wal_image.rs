//! A good log, and what a disk or a hand may do to it. A recovery shows exactly what was written, or refuses; it may
//! drop only what was never acknowledged.
//!
//! An input: changes of six bytes each: what, where, with which byte.

use crate::rng::Rng;
use crate::{MIB, Target};
use camus_engine::wal::inspect;
use std::sync::OnceLock;
use wal_model::{Crashed, Host, config, recover};

#[path = "../../../engine/tests/wal_model/mod.rs"]
mod wal_model;

pub const TARGET: Target = Target {
    name: "wal_image",
    fuzz,
    heap_bytes_max,
    make: input,
    whole: || 64,
    corpus: include_str!("../corpus/wal_image.txt"),
    share: 1,
};

const CHANGE_BYTES: usize = 6;
const CHANGES_MAX: usize = 16;
const SEGMENT_BYTES: u64 = 64 * 1024;

/// A log of some segments, with groups of one and of many records.
fn good() -> &'static Crashed {
    static GOOD: OnceLock<Crashed> = OnceLock::new();
    GOOD.get_or_init(|| {
        let mut host = Host::new(config(SEGMENT_BYTES, 16));
        host.settle();
        for n in 0..60usize {
            for part in 0..=n % 3 {
                host.append(&vec![n as u8; (n * 97 + part * 31) % 5000]);
            }
            host.settle();
        }
        host.crash(&mut wal_model::Rng(1))
    })
}

pub fn fuzz(data: &[u8]) {
    let good = good();
    let mut volume = good.volume.clone();
    let files: Vec<_> = volume.files.keys().copied().collect();
    for change in data.chunks_exact(CHANGE_BYTES).take(CHANGES_MAX) {
        let (what, byte) = (change[0], change[5]);
        let at = u32::from_be_bytes([change[1], change[2], change[3], change[4]]);
        let file = files[usize::from(what >> 3) % files.len()];
        let bytes = volume.files.get_mut(&file).expect("it is one of the files");
        if bytes.is_empty() {
            continue;
        }
        let at = at as usize % bytes.len();
        match what & 7 {
            0..=3 => bytes[at] ^= byte,
            4 => bytes[at..].iter_mut().take(512).for_each(|b| *b = 0),
            5 => bytes.truncate(at),
            6 => {
                // A block written to a wrong place.
                let (from, to) = (at / 4096 * 4096, usize::from(byte) * 4096 % bytes.len() / 4096 * 4096);
                if from + 4096 <= bytes.len() && to + 4096 <= bytes.len() {
                    bytes.copy_within(from..from + 4096, to);
                }
            }
            _ => bytes[at] = byte,
        }
    }
    let _ = inspect::verify(&volume, Default::default());
    if let Ok((_, _, found)) = recover(good.config.clone(), &volume) {
        let same = found.iter().zip(&good.records).all(|(a, b)| (a.head, &a.body, a.at) == (b.head, &b.body, b.at));
        assert!(same && found.len() <= good.records.len(), "a record was shown that was not written");
    }
}

/// The volume, what a recovery finds in it, and the buffers of the log that it begins.
fn heap_bytes_max(_: &[u8]) -> usize {
    64 * MIB
}

fn input(rng: &mut Rng, _: u64) -> Vec<u8> {
    let changes = 1 + rng.below(3);
    rng.bytes(changes * CHANGE_BYTES)
}
