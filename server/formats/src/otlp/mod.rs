//! Traces of OpenTelemetry (OTLP over HTTP) as runs and frames: bytes in, frames on disk, response body out.
//! Independent of sockets.
//!
//! A trace is a run, a span is a frame. The metadata key `ingested` marks a frame as not recorded by annals:
//! the run can be viewed but not replayed. docs/traces.md lists the keys.
//!
//! Invariants: no span becomes two frames. Inferred edges are never listed as recorded. Everything in a span
//! is kept, in the input, the output or the metadata. Bodies, messages, spans, traces and memory are limited,
//! and no recursion is deeper than that of the decoders.
//!
//! Layout: `wire` (limited decoding), `json` (OTLP/JSON decoding), `value` (its encoding), `conventions`
//! (attribute names), `bodies` (input and output), `span_facts` (model, usage, tool calls), `span` (a span as
//! a frame), `logs` (content that arrives as log records), `edges` (recorded and inferred), `trace` (a run), `ingest` (all open traces), `reply`
//! (responses).
//!
//! Out of scope: metrics; gRPC; log records other than events of model calls.

mod bodies;
mod conventions;
mod edges;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod ingest;
mod json;
mod logs;
mod reply;
mod span;
mod span_facts;
#[cfg(test)]
mod tests;
mod trace;
mod value;
mod wire;

pub use ingest::TraceIngest;
#[cfg(any(test, fuzzing))]
pub(crate) use ingest::map_without_store;
pub use reply::{TraceReceipt, TraceRefusal};
pub use trace::is_ingested;
pub use wire::{BODY_BYTES_MAX, TraceEncoding, gunzip};
