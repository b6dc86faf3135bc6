//! Strict base64 (RFC 4648, section 4): standard alphabet, with padding. JSON carries bytes that are not
//! UTF-8 this way.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    text
}

/// Decodes base64; `None` if it is not strict (white space, missing padding, stray bits).
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len() - padding)?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut word = 0u32;
        for index in 0..4 {
            word = word << 6 | chunk.get(index).map_or(Some(0), |byte| value(*byte))?;
        }
        let [_, decoded @ ..] = word.to_be_bytes();
        let len = chunk.len().checked_sub(1)?;
        if decoded.iter().skip(len).any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend(decoded.iter().take(len));
    }
    Some(bytes)
}

fn value(byte: u8) -> Option<u32> {
    match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn the_vectors_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn every_byte_comes_back() {
        for len in 0..300usize {
            let bytes: Vec<u8> = (0..=255u8).cycle().step_by(7).take(len).collect();
            assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }
    }

    #[test]
    fn invalid_base64_is_refused() {
        for text in
            ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Zg==Zg==", "====", "Z===", "Zm 9v", "Zm9v\n", "Zm-_", "é==="]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
