//! Embedders of others, over HTTP: whatever answers `POST /embeddings` as OpenAI's API does.
//!
//! [`Embeddings`] is the engine's [`annals::memory::Embedder`] over such an address. Texts go out in batches, are asked for again when the other side is busy or
//! out of reach, and what came back is kept in a keyspace by the text's hash, so that a text is paid for once ([`cache`]). Requests and answers are functions
//! of bytes alone ([`wire`]), as is how long to wait ([`patience`]).
//!
//! Invariants: a key goes to this machine or over TLS, never elsewhere, and into no message; no redirect is followed; an answer has a bounded size and is held to
//! what was asked: one vector a text, each of the same length.

mod cache;
mod client;
mod options;
mod patience;
#[cfg(test)]
mod tests;
mod wire;

pub use client::Embeddings;
pub use options::{EMBEDDINGS_VARIABLES, EmbeddingsOptions};
