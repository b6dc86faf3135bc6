//! The vectors of several files and of memory, one after another, as one new file will have them.
//!
//! Nothing is copied: a row is read from its place each time it is needed.

use std::borrow::Cow;

use crate::ids::{NamespaceId, Seqno};
use crate::kv::core::Core;
use crate::log::open::Damage;
use crate::partition::PartitionLevels;
use crate::search_error::VectorResult;
use crate::source::is_living;
use crate::types::VectorOrigin;
use crate::vector_file::CodeScale;

/// Where a vector is: in a file, or in a block after the files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowLocation {
    part: u32,
    at: u32,
}

impl RowLocation {
    /// The vector at position `at` of part `part`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a file has at most COUNT_MAX vectors, a block BLOCK_ROWS; fewer than 2^32 parts fit in memory"
    )]
    pub fn new(part: usize, at: usize) -> Self {
        Self { part: part as u32, at: at as u32 }
    }

    /// The index of a file, or of a block after the files.
    pub fn part(self) -> usize {
        self.part as usize
    }

    /// The position in that part.
    pub fn at(self) -> usize {
        self.at as usize
    }
}

/// See the module.
#[derive(Debug)]
pub struct MergedVectors<'a> {
    levels: &'a PartitionLevels,
    pub dimensions: usize,
    rows: Vec<RowLocation>,
}

type MergedResult<T> = Result<T, Damage>;

impl<'a> MergedVectors<'a> {
    /// The living vectors of all files but the `keep` oldest, and of memory up to the record `upto`.
    pub fn living(
        (core, namespace): (&Core, NamespaceId),
        levels: &'a PartitionLevels,
        keep: usize,
        upto: Seqno,
        dimensions: usize,
    ) -> VectorResult<Self> {
        let mut all = Self { levels, dimensions, rows: Vec::new() };
        let files = levels.segments.len();
        for (part, segment) in levels.segments.iter().enumerate().skip(keep) {
            for at in 0..segment.len() {
                if !segment.is_dead(at, upto) && is_living(core, namespace, &segment.item(at)?, upto)? {
                    all.rows.push(RowLocation::new(part, at));
                }
            }
        }
        for (part, block) in levels.tail.iter().enumerate() {
            for (at, item) in block.items.iter().enumerate() {
                if item.seqno <= upto && is_living(core, namespace, item, upto)? {
                    all.rows.push(RowLocation::new(files + part, at));
                }
            }
        }
        Ok(all)
    }

    /// All vectors, living or dead.
    pub fn all(levels: &'a PartitionLevels, dimensions: usize) -> Self {
        let files = levels.segments.iter().map(|segment| segment.len());
        let blocks = levels.tail.iter().map(|block| block.items.len());
        let spots = files
            .chain(blocks)
            .enumerate()
            .flat_map(|(part, count)| (0..count).map(move |at| RowLocation::new(part, at)));
        Self { levels, dimensions, rows: spots.collect() }
    }

    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether it is empty")]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn item(&self, at: usize) -> MergedResult<VectorOrigin> {
        let (part, at) = self.place(at);
        match self.levels.segments.get(part) {
            Some(segment) => segment.item(at),
            None => Ok(self.block(part).items[at].clone()),
        }
    }

    pub fn row(&self, at: usize) -> MergedResult<Cow<'_, [f32]>> {
        let (part, at) = self.place(at);
        match self.levels.segments.get(part) {
            Some(segment) => segment.row(at),
            None => Ok(Cow::Borrowed(self.block(part).row(at, self.dimensions))),
        }
    }

    /// A vector's codes, and their scale.
    pub fn codes_and_scale(&self, at: usize) -> MergedResult<(&[i8], CodeScale)> {
        let (part, at) = self.place(at);
        match self.levels.segments.get(part) {
            Some(segment) => Ok((segment.codes(at..at + 1)?, segment.scale(at)?)),
            None => Ok(self.block(part).codes_and_scale(at, self.dimensions)),
        }
    }

    /// The part of a row, and its position there.
    fn place(&self, row: usize) -> (usize, usize) {
        (self.rows[row].part(), self.rows[row].at())
    }

    fn block(&self, part: usize) -> &crate::block::VectorBlock {
        &self.levels.tail[part - self.levels.segments.len()]
    }
}
