//! Scans JSON into texts with positions: one pass, no tree, a stack of bounded depth.
//!
//! The input is JSON, or begins as JSON and was cut off or damaged. Texts are passed on as written. [`decode`] undoes their
//! escapes and remembers the positions, so that a match in the decoded text is removed from the source, and
//! all bytes around it stay.

use std::hash::BuildHasher as _;
use std::ops::Range;

use annals::replay::matching::{Path, PathStep};
use foldhash::fast::FixedState;
use serde::de::IgnoredAny;

use crate::detect::NameHint;

/// Maximum nesting depth; deeper JSON is replaced as a whole.
const DEPTH_MAX: usize = 1024;

/// The JSON is nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NestingTooDeep;

/// Whether a text is one JSON value.
pub(super) fn is_json(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

/// Whether a text is one JSON value, or the beginning of one that was cut off.
pub(super) fn is_json_or_cut(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
        && serde_json::from_slice::<IgnoredAny>(text).map_or_else(|error| error.is_eof(), |_| true)
}

/// The kind of a JSON token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LenientTokenKind {
    /// A member's name, without its quotes.
    Name,
    /// A text, without its quotes.
    Text,
    /// A number.
    Number,
    /// A text selected by a path, without its quotes.
    NamedText,
    /// Any other value selected by a path, as a whole.
    NamedValue,
}

/// A token of JSON.
#[derive(Debug, Clone)]
pub(super) struct LenientToken {
    pub(super) what: LenientTokenKind,
    pub(super) range: Range<usize>,
    /// The hint of the name above it.
    pub(super) hint: NameHint,
    /// Hash of the names on its path.
    pub(super) path_hash: u64,
}

/// The paths whose values are removed, and those whose values are kept.
#[derive(Debug, Default, Clone)]
pub(super) struct ProfilePaths {
    pub(super) removed: Vec<Path>,
    pub(super) retained: Vec<Path>,
}

/// A position on a path: the path's number, counting removed paths first, then kept ones; and its next step.
type PathPosition = (u16, u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathEffect {
    Removed,
    Retained,
}

impl ProfilePaths {
    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.retained.is_empty()
    }

    fn steps(&self, number: u16) -> &[PathStep] {
        let number = usize::from(number);
        let kept = || self.retained.get(number - self.removed.len());
        self.removed.get(number).or_else(kept).map(Path::steps).unwrap_or_default()
    }

    fn effect(&self, number: u16) -> PathEffect {
        if usize::from(number) < self.removed.len() { PathEffect::Removed } else { PathEffect::Retained }
    }

    fn begin(&self) -> (Vec<PathPosition>, Option<PathEffect>) {
        let all = u16::try_from(self.removed.len() + self.retained.len()).unwrap_or(u16::MAX);
        let whole = (0..all).find(|number| self.steps(*number).is_empty()).map(|number| self.effect(number));
        ((0..all).filter(|number| !self.steps(*number).is_empty()).map(|number| (number, 0)).collect(), whole)
    }

    /// The states of a child, from those of its container; and the effect that selects the child.
    fn step(
        &self,
        states: &[PathPosition],
        name: Option<&str>,
        index: usize,
    ) -> (Vec<PathPosition>, Option<PathEffect>) {
        let (mut next, mut found) = (Vec::new(), None);
        for &(number, at) in states {
            let steps = self.steps(number);
            let Some(step) = steps.get(usize::from(at)) else { continue };
            let is_there = match step {
                PathStep::Member(wanted) | PathStep::Anywhere(wanted) => name == Some(wanted),
                PathStep::Element(wanted) => name.is_none() && *wanted == index,
                PathStep::Every => true,
            };
            let mut push = |state: PathPosition| {
                if !next.contains(&state) {
                    next.push(state);
                }
            };
            if matches!(step, PathStep::Anywhere(_)) {
                push((number, at));
            }
            if is_there && usize::from(at) + 1 == steps.len() {
                // Kept paths win, independent of their order in the file.
                if found != Some(PathEffect::Retained) {
                    found = Some(self.effect(number));
                }
            } else if is_there {
                push((number, at + 1));
            }
        }
        (next, found)
    }
}

/// An object or array being scanned.
struct JsonLevel {
    object: bool,
    wants_name: bool,
    /// Of the next value in it.
    near: NameHint,
    way: u64,
    own_way: u64,
    is_index: bool,
    index: usize,
    states: Vec<PathPosition>,
    next: (Vec<PathPosition>, Option<PathEffect>),
    /// Selected by a path, from this position on.
    named: Option<(PathEffect, usize)>,
}

