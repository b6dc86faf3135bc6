//! Newtypes, so that two plain integers cannot be confused.

use std::fmt;

use annals_text::hex::HexDisplay;
use serde::{Deserialize, Serialize};

/// A record's position in the order of a store; the first record has 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Seqno(pub u64);

/// A log file. The writer numbers segments from 1, compaction from [`SegmentId::REWRITTEN_MIN`]; no number is
/// reused. The numbers do not give the order of the log: the manifest lists the segments in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// The first number of a rewritten segment.
    pub const REWRITTEN_MIN: u32 = 1 << 31;

    /// Whether compaction wrote it.
    pub fn is_rewritten(self) -> bool {
        self.0 >= Self::REWRITTEN_MIN
    }
}

/// The random identity of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct StoreId(pub [u8; 16]);

/// A tenant. Every key of the index starts with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespaceId(pub u32);

/// BLAKE3 of a blob's raw bytes, as `b3sum` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlobId(pub [u8; 32]);

impl BlobId {
    /// The id of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

/// The number of an id's first bytes that a record may hold instead of the whole id.
pub const ID_FRONT_BYTES: usize = 8;

/// A blob's id as a record holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordedId {
    /// All 32 bytes.
    Whole(BlobId),
    /// The first eight bytes. The link of the frame that names the blob proves the other bytes.
    Front([u8; ID_FRONT_BYTES]),
}

impl RecordedId {
    /// The first bytes only.
    #[must_use]
    pub fn front(self) -> Self {
        match self {
            Self::Whole(id) => Self::Front(id.0.first_chunk().copied().unwrap_or_default()),
            front => front,
        }
    }

    /// The whole id, if the record holds it.
    #[must_use]
    pub fn whole(self) -> Option<BlobId> {
        match self {
            Self::Whole(id) => Some(id),
            Self::Front(_) => None,
        }
    }

    /// Whether this is `id`, as far as the record holds it.
    #[must_use]
    pub fn fits(self, id: BlobId) -> bool {
        match self {
            Self::Whole(whole) => whole == id,
            Self::Front(front) => id.0.starts_with(&front),
        }
    }
}

impl From<BlobId> for RecordedId {
    fn from(id: BlobId) -> Self {
        Self::Whole(id)
    }
}

impl fmt::Display for RecordedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(id) => id.fmt(f),
            Self::Front(front) => HexDisplay(front).fmt(f),
        }
    }
}

impl fmt::Debug for RecordedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A node of the ledger's tree; the root is one too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeHash(pub [u8; 32]);

/// Position of a record: segment, byte offset, length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    pub segment: SegmentId,
    pub offset: u32,
    pub len: u32,
}

/// Writes newtypes of bytes as hexadecimal digits.
macro_rules! written_as_hex {
    ($($form:ident $id:ident;)*) => {$(
        impl fmt::$form for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&HexDisplay(&self.0), f)
            }
        }
    )*};
}

written_as_hex! {
    Display BlobId;
    Debug BlobId;
    Display NodeHash;
    Debug NodeHash;
    Display StoreId;
}

impl fmt::Display for Seqno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
