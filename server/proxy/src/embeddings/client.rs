//! The HTTP client: looks up the cache, requests missing vectors in batches, and retries.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use annals::{Error, ErrorKind, Namespace, Result};
use annals_memory::Embedder;
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};

use super::cache::VectorCache;
use super::options::{EmbeddingsOptions, invalid};
use super::retry::{EmbeddingFailure, RetryDecision, retry_decision};
use super::wire;
use crate::body::BodyAssembler;
use crate::upstream::{UpstreamClients, error_chain};

/// Maximum length of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes read of an error's body.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of the texts in a request; a longer text is sent alone.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// An embedder over HTTP. It can be used from several threads, also inside an async runtime.
#[derive(Debug)]
pub struct HttpEmbedder {
    far: Arc<EmbeddingEndpoint>,
    id: String,
    cache: Option<VectorCache>,
    /// The length of the vectors, once it is known.
    length: OnceLock<usize>,
    /// `None` only during drop.
    runtime: Option<tokio::runtime::Runtime>,
}

/// The server, and how to reach it.
#[derive(Debug)]
struct EmbeddingEndpoint {
    options: EmbeddingsOptions,
    url: Url,
    key: Option<HeaderValue>,
    upstream: UpstreamClients,
}

/// A tokio runtime must not be dropped inside another runtime: shutdown must not block.
impl Drop for HttpEmbedder {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl HttpEmbedder {
    /// Creates an embedder. With a namespace, its vectors are cached there and not requested twice.
    ///
    /// # Errors
    /// `Invalid` for invalid options, `NotFound` if the namespace is read-only and has no cache,
    /// `Unavailable`.
    pub fn new(options: EmbeddingsOptions, kept_in: Option<&Namespace>) -> Result<Self> {
        let url = options.check()?;
        let key = options.key.as_ref().map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| invalid("the embedder's key is invalid: no header can hold it"))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| unavailable(format!("the embedder's thread could not be started: {e}")))?;
        Ok(Self {
            id: options.id(),
            cache: kept_in.map(VectorCache::new).transpose()?,
            length: OnceLock::new(),
            runtime: Some(runtime),
            far: Arc::new(EmbeddingEndpoint {
                key: key.transpose()?,
                options,
                url,
                upstream: UpstreamClients::default(),
            }),
        })
    }

    /// Requests the vectors of texts. No text may occur twice.
    fn request_vectors(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let runtime = self.runtime.as_ref().ok_or_else(|| unavailable("the embedder is shutting down"))?;
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in batches(texts, self.far.options.batch_texts) {
            let (far, batch) =
                (self.far.clone(), batch.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            let (done, answered) = mpsc::sync_channel(1);
            runtime.spawn(async move {
                let _ = done.send(far.request_with_retries(&batch).await);
            });
            vectors.extend(answered.recv().map_err(|_| unavailable("the vector request was cancelled"))??);
        }
        Ok(vectors)
    }

    /// The length of all vectors, if it is known: from the options, or from an earlier answer.
    fn known_length(&self) -> Result<Option<usize>> {
        if let Some(dimensions) = self.far.options.dimensions {
            return Ok(Some(dimensions as usize));
        }
        if let Some(length) = self.length.get() {
            return Ok(Some(*length));
        }
        self.cache.as_ref().map_or(Ok(None), |cache| cache.length(&self.id))
    }

    /// Checks that vectors have the known length. If none is known, the first vector sets it, provided that
    /// all agree: a refused answer must not set the length.
    fn check_lengths(&self, vectors: &[Vec<f32>]) -> Result<()> {
        let Some(wanted) = self.known_length()?.or(vectors.first().map(Vec::len)) else { return Ok(()) };
        if let Some(other) = vectors.iter().find(|vector| vector.len() != wanted) {
            let what = format!(
                "{:?} gave a vector of {} numbers where {wanted} were expected: give a model with other vectors another name",
                self.id,
                other.len()
            );
            return Err(invalid(what));
        }
        self.length.get_or_init(|| wanted);
        Ok(())
    }
}

impl Embedder for HttpEmbedder {
    fn id(&self) -> &str {
        &self.id
    }

