//! annals_policy::fuzzing::redaction on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals_policy::fuzzing::redaction(data));
