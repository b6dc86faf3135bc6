//! Cards: an entry's texts as sets of hashes, so that many entries can be scored without reading them.
//! docs/format.md, section 20, has the layout.
//!
//! A card is computed from its entry, written in the same batch, and holds no text. Its sets are searched in
//! place, without decoding.

use std::collections::BTreeSet;

use super::super::entry::MemoryEntry;
use super::super::js_value::JsValue;
use super::{hashes, terms};
use annals_store::codec::{ByteReader, CodecError};

/// The version without a number, as annals 0.1 wrote it, and the one with a number.
const VERSION: u8 = 1;
const VERSION_NUMBERED: u8 = 2;
/// Maximum size of a set. Terms that come later in the text are not on the card.
const SET_ENTRIES_MAX: usize = 1 << 16;
/// The members of a snapshot that describe its subject; words in other members weigh less.
const MAIN_MEMBERS: [&str; 3] = ["query", "finalContent", "narrative"];
/// Bytes of a card's partition and number, which end the card. Whatever deletes a card reads them there.
const NUMBER_BYTES: usize = 24;
const TIERS: [&str; 3] = ["hot", "warm", "cold"];

/// A card that is built and written: see the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Card {
    tier: u8,
    ttl_ms: Option<i64>,
    /// The sets are sorted.
    main: Vec<u32>,
    rest: Vec<u32>,
    grams: Vec<u16>,
    identifiers: Vec<u64>,
    /// The card's partition and number in the inverted index.
    pub(in super::super) number: Option<[u8; NUMBER_BYTES]>,
}

/// A stored card, read in place; its sets are sorted.
#[derive(Debug)]
pub(in super::super) struct CardView<'a> {
    pub(in super::super) tier: u8,
    pub(in super::super) ttl_ms: Option<i64>,
    /// The card's partition and number in the inverted index; a card of an old store has none.
    pub(in super::super) number: Option<[u8; NUMBER_BYTES]>,
    main: &'a [[u8; 4]],
    rest: &'a [[u8; 4]],
    grams: &'a [[u8; 2]],
    identifiers: &'a [[u8; 8]],
}

/// The number of a tier: from 1 in the order of [`TIERS`], 0 for none.
pub(in super::super) fn tier_number(tier: Option<&str>) -> u8 {
    (1..).zip(TIERS).find(|(_, name)| tier == Some(name)).map_or(0, |(number, _)| number)
}

impl Card {
    /// Builds the card of an entry with this value.
    pub(in super::super) fn new(entry: &MemoryEntry, value: &JsValue) -> Self {
        let mut terms = CardTerms::default();
        match value {
            JsValue::Object(members) if value.get("query").is_some() => {
                let is_main = |name: &[u16]| {
                    MAIN_MEMBERS.iter().any(|main| main.encode_utf16().eq(name.iter().copied()))
                };
                for main in [true, false] {
                    for (_, member) in members.iter().filter(|(name, _)| is_main(name) == main) {
                        member.for_each_text(&mut |text| terms.add(text, main));
                    }
                }
            }
            other => other.for_each_text(&mut |text| terms.add(text, true)),
        }
        let main = terms.main.sorted();
        let mut rest = terms.rest.sorted();
        rest.retain(|word| main.binary_search(word).is_err());
        Self {
            tier: tier_number(entry.tier.as_deref()),
            ttl_ms: entry.ttl_ms,
            main,
            rest,
            grams: terms.grams.sorted(),
            identifiers: terms.identifiers.sorted(),
            number: None,
        }
    }

    /// The card's bytes.
    pub(in super::super) fn bytes(&self) -> Vec<u8> {
        let version = if self.number.is_some() { VERSION_NUMBERED } else { VERSION };
        let mut out = vec![version, self.tier, u8::from(self.ttl_ms.is_some()), 0];
        out.extend(self.ttl_ms.unwrap_or(0).to_le_bytes());
        for count in [self.main.len(), self.rest.len(), self.grams.len(), self.identifiers.len()] {
            #[expect(clippy::cast_possible_truncation, reason = "a set has at most SET_ENTRIES_MAX entries")]
            let count = count as u32;
            out.extend(count.to_le_bytes());
        }
        out.extend(self.main.iter().chain(&self.rest).flat_map(|word| word.to_le_bytes()));
        out.extend(self.grams.iter().flat_map(|gram| gram.to_le_bytes()));
        out.extend(self.identifiers.iter().flat_map(|one| one.to_le_bytes()));
        out.extend(self.number.iter().flatten());
        out
    }
}

