//! Counts the records of runs that only the end of a run's life erases: whole frames, snapshots, and the records of
//! ends that no recorder takes up again. A checkpoint lists the counts, and a later pass over the same leaves explains what is missing.
//!
//! A run's life ends with its tombstone, with a record that says it was replaced, or with a statement that its last
//! record was erased. Memory holds a few words for each run.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::codec::index;
use crate::trace::heads::RunFields;
use crate::trace::model::Status;

/// Runs of one page of [`RunTally`]. Few, so that forged run numbers far apart do not take much memory.
const PAGE_RUNS: u64 = PAGE_SLOTS as u64;
const PAGE_SLOTS: usize = 16;
/// Most counts in one list of a checkpoint.
pub(crate) const PARTS_MAX: u64 = 256;

/// How many consecutive run numbers share a count, if `last` is the greatest of them: the least power of two for which
/// a list has at most 256 counts.
pub(crate) fn run_span(last: u64) -> u64 {
    let mut span = 1;
    while last / span >= PARTS_MAX {
        span *= 2;
    }
    span
}

/// A number for each run.
#[derive(Debug, Default)]
pub(crate) struct RunTally {
    pages: BTreeMap<u64, Page>,
}

#[derive(Debug)]
struct Page {
    sum: u64,
    each: [u32; PAGE_SLOTS],
}

impl RunTally {
    fn add(&mut self, run: u64, more: u32) {
        let page =
            self.pages.entry(run / PAGE_RUNS).or_insert_with(|| Page { sum: 0, each: [0; PAGE_SLOTS] });
        let one = &mut page.each[index(run % PAGE_RUNS)];
        let sum = one.saturating_add(more);
        page.sum += u64::from(sum - *one);
        *one = sum;
    }

    fn take(&mut self, run: u64) -> u32 {
        let Some(page) = self.pages.get_mut(&(run / PAGE_RUNS)) else { return 0 };
        let taken = std::mem::take(&mut page.each[index(run % PAGE_RUNS)]);
        page.sum -= u64::from(taken);
        taken
    }

    /// The runs in `range` whose number is not 0.
    fn counted_in(&self, range: &Range<u64>) -> Vec<u64> {
        let pages = self.pages.range(range.start / PAGE_RUNS..=range.end / PAGE_RUNS);
        let runs = pages.flat_map(|(at, page)| {
            (at * PAGE_RUNS..).zip(page.each).filter_map(|(run, count)| (count > 0).then_some(run))
        });
        runs.filter(|run| range.contains(run)).collect()
    }

    fn has(&self, run: u64) -> bool {
        let page = self.pages.get(&(run / PAGE_RUNS));
        page.is_some_and(|page| page.each[index(run % PAGE_RUNS)] > 0)
    }

    /// The sums over spans of `span` numbers each, a power of two, up to the run number `last`.
    fn sums(&self, span: u64, last: u64) -> Vec<u64> {
        let mut sums = vec![0; index(last / span + 1)];
        for (at, page) in self.pages.range(..=last / PAGE_RUNS) {
            let runs = at * PAGE_RUNS..=last.min(at * PAGE_RUNS + (PAGE_RUNS - 1));
            if span >= PAGE_RUNS && runs.end() % PAGE_RUNS == PAGE_RUNS - 1 {
                sums[index(runs.start() / span)] += page.sum;
                continue;
            }
            for (run, count) in runs.zip(page.each) {
                sums[index(run / span)] += u64::from(count);
            }
        }
        sums
    }
}

/// Numbers as ranges that do not touch.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// Ends by beginnings.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.ends.range(..=range.end).next_back().map(|(a, b)| (*a, *b)) {
            if end < range.start {
                break;
            }
            self.ends.remove(&start);
            range = range.start.min(start)..range.end.max(end);
        }
        self.ends.insert(range.start, range.end);
    }

    fn contains(&self, number: u64) -> bool {
        self.ends.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end)
    }
}

/// What is known about the records of runs at one place of the log.
#[derive(Debug, Default)]
pub(crate) struct RunRecordCensus {
    /// The records that exist, of runs whose life goes on.
    living: RunTally,
    /// The same of the other runs.
    dropped: RunTally,
    /// The snapshots that exist, of runs whose life goes on. A frame has one at most.
    snapshots: RunTally,
    /// At most how many records went when a life ended, and one for each run that has ended.
    ended: RunTally,
    /// Runs of which only a statement is left: how many records they had is not known.
    stated: RangeSet,
    /// Runs with a frame after the end of their life.
    pub(crate) revived: RangeSet,
}

/// The counts at one place of the log, in parts.
#[derive(Debug)]
pub(crate) struct RunRecordParts {
    pub(crate) living: Vec<u64>,
    pub(crate) dropped: Vec<u64>,
    pub(crate) snapshots: Vec<u64>,
    /// At most how many records the ends of lives explain, from the log's beginning.
    pub(crate) explained: Vec<u64>,
}

impl RunRecordCensus {
    pub(crate) fn add_frame(&mut self, run: u64, open: bool) {
        let dropped = self.has_ended(run);
        if dropped {
            self.revived.insert(run..run + 1);
        }
        if !open {
            self.add(run, dropped);
        }
    }

    pub(crate) fn add_snapshot(&mut self, run: u64) {
        if !self.has_ended(run) {
            self.snapshots.add(run, 1);
        }
    }

