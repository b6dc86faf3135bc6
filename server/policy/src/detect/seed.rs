//! Finds seed phrases: twelve or more words of the list of BIP 39, one after another.

use std::ops::Range;
use std::sync::LazyLock;

/// The English list, in order.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| include_str!("../../rules/bip39.txt").lines().collect());

/// The first three letters of the list's words, a bit each. Most words of other texts begin otherwise.
static BEGINNINGS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let mut bits = vec![0; 1 + (26 * 26 * 26) / 64];
    for at in WORDS.iter().filter_map(|word| beginning(word.as_bytes())) {
        if let Some(word) = bits.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }
    bits
});

/// For the number of each beginning, the number of words before it in the list.
static STARTS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let mut starts = vec![0u16; 26 * 26 * 26 + 1];
    for at in WORDS.iter().filter_map(|word| beginning(word.as_bytes())) {
        if let Some(count) = starts.get_mut(at + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for count in &mut starts {
        sum += *count;
        *count = sum;
    }
    starts
});

/// Minimum number of words in a phrase (BIP 39).
const WORDS_MIN: usize = 12;
/// Minimum number of different words in a phrase. Twelve random words have fewer once in 10^8 phrases.
const DIFFERENT_MIN: usize = 9;
/// Lengths of the list's words, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 3..=8;

/// The words in a row that may be a phrase.
#[derive(Debug, Default)]
pub(super) struct SeedScan {
    start: usize,
    end: usize,
    count: usize,
    /// How many of them are known to be in the list.
    checked: usize,
}

impl SeedScan {
    /// Whether no row has begun, so that a run that is no word changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a run of small letters, or ends the row. Returns a phrase when it ends.
    pub(super) fn add(&mut self, text: &[u8], run: Range<usize>, is_lower: bool) -> Option<Range<usize>> {
        let is_next = self.count > 0 && is_gap(text.get(self.end..run.start).unwrap_or_default());
        // A word that cannot be in the list ends the row at once, so that no row is looked up in vain.
        let is_word =
            is_lower && LENGTHS.contains(&run.len()) && text.get(run.clone()).is_some_and(may_be_listed);
        if !is_next || !is_word {
            let found = if self.count == 0 { None } else { self.finish(text) };
            if is_word {
                (self.start, self.end, self.count) = (run.start, run.end, 1);
            }
            return found;
        }
        self.count += 1;
        self.end = run.end;
        if self.count >= WORDS_MIN {
            return self.check(text);
        }
        None
    }

    /// The phrase that ends with the row.
    pub(super) fn finish(&mut self, text: &[u8]) -> Option<Range<usize>> {
        let found = (self.checked >= WORDS_MIN).then_some(self.start..self.end);
        *self = Self::default();
        found.filter(|row| is_varied(text.get(row.clone()).unwrap_or_default()))
    }

    /// Looks the row's new words up; a word outside of the list ends the row.
    fn check(&mut self, text: &[u8]) -> Option<Range<usize>> {
        if self.checked >= WORDS_MIN {
            let row = text.get(self.start..self.end).unwrap_or_default();
            let from = row.iter().rposition(|byte| byte.is_ascii_whitespace()).map_or(0, |at| at + 1);
            if is_listed(row.get(from..).unwrap_or_default()) {
                self.checked += 1;
                return None;
            }
            let end = self.start + row.get(..from).unwrap_or_default().trim_ascii_end().len();
            self.end = end;
            return self.finish(text);
        }
        let (mut at, mut start, mut count) = (self.start, self.start, 0);
        let row = text.get(self.start..self.end).unwrap_or_default();
        for word in row.split(u8::is_ascii_whitespace) {
            let next = at + word.len() + 1;
            if !word.is_empty() {
                count += 1;
                if !is_listed(word) {
                    (start, count) = (next, 0);
                }
            }
            at = next;
        }
        if count == 0 {
            *self = Self::default();
        } else {
            self.start = start
                + row
                    .get(start - self.start..)
                    .unwrap_or_default()
                    .iter()
                    .take_while(|byte| byte.is_ascii_whitespace())
                    .count();
            self.count = count;
            self.checked = if count >= WORDS_MIN { count } else { 0 };
        }
        None
    }
}

/// Whether a row has as many different words as a phrase of random words has.
fn is_varied(row: &[u8]) -> bool {
    let mut different: Vec<&[u8]> = Vec::with_capacity(DIFFERENT_MIN);
    for word in row.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if !different.contains(&word) {
            different.push(word);
        }
        if different.len() >= DIFFERENT_MIN {
            return true;
        }
    }
    false
}

fn is_gap(gap: &[u8]) -> bool {
    matches!(gap, b" " | b"\n" | b"\r\n")
}

/// The number of a word's first three letters.
fn beginning(word: &[u8]) -> Option<usize> {
    let letters = word.first_chunk::<3>()?;
    letters.iter().try_fold(0, |number, letter| {
        letter.is_ascii_lowercase().then(|| number * 26 + usize::from(letter - b'a'))
    })
}

/// Whether the list has a word with this beginning.
fn may_be_listed(word: &[u8]) -> bool {
    let bit = |at: usize| BEGINNINGS.get(at / 64).is_some_and(|bits| bits & 1 << (at % 64) != 0);
    beginning(word).is_some_and(bit)
}

pub(super) fn is_listed(word: &[u8]) -> bool {
    let range =
        beginning(word).and_then(|at| Some(usize::from(*STARTS.get(at)?)..usize::from(*STARTS.get(at + 1)?)));
    let words = range.and_then(|range| WORDS.get(range)).unwrap_or_default();
    words.iter().any(|known| known.as_bytes() == word)
}
