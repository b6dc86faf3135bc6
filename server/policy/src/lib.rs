//! Knowledge about model providers, and decisions about recorded bytes. Pure: no socket, no file, no clock.
//!
//! Layout, lowest first: `body_path` (JSON paths), `secret_names` (names whose values are secret), `detect`
//! (finds values by their form), `redact` (removes secrets before anything is stored), `providers`
//! (interfaces, messages, usage, prices, severity), `rules` (the user's rules and retention policies),
//! `exchange` (an HTTP exchange as metadata of a frame), `profiles` (redaction for readers).
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

pub mod body_path;
mod detect;
pub mod exchange;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod profiles;
pub mod providers;
pub mod redact;
pub mod rules;
mod secret_names;
