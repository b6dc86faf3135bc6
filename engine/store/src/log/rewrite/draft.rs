//! A batch being written: what stays of it, and what is to be said of the rest.

use crate::codec::CodecError;
use crate::ids::{Place, SegmentId};
use crate::log::erased::Erased;
use crate::log::layout::{BATCH_HEADER_BYTES, seal_record, start_record};
use crate::log::ledger::Tiles;
use crate::log::record::{Kind, LAYOUT};

/// See the module.
#[derive(Debug)]
pub(super) struct Draft {
    /// Where it will stand.
    at: u32,
    pub(super) bytes: Vec<u8>,
    /// Where each record starts in `bytes`.
    pub(super) starts: Vec<usize>,
    /// Leaves of the batch's small tree so far.
    leaf: u64,
    /// Records that went, since the last one that stays.
    gone: Option<(u64, Tiles)>,
}

impl Draft {
    pub(super) fn new(at: u32) -> Self {
        Self { at, bytes: vec![0; BATCH_HEADER_BYTES], starts: Vec::new(), leaf: 0, gone: None }
    }

    /// Takes note of records that went.
    pub(super) fn erase(&mut self, erased: &Erased) -> Result<(), CodecError> {
        let (count, tiles) = self.gone.get_or_insert_with(|| (0, Tiles::from(self.leaf)));
        *count += erased.count;
        for node in &erased.nodes {
            tiles.push(*node)?;
            self.leaf += node.leaves()?;
        }
        Ok(())
    }

    /// Appends a logical record as it was; gives its place, but for the segment.
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

    /// Appends what went since the last record that stays.
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
