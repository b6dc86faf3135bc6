//! Runs: recorded frame by frame, and read back.

use std::sync::{Arc, Mutex, PoisonError};

use annals::runs::Frames;
use annals::{Frame, RecordedFrame, RunInfo, RunReader, Severity, Status};
use annals_daemon::SharedRun;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors::to_py;
use super::handle::StoreHandle;
use super::namespace::bytes_of;

/// A run that is being recorded. `Namespace.begin_run` begins one.
#[pyclass(frozen, module = "annals", name = "Run")]
pub(crate) struct PyRun {
    run: SharedRun,
    namespace: String,
    // Dropped after the run: the handle keeps a forked child from closing the store.
    handle: Arc<StoreHandle>,
}

impl PyRun {
    pub(super) fn new(handle: &Arc<StoreHandle>, namespace: &str, run: SharedRun) -> Self {
        Self { run, namespace: namespace.to_owned(), handle: handle.clone() }
    }

    fn checked(&self) -> annals::Result<&SharedRun> {
        self.handle.source()?;
        Ok(&self.run)
    }
}

fn severity_of(name: Option<&str>) -> annals::Result<Severity> {
    name.map_or(Ok(Severity::Normal), str::parse)
}

#[pymethods]
impl PyRun {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.run.name()
    }

    /// Records a frame; returns its number. Input and output are bytes, str or buffers; metadata is JSON. The frame
    /// is on disk when this returns.
    #[pyo3(signature = (component, input, output, *, parent = None, metadata = None, severity = None, error = false,
        started_ns = None, duration_ns = 0))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn record(
        &self,
        py: Python<'_>,
        component: &str,
        input: &Bound<'_, PyAny>,
        output: &Bound<'_, PyAny>,
        parent: Option<u32>,
        metadata: Option<&Bound<'_, PyAny>>,
        severity: Option<&str>,
        error: bool,
        started_ns: Option<u64>,
        duration_ns: u64,
    ) -> PyResult<u32> {
        let (input, output) = (bytes_of(input)?, bytes_of(output)?);
        let metadata = metadata.map(bytes_of).transpose()?.unwrap_or_default();
        py.detach(|| {
            let frame = Frame {
                parent,
                metadata,
                severity: severity_of(severity)?,
                error,
                started_ns,
                duration_ns,
                ..Frame::new(component.parse()?, input, output)
            };
            self.checked()?.record(frame)
        })
        .map_err(to_py)
    }

    /// Stores a state of the agent after the last frame; returns that frame's number.
    fn snapshot(&self, py: Python<'_>, state: &Bound<'_, PyAny>) -> PyResult<u32> {
        let state = bytes_of(state)?;
        py.detach(|| self.checked()?.snapshot(state)).map_err(to_py)
    }

    /// Ends the run: "ok" or "failed".
    #[pyo3(signature = (status = "ok"))]
    fn end(&self, py: Python<'_>, status: &str) -> PyResult<PyRunInfo> {
        py.detach(|| {
            let status: Status = status.parse()?;
            let ended = match self.checked()?.end(status)? {
                Some(info) => info,
                None => {
                    self.handle.readable()?.namespace(&self.namespace)?.run(self.run.name())?.info().clone()
                }
            };
            Ok(PyRunInfo::from(ended))
        })
        .map_err(to_py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Ends the run: "ok", or "failed" after an exception.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.end(py, if kind.is_none() { "ok" } else { "failed" }).map(drop)
    }

    fn __repr__(&self) -> String {
        format!("<annals.Run {:?}>", self.run.name())
    }
}

/// A run's fields and counts.
#[pyclass(frozen, get_all, module = "annals", name = "RunInfo")]
pub(crate) struct PyRunInfo {
    name: String,
    uid: u64,
    agent: String,
    model: String,
    tags: Vec<(String, String)>,
    status: &'static str,
    severity: &'static str,
    /// The run that it was forked from, and the last frame that both share.
    parent: Option<(Option<String>, u32)>,
    started_ns: u64,
    ended_ns: Option<u64>,
    frames: u32,
    raw_bytes: u64,
    fingerprint: Option<String>,
}

impl From<RunInfo> for PyRunInfo {
    fn from(info: RunInfo) -> Self {
        Self {
            name: info.name,
            uid: info.uid.0,
            agent: info.agent,
            model: info.model,
            tags: info.tags,
            status: info.status.name(),
            severity: info.severity.name(),
            parent: info.parent.map(|point| (point.run, point.shared)),
            started_ns: info.started_ns,
            ended_ns: info.ended_ns,
            frames: info.frames,
            raw_bytes: info.raw_bytes,
            fingerprint: info.fingerprint.map(|link| link.to_string()),
        }
    }
}

