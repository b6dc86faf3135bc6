//! Memory entries found by a question, and keys found by their vectors.

use annals::{ErrorKind, Namespace, vectors::Owner, vectors::Search};
use annals_daemon::SharedKeys;
use annals_memory::{Identity, Memory, MemoryQuery};
use annals_proxy::embeddings::ConfiguredEmbedder;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A memory entry that answers a question.
#[pyclass(frozen, get_all, module = "annals", name = "MemoryHit")]
pub(crate) struct PyMemoryHit {
    /// The entry as it was stored: JSON.
    entry: String,
    /// The owner's name: tenant, principal and conversation with slashes between them.
    identity: String,
    score: f32,
}

#[pymethods]
impl PyMemoryHit {
    fn __repr__(&self) -> String {
        format!("<annals.MemoryHit {:.3} {:?}>", self.score, self.identity)
    }
}

/// Entries that answer a question, the best first. The question is embedded as the environment says, without caching.
///
/// # Errors
/// As [`Memory::recall`].
pub(super) fn recall(
    space: &Namespace,
    whose: &Identity,
    question: &str,
    wanted: &MemoryQuery<'_>,
) -> annals::Result<Vec<PyMemoryHit>> {
    let embedder = ConfiguredEmbedder::from_environment(None)?;
    let memory = match Memory::open(space) {
        // Nothing was remembered yet.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        memory => memory?,
    };
    let hits = memory.recall(whose, question, &embedder, wanted)?;
    let shown = |hit: annals_memory::MemoryHit| PyMemoryHit {
        entry: hit.entry.to_json(),
        identity: hit.identity,
        score: hit.score,
    };
    Ok(hits.into_iter().map(shown).collect())
}

/// Stores an entry, which is JSON; returns its id. On disk when this returns. If another process holds the store, its
/// environment says how the entry is embedded.
///
/// # Errors
/// As [`Memory::remember`].
pub(super) fn remember(
    store: &SharedKeys,
    namespace: &str,
    whose: &Identity,
    entry: &str,
) -> annals::Result<String> {
    let local = |space: &Namespace| {
        let embedder = ConfiguredEmbedder::from_environment(Some(space))?;
        let stored = Memory::open(space)?.with_disk_durability().remember(whose, entry, &embedder)?;
        Ok(Some(stored.id))
    };
    let mut words: Vec<&[u8]> =
        vec![b"MEM.PUT", entry.as_bytes(), b"EMBED", b"NAMESPACE", namespace.as_bytes()];
    let parts =
        [("TENANT", &whose.tenant), ("PRINCIPAL", &whose.principal), ("CONVERSATION", &whose.conversation)];
    for (option, part) in parts {
        words.extend(part.iter().flat_map(|part| [option.as_bytes(), part.as_bytes()]));
    }
    store.run_or_ask(namespace, local, &words).map(Option::unwrap_or_default)
}

/// A key or a run's snapshot that has a vector.
#[pyclass(frozen, get_all, module = "annals", name = "VectorHit")]
pub(crate) struct PyVectorHit {
    /// The cosine of the angle between the vectors.
    score: f32,
    keyspace: Option<String>,
    key: Option<Py<PyBytes>>,
    /// The run's uid and the frame of a snapshot.
    snapshot: Option<(u64, u32)>,
}

#[pymethods]
impl PyVectorHit {
    fn __repr__(&self) -> String {
        match (&self.keyspace, &self.snapshot) {
            (Some(keyspace), _) => format!("<annals.VectorHit {:.3} in {keyspace:?}>", self.score),
            (None, snapshot) => format!("<annals.VectorHit {:.3} snapshot {snapshot:?}>", self.score),
        }
    }
}

/// The vectors nearest to one, the nearest first.
///
/// # Errors
/// As [`Namespace::nearest`].
pub(super) fn nearest(
    py: Python<'_>,
    space: impl FnOnce() -> annals::Result<Namespace> + Send,
    embedder: &str,
    vector: &[f32],
    (k, min_score, exact): (usize, f32, bool),
) -> annals::Result<Vec<PyVectorHit>> {
    let hits = py.detach(|| {
        space()?.nearest(embedder, vector, &Search { k, min_score, exact, ..Search::default() })
    })?;
    let shown = |hit: annals::vectors::SearchHit| match hit.owner {
        Owner::Key { keyspace, key } => PyVectorHit {
            score: hit.score,
            keyspace: Some(keyspace),
            key: Some(PyBytes::new(py, &key).unbind()),
            snapshot: None,
        },
        Owner::Snapshot { run, seq } => {
            PyVectorHit { score: hit.score, keyspace: None, key: None, snapshot: Some((run.0, seq)) }
        }
    };
    Ok(hits.into_iter().map(shown).collect())
}
