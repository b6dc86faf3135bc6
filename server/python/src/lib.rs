//! The extension module `annals._annals`: what the Python package does in Rust.

use pyo3::prelude::*;

#[pymodule]
fn _annals(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
