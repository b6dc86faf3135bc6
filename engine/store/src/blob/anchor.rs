//! Anchors: positions in raw bytes that are found again by content.
//!
//! A gear hash (Xia et al., *Ddelta*, 2014; the rolling hash of FastCDC, 2016) rolls over the bytes. Where
//! its selecting bits are zero, the window of [`ANCHOR_WINDOW_BYTES`] that ends there is an anchor. Selection
//! reads only bit 31 and below, and bit n of a gear hash depends on the last n + 1 bytes. So selection
//! depends on the window alone: the same text gets the same anchors wherever it stands. Anchors are not chunk
//! borders: no piece of a region fails to match because of its neighbours.
//!
//! Invariant: the anchors of a part depend only on its raw bytes and the seed, not on how many scans found
//! them ([`AnchorScanner`]).

use super::{AnchorKey, AnchorSeed};

/// Bytes in an anchor's window: the shortest repeat that can be found.
pub const ANCHOR_WINDOW_BYTES: usize = 32;

/// Average distance of anchors in varied text, in bytes.
pub(crate) const ANCHOR_SPACING_BYTES: usize = 1 << SELECT_BITS;

const SELECT_BITS: u32 = 8;
/// A hash below this value has its top bits zero. These bits depend on most of the window.
const SELECT_BELOW: u32 = 1 << (32 - SELECT_BITS);
/// Minimum distance of two anchors, so that a run of one byte does not anchor every position.
const GAP_BYTES_MIN: usize = 16;
/// Bytes of a stretch that is hashed beside others: one bit each of a mask.
const STRETCH_BYTES: usize = 128;
/// Stretches that are hashed side by side. Each hash waits for the one before it, so one stretch alone leaves
/// the processor idle most of the time.
const STRETCHES: usize = 4;
/// A hash depends on this many bytes before its own.
const HISTORY_BYTES: usize = 31;

/// The low half of one 64-bit number for each byte value, from SplitMix64 (Steele et al., 2014) on the ASCII of "annals01".
static GEAR: [u32; 256] = gear_table(0x616e_6e61_6c73_3031);

const fn gear_table(seed: u64) -> [u32; 256] {
    let mut table = [0; 256];
    let mut state = seed;
    let mut i = 0;
    while i < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let low = scramble(state) as u32;
        table[i] = low;
        i += 1;
    }
    table
}

/// The finisher of SplitMix64.
const fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a window. Not a strong hash: each hit is verified by comparing bytes.
pub(super) fn key_of(window: &[u8], seed: AnchorSeed) -> AnchorKey {
    let mut hash = scramble(seed.0 ^ 0x616e_6368_6f72_0000);
    for word in window.chunks(8) {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
        hash = scramble(hash ^ u64::from_le_bytes(bytes));
    }
    AnchorKey(hash >> 16)
}

/// The hash after one more byte.
fn roll(hash: u32, byte: u8) -> u32 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// Rolls over a region that arrives in slices and finds the ends of anchor windows.
#[derive(Clone, Debug, Default)]
pub(super) struct AnchorScanner {
    hash: u32,
    seen: usize,
    /// One past the last selected window, counted in bytes seen.
    last: usize,
}

impl AnchorScanner {
    /// Takes the region's next bytes; `found` gets the start of each selected window, counted from the region's start.
    pub(super) fn scan(&mut self, bytes: &[u8], mut found: impl FnMut(usize)) {
        let seen = self.seen;
        self.hash = selections(self.hash, bytes, |end| self.select(seen + end, &mut found));
        self.seen += bytes.len();
    }

    /// As [`AnchorScanner::scan`]. `known` are the ends of the selected windows within `bytes`, counted from their start.
    pub(super) fn scan_known(
        &mut self,
        bytes: &[u8],
        known: impl Iterator<Item = usize>,
        mut found: impl FnMut(usize),
    ) {
        // Windows that begin in earlier bytes.
        let (head, rest) = bytes.split_at(bytes.len().min(HISTORY_BYTES));
        let seen = self.seen;
        self.scan(head, &mut found);
        if rest.is_empty() {
            return;
        }
        known.for_each(|end| self.select(seen + end, &mut found));
        let last = bytes.len().saturating_sub(ANCHOR_WINDOW_BYTES);
        self.hash = bytes[last..].iter().fold(0, |hash, byte| roll(hash, *byte));
        self.seen += rest.len();
    }

    /// A hash selects the window that ends at `end`.
    fn select(&mut self, end: usize, found: &mut impl FnMut(usize)) {
        if end >= ANCHOR_WINDOW_BYTES && end >= self.last + GAP_BYTES_MIN {
            self.last = end;
            found(end - ANCHOR_WINDOW_BYTES);
        }
    }
}

