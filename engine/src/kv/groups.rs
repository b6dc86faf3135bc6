//! Groups in the log: finding a group's parts, decoding as much of it as is wanted, keeping what was decoded.
//!
//! A group's parts stand in one segment, each naming the one before it, so they are walked from the last to the
//! first. Of a sealed segment they are decoded where they stand in its map; of the active one they are read
//! ahead, since the parts before usually stand just before.
//!
//! Invariant: what is cached is the decoded front of a group of that namespace, whole or up to where it was wanted.

use std::ops::Range;
use std::sync::Arc;

use crate::blob::{Codec, Extent, GROUP_BYTES_MAX, GroupDecoder, GroupId};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{NamespaceId, Place};
use crate::kv::cache::Cache;
use crate::kv::core::Core;
use crate::kv::keys;
use crate::log::record::{GroupPart, Kind};
use crate::log::segments::{Segment, lock};
use crate::sync::Mutex;

/// Decoders kept for the next group.
const DECODERS_MAX: usize = 4;
/// Groups share this many locks.
const DECODING_LOCKS: usize = 16;
/// Most bytes read ahead of a part of the active segment.
const AHEAD_BYTES_MAX: u64 = 128 << 10;

/// Decoded groups, bounded by their bytes, and decoders to decode more.
#[derive(Debug)]
pub(crate) struct GroupCache {
    decoded: Cache<(NamespaceId, GroupId), Decoded>,
    decoders: Mutex<Vec<GroupDecoder>>,
    /// Held while a group is decoded, so that no other thread decodes the same one beside it.
    decoding: [Mutex<()>; DECODING_LOCKS],
}

#[derive(Debug, Clone)]
struct Decoded {
    raw: Arc<Vec<u8>>,
    /// There was no more of it when it was decoded.
    whole: bool,
}

/// How much of a group to decode, where it has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it: what comes next is going to ask for the rest.
    Whole,
    /// No more than the body at hand has of it.
    Reach,
}

impl GroupCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { decoded: Cache::new(bytes_max), decoders: Mutex::default(), decoding: Default::default() }
    }

    fn get(&self, namespace: NamespaceId, id: GroupId) -> Option<Decoded> {
        self.decoded.get(&(namespace, id))
    }

    fn put(&self, namespace: NamespaceId, id: GroupId, found: Decoded) {
        let bytes = found.raw.capacity();
        self.decoded.put((namespace, id), found, bytes);
    }

    /// Takes in a group that its writer has filled: all of its raw bytes.
    pub(crate) fn put_filled(&self, namespace: NamespaceId, id: GroupId, raw: Arc<Vec<u8>>) {
        self.put(namespace, id, Decoded { raw, whole: true });
    }

    /// Forgets everything, so that the next read is cold.
    pub(crate) fn clear(&self) {
        self.decoded.clear();
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.decoded.bytes()
    }
}

/// The raw bytes of a whole group of a namespace, at least `len_min` of them.
///
/// # Errors
/// `Damaged` where the group is missing, shorter, another namespace's, or does not decode.
pub(crate) fn group(
    core: &Core,
    namespace: NamespaceId,
    id: GroupId,
    len_min: usize,
) -> Result<Arc<Vec<u8>>> {
    find(core, namespace, id, len_min, true, |_| GROUP_BYTES_MAX)
}

/// The raw bytes of the group of `extent`, which is one of `extents`, at least up to its end.
///
/// # Errors
/// As [`group`].
pub(crate) fn group_of(
    core: &Core,
    namespace: NamespaceId,
    extent: &Extent,
    extents: &[Extent],
    wanted: Wanted,
) -> Result<Arc<Vec<u8>>> {
    let end = extent.end() as usize;
    find(core, namespace, extent.group, end, false, |shorter| match wanted {
        Wanted::Reach if !shorter => reach(extents, extent.group).max(end),
        // More of it is wanted than before: what is wanted next may be more again.
        _ => GROUP_BYTES_MAX,
    })
}

/// At least `len_min` bytes of a group out of the cache, or decoded as far as `upto` says, which is told whether the
/// cache has fewer.
fn find(
    core: &Core,
    namespace: NamespaceId,
    id: GroupId,
    len_min: usize,
    whole: bool,
    upto: impl FnOnce(bool) -> usize,
) -> Result<Arc<Vec<u8>>> {
    let enough = |known: &Decoded| known.raw.len() >= len_min && (known.whole || !whole);
    if let Some(known) = core.groups.get(namespace, id).filter(enough) {
        return Ok(known.raw);
    }
    let _decoding = core.groups.decoding.get(id.0 as usize % DECODING_LOCKS).map(lock);
    match core.groups.get(namespace, id) {
        // Another thread was faster.
        Some(known) if enough(&known) => Ok(known.raw),
        known => load(core, namespace, id, upto(known.is_some()), len_min),
    }
}

/// How much of a group these extents need.
fn reach(extents: &[Extent], group: GroupId) -> usize {
    extents.iter().filter(|e| e.group == group).map(|e| e.end() as usize).max().unwrap_or(0)
}

/// One part of a group: what it says of itself, and where its encoded bytes were read to.
#[derive(Debug)]
struct Part {
    codec: Codec,
    raw_start: u32,
    raw_len: u32,
    window: usize,
    encoded: Range<usize>,
}

