//! Matches requests against a recording: finds the recorded call that answers a request, or the differences.
//!
//! It does no I/O and has no threads. The caller passes calls and requests as names and bytes, and does the
//! waiting.

mod call;
mod canonical;
mod diff;
mod divergence;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod json;
mod multipart;
mod order;
mod path;
mod receipt;
mod requests;
mod rules;
mod shape;

pub use call::{CallHash, RecordedCall};
pub use diff::{ChangeKind, Difference, TextChange};
pub use divergence::{Divergence, Grade, NearestCall};
pub use path::{Path, PathStep};
pub use receipt::Receipt;
pub use requests::{MatchOutcome, Matching};
pub use rules::{PRESETS, Rules};
pub use shape::Shape;
