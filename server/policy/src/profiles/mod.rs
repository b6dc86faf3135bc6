//! Read-time redaction: the store keeps everything, and a reader's profile decides what is shown.
//!
//! A profile names detectors, patterns and JSON paths; a [`Redactor`] applies it to bodies. Removed values
//! become placeholders such as `[email:3f2a9c01d2e4]`, whose digits are a keyed hash of the value. Equal
//! values have equal placeholders, and without the key nobody can test guesses.
//!
//! Invariants: JSON stays JSON, a stream keeps all its events, and text stays text. Bodies that cannot be
//! searched (binary, too long, nested too deep, in an unknown encoding) are replaced as a whole. Bytes around
//! a replacement stay unchanged, and the store is never changed. Pure: bounded memory, and time linear in the
//! body's length (for patterns, also in their size).
//!
//! Layout: `json` (texts and their positions), `disguise` (encodings that a reader does not see), `stream` (events whose texts belong together), `search` (finds
//! values, by `crate::detect` and by patterns), `body` (the kind of a body), `profile` (what a reader sees),
//! `file` (profiles in TOML), `key` (the store's key for placeholders).
//!
//! Write-time redaction is [`mod@crate::redact`]: it searches for known values in any form, without knowledge
//! of shapes; here it is the reverse. `secret_names` serves both.

mod body;
mod disguise;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod json;
mod key;
mod profile;
mod search;
mod stream;
#[cfg(test)]
mod tests;

pub use crate::detect::Detector;
pub use file::{PROFILES_BYTES_MAX, Profiles};
pub use key::{make_placeholder_key, placeholder_key, temporary_key};
pub use profile::encodings;
pub use profile::{Profile, REDACTED_BODY_BYTES_MAX, RedactedBody, RedactedFrame, Redactor};
