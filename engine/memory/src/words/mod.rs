//! The built-in embedder: no model and no network. Two texts are similar if they share words, and rare words
//! weigh more.
//!
//! A text is read once ([`terms`]) and kept in two forms. A vector of 256 numbers serves callers that search
//! by vectors. A *card* ([`card`]) stands beside each entry of this embedder and holds its words, n-grams and
//! identifiers, hashed. Questions are scored against the cards ([`question`]): a word's rarity depends on the
//! other entries and changes with each new one.
//!
//! Invariant: the same texts give the same scores on every machine. Hashes are BLAKE3, weights are integers,
//! and sums do not depend on order.

mod bulk;
mod card;
mod hashes;
mod question;
mod terms;
mod vocabulary;

pub(super) use bulk::{BulkScores, QuestionLists};
pub(super) use card::{Card, CardView as CardRead, numbered, tier_number};
pub(super) use question::{QuestionTerms, TermRarity};

use super::embedder::Embedder;
use annals::Result;

/// Dimensions of a vector.
const DIMENSIONS: usize = 256;
/// Weight of a word in a vector; an n-gram weighs 1.
const WORD_WEIGHT: f32 = 4.0;

/// The built-in embedder: no model, no network, the same scores on every machine.
///
/// A score is the share of the question's words that an entry holds, weighted by the words' rarity among the
/// tenant's entries: see docs/memory.md.
#[derive(Debug, Clone, Copy, Default)]
pub struct WordEmbedder;

impl WordEmbedder {
    /// The embedder's id.
    pub const ID: &str = "annals-words-1";
    /// The default minimum score, chosen on real runs (docs/memory.md).
    pub const THRESHOLD: f32 = 0.4;
}

impl Embedder for WordEmbedder {
    fn id(&self) -> &str {
        Self::ID
    }

    fn threshold(&self) -> f32 {
        Self::THRESHOLD
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        Ok(texts.iter().map(|text| vector(text)).collect())
    }
}

/// Counts of words and n-grams, each added at its hash modulo the dimensions. All numbers are integers.
fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0f32; DIMENSIONS];
    // The low bits of a hash give its place, so that a part of the hash is enough.
    let mut count = |hash: usize, by: f32| {
        if let Some(number) = vector.get_mut(hash % DIMENSIONS) {
            *number += by;
        }
    };
    terms::for_each_word(text, &mut |word| {
        hashes::with_word_terms(word, &mut |terms| {
            if !terms.is_common {
                count(terms.word as usize, WORD_WEIGHT);
                terms.grams.iter().for_each(|gram| count(usize::from(*gram), 1.0));
            }
        });
    });
    vector
}
