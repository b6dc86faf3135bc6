//! The state of a log, with its tree of leaves.

use super::SubtreeNode;
use super::cursors::ByteCursor;

/// The log's state at a position: LogState of docs/format.md.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ForgedLogState {
    pub(super) next_seqno: u64,
    pub(super) chain: [u8; 16],
    pub(super) leaves: u64,
    pub(super) peaks: Vec<[u8; 32]>,
    pub(crate) totals: [u64; 9],
    pub(crate) newest_ns: u64,
    pub(crate) next_group: u64,
    pub(crate) next_run: u64,
    pub(crate) next_space: u32,
}

pub(super) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    *blake3::hash(&parts.concat()).as_bytes()
}

pub(super) fn push(peaks: &mut Vec<[u8; 32]>, leaves: &mut u64, leaf: [u8; 32]) {
    push_node(peaks, leaves, (0, leaf)).unwrap();
}

/// Appends a complete subtree; `None` if no subtree of this height can begin here.
pub(super) fn push_node(
    peaks: &mut Vec<[u8; 32]>,
    leaves: &mut u64,
    (height, hash_of): SubtreeNode,
) -> Option<()> {
    if height > 40 || !leaves.is_multiple_of(1 << height) {
        return None;
    }
    let mut node = hash_of;
    for _ in 0..(*leaves >> height).trailing_ones() {
        node = hash(&[&[1], &peaks.pop()?, &node]);
    }
    peaks.push(node);
    *leaves += 1 << height;
    Some(())
}

pub(super) fn peaks_root(peaks: &[[u8; 32]]) -> [u8; 32] {
    match peaks.split_last() {
        None => hash(&[]),
        Some((last, rest)) => rest.iter().rev().fold(*last, |right, left| hash(&[&[1], left, &right])),
    }
}

impl ForgedLogState {
    pub(super) fn new() -> Self {
        Self {
            next_seqno: 1,
            chain: [0; 16],
            leaves: 0,
            peaks: Vec::new(),
            totals: [0; 9],
            newest_ns: 0,
            next_group: 1,
            next_run: 1,
            next_space: 16,
        }
    }

    pub(super) fn read(f: &mut ByteCursor<'_>) -> Self {
        Self {
            next_seqno: f.u64(),
            chain: f.bytes(16).try_into().unwrap(),
            leaves: f.u64(),
            peaks: (0..f.u64()).map(|_| f.bytes(32).try_into().unwrap()).collect(),
            totals: std::array::from_fn(|_| f.u64()),
            newest_ns: f.u64(),
            next_group: f.u64(),
            next_run: f.u64(),
            next_space: f.u32(),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.next_seqno.to_le_bytes().to_vec();
        out.extend_from_slice(&self.chain);
        out.extend_from_slice(&self.leaves.to_le_bytes());
        out.extend_from_slice(&(self.peaks.len() as u64).to_le_bytes());
        self.peaks.iter().for_each(|peak| out.extend_from_slice(peak));
        self.totals.iter().for_each(|total| out.extend_from_slice(&total.to_le_bytes()));
        for number in [self.newest_ns, self.next_group, self.next_run] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.next_space.to_le_bytes());
        out
    }
}
