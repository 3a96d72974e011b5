//! The target `batches` of tests/fuzz, under libFuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| camus_fuzz::batches::fuzz(data));
