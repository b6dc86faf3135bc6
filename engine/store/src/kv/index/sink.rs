//! The calls of the log's writer into the index.

use crate::error::Result;
use crate::ids::{SegmentId, Seqno};
use crate::kv::index::flush::CLOSE_ENTRIES_MAX;
use crate::kv::index::levels::{Index, IndexCoverage, LOG_BYTES_MAX};
use crate::kv::keys;
use crate::log::layout::LogState;
use crate::log::manifest::ManifestState;
use crate::log::queue::QueuedBatch;
use crate::log::segments::lock;
use crate::log::writer::{LogEnd, LogSink, PersistedTables};
use crate::sync::atomic::Ordering;

impl Index {
    /// Flushes what was read of the log so far, if it is much. For an opening for writing, before the upkeep
    /// has started. The caller puts `covered` into the manifest.
    pub fn flush_while_opening(
        &self,
        at: (SegmentId, u64),
        state: &LogState,
        covered: &mut Option<IndexCoverage>,
    ) -> Result<()> {
        let levels = self.levels();
        let logged = state.totals.bytes();
        let long = logged.saturating_sub(self.frozen_at.load(Ordering::Relaxed)) >= LOG_BYTES_MAX;
        if levels.active.bytes() < self.limits.memory_bytes && !long {
            return Ok(());
        }
        let _tables = lock(&self.tables);
        let tables = self.flush_memory(at, state, std::slice::from_ref(&levels.active), u64::MAX)?;
        self.change_levels(|levels| {
            levels.tables = tables;
            levels.active = std::sync::Arc::default();
        });
        self.frozen_at.store(logged, Ordering::Relaxed);
        *covered = Some(IndexCoverage { at, state: state.clone() });
        Ok(())
    }

    /// Puts the tables and what they cover into the manifest's state.
    pub fn write_listing(&self, covered: IndexCoverage, state: &mut ManifestState) {
        state.tables = self.levels().table_entries();
        state.next_table = self.next_table.load(Ordering::Relaxed);
        state.covers = covered.at;
        state.covers_state = covered.state;
    }
}

impl LogSink for Index {
    fn publish(&self, batches: &[QueuedBatch]) -> Result<()> {
        let mut last = self.visible();
        self.levels().active.insert_with(|add| {
            for QueuedBatch { batch, segment, offset, first_seqno, .. } in batches {
                for posting in batch.postings() {
                    let place = batch.record_place(posting.record, *segment, *offset);
                    let seqno = first_seqno.0 + posting.record as u64;
                    let value = keys::record_value(posting.kind, place);
                    match keys::is_numbered(posting.key) {
                        true => add(&keys::numbered(posting.key, Seqno(seqno)), seqno, value),
                        false => add(posting.key, seqno, value),
                    }
                }
                for anchor in &batch.anchors {
                    let key = keys::anchor(batch.namespace, anchor.key);
                    add(&key, first_seqno.0, keys::anchor_value(anchor));
                }
                last = Seqno(first_seqno.0 + batch.starts.len() as u64 - 1);
            }
        });
        self.set_visible(last);
        Ok(())
    }

    fn make_room(&self, end: &LogEnd<'_>) -> Result<()> {
        self.freeze_if_full(end)
    }

    fn flush_index(&self, end: &LogEnd<'_>) -> Result<()> {
        self.freeze_now(end)
    }

    fn stop(&self) {
        self.stop_upkeep();
        let _tables = lock(&self.tables);
        self.writable.store(false, Ordering::Release);
    }

    fn persist(&self, end: &LogEnd<'_>) -> Result<PersistedTables> {
        let levels = self.levels();
        let memory: Vec<_> = levels.memory().cloned().collect();
        let _tables = lock(&self.tables);
        let at = (end.segment, end.tail);
        let tables = self.flush_memory(at, end.state, &memory, CLOSE_ENTRIES_MAX)?;
        self.change_levels(|levels| {
            *levels = super::levels::IndexLevels { tables, ..Default::default() };
        });
        Ok(PersistedTables {
            tables: self.levels().table_entries(),
            next_table: self.next_table.load(Ordering::Relaxed),
        })
    }

    fn after_persist(&self) {
        self.remove_tables_not_in(&self.levels());
    }
}
