//! annals_formats::fuzzing::chat on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals_formats::fuzzing::chat(data));
