//! Undoes what hides a value from a search and not from a reader: percent-encoding, HTML's character
//! references, invisible characters, and full-width forms.
//!
//! Left out on purpose: letters of other scripts that look alike, and named references of letters.

use super::json::EscapeSpan;

/// Named references of characters that values consist of, or that stand around them.
const REFERENCES: [(&[u8], u8); 18] = [
    (b"amp;", b'&'),
    (b"quot;", b'"'),
    (b"apos;", b'\''),
    (b"lt;", b'<'),
    (b"gt;", b'>'),
    (b"nbsp;", b' '),
    (b"commat;", b'@'),
    (b"period;", b'.'),
    (b"colon;", b':'),
    (b"sol;", b'/'),
    (b"equals;", b'='),
    (b"plus;", b'+'),
    (b"lowbar;", b'_'),
    (b"hyphen;", b'-'),
    (b"dash;", b'-'),
    (b"num;", b'#'),
    (b"lpar;", b'('),
    (b"rpar;", b')'),
];

/// First bytes of disguises.
static MAY_BEGIN: [bool; 256] = {
    let mut may = [false; 256];
    may[b'%' as usize] = true;
    may[b'&' as usize] = true;
    may[0xc2] = true;
    may[0xe2] = true;
    may[0xe3] = true;
    may[0xef] = true;
    may
};

/// Undoes disguises, and records their positions. Returns whether there were any.
pub(super) fn decode_disguised(written: &[u8], read: &mut Vec<u8>, escapes: &mut Vec<EscapeSpan>) -> bool {
    // Most texts have none of these bytes, which is quick to see.
    if memchr::memchr3(b'%', b'&', 0xc2, written).is_none()
        && memchr::memchr3(0xe2, 0xe3, 0xef, written).is_none()
    {
        return false;
    }
    let mut from = 0;
    let next = |from: usize| {
        let rest = written.get(from..)?;
        rest.iter().position(|byte| MAY_BEGIN[usize::from(*byte)]).map(|at| from + at)
    };
    let mut search = 0;
    while let Some(at) = next(search) {
        let Some((len, byte)) = disguise(written.get(at..).unwrap_or_default()) else {
            search = at + 1;
            continue;
        };
        if escapes.is_empty() {
            read.reserve(written.len());
        }
        read.extend_from_slice(written.get(from..at).unwrap_or_default());
        let read_len = usize::from(byte.is_some());
        escapes.push(EscapeSpan { read_at: read.len(), read_len, written_at: at, written_len: len });
        read.extend(byte);
        from = at + len;
        search = from;
    }
    if escapes.is_empty() {
        return false;
    }
    read.extend_from_slice(written.get(from..).unwrap_or_default());
    true
}

/// The length of the disguise at the beginning of a text, and the character it stands for, if any.
fn disguise(text: &[u8]) -> Option<(usize, Option<u8>)> {
    match text {
        [b'%', high, low, ..] => {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            Some((3, Some(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?)))
        }
        [b'&', b'#', rest @ ..] => {
            let (radix, from) = match rest.first()? {
                b'x' | b'X' => (16, 1),
                _ => (10, 0),
            };
            let rest = rest.get(from..rest.len().min(from + 8))?;
            let len = rest.iter().take_while(|byte| char::from(**byte).is_digit(radix)).count();
            let code = u8::from_str_radix(std::str::from_utf8(rest.get(..len)?).ok()?, radix).ok()?;
            let end = usize::from(rest.get(len) == Some(&b';'));
            code.is_ascii().then_some((2 + from + len + end, Some(code)))
        }
        [b'&', rest @ ..] => {
            let (name, byte) = REFERENCES.iter().find(|(name, _)| rest.starts_with(name))?;
            Some((1 + name.len(), Some(*byte)))
        }
        // The soft hyphen; a no-break space.
        [0xc2, 0xad, ..] => Some((2, None)),
        [0xc2, 0xa0, ..] => Some((2, Some(b' '))),
        // Zero-width characters and marks of direction, the word joiner, the byte order mark.
        [0xe2, 0x80, 0x8b..=0x8f | 0xaa..=0xae, ..]
        | [0xe2, 0x81, 0xa0..=0xa4, ..]
        | [0xef, 0xbb, 0xbf, ..] => Some((3, None)),
        // Hyphens, and the ideographic space.
        [0xe2, 0x80, 0x90 | 0x91, ..] => Some((3, Some(b'-'))),
        [0xe3, 0x80, 0x80, ..] => Some((3, Some(b' '))),
        // Full-width forms of ASCII, U+FF01 to U+FF5E.
        [0xef, 0xbc, low @ 0x81..=0xbf, ..] => Some((3, Some(low - 0x60))),
        [0xef, 0xbd, low @ 0x80..=0x9e, ..] => Some((3, Some(low - 0x20))),
        _ => None,
    }
}
