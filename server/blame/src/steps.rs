//! The steps of a run that can be blamed: its calls of models, each with what it cost.

use annals::{Component, RunReader};
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{Cost, Prices, TokenUsage, recognise};

/// A frame of a model's call.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its frame.
    pub seq: u32,
    /// What it cost when it was recorded.
    pub cost: Cost,
    /// The tokens that it used.
    pub usage: TokenUsage,
    /// The model that was asked for.
    pub model: String,
}

/// The steps of a run in order. A call without a whole answer is no step.
///
/// # Errors
/// As [`RunReader::frame_info`].
pub fn steps(reader: &RunReader, prices: &Prices) -> annals::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for seq in 1..=reader.info().frames {
        let frame = reader.frame_info(seq)?;
        let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata) else { continue };
        let host = exchange.http.mount.trim_end_matches(|c: char| c.is_ascii_digit());
        let api = recognise(&exchange.http.method, &exchange.http.path, host);
        let is_model_call = frame.component == Component::Llm || api.shape.is_model_call();
        if !is_model_call || frame.incomplete || exchange.http.status.is_none() {
            continue;
        }
        let usage = exchange.summary.get("usage").cloned().unwrap_or_default();
        let usage: TokenUsage = serde_json::from_value(usage).unwrap_or_default();
        let text = |key: &str| exchange.summary.get(key).and_then(|model| model.as_str());
        let cost = prices.cost_by(&usage, [text("model"), text("model_requested")]);
        let model = text("model_requested").or(text("model")).unwrap_or_default().to_owned();
        steps.push(Step { seq, cost, usage, model });
    }
    Ok(steps)
}

/// The steps that `FROM..TO` names by frame: `3..9` (both ends included), `3..`, `..9` or `5`.
///
/// # Errors
/// A sentence if the text is no range, or if no step lies in it.
pub fn select(all: &[Step], range: Option<&str>) -> Result<Vec<Step>, String> {
    let Some(text) = range else { return Ok(all.to_vec()) };
    let wrong = || format!("{text:?} names no frames: write 3..9, 3.., ..9 or 5");
    let number = |text: &str, default: u32| match text {
        "" => Ok(default),
        text => text.parse::<u32>().map_err(|_| wrong()),
    };
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (number(from, 1)?, number(to.trim_start_matches('='), u32::MAX)?),
        None => (number(text, 0)?, number(text, 0)?),
    };
    let chosen: Vec<Step> = all.iter().filter(|step| (from..=to).contains(&step.seq)).cloned().collect();
    if chosen.is_empty() {
        let known: Vec<String> = all.iter().take(20).map(|step| step.seq.to_string()).collect();
        return Err(format!("no step lies in {text}; the run's steps are frames {}", known.join(", ")));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Step> {
        let of =
            |seq| Step { seq, cost: Cost::default(), usage: TokenUsage::default(), model: String::new() };
        [2, 3, 5, 8].map(of).to_vec()
    }

    fn chosen(range: &str) -> Result<Vec<u32>, String> {
        select(&all(), Some(range)).map(|steps| steps.iter().map(|step| step.seq).collect())
    }

    #[test]
    fn ranges_select_steps_by_frame() {
        assert_eq!(chosen("3..5"), Ok(vec![3, 5]));
        assert_eq!(chosen("4.."), Ok(vec![5, 8]));
        assert_eq!(chosen("..2"), Ok(vec![2]));
        assert_eq!(chosen("8"), Ok(vec![8]));
        assert!(chosen("9..").unwrap_err().contains("frames 2, 3, 5, 8"));
        assert!(chosen("a..b").unwrap_err().contains("names no frames"));
        assert_eq!(select(&all(), None).unwrap().len(), 4);
    }
}
