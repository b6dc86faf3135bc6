//! Redacts bodies that are streams of events: server-sent events, and lines of JSON. A value spelled over
//! several events is found, and each piece is removed from its own event, so that the stream stays a stream.
//!
//! Each line (`data: {...}`, or a bare `{...}`) is parsed as JSON. Its texts are appended to those with the
//! same path of names and the same `index` numbers, as a client would join them. Texts named as parts
//! (`delta`, `text`, `arguments`, ...) are searched joined. Other texts are searched one by one, and joined
//! only for values of an unmistakable form. Lines that are not JSON are searched as written.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;

use super::json::{
    EscapePlaces, EscapeSpan, LenientToken, LenientTokenKind, NestingTooDeep, decode, is_json, scan,
};
use super::profile::RedactionKind;
use super::search::{RedactionSearch, RedactionSpan, SearchDepth};
use crate::detect::NameHint;

/// Maximum number of joined rows; further texts are searched individually.
const ROWS_MAX: usize = 4096;

/// Joined texts.
#[derive(Debug, Default)]
struct EventTextRow {
    text: Vec<u8>,
    near: NameHint,
    pieces: Vec<EventTextPiece>,
}

/// A text of a row: its position in the row and in the body, and its escapes.
#[derive(Debug)]
struct EventTextPiece {
    at: usize,
    body: Range<usize>,
    escapes: Vec<EscapeSpan>,
}

/// The texts of a body's events, by row.
#[derive(Default)]
pub(super) struct EventTextRows {
    rows: Vec<EventTextRow>,
    by_key: HashMap<(u64, u64), usize, RandomState>,
}

/// Whether a body is a stream of events.
pub(super) fn is_stream(body: &[u8]) -> bool {
    let fields: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
    let mut rest = body;
    let mut lines = std::iter::from_fn(|| {
        let start = rest.iter().position(|byte| !matches!(byte, b'\n' | b'\r'))?;
        rest = rest.get(start..)?;
        let (line, after) = rest.split_at(memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len()));
        rest = after;
        Some(line)
    });
    match lines.next() {
        Some(line) if line.trim_ascii_start().starts_with(b"{") => lines.next().is_some() && is_json(line),
        Some(line) if fields.iter().any(|field| line.starts_with(field)) => {
            line.starts_with(b"data:") || lines.take(8).any(|line| line.starts_with(b"data:"))
        }
        _ => false,
    }
}

/// Searches a stream of events.
pub(super) fn events(
    search: &mut RedactionSearch<'_>,
    body: &[u8],
    places: &mut Vec<RedactionSpan>,
) -> Result<(), NestingTooDeep> {
    let mut rows = EventTextRows::default();
    let mut plain = 0..0;
    let mut from = 0;
    while from < body.len() {
        let rest = body.get(from..).unwrap_or_default();
        let end = memchr::memchr2(b'\n', b'\r', rest).map_or(rest.len(), |end| end + 1);
        let line = rest.get(..end).unwrap_or_default();
        let json = line.strip_prefix(b"data:").unwrap_or(line);
        if is_json(json) {
            text(search, body, plain.clone(), places);
            let at = from + line.len() - json.len();
            rows.add(search, body, at..from + end, places)?;
            plain = from + end..from + end;
        } else {
            plain.end = from + end;
        }
        from += end;
    }
    text(search, body, plain, places);
    rows.find(search, places);
    Ok(())
}

fn text(search: &mut RedactionSearch<'_>, body: &[u8], range: Range<usize>, places: &mut Vec<RedactionSpan>) {
    let from = places.len();
    search.flat(body.get(range.clone()).unwrap_or_default(), NameHint::NOTHING, places);
    for place in places.iter_mut().skip(from) {
        place.range = place.range.start + range.start..place.range.end + range.start;
    }
}

