//! A few vectors in memory, in the order in which they came.

use crate::ids::Seqno;
use crate::kernel::dot;
use crate::quantise::encode;
use crate::types::VectorOrigin;
use crate::vector_file::CodeScale;

/// Vectors of a block: as many as may be copied when a vector is added during a search.
pub const BLOCK_ROWS: usize = 256;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct VectorBlock {
    pub items: Vec<VectorOrigin>,
    /// The vectors, end to end.
    rows: Vec<f32>,
    /// Their codes, end to end.
    pub codes: Vec<i8>,
    /// Three numbers for each vector, as in a file: square, scale and error.
    pub scales: Vec<f32>,
}

impl VectorBlock {
    pub fn is_full(&self) -> bool {
        self.items.len() >= BLOCK_ROWS
    }

    pub fn push(&mut self, item: VectorOrigin, vector: &[f32]) {
        self.items.push(item);
        self.rows.extend_from_slice(vector);
        let coded = encode(vector);
        self.codes.extend_from_slice(&coded.codes);
        self.scales.extend([dot(vector, vector), coded.scale, coded.error]);
    }

    /// The part after a record; `None` if it is empty.
    pub fn rows_after(&self, upto: Seqno, dimensions: usize) -> Option<Self> {
        let from = self.items.partition_point(|item| item.seqno <= upto);
        let rest = Self {
            items: self.items.get(from..).unwrap_or_default().to_vec(),
            rows: self.rows.get(from * dimensions..).unwrap_or_default().to_vec(),
            codes: self.codes.get(from * dimensions..).unwrap_or_default().to_vec(),
            scales: self.scales.get(3 * from..).unwrap_or_default().to_vec(),
        };
        (!rest.items.is_empty()).then_some(rest)
    }

    /// The vector at a position.
    pub fn row(&self, at: usize, dimensions: usize) -> &[f32] {
        self.rows.get(at * dimensions..(at + 1) * dimensions).unwrap_or_default()
    }

    /// A vector's codes, and their scale.
    pub fn codes_and_scale(&self, at: usize, dimensions: usize) -> (&[i8], CodeScale) {
        let codes = self.codes.get(at * dimensions..(at + 1) * dimensions).unwrap_or_default();
        (codes, self.scale(at))
    }

    pub fn scale(&self, at: usize) -> CodeScale {
        let part = |n: usize| self.scales.get(3 * at + n).copied().unwrap_or_default();
        CodeScale { square: part(0), scale: part(1), error: part(2) }
    }
}
