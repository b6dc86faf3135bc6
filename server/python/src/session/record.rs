//! A run that the process records of itself.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use annals::{Component, Frame, RunSpec, Status};
use annals_proxy::in_process::{ClientRequest, InProcessCall, InProcessExchange, InProcessRecording};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::errors::{forked_error, session_error};
use super::python_error;
use super::stores::StoreUse;
use crate::states;

/// Names and values of headers.
pub(super) type Headers = Vec<(Vec<u8>, Vec<u8>)>;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process that began a session.
pub(super) struct Owner(u32);

impl Owner {
    pub(super) fn this() -> Self {
        Self(std::process::id())
    }

    pub(super) fn is_this(&self) -> bool {
        self.0 == std::process::id()
    }

    pub(super) fn check(&self) -> PyResult<()> {
        if self.is_this() { Ok(()) } else { Err(forked_error()) }
    }
}

struct Open {
    recording: InProcessRecording,
    store: StoreUse,
}

/// A run that is being recorded. `store` is its directory, `secrets` names variables whose values are removed
/// before storing.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct RecordingSession {
    open: Mutex<Option<Open>>,
    name: String,
    owner: Owner,
}

impl RecordingSession {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        of: impl FnOnce(&InProcessRecording) -> annals::Result<T> + Send,
    ) -> PyResult<T> {
        self.owner.check()?;
        let done = py.detach(|| match &*lock(&self.open) {
            Some(open) => of(&open.recording),
            None => Err(annals::Error::new(annals::ErrorKind::Invalid, "the recording has ended")),
        });
        done.map_err(|error| python_error(&error))
    }
}

#[pymethods]
impl RecordingSession {
    #[new]
    #[pyo3(signature = (store, name, *, namespace, agent, model, tags, secrets, replace))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        store: PathBuf,
        name: String,
        namespace: String,
        agent: String,
        model: String,
        tags: Vec<(String, String)>,
        secrets: Vec<String>,
        replace: bool,
    ) -> PyResult<Self> {
        let begun = py.detach(|| {
            let store = StoreUse::open(&store, &namespace)?;
            let spec = RunSpec::new(&name).agent(&agent).model(&model).replace(replace);
            let spec = tags.iter().fold(spec, |spec, (key, value)| spec.tag(key, value));
            let recording = InProcessRecording::begin(store.destination(), spec, &secrets)?;
            Ok(Open { recording, store })
        });
        let open = begun.map_err(|error| session_error(&error))?;
        let name = open.recording.name().to_owned();
        Ok(Self { open: Mutex::new(Some(open)), name, owner: Owner::this() })
    }

    /// The run's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Begins an exchange of HTTP.
    fn exchange(
        &self,
        py: Python<'_>,
        method: String,
        url: String,
        headers: Headers,
        body: Vec<u8>,
    ) -> PyResult<Exchange> {
        let request = ClientRequest { method, url, headers, body: Bytes::from(body) };
        let exchange = self.with(py, |recording| recording.exchange(&request))?;
        Ok(Exchange { exchange: Mutex::new(Some(exchange)), owner: Owner::this() })
    }

    /// Begins a frame of another call. `metadata` is a JSON object.
    fn call(
        &self,
        py: Python<'_>,
        component: &str,
        input: Vec<u8>,
        metadata: Vec<u8>,
        parent: Option<u32>,
    ) -> PyResult<Call> {
        let mut frame = Frame::new(component_of(component), input, "").metadata(metadata);
        if let Some(parent) = parent {
            frame = frame.parent(parent);
        }
        let call = self.with(py, |recording| Ok(recording.call(&frame)))?;
        Ok(Call { call: Mutex::new(Some(call)), owner: Owner::this() })
    }

    /// Records a whole frame.
    fn record(
        &self,
        py: Python<'_>,
        component: &str,
        input: Vec<u8>,
        output: Vec<u8>,
        metadata: Vec<u8>,
    ) -> PyResult<()> {
        let frame = Frame::new(component_of(component), input, output).metadata(metadata);
        self.with(py, |recording| {
            recording.record(frame);
            Ok(())
        })
    }

    /// Records a frame with a state after it, and returns its number. `other` writes what is not plain data, as
    /// `encode_state` says.
    fn snapshot(
        &self,
        py: Python<'_>,
        state: &Bound<'_, PyAny>,
        other: &Bound<'_, PyAny>,
        metadata: Vec<u8>,
    ) -> PyResult<u32> {
        let state = states::encode(state, other)?;
        let frame = Frame::new(component_of("state"), "", "").metadata(metadata);
        self.with(py, |recording| recording.snapshot(frame, state))
    }

    /// Ends the run as `ok` or `failed` and returns its counts.
    fn end<'py>(&self, py: Python<'py>, ok: bool) -> PyResult<Bound<'py, PyDict>> {
        self.owner.check()?;
        let ended = py.detach(|| {
            let Some(open) = lock(&self.open).take() else {
                return Err(annals::Error::new(annals::ErrorKind::Invalid, "the recording has ended"));
            };
            let summary = open.recording.end(if ok { Status::Ok } else { Status::Failed })?;
            drop(open.recording);
            open.store.close()?;
            Ok(summary)
        });
        let summary = ended.map_err(|error| python_error(&error))?;
        let counts = PyDict::new(py);
        counts.set_item("requests", summary.requests)?;
        counts.set_item("seen", summary.seen)?;
        counts.set_item("calls", summary.calls)?;
        counts.set_item("broken", summary.broken)?;
        counts.set_item("secrets_removed", summary.secrets_removed)?;
        counts.set_item("failure", summary.failure)?;
        counts.set_item("memory_failure", summary.memory_failure)?;
        Ok(counts)
    }
}

