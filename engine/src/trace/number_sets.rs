//! Sets of run numbers, and of numbers within runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// Numbers as ranges that do not touch.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// Ends by beginnings.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(super) fn insert_one(&mut self, number: u64) {
        self.insert(number..number.saturating_add(1));
    }

    pub(super) fn insert(&mut self, mut range: Range<u64>) {
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

    pub(super) fn contains(&self, number: u64) -> bool {
        self.ends.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// The parts of the set in `range`.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.ends.range(..range.start).next_back();
        let all = first.into_iter().chain(self.ends.range(range.clone()));
        all.map(move |(start, end)| (*start).max(range.start)..(*end).min(range.end))
            .filter(|part| !part.is_empty())
    }

    /// The parts of `range` that are not in the set.
    pub(super) fn missing_from(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut missing, mut from) = (Vec::new(), range.start);
        for part in self.within(range.clone()) {
            missing.push(from..part.start);
            from = part.end;
        }
        missing.push(from..range.end);
        missing.retain(|part| !part.is_empty());
        missing
    }

    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.ends.iter().map(|(start, end)| *start..*end).collect()
    }
}

/// Pairs of a run and a number in it.
#[derive(Debug, Default)]
pub(super) struct NumbersOfRuns {
    /// One bit for each number.
    bits: BTreeMap<(u64, u32), u64>,
}

impl NumbersOfRuns {
    pub(super) fn has(&self, run: u64, number: u32) -> bool {
        self.bits.get(&(run, number / 64)).is_some_and(|bits| bits >> (number % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, run: u64, number: u32) {
        *self.bits.entry((run, number / 64)).or_default() |= 1 << (number % 64);
    }

    /// The greatest number of a run; 0 if it has none.
    pub(super) fn last(&self, run: u64) -> u32 {
        let last = self.bits.range((run, 0)..=(run, u32::MAX)).next_back();
        last.map_or(0, |((_, word), bits)| word * 64 + (63 - bits.leading_zeros()))
    }

    pub(super) fn forget(&mut self, run: u64) {
        forget_frames_of(&mut self.bits, run);
    }
}

/// Takes out what belongs to the frames of a run.
pub(super) fn forget_frames_of<T>(frames: &mut BTreeMap<(u64, u32), T>, run: u64) {
    while let Some((key, _)) = frames.range((run, 0)..=(run, u32::MAX)).next() {
        let key = *key;
        frames.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge() {
        let mut set = RangeSet::default();
        for range in [5..7, 9..12, 7..8, 3..3, 1..2, 11..20, 8..9] {
            set.insert(range);
        }
        assert_eq!(set.ranges(), [1..2, 5..20]);
        let known: Vec<u64> = (0..22).filter(|number| set.contains(*number)).collect();
        assert_eq!(known, [&[1][..], &(5..20).collect::<Vec<_>>()].concat());
        assert_eq!(set.missing_from(0..30), [0..1, 2..5, 20..30]);
        assert_eq!(set.missing_from(6..19), []);
        assert_eq!(set.within(1..9).collect::<Vec<_>>(), [1..2, 5..9]);
    }
}
