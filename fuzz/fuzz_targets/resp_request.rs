//! annals_wire::fuzzing::resp_request on any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| annals_wire::fuzzing::resp_request(data));
