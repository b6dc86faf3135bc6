//! Puts rewritten segments in the place of their sources.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::SegmentId;
use crate::io::OpenMode;
use crate::log::erasure::{ErasedSpan, ErasureRule};
use crate::log::manifest::SegmentEntry;
use crate::log::rewrite::RewrittenSegment;
use crate::log::segments::{Segment, read_lock};
use crate::log::ticket::WriteFailure;
use crate::trace::census::{commit_statements, stated_spans};
use crate::trace::erasure_report::ERASED;
use annals_store::kv::core::Core;
use annals_store::kv::index::{CompactionBase, RebuiltTable};

/// New files that the manifest does not list yet.
pub(super) struct RewrittenFiles {
    /// Each new segment, after the segments that it was made of.
    pub(super) segments: Vec<(Vec<SegmentId>, RewrittenSegment)>,
    /// The table that leads to them.
    pub(super) table: RebuiltTable,
    /// Replaced runs of which no record is left.
    pub(super) erased_runs: Vec<Range<u64>>,
    /// Bytes of the files that they replace.
    pub(super) retired_bytes: u64,
}

/// Refuses a change because of the records that are held in memory.
type HeldCheck<'a> = dyn Fn(&[(u64, u32)]) -> Result<()> + 'a;

impl RewrittenFiles {
    /// Commits the statement of what the new segments lack. It is on disk before any of them is listed: a
    /// rewritten segment without a statement was not made by a compaction.
    ///
    /// # Errors
    /// `Damaged` if a source lacks more than a statement names: the new statement would explain what somebody else
    /// erased.
    pub(super) fn state_erasures(&self, core: &Arc<Core>) -> Result<()> {
        let before: Vec<_> = self.segments.iter().flat_map(|(_, made)| &made.source_spans).collect();
        if !before.is_empty() {
            let stated = stated_spans(core)?;
            if let Some((segment, _)) = before.into_iter().find(|(_, span)| !stated.contains(span)) {
                let what =
                    format!("{ERASED}: it lacks records that no statement names, so it is left as it is");
                return Err(Error::damaged(&core.paths.segment(*segment), 0, what));
            }
        }
        let spans: Vec<ErasedSpan> = self.segments.iter().filter_map(|(_, made)| made.span).collect();
        commit_statements(core, ErasureRule::Compaction, &spans, &self.erased_runs)
    }

    /// Replaces the sources by the new segments in the manifest and in memory. `check` and `check_held` may
    /// refuse: the first before anything else, the second with what is held in memory at the moment of the change.
    pub(super) fn swap(
        self,
        core: &Arc<Core>,
        base: &CompactionBase,
        check: &dyn Fn() -> Result<()>,
        check_held: &HeldCheck<'_>,
    ) -> Result<()> {
        let log = core.log()?;
        let Self { segments: made, table, retired_bytes, .. } = self;
        let opened: Vec<Arc<Segment>> = (made.iter())
            .map(|(_, made)| open_sealed(core, &made.entry).map(Arc::new))
            .collect::<Result<_>>()?;
        let _tables = core.index.lock_tables(base)?;
        check()?;
        let (tables, next_table) = core.index.listing_with(base, &table);
        core.fence.with_held_records(|held| {
            check_held(held)?;
            let edited = log.manifest.renew(retired_bytes, |state| {
                for (sources, made) in &made {
                    let entry = &made.entry;
                    let at = state.segments.iter().position(|listed| sources.first() == Some(&listed.id));
                    if let Some(at) = at {
                        state.segments.splice(at..at + sources.len(), [entry.clone()]);
                    }
                    state.next_rewritten = state.next_rewritten.max(entry.id.0.saturating_add(1));
                    state.erased.add(&made.erased);
                }
                state.tables = tables;
                state.next_table = next_table;
            });
            edited.map_err(|failed| {
                if failed.in_doubt {
                    log.queue.poison(WriteFailure::from_error(&failed.error));
                }
                failed.error
            })?;
            let segments = read_lock(&core.segments).clone();
            for ((sources, _), segment) in made.iter().zip(opened) {
                // The manifest and the state in memory differ now: no later write may build on them.
                segments.replace(sources, segment).inspect_err(|error| {
                    log.queue.poison(WriteFailure::from_error(error));
                })?;
            }
            core.index.install(base, table);
            // Only now: pins taken from here on use the new table.
            let sources: Vec<SegmentId> = made.iter().flat_map(|(sources, _)| sources.clone()).collect();
            segments.retire(&sources);
            core.schema.records_moved();
            Ok(())
        })
    }
}

fn open_sealed(core: &Core, entry: &SegmentEntry) -> Result<Segment> {
    let segment = Segment::open(&*core.io, &core.paths, core.store, entry.id, OpenMode::Read)?;
    segment.mark_sealed(core.options.read_mode);
    Ok(segment)
}
