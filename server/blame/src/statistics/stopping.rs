//! When a step needs no more forks.

use super::wilson::{Interval, Z_95, Z_97_5, wilson};

/// The share of a step's forks after which its interval is looked at once.
const FIRST_LOOK: f64 = 0.6;
/// Fewer forks than this are never looked at early: no interval of theirs excludes one half at 97.5%.
const FIRST_LOOK_MIN: u32 = 6;
/// A step is decided if its interval lies on one side of this rate.
const DECIDED_AT: f64 = 0.5;

/// How many forks each step gets, and when it is looked at.
///
/// A step is looked at once before its last fork. It is decided there if its interval excludes a rate of one
/// half, and then gets no more forks. To look at data and stop when they look good makes ordinary 95%
/// intervals too narrow. So the look uses a 97.5% interval (half of the error of 5%, after C. E. Bonferroni),
/// and a step that stops there is reported with that wider interval. A step that goes on to its last fork
/// gets the usual 95% interval. A test computes the coverage of this procedure exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkSchedule {
    /// Forks of a step at most.
    pub most: u32,
    /// The number of forks after which a step is looked at; `most` if it is not.
    pub look: u32,
}

impl ForkSchedule {
    /// A schedule of `most` forks, with an early look if that saves any.
    #[must_use]
    pub fn new(most: u32, stops_early: bool) -> Self {
        let at = (f64::from(most) * FIRST_LOOK).ceil();
        let first = (1..=most).find(|number| f64::from(*number) >= at).unwrap_or(most);
        let look = first.max(FIRST_LOOK_MIN);
        Self { most, look: if stops_early && look < most { look } else { most } }
    }

    /// Whether a step needs no more forks after the early look, and its interval then.
    #[must_use]
    pub fn decided(&self, flips: u32, valid: u32) -> Option<Interval> {
        let seen = wilson(flips, valid, Z_97_5);
        (seen.high < DECIDED_AT || seen.low > DECIDED_AT).then_some(seen)
    }

    /// The interval to report for a step with so many forks done.
    #[must_use]
    pub fn interval(&self, flips: u32, valid: u32, stopped_early: bool) -> Interval {
        wilson(flips, valid, if stopped_early { Z_97_5 } else { Z_95 })
    }
}
