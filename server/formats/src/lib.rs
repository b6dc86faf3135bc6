//! Reads the formats of other tools into runs and frames: transcripts and frames as JSON (`import`), traces
//! of OpenTelemetry (`otlp`), tapes of tracefork (`tracefork`). Opens no socket.
#![allow(missing_docs, reason = "an internal crate: what others may use is documented in annals-server")]

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod import;
pub mod otlp;
pub mod tracefork;
