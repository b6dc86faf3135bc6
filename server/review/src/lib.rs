//! Views of recorded runs: what a request added and which frame failed (`frame_views`), which run failed last (`last_failure`), how two runs differ
//! (`align`), which frames say something (`search`), which step of a failed run is suspect (`suspect`), and memory entries made from runs
//! (`run_memory`), given by a user (`memory_input`), or as a reader with a profile sees them
//! (`memory_redaction`). Starts
//! nothing; the caller chooses the embedder.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

mod align;
mod frame_view;
mod frame_views;
mod last_failure;
pub mod memory_input;
pub mod memory_redaction;
pub mod memory_retention;
pub mod run_memory;
pub mod search;
pub mod suspect;

pub use align::{Alignment, BodyDifference, FrameDifference, FramePair, align, frame_difference};
pub use frame_view::{
    FrameKind, FrameStatus, FrameView, FrameViewOptions, HttpView, Lanes, RequestBefore, ShownBody,
    ShownSeverity, ShownUsage, TEXT_BYTES_MAX, TIMELINE_FRAMES, TIMELINE_FRAMES_MAX, Timeline, TimelineFrame,
    frame_view, timeline,
};
pub use frame_views::{
    FailureReport, answer_summary, decoded_answer, failure_report, new_part, new_tool_results, redacted_frame,
};
pub use last_failure::{LastFailure, last_failure};
