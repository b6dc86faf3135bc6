//! An open store, and its Python class.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annals::{ErrorKind, Options, Store};
use annals_daemon::SharedKeys;
use pyo3::prelude::*;

use super::errors::to_py;
use super::namespace::PyNamespace;

/// An open store of this process.
#[derive(Debug)]
pub(crate) struct StoreHandle {
    /// `None` only while the handle is dropped.
    source: Option<StoreSource>,
    path: PathBuf,
    process: u32,
    is_closed: AtomicBool,
}

/// How a store is open.
#[derive(Debug)]
pub(crate) enum StoreSource {
    /// For writing, here or through the process that holds it.
    Shared(SharedKeys),
    /// For reading beside a writer.
    ReadOnly(Store),
}

impl StoreHandle {
    fn open(path: PathBuf, read_only: bool) -> annals::Result<Self> {
        // The path must stay valid if this process changes its directory.
        let path = std::path::absolute(&path).unwrap_or(path);
        let source = if read_only {
            StoreSource::ReadOnly(Store::open_read_only(&path)?)
        } else {
            StoreSource::Shared(SharedKeys::open(&path, &Options::default())?)
        };
        Ok(Self {
            source: Some(source),
            path,
            process: std::process::id(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// How the store is open.
    ///
    /// # Errors
    /// `Invalid` after a fork of the process, or if the store is closed.
    pub(crate) fn source(&self) -> annals::Result<&StoreSource> {
        let here = std::process::id();
        if here != self.process {
            let message = format!(
                "process {} opened this store, and this is process {here}, a fork of it: open the store again here",
                self.process
            );
            return Err(annals::Error::new(ErrorKind::Invalid, message));
        }
        match &self.source {
            Some(source) if !self.is_closed.load(Ordering::Acquire) => Ok(source),
            _ => {
                let message = format!("the store {} is closed", self.path.display());
                Err(annals::Error::new(ErrorKind::Invalid, message))
            }
        }
    }

    /// The keyspaces of a store that is open for writing.
    ///
    /// # Errors
    /// As [`StoreHandle::source`]; `Invalid` for a store that is open for reading.
    pub(crate) fn shared(&self) -> annals::Result<&SharedKeys> {
        match self.source()? {
            StoreSource::Shared(keys) => Ok(keys),
            StoreSource::ReadOnly(_) => {
                Err(annals::Error::new(ErrorKind::Invalid, "this store is open for reading only"))
            }
        }
    }

    /// The store for reading: if another process holds it, a view of it from now.
    ///
    /// # Errors
    /// As [`StoreHandle::source`] and [`Store::open_read_only`].
    pub(crate) fn readable(&self) -> annals::Result<Store> {
        match self.source()? {
            StoreSource::ReadOnly(store) => Ok(store.clone()),
            StoreSource::Shared(keys) => match keys.hold() {
                Err(error) if error.kind() == ErrorKind::Locked => Store::open_read_only(&self.path),
                other => other,
            },
        }
    }

    fn close(&self) -> annals::Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) || std::process::id() != self.process {
            return Ok(());
        }
        match &self.source {
            Some(StoreSource::Shared(keys)) => keys.close(),
            _ => Ok(()),
        }
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        if std::process::id() == self.process {
            // Best effort: a caller that needs the result calls `close`.
            let _ = self.close();
        } else {
            // The store's threads and locks are the parent's: closing it here would wait for them forever.
            std::mem::forget(self.source.take());
        }
    }
}

/// A store of runs and keyspaces. `annals.open` opens one.
#[pyclass(frozen, module = "annals", name = "Store")]
pub(crate) struct PyStore(pub(crate) Arc<StoreHandle>);

#[pymethods]
impl PyStore {
    /// Opens the store in this directory; creates a missing one unless `read_only`.
    #[staticmethod]
    #[pyo3(signature = (path, read_only = false))]
    fn open(py: Python<'_>, path: PathBuf, read_only: bool) -> PyResult<Self> {
        let handle = py.detach(|| StoreHandle::open(path, read_only)).map_err(to_py)?;
        Ok(Self(Arc::new(handle)))
    }

    /// The directory of the store.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path.clone()
    }

    /// Whether this handle was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// Whether this process holds the store; otherwise calls go to the process that does.
    #[getter]
    fn held(&self) -> PyResult<bool> {
        Ok(match self.0.source().map_err(to_py)? {
            StoreSource::Shared(keys) => keys.local().is_some(),
            StoreSource::ReadOnly(_) => false,
        })
    }

    /// The names of its namespaces.
    fn namespaces(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        py.detach(|| self.0.readable()?.namespaces()).map_err(to_py)
    }

    /// A namespace: runs and keyspaces of one tenant.
    #[pyo3(signature = (name = "default"))]
    fn namespace(&self, py: Python<'_>, name: &str) -> PyResult<PyNamespace> {
        py.detach(|| PyNamespace::open(&self.0, name)).map_err(to_py)
    }

    /// Reads what other processes have written since, in a store that is open for reading.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| match self.0.source()? {
            StoreSource::ReadOnly(store) => store.refresh(),
            StoreSource::Shared(_) => Ok(()),
        })
        .map_err(to_py)
    }

    /// Closes the store. Everything acknowledged is on disk already. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.close()).map_err(to_py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { " (closed)" } else { "" };
        format!("<annals.Store {:?}{state}>", self.0.path.display().to_string())
    }
}
