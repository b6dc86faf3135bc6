//! Embedders over HTTP: any server that answers `POST /embeddings` as OpenAI's API does.
//!
//! [`HttpEmbedder`] implements the engine's [`annals_memory::Embedder`]. Texts are sent in batches, and
//! transient failures are retried. Vectors are cached in a keyspace by the text's hash, so that a text is
//! paid for once (`cache`). Encoding requests and answers (`wire`) and choosing the wait (`retry`) are
//! pure functions.
//!
//! Invariants: a key is sent only to this machine or over TLS, and never appears in a message. Redirects are
//! not followed. An answer has bounded size and must hold one vector for each text, all of the same length.

use annals::{Namespace, Result};
use annals_memory::{Embedder, WordEmbedder};

mod cache;
mod client;
mod options;
mod retry;
#[cfg(test)]
mod tests;
mod wire;

pub use client::HttpEmbedder;
pub use options::{EMBEDDINGS_VARIABLES, EmbeddingsOptions};

/// The embedder configured for this process.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfiguredEmbedder {
    /// The built-in embedder.
    BuiltIn(WordEmbedder),
    /// An embedder over HTTP.
    Http(Box<HttpEmbedder>),
}

/// The embedder that the environment describes, for texts of this namespace: see `EmbedderHere::of_environment`.
///
/// # Errors
/// As `EmbedderHere::of_environment`.
pub fn environment_embedder(space: &Namespace) -> Result<Box<dyn Embedder>> {
    Ok(Box::new(ConfiguredEmbedder::from_environment(Some(space))?))
}

impl ConfiguredEmbedder {
    /// The embedder that the environment configures ([`EMBEDDINGS_VARIABLES`]), else the built-in one.
    /// Vectors from HTTP are cached in the namespace, if one is given; it must be open for writing.
    ///
    /// # Errors
    /// As [`EmbeddingsOptions::from_variables`] and [`HttpEmbedder::new`].
    pub fn from_environment(kept_in: Option<&Namespace>) -> Result<Self> {
        Ok(match EmbeddingsOptions::from_variables(&|name| std::env::var(name).ok())? {
            Some(options) => Self::Http(Box::new(HttpEmbedder::new(options, kept_in)?)),
            None => Self::BuiltIn(WordEmbedder),
        })
    }

    fn as_embedder(&self) -> &dyn Embedder {
        match self {
            Self::BuiltIn(words) => words,
            Self::Http(embeddings) => &**embeddings,
        }
    }
}

impl Embedder for ConfiguredEmbedder {
    fn id(&self) -> &str {
        self.as_embedder().id()
    }

    fn threshold(&self) -> f32 {
        self.as_embedder().threshold()
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        self.as_embedder().embed(texts)
    }
}
