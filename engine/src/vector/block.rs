//! A few vectors in memory, in the order in which they came.

use crate::ids::Seqno;
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

    /// What of it came after a record; `None` where nothing did.
    pub(super) fn after(&self, upto: Seqno, dimensions: usize) -> Option<Self> {
        let from = self.items.partition_point(|item| item.seqno <= upto);
        let rest = Self {
            items: self.items.get(from..).unwrap_or_default().to_vec(),
            rows: self.rows.get(from * dimensions..).unwrap_or_default().to_vec(),
            squares: self.squares.get(from..).unwrap_or_default().to_vec(),
        };
        (!rest.items.is_empty()).then_some(rest)
    }

    /// The vector at a position.
    pub(super) fn row(&self, at: usize, dimensions: usize) -> &[f32] {
        self.rows.get(at * dimensions..(at + 1) * dimensions).unwrap_or_default()
    }
}
