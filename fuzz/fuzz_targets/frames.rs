//! The target `frames` of tests/fuzz, under libFuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| camus_fuzz::frames::fuzz(data));
