//! The weights of the signals: `weights.json`, written by `.ci/suspect/fit.py` from annotated logs.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::signals::Signal;

/// The fitted weights.
const WEIGHTS: &str = include_str!("weights.json");

/// A weight for each signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights(BTreeMap<Signal, f64>);

/// Why weights cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsError(pub String);

impl std::fmt::Display for WeightsError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "the weights of the signals cannot be used: {}", self.0)
    }
}

impl std::error::Error for WeightsError {}

#[derive(Deserialize)]
struct WeightsFile {
    weights: BTreeMap<String, f64>,
}

impl Weights {
    /// The weights that are part of this program.
    ///
    /// # Errors
    /// As [`Weights::parse`]; a test keeps the file valid.
    pub fn built_in() -> Result<Self, WeightsError> {
        Self::parse(WEIGHTS)
    }

    /// Parses weights: an object with a finite number for every signal and nothing else, under `weights`.
    ///
    /// # Errors
    /// For other texts.
    pub fn parse(text: &str) -> Result<Self, WeightsError> {
        let file: WeightsFile =
            serde_json::from_str(text).map_err(|error| WeightsError(error.to_string()))?;
        let mut given = file.weights;
        let mut weights = BTreeMap::new();
        for signal in Signal::ALL {
            let weight = given.remove(signal.name());
            let weight = weight.ok_or_else(|| WeightsError(format!("{:?} has no weight", signal.name())))?;
            weights.insert(signal, weight);
        }
        match given.keys().next() {
            Some(unknown) => Err(WeightsError(format!("there is no signal {unknown:?}"))),
            None => Ok(Self(weights)),
        }
    }

    /// The weight of a signal.
    #[must_use]
    pub fn of(&self, signal: Signal) -> f64 {
        self.0.get(&signal).copied().unwrap_or(0.0)
    }
}
