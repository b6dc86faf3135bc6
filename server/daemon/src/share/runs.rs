//! A run of a store that several processes write: recorded here, or by the process that holds the store.

use std::sync::Arc;

use annals::{Frame, Run, RunInfo, Status};
use annals_proxy::destination::RemoteRun;

/// A run that is being recorded, wherever its store is held. [`SharedKeys::begin_run`](super::SharedKeys::begin_run)
/// begins one. If it is dropped before its end, it is abandoned.
#[derive(Debug)]
pub enum SharedRun {
    /// This process holds the store.
    Local(Arc<Run>),
    /// Another process holds it, and decides how durable a frame is when it is acknowledged.
    Remote(Arc<dyn RemoteRun>),
}

impl SharedRun {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Local(run) => run.name(),
            Self::Remote(run) => run.name(),
        }
    }

    /// Records a frame; returns its number.
    ///
    /// # Errors
    /// As [`Run::record`]; `Locked` or `Unavailable` if no process takes it.
    pub fn record(&self, frame: Frame) -> annals::Result<u32> {
        match self {
            Self::Local(run) => run.record(frame),
            Self::Remote(run) => run.record(&frame),
        }
    }

    /// Stores a state after the last frame; returns that frame's number.
    ///
    /// # Errors
    /// As [`Run::snapshot`]; `Locked` or `Unavailable` if no process takes it.
    pub fn snapshot(&self, state: Vec<u8>) -> annals::Result<u32> {
        match self {
            Self::Local(run) => run.snapshot(state, &[]),
            Self::Remote(run) => run.snapshot(&state),
        }
    }

    /// Ends the run. Returns its fields if this process holds the store.
    ///
    /// # Errors
    /// As [`Run::end`]; `Locked` or `Unavailable` if no process takes it.
    pub fn end(&self, status: Status) -> annals::Result<Option<RunInfo>> {
        match self {
            Self::Local(run) => run.end(status).map(Some),
            Self::Remote(run) => run.end(status).map(|()| None),
        }
    }
}
