//! Bodies in the log: decoding groups, putting bodies together, checking them against their ids.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crate::blob::{
    Anchor, BODY_BYTES_MAX, Codec, Extent, GROUP_BYTES_MAX, GroupId, anchors_of, assemble, decode_group,
    decode_recipe,
};
use crate::codec::CodecError;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlobId, NamespaceId, Place, Seqno, StoreId};
use crate::kv::core::Core;
use crate::kv::keys;
use crate::kv::table::Entry;
use crate::log::layout::RawRecord;
use crate::log::record::{GroupPart, Kind, RecipeRef};
use crate::log::segments::{Segments, lock};

/// Decoded groups, the least recently used dropped first.
#[derive(Debug)]
pub(crate) struct GroupCache {
    bytes_max: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    groups: HashMap<u64, (Arc<Vec<u8>>, u64)>,
    bytes: usize,
    clock: u64,
}

impl GroupCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, held: Mutex::default() }
    }

    fn get(&self, id: GroupId, len_min: usize) -> Option<Arc<Vec<u8>>> {
        let mut held = lock(&self.held);
        held.clock += 1;
        let now = held.clock;
        let (raw, used) = held.groups.get_mut(&id.0)?;
        *used = now;
        (raw.len() >= len_min).then(|| raw.clone())
    }

    fn put(&self, id: GroupId, raw: &Arc<Vec<u8>>) {
        let mut held = lock(&self.held);
        held.clock += 1;
        let now = held.clock;
        held.bytes += raw.len();
        if let Some((old, _)) = held.groups.insert(id.0, (raw.clone(), now)) {
            held.bytes -= old.len();
        }
        while held.bytes > self.bytes_max && held.groups.len() > 1 {
            let Some(oldest) = held.groups.iter().min_by_key(|(_, (_, used))| *used).map(|(id, _)| *id)
            else {
                break;
            };
            if let Some((raw, _)) = held.groups.remove(&oldest) {
                held.bytes -= raw.len();
            }
        }
    }

    /// Forgets everything, so that the next read is cold.
    pub(crate) fn clear(&self) {
        *lock(&self.held) = Held::default();
    }
}

