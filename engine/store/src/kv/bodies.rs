//! Bodies in the log: assembled from their extents and checked against their ids.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::blob::{
    Anchor, BODY_BYTES_MAX, Codec, Extent, GROUP_BYTES_MAX, GroupId, anchors_of, assemble, decode_group,
    decode_recipe,
};
use crate::codec::CodecError;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, RecordPlace, RecordedId, Seqno, StoreId};
pub use crate::kv::groups::whole_group;
use crate::kv::groups::{DecodeScope, group_for_extent};
use crate::kv::keys;
use crate::kv::store_reader::StoreReader;
use crate::kv::table::IndexEntry;
use crate::log::layout::RawRecord;
use crate::log::record::{GroupPart, RecipeRef, RecordKind};
use crate::log::segments::Segments;

/// Whether a body's bytes are hashed and compared with its id before they are handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashCheck {
    /// They are hashed and compared.
    Compared,
    /// They are not: the caller accepts the records' checksums as enough.
    Skipped,
}

/// Reads a body from its extents, and checks it against its length and id.
///
/// # Errors
/// `Damaged` if the bytes are not the ones that were stored.
pub fn read_body(
    core: &StoreReader,
    namespace: NamespaceId,
    extents: &[Extent],
    len: u64,
    id: RecordedId,
) -> Result<Vec<u8>> {
    let named = (len, id);
    read_body_with(core, namespace, extents, named, DecodeScope::UpToBody, HashCheck::Compared)
        .map(|(bytes, _)| bytes)
}

/// Like [`read_body`]. `named` gives length and id, `wanted` says how much of each group to decode, and
/// `hashing` whether to compare the hash. Also returns the whole id; `None` if the bytes were not hashed and
/// only the first bytes of the id are recorded.
///
/// # Errors
/// As [`read_body`].
pub fn read_body_with(
    core: &StoreReader,
    namespace: NamespaceId,
    extents: &[Extent],
    named: (u64, RecordedId),
    wanted: DecodeScope,
    hashing: HashCheck,
) -> Result<(Vec<u8>, Option<BlobId>)> {
    let (len, id) = named;
    check_len(extents, len, id)?;
    let mut failed = None;
    let bytes = assemble(extents, |extent| {
        group_for_extent(core, namespace, extent, extents, wanted).map_err(|error| failed = Some(error)).ok()
    });
    match (bytes, failed) {
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(Error::with_source(
            ErrorKind::Damaged,
            format!("blob {id} cannot be assembled: {error}"),
            error,
        )),
        (Ok(bytes), None) if hashing == HashCheck::Skipped => Ok((bytes, id.whole())),
        (Ok(bytes), None) => {
            let found = BlobId::of(&bytes);
            if id.fits(found) { Ok((bytes, Some(found))) } else { Err(hash_mismatch(id)) }
        }
    }
}

/// Refuses extents that do not add up to a body of this length.
pub fn check_len(extents: &[Extent], len: u64, id: RecordedId) -> Result<()> {
    let total: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
    if total != len || len > BODY_BYTES_MAX {
        return Err(Error::new(
            ErrorKind::Damaged,
            format!("blob {id} has {len} bytes, its recipe gives {total}"),
        ));
    }
    if len == 0 && !id.fits(BlobId::of(&[])) {
        return Err(hash_mismatch(id));
    }
    Ok(())
}

/// The error for stored bytes that do not hash to their id.
pub fn hash_mismatch(id: RecordedId) -> Error {
    Error::new(ErrorKind::Damaged, format!("the bytes stored for blob {id} do not hash to it"))
}

/// Decodes a recipe into extents. `base` returns the extents of the body that the recipe is coded against.
pub fn decode_extents(
    recipe: RecipeRef<'_>,
    base: impl FnOnce(u32) -> Result<Arc<Vec<Extent>>>,
) -> Result<Arc<Vec<Extent>>> {
    let base = match recipe.base_back {
        0 => None,
        back => Some(base(back)?),
    };
    let decoded = decode_recipe(recipe.recipe, base.as_deref().map(Vec::as_slice), recipe.body_len);
    decoded.map(Arc::new).map_err(|e| {
        Error::with_source(ErrorKind::Damaged, format!("a blob's recipe cannot be decoded: {e}"), e)
    })
}

/// Rebuilds anchors while the log is read. It notes a group's parts until no more can follow, or too many
/// groups are open. Then it decodes them from the log.
///
/// Anchors are a cache, and decoding is the most expensive part of reading a log. If tables exist and only
/// the log's end is read, only the newest groups are decoded, after everything was read.
#[derive(Debug)]
pub struct AnchorRebuild {
    store: StoreId,
    segments: Arc<Segments>,
    /// Decode only the newest groups.
    newest_only: bool,
    /// Open groups by the value of `clock` when their last part was noted.
    open: BTreeMap<u64, OpenGroup>,
    /// The value of `clock` when each open group's last part was noted.
    last_part_clock: HashMap<u64, u64>,
    clock: u64,
    raw_bytes: usize,
}

#[derive(Debug)]
struct OpenGroup {
    id: u64,
    namespace: NamespaceId,
    parts: Vec<NotedPart>,
    raw_len: usize,
}

#[derive(Debug)]
struct NotedPart {
    place: RecordPlace,
    raw_len: u32,
    seqno: Seqno,
}

/// A part of at least this many bytes counts as a piece of a large body, of which fewer anchors are kept.
const LARGE_PART_BYTES: usize = 128 << 10;
/// Maximum number of open groups while a whole log is read.
const REBUILD_GROUPS_MAX: usize = 32;
/// Maximum raw bytes of the newest groups that are decoded when only the log's end is read.
const REBUILD_NEWEST_BYTES: usize = 64 << 20;

