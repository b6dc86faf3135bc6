//! How a proxy of many runs reaches its runs, and what an open run knows about its proxy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{ErrorKind, Run, RunReader, RunSpec, Status};
use hyper::{Response, StatusCode};

use crate::error::ProxyError;
use crate::proxy::listen::{ResponseBody, refuse};
use crate::proxy::record::{PendingExchange, ProxyRecorder};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRefusal {
    pub status: StatusCode,
    pub why: String,
}

impl RequestRefusal {
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(super) fn into_response(self) -> Response<ResponseBody> {
        refuse(self.status, &self.why)
    }
}

impl From<annals::Error> for RequestRefusal {
    fn from(error: annals::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Gone => StatusCode::GONE,
            ErrorKind::Unavailable | ErrorKind::Locked | ErrorKind::Poisoned => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ProxyError> for RequestRefusal {
    fn from(error: ProxyError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

/// The runs of one namespace that the caller may access.
pub trait RunAccess: Send + Sync {
    /// Identifies the namespace within the daemon.
    fn space(&self) -> &str;

    /// A run that accepts frames. Never blocks.
    fn find(&self, run: &str) -> Option<WritableRun>;

    /// Begins a run that counts as complete whenever the daemon ends. If somebody else began a run of this
    /// name meanwhile, returns that one. May wait for the disk.
    ///
    /// # Errors
    /// 409 if the run has ended or is recorded by others; an error if too many runs are open; those of the
    /// store.
    fn begin(&self, spec: RunSpec) -> Result<WritableRun, RequestRefusal>;

    /// A run for reading. May wait for the disk.
    ///
    /// # Errors
    /// 404 if there is none; those of the store.
    fn read(&self, run: &str) -> Result<RunReader, RequestRefusal>;
}

/// A run that accepts frames.
#[derive(Debug, Clone)]
pub struct WritableRun {
    pub run: Arc<Run>,
    pub proxied: Arc<RunProxyState>,
}

/// The proxy's state in an open run: its recorder, from the first exchange on.
#[derive(Debug, Default)]
pub struct RunProxyState(Mutex<RunProxyPhase>);

#[derive(Debug, Default)]
enum RunProxyPhase {
    #[default]
    Unused,
    Recorded(ProxyRecorder),
    /// With whether the proxy recorded any of it.
    Ended(bool),
}

/// Why a run cannot be ended.
#[derive(Debug)]
pub enum RunEndError<E> {
    /// This many exchanges are under way.
    UnderWay(usize),
    /// The recording is not complete, so the run must not end as if it were.
    Failed(String),
    /// Another reason.
    Other(E),
}

impl RunProxyState {
    fn state(&self) -> MutexGuard<'_, RunProxyPhase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recorder, and a guard that keeps the run open while it exists. `None` before the first exchange.
    ///
    /// # Errors
    /// 409 if the run has ended.
    pub(super) fn enter(
        &self,
        run: &str,
    ) -> Result<Option<(ProxyRecorder, PendingExchange)>, RequestRefusal> {
        match &*self.state() {
            RunProxyPhase::Unused => Ok(None),
            RunProxyPhase::Recorded(recorder) => Ok(Some((recorder.clone(), recorder.expect_exchange()))),
            RunProxyPhase::Ended(_) => {
                Err(RequestRefusal::new(StatusCode::CONFLICT, ended_message(run, Status::Ok)))
            }
        }
    }

    /// Sets the run's recorder, if it has none yet.
    ///
    /// # Errors
    /// Those of `recorder`.
    pub(super) fn begin(
        &self,
        recorder: impl FnOnce() -> Result<ProxyRecorder, RequestRefusal>,
    ) -> Result<(), RequestRefusal> {
        let mut state = self.state();
        if matches!(*state, RunProxyPhase::Unused) {
            *state = RunProxyPhase::Recorded(recorder()?);
        }
        Ok(())
    }

    /// Whether any exchange of the run went through the proxy.
    pub fn recorded(&self) -> bool {
        matches!(*self.state(), RunProxyPhase::Recorded(_) | RunProxyPhase::Ended(true))
    }

    /// Whether every exchange so far is written.
    pub fn is_settled(&self) -> bool {
        match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.under_way() == 0,
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => true,
        }
    }

    /// Waits until all finished exchanges are written.
    pub fn settle(&self) {
        let recorder = match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.clone(),
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => return,
        };
        recorder.flush();
    }

    /// Why the recording is not complete, if it is not.
    pub fn failure(&self) -> Option<String> {
        match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.failure(),
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => None,
        }
    }

    /// Ends the run with `end`, and lets no exchange begin afterwards.
    ///
    /// # Errors
    /// If exchanges are under way; if the run should end as complete and is not; those of `end`. The run then
    /// stays open.
    pub fn end<T, E>(&self, status: Status, end: impl FnOnce() -> Result<T, E>) -> Result<T, RunEndError<E>> {
        let mut state = self.state();
        if let RunProxyPhase::Recorded(recorder) = &*state {
            match (recorder.under_way(), recorder.failure()) {
                (0, Some(why)) if status == Status::Ok => return Err(RunEndError::Failed(why)),
                (0, _) => {}
                (left, _) => return Err(RunEndError::UnderWay(left)),
            }
        }
        // A concurrent caller waits for the lock and then finds the run ended.
        let ended = end().map_err(RunEndError::Other)?;
        *state = RunProxyPhase::Ended(matches!(*state, RunProxyPhase::Recorded(_)));
        Ok(ended)
    }
}

/// The message about a run that accepts no more frames.
pub fn ended_message(run: &str, status: Status) -> String {
    match status {
        Status::Ok => format!("run {run} has ended: fork it, or record into a new run"),
        status => format!("run {run} has ended ({status}): fork it, or record into a new run"),
    }
}