    fn threshold(&self) -> f32 {
        self.far.options.threshold
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        if let Some(place) = texts.iter().position(|text| text.is_empty()) {
            return Err(invalid(format!("text {} of {} is empty: it has no vector", place + 1, texts.len())));
        }
        let mut known: HashMap<&str, Vec<f32>> = HashMap::new();
        let mut unknown: Vec<&str> = Vec::new();
        let mut met: HashSet<&str> = HashSet::new();
        for text in texts.iter().filter(|text| met.insert(text)) {
            let kept = self.cache.as_ref().map(|cache| cache.get(&self.id, text)).transpose()?.flatten();
            match kept.filter(|vector| self.check_lengths(std::slice::from_ref(vector)).is_ok()) {
                Some(vector) => drop(known.insert(text, vector)),
                None => unknown.push(text),
            }
        }
        let asked = self.request_vectors(&unknown)?;
        self.check_lengths(&asked)?;
        if let Some(cache) = &self.cache {
            cache.put(&self.id, unknown.iter().copied().zip(&asked))?;
        }
        known.extend(unknown.into_iter().zip(asked));
        let vector = |text: &&str| known.get(text).cloned();
        texts
            .iter()
            .map(|text| vector(text).ok_or_else(|| Error::new(ErrorKind::Bug, "a text has no vector")))
            .collect()
    }
}

/// Splits texts into batches that fit into a request.
fn batches<'a, 'b>(texts: &'a [&'b str], most: usize) -> Vec<&'a [&'b str]> {
    let (mut batches, mut rest) = (Vec::new(), texts);
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |text: &&&str| {
            bytes += text.len();
            bytes <= BATCH_BYTES_MAX
        };
        let count = rest.iter().take(most).take_while(fits).count().max(1);
        let (batch, after) = rest.split_at(count);
        batches.push(batch);
        rest = after;
    }
    batches
}

impl EmbeddingEndpoint {
    async fn request_with_retries(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let options = &self.options;
        let body = wire::request_body(&options.model, &texts, options.base64, options.dimensions);
        let mut attempt = 1;
        loop {
            let failed = match self.try_once(body.clone(), texts.len()).await {
                Ok(vectors) => return Ok(vectors),
                Err(failed) => failed,
            };
            match retry_decision(&failed, attempt, options, random()) {
                RetryDecision::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                RetryDecision::GiveUp => return Err(self.error(&failed, attempt)),
                RetryDecision::TooLong(seconds) => {
                    let what =
                        format!("{} is busy and asks for a wait of {seconds} seconds: {failed}", self.url);
                    return Err(unavailable(what));
                }
            }
            attempt += 1;
        }
    }

    fn error(&self, failed: &EmbeddingFailure, attempts: u32) -> Error {
        if failed.is_transient() {
            return unavailable(format!("{} gave no vectors after {attempts} attempts: {failed}", self.url));
        }
        invalid(format!("{} gave no vectors of {:?}: {failed}", self.url, self.options.model))
    }

    async fn try_once(
        &self,
        body: Vec<u8>,
        texts: usize,
    ) -> std::result::Result<Vec<Vec<f32>>, EmbeddingFailure> {
        let client = self.upstream.client(&self.url).map_err(EmbeddingFailure::Transport)?;
        let mut request = client
            .post(self.url.clone())
            .timeout(Duration::from_millis(self.options.timeout_ms))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let response = request.send().await.map_err(|e| EmbeddingFailure::Transport(error_chain(&e)))?;
        let status = response.status();
        if status.is_success() {
            let body = read_body(response, ANSWER_BYTES_MAX).await?;
            return wire::parse_answer(&body, texts).map_err(EmbeddingFailure::Malformed);
        }
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_s = retry_after.and_then(|value| value.trim().parse().ok());
        // The message is for people: if it is too long or breaks off, the status is enough.
        let said = read_body(response, ERROR_BYTES_MAX)
            .await
            .map(|body| wire::error_message(&body))
            .unwrap_or_default();
        Err(EmbeddingFailure::Status { status, said: self.without_key(said), retry_after_s })
    }

    /// Some servers repeat the key that they refuse.
    fn without_key(&self, said: String) -> String {
        match &self.options.key {
            Some(key) if !key.is_empty() => said.replace(key, "(the key)"),
            _ => said,
        }
    }
}

async fn read_body(mut response: Response, most: usize) -> std::result::Result<Bytes, EmbeddingFailure> {
    let mut body = BodyAssembler::default();
    while let Some(chunk) =
        response.chunk().await.map_err(|e| EmbeddingFailure::Transport(error_chain(&e)))?
    {
        if body.len() + chunk.len() > most {
            return Err(EmbeddingFailure::Malformed(format!("its answer is longer than {most} bytes")));
        }
        body.push(chunk);
    }
    Ok(body.into_bytes())
}

/// A random number; if the system gives none, all clients wait equally long.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}

fn unavailable(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
