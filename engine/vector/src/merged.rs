//! The vectors of several files and of what is in memory, one after another, as one file is going to have them.
//!
//! Nothing is copied: a row says where it stands, and is read there each time it is asked for.

use std::borrow::Cow;

use crate::ids::{NamespaceId, Seqno};
use crate::item::Item;
use crate::kv::core::Core;
use crate::log::open::Damage;
use crate::partition::Levels;
use crate::segment::Scale;
use crate::source::lives;
use crate::stopped::Tried;

/// Where a vector stands: in a file, or in a block after those.
#[derive(Debug, Clone, Copy)]
struct Spot {
    part: u32,
    at: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Merged<'a> {
    levels: &'a Levels,
    pub dimensions: usize,
    spots: Vec<Spot>,
}

type Checked<T> = Result<T, Damage>;

impl<'a> Merged<'a> {
    /// The vectors of all but so many of the oldest files, and of what is in memory up to a record, whose owners still have them.
    pub fn living(
        (core, namespace): (&Core, NamespaceId),
        levels: &'a Levels,
        keep: usize,
        upto: Seqno,
        dimensions: usize,
    ) -> Tried<Self> {
        let mut all = Self { levels, dimensions, spots: Vec::new() };
        let files = levels.segments.len();
        for (part, segment) in levels.segments.iter().enumerate().skip(keep) {
            for at in 0..segment.len() {
                if !segment.is_dead(at, upto) && lives(core, namespace, &segment.item(at)?, upto)? {
                    all.spots.push(Spot { part: part as u32, at: at as u32 });
                }
            }
        }
        for (part, block) in levels.tail.iter().enumerate() {
            for (at, item) in block.items.iter().enumerate() {
                if item.seqno <= upto && lives(core, namespace, item, upto)? {
                    all.spots.push(Spot { part: (files + part) as u32, at: at as u32 });
                }
            }
        }
        Ok(all)
    }

    /// All of them, whether somebody still has them or not.
    pub fn all(levels: &'a Levels, dimensions: usize) -> Self {
        let files = levels.segments.iter().map(|segment| segment.len());
        let blocks = levels.tail.iter().map(|block| block.items.len());
        let spots = files
            .chain(blocks)
            .enumerate()
            .flat_map(|(part, count)| (0..count).map(move |at| Spot { part: part as u32, at: at as u32 }));
        Self { levels, dimensions, spots: spots.collect() }
    }

    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether it is empty")]
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    pub fn item(&self, at: usize) -> Checked<Item> {
        let Spot { part, at } = self.spots[at];
        match self.levels.segments.get(part as usize) {
            Some(segment) => segment.item(at as usize),
            None => Ok(self.block(part).items[at as usize].clone()),
        }
    }

    pub fn row(&self, at: usize) -> Checked<Cow<'_, [f32]>> {
        let Spot { part, at } = self.spots[at];
        match self.levels.segments.get(part as usize) {
            Some(segment) => segment.row(at as usize),
            None => Ok(Cow::Borrowed(self.block(part).row(at as usize, self.dimensions))),
        }
    }

    /// A vector's codes, and what goes with them.
    pub fn coded(&self, at: usize) -> Checked<(&[i8], Scale)> {
        let Spot { part, at } = self.spots[at];
        let at = at as usize;
        match self.levels.segments.get(part as usize) {
            Some(segment) => Ok((segment.codes(at..at + 1)?, segment.scale(at)?)),
            None => Ok(self.block(part).coded(at, self.dimensions)),
        }
    }

    fn block(&self, part: u32) -> &crate::block::Block {
        &self.levels.tail[part as usize - self.levels.segments.len()]
    }
}
