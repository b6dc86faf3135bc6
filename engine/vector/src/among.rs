//! Owner filters that are evaluated once for each file, as bitmaps of the positions that pass.
//!
//! A file never changes, and file numbers are never reused. So a bitmap is made when a search first meets a
//! file, and stays valid while the file exists. Vectors that are not in files yet are checked one by one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use roaring::RoaringBitmap;

use crate::error::Result;
use crate::ids::NamespaceId;
use crate::index::VectorIndex;
use crate::kv::core::Core;
use crate::kv::keys;
use crate::log::segments::lock;
use crate::search_error::VectorResult;
use crate::sync::{Mutex, rank};
use crate::types::{Owner, OwnerId};
use crate::vector_file::OpenVectorFile;

/// Approximate maximum bytes of the bitmaps of one file. Beyond that, all are dropped and made again when
/// they are needed.
const BITMAP_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a bitmap besides its bits.
const BITMAP_OVERHEAD_BYTES: u64 = 256;

type OwnerPredicate = dyn Fn(&Owner) -> bool + Send + Sync;

/// A filter of owners for several searches: by status, severity, agent, tag or time of a run, by a key's
/// prefix, or by anything else that does not change while it is used.
///
/// Each owner is checked once, when the filter first meets its file. Later searches scan only the few vectors
/// that pass, or walk past the others.
#[derive(Clone)]
pub struct OwnerFilter(OwnerFilterKind);

#[derive(Clone)]
enum OwnerFilterKind {
    Predicate(Arc<SharedPredicate>),
    Keys { keyspace: Arc<str>, prefix: Arc<[u8]> },
}

/// Its address in memory identifies it.
struct SharedPredicate {
    filter: Box<OwnerPredicate>,
}

impl fmt::Debug for OwnerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            OwnerFilterKind::Predicate(_) => f.debug_struct("OwnerFilter").finish_non_exhaustive(),
            OwnerFilterKind::Keys { keyspace, prefix } => {
                f.debug_struct("OwnerFilter").field("keyspace", keyspace).field("prefix", prefix).finish()
            }
        }
    }
}

/// Cached bitmaps of one file: by predicate, and by keyspace and key prefix.
#[derive(Default)]
pub struct BitmapCache(Mutex<BitmapCacheState, { rank::VECTOR_BITMAPS }>);

#[derive(Default)]
struct BitmapCacheState {
    by_predicate: HashMap<usize, (Weak<SharedPredicate>, Arc<RoaringBitmap>)>,
    by_prefix: HashMap<Vec<u8>, Arc<RoaringBitmap>>,
    bytes: u64,
}

impl fmt::Debug for BitmapCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitmapCache").field("bytes", &lock(&self.0).bytes).finish_non_exhaustive()
    }
}

impl BitmapCacheState {
    /// Makes room for one more bitmap.
    fn reserve(&mut self, bitmap: &RoaringBitmap) {
        let bytes = BITMAP_OVERHEAD_BYTES + bitmap.serialized_size() as u64;
        if self.bytes + bytes > BITMAP_BYTES_MAX {
            *self = Self::default();
        }
        self.bytes += bytes;
    }
}

impl OwnerFilter {
    /// Owners for which `filter` is true.
    #[must_use]
    pub fn new(filter: impl Fn(&Owner) -> bool + Send + Sync + 'static) -> Self {
        Self(OwnerFilterKind::Predicate(Arc::new(SharedPredicate { filter: Box::new(filter) })))
    }

    /// Keys of a keyspace that begin with `prefix`. Two filters of the same keyspace and prefix share their
    /// bitmaps.
    #[must_use]
    pub fn keys(keyspace: &str, prefix: &[u8]) -> Self {
        Self(OwnerFilterKind::Keys { keyspace: keyspace.into(), prefix: prefix.into() })
    }
}

/// An [`OwnerFilter`] for one search.
#[derive(Clone, Copy)]
pub struct ResolvedOwnerFilter<'a> {
    owner_filter: &'a OwnerFilter,
    /// The keyspace's number, if the filter names one that exists.
    space: Option<u32>,
    context: (&'a VectorIndex, &'a Core, NamespaceId),
}

impl<'a> ResolvedOwnerFilter<'a> {
    pub fn new(among: &'a OwnerFilter, of: (&'a VectorIndex, &'a Core, NamespaceId)) -> Result<Self> {
        let (floor, core, namespace) = of;
        let space = match &among.0 {
            OwnerFilterKind::Predicate(_) => None,
            OwnerFilterKind::Keys { keyspace, .. } => floor.keyspace_id(core, namespace, keyspace)?,
        };
        Ok(Self { owner_filter: among, space, context: of })
    }

    pub fn passes(&self, owner: &OwnerId) -> Result<bool> {
        Ok(match (&self.owner_filter.0, owner) {
            (OwnerFilterKind::Predicate(those), owner) => {
                (those.filter)(&self.context.0.resolve_owner(self.context.1, owner)?)
            }
            (OwnerFilterKind::Keys { prefix, .. }, OwnerId::Key { space, key }) => {
                Some(*space) == self.space && key.starts_with(prefix)
            }
            (OwnerFilterKind::Keys { .. }, OwnerId::Snapshot { .. }) => false,
        })
    }

    /// The positions of a file whose owners pass.
    pub fn positions(&self, segment: &OpenVectorFile) -> VectorResult<Arc<RoaringBitmap>> {
        let known = &segment.bitmaps.0;
        match (&self.owner_filter.0, self.space) {
            (OwnerFilterKind::Keys { .. }, None) => Ok(Arc::default()),
            (OwnerFilterKind::Keys { prefix, .. }, Some(space)) => {
                let under = keys::user(space, prefix);
                if let Some(known) = lock(known).by_prefix.get(&under) {
                    return Ok(known.clone());
                }
                let bitmap = Arc::new(segment.positions_of_keys(space, prefix)?);
                let mut known = lock(known);
                known.reserve(&bitmap);
                known.by_prefix.insert(under, bitmap.clone());
                Ok(bitmap)
            }
            (OwnerFilterKind::Predicate(those), _) => {
                // While the weak reference is kept, no other predicate has this address.
                let place = Arc::as_ptr(those).addr();
                if let Some((_, known)) = lock(known).by_predicate.get(&place) {
                    return Ok(known.clone());
                }
                let bitmap = Arc::new(self.bitmap_by_predicate(segment)?);
                let mut known = lock(known);
                known.by_predicate.retain(|_, (those, _)| those.strong_count() > 0);
                known.reserve(&bitmap);
                known.by_predicate.insert(place, (Arc::downgrade(those), bitmap.clone()));
                Ok(bitmap)
            }
        }
    }

    fn bitmap_by_predicate(&self, segment: &OpenVectorFile) -> VectorResult<RoaringBitmap> {
        let mut bitmap = RoaringBitmap::new();
        for at in 0..segment.header.count {
            let item = segment.item(at as usize)?;
            if self.passes(&item.owner)? {
                bitmap.insert(at);
            }
        }
        Ok(bitmap)
    }
}
