//! Counts of the records of runs, for each run and for parts of the run numbers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::codec::index;

/// Runs of one page of [`RunTally`]. Few, so that forged run numbers far apart do not take much memory.
const PAGE_RUNS: u64 = PAGE_SLOTS as u64;
const PAGE_SLOTS: usize = 16;
/// Most parts of the run numbers in a checkpoint.
pub(crate) const PARTS_MAX: usize = 256;

/// A number for each run.
#[derive(Debug, Default)]
pub(super) struct RunTally {
    pages: BTreeMap<u64, [u32; PAGE_SLOTS]>,
}

impl RunTally {
    pub(super) fn add(&mut self, run: u64, more: u32) {
        let one = &mut self.pages.entry(run / PAGE_RUNS).or_default()[slot(run)];
        *one = one.saturating_add(more);
    }

    pub(super) fn take(&mut self, run: u64) -> u32 {
        self.pages.get_mut(&(run / PAGE_RUNS)).map_or(0, |page| std::mem::take(&mut page[slot(run)]))
    }

    pub(super) fn has(&self, run: u64) -> bool {
        self.pages.get(&(run / PAGE_RUNS)).is_some_and(|page| page[slot(run)] > 0)
    }

    /// The runs in `range` whose number is not 0, and their numbers, ascending.
    pub(super) fn counted_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u32)> {
        let first = range.start / PAGE_RUNS;
        let pages = self.pages.range(first..=range.end.saturating_sub(1).max(range.start) / PAGE_RUNS);
        let runs = pages.flat_map(|(at, page)| {
            // The last page ends with the greatest number there is.
            let first = at * PAGE_RUNS;
            (first..=first + (PAGE_RUNS - 1)).zip(page.iter().copied())
        });
        let range = range.clone();
        runs.filter(move |(run, count)| *count > 0 && range.contains(run))
    }

    fn all(&self) -> impl Iterator<Item = (u64, u32)> {
        self.counted_in(&(0..u64::MAX))
    }
}

fn slot(run: u64) -> usize {
    index(run % PAGE_RUNS)
}

/// What a part of the run numbers has. A *record of a run* is here a whole frame, or the record that ends a run for
/// good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPart {
    /// The least run number of the part.
    pub first: u64,
    /// Records of runs that were neither dropped nor replaced.
    pub records: u64,
    /// Records of the other runs that still exist.
    pub dropped: u64,
    /// Snapshots of runs that were neither dropped nor replaced.
    pub snapshots: u64,
}

impl RunPart {
    pub(crate) fn empty(first: u64) -> Self {
        Self { first, records: 0, dropped: 0, snapshots: 0 }
    }
}

/// The records of each run that exist.
#[derive(Debug, Default)]
pub(super) struct RunCounts {
    /// Of runs whose life goes on.
    pub(super) living: RunTally,
    /// Of the other runs.
    dropped: RunTally,
    /// Snapshots of runs whose life goes on.
    pub(super) snapshots: RunTally,
    /// The sums that were asked for last: at each of thousands of checkpoints the same parts are asked for.
    sums: RefCell<PartSums>,
}

/// Sums over parts of `span` run numbers.
#[derive(Debug, Default)]
struct PartSums {
    /// 0 until sums were asked for.
    span: u64,
    parts: BTreeMap<u64, RunPart>,
}

impl PartSums {
    /// The part with this run. `None` if no sums are kept.
    fn part_of(&mut self, run: u64) -> Option<&mut RunPart> {
        let first = run / self.span.max(1) * self.span;
        (self.span > 0).then(|| self.parts.entry(first).or_insert(RunPart::empty(first)))
    }
}

impl RunCounts {
    pub(super) fn add_living(&mut self, run: u64) {
        self.living.add(run, 1);
        self.sums.get_mut().part_of(run).into_iter().for_each(|part| part.records += 1);
    }

    pub(super) fn add_dropped(&mut self, run: u64, more: u32) {
        self.dropped.add(run, more);
        self.sums.get_mut().part_of(run).into_iter().for_each(|part| part.dropped += u64::from(more));
    }

    pub(super) fn add_snapshot(&mut self, run: u64) {
        self.snapshots.add(run, 1);
        self.sums.get_mut().part_of(run).into_iter().for_each(|part| part.snapshots += 1);
    }

    /// Counts a run's records as those of a dropped one.
    pub(super) fn drop_run(&mut self, run: u64) {
        let (records, snapshots) = (self.living.take(run), self.snapshots.take(run));
        if records > 0 || snapshots > 0 {
            self.dropped.add(run, records);
            if let Some(part) = self.sums.get_mut().part_of(run) {
                part.records -= u64::from(records);
                part.dropped += u64::from(records);
                part.snapshots -= u64::from(snapshots);
            }
        }
    }

    /// How many run numbers a part has, a power of two: the fewest that give at most 256 parts with a record.
    pub(super) fn part_span(&self) -> u64 {
        let mut runs: Vec<u64> = [&self.living, &self.dropped, &self.snapshots]
            .iter()
            .flat_map(|tally| tally.all())
            .map(|(run, _)| run)
            .collect();
        runs.sort_unstable();
        let mut span = 1;
        loop {
            runs.dedup_by_key(|run| *run / span);
            if runs.len() <= PARTS_MAX {
                return span;
            }
            span *= 2;
        }
    }

    /// The parts of `span` run numbers that have a record, ascending.
    pub(super) fn parts(&self, span: u64) -> Vec<RunPart> {
        let mut sums = self.sums.borrow_mut();
        if sums.span != span {
            *sums = PartSums { span, ..PartSums::default() };
            let mut add = |tally: &RunTally, to: fn(&mut RunPart) -> &mut u64| {
                for (run, count) in tally.all() {
                    sums.part_of(run).into_iter().for_each(|part| *to(part) += u64::from(count));
                }
            };
            add(&self.living, |part| &mut part.records);
            add(&self.dropped, |part| &mut part.dropped);
            add(&self.snapshots, |part| &mut part.snapshots);
        }
        sums.parts.values().filter(|part| **part != RunPart::empty(part.first)).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kept sums are those that are counted anew, whatever happens after they were asked for.
    #[test]
    fn sums_that_are_kept_are_those_counted_anew() {
        let changes: [fn(&mut RunCounts, u64); 4] = [
            |counts, run| counts.add_living(run),
            |counts, run| counts.add_dropped(run, 1),
            |counts, run| counts.add_snapshot(run),
            |counts, run| counts.drop_run(run),
        ];
        // An odd step through 64 runs and the four changes: each meets each.
        let steps = (0..2000_u64).map(|step| (step * 37 % 64, step * 29 % 31 % 4));
        for span in [1, 8, 64] {
            let mut kept = RunCounts::default();
            for (at, (run, change)) in steps.clone().enumerate() {
                changes[index(change)](&mut kept, run);
                let sums = kept.parts(span);
                kept.sums.take();
                assert_eq!(sums, kept.parts(span), "step {at}, parts of {span}");
            }
            assert_eq!(kept.parts(64).len(), 1);
        }
    }
}
