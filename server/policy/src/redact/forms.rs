//! The forms in which a value may occur in a body: unchanged, escaped in JSON (also JSON within JSON, and
//! printed texts), percent-encoded, or in base64 at any of the three alignments.
//!
//! Left out on purpose: base64 with line breaks, hexadecimal, and escapes that no common encoder writes
//! (`\u0061` for `a`). In base64, the few bits at either end that share a character with their neighbours
//! stay.

use std::collections::BTreeSet;
use std::fmt::Write as _;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Characters besides letters and digits that percent-encoders keep: RFC 3986; JavaScript's
/// `encodeURIComponent` and `encodeURI`; Python's `quote`; forms.
const KEPT: [&str; 5] = ["-._~", "-._~!*'()", "-._~!*'();/?:@&=+$,#", "-._~/", "*-._"];

/// Each distinct form of `value`.
pub(super) fn forms(value: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([value.to_vec()]);
    if let Ok(text) = std::str::from_utf8(value) {
        for style in EscapeStyle::all() {
            let once = style.escape(text);
            forms.insert(style.escape(&once).into_bytes());
            // Texts as Python and others print them: quotes stay, also within JSON.
            forms.insert(once.replace("\\\"", "\"").into_bytes());
            forms.insert(once.replace('\\', "\\\\").into_bytes());
            forms.insert(once.into_bytes());
        }
    }
    for kept in KEPT {
        for upper in [true, false] {
            forms.insert(percent(value, kept.as_bytes(), upper, false));
        }
    }
    forms.insert(percent(value, KEPT[4].as_bytes(), true, true));
    for alphabet in [STANDARD, URL_SAFE] {
        for offset in 0..3 {
            let form = base64_inner(value, offset, alphabet);
            // Some JSON encoders escape the slash.
            let text = String::from_utf8_lossy(&form).replace('/', "\\/");
            forms.insert(text.into_bytes());
            forms.insert(form);
        }
    }
    forms
}

/// The characters that a JSON encoder escapes beyond the required ones (RFC 8259, section 7).
#[derive(Debug, Clone, Copy)]
struct EscapeStyle {
    ascii: bool,
    upper: bool,
    slash: bool,
    html: bool,
}

impl EscapeStyle {
    fn all() -> impl Iterator<Item = Self> {
        (0..16u8).map(|bits| Self {
            ascii: bits & 1 != 0,
            upper: bits & 2 != 0,
            slash: bits & 4 != 0,
            html: bits & 8 != 0,
        })
    }

    fn escape(self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '"' => escaped.push_str("\\\""),
                '\\' => escaped.push_str("\\\\"),
                '\n' => escaped.push_str("\\n"),
                '\r' => escaped.push_str("\\r"),
                '\t' => escaped.push_str("\\t"),
                '\u{8}' => escaped.push_str("\\b"),
                '\u{c}' => escaped.push_str("\\f"),
                '/' if self.slash => escaped.push_str("\\/"),
                '<' | '>' | '&' | '\'' if self.html => self.unit(character as u16, &mut escaped),
                '\0'..='\u{1f}' => self.unit(character as u16, &mut escaped),
                '\u{7f}'.. if self.ascii => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.unit(*unit, &mut escaped);
                    }
                }
                _ => escaped.push(character),
            }
        }
        escaped
    }

    fn unit(self, unit: u16, escaped: &mut String) {
        // Writing to a string does not fail.
        let _ = if self.upper { write!(escaped, "\\u{unit:04X}") } else { write!(escaped, "\\u{unit:04x}") };
    }
}

fn percent(value: &[u8], kept: &[u8], upper: bool, plus: bool) -> Vec<u8> {
    let mut encoded = String::with_capacity(value.len());
    for byte in value {
        let _ = match byte {
            b' ' if plus => write!(encoded, "+"),
            _ if byte.is_ascii_alphanumeric() || kept.contains(byte) => {
                write!(encoded, "{}", char::from(*byte))
            }
            _ if upper => write!(encoded, "%{byte:02X}"),
            _ => write!(encoded, "%{byte:02x}"),
        };
    }
    encoded.into_bytes()
}

/// The base64 characters (RFC 4648) that depend on `value` alone, if it begins `offset` bytes after a group.
fn base64_inner(value: &[u8], offset: usize, alphabet: &[u8; 64]) -> Vec<u8> {
    let mut bytes = vec![0; offset];
    bytes.extend_from_slice(value);
    let first = (offset * 8).div_ceil(6);
    let last = bytes.len() * 8 / 6;
    let character = |index: usize| {
        let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or(0));
        let bit = index * 6;
        let pair = byte(bit / 8) << 8 | byte(bit / 8 + 1);
        alphabet[usize::from(pair >> (10 - bit % 8) & 63)]
    };
    (first..last).map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::{STANDARD, base64_inner, forms};

    fn base64(bytes: &[u8]) -> String {
        let whole = String::from_utf8(base64_inner(bytes, 0, STANDARD)).unwrap();
        assert_eq!(whole.len(), bytes.len() * 8 / 6);
        whole
    }

    #[test]
    fn base64_forms_cover_each_alignment() {
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
        assert_eq!(base64(b"fooba"), "Zm9vYm");
        let secret = b"sk-ant-12345678";
        for before in 0..7 {
            for after in 0..4 {
                let whole = [vec![b'u'; before], secret.to_vec(), vec![b'v'; after]].concat();
                let encoded = base64(&whole);
                let inner = base64_inner(secret, before % 3, STANDARD);
                let found = memchr::memmem::find(encoded.as_bytes(), &inner).unwrap();
                assert!(inner.len() * 6 + 10 >= secret.len() * 8, "all but a few bits");
                assert_eq!(found, (before * 8).div_ceil(6));
            }
        }
    }

    #[test]
    fn forms_match_common_encoders() {
        let has = |value: &str, form: &str| {
            assert!(forms(value.as_bytes()).contains(form.as_bytes()), "{value} has no form {form}");
        };
        has("pa\"ss\\word\n", "pa\\\"ss\\\\word\\n");
        has("pa\"ssword", "pa\\\\\\\"ssword");
        has("pa\"ss\nword", "pa\"ss\\nword");
        has("pa\"ss\nword", "pa\\\\\"ss\\\\nword");
        has("paßwörter", "pa\\u00dfw\\u00f6rter");
        has("key\u{1f600}key", "key\\uD83D\\uDE00key");
        has("a/b/c/d/e", "a\\/b\\/c\\/d\\/e");
        has("a<b>c&d=efg", "a\\u003cb\\u003ec\\u0026d=efg");
        has("a b/c+d=e", "a%20b%2Fc%2Bd%3De");
        has("a b/c+d=e", "a%20b/c%2bd%3de");
        has("a b/c+d=e", "a+b%2Fc%2Bd%3De");
        assert_eq!(forms(b"plainvalue1").len(), 4, "the value, and base64 at three places");
    }
}