impl Drop for RecordingSession {
    fn drop(&mut self) {
        // A child has none of the threads that closing waits for.
        if !self.owner.is_this() {
            std::mem::forget(lock(&self.open).take());
        }
    }
}

/// The names of headers that are left out of frames, because HTTP does not allow them.
#[pyfunction]
pub(super) fn invalid_headers(headers: Headers) -> Vec<String> {
    annals_proxy::in_process::invalid_headers(&headers)
}

fn component_of(name: &str) -> Component {
    match name {
        "user" => Component::User,
        "llm" => Component::Llm,
        "tool" => Component::Tool,
        "planner" => Component::Planner,
        "merge" => Component::Merge,
        "nondet" => Component::Nondet,
        other => Component::Other(other.to_owned()),
    }
}

/// An exchange that is being recorded.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct Exchange {
    exchange: Mutex<Option<InProcessExchange>>,
    owner: Owner,
}

impl Exchange {
    fn with(&self, py: Python<'_>, of: impl FnOnce(&mut InProcessExchange) + Send) {
        if self.owner.is_this() {
            py.detach(|| lock(&self.exchange).as_mut().map(of));
        }
    }
}

#[pymethods]
impl Exchange {
    /// The frame's number.
    #[getter]
    fn seq(&self) -> Option<u32> {
        lock(&self.exchange).as_ref().and_then(InProcessExchange::seq)
    }

    /// Sets the answer's status and headers.
    fn head(&self, py: Python<'_>, status: u16, headers: Headers) {
        self.with(py, |exchange| exchange.head(status, &headers));
    }

    /// Adds a part of the answer.
    fn part(&self, py: Python<'_>, bytes: Vec<u8>) {
        self.with(py, |exchange| exchange.part(Bytes::from(bytes)));
    }

    /// Ends the exchange; `broken` says why the answer is not complete.
    #[pyo3(signature = (broken = None))]
    fn end(&self, py: Python<'_>, broken: Option<String>) {
        self.with(py, |exchange| exchange.end(broken));
    }

    /// Ends an exchange that the client left before its answer was complete.
    fn hang_up(&self, py: Python<'_>) {
        if self.owner.is_this() {
            py.detach(|| drop(lock(&self.exchange).take()));
        }
    }

    /// Ends an exchange that got no answer, and says why.
    fn fail(&self, py: Python<'_>, why: String) -> PyResult<()> {
        if !self.owner.is_this() {
            return Ok(());
        }
        let failed =
            py.detach(|| lock(&self.exchange).as_mut().map_or(Ok(()), |exchange| exchange.fail(why)));
        failed.map_err(|error| python_error(&error))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.owner.is_this() {
            std::mem::forget(lock(&self.exchange).take());
        }
    }
}

/// Another call that is being recorded.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct Call {
    call: Mutex<Option<InProcessCall>>,
    owner: Owner,
}

#[pymethods]
impl Call {
    /// The frame's number.
    #[getter]
    fn seq(&self) -> Option<u32> {
        lock(&self.call).as_ref().and_then(InProcessCall::seq)
    }

    /// Adds to the output.
    fn part(&self, py: Python<'_>, bytes: Vec<u8>) {
        if self.owner.is_this() {
            py.detach(|| lock(&self.call).as_mut().map(|call| call.part(&bytes)));
        }
    }

    /// Ends the call.
    #[pyo3(signature = (error, metadata = None))]
    fn end(&self, py: Python<'_>, error: bool, metadata: Option<Vec<u8>>) {
        if self.owner.is_this() {
            py.detach(|| {
                if let Some(mut call) = lock(&self.call).take() {
                    call.end(error, metadata);
                }
            });
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.owner.is_this() {
            std::mem::forget(lock(&self.call).take());
        }
    }
}
