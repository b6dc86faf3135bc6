//! Fuzz target for tapes.

use std::sync::Arc;

use super::Tape;
use super::layout::{FORMAT, MAGIC};
use crate::io::sim::SimIo;
use crate::{Options, Store};
use annals_store::testing::byte;

/// Reads the input as a tape, or as the body of a tape with correct magic, format and digest. A valid tape
/// must be recorded, and exported as a tape with the same contents.
pub fn tape(mut data: &[u8]) {
    let bytes = match byte(&mut data) & 1 {
        0 => data.to_vec(),
        _ => seal(data),
    };
    let Ok(tape) = Tape::read(bytes) else { return };
    match import_and_export(&tape) {
        Ok(again) => assert_eq!(again.info(), tape.info()),
        Err(error) => unreachable!("a valid tape cannot be recorded: {error}"),
    }
}

/// Adds magic, format and digest to the bytes between format and digest.
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
