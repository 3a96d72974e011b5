//! Targets with mistakes in them, for the runner's own tests: a runner that finds nothing may be blind. None of them is
//! in a run that does not name it.

use camus_fuzz::rng::Rng;
use camus_fuzz::{KIB, MIB, Target};
use std::hint::black_box;

/// A mistake is made for inputs that begin with this.
const MARK: u8 = 0xa7;

pub static TARGETS: &[Target] = &[
    planted("planted-nothing", |data| drop(black_box(data.to_vec())), in_proportion),
    planted("planted-panic", |data| assert!(!is_marked(data), "this panic is planted"), in_proportion),
    planted("planted-hang", hang, in_proportion),
    planted("planted-allocation", |data| take(data, 4 * MIB), in_proportion),
    planted("planted-announced", |data| reserve(data, 64 << 30), |_| usize::MAX),
    planted("planted-memory", |data| take(data, 300 * MIB), |_| usize::MAX),
    planted("planted-recursion", recurse, in_proportion),
];

const fn planted(name: &'static str, fuzz: fn(&[u8]), heap_bytes_max: fn(&[u8]) -> usize) -> Target {
    Target { name, fuzz, heap_bytes_max, make: input, whole: || 10, corpus: "", share: 1 }
}

/// From the eleventh on, every fourth is marked.
fn input(rng: &mut Rng, n: u64) -> Vec<u8> {
    let count = 1 + rng.below(20);
    let mut bytes = rng.bytes(count);
    bytes[0] = if n > 10 && rng.one_in(4) { MARK } else { 0 };
    bytes
}

fn is_marked(data: &[u8]) -> bool {
    data.first() == Some(&MARK)
}

fn in_proportion(data: &[u8]) -> usize {
    16 * data.len() + 64 * KIB
}

fn hang(data: &[u8]) {
    while black_box(is_marked(data)) {
        std::hint::spin_loop();
    }
}

fn take(data: &[u8], bytes: usize) {
    if is_marked(data) {
        drop(black_box(vec![1_u8; bytes]));
    }
}

/// What an announced count is believed for, and nothing is ever written to.
fn reserve(data: &[u8], bytes: usize) {
    if is_marked(data) {
        drop(black_box(Vec::<u8>::with_capacity(bytes)));
    }
}

fn recurse(data: &[u8]) {
    if is_marked(data) {
        let frame = black_box([1_u8; 4096]);
        recurse(black_box(data));
        black_box(frame);
    }
}
