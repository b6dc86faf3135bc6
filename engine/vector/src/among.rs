//! Owner filters that are evaluated once for each file, as bitmaps of the positions that pass.
//!
//! A file never changes, and file numbers are never reused. So a bitmap is made when a search first meets a
//! file, and stays valid while the file exists. Vectors that are not in files yet are checked one by one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use roaring::RoaringBitmap;

use crate::error::Result;
use crate::floor::Floor;
use crate::ids::NamespaceId;
use crate::item::{Owner, OwnerId};
use crate::kv::core::Core;
use crate::kv::keys;
use crate::log::segments::lock;
use crate::segment::Segment;
use crate::stopped::Tried;
use crate::sync::Mutex;

/// Approximate maximum bytes of the bitmaps of one file. Beyond that, all are dropped and made again when
/// they are needed.
const KEPT_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a bitmap besides its bits.
const KEPT_BYTES_EACH: u64 = 256;

type Filter = dyn Fn(&Owner) -> bool + Send + Sync;

/// A filter of owners for several searches: by status, severity, agent, tag or time of a run, by a key's
/// prefix, or by anything else that does not change while it is used.
///
/// Each owner is checked once, when the filter first meets its file. Later searches scan only the few vectors
/// that pass, or walk past the others.
#[derive(Clone)]
pub struct Among(Kind);

#[derive(Clone)]
enum Kind {
    Those(Arc<Those>),
    Keys { keyspace: Arc<str>, prefix: Arc<[u8]> },
}

/// Its address in memory identifies it.
struct Those {
    filter: Box<Filter>,
}

impl fmt::Debug for Among {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Those(_) => f.debug_struct("OwnerFilter").finish_non_exhaustive(),
            Kind::Keys { keyspace, prefix } => {
                f.debug_struct("OwnerFilter").field("keyspace", keyspace).field("prefix", prefix).finish()
            }
        }
    }
}

/// Cached bitmaps of one file: by predicate, and by keyspace and key prefix.
#[derive(Default)]
pub struct Known(Mutex<Bitmaps>);

#[derive(Default)]
struct Bitmaps {
    those: HashMap<usize, (Weak<Those>, Arc<RoaringBitmap>)>,
    keys: HashMap<Vec<u8>, Arc<RoaringBitmap>>,
    bytes: u64,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BitmapCache").field("bytes", &lock(&self.0).bytes).finish_non_exhaustive()
    }
}

impl Bitmaps {
    /// Makes room for one more bitmap.
    fn admit(&mut self, bitmap: &RoaringBitmap) {
        let bytes = KEPT_BYTES_EACH + bitmap.serialized_size() as u64;
        if self.bytes + bytes > KEPT_BYTES_MAX {
            *self = Self::default();
        }
        self.bytes += bytes;
    }
}

impl Among {
    /// Owners for which `filter` is true.
    #[must_use]
    pub fn new(filter: impl Fn(&Owner) -> bool + Send + Sync + 'static) -> Self {
        Self(Kind::Those(Arc::new(Those { filter: Box::new(filter) })))
    }

    /// Keys of a keyspace that begin with `prefix`. Two filters of the same keyspace and prefix share their
    /// bitmaps.
    #[must_use]
    pub fn keys(keyspace: &str, prefix: &[u8]) -> Self {
        Self(Kind::Keys { keyspace: keyspace.into(), prefix: prefix.into() })
    }
}

/// An [`OwnerFilter`] for one search.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    among: &'a Among,
    /// The keyspace's number, if the filter names one that exists.
    space: Option<u32>,
    of: (&'a Floor, &'a Core, NamespaceId),
}

impl<'a> Asked<'a> {
    pub fn new(among: &'a Among, of: (&'a Floor, &'a Core, NamespaceId)) -> Result<Self> {
        let (floor, core, namespace) = of;
        let space = match &among.0 {
            Kind::Those(_) => None,
            Kind::Keys { keyspace, .. } => floor.keyspace(core, namespace, keyspace)?,
        };
        Ok(Self { among, space, of })
    }

    pub fn passes(&self, owner: &OwnerId) -> Result<bool> {
        Ok(match (&self.among.0, owner) {
            (Kind::Those(those), owner) => (those.filter)(&self.of.0.owner(self.of.1, owner)?),
            (Kind::Keys { prefix, .. }, OwnerId::Key { space, key }) => {
                Some(*space) == self.space && key.starts_with(prefix)
            }
            (Kind::Keys { .. }, OwnerId::Snapshot { .. }) => false,
        })
    }

    /// The positions of a file whose owners pass.
    pub fn positions(&self, segment: &Segment) -> Tried<Arc<RoaringBitmap>> {
        let known = &segment.known.0;
        match (&self.among.0, self.space) {
            (Kind::Keys { .. }, None) => Ok(Arc::default()),
            (Kind::Keys { prefix, .. }, Some(space)) => {
                let under = keys::user(space, prefix);
                if let Some(known) = lock(known).keys.get(&under) {
                    return Ok(known.clone());
                }
                let bitmap = Arc::new(segment.keys_under(space, prefix)?);
                let mut known = lock(known);
                known.admit(&bitmap);
                known.keys.insert(under, bitmap.clone());
                Ok(bitmap)
            }
            (Kind::Those(those), _) => {
                // While the weak reference is kept, no other predicate has this address.
                let place = Arc::as_ptr(those).addr();
                if let Some((_, known)) = lock(known).those.get(&place) {
                    return Ok(known.clone());
                }
                let bitmap = Arc::new(self.asked_one_by_one(segment)?);
                let mut known = lock(known);
                known.those.retain(|_, (those, _)| those.strong_count() > 0);
                known.admit(&bitmap);
                known.those.insert(place, (Arc::downgrade(those), bitmap.clone()));
                Ok(bitmap)
            }
        }
    }

    fn asked_one_by_one(&self, segment: &Segment) -> Tried<RoaringBitmap> {
        let mut bitmap = RoaringBitmap::new();
        for at in 0..segment.len() {
            let item = segment.item(at)?;
            if self.passes(&item.owner)? {
                bitmap.insert(at as u32);
            }
        }
        Ok(bitmap)
    }
}
