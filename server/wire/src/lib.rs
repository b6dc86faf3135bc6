//! What the daemon, its clients and recorders say to each other: RESP, the schema of commands, and runs and frames as words of
//! a command. No socket and no store.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod resp;
pub mod schema;
pub mod words;
