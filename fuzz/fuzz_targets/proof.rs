//! ledger::proof on any bytes.
#![no_main]

#[expect(dead_code, reason = "each target calls one of them")]
#[path = "../ledger.rs"]
mod ledger;

libfuzzer_sys::fuzz_target!(|data: &[u8]| ledger::proof(data));
