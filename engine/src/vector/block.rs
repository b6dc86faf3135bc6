//! A few vectors in memory, in the order in which they came.

use crate::vector::item::Item;
use crate::vector::kernel::dot;

/// Vectors of a block: as many as may be copied when one more comes while a search looks at it.
pub(super) const BLOCK_ROWS: usize = 256;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Block {
    pub(super) items: Vec<Item>,
    /// Their vectors, end to end.
    rows: Vec<f32>,
    /// The dot product of each with itself.
    pub(super) squares: Vec<f32>,
}

impl Block {
    pub(super) fn is_full(&self) -> bool {
        self.items.len() >= BLOCK_ROWS
    }

    pub(super) fn push(&mut self, item: Item, vector: &[f32]) {
        self.items.push(item);
        self.rows.extend_from_slice(vector);
        self.squares.push(dot(vector, vector));
    }

    /// The vector at a position.
    pub(super) fn row(&self, at: usize, dimensions: usize) -> &[f32] {
        self.rows.get(at * dimensions..(at + 1) * dimensions).unwrap_or_default()
    }
}
