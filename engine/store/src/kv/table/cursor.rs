//! Reads and writes the small parts of tables: bounded slices, LEB128 varints, zigzag.

/// Walks over a slice; every read is checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableByteCursor<'a> {
    rest: &'a [u8],
}

impl<'a> TableByteCursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A LEB128 number of at most 64 bits; `None` if it is cut short or too big.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// Appends a LEB128 number.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Maps a wrapped difference to a number that is small if the difference is small in either direction.
pub(super) fn zigzag(delta: u64) -> u64 {
    (delta << 1) ^ (delta >> 63).wrapping_neg()
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX, 1 << 63] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut cursor = TableByteCursor::new(&bytes);
            assert_eq!(cursor.varint(), Some(value));
            assert!(cursor.is_empty());
            assert_eq!(TableByteCursor::new(&bytes[..bytes.len() - 1]).varint(), None);
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!(zigzag(1u64.wrapping_neg()), 1);
        assert_eq!(zigzag(1), 2);
    }

    #[test]
    fn oversized_varints_are_refused() {
        assert_eq!(TableByteCursor::new(&[0xff; 11]).varint(), None);
        let mut ten = [0xff; 10];
        ten[9] = 2;
        assert_eq!(TableByteCursor::new(&ten).varint(), None);
    }
}
