//! The one public error type of the engine.
//!
//! Inside, modules use their own enums with named fields. At the public API these become an [`Error`]. Its
//! [`ErrorKind`] tells the caller what to do next.

use std::fmt;
use std::path::Path;

use crate::codec::CodecError;

/// Result of an engine call.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller can do about an [`Error`].
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The argument or input is wrong: change it.
    Invalid,
    /// There is no such run, frame, key or store.
    NotFound,
    /// It exists already, has ended, or was changed meanwhile: read it again.
    Conflict,
    /// Another process writes this store: wait, or open read-only.
    Locked,
    /// Bytes on disk differ from what was written: verify, then repair into a new store.
    Damaged,
    /// A newer annals wrote it, in a format that this one does not know: use the newer one.
    Unsupported,
    /// The replay differs from the recording.
    Diverged,
    /// It existed, and a retention policy dropped it.
    Gone,
    /// The system refused (disk full, permission, missing file, I/O error): fix the cause and retry.
    Unavailable,
    /// An earlier failure stopped the writer: reopen the store.
    Poisoned,
    /// The engine contradicts itself: please report it.
    Bug,
}

/// An engine error: a kind to act on, and a message to read.
pub struct Error(Box<ErrorRepr>);

struct ErrorRepr {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a message for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorRepr { kind, message: message.into(), source: None }))
    }

    /// An error with its cause.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self(Box::new(ErrorRepr { kind, message: message.into(), source: Some(source.into()) }))
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    #[doc(hidden)]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    #[doc(hidden)]
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Conflict, message)
    }

    #[doc(hidden)]
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Bug, message)
    }

    /// `what` in the file at `path` has the format `found`; this program knows formats up to `known`.
    #[doc(hidden)]
    pub fn newer(path: &Path, what: &str, found: u64, known: u64) -> Self {
        let path = path.display();
        let message = format!(
            "{path} was written by a newer annals: {what} format {found}; this one knows up to {known}: use the newer annals"
        );
        Self::new(ErrorKind::Unsupported, message)
    }

    /// The error for bytes of the file at `path` that do not follow the format.
    #[doc(hidden)]
    pub fn of_codec(path: &Path, offset: u64, error: CodecError) -> Self {
        match error {
            CodecError::Newer { what, found, known } => Self::newer(path, what, found, known),
            error => Self::damaged(path, offset, error),
        }
    }

    #[doc(hidden)]
    pub fn damaged(path: &Path, offset: u64, what: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Damaged, format!("{} is damaged at byte {offset}: {what}", path.display()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

impl From<crate::io::IoError> for Error {
    fn from(error: crate::io::IoError) -> Self {
        // Something else stands in place of a store's file.
        let kind = match error.kind() {
            std::io::ErrorKind::InvalidData => ErrorKind::Damaged,
            _ => ErrorKind::Unavailable,
        };
        Self::with_source(kind, error.to_string(), error)
    }
}
