//! Runs a recorded program again many times, each time by a plan. Each time becomes a fork of the run.
//!
//! What all of them need is prepared once: the parent, its upstreams, the threads that write, and a runtime.
//! Several threads may run forks at the same time.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use annals::{Durability, Namespace, RunReader, RunSpec};

use super::SessionError;
use super::fork::check_credentials;
use super::secrets::{self, OutputRedactor};
use super::stage::{end_run_with, run_program};
use crate::destination::{Destination, DestinationBlob, NewRun};
use crate::error::ProxyError;
use crate::mounts::Mounts;
use crate::network::{NetworkPolicy, NetworkWatch, TrafficReport, WatchPurpose};
use crate::nondet::DrawLanes;
use crate::origin::Origin;
use crate::program::{Program, StandardInput, StopReason, Supervision};
use crate::proxy::{
    BodyMemory, ProxyRecorder, ProxyReplayer, RecorderPool, RecordingSummary, ReplayDivergence,
    ReplayOptions, RerunPlan, SteeredProxy,
};
use crate::upstream::UpstreamGuard;
use annals_policy::redact::Secrets;
use annals_policy::rules::RulesFile;

/// Options of all forks of a run.
#[derive(Debug, Clone)]
pub struct RerunnerOptions {
    /// The program.
    pub program: Program,
    /// Its standard input.
    pub stdin: StandardInput,
    /// The longest time of one fork.
    pub time_limit: Duration,
    /// Upstreams in place of the run's: a provider (none: all), and a base address.
    pub upstreams: Vec<(Option<String>, String)>,
    /// Which upstreams may be called.
    pub guard: UpstreamGuard,
    /// Rules for matching, severity and prices.
    pub rules: RulesFile,
    /// What the program may reach besides annals until its first changed call.
    pub network: NetworkPolicy,
}

/// Runs a recorded program again.
pub struct Rerunner {
    space: Namespace,
    reader: RunReader,
    key: [u8; 32],
    origin: Origin,
    mounts: Arc<Mounts>,
    secrets: Secrets,
    options: RerunnerOptions,
    pool: Arc<RecorderPool>,
    runtime: tokio::runtime::Runtime,
}

impl std::fmt::Debug for Rerunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rerunner").field("run", &self.reader.info().name).finish_non_exhaustive()
    }
}

/// The result of one fork.
#[derive(Debug)]
pub struct RerunReport {
    /// The child's exchanges after the shared frames.
    pub recorded: RecordingSummary,
    /// Calls that went to an upstream.
    pub live_calls: u32,
    /// Calls of the shared frames that the program never requested.
    pub unasked: u32,
    /// The planned frames whose requests came.
    pub reached: BTreeSet<u32>,
    /// Deviations while the shared frames lasted.
    pub diverged: Vec<ReplayDivergence>,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// Why annals ended the program, if it did.
    pub stopped: Option<StopReason>,
    /// How long the program ran.
    pub seconds: f64,
    /// What the program reached, or tried to reach, besides annals.
    pub traffic: TrafficReport,
}

