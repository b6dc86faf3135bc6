//! The ledger: a Merkle tree (RFC 9162, section 2.1, with BLAKE3 as the hash) with one leaf per batch.
//!
//! A leaf is the root of a small tree of the same shape over the batch's logical records. A record's hash
//! covers its salt, kind, layout, seqno and logical head, never recipes, groups, checksums or places. Batches
//! without a logical record (parts of a body still streaming in) have no leaf. Only the tree's right edge is
//! stored: the roots of its complete subtrees.

use serde::{Deserialize, Serialize};

use crate::codec::CodecError;
use crate::log::layout::COUNT_MAX;

/// The hash of a node.
pub type MerkleHash = [u8; 32];

/// The root of a complete subtree of 2^height leaves. 2^height divides the number of its first leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerNode {
    pub height: u8,
    pub hash: MerkleHash,
}

/// Height of a subtree that would exceed the maximum number of leaves.
const HEIGHT_MAX: u8 = 56;
const _: () = assert!(COUNT_MAX == 1 << HEIGHT_MAX);

impl LedgerNode {
    pub fn leaf(hash: MerkleHash) -> Self {
        Self { height: 0, hash }
    }

    /// Number of leaves below this node.
    ///
    /// # Errors
    /// [`CodecError::Limit`] for an impossible height.
    pub fn leaves(&self) -> Result<u64, CodecError> {
        match self.height {
            height if height < HEIGHT_MAX => Ok(1 << height),
            height => Err(CodecError::Limit {
                what: "a subtree's height",
                found: u64::from(height),
                limit: u64::from(HEIGHT_MAX - 1),
            }),
        }
    }
}

/// RFC 9162: leaf hash = H(0x00 || entry).
pub fn leaf_hash(entry: &[u8]) -> MerkleHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0]);
    hasher.update(entry);
    *hasher.finalize().as_bytes()
}

/// RFC 9162: inner node = H(0x01 || left || right).
pub fn node_hash(left: &MerkleHash, right: &MerkleHash) -> MerkleHash {
    let mut input = [1; 65];
    input[1..33].copy_from_slice(left);
    input[33..].copy_from_slice(right);
    *blake3::hash(&input).as_bytes()
}

/// The hash of one logical record: a leaf of its batch's small tree.
pub fn record_hash(salt: &[u8; 16], kind: u8, layout: u8, seqno: u64, head: &[u8]) -> MerkleHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&record_prefix(salt, kind, layout, seqno));
    hasher.update(head);
    *hasher.finalize().as_bytes()
}

/// What [`record_hash`] hashes, without the head.
pub fn record_prefix(salt: &[u8; 16], kind: u8, layout: u8, seqno: u64) -> [u8; 27] {
    let mut prefix = [0; 27];
    prefix[1..17].copy_from_slice(salt);
    prefix[17..19].copy_from_slice(&[kind, layout]);
    prefix[19..].copy_from_slice(&seqno.to_le_bytes());
    prefix
}

/// The right edge of a Merkle tree, to which leaves are appended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Frontier {
    /// Leaves so far.
    pub leaves: u64,
    /// Roots of the complete subtrees, the largest (leftmost) first: one for each set bit of `leaves`.
    peaks: Vec<MerkleHash>,
}

impl Frontier {
    /// Appends a leaf by its hash.
    pub fn push(&mut self, leaf: MerkleHash) {
        self.append(0, leaf);
    }

    /// Appends a subtree by its root.
    ///
    /// # Errors
    /// For a subtree that does not begin at the next leaf, or is too large. Nothing is appended then.
    pub fn push_node(&mut self, node: LedgerNode) -> Result<(), CodecError> {
        let leaves = node.leaves()?;
        if !self.leaves.is_multiple_of(leaves) || self.leaves.saturating_add(leaves) > COUNT_MAX {
            return Err(CodecError::Header("a subtree of the ledger does not begin where it stands".into()));
        }
        self.append(node.height, node.hash);
        Ok(())
    }

    /// Appends a subtree that begins at the next leaf.
    fn append(&mut self, height: u8, root: MerkleHash) {
        let mut node = root;
        for _ in 0..(self.leaves >> height).trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                node = node_hash(&left, &node);
            }
        }
        self.peaks.push(node);
        self.leaves += 1 << height;
    }

    /// The tree's root; for a tree without leaves, the hash of nothing.
    pub fn root(&self) -> MerkleHash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => *blake3::hash(&[]).as_bytes(),
            Some(last) => peaks.fold(*last, |right, left| node_hash(left, &right)),
        }
    }

    /// Roots of the complete subtrees, the largest (leftmost) first: one for each set bit of `leaves`.
    pub fn peaks(&self) -> &[MerkleHash] {
        &self.peaks
    }

    /// Whether the number of peaks fits the number of leaves: false for bytes that no writer produced.
    pub fn is_sound(&self) -> bool {
        self.peaks.len() == self.leaves.count_ones() as usize
    }
}

/// The largest complete subtrees that tile a range of a tree's leaves, from any first leaf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerTiles {
    /// Number of the next leaf.
    end: u64,
    nodes: Vec<LedgerNode>,
}

impl LedgerTiles {
    /// An empty range that begins at this leaf.
    pub fn starting_at(leaf: u64) -> Self {
        Self { end: leaf, nodes: Vec::new() }
    }

    /// From the left.
    pub fn nodes(&self) -> &[LedgerNode] {
        &self.nodes
    }

    /// Appends a subtree, joining siblings.
    ///
    /// # Errors
    /// As [`Frontier::push_node`].
    pub fn push(&mut self, node: LedgerNode) -> Result<(), CodecError> {
        let leaves = node.leaves()?;
        if !self.end.is_multiple_of(leaves) || self.end.saturating_add(leaves) > COUNT_MAX {
            return Err(CodecError::Header("a subtree of the ledger does not begin where it stands".into()));
        }
        self.end += leaves;
        let mut node = node;
        while let Some(left) = self.nodes.pop_if(|left| is_left_sibling(left.height, node.height, self.end)) {
            node = LedgerNode { height: node.height + 1, hash: node_hash(&left.hash, &node.hash) };
        }
        self.nodes.push(node);
        Ok(())
    }
}

/// Whether two adjacent subtrees of these heights, the right one ending before leaf `end`, are halves of one
/// subtree.
pub fn is_left_sibling(left: u8, right: u8, end: u64) -> bool {
    left == right && right < HEIGHT_MAX && end.is_multiple_of(2 << right)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recursive definition of RFC 9162.
    fn recursive_root(leaves: &[MerkleHash]) -> MerkleHash {
        match leaves {
            [] => *blake3::hash(&[]).as_bytes(),
            [leaf] => *leaf,
            _ => {
                let split = leaves.len().next_power_of_two() / 2;
                node_hash(&recursive_root(&leaves[..split]), &recursive_root(&leaves[split..]))
            }
        }
    }

    #[test]
    fn frontier_root_equals_the_recursive_definition() {
        let leaves: Vec<MerkleHash> = (0..200u32).map(|i| leaf_hash(&i.to_le_bytes())).collect();
        let mut frontier = Frontier::default();
        for (count, leaf) in leaves.iter().enumerate() {
            assert_eq!(frontier.root(), recursive_root(&leaves[..count]), "{count} leaves");
            assert!(frontier.is_sound());
            frontier.push(*leaf);
        }
    }

    #[test]
    fn frontier_is_sound_with_one_peak_per_set_bit() {
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
