//! A namespace: its keyspaces, wherever the store is held, and its runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use annals::{Namespace, RunSpec, Severity, kv::ScanRange};
use annals_daemon::{KeyChange, KeyRange};
use annals_memory::{Identity, MemoryQuery};
use annals_proxy::destination::ForkPoint;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};

use super::errors::to_py;
use super::handle::{StoreHandle, StoreSource};
use super::run::{PyRun, PyRunInfo, PyRunReader};
use super::search;

/// The runs and keyspaces of one tenant. `Store.namespace` opens one.
#[pyclass(frozen, module = "annals", name = "Namespace")]
pub(crate) struct PyNamespace {
    pub(super) handle: Arc<StoreHandle>,
    name: String,
}

/// The bytes of a `bytes`, `str` or any other object with a buffer.
///
/// # Errors
/// `TypeError` for anything else.
pub(crate) fn bytes_of(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_str()?.as_bytes().to_vec());
    }
    if let Ok(bytes) = value.cast::<PyByteArray>() {
        return Ok(bytes.to_vec());
    }
    let wrong =
        |_| PyTypeError::new_err(format!("expected bytes, str or a buffer, not {}", value.get_type()));
    // Copies any buffer, also one that is not contiguous.
    let copy = PyMemoryView::from(value).map_err(wrong)?.call_method0("tobytes")?;
    Ok(copy.cast_into::<PyBytes>()?.as_bytes().to_vec())
}

/// A change of keys as Python gives it: a kind and its words.
fn change_of(change: &Bound<'_, PyAny>) -> PyResult<KeyChange> {
    let text = |index: usize| change.get_item(index)?.extract::<String>();
    let bytes = |index: usize| bytes_of(&change.get_item(index)?);
    Ok(match text(0)?.as_str() {
        "put" => KeyChange::Put { keyspace: text(1)?, key: bytes(2)?, value: bytes(3)?, vectors: Vec::new() },
        "delete" => KeyChange::Delete { keyspace: text(1)?, key: bytes(2)? },
        "note" => KeyChange::Note { run: text(1)?, id: text(2)?, metadata: bytes(3)?, output: bytes(4)? },
        "fork" => KeyChange::Fork { run: text(1)?, id: text(2)?, fork: text(3)? },
        "drop" => KeyChange::Drop { run: text(1)? },
        other => {
            let kinds = "put, delete, note, fork, drop";
            return Err(PyTypeError::new_err(format!("there is no change {other:?}: use one of {kinds}")));
        }
    })
}

impl PyNamespace {
    pub(super) fn open(handle: &Arc<StoreHandle>, name: &str) -> annals::Result<Self> {
        let namespace = Self { handle: handle.clone(), name: name.to_owned() };
        match handle.source()? {
            // Checks the name, and makes the namespace.
            StoreSource::Shared(keys) => match keys.local() {
                Some(store) => store.namespace(name).map(drop)?,
                None => keys.get(name, "annals.none", b"").map(drop)?,
            },
            StoreSource::ReadOnly(store) => store.namespace(name).map(drop)?,
        }
        Ok(namespace)
    }

    fn reader(&self) -> annals::Result<Namespace> {
        self.handle.readable()?.namespace(&self.name)
    }

    /// Changes what the store knows of a run, in the process that holds the store. Returns whether there was something to
    /// change.
    fn change_run(
        &self,
        py: Python<'_>,
        local: impl Fn(&Namespace) -> annals::Result<bool> + Sync,
        words: &[&[u8]],
    ) -> PyResult<bool> {
        let words = [words, &[b"NAMESPACE", self.name.as_bytes()]].concat();
        let local = |space: &Namespace| local(space).map(|is_done| is_done.then(String::new));
        let done = py.detach(|| self.handle.shared()?.run_or_ask(&self.name, local, &words));
        done.map(|done| done.is_some()).map_err(to_py)
    }

    fn get_value(&self, keyspace: &str, key: &[u8]) -> annals::Result<Option<Vec<u8>>> {
        match self.handle.source()? {
            StoreSource::Shared(keys) => keys.get(&self.name, keyspace, key),
            StoreSource::ReadOnly(store) => {
                let found = store.namespace(&self.name)?.find_keyspace(keyspace)?;
                found.map_or(Ok(None), |keyspace| keyspace.get(key))
            }
        }
    }
}

/// Keys and values, and whether there may be more.
type ScannedPage<'py> = (Vec<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>)>, bool);

#[pymethods]
impl PyNamespace {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The value of a key, or None.
    fn get<'py>(
        &self,
        py: Python<'py>,
        keyspace: &str,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = bytes_of(key)?;
        let value = py.detach(|| self.get_value(keyspace, &key)).map_err(to_py)?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    /// Whether a key has this value. Long values are not read if this process holds the store.
    fn has_value(
        &self,
        py: Python<'_>,
        keyspace: &str,
        key: &Bound<'_, PyBytes>,
        value: &Bound<'_, PyBytes>,
    ) -> PyResult<bool> {
        let (key, value) = (key.as_bytes(), value.as_bytes());
        py.detach(|| self.handle.shared()?.has_value(&self.name, keyspace, key, value)).map_err(to_py)
    }