/// The raw bytes of a group of a namespace, at least `len_min` of them.
///
/// # Errors
/// `Damaged` where the group is missing, shorter, another namespace's, or does not decode.
pub(crate) fn group(
    core: &Core,
    namespace: NamespaceId,
    id: GroupId,
    len_min: usize,
) -> Result<Arc<Vec<u8>>> {
    if let Some(raw) = core.groups.get(id, len_min) {
        return Ok(raw);
    }
    let missing = || {
        Error::new(ErrorKind::Damaged, format!("group {} is named by a recipe and is not in the log", id.0))
    };
    let value = core.index.newest(&keys::group(id.0))?.ok_or_else(missing)?;
    let mut place = keys::place(value);
    let segment = core.segment(place.segment)?;
    let mut parts: Vec<(Codec, u32, u32, Vec<u8>)> = Vec::new();
    loop {
        let before = segment.record(place, |record| {
            let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
            if Kind::parse(record.kind, record.layout).map_err(|e| wrong(e.to_string()))?
                != Some(Kind::GroupPart)
            {
                return Err(wrong("a group part is expected here".into()));
            }
            let part = GroupPart::parse(record.body).map_err(|e| wrong(e.to_string()))?;
            if part.group != id.0 || part.namespace != namespace {
                return Err(wrong(format!("this part belongs to group {}, not {}", part.group, id.0)));
            }
            let codec = Codec::from_code(part.codec).map_err(|e| wrong(e.to_string()))?;
            let follows = parts
                .last()
                .is_none_or(|(_, start, _, _)| part.raw_start.checked_add(part.raw_len) == Some(*start));
            let fits = part.raw_len > 0
                && u64::from(part.raw_start) + u64::from(part.raw_len) <= GROUP_BYTES_MAX as u64;
            if !fits
                || !follows
                || part.before_offset >= place.offset
                || (part.before_offset == 0) != (part.raw_start == 0)
            {
                return Err(wrong("the parts of a group do not follow each other".into()));
            }
            parts.push((codec, part.raw_start, part.raw_len, part.encoded.to_vec()));
            Ok((part.before_offset, part.before_len))
        })?;
        if before.0 == 0 {
            break;
        }
        place = Place { offset: before.0, len: before.1, ..place };
    }
    let encoded = parts.iter().rev().map(|(codec, _, raw_len, bytes)| (*codec, *raw_len, bytes.as_slice()));
    let raw = decode_group(encoded).map_err(|e| Error::damaged(&segment.path, u64::from(place.offset), e))?;
    if raw.len() < len_min {
        return Err(missing());
    }
    let raw = Arc::new(raw);
    core.groups.put(id, &raw);
    Ok(raw)
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
    check_len(extents, len, id)?;
    let mut failed = None;
    let bytes = assemble(extents, |wanted| match group(core, namespace, wanted, reach(extents, wanted)) {
        Ok(raw) => Some(raw),
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    match (bytes, failed) {
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(Error::with_source(
            ErrorKind::Damaged,
            format!("blob {id} cannot be put together: {error}"),
            error,
        )),
        (Ok(bytes), None) if BlobId::of(&bytes) == id => Ok(bytes),
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

/// How much of a group these extents need.
fn reach(extents: &[Extent], group: GroupId) -> usize {
    extents
        .iter()
        .filter(|e| e.group == group)
        .map(|e| e.end() as usize)
        .max()
        .unwrap_or(0)
        .min(GROUP_BYTES_MAX)
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

/// Makes anchors again while the log is read. A group's parts are noted until no more can follow, or too many groups are
/// open, and then decoded from the log.
///
/// Anchors are a cache, and decoding is what costs most in reading a log. So where the tables are there, and only the log's
/// end is read, the newest groups alone are decoded, and only once all has been read.
#[derive(Debug)]
pub(crate) struct AnchorRebuild {
    store: StoreId,
    segments: Arc<Segments>,
    /// Only the newest groups count.
    newest: bool,
    /// By when a part of them came last.
    open: BTreeMap<u64, OpenGroup>,
    /// When each open group's last part came.
    touched: HashMap<u64, u64>,
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
    place: Place,
    raw_len: u32,
    seqno: Seqno,
}

/// A part this large is taken for a piece of a large body, of which fewer anchors are kept.
const LARGE_PART_BYTES: usize = 128 << 10;
/// Groups whose parts are held while reading the log.
const REBUILD_GROUPS_MAX: usize = 32;
/// Raw bytes of the newest groups that are decoded where only the log's end is read.
const REBUILD_NEWEST_BYTES: usize = 64 << 20;

impl AnchorRebuild {
    /// For a log of which only the end is read (`newest`), or all.
    pub(crate) fn new(store: StoreId, segments: &Arc<Segments>, newest: bool) -> Self {
        Self {
            store,
            segments: segments.clone(),
            newest,
            open: BTreeMap::new(),
            touched: HashMap::new(),
            clock: 0,
            raw_bytes: 0,
        }
    }

    /// Notes a record, if it is a group part.
    pub(crate) fn note(
        &mut self,
        record: &RawRecord<'_>,
        place: Place,
        seqno: Seqno,
    ) -> std::result::Result<(), CodecError> {
        if Kind::parse(record.kind, record.layout)? == Some(Kind::GroupPart) {
            self.part(&GroupPart::parse(record.body)?, place, seqno);
        }
        Ok(())
    }

    /// Adds the anchors of groups that are done.
    pub(crate) fn settle(&mut self, entries: &mut Vec<Entry>) {
        while self.open.len() > REBUILD_GROUPS_MAX && !self.newest {
            self.close_oldest(Some(entries));
        }
        while self.raw_bytes > REBUILD_NEWEST_BYTES && self.newest {
            self.close_oldest(None);
        }
    }

    fn part(&mut self, part: &GroupPart<'_>, place: Place, seqno: Seqno) {
        let held = self.touched.remove(&part.group).and_then(|clock| self.open.remove(&clock));
        let mut group = match held {
            Some(group) => group,
            None if part.raw_start == 0 => {
                OpenGroup { id: part.group, namespace: part.namespace, parts: Vec::new(), raw_len: 0 }
            }
            // Its first parts were not seen: its anchors stay unknown, which costs room and nothing else.
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
        self.touched.insert(group.id, self.clock);
        self.open.insert(self.clock, group);
    }

    fn close_oldest(&mut self, entries: Option<&mut Vec<Entry>>) {
        let Some((_, group)) = self.open.pop_first() else { return };
        self.touched.remove(&group.id);
        self.raw_bytes -= group.raw_len;
        if let Some(entries) = entries {
            group.anchors(self.store, &self.segments, entries);
        }
    }

    /// Adds the anchors of what is still held, the oldest first; `each` takes them a group at a time.
    pub(crate) fn finish(mut self, mut each: impl FnMut(&mut Vec<Entry>)) {
        let mut entries = Vec::new();
        while !self.open.is_empty() {
            self.close_oldest(Some(&mut entries));
            each(&mut entries);
        }
    }
}

impl OpenGroup {
    fn anchors(&self, store: StoreId, segments: &Segments, entries: &mut Vec<Entry>) {
        // A group that cannot be read or does not decode is met, and reported, by whoever reads it.
        let Some(raw) = self.decode(segments) else { return };
        let seed = anchor_seed(store, self.namespace);
        let mut start = 0;
        for NotedPart { raw_len, seqno, .. } in &self.parts {
            let end = start + *raw_len as usize;
            let sparse = *raw_len as usize >= LARGE_PART_BYTES;
            for (key, at) in anchors_of(raw.get(start..end).unwrap_or(&[]), seed) {
                if sparse && !keys::kept_of_large_bodies(key) {
                    continue;
                }
                let offset = u32::try_from(start + at).unwrap_or(u32::MAX);
                let found = Anchor { key, group: GroupId(self.id), offset };
                let entry = keys::anchor_entry(self.namespace, &found, *seqno);
                // The others would last until the next table and take four times the memory.
                if keys::kept_in_tables(&entry.key) {
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
            let noted = segment.record(part.place, |record| {
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
pub(crate) fn anchor_seed(store: StoreId, namespace: NamespaceId) -> crate::blob::AnchorSeed {
    let mut hasher = blake3::Hasher::new_derive_key("annals anchors of a namespace");
    hasher.update(&store.0);
    hasher.update(&namespace.0.to_le_bytes());
    let mut seed = [0; 8];
    hasher.finalize_xof().fill(&mut seed);
    crate::blob::AnchorSeed(u64::from_le_bytes(seed))
}
