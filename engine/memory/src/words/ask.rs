//! A question held against cards: how much of it, each word weighted by how rare it is, an entry holds.
//!
//! A word that `holding` of `all` entries hold weighs `log2(1 + (all + 1) / (holding + 1/2))`, a common one a tenth of that. One that stands in an entry's query or answer
//! counts in full, one that stands elsewhere in it 0.7, and one that it has not, but more than half of the n-grams of it, 0.6 of that share. The score is what counts of
//! what there is: 1 where an entry has every word where it should be. All in whole numbers; the one division comes last.

use super::card::Read;
use super::terms;

/// Words of a question that count; further ones do not.
const TERMS_MAX: usize = 256;
/// Identifiers of a question, as many.
const IDENTIFIERS_MAX: usize = 64;
/// What a word counts in thousandths, by where it stands.
const COUNTS_WHOLE: u64 = 1000;
const COUNTS_ELSEWHERE: u64 = 700;
const COUNTS_ALIKE: u64 = 600;
/// A common word's part of a weight.
const COMMON_PART: u64 = 10;
/// Bits of a weight behind the point.
const FRACTION_BITS: u32 = 16;

/// A question as it is held against cards.
#[derive(Debug, Default)]
pub(in super::super) struct Asked {
    terms: Vec<Term>,
    identifiers: Vec<u64>,
}

#[derive(Debug)]
struct Term {
    word: u32,
    is_common: bool,
    grams: Vec<u16>,
}

impl Asked {
    /// Reads a question.
    pub(in super::super) fn of(question: &str) -> Self {
        let mut asked = Self::default();
        terms::words(question, &mut |word| {
            let hash = terms::hash(&terms::stem(word)) as u32;
            if asked.terms.len() < TERMS_MAX && !asked.terms.iter().any(|term| term.word == hash) {
                let is_common = terms::is_common(word);
                let mut grams = Vec::new();
                if !is_common {
                    terms::grams(word, &mut |gram| grams.push(terms::hash(gram) as u16));
                }
                asked.terms.push(Term { word: hash, is_common, grams });
            }
        });
        terms::identifiers(question, false, &mut |one| {
            let hash = terms::hash(one);
            if asked.identifiers.len() < IDENTIFIERS_MAX && !asked.identifiers.contains(&hash) {
                asked.identifiers.push(hash);
            }
        });
        asked
    }

    /// Whether there is nothing in it to go by.
    pub(in super::super) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it names anything.
    pub(in super::super) fn has_identifiers(&self) -> bool {
        !self.identifiers.is_empty()
    }

    /// Whether an entry holds all that it names.
    fn is_named_in(&self, card: &Read<'_>) -> bool {
        self.identifiers.iter().all(|one| card.has_identifier(*one))
    }
}

/// How many entries there are, and how many of them hold each word of a question.
#[derive(Debug)]
pub(in super::super) struct Rarity {
    all: u64,
    holding: Vec<u64>,
}

impl Rarity {
    /// Of no entries yet.
    pub(in super::super) fn new(asked: &Asked) -> Self {
        Self { all: 0, holding: vec![0; asked.terms.len()] }
    }

    /// Counts an entry.
    pub(in super::super) fn count(&mut self, asked: &Asked, card: &Read<'_>) {
        self.all += 1;
        for (holding, term) in self.holding.iter_mut().zip(&asked.terms) {
            *holding += u64::from(card.has_in_front(term.word) || card.has_elsewhere(term.word));
        }
    }

    /// How much of a question an entry holds, from 0 to 1; `None` where it lacks anything that the question names.
    pub(in super::super) fn score(&self, asked: &Asked, card: &Read<'_>) -> Option<f32> {
        if !asked.is_named_in(card) {
            return None;
        }
        let (mut there, mut all) = (0u64, 0u64);
        for (term, holding) in asked.terms.iter().zip(&self.holding) {
            let weight = weight(self.all, *holding);
            let weight = if term.is_common { weight / COMMON_PART } else { weight };
            all += weight * COUNTS_WHOLE;
            there += weight * counts(term, card);
        }
        if all == 0 {
            return Some(0.0);
        }
        Some((there as f64 / all as f64) as f32)
    }
}

fn counts(term: &Term, card: &Read<'_>) -> u64 {
    if card.has_in_front(term.word) {
        return COUNTS_WHOLE;
    }
    if card.has_elsewhere(term.word) {
        return COUNTS_ELSEWHERE;
    }
    let alike = term.grams.iter().filter(|gram| card.has_gram(**gram)).count() as u64;
    let grams = term.grams.len() as u64;
    if 2 * alike > grams { COUNTS_ALIKE * alike / grams } else { 0 }
}

/// `log2(1 + (all + 1) / (holding + 1/2))`, in fixed point: a rounded-down whole number that is the same everywhere.
fn weight(all: u64, holding: u64) -> u64 {
    let below = 2 * holding.min(all) + 1;
    let above = below + 2 * (all + 1);
    let whole = (above / below).ilog2();
    // From 1 to under 2, with 32 bits behind the point: squared, each bit of the logarithm comes out in front.
    let mut rest = (u128::from(above) << 32) / (u128::from(below) << whole);
    let mut log = u64::from(whole);
    for _ in 0..FRACTION_BITS {
        rest = (rest * rest) >> 32;
        let bit = rest >> 33;
        rest >>= bit;
        log = log << 1 | bit as u64;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_logarithms_and_the_same_everywhere() {
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
