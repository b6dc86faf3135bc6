//! Hashes of words, n-grams and identifiers. A thread keeps those of short terms: texts repeat their words, and an
//! n-gram's hash costs as much as a long text's.

use std::cell::RefCell;

use super::terms::{for_each_gram, is_common, stem};

/// Maximum length of a cached term in bytes.
const CACHED_BYTES_MAX: usize = 15;
/// N-grams of the longest cached word.
const CACHED_GRAMS_MAX: usize = CACHED_BYTES_MAX - 1;
/// Number of cached hashes of a thread.
const CACHED_TERMS: usize = 8192;
/// Number of words whose terms a thread caches, 64 bytes each. A miss costs some ten hashes.
const CACHED_WORDS: usize = 16_384;

/// What cards and vectors hold of a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct WordTerms<'a> {
    /// 32 bits of its stem's hash.
    pub(super) word: u32,
    /// Whether it is too common to say much. Then it has no n-grams here.
    pub(super) is_common: bool,
    /// 16 bits of the hash of each n-gram.
    pub(super) grams: &'a [u16],
}

/// The hashes that a thread has computed lately. A term's place follows from its bytes, and the last term there stays.
struct HashCache {
    terms: Vec<(u128, u64)>,
    words: Vec<CachedWord>,
}

#[derive(Clone, Copy)]
struct CachedWord {
    key: u128,
    word: u32,
    is_common: bool,
    gram_count: u8,
    grams: [u16; CACHED_GRAMS_MAX],
}

const NO_WORD: CachedWord =
    CachedWord { key: 0, word: 0, is_common: false, gram_count: 0, grams: [0; CACHED_GRAMS_MAX] };

thread_local! {
    static CACHE: RefCell<HashCache> = const { RefCell::new(HashCache { terms: Vec::new(), words: Vec::new() }) };
}

