//! Numbers of one to ten bytes, seven bits each, least first (LEB128); signed ones folded (zigzag).

use super::BlobError;

/// Appends `value`.
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

/// Folds a signed number so that small ones of either sign stay short.
pub(super) fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`fold`].
pub(super) fn unfold(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Reads numbers from front to back.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next number; a cut, overlong or too large one is an error.
    pub(super) fn take(&mut self) -> Result<u64, BlobError> {
        let wrong = BlobError::RecipeNumber { at: self.at };
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else { return Err(wrong) };
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(wrong);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(wrong)
    }

    /// The next signed number.
    pub(super) fn take_signed(&mut self) -> Result<i64, BlobError> {
        self.take().map(unfold)
    }
}
