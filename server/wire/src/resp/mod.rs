//! RESP (the Redis serialization protocol, versions 2 and 3): decodes requests and encodes replies, and the
//! reverse for clients.
//!
//! Decoders take bytes as they arrive and keep an incomplete item, so they need neither sockets nor threads.
//! They hold at most what has arrived: an announced length reserves almost nothing. Requests are flat, so
//! decoding never recurses.
//!
//! Layout: `wire` (lines, strings, lengths), `request` (commands: arrays of strings, or inline), `reply`
//! (encoding in either version), `response` (decoding of simple replies by a process that joins a store), `shared_bytes` (values that a server keeps).
//!
//! Out of scope: decoding nested replies, numbers beyond 64 bits, attributes, streamed strings.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod reply;
mod request;
mod response;
mod shared_bytes;
mod wire;

pub use reply::{Protocol, Reply};
pub use request::{RequestDecoder, RequestLimits, write_command};
pub use response::ResponseDecoder;
pub use shared_bytes::SharedBytes;
pub use wire::{BULK_BYTES_MAX, Malformed};
