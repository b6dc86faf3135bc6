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
//! Layout: `detect` (values by shape), `json` (texts and their positions), `stream` (texts spelled over
//! events), `search` (combines all of it with tags), `body` (kinds of bodies, and the replacement), `profile`
//! (what a reader sees), `file` (profiles in TOML), `key` (the store's placeholder key).
//!
//! Write-time redaction is [`mod@crate::redact`]: it searches for known values in any form, without knowledge
//! of shapes; here it is the reverse. Secret names that both need are defined there.

mod body;
mod detect;
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

pub use detect::Detector;
pub(crate) use detect::key_end;
pub use file::{PROFILES_BYTES_MAX, Profiles};
pub use key::{make_placeholder_key, passing_key, placeholder_key};
pub(crate) use profile::encodings;
pub use profile::{Profile, REDACTED_BODY_BYTES_MAX, RedactedBody, Redactor, ShownFrame};
