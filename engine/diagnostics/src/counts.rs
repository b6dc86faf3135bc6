//! Counts that are kept as rows arrive, so that no question needs a pass over the rows.
//!
//! Failed rows are counted by category in buckets of time. A bucket of level 0 is one millisecond, and each level
//! above holds 256 buckets of the one below. So a sum from any millisecond on adds at most 255 buckets of each
//! level, and all of the highest.
//!
//! Of each observation four times are kept: the newest accepted row's and the three newest failed rows'. They
//! answer for every start time whether at least three failed rows and no accepted one remain.

use serde::Serialize;

use annals::kv::ScanRange;
use annals::{Error, ErrorKind, Keyspace, Result};

use crate::category::FailureCategory;
use crate::changes::{Changes, Space};
use crate::keys::{self, Scope};

/// Failed rows that make an observation misleading, if no accepted row has it.
pub(crate) const MISLEADING_FAILURES: usize = 3;
/// Bits of a time that a bucket of each level leaves out.
const LEVEL_SHIFTS: [u32; 5] = [0, 8, 16, 24, 32];

/// Number of failed sessions of each category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CategoryCounts {
    /// A test runner failed.
    pub test_failure: u64,
    /// Lint or format.
    pub style: u64,
    /// Something that worked before.
    pub regression: u64,
    /// No file was modified.
    pub incomplete: u64,
    /// Other errors.
    pub wrong_approach: u64,
    /// No rule matched.
    pub other: u64,
    /// Rows that were never classified.
    pub unknown: u64,
}

impl CategoryCounts {
    /// The counts with their categories, in order.
    #[must_use]
    pub fn each(&self) -> [(FailureCategory, u64); 7] {
        let counts = self.numbers();
        let mut at = 0;
        FailureCategory::ALL.map(|category| {
            at += 1;
            (category, counts[at - 1])
        })
    }

    fn numbers(&self) -> [u64; 7] {
        let Self { test_failure, style, regression, incomplete, wrong_approach, other, unknown } = *self;
        [test_failure, style, regression, incomplete, wrong_approach, other, unknown]
    }

    fn of_numbers(numbers: [u64; 7]) -> Self {
        let [test_failure, style, regression, incomplete, wrong_approach, other, unknown] = numbers;
        Self { test_failure, style, regression, incomplete, wrong_approach, other, unknown }
    }

    pub(crate) fn add(&mut self, category: FailureCategory, change: i64) {
        let count = match category {
            FailureCategory::TestFailure => &mut self.test_failure,
            FailureCategory::Style => &mut self.style,
            FailureCategory::Regression => &mut self.regression,
            FailureCategory::Incomplete => &mut self.incomplete,
            FailureCategory::WrongApproach => &mut self.wrong_approach,
            FailureCategory::Other => &mut self.other,
            FailureCategory::Unknown => &mut self.unknown,
        };
        *count = count.saturating_add_signed(change);
    }

    fn add_all(&mut self, more: Self) {
        let (mut numbers, more) = (self.numbers(), more.numbers());
        numbers.iter_mut().zip(more).for_each(|(number, more)| *number += more);
        *self = Self::of_numbers(numbers);
    }

    fn encode(&self) -> Vec<u8> {
        self.numbers().into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        Ok(Self::of_numbers(numbers(bytes)?))
    }
}

/// Little-endian numbers of a stored value.
///
/// # Errors
/// `Damaged` if the length differs.
pub(crate) fn numbers<const N: usize>(bytes: &[u8]) -> Result<[u64; N]> {
    let mut numbers = [0; N];
    let (parts, rest) = bytes.as_chunks::<8>();
    if parts.len() != N || !rest.is_empty() {
        return Err(malformed("numbers"));
    }
    numbers.iter_mut().zip(parts).for_each(|(number, part)| *number = u64::from_le_bytes(*part));
    Ok(numbers)
}

/// A value that another program wrote, or damage that no checksum found.
pub(crate) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Damaged, format!("the diagnostics hold malformed {what}"))
}

/// Counts a failed row, or with a change of -1 no longer.
pub(crate) fn count_failure(
    changes: &mut Changes<'_>,
    scopes: &[Scope],
    (category, time_ms): (FailureCategory, u64),
    change: i64,
) -> Result<()> {
    for scope in scopes {
        for (level, shift) in (0_u8..).zip(LEVEL_SHIFTS) {
            let key = keys::bucket(scope, level, time_ms >> shift);
            let mut counts = match changes.get(Space::Counts, &key)? {
                Some(bytes) => CategoryCounts::decode(&bytes)?,
                None => CategoryCounts::default(),
            };
            counts.add(category, change);
            match counts == CategoryCounts::default() {
                true => changes.delete(Space::Counts, key),
                false => changes.put(Space::Counts, key, counts.encode()),
            }
        }
    }
    Ok(())
}

