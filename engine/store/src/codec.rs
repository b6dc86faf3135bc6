//! Wire forms: the only module that uses bincode, and the varints of the compact forms.
//!
//! Fixed-layout headers are bincode 1.x with fixed-width little-endian integers, `u64` lengths and `u32` enum
//! tags. docs/format.md specifies that form, so the crate can be replaced without changing a byte; tests
//! check it against a second implementation. Decoding has a limit and refuses trailing bytes. Varints are
//! unsigned LEB128 of at most ten bytes, in their shortest form; signed values are zigzag-coded first.

use bincode::Options;
use serde::{Serialize, de::DeserializeOwned};

/// Maximum size of a header that is decoded, in bytes.
pub const HEADER_BYTES_MAX: u64 = 16 << 20;

/// Bytes that do not follow the format.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum CodecError {
    #[error("a {what} ends after {found} bytes, but {needed} are needed")]
    Short { what: &'static str, found: usize, needed: usize },
    #[error("a number is longer than ten bytes or not in its shortest form")]
    Varint,
    #[error("{what} is {found}, over its limit of {limit}")]
    Limit { what: &'static str, found: u64, limit: u64 },
    #[error("{0}")]
    Header(String),
    #[error("{count} bytes follow a whole {what}")]
    Trailing { what: &'static str, count: usize },
    #[error("{what} has the unknown value {found}")]
    Unknown { what: &'static str, found: u64 },
    /// A format after the newest one that this program knows.
    #[error("{what} format {found} is newer than {known}, the newest known one")]
    Newer { what: &'static str, found: u64, known: u64 },
    #[error("text is not UTF-8")]
    Utf8,
}

fn options() -> impl Options {
    bincode::DefaultOptions::new()
        .with_fixint_encoding()
        .with_little_endian()
        .reject_trailing_bytes()
        .with_limit(HEADER_BYTES_MAX)
}

/// The bincode form of a header.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    options().serialize(value).map_err(|e| CodecError::Header(format!("a header does not encode: {e}")))
}

/// A header from exactly these bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    // bincode's own limit does not apply to slices. A decoded header is never larger than its bytes.
    if bytes.len() as u64 > HEADER_BYTES_MAX {
        return Err(CodecError::Limit { what: "header", found: bytes.len() as u64, limit: HEADER_BYTES_MAX });
    }
    options().deserialize(bytes).map_err(|e| CodecError::Header(format!("a header does not decode: {e}")))
}

/// Appends an unsigned varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// Appends a signed varint.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// An offset or a length as an index of bytes in memory. One that this machine cannot address becomes an index
/// past all bytes.
#[inline]
pub fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Takes values from the front of a slice, checking every length.
#[derive(Debug, Clone)]
pub struct ByteReader<'a> {
    bytes: &'a [u8],
    what: &'static str,
    taken: usize,
}

impl<'a> ByteReader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what, taken: 0 }
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        match self.bytes.split_at_checked(count) {
            Some((head, rest)) => {
                self.bytes = rest;
                self.taken += count;
                Ok(head)
            }
            None => Err(CodecError::Short {
                what: self.what,
                found: self.taken + self.bytes.len(),
                needed: self.taken.saturating_add(count),
            }),
        }
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let bytes = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    #[inline]
    pub fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64, CodecError> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(CodecError::Varint);
            }
            value |= bits << shift;
            if byte < 0x80 {
                if byte == 0 && shift > 0 {
                    return Err(CodecError::Varint);
                }
                return Ok(value);
            }
        }
        Err(CodecError::Varint)
    }

    /// A varint that fits 32 bits.
    pub fn varint32(&mut self) -> Result<u32, CodecError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| CodecError::Limit {
            what: self.what,
            found: value,
            limit: u64::from(u32::MAX),
        })
    }

    pub fn signed(&mut self) -> Result<i64, CodecError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A length and that many bytes.
    #[inline]
    pub fn bytes(&mut self, limit: usize) -> Result<&'a [u8], CodecError> {
        let len = self.varint()?;
        if len > limit as u64 {
            return Err(CodecError::Limit { what: self.what, found: len, limit: limit as u64 });
        }
        self.take(index(len))
    }

    pub fn text(&mut self, limit: usize) -> Result<&'a str, CodecError> {
        std::str::from_utf8(self.bytes(limit)?).map_err(|_| CodecError::Utf8)
    }

    /// Bytes taken so far.
    pub fn position(&self) -> usize {
        self.taken
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub fn take_rest(&mut self) -> &'a [u8] {
        let rest = self.bytes;
        self.taken += rest.len();
        self.bytes = &[];
        rest
    }

    /// Refuses leftover bytes.
    pub fn finish(self) -> Result<(), CodecError> {
        match self.bytes.len() {
            0 => Ok(()),
            count => Err(CodecError::Trailing { what: self.what, count }),
        }
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
