//! The cost of a call, by a price table in TOML. The built-in table is a dated starting point; a user's own
//! table overrides it. Left out on purpose: batch discounts, long-context tiers, and tools billed per call.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::Deserialize;

use super::summary::{ExchangeSummary, TokenUsage};

const DEFAULT: &str = include_str!("prices.toml");
/// Maximum size of a price table, which is text written by a person.
const TABLE_BYTES_MAX: usize = 4 << 20;

/// Prices by prefix of the model's name.
#[derive(Debug, Clone, PartialEq)]
pub struct Prices {
    by_prefix: BTreeMap<String, Price>,
}

/// Prices of one model, in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Input tokens.
    pub input: f64,
    /// Output tokens, reasoning included.
    #[serde(default)]
    pub output: f64,
    /// Tokens read from the provider's cache; default: `input`.
    pub cached_input: Option<f64>,
    /// Tokens written to the cache; default: `input`.
    pub cache_write: Option<f64>,
}

/// The known cost of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// US dollars of calls whose model has a price.
    pub dollars: f64,
    /// The number of these calls.
    pub priced: u64,
    /// Calls whose cost is not known: their model has no price, or their answer has no token count.
    pub unpriced: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Self) {
        self.dollars += more.dollars;
        self.priced += more.priced;
        self.unpriced += more.unpriced;
    }
}

