//! Where runs are recorded: in a store that this process holds, or through the process that holds it.
//!
//! An implementation of [`RemoteSpace`] reaches the other process, and the next one if that one goes away. This module
//! knows no protocol and no socket.

use std::io::Read;
use std::sync::Arc;

use annals::{
    Durability, ErrorKind, Frame, Namespace, Run, RunSpec, Status,
    kv::StoredBlob,
    runs::{Ending, OpenFrame},
};
use annals_review::run_memory::{FROM_CACHE, RememberOutcome, remember_ended};

use crate::embeddings::environment_embedder;
use crate::program::ProgramError;
use crate::spool::SpooledBody;

/// A namespace of a store that another process holds.
pub trait RemoteSpace: std::fmt::Debug + Send + Sync {
    /// Begins a run.
    ///
    /// # Errors
    /// As [`Namespace::begin_run`]; `Locked` or `Unavailable` if no process takes it.
    fn begin_run(&self, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>>;

    /// Begins a run that shares the frames of another run.
    ///
    /// # Errors
    /// As [`Namespace::fork`]; `Locked` or `Unavailable` if no process takes it.
    fn fork_run(&self, from: ForkPoint<'_>, spec: &RunSpec) -> annals::Result<Arc<dyn RemoteRun>>;
}

/// The point of a run at which a fork begins.
#[derive(Debug, Clone, Copy)]
pub struct ForkPoint<'a> {
    /// The run's name.
    pub run: &'a str,
    /// The frame.
    pub at: u32,
    /// The fork records that frame anew; otherwise it shares the frame, too.
    pub edit: bool,
}

impl ForkPoint<'_> {
    /// The number of frames that the fork shares.
    #[must_use]
    pub const fn shared(&self) -> u32 {
        if self.edit { self.at.saturating_sub(1) } else { self.at }
    }
}

/// A run of a [`RemoteSpace`].
pub trait RemoteRun: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &str;

    /// Queues a frame; with `output`, that is its output.
    ///
    /// # Errors
    /// `Locked` or `Unavailable` if no process takes it; what that process says against it comes with a later
    /// call.
    fn submit(&self, frame: &Frame, output: Option<&Arc<SpooledBody>>) -> annals::Result<()>;

    /// Records a frame; returns its number when that process has it.
    ///
    /// # Errors
    /// As [`Run::record`]; `Locked` or `Unavailable` if no process takes it.
    fn record(&self, frame: &Frame) -> annals::Result<u32>;

    /// Stores a state after the last frame; returns that frame's number.
    ///
    /// # Errors
    /// As [`Run::snapshot`]; `Locked` or `Unavailable` if no process takes it.
    fn snapshot(&self, state: &[u8]) -> annals::Result<u32>;

    /// Begins a frame whose output is still to come.
    ///
    /// # Errors
    /// As [`OpenFrame::begin`]; `Locked` or `Unavailable` if no process takes it.
    fn begin_frame(&self, frame: &Frame) -> annals::Result<Box<dyn RemoteFrame>>;

    /// Ends the run; durable when this returns.
    ///
    /// # Errors
    /// As [`Run::end`]; `Locked` or `Unavailable` if no process takes it.
    fn end(&self, status: Status) -> annals::Result<()>;

    /// Stores the outcome of an ended run in memory. Returns why it was not stored, if a user may not expect it.
    ///
    /// # Errors
    /// As [`remember_ended`]; `Locked` or `Unavailable` if no process takes it.
    fn remember(&self) -> annals::Result<Option<String>>;
}

/// A frame of a [`RemoteRun`] whose output is still to come.
pub trait RemoteFrame: std::fmt::Debug + Send + Sync {
    fn seq(&self) -> u32;

    /// Adds to the output.
    ///
    /// # Errors
    /// `Locked` or `Unavailable` if no process takes it; what that process says against it comes with a later
    /// call.
    fn append(&self, bytes: &[u8]) -> annals::Result<()>;

    /// Ends the frame; gives its number.
    ///
    /// # Errors
    /// As [`OpenFrame::finish_with`]; `Locked` or `Unavailable` if no process takes it.
    fn finish_with(self: Box<Self>, ending: &Ending) -> annals::Result<u32>;
}

/// A namespace into which runs are recorded.
#[derive(Debug, Clone)]
pub struct Destination(DestinationPlace);

#[derive(Debug, Clone)]
enum DestinationPlace {
    Local(Namespace),
    Remote(Arc<dyn RemoteSpace>),
}

impl From<Namespace> for Destination {
    fn from(space: Namespace) -> Self {
        Self(DestinationPlace::Local(space))
    }
}

