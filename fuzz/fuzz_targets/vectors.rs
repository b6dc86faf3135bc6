//! annals::fuzzing::vectors on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals::fuzzing::vectors(data));
