//! A door for fuzzers: tapes.

use std::sync::Arc;

use super::Tape;
use super::layout::{FORMAT, MAGIC};
use crate::io::sim::SimIo;
use crate::{Options, Store};
use annals_store::testing::byte;

/// A tape as it is, or one whose magic, format and digest are put right around the input. One that reads well is recorded,
/// and exported as a tape that reads the same.
pub fn tape(mut data: &[u8]) {
    let bytes = match byte(&mut data) & 1 {
        0 => data.to_vec(),
        _ => seal(data),
    };
    let Ok(tape) = Tape::read(bytes) else { return };
    match import_and_export(&tape) {
        Ok(again) => assert_eq!(again.info(), tape.info()),
        Err(error) => unreachable!("a tape that was read cannot be recorded: {error}"),
    }
}

/// A whole tape of what is between format and digest.
pub(super) fn seal(body: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &FORMAT.to_le_bytes(), body].concat();
    let digest = blake3::hash(&bytes);
    bytes.extend(digest.as_bytes());
    bytes
}

fn import_and_export(tape: &Tape) -> crate::Result<Tape> {
    let io = Arc::new(SimIo::new(3));
    let store = Store::open_with("s", Options { io, zero_ahead_bytes: 0, ..Options::default() })?;
    let space = store.namespace("default")?;
    space.import_tape(tape, None, false)?;
    let mut bytes = Vec::new();
    let run = space.run(&tape.info().name)?;
    run.verify()?;
    run.write_tape(&mut bytes)?;
    Tape::read(bytes)
}
