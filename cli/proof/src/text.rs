//! Bytes as text: hexadecimal in JSON, base64 in keys.

use crate::error::ProofError;

/// Bytes from lower-case hexadecimal.
pub(crate) fn unhex(text: &str) -> Result<Vec<u8>, ProofError> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(ProofError::malformed("bytes are not written as lower-case hexadecimal digits")),
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return Err(ProofError::malformed("an odd number of hexadecimal digits"));
    }
    pairs.iter().map(|[high, low]| Ok(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Decodes `N` bytes from lower-case hexadecimal.
pub(crate) fn unhex_exact<const N: usize>(text: &str) -> Result<[u8; N], ProofError> {
    // The length is checked first, so that long input is not decoded.
    if text.len() != 2 * N {
        return Err(ProofError::malformed(format!(
            "{} hexadecimal digits where {} belong",
            text.len(),
            2 * N
        )));
    }
    unhex(text)?.try_into().map_err(|_| ProofError::malformed("not the right number of hexadecimal digits"))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Decodes base64 (RFC 4648, section 4), ignoring white space.
pub(crate) fn unbase64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut word, mut bits, mut padding) = (0u32, 0, 0);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        word = word << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    (padding <= 2 && bits < 6 && word == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_round_trips() {
        assert_eq!(unhex("00ff1a").unwrap(), [0, 255, 26]);
        assert_eq!(hex(&[0, 255, 26]), "00ff1a");
        for wrong in ["0", "0g", "FF", "0x", " 0", "é"] {
            assert!(unhex(wrong).is_err(), "{wrong}");
        }
        assert!(unhex_exact::<2>("000000").is_err() && unhex_exact::<2>("00").is_err());
    }

    #[test]
    fn rfc_4648_vectors_decode() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9v\nYmFy", "foobar")]
        {
            assert_eq!(unbase64(text).unwrap(), bytes.as_bytes());
        }
        for wrong in ["Z", "Zh==", "=Zg=", "Zg===", "Z-==", "Zm9="] {
            assert_eq!(unbase64(wrong), None, "{wrong}");
        }
    }
}