/// Decodes the parts that have the first `reach` bytes, and refuses a group with less than `len_min`.
fn load(
    core: &Core,
    namespace: NamespaceId,
    id: GroupId,
    reach: usize,
    len_min: usize,
) -> Result<Arc<Vec<u8>>> {
    let missing = || {
        Error::new(ErrorKind::Damaged, format!("group {} is named by a recipe and is not in the log", id.0))
    };
    let _pin = core.pin();
    let value = core.index.newest(&keys::group(id.0))?.ok_or_else(missing)?;
    let place = keys::place(value);
    let segment = core.segment(place.segment)?;
    let mut windows = Windows { segment: &segment, map: segment.mapped(), read: Vec::new() };
    let parts = walk(&mut windows, place, namespace, id)?;
    let front = parts.iter().rev().take_while(|part| (part.raw_start as usize) < reach);
    let encoded = front.map(|part| (part.codec, part.raw_len, windows.get(part.window, &part.encoded)));
    let mut decoder = lock(&core.groups.decoders).pop().unwrap_or_default();
    let raw = decoder.decode(encoded);
    {
        let mut decoders = lock(&core.groups.decoders);
        if decoders.len() < DECODERS_MAX {
            decoders.push(decoder);
        }
    }
    let raw = raw.map_err(|e| Error::damaged(&segment.path, u64::from(place.offset), e))?;
    if raw.len() < len_min {
        return Err(missing());
    }
    let whole = parts.first().is_none_or(|last| raw.len() == (last.raw_start + last.raw_len) as usize);
    let raw = Arc::new(raw);
    core.groups.put(namespace, id, Decoded { raw: raw.clone(), whole });
    Ok(raw)
}

/// The parts of a group, the last first, from the place of the last.
fn walk(windows: &mut Windows<'_>, last: Place, namespace: NamespaceId, id: GroupId) -> Result<Vec<Part>> {
    let segment = windows.segment;
    let mut parts: Vec<Part> = Vec::new();
    let (mut place, mut ahead) = (last, 0);
    loop {
        let wrong = |what: String| Error::damaged(&segment.path, u64::from(place.offset), what);
        let (window, record_at) = windows.find(place, ahead)?;
        let record = segment.check(place, windows.get(window, &record_at))?;
        if Kind::parse(record.kind, record.layout).map_err(|e| wrong(e.to_string()))? != Some(Kind::GroupPart)
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
            .is_none_or(|after| part.raw_start.checked_add(part.raw_len) == Some(after.raw_start));
        let fits =
            part.raw_len > 0 && u64::from(part.raw_start) + u64::from(part.raw_len) <= GROUP_BYTES_MAX as u64;
        let before_end = u64::from(part.before_offset) + u64::from(part.before_len);
        if !fits
            || !follows
            || before_end > u64::from(place.offset)
            || (part.before_offset == 0) != (part.raw_start == 0)
        {
            return Err(wrong("the parts of a group do not follow each other".into()));
        }
        // The encoded bytes end where the record does.
        let encoded = record_at.end - part.encoded.len()..record_at.end;
        parts.push(Part { codec, raw_start: part.raw_start, raw_len: part.raw_len, window, encoded });
        if part.before_offset == 0 {
            return Ok(parts);
        }
        ahead = u64::from(part.raw_start).min(AHEAD_BYTES_MAX);
        place = Place { offset: part.before_offset, len: part.before_len, ..place };
    }
}

/// Bytes of a segment: all of them where it is mapped, else pieces as they were read.
struct Windows<'a> {
    segment: &'a Segment,
    map: Option<&'a [u8]>,
    /// Where in the segment each begins, and its bytes.
    read: Vec<(u64, Vec<u8>)>,
}

impl Windows<'_> {
    /// The window that has the bytes of a place, and where in it. One that has to be read begins `ahead` bytes
    /// before the place, if there are so many.
    fn find(&mut self, place: Place, ahead: u64) -> Result<(usize, Range<usize>)> {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(place.len));
        let within = |from: u64, len: usize| {
            let at = usize::try_from(start.checked_sub(from)?).ok()?;
            let to = at.checked_add(place.len as usize).filter(|to| *to <= len)?;
            Some(at..to)
        };
        if let Some(map) = self.map {
            let short = || Error::damaged(&self.segment.path, start, "the file ends before a record");
            return within(0, map.len()).map(|range| (0, range)).ok_or_else(short);
        }
        let last = self.read.len();
        if let Some((from, bytes)) = self.read.last()
            && let Some(range) = within(*from, bytes.len())
        {
            return Ok((last - 1, range));
        }
        let from = start.saturating_sub(ahead);
        let mut bytes = Vec::new();
        self.segment.read_range(from, end, &mut bytes)?;
        let range = within(from, bytes.len()).ok_or_else(|| Error::bug("a window is not what was read"))?;
        self.read.push((from, bytes));
        Ok((last, range))
    }

    fn get(&self, window: usize, range: &Range<usize>) -> &[u8] {
        let bytes = self.map.or_else(|| self.read.get(window).map(|(_, bytes)| bytes.as_slice()));
        bytes.and_then(|bytes| bytes.get(range.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