impl From<Arc<dyn RemoteSpace>> for Destination {
    fn from(space: Arc<dyn RemoteSpace>) -> Self {
        Self(DestinationPlace::Remote(space))
    }
}

impl Destination {
    /// The namespace, if this process holds its store.
    ///
    /// # Errors
    /// `Locked` if another process holds it.
    pub(crate) fn local(&self, what: &str) -> annals::Result<&Namespace> {
        match &self.0 {
            DestinationPlace::Local(space) => Ok(space),
            DestinationPlace::Remote(_) => {
                let message = format!(
                    "another process is writing to this store, and {what} are not available through it"
                );
                Err(annals::Error::new(ErrorKind::Locked, message))
            }
        }
    }

    pub(crate) fn begin_run(&self, spec: RunSpec) -> annals::Result<NewRun> {
        Ok(match &self.0 {
            DestinationPlace::Local(space) => NewRun::Local(Arc::new(space.begin_run(spec)?)),
            DestinationPlace::Remote(remote) => NewRun::Remote(remote.begin_run(&spec)?),
        })
    }

    pub(crate) fn fork_run(&self, from: ForkPoint<'_>, spec: RunSpec) -> annals::Result<NewRun> {
        Ok(match &self.0 {
            DestinationPlace::Local(space) => {
                NewRun::Local(Arc::new(space.fork(from.run, from.at, from.edit, spec)?))
            }
            DestinationPlace::Remote(remote) => NewRun::Remote(remote.fork_run(from, &spec)?),
        })
    }

    /// Ends a run that was begun but never ran. If its program could not be started and this process holds
    /// the store, the run is dropped.
    pub(crate) fn give_up(&self, run: &NewRun, not_started: Option<&ProgramError>) {
        // If the store refuses this, the next writer abandons the run.
        let _ = run.end(Status::Failed);
        if let (DestinationPlace::Local(space), Some(error)) = (&self.0, not_started) {
            let _ = space.drop_run(run.name(), "record", &error.message.replace(char::is_control, " "));
        }
    }

    /// Stores the outcome of a run that has just ended with this status in memory. Returns why it was not
    /// stored, if a user may not expect it.
    ///
    /// # Errors
    /// As [`remember_ended`].
    pub(crate) fn remember(&self, run: &NewRun, status: Status) -> annals::Result<Option<String>> {
        match (&self.0, run) {
            (DestinationPlace::Local(space), NewRun::Local(run)) => {
                remember_ended(space, run.uid(), status, environment_embedder).map(unexpected_reason)
            }
            (_, NewRun::Remote(run)) => run.remember(),
            (DestinationPlace::Remote(_), NewRun::Local(_)) => Err(wrong_store_error()),
        }
    }

    /// Streams a body into the store; if another process holds it, the body is sent with its frame.
    pub(crate) fn store_blob(&self, from: &mut dyn Read) -> annals::Result<DestinationBlob> {
        match &self.0 {
            DestinationPlace::Local(space) => space.store_blob(from).map(DestinationBlob::from),
            DestinationPlace::Remote(_) => SpooledBody::read_from(from)
                .map(|body| DestinationBlob(DestinationBlobPlace::Remote(Arc::new(body)))),
        }
    }
}

/// A run that is being recorded.
#[derive(Debug, Clone)]
pub(crate) enum NewRun {
    Local(Arc<Run>),
    Remote(Arc<dyn RemoteRun>),
}

impl From<Arc<Run>> for NewRun {
    fn from(run: Arc<Run>) -> Self {
        Self::Local(run)
    }
}

impl NewRun {
    /// The run, if this process holds its store.
    pub(crate) fn local(&self) -> Option<&Run> {
        match self {
            Self::Local(run) => Some(run),
            Self::Remote(_) => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Local(run) => run.name(),
            Self::Remote(run) => run.name(),
        }
    }

    /// Queues a frame for the writer without waiting.
    ///
    /// # Errors
    /// As [`Run::record`].
    pub(crate) fn submit(&self, frame: Frame) -> annals::Result<()> {
        match self {
            Self::Local(run) => run.submit(frame).map(drop),
            Self::Remote(run) => run.submit(&frame, None),
        }
    }

    /// Begins a frame whose output is still to come.
    ///
    /// # Errors
    /// As [`OpenFrame::begin`].
    pub(crate) fn begin_frame(&self, frame: &Frame) -> annals::Result<NewFrame> {
        Ok(match self {
            Self::Local(run) => NewFrame::Local(Box::new(OpenFrame::begin(run.clone(), frame)?)),
            Self::Remote(run) => NewFrame::Remote(run.begin_frame(frame)?),
        })
    }

