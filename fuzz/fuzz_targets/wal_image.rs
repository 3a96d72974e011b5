//! The target `wal_image` of tests/fuzz, under libFuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| camus_fuzz::wal_image::fuzz(data));