impl<'a> CardView<'a> {
    /// Reads a stored card.
    ///
    /// # Errors
    /// If the bytes are not a card.
    pub(in super::super) fn parse(bytes: &'a [u8]) -> Result<Self, CodecError> {
        let mut reader = ByteReader::new(bytes, "a memory's card");
        let [version, tier, has_ttl, _] = reader.array()?;
        if ![VERSION, VERSION_NUMBERED].contains(&version) {
            return Err(CodecError::Header(format!("a memory's card has version {version}")));
        }
        let ttl = i64::from_le_bytes(reader.array()?);
        let [main, rest, grams, identifiers] =
            [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?].map(|count| count as usize);
        let mut card = Self {
            tier,
            ttl_ms: (has_ttl == 1).then_some(ttl),
            number: None,
            main: reader.take(main.saturating_mul(4))?.as_chunks().0,
            rest: reader.take(rest.saturating_mul(4))?.as_chunks().0,
            grams: reader.take(grams.saturating_mul(2))?.as_chunks().0,
            identifiers: reader.take(identifiers.saturating_mul(8))?.as_chunks().0,
        };
        if version == VERSION_NUMBERED {
            card.number = Some(reader.array()?);
        }
        reader.finish()?;
        Ok(card)
    }

    /// The words of the query, the answer and the narrative.
    pub(in super::super) fn main_words(&self) -> impl Iterator<Item = u32> + 'a {
        self.main.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    /// The words of other members.
    pub(in super::super) fn other_words(&self) -> impl Iterator<Item = u32> + 'a {
        self.rest.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(in super::super) fn all_grams(&self) -> impl Iterator<Item = u16> + 'a {
        self.grams.iter().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(in super::super) fn all_identifiers(&self) -> impl Iterator<Item = u64> + 'a {
        self.identifiers.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Whether the entry has expired.
    pub(in super::super) fn is_expired(&self, now_ms: i64) -> bool {
        self.ttl_ms.is_some_and(|ttl| ttl <= now_ms)
    }

    /// Whether a word stands in the query, the answer or the narrative.
    pub(super) fn has_main_word(&self, word: u32) -> bool {
        self.main.binary_search_by_key(&word, |bytes| u32::from_le_bytes(*bytes)).is_ok()
    }

    /// Whether a word stands in another member.
    pub(super) fn has_other_word(&self, word: u32) -> bool {
        self.rest.binary_search_by_key(&word, |bytes| u32::from_le_bytes(*bytes)).is_ok()
    }

    /// Whether any word has an n-gram.
    pub(super) fn has_gram(&self, gram: u16) -> bool {
        self.grams.binary_search_by_key(&gram, |bytes| u16::from_le_bytes(*bytes)).is_ok()
    }

    /// Whether the entry holds an identifier.
    pub(super) fn has_identifier(&self, one: u64) -> bool {
        self.identifiers.binary_search_by_key(&one, |bytes| u64::from_le_bytes(*bytes)).is_ok()
    }
}

/// A stored card with a number, in place of the one that it may have.
///
/// # Errors
/// If the bytes are not a card.
pub(in super::super) fn numbered(bytes: &[u8], number: &[u8; NUMBER_BYTES]) -> Result<Vec<u8>, CodecError> {
    let had_number = CardView::parse(bytes)?.number.is_some();
    let end = bytes.len() - if had_number { NUMBER_BYTES } else { 0 };
    let mut out = bytes.get(..end).unwrap_or_default().to_vec();
    if let Some(version) = out.first_mut() {
        *version = VERSION_NUMBERED;
    }
    out.extend_from_slice(number);
    Ok(out)
}

/// The sets of a card that is being built.
#[derive(Debug, Default)]
struct CardTerms {
    main: TermSet<u32>,
    rest: TermSet<u32>,
    grams: GramSet,
    identifiers: TermSet<u64>,
}

impl CardTerms {
    fn add(&mut self, text: &str, main: bool) {
        terms::for_each_word(text, &mut |word| {
            let words = if main { &mut self.main } else { &mut self.rest };
            hashes::with_word_terms(word, &mut |terms| {
                words.insert(terms.word);
                self.grams.insert_all(terms.grams);
            });
        });
        terms::for_each_identifier(text, true, &mut |one| self.identifiers.insert(hashes::term_hash(one)));
    }
}

/// A set of at most [`SET_ENTRIES_MAX`] terms, the first ones. Sorting a list once is cheaper than keeping a tree, so
/// a tree serves only texts with as many words as that.
#[derive(Debug, Default)]
struct TermSet<T> {
    list: Vec<T>,
    tree: BTreeSet<T>,
}

impl<T: Ord + Copy> TermSet<T> {
    fn insert(&mut self, one: T) {
        if self.tree.is_empty() {
            self.list.push(one);
            if self.list.len() == SET_ENTRIES_MAX {
                self.tree = self.list.drain(..).collect();
            }
        } else if self.tree.len() < SET_ENTRIES_MAX {
            self.tree.insert(one);
        }
    }

    fn sorted(self) -> Vec<T> {
        if !self.tree.is_empty() {
            return self.tree.into_iter().collect();
        }
        let mut list = self.list;
        list.sort_unstable();
        list.dedup();
        list
    }
}

