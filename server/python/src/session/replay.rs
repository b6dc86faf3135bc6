//! A recorded run that answers the process.

use std::path::{Path, PathBuf};

use annals::replay::matching::Rules;
use annals::{Component, Store};
use annals_proxy::in_process::{ClientRequest, InProcessReplay, recorded_draws};
use annals_proxy::proxy::{RecordedAnswer, RecordedResult, ReplayOptions, ToolReplay};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::record::{Headers, Owner};
use super::{SessionResult, python_error};

/// A recorded run that answers requests and other calls. `rules` are texts as `annals replay --rule` takes
/// them, or the name of a preset.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct ReplaySession {
    replay: InProcessReplay,
    draws: Vec<LaneDraws>,
    calls: Vec<CallSpan>,
    owner: Owner,
}

/// A lane and its draws, as lines `KIND VALUE`.
type LaneDraws = (String, String);

/// A frame's number, whether it is an exchange, and when it began and ended, in nanoseconds.
type CallSpan = (u32, bool, u64, u64);

pub(super) fn reader(store: &Path, namespace: &str, name: &str) -> SessionResult<annals::RunReader> {
    Store::open_read_only(store)?.namespace(namespace)?.run(name)
}

fn open(
    store: &Path,
    namespace: &str,
    name: &str,
    rules: &[String],
    chaos: Option<u64>,
    tools: &str,
) -> SessionResult<(InProcessReplay, Vec<LaneDraws>, Vec<CallSpan>)> {
    let reader = reader(store, namespace, name)?;
    let rules = rules.iter().try_fold(Rules::none(), |rules, text| match text.contains(' ') {
        true => rules.rule(text),
        false => rules.preset(text),
    })?;
    let tools = match tools {
        "recorded" => ToolReplay::Recorded,
        "compare" => ToolReplay::Compared,
        _ => ToolReplay::Live,
    };
    let options = ReplayOptions { rules, chaos, tools, ..ReplayOptions::default() };
    let draws = recorded_draws(&reader)?;
    let draws = draws.into_iter().map(|lane| (lane.lane, lane.lines)).collect();
    let calls = call_spans(&reader)?;
    Ok((InProcessReplay::new(&reader, options)?, draws, calls))
}

/// The calls of a run, in the order in which they began.
fn call_spans(reader: &annals::RunReader) -> SessionResult<Vec<CallSpan>> {
    let mut spans = Vec::new();
    for seq in 1..=reader.info().frames {
        let info = reader.frame_info(seq)?;
        let exchange = matches!(info.component.name(), "llm" | "http");
        if exchange || info.component == Component::Tool {
            spans.push((seq, exchange, info.started_ns, info.started_ns.saturating_add(info.duration_ns)));
        }
    }
    spans.sort_by_key(|(seq, _, begun_ns, _)| (*begun_ns, *seq));
    Ok(spans)
}

#[pymethods]
impl ReplaySession {
    #[new]
    #[pyo3(signature = (store, name, *, namespace, rules, chaos, tools))]
    fn new(
        py: Python<'_>,
        store: PathBuf,
        name: String,
        namespace: String,
        rules: Vec<String>,
        chaos: Option<u64>,
        tools: String,
    ) -> PyResult<Self> {
        let opened = py.detach(|| open(&store, &namespace, &name, &rules, chaos, &tools));
        let (replay, draws, calls) = opened.map_err(|error| python_error(&error))?;
        Ok(Self { replay, draws, calls, owner: Owner::this() })
    }

    /// The recorded draws: pairs of a lane and lines `KIND VALUE`.
    #[getter]
    fn draws(&self) -> Vec<(String, String)> {
        self.draws.clone()
    }

    /// The recorded calls in the order in which they began: a frame's number, whether it is an exchange, when it
    /// began and ended.
    #[getter]
    fn calls(&self) -> Vec<CallSpan> {
        self.calls.clone()
    }

