//! A batch being written: the records that stay, and a summary of the erased ones.

use crate::codec::CodecError;
use crate::ids::{Place, SegmentId};
use crate::log::erased::Erased;
use crate::log::layout::{BATCH_HEADER_BYTES, seal_record, start_record};
use crate::log::ledger::Tiles;
use crate::log::record::{Kind, LAYOUT};

/// A batch under construction.
#[derive(Debug)]
pub(super) struct Draft {
    /// The batch's offset.
    at: u32,
    pub(super) bytes: Vec<u8>,
    /// Where each record starts in `bytes`.
    pub(super) starts: Vec<usize>,
    /// Leaves of the batch's small tree so far.
    leaf: u64,
    /// Number and ledger nodes of the records erased since the last one that stays.
    gone: Option<(u64, Tiles)>,
}

impl Draft {
    pub(super) fn new(at: u32) -> Self {
        Self { at, bytes: vec![0; BATCH_HEADER_BYTES], starts: Vec::new(), leaf: 0, gone: None }
    }

    /// Notes erased records.
    pub(super) fn erase(&mut self, erased: &Erased) -> Result<(), CodecError> {
        let (count, tiles) = self.gone.get_or_insert_with(|| (0, Tiles::from(self.leaf)));
        *count += erased.count;
        for node in &erased.nodes {
            tiles.push(*node)?;
            self.leaf += node.leaves()?;
        }
        Ok(())
    }

    /// Appends a logical record unchanged; returns its place without the segment.
    pub(super) fn logical(&mut self, kind: u8, layout: u8, body: &[u8]) -> Place {
        let place = self.record(kind, layout, |out| out.extend_from_slice(body));
        self.leaf += 1;
        place
    }

    /// Appends a record that is not logical.
    pub(super) fn record(&mut self, kind: u8, layout: u8, put: impl FnOnce(&mut Vec<u8>)) -> Place {
        self.settle();
        self.append(kind, layout, put)
    }

    /// Appends a record for those erased since the last record that stays.
    pub(super) fn settle(&mut self) {
        if let Some((count, tiles)) = self.gone.take() {
            let erased = Erased { count, nodes: tiles.nodes().to_vec() };
            self.append(Kind::Erased.code(), LAYOUT, |out| erased.put(out));
        }
    }

    fn append(&mut self, kind: u8, layout: u8, put: impl FnOnce(&mut Vec<u8>)) -> Place {
        let start = start_record(&mut self.bytes, kind, layout);
        put(&mut self.bytes);
        seal_record(&mut self.bytes, start);
        self.starts.push(start);
        let len = (self.bytes.len() - start) as u32;
        Place { segment: SegmentId::default(), offset: self.at.saturating_add(start as u32), len }
    }
}
