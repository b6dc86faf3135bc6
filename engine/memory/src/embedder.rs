//! Embedders make vectors of texts. The engine has one that needs no model ([`super::WordEmbedder`]); callers
//! can pass their own.

use annals::Result;

/// Makes vectors of texts.
pub trait Embedder: Send + Sync {
    /// The embedder's name with its version. Vectors of different ids are never compared.
    fn id(&self) -> &str;

    /// The default minimum score of an answer.
    fn threshold(&self) -> f32;

    /// One vector for each text, in the order of the texts. A vector of zeros means that the text holds
    /// nothing to search by.
    ///
    /// # Errors
    /// `Unavailable` if the embedder cannot be reached, `Invalid` if it refuses the texts.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;
}
