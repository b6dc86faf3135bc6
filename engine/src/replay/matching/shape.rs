//! Shapes of values that change from run to run, found inside of strings.
//!
//! A string is read token by token; a token starts at a letter or digit that follows neither. Each attempt
//! reads a limited number of bytes, so the work is linear. A match is replaced by a placeholder that begins
//! with NUL. No model's text contains NUL, so a mask can hide only values of its shape.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Minimum number of hexadecimal digits of an id.
const HEX_ID_MIN: usize = 12;
/// Maximum number of bytes that are read of a token.
const TOKEN_MAX: usize = 128;

/// The shape of a value that changes from run to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// `3f2a5c1e-…`: 8, 4, 4, 4 and 12 hexadecimal digits (RFC 9562).
    Uuid,
    /// A date, a time of day, or both, in the format of RFC 3339.
    Time,
    /// Seconds, milli-, micro- or nanoseconds since 1970: 10, 13, 16 or 19 digits without a leading 0, with
    /// or without a fraction.
    UnixTime,
    /// At least 12 hexadecimal digits, with both letters and digits.
    HexId,
    /// `call_…`, `chatcmpl-…`: a word, then `_` or `-`, then at least 12 letters and digits, both present.
    PrefixedId,
    /// Any number.
    Number,
}

/// All shapes, from the most specific to the most general.
pub(super) const SHAPES: [Shape; 6] =
    [Shape::Uuid, Shape::Time, Shape::UnixTime, Shape::HexId, Shape::PrefixedId, Shape::Number];

impl Shape {
    /// The shape's name in a rule.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uuid => "uuid",
            Self::Time => "time",
            Self::UnixTime => "unix-time",
            Self::HexId => "hex-id",
            Self::PrefixedId => "prefixed-id",
            Self::Number => "number",
        }
    }

    /// The text that replaces a value of this shape.
    pub(super) fn placeholder(self) -> String {
        format!("\0{}\0", self.name())
    }

    /// The text with every value of this shape replaced; `None` if it has none.
    pub(super) fn mask(self, text: &str) -> Option<String> {
        let bytes = text.as_bytes();
        let mut masked = String::new();
        let (mut kept, mut at) = (0, 0);
        while at < bytes.len() {
            if !bytes[at].is_ascii_alphanumeric() {
                at += 1;
                continue;
            }
            match self.len_at(&bytes[at..]).filter(|len| ends_token(bytes.get(at + len))) {
                Some(len) => {
                    masked.push_str(&text[kept..at]);
                    masked.push_str(&self.placeholder());
                    at += len;
                    kept = at;
                }
                None => at += prefix_len(&bytes[at..], u8::is_ascii_alphanumeric),
            }
        }
        (kept > 0).then(|| masked + &text[kept..])
    }

    /// Length of the value of this shape at the start of `bytes`.
    fn len_at(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Uuid => pattern_len(bytes, "hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh"),
            Self::Time => time_len(bytes),
            Self::UnixTime => {
                let digits = prefix_len(bytes, u8::is_ascii_digit);
                let known = matches!(digits, 10 | 13 | 16 | 19) && bytes[0] != b'0';
                known.then(|| digits + fraction_len(&bytes[digits..]))
            }
            Self::HexId => {
                let len = prefix_len(bytes, |b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
                    .max(prefix_len(bytes, |b| matches!(b, b'0'..=b'9' | b'A'..=b'F')));
                (len >= HEX_ID_MIN && has_digit_and_letter(&bytes[..len])).then_some(len)
            }
            Self::PrefixedId => {
                let bytes = &bytes[..bytes.len().min(TOKEN_MAX)];
                let word = prefix_len(bytes, u8::is_ascii_alphabetic);
                let rest = bytes.get(word + 1..).filter(|_| matches!(bytes[word], b'_' | b'-'))?;
                let id = prefix_len(rest, |b| b.is_ascii_alphanumeric() || *b == b'_');
                (word > 1 && id >= HEX_ID_MIN && has_digit_and_letter(&rest[..id])).then_some(word + 1 + id)
            }
            Self::Number => {
                let digits = prefix_len(bytes, u8::is_ascii_digit);
                (digits > 0).then(|| digits + fraction_len(&bytes[digits..]))
            }
        }
    }
}

fn ends_token(next: Option<&u8>) -> bool {
    next.is_none_or(|byte| !byte.is_ascii_alphanumeric())
}

/// Number of leading bytes that satisfy `such`.
fn prefix_len(bytes: &[u8], such: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().position(|byte| !such(byte)).unwrap_or(bytes.len())
}

fn has_digit_and_letter(bytes: &[u8]) -> bool {
    bytes.iter().any(u8::is_ascii_digit) && bytes.iter().any(u8::is_ascii_alphabetic)
}