/// The failed rows of a scope since a time, by category.
pub(crate) fn sum_failures(counts: &Keyspace, scope: &Scope, since_ms: u64) -> Result<CategoryCounts> {
    let mut sum = CategoryCounts::default();
    let mut add = |level: u8, from: u64, to: u64| -> Result<()> {
        let (from, to) = (keys::bucket(scope, level, from), keys::bucket(scope, level, to));
        let range = ScanRange::between(
            std::ops::Bound::Included(from.as_slice()),
            std::ops::Bound::Included(to.as_slice()),
        );
        for found in counts.scan(range) {
            sum.add_all(CategoryCounts::decode(&found?.1)?);
        }
        Ok(())
    };
    // The bucket of the highest level that holds the start is taken apart into those below it.
    let mut from = since_ms;
    for (level, shift) in (0_u8..).zip(LEVEL_SHIFTS) {
        let above = LEVEL_SHIFTS.get(usize::from(level) + 1);
        match above {
            Some(above) if from & ((1 << (above - shift)) - 1) != 0 => {
                let width = 1 << (above - shift);
                let end = from | (width - 1);
                add(level, from, end)?;
                from = (end + 1) >> (above - shift);
            }
            Some(above) => from >>= above - shift,
            None => add(level, from, u64::MAX)?,
        }
    }
    Ok(sum)
}

/// What is kept of an observation in a scope. A time is stored as one more than its milliseconds; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ObservationTimes {
    /// The newest accepted row.
    pub(crate) accepted: u64,
    /// The newest failed rows, newest first.
    pub(crate) failed: [u64; MISLEADING_FAILURES],
}

impl ObservationTimes {
    /// Adds a row that names the observation `count` times.
    pub(crate) fn add(&mut self, is_failed: bool, time_ms: u64, count: u32) {
        let time = time_ms.saturating_add(1);
        if !is_failed {
            self.accepted = self.accepted.max(time);
            return;
        }
        for _ in 0..count.min(3) {
            let mut all = [self.failed[0], self.failed[1], self.failed[2], time];
            all.sort_unstable_by(|a, b| b.cmp(a));
            self.failed = [all[0], all[1], all[2]];
        }
    }

    /// Whether enough rows failed and none was accepted since a time.
    pub(crate) fn is_misleading_since(&self, since_ms: u64) -> bool {
        let third = self.failed[MISLEADING_FAILURES - 1];
        third > since_ms && self.accepted <= since_ms
    }

    /// Whether there is a start time for which it is misleading.
    pub(crate) fn is_candidate(&self) -> bool {
        self.failed[MISLEADING_FAILURES - 1] > self.accepted
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let [one, two, three] = self.failed;
        [self.accepted, one, two, three].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let [accepted, one, two, three] = numbers(bytes)?;
        Ok(Self { accepted, failed: [one, two, three] })
    }
}

/// Reads an observation's times in a scope.
pub(crate) fn observation_times(
    changes: &Changes<'_>,
    scope: &Scope,
    observation: &str,
) -> Result<ObservationTimes> {
    match changes.get(Space::Counts, &keys::of_observation(keys::OBSERVATION, scope, observation))? {
        Some(bytes) => ObservationTimes::decode(&bytes),
        None => Ok(ObservationTimes::default()),
    }
}

/// Stores an observation's times in a scope, and lists it among the candidates if it is one.
pub(crate) fn put_observation_times(
    changes: &mut Changes<'_>,
    scope: &Scope,
    observation: &str,
    (before, after): (ObservationTimes, ObservationTimes),
) {
    let key = keys::of_observation(keys::OBSERVATION, scope, observation);
    let candidate = keys::of_observation(keys::CANDIDATE, scope, observation);
    match after == ObservationTimes::default() {
        true => changes.delete(Space::Counts, key),
        false => changes.put(Space::Counts, key, after.encode()),
    }
    match (before.is_candidate(), after.is_candidate()) {
        (_, true) => changes.put(Space::Counts, candidate, after.encode()),
        (true, false) => changes.delete(Space::Counts, candidate),
        (false, false) => {}
    }
}
