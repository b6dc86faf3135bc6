//! What forks are expected to take, before anything is spent.

use std::ops::AddAssign;

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
    /// Their cost in US dollars, at what the run's own calls cost, and a perturbed call at the price of its model.
    pub dollars: f64,
    /// Calls whose model has no price.
    pub unpriced: u64,
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, more: Self) {
        self.forks += more.forks;
        self.calls += more.calls;
        self.dollars += more.dollars;
        self.unpriced += more.unpriced;
    }
}

impl Estimate {
    fn of_call(cost: &Cost) -> Self {
        Self { forks: 0, calls: 1, dollars: cost.dollars, unpriced: u64::from(cost.priced == 0) }
    }

    fn times(self, count: u32) -> Self {
        let by = u64::from(count);
        Self {
            forks: self.forks * by,
            calls: self.calls * by,
            dollars: self.dollars * f64::from(count),
            unpriced: self.unpriced * by,
        }
    }
}

/// What the calls of a run are expected to cost when they are made again.
#[derive(Debug, Clone)]
pub struct ExpectedCosts(Vec<ExpectedCall>);

#[derive(Debug, Clone, Copy)]
struct ExpectedCall {
    seq: u32,
    /// As recorded.
    unchanged: Cost,
    /// Perturbed; `None` if it then asks no upstream.
    perturbed: Option<Cost>,
}

impl ExpectedCosts {
    /// The costs of all steps of a run; `perturbed` returns what a perturbed one costs.
    #[must_use]
    pub fn new(all: &[Step], perturbed: impl Fn(&Step) -> Option<Cost>) -> Self {
        let of =
            |step: &Step| ExpectedCall { seq: step.seq, unchanged: step.cost, perturbed: perturbed(step) };
        Self(all.iter().map(of).collect())
    }

    /// The most that a fork takes: it asks an upstream for its perturbed steps (if the perturbation does) and, in
    /// the worst case, for every later step of the run.
    #[must_use]
    pub fn of_fork(&self, perturbed: &[u32]) -> Estimate {
        let mut sum = Estimate { forks: 1, ..Estimate::default() };
        let Some(from) = perturbed.iter().min() else { return sum };
        for call in self.0.iter().filter(|call| call.seq >= *from) {
            let cost = if perturbed.contains(&call.seq) { call.perturbed } else { Some(call.unchanged) };
            sum += cost.map(|cost| Estimate::of_call(&cost)).unwrap_or_default();
        }
        sum
    }

    /// The most that a fork takes, whichever of the steps are perturbed.
    #[must_use]
    pub fn of_any_fork(&self) -> Estimate {
        let mut sum = Estimate { forks: 1, ..Estimate::default() };
        for call in &self.0 {
            let [unchanged, perturbed] = [call.unchanged, call.perturbed.unwrap_or(call.unchanged)]
                .map(|cost| Estimate::of_call(&cost));
            let dollars = unchanged.dollars.max(perturbed.dollars);
            let unpriced = unchanged.unpriced.max(perturbed.unpriced);
            sum += Estimate { forks: 0, calls: 1, dollars, unpriced };
        }
        sum
    }
}

/// Adds up the unperturbed re-runs and the forks of each chosen step.
#[must_use]
pub fn estimate(costs: &ExpectedCosts, chosen: &[Step], forks: u32, base: u32) -> Estimate {
    let mut sum = costs.of_fork(&[]).times(base);
    for step in chosen {
        sum += costs.of_fork(&[step.seq]).times(forks);
    }
    sum
}

/// Adds forks with any of the steps perturbed.
pub(crate) fn add_any_forks(sum: &mut Estimate, costs: &ExpectedCosts, forks: u64) {
    *sum += costs.of_any_fork().times(u32::try_from(forks).unwrap_or(u32::MAX));
}

#[cfg(test)]
mod tests {
    use annals_policy::providers::TokenUsage;

    use super::*;

    fn seven_steps(cost: Cost) -> Vec<Step> {
        let usage = TokenUsage::default();
        (1..=7).map(|seq| Step { seq, cost, usage, model: String::new() }).collect()
    }

    /// tracefork bills the calls after the perturbed one: the sum over n steps of (n - 1 - i) · k.
    #[test]
    fn estimate_counts_calls_of_tails() {
        let cost = Cost { dollars: 0.01, priced: 1, unpriced: 0 };
        let all = seven_steps(cost);
        let given = estimate(&ExpectedCosts::new(&all, |_| None), &all, 3, 3);
        assert_eq!((given.forks, given.calls), (24, 63));
        assert!((given.dollars - 0.63).abs() < 1e-9);
        let asks = ExpectedCosts::new(&all, |step| Some(step.cost));
        let asked = estimate(&asks, &all[5..6], 3, 3);
        assert_eq!((asked.forks, asked.calls, asked.unpriced), (6, 6, 0));
    }

    /// A perturbed call of a dearer model was expected to cost what the recorded call cost.
    #[test]
    fn perturbed_call_has_the_price_of_its_model() {
        let all = seven_steps(Cost { dollars: 0.01, priced: 1, unpriced: 0 });
        let dear = Cost { dollars: 1.0, priced: 1, unpriced: 0 };
        let fork = ExpectedCosts::new(&all, |_| Some(dear)).of_fork(&[5]);
        assert_eq!((fork.calls, fork.unpriced), (3, 0));
        assert!((fork.dollars - 1.02).abs() < 1e-9);
        let unknown = ExpectedCosts::new(&all, |_| Some(Cost::default()));
        assert_eq!(unknown.of_fork(&[5, 7]).unpriced, 2);
        let any = ExpectedCosts::new(&all, |_| Some(dear)).of_any_fork();
        assert!((any.dollars - 7.0).abs() < 1e-9 && any.calls == 7);
    }
}
