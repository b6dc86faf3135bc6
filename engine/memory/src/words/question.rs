//! Scores a question against cards: the share of the question's words that an entry holds, weighted by
//! rarity.
//!
//! A word that `holding` of `all` entries hold weighs `log2(1 + (all + 1) / (holding + 1/2))`; a common word
//! weighs a tenth of that. A word in an entry's query or answer counts in full, a word elsewhere 0.7. A
//! missing word counts 0.6 of the share of its n-grams that the entry holds, if that share is more than half.
//! The score is the sum of what counts over the sum of all weights, so an entry that holds every word in
//! front scores 1. The arithmetic uses integers; only the last step divides.

use super::card::CardView;
use super::terms;

/// Maximum number of words of a question; later words are ignored.
const TERMS_MAX: usize = 256;
/// Maximum number of identifiers of a question.
const IDENTIFIERS_MAX: usize = 64;
/// Credit of a word in thousandths, by where the entry holds it.
const CREDIT_MAIN: u64 = 1000;
const CREDIT_ELSEWHERE: u64 = 700;
const CREDIT_SIMILAR: u64 = 600;
/// Divides the weight of a common word.
const COMMON_DIVISOR: u64 = 10;
/// Fractional bits of a weight.
const FRACTION_BITS: u32 = 16;

/// A question's words and identifiers, hashed.
#[derive(Debug, Default)]
pub(in super::super) struct QuestionTerms {
    terms: Vec<QuestionTerm>,
    identifiers: Vec<u64>,
}

#[derive(Debug)]
struct QuestionTerm {
    word: u32,
    is_common: bool,
    grams: Vec<u16>,
}

impl QuestionTerms {
    /// Parses a question.
    pub(in super::super) fn parse(question: &str) -> Self {
        let mut asked = Self::default();
        terms::for_each_word(question, &mut |word| {
            let hash = terms::word_hash(word);
            if asked.terms.len() < TERMS_MAX && !asked.terms.iter().any(|term| term.word == hash) {
                let is_common = terms::is_common(word);
                let mut grams = Vec::new();
                if !is_common {
                    terms::for_each_gram(word, &mut |gram| grams.push(terms::gram_hash(gram)));
                }
                asked.terms.push(QuestionTerm { word: hash, is_common, grams });
            }
        });
        terms::for_each_identifier(question, false, &mut |one| {
            let hash = terms::term_hash(one);
            if asked.identifiers.len() < IDENTIFIERS_MAX && !asked.identifiers.contains(&hash) {
                asked.identifiers.push(hash);
            }
        });
        asked
    }

    /// Whether the question holds nothing to search by.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether the question names anything by an identifier.
    pub(in super::super) fn has_identifiers(&self) -> bool {
        !self.identifiers.is_empty()
    }

    /// Whether an entry holds every identifier of the question.
    fn identifiers_held_by(&self, card: &CardView<'_>) -> bool {
        self.identifiers.iter().all(|one| card.has_identifier(*one))
    }
}

/// Number of entries, and how many of them hold each word of a question.
#[derive(Debug)]
pub(in super::super) struct TermRarity {
    all: u64,
    holding: Vec<u64>,
}

impl TermRarity {
    /// Counts of zero entries.
    pub(in super::super) fn new(asked: &QuestionTerms) -> Self {
        Self { all: 0, holding: vec![0; asked.terms.len()] }
    }

    /// Counts an entry.
    pub(in super::super) fn count_entry(&mut self, asked: &QuestionTerms, card: &CardView<'_>) {
        self.all += 1;
        for (holding, term) in self.holding.iter_mut().zip(&asked.terms) {
            *holding += u64::from(card.has_main_word(term.word) || card.has_other_word(term.word));
        }
    }

    /// How much of a question an entry holds, from 0 to 1; `None` if it lacks an identifier of the question.
    pub(in super::super) fn score(&self, asked: &QuestionTerms, card: &CardView<'_>) -> Option<f32> {
        if !asked.identifiers_held_by(card) {
            return None;
        }
        let (mut there, mut all) = (0u64, 0u64);
        for (term, holding) in asked.terms.iter().zip(&self.holding) {
            let weight = weight(self.all, *holding);
            let weight = if term.is_common { weight / COMMON_DIVISOR } else { weight };
            all += weight * CREDIT_MAIN;
            there += weight * term_credit(term, card);
        }
        if all == 0 {
            return Some(0.0);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a score is rounded to 32 bits")]
        let score = (there as f64 / all as f64) as f32;
        Some(score)
    }
}

fn term_credit(term: &QuestionTerm, card: &CardView<'_>) -> u64 {
    if card.has_main_word(term.word) {
        return CREDIT_MAIN;
    }
    if card.has_other_word(term.word) {
        return CREDIT_ELSEWHERE;
    }
    let alike = term.grams.iter().filter(|gram| card.has_gram(**gram)).count() as u64;
    let grams = term.grams.len() as u64;
    if 2 * alike > grams { CREDIT_SIMILAR * alike / grams } else { 0 }
}

/// `log2(1 + (all + 1) / (holding + 1/2))` in fixed point, rounded down; the same on every machine.
fn weight(all: u64, holding: u64) -> u64 {
    let below = 2 * holding.min(all) + 1;
    let above = below + 2 * (all + 1);
    let whole = (above / below).ilog2();
    // `rest` is from 1 to below 2, with 32 fractional bits. Each squaring yields the next bit of the
    // logarithm.
    let mut rest = (u128::from(above) << 32) / (u128::from(below) << whole);
    let mut log = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        rest = (rest * rest) >> 32;
        let is_set = rest >> 33 != 0;
        rest >>= u32::from(is_set);
        log = log << 1 | u64::from(is_set);
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_matches_logarithm_and_golden_values() {
        for (all, holding) in [
            (0, 0),
            (1, 0),
            (1, 1),
            (150, 0),
            (150, 75),
            (150, 150),
            (1_000_000, 3),
            (u64::from(u32::MAX), 0),
        ] {
            let exact = (1.0 + (all as f64 + 1.0) / (holding as f64 + 0.5)).log2();
            let ours = weight(all, holding) as f64 / 65536.0;
            assert!((0.0..0.001).contains(&(exact - ours)), "{all}, {holding}: {exact} and {ours}");
        }
        assert_eq!([weight(1, 0), weight(1, 1), weight(150, 3)], [152_169, 80_110, 358_095]);
    }
}