/// Calls `each` with every end at which a hash selects, counted from the start of `bytes`. `hash` is the hash of the
/// bytes before; returns the hash at the end.
pub(super) fn selections(mut hash: u32, bytes: &[u8], mut each: impl FnMut(usize)) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<{ STRETCHES * STRETCH_BYTES }>();
    for (index, block) in blocks.iter().enumerate() {
        hash = block_selections(hash, block, index * block.len(), &mut each);
    }
    let scanned = bytes.len() - rest.len();
    for (index, byte) in rest.iter().enumerate() {
        hash = roll(hash, *byte);
        if hash < SELECT_BELOW {
            each(scanned + index + 1);
        }
    }
    hash
}

/// As [`selections`], of [`STRETCHES`] side by side. Each begins with the hash of the bytes before it. `offset` is
/// added to the ends.
fn block_selections(
    hash: u32,
    block: &[u8; STRETCHES * STRETCH_BYTES],
    offset: usize,
    each: &mut impl FnMut(usize),
) -> u32 {
    let (stretches, _) = block.as_chunks::<STRETCH_BYTES>();
    let mut hashes = [hash; STRETCHES];
    for (hash, before) in hashes.iter_mut().skip(1).zip(stretches) {
        *hash = before[STRETCH_BYTES - HISTORY_BYTES..].iter().fold(0, |hash, byte| roll(hash, *byte));
    }
    let mut selected = [0u128; STRETCHES];
    for start in (0..STRETCH_BYTES).step_by(8) {
        for ((stretch, hash), selected) in stretches.iter().zip(&mut hashes).zip(&mut selected) {
            let mut rolled = [0; 8];
            for (to, byte) in rolled.iter_mut().zip(&stretch[start..start + 8]) {
                *hash = roll(*hash, *byte);
                *to = *hash;
            }
            // Few hashes select: one comparison looks at eight.
            if rolled.iter().fold(u32::MAX, |least, hash| least.min(*hash)) < SELECT_BELOW {
                let bits =
                    rolled.iter().rev().fold(0, |bits, hash| bits << 1 | u128::from(*hash < SELECT_BELOW));
                *selected |= bits << start;
            }
        }
    }
    for (index, mut bits) in selected.into_iter().enumerate() {
        while bits != 0 {
            each(offset + index * STRETCH_BYTES + bits.trailing_zeros() as usize + 1);
            bits &= bits - 1;
        }
    }
    hashes[STRETCHES - 1]
}

/// The anchors of a part's raw bytes: key and start of each window, counted from the part's start.
///
/// Writing a part finds the same anchors (`PackedExtents::anchors`).
#[must_use]
pub fn anchors_of(part_raw: &[u8], seed: AnchorSeed) -> Vec<(AnchorKey, usize)> {
    let mut out = Vec::with_capacity(part_raw.len() / ANCHOR_SPACING_BYTES + 1);
    AnchorScanner::default().scan(part_raw, |start| {
        if let Some(window) = part_raw.get(start..start + ANCHOR_WINDOW_BYTES) {
            out.push((key_of(window, seed), start));
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: byte by byte.
    fn plain_scan(bytes: &[u8]) -> Vec<usize> {
        let (mut hash, mut last, mut found) = (0u32, 0, Vec::new());
        for (index, &byte) in bytes.iter().enumerate() {
            hash = (hash << 1).wrapping_add(GEAR[byte as usize]);
            let at = index + 1;
            if hash < SELECT_BELOW && at >= ANCHOR_WINDOW_BYTES && at >= last + GAP_BYTES_MIN {
                last = at;
                found.push(at - ANCHOR_WINDOW_BYTES);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn scan_in_any_slices_finds_the_anchors_of_the_plain_loop(
            letters in prop_oneof![Just(2u8), Just(4), Just(60), Just(255)],
            noise in prop::collection::vec(any::<u8>(), 0..3000),
            cuts in prop::collection::vec(0usize..3000, 0..6),
        ) {
            let bytes: Vec<u8> = noise.iter().map(|byte| byte % letters).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut scanner, mut found) = (AnchorScanner::default(), Vec::new());
            let (mut informed, mut found_with_help) = (AnchorScanner::default(), Vec::new());
            for ends in cuts.windows(2) {
                let slice = &bytes[ends[0]..ends[1]];
                scanner.scan(slice, |start| found.push(start));
                let mut known = Vec::new();
                selections(0, slice, |end| known.push(end));
                known.retain(|end| *end >= ANCHOR_WINDOW_BYTES);
                informed.scan_known(slice, known.into_iter(), |start| found_with_help.push(start));
            }
            let wanted = plain_scan(&bytes);
            prop_assert_eq!(&found, &wanted);
            prop_assert_eq!(&found_with_help, &wanted);
        }
    }
}
