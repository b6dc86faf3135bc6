//! A column of a block: many numbers in few bytes, each readable by itself.
//!
//! Number i is `base + slope * i + bits i`, modulo 2^64: a line, and the distance of each number above it in
//! equal bits (frame of reference along a line; Goldstein, Ramakrishnan, Shaft 1998). Constants and even
//! steps cost no bits. Uneven steps cost the bits of their unevenness, and random numbers their own bits.
//!
//! Left out: codings that must be read from their start, and zstd. They save a tenth, but a lookup must
//! decode a whole block.

use super::cursor::{TableByteCursor, put_varint, unzigzag, zigzag};
use super::error::DamageReason;

/// Where a column's numbers are in a block's body.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedColumn {
    base: u64,
    slope: u64,
    width: u32,
    /// First byte of the bits.
    at: usize,
}

const LENGTH: DamageReason = "a column is cut short";

impl PackedColumn {
    /// Reads a column's head and skips its bits. `cursor` walks over `body`.
    pub(super) fn read(
        body: &[u8],
        cursor: &mut TableByteCursor<'_>,
        count: usize,
    ) -> Result<Self, DamageReason> {
        let base = unzigzag(cursor.varint().ok_or(LENGTH)?);
        let slope = unzigzag(cursor.varint().ok_or(LENGTH)?);
        let width = u32::from(cursor.u8().ok_or(LENGTH)?);
        if width > u64::BITS {
            return Err("a column's numbers are wider than 64 bits");
        }
        let at = body.len() - cursor.rest().len();
        // At most 4,096 numbers of 64 bits.
        cursor.take((count * width as usize).div_ceil(8)).ok_or(LENGTH)?;
        Ok(Self { base, slope, width, at })
    }

    /// Number `i`, which is less than the count the column was read with.
    pub(super) fn get(&self, body: &[u8], i: usize) -> u64 {
        self.base.wrapping_add(self.slope.wrapping_mul(i as u64)).wrapping_add(self.bits(body, i))
    }

    fn bits(&self, body: &[u8], i: usize) -> u64 {
        if self.width == 0 {
            return 0;
        }
        let bit = i * self.width as usize;
        #[expect(clippy::cast_possible_truncation, reason = "a remainder of 8")]
        let (at, shift) = (self.at + bit / 8, (bit % 8) as u32);
        let mask = u64::MAX >> (u64::BITS - self.width);
        let rest = body.get(at..).unwrap_or(&[]);
        let Some((first, after)) = rest.split_first_chunk::<8>() else {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            return (u64::from_le_bytes(last) >> shift) & mask;
        };
        let low = u64::from_le_bytes(*first) >> shift;
        let high = match after.first() {
            Some(byte) if shift + self.width > u64::BITS => u64::from(*byte) << (u64::BITS - shift),
            _ => 0,
        };
        (low | high) & mask
    }
}

/// Appends a column of numbers. Without numbers it is only a head.
pub(super) fn put_numbers(numbers: &[u64], out: &mut Vec<u8>) {
    let level = LinearFit::new(numbers, 0);
    let slope = match numbers {
        [first, .., last] => (i128::from(*last) - i128::from(*first)) / (numbers.len() as i128 - 1),
        _ => 0,
    };
    let line = match slope {
        0 => level,
        slope => {
            let sloping = LinearFit::new(numbers, slope);
            if sloping.width < level.width { sloping } else { level }
        }
    };
    line.put(numbers, out);
}

/// The least and the greatest distance of a number above the line through 0 with this slope.
fn extremes(numbers: &[u64], slope: i128) -> (i128, i128) {
    // Most numbers are small. Half as many bits are several times as fast.
    if let (true, Ok(slope)) =
        (numbers.iter().fold(0, |all, number| all | number) < 1 << 61, i64::try_from(slope))
    {
        let (mut least, mut greatest, mut along) = (i64::MAX, i64::MIN, 0i64);
        for number in numbers {
            let above = number.cast_signed() - along;
            (least, greatest) = (least.min(above), greatest.max(above));
            // The slope is that between the first and the last number, so the line stays among such numbers.
            along = along.wrapping_add(slope);
        }
        return (least.into(), greatest.into());
    }
    let (mut least, mut greatest, mut along) = (i128::MAX, i128::MIN, 0);
    for number in numbers {
        let above = i128::from(*number) - along;
        (least, greatest) = (least.min(above), greatest.max(above));
        along += slope;
    }
    (least, greatest)
}

#[derive(Clone, Copy)]
struct LinearFit {
    base: i128,
    slope: i128,
    width: u32,
}

impl LinearFit {
    fn new(numbers: &[u64], slope: i128) -> Self {
        let (least, greatest) = extremes(numbers, slope);
        let range = if numbers.is_empty() { 0 } else { greatest - least };
        let base = if numbers.is_empty() { 0 } else { least };
        Self { base, slope, width: i128::BITS - range.leading_zeros() }
    }

    fn put(&self, numbers: &[u64], out: &mut Vec<u8>) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "modulo 2^64: the numbers are less than that for any base and slope"
        )]
        let (base, slope) = (self.base as u64, self.slope as u64);
        put_varint(out, zigzag(base));
        put_varint(out, zigzag(slope));
        #[expect(clippy::cast_possible_truncation, reason = "a number of bits")]
        let width = self.width as u8;
        out.push(width);
        let (mut waiting, mut bits, mut along) = (0u128, 0u32, base);
        for number in numbers {
            waiting |= u128::from(number.wrapping_sub(along)) << bits;
            along = along.wrapping_add(slope);
            bits += self.width;
            if bits >= u64::BITS {
                out.extend_from_slice(&waiting.to_le_bytes()[..8]);
                waiting >>= u64::BITS;
                bits -= u64::BITS;
            }
        }
        out.extend_from_slice(&waiting.to_le_bytes()[..bits.div_ceil(8) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(numbers: &[u64]) -> usize {
        let mut body = vec![9; 3];
        put_numbers(numbers, &mut body);
        let len = body.len() - 3;
        for after in [0, 1, 20] {
            let body = [&body[..], &vec![0xff; after]].concat();
            let mut cursor = TableByteCursor::new(&body[3..]);
            let column = PackedColumn::read(&body, &mut cursor, numbers.len()).unwrap();
            assert_eq!(cursor.rest().len(), after);
            for (i, number) in numbers.iter().enumerate() {
                assert_eq!(column.get(&body, i), *number, "{i} of {numbers:?}");
            }
            let cut = &body[..body.len() - after - 1];
            assert!(PackedColumn::read(cut, &mut TableByteCursor::new(&cut[3..]), numbers.len()).is_err());
        }
        len
    }

    #[test]
    fn column_numbers_round_trip() {
        assert_eq!(check(&[5; 100]), 3);
        assert_eq!(check(&(7..107).collect::<Vec<_>>()), 3);
        assert_eq!(check(&(0..100).rev().map(|n| n * 3).collect::<Vec<_>>()), 4);
        assert_eq!(check(&[0]), 3);
        check(&[u64::MAX, 0, 1 << 63, 7]);
        check(&[0, u64::MAX]);
        check(&[u64::MAX, 0]);
        for width in 1..=64 {
            let random = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) >> (64 - width);
            check(&(1..80).map(random).collect::<Vec<_>>());
            check(&(1..80).map(|n| random(n) | 1 << (width - 1)).collect::<Vec<_>>());
        }
    }
}
