//! Runs, frames, snapshots and forks: typed views over the key-value store.

pub(crate) mod batch;
pub(crate) mod belongings;
pub(crate) mod blame_forks;
pub(crate) mod builders;
pub(crate) mod census;
pub(crate) mod chain;
pub(crate) mod dropped_names;
pub(crate) mod dropping;
pub(crate) mod erasure_report;
pub(crate) mod flags;
pub(crate) mod frame_cache;
pub(crate) mod frames;
pub(crate) mod heads;
pub(crate) mod kinds;
pub(crate) mod lanes;
pub(crate) mod model;
pub(crate) mod number_sets;
pub(crate) mod reader;
pub(crate) mod recorder;
pub(crate) mod resume;
pub(crate) mod run_counts;
pub(crate) mod run_facts;
pub(crate) mod run_keys;
pub(crate) mod run_pages;
pub(crate) mod run_records;
pub(crate) mod scan;
pub(crate) mod schema;
pub(crate) mod snapshots;
pub(crate) mod stream;
pub(crate) mod verify;

pub use batch::RunBatch;
pub(crate) use belongings::DeletedKey;
#[doc(hidden)]
pub use belongings::{DropHold, RunBelonging};
pub use blame_forks::BLAME_TAG;
pub use builders::{LlmFrame, ToolFrame};
pub use dropping::{DroppedRun, Pin};
pub use erasure_report::{ErasureReport, UnexplainedErasure, run_numbers};
pub use flags::Flag;
pub use model::{
    Component, ForkPoint, Frame, FrameInput, INGESTED_TAG, REDACTED_TAG, RUN_NAME_BYTES_MAX, RunInfo,
    RunSpec, Severity, Status,
};
pub use reader::{FrameInfo, Frames, RecordedFrame, RunReader};
pub use recorder::{ENDED_RUNS_MAX, Run};
pub use resume::ResumedRun;
pub use run_counts::RunPart;
pub use run_pages::{RunFilter, RunOrder, RunPage};
pub use snapshots::Snapshot;
pub use stream::{Ending, OpenFrame};
pub use verify::VerifyCounts;
