//! Caches frame records and recipes: reading a frame repeatedly needs those of the frames before it.
//!
//! Only finished frames are cached. Their records never change: a run's number is never reused, and a
//! finished frame is never written again.

use std::sync::Arc;

use crate::blob::Extent;
use crate::codec::{ByteReader, CodecError};
use crate::ids::RunUid;
use crate::log::record::{BodyRef, LogicalBody, RecipeRef};
use crate::trace::heads::FrameHead;
use annals_store::kv::cache::ClockCache;

/// Maximum bytes of cached records.
const RECORDS_BYTES: usize = 2 << 20;
/// Maximum bytes of cached recipes.
const RECIPES_BYTES: usize = 8 << 20;
/// A larger recipe is not cached, in bytes.
const RECIPE_BYTES_MAX: usize = 2 << 20;

/// A frame's head and the recipes in its tail.
#[derive(Debug)]
pub(crate) struct FrameRecord {
    pub(crate) head: FrameHead,
    /// Recipes of input, output and metadata: how far back the base is, and the bytes.
    recipes: [Option<(u32, Box<[u8]>)>; 3],
}

/// Run, frame, and place of the body in the frame.
type BodyKey = (RunUid, u32, usize);

/// See the module.
#[derive(Debug)]
pub(crate) struct FrameCache {
    records: ClockCache<(RunUid, u32), Arc<FrameRecord>>,
    recipes: ClockCache<BodyKey, Arc<Vec<Extent>>>,
}

impl FrameRecord {
    pub(crate) fn parse(logical: LogicalBody<'_>) -> Result<Self, CodecError> {
        let head = FrameHead::parse(logical.head)?;
        let mut tail = ByteReader::new(logical.tail, "frame tail");
        let mut recipes = [None, None, None];
        for (reference, recipe) in [&head.input, &head.output, &head.metadata].into_iter().zip(&mut recipes) {
            if let BodyRef::Blob { len, .. } = reference {
                let taken = RecipeRef::take(&mut tail, *len)?;
                *recipe = Some((taken.base_back, taken.recipe.into()));
            }
        }
        tail.finish()?;
        Ok(Self { head, recipes })
    }

    /// The body in place 0 (input), 1 (output) or 2 (metadata), and its recipe if it is a blob.
    pub(crate) fn body(&self, place: usize) -> (&BodyRef, Option<RecipeRef<'_>>) {
        let reference = match place {
            0 => &self.head.input,
            1 => &self.head.output,
            _ => &self.head.metadata,
        };
        let recipe = match (reference, self.recipes.get(place)) {
            (BodyRef::Blob { len, .. }, Some(Some((base_back, recipe)))) => {
                Some(RecipeRef { body_len: *len, base_back: *base_back, recipe })
            }
            _ => None,
        };
        (reference, recipe)
    }

    /// Approximate memory use, in bytes.
    fn bytes(&self) -> usize {
        let inline = |place| match self.body(place).0 {
            BodyRef::Inline(bytes) => bytes.len(),
            _ => 0,
        };
        let recipes: usize = self.recipes.iter().flatten().map(|(_, recipe)| recipe.len()).sum();
        size_of::<Self>() + (0..3).map(inline).sum::<usize>() + recipes
    }
}

impl FrameCache {
    pub(crate) fn new() -> Self {
        Self { records: ClockCache::new(RECORDS_BYTES), recipes: ClockCache::new(RECIPES_BYTES) }
    }

    pub(crate) fn record(&self, run: RunUid, seq: u32) -> Option<Arc<FrameRecord>> {
        self.records.get(&(run, seq))
    }

    pub(crate) fn put_record(&self, record: &Arc<FrameRecord>) {
        if !record.head.open {
            self.records.put((record.head.run, record.head.seq), record.clone(), record.bytes());
        }
    }

    pub(crate) fn recipe(&self, record: &FrameRecord, place: usize) -> Option<Arc<Vec<Extent>>> {
        self.recipes.get(&(record.head.run, record.head.seq, place))
    }

