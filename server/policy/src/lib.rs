//! What is known of model providers, and what is decided about recorded bytes: functions of bytes alone, without a
//! socket, a file or a clock.
//!
//! Layout, lowest first: `place` (paths into JSON), `secret_names` (names whose values are secret), `detect` (values found by their form), `redact` (what must not reach the disk), `providers`
//! (interfaces, messages, usage, prices, severity), `rules` (files of rules and of retention policies), `exchange` (an HTTP exchange as
//! a frame keeps it), `profiles` (what a reader is shown).
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
