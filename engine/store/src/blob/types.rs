//! The types of the blob module: groups, extents, bodies, anchors, and their limits.

use std::sync::Arc;

use super::{BlobError, TreeHash};

/// Maximum raw bytes of a group: the most that a cold read of one small blob has to decode.
pub const GROUP_BYTES_MAX: usize = 256 * 1024;

/// Maximum bytes of one body.
pub const BODY_BYTES_MAX: u64 = u32::MAX as u64;

/// Maximum extents of one recipe, so that a hostile recipe cannot demand unbounded memory.
pub const EXTENTS_MAX: usize = 1 << 22;

/// Identifies a group within a store; never reused, gaps are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u64);

/// A range of a group's raw bytes, never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The group.
    pub group: GroupId,
    /// First byte, counted in the group's raw bytes.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Extent {
    /// The offset one past the last byte; saturates for an invalid extent.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.offset.saturating_add(self.len)
    }

    /// Whether `next` begins in the same group where this extent ends.
    #[must_use]
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.group == next.group && self.end() == next.offset
    }
}

/// How a part's raw bytes are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// The encoded bytes are the raw bytes.
    Raw,
    /// A slice of one Zstandard frame (RFC 8878), flushed at the part's end and never ended.
    Zstd,
}

impl Codec {
    /// The byte of the codec on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
        }
    }

    /// The codec for a byte from disk.
    ///
    /// # Errors
    /// [`BlobError::UnknownCodec`].
    pub fn from_code(code: u8) -> Result<Self, BlobError> {
        match code {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Zstd),
            found => Err(BlobError::UnknownCodec { found }),
        }
    }
}

/// Seeds the anchors of one namespace, so that its keys reveal nothing about another namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnchorSeed(pub u64);

/// 48-bit hash of a window of raw bytes; the upper 16 bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AnchorKey(pub u64);

/// Where a window of raw bytes begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// Hash of the window.
    pub key: AnchorKey,
    /// The group that holds it.
    pub group: GroupId,
    /// The window's first byte in the group's raw bytes.
    pub offset: u32,
}

/// A body with the extents that make it; cheap to clone.
#[derive(Clone, Debug)]
pub struct LaneBody {
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
    /// The extents that concatenate to the bytes.
    pub extents: Arc<Vec<Extent>>,
    /// The hash tree, which the next body partly reuses.
    pub hash: Arc<TreeHash>,
}

/// Maximum bytes reserved for a body before any of it was read: the length in a recipe may be wrong.
const RESERVED_MAX: u64 = 16 << 20;

/// Assembles a body from its extents. `group` returns the decoded raw bytes of an extent's group, at least up
/// to the extent's end.
///
/// The caller must hash the result: see the module documentation.
///
/// # Errors
/// [`BlobError::MissingGroup`] or [`BlobError::OutsideGroup`]; [`BlobError::BodyTooLong`].
pub fn assemble(
    extents: &[Extent],
    mut group: impl FnMut(&Extent) -> Option<Arc<Vec<u8>>>,
) -> Result<Vec<u8>, BlobError> {
    let len: u64 = extents.iter().map(|e| u64::from(e.len)).sum();
    if len > BODY_BYTES_MAX {
        return Err(BlobError::BodyTooLong { found: len, most: BODY_BYTES_MAX });
    }
    let mut out = Vec::with_capacity(usize::try_from(len.min(RESERVED_MAX)).unwrap_or_default());
    let mut last: Option<(GroupId, Arc<Vec<u8>>)> = None;
    for e in extents {
        let raw = match &last {
            Some((id, raw)) if *id == e.group && raw.len() >= e.end() as usize => raw,
            _ => {
                let raw = group(e).ok_or(BlobError::MissingGroup { group: e.group })?;
                &last.insert((e.group, raw)).1
            }
        };
        let range = raw.get(e.offset as usize..e.end() as usize).ok_or(BlobError::OutsideGroup {
            group: e.group,
            offset: e.offset,
            len: e.len,
            raw_len: raw.len(),
        })?;
        out.extend_from_slice(range);
    }
    Ok(out)
}
