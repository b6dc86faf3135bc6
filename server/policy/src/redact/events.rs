//! Finds values that a stream spells in pieces: a model that repeats a secret sends a few characters per
//! event, which no search over the bytes finds.
//!
//! Each line of a stream (`data: {...}`, or a bare `{...}`) is parsed as JSON. Its texts are appended to
//! those with the same path and the same `index` numbers, as a client would join them. The joined rows are
//! searched, and each piece is removed from its own line. A second line end within one event's JSON would
//! hide a value; no provider writes that.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use super::secrets::{SecretSpan, Secrets};

/// Maximum number of joined rows; further texts are searched individually.
const ROWS_MAX: usize = 4096;
/// Maximum number of texts of one line that are joined with others.
const TEXTS_MAX: usize = 1 << 16;
/// Maximum depth of texts.
const DEPTH_MAX: usize = 64;

/// Joined pieces of JSON text.
#[derive(Debug, Default)]
struct SpelledRow {
    text: Vec<u8>,
    /// Where each piece begins, in `text` and in the body.
    starts: Vec<(usize, usize)>,
}

/// The positions of values spelled over more than one line.
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

/// The state of a scan within an object or array.
struct EventScanLevel {
    object: bool,
    path: u64,
    /// The path of the next value; the level's own path before a key.
    value_path: u64,
    wants_key: bool,
    is_index: bool,
}

/// Collects the texts of one line of JSON as (path, start, end), and returns a hash of its `index` numbers.
/// Stops silently at invalid JSON.
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

/// The length of a text after its opening quote.
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