/// A set of n-grams: a bit for each of the 65,536 hashes, which a [`TermSet`] would hold without a limit, too.
#[derive(Debug, Default)]
struct GramSet(Vec<u64>);

impl GramSet {
    fn insert_all(&mut self, grams: &[u16]) {
        if self.0.is_empty() {
            self.0.resize(SET_ENTRIES_MAX / 64, 0);
        }
        for gram in grams {
            if let Some(bits) = self.0.get_mut(usize::from(gram / 64)) {
                *bits |= 1 << (gram % 64);
            }
        }
    }

    fn sorted(&self) -> Vec<u16> {
        let mut list = Vec::new();
        for (first, bits) in (0..=u16::MAX).step_by(64).zip(&self.0) {
            let mut bits = *bits;
            while bits != 0 {
                #[expect(clippy::cast_possible_truncation, reason = "below 64")]
                list.push(first + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gram_set_is_sorted_and_distinct() {
        let grams: Vec<u16> = (0..3000u32)
            .map(|number| ((number.wrapping_mul(0x9e37_79b9) >> 18) as u16).wrapping_mul(7))
            .collect();
        let mut set = GramSet::default();
        grams.chunks(7).for_each(|some| set.insert_all(some));
        set.insert_all(&[0, u16::MAX, 63, 64, 0]);
        let wanted: BTreeSet<u16> = grams.into_iter().chain([0, u16::MAX, 63, 64]).collect();
        assert_eq!(set.sorted(), wanted.into_iter().collect::<Vec<_>>());
        assert!(GramSet::default().sorted().is_empty());
    }

    /// A set keeps the first terms that fit, whatever repeats among them.
    #[test]
    fn term_set_keeps_first_distinct_terms() {
        let terms = |count: u32| (0..count).map(|number| number.wrapping_mul(0x9e37_79b9) % 100_000);
        for count in [0, 1, 10, 65_535, 65_536, 65_537, 150_000, 300_000] {
            let mut set = TermSet::default();
            let mut tree = BTreeSet::new();
            for term in terms(count) {
                set.insert(term);
                if tree.len() < SET_ENTRIES_MAX {
                    tree.insert(term);
                }
            }
            assert!(set.sorted() == tree.into_iter().collect::<Vec<_>>(), "{count}");
        }
    }

    #[test]
    fn card_round_trips_and_rejects_damage() {
        let entry = r#"{"id":"a","tier":"warm","ttl":-7,"value":{"query":"Loan #42?","toolCalls":[{"args":{"creditScore":580}}]}}"#;
        let entry = MemoryEntry::parse(entry).unwrap();
        let card = Card::new(&entry, &JsValue::parse(entry.value()).unwrap());
        let bytes = card.bytes();
        let read = CardView::parse(&bytes).unwrap();
        assert_eq!((read.tier, read.ttl_ms), (2, Some(-7)));
        let hash = hashes::word_hash;
        assert!(
            ["loan", "42"]
                .iter()
                .all(|word| read.has_main_word(hash(word)) && !read.has_other_word(hash(word)))
        );
        for word in ["args", "creditscore", "credit", "score", "580"] {
            assert!(read.has_other_word(hash(word)) && !read.has_main_word(hash(word)), "{word}");
        }
        assert_eq!((read.main.len(), read.rest.len()), (2, 5));
        assert!(
            read.has_identifier(hashes::term_hash("#42")) && !read.has_identifier(hashes::term_hash("#43"))
        );
        assert!(read.has_gram(hashes::gram_hash("^loa")) && !read.has_gram(hashes::gram_hash("^abc")));
        // Golden: docs/format.md.
        let head = [1, 2, 1, 0, 249, 255, 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 5, 0, 0, 0];
        assert_eq!(bytes[..20], head);
        assert_eq!(blake3::hash(&bytes).to_hex()[..16].to_owned(), "3642050c2d09b20a");
        for end in 0..bytes.len() {
            assert!(CardView::parse(&bytes[..end]).is_err(), "{end}");
        }
        assert!(CardView::parse(&[bytes.clone(), vec![0]].concat()).is_err());
        assert!(CardView::parse(&[&[3], &bytes[1..]].concat()).is_err());
        // With a number: another version, and the number at the end.
        let numbered = Card { number: Some([9; 24]), ..card }.bytes();
        assert_eq!(numbered, [&[2], &bytes[1..], &[9; 24]].concat());
        assert_eq!(CardView::parse(&numbered).unwrap().number, Some([9; 24]));
        assert_eq!(read.number, None);
        assert_eq!(super::numbered(&bytes, &[9; 24]).unwrap(), numbered);
        assert_eq!(super::numbered(&numbered, &[9; 24]).unwrap(), numbered);
        for end in 0..numbered.len() {
            assert!(CardView::parse(&numbered[..end]).is_err(), "{end}");
        }
    }
}