impl Rerunner {
    /// Prepares forks of a run. `calls_upstreams` says whether any of them asks an upstream.
    ///
    /// # Errors
    /// Of the program, the upstreams, the secrets or the system; a key that the run's calls had and whose
    /// variable is not set.
    pub fn new(
        space: &Namespace,
        reader: &RunReader,
        origin: &Origin,
        options: RerunnerOptions,
        calls_upstreams: bool,
    ) -> Result<Self, SessionError> {
        options.program.check().map_err(SessionError::Program)?;
        let mut origin = origin.clone();
        origin.mounts.redirect(&options.upstreams)?;
        options.guard.check(&origin.mounts)?;
        if calls_upstreams {
            check_credentials(reader, 1)?;
        }
        let secrets = secrets::named_secrets(&origin.secrets)?;
        let key = origin.key_bytes()?;
        let origin = origin.with_rules(&options.rules, &secrets)?.with_program(&options.program, &secrets)?;
        let origin = origin.with_input(&options.stdin);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|e| ProxyError(format!("no threads can be started: {e}")))?;
        Ok(Self {
            space: space.clone(),
            reader: reader.clone(),
            key,
            mounts: Arc::new(origin.mounts.clone()),
            origin,
            secrets,
            options,
            pool: Arc::new(RecorderPool::new(BodyMemory::shared())),
            runtime,
        })
    }

    /// Runs the program by a plan, in another directory if one is given. The fork is in the store when this
    /// returns, and survives the death of this process.
    ///
    /// # Errors
    /// If nothing was started: errors of the store, the proxy or the program.
    pub fn run(
        &self,
        spec: RunSpec,
        plan: RerunPlan,
        directory: Option<&Path>,
    ) -> Result<RerunReport, SessionError> {
        let mut program = self.options.program.clone();
        let mut origin = self.origin.clone();
        if let Some(directory) = directory {
            program.directory = Some(directory.to_path_buf());
            origin.directory = directory.to_string_lossy().into_owned();
        }
        let capture = origin.capture(&program, || DrawLanes::from_reader(&self.reader))?;
        let replaying = ReplayOptions {
            secrets: self.secrets.clone(),
            rules: self.options.rules.matcher.clone(),
            prices: self.options.rules.prices.clone(),
            ..ReplayOptions::default()
        };
        let parent = ProxyReplayer::new(self.reader.clone(), self.key, replaying)?;
        // A fork that edits frame N shares the frames before it, also none.
        let (frames, from) = (self.reader.info().frames, plan.from);
        let (at, edit) = if from <= frames { (from, true) } else { (frames, false) };
        let spec = spec.metadata(origin.metadata());
        let run = NewRun::from(Arc::new(self.space.fork(&self.reader.info().name, at, edit, spec)?));
        let done = ProxyRecorder::in_pool(&self.pool, run.clone(), self.key, self.mounts.clone(), None)
            .map_err(SessionError::from)
            .and_then(|child| {
                child.set_secrets(&self.secrets);
                child.set_rules(&self.options.rules);
                child.set_tool_version(origin.revision.as_deref());
                let steered = SteeredProxy::new(parent, child, plan);
                self.runtime.block_on(self.session(&run, &steered, &program, &origin, capture))
            });
        if let Err(error) = &done {
            Destination::from(self.space.clone()).give_up(&run, error.not_started());
        }
        done
    }

    async fn session(
        &self,
        run: &NewRun,
        steered: &SteeredProxy,
        program: &Program,
        origin: &Origin,
        capture: Option<Arc<crate::nondet::NondetCapture>>,
    ) -> Result<RerunReport, SessionError> {
        capture.iter().for_each(|capture| steered.child().set_capture(capture.clone()));
        let proxy = steered.listen().await?;
        let more = origin.capture_environment(capture.as_deref());
        let (keeper, output) = (self.space.clone(), OutputRedactor::new(&self.secrets));
        let keep = move |from: &mut dyn Read| {
            output.redact(from, |from| keeper.store_blob(from).map(DestinationBlob::from))
        };
        let mounts = &*self.mounts;
        let policy = &self.options.network;
        let network = NetworkWatch::begin(WatchPurpose::Prefix, policy, proxy.port(), mounts, program);
        let network = Arc::new(network.without_samples());
        steered.set_network(network.clone());
        let supervision = Supervision {
            stdin: self.options.stdin.clone(),
            linger: Duration::ZERO,
            unattended: Some(self.options.time_limit),
            ..Supervision::default()
        };
        let played = run_program(proxy, program, &supervision, mounts, more, &network, keep).await?;
        let mut recorded = steered.child().finish().await;
        let (code, stopped) = (played.ended.code, played.ended.stopped);
        let (seconds, traffic) = (played.seconds, played.traffic.clone());
        recorded.survivors.clone_from(&played.ended.survivors);
        if let Some(capture) = capture {
            capture.finish(run);
        }
        if recorded.failure.is_none()
            && let Err(error) = end_run_with(run, played, origin, Durability::Process)
        {
            recorded.failure = Some(error.to_string());
        }
        Ok(RerunReport {
            recorded,
            live_calls: steered.live_calls(),
            unasked: steered.unasked_calls(),
            reached: steered.reached(),
            diverged: steered.diverged(),
            code,
            stopped,
            seconds,
            traffic,
        })
    }

    /// The working directory of the program.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(&self.origin.directory)
    }

    /// The parent.
    #[must_use]
    pub fn reader(&self) -> &RunReader {
        &self.reader
    }
}
