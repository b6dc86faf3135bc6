//! Builders for frames of model and tool calls. They also report which fields are missing to reproduce the
//! call. The minimum is that of "Production agents: time-travel debugging" (checklist S2.17 and S2.18).

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::kv::Content;
use crate::trace::model::{Component, Frame};

/// A model call.
///
/// ```
/// use annals::LlmFrame;
/// let frame = LlmFrame::new(r#"{"model":"gpt-4o-2024-08-06","messages":[]}"#)
///     .model("gpt-4o-2024-08-06")
///     .completion(r#"{"choices":[]}"#);
/// assert_eq!(frame.missing(), ["sampling", "parsed", "usage", "finish_reason"]);
/// ```
#[derive(Debug, Clone)]
pub struct LlmFrame {
    prompt: Content,
    completion: Option<Content>,
    fields: Map<String, Value>,
    volatile: Map<String, Value>,
}

/// A tool call.
#[derive(Debug, Clone)]
pub struct ToolFrame {
    tool: Map<String, Value>,
    input: Option<Content>,
    output: Option<Content>,
    error: Option<String>,
    volatile: Map<String, Value>,
}

impl LlmFrame {
    /// A call with the full prompt as it was sent, after all templating.
    #[must_use]
    pub fn new(prompt: impl Into<Content>) -> Self {
        Self { prompt: prompt.into(), completion: None, fields: Map::new(), volatile: Map::new() }
    }

    fn with_field(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// The model's id with its version.
    #[must_use]
    pub fn model(self, model: &str) -> Self {
        self.with_field("model", model)
    }

    /// Temperature, top-p, seed, limits.
    #[must_use]
    pub fn sampling(self, parameters: Value) -> Self {
        self.with_field("sampling", parameters)
    }

    /// The raw bytes of the answer.
    #[must_use]
    pub fn completion(mut self, completion: impl Into<Content>) -> Self {
        self.completion = Some(completion.into());
        self
    }

    /// The structured output parsed from the answer.
    #[must_use]
    pub fn parsed(self, parsed: Value) -> Self {
        self.with_field("parsed", parsed)
    }

    /// Tokens in and out, as the provider says.
    #[must_use]
    pub fn usage(self, usage: Value) -> Self {
        self.with_field("usage", usage)
    }

    /// Why the model stopped.
    #[must_use]
    pub fn finish_reason(self, reason: &str) -> Self {
        self.with_field("finish_reason", reason)
    }

    /// Log-probabilities, if the provider returns them.
    #[must_use]
    pub fn logprobs(self, logprobs: Value) -> Self {
        self.with_field("logprobs", logprobs)
    }

    /// Number of earlier attempts.
    #[must_use]
    pub fn retry_count(self, count: u32) -> Self {
        self.with_field("retry_count", count)
    }

    /// Something that differs between two recordings of the same call: a request id, a header with a time.
    #[must_use]
    pub fn volatile(mut self, key: &str, value: Value) -> Self {
        self.volatile.insert(key.to_owned(), value);
        self
    }

    /// The minimum fields that are missing.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if self.prompt.is_empty() {
            missing.push("prompt");
        }
        if !self.fields.contains_key("model") {
            missing.push("model");
        }
        if !self.fields.contains_key("sampling") {
            missing.push("sampling");
        }
        if self.completion.is_none() {
            missing.push("completion");
        }
        missing.extend(
            ["parsed", "usage", "finish_reason"].into_iter().filter(|key| !self.fields.contains_key(*key)),
        );
        missing
    }

    /// The frame, also if fields are missing.
    #[must_use]
    pub fn build(self) -> Frame {
        let Self { prompt, completion, fields, volatile } = self;
        Frame::new(Component::Llm, prompt, completion.unwrap_or_default())
            .metadata(metadata(fields, volatile))
    }

    /// The frame, if no field is missing.
    ///
    /// # Errors
    /// `Invalid`, with the missing fields.
    pub fn build_complete(self) -> Result<Frame> {
        check_complete("a model call", &self.missing())?;
        Ok(self.build())
    }
}

impl ToolFrame {
    /// A call of the tool of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut tool = Map::new();
        if !name.is_empty() {
            tool.insert("name".to_owned(), name.into());
        }
        Self { tool, input: None, output: None, error: None, volatile: Map::new() }
    }

    /// The version of the tool: the git revision of its implementation.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        self.tool.insert("version".to_owned(), version.into());
        self
    }

    /// All its input parameters, as they were given.
    #[must_use]
    pub fn input(mut self, input: impl Into<Content>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// Its raw response.
    #[must_use]
    pub fn output(mut self, output: impl Into<Content>) -> Self {
        self.output = Some(output.into());
        self
    }

    /// The error that the tool reported.
    #[must_use]
    pub fn error(mut self, error: &str) -> Self {
        self.error = Some(error.to_owned());
        self
    }

    /// Something that differs between two recordings of the same call.
    #[must_use]
    pub fn volatile(mut self, key: &str, value: Value) -> Self {
        self.volatile.insert(key.to_owned(), value);
        self
    }

    /// The minimum fields that are missing. With an error, the output may be missing.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        missing.extend(["name", "version"].into_iter().filter(|key| !self.tool.contains_key(*key)));
        if self.input.is_none() {
            missing.push("input");
        }
        if self.output.is_none() && self.error.is_none() {
            missing.push("output");
        }
        missing
    }

    /// The frame, also if fields are missing.
    #[must_use]
    pub fn build(self) -> Frame {
        let mut fields = Map::new();
        fields.insert("tool".to_owned(), Value::Object(self.tool));
        if let Some(error) = &self.error {
            fields.insert("error".to_owned(), json!(error));
        }
        let (input, output) = (self.input.unwrap_or_default(), self.output.unwrap_or_default());
        let mut frame = Frame::new(Component::Tool, input, output).metadata(metadata(fields, self.volatile));
        frame.error = self.error.is_some();
        frame
    }

    /// The frame, if no field is missing.
    ///
    /// # Errors
    /// `Invalid`, with the missing fields.
    pub fn build_complete(self) -> Result<Frame> {
        check_complete("a tool call", &self.missing())?;
        Ok(self.build())
    }
}

fn metadata(mut fields: Map<String, Value>, volatile: Map<String, Value>) -> Vec<u8> {
    if !volatile.is_empty() {
        fields.insert("volatile".to_owned(), Value::Object(volatile));
    }
    if fields.is_empty() { Vec::new() } else { Value::Object(fields).to_string().into_bytes() }
}

fn check_complete(what: &str, missing: &[&str]) -> Result<()> {
    match missing {
        [] => Ok(()),
        missing => {
            Err(Error::invalid(format!("{what} cannot be reproduced without: {}", missing.join(", "))))
        }
    }
}
