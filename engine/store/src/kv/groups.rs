//! Reads groups of a store: finds a group through the index, decodes as much of it as is needed, and caches
//! the result.
//!
//! Invariant: a cached entry is the decoded front of a group of that namespace, whole or up to where it was
//! needed.

use std::sync::Arc;

use crate::blob::{Extent, GROUP_BYTES_MAX, GroupDecoder, GroupId};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::NamespaceId;
use crate::kv::cache::ClockCache;
use crate::kv::keys;
use crate::kv::store_reader::StoreReader;
use crate::log::parts::{GroupBytes, read};
use crate::log::segments::lock;
use crate::sync::{Mutex, rank};

/// Maximum number of idle decoders.
const DECODERS_MAX: usize = 4;
/// Number of locks that groups share.
const DECODING_LOCKS: usize = 16;

/// Decoded groups, bounded by their bytes, and decoders to decode more.
#[derive(Debug)]
pub struct GroupCache {
    decoded: ClockCache<(NamespaceId, GroupId), DecodedGroup>,
    decoders: Mutex<Vec<GroupDecoder>, { rank::GROUP_DECODERS }>,
    /// Held while a group is decoded, so that no other thread decodes the same group.
    decoding: [Mutex<(), { rank::GROUP_DECODING }>; DECODING_LOCKS],
}

#[derive(Debug, Clone)]
struct DecodedGroup {
    raw: Arc<Vec<u8>>,
    /// It was the whole group when it was decoded.
    whole: bool,
}

/// How much of a group to decode if it is not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeScope {
    /// All of it: the next reads will need the rest.
    Whole,
    /// Only as much as the current body needs.
    UpToBody,
}

impl GroupCache {
    pub fn new(bytes_max: usize) -> Self {
        Self { decoded: ClockCache::new(bytes_max), decoders: Mutex::default(), decoding: Default::default() }
    }

    fn get(&self, namespace: NamespaceId, id: GroupId) -> Option<DecodedGroup> {
        self.decoded.get(&(namespace, id))
    }

    fn put(&self, namespace: NamespaceId, id: GroupId, found: DecodedGroup) {
        let bytes = found.raw.capacity();
        self.decoded.put((namespace, id), found, bytes);
    }

    /// Caches a group that its writer has filled: all of its raw bytes.
    pub fn put_filled(&self, namespace: NamespaceId, id: GroupId, raw: Arc<Vec<u8>>) {
        self.put(namespace, id, DecodedGroup { raw, whole: true });
    }

    /// Empties the cache, so that the next read is cold.
    pub fn clear(&self) {
        self.decoded.clear();
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.decoded.bytes()
    }
}

/// The raw bytes of a whole group of a namespace, at least `len_min` of them.
///
/// # Errors
/// `Damaged` if the group is missing, too short, of another namespace, or does not decode.
pub fn whole_group(
    core: &StoreReader,
    namespace: NamespaceId,
    id: GroupId,
    len_min: usize,
) -> Result<Arc<Vec<u8>>> {
    get_or_decode(core, namespace, id, len_min, true, |_| GROUP_BYTES_MAX)
}

/// The raw bytes of the group of `extent`, at least up to the extent's end. `extents` are all extents of the
/// body.
///
/// # Errors
/// As [`whole_group`].
pub fn group_for_extent(
    core: &StoreReader,
    namespace: NamespaceId,
    extent: &Extent,
    extents: &[Extent],
    wanted: DecodeScope,
) -> Result<Arc<Vec<u8>>> {
    let end = extent.end() as usize;
    get_or_decode(core, namespace, extent.group, end, false, |shorter| match wanted {
        DecodeScope::UpToBody if !shorter => needed_len(extents, extent.group).max(end),
        // More is needed than is cached: the next read may need still more.
        _ => GROUP_BYTES_MAX,
    })
}

/// At least `len_min` bytes of a group, from the cache or decoded as far as `upto` returns. `upto` is told
/// whether the cache has a shorter front.
fn get_or_decode(
    core: &StoreReader,
    namespace: NamespaceId,
    id: GroupId,
    len_min: usize,
    whole: bool,
    upto: impl FnOnce(bool) -> usize,
) -> Result<Arc<Vec<u8>>> {
    let enough = |known: &DecodedGroup| known.raw.len() >= len_min && (known.whole || !whole);
    if let Some(known) = core.groups.get(namespace, id).filter(enough) {
        return Ok(known.raw);
    }
    #[expect(clippy::cast_possible_truncation, reason = "only the remainder counts")]
    let own = id.0 as usize % DECODING_LOCKS;
    let _decoding = core.groups.decoding.get(own).map(lock);
    match core.groups.get(namespace, id) {
        // Another thread has decoded it meanwhile.
        Some(known) if enough(&known) => Ok(known.raw),
        known => decode_from_log(core, namespace, id, upto(known.is_some()), len_min),
    }
}

/// How many bytes of a group these extents need.
fn needed_len(extents: &[Extent], group: GroupId) -> usize {
    extents.iter().filter(|e| e.group == group).map(|e| e.end() as usize).max().unwrap_or(0)
}

/// Decodes the first `reach` bytes of a group. Refuses a group with fewer than `len_min`.
fn decode_from_log(
    core: &StoreReader,
    namespace: NamespaceId,
    id: GroupId,
    reach: usize,
    len_min: usize,
) -> Result<Arc<Vec<u8>>> {
    let missing = || {
        Error::new(ErrorKind::Damaged, format!("a recipe names the group {}, which is not in the log", id.0))
    };
    let _pin = core.pin();
    let value = core.index.newest(&keys::group(id.0))?.ok_or_else(missing)?;
    let place = keys::place(value);
    let segment = core.segment(place.segment)?;
    let mut decoder = lock(&core.groups.decoders).pop().unwrap_or_default();
    let found = read(&segment, place, namespace, id, reach, &mut decoder);
    {
        let mut decoders = lock(&core.groups.decoders);
        if decoders.len() < DECODERS_MAX {
            decoders.push(decoder);
        }
    }
    let GroupBytes { bytes, is_whole: whole } = found?;
    if bytes.len() < len_min {
        return Err(missing());
    }
    let raw = Arc::new(bytes);
    core.groups.put(namespace, id, DecodedGroup { raw: raw.clone(), whole });
    Ok(raw)
}

#[cfg(test)]
mod tests;
