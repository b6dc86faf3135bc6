//! Bytes as hexadecimal digits, two for each byte. Writing gives lower case.

use std::fmt;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Bytes that are displayed as lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub struct HexDisplay<'a>(pub &'a [u8]);

impl fmt::Display for HexDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| pair(*byte).iter().try_for_each(|digit| fmt::Write::write_char(f, *digit)))
    }
}

fn pair(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|digit| char::from(DIGITS[usize::from(digit)]))
}

/// The lower-case digits of some bytes.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    text.extend(bytes.iter().flat_map(|byte| pair(*byte)));
    text
}

/// The bytes that the digits stand for, in either case; `None` for an odd number of digits or another character.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// The `N` bytes that 2 `N` lower-case digits stand for; `None` for any other text, upper case included.
#[must_use]
pub fn decode_lower<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte| digit(byte).filter(|_| !byte.is_ascii_uppercase());
    // The length is compared first, so that a long text is not decoded in vain.
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = lower(*high)? << 4 | lower(*low)?;
    }
    Some(bytes)
}

/// The value of one digit, in either case.
#[must_use]
pub fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_round_trips() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = encode(&bytes);
        assert_eq!(HexDisplay(&bytes).to_string(), text);
        assert_eq!(text, bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        assert_eq!(decode(&text).as_deref(), Some(bytes.as_slice()));
        assert_eq!(decode(&text.to_uppercase()).as_deref(), Some(bytes.as_slice()));
        assert_eq!(decode_lower::<256>(&text).as_ref().map(<[u8; 256]>::as_slice), Some(bytes.as_slice()));
    }

    #[test]
    fn text_of_another_form_is_refused() {
        for wrong in ["0", "0g", "0x", " 0", "é", "00 ", "+1"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
        assert_eq!(decode(""), Some(Vec::new()));
        assert_eq!(decode_lower::<1>("ff"), Some([255]));
        for wrong in ["FF", "f", "fff", "ffff", ""] {
            assert_eq!(decode_lower::<1>(wrong), None, "{wrong}");
        }
    }
}
