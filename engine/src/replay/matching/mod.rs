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

pub use call::{Call, CallHash};
pub use diff::{ChangeKind, Difference, Span};
pub use divergence::{Divergence, Grade, Nearest};
pub use path::{Path, Step};
pub use receipt::Receipt;
pub use requests::{Answer, Matching};
pub use rules::{PRESETS, Rules};
pub use shape::Shape;
