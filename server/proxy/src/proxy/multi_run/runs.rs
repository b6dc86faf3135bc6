//! What a proxy of many runs asks of whoever keeps them, and what an open run knows of its proxy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use annals::{ErrorKind, Run, RunReader, RunSpec, Status};
use hyper::{Response, StatusCode};

use crate::error::ProxyError;
use crate::proxy::listen::{ResponseBody, refuse};
use crate::proxy::record::{PendingExchange, ProxyRecorder};

/// Why a request is not answered otherwise.
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
            ErrorKind::Unavailable | ErrorKind::Locked => StatusCode::SERVICE_UNAVAILABLE,
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

/// The runs of one namespace, as far as whoever asks may have them.
pub trait RunAccess: Send + Sync {
    /// What tells the namespace from others of the same daemon.
    fn space(&self) -> &str;

    /// A run that may be added to. Waits for nothing.
    fn find(&self, run: &str) -> Option<WritableRun>;

    /// Begins a run, whole whenever the daemon ends; gives the one of that name that may be added to where somebody else began it meanwhile. May wait for
    /// the disk.
    ///
    /// # Errors
    /// 409 for one that has ended, or is recorded by others; where too many are open; those of the store.
    fn begin(&self, spec: RunSpec) -> Result<WritableRun, RequestRefusal>;

    /// A run to be read. May wait for the disk.
    ///
    /// # Errors
    /// 404 where there is none; those of the store.
    fn read(&self, run: &str) -> Result<RunReader, RequestRefusal>;
}

/// A run that may be added to.
#[derive(Debug, Clone)]
pub struct WritableRun {
    pub run: Arc<Run>,
    pub proxied: Arc<RunProxyState>,
}

/// The proxy's part in an open run: who records its exchanges, from the first one on.
#[derive(Debug, Default)]
pub struct RunProxyState(Mutex<RunProxyPhase>);

#[derive(Debug, Default)]
enum RunProxyPhase {
    #[default]
    Unused,
    Recorded(ProxyRecorder),
    /// And whether the proxy recorded any of it.
    Ended(bool),
}

/// Why a run is not ended.
#[derive(Debug)]
pub enum RunEndError<E> {
    /// So many exchanges are under way.
    UnderWay(usize),
    /// The recording is not whole, so it cannot end as if it were.
    Failed(String),
    /// Another reason.
    Other(E),
}

impl RunProxyState {
    fn state(&self) -> MutexGuard<'_, RunProxyPhase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever records the run, and a hold on it: while that is there, the run does not end. `None` before the first exchange.
    ///
    /// # Errors
    /// 409 where the run has ended.
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

    /// Has the run recorded by this, if it is by nobody yet.
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

    /// Whether any of the run went through the proxy.
    pub fn recorded(&self) -> bool {
        matches!(*self.state(), RunProxyPhase::Recorded(_) | RunProxyPhase::Ended(true))
    }

    /// Whether nothing that went through is still to be written.
    pub fn is_settled(&self) -> bool {
        match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.under_way() == 0,
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => true,
        }
    }

    /// Waits until exchanges that have ended are written.
    pub fn settle(&self) {
        let recorder = match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.clone(),
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => return,
        };
        recorder.flush();
    }

    /// Why the recording is not whole, if it is not.
    pub fn failure(&self) -> Option<String> {
        match &*self.state() {
            RunProxyPhase::Recorded(recorder) => recorder.failure(),
            RunProxyPhase::Unused | RunProxyPhase::Ended(_) => None,
        }
    }

    /// Ends the run by `end`, and lets no exchange begin after that.
    ///
    /// # Errors
    /// While exchanges are under way; where it is to end as whole and is not; those of `end`. The run goes on then.
    pub fn end<T, E>(&self, status: Status, end: impl FnOnce() -> Result<T, E>) -> Result<T, RunEndError<E>> {
        let mut state = self.state();
        if let RunProxyPhase::Recorded(recorder) = &*state {
            match (recorder.under_way(), recorder.failure()) {
                (0, Some(why)) if status == Status::Ok => return Err(RunEndError::Failed(why)),
                (0, _) => {}
                (left, _) => return Err(RunEndError::UnderWay(left)),
            }
        }
        // Whoever comes meanwhile waits for the lock, and finds that it has ended.
        let ended = end().map_err(RunEndError::Other)?;
        *state = RunProxyPhase::Ended(matches!(*state, RunProxyPhase::Recorded(_)));
        Ok(ended)
    }
}

/// What is told of a run that nothing is added to any more.
pub fn ended_message(run: &str, status: Status) -> String {
    match status {
        Status::Ok => format!("run {run} has ended: fork it, or record into a new run"),
        status => format!("run {run} has ended ({status}): fork it, or record into a new run"),
    }
}
