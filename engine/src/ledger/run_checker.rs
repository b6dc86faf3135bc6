//! Compares a checkpoint's counts of records of runs with those of a store.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ledger::checkpoint::Checkpoint;
use crate::ledger::compare::CheckpointDifference;
use crate::trace::RunPart;
use crate::trace::census::LogCensus;

/// Compares a checkpoint's counts of records of runs, and of what nothing erases.
pub(super) struct RunChecker {
    /// Run numbers that lack records, how many, and how many the ends of lives explained before the checkpoint's end.
    pub(super) lost: Vec<(Range<u64>, u64, u64)>,
    /// Run numbers with more records than the checkpoint counts, and how many more.
    back: Vec<(Range<u64>, u64)>,
    /// Records that nothing erases: those that the checkpoint counts, and those of them that exist.
    permanent: (u64, u64),
}

impl RunChecker {
    /// `census` is that of the checkpoint's leaves. `None` if the checkpoint has no such counts.
    pub(super) fn new(checkpoint: &Checkpoint, census: &LogCensus) -> Option<Self> {
        let (parts, counts) = (checkpoint.parts.as_ref()?, checkpoint.counts.as_ref()?);
        let records = &census.run_records;
        let found: BTreeMap<u64, RunPart> =
            records.parts(parts.run_span).into_iter().map(|part| (part.first, part)).collect();
        let mut expected: BTreeMap<u64, RunPart> =
            found.keys().map(|first| (*first, RunPart::empty(*first))).collect();
        expected.extend(parts.runs.iter().map(|part| (part.first, *part)));
        let (mut lost, mut back) = (Vec::new(), Vec::new());
        for (first, expected) in expected {
            let found = found.get(&first).copied().unwrap_or(RunPart::empty(first));
            let end = first.saturating_add(parts.run_span).min(counts.last_run.max(first).saturating_add(1));
            let runs = first.max(1)..end;
            // What explains lost frames explains as many lost snapshots, so the greater loss counts.
            let lacks = expected.records.saturating_sub(found.records);
            let lacks = lacks.max(expected.snapshots.saturating_sub(found.snapshots));
            if lacks > 0 {
                lost.push((runs.clone(), lacks, records.explained(&runs)));
            }
            // Without its tombstone, a dropped run that came back is a living one.
            let all = |part: &RunPart| part.records.saturating_add(part.dropped);
            let more = found.dropped.saturating_sub(expected.dropped);
            let more = more.max(all(&found).saturating_sub(all(&expected)));
            if more > 0 {
                back.push((runs, more));
            }
        }
        Some(Self { lost, back, permanent: (parts.permanent, census.permanent) })
    }

    /// Whether the checkpoint's leaves alone show a difference.
    pub(super) fn differs(&self) -> bool {
        !self.back.is_empty() || self.permanent.1 < self.permanent.0
    }

    /// The differences, once the census knows the whole log.
    pub(super) fn finish(self, census: &LogCensus) -> Vec<CheckpointDifference> {
        let mut all = Vec::new();
        let missing = self.lost.into_iter().map(|(runs, lost, before)| {
            let since = census.run_records.explained(&runs).saturating_sub(before);
            (runs, lost.saturating_sub(since))
        });
        let (runs, missing) = named(missing);
        if missing > 0 {
            all.push(CheckpointDifference::RunRecordsMissing { runs, missing });
        }
        let (runs, more) = named(self.back.into_iter());
        if more > 0 {
            all.push(CheckpointDifference::RunRecordsBack { runs, more });
        }
        let (expected, found) = self.permanent;
        if found < expected {
            all.push(CheckpointDifference::PermanentMissing { expected, found });
        }
        all
    }
}

/// The runs whose count is not 0, and the sum of the counts.
fn named(counts: impl Iterator<Item = (Range<u64>, u64)>) -> (Vec<Range<u64>>, u64) {
    let (mut runs, mut sum): (Vec<Range<u64>>, _) = (Vec::new(), 0u64);
    for (more, count) in counts.filter(|(_, count)| *count > 0) {
        sum = sum.saturating_add(count);
        match runs.last_mut() {
            Some(last) if last.end == more.start => last.end = more.end,
            _ => runs.push(more),
        }
    }
    (runs, sum)
}
