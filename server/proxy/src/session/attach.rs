//! Records programs that are started elsewhere, while the proxy is held open for them.

use std::future::Future;

use annals::{RunSpec, Status};
use tokio::time::Instant;

use super::SessionError;
use super::secrets;
use super::stage::block_on;
use crate::destination::Destination;
use crate::mounts::Mounts;
use crate::origin::{Origin, random_key};
use crate::program::Program;
use crate::proxy::{AnswerCache, CacheUse, ProxyRecorder, RecordingSummary};
use crate::upstream::UpstreamGuard;
use annals_policy::rules::RulesFile;

/// How programs started elsewhere are recorded.
#[derive(Debug, Clone)]
pub struct AttachOptions {
    /// Their upstreams.
    pub mounts: Mounts,
    /// Which upstreams may be called.
    pub guard: UpstreamGuard,
    /// How answers of earlier runs are used.
    pub cache: CacheUse,
    /// Names of variables whose values are removed before storing.
    pub secrets: Vec<String>,
    /// As in a recording.
    pub rules: RulesFile,
}

/// The result of an attached recording.
#[derive(Debug)]
pub struct AttachReport {
    /// Counts.
    pub recorded: RecordingSummary,
    /// How long the proxy was held open.
    pub seconds: f64,
}

/// Records all requests to a proxy into a new run, until the future of `over` completes. `ready` gets the
/// variables that point a program to the proxy.
///
/// # Errors
/// If nothing was recorded: errors of the store or the proxy.
pub fn attach<F: Future<Output = ()>>(
    into: &Destination,
    spec: RunSpec,
    attaching: &AttachOptions,
    ready: impl FnOnce(&[(String, String)]),
    over: impl FnOnce() -> F,
) -> Result<AttachReport, SessionError> {
    attaching.guard.check(&attaching.mounts)?;
    let secrets = secrets::named_secrets(&attaching.secrets)?;
    let key = random_key()?;
    // The callers are unknown: the run has no program.
    let nobody = Program { argv: Vec::new(), directory: None, environment: Vec::new() };
    let origin = Origin::new(&nobody, &attaching.mounts, &[], &key)
        .with_rules(&attaching.rules, &secrets)?
        .with_secrets(&attaching.secrets, &secrets)?;
    let cache = AnswerCache::open_in(into, &attaching.cache)?;
    let run = into.begin_run(spec.metadata(origin.metadata()))?;
    let recorder = ProxyRecorder::new(run.clone(), key, attaching.mounts.clone(), cache);
    let done = recorder.map_err(SessionError::from).and_then(|recorder| {
        recorder.set_secrets(&secrets);
        recorder.set_rules(&attaching.rules);
        block_on(session(&recorder, &attaching.mounts, ready, over))
    });
    match done {
        Ok(mut attached) => {
            if attached.recorded.failure.is_none() {
                // How those programs ended is unknown, but the recording is complete.
                match run.end_with(Vec::new(), Status::Ok) {
                    Ok(()) => attached.recorded.note_memory(into.remember(&run, Status::Ok)),
                    Err(error) => attached.recorded.failure = Some(error.to_string()),
                }
            }
            Ok(attached)
        }
        Err(error) => {
            let _ = run.end(Status::Failed);
            Err(error)
        }
    }
}

async fn session<F: Future<Output = ()>>(
    recorder: &ProxyRecorder,
    mounts: &Mounts,
    ready: impl FnOnce(&[(String, String)]),
    over: impl FnOnce() -> F,
) -> Result<AttachReport, SessionError> {
    let proxy = recorder.listen().await?;
    let over = over();
    ready(&mounts.environment(&proxy.base(), proxy.secret()));
    let began = Instant::now();
    over.await;
    proxy.stop().await;
    Ok(AttachReport { recorded: recorder.finish().await, seconds: began.elapsed().as_secs_f64() })
}
