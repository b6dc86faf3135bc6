//! The ledger: a Merkle tree (RFC 9162, section 2.1, with BLAKE3 for the hash) over one leaf a batch.
//!
//! A leaf is the root of a small tree of the same shape over the batch's logical records; a record's hash covers
//! its salt, kind, layout, seqno and logical head, never recipes, groups, checksums or places. Batches without a
//! logical record (parts of a body still streaming in) have no leaf. Only the tree's right edge is kept: the
//! roots of its complete subtrees.

use serde::{Deserialize, Serialize};

/// A node of the tree.
pub(crate) type Hash = [u8; 32];

/// RFC 9162: leaf hash = H(0x00 || entry).
pub(crate) fn leaf_hash(entry: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0]);
    hasher.update(entry);
    *hasher.finalize().as_bytes()
}

/// RFC 9162: inner node = H(0x01 || left || right).
pub(crate) fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut input = [1; 65];
    input[1..33].copy_from_slice(left);
    input[33..].copy_from_slice(right);
    *blake3::hash(&input).as_bytes()
}

/// The hash of one logical record: a leaf of its batch's small tree.
pub(crate) fn record_hash(salt: &[u8; 16], kind: u8, layout: u8, seqno: u64, head: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0]);
    hasher.update(salt);
    hasher.update(&[kind, layout]);
    hasher.update(&seqno.to_le_bytes());
    hasher.update(head);
    *hasher.finalize().as_bytes()
}

/// The right edge of a Merkle tree, to which leaves are appended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Frontier {
    /// Leaves so far.
    pub(crate) leaves: u64,
    /// Roots of the complete subtrees, the largest (leftmost) first: one for each set bit of `leaves`.
    peaks: Vec<Hash>,
}

impl Frontier {
    /// Appends a leaf by its hash.
    pub(crate) fn push(&mut self, leaf: Hash) {
        let mut node = leaf;
        for _ in 0..self.leaves.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.peaks.push(node);
        self.leaves += 1;
    }

    /// The tree's root; of no leaves, the hash of nothing.
    pub(crate) fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => *blake3::hash(&[]).as_bytes(),
            Some(last) => peaks.fold(*last, |right, left| node_hash(left, &right)),
        }
    }

    /// Roots of the complete subtrees, the largest (leftmost) first: one for each set bit of `leaves`.
    pub(crate) fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    /// Whether the number of peaks fits the number of leaves: false for bytes that nobody wrote.
    pub(crate) fn is_sound(&self) -> bool {
        self.peaks.len() == self.leaves.count_ones() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9162's definition, read literally.
    fn recursive(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => *blake3::hash(&[]).as_bytes(),
            [leaf] => *leaf,
            _ => {
                let split = leaves.len().next_power_of_two() / 2;
                node_hash(&recursive(&leaves[..split]), &recursive(&leaves[split..]))
            }
        }
    }

    #[test]
    fn the_frontier_has_the_root_of_the_recursive_definition() {
        let leaves: Vec<Hash> = (0..200u32).map(|i| leaf_hash(&i.to_le_bytes())).collect();
        let mut frontier = Frontier::default();
        for (count, leaf) in leaves.iter().enumerate() {
            assert_eq!(frontier.root(), recursive(&leaves[..count]), "{count} leaves");
            assert!(frontier.is_sound());
            frontier.push(*leaf);
        }
    }

    #[test]
    fn as_many_peaks_as_the_count_has_bits_are_sound_and_no_others() {
        for (leaves, peaks, sound) in [
            (0, 0, true),
            (1, 1, true),
            (3, 2, true),
            (4, 1, true),
            (1, 0, false),
            (0, 1, false),
            (4, 2, false),
        ] {
            let frontier = Frontier { leaves, peaks: vec![[0; 32]; peaks] };
            assert_eq!(frontier.is_sound(), sound, "{peaks} of {leaves}");
        }
    }
}
