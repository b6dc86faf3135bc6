//! The models, tokens and cost of a run, from the metadata of its own frames. No request or answer is read.
//!
//! Frames that a fork shares were paid for by its parent, and an answer from the cache by the run that it comes from: neither
//! counts here.

use annals::RunReader;
use serde::Deserialize;

use crate::network::UnrecordedTraffic;
use crate::origin::Origin;
use annals_policy::providers::{Cost, Prices, Usage};
use annals_policy::rules::RulesFile;

/// The most models of one run that are named.
const MODELS_MAX: usize = 16;

/// What the model calls of a run used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunUsage {
    /// Tokens that went in, where any were counted.
    pub input: Option<u64>,
    /// Tokens that came out, where any were counted.
    pub output: Option<u64>,
    /// What they cost.
    pub cost: Cost,
    /// The models that answered, each once, in the order of their first call.
    pub models: Vec<String>,
    /// Connections that may have carried model calls and did not go through annals.
    pub unrecorded: u64,
    /// Why some of it is not known: the first frame whose metadata cannot be read.
    pub unreadable: Option<String>,
}

/// The part of an exchange's metadata that is read here.
#[derive(Deserialize, Default)]
struct Facts {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    model_requested: Option<String>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    cached: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    volatile: VolatileFacts,
}

#[derive(Deserialize, Default)]
struct VolatileFacts {
    #[serde(default)]
    network: Option<UnrecordedTraffic>,
}

/// Reads what a run used. Its own prices count before `prices`, where it was recorded with a file of rules.
#[must_use]
pub fn run_usage(reader: &RunReader, prices: &Prices) -> RunUsage {
    let own = own_prices(reader);
    let prices = own.as_ref().unwrap_or(prices);
    let mut used = RunUsage::default();
    let info = reader.info();
    let first = info.parent.as_ref().map_or(1, |point| point.shared.saturating_add(1));
    for seq in first..=info.frames {
        match reader.frame_info(seq) {
            Ok(frame) => used.add(&frame.metadata, prices),
            Err(error) => {
                used.unreadable.get_or_insert_with(|| error.to_string());
            }
        }
    }
    used
}

fn own_prices(reader: &RunReader) -> Option<Prices> {
    let origin = Origin::of(reader).ok()??;
    let rules: Option<RulesFile> = (!origin.rules.is_empty()).then(|| origin.rules().ok()).flatten();
    rules.map(|rules| rules.prices)
}

impl RunUsage {
    fn add(&mut self, metadata: &[u8], prices: &Prices) {
        let Ok(facts) = serde_json::from_slice::<Facts>(metadata) else { return };
        let network = facts.volatile.network.as_ref();
        self.unrecorded += network.map_or(0, |network| network.missed().map(|of| of.count).sum());
        if let Some(model) = facts.model.as_ref().or(facts.model_requested.as_ref())
            && !self.models.contains(model)
            && self.models.len() < MODELS_MAX
        {
            self.models.push(model.clone());
        }
        let Some(usage) = facts.usage.filter(|_| facts.cached.is_none()) else { return };
        let sum = |of: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *of = Some(of.unwrap_or(0).saturating_add(more));
            }
        };
        sum(&mut self.input, usage.input);
        sum(&mut self.output, usage.output);
        self.cost += prices.cost_by(&usage, [facts.model.as_deref(), facts.model_requested.as_deref()]);
    }
}
