//! The protocol between the daemon, its clients and recorders: RESP (`resp`), the schema of commands
//! (`schema`), runs and frames as arguments of a command (`words`). No socket and no store.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod resp;
pub mod schema;
pub mod words;
