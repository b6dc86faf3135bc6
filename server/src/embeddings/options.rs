//! What has to be known of an embedder over HTTP.

use annals::{Error, ErrorKind, Result};
use annals_memory::{THRESHOLD, Words};
use reqwest::Url;

/// Texts of a request, unless told.
const BATCH_TEXTS: usize = 128;
/// Times that a request is made, unless told.
const ATTEMPTS: u32 = 5;
/// The first wait between two, and the longest.
const WAIT_FIRST_MS: u64 = 250;
const WAIT_MS_MAX: u64 = 20_000;
/// How long one may take.
const TIMEOUT_MS: u64 = 60_000;
/// The longest name of an embedder, in bytes: that of the log.
const ID_BYTES_MAX: usize = 256;

/// The variables of the environment that describe an embedder over HTTP, in the order: address, model, key, dimensions, threshold.
pub const EMBEDDINGS_VARIABLES: [&str; 5] = [
    "ANNALS_EMBEDDINGS_URL",
    "ANNALS_EMBEDDINGS_MODEL",
    "ANNALS_EMBEDDINGS_KEY",
    "ANNALS_EMBEDDINGS_DIMENSIONS",
    "ANNALS_EMBEDDINGS_THRESHOLD",
];

/// An embedder over HTTP.
#[derive(Clone)]
pub struct EmbeddingsOptions {
    /// What comes before `/embeddings`: `https://api.openai.com/v1`.
    pub url: String,
    /// The model that is asked for; the embedder's id is its name, with `@` and the dimensions where these are given.
    pub model: String,
    /// What is sent as `Authorization: Bearer`.
    pub key: Option<String>,
    /// The length of vectors, asked for and checked; whatever the model gives, where none is named.
    pub dimensions: Option<u32>,
    /// The least score that counts as an answer.
    pub threshold: f32,
    /// Whether vectors are asked for in base64, which is a quarter of the size; both forms are read.
    pub base64: bool,
    /// Texts of a request, at most.
    pub batch_texts: usize,
    /// How often a request is made, at most.
    pub attempts: u32,
    /// The first wait between two, in milliseconds; each further one is twice as long.
    pub wait_first_ms: u64,
    /// The longest wait; also of those that the other side asks for.
    pub wait_ms_max: u64,
    /// How long a request may take.
    pub timeout_ms: u64,
}

/// Without the key.
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
    /// A model at an address, with the usual patience.
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

    /// What the environment describes ([`EMBEDDINGS_VARIABLES`]): nothing, where it names no address. Without a key of its own the one of
    /// `OPENAI_API_KEY` is taken where the address is OpenAI's.
    ///
    /// # Errors
    /// `Invalid` for an address without a model, or what is no number.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let [url, model, key, dimensions, threshold] =
            EMBEDDINGS_VARIABLES.map(|name| variable(name).filter(|value| !value.is_empty()));
        let Some(url) = url else { return Ok(None) };
        let [_, model_name, _, dimensions_name, threshold_name] = EMBEDDINGS_VARIABLES;
        let model = model
            .ok_or_else(|| invalid(format!("{model_name} is not set: which model makes the vectors?")))?;
        let mut options = Self::new(url, model);
        let is_openai = Url::parse(&options.url).is_ok_and(|url| url.host_str() == Some("api.openai.com"));
        options.key = key.or_else(|| variable("OPENAI_API_KEY").filter(|key| is_openai && !key.is_empty()));
        options.dimensions = number(dimensions_name, dimensions)?;
        options.threshold = number(threshold_name, threshold)?.unwrap_or(THRESHOLD);
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

    /// The address that is asked.
    ///
    /// # Errors
    /// `Invalid` where one of the options is.
    pub(super) fn check(&self) -> Result<Url> {
        let url = format!("{}/embeddings", self.url.trim_end_matches('/'));
        let url = Url::parse(&url).map_err(|e| invalid(format!("{} is no address: {e}", self.url)))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = host == "localhost"
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback());
        if !["http", "https"].contains(&url.scheme()) {
            return Err(invalid(format!("{} is not called: only http and https are", self.url)));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "an embedder's address holds no name and no password: give its key as a key",
            ));
        }
        if self.key.is_some() && url.scheme() == "http" && !is_near {
            let what =
                format!("{} is not called with a key: it would be readable on the way, use https", self.url);
            return Err(invalid(what));
        }
        let id = self.id();
        if self.model.is_empty() || id.len() > ID_BYTES_MAX {
            return Err(invalid(format!("an embedder's name has 1 to {ID_BYTES_MAX} bytes")));
        }
        if id == Words::ID {
            return Err(invalid(format!(
                "{id:?} is the embedder that is built in, and not to be had over HTTP"
            )));
        }
        if self.dimensions == Some(0) || self.batch_texts == 0 || self.attempts == 0 {
            return Err(invalid("an embedder's dimensions, texts of a request and attempts are at least 1"));
        }
        if !(-1.0..=1.0).contains(&self.threshold) {
            return Err(invalid(format!("an embedder's threshold is from -1 to 1, not {}", self.threshold)));
        }
        Ok(url)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: Option<String>) -> Result<Option<T>> {
    let read =
        |value: String| value.trim().parse().map_err(|_| invalid(format!("{name} is no number: {value:?}")));
    value.map(read).transpose()
}

pub(super) fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
