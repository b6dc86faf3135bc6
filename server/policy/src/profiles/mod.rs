//! Redaction when reading: the store keeps everything, and a reader's profile decides what is shown of it.
//!
//! A profile names detectors, patterns and JSON paths; a [`Redactor`] shows bodies by it. What goes is replaced by a placeholder as `[email:3f2a9c01d2e4]`, whose
//! digits are a keyed hash of the value: equal values have equal placeholders, and nobody without the key can try guesses.
//!
//! Invariants: what is JSON stays JSON, a stream stays a stream with all its events, text stays text; what cannot be looked into (binary, too long, nested too
//! deep, in an unknown encoding) is replaced as a whole. Bytes around what is replaced stay as they are written. Nothing is changed in the store. Pure: bytes in, bytes out, bounded memory, time linear in
//! the body's length (and, for patterns, in their size).
//!
//! Values are found by their form in `crate::detect`. Layout: `json` (texts and where they stand), `stream` (events whose texts belong together), `search` (all of
//! it with tags), `body` (what a body is, and the cut), `profile` (what a reader sees), `file` (profiles in TOML), `key` (the store's, which makes placeholders).
//!
//! Write-time redaction is [`mod@crate::redact`]: it knows the values that it looks for, in any form that they may stand in, and nothing of shapes; here it is the other way
//! round. What both know of names that are secret is kept there.

mod body;
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
