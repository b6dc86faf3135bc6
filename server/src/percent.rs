//! Percent-encoding (RFC 3986, section 2.1), for names only: what is compared, never what is stored.

use std::borrow::Cow;

/// The text that `text` stands for. A `%` without two hex digits stays; bytes that are not UTF-8 become U+FFFD.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
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
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

fn digit(byte: Option<&u8>) -> Option<u8> {
    byte.and_then(|byte| char::from(*byte).to_digit(16)).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn decodes_what_is_whole_and_leaves_the_rest() {
        for (text, expected) in
            [("a%3Ab", "a:b"), ("%c3%A9", "é"), ("100%", "100%"), ("%zz%2", "%zz%2"), ("%ff", "\u{fffd}")]
        {
            assert_eq!(super::decode(text), expected);
        }
    }
}
