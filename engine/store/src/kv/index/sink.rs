//! The calls of the log's writer into the index.

use crate::error::Result;
use crate::ids::{SegmentId, Seqno};
use crate::kv::index::levels::{Covered, Index, LOG_BYTES_MAX};
use crate::kv::keys;
use crate::log::layout::LogState;
use crate::log::manifest::State;
use crate::log::queue::Queued;
use crate::log::segments::lock;
use crate::log::writer::{LogEnd, Persisted, Sink};
use crate::sync::atomic::Ordering;

impl Index {
    /// Flushes what was read of the log so far, if it is much. For an opening for writing, before the upkeep
    /// has started. The caller puts `covered` into the manifest.
    pub fn flush_while_opening(
        &self,
        at: (SegmentId, u64),
        state: &LogState,
        covered: &mut Option<Covered>,
    ) -> Result<()> {
        let levels = self.levels();
        let logged = state.totals.bytes();
        let long = logged.saturating_sub(self.frozen_at.load(Ordering::Relaxed)) >= LOG_BYTES_MAX;
        if levels.active.bytes() < self.limits.memory_bytes && !long {
            return Ok(());
        }
        let _tables = lock(&self.tables);
        let tables = self.written_down(at, state, std::slice::from_ref(&levels.active))?;
        self.change_levels(|levels| {
            levels.tables = tables;
            levels.active = std::sync::Arc::default();
        });
        self.frozen_at.store(logged, Ordering::Relaxed);
        *covered = Some(Covered { at, state: state.clone() });
        Ok(())
    }

    /// Puts the tables and what they cover into the manifest's state.
    pub fn list(&self, covered: Covered, state: &mut State) {
        state.tables = self.levels().entries();
        state.next_table = self.next_table.load(Ordering::Relaxed);
        state.covers = covered.at;
        state.covers_state = covered.state;
    }
}

impl Sink for Index {
    fn publish(&self, batches: &[Queued]) -> Result<()> {
        let mut last = self.visible();
        self.levels().active.insert_with(|add| {
            for Queued { batch, segment, offset, first_seqno, .. } in batches {
                for posting in batch.postings() {
                    let place = batch.place(posting.record, *segment, *offset);
                    let seqno = first_seqno.0 + posting.record as u64;
                    let value = keys::at(posting.kind, place);
                    match keys::is_numbered(posting.key) {
                        true => add(&keys::vectors(Seqno(seqno)), seqno, value),
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
        self.show(last);
        Ok(())
    }

    fn make_room(&self, end: &LogEnd<'_>) -> Result<()> {
        self.freeze_where_full(end)
    }

    fn write_down(&self, end: &LogEnd<'_>) -> Result<()> {
        self.freeze_whatever_there_is(end)
    }

    fn stop(&self) {
        self.stop_upkeep();
        let _tables = lock(&self.tables);
        self.writable.store(false, Ordering::Release);
    }

    fn persist(&self, end: &LogEnd<'_>) -> Result<Persisted> {
        let levels = self.levels();
        let memory: Vec<_> = levels.memory().cloned().collect();
        let _tables = lock(&self.tables);
        let tables = self.written_down((end.segment, end.tail), end.state, &memory)?;
        self.change_levels(|levels| {
            *levels = super::levels::Levels { tables, ..Default::default() };
        });
        Ok(Persisted { tables: self.levels().entries(), next_table: self.next_table.load(Ordering::Relaxed) })
    }

    fn persisted(&self) {
        self.remove_other_tables(&self.levels());
    }
}
