//! Asking for vectors: what is not known yet, in batches, with patience.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use annals::memory::Embedder;
use annals::{Error, ErrorKind, Namespace, Result};
use bytes::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Response, Url};

use super::cache::Cache;
use super::options::{EmbeddingsOptions, invalid};
use super::patience::{Failed, Next, next};
use super::wire;
use crate::body::BodyAssembler;
use crate::upstream::{Upstream, chain};

/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// The longest answer of an error that is read.
const SAID_BYTES_MAX: usize = 64 << 10;
/// Bytes of texts of a request, at most; a longer text goes alone.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// An embedder over HTTP. May be used from several threads, also from within a runtime.
#[derive(Debug)]
pub struct Embeddings {
    far: Arc<Far>,
    id: String,
    cache: Option<Cache>,
    /// The length of its vectors, once it is known.
    length: OnceLock<usize>,
    /// `None` only while it is let go of.
    runtime: Option<tokio::runtime::Runtime>,
}

/// The other side.
#[derive(Debug)]
struct Far {
    options: EmbeddingsOptions,
    url: Url,
    key: Option<HeaderValue>,
    upstream: Upstream,
}

/// A runtime must not be waited for within another.
impl Drop for Embeddings {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Embeddings {
    /// An embedder; with a namespace, what it answers is kept there and not asked for twice.
    ///
    /// # Errors
    /// `Invalid` for options that cannot be, `NotFound` for a namespace that is open for reading and keeps nothing of the kind, `Unavailable`.
    pub fn new(options: EmbeddingsOptions, kept_in: Option<&Namespace>) -> Result<Self> {
        let url = options.check()?;
        let key = options.key.as_ref().map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| invalid("the embedder's key is none: it holds what no header can"))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(|e| unavailable(format!("no thread can be started: {e}")))?;
        Ok(Self {
            id: options.id(),
            cache: kept_in.map(Cache::new).transpose()?,
            length: OnceLock::new(),
            runtime: Some(runtime),
            far: Arc::new(Far { key: key.transpose()?, options, url, upstream: Upstream::default() }),
        })
    }

    /// Asks for vectors of texts, none of them twice.
    fn ask(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let runtime = self.runtime.as_ref().ok_or_else(|| unavailable("the embedder is being let go of"))?;
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in batches(texts, self.far.options.batch_texts) {
            let (far, batch) =
                (self.far.clone(), batch.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            let (done, answered) = mpsc::sync_channel(1);
            runtime.spawn(async move {
                let _ = done.send(far.ask(&batch).await);
            });
            vectors.extend(answered.recv().map_err(|_| unavailable("asking for vectors was broken off"))??);
        }
        Ok(vectors)
    }

    /// The length that all vectors have, once one is known: what was asked for, or what was kept of an earlier answer.
    fn known_length(&self) -> Result<Option<usize>> {
        if let Some(dimensions) = self.far.options.dimensions {
            return Ok(Some(dimensions as usize));
        }
        if let Some(length) = self.length.get() {
            return Ok(Some(*length));
        }
        self.cache.as_ref().map_or(Ok(None), |cache| cache.length(&self.id))
    }

    /// Holds vectors to the length that all have. Where none is known it is that of the first, if the others agree: an answer that is refused settles nothing.
    fn check(&self, vectors: &[Vec<f32>]) -> Result<()> {
        let Some(wanted) = self.known_length()?.or(vectors.first().map(Vec::len)) else { return Ok(()) };
        if let Some(other) = vectors.iter().find(|vector| vector.len() != wanted) {
            let what = format!(
                "{:?} gave a vector of {} numbers where {wanted} were expected: what makes other vectors has another name",
                self.id,
                other.len()
            );
            return Err(invalid(what));
        }
        self.length.get_or_init(|| wanted);
        Ok(())
    }
}

impl Embedder for Embeddings {
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
            match kept.filter(|vector| self.check(std::slice::from_ref(vector)).is_ok()) {
                Some(vector) => drop(known.insert(text, vector)),
                None => unknown.push(text),
            }
        }
        let asked = self.ask(&unknown)?;
        self.check(&asked)?;
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

/// Texts in their order, as many at a time as a request may hold.
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

impl Far {
    async fn ask(&self, texts: &[String]) -> Result<Vec<Vec<f32>>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let options = &self.options;
        let body = wire::request(&options.model, &texts, options.base64, options.dimensions);
        let mut attempt = 1;
        loop {
            let failed = match self.try_once(body.clone(), texts.len()).await {
                Ok(vectors) => return Ok(vectors),
                Err(failed) => failed,
            };
            match next(&failed, attempt, options, random()) {
                Next::Wait(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                Next::GiveUp => return Err(self.error(&failed, attempt)),
                Next::TooLong(seconds) => {
                    let what =
                        format!("{} is busy and asks to be left alone for {seconds} s: {failed}", self.url);
                    return Err(unavailable(what));
                }
            }
            attempt += 1;
        }
    }

    fn error(&self, failed: &Failed, attempts: u32) -> Error {
        if failed.is_passing() {
            return unavailable(format!("{} gives no vectors, asked {attempts} times: {failed}", self.url));
        }
        invalid(format!("{} gives no vectors of {:?}: {failed}", self.url, self.options.model))
    }

    async fn try_once(&self, body: Vec<u8>, texts: usize) -> std::result::Result<Vec<Vec<f32>>, Failed> {
        let client = self.upstream.client(&self.url).map_err(Failed::Transport)?;
        let mut request = client
            .post(self.url.clone())
            .timeout(Duration::from_millis(self.options.timeout_ms))
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let response = request.send().await.map_err(|e| Failed::Transport(chain(&e)))?;
        let status = response.status();
        if status.is_success() {
            let body = whole(response, ANSWER_BYTES_MAX).await?;
            return wire::answer(&body, texts).map_err(Failed::Nonsense);
        }
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after_s = retry_after.and_then(|value| value.trim().parse().ok());
        // What is said is for people: where it is too long or breaks off, the status is enough.
        let said = whole(response, SAID_BYTES_MAX).await.map(|body| wire::said(&body)).unwrap_or_default();
        Err(Failed::Status { status, said: self.without_key(said), retry_after_s })
    }

    /// Some repeat the key that they refuse.
    fn without_key(&self, said: String) -> String {
        match &self.options.key {
            Some(key) if !key.is_empty() => said.replace(key, "(the key)"),
            _ => said,
        }
    }
}

async fn whole(mut response: Response, most: usize) -> std::result::Result<Bytes, Failed> {
    let mut body = BodyAssembler::default();
    while let Some(chunk) = response.chunk().await.map_err(|e| Failed::Transport(chain(&e)))? {
        if body.len() + chunk.len() > most {
            return Err(Failed::Nonsense(format!("its answer is longer than {most} bytes")));
        }
        body.push(chunk);
    }
    Ok(body.into_bytes())
}

/// A number at random; where the system gives none, all wait the same.
fn random() -> u64 {
    getrandom::u64().unwrap_or(0)
}

fn unavailable(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, what)
}
