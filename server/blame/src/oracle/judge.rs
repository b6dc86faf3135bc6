//! A model that grades an outcome, over an OpenAI-compatible endpoint. Its verdicts are kept with the graded run,
//! so that the same outcome is asked about once.

use std::sync::{Arc, Mutex, PoisonError};

use annals::Namespace;
use annals_policy::providers::{Cost, Prices, TokenUsage, WireExchange, recognise, summary};
use annals_proxy::{JudgeModel, keep_verdict, kept_verdict};
use serde_json::{Value, json};

use super::{RunOutcome, Verdict};
use crate::document::Spent;

/// The variable that holds the question.
const QUESTION_VARIABLE: &str = "ANNALS_JUDGE_QUESTION";
const QUESTION_DEFAULT: &str = "Did the program succeed at its task?";
/// Most bytes of an output that are shown to the model.
const OUTPUT_BYTES_MAX: usize = 32 << 10;
/// Tokens of an answer as the estimate counts them: one word, and some that a model adds.
const ANSWER_TOKENS: u64 = 16;
/// Bytes of a question for each of its tokens, as the estimate counts them.
const BYTES_A_TOKEN: u64 = 3;

/// A model that grades.
#[derive(Debug, Clone)]
pub struct Judge {
    model: Arc<JudgeModel>,
    question: String,
    /// Where verdicts are kept.
    space: Option<Namespace>,
    prices: Prices,
    /// What questions took that nobody has collected yet.
    spent: Arc<Mutex<Spent>>,
}

impl Judge {
    /// A judge at the base address of an OpenAI-compatible interface. The question is in
    /// `ANNALS_JUDGE_QUESTION`; model and key as [`JudgeModel::new`] says.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let model = JudgeModel::new(url, &set)
            .map_err(|why| format!("no judge: {why}; write judge:https://HOST/v1"))?;
        let question = set(QUESTION_VARIABLE).unwrap_or_else(|| QUESTION_DEFAULT.to_owned());
        let (prices, spent) = (Prices::none(), Arc::default());
        Ok(Self { model: Arc::new(model), question, space: None, prices, spent })
    }

    /// Keeps verdicts in this namespace.
    pub(super) fn keep_in(&mut self, space: &Namespace) {
        self.space = Some(space.clone());
    }

    pub(super) fn set_prices(&mut self, prices: &Prices) {
        self.prices = prices.clone();
    }

    /// What a question about this outcome is expected to cost.
    pub(super) fn cost(&self, outcome: &RunOutcome) -> Cost {
        let input = self.request(outcome).len() as u64;
        let usage = TokenUsage {
            input: Some(input.div_ceil(BYTES_A_TOKEN)),
            output: Some(ANSWER_TOKENS),
            ..TokenUsage::default()
        };
        self.prices.cost_by(&usage, [Some(self.model.name()), None])
    }

    /// What the questions took since the last call.
    pub(super) fn take_spent(&self) -> Spent {
        std::mem::take(&mut *self.spent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a question, also one whose answer cannot be read.
    fn count(&self, asked: &str, answer: &[u8]) {
        let exchange = WireExchange {
            api: &recognise("POST", "/v1/chat/completions", ""),
            request: asked.as_bytes(),
            request_encoding: None,
            status: 200,
            content_type: Some("application/json"),
            content_encoding: None,
            response: answer,
        };
        let cost = self.prices.cost(&summary(&exchange));
        let unpriced = 1_u64.saturating_sub(cost.priced);
        let spent = Spent { questions: 1, dollars: cost.dollars, unpriced, ..Spent::default() };
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += spent;
    }

    /// The body of a question.
    fn request(&self, outcome: &RunOutcome) -> String {
        let shown = &outcome.output[..outcome.output.len().min(OUTPUT_BYTES_MAX)];
        let prompt = format!(
            "{}\nAnswer with one word: PASS or FAIL.\n\nExit code: {}\nOutput:\n{}",
            self.question,
            outcome.code,
            String::from_utf8_lossy(shown)
        );
        json!({
            "model": self.model.name(), "temperature": 0,
            "messages": [{ "role": "user", "content": prompt }],
        })
        .to_string()
    }

    pub(super) fn grade(&self, outcome: &RunOutcome) -> Verdict {
        let asked = self.request(outcome);
        let question = self.model.question(&asked);
        let kept = self.space.as_ref().and_then(|space| kept_verdict(space, question).ok().flatten());
        if let Some(verdict) = kept.and_then(|kept| verdict_in(&String::from_utf8_lossy(&kept))) {
            return verdict;
        }
        let answer = self.model.ask(asked.clone());
        self.count(&asked, answer.as_deref().unwrap_or_default());
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return Verdict::Undefined(format!("the judge did not answer: {why}")),
        };
        let said = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
        let said = said["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        match verdict_in(&said) {
            Some(verdict) => {
                if let (Some(space), Some(run)) = (&self.space, outcome.run) {
                    // One word only: what the model says may quote the output. A verdict that is not kept is
                    // asked for again.
                    let word = if verdict == Verdict::Pass { "PASS" } else { "FAIL" };
                    let _ = keep_verdict(space, run, question, word.into());
                }
                verdict
            }
            None => {
                let said: String = said.chars().take(60).collect();
                Verdict::Undefined(format!("the judge said neither PASS nor FAIL: {said:?}"))
            }
        }
    }
}

/// The verdict in a judge's words: exactly one of PASS and FAIL.
fn verdict_in(said: &str) -> Option<Verdict> {
    let upper = said.to_uppercase();
    match (upper.contains("PASS"), upper.contains("FAIL")) {
        (true, false) => Some(Verdict::Pass),
        (false, true) => Some(Verdict::Fail),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judge_words_give_one_verdict_or_none() {
        assert_eq!(verdict_in("PASS"), Some(Verdict::Pass));
        assert_eq!(verdict_in("Verdict: fail."), Some(Verdict::Fail));
        assert_eq!(verdict_in("pass or fail?"), None);
        assert_eq!(verdict_in(""), None);
    }
}
