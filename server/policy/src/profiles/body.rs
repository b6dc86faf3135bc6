//! Redacts a whole body according to its kind.

use std::borrow::Cow;
use std::ops::Range;

use annals_text::hex::encode;

use super::json::{NestingTooDeep, is_json_or_cut, scan};
use super::profile::{ProfileRules, REDACTED_BODY_BYTES_MAX, RedactedBody};
use super::search::{PlaceholderTag, RedactionSearch, RedactionSpan};
use super::stream::{self, EventTextRows};
use crate::detect::NameHint;
use crate::providers::decode;

/// Redacts a body by rules; `key` makes the placeholders.
pub(super) fn redact<'a>(
    rules: &ProfileRules,
    key: &[u8; 32],
    stored: &'a [u8],
    content_encoding: Option<&str>,
) -> RedactedBody<'a> {
    let mut search = RedactionSearch::new(rules, key);
    if stored.is_empty() {
        return RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 };
    }
    if stored.len() > REDACTED_BODY_BYTES_MAX {
        return RedactedBody { bytes: super::Redactor::too_long(stored.len() as u64).into(), replaced: 1 };
    }
    let encoding = content_encoding.or_else(|| sniff_encoding(stored));
    let decoded = decode(encoding, stored, REDACTED_BODY_BYTES_MAX);
    if decoded.fault.is_some() {
        return replace_whole(&search, "binary", stored, encoding.unwrap_or("application/octet-stream"));
    }
    if is_binary(&decoded.bytes) {
        return replace_whole(&search, "binary", &decoded.bytes, media_type(&decoded.bytes));
    }
    let mut places = Vec::new();
    if find(&mut search, &decoded.bytes, &mut places).is_err() {
        let mut shown = replace_whole(&search, "deep", &decoded.bytes, "application/json");
        // JSON must stay JSON.
        let bytes = shown.bytes.to_mut();
        bytes.insert(0, b'"');
        bytes.push(b'"');
        return shown;
    }
    if places.is_empty() {
        return RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 };
    }
    replace_spans(&search, &decoded.bytes, places)
}

fn find(
    search: &mut RedactionSearch<'_>,
    body: &[u8],
    places: &mut Vec<RedactionSpan>,
) -> Result<(), NestingTooDeep> {
    let start = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let text = body.get(start..).unwrap_or_default();
    let is_text =
        matches!(text.trim_ascii_start().first(), Some(b'"')) && serde_json::from_slice::<&str>(text).is_ok();
    if is_json_or_cut(text) || is_text {
        if is_streamed_array(text) {
            let mut rows = EventTextRows::default();
            rows.add(search, body, start..body.len(), places)?;
            rows.find(search, places);
            return Ok(());
        }
        let paths = &search.rules.paths;
        scan(text, paths, &mut |token| {
            search.token(text, token.what, token.range, token.hint, 0, places);
        })?;
        for place in places.iter_mut() {
            place.range = place.range.start + start..place.range.end + start;
        }
        return Ok(());
    }
    if stream::is_stream(body) {
        return stream::events(search, body, places);
    }
    if !matches!(text.trim_ascii_start().first(), Some(b'{' | b'[')) {
        search.flat(body, NameHint::NOTHING, places);
        return Ok(());
    }
    search.damaged_json(text, places)?;
    for place in places.iter_mut() {
        place.range = place.range.start + start..(place.range.end + start).min(body.len());
    }
    Ok(())
}

/// Whether the body is the array that Gemini streams, with a part of the answer in each element.
fn is_streamed_array(text: &[u8]) -> bool {
    let head = text.get(..text.len().min(512)).unwrap_or_default();
    text.trim_ascii_start().starts_with(b"[") && memchr::memmem::find(head, b"\"candidates\"").is_some()
}

/// Overlapping spans, which get one placeholder: that of their first kind.
struct MergedSpan {
    range: Range<usize>,
    /// The span that gives the placeholder.
    of: RedactionSpan,
}

