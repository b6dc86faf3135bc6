//! Passes a request on and records it into the run that it names. A run that does not exist is begun.

use std::collections::BTreeMap;

use annals::{RunReader, RunSpec};
use hyper::header::HeaderValue;
use hyper::{Response, StatusCode};

use super::{MultiRunProxy, RequestRefusal, RunAccess, WritableRun};
use crate::origin::{Origin, random_key};
use crate::proxy::listen::{IncomingBody, ProxyRequest, ResponseBody};
use crate::proxy::record::{PendingExchange, ProxyRecorder};

/// The request hash key of runs begun with metadata of their own, which store no key. A fixed key lets them
/// be moved to another store and still be replayed; nothing secret is hashed.
const KEY: [u8; 32] = *b"annals, for many runs at once. \0";

/// The header of an answer that is not recorded, because a write of its run has failed.
const NOT_RECORDED: &str = "x-annals-not-recorded";

/// Maximum number of ancestors that are searched for a key.
const FORKS_MAX: usize = 64;

impl MultiRunProxy {
    pub(super) async fn record<R: RunAccess>(
        &self,
        runs: &R,
        (run, tags): (&str, Vec<(String, String)>),
        mut asked: ProxyRequest,
        body: &mut Option<IncomingBody>,
    ) -> Result<Response<ResponseBody>, RequestRefusal> {
        if self.mounts.get(&asked.mount).is_none() {
            let why =
                format!("there is no upstream {:?}: the address is /proxy/RUN/UPSTREAM/...", asked.mount);
            return Err(RequestRefusal::new(StatusCode::NOT_FOUND, why));
        }
        let (recorder, here) = self.recorder(runs, run, tags).await?;
        if let Err(refused) = self.take_body(&mut asked, body, recorder.streams_bodies()).await {
            return Ok(*refused);
        }
        let has_stopped = recorder.failure().is_some();
        let mut answer = recorder.exchange(asked, None).await;
        if has_stopped {
            answer
                .headers_mut()
                .insert(NOT_RECORDED, HeaderValue::from_static("recording of this run has stopped"));
        }
        // From here on the answer itself keeps the run open.
        drop(here);
        Ok(answer)
    }

    /// The recorder of this run.
    async fn recorder<R: RunAccess>(
        &self,
        runs: &R,
        run: &str,
        tags: Vec<(String, String)>,
    ) -> Result<(ProxyRecorder, PendingExchange), RequestRefusal> {
        if let Some(opened) = runs.find(run)
            && let Some(entered) = opened.proxied.enter(run)?
        {
            return Ok(entered);
        }
        self.run_blocking(|| {
            let opened = match runs.find(run) {
                Some(opened) => opened,
                None => {
                    let spec = RunSpec::new(run).metadata(self.run_origin(&random_key()?).metadata());
                    runs.begin(RunSpec { tags, ..spec })?
                }
            };
            let WritableRun { run: open, proxied } = opened;
            let key = run_key(runs, &runs.read(run)?)?;
            proxied
                .begin(|| Ok(ProxyRecorder::in_pool(&self.common, open, key, self.mounts.clone(), None)?))?;
            proxied.enter(run)?.ok_or_else(|| {
                RequestRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("run {run} has no recorder"))
            })
        })
        .await
    }

    /// The origin of a run that a request begins: its caller is unknown and has no program.
    fn run_origin(&self, key: &[u8; 32]) -> Origin {
        Origin {
            argv: Vec::new(),
            masked: Vec::new(),
            altered: Vec::new(),
            stdin: None,
            directory: String::new(),
            revision: None,
            environment: BTreeMap::new(),
            mounts: (*self.mounts).clone(),
            key: annals_text::hex::encode(key),
            captured: false,
            secrets: Vec::new(),
            rules: String::new(),
        }
    }
}

/// The request hash key of a run: its own, else that of its nearest ancestor.
pub(super) fn run_key<R: RunAccess>(runs: &R, reader: &RunReader) -> Result<[u8; 32], RequestRefusal> {
    let mut reader = reader.clone();
    for _ in 0..FORKS_MAX {
        if let Some(origin) = Origin::from_reader(&reader)? {
            return Ok(origin.key_bytes()?);
        }
        let parent = reader.info().parent.as_ref().and_then(|parent| parent.run.clone());
        match parent.map(|parent| runs.read(&parent)) {
            Some(Ok(parent)) => reader = parent,
            // A dropped ancestor has no key any more.
            Some(Err(_)) | None => break,
        }
    }
    Ok(KEY)
}
