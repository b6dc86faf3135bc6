//! The models, tokens and cost of a run, from its own frames' metadata. Requests and answers are not read.
//!
//! The parent paid for frames that a fork shares, and an earlier run for answers from the cache. Answers that
//! annals gave in place of an upstream cost nothing. None of them counts here.

use annals::RunReader;
use serde::Deserialize;

use crate::network::UnrecordedTraffic;
use crate::origin::Origin;
use annals_policy::providers::{Cost, Prices, TokenUsage};
use annals_policy::rules::RulesFile;

/// Maximum number of models named for a run.
const MODELS_MAX: usize = 16;
/// After so many frames that cannot be read, the others are not tried.
const UNREADABLE_MAX: u32 = 1000;

/// What the model calls of a run used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunUsage {
    /// Input tokens, if any were counted.
    pub input: Option<u64>,
    /// Output tokens, if any were counted.
    pub output: Option<u64>,
    /// The cost of the counted tokens. Answered calls of models without a count are among the unpriced ones.
    pub cost: Cost,
    /// The models that answered, in the order of their first call.
    pub models: Vec<String>,
    /// Number of connections that may have carried model calls and bypassed annals.
    pub unrecorded: u64,
    /// Why the result is incomplete: the error of the first frame whose metadata cannot be read.
    pub unreadable: Option<String>,
}

/// The members of an exchange's metadata that are used here.
#[derive(Deserialize, Default)]
struct UsageMetadata {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    model_requested: Option<String>,
    #[serde(default)]
    usage: Option<TokenUsage>,
    #[serde(default)]
    http: UsageHttpMetadata,
    #[serde(default)]
    cached: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    volatile: VolatileUsageMetadata,
}

#[derive(Deserialize, Default)]
struct UsageHttpMetadata {
    #[serde(default)]
    status: Option<u16>,
}

#[derive(Deserialize, Default)]
struct VolatileUsageMetadata {
    #[serde(default)]
    local: bool,
    #[serde(default)]
    network: Option<UnrecordedTraffic>,
}

/// Computes what a run used. Prices in the run's own rules file take precedence over `prices`.
#[must_use]
pub fn run_usage(reader: &RunReader, prices: &Prices) -> RunUsage {
    let own = own_prices(reader);
    let prices = own.as_ref().unwrap_or(prices);
    let mut used = RunUsage::default();
    let info = reader.info();
    let first = info.parent.as_ref().map_or(1, |point| point.shared.saturating_add(1));
    let mut unreadable = 0;
    for seq in first..=info.frames {
        match reader.frame_info(seq) {
            Ok(frame) => used.add(&frame.metadata, prices),
            Err(error) => {
                used.unreadable.get_or_insert_with(|| error.to_string());
                unreadable += 1;
            }
        }
        // A forged run may say that it has thousands of millions of frames.
        if unreadable > UNREADABLE_MAX {
            break;
        }
    }
    used
}

/// The prices of a run: those of its own rules file, else the built-in ones.
#[must_use]
pub fn run_prices(reader: &RunReader) -> Prices {
    own_prices(reader).unwrap_or_else(Prices::built_in)
}

fn own_prices(reader: &RunReader) -> Option<Prices> {
    let origin = Origin::from_reader(reader).ok()??;
    let rules: Option<RulesFile> = (!origin.rules.is_empty()).then(|| origin.rules().ok()).flatten();
    rules.map(|rules| rules.prices)
}

impl RunUsage {
    fn add(&mut self, metadata: &[u8], prices: &Prices) {
        let Ok(facts) = serde_json::from_slice::<UsageMetadata>(metadata) else { return };
        let network = facts.volatile.network.as_ref();
        self.unrecorded += network.map_or(0, |network| network.missed().map(|of| of.count).sum());
        if let Some(model) = facts.model.as_ref().or(facts.model_requested.as_ref())
            && !self.models.contains(model)
            && self.models.len() < MODELS_MAX
        {
            self.models.push(model.clone());
        }
        if facts.cached.is_some() || facts.volatile.local {
            return;
        }
        let usage = facts.usage.unwrap_or_default();
        let sum = |of: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *of = Some(of.unwrap_or(0).saturating_add(more));
            }
        };
        sum(&mut self.input, usage.input);
        sum(&mut self.output, usage.output);
        let models = [facts.model.as_deref(), facts.model_requested.as_deref()];
        self.cost += prices.cost_of_call(&usage, models, facts.http.status);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Regression: calls without a token count were left out of the cost without a word.
    #[test]
    fn calls_without_a_count_are_unpriced() {
        let prices = Prices::built_in();
        let cost = |metadata: serde_json::Value| {
            let mut used = RunUsage::default();
            used.add(metadata.to_string().as_bytes(), &prices);
            (used.cost.priced, used.cost.unpriced)
        };
        let call = |status: u16| json!({ "http": { "status": status }, "model_requested": "gpt-4o-mini" });
        let with = |of: serde_json::Value, key: &str, value: serde_json::Value| {
            let mut of = of;
            of[key] = value;
            of
        };
        assert_eq!(cost(with(call(200), "usage", json!({ "input": 10, "output": 5 }))), (1, 0));
        assert_eq!(cost(call(200)), (0, 1));
        assert_eq!(cost(with(call(200), "usage", json!({}))), (0, 1));
        assert_eq!(cost(call(429)), (0, 0), "a refused call costs nothing");
        assert_eq!(cost(with(call(200), "cached", json!({}))), (0, 0), "an earlier run paid");
        assert_eq!(cost(with(call(200), "volatile", json!({ "local": true }))), (0, 0));
        assert_eq!(cost(json!({ "http": { "status": 200 } })), (0, 0), "not a call of a model");
    }
}
