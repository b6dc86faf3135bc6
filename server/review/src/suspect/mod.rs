//! Ranks the steps of a failed run by how likely they caused the failure, from the record alone: nothing runs
//! again and no model is asked. A heuristic: its result is a hint where to read first, never a proof.
//!
//! [`Transcript::read`] makes a list of messages of a run's frames. [`rank`] looks for signals in them and
//! adds up their weights. The weights come from logs that people annotated; `docs/suspect.md` has the
//! procedure and the measured accuracy.
//!
//! Invariants: the work is linear in the recorded bytes. The same run gives the same ranking. A frame that
//! cannot be read is named in the result ([`Transcript::unread`]), and the others are ranked.
//!
//! Layout: `transcript` (messages of frames), `text` (values, phrases, code), `reading` (each message looked
//! at once), `signals` (what raises or lowers suspicion), `weights` (the fitted numbers), `ranking` (scores),
//! `judge` (a model's opinion: the request, and its answer).
//!
//! Left out on purpose: any word of the data that the weights come from, such as the names of its agents.

mod judge;
mod ranking;
mod reading;
mod signals;
#[cfg(test)]
mod tests;
mod text;
mod transcript;
mod weights;

pub use judge::{JudgeError, JudgeVerdict, judge_request, parse_verdict};
pub use ranking::{RankedStep, StepFeatures, SuspectRanking, features, rank};
pub use signals::{Observation, Signal};
pub use transcript::{Message, Speaker, ToolUse, Transcript, UnreadFrame};
pub use weights::{Weights, WeightsError};
