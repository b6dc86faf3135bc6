//! Why a blame cannot be done, or ended early.

use annals_proxy::SessionError;

/// Why a blame cannot be done, or ended early.
#[derive(Debug)]
pub enum BlameError {
    /// The request makes no sense for this run: the message and what to do.
    Unusable { message: String, hint: String },
    /// The program does not do again what was recorded, before any perturbation.
    Nondeterministic { message: String, hint: String },
    /// A fork could not be started.
    Session(SessionError),
    /// A fork ran and could not be stored.
    Lost(String),
    /// The store.
    Store(annals::Error),
}

impl BlameError {
    pub(crate) fn unusable(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unusable { message: message.into(), hint: hint.into() }
    }
}

impl std::fmt::Display for BlameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unusable { message, .. } | Self::Nondeterministic { message, .. } => f.write_str(message),
            Self::Session(error) => error.fmt(f),
            Self::Lost(why) => write!(f, "a fork could not be stored: {why}"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for BlameError {}

impl From<annals::Error> for BlameError {
    fn from(error: annals::Error) -> Self {
        Self::Store(error)
    }
}

impl From<SessionError> for BlameError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Store(error) => Self::Store(error),
            other => Self::Session(other),
        }
    }
}
