//! Verified reading of whole stores, and programs run again against a recording.
//!
//! What reading a run back needs stands with the run itself ([`crate::RunReader::frames`],
//! [`crate::RunReader::verify`]); here is what spans runs and files, and what answers a program's calls from a run.

mod calls;
pub mod matching;
mod nondet;
mod recorder;
mod replayer;
mod verify;

pub use calls::{CallError, CallFn, Calls, Request};
pub use nondet::{DriftingNondet, Nondet, RecordingNondet, ReplayingNondet, SystemNondet};
pub use recorder::Recorder;
pub use replayer::Replayer;
pub use verify::{VerifyProblem, VerifyReport};
