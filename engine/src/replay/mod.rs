//! Verifies whole stores, and replays programs against a recording.
//!
//! Reading a single run is part of the run itself ([`crate::RunReader::frames`],
//! [`crate::RunReader::verify`]). This module covers several runs and files, and answers a program's calls
//! from a run.

mod calls;
pub mod matching;
mod nondet;
pub(crate) mod record_check;
mod recorder;
mod replayer;
mod verify;

pub use calls::{CallError, CallFn, Calls, Request, call_name};
pub use nondet::{DriftingNondet, Nondet, RecordingNondet, ReplayingNondet, SystemNondet};
pub use recorder::Recorder;
pub use replayer::Replayer;
pub use verify::{TailReport, VerifyProblem, VerifyReport};
