//! How a replayed program deviated from its recording.

use std::time::Duration;

use annals::replay::matching::Divergence;

/// A deviation: a request without a recorded answer, or an answer sent too early.
#[derive(Debug, Clone)]
pub enum ReplayDivergence {
    /// No recorded request matches.
    Request(Box<Divergence>),
    /// The answer of this step went out before answers that ended earlier in the recording.
    Order {
        /// The step.
        step: u32,
        /// The steps that should have ended before it.
        before: Vec<u32>,
    },
    /// The program waited longer than at the recording for an answer that it did not get there.
    Awaited {
        /// The step.
        step: u32,
        /// How long the program waited at the recording.
        recorded: Duration,
    },
    /// The recording could not be read.
    Unreadable(String),
    /// The requests after a divergence could not be recorded, so they were not sent.
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
            Self::Awaited { step, recorded } => write!(
                f,
                "step {step} has no answer: at the recording the program hung up after {:.1} s, and now it waits \
                 longer",
                recorded.as_secs_f64()
            ),
            Self::Unrecorded(why) => {
                write!(f, "the replay cannot continue live: no run can be begun: {why}")
            }
            Self::Unreadable(why) => write!(f, "the recording cannot be read: {why}"),
        }
    }
}
