//! A model that judges runs, and its verdicts that are kept: where it is, which model it is, and where its verdicts
//! are stored.
//!
//! A verdict belongs to a run and is dropped with it. The same question, also about another run, is asked once
//! while the verdict is kept.

use annals::{Namespace, RunUid};

use crate::chat_client::ChatEndpoint;

/// The keyspace of verdicts, by the hash of their question. Names that start with `annals.` are reserved.
const KEYSPACE: &str = "annals.verdicts";
/// The variable that holds the model's name.
const MODEL_VARIABLE: &str = "ANNALS_JUDGE_MODEL";
const MODEL_DEFAULT: &str = "gpt-4o-mini";

/// A model that is asked about runs.
#[derive(Debug)]
pub struct JudgeModel {
    endpoint: ChatEndpoint,
    address: String,
    model: String,
}

/// The hash of a question, of its model and of its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuestionHash([u8; 32]);

impl JudgeModel {
    /// The model at an OpenAI-compatible base address. Its name is in `ANNALS_JUDGE_MODEL`, default
    /// `gpt-4o-mini`. The key is in `ANNALS_JUDGE_KEY`; if that is not set, OpenAI's own address gets the key in
    /// `OPENAI_API_KEY`, and no other address does. `variable` reads a variable of the environment.
    ///
    /// # Errors
    /// A sentence, for an invalid address or key, and for a key that would travel unencrypted.
    pub fn new(base: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let model = variable(MODEL_VARIABLE).filter(|name| !name.is_empty());
        Ok(Self {
            endpoint: ChatEndpoint::judge(base, variable)?,
            address: base.trim_end_matches('/').to_owned(),
            model: model.unwrap_or_else(|| MODEL_DEFAULT.to_owned()),
        })
    }

    /// The model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model
    }

    /// The hash of a request, by which its verdict is kept.
    #[must_use]
    pub fn question(&self, request: &str) -> QuestionHash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.address.as_bytes()).update(b"\0").update(request.as_bytes());
        QuestionHash(*hasher.finalize().as_bytes())
    }

    /// Sends a request and returns the answer's body.
    ///
    /// # Errors
    /// A sentence, if there is no answer, or one that is no success.
    pub fn ask(&self, request: String) -> Result<Vec<u8>, String> {
        self.endpoint.ask(request)
    }
}

/// The kept verdict to a question.
///
/// # Errors
/// Of the store.
pub fn kept_verdict(space: &Namespace, question: QuestionHash) -> annals::Result<Option<Vec<u8>>> {
    let Some(kept) = space.find_keyspace(KEYSPACE)? else { return Ok(None) };
    kept.get(&question.0)
}

/// Keeps a verdict about a run as long as the run.
///
/// # Errors
/// As [`Namespace::put_with_run`].
pub fn keep_verdict(
    space: &Namespace,
    run: RunUid,
    question: QuestionHash,
    verdict: Vec<u8>,
) -> annals::Result<()> {
    space.put_with_run(run, KEYSPACE, &question.0, verdict, None)
}
