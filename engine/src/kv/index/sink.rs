//! What the log's writer calls.

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::ids::{SegmentId, Seqno};
use crate::kv::index::levels::{Covered, Index, LOG_BYTES_MAX};
use crate::kv::keys;
use crate::kv::table::Entry;
use crate::log::batch::BatchBuf;
use crate::log::cursor::for_each_record;
use crate::log::layout::{LogState, Salt};
use crate::log::manifest::State;
use crate::log::queue::Queued;
use crate::log::writer::{LogEnd, Persisted, Sink};

impl Index {
    /// The index entries of a batch that is written; gives its last seqno.
    fn derive(&self, queued: &Queued, entries: &mut Vec<Entry>) -> Result<Seqno> {
        let salt = Salt::new(self.store, queued.segment);
        let mut last = queued.first_seqno;
        let mut index = 0;
        for_each_record(&queued.batch.bytes, queued.offset, salt, |_, seqno, record| {
            let place = queued.batch.place(index, queued.segment, queued.offset);
            index += 1;
            last = seqno;
            keys::derive(&record, seqno, place, entries)
        })
        .map_err(|e| Error::bug(format!("a batch of our own does not parse: {e}")))?;
        let BatchBuf { anchors, namespace, .. } = &queued.batch;
        entries
            .extend(anchors.iter().map(|anchor| keys::anchor_entry(*namespace, anchor, queued.first_seqno)));
        Ok(last)
    }

    /// Writes down what was read of the log so far, where it is much; for an opening for writing, before the upkeep has
    /// started. What it covers is then for the manifest to say.
    pub(crate) fn flush_while_opening(
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
        let tables = self.written_down(at, state, std::slice::from_ref(&levels.active), &levels.tables)?;
        self.change_levels(|levels| {
            levels.tables = tables;
            levels.active = std::sync::Arc::default();
        });
        self.frozen_at.store(logged, Ordering::Relaxed);
        *covered = Some(Covered { at, state: state.clone() });
        Ok(())
    }

    /// Puts into the manifest's state what the tables are and cover.
    pub(crate) fn list(&self, covered: Covered, state: &mut State) {
        state.tables = self.levels().entries();
        state.next_table = self.next_table.load(Ordering::Relaxed);
        state.covers = covered.at;
        state.covers_state = covered.state;
    }
}

impl Sink for Index {
    fn publish(&self, batches: &[Queued]) -> Result<()> {
        let mut entries = Vec::new();
        let mut last = self.visible();
        for queued in batches {
            last = self.derive(queued, &mut entries)?;
        }
        self.insert(entries);
        self.show(last);
        Ok(())
    }

    fn make_room(&self, end: &LogEnd<'_>) -> Result<()> {
        self.freeze_where_full(end)
    }

    fn stop(&self) {
        self.stop_upkeep();
    }

    fn persist(&self, end: &LogEnd<'_>) -> Result<Persisted> {
        let levels = self.levels();
        let memory: Vec<_> = levels.memory().cloned().collect();
        let tables = self.written_down((end.segment, end.tail), end.state, &memory, &levels.tables)?;
        self.change_levels(|levels| {
            *levels = super::levels::Levels { tables, ..Default::default() };
        });
        Ok(Persisted { tables: self.levels().entries(), next_table: self.next_table.load(Ordering::Relaxed) })
    }

    fn persisted(&self) {
        self.remove_other_tables(&self.levels());
    }
}
