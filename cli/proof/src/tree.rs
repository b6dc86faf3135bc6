//! RFC 9162 with BLAKE3: the hashes of section 2.1.1, and the checks of sections 2.1.3.2 and 2.1.4.2 in the
//! steps of the RFC.

use crate::Hash;
use crate::error::ProofError;

fn hash(parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// H(00 | entry).
pub(crate) fn leaf_hash(parts: &[&[u8]]) -> Hash {
    let mut all: Vec<&[u8]> = vec![&[0]];
    all.extend_from_slice(parts);
    hash(&all)
}

/// H(01 | left | right).
pub(crate) fn node_hash(left: &Hash, right: &Hash) -> Hash {
    hash(&[&[1], left, right])
}

/// The root of a tree without leaves.
pub(crate) fn empty_root() -> Hash {
    hash(&[])
}

/// The root that an inclusion path leads to from a leaf (section 2.1.3.2).
pub(crate) fn inclusion_root(leaf: Hash, index: u64, size: u64, path: &[Hash]) -> Result<Hash, ProofError> {
    if index >= size {
        return Err(ProofError::refused(format!("leaf {index} is not in a tree of {size}")));
    }
    let wrong_length =
        || ProofError::refused(format!("a path of {} nodes does not fit its tree", path.len()));
    let (mut at, mut last) = (index, size - 1);
    let mut root = leaf;
    for sibling in path {
        if last == 0 {
            return Err(wrong_length());
        }
        if at & 1 == 1 || at == last {
            root = node_hash(sibling, &root);
            if at & 1 == 0 {
                while at & 1 == 0 && at != 0 {
                    at >>= 1;
                    last >>= 1;
                }
            }
        } else {
            root = node_hash(&root, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    if last == 0 { Ok(root) } else { Err(wrong_length()) }
}

/// Checks that a tree of `size` leaves with this root begins with a tree of `old_size` leaves (section
/// 2.1.4.2).
pub(crate) fn check_consistency(
    (old_size, old): (u64, &Hash),
    (size, root): (u64, &Hash),
    path: &[Hash],
) -> Result<(), ProofError> {
    let wrong = || ProofError::refused("the ledger is not shown to have grown from that checkpoint");
    if old_size == 0 || old_size > size {
        return Err(wrong());
    }
    if old_size == size {
        return if path.is_empty() && old == root { Ok(()) } else { Err(wrong()) };
    }
    // If the old tree is one complete subtree, its root is the first node, and the path omits it.
    let own = old_size.is_power_of_two().then_some(old);
    let mut nodes = own.into_iter().chain(path);
    let first = nodes.next().ok_or_else(wrong)?;
    let (mut at, mut last) = (old_size - 1, size - 1);
    while at & 1 == 1 {
        at >>= 1;
        last >>= 1;
    }
    let (mut old_root, mut new_root) = (*first, *first);
    for sibling in nodes {
        if last == 0 {
            return Err(wrong());
        }
        if at & 1 == 1 || at == last {
            old_root = node_hash(sibling, &old_root);
            new_root = node_hash(sibling, &new_root);
            if at & 1 == 0 {
                while at & 1 == 0 && at != 0 {
                    at >>= 1;
                    last >>= 1;
                }
            }
        } else {
            new_root = node_hash(&new_root, sibling);
        }
        at >>= 1;
        last >>= 1;
    }
    if last == 0 && old_root == *old && new_root == *root { Ok(()) } else { Err(wrong()) }
}

/// The root of a tree that consists of these complete subtrees (number of leaves, root), from the left.
pub(crate) fn root_of_subtrees(subtrees: &[(u64, Hash)]) -> Option<Hash> {
    let mut done: Vec<(u64, Hash)> = Vec::new();
    let mut at = 0u64;
    for (leaves, root) in subtrees {
        if !leaves.is_power_of_two() || !at.is_multiple_of(*leaves) {
            return None;
        }
        at = at.checked_add(*leaves)?;
        done.push((*leaves, *root));
        while let [.., (left_size, left), (size, right)] = done[..]
            && left_size == size
        {
            done.truncate(done.len() - 2);
            // `at` includes both subtrees and has not overflowed, so this does not overflow either.
            done.push((size.checked_mul(2)?, node_hash(&left, &right)));
        }
    }
    let (_, mut root) = done.pop().unwrap_or((0, empty_root()));
    while let Some((_, left)) = done.pop() {
        root = node_hash(&left, &root);
    }
    Some(root)
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
