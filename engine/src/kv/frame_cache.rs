//! Frame records and recipes that were read already: a frame needs those of the frames before it, again and again.
//!
//! Only finished frames are kept. Their records never change: a run's number is never used again, and a frame that
//! has ended is never written anew.

use std::sync::Arc;

use crate::blob::Extent;
use crate::codec::{CodecError, Reader};
use crate::ids::RunUid;
use crate::kv::cache::Cache;
use crate::log::record::{BodyRef, FrameHead, Logical, RecipeRef};

/// Bytes of records kept.
const RECORDS_BYTES: usize = 2 << 20;
/// Bytes of decoded recipes kept.
const RECIPES_BYTES: usize = 8 << 20;
/// Recipes larger than this are not kept.
const RECIPE_BYTES_MAX: usize = 2 << 20;

/// A frame's head and the recipes in its tail.
#[derive(Debug)]
pub(crate) struct FrameRecord {
    pub(crate) head: FrameHead,
    /// Of input, output and metadata: base and bytes.
    recipes: [Option<(u32, Box<[u8]>)>; 3],
}

/// Which body of which frame.
type BodyKey = (RunUid, u32, usize);

/// See the module.
#[derive(Debug)]
pub(crate) struct FrameCache {
    records: Cache<(RunUid, u32), Arc<FrameRecord>>,
    recipes: Cache<BodyKey, Arc<Vec<Extent>>>,
}

impl FrameRecord {
    pub(crate) fn parse(logical: Logical<'_>) -> Result<Self, CodecError> {
        let head = FrameHead::parse(logical.head)?;
        let mut tail = Reader::new(logical.tail, "frame tail");
        let mut recipes = [None, None, None];
        for (reference, recipe) in [&head.input, &head.output, &head.metadata].into_iter().zip(&mut recipes) {
            if matches!(reference, BodyRef::Blob { .. }) {
                let taken = RecipeRef::take(&mut tail)?;
                *recipe = Some((taken.base_back, taken.recipe.into()));
            }
        }
        tail.finish()?;
        Ok(Self { head, recipes })
    }

    /// The body in place 0 (input), 1 (output) or 2 (metadata), and its recipe where it is a blob.
    pub(crate) fn body(&self, place: usize) -> (&BodyRef, Option<RecipeRef<'_>>) {
        let reference = match place {
            0 => &self.head.input,
            1 => &self.head.output,
            _ => &self.head.metadata,
        };
        let recipe = self.recipes.get(place).and_then(Option::as_ref);
        (reference, recipe.map(|(base_back, recipe)| RecipeRef { base_back: *base_back, recipe }))
    }

    /// About how much memory it takes.
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
        Self { records: Cache::new(RECORDS_BYTES), recipes: Cache::new(RECIPES_BYTES) }
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
