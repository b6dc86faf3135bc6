//! Recording and replaying in a Python process: the Rust side of `annals.recording`.
//!
//! The Python modules hand over requests, parts of answers, other calls and draws; matching, order and storage
//! are those of `annals_proxy::in_process`. Every call that may wait for the store releases the GIL. A forked
//! child must not use its parent's session: the threads that write for it exist only in the parent.

mod errors;
mod record;
mod replay;
mod stores;
mod tapes;

use pyo3::prelude::*;

use crate::store::errors::python_error;
pub(crate) use errors::SessionResult;

/// Adds the classes to the extension module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<record::RecordingSession>()?;
    module.add_class::<record::Exchange>()?;
    module.add_class::<record::Call>()?;
    module.add_class::<replay::ReplaySession>()?;
    module.add_class::<replay::Answer>()?;
    module.add_class::<replay::CallResult>()?;
    module.add_function(wrap_pyfunction!(record::invalid_headers, module)?)?;
    module.add_function(wrap_pyfunction!(replay::snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(replay::frames, module)?)?;
    module.add_function(wrap_pyfunction!(tapes::export_tape, module)?)?;
    module.add_function(wrap_pyfunction!(tapes::import_tape, module)?)
}