    /// Records a frame with the state after it; returns the frame's number. In a local store both happen together.
    ///
    /// # Errors
    /// As [`Run::record`] and [`Run::snapshot`].
    pub(crate) fn record_state(&self, frame: Frame, state: Vec<u8>) -> annals::Result<u32> {
        match self {
            Self::Local(run) => {
                let mut batch = run.batch()?;
                batch.frame(frame)?;
                let seq = batch.snapshot(state, &[])?;
                batch.commit()?;
                Ok(seq)
            }
            Self::Remote(run) => {
                run.submit(&frame, None)?;
                run.snapshot(&state)
            }
        }
    }

    /// Ends a run that has no more frames.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub(crate) fn end(&self, status: Status) -> annals::Result<()> {
        match self {
            Self::Local(run) => run.end(status).map(drop),
            Self::Remote(run) => run.end(status),
        }
    }

    /// Ends a run together with its last frames and their outputs; durable when this returns. In a local
    /// store this is atomic.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub(crate) fn end_with(
        &self,
        frames: Vec<(Frame, DestinationBlob)>,
        status: Status,
    ) -> annals::Result<()> {
        self.end_with_durability(frames, status, Durability::Disk)
    }

    /// The same with another durability in a local store.
    ///
    /// # Errors
    /// As [`Run::end`].
    pub(crate) fn end_with_durability(
        &self,
        frames: Vec<(Frame, DestinationBlob)>,
        status: Status,
        durability: Durability,
    ) -> annals::Result<()> {
        match self {
            Self::Local(run) => {
                let mut batch = run.batch()?;
                batch.durability(durability);
                for (mut frame, output) in frames {
                    frame.output = output.local()?.into();
                    batch.frame(frame)?;
                }
                batch.end(status)?;
                batch.commit().map(drop)
            }
            Self::Remote(run) => {
                for (frame, output) in frames {
                    run.submit(&frame, Some(output.remote()?))?;
                }
                run.end(status)
            }
        }
    }
}

/// A frame whose output is still to come.
#[derive(Debug)]
pub(crate) enum NewFrame {
    Local(Box<OpenFrame<Arc<Run>>>),
    Remote(Box<dyn RemoteFrame>),
}

impl NewFrame {
    pub(crate) fn seq(&self) -> u32 {
        match self {
            Self::Local(frame) => frame.seq(),
            Self::Remote(frame) => frame.seq(),
        }
    }

    /// Appends to the output.
    ///
    /// # Errors
    /// As [`OpenFrame::append`].
    pub(crate) fn append(&self, bytes: &[u8]) -> annals::Result<()> {
        match self {
            Self::Local(frame) => frame.append(bytes),
            Self::Remote(frame) => frame.append(bytes),
        }
    }

    /// Ends the frame; returns its number.
    ///
    /// # Errors
    /// As [`OpenFrame::finish_with`].
    pub(crate) fn finish_with(self, ending: Ending) -> annals::Result<u32> {
        match self {
            Self::Local(frame) => frame.finish_with(ending),
            Self::Remote(frame) => frame.finish_with(&ending),
        }
    }
}

/// A body in the store that no frame references yet.
#[derive(Debug)]
pub(crate) struct DestinationBlob(DestinationBlobPlace);

#[derive(Debug)]
enum DestinationBlobPlace {
    Local(StoredBlob),
    Remote(Arc<SpooledBody>),
}

impl From<StoredBlob> for DestinationBlob {
    fn from(stored: StoredBlob) -> Self {
        Self(DestinationBlobPlace::Local(stored))
    }
}

impl DestinationBlob {
    pub(crate) fn is_empty(&self) -> bool {
        match &self.0 {
            DestinationBlobPlace::Local(stored) => stored.is_empty(),
            DestinationBlobPlace::Remote(body) => body.is_empty(),
        }
    }

    fn local(self) -> annals::Result<StoredBlob> {
        match self.0 {
            DestinationBlobPlace::Local(stored) => Ok(stored),
            DestinationBlobPlace::Remote(_) => Err(wrong_store_error()),
        }
    }

    fn remote(&self) -> annals::Result<&Arc<SpooledBody>> {
        match &self.0 {
            DestinationBlobPlace::Remote(body) => Ok(body),
            DestinationBlobPlace::Local(_) => Err(wrong_store_error()),
        }
    }
}

fn wrong_store_error() -> annals::Error {
    annals::Error::new(ErrorKind::Bug, "a body was stored in another place than its frame")
}

/// Why a run was not remembered, if a user may not expect it.
fn unexpected_reason(outcome: RememberOutcome) -> Option<String> {
    match outcome {
        RememberOutcome::Skipped(why) if why == FROM_CACHE => Some(why.to_owned()),
        RememberOutcome::Skipped(_) | RememberOutcome::Stored(..) => None,
    }
}
