//! Every parser of bytes that come by a socket as a function of any bytes: what fuzz targets call, and what ordinary tests call with the
//! kept corpora. Compiled for tests and under `cfg(fuzzing)` only, so no program has it.
//!
//! Each function returns whatever it is given; what it asserts is its oracle. A new door is a function in a `fuzz.rs` beside its parser, a
//! line here and in [`TARGETS`], a file in fuzz/fuzz_targets and a folder in fuzz/corpus.

pub use crate::profiles::fuzz::redaction;

/// A door: its name, and what it does with any bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All doors.
pub const TARGETS: [Target; 1] = [("redaction", redaction)];

/// Takes a byte, 0 at the end.
pub(crate) fn byte(data: &mut &[u8]) -> u8 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    *first
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "the corpora are files")]

    use std::path::Path;

    use super::TARGETS;

    /// Inputs that a fuzzer found worth keeping, the ones of mended bugs among them, are ordinary tests for good.
    #[test]
    fn the_kept_corpora_are_read_without_a_panic() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        for (name, target) in TARGETS {
            let dir = root.join(name);
            let inputs: Vec<_> =
                std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(!inputs.is_empty(), "{} is empty", dir.display());
            for input in &inputs {
                let bytes = std::fs::read(input).unwrap();
                let done = std::panic::catch_unwind(|| target(&bytes));
                assert!(done.is_ok(), "target {name} on {}", input.display());
            }
        }
    }
}
