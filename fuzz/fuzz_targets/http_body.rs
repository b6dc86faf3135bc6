//! annals_daemon::fuzzing::http_body on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals_daemon::fuzzing::http_body(data));