    pub(crate) fn put_recipe(&self, record: &FrameRecord, place: usize, extents: &Arc<Vec<Extent>>) {
        let bytes = size_of::<Vec<Extent>>() + extents.capacity() * size_of::<Extent>();
        if !record.head.open && bytes <= RECIPE_BYTES_MAX {
            self.recipes.put((record.head.run, record.head.seq, place), extents.clone(), bytes);
        }
    }

    pub(crate) fn clear(&self) {
        self.records.clear();
        self.recipes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::GroupId;
    use crate::ids::BlobId;
    use crate::log::salts::RecordSalt;

    /// A frame with 5 bytes of input, 9 bytes of recipe for its output, and no metadata.
    fn record(seq: u32, open: bool) -> Arc<FrameRecord> {
        let head = FrameHead {
            run: RunUid(3),
            seq,
            parent: 0,
            component: 1,
            other: None,
            severity: 0,
            open,
            error: false,
            start_ns: 0,
            duration_ns: 0,
            link: None,
            input: BodyRef::Inline(b"input".to_vec()),
            output: BodyRef::Blob { len: 7, id: BlobId([1; 32]).into() },
            metadata: BodyRef::Inline(Vec::new()),
        };
        let mut tail = Vec::new();
        RecipeRef { body_len: 7, base_back: 2, recipe: &[4; 9] }.put(&mut tail);
        Arc::new(
            FrameRecord::parse(LogicalBody { salt: RecordSalt::Derived, head: &head.encode(), tail: &tail })
                .unwrap(),
        )
    }

    fn extents(count: usize) -> Arc<Vec<Extent>> {
        let mut extents = Vec::with_capacity(count);
        extents.resize(count, Extent { group: GroupId(1), offset: 0, len: 1 });
        Arc::new(extents)
    }

    #[test]
    fn finished_frames_are_cached_and_open_ones_are_not() {
        let cache = FrameCache::new();
        cache.put_record(&record(1, true));
        assert!(cache.record(RunUid(3), 1).is_none());
        let (one, two) = (record(1, false), record(2, false));
        cache.put_record(&one);
        cache.put_record(&two);
        assert!(Arc::ptr_eq(&cache.record(RunUid(3), 1).unwrap(), &one));
        assert!(Arc::ptr_eq(&cache.record(RunUid(3), 2).unwrap(), &two));
        assert!(cache.record(RunUid(4), 1).is_none() && cache.record(RunUid(3), 3).is_none());
        assert_eq!(cache.records.bytes(), 2 * (size_of::<FrameRecord>() + 5 + 9));
        cache.clear();
        assert!(cache.record(RunUid(3), 1).is_none() && cache.records.bytes() == 0);
    }

    #[test]
    fn large_or_open_recipes_are_not_cached() {
        let (cache, one, open) = (FrameCache::new(), record(1, false), record(2, true));
        cache.put_recipe(&open, 1, &extents(1));
        cache.put_recipe(&open, 1, &extents(131_071));
        assert!(cache.recipe(&open, 1).is_none());
        cache.put_recipe(&one, 1, &extents(3));
        assert_eq!(cache.recipe(&one, 1).unwrap().len(), 3);
        assert!(cache.recipe(&one, 0).is_none());
        assert_eq!(cache.recipes.bytes(), 24 + 3 * 16);
        // 24 bytes, and 16 for each extent: just over 2 MiB is too much.
        cache.put_recipe(&one, 2, &extents(131_071));
        assert!(cache.recipe(&one, 2).is_none());
        cache.put_recipe(&one, 2, &extents(131_070));
        assert!(cache.recipe(&one, 2).is_some());
        cache.clear();
        assert!(cache.recipe(&one, 1).is_none() && cache.recipes.bytes() == 0);
    }

    #[test]
    fn each_body_has_its_own_recipe() {
        let record = record(1, false);
        let bases =
            [0, 1, 2].map(|place| record.body(place).1.map(|recipe| (recipe.base_back, recipe.recipe.len())));
        assert_eq!(bases, [None, Some((2, 9)), None]);
        assert_eq!(*record.body(0).0, BodyRef::Inline(b"input".to_vec()));
        assert_eq!(*record.body(2).0, BodyRef::Inline(Vec::new()));
    }
}