    /// Sets a key. The value is on disk when this returns.
    fn put(
        &self,
        py: Python<'_>,
        keyspace: String,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let change =
            KeyChange::Put { keyspace, key: bytes_of(key)?, value: bytes_of(value)?, vectors: Vec::new() };
        py.detach(|| self.handle.shared()?.write(&self.name, vec![change])).map_err(to_py)
    }

    /// Deletes a key, whether it exists or not.
    fn delete(&self, py: Python<'_>, keyspace: String, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let change = KeyChange::Delete { keyspace, key: bytes_of(key)? };
        py.detach(|| self.handle.shared()?.write(&self.name, vec![change])).map_err(to_py)
    }

    /// Applies changes together: `("put", keyspace, key, value)`, `("delete", keyspace, key)`,
    /// `("note", run, id, metadata, output)`, `("fork", run, id, fork)`, `("drop", run)`.
    fn write(&self, py: Python<'_>, changes: &Bound<'_, PyAny>) -> PyResult<()> {
        let changes = changes.try_iter()?.map(|change| change_of(&change?)).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.handle.shared()?.write(&self.name, changes)).map_err(to_py)
    }

    /// One page of keys in order from `start` up to and without `end`, with values unless `keys_only`; and whether
    /// there may be more.
    #[pyo3(signature = (keyspace, start, end = None, *, count = 1000, reverse = false, keys_only = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn scan_page<'py>(
        &self,
        py: Python<'py>,
        keyspace: &str,
        start: &Bound<'_, PyAny>,
        end: Option<&Bound<'_, PyAny>>,
        count: usize,
        reverse: bool,
        keys_only: bool,
    ) -> PyResult<ScannedPage<'py>> {
        let (from, to) = (bytes_of(start)?, end.map_or(Ok(Vec::new()), bytes_of)?);
        let range = KeyRange { from, to, count: count.max(1), reverse, keys_only };
        let page = py
            .detach(|| match self.handle.source()? {
                StoreSource::Shared(keys) => keys.scan(&self.name, keyspace, &range),
                StoreSource::ReadOnly(store) => range.read(&store.namespace(&self.name)?, keyspace),
            })
            .map_err(to_py)?;
        let bytes = |bytes: &Vec<u8>| PyBytes::new(py, bytes);
        let items = page.items.iter().map(|(key, value)| (bytes(key), value.as_ref().map(bytes))).collect();
        Ok((items, page.more))
    }

    /// Begins a run.
    #[pyo3(signature = (name, *, agent = "", model = "", tags = Vec::new(), metadata = None, replace = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn begin_run(
        &self,
        py: Python<'_>,
        name: &str,
        agent: &str,
        model: &str,
        tags: Vec<(String, String)>,
        metadata: Option<&Bound<'_, PyAny>>,
        replace: bool,
    ) -> PyResult<PyRun> {
        let metadata = metadata.map(bytes_of).transpose()?;
        let mut spec = RunSpec::new(name).agent(agent).model(model).replace(replace);
        spec.tags = tags;
        if let Some(metadata) = metadata {
            spec = spec.metadata(metadata);
        }
        let run = py.detach(|| self.handle.shared()?.begin_run(&self.name, &spec)).map_err(to_py)?;
        Ok(PyRun::new(&self.handle, &self.name, run))
    }

    /// Begins a run that shares another run's frames up to frame `at`; with `edit` it records `at` anew.
    #[pyo3(signature = (run, at, name, *, edit = false))]
    fn fork(&self, py: Python<'_>, run: &str, at: u32, name: &str, edit: bool) -> PyResult<PyRun> {
        let from = ForkPoint { run, at, edit };
        let fork = py
            .detach(|| self.handle.shared()?.fork_run(&self.name, from, &RunSpec::new(name)))
            .map_err(to_py)?;
        Ok(PyRun::new(&self.handle, &self.name, fork))
    }

    /// Takes up a run again that is open or abandoned.
    fn resume_run(&self, py: Python<'_>, name: &str) -> PyResult<PyRun> {
        let run = py.detach(|| self.handle.shared()?.resume_run(&self.name, name)).map_err(to_py)?;
        Ok(PyRun::new(&self.handle, &self.name, run))
    }

    /// A recorded run.
    fn run(&self, py: Python<'_>, name: &str) -> PyResult<PyRunReader> {
        let reader = py.detach(|| self.reader()?.run(name)).map_err(to_py)?;
        Ok(PyRunReader::new(&self.handle, reader))
    }

    /// All runs, oldest first.
    fn runs(&self, py: Python<'_>) -> PyResult<Vec<PyRunInfo>> {
        py.detach(|| {
            self.reader()?.runs()?.map(|info| info.map(PyRunInfo::from)).collect::<annals::Result<_>>()
        })
        .map_err(to_py)
    }

    /// Drops a run: reading it then fails with `Gone`. Forks keep the frames that they share.
    #[pyo3(signature = (name, why = "dropped from Python"))]
    fn drop_run(&self, py: Python<'_>, name: &str, why: &str) -> PyResult<()> {
        let local = |space: &Namespace| space.drop_run(name, "python", why).map(|_| true);
        self.change_run(py, local, &[b"RUN.DROP", name.as_bytes(), why.as_bytes()]).map(drop)
    }

    /// Keeps a run from retention, compaction and `drop_run` until it is unpinned.
    fn pin(&self, py: Python<'_>, run: &str, why: &str) -> PyResult<()> {
        let local = |space: &Namespace| space.pin(run, why).map(|_| true);
        self.change_run(py, local, &[b"RUN.PIN", run.as_bytes(), why.as_bytes()]).map(drop)
    }

    /// Removes a run's pin; returns whether it had one.
    fn unpin(&self, py: Python<'_>, run: &str) -> PyResult<bool> {
        let local = |space: &Namespace| space.unpin(run);
        self.change_run(py, local, &[b"RUN.UNPIN", run.as_bytes()])
    }

    /// Says that a run should be looked at: lists and policies count it as flagged, or as escalated.
    #[pyo3(signature = (run, why, *, escalate = false))]
    fn flag(&self, py: Python<'_>, run: &str, why: &str, escalate: bool) -> PyResult<()> {
        let severity = if escalate { Severity::Escalated } else { Severity::Flagged };
        let local = |space: &Namespace| space.flag(run, severity, why).map(|_| true);
        let level = severity.name().as_bytes();
        self.change_run(py, local, &[b"RUN.FLAG", run.as_bytes(), why.as_bytes(), b"SEVERITY", level])
            .map(drop)
    }

    /// Removes a run's flag; returns whether it had one.
    fn unflag(&self, py: Python<'_>, run: &str) -> PyResult<bool> {
        let local = |space: &Namespace| space.unflag(run);
        self.change_run(py, local, &[b"RUN.UNFLAG", run.as_bytes()])
    }

    /// Memory entries that answer a question, the best first. Without a store of this process it reads only.
    #[pyo3(signature = (question, *, k = 10, min_score = None, tenant = None, principal = None, conversation = None,
        across_conversations = false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn recall(
        &self,
        py: Python<'_>,
        question: &str,
        k: usize,
        min_score: Option<f32>,
        tenant: Option<String>,
        principal: Option<String>,
        conversation: Option<String>,
        across_conversations: bool,
    ) -> PyResult<Vec<search::PyMemoryHit>> {
        let whose = Identity { tenant, principal, conversation };
        py.detach(|| {
            let wanted = MemoryQuery { k, min_score, across_conversations, ..MemoryQuery::default() };
            search::recall(&self.reader()?, &whose, question, &wanted)
        })
        .map_err(to_py)
    }

    /// Stores a memory entry, which is JSON; returns its id. On disk when this returns.
    #[pyo3(signature = (entry, *, tenant = None, principal = None, conversation = None))]
    fn remember(
        &self,
        py: Python<'_>,
        entry: &str,
        tenant: Option<String>,
        principal: Option<String>,
        conversation: Option<String>,
    ) -> PyResult<String> {
        let whose = Identity { tenant, principal, conversation };
        py.detach(|| search::remember(self.handle.shared()?, &self.name, &whose, entry)).map_err(to_py)
    }

    /// Sets a key together with vectors of its value: a dictionary of an embedder's id to its vector.
    fn put_embedded(
        &self,
        py: Python<'_>,
        keyspace: &str,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        vectors: BTreeMap<String, Vec<f32>>,
    ) -> PyResult<()> {
        let change = KeyChange::Put {
            keyspace: keyspace.to_owned(),
            key: bytes_of(key)?,
            value: bytes_of(value)?,
            vectors: vectors.into_iter().collect(),
        };
        py.detach(|| self.handle.shared()?.write(&self.name, vec![change])).map_err(to_py)
    }

    /// The keys and snapshots whose vectors of this embedder are nearest to a vector, the nearest first.
    #[pyo3(signature = (embedder, vector, *, k = 10, min_score = -1.0, exact = false))]
    fn nearest(
        &self,
        py: Python<'_>,
        embedder: &str,
        vector: Vec<f32>,
        k: usize,
        min_score: f32,
        exact: bool,
    ) -> PyResult<Vec<search::PyVectorHit>> {
        search::nearest(py, || self.reader(), embedder, &vector, (k, min_score, exact)).map_err(to_py)
    }

    /// The names of the first keys of a keyspace: for people who look into it.
    #[pyo3(signature = (keyspace, count = 100))]
    fn keys<'py>(&self, py: Python<'py>, keyspace: &str, count: usize) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys = py
            .detach(|| {
                let Some(keyspace) = self.reader()?.find_keyspace(keyspace)? else { return Ok(Vec::new()) };
                keyspace.scan(ScanRange::all()).keys().take(count).collect::<annals::Result<Vec<_>>>()
            })
            .map_err(to_py)?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    fn __repr__(&self) -> String {
        format!("<annals.Namespace {:?}>", self.name)
    }
}
