//! A model that grades an outcome, over an OpenAI-compatible endpoint. Its verdicts are kept in the store, so
//! that the same outcome is asked about once.

use std::sync::Arc;

use annals::kv::History;
use annals::{Keyspace, Namespace};
use annals_proxy::ChatEndpoint;
use serde_json::{Value, json};

use super::{RunOutcome, Verdict};

/// The keyspace of verdicts. Names that start with `annals.` are reserved.
const KEYSPACE: &str = "annals.verdicts";
/// The variables that hold the model's name and the question.
const MODEL_VARIABLE: &str = "ANNALS_JUDGE_MODEL";
const QUESTION_VARIABLE: &str = "ANNALS_JUDGE_QUESTION";
const MODEL_DEFAULT: &str = "gpt-4o-mini";
const QUESTION_DEFAULT: &str = "Did the program succeed at its task?";
/// Most bytes of an output that are shown to the model.
const OUTPUT_BYTES_MAX: usize = 32 << 10;

/// A model that grades.
#[derive(Debug, Clone)]
pub struct Judge {
    endpoint: Arc<ChatEndpoint>,
    url: String,
    model: String,
    question: String,
    verdicts: Option<Arc<Keyspace>>,
}

impl Judge {
    /// A judge at the base address of an OpenAI-compatible interface. Model and question come from
    /// `ANNALS_JUDGE_MODEL` and `ANNALS_JUDGE_QUESTION`, the key as [`ChatEndpoint::judge`] says.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = ChatEndpoint::judge(url, &set)
            .map_err(|why| format!("no judge: {why}; write judge:https://HOST/v1"))?;
        Ok(Self {
            endpoint: Arc::new(endpoint),
            url: format!("{}/chat/completions", url.trim_end_matches('/')),
            model: set(MODEL_VARIABLE).unwrap_or_else(|| MODEL_DEFAULT.to_owned()),
            question: set(QUESTION_VARIABLE).unwrap_or_else(|| QUESTION_DEFAULT.to_owned()),
            verdicts: None,
        })
    }

    /// Keeps verdicts in this namespace.
    ///
    /// # Errors
    /// As [`Namespace::keyspace`].
    pub fn keep_in(&mut self, space: &Namespace) -> annals::Result<()> {
        self.verdicts = Some(Arc::new(space.keyspace(KEYSPACE, History::Latest)?));
        Ok(())
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
            "model": self.model, "temperature": 0,
            "messages": [{ "role": "user", "content": prompt }],
        })
        .to_string();
        let key = blake3::hash(format!("{}\n{asked}", self.url).as_bytes());
        if let Some(kept) = self.verdicts.as_ref().and_then(|of| of.get(key.as_bytes()).ok().flatten())
            && let Some(verdict) = word(&String::from_utf8_lossy(&kept))
        {
            return verdict;
        }
        let answer = match self.endpoint.ask(asked) {
            Ok(answer) => answer,
            Err(why) => return Verdict::Undefined(format!("the judge did not answer: {why}")),
        };
        let said = serde_json::from_slice::<Value>(&answer).unwrap_or_default();
        let said = said["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
        match word(&said) {
            Some(verdict) => {
                if let Some(verdicts) = &self.verdicts {
                    // A verdict that is not kept is asked for again.
                    let _ = verdicts.put(key.as_bytes(), said.into_bytes());
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
fn word(said: &str) -> Option<Verdict> {
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
        assert_eq!(word("PASS"), Some(Verdict::Pass));
        assert_eq!(word("Verdict: fail."), Some(Verdict::Fail));
        assert_eq!(word("pass or fail?"), None);
        assert_eq!(word(""), None);
    }
}
