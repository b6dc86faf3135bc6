//! Checks of the tree against RFC 9162's recursive definitions, and against proofs that do not hold.

use super::*;

fn reference_root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => empty_root(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            node_hash(&reference_root(left), &reference_root(right))
        }
    }
}

fn reference_path(leaf: usize, leaves: &[Hash]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut nodes, sibling) = match leaf < left.len() {
        true => (reference_path(leaf, left), reference_root(right)),
        false => (reference_path(leaf - left.len(), right), reference_root(left)),
    };
    nodes.push(sibling);
    nodes
}

fn reference_consistency_path(old: usize, leaves: &[Hash], known: bool) -> Vec<Hash> {
    if old == leaves.len() {
        return if known { Vec::new() } else { vec![reference_root(leaves)] };
    }
    let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
    let (mut nodes, sibling) = match old <= left.len() {
        true => (reference_consistency_path(old, left, known), reference_root(right)),
        false => (reference_consistency_path(old - left.len(), right, false), reference_root(left)),
    };
    nodes.push(sibling);
    nodes
}

const SIZES: usize = 131;

fn sample_leaves() -> Vec<Hash> {
    (0..SIZES as u32).map(|i| leaf_hash(&[&i.to_le_bytes()])).collect()
}

/// Returns the path with each possible fault.
fn spoilt_paths(path: &[Hash]) -> Vec<Vec<Hash>> {
    let mut all = Vec::new();
    for at in 0..path.len() {
        let mut flipped = path.to_vec();
        flipped[at][31] ^= 1;
        all.push(flipped);
        let mut short = path.to_vec();
        short.remove(at);
        all.push(short);
        let mut twice = path.to_vec();
        twice.insert(at, path[at]);
        all.push(twice);
    }
    let mut long = path.to_vec();
    long.push([7; 32]);
    all.push(long);
    all
}

#[test]
fn only_correct_inclusion_proofs_hold() {
    let all = sample_leaves();
    for size in 1..=SIZES {
        let leaves = &all[..size];
        let wanted = reference_root(leaves);
        for at in 0..size {
            let path = reference_path(at, leaves);
            assert_eq!(
                inclusion_root(leaves[at], at as u64, size as u64, &path),
                Ok(wanted),
                "{at} of {size}"
            );
            let elsewhere = [at as u64 ^ 1, at as u64 + 1, size as u64, u64::MAX];
            for other in elsewhere.into_iter().filter(|other| *other != at as u64) {
                let found = inclusion_root(leaves[at], other, size as u64, &path);
                assert_ne!(found, Ok(wanted), "{at} of {size} as {other}");
            }
            // The same path in a tree that is too high or too low for it.
            for other in [4 * size as u64, size as u64 / 4] {
                let found = inclusion_root(leaves[at], at as u64, other, &path);
                assert!(found.is_err() || path.is_empty() && other == 1, "{at} of {size} as of {other}");
            }
            for wrong in spoilt_paths(&path) {
                assert_ne!(
                    inclusion_root(leaves[at], at as u64, size as u64, &wrong),
                    Ok(wanted),
                    "{at} of {size}"
                );
            }
        }
    }
}

#[test]
fn only_correct_consistency_proofs_hold() {
    let all = sample_leaves();
    for size in 1..=SIZES {
        let new = (size as u64, &reference_root(&all[..size]));
        for old in 1..=size {
            let path = reference_consistency_path(old, &all[..size], true);
            let old_root = reference_root(&all[..old]);
            let before = (old as u64, &old_root);
            assert_eq!(check_consistency(before, new, &path), Ok(()), "{old} of {size}");
            let mut wrong = old_root;
            wrong[31] ^= 1;
            assert!(check_consistency((old as u64, &wrong), new, &path).is_err(), "{old} of {size}");
            assert!(check_consistency(before, (size as u64, &wrong), &path).is_err(), "{old} of {size}");
            for spoilt in spoilt_paths(&path) {
                assert!(check_consistency(before, new, &spoilt).is_err(), "{old} of {size}");
            }
        }
        assert!(check_consistency((0, &empty_root()), new, &[]).is_err());
        assert!(check_consistency((size as u64 + 1, new.1), new, &[]).is_err());
    }
}

#[test]
fn only_tiling_subtrees_have_a_root() {
    let all = sample_leaves();
    let tiles = [
        (4, reference_root(&all[..4])),
        (2, reference_root(&all[4..6])),
        (2, reference_root(&all[6..8])),
        (1, all[8]),
    ];
    assert_eq!(root_of_subtrees(&tiles), Some(reference_root(&all[..9])));
    assert_eq!(root_of_subtrees(&[]), Some(empty_root()));
    for wrong in [&[0u64][..], &[3], &[1, 2], &[2, 4], &[u64::MAX], &[1 << 63, 1 << 63]] {
        let tiles: Vec<(u64, Hash)> = wrong.iter().map(|leaves| (*leaves, [0; 32])).collect();
        assert_eq!(root_of_subtrees(&tiles), None, "{wrong:?}");
    }
}
