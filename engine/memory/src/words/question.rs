//! Scores a question against cards: the share of the question's words that an entry holds, weighted by
//! rarity.
//!
//! A word that `holding` of `all` entries hold weighs `log2(1 + (all + 1) / (holding + 1/2))`; a common word
//! weighs a tenth of that. A word in an entry's query or answer counts in full, a word elsewhere 0.7. A
//! missing word counts 0.6 of the share of its n-grams that the entry holds, if that share is more than half.
//! The score is the sum of what counts over the sum of all weights, so an entry that holds every word in
//! front scores 1. The arithmetic uses integers; only the last step divides.
//!
//! Without a minimum score, an entry also has to *answer* the question (`TermRarity::answers`): it must hold
//! all identifiers, and enough of what the question says about them. Words that every question may have count
//! nothing there, frequent English words count half, and a verb of deciding also matches the other verbs of
//! its kind.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::card::CardView;
use super::{hashes, terms, vocabulary};

/// Maximum number of words of a question; later words are ignored.
const TERMS_MAX: usize = 256;
/// Maximum number of identifiers of a question.
const IDENTIFIERS_MAX: usize = 64;
/// Credit of a word in thousandths, by where the entry holds it.
pub(super) const CREDIT_MAIN: u64 = 1000;
pub(super) const CREDIT_ELSEWHERE: u64 = 700;
pub(super) const CREDIT_SIMILAR: u64 = 600;
/// Credit of a word whose kind (`vocabulary`) the entry holds, in thousandths.
pub(super) const CREDIT_SAME_KIND: u64 = 900;
/// Least share, in thousandths, of the words of a question that an answer must hold: beside identifiers or
/// names that it also holds, and otherwise.
pub(super) const SHARE_BESIDE_NAMES: u64 = 340;
pub(super) const SHARE_ALONE: u64 = 500;
/// Divides the weight of a common word.
pub(super) const COMMON_DIVISOR: u64 = 10;
/// Divides the weight of a frequent word when an answer is looked for.
pub(super) const FREQUENT_DIVISOR: u64 = 2;
/// Fractional bits of a weight.
const FRACTION_BITS: u32 = 16;

/// A question's words and identifiers, hashed.
#[derive(Debug, Default)]
pub(in super::super) struct QuestionTerms {
    pub(super) terms: Vec<QuestionTerm>,
    pub(in super::super) identifiers: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct QuestionTerm {
    pub(super) word: u32,
    pub(super) is_common: bool,
    pub(super) role: TermRole,
    /// Other words of its kind.
    pub(super) kind: Vec<u32>,
    pub(super) grams: Vec<u16>,
}

impl QuestionTerm {
    /// Its weight when an answer is looked for.
    pub(super) fn answer_weight(&self, weight: u64) -> u64 {
        if self.role == TermRole::Frequent { weight / FREQUENT_DIVISOR } else { weight }
    }

    /// Its weight in a score.
    pub(super) fn score_weight(&self, weight: u64) -> u64 {
        if self.is_common { weight / COMMON_DIVISOR } else { weight }
    }
}

/// What a word of a question says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TermRole {
    /// Nothing about the subject, or a part of an identifier, which is checked by itself.
    Empty,
    /// A frequent English word.
    Frequent,
    /// Any other word.
    Content,
    /// A name: it has a capital within a sentence.
    Name,
}

