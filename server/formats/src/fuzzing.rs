//! Fuzz targets for every parser of bytes from elsewhere, as functions of arbitrary bytes. The fuzz programs
//! call them, and tests call them with the kept corpora. Compiled only for tests and under `cfg(fuzzing)`, so
//! no released program contains them.
//!
//! Each function returns for every input; its assertions are its oracle. A new target needs a function in a
//! `fuzz.rs` beside its parser, a line here and in [`TARGETS`], a file in fuzz/fuzz_targets and a folder in
//! fuzz/corpus.

#[path = "../../../fuzz/support.rs"]
mod support;

pub use crate::import::fuzz::{chat, frames};
pub use crate::otlp::fuzz::otlp;
pub use crate::tracefork::fuzz::tracefork;
pub use support::FuzzTarget;
pub(crate) use support::take_byte;

/// All fuzz targets.
pub const TARGETS: [FuzzTarget; 4] =
    [("chat", chat), ("frames", frames), ("otlp", otlp), ("tracefork", tracefork)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_corpora_run_without_panic() {
        support::run_kept_corpora(&TARGETS);
    }
}
