//! The words of the blob floor: groups, extents, bodies, anchors, and their limits.

use std::sync::Arc;

use super::{BlobError, TreeHash};

/// Most raw bytes in a group: what a cold read of one small blob may have to decode.
pub const GROUP_BYTES_MAX: usize = 256 * 1024;

/// Most bytes in one body.
pub const BODY_BYTES_MAX: u64 = u32::MAX as u64;

/// Most extents in one recipe, so that a hostile recipe cannot ask for unbounded memory.
pub const EXTENTS_MAX: usize = 1 << 22;

/// Names a group within a store; never used twice, gaps are allowed.
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
    /// The offset one past the last byte; saturates on an extent that no decoder lets through.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.offset.saturating_add(self.len)
    }

    /// Whether `next` begins in the same group where this one ends.
    #[must_use]
    pub fn meets(&self, next: &Self) -> bool {
        self.group == next.group && self.end() == next.offset
    }
}

/// How the encoded bytes of a part stand for its raw bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    /// Encoded bytes are the raw bytes.
    Raw,
    /// A slice of one Zstandard frame (RFC 8878), flushed at the part's end and never ended.
    Zstd,
}

impl Codec {
    /// The byte that stands for the codec on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Zstd => 1,
        }
    }

    /// The codec of a byte read from disk.
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

/// Keys the anchors of one namespace, so that another namespace's keys say nothing about it.
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
pub struct Body {
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
    /// The extents whose concatenation they are.
    pub extents: Arc<Vec<Extent>>,
    /// What of their hash the next body may keep.
    pub hash: Arc<TreeHash>,
}

/// Most bytes that are set aside for a body before any of it is there: what a recipe says may not be so.
const RESERVED_MAX: u64 = 16 << 20;

/// Puts a body together from its extents; `group` gives the decoded raw bytes of an extent's group, up to the
/// extent's end at least.
///
/// The caller hashes the result: see the module's header.
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
