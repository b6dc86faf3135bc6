//! Bodies in the log: putting them together from their extents, checking them against their ids.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::blob::{
    Anchor, BODY_BYTES_MAX, Codec, Extent, GroupId, anchors_of, assemble, decode_group, decode_recipe,
};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, Seqno, StoreId};
use crate::kv::core::Core;
pub(crate) use crate::kv::groups::group;
use crate::kv::groups::{Wanted, group_of};
use crate::kv::keys;
use crate::kv::table::Entry;
use crate::log::cursor::for_each_record;
use crate::log::record::{GroupPart, Kind, RecipeRef};
use crate::log::segments::Segment;

/// Whether a body's bytes are hashed and compared with its id before they are handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hashing {
    /// They are.
    Compared,
    /// The caller said that the records' checksums are enough.
    LeftOut,
}

/// A body from its extents, checked against its length and id.
///
/// # Errors
/// `Damaged` where the bytes are not the ones that were stored.
pub(crate) fn body(
    core: &Core,
    namespace: NamespaceId,
    extents: &[Extent],
    len: u64,
    id: BlobId,
) -> Result<Vec<u8>> {
    body_with(core, namespace, extents, (len, id), Wanted::Reach, Hashing::Compared)
}

/// The same, of length and id `named`, with as much of each group decoded as is `wanted`, and hashed or not.
///
/// # Errors
/// As [`body`].
pub(crate) fn body_with(
    core: &Core,
    namespace: NamespaceId,
    extents: &[Extent],
    named: (u64, BlobId),
    wanted: Wanted,
    hashing: Hashing,
) -> Result<Vec<u8>> {
    let (len, id) = named;
    check_len(extents, len, id)?;
    let mut failed = None;
    let bytes = assemble(extents, |extent| {
        group_of(core, namespace, extent, extents, wanted).map_err(|error| failed = Some(error)).ok()
    });
    match (bytes, failed) {
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(Error::with_source(
            ErrorKind::Damaged,
            format!("blob {id} cannot be put together: {error}"),
            error,
        )),
        (Ok(bytes), None) if hashing == Hashing::LeftOut || BlobId::of(&bytes) == id => Ok(bytes),
        (Ok(_), None) => Err(mismatch(id)),
    }
}

/// Refuses extents that do not make a body of this length.
pub(crate) fn check_len(extents: &[Extent], len: u64, id: BlobId) -> Result<()> {
    let total: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
    if total != len || len > BODY_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::Damaged,
            format!("blob {id} has {len} bytes, its recipe gives {total}"),
        ));
    }
    if len == 0 && id != BlobId::of(&[]) {
        return Err(mismatch(id));
    }
    Ok(())
}

/// What a reader is told when bytes do not hash to their id.
pub(crate) fn mismatch(id: BlobId) -> Error {
    Error::new(ErrorKind::Damaged, format!("the bytes stored for blob {id} do not hash to it"))
}

/// The extents that a recipe codes; `base` gives those of the body it is coded against.
pub(crate) fn extents(
    recipe: RecipeRef<'_>,
    base: impl FnOnce(u32) -> Result<Arc<Vec<Extent>>>,
) -> Result<Arc<Vec<Extent>>> {
    let base = match recipe.base_back {
        0 => None,
        back => Some(base(back)?),
    };
    let decoded = decode_recipe(recipe.recipe, base.as_deref().map(Vec::as_slice));
    decoded.map(Arc::new).map_err(|e| {
        Error::with_source(ErrorKind::Damaged, format!("a recipe is not what was written: {e}"), e)
    })
}

/// Makes anchors again while the log is read without tables. A group's parts are kept until no more can follow, or
/// too many groups are open.
#[derive(Debug, Default)]
pub(crate) struct AnchorRebuild {
    open: VecDeque<OpenGroup>,
}

#[derive(Debug)]
struct OpenGroup {
    id: u64,
    namespace: NamespaceId,
    parts: Vec<(Codec, u32, Vec<u8>, Seqno)>,
    raw_len: usize,
}

