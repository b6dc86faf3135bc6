//! Verified reading of whole stores.
//!
//! What a run's replay needs stands with the run itself ([`crate::RunReader::frames`], [`crate::RunReader::verify`]);
//! here is what spans runs and files.

mod verify;

pub use verify::{Problem, VerifyReport};
