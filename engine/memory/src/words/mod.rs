//! The embedder that is built in, which needs no model and no network: what two texts have in common is their words, the rarer the more.
//!
//! Two forms of one reading ([`terms`]): a vector of 256 numbers, as of any embedder, for whoever searches by vectors; and a *card* ([`card`]), kept
//! beside an entry of this embedder, which holds all its words, n-grams and identifiers, hashed. A question is held against the cards ([`ask`]), since how
//! rare a word is depends on what else there is, and changes with each entry.
//!
//! Invariant: the same texts give the same scores on every machine: hashes are BLAKE3's, weights are whole numbers, sums have no order.

mod ask;
mod card;
mod terms;

pub(super) use ask::{Asked, Rarity};
pub(super) use card::{Card, Read as CardRead, tier_number};

use super::embed::Embedder;
use annals::Result;

/// Numbers of a vector.
const DIMENSIONS: usize = 256;
/// By how much more a word counts in a vector than an n-gram.
const WORD_COUNTS: f32 = 4.0;

/// The embedder that is built in: no model, no network, the same scores on every machine.
///
/// Its scores are the share of a question's words that an entry holds, each weighted by how rare it is among the tenant's entries: see docs/memory.md.
#[derive(Debug, Clone, Copy, Default)]
pub struct Words;

impl Words {
    /// Its name.
    pub const ID: &str = "annals-words-1";
    /// The least score that counts: chosen on real runs (docs/memory.md).
    pub const THRESHOLD: f32 = 0.4;
}

impl Embedder for Words {
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

/// Counts of words and n-grams, each at the place that its hash says: whole numbers.
fn vector(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0f32; DIMENSIONS];
    let mut count = |hash: u64, by: f32| {
        if let Some(number) = vector.get_mut((hash % DIMENSIONS as u64) as usize) {
            *number += by;
        }
    };
    terms::words(text, &mut |word| {
        if terms::is_common(word) {
            return;
        }
        count(terms::hash(&terms::stem(word)), WORD_COUNTS);
        terms::grams(word, &mut |gram| count(terms::hash(gram), 1.0));
    });
    vector
}
