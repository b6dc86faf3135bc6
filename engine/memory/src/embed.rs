//! What makes vectors of texts. The engine knows one that needs no model ([`super::Words`]); others are brought by whoever can reach one.

use annals::Result;

/// Makes vectors of texts.
pub trait Embedder: Send + Sync {
    /// Its name with its version: vectors of different ids are never compared.
    fn id(&self) -> &str;

    /// The least score that counts as an answer.
    fn threshold(&self) -> f32;

    /// One vector a text, in their order; one of nothing but zeros for a text in which there is nothing to go by.
    ///
    /// # Errors
    /// `Unavailable` where it cannot be reached, `Invalid` where it refuses the texts.
    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>>;
}
