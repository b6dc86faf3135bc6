//! Finds everything that a profile removes from a text, by detectors, patterns and paths, with a tag for each
//! placeholder.

use std::borrow::Cow;
use std::ops::Range;

use super::disguise::decode_disguised;
use super::json::{EscapePlaces, LenientTokenKind, NestingTooDeep, decode, is_json_or_cut, scan};
use super::profile::{ProfileRules, RedactionKind};
use crate::detect::{self, Detector, DetectorHit, NameHint};

/// Maximum nesting of JSON within JSON texts, such as tool call arguments.
const LAYERS_MAX: usize = 4;

/// Length of a placeholder's hash, in bytes.
const TAG_BYTES: usize = 6;

/// A value of at most this length, with its kind, is hashed in one call, without the large state of a hasher.
const SHORT_VALUE_BYTES: usize = 256;

/// The part of a placeholder that is equal exactly for equal values.
pub(super) type PlaceholderTag = [u8; TAG_BYTES];

/// A range to be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedactionSpan {
    pub(super) range: Range<usize>,
    pub(super) kind: RedactionKind,
    /// `None`: the range holds the value itself. Most values are found more than once, as written and decoded, so
    /// only the one that is replaced is hashed.
    pub(super) tag: Option<PlaceholderTag>,
    /// Whether it is a JSON value other than a text, whose placeholder needs quotes.
    pub(super) quoted: bool,
    /// Whether the placeholder replaces it; false for later pieces of a value that came in pieces.
    pub(super) first: bool,
}

/// A search by a profile's rules.
pub(super) struct RedactionSearch<'p> {
    pub(super) rules: &'p ProfileRules,
    key: &'p [u8; 32],
    hits: Vec<DetectorHit>,
    depth: SearchDepth,
}

/// How much of a text is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchDepth {
    /// As written, and decoded if parts of it are disguised.
    Full,
    /// Only decoded: it was searched as written before.
    Decoded,
    /// As `Full`, for values of an unmistakable form only.
    Strong,
}

impl<'p> RedactionSearch<'p> {
    pub(super) fn new(rules: &'p ProfileRules, key: &'p [u8; 32]) -> Self {
        Self { rules, key, hits: Vec::new(), depth: SearchDepth::Full }
    }