    pub(crate) fn add_run(&mut self, fields: &RunFields) {
        let run = fields.uid.0;
        let is_open = fields.status == Status::Open.code();
        if fields.gone {
            // The number of frames is that of an end.
            let frames = if is_open { u32::MAX } else { fields.frames };
            self.end(run, frames);
        } else if !is_open && fields.status != Status::Abandoned.code() {
            self.add(run, self.has_ended(run));
        }
    }

    /// A run's life ends; it had at most this many frames.
    pub(crate) fn end(&mut self, run: u64, frames: u32) {
        if !self.has_ended(run) {
            // The frames, and the record of its end.
            self.ended.add(run, frames.saturating_add(1));
            self.move_to_dropped(run);
        }
    }

    /// A statement says that no record of these runs is left.
    pub(crate) fn end_stated(&mut self, runs: &Range<u64>) {
        for run in [self.living.counted_in(runs), self.snapshots.counted_in(runs)].concat() {
            self.move_to_dropped(run);
        }
        let known = self.ended.counted_in(runs);
        let mut from = runs.start;
        for run in known {
            self.stated.insert(from..run);
            from = run + 1;
        }
        self.stated.insert(from..runs.end);
    }

    fn has_ended(&self, run: u64) -> bool {
        self.ended.has(run) || self.stated.contains(run)
    }

    fn add(&mut self, run: u64, dropped: bool) {
        if dropped { self.dropped.add(run, 1) } else { self.living.add(run, 1) }
    }

    fn move_to_dropped(&mut self, run: u64) {
        self.snapshots.take(run);
        let records = self.living.take(run);
        if records > 0 {
            self.dropped.add(run, records);
        }
    }

    /// The counts so far for the runs up to `last`, in parts of `span` run numbers.
    pub(crate) fn parts(&self, span: u64, last: u64) -> RunRecordParts {
        RunRecordParts {
            living: self.living.sums(span, last),
            dropped: self.dropped.sums(span, last),
            snapshots: self.snapshots.sums(span, last),
            explained: self.explained(span, last),
        }
    }

    /// See [`RunRecordParts::explained`].
    pub(crate) fn explained(&self, span: u64, last: u64) -> Vec<u64> {
        let mut sums = self.ended.sums(span, last);
        for range in self.stated.ranges() {
            let parts = range.start / span..=(range.end - 1).min(last) / span;
            for part in parts.filter(|_| range.start <= last) {
                // As many as any run has, once for each run of the part.
                let from = range.start.max(part * span);
                let runs = range.end.min((part + 1) * span) - from;
                let sum = &mut sums[index(part)];
                *sum = sum.saturating_add(runs.saturating_mul(u64::from(u32::MAX)));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_counts_has_at_most_256() {
        let spans = [(0, 1), (255, 1), (256, 2), (511, 2), (512, 4), (u64::MAX >> 8, 1 << 48)];
        assert_eq!(spans.map(|(last, _)| (last, run_span(last))), spans);
    }

    #[test]
    fn sums_are_those_of_single_runs_for_each_span() {
        let runs = [1, 2, 15, 16, 17, 40, 63, 64, 200];
        let mut tally = RunTally::default();
        runs.iter().for_each(|run| tally.add(*run, *run as u32));
        assert_eq!((tally.take(40), tally.take(40), tally.take(9)), (40, 0, 0));
        for span in [1, 2, 16, 32, 64, 256] {
            for last in [1, 16, 17, 63, 64, 199, 200, 300] {
                let expected: Vec<u64> = (0..=last / span)
                    .map(|part| {
                        let counted =
                            runs.iter().filter(|run| **run <= last && **run / span == part && **run != 40);
                        counted.sum()
                    })
                    .collect();
                assert_eq!(tally.sums(span, last), expected, "span {span}, last {last}");
            }
        }
        assert_eq!(tally.counted_in(&(2..64)), [2, 15, 16, 17, 63]);
    }

    #[test]
    fn ranges_merge() {
        let mut set = RangeSet::default();
        for range in [5..7, 9..12, 7..8, 3..3, 1..2, 11..20, 8..9] {
            set.insert(range);
        }
        assert_eq!(set.ranges().collect::<Vec<_>>(), [1..2, 5..20]);
        let known: Vec<u64> = (0..22).filter(|number| set.contains(*number)).collect();
        assert_eq!(known, [&[1][..], &(5..20).collect::<Vec<_>>()].concat());
    }

    #[test]
    fn the_end_of_a_life_explains_its_records_once() {
        let mut census = RunRecordCensus::default();
        for run in [1, 1, 1, 2, 2, 3] {
            census.add_frame(run, false);
        }
        census.add_frame(3, true);
        [1, 2, 2].into_iter().for_each(|run| census.add_snapshot(run));
        let parts = census.parts(1, 3);
        assert_eq!((parts.living, parts.snapshots), (vec![0, 3, 2, 1], vec![0, 1, 2, 0]));
        census.end(1, 3);
        census.end(1, 3);
        census.end_stated(&(1..3));
        let parts = census.parts(1, 3);
        assert_eq!((parts.living, parts.dropped), (vec![0, 0, 0, 1], vec![0, 3, 2, 0]));
        assert_eq!(parts.snapshots, [0; 4]);
        assert_eq!(parts.explained, [0, 4, u64::from(u32::MAX), 0]);
        assert_eq!(census.revived.ranges().count(), 0);
        census.add_frame(2, false);
        assert_eq!((census.revived.ranges().count(), census.revived.contains(2)), (1, true));
        assert_eq!(census.parts(2, 3).dropped, [3, 3]);
    }
}
