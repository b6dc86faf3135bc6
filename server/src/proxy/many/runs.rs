//! How a proxy of many runs reaches its runs, and what an open run knows about its proxy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{ErrorKind, Run, RunReader, RunSpec, Status};
use hyper::{Response, StatusCode};

use crate::proxy::ProxyError;
use crate::proxy::listen::{Outgoing, refused};
use crate::proxy::record::{Recorder, WaitedFor};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(super) fn into_response(self) -> Response<Outgoing> {
        refused(self.status, &self.why)
    }
}

impl From<annals::Error> for Refused {
    fn from(error: annals::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Gone => StatusCode::GONE,
            ErrorKind::Unavailable | ErrorKind::Locked => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ProxyError> for Refused {
    fn from(error: ProxyError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// The runs of one namespace that the caller may access.
pub(crate) trait Runs: Send + Sync {
    /// Identifies the namespace within the daemon.
    fn space(&self) -> &str;

    /// A run that accepts frames. Never blocks.
    fn find(&self, run: &str) -> Option<Opened>;

    /// Begins a run that counts as complete whenever the daemon ends. If somebody else began a run of this
    /// name meanwhile, returns that one. May wait for the disk.
    ///
    /// # Errors
    /// 409 if the run has ended or is recorded by others; an error if too many runs are open; those of the
    /// store.
    fn begin(&self, spec: RunSpec) -> Result<Opened, Refused>;

    /// A run for reading. May wait for the disk.
    ///
    /// # Errors
    /// 404 if there is none; those of the store.
    fn read(&self, run: &str) -> Result<RunReader, Refused>;
}

/// A run that accepts frames.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    pub(crate) run: Arc<Run>,
    pub(crate) proxied: Arc<Proxied>,
}

/// The proxy's state in an open run: its recorder, from the first exchange on.
#[derive(Debug, Default)]
pub(crate) struct Proxied(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unused,
    Recorded(Recorder),
    /// With whether the proxy recorded any of it.
    Ended(bool),
}

/// Why a run cannot be ended.
#[derive(Debug)]
pub(crate) enum Unended<E> {
    /// This many exchanges are under way.
    UnderWay(usize),
    /// The recording is not complete, so the run must not end as if it were.
    Failed(String),
    /// Another reason.
    Other(E),
}

impl Proxied {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recorder, and a guard that keeps the run open while it exists. `None` before the first exchange.
    ///
    /// # Errors
    /// 409 if the run has ended.
    pub(super) fn enter(&self, run: &str) -> Result<Option<(Recorder, WaitedFor)>, Refused> {
        match &*self.state() {
            State::Unused => Ok(None),
            State::Recorded(recorder) => Ok(Some((recorder.clone(), recorder.expects()))),
            State::Ended(_) => Err(Refused::new(StatusCode::CONFLICT, has_ended(run, Status::Ok))),
        }
    }

    /// Sets the run's recorder, if it has none yet.
    ///
    /// # Errors
    /// Those of `recorder`.
    pub(super) fn begin(&self, recorder: impl FnOnce() -> Result<Recorder, Refused>) -> Result<(), Refused> {
        let mut state = self.state();
        if matches!(*state, State::Unused) {
            *state = State::Recorded(recorder()?);
        }
        Ok(())
    }

    /// Whether any exchange of the run went through the proxy.
    pub(crate) fn recorded(&self) -> bool {
        matches!(*self.state(), State::Recorded(_) | State::Ended(true))
    }

    /// Whether every exchange so far is written.
    pub(crate) fn is_settled(&self) -> bool {
        match &*self.state() {
            State::Recorded(recorder) => recorder.under_way() == 0,
            State::Unused | State::Ended(_) => true,
        }
    }

    /// Waits until all finished exchanges are written.
    pub(crate) fn settle(&self) {
        let recorder = match &*self.state() {
            State::Recorded(recorder) => recorder.clone(),
            State::Unused | State::Ended(_) => return,
        };
        recorder.flush();
    }

    /// Why the recording is not complete, if it is not.
    pub(crate) fn failed(&self) -> Option<String> {
        match &*self.state() {
            State::Recorded(recorder) => recorder.failed(),
            State::Unused | State::Ended(_) => None,
        }
    }

    /// Ends the run with `end`, and lets no exchange begin afterwards.
    ///
    /// # Errors
    /// If exchanges are under way; if the run should end as complete and is not; those of `end`. The run then
    /// stays open.
    pub(crate) fn end<T, E>(
        &self,
        status: Status,
        end: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Unended<E>> {
        let mut state = self.state();
        if let State::Recorded(recorder) = &*state {
            match (recorder.under_way(), recorder.failed()) {
                (0, Some(why)) if status == Status::Ok => return Err(Unended::Failed(why)),
                (0, _) => {}
                (left, _) => return Err(Unended::UnderWay(left)),
            }
        }
        // A concurrent caller waits for the lock and then finds the run ended.
        let ended = end().map_err(Unended::Other)?;
        *state = State::Ended(matches!(*state, State::Recorded(_)));
        Ok(ended)
    }
}

/// The message about a run that accepts no more frames.
pub(crate) fn has_ended(run: &str, status: Status) -> String {
    match status {
        Status::Ok => format!("run {run} has ended: fork it, or record into a new run"),
        status => format!("run {run} has ended ({status}): fork it, or record into a new run"),
    }
}
