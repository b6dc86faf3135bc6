//! Scores of steps. A step's weight is the exponential of the sum of its signals' weights; its share is its
//! weight among all steps. An agent's share is the sum of its steps'. A step's score is the product of both
//! shares, scaled so that the scores of a run sum to 1: among steps that look alike, those of the agent that
//! looks worse come first.

use std::collections::HashMap;

use super::reading::RunReading;
use super::signals::{self, Observation, Signal};
use super::transcript::Transcript;
use super::weights::Weights;

/// A step with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedStep {
    /// Its frame.
    pub seq: u32,
    /// The agent that took it.
    pub agent: String,
    /// The component of its frame.
    pub component: String,
    /// Its score, from 0 to 1. All scores of a run sum to 1.
    pub score: f64,
    /// The signals that raise its score, the strongest first.
    pub signals: Vec<Observation>,
}

/// The steps of a run, the most suspect first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SuspectRanking {
    /// All steps.
    pub steps: Vec<RankedStep>,
}

/// The values of all signals of a step, in the order of [`Signal::ALL`]: what weights are fitted to.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFeatures {
    /// Its frame.
    pub seq: u32,
    /// The agent that took it.
    pub agent: String,
    /// The values.
    pub values: Vec<f64>,
}

/// The features of every step of a run, in order.
#[must_use]
pub fn features(transcript: &Transcript) -> Vec<StepFeatures> {
    let run = RunReading::new(transcript);
    let observed = signals::observe(&run, transcript);
    let steps = run.steps.iter().zip(observed).map(|(index, observed)| StepFeatures {
        seq: run.seq(*index),
        agent: run.messages[*index].message.agent.clone(),
        values: Signal::ALL.map(|signal| value_of(&observed, signal)).to_vec(),
    });
    steps.collect()
}

/// Ranks the steps of a run. Steps of equal score keep their order.
#[must_use]
pub fn rank(transcript: &Transcript, weights: &Weights) -> SuspectRanking {
    let run = RunReading::new(transcript);
    let observed = signals::observe(&run, transcript);
    let sums: Vec<f64> = observed
        .iter()
        .map(|seen| Signal::ALL.iter().map(|signal| weights.of(*signal) * value_of(seen, *signal)).sum())
        .collect();
    let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares = shares(sums.iter().map(|sum| (sum - most).exp()));
    let agent_of = |index: &usize| run.messages[*index].message.agent.as_str();
    let mut agents: HashMap<&str, f64> = HashMap::new();
    for (index, share) in run.steps.iter().zip(&shares) {
        *agents.entry(agent_of(index)).or_default() += share;
    }
    let products = run.steps.iter().zip(&shares).map(|(index, share)| share * agents[agent_of(index)]);
    let scores = self::shares(products);
    let mut steps: Vec<RankedStep> = run
        .steps
        .iter()
        .zip(observed)
        .zip(scores)
        .map(|((index, observed), score)| {
            let message = run.messages[*index].message;
            let strength = |seen: &Observation| weights.of(seen.signal) * seen.value;
            let mut signals: Vec<Observation> =
                observed.into_iter().filter(|seen| strength(seen) > 0.0).collect();
            signals.sort_by(|a, b| strength(b).total_cmp(&strength(a)));
            RankedStep {
                seq: message.seq,
                agent: message.agent.clone(),
                component: message.component.clone(),
                score,
                signals,
            }
        })
        .collect();
    steps.sort_by(|a, b| b.score.total_cmp(&a.score));
    SuspectRanking { steps }
}

/// The strongest value of a signal; 0 if it is not seen.
fn value_of(observed: &[Observation], signal: Signal) -> f64 {
    let values = observed.iter().filter(|seen| seen.signal == signal).map(|seen| seen.value);
    values.fold(0.0, f64::max)
}

fn shares(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let weights: Vec<f64> = weights.collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}