/// Replaces the spans.
fn replace_spans<'a>(
    search: &RedactionSearch<'_>,
    body: &[u8],
    mut places: Vec<RedactionSpan>,
) -> RedactedBody<'a> {
    places.sort_by_key(|place| (place.range.start, place.kind));
    let mut merged: Vec<MergedSpan> = Vec::with_capacity(places.len());
    for next in places {
        let Some(last) = merged.last_mut().filter(|last| next.range.start < last.range.end) else {
            merged.push(MergedSpan { range: next.range.clone(), of: next });
            continue;
        };
        last.range.end = last.range.end.max(next.range.end);
        let (first, quoted) = (last.of.first | next.first, last.of.quoted | next.quoted);
        if next.kind < last.of.kind {
            last.of = next;
        }
        (last.of.first, last.of.quoted) = (first, quoted);
    }
    let mut bytes = Vec::with_capacity(body.len() + merged.len() * 8);
    let (mut from, mut replaced) = (0, 0);
    for MergedSpan { range, of } in merged {
        bytes.extend_from_slice(body.get(from..range.start).unwrap_or_default());
        if of.first {
            let value = || body.get(of.range.clone()).unwrap_or_default();
            let tag = of.tag.unwrap_or_else(|| search.tag_of(of.kind, value()));
            let quote = if of.quoted { "\"" } else { "" };
            bytes.extend_from_slice(quote.as_bytes());
            write_placeholder(search.rules.kind_name(of.kind), tag, &mut bytes);
            bytes.extend_from_slice(quote.as_bytes());
            replaced += 1;
        }
        from = range.end;
    }
    bytes.extend_from_slice(body.get(from..).unwrap_or_default());
    RedactedBody { bytes: Cow::Owned(bytes), replaced }
}

/// `[email:3f2a9c01d2e4]`: needs no escaping in JSON of any depth, or in text.
fn write_placeholder(name: &str, tag: PlaceholderTag, bytes: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.push(b'[');
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(b':');
    bytes.extend(tag.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)]));
    bytes.push(b']');
}

/// A placeholder for a whole body, with its type and size.
fn replace_whole<'a>(search: &RedactionSearch<'_>, name: &str, body: &[u8], of: &str) -> RedactedBody<'a> {
    let tag = encode(&search.tag(name, body));
    let text = format!("[{name}:{tag} {of}, {} bytes]", body.len());
    RedactedBody { bytes: Cow::Owned(text.into_bytes()), replaced: 1 }
}

fn sniff_encoding(body: &[u8]) -> Option<&'static str> {
    match body {
        [0x1f, 0x8b, 8, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        _ => None,
    }
}

/// Whether a body is not text: it holds zero bytes, or much invalid UTF-8.
fn is_binary(body: &[u8]) -> bool {
    if memchr::memchr(0, body).is_some() {
        return true;
    }
    if std::str::from_utf8(body).is_ok() {
        return false;
    }
    let invalid: usize = body.utf8_chunks().map(|chunk| chunk.invalid().len()).sum();
    invalid * 8 > body.len()
}

/// The media type of a binary body, by its first bytes.
fn media_type(body: &[u8]) -> &'static str {
    let known: [(&[u8], &str); 12] = [
        (b"\x89PNG", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"OggS", "audio/ogg"),
        (b"ID3", "audio/mpeg"),
        (b"fLaC", "audio/flac"),
        (b"\x1a\x45\xdf\xa3", "video/webm"),
        (b"SQLite format 3", "application/vnd.sqlite3"),
        (b"RIFF", "application/riff"),
        (b"\x7fELF", "application/x-elf"),
    ];
    let found = known.iter().find(|(head, _)| body.starts_with(head)).map(|(_, name)| *name);
    match (found, body.get(8..12)) {
        (Some("application/riff"), Some(b"WEBP")) => "image/webp",
        (Some("application/riff"), Some(b"WAVE")) => "audio/wav",
        (Some(name), _) => name,
        (None, _) if body.get(4..8) == Some(b"ftyp") => "video/mp4",
        (None, _) => "application/octet-stream",
    }
}
