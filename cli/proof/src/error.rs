//! Errors of this crate.

use std::fmt;

/// Why a proof, checkpoint or key was not accepted: a kind and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProofError {
    /// The file is of another kind, or of an unsupported version.
    Malformed(String),
    /// The file has the right form, but its content is not valid.
    Refused(String),
    /// The proof does not show enough; another proof has to be made.
    Insufficient(String),
}

impl ProofError {
    pub(crate) fn malformed(what: impl fmt::Display) -> Self {
        Self::Malformed(what.to_string())
    }

    pub(crate) fn refused(what: impl fmt::Display) -> Self {
        Self::Refused(what.to_string())
    }
}

impl fmt::Display for ProofError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(what) | Self::Refused(what) | Self::Insufficient(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ProofError {}
