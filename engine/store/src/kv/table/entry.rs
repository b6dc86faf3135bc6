//! The entries of a table, and their order.

use std::cmp::Ordering;

/// One index entry: a version of a key and where it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// At most [`KEY_LEN_MAX`](super::KEY_LEN_MAX) bytes; may be empty.
    pub key: Vec<u8>,
    /// The seqno with which the version was written.
    pub seqno: u64,
    /// What the version points at.
    pub value: Value,
}

/// What a key's version points at. Opaque to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The kind of thing it points at, in the owner's own numbering.
    pub kind: u8,
    /// Often a segment.
    pub a: u64,
    /// Often an offset.
    pub b: u32,
    /// Often a length.
    pub c: u32,
}

/// The log position up to which a table reflects the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Covers {
    /// Segment id.
    pub segment: u64,
    /// Byte offset in that segment.
    pub offset: u64,
    /// The last seqno reflected.
    pub seqno: u64,
}

/// Identifies a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableMeta {
    /// The store's uuid.
    pub store: [u8; 16],
    /// The table's id, unique in its store.
    pub id: u64,
    /// How much of the log it reflects.
    pub covers: Covers,
}

/// A position in the order of entries: key ascending, then seqno descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot<'a> {
    pub(super) key: &'a [u8],
    pub(super) seqno: u64,
}

impl Spot<'_> {
    /// The position before every version of `key`.
    pub(super) fn first(key: &[u8]) -> Spot<'_> {
        Spot { key, seqno: u64::MAX }
    }

    /// The position of the oldest possible version of `key`.
    pub(super) fn last(key: &[u8]) -> Spot<'_> {
        Spot { key, seqno: 0 }
    }
}

impl Ord for Spot<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(other.key).then_with(|| other.seqno.cmp(&self.seqno))
    }
}

impl PartialOrd for Spot<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
impl Entry {
    pub(super) fn spot(&self) -> Spot<'_> {
        Spot { key: &self.key, seqno: self.seqno }
    }
}
