//! Percent-decoding (RFC 3986, section 2.1), for names that are compared, never for stored bytes.

use std::borrow::Cow;

/// Decodes a text. A `%` without two hex digits stays; bytes that are not UTF-8 become U+FFFD.
pub fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(String::from_utf8_lossy(&bytes_of(text)).into_owned())
}

/// Decodes a text; `None` if the result is not UTF-8, or a `%` lacks two hex digits.
pub fn decode_exactly(text: &str) -> Option<String> {
    let is_whole = |part: &str| part.bytes().take(2).filter(|byte| digit(Some(byte)).is_some()).count() == 2;
    if !text.split('%').skip(1).all(is_whole) {
        return None;
    }
    String::from_utf8(bytes_of(text)).ok()
}

fn bytes_of(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

fn digit(byte: Option<&u8>) -> Option<u8> {
    byte.and_then(|byte| char::from(*byte).to_digit(16)).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn decode_leaves_invalid_escapes_unchanged() {
        for (text, expected) in
            [("a%3Ab", "a:b"), ("%c3%A9", "é"), ("100%", "100%"), ("%zz%2", "%zz%2"), ("%ff", "\u{fffd}")]
        {
            assert_eq!(super::decode(text), expected);
        }
    }

    #[test]
    fn decode_exactly_refuses_invalid_escapes() {
        for (text, expected) in
            [("a%3Ab%25", Some("a:b%")), ("%c3%A9", Some("é")), ("é", Some("é")), ("", Some(""))]
        {
            assert_eq!(super::decode_exactly(text).as_deref(), expected);
        }
        for text in ["100%", "%zz", "%2", "%ff", "%%32", "%é"] {
            assert_eq!(super::decode_exactly(text), None, "{text}");
        }
    }
}
