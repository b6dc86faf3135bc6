//! What was not as recorded when a program was replayed.

use annals::matching::Divergence;

/// A request that the recording has no answer for, or an answer that could not wait.
#[derive(Debug, Clone)]
pub enum ReplayDivergence {
    /// Nothing recorded is the same.
    Request(Box<Divergence>),
    /// The answer of this step went out before those that it should have waited for.
    Order {
        /// The step.
        step: u32,
        /// The steps that were to end before it.
        before: Vec<u32>,
    },
    /// The recording could not be read.
    Unreadable(String),
    /// What came after a divergence could not be recorded, and so was not asked for.
    Unrecorded(String),
}

impl std::fmt::Display for ReplayDivergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Request(divergence) => divergence.fmt(f),
            Self::Order { step, before } => write!(
                f,
                "step {step} was answered before {before:?}, which had ended earlier when it was recorded: \
                 the program waits for one before it asks for the other"
            ),
            Self::Unrecorded(why) => {
                write!(f, "nothing goes on from there: no run can be begun for it: {why}")
            }
            Self::Unreadable(why) => write!(f, "the recording cannot be read: {why}"),
        }
    }
}