/// A part this large is taken for a piece of a large body, of which fewer anchors are kept.
const LARGE_PART_BYTES: usize = 128 << 10;
/// Groups whose parts are held while reading the log.
const REBUILD_GROUPS_MAX: usize = 32;

impl AnchorRebuild {
    /// Takes in the group parts of a batch; adds the anchors of groups that are done.
    pub(crate) fn batch(
        &mut self,
        seed: impl Fn(NamespaceId) -> crate::blob::AnchorSeed,
        whole: &[u8],
        offset: u64,
        segment: &Segment,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        for_each_record(whole, offset, segment.salt, |_, seqno, record| {
            if Kind::parse(record.kind, record.layout)? == Some(Kind::GroupPart) {
                let part = GroupPart::parse(record.body)?;
                self.part(&part, seqno);
            }
            Ok(())
        })
        .map_err(|e| Error::damaged(&segment.path, offset, e))?;
        while self.open.len() > REBUILD_GROUPS_MAX {
            if let Some(group) = self.open.pop_front() {
                group.anchors(seed(group.namespace), entries);
            }
        }
        Ok(())
    }

    fn part(&mut self, part: &GroupPart<'_>, seqno: Seqno) {
        let Ok(codec) = Codec::from_code(part.codec) else { return };
        let held = self.open.iter().position(|group| group.id == part.group);
        let mut group = match held.and_then(|index| self.open.remove(index)) {
            Some(group) => group,
            None if part.raw_start == 0 => {
                OpenGroup { id: part.group, namespace: part.namespace, parts: Vec::new(), raw_len: 0 }
            }
            // Its first parts were not seen: its anchors stay unknown, which costs room and nothing else.
            None => return,
        };
        if group.raw_len == part.raw_start as usize {
            group.raw_len += part.raw_len as usize;
            group.parts.push((codec, part.raw_len, part.encoded.to_vec(), seqno));
            self.open.push_back(group);
        }
    }

    /// Adds the anchors of what is still held.
    pub(crate) fn finish(
        self,
        seed: impl Fn(NamespaceId) -> crate::blob::AnchorSeed,
        entries: &mut Vec<Entry>,
    ) {
        for group in &self.open {
            group.anchors(seed(group.namespace), entries);
        }
    }
}

impl OpenGroup {
    fn anchors(&self, seed: crate::blob::AnchorSeed, entries: &mut Vec<Entry>) {
        let parts =
            self.parts.iter().map(|(codec, raw_len, encoded, _)| (*codec, *raw_len, encoded.as_slice()));
        // A group that does not decode is met, and reported, by whoever reads it.
        let Ok(raw) = decode_group(parts) else { return };
        let mut start = 0;
        for (_, raw_len, _, seqno) in &self.parts {
            let end = start + *raw_len as usize;
            let sparse = *raw_len as usize >= LARGE_PART_BYTES;
            for (key, at) in anchors_of(raw.get(start..end).unwrap_or(&[]), seed) {
                if sparse && !keys::kept_of_large_bodies(key) {
                    continue;
                }
                let offset = u32::try_from(start + at).unwrap_or(u32::MAX);
                let found = Anchor { key, group: GroupId(self.id), offset };
                entries.push(keys::anchor_entry(self.namespace, &found, *seqno));
            }
            start = end;
        }
    }
}

/// The anchor seed of a namespace of a store.
pub(crate) fn anchor_seed(store: StoreId, namespace: NamespaceId) -> crate::blob::AnchorSeed {
    let mut hasher = blake3::Hasher::new_derive_key("annals anchors of a namespace");
    hasher.update(&store.0);
    hasher.update(&namespace.0.to_le_bytes());
    let mut seed = [0; 8];
    hasher.finalize_xof().fill(&mut seed);
    crate::blob::AnchorSeed(u64::from_le_bytes(seed))
}