/// Passes on each token, and returns a hash of the members whose names end in `index`.
pub(super) fn scan(
    json: &[u8],
    paths: &ProfilePaths,
    each: &mut dyn FnMut(LenientToken),
) -> Result<u64, NestingTooDeep> {
    let hash = |way: u64, what: &[u8]| FixedState::default().hash_one((way, what));
    let with_paths = !paths.is_empty();
    let mut levels: Vec<JsonLevel> = Vec::new();
    let mut first = if with_paths { paths.begin() } else { (Vec::new(), None) };
    // How many levels are inside a value selected by a path.
    let mut within = 0usize;
    let (mut salt, mut at) = (0u64, 0);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'{' | b'[' => {
                if levels.len() == DEPTH_MAX {
                    return Err(NestingTooDeep);
                }
                let (near, way, next) = match levels.last_mut() {
                    Some(level) => (level.near, level.way, next_value(level, paths, with_paths)),
                    None => (NameHint::NOTHING, 0, std::mem::take(&mut first)),
                };
                let named = next.1.filter(|_| within == 0).map(|named| (named, at));
                within += usize::from(within > 0 || named.is_some());
                let own_way = hash(way, if byte == b'{' { b"{" } else { b"[" });
                levels.push(JsonLevel {
                    object: byte == b'{',
                    wants_name: byte == b'{',
                    near,
                    way: own_way,
                    own_way,
                    is_index: false,
                    index: 0,
                    states: next.0,
                    next: (Vec::new(), None),
                    named,
                });
                at += 1;
            }
            b'}' | b']' => {
                at += 1;
                if let Some(level) = levels.pop() {
                    within = within.saturating_sub(1);
                    if let Some((PathEffect::Removed, start)) = level.named {
                        let (near, way) = (NameHint::NOTHING, level.own_way);
                        each(LenientToken {
                            what: LenientTokenKind::NamedValue,
                            range: start..at,
                            hint: near,
                            path_hash: way,
                        });
                    }
                }
            }
            b',' => {
                at += 1;
                if let Some(level) = levels.last_mut() {
                    level.wants_name = level.object;
                    level.index += 1;
                }
            }
            b'"' => {
                let start = at + 1;
                let end = text_end(json, start);
                at = end + 1;
                let text = json.get(start..end).unwrap_or_default();
                match levels.last_mut() {
                    Some(level) if level.wants_name => {
                        level.wants_name = false;
                        level.near = NameHint::from_name(text);
                        level.way = hash(level.own_way, text);
                        level.is_index = text.ends_with(b"index");
                        if with_paths {
                            level.next = paths.step(&level.states, Some(&plain(text)), 0);
                        }
                        if within == 0 {
                            each(LenientToken {
                                what: LenientTokenKind::Name,
                                range: start..end,
                                hint: NameHint::NOTHING,
                                path_hash: 0,
                            });
                        }
                    }
                    level => {
                        let (near, way, next) = match level {
                            Some(level) => (level.near, level.way, next_value(level, paths, with_paths)),
                            None => (NameHint::NOTHING, 0, std::mem::take(&mut first)),
                        };
                        let what = if next.1 == Some(PathEffect::Removed) {
                            LenientTokenKind::NamedText
                        } else {
                            LenientTokenKind::Text
                        };
                        if within == 0 && next.1 != Some(PathEffect::Retained) {
                            each(LenientToken { what, range: start..end, hint: near, path_hash: way });
                        }
                    }
                }
            }
            b'-' | b'0'..=b'9' | b't' | b'f' | b'n' => {
                let start = at;
                while json
                    .get(at)
                    .is_some_and(|byte| !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'))
                {
                    at += 1;
                }
                let (near, way, next) = match levels.last_mut() {
                    Some(level) => {
                        if level.is_index {
                            salt = hash(salt, json.get(start..at).unwrap_or_default());
                        }
                        (level.near, level.way, next_value(level, paths, with_paths))
                    }
                    None => (NameHint::NOTHING, 0, std::mem::take(&mut first)),
                };
                let what = match next.1 {
                    Some(PathEffect::Removed) => LenientTokenKind::NamedValue,
                    Some(PathEffect::Retained) => continue,
                    None if at - start < 7 => continue,
                    None => LenientTokenKind::Number,
                };
                if within == 0 {
                    each(LenientToken { what, range: start..at, hint: near, path_hash: way });
                }
            }
            _ => at += 1,
        }
    }
    // A value that was cut off is removed to the end.
    if let Some((level, start)) = levels.iter().find_map(|level| match level.named {
        Some((PathEffect::Removed, start)) => Some((level, start)),
        _ => None,
    }) {
        each(LenientToken {
            what: LenientTokenKind::NamedValue,
            range: start..json.len(),
            hint: NameHint::NOTHING,
            path_hash: level.own_way,
        });
    }
    Ok(salt)
}

/// The path states for a level's next value.
fn next_value(
    level: &mut JsonLevel,
    paths: &ProfilePaths,
    with_paths: bool,
) -> (Vec<PathPosition>, Option<PathEffect>) {
    match with_paths {
        false => (Vec::new(), None),
        true if level.object => std::mem::take(&mut level.next),
        true => paths.step(&level.states, None, level.index),
    }
}

/// A name with its escapes decoded.
fn plain(text: &[u8]) -> std::borrow::Cow<'_, str> {
    if memchr::memchr(b'\\', text).is_none() {
        return String::from_utf8_lossy(text);
    }
    let (mut decoded, mut escapes) = (Vec::new(), Vec::new());
    decode(text, &mut decoded, &mut escapes);
    String::from_utf8_lossy(&decoded).into_owned().into()
}

