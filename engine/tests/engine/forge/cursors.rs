//! Cursors over bytes.

use super::ForgedReference;

pub(super) struct ByteCursor<'a>(pub(super) &'a [u8]);

impl<'a> ByteCursor<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
    pub(super) fn u8(&mut self) -> u8 {
        self.bytes(1)[0]
    }
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes(2).try_into().unwrap())
    }
    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }
    pub(super) fn varint(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.u8();
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte < 128 {
                return value;
            }
        }
    }
}

/// A cursor like [`ByteCursor`] for heads that an edit may have broken: it returns `None` instead of
/// panicking.
pub(super) struct CheckedByteCursor<'a>(pub(super) &'a [u8]);

impl<'a> CheckedByteCursor<'a> {
    pub(super) fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 127).checked_shl(shift)?;
            shift += 7;
            if byte < 128 {
                return Some(value);
            }
        }
    }

    /// Reads a reference; also returns how many of its bytes count as recipe.
    pub(super) fn reference(&mut self) -> Option<(ForgedReference, u64)> {
        let first = self.varint()?;
        let found = match first & 3 {
            0 => ForgedReference::Inline(self.take(first >> 2)?.to_vec()),
            1 => ForgedReference::Blob(first >> 2, self.take(32)?.try_into().ok()?),
            2 => ForgedReference::Same(first >> 2),
            _ => ForgedReference::Front(first >> 2, self.take(8)?.try_into().ok()?),
        };
        let bytes = found.recipe_bytes();
        Some((found, bytes))
    }
}
