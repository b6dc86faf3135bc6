//! What a blame would take, before anything is spent.

use annals_policy::providers::Cost;
use serde::{Deserialize, Serialize};

use crate::steps::Step;

/// The most that a blame can take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Forks, unperturbed re-runs included.
    pub forks: u64,
    /// Calls that go to an upstream.
    pub calls: u64,
    /// Their cost in US dollars, at what the run's own calls cost.
    pub dollars: f64,
    /// Calls whose model has no price.
    pub unpriced: u64,
}

/// Adds up forks: a fork at a step asks an upstream for that step (if the perturbation does) and, in the worst
/// case, for every later step of the run.
#[must_use]
pub fn estimate(all: &[Step], chosen: &[Step], forks: u32, base: u32, asks_at_step: bool) -> Estimate {
    let mut sum = Estimate { forks: u64::from(base), ..Estimate::default() };
    for step in chosen {
        sum.forks += u64::from(forks);
        let first = if asks_at_step { step.seq } else { step.seq + 1 };
        for later in all.iter().filter(|later| later.seq >= first) {
            let Cost { dollars, priced, .. } = later.cost;
            sum.calls += u64::from(forks);
            sum.dollars += dollars * f64::from(forks);
            if priced == 0 {
                sum.unpriced += u64::from(forks);
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tracefork bills the calls after the perturbed one: the sum over n steps of (n - 1 - i) · k.
    #[test]
    fn estimate_counts_calls_of_tails() {
        let cost = Cost { dollars: 0.01, priced: 1, unpriced: 0 };
        let all: Vec<Step> = (1..=7).map(|seq| Step { seq, cost, model: String::new() }).collect();
        let given = estimate(&all, &all, 3, 3, false);
        assert_eq!((given.forks, given.calls), (24, 63));
        assert!((given.dollars - 0.63).abs() < 1e-9);
        let asked = estimate(&all, &all[5..6], 3, 3, true);
        assert_eq!((asked.forks, asked.calls, asked.unpriced), (6, 6, 0));
    }
}
