//! Values that a stream spells in pieces: a model that repeats a secret sends it a few characters an event, and no
//! search over the bytes finds it.
//!
//! Each line of a stream (`data: {...}`, or a bare `{...}`) is taken as JSON, and its texts are joined line by
//! line with those of the same path and the same `index` numbers: what a client would join. Searching those
//! rows finds the value, and each piece is cut from its own line. A second line end within one event's JSON
//! hides it; no provider writes so.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use super::secrets::{SecretSpan, Secrets};

/// The most rows that are joined; texts of further ones are searched only where they stand.
const ROWS_MAX: usize = 4096;
/// The most texts of one line that are joined with those of others.
const TEXTS_MAX: usize = 1 << 16;
/// How deep texts are looked for.
const DEPTH_MAX: usize = 64;

/// Pieces of JSON text that belong together.
#[derive(Debug, Default)]
struct SpelledRow {
    text: Vec<u8>,
    /// Where in `text` and where in the body each piece begins.
    starts: Vec<(usize, usize)>,
}

/// The places of values that are spelt over more than one line.
pub(super) fn find_spelled(secrets: &Secrets, body: &[u8]) -> Vec<SecretSpan> {
    let mut rows: HashMap<u64, SpelledRow> = HashMap::new();
    let mut texts = Vec::new();
    let mut from = 0;
    while from < body.len() {
        let rest = &body[from..];
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        // A body of one line has nothing to join.
        if end == body.len() {
            return Vec::new();
        }
        let json = rest[..end].strip_prefix(b"data:").unwrap_or(&rest[..end]);
        let json_at = from + end - json.len();
        texts.clear();
        let salt = scan(json, &mut texts);
        for (path, start, stop) in texts.drain(..) {
            let mut hasher = DefaultHasher::new();
            (path, salt).hash(&mut hasher);
            let key = hasher.finish();
            if rows.len() < ROWS_MAX || rows.contains_key(&key) {
                let row = rows.entry(key).or_default();
                row.starts.push((row.text.len(), json_at + start));
                row.text.extend_from_slice(&json[start..stop]);
            }
        }
        from += end + 1;
    }
    let mut places = Vec::new();
    for row in rows.values().filter(|row| row.starts.len() > 1) {
        for found in secrets.find(&row.text) {
            let mut piece = row.starts.partition_point(|(at, _)| *at <= found.start).saturating_sub(1);
            let mut first = true;
            while let Some((at, body_at)) = row.starts.get(piece).filter(|(at, _)| *at < found.end) {
                let end = row.starts.get(piece + 1).map_or(row.text.len(), |(next, _)| *next);
                let (start, stop) = (found.start.max(*at), found.end.min(end));
                if start < stop {
                    places.push(SecretSpan { range: body_at + start - at..body_at + stop - at, first });
                    first = false;
                }
                piece += 1;
            }
        }
    }
    places
}

/// Where a scan stands in an object or array.
struct EventScanLevel {
    object: bool,
    path: u64,
    /// The path of the value that comes; of the level itself where a key comes.
    value_path: u64,
    wants_key: bool,
    is_index: bool,
}

/// Collects the texts of one line of JSON as (path, start, end), and gives a hash of its `index` numbers. Stops
/// quietly where it is no JSON.
fn scan(json: &[u8], texts: &mut Vec<(u64, usize, usize)>) -> u64 {
    let mut levels: Vec<EventScanLevel> = Vec::new();
    let mut salt = DefaultHasher::new();
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => {
                if levels.len() == DEPTH_MAX || texts.len() == TEXTS_MAX {
                    break;
                }
                let path = levels.last().map_or(0, |level| level.value_path);
                let path = path.wrapping_mul(31).wrapping_add(u64::from(*byte));
                let object = *byte == b'{';
                levels.push(EventScanLevel {
                    object,
                    path,
                    value_path: path,
                    wants_key: object,
                    is_index: false,
                });
            }
            b'}' | b']' => {
                levels.pop();
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    level.wants_key = level.object;
                    level.is_index = false;
                }
            }
            b':' => {
                if let Some(level) = levels.last_mut() {
                    level.wants_key = false;
                }
            }
            b'"' => {
                let Some(len) = text_len(&json[at..]) else { break };
                let text = &json[at..at + len];
                if let Some(level) = levels.last_mut() {
                    if level.wants_key {
                        let mut hasher = DefaultHasher::new();
                        (level.path, text).hash(&mut hasher);
                        level.value_path = hasher.finish();
                        level.is_index = text.ends_with(b"index");
                    } else if texts.len() < TEXTS_MAX {
                        texts.push((level.value_path, at, at + len));
                    }
                }
                at += len + 1;
            }
            b'0'..=b'9' if levels.last().is_some_and(|level| level.is_index) => byte.hash(&mut salt),
            b' ' | b'\t' => {}
            _ if levels.is_empty() => break,
            _ => {}
        }
    }
    salt.finish()
}

/// The length of a text whose opening quote was read.
fn text_len(rest: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', rest.get(at..)?)?;
        if rest.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}
