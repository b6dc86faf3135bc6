//! A card: what an entry's texts hold, hashed, so that many can be held against a question without being read.
//!
//! ```text
//! version u8 (1) | tier u8 (0 none, 1 hot, 2 warm, 3 cold) | ttl: 1 byte whether, then i64 ms
//! four sets, each: count varint | differences of its sorted members, varints
//!   words of the query and the answer (32 bits) | words of the rest (32 bits) | n-grams (16 bits) | identifiers (64 bits)
//! ```
//!
//! A card follows from its entry, is written in the batch with it, and holds no text of it.

use std::collections::BTreeSet;

use super::super::entry::Entry;
use super::super::js::Js;
use super::terms;
use crate::codec::{CodecError, Reader, put_varint};
use crate::error::{Error, Result};

const VERSION: u8 = 1;
/// Members of a set, at most: what comes later in the text is not on the card.
const MEMBERS_MAX: usize = 1 << 16;
/// The members of a snapshot that say what it is about; what stands in others counts less.
const MAIN: [&str; 3] = ["query", "finalContent", "narrative"];
const TIERS: [&str; 3] = ["hot", "warm", "cold"];

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Card {
    tier: u8,
    ttl_ms: Option<i64>,
    main: BTreeSet<u32>,
    rest: BTreeSet<u32>,
    grams: BTreeSet<u16>,
    identifiers: BTreeSet<u64>,
}

/// A card as it was kept, its sets in their order.
#[derive(Debug)]
pub(in super::super) struct Read {
    pub(in super::super) tier: u8,
    pub(super) ttl_ms: Option<i64>,
    pub(super) main: Vec<u64>,
    pub(super) rest: Vec<u64>,
    pub(super) grams: Vec<u64>,
    pub(super) identifiers: Vec<u64>,
}

/// The number of a tier.
pub(in super::super) fn tier_number(tier: Option<&str>) -> u8 {
    tier.and_then(|tier| TIERS.iter().position(|name| *name == tier)).map_or(0, |place| place as u8 + 1)
}

impl Card {
    /// The card of an entry.
    ///
    /// # Errors
    /// `Invalid` where its value is no JSON.
    pub(in super::super) fn of(entry: &Entry) -> Result<Self> {
        let value = Js::parse(entry.value()).map_err(|e| {
            Error::invalid(format!("a memory's value is no JSON: {} at byte {}", e.what, e.at))
        })?;
        let mut card =
            Self { tier: tier_number(entry.tier.as_deref()), ttl_ms: entry.ttl_ms, ..Self::default() };
        match &value {
            Js::Object(members) if value.get("query").is_some() => {
                let is_main =
                    |name: &[u16]| MAIN.iter().any(|main| main.encode_utf16().eq(name.iter().copied()));
                for main in [true, false] {
                    for (_, member) in members.iter().filter(|(name, _)| is_main(name) == main) {
                        member.each_text(&mut |text| card.add(text, main));
                    }
                }
            }
            other => other.each_text(&mut |text| card.add(text, true)),
        }
        let rest = std::mem::take(&mut card.rest);
        card.rest = rest.difference(&card.main).copied().collect();
        Ok(card)
    }

    fn add(&mut self, text: &str, main: bool) {
        terms::words(text, &mut |word| {
            let words = if main { &mut self.main } else { &mut self.rest };
            put(words, terms::hash(&terms::stem(word)) as u32);
            if !terms::is_common(word) {
                terms::grams(word, &mut |gram| put(&mut self.grams, terms::hash(gram) as u16));
            }
        });
        terms::identifiers(text, true, &mut |one| put(&mut self.identifiers, terms::hash(one)));
    }

    /// Its bytes.
    pub(in super::super) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![VERSION, self.tier, u8::from(self.ttl_ms.is_some())];
        out.extend(self.ttl_ms.unwrap_or(0).to_le_bytes());
        write(&mut out, self.main.iter().map(|one| u64::from(*one)));
        write(&mut out, self.rest.iter().map(|one| u64::from(*one)));
        write(&mut out, self.grams.iter().map(|one| u64::from(*one)));
        write(&mut out, self.identifiers.iter().copied());
        out
    }
}

impl Read {
    /// Reads a card.
    ///
    /// # Errors
    /// Where the bytes are none.
    pub(in super::super) fn of(bytes: &[u8]) -> std::result::Result<Self, CodecError> {
        let mut reader = Reader::new(bytes, "a memory's card");
        let version = reader.u8()?;
        if version != VERSION {
            return Err(CodecError::Header(format!("a memory's card has version {version}")));
        }
        let tier = reader.u8()?;
        let (has_ttl, ttl) = (reader.u8()?, reader.u64()?.cast_signed());
        let ttl_ms = (has_ttl == 1).then_some(ttl);
        let most = bytes.len();
        let mut next = || read(&mut reader, most);
        let card = Self { tier, ttl_ms, main: next()?, rest: next()?, grams: next()?, identifiers: next()? };
        reader.finish()?;
        Ok(card)
    }

    /// Whether its entry's time is over.
    pub(in super::super) fn is_expired(&self, now_ms: i64) -> bool {
        self.ttl_ms.is_some_and(|ttl| ttl <= now_ms)
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, one: T) {
    if set.len() < MEMBERS_MAX {
        set.insert(one);
    }
}

fn write(out: &mut Vec<u8>, members: impl ExactSizeIterator<Item = u64>) {
    put_varint(out, members.len() as u64);
    let mut before = 0;
    for member in members {
        put_varint(out, member - before);
        before = member;
    }
}

/// A set of at most as many members as there are bytes.
fn read(reader: &mut Reader<'_>, most: usize) -> std::result::Result<Vec<u64>, CodecError> {
    let count = usize::try_from(reader.varint()?).unwrap_or(usize::MAX).min(most);
    let mut before = 0u64;
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        before = before.saturating_add(reader.varint()?);
        members.push(before);
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_read_as_it_was_written() {
        let entry = r#"{"id":"a","tier":"warm","ttl":-7,"value":{"query":"Loan #42?","toolCalls":[{"args":{"creditScore":580}}]}}"#;
        let card = Card::of(&Entry::parse(entry).unwrap()).unwrap();
        let bytes = card.bytes();
        let read = Read::of(&bytes).unwrap();
        assert_eq!((read.tier, read.ttl_ms), (2, Some(-7)));
        let words = |words: &[&str]| {
            let mut hashes: Vec<u64> =
                words.iter().map(|word| u64::from(terms::hash(&terms::stem(word)) as u32)).collect();
            hashes.sort_unstable();
            hashes
        };
        assert_eq!(read.main, words(&["loan", "42"]));
        assert_eq!(read.rest, words(&["args", "creditscore", "credit", "score", "580"]));
        assert_eq!(read.identifiers, [terms::hash("#42")]);
        for end in 0..bytes.len() {
            assert!(Read::of(&bytes[..end]).is_err(), "{end}");
        }
        assert!(Read::of(&[bytes.clone(), vec![0]].concat()).is_err());
        assert!(Read::of(&[&[2], &bytes[1..]].concat()).is_err());
    }
}