impl AnchorRebuild {
    /// With `newest`, only the log's end is read; otherwise all of it.
    pub fn new(store: StoreId, segments: &Arc<Segments>, newest: bool) -> Self {
        Self {
            store,
            segments: segments.clone(),
            newest_only: newest,
            open: BTreeMap::new(),
            last_part_clock: HashMap::new(),
            clock: 0,
            raw_bytes: 0,
        }
    }

    /// Notes a record if it is a group part.
    pub fn note_record(
        &mut self,
        record: &RawRecord<'_>,
        place: RecordPlace,
        seqno: Seqno,
    ) -> std::result::Result<(), CodecError> {
        if RecordKind::parse(record.kind, record.layout)? == Some(RecordKind::GroupPart) {
            self.note_part(&GroupPart::parse(record.body)?, place, seqno);
        }
        Ok(())
    }

    /// Closes the groups over the limit, and adds their anchors if the whole log is read.
    pub fn close_excess_groups(&mut self, entries: &mut Vec<IndexEntry>) {
        while self.open.len() > REBUILD_GROUPS_MAX && !self.newest_only {
            self.close_oldest(Some(entries));
        }
        while self.raw_bytes > REBUILD_NEWEST_BYTES && self.newest_only {
            self.close_oldest(None);
        }
    }

    fn note_part(&mut self, part: &GroupPart<'_>, place: RecordPlace, seqno: Seqno) {
        let held = self.last_part_clock.remove(&part.group).and_then(|clock| self.open.remove(&clock));
        let mut group = match held {
            Some(group) => group,
            None if part.raw_start == 0 => {
                OpenGroup { id: part.group, namespace: part.namespace, parts: Vec::new(), raw_len: 0 }
            }
            // Its first parts were not seen. Its anchors stay unknown, which costs space and nothing else.
            None => return,
        };
        let follows = group.raw_len == part.raw_start as usize && part.namespace == group.namespace;
        if !follows || group.raw_len + part.raw_len as usize > GROUP_BYTES_MAX {
            self.raw_bytes -= group.raw_len;
            return;
        }
        group.raw_len += part.raw_len as usize;
        self.raw_bytes += part.raw_len as usize;
        group.parts.push(NotedPart { place, raw_len: part.raw_len, seqno });
        self.clock += 1;
        self.last_part_clock.insert(group.id, self.clock);
        self.open.insert(self.clock, group);
    }

    fn close_oldest(&mut self, entries: Option<&mut Vec<IndexEntry>>) {
        let Some((_, group)) = self.open.pop_first() else { return };
        self.last_part_clock.remove(&group.id);
        self.raw_bytes -= group.raw_len;
        if let Some(entries) = entries {
            group.put_anchors(self.store, &self.segments, entries);
        }
    }

    /// Adds the anchors of the groups that are still open, oldest first. Calls `each` after each group.
    pub fn finish(mut self, mut each: impl FnMut(&mut Vec<IndexEntry>)) {
        let mut entries = Vec::new();
        while !self.open.is_empty() {
            self.close_oldest(Some(&mut entries));
            each(&mut entries);
        }
    }
}

impl OpenGroup {
    fn put_anchors(&self, store: StoreId, segments: &Segments, entries: &mut Vec<IndexEntry>) {
        // A group that cannot be read or decoded is reported when a reader needs it.
        let Some(raw) = self.decode(segments) else { return };
        let seed = anchor_seed(store, self.namespace);
        let mut start = 0;
        for NotedPart { raw_len, seqno, .. } in &self.parts {
            let end = start + *raw_len as usize;
            let sparse = *raw_len as usize >= LARGE_PART_BYTES;
            for (key, at) in anchors_of(raw.get(start..end).unwrap_or(&[]), seed) {
                if sparse && !keys::is_kept_for_large_bodies(key) {
                    continue;
                }
                let offset = u32::try_from(start + at).unwrap_or(u32::MAX);
                let found = Anchor { key, group: GroupId(self.id), offset };
                let entry = keys::anchor_entry(self.namespace, &found, *seqno);
                // Tables drop the other anchors. Until the next table they would use four times the memory.
                if keys::is_kept_in_tables(&entry.key) {
                    entries.push(entry);
                }
            }
            start = end;
        }
    }

    fn decode(&self, segments: &Segments) -> Option<Vec<u8>> {
        let mut parts: Vec<(Codec, u32, Vec<u8>)> = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let segment = segments.get(part.place.segment).ok()?;
            let noted = segment.with_record(part.place, |record| {
                let found = GroupPart::parse(record.body).ok();
                Ok(found
                    .and_then(|found| Some((Codec::from_code(found.codec).ok()?, found.encoded.to_vec()))))
            });
            let (codec, encoded) = noted.ok()??;
            parts.push((codec, part.raw_len, encoded));
        }
        decode_group(parts.iter().map(|(codec, raw_len, bytes)| (*codec, *raw_len, bytes.as_slice()))).ok()
    }
}

/// The anchor seed of a namespace of a store.
pub fn anchor_seed(store: StoreId, namespace: NamespaceId) -> crate::blob::AnchorSeed {
    let mut hasher = blake3::Hasher::new_derive_key("annals anchors of a namespace");
    hasher.update(&store.0);
    hasher.update(&namespace.0.to_le_bytes());
    let mut seed = [0; 8];
    hasher.finalize_xof().fill(&mut seed);
    crate::blob::AnchorSeed(u64::from_le_bytes(seed))
}

#[cfg(test)]
mod tests;
