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
    /// Questions to a judge.
    #[serde(default)]
    pub questions: u64,
    /// The cost of calls and questions in US dollars: calls at what the run's own calls cost, a perturbed call at the
    /// price of its model, a question about an output as long as the run's.
    pub dollars: f64,
    /// Calls and questions whose model has no price.
    pub unpriced: u64,
}

impl AddAssign for Estimate {
    fn add_assign(&mut self, more: Self) {
        self.forks += more.forks;
        self.calls += more.calls;
        self.questions += more.questions;
        self.dollars += more.dollars;
        self.unpriced += more.unpriced;
    }
}

impl Estimate {
    fn of_call(cost: &Cost) -> Self {
        Self { calls: 1, dollars: cost.dollars, unpriced: u64::from(cost.priced == 0), ..Self::default() }
    }

    fn of_question(cost: &Cost) -> Self {
        Self { calls: 0, questions: 1, ..Self::of_call(cost) }
    }

    pub(crate) fn times(self, count: u32) -> Self {
        let by = u64::from(count);
        Self {
            forks: self.forks * by,
            calls: self.calls * by,
            questions: self.questions * by,
            dollars: self.dollars * f64::from(count),
            unpriced: self.unpriced * by,
        }
    }
}

/// What a fork of a run is expected to cost: the run's calls when they are made again, and its grading.
#[derive(Debug, Clone)]
pub struct ExpectedCosts {
    calls: Vec<ExpectedCall>,
    /// `None` if grading costs nothing.
    question: Option<Cost>,
}

#[derive(Debug, Clone, Copy)]
struct ExpectedCall {
    seq: u32,
    /// As recorded.
    unchanged: Cost,
    /// Perturbed; `None` if it then asks no upstream.
    perturbed: Option<Cost>,
}

impl ExpectedCosts {
    /// The costs of all steps of a run; `perturbed` returns what a perturbed one costs, and `question` is the cost
    /// of a question to the judge, if one grades.
    #[must_use]
    pub fn new(all: &[Step], perturbed: impl Fn(&Step) -> Option<Cost>, question: Option<Cost>) -> Self {
        let of =
            |step: &Step| ExpectedCall { seq: step.seq, unchanged: step.cost, perturbed: perturbed(step) };
        Self { calls: all.iter().map(of).collect(), question }
    }

    /// What grading one outcome takes.
    pub(crate) fn of_grading(&self) -> Estimate {
        self.question.as_ref().map(Estimate::of_question).unwrap_or_default()
    }

    /// The most that a fork takes: it asks an upstream for its perturbed steps (if the perturbation does) and, in
    /// the worst case, for every later step of the run.
    #[must_use]
    pub fn of_fork(&self, perturbed: &[u32]) -> Estimate {
        let mut sum = Estimate { forks: 1, ..self.of_grading() };
        let Some(from) = perturbed.iter().min() else { return sum };
        for call in self.calls.iter().filter(|call| call.seq >= *from) {
            let cost = if perturbed.contains(&call.seq) { call.perturbed } else { Some(call.unchanged) };
            sum += cost.map(|cost| Estimate::of_call(&cost)).unwrap_or_default();
        }
        sum
    }

    /// The most that a fork takes, whichever of the steps are perturbed.
    #[must_use]
    pub fn of_any_fork(&self) -> Estimate {
        let mut sum = Estimate { forks: 1, ..self.of_grading() };
        for call in &self.calls {
            let [unchanged, perturbed] = [call.unchanged, call.perturbed.unwrap_or(call.unchanged)]
                .map(|cost| Estimate::of_call(&cost));
            let dollars = unchanged.dollars.max(perturbed.dollars);
            let unpriced = unchanged.unpriced.max(perturbed.unpriced);
            sum += Estimate { calls: 1, dollars, unpriced, ..Estimate::default() };
        }
        sum
    }
}

/// Adds up the grading of the run itself, the unperturbed re-runs, and the forks of each chosen step.
#[must_use]
pub fn estimate(costs: &ExpectedCosts, chosen: &[Step], forks: u32, base: u32) -> Estimate {
    let mut sum = costs.of_grading();
    sum += costs.of_fork(&[]).times(base);
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
        let given = estimate(&ExpectedCosts::new(&all, |_| None, None), &all, 3, 3);
        assert_eq!((given.forks, given.calls), (24, 63));
        assert!((given.dollars - 0.63).abs() < 1e-9);
        let asks = ExpectedCosts::new(&all, |step| Some(step.cost), None);
        let asked = estimate(&asks, &all[5..6], 3, 3);
        assert_eq!((asked.forks, asked.calls, asked.unpriced), (6, 6, 0));
    }

    /// The questions to a judge were left out: a blame could cost a multiple of its budget.
    #[test]
    fn estimate_counts_questions_to_a_judge() {
        let cent = Cost { dollars: 0.01, priced: 1, unpriced: 0 };
        let all = seven_steps(Cost::default());
        let judged = estimate(&ExpectedCosts::new(&all, |_| None, Some(cent)), &all, 3, 2);
        // The run itself, two re-runs, three forks of seven steps. The calls have no price.
        assert_eq!((judged.questions, judged.forks, judged.unpriced), (24, 23, judged.calls));
        assert!((judged.dollars - 0.24).abs() < 1e-9);
        let unpriced = ExpectedCosts::new(&all, |_| None, Some(Cost::default()));
        let fork = unpriced.of_fork(&[]);
        assert_eq!((fork.forks, fork.calls, fork.questions, fork.unpriced), (1, 0, 1, 1));
        assert_eq!(unpriced.of_any_fork().questions, 1);
    }

    /// A perturbed call of a dearer model was expected to cost what the recorded call cost.
    #[test]
    fn perturbed_call_has_the_price_of_its_model() {
        let all = seven_steps(Cost { dollars: 0.01, priced: 1, unpriced: 0 });
        let dear = Cost { dollars: 1.0, priced: 1, unpriced: 0 };
        let fork = ExpectedCosts::new(&all, |_| Some(dear), None).of_fork(&[5]);
        assert_eq!((fork.calls, fork.unpriced), (3, 0));
        assert!((fork.dollars - 1.02).abs() < 1e-9);
        let unknown = ExpectedCosts::new(&all, |_| Some(Cost::default()), None);
        assert_eq!(unknown.of_fork(&[5, 7]).unpriced, 2);
        let any = ExpectedCosts::new(&all, |_| Some(dear), None).of_any_fork();
        assert!((any.dollars - 7.0).abs() < 1e-9 && any.calls == 7);
    }
}
