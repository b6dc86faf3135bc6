//! Runs as tapes: the files that tests keep in a repository.

use std::path::PathBuf;

use annals::Store;
use annals::tape::Tape;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::python_error;
use super::replay::reader;

/// The run as a tape.
#[pyfunction]
pub(super) fn export_tape<'py>(
    py: Python<'py>,
    store: PathBuf,
    namespace: String,
    name: String,
) -> PyResult<Bound<'py, PyBytes>> {
    let written = py.detach(|| {
        let mut tape = Vec::new();
        reader(&store, &namespace, &name)?.write_tape(&mut tape)?;
        Ok(tape)
    });
    written.map(|tape| PyBytes::new(py, &tape)).map_err(|error| python_error(&error))
}

/// Records the run of a tape into a store, and returns its name.
#[pyfunction]
pub(super) fn import_tape(
    py: Python<'_>,
    store: PathBuf,
    namespace: String,
    tape: Vec<u8>,
) -> PyResult<String> {
    let imported = py.detach(|| {
        let tape = Tape::read(tape)?;
        let store = Store::open(&store)?;
        let run = store.namespace(&namespace)?.import_tape(&tape, None, false)?;
        store.close()?;
        Ok(run.name)
    });
    imported.map_err(|error| python_error(&error))
}