/// The position of the quote that ends a text.
fn text_end(json: &[u8], start: usize) -> usize {
    let mut at = start;
    while let Some(found) = json.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if json.get(at) == Some(&b'"') {
            return at;
        }
        at += 2;
    }
    json.len()
}

/// A range whose source differs from its decoded text.
#[derive(Debug, Clone, Copy)]
pub(super) struct EscapeSpan {
    pub(super) read_at: usize,
    pub(super) read_len: usize,
    pub(super) written_at: usize,
    pub(super) written_len: usize,
}

/// Undoes the escapes of a JSON text, and records their positions.
pub(super) fn decode(written: &[u8], read: &mut Vec<u8>, escapes: &mut Vec<EscapeSpan>) {
    let begun = read.len();
    let mut at = 0;
    while let Some(found) = memchr::memchr(b'\\', written.get(at..).unwrap_or_default()) {
        read.extend_from_slice(written.get(at..at + found).unwrap_or_default());
        at += found;
        let (read_at, written_at) = (read.len() - begun, at);
        at += 2;
        match written.get(written_at + 1) {
            Some(b'n') => read.push(b'\n'),
            Some(b't') => read.push(b'\t'),
            Some(b'r') => read.push(b'\r'),
            Some(b'b') => read.push(8),
            Some(b'f') => read.push(12),
            Some(b'u') => {
                let unit = |at: usize| {
                    let digits = std::str::from_utf8(written.get(at..at + 4)?).ok()?;
                    u32::from_str_radix(digits, 16).ok()
                };
                let high = unit(at).unwrap_or(0xfffd);
                at = (at + 4).min(written.len());
                let is_pair = (0xd800..0xdc00).contains(&high)
                    && written.get(at..).is_some_and(|rest| rest.starts_with(b"\\u"));
                let low = unit(at + 2).filter(|low| is_pair && (0xdc00..0xe000).contains(low));
                let code = match low {
                    Some(low) => {
                        at += 6;
                        0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                    }
                    None => high,
                };
                let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                read.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            Some(other) => read.push(*other),
            None => at = written.len(),
        }
        let read_len = read.len() - begun - read_at;
        escapes.push(EscapeSpan { read_at, read_len, written_at, written_len: at - written_at });
    }
    read.extend_from_slice(written.get(at..).unwrap_or_default());
}

/// How many escapes further a position is looked for one by one.
const ESCAPES_NEAR: usize = 8;

/// Translates ranges of a decoded text into those of its source. Ranges that follow each other are found at once.
pub(super) struct EscapePlaces<'e> {
    escapes: &'e [EscapeSpan],
    /// How many escapes stand before the position that was looked up last.
    before: usize,
}

impl<'e> EscapePlaces<'e> {
    pub(super) fn new(escapes: &'e [EscapeSpan]) -> Self {
        Self { escapes, before: 0 }
    }

    /// The source range of a decoded range, extended to whole escapes.
    pub(super) fn written(&mut self, range: Range<usize>) -> Range<usize> {
        self.place(range.start, false)..self.place(range.end, true)
    }

    fn place(&mut self, at: usize, is_end: bool) -> usize {
        let stands_before = |escape: &EscapeSpan| escape.read_at < at;
        let is_ahead =
            self.before.checked_sub(1).and_then(|last| self.escapes.get(last)).is_none_or(stands_before);
        let rest = self.escapes.get(self.before..).filter(|_| is_ahead).unwrap_or_default();
        let near = rest.iter().take(ESCAPES_NEAR).take_while(|escape| stands_before(escape)).count();
        self.before = match is_ahead && near < ESCAPES_NEAR {
            true => self.before + near,
            false => self.escapes.partition_point(stands_before),
        };
        let Some(escape) = self.before.checked_sub(1).and_then(|last| self.escapes.get(last)) else {
            return at;
        };
        let past = at - escape.read_at;
        if past >= escape.read_len {
            escape.written_at + escape.written_len + past - escape.read_len
        } else if is_end {
            escape.written_at + escape.written_len
        } else {
            escape.written_at
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looked up in any order, each range is the one that a search from the start finds.
    #[test]
    fn ranges_of_decoded_texts_are_found_in_any_order() {
        let text: String =
            (0..200).map(|at| ["a", "\\n", "bc", "\\u0041", "\\ud83d\\ude00"][at * 7 % 5]).collect();
        let (mut read, mut escapes) = (Vec::new(), Vec::new());
        decode(text.as_bytes(), &mut read, &mut escapes);
        let mut all = EscapePlaces::new(&escapes);
        let mut at = 17;
        for _ in 0..2000 {
            at = (at * 31 + 7) % read.len();
            let range = at..(at + at % 9).min(read.len());
            let again = EscapePlaces::new(&escapes).written(range.clone());
            assert_eq!(all.written(range.clone()), again, "{range:?}");
            let (mut back, mut none) = (Vec::new(), Vec::new());
            decode(&text.as_bytes()[again], &mut back, &mut none);
            let wanted = &read[range];
            assert!(back.windows(wanted.len().max(1)).any(|part| part == wanted) || wanted.is_empty());
        }
    }
}
