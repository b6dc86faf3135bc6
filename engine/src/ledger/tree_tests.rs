//! Compares the tree's proofs with the recursive definitions of RFC 9162.

use super::*;
use crate::log::ledger::leaf_hash;

/// MTH, section 2.1.1.
fn root(leaves: &[MerkleHash]) -> MerkleHash {
    match leaves {
        [] => *blake3::hash(&[]).as_bytes(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            node_hash(&root(left), &root(right))
        }
    }
}

/// PATH, section 2.1.3.1.
fn path(leaf: usize, leaves: &[MerkleHash]) -> Vec<MerkleHash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut nodes, sibling) = match leaf < left.len() {
        true => (path(leaf, left), root(right)),
        false => (path(leaf - left.len(), right), root(left)),
    };
    nodes.push(sibling);
    nodes
}

/// SUBPROOF, section 2.1.4.1.
fn subproof(old: usize, leaves: &[MerkleHash], known: bool) -> Vec<MerkleHash> {
    if old == leaves.len() {
        return if known { Vec::new() } else { vec![root(leaves)] };
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut nodes, sibling) = match old <= left.len() {
        true => (subproof(old, left, known), root(right)),
        false => (subproof(old - left.len(), right, false), root(left)),
    };
    nodes.push(sibling);
    nodes
}

const SIZES: usize = 131;

fn leaves() -> Vec<MerkleHash> {
    (0..SIZES as u32).map(|i| leaf_hash(&i.to_le_bytes())).collect()
}

fn collected(leaves: &[MerkleHash], spans: Vec<Range<u64>>) -> Option<Vec<MerkleHash>> {
    let mut roots = SubtreeRoots::new(spans);
    leaves.iter().for_each(|leaf| roots.push(LedgerNode::leaf(*leaf)));
    roots.into_hashes()
}

#[test]
fn inclusion_paths_are_those_of_the_recursive_definition() {
    let all = leaves();
    for size in 1..=SIZES {
        let leaves = &all[..size];
        for leaf in 0..size {
            let spans = inclusion(leaf as u64, size as u64);
            let expected = path(leaf, leaves);
            assert_eq!(collected(leaves, spans.clone()).unwrap(), expected, "leaf {leaf} of {size}");
            // The path is the same if the leaves before this one are known only by their right edge.
            let mut before = Frontier::default();
            leaves[..leaf].iter().for_each(|leaf| before.push(*leaf));
            let mut roots = SubtreeRoots::continuing(&before, spans);
            leaves[leaf..].iter().for_each(|leaf| roots.push(LedgerNode::leaf(*leaf)));
            assert_eq!(roots.into_hashes().unwrap(), expected, "leaf {leaf} of {size}, from itself on");
        }
    }
}

#[test]
fn consistency_paths_are_those_of_the_recursive_definition() {
    let all = leaves();
    for size in 1..=SIZES {
        for old in 1..=size {
            let nodes = collected(&all[..size], consistency(old as u64, size as u64)).unwrap();
            assert_eq!(nodes, subproof(old, &all[..size], true), "{old} of {size}");
        }
    }
}

#[test]
fn tiles_make_the_root_and_are_few() {
    let all = leaves();
    for size in 0..=SIZES {
        for most in [64, 100] {
            let spans = tiles(size as u64, most);
            assert!(spans.len() as u64 <= most, "{size}");
            let nodes = collected(&all[..size], spans.clone()).unwrap();
            let folded =
                fold_subtrees(spans.iter().zip(nodes).map(|(span, node)| (span.end - span.start, node)));
            assert_eq!(folded, Some(root(&all[..size])), "{size}");
        }
    }
    for size in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 40, (1 << 40) + 12_345] {
        let spans = tiles(size, 64);
        assert!(spans.len() <= 64 && spans.len() > 30, "{} tiles of {size}", spans.len());
        assert_eq!(spans.last().unwrap().end, size);
        assert!(spans.windows(2).all(|two| two[0].end == two[1].start));
    }
}

#[test]
fn impossible_subtrees_are_not_folded() {
    let node = leaf_hash(b"");
    for wrong in [&[0u64][..], &[3], &[1, 2], &[2, 4], &[1, 1, 1, 2], &[u64::MAX], &[1 << 63, 1 << 63]] {
        assert_eq!(fold_subtrees(wrong.iter().map(|len| (*len, node))), None, "{wrong:?}");
    }
}

#[test]
fn span_beyond_the_pushed_leaves_has_no_root() {
    let all = leaves();
    assert_eq!(collected(&all[..7], vec![0..4, 4..8]), None);
    assert_eq!(collected(&all[..8], vec![0..4, 4..8]).unwrap().len(), 2);
}
