//! Runs, frames, snapshots and forks: typed views over the key-value floor.

pub(crate) mod builders;
pub(crate) mod chain;
pub(crate) mod lanes;
pub(crate) mod model;
pub(crate) mod reader;
pub(crate) mod recorder;
pub(crate) mod stream;

pub use builders::{LlmFrame, ToolFrame};
pub use model::{Component, ForkPoint, Frame, RUN_NAME_BYTES_MAX, RunInfo, RunSpec, Severity, Status};
pub use reader::{FrameInfo, Frames, RecordedFrame, RunReader, Snapshot, Verified};
pub use recorder::{Run, RunBatch};
pub use stream::OpenFrame;
