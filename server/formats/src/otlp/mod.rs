//! Traces of OpenTelemetry (OTLP over HTTP) as runs and frames: bytes in, frames on disk, the answer's body out. No socket.
//!
//! A trace is a run, a span is a frame. A frame says by its key `ingested` that nothing of it was recorded by annals: such a run is for looking at, and is not
//! replayed. docs/traces.md has the keys.
//!
//! Invariants: no span is a frame twice; nothing that was inferred stands among what was recorded; what a span says is all there, in the input, the output or
//! the metadata. Bodies, messages, spans, traces and memory have limits, and no recursion is deeper than the decoders'.
//!
//! Layout: `wire` (bytes, bounded), `json` (OTLP/JSON read), `value` (and written), `known` (names of the conventions), `bodies` (input and output),
//! `facts` (model, usage, tool calls), `span` (a span as a frame), `edges` (recorded and inferred), `trace` (a run), `ingest` (all that are open), `reply`.
//!
//! Left out on purpose: logs and metrics; gRPC; what other signals say of a span (messages that are sent as log records).

mod bodies;
mod edges;
mod facts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod ingest;
mod json;
mod known;
mod reply;
mod span;
#[cfg(test)]
mod tests;
mod trace;
mod value;
mod wire;

pub use ingest::Ingest;
#[cfg(any(test, fuzzing))]
pub(crate) use ingest::look;
pub use reply::{Refused, Taken};
pub use trace::is_ingested;
pub use wire::{BODY_BYTES_MAX, Form, unpack};
