//! The interface through which a program calls its models and tools, recorded or replayed.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::replay::nondet::Nondet;
use crate::trace::Component;

/// Maximum length of a call's name, in bytes.
const NAME_BYTES_MAX: usize = 64 << 10;

/// The request of a call, and how its frame is recorded.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The frame's component.
    pub component: &'a Component,
    /// The name of the call, such as `POST /v1/chat/completions`: 1 byte to 64 KiB. Matching compares it.
    pub name: &'a str,
    /// The request's bytes.
    pub body: &'a [u8],
    /// A JSON object for the frame, or nothing. The frame's metadata also gets the call's name, as
    /// `{"call":{"name":"…"}}`, so the key `call` is reserved.
    pub metadata: &'a [u8],
}

impl<'a> Request<'a> {
    /// The request of a model call.
    #[must_use]
    pub fn llm(name: &'a str, body: &'a [u8]) -> Self {
        Self { component: &Component::Llm, name, body, metadata: &[] }
    }

    /// The request of a tool call.
    #[must_use]
    pub fn tool(name: &'a str, body: &'a [u8]) -> Self {
        Self { component: &Component::Tool, name, body, metadata: &[] }
    }

    /// Sets the metadata of the call's frame.
    #[must_use]
    pub fn metadata(mut self, json: &'a [u8]) -> Self {
        self.metadata = json;
        self
    }

    /// The frame's metadata: the caller's, with the call's name added.
    pub(super) fn frame_metadata(&self) -> Result<Vec<u8>> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a call's name has {} bytes; 1 to {NAME_BYTES_MAX} are allowed",
                self.name.len()
            )));
        }
        let mut object = match self.metadata {
            [] => Map::new(),
            bytes => serde_json::from_slice::<Map<String, Value>>(bytes)
                .map_err(|e| Error::invalid(format!("a call's metadata must be a JSON object: {e}")))?,
        };
        if object.insert("call".to_owned(), json!({ "name": self.name })).is_some() {
            return Err(Error::invalid("a call's metadata must not have the key \"call\": it is reserved"));
        }
        Ok(Value::Object(object).to_string().into_bytes())
    }
}

/// The call's name from a frame's metadata.
#[must_use]
pub fn call_name(metadata: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct CallMetadata {
        call: CallMember,
    }
    #[derive(Deserialize)]
    struct CallMember {
        name: String,
    }
    serde_json::from_slice::<CallMetadata>(metadata).ok().map(|metadata| metadata.call.name)
}

/// Why a call has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The call itself failed, now or when it was recorded; holds its error text.
    Failed(String),
    /// annals has no answer. In a replay, the kind [`Diverged`](crate::ErrorKind::Diverged) means that the
    /// program's request was not recorded; the error's text is the report.
    Annals(Error),
}

impl CallError {
    /// Whether this is a divergence. A program must not handle it like an error of its network.
    #[must_use]
    pub fn is_divergence(&self) -> bool {
        matches!(self, Self::Annals(error) if error.kind() == crate::ErrorKind::Diverged)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(what) => f.write_str(what),
            Self::Annals(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(_) => None,
            Self::Annals(error) => Some(error),
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Annals(error)
    }
}

/// Makes the real call and returns the answer, or an error text.
pub type CallFn<'a> = Box<dyn FnOnce() -> std::result::Result<Vec<u8>, String> + 'a>;

/// The interface for a program's calls: a [`Recorder`](crate::replay::Recorder) or a [`Replayer`](crate::replay::Replayer).
/// Several threads may use it at once.
///
/// ```
/// use annals::{RunSpec, Status, Store, replay::{Calls, CallError, Recorder, Replayer, matching::Rules}};
///
/// fn agent(calls: &dyn Calls) -> Result<String, CallError> {
///     let question = format!(r#"{{"prompt":"It is {} ns. What now?"}}"#, calls.nondet().now_ns()?);
///     let answer = calls.call("POST /v1/ask", question.as_bytes(), b"", || ask_a_model(&question))?;
///     Ok(String::from_utf8_lossy(&answer).into_owned())
/// }
/// fn ask_a_model(question: &str) -> std::io::Result<Vec<u8>> {
///     Ok(format!("an answer to {question}").into_bytes())
/// }
/// # let dir = tempfile::tempdir()?;
/// # let store = Store::open(dir.path().join("s"))?;
/// let space = store.namespace("default")?;
/// let recorder = Recorder::new(space.begin_run(RunSpec::new("r"))?);
/// let said = agent(&recorder)?;
/// recorder.finish(Status::Ok)?;
///
/// let replayer = Replayer::new(&space.run("r")?, Rules::none())?;
/// assert_eq!(agent(&replayer)?, said);
/// assert_eq!(replayer.finish().to_string(), "exact 1 of 1, served 1, unused 0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Calls: Send + Sync {
    /// The answer to a request: from `send`, or the recorded one. The method `call`, of every implementation
    /// and of `dyn Calls`, is shorter.
    ///
    /// # Errors
    /// [`CallError::Failed`] if the call failed; [`CallError::Annals`] as the implementation documents.
    fn exchange(&self, request: Request<'_>, send: CallFn<'_>) -> std::result::Result<Vec<u8>, CallError>;

    /// The source of the program's times, ids and random numbers.
    fn nondet(&self) -> &dyn Nondet;
}

impl dyn Calls + '_ {
    /// Makes a model call. A replay matches `name` and `request`; `metadata` is a JSON object or nothing.
    ///
    /// # Errors
    /// As [`Calls::exchange`].
    pub fn call<E: fmt::Display>(
        &self,
        name: &str,
        request: &[u8],
        metadata: &[u8],
        send: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Vec<u8>, CallError> {
        let request = Request::llm(name, request).metadata(metadata);
        self.exchange(request, Box::new(|| send().map_err(|error| error.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_calls_name_stands_beside_the_callers_metadata() {
        let request = Request::tool("search", b"{}").metadata(br#"{"tool":{"version":"1"}}"#);
        let metadata = request.frame_metadata().unwrap();
        assert_eq!(metadata, br#"{"call":{"name":"search"},"tool":{"version":"1"}}"#);
        assert_eq!(call_name(&metadata).as_deref(), Some("search"));
        for other in [&b""[..], b"{}", b"[]", br#"{"call":1}"#, br#"{"call":{"id":1}}"#] {
            assert_eq!(call_name(other), None);
        }
    }

    #[test]
    fn call_metadata_must_be_an_object_without_the_call_key() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (name, metadata) in
            [("n", &b"[]"[..]), ("n", b"{"), ("n", br#"{"call":1}"#), ("", b""), (&long, b"")]
        {
            let error = Request::llm(name, b"").metadata(metadata).frame_metadata().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }
}
