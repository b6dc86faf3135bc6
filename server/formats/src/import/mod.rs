//! Imports recordings made elsewhere: chat transcripts and frames, read as a stream, one run at a time.
//!
//! [`ChatRuns`] reads runs of messages in the OpenAI shape and expands them into the frames that an agent would
//! have recorded. [`FrameRuns`] reads frames, one JSON object each. Both return [`ImportedRun`]s.
//! Invariant: JSON of the source is kept as its exact text, never parsed and printed again.
//!
//! Layout: `scan` (recognises JSON byte by byte), `source` (cuts a stream into objects), `span` (the members
//! of an object as text), `template` (run names), `run` (the imported run), `chat` and `frames` (the two
//! formats), `packed_lines` (the frames of a run that has not ended), `expand` (selects the messages that become frames), `base64`, `error`.
//!
//! Left out on purpose: decompression and files (the caller passes a reader), and writing to a store.

pub mod base64;
mod chat;
mod error;
mod expand;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod packed_lines;
mod run;
mod scan;
mod source;
mod span;
mod template;

pub use chat::{ChatOptions, ChatRuns};
pub use error::{ImportError, SourcePosition};
pub use expand::Expansion;
pub use frames::{FrameOptions, FrameRuns};
pub use run::ImportedRun;
pub use scan::DEPTH_MAX;
pub use source::RUN_BYTES_MAX;
pub use template::{IdTemplate, TemplateError};

#[cfg(test)]
mod expand_tests;
#[cfg(test)]
mod tests;
