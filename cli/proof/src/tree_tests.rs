//! The checks against RFC 9162's recursive definitions, and against proofs that do not hold.

use super::*;

fn root(leaves: &[Hash]) -> Hash {
    match leaves {
        [] => empty(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            node(&root(left), &root(right))
        }
    }
}

fn path(leaf: usize, leaves: &[Hash]) -> Vec<Hash> {
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

fn subproof(old: usize, leaves: &[Hash], known: bool) -> Vec<Hash> {
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

fn leaves() -> Vec<Hash> {
    (0..SIZES as u32).map(|i| leaf(&[&i.to_le_bytes()])).collect()
}

/// Ways to spoil a path.
fn spoilt(path: &[Hash]) -> Vec<Vec<Hash>> {
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
fn every_inclusion_proof_holds_and_no_other_does() {
    let all = leaves();
    for size in 1..=SIZES {
        let leaves = &all[..size];
        let wanted = root(leaves);
        for at in 0..size {
            let path = path(at, leaves);
            assert_eq!(root_of(leaves[at], at as u64, size as u64, &path), Ok(wanted), "{at} of {size}");
            let elsewhere = [at as u64 ^ 1, at as u64 + 1, size as u64, u64::MAX];
            for other in elsewhere.into_iter().filter(|other| *other != at as u64) {
                let found = root_of(leaves[at], other, size as u64, &path);
                assert_ne!(found, Ok(wanted), "{at} of {size} as {other}");
            }
            // The same path in a tree that is too high, or too low, for it.
            for other in [4 * size as u64, size as u64 / 4] {
                let found = root_of(leaves[at], at as u64, other, &path);
                assert!(found.is_err() || path.is_empty() && other == 1, "{at} of {size} as of {other}");
            }
            for wrong in spoilt(&path) {
                assert_ne!(root_of(leaves[at], at as u64, size as u64, &wrong), Ok(wanted), "{at} of {size}");
            }
        }
    }
}

#[test]
fn every_consistency_proof_holds_and_no_other_does() {
    let all = leaves();
    for size in 1..=SIZES {
        let new = (size as u64, &root(&all[..size]));
        for old in 1..=size {
            let path = subproof(old, &all[..size], true);
            let old_root = root(&all[..old]);
            let before = (old as u64, &old_root);
            assert_eq!(check_consistency(before, new, &path), Ok(()), "{old} of {size}");
            let mut wrong = old_root;
            wrong[31] ^= 1;
            assert!(check_consistency((old as u64, &wrong), new, &path).is_err(), "{old} of {size}");
            assert!(check_consistency(before, (size as u64, &wrong), &path).is_err(), "{old} of {size}");
            for spoilt in spoilt(&path) {
                assert!(check_consistency(before, new, &spoilt).is_err(), "{old} of {size}");
            }
        }
        assert!(check_consistency((0, &empty()), new, &[]).is_err());
        assert!(check_consistency((size as u64 + 1, new.1), new, &[]).is_err());
    }
}

#[test]
fn only_tiles_make_a_tree() {
    let all = leaves();
    let tiles = [(4, root(&all[..4])), (2, root(&all[4..6])), (2, root(&all[6..8])), (1, all[8])];
    assert_eq!(of_subtrees(&tiles), Some(root(&all[..9])));
    assert_eq!(of_subtrees(&[]), Some(empty()));
    for wrong in [&[0u64][..], &[3], &[1, 2], &[2, 4], &[u64::MAX], &[1 << 63, 1 << 63]] {
        let tiles: Vec<(u64, Hash)> = wrong.iter().map(|leaves| (*leaves, [0; 32])).collect();
        assert_eq!(of_subtrees(&tiles), None, "{wrong:?}");
    }
}
