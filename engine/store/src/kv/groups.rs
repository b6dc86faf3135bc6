//! Groups of a store: finding one through the index, decoding as much of it as is wanted, keeping what was decoded.
//!
//! Invariant: what is cached is the decoded front of a group of that namespace, whole or up to where it was wanted.

use std::sync::Arc;

use crate::blob::{Extent, GROUP_BYTES_MAX, GroupDecoder, GroupId};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::NamespaceId;
use crate::kv::cache::Cache;
use crate::kv::keys;
use crate::kv::store_reader::StoreReader;
use crate::log::parts::{Raw, read};
use crate::log::segments::lock;
use crate::sync::Mutex;

/// Decoders kept for the next group.
const DECODERS_MAX: usize = 4;
/// Groups share this many locks.
const DECODING_LOCKS: usize = 16;

/// Decoded groups, bounded by their bytes, and decoders to decode more.
#[derive(Debug)]
pub struct GroupCache {
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
pub enum Wanted {
    /// All of it: what comes next is going to ask for the rest.
    Whole,
    /// No more than the body at hand has of it.
    Reach,
}

impl GroupCache {
    pub fn new(bytes_max: usize) -> Self {
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
    pub fn put_filled(&self, namespace: NamespaceId, id: GroupId, raw: Arc<Vec<u8>>) {
        self.put(namespace, id, Decoded { raw, whole: true });
    }

    /// Forgets everything, so that the next read is cold.
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
/// `Damaged` where the group is missing, shorter, another namespace's, or does not decode.
pub fn group(
    core: &StoreReader,
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
pub fn group_of(
    core: &StoreReader,
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
    core: &StoreReader,
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

/// Decodes the group as far as its first `reach` bytes, and refuses one with less than `len_min`.
fn load(
    core: &StoreReader,
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
    let mut decoder = lock(&core.groups.decoders).pop().unwrap_or_default();
    let found = read(&segment, place, namespace, id, reach, &mut decoder);
    {
        let mut decoders = lock(&core.groups.decoders);
        if decoders.len() < DECODERS_MAX {
            decoders.push(decoder);
        }
    }
    let Raw { bytes, whole } = found?;
    if bytes.len() < len_min {
        return Err(missing());
    }
    let raw = Arc::new(bytes);
    core.groups.put(namespace, id, Decoded { raw: raw.clone(), whole });
    Ok(raw)
}

#[cfg(test)]
mod tests;