/// A short term as a number, and its place among `places`.
fn cache_key(term: &str, places: usize) -> Option<(u128, usize)> {
    let mut key = [0; CACHED_BYTES_MAX + 1];
    key.get_mut(..term.len()).filter(|_| term.len() <= CACHED_BYTES_MAX)?.copy_from_slice(term.as_bytes());
    // The length tells terms apart that end in zeros, and no key is 0, as the empty places are.
    key[CACHED_BYTES_MAX] = u8::try_from(term.len()).unwrap_or(0) + 1;
    let key = u128::from_le_bytes(key);
    #[expect(clippy::cast_possible_truncation, reason = "both halves, and the upper bits of a product")]
    let place = ((key as u64 ^ (key >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    Some((key, place % places))
}

impl HashCache {
    fn hash(&mut self, term: &str) -> u64 {
        let Some((key, place)) = cache_key(term, CACHED_TERMS) else { return uncached_hash(term) };
        if self.terms.is_empty() {
            self.terms.resize(CACHED_TERMS, (0, 0));
        }
        let Some((known, hash)) = self.terms.get_mut(place) else { return uncached_hash(term) };
        if *known != key {
            (*known, *hash) = (key, uncached_hash(term));
        }
        *hash
    }

    /// The word's terms, with its n-grams given one by one.
    fn compute(&mut self, word: &str, gram: &mut dyn FnMut(u16)) -> (u32, bool) {
        let is_common = is_common(word);
        let hash = low_half(self.hash(stem(word)));
        if !is_common {
            for_each_gram(word, &mut |text| gram(low_quarter(self.hash(text))));
        }
        (hash, is_common)
    }

    fn with_word(&mut self, word: &str, each: &mut dyn FnMut(WordTerms<'_>)) {
        let Some((key, place)) = cache_key(word, CACHED_WORDS) else {
            let mut grams = Vec::new();
            let (word, is_common) = self.compute(word, &mut |gram| grams.push(gram));
            return each(WordTerms { word, is_common, grams: &grams });
        };
        if self.words.is_empty() {
            self.words.resize(CACHED_WORDS, NO_WORD);
        }
        if self.words.get(place).is_none_or(|known| known.key != key) {
            let mut fresh = CachedWord { key, ..NO_WORD };
            let (grams, count) = (&mut fresh.grams, &mut fresh.gram_count);
            (fresh.word, fresh.is_common) = self.compute(word, &mut |gram| {
                if let Some(free) = grams.get_mut(usize::from(*count)) {
                    *free = gram;
                    *count += 1;
                }
            });
            if let Some(known) = self.words.get_mut(place) {
                *known = fresh;
            }
        }
        if let Some(known) = self.words.get(place) {
            let grams = known.grams.get(..usize::from(known.gram_count)).unwrap_or_default();
            each(WordTerms { word: known.word, is_common: known.is_common, grams });
        }
    }
}

fn uncached_hash(term: &str) -> u64 {
    blake3::hash(term.as_bytes()).as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[expect(clippy::cast_possible_truncation, reason = "the low half")]
fn low_half(hash: u64) -> u32 {
    hash as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the low quarter")]
fn low_quarter(hash: u64) -> u16 {
    hash as u16
}

/// A term's hash: the first eight bytes of its BLAKE3.
pub(super) fn term_hash(term: &str) -> u64 {
    CACHE.with_borrow_mut(|cache| cache.hash(term))
}

/// The hash of a word as cards keep it: 32 bits of its stem's hash.
pub(super) fn word_hash(word: &str) -> u32 {
    low_half(term_hash(stem(word)))
}

/// The hash of an n-gram as cards keep it: 16 bits of its hash.
pub(super) fn gram_hash(gram: &str) -> u16 {
    low_quarter(term_hash(gram))
}

/// Calls `each` with a word's terms. `each` must not ask for other hashes.
pub(super) fn with_word_terms(word: &str, each: &mut dyn FnMut(WordTerms<'_>)) {
    CACHE.with_borrow_mut(|cache| cache.with_word(word, each));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cache of hashes is direct: a term evicts another one, and must never be answered with its hash.
    #[test]
    fn cached_hashes_equal_blake3() {
        let mut terms: Vec<String> =
            (0..20_000).map(|number| format!("^{}", number * 7919 % 30_000)).collect();
        terms.extend(
            ["", "\0", "\0\0", "a", "a\0", "fifteen letters", "sixteen letters!", "\u{e9}t\u{e9}"]
                .map(String::from),
        );
        for term in terms.iter().chain(terms.iter().rev()) {
            let hash = blake3::hash(term.as_bytes());
            assert_eq!(term_hash(term).to_le_bytes(), hash.as_bytes()[..8], "{term:?}");
        }
    }

    /// Words of up to 15 bytes are cached with their n-grams, longer ones are not; both have the terms that their
    /// letters give.
    #[test]
    fn cached_words_have_the_terms_of_their_letters() {
        let mut words: Vec<String> = (0..20_000).map(|number| format!("word{}", number * 7919)).collect();
        words.extend(
            [
                "",
                "a",
                "the",
                "why",
                "bags",
                "abcdefghijklmno",
                "abcdefghijklmnop",
                "\u{e9}t\u{e9}s",
                "\u{431}\u{440}\u{430}\u{442}",
                "\u{4e2d}\u{6587}\u{4e2d}\u{6587}\u{5b57}",
            ]
            .map(String::from),
        );
        for word in words.iter().chain(words.iter().rev()) {
            let mut grams = Vec::new();
            if !is_common(word) {
                for_each_gram(word, &mut |gram| grams.push(gram_hash(gram)));
            }
            let wanted = (word_hash(word), is_common(word), grams);
            let mut found = None;
            with_word_terms(word, &mut |terms| {
                found = Some((terms.word, terms.is_common, terms.grams.to_vec()));
            });
            assert_eq!(found, Some(wanted), "{word:?}");
        }
    }
}