#[pymethods]
impl PyRunInfo {
    fn __repr__(&self) -> String {
        format!("<annals.RunInfo {:?} {} frames {}>", self.name, self.status, self.frames)
    }
}

/// A recorded run. `Namespace.run` opens one.
#[pyclass(frozen, module = "annals", name = "RunReader")]
pub(crate) struct PyRunReader {
    reader: RunReader,
    handle: Arc<StoreHandle>,
}

impl PyRunReader {
    pub(super) fn new(handle: &Arc<StoreHandle>, reader: RunReader) -> Self {
        Self { reader, handle: handle.clone() }
    }
}

#[pymethods]
impl PyRunReader {
    /// Its fields and counts.
    #[getter]
    fn info(&self) -> PyRunInfo {
        self.reader.info().clone().into()
    }

    /// Its metadata: JSON, or nothing.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let metadata = py
            .detach(|| {
                self.handle.source()?;
                self.reader.metadata()
            })
            .map_err(to_py)?;
        Ok(PyBytes::new(py, &metadata))
    }

    /// Frame `seq`, from 1. Its bytes are checked.
    fn frame(&self, py: Python<'_>, seq: u32) -> PyResult<PyFrame> {
        py.detach(|| {
            self.handle.source()?;
            self.reader.frame(seq).map(PyFrame)
        })
        .map_err(to_py)
    }

    /// Its frames in order. Bytes and chain are checked.
    fn frames(&self) -> PyFrames {
        PyFrames { frames: Mutex::new(self.reader.frames()), handle: self.handle.clone() }
    }

    /// The number of the frame and the bytes of the newest state that was stored at frame `seq` or before, or None.
    fn snapshot_at<'py>(&self, py: Python<'py>, seq: u32) -> PyResult<Option<(u32, Bound<'py, PyBytes>)>> {
        let snapshot = py
            .detach(|| {
                self.handle.source()?;
                self.reader.snapshot_at(seq)
            })
            .map_err(to_py)?;
        Ok(snapshot.map(|snapshot| (snapshot.seq, PyBytes::new(py, &snapshot.state))))
    }

    fn __iter__(&self) -> PyFrames {
        self.frames()
    }

    fn __len__(&self) -> usize {
        self.reader.info().frames as usize
    }

    fn __repr__(&self) -> String {
        format!("<annals.RunReader {:?}>", self.reader.info().name)
    }
}

/// The frames of a run in order.
#[pyclass(frozen, module = "annals", name = "Frames")]
pub(crate) struct PyFrames {
    frames: Mutex<Frames>,
    handle: Arc<StoreHandle>,
}

#[pymethods]
impl PyFrames {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyFrame>> {
        py.detach(|| {
            self.handle.source()?;
            self.frames.lock().unwrap_or_else(PoisonError::into_inner).next().transpose()
        })
        .map(|frame| frame.map(PyFrame))
        .map_err(to_py)
    }
}

/// A frame as it was recorded.
#[pyclass(frozen, module = "annals", name = "Frame")]
pub(crate) struct PyFrame(RecordedFrame);

#[pymethods]
impl PyFrame {
    #[getter]
    fn seq(&self) -> u32 {
        self.0.seq
    }

    #[getter]
    fn parent(&self) -> Option<u32> {
        self.0.parent
    }

    #[getter]
    fn component(&self) -> &str {
        self.0.component.name()
    }

    #[getter]
    fn severity(&self) -> &'static str {
        self.0.severity.name()
    }

    #[getter]
    fn incomplete(&self) -> bool {
        self.0.incomplete
    }

    #[getter]
    fn error(&self) -> bool {
        self.0.error
    }

    #[getter]
    fn started_ns(&self) -> u64 {
        self.0.started_ns
    }

    #[getter]
    fn duration_ns(&self) -> u64 {
        self.0.duration_ns
    }

    #[getter]
    fn input<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.input)
    }

    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.output)
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.metadata)
    }

    #[getter]
    fn link(&self) -> String {
        self.0.link.to_string()
    }

    fn __repr__(&self) -> String {
        let frame = &self.0;
        let (input, output) = (frame.input.len(), frame.output.len());
        format!("<annals.Frame {} {} {input} bytes in, {output} bytes out>", frame.seq, frame.component)
    }
}
