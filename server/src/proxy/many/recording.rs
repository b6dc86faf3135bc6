//! Passes a request on and records it into the run that it names. A run that does not exist is begun.

use std::collections::BTreeMap;

use annals::{RunReader, RunSpec};
use hyper::{Response, StatusCode};

use super::{Many, Opened, Refused, Runs};
use crate::proxy::listen::{Arriving, Asked, Outgoing};
use crate::proxy::record::{Recorder, WaitedFor};
use crate::session::{Origin, random_key};

/// The request hash key of runs begun with metadata of their own, which store no key. A fixed key lets them
/// be moved to another store and still be replayed; nothing secret is hashed.
const KEY: [u8; 32] = *b"annals, for many runs at once. \0";

/// Maximum number of ancestors that are searched for a key.
const FORKS_MAX: usize = 64;

impl Many {
    pub(super) async fn record<R: Runs>(
        &self,
        runs: &R,
        (run, tags): (&str, Vec<(String, String)>),
        mut asked: Asked,
        body: &mut Option<Arriving>,
    ) -> Result<Response<Outgoing>, Refused> {
        if self.mounts.get(&asked.mount).is_none() {
            let why =
                format!("there is no upstream {:?}: the address is /proxy/RUN/UPSTREAM/...", asked.mount);
            return Err(Refused::new(StatusCode::NOT_FOUND, why));
        }
        let (recorder, here) = self.recorder(runs, run, tags).await?;
        if let Err(refused) = self.take_body(&mut asked, body, recorder.takes_coming()).await {
            return Ok(*refused);
        }
        let answer = recorder.exchange(asked, None).await;
        // From here on the answer itself keeps the run open.
        drop(here);
        Ok(answer)
    }

    /// The recorder of this run.
    async fn recorder<R: Runs>(
        &self,
        runs: &R,
        run: &str,
        tags: Vec<(String, String)>,
    ) -> Result<(Recorder, WaitedFor), Refused> {
        if let Some(opened) = runs.find(run)
            && let Some(entered) = opened.proxied.enter(run)?
        {
            return Ok(entered);
        }
        self.apart(|| {
            let opened = match runs.find(run) {
                Some(opened) => opened,
                None => {
                    let spec = RunSpec::new(run).metadata(self.origin(&random_key()?).metadata());
                    runs.begin(RunSpec { tags, ..spec })?
                }
            };
            let Opened { run: open, proxied } = opened;
            let key = key_of(runs, &runs.read(run)?)?;
            proxied.begin(|| Ok(Recorder::among(&self.common, open, key, self.mounts.clone(), None)?))?;
            proxied.enter(run)?.ok_or_else(|| {
                Refused::new(StatusCode::INTERNAL_SERVER_ERROR, format!("run {run} has no recorder"))
            })
        })
        .await
    }

    /// The origin of a run that a request begins: its caller is unknown and has no program.
    fn origin(&self, key: &[u8; 32]) -> Origin {
        Origin {
            argv: Vec::new(),
            masked: Vec::new(),
            stdin: None,
            directory: String::new(),
            revision: None,
            environment: BTreeMap::new(),
            mounts: (*self.mounts).clone(),
            key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
            captured: false,
            secrets: Vec::new(),
            rules: String::new(),
        }
    }
}

/// The request hash key of a run: its own, else that of its nearest ancestor.
pub(super) fn key_of<R: Runs>(runs: &R, reader: &RunReader) -> Result<[u8; 32], Refused> {
    let mut reader = reader.clone();
    for _ in 0..FORKS_MAX {
        if let Some(origin) = Origin::of(&reader)? {
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