/// Length of a leading `.` with digits after it; else 0.
fn fraction_len(bytes: &[u8]) -> usize {
    let digits = bytes.get(1..).map_or(0, |rest| prefix_len(rest, u8::is_ascii_digit));
    if bytes.first() == Some(&b'.') && digits > 0 { 1 + digits } else { 0 }
}

/// The pattern's length if `bytes` starts with it: `d` matches a digit, `h` a hexadecimal digit, any other
/// byte itself.
fn pattern_len(bytes: &[u8], form: &str) -> Option<usize> {
    let fits = |(byte, like): (&u8, u8)| match like {
        b'd' => byte.is_ascii_digit(),
        b'h' => byte.is_ascii_hexdigit(),
        other => *byte == other,
    };
    (bytes.len() >= form.len() && bytes.iter().zip(form.bytes()).all(fits)).then_some(form.len())
}

fn two_digits(bytes: &[u8]) -> u8 {
    (bytes[0] - b'0') * 10 + (bytes[1] - b'0')
}

fn time_len(bytes: &[u8]) -> Option<usize> {
    let Some(date) = pattern_len(bytes, "dddd-dd-dd") else { return clock_len(bytes) };
    let real = (1..=12).contains(&two_digits(&bytes[5..])) && (1..=31).contains(&two_digits(&bytes[8..]));
    real.then_some(())?;
    let between = matches!(bytes.get(date), Some(b'T' | b't' | b' '));
    let time = bytes.get(date + 1..).filter(|_| between).and_then(clock_len);
    Some(time.map_or(date, |len| date + 1 + len))
}

/// Length of `hh:mm` with optional seconds, fraction and offset.
fn clock_len(bytes: &[u8]) -> Option<usize> {
    let mut len = pattern_len(bytes, "dd:dd")?;
    (two_digits(bytes) < 24 && two_digits(&bytes[3..]) < 60).then_some(())?;
    if let Some(seconds) = pattern_len(&bytes[len..], ":dd") {
        len += seconds;
        len += fraction_len(&bytes[len..]);
    }
    match bytes.get(len) {
        Some(b'Z' | b'z') => len += 1,
        Some(b'+' | b'-') => {
            let rest = &bytes[len + 1..];
            len += pattern_len(rest, "dd:dd")
                .or_else(|| pattern_len(rest, "dddd"))
                .map_or(0, |offset| 1 + offset);
        }
        _ => {}
    }
    Some(len)
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        SHAPES.into_iter().find(|shape| shape.name() == text).ok_or_else(|| {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name()).collect();
            Error::invalid(format!(
                "{text:?} is not a shape that can be masked; known shapes: {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masked(shape: Shape, text: &str) -> String {
        shape.mask(text).map_or("-".to_owned(), |text| text.replace('\0', "|"))
    }

    #[test]
    fn each_shape_is_found_where_it_stands_and_nowhere_else() {
        let cases = [
            (Shape::Uuid, "id_3f2a5c1e-0000-4abc-8def-0123456789ab.", "id_|uuid|."),
            (Shape::Uuid, "3f2a5c1e-0000-4abc-8def-0123456789abc", "-"),
            (Shape::Time, "Today is 2026-11-22.", "Today is |time|."),
            (Shape::Time, "at 2026-11-22T10:31:07.123456+01:00 and 09:15", "at |time| and |time|"),
            (Shape::Time, "2026-11-22 10:31 UTC", "|time| UTC"),
            (Shape::Time, "2026-13-22, 25:00, 2026-11-22x", "-"),
            (Shape::UnixTime, "t=1795343107.25;", "t=|unix-time|;"),
            (Shape::UnixTime, "1795343107000 17953431070", "|unix-time| 17953431070"),
            (Shape::HexId, "run 5f2b9c0d1e3a4b5c6d7e8f90 ok", "run |hex-id| ok"),
            (Shape::HexId, "deadbeefdeadbeef 123456789012345 5F2b9c0d1e3a4b", "-"),
            (Shape::PrefixedId, "call_AbC123dEf456gHi", "|prefixed-id|"),
            (Shape::PrefixedId, "well-known-identifiers call_short1", "-"),
            (Shape::Number, "3.14 of gpt4, 7é", "|number| of gpt4, |number|é"),
        ];
        for (shape, text, expected) in cases {
            assert_eq!(masked(shape, text), expected, "{shape} in {text}");
        }
    }

    proptest! {
        #[test]
        fn masking_any_text_is_stable(text in "[0-9a-f:\\-TZ .+_xé]{0,80}") {
            for shape in SHAPES {
                if let Some(once) = shape.mask(&text) {
                    prop_assert_eq!(shape.mask(&once), None, "{} in {}", shape, text);
                }
            }
        }
    }
}
