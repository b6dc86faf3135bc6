//! A model that grades an outcome, over an OpenAI-compatible endpoint. Its verdicts are kept with the graded run,
//! so that the same outcome is asked about once.

use std::sync::Arc;

use annals::Namespace;
use annals_proxy::{JudgeModel, keep_verdict, kept_verdict};
use serde_json::{Value, json};

use super::{RunOutcome, Verdict};

/// The variable that holds the question.
const QUESTION_VARIABLE: &str = "ANNALS_JUDGE_QUESTION";
const QUESTION_DEFAULT: &str = "Did the program succeed at its task?";
/// Most bytes of an output that are shown to the model.
const OUTPUT_BYTES_MAX: usize = 32 << 10;

/// A model that grades.
#[derive(Debug, Clone)]
pub struct Judge {
    model: Arc<JudgeModel>,
    question: String,
    /// Where verdicts are kept.
    space: Option<Namespace>,
}

impl Judge {
    /// A judge at the base address of an OpenAI-compatible interface. The question is in
    /// `ANNALS_JUDGE_QUESTION`; model and key as [`JudgeModel::new`] says.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let model = JudgeModel::new(url, &set)
            .map_err(|why| format!("no judge: {why}; write judge:https://HOST/v1"))?;
        let question = set(QUESTION_VARIABLE).unwrap_or_else(|| QUESTION_DEFAULT.to_owned());
        Ok(Self { model: Arc::new(model), question, space: None })
    }

    /// Keeps verdicts in this namespace.
    pub(super) fn keep_in(&mut self, space: &Namespace) {
        self.space = Some(space.clone());
    }

    pub(super) fn grade(&self, outcome: &RunOutcome) -> Verdict {
        let shown = &outcome.output[..outcome.output.len().min(OUTPUT_BYTES_MAX)];
        let prompt = format!(
            "{}\nAnswer with one word: PASS or FAIL.\n\nExit code: {}\nOutput:\n{}",
            self.question,
            outcome.code,
            String::from_utf8_lossy(shown)
        );
        let asked = json!({
            "model": self.model.name(), "temperature": 0,
            "messages": [{ "role": "user", "content": prompt }],
        })
        .to_string();
        let question = self.model.question(&asked);
        let kept = self.space.as_ref().and_then(|space| kept_verdict(space, question).ok().flatten());
        if let Some(verdict) = kept.and_then(|kept| verdict_in(&String::from_utf8_lossy(&kept))) {
            return verdict;
        }
        let answer = match self.model.ask(asked) {
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