    /// Runs a search of another depth.
    pub(super) fn at_depth<T>(&mut self, depth: SearchDepth, search: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.depth, depth);
        let found = search(self);
        self.depth = before;
        found
    }

    /// The tag of a value.
    pub(super) fn tag(&self, kind: &str, value: &[u8]) -> PlaceholderTag {
        let mut short = [0; SHORT_VALUE_BYTES];
        let hash = match short.get_mut(..kind.len() + 1 + value.len()) {
            Some(joined) => {
                let (head, tail) = joined.split_at_mut(kind.len());
                head.copy_from_slice(kind.as_bytes());
                if let Some(tail) = tail.get_mut(1..) {
                    tail.copy_from_slice(value);
                }
                blake3::keyed_hash(self.key, joined)
            }
            None => {
                let mut hasher = blake3::Hasher::new_keyed(self.key);
                hasher.update(kind.as_bytes()).update(&[0]).update(value).finalize()
            }
        };
        hash.as_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// The tag of a value of a kind.
    pub(super) fn tag_of(&self, kind: RedactionKind, value: &[u8]) -> PlaceholderTag {
        let name = self.rules.kind_name(kind);
        match kind {
            RedactionKind::Detector(detector) => self.tag(name, &normalise(detector, value)),
            _ => self.tag(name, value),
        }
    }

    /// Moves a span to the range that it has in another text. `text` is the one in which it has its present range.
    fn move_span(&self, place: &mut RedactionSpan, text: &[u8], range: Range<usize>) {
        // A range with an escape or a disguise is longer than what it stands for.
        if place.tag.is_none() && range.len() != place.range.len() {
            let value = text.get(place.range.clone()).unwrap_or_default();
            place.tag = Some(self.tag_of(place.kind, value));
        }
        place.range = range;
    }

    /// Searches a text, which may itself be JSON, whole or cut off.
    pub(super) fn text(
        &mut self,
        text: &[u8],
        near: NameHint,
        layer: usize,
        places: &mut Vec<RedactionSpan>,
    ) {
        if layer < LAYERS_MAX && is_json_or_cut(text) {
            let from = places.len();
            let none = super::json::ProfilePaths::default();
            let scanned = scan(text, &none, &mut |token| {
                self.token(text, token.what, token.range, token.hint, layer, places);
            });
            if scanned.is_err() {
                places.truncate(from);
                let tag = self.tag("deep", text);
                places.push(RedactionSpan {
                    range: 0..text.len(),
                    kind: RedactionKind::Deep,
                    tag: Some(tag),
                    quoted: false,
                    first: true,
                });
            }
            return;
        }
        self.flat(text, near, places);
    }

    /// Searches a JSON token.
    pub(super) fn token(
        &mut self,
        json: &[u8],
        what: LenientTokenKind,
        range: Range<usize>,
        near: NameHint,
        layer: usize,
        places: &mut Vec<RedactionSpan>,
    ) {
        let raw = json.get(range.clone()).unwrap_or_default();
        let from = places.len();
        match what {
            LenientTokenKind::Number => {
                self.flat(raw, near, places);
                places.truncate(from + 1);
                if let Some(place) = places.get_mut(from) {
                    self.move_span(place, raw, range);
                    place.quoted = true;
                }
            }
            LenientTokenKind::NamedValue => {
                let tag = self.tag("path", raw);
                places.push(RedactionSpan {
                    range,
                    kind: RedactionKind::Path,
                    tag: Some(tag),
                    quoted: true,
                    first: true,
                });
            }
            LenientTokenKind::NamedText => {
                let (mut read, mut escapes) = (Vec::new(), Vec::new());
                decode(raw, &mut read, &mut escapes);
                let tag = self.tag("path", &read);
                places.push(RedactionSpan {
                    range,
                    kind: RedactionKind::Path,
                    tag: Some(tag),
                    quoted: false,
                    first: true,
                });
            }
            LenientTokenKind::Name | LenientTokenKind::Text if memchr::memchr(b'\\', raw).is_some() => {
                let (mut read, mut escapes) = (Vec::with_capacity(raw.len()), Vec::new());
                decode(raw, &mut read, &mut escapes);
                self.text(&read, near, layer + 1, places);
                let mut stand = EscapePlaces::new(&escapes);
                for place in places.iter_mut().skip(from) {
                    let stands = stand.written(place.range.clone());
                    self.move_span(place, &read, stands.start + range.start..stands.end + range.start);
                }
            }
            LenientTokenKind::Name | LenientTokenKind::Text => {
                self.text(raw, near, layer + 1, places);
                for place in places.iter_mut().skip(from) {
                    place.range = place.range.start + range.start..place.range.end + range.start;
                }
            }
        }
    }

    /// Searches a text as written, and decoded if parts of it are disguised (`disguise`).
    pub(super) fn flat(&mut self, text: &[u8], near: NameHint, places: &mut Vec<RedactionSpan>) {
        let as_written = self.depth != SearchDepth::Decoded;
        if as_written {
            self.search_once(text, near, places);
        }
        if !self.disguised(text, near, places) && !as_written {
            self.search_once(text, near, places);
        }
    }

    /// Searches a text decoded, if parts of it are disguised. Returns whether they are.
    fn disguised(&mut self, text: &[u8], near: NameHint, places: &mut Vec<RedactionSpan>) -> bool {
        let (mut read, mut escapes) = (Vec::new(), Vec::new());
        if !decode_disguised(text, &mut read, &mut escapes) {
            return false;
        }
        let from = places.len();
        self.search_once(&read, near, places);
        let mut stand = EscapePlaces::new(&escapes);
        for place in places.iter_mut().skip(from) {
            let stands = stand.written(place.range.clone());
            self.move_span(place, &read, stands);
        }
        true
    }

    /// Searches a text that begins as JSON and is none. Nothing is searched more than twice: the whole as written, and
    /// each JSON text in it, and what stands between them, decoded.
    pub(super) fn damaged_json(
        &mut self,
        text: &[u8],
        places: &mut Vec<RedactionSpan>,
    ) -> Result<(), NestingTooDeep> {
        self.search_once(text, NameHint::NOTHING, places);
        self.at_depth(SearchDepth::Decoded, |search| {
            let (paths, mut from) = (&search.rules.paths, 0);
            scan(text, paths, &mut |token| {
                if token.what == LenientTokenKind::Number && !is_number(text, &token.range) {
                    return;
                }
                search.between(text, from..token.range.start, places);
                from = token.range.end;
                search.token(text, token.what, token.range, token.hint, 0, places);
            })?;
            search.between(text, from..text.len(), places);
            Ok(())
        })
    }

    /// Searches decoded what stands between JSON texts.
    fn between(&mut self, text: &[u8], range: Range<usize>, places: &mut Vec<RedactionSpan>) {
        let from = places.len();
        self.disguised(text.get(range.clone()).unwrap_or_default(), NameHint::NOTHING, places);
        for place in places.iter_mut().skip(from) {
            place.range = place.range.start + range.start..place.range.end + range.start;
        }
    }

    fn search_once(&mut self, text: &[u8], near: NameHint, places: &mut Vec<RedactionSpan>) {
        let mut hits = std::mem::take(&mut self.hits);
        let is_strong = self.depth == SearchDepth::Strong;
        let detectors = if is_strong { self.rules.detectors.strong() } else { self.rules.detectors };
        detect::find(text, detectors, near, &mut hits);
        places.extend(hits.drain(..).map(|DetectorHit { range, detector }| RedactionSpan {
            range,
            kind: RedactionKind::Detector(detector),
            tag: None,
            quoted: false,
            first: true,
        }));
        self.hits = hits;
        if is_strong || self.rules.patterns.is_empty() {
            return;
        }
        let mut at = 0;
        for chunk in text.utf8_chunks() {
            for (number, pattern) in self.rules.patterns.iter().enumerate() {
                for found in pattern.regex.find_iter(chunk.valid()).filter(|found| !found.is_empty()) {
                    let kind = RedactionKind::Pattern(u16::try_from(number).unwrap_or(u16::MAX));
                    let range = at + found.start()..at + found.end();
                    places.push(RedactionSpan { range, kind, tag: None, quoted: false, first: true });
                }
            }
            at += chunk.valid().len() + chunk.invalid().len();
        }
    }
}

/// Whether a number stands by itself, and not within a word of damaged JSON.
fn is_number(text: &[u8], range: &Range<usize>) -> bool {
    let head = text.get(..range.start).unwrap_or_default();
    let digits = text.get(range.clone()).unwrap_or_default();
    matches!(head.last(), None | Some(b':' | b',' | b'[' | b' ' | b'\t' | b'\n' | b'\r'))
        && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
}

/// The normal form of a value: digits of cards and phone numbers, IBANs without blanks, addresses in lower
/// case.
pub(super) fn normalise(detector: Detector, value: &[u8]) -> Cow<'_, [u8]> {
    match detector {
        Detector::Card | Detector::Phone => value.iter().copied().filter(u8::is_ascii_digit).collect(),
        Detector::Iban => {
            value.iter().filter(|byte| byte.is_ascii_alphanumeric()).map(u8::to_ascii_uppercase).collect()
        }
        Detector::Email | Detector::Ip if value.iter().any(u8::is_ascii_uppercase) => {
            value.to_ascii_lowercase().into()
        }
        _ => value.into(),
    }
}
