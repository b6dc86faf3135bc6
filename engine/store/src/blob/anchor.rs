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
        let mut hash = self.hash;
        // Few hashes select: one comparison looks at eight.
        let (eights, rest) = bytes.as_chunks::<8>();
        for eight in eights {
            let hashes = eight.map(|byte| {
                hash = (hash << 1).wrapping_add(GEAR[byte as usize]);
                hash
            });
            if hashes.iter().fold(u32::MAX, |least, hash| least.min(*hash)) < SELECT_BELOW {
                for (index, _) in hashes.iter().enumerate().filter(|(_, hash)| **hash < SELECT_BELOW) {
                    self.select(index + 1, &mut found);
                }
            }
            self.seen += eight.len();
        }
        for byte in rest {
            hash = (hash << 1).wrapping_add(GEAR[*byte as usize]);
            self.seen += 1;
            if hash < SELECT_BELOW {
                self.select(0, &mut found);
            }
        }
        self.hash = hash;
    }

    /// A hash selects, `ahead` bytes past those seen.
    fn select(&mut self, ahead: usize, found: &mut impl FnMut(usize)) {
        let at = self.seen + ahead;
        if at >= ANCHOR_WINDOW_BYTES && at >= self.last + GAP_BYTES_MIN {
            self.last = at;
            found(at - ANCHOR_WINDOW_BYTES);
        }
    }
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
            for ends in cuts.windows(2) {
                scanner.scan(&bytes[ends[0]..ends[1]], |start| found.push(start));
            }
            prop_assert_eq!(found, plain_scan(&bytes));
        }
    }
}