impl EventTextRows {
    /// Adds an event's texts to their rows, and searches its other values.
    pub(super) fn add(
        &mut self,
        search: &mut RedactionSearch<'_>,
        body: &[u8],
        event: Range<usize>,
        places: &mut Vec<RedactionSpan>,
    ) -> Result<(), NestingTooDeep> {
        let json = body.get(event.clone()).unwrap_or_default();
        let mut texts: Vec<LenientToken> = Vec::new();
        let from = places.len();
        let paths = &search.rules.paths;
        let mut others: Vec<LenientToken> = Vec::new();
        let salt = scan(json, paths, &mut |token| match token.what {
            LenientTokenKind::Text => texts.push(token),
            _ => others.push(token),
        })?;
        for token in others {
            search.token(json, token.what, token.range, token.hint, 0, places);
        }
        for place in places.iter_mut().skip(from) {
            place.range = place.range.start + event.start..place.range.end + event.start;
        }
        for token in texts.into_iter().filter(|token| !token.range.is_empty()) {
            let count = self.rows.len();
            // Beyond the limit, each text is a row of its own.
            let key = if count < ROWS_MAX { (token.path_hash, salt) } else { (u64::MAX, count as u64) };
            let row = *self.by_key.entry(key).or_insert(count);
            if row == count {
                self.rows.push(EventTextRow { near: token.hint, ..EventTextRow::default() });
            }
            let Some(row) = self.rows.get_mut(row) else { continue };
            let at = row.text.len();
            let mut escapes = Vec::new();
            decode(json.get(token.range.clone()).unwrap_or_default(), &mut row.text, &mut escapes);
            let stands = token.range.start + event.start..token.range.end + event.start;
            row.pieces.push(EventTextPiece { at, body: stands, escapes });
        }
        Ok(())
    }

    /// Searches all rows.
    pub(super) fn find(&self, search: &mut RedactionSearch<'_>, places: &mut Vec<RedactionSpan>) {
        for row in &self.rows {
            row.find(search, places);
        }
    }
}

impl EventTextRow {
    fn find(&self, search: &mut RedactionSearch<'_>, places: &mut Vec<RedactionSpan>) {
        let is_joined = self.near.is_part() && self.pieces.len() > 1;
        let (mut alone, mut found) = (Vec::new(), Vec::new());
        if !is_joined {
            let mut before: &[u8] = b"";
            for (number, piece) in self.pieces.iter().enumerate() {
                let text = self.text.get(piece.at..self.end(number)).unwrap_or_default();
                // A repeated text without matches: an id, a model's name.
                if number > 0 && found.is_empty() && text == before {
                    continue;
                }
                found.clear();
                search.text(text, self.near, 1, &mut found);
                before = text;
                alone.extend(found.iter().cloned().map(|mut place| {
                    place.range = place.range.start + piece.at..place.range.end + piece.at;
                    place
                }));
            }
        }
        if self.pieces.len() > 1 && (is_joined || !self.near.is_id()) {
            found.clear();
            let depth = if is_joined { SearchDepth::Full } else { SearchDepth::Strong };
            search.at_depth(depth, |search| search.text(&self.text, self.near, 1, &mut found));
            alone.sort_by_key(|place: &RedactionSpan| place.range.start);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for RedactionSpan { range, .. } in &alone {
                match taken.last_mut().filter(|last| range.start < last.end) {
                    Some(last) => last.end = last.end.max(range.end),
                    None => taken.push(range.clone()),
                }
            }
            for place in found {
                let is_new = |place: &RedactionSpan| {
                    let is_strong = match place.kind {
                        RedactionKind::Detector(detector) => detector.is_strong(),
                        _ => false,
                    };
                    let first = self.piece_at(place.range.start);
                    let next = taken.partition_point(|range| range.end <= place.range.start);
                    let overlaps = taken.get(next).is_some_and(|range| range.start < place.range.end);
                    is_strong && self.end(first) < place.range.end && !overlaps
                };
                if is_joined || is_new(&place) {
                    self.cut(search, &place, places);
                }
            }
        }
        for place in &alone {
            self.cut(search, place, places);
        }
    }

    /// The piece that holds a byte of the row's text.
    fn piece_at(&self, at: usize) -> usize {
        self.pieces.partition_point(|piece| piece.at <= at).saturating_sub(1)
    }

    /// The end of a piece in the row's text.
    fn end(&self, number: usize) -> usize {
        self.pieces.get(number + 1).map_or(self.text.len(), |next| next.at)
    }

    /// Removes a range of the row from each event that holds a part of it.
    fn cut(&self, search: &RedactionSearch<'_>, place: &RedactionSpan, places: &mut Vec<RedactionSpan>) {
        let value = || self.text.get(place.range.clone()).unwrap_or_default();
        let tag = Some(place.tag.unwrap_or_else(|| search.tag_of(place.kind, value())));
        let mut first = true;
        for number in self.piece_at(place.range.start)..self.pieces.len() {
            let Some(piece) = self.pieces.get(number).filter(|piece| piece.at < place.range.end) else {
                break;
            };
            let (start, end) = (place.range.start.max(piece.at), place.range.end.min(self.end(number)));
            if start >= end {
                continue;
            }
            let stands = EscapePlaces::new(&piece.escapes).written(start - piece.at..end - piece.at);
            let range = stands.start + piece.body.start..stands.end + piece.body.start;
            places.push(RedactionSpan { range, tag, first: place.first && first, ..place.clone() });
            first = false;
        }
    }
}
