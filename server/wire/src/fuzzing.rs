//! Fuzz targets for every parser of bytes from a socket, as functions of arbitrary bytes. The fuzz programs
//! call them, and tests call them with the kept corpora. Compiled only for tests and under `cfg(fuzzing)`, so
//! no released program contains them.
//!
//! Each function returns for every input; its assertions are its oracle. A new target needs a function in a
//! `fuzz.rs` beside its parser, a line here and in [`TARGETS`], a file in fuzz/fuzz_targets and a folder in
//! fuzz/corpus.

#[path = "../../../fuzz/support.rs"]
mod support;

pub use crate::resp::fuzz::{resp_reply, resp_request};
pub use support::FuzzTarget;
pub(crate) use support::take_byte;

/// All fuzz targets.
pub const TARGETS: [FuzzTarget; 2] = [("resp_request", resp_request), ("resp_reply", resp_reply)];

/// Splits the bytes into pieces of 1 to 64 bytes; the lengths follow from the seed.
pub(crate) fn pieces(mut data: &[u8], seed: u8) -> Vec<&[u8]> {
    let (mut state, mut all) = (u32::from(seed).wrapping_mul(0x9e37_79b9) | 1, Vec::new());
    while !data.is_empty() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let (piece, rest) = data.split_at(data.len().min(1 + (state >> 8) as usize % 64));
        all.push(piece);
        data = rest;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_corpora_run_without_panic() {
        support::run_kept_corpora(&TARGETS);
    }

    #[test]
    fn pieces_concatenate_to_the_input() {
        let data: Vec<u8> = (0..=255).collect();
        for seed in [0, 1, 77] {
            let pieces = pieces(&data, seed);
            assert!(pieces.len() > 3 && pieces.concat() == data);
        }
    }
}