impl QuestionTerms {
    /// Parses a question.
    pub(in super::super) fn parse(question: &str) -> Self {
        let question = &*vocabulary::without_phrases(question);
        let mut asked = Self::default();
        let mut named: HashSet<u32> = HashSet::new();
        terms::for_each_identifier(question, true, &mut |one| {
            terms::for_each_word(one, &mut |word| {
                named.insert(hashes::word_hash(word));
            });
        });
        let names = names(question);
        terms::for_each_word(question, &mut |word| {
            let hash = hashes::word_hash(word);
            if asked.terms.len() < TERMS_MAX && !asked.terms.iter().any(|term| term.word == hash) {
                let is_common = terms::is_common(word);
                let mut grams = Vec::new();
                if !is_common {
                    terms::for_each_gram(word, &mut |gram| grams.push(hashes::gram_hash(gram)));
                }
                let role = match () {
                    () if is_common || named.contains(&hash) || vocabulary::is_empty(word) => TermRole::Empty,
                    () if names.contains(&hash) => TermRole::Name,
                    () if vocabulary::is_frequent(word) => TermRole::Frequent,
                    () => TermRole::Content,
                };
                let kind = vocabulary::same_kind(word).map(hashes::word_hash).collect();
                asked.terms.push(QuestionTerm { word: hash, is_common, role, kind, grams });
            }
        });
        terms::for_each_identifier(question, false, &mut |one| {
            let hash = hashes::term_hash(one);
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

    /// Whether an entry holds every identifier of the question.
    fn identifiers_held_by(&self, card: &CardView<'_>) -> bool {
        self.identifiers.iter().all(|one| card.has_identifier(*one))
    }
}

/// Number of entries, and how many of them hold each word of a question.
#[derive(Debug)]
pub(in super::super) struct TermRarity {
    pub(super) all: u64,
    pub(super) holding: Vec<u64>,
    /// The weight of each word, once it was asked for: a logarithm takes longer than to look a word up in a card.
    weights: OnceCell<Vec<u64>>,
}

impl TermRarity {
    /// Counts of zero entries.
    pub(in super::super) fn new(asked: &QuestionTerms) -> Self {
        Self { all: 0, holding: vec![0; asked.terms.len()], weights: OnceCell::new() }
    }

    /// Counts an entry.
    pub(in super::super) fn count_entry(&mut self, asked: &QuestionTerms, card: &CardView<'_>) {
        self.count_more(1);
        for (holding, term) in self.holding.iter_mut().zip(&asked.terms) {
            *holding += u64::from(card.has_main_word(term.word) || card.has_other_word(term.word));
        }
    }

    /// Adds to the number of entries. The caller adds those that hold a word.
    pub(super) fn count_more(&mut self, entries: u64) {
        self.all += entries;
        self.weights.take();
    }

    /// The weight of each word of the question.
    pub(super) fn weights(&self) -> &[u64] {
        self.weights.get_or_init(|| self.holding.iter().map(|holding| weight(self.all, *holding)).collect())
    }

    /// Whether an entry answers a question: it holds all identifiers, and enough of the other words. Names that
    /// the entry holds do not count as such words: `Is Elena Petrova married?` asks for more than her name.
    pub(in super::super) fn answers(&self, asked: &QuestionTerms, card: &CardView<'_>) -> bool {
        if !asked.identifiers_held_by(card) {
            return false;
        }
        let (mut there, mut all) = (0, 0);
        let (mut words, mut matched, mut names) = (0, 0, 0);
        for (term, weight) in asked.terms.iter().zip(self.weights()) {
            let credit = kind_credit(term, card);
            let weight = match term.role {
                TermRole::Empty => continue,
                TermRole::Name if credit >= CREDIT_ELSEWHERE => {
                    names += 1;
                    continue;
                }
                _ => term.answer_weight(*weight),
            };
            words += 1;
            matched += u64::from(credit > 0);
            all += weight * CREDIT_MAIN;
            there += weight * credit;
        }
        let is_named = names > 0 || !asked.identifiers.is_empty();
        is_answer(is_named, (words, matched), (there, all))
    }

    /// How much of a question an entry holds, from 0 to 1; `None` if it lacks an identifier of the question.
    pub(in super::super) fn score(&self, asked: &QuestionTerms, card: &CardView<'_>) -> Option<f32> {
        if !asked.identifiers_held_by(card) {
            return None;
        }
        let (mut there, mut all) = (0u64, 0u64);
        for (term, weight) in asked.terms.iter().zip(self.weights()) {
            let weight = term.score_weight(*weight);
            all += weight * CREDIT_MAIN;
            there += weight * term_credit(term, card);
        }
        Some(share(there, all))
    }
}

/// Whether so many of a question's counted words, and such a share of their weight, make an answer.
pub(super) fn is_answer(is_named: bool, (words, matched): (u64, u64), (there, all): (u64, u64)) -> bool {
    let share = if is_named { SHARE_BESIDE_NAMES } else { SHARE_ALONE };
    // One word of several is a coincidence, unless something is named.
    let is_chance = !is_named && matched < 2 && words > matched;
    match words {
        0 => is_named,
        _ => !is_chance && matched > 0 && there * 1000 >= all * share,
    }
}

/// The score of an entry that holds `there` of `all`.
#[expect(clippy::cast_possible_truncation, reason = "a score is rounded to 32 bits")]
pub(super) fn share(there: u64, all: u64) -> f32 {
    if all == 0 { 0.0 } else { (there as f64 / all as f64) as f32 }
}

/// The hashes of words with a capital within a sentence.
fn names(question: &str) -> HashSet<u32> {
    let mut names = HashSet::new();
    // The first word of the question begins a sentence.
    let mut begins = true;
    for token in question.split_whitespace() {
        let word = token.trim_start_matches(|letter: char| !letter.is_alphanumeric());
        if !begins && word.chars().next().is_some_and(char::is_uppercase) {
            terms::for_each_word(word, &mut |word| {
                if word.chars().count() > 1 {
                    names.insert(hashes::word_hash(word));
                }
            });
        }
        begins = token.ends_with(['.', '!', '?', ':']);
    }
    names
}

/// As [`term_credit`], but a word also counts if the entry holds another word of its kind.
fn kind_credit(term: &QuestionTerm, card: &CardView<'_>) -> u64 {
    let holds = |word: &u32| card.has_main_word(*word) || card.has_other_word(*word);
    let kind = if term.kind.iter().any(holds) { CREDIT_SAME_KIND } else { 0 };
    term_credit(term, card).max(kind)
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
