//! annals_formats::fuzzing::tracefork on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals_formats::fuzzing::tracefork(data));
