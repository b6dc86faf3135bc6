//! Why nothing was recorded or replayed.

use crate::mounts::MountError;
use crate::nondet::NondetError;
use crate::program::ProgramError;

/// Why a proxy cannot listen.
#[derive(Debug)]
pub struct ProxyError(pub(crate) String);

impl std::fmt::Display for ProxyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProxyError {}

/// Why a session could not start.
#[derive(Debug)]
pub enum SessionError {
    /// The program could not be started.
    Program(ProgramError),
    /// The proxy cannot listen.
    Proxy(ProxyError),
    /// An upstream is not allowed.
    Mount(MountError),
    /// Clocks and randomness cannot be captured.
    Nondet(NondetError),
    /// A secret cannot be kept out of the store.
    Secret(String),
    /// The store.
    Store(annals::Error),
}

impl SessionError {
    /// The program's own error, where it could not be started.
    pub(crate) fn not_started(&self) -> Option<&ProgramError> {
        match self {
            Self::Program(error) => Some(error),
            _ => None,
        }
    }
}

impl std::fmt::Display for SessionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Program(error) => f.write_str(&error.message),
            Self::Proxy(error) => error.fmt(f),
            Self::Mount(error) => error.fmt(f),
            Self::Nondet(error) => f.write_str(&error.0),
            Self::Secret(why) => f.write_str(why),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SessionError {}

impl From<NondetError> for SessionError {
    fn from(error: NondetError) -> Self {
        Self::Nondet(error)
    }
}

impl From<annals::Error> for SessionError {
    fn from(error: annals::Error) -> Self {
        Self::Store(error)
    }
}

impl From<ProxyError> for SessionError {
    fn from(error: ProxyError) -> Self {
        Self::Proxy(error)
    }
}

impl From<MountError> for SessionError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

pub(crate) fn invalid(what: &str) -> annals::Error {
    annals::Error::new(annals::ErrorKind::Invalid, what)
}
