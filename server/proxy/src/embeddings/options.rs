//! Settings of an embedder over HTTP.

use annals::{Error, ErrorKind, Result};
use annals_memory::{THRESHOLD, WordEmbedder};
use reqwest::Url;

/// Default number of texts in a request.
const BATCH_TEXTS: usize = 128;
/// Default number of attempts for a request.
const ATTEMPTS: u32 = 5;
/// Default wait after the first failed attempt, and the longest wait.
const WAIT_FIRST_MS: u64 = 250;
const WAIT_MS_MAX: u64 = 20_000;
/// Timeout of one attempt.
const TIMEOUT_MS: u64 = 60_000;
/// Maximum length of an embedder's id in bytes, as in the log.
const ID_BYTES_MAX: usize = 256;

/// The environment variables that configure an embedder over HTTP: address, model, key, dimensions,
/// threshold.
pub const EMBEDDINGS_VARIABLES: [&str; 5] = [
    "ANNALS_EMBEDDINGS_URL",
    "ANNALS_EMBEDDINGS_MODEL",
    "ANNALS_EMBEDDINGS_KEY",
    "ANNALS_EMBEDDINGS_DIMENSIONS",
    "ANNALS_EMBEDDINGS_THRESHOLD",
];

/// Settings of an embedder over HTTP.
#[derive(Clone)]
pub struct EmbeddingsOptions {
    /// The address without `/embeddings`: `https://api.openai.com/v1`.
    pub url: String,
    /// The model's name. The embedder's id is this name, followed by `@` and the dimensions if they are set.
    pub model: String,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<String>,
    /// Length of the vectors, requested and checked. If absent, the model decides.
    pub dimensions: Option<u32>,
    /// Minimum score of an answer.
    pub threshold: f32,
    /// Whether vectors are requested in base64, a quarter of the size; both forms are accepted.
    pub base64: bool,
    /// Maximum number of texts in a request.
    pub batch_texts: usize,
    /// Maximum number of attempts for a request.
    pub attempts: u32,
    /// Wait after the first failed attempt, in milliseconds; it doubles with each further one.
    pub wait_first_ms: u64,
    /// Longest wait in milliseconds; also limits a wait that the server asks for.
    pub wait_ms_max: u64,
    /// Timeout of one attempt in milliseconds.
    pub timeout_ms: u64,
}

/// Leaves out the key.
impl std::fmt::Debug for EmbeddingsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddingsOptions")
            .field("url", &self.url)
            .field("model", &self.model)
            .field("key", &self.key.as_ref().map(|_| "(a key)"))
            .field("dimensions", &self.dimensions)
            .field("threshold", &self.threshold)
            .finish_non_exhaustive()
    }
}

impl EmbeddingsOptions {
    /// A model at an address, with the default limits.
    #[must_use]
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            model: model.into(),
            key: None,
            dimensions: None,
            threshold: THRESHOLD,
            base64: false,
            batch_texts: BATCH_TEXTS,
            attempts: ATTEMPTS,
            wait_first_ms: WAIT_FIRST_MS,
            wait_ms_max: WAIT_MS_MAX,
            timeout_ms: TIMEOUT_MS,
        }
    }

    /// The settings in the environment ([`EMBEDDINGS_VARIABLES`]); `None` without an address. If no key is
    /// set and the address is OpenAI's, the key is taken from `OPENAI_API_KEY`.
    ///
    /// # Errors
    /// `Invalid` for an address without a model, or a malformed number.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let [url, model, key, dimensions, threshold] =
            EMBEDDINGS_VARIABLES.map(|name| variable(name).filter(|value| !value.is_empty()));
        let Some(url) = url else { return Ok(None) };
        let [_, model_name, _, dimensions_name, threshold_name] = EMBEDDINGS_VARIABLES;
        let model = model
            .ok_or_else(|| invalid(format!("{model_name} is not set: set it to the embedding model")))?;
        let mut options = Self::new(url, model);
        let is_openai = Url::parse(&options.url).is_ok_and(|url| url.host_str() == Some("api.openai.com"));
        options.key = key.or_else(|| variable("OPENAI_API_KEY").filter(|key| is_openai && !key.is_empty()));
        options.dimensions = parse_number(dimensions_name, dimensions)?;
        options.threshold = parse_number(threshold_name, threshold)?.unwrap_or(THRESHOLD);
        Ok(Some(options))
    }

    /// The embedder's id.
    #[must_use]
    pub fn id(&self) -> String {
        match self.dimensions {
            Some(dimensions) => format!("{}@{dimensions}", self.model),
            None => self.model.clone(),
        }
    }

    /// The address of requests.
    ///
    /// # Errors
    /// `Invalid` if an option is invalid.
    pub(super) fn check(&self) -> Result<Url> {
        let url = format!("{}/embeddings", self.url.trim_end_matches('/'));
        let url = Url::parse(&url).map_err(|e| invalid(format!("{} is not a URL: {e}", self.url)))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = host == "localhost"
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback());
        if !["http", "https"].contains(&url.scheme()) {
            return Err(invalid(format!("{} must begin with http:// or https://", self.url)));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "an embedder's address must not hold a user name or password: set its key instead",
            ));
        }
        if self.key.is_some() && url.scheme() == "http" && !is_near {
            let what =
                format!("{} would receive the key unencrypted, readable on the way: use https", self.url);
            return Err(invalid(what));
        }
        let id = self.id();
        if self.model.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(invalid(format!("an embedder's id must have 1 to {ID_BYTES_MAX} bytes")));
        }
        if id == WordEmbedder::ID {
            return Err(invalid(format!(
                "{id:?} is the id of the built-in embedder, not of a model over HTTP"
            )));
        }
        if self.dimensions == Some(0) || self.batch_texts == 0 || self.attempts == 0 {
            return Err(invalid("an embedder's dimensions, batch size and attempts must be at least 1"));
        }
        if !(-1.0..=1.0).contains(&self.threshold) {
            return Err(invalid(format!("an embedder's threshold is from -1 to 1, not {}", self.threshold)));
        }
        Ok(url)
    }
}

fn parse_number<T: std::str::FromStr>(name: &str, value: Option<String>) -> Result<Option<T>> {
    let read =
        |value: String| value.trim().parse().map_err(|_| invalid(format!("{name} is no number: {value:?}")));
    value.map(read).transpose()
}

pub(super) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
