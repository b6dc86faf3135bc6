//! Filters that are looked at once: which vectors of each file they let through, as bitmaps of positions.
//!
//! A file never changes, and no number of a file is used twice: so a bitmap is made when a search first meets a file, and holds for
//! as long as that is there. What is not in files yet is asked for one by one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use roaring::RoaringBitmap;

use crate::error::Result;
use crate::ids::NamespaceId;
use crate::kv::core::Core;
use crate::log::open::Damage;
use crate::log::segments::lock;
use crate::sync::Mutex;
use crate::vector::floor::Floor;
use crate::vector::item::{Item, Owner};
use crate::vector::partition::Levels;
use crate::vector::segment::Segment;

/// Bitmaps that are kept: of more files than there are in any partition.
const KEPT_MAX: usize = 64;

type Filter = dyn Fn(&Owner) -> bool + Send + Sync;

/// A filter over owners, for more than one search: by status, severity, agent, tag or time of a run, by what a key begins with, or by
/// anything else that stays as it is for as long as this is used.
///
/// Each owner is asked for once, when its file is first searched by this: a later search looks at the few vectors that pass, or
/// walks past those that do not.
#[derive(Clone)]
pub struct Among {
    filter: Arc<Filter>,
    known: Arc<Mutex<HashMap<(NamespaceId, u64), Arc<RoaringBitmap>>>>,
}

impl fmt::Debug for Among {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Among").field("files", &lock(&self.known).len()).finish_non_exhaustive()
    }
}

/// Why a bitmap was not made.
pub(super) enum Failed {
    Damaged(Damage),
    Other(crate::error::Error),
}

impl Among {
    /// Those of owners for which this is true.
    #[must_use]
    pub fn new(filter: impl Fn(&Owner) -> bool + Send + Sync + 'static) -> Self {
        Self { filter: Arc::new(filter), known: Arc::default() }
    }

    pub(super) fn passes(&self, owner: &Owner) -> bool {
        (self.filter)(owner)
    }

    /// The positions of a file whose owners pass.
    pub(super) fn of(
        &self,
        (floor, core): (&Floor, &Core),
        namespace: NamespaceId,
        levels: &Levels,
        segment: &Segment,
    ) -> std::result::Result<Arc<RoaringBitmap>, Failed> {
        let id = (namespace, segment.entry.id);
        if let Some(known) = lock(&self.known).get(&id) {
            return Ok(known.clone());
        }
        let passes = |item: &Item| -> Result<bool> { Ok(self.passes(&floor.owner(core, &item.owner)?)) };
        let mut bitmap = RoaringBitmap::new();
        for at in 0..segment.len() {
            let item = segment.item(at).map_err(Failed::Damaged)?;
            if passes(&item).map_err(Failed::Other)? {
                bitmap.insert(at as u32);
            }
        }
        let bitmap = Arc::new(bitmap);
        let mut known = lock(&self.known);
        if known.len() >= KEPT_MAX {
            known.retain(|(of, id), _| {
                *of == namespace && levels.segments.iter().any(|segment| segment.entry.id == *id)
            });
        }
        known.insert(id, bitmap.clone());
        Ok(bitmap)
    }
}
