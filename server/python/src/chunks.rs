//! The hashes of a value's chunks: `annals.langgraph` hashes all chunks of a channel's value in each step.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes of a digest: the first half of a BLAKE3 hash.
pub(crate) const DIGEST_BYTES: usize = 16;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(chunk_digests, module)?)
}

/// The digests, end to end, of `count` chunks of `chunk_bytes` each, from byte `start` of `value` on. 16 bytes each.
#[pyfunction]
fn chunk_digests<'py>(
    py: Python<'py>,
    value: &Bound<'py, PyBytes>,
    start: usize,
    chunk_bytes: usize,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let value = value.as_bytes();
    let chunks = count
        .checked_mul(chunk_bytes)
        .and_then(|length| start.checked_add(length))
        .and_then(|end| value.get(start..end))
        .filter(|_| chunk_bytes > 0)
        .ok_or_else(|| PyValueError::new_err("the value has fewer chunks"))?;
    let digests = py.detach(|| chunks.chunks_exact(chunk_bytes).flat_map(digest).collect::<Vec<u8>>());
    Ok(PyBytes::new(py, &digests))
}

pub(crate) fn digest(chunk: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut short = [0; DIGEST_BYTES];
    short.copy_from_slice(&blake3::hash(chunk).as_bytes()[..DIGEST_BYTES]);
    short
}
