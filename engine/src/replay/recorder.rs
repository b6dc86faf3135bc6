//! Records a program's calls from inside the program.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::segments::lock;
use crate::replay::calls::{CallError, CallFn, Calls, Request};
use crate::replay::nondet::{Nondet, RecordingNondet, SystemNondet};
use crate::sync::Mutex;
use crate::trace::{Frame, Run, RunInfo, Status};

/// Makes a program's calls and records each as a frame of a run. Failed calls are recorded, too; the draws
/// before a call are recorded before it.
///
/// A frame is written when its call ends. Frames are numbered in that order, and hold the time at which the
/// call began. If a frame cannot be written, the program still gets its answer, and [`Recorder::finish`]
/// returns the error.
#[derive(Debug)]
pub struct Recorder {
    run: Arc<Run>,
    nondet: RecordingNondet,
    /// The first failure to record.
    failure: Mutex<Option<Error>>,
}

impl Recorder {
    /// Records into `run`, with the clock and the randomness of its store.
    #[must_use]
    pub fn new(run: Run) -> Self {
        let source = SystemNondet::new(run.core.io.clone());
        Self::with_nondet(run, source)
    }

    /// Records into `run`, with the draws of `source`.
    #[must_use]
    pub fn with_nondet(run: Run, source: impl Nondet + 'static) -> Self {
        let run = Arc::new(run);
        Self { nondet: RecordingNondet::new(run.clone(), source), run, failure: Mutex::new(None) }
    }

    /// The run, for frames that the program records itself.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Makes a model call and records it. A replay matches `name` and `request`; `metadata` is a JSON object
    /// or nothing.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the error of `send`; `Invalid` for a name or metadata, before anything is
    /// sent.
    pub fn call<E: std::fmt::Display>(
        &self,
        name: &str,
        request: &[u8],
        metadata: &[u8],
        send: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Vec<u8>, CallError> {
        (self as &dyn Calls).call(name, request, metadata, send)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// The first failure to record a call or a draw: then the run lacks frames. Otherwise as [`Run::end`].
    pub fn finish(self, status: Status) -> Result<RunInfo> {
        self.note(self.nondet.flush());
        let ended = self.run.end(status);
        lock(&self.failure).take().map_or(ended, Err)
    }

    fn note(&self, done: Result<()>) {
        if let Err(error) = done {
            lock(&self.failure).get_or_insert(error);
        }
    }
}

impl Calls for Recorder {
    fn exchange(&self, request: Request<'_>, send: CallFn<'_>) -> std::result::Result<Vec<u8>, CallError> {
        let metadata = request.frame_metadata()?;
        let io = &self.run.core.io;
        let (started_ns, before) = (io.now_ns(), io.monotonic_ns());
        let answer = send();
        let duration_ns = io.monotonic_ns().saturating_sub(before);
        let output = match &answer {
            Ok(bytes) => bytes.clone(),
            Err(what) => what.clone().into_bytes(),
        };
        let mut frame =
            Frame::new(request.component.clone(), request.body.to_vec(), output).metadata(metadata);
        frame.started_ns = Some(started_ns);
        frame.duration_ns = duration_ns;
        frame.error = answer.is_err();
        self.note(self.nondet.flush());
        self.note(self.run.record(frame).map(drop));
        answer.map_err(CallError::Failed)
    }

    fn nondet(&self) -> &dyn Nondet {
        &self.nondet
    }
}
