//! BLAKE3 of a body that is nearly the one before it.
//!
//! BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020) is a tree of chunks of 1 KiB. What is kept of a body
//! are the chaining values of its aligned subtrees of [`BLOCK_BYTES`]; a block whose bytes stand at the same
//! offset of the next body keeps its value there, and is not hashed again. Whoever says that bytes are the same
//! has compared them: nothing is taken on trust.
//!
//! Invariant: the id is the one that [`blake3::hash`] gives for the same bytes (tested for every shape of tree).

use std::ops::Range;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::ids::BlobId;

/// Bytes of a block: a power of two of chunks, enough of them to fill the widest vector units.
pub(crate) const BLOCK_BYTES: usize = 16 * 1024;

/// A body's id, and what makes the next one's cheap.
#[derive(Clone, Debug)]
pub(crate) struct TreeHash {
    id: BlobId,
    /// Chaining values of the whole blocks, first to last; empty where the body is a single block.
    blocks: Vec<ChainingValue>,
}

impl TreeHash {
    /// Hashes all of `bytes`.
    #[must_use]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::with_known(bytes, |_| None)
    }

    /// Hashes `bytes`, of which `same` ranges, ascending, stand at the same offsets in the body that `known` is of.
    #[must_use]
    pub(crate) fn after(bytes: &[u8], known: &Self, same: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut same = same.into_iter().peekable();
        Self::with_known(bytes, |block| {
            let (start, end) = (block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
            while same.next_if(|range| range.end < end).is_some() {}
            let covered = same.peek().is_some_and(|range| range.start <= start);
            known.blocks.get(block).filter(|_| covered).copied()
        })
    }

    /// Hashes `bytes` after comparing them, block by block, with `previous`, the body that `known` is of.
    #[must_use]
    pub(crate) fn after_comparing(bytes: &[u8], previous: &[u8], known: &Self) -> Self {
        Self::with_known(bytes, |block| {
            let value = known.blocks.get(block)?;
            let range = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            (bytes.get(range.clone())? == previous.get(range)?).then_some(*value)
        })
    }

    /// `known` gives the chaining value of a whole block where it is known.
    fn with_known(bytes: &[u8], mut known: impl FnMut(usize) -> Option<ChainingValue>) -> Self {
        if bytes.len() <= BLOCK_BYTES {
            return Self { id: BlobId::of(bytes), blocks: Vec::new() };
        }
        let mut blocks = Vec::with_capacity(bytes.len().div_ceil(BLOCK_BYTES));
        let mut last = None;
        for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if block.len() == BLOCK_BYTES {
                blocks.push(known(index).unwrap_or_else(|| subtree(block, index)));
            } else {
                last = Some(subtree(block, index));
            }
        }
        let whole = blocks.len();
        blocks.extend(last);
        let id = root(&blocks);
        blocks.truncate(whole);
        Self { id, blocks }
    }

    /// BLAKE3 of the body.
    #[must_use]
    pub(crate) fn id(&self) -> BlobId {
        self.id
    }
}

/// The chaining value of a block that is not all there is.
fn subtree(block: &[u8], index: usize) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset((index * BLOCK_BYTES) as u64);
    hasher.update(block);
    hasher.finalize_non_root()
}

/// How many of `count` leaves, two at least, the left subtree has: the greatest power of two below it.
fn left_of(count: usize) -> usize {
    count.next_power_of_two() / 2
}

fn root(blocks: &[ChainingValue]) -> BlobId {
    let (left, right) = blocks.split_at(left_of(blocks.len()));
    BlobId(*merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes())
}

fn merged(blocks: &[ChainingValue]) -> ChainingValue {
    match blocks {
        [one] => *one,
        _ => {
            let (left, right) = blocks.split_at(left_of(blocks.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Every number of blocks to 70 (all shapes of the upper tree), around each border of a block and a chunk.
    fn lengths() -> impl Iterator<Item = usize> {
        let near = |at: usize| [at.saturating_sub(1), at, at + 1];
        let borders = (0..=70).flat_map(move |blocks| near(blocks * BLOCK_BYTES));
        let chunks = (0..=40).flat_map(move |chunks| near(chunks * 1024));
        borders.chain(chunks).chain((0..70).map(|blocks| blocks * BLOCK_BYTES + 5_000))
    }

    #[test]
    fn ids_are_blake3s_for_every_shape_of_tree() {
        let bytes = text(71 * BLOCK_BYTES, 1);
        for len in lengths() {
            assert_eq!(TreeHash::of(&bytes[..len]).id(), BlobId::of(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn growing_shrinking_and_changed_bodies_keep_what_is_the_same_and_nothing_else() {
        let old = text(40 * BLOCK_BYTES + 700, 2);
        let known = TreeHash::of(&old);
        for len in lengths() {
            // The same front, then other bytes: the border anywhere in the body.
            for same in [0, len / 3, len.saturating_sub(1), len] {
                let same = same.min(old.len());
                let mut new = old[..same].to_vec();
                new.extend(text(len - same, 3));
                let expected = BlobId::of(&new);
                assert_eq!(TreeHash::after(&new, &known, [0..same]).id(), expected, "{same} of {len}");
                assert_eq!(TreeHash::after_comparing(&new, &old, &known).id(), expected, "{same} of {len}");
            }
        }
    }

    #[test]
    fn a_changed_head_and_a_hole_are_hashed_again() {
        let old = text(20 * BLOCK_BYTES + 10, 4);
        let known = TreeHash::of(&old);
        let mut new = old.clone();
        new[3] ^= 1;
        new[5 * BLOCK_BYTES + 9] ^= 1;
        let same = [4..5 * BLOCK_BYTES + 9, 5 * BLOCK_BYTES + 10..new.len()];
        let hash = TreeHash::after(&new, &known, same);
        assert_eq!(hash.id(), BlobId::of(&new));
        let changed: Vec<usize> = (0..20).filter(|i| hash.blocks[*i] != known.blocks[*i]).collect();
        assert_eq!(changed, [0, 5]);
        // The next one is told of the one before it, and so on down a conversation.
        let mut body = Vec::new();
        let mut known = TreeHash::of(&body);
        for step in 0..60u64 {
            let before = body.len();
            body.extend(text(300 + 97 * step as usize * 7 % 9000, step));
            known = TreeHash::after(&body, &known, [0..before]);
            assert_eq!(known.id(), BlobId::of(&body), "step {step}");
        }
    }
}
