//! Finds words that look random.
//!
//! A random word changes between capitals, small letters and digits at more than half of its positions;
//! names, paths and identifiers do so at a quarter. Together with the number of different characters, this
//! tells them apart without a table of languages. Hexadecimal words are usually digests, ids and revisions,
//! so they count only if a name marks them as secret.

use std::ops::Range;

use super::key::distinct;
use super::{before, class, is_alnum, is_escape};

/// Length limits of a secret, in characters; longer words are data.
const MIN: usize = 20;
const MAX: usize = 128;
/// The minimum length if a name marks the word as secret.
const NAMED_MIN: usize = 16;

/// Passes on the parts of a run that look random. `secret`: the text's name marks it as secret.
pub(super) fn tokens(text: &[u8], run: Range<usize>, secret: bool, mut found: impl FnMut(Range<usize>)) {
    let is_part = |byte: u8| is_alnum(byte) || matches!(byte, b'_' | b'-' | b'+' | b'/');
    let mut at = run.start;
    while at < run.end {
        let mut start = at;
        while at < run.end && is_part(text[at]) {
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        if is_escape(text, start) {
            start += 1;
        }
        let padding =
            text.get(at..run.end).unwrap_or_default().iter().take_while(|byte| **byte == b'=').count();
        let is_padded =
            padding > 0 && padding <= 2 && text.get(at + padding).is_none_or(|byte| !is_alnum(*byte));
        let end = if is_padded { at + padding } else { at };
        if !(NAMED_MIN..=MAX + 2).contains(&(at - start))
            || is_data(text, start)
            || is_line_of_block(text, start, end)
        {
            continue;
        }
        let named = secret || says_secret(text, start);
        let token = text.get(start..at).unwrap_or_default();
        if is_digest(token) {
            continue;
        }
        if is_random(token, named) {
            found(start..end);
        } else if token.contains(&b'/') {
            let mut from = start;
            for part in token.split(|byte| *byte == b'/') {
                if is_random(part, named) {
                    found(from..from + part.len());
                }
                from += part.len() + 1;
            }
        }
    }
}

fn is_random(token: &[u8], named: bool) -> bool {
    let least = if named { NAMED_MIN } else { MIN };
    if !(least..=MAX).contains(&token.len()) || !named && (is_prefixed(token) || is_camel_case(token)) {
        return false;
    }
    let (mut holds, mut changes, mut pairs, mut last) = (0, 0usize, 0usize, 0);
    let (mut separators, mut hex) = (0usize, 0usize);
    for byte in token {
        let of = class::OF[*byte as usize] & class::ALNUM;
        if of == 0 {
            separators += 1;
        } else if last != 0 {
            pairs += 1;
            changes += usize::from(of != last);
        }
        hex += usize::from(byte.is_ascii_hexdigit());
        holds |= of;
        last = of;
    }
    let different = distinct(token);
    if hex + separators == token.len() {
        return named && separators == 0 && holds & class::DIGIT != 0 && different >= 8;
    }
    if !named && holds & class::DIGIT == 0 {
        return false;
    }
    // In thousandths.
    let changing = changes * 1000 / pairs.max(1);
    let kinds = (holds & class::ALNUM).count_ones();
    let least_different = if token.len() >= 32 { 16 } else { 12 };
    match kinds {
        3 => changing >= 380 && different >= least_different && separators * 8 <= token.len(),
        2 if named => changing >= 250 && different >= 10,
        2 => token.len() >= 24 && separators == 0 && changing >= 300 && different >= 14,
        _ => false,
    }
}

/// Whether it is a labelled digest: `sha512-...`.
fn is_digest(token: &[u8]) -> bool {
    let Some(rest) = token.strip_prefix(b"sha") else { return false };
    let digits = rest.iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
    digits > 0 && rest.get(digits) == Some(&b'-')
}

/// Whether it is an id with a type prefix: `toolu_...`, `call_...`, `req-...`.
fn is_prefixed(token: &[u8]) -> bool {
    let len = token.iter().take_while(|byte| byte.is_ascii_lowercase()).count();
    (2..=12).contains(&len) && matches!(token.get(len), Some(b'_' | b'-'))
}

/// Whether it consists of words with a capital each: `CityRelaxTasteHandler6`.
fn is_camel_case(token: &[u8]) -> bool {
    let digits = token.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let words = token.get(..token.len() - digits).unwrap_or_default();
    let mut small = 3;
    let fits = words.iter().all(|byte| {
        let begins = byte.is_ascii_uppercase() && small >= 2;
        small = if begins { 0 } else { small + 1 };
        begins || byte.is_ascii_lowercase()
    });
    fits && small >= 2 && digits <= 3
}

/// Whether it is the data of a `data:` address.
fn is_data(text: &[u8], at: usize) -> bool {
    text.get(at.saturating_sub(8)..at).is_some_and(|head| head.ends_with(b"base64,"))
}

/// Whether it is a line of a base64 block: a certificate, an attachment.
fn is_line_of_block(text: &[u8], start: usize, end: usize) -> bool {
    const LINE: usize = 20;
    let is_base64 = |line: &[u8]| {
        line.len() >= LINE && line.iter().all(|byte| is_alnum(*byte) || matches!(byte, b'+' | b'/' | b'='))
    };
    let line_end =
        |rest: &[u8]| rest.iter().take(100).position(|byte| *byte == b'\n').unwrap_or(rest.len().min(100));
    if before(text, start) == Some(b'\n') {
        let head = text.get(start.saturating_sub(101)..start - 1).unwrap_or_default();
        let line = memchr::memrchr(b'\n', head).map_or(head, |at| head.get(at + 1..).unwrap_or_default());
        if is_base64(line) || line.ends_with(b"-----") {
            return true;
        }
    }
    if text.get(end) == Some(&b'\n') {
        let rest = text.get(end + 1..).unwrap_or_default();
        let line = rest.get(..line_end(rest)).unwrap_or_default();
        return (before(text, start).is_none_or(|byte| byte == b'\n'))
            && (is_base64(line) || line.starts_with(b"-----"));
    }
    false
}

/// Whether the name before a value marks it as secret: `DB_PASSWORD=`, `"client_secret": "`.
fn says_secret(text: &[u8], at: usize) -> bool {
    let head = text.get(at.saturating_sub(48)..at).unwrap_or_default();
    let gap = head.iter().rev().take_while(|byte| b"\"'` :=>\\(,".contains(byte)).count();
    let head = head.get(..head.len() - gap).unwrap_or_default();
    if gap == 0 || gap > 6 {
        return false;
    }
    let is_name = |byte: &u8| is_alnum(*byte) || matches!(byte, b'_' | b'-' | b'.');
    let len = head.iter().rev().take_while(|byte| is_name(byte)).count();
    holds_secret_word(head.get(head.len() - len..).unwrap_or_default())
}

/// Whether a name holds a word that says that its value is secret.
fn holds_secret_word(name: &[u8]) -> bool {
    let at_end = |rest: &[u8]| {
        let words: &[&[u8]] = match rest.first().map(u8::to_ascii_lowercase) {
            Some(b's') => &[b"secret"],
            Some(b't') => &[b"token"],
            Some(b'p') => &[b"passw", b"pwd"],
            Some(b'a') => &[b"apikey", b"api_key", b"api-key", b"auth"],
            Some(b'c') => &[b"credential"],
            Some(b'_') => &[b"_key"],
            _ => return false,
        };
        words.iter().any(|word| rest.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word)))
    };
    (0..name.len()).any(|at| name.get(at..).is_some_and(at_end))
}
