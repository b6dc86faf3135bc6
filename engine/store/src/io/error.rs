//! The error type of the io module: it always carries the operation and the path.

use std::path::{Path, PathBuf};

/// What failed, on which path, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {op} {}: {source}", path.display())]
pub struct IoError {
    /// The operation, as a verb: "read", "sync".
    pub op: &'static str,
    /// The file or directory; for a thread its name; empty if neither applies.
    pub path: PathBuf,
    /// The system's own error.
    #[source]
    pub source: std::io::Error,
}

impl IoError {
    /// Adds the operation and the path to the system's error.
    #[must_use]
    pub fn new(op: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self { op, path: path.to_path_buf(), source }
    }

    /// The system's kind: `NotFound`, `AlreadyExists`, `StorageFull` and so on.
    #[must_use]
    pub fn kind(&self) -> std::io::ErrorKind {
        self.source.kind()
    }
}

/// Result of an io operation.
pub type IoResult<T> = Result<T, IoError>;
