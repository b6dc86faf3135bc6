//! BLAKE3 of a body that is nearly the same as the previous one.
//!
//! BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020) is a tree of chunks of 1 KiB. A body keeps the
//! chaining values of its aligned subtrees of [`BLOCK_BYTES`] and of the complete subtrees above them. A
//! block whose bytes stand at the same offset of the next body keeps its value there. It is not hashed again,
//! nor is a subtree of such blocks. The caller has compared the bytes that it reports as equal.
//!
//! Invariant: the id equals that of [`blake3::hash`] for the same bytes (tested for every shape of tree).

use std::ops::Range;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::ids::BlobId;

/// Bytes of a block: a power of two of chunks, large enough to fill the widest vector units.
pub const BLOCK_BYTES: usize = 16 * 1024;

/// A body's id, and the chaining values that make the next body's hash cheap.
#[derive(Clone, Debug)]
pub struct TreeHash {
    id: BlobId,
    /// Chaining values of the whole blocks, first to last, then of each pair of those, and so on. Empty if
    /// the body is a single block.
    levels: Vec<Vec<ChainingValue>>,
}

impl TreeHash {
    /// Hashes all of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::with_known(bytes, None, |_| false)
    }

    /// Hashes `bytes`. The `same` ranges, ascending, are equal to those at the same offsets of the body of
    /// `known`.
    #[must_use]
    pub fn with_previous(bytes: &[u8], known: &Self, same: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut same = same.into_iter().peekable();
        Self::with_known(bytes, Some(known), |block| {
            let (start, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
            while same.next_if(|range| range.end < end).is_some() {}
            same.peek().is_some_and(|range| range.start <= start)
        })
    }

    /// `is_same` says whether a whole block equals the block of `known` at that index. Indices are ascending.
    fn with_known(bytes: &[u8], known: Option<&Self>, mut is_same: impl FnMut(usize) -> bool) -> Self {
        if bytes.len() <= BLOCK_BYTES {
            return Self { id: BlobId::of(bytes), levels: Vec::new() };
        }
        let known = |level: usize, index: usize| Some(*known?.levels.get(level)?.get(index)?);
        let blocks = bytes.chunks_exact(BLOCK_BYTES);
        let last = Some(blocks.remainder()).filter(|rest| !rest.is_empty());
        let last = last.map(|rest| subtree_value(rest, bytes.len() / BLOCK_BYTES));
        // Whether each value of the current level is the known one.
        let mut kept: Vec<bool> = Vec::with_capacity(blocks.len());
        let level: Vec<ChainingValue> = blocks
            .enumerate()
            .map(|(index, block)| {
                let value = known(0, index).filter(|_| is_same(index));
                kept.push(value.is_some());
                value.unwrap_or_else(|| subtree_value(block, index))
            })
            .collect();
        let mut levels = vec![level];
        while let Some(below) = levels.last().filter(|below| below.len() >= 2) {
            let mut next_kept = Vec::with_capacity(below.len() / 2);
            let next = below
                .chunks_exact(2)
                .enumerate()
                .map(|(index, pair)| {
                    let same = kept[2 * index] && kept[2 * index + 1];
                    let value = known(levels.len(), index).filter(|_| same);
                    next_kept.push(value.is_some());
                    value.unwrap_or_else(|| merge_subtrees_non_root(&pair[0], &pair[1], Mode::Hash))
                })
                .collect();
            kept = next_kept;
            levels.push(next);
        }
        Self { id: root_id(&levels, last), levels }
    }

    /// BLAKE3 of the body.
    #[must_use]
    pub fn id(&self) -> BlobId {
        self.id
    }
}

/// The chaining value of a block that is not the whole body.
fn subtree_value(block: &[u8], index: usize) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset((index * BLOCK_BYTES) as u64);
    hasher.update(block);
    hasher.finalize_non_root()
}

/// The root over the whole blocks and the remainder after them. Complete subtrees are as large as possible
/// from the left; they are merged from the right.
fn root_id(levels: &[Vec<ChainingValue>], last: Option<ChainingValue>) -> BlobId {
    let mut parts = Vec::with_capacity(levels.len() + 1);
    for level in levels.iter().rev() {
        // A value without a right neighbour is the root of a complete subtree at the right border.
        parts.extend(level.last().filter(|_| level.len() % 2 == 1));
    }
    parts.extend(last);
    // If the number of blocks is a power of two, the topmost value would be the root's own: merge its two
    // halves.
    if let ([_], Some(halves)) = (parts.as_slice(), levels.iter().rev().nth(1)) {
        parts.clone_from(halves);
    }
    let mut right = parts.pop().unwrap_or_default();
    while parts.len() > 1 {
        let left = parts.pop().unwrap_or_default();
        right = merge_subtrees_non_root(&left, &right, Mode::Hash);
    }
    let left = parts.pop().unwrap_or_default();
    BlobId(*merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Every number of blocks up to 70 (all shapes of the upper tree), around each border of a block and a
    /// chunk.
    fn lengths() -> impl Iterator<Item = usize> {
        let near = |at: usize| [at.saturating_sub(1), at, at + 1];
        let borders = (0..=70).flat_map(move |blocks| near(blocks * BLOCK_BYTES));
        let chunks = (0..=40).flat_map(move |chunks| near(chunks * 1024));
        borders.chain(chunks).chain((0..70).map(|blocks| blocks * BLOCK_BYTES + 5_000))
    }

    #[test]
    fn tree_hash_equals_blake3_for_every_tree_shape() {
        let bytes = text(71 * BLOCK_BYTES, 1);
        for len in lengths() {
            assert_eq!(TreeHash::of(&bytes[..len]).id(), BlobId::of(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn tree_hash_with_previous_equals_blake3_after_any_change() {
        let old = text(40 * BLOCK_BYTES + 700, 2);
        let known = TreeHash::of(&old);
        for len in lengths() {
            // The same front, then other bytes: the border may be anywhere in the body.
            for same in [0, len / 3, len.saturating_sub(1), len] {
                let same = same.min(old.len());
                let mut new = old[..same].to_vec();
                new.extend(text(len - same, 3));
                let expected = BlobId::of(&new);
                assert_eq!(
                    TreeHash::with_previous(&new, &known, std::iter::once(0..same)).id(),
                    expected,
                    "{same} of {len}"
                );
            }
        }
    }

    #[test]
    fn only_changed_blocks_are_hashed_again() {
        let old = text(20 * BLOCK_BYTES + 10, 4);
        let known = TreeHash::of(&old);
        let mut new = old.clone();
        new[3] ^= 1;
        new[5 * BLOCK_BYTES + 9] ^= 1;
        let same = [4..5 * BLOCK_BYTES + 9, 5 * BLOCK_BYTES + 10..new.len()];
        let hash = TreeHash::with_previous(&new, &known, same);
        assert_eq!(hash.id(), BlobId::of(&new));
        let changed: Vec<usize> = (0..20).filter(|i| hash.levels[0][*i] != known.levels[0][*i]).collect();
        assert_eq!(changed, [0, 5]);
        // Each body is hashed against the previous one, as in a conversation.
        let mut body = Vec::new();
        let mut known = TreeHash::of(&body);
        for step in 0..60u64 {
            let before = body.len();
            body.extend(text(300 + 97 * step as usize * 7 % 9000, step));
            known = TreeHash::with_previous(&body, &known, std::iter::once(0..before));
            assert_eq!(known.id(), BlobId::of(&body), "step {step}");
        }
    }
}
