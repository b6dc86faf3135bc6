//! The embedder that is built in: words, hashed into a vector of one length.

use super::embed::Embedder;
use crate::error::Result;

/// Numbers of a vector.
const DIMENSIONS: usize = 512;
/// The least score that counts.
const THRESHOLD: f32 = 0.35;

/// The embedder that is built in: no model, no network, the same vectors on every machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words;

impl Words {
    /// Its name.
    pub const ID: &str = "annals-words-1";
}

impl Embedder for Words {
    fn id(&self) -> &str {
        Self::ID
    }

    fn threshold(&self) -> f32 {
        THRESHOLD
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        Ok(texts.iter().map(|text| vector(text)).collect())
    }
}

fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0; DIMENSIONS];
    for word in
        text.split(|letter: char| !letter.is_alphanumeric() && letter != '#').filter(|word| !word.is_empty())
    {
        let hash = blake3::hash(word.to_lowercase().as_bytes());
        let place = hash.as_bytes().first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize);
        if let Some(number) = vector.get_mut(place % DIMENSIONS) {
            *number += 1.0;
        }
    }
    vector
}