impl Default for Prices {
    fn default() -> Self {
        Self::built_in()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceTable {
    #[serde(default, rename = "as_of")]
    _as_of: Option<String>,
    #[serde(default)]
    models: BTreeMap<String, Price>,
}

/// A price table that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the table of prices {0}")]
pub struct PricesError(String);

impl Prices {
    /// Parses a table: `[models]`, with a line such as `"gpt-4o" = { input = 2.5, output = 10, cached_input =
    /// 1.25 }` for each model.
    ///
    /// # Errors
    /// What is wrong and where: invalid TOML, an unknown key, a negative or non-finite price.
    pub fn parse(text: &str) -> Result<Self, PricesError> {
        if text.len() > TABLE_BYTES_MAX {
            return Err(PricesError(format!("is longer than {TABLE_BYTES_MAX} bytes")));
        }
        let table: PriceTable =
            toml::from_str(text).map_err(|error| PricesError(format!("cannot be read: {error}")))?;
        for (model, price) in &table.models {
            let all = [Some(price.input), Some(price.output), price.cached_input, price.cache_write];
            if all.into_iter().flatten().any(|price| !price.is_finite() || price < 0.0) {
                return Err(PricesError(format!("has a price for {model:?} that is none")));
            }
        }
        // Models are looked up in lower case.
        let of = |(model, price): (String, Price)| (model.to_ascii_lowercase(), price);
        Ok(Self { by_prefix: table.models.into_iter().map(of).collect() })
    }

    /// The built-in table.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse(DEFAULT).unwrap_or_else(|_| Self::none())
    }

    /// A table without prices.
    #[must_use]
    pub fn none() -> Self {
        Self { by_prefix: BTreeMap::new() }
    }

    /// Adds a price; returns `false` and changes nothing if this prefix has one.
    pub(crate) fn add(&mut self, model: &str, price: Price) -> bool {
        let model = model.to_ascii_lowercase();
        let new = !self.by_prefix.contains_key(&model);
        if new {
            self.by_prefix.insert(model, price);
        }
        new
    }

    /// This table, with `other`'s prices where both name the same prefix.
    #[must_use]
    pub fn overlaid(mut self, other: Self) -> Self {
        self.by_prefix.extend(other.by_prefix);
        self
    }

    /// The price of `model`: that of the longest prefix that ends at a part of the name. Provider prefixes
    /// (`openai/`, `models/`, `anthropic.`) are skipped.
    #[must_use]
    pub fn price(&self, model: &str) -> Option<Price> {
        let model = model.to_ascii_lowercase();
        let mut name = model.as_str();
        loop {
            let found = ends(name).filter_map(|end| self.by_prefix.get(name.get(..end)?)).last();
            if found.is_some() {
                return found.copied();
            }
            name = name.split_once(['/', '.']).map(|(_, rest)| rest)?;
        }
    }

    /// The cost of an exchange, by the answering model, else by the requested one.
    #[must_use]
    pub fn cost(&self, summary: &ExchangeSummary) -> Cost {
        self.cost_by(&summary.usage, [summary.model_answered.as_deref(), summary.model_requested.as_deref()])
    }

    /// The cost of a token usage, by the first of these models with a price.
    #[must_use]
    pub fn cost_by(&self, usage: &TokenUsage, models: [Option<&str>; 2]) -> Cost {
        let counted = usage.input.is_some() || usage.output.is_some();
        match models.into_iter().flatten().find_map(|model| self.cost_of(model, usage)) {
            Some(dollars) => Cost { dollars, priced: 1, unpriced: 0 },
            None => Cost { unpriced: u64::from(counted), ..Cost::default() },
        }
    }

    /// The cost of a call that was answered with this status. A successful answer of a model without a token count cost
    /// something unknown: it was asked for no count, or cut before it.
    #[must_use]
    pub fn cost_of_call(&self, usage: &TokenUsage, models: [Option<&str>; 2], status: Option<u16>) -> Cost {
        if usage.input.is_some() || usage.output.is_some() {
            return self.cost_by(usage, models);
        }
        let is_answered = status.is_some_and(|status| (200..300).contains(&status));
        let is_model_call = models.iter().any(Option::is_some);
        Cost { unpriced: u64::from(is_answered && is_model_call), ..Cost::default() }
    }

    /// The cost of a model's token usage in US dollars; `None` without a price or a count.
    #[must_use]
    pub fn cost_of(&self, model: &str, usage: &TokenUsage) -> Option<f64> {
        if usage.input.is_none() && usage.output.is_none() {
            return None;
        }
        let price = self.price(model)?;
        let input = usage.input.unwrap_or(0);
        let cached = usage.cached_input.unwrap_or(0).min(input);
        let written = usage.cache_write.unwrap_or(0).min(input - cached);
        let dollars = tokens(input - cached - written) * price.input
            + tokens(cached) * price.cached_input.unwrap_or(price.input)
            + tokens(written) * price.cache_write.unwrap_or(price.input)
            + tokens(usage.output.unwrap_or(0)) * price.output;
        Some(dollars / 1e6)
    }
}

/// The ends of a name's parts, from the shortest prefix to the whole name.
fn ends(name: &str) -> impl Iterator<Item = usize> {
    let borders =
        name.bytes().enumerate().filter(|(_, byte)| matches!(byte, b'-' | b':' | b'@')).map(|(at, _)| at);
    borders.chain([name.len()])
}

#[expect(clippy::cast_precision_loss, reason = "exact to 2^53 tokens")]
fn tokens(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::{Cost, ExchangeSummary, Price, Prices};
    use crate::providers::{ApiShape, TokenUsage};

    fn summary(model: &str, usage: TokenUsage) -> ExchangeSummary {
        let mut summary = ExchangeSummary::new("openai", ApiShape::OpenAiChat, 200);
        summary.model_answered = Some(model.to_owned());
        summary.usage = usage;
        summary
    }

    #[test]
    fn longest_prefix_at_a_name_part_wins() {
        let table = "as_of = \"2025-01-01\"\n[models]\n\"a-1\" = { input = 1 }\n\"a-1-mini\" = { input = 2.0, output = 3 }\n";
        let prices = Prices::parse(table).unwrap();
        for (model, input) in [
            ("a-1", Some(1.0)),
            ("A-1-2025-01-01", Some(1.0)),
            ("a-1-mini-2025", Some(2.0)),
            ("a-1-minimal", Some(1.0)),
            ("a-10", None),
            ("a-1.5", None),
            ("vendor/a-1-mini:free", Some(2.0)),
            ("eu.vendor.a-1", Some(1.0)),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(prices.price(model).map(|price| price.input), input, "{model}");
        }
        let over = prices.overlaid(Prices::parse("[models]\n\"a-1\" = { input = 9 }").unwrap());
        assert_eq!(over.price("a-1").unwrap().input, 9.0);
        assert_eq!(over.price("a-1-mini").unwrap().input, 2.0);
        let price = Price { input: 7.0, output: 0.0, cached_input: None, cache_write: None };
        let mut own = Prices::none();
        assert!(own.add("My-Model", price) && !own.add("my-model", price));
        assert_eq!(over.overlaid(own).price("my-model:v2").unwrap().input, 7.0);
    }

    #[test]
    fn cached_and_written_tokens_have_their_own_prices() {
        let table = "[models]\nm = { input = 10, output = 100, cached_input = 1, cache_write = 20 }\nn = { input = 10 }";
        let prices = Prices::parse(table).unwrap();
        let usage = TokenUsage {
            input: Some(1000),
            output: Some(10),
            cached_input: Some(600),
            cache_write: Some(100),
            reasoning: Some(5),
        };
        let dollars = |model: &str, usage: TokenUsage| prices.cost(&summary(model, usage)).dollars;
        let cost = dollars("m", usage);
        assert!((cost - (300.0 * 10.0 + 600.0 + 100.0 * 20.0 + 10.0 * 100.0) / 1e6).abs() < 1e-12);
        assert!((dollars("n", usage) - 0.01).abs() < 1e-12);
        let mut all = Cost::default();
        for (model, usage) in [("m", usage), ("m", TokenUsage::default()), ("x", usage), ("N", usage)] {
            all += prices.cost(&summary(model, usage));
        }
        assert_eq!((all.priced, all.unpriced), (2, 1), "without a count nothing was spent");
        assert!((all.dollars - cost - 0.01).abs() < 1e-12);
        let odd =
            TokenUsage { input: Some(1), cached_input: Some(u64::MAX), cache_write: Some(u64::MAX), ..usage };
        assert!(dollars("m", odd) > 0.0);
        // The answering model has no price; the requested one has.
        let asked = ExchangeSummary { model_requested: Some("m".to_owned()), ..summary("x", usage) };
        assert_eq!(prices.cost(&asked), Cost { dollars: cost, priced: 1, unpriced: 0 });
    }

    #[test]
    fn built_in_table_is_complete() {
        let prices = Prices::built_in();
        assert!(prices.by_prefix.len() > 25);
        for (model, input) in [
            ("gpt-4o-2024-08-06", 2.5),
            ("gpt-4o-mini", 0.15),
            ("claude-sonnet-4-20250514", 3.0),
            ("models/gemini-2.5-pro", 1.25),
        ] {
            assert_eq!(prices.price(model).unwrap().input, input, "{model}");
        }
    }

    #[test]
    fn wrong_table_error_names_the_place() {
        for (text, expected) in [
            ("[models]\na = { inptu = 1 }", "inptu"),
            ("[models]\na = { input = -1 }", "\"a\""),
            ("[models]\na = { input = nan }", "\"a\""),
            ("[models\n", "cannot be read"),
            ("[model]\n", "model"),
        ] {
            let message = Prices::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
