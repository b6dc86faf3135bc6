//! The entries of a table, and their order.

use std::cmp::Ordering;

/// One index entry: a version of a key and where it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// At most `KEY_LEN_MAX` bytes; may be empty.
    pub key: Vec<u8>,
    /// The seqno with which the version was written.
    pub seqno: u64,
    /// What the version points at.
    pub value: IndexValue,
}

/// What a key's version points at. Opaque to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexValue {
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
pub struct TableCoverage {
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
    pub covers: TableCoverage,
}

/// A position in the order of entries: key ascending, then seqno descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VersionKey<'a> {
    pub(super) key: &'a [u8],
    pub(super) seqno: u64,
}

impl VersionKey<'_> {
    /// The position before every version of `key`.
    pub(super) fn newest_of(key: &[u8]) -> VersionKey<'_> {
        VersionKey { key, seqno: u64::MAX }
    }

    /// The position of the oldest possible version of `key`.
    pub(super) fn oldest_of(key: &[u8]) -> VersionKey<'_> {
        VersionKey { key, seqno: 0 }
    }
}

impl Ord for VersionKey<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(other.key).then_with(|| other.seqno.cmp(&self.seqno))
    }
}

impl PartialOrd for VersionKey<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
impl IndexEntry {
    pub(super) fn version_key(&self) -> VersionKey<'_> {
        VersionKey { key: &self.key, seqno: self.seqno }
    }
}
