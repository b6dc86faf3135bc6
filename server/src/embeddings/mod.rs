//! Embedders of others, over HTTP: whatever answers `POST /embeddings` as OpenAI's API does.
//!
//! [`Embeddings`] is the engine's [`annals_memory::Embedder`] over such an address. Texts go out in batches, are asked for again when the other side is busy or
//! out of reach, and what came back is kept in a keyspace by the text's hash, so that a text is paid for once ([`cache`]). Requests and answers are functions
//! of bytes alone ([`wire`]), as is how long to wait ([`patience`]).
//!
//! Invariants: a key goes to this machine or over TLS, never elsewhere, and into no message; no redirect is followed; an answer has a bounded size and is held to
//! what was asked: one vector a text, each of the same length.

use annals::{Namespace, Result};
use annals_memory::{Embedder, Words};

mod cache;
mod client;
mod options;
mod patience;
#[cfg(test)]
mod tests;
mod wire;

pub use client::Embeddings;
pub use options::{EMBEDDINGS_VARIABLES, EmbeddingsOptions};

/// What makes vectors in this process.
#[derive(Debug)]
#[non_exhaustive]
pub enum EmbedderHere {
    /// The one that is built in.
    BuiltIn(Words),
    /// One over HTTP.
    Http(Box<Embeddings>),
}

impl EmbedderHere {
    /// What the environment describes ([`EMBEDDINGS_VARIABLES`]), else the one that is built in. What is answered over HTTP is kept in the namespace, where one
    /// is given; it has to be open for writing.
    ///
    /// # Errors
    /// As [`EmbeddingsOptions::from_variables`] and [`Embeddings::new`].
    pub fn of_environment(kept_in: Option<&Namespace>) -> Result<Self> {
        Ok(match EmbeddingsOptions::from_variables(&|name| std::env::var(name).ok())? {
            Some(options) => Self::Http(Box::new(Embeddings::new(options, kept_in)?)),
            None => Self::BuiltIn(Words),
        })
    }

    fn get(&self) -> &dyn Embedder {
        match self {
            Self::BuiltIn(words) => words,
            Self::Http(embeddings) => &**embeddings,
        }
    }
}

impl Embedder for EmbedderHere {
    fn id(&self) -> &str {
        self.get().id()
    }

    fn threshold(&self) -> f32 {
        self.get().threshold()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        self.get().embed(texts)
    }
}
