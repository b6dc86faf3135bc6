//! E-mail addresses and IP addresses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::{before, is_alnum, is_escape};

/// Maximum length of a local part and a domain (RFC 5321, section 4.5.3.1).
const LOCAL_BYTES_MAX: usize = 64;
const DOMAIN_BYTES_MAX: usize = 255;

/// The e-mail address whose `@` is at `at`.
pub(super) fn email(text: &[u8], at: usize) -> Option<Range<usize>> {
    let mut start = at;
    while start > 0 && at - start < LOCAL_BYTES_MAX {
        match letter_before(text, start) {
            Some(len) => start -= len,
            None => break,
        }
    }
    if start > 0 && is_escape(text, start) {
        start += 1;
    }
    while start < at && matches!(text[start], b'.' | b'-' | b'\'' | b'%' | b'+') {
        start += 1;
    }
    if start == at || text.get(start..at) == Some(b"git") || before(text, at) == Some(b'.') {
        return None;
    }
    let domain_from = at + 1;
    let mut end = domain_from;
    while end < text.len() && end - domain_from < DOMAIN_BYTES_MAX {
        match text[end] {
            byte if is_alnum(byte) || matches!(byte, b'.' | b'-') => end += 1,
            0xc3..=0xd1 if text.get(end + 1).is_some_and(|byte| byte & 0xc0 == 0x80) => end += 2,
            _ => break,
        }
    }
    while end > domain_from && matches!(text[end - 1], b'.' | b'-') {
        end -= 1;
    }
    // Ends of labels where a top-level domain may end. Attached words (`a@b.com.Next`) are included:
    // redacting too much is safer.
    let domain = text.get(domain_from..end)?;
    let last = memchr::memrchr(b'.', domain)?;
    let top = domain.get(last + 1..)?;
    let is_top = top.len() >= 2 && top.iter().all(|byte| byte.is_ascii_alphabetic() || !byte.is_ascii());
    let is_picture = domain.get(1) == Some(&b'x') && domain[0].is_ascii_digit();
    let has_empty = last == 0 || domain.windows(2).any(|two| two == b"..");
    (is_top && !is_picture && !has_empty).then_some(start..end)
}

/// The length of a local part's character that ends at `at`.
fn letter_before(text: &[u8], at: usize) -> Option<usize> {
    let byte = before(text, at)?;
    if is_alnum(byte) || matches!(byte, b'.' | b'_' | b'+' | b'-' | b'%' | b'\'') {
        return Some(1);
    }
    // Letters of European alphabets; letters of other scripts often belong to the surrounding sentence.
    let is_letter = byte & 0xc0 == 0x80 && at >= 2 && (0xc3..=0xd1).contains(&text[at - 2]);
    is_letter.then_some(2)
}

/// Finds IPv4 addresses in a run.
pub(super) fn ip_v4(text: &[u8], run: Range<usize>, mut found: impl FnMut(Range<usize>)) {
    let is_part = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    for_each_candidate(text, run, is_part, |range| {
        let parsed = text.get(range.clone()).filter(|text| (7..=15).contains(&text.len()));
        let address = parsed.and_then(|text| std::str::from_utf8(text).ok()?.parse::<Ipv4Addr>().ok());
        if address.is_some_and(|address| !is_reserved(address)) && !is_version(text, range.start) {
            found(range);
        }
    });
}

/// Calls `each` with every stretch of `is_part` bytes in a run that touches no word, without dots at its end.
fn for_each_candidate(
    text: &[u8],
    run: Range<usize>,
    is_part: impl Fn(u8) -> bool,
    mut each: impl FnMut(Range<usize>),
) {
    let is_word = |byte: u8| is_alnum(byte) || byte == b'_';
    let mut at = run.start;
    while at < run.end {
        let start = at;
        while at < run.end && is_part(text[at]) {
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        let mut end = at;
        while end > start && text[end - 1] == b'.' {
            end -= 1;
        }
        if !before(text, start).is_some_and(is_word) && !text.get(at).copied().is_some_and(is_word) {
            each(start..end);
        }
    }
}

/// Loopback, unspecified, broadcast, or a mask.
fn is_reserved(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.octets()[0] == 255 || address.octets()[0] == 0
}

/// Whether the preceding word marks a version number.
fn is_version(text: &[u8], at: usize) -> bool {
    let head = text.get(at.saturating_sub(24)..at).unwrap_or_default();
    // Matches `Chrome/120.0.0.1`, but not `http://10.0.0.1`.
    if let [.., letter, b'/'] = head
        && is_alnum(*letter)
    {
        return true;
    }
    let words = head.trim_ascii_end();
    let words = words.strip_suffix(b":").or(words.strip_suffix(b"=")).unwrap_or(words);
    let words = words.strip_suffix(b"\"").unwrap_or(words);
    let ends = |word: &[u8]| {
        let from = words.len().checked_sub(word.len());
        from.and_then(|from| words.get(from..)).is_some_and(|end| end.eq_ignore_ascii_case(word))
    };
    [b"version".as_slice(), b"ver.", b"release", b"build", b" v"].into_iter().any(ends)
}

/// Finds IPv6 addresses in a run.
pub(super) fn ip_v6(text: &[u8], run: Range<usize>, mut found: impl FnMut(Range<usize>)) {
    let is_part = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    for_each_candidate(text, run, is_part, |range| {
        let piece = text.get(range.clone()).unwrap_or_default();
        if piece.len() > 45 || memchr::memchr_iter(b':', piece).take(2).count() < 2 {
            return;
        }
        // Times (`10:12:13`) and names of modules are not worth parsing.
        let first = memchr::memchr(b':', piece).unwrap_or(0);
        let is_likely = piece.iter().any(u8::is_ascii_digit) && (first >= 3 || piece.starts_with(b"::ffff:"));
        let parse = || std::str::from_utf8(piece).ok().and_then(|text| text.parse::<Ipv6Addr>().ok());
        if is_likely && parse().is_some() {
            found(range);
        }
    });
}
