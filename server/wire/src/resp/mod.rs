//! RESP (the Redis serialization protocol, versions 2 and 3): requests in, replies out, and for whoever asks the other way round.
//!
//! Decoders are given bytes as they come and keep what is not whole yet, so that they take neither sockets nor threads. They hold at most what
//! has arrived: a length that is announced reserves nothing. Requests are flat, so nothing that is read nests and nothing recurses.
//!
//! Layout: `wire` (lines, strings, lengths), `request` (commands: arrays of strings, or inline), `reply` (what is answered, in either
//! version), `response` (the simple replies, read by whoever joins a store).
//!
//! Left out on purpose: reading nested replies, numbers beyond 64 bits, attributes, streamed strings.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod reply;
mod request;
mod response;
mod wire;

pub use reply::{Protocol, Reply};
pub use request::{Limits, Requests, write_command};
pub use response::Responses;
pub use wire::{BULK_BYTES_MAX, Malformed};
