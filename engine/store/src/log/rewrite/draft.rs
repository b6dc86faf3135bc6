//! A batch being written: the records that stay, and a summary of the erased ones.

use crate::codec::CodecError;
use crate::ids::{RecordPlace, SegmentId};
use crate::log::erased::ErasedRecords;
use crate::log::layout::{RawRecord, seal_record, start_record};
use crate::log::ledger::LedgerTiles;
use crate::log::record::{LAYOUT, LAYOUT_WITHOUT_SALT, RecordKind};
use crate::log::salts::Salt16;

/// A batch under construction.
#[derive(Debug)]
pub(super) struct BatchDraft {
    /// Offset of the first record.
    at: u32,
    /// The records.
    pub(super) bytes: Vec<u8>,
    /// Where each record starts in `bytes`.
    pub(super) starts: Vec<usize>,
    /// Leaves of the batch's small tree so far.
    leaf: u64,
    /// Number and ledger nodes of the records erased since the last one that stays.
    gone: Option<(u64, LedgerTiles)>,
}

impl BatchDraft {
    pub(super) fn new(at: u32) -> Self {
        Self { at, bytes: Vec::new(), starts: Vec::new(), leaf: 0, gone: None }
    }

    /// Notes erased records.
    pub(super) fn erase(&mut self, erased: &ErasedRecords) -> Result<(), CodecError> {
        let (count, tiles) = self.gone.get_or_insert_with(|| (0, LedgerTiles::starting_at(self.leaf)));
        *count += erased.count;
        for node in &erased.nodes {
            tiles.push(*node)?;
            self.leaf += node.leaves()?;
        }
        Ok(())
    }

    /// Appends a logical record; returns its place without the segment. It stays as it is, unless a salt is
    /// given: then it stores that salt.
    pub(super) fn logical(&mut self, record: &RawRecord<'_>, salt: Option<Salt16>) -> RecordPlace {
        let place = match salt {
            None => self.record(record.kind, record.layout, |out| out.extend_from_slice(record.body)),
            Some(salt) => self.record(record.kind, LAYOUT, |out| {
                let stored = if record.layout == LAYOUT_WITHOUT_SALT { 0 } else { salt.len() };
                out.extend_from_slice(&salt);
                out.extend_from_slice(record.body.get(stored..).unwrap_or_default());
            }),
        };
        self.leaf += 1;
        place
    }

    /// Appends a record that is not logical.
    pub(super) fn record(&mut self, kind: u8, layout: u8, put: impl FnOnce(&mut Vec<u8>)) -> RecordPlace {
        self.flush_erased();
        self.append(kind, layout, put)
    }

    /// Appends a record for those erased since the last record that stays.
    pub(super) fn flush_erased(&mut self) {
        if let Some((count, tiles)) = self.gone.take() {
            let erased = ErasedRecords { count, nodes: tiles.nodes().to_vec() };
            self.append(RecordKind::Erased.code(), LAYOUT, |out| erased.put(out));
        }
    }

    fn append(&mut self, kind: u8, layout: u8, put: impl FnOnce(&mut Vec<u8>)) -> RecordPlace {
        let start = start_record(&mut self.bytes, kind, layout);
        put(&mut self.bytes);
        seal_record(&mut self.bytes, start);
        self.starts.push(start);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`SegmentOutput::batch` refuses a draft of over BATCH_BYTES_MAX bytes"
        )]
        let (begins, len) = (start as u32, (self.bytes.len() - start) as u32);
        RecordPlace { segment: SegmentId::default(), offset: self.at.saturating_add(begins), len }
    }
}
