//! A recorded run, reviewed: what a request added and which frame failed (`look`), how two runs differ (`align`), what a run came to and
//! how that is remembered (`run_memory`, `remembering`). It reads runs and starts nothing; who makes vectors is the caller's choice.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod align;
mod frame_views;
pub mod memory_input;
pub mod run_memory;

pub use align::{Alignment, BodyDifference, FrameDifference, FramePair, align, frame_difference};
pub use frame_views::{FailureReport, decoded_answer, failure_report, new_part, new_tool_results};
