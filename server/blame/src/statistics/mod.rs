//! The statistics of blame: rates with intervals, tests against a base rate, early stopping, Shapley values.
//! Pure: no clock, no randomness but a seed.
//!
//! Layout: `wilson` (a rate's interval), `binomial` (the exact test), `adjust` (many tests at once),
//! `stopping` (when a step needs no more forks), `shapley` (a step's share of an outcome, from sampled
//! orders), `seeded` (random numbers from a seed).

mod adjust;
mod binomial;
mod seeded;
mod shapley;
mod stopping;
#[cfg(test)]
mod tests;
mod wilson;

pub use adjust::benjamini_hochberg;
pub use binomial::binomial_tail;
pub use seeded::SeededNumbers;
pub use shapley::{ShapleyEstimate, shapley_interval};
pub use stopping::ForkSchedule;
pub use wilson::{Interval, Z_95, Z_97_5, wilson};