    /// The recorded answer of a request, or the report of the divergence as a text.
    fn answer<'py>(
        &self,
        py: Python<'py>,
        method: String,
        url: String,
        headers: Headers,
        body: Vec<u8>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.owner.check()?;
        let request = ClientRequest { method, url, headers, body: Bytes::from(body) };
        let found = py.detach(|| self.replay.answer(&request));
        match found.map_err(|error| python_error(&error))? {
            Ok(answer) => Ok(Bound::new(py, Answer(answer))?.into_any()),
            Err(report) => Ok(report.into_pyobject(py)?.into_any()),
        }
    }

    /// The recorded result of another call, or the report of the divergence as a text.
    fn result<'py>(&self, py: Python<'py>, name: String, input: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.owner.check()?;
        let found = py.detach(|| self.replay.result(&name, &input));
        match found.map_err(|error| python_error(&error))? {
            Ok(result) => Ok(Bound::new(py, CallResult(result))?.into_any()),
            Err(report) => Ok(report.into_pyobject(py)?.into_any()),
        }
    }

    /// Whether the answer of this frame may end now.
    fn may_end(&self, seq: u32) -> bool {
        self.replay.may_end(seq)
    }

    /// Says that the answer of this frame has ended.
    fn note_end(&self, seq: u32) {
        self.replay.note_end(seq);
    }

    /// Gives up the answers that this one waits for.
    fn stop_waiting(&self, seq: u32) {
        self.replay.stop_waiting(seq);
    }

    /// The counts and the divergences.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = self.replay.finish();
        let receipt = &summary.receipt;
        let counts = PyDict::new(py);
        counts.set_item("text", receipt.to_string())?;
        counts.set_item("faithful", receipt.is_faithful() && summary.diverged.is_empty())?;
        counts.set_item("recorded", receipt.recorded)?;
        counts.set_item("exact", receipt.exact)?;
        counts.set_item("matched", receipt.matched)?;
        counts.set_item("changed", receipt.changed)?;
        counts.set_item("unrecorded", receipt.unrecorded)?;
        counts.set_item("served", receipt.served)?;
        counts.set_item("given_up", receipt.given_up)?;
        counts.set_item("missing", receipt.missing.clone())?;
        counts.set_item("tokens", summary.tokens)?;
        let diverged: Vec<String> = summary.diverged.iter().map(ToString::to_string).collect();
        counts.set_item("diverged", diverged)?;
        Ok(counts)
    }
}

/// A recorded answer of an exchange.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct Answer(RecordedAnswer);

#[pymethods]
impl Answer {
    /// The frame's number.
    #[getter]
    fn seq(&self) -> u32 {
        self.0.seq
    }

    /// The status of HTTP.
    #[getter]
    fn status(&self) -> u16 {
        self.0.status
    }

    /// Pairs of names and values.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let pair = |(name, value): &(Vec<u8>, Vec<u8>)| (PyBytes::new(py, name), PyBytes::new(py, value));
        self.0.headers.iter().map(pair).collect()
    }

    /// The parts of the answer, as they came.
    #[getter]
    fn parts<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let (mut left, mut parts) = (self.0.body.as_slice(), Vec::new());
        for len in &self.0.part_bytes {
            let len = usize::try_from(*len).unwrap_or(usize::MAX).min(left.len());
            let (part, rest) = left.split_at(len);
            parts.push(PyBytes::new(py, part));
            left = rest;
        }
        if !left.is_empty() {
            parts.push(PyBytes::new(py, left));
        }
        parts
    }

    /// Why the answer is not complete, or `None`.
    #[getter]
    fn broken(&self) -> Option<&str> {
        self.0.broken.as_deref()
    }

    /// Whether the client hung up before the answer was complete.
    #[getter]
    fn hung_up(&self) -> bool {
        self.0.hung_up
    }

    /// Whether the request failed without an answer.
    #[getter]
    fn failed(&self) -> bool {
        self.0.failed
    }
}

/// A recorded result of another call.
#[pyclass(frozen, module = "annals._annals")]
pub(super) struct CallResult(RecordedResult);

#[pymethods]
impl CallResult {
    /// The frame's number.
    #[getter]
    fn seq(&self) -> u32 {
        self.0.seq
    }

    /// The call's output.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.output)
    }

    /// Whether the call failed.
    #[getter]
    fn error(&self) -> bool {
        self.0.error
    }

    /// The frame's metadata.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.metadata)
    }
}

/// The state of a run after a frame: the frame of the snapshot and its bytes; `None` if there is none.
#[pyfunction]
pub(super) fn snapshot<'py>(
    py: Python<'py>,
    store: PathBuf,
    namespace: String,
    name: String,
    seq: u32,
) -> PyResult<Option<(u32, Bound<'py, PyBytes>)>> {
    let found = py.detach(|| reader(&store, &namespace, &name)?.snapshot_at(seq));
    let found = found.map_err(|error| python_error(&error))?;
    Ok(found.map(|found| (found.seq, PyBytes::new(py, &found.state))))
}

/// The frames of a run: dictionaries with `seq`, `component`, `input`, `output`, `metadata`, `error`,
/// `incomplete`.
#[pyfunction]
pub(super) fn frames<'py>(
    py: Python<'py>,
    store: PathBuf,
    namespace: String,
    name: String,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let read = py.detach(|| reader(&store, &namespace, &name)?.frames().collect::<SessionResult<Vec<_>>>());
    let frames = read.map_err(|error| python_error(&error))?;
    let dictionary = |frame: annals::RecordedFrame| {
        let all = PyDict::new(py);
        all.set_item("seq", frame.seq)?;
        all.set_item("component", frame.component.name())?;
        all.set_item("input", PyBytes::new(py, &frame.input))?;
        all.set_item("output", PyBytes::new(py, &frame.output))?;
        all.set_item("metadata", PyBytes::new(py, &frame.metadata))?;
        all.set_item("error", frame.error)?;
        all.set_item("incomplete", frame.incomplete)?;
        Ok(all)
    };
    frames.into_iter().map(dictionary).collect()
}
