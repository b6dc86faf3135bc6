//! Runs a program again from a frame of a run, with changes.

use std::io::Read;
use std::sync::Arc;

use annals::{Component, RunReader, RunSpec, Status};

use super::secrets::{self, OutputRedactor};
use super::stage::{KEYS, block_on, end_run, run_program};
use crate::destination::{Destination, ForkPoint, NewRun};
use crate::error::{SessionError, invalid};
use crate::network::{NetworkPolicy, NetworkWatch, TrafficReport, WatchPurpose};
use crate::nondet::{CaptureReport, DrawLanes, NondetCapture};
use crate::origin::Origin;
use crate::program::{Program, Supervision};
use crate::proxy::{
    AnswerCache, CacheUse, ForkEdit, ForkEdits, ForkProxy, ProxyRecorder, ProxyReplayer, RecordingSummary,
    ReplayDivergence, ReplayOptions,
};
use crate::upstream::UpstreamGuard;
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::Cost;
use annals_policy::redact::is_credential_header;
use annals_policy::rules::RulesFile;

/// The result of a fork's program.
#[derive(Debug)]
pub struct ForkReport {
    /// The child's exchanges from the fork point on.
    pub recorded: RecordingSummary,
    /// Calls answered from the parent.
    pub replayed: u32,
    /// Those of `recorded` whose answer the fork replaced: 0 or 1.
    pub replaced: u32,
    /// Calls of the shared frames that the program never requested.
    pub unasked: u32,
    /// Deviations while the shared frames lasted.
    pub diverged: Vec<ReplayDivergence>,
    /// The edits that changed nothing.
    pub unapplied: Vec<ForkEdit>,
    /// Number of requests that should have been edited and went on as they came, because they are no JSON.
    pub unreadable: u32,
    /// What the calls answered from the parent had cost.
    pub saved: Cost,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if the parent has them.
    pub captured: Option<CaptureReport>,
    /// What the program reached, or tried to reach, besides annals.
    pub traffic: TrafficReport,
}

/// Options of a fork.
#[derive(Debug, Clone)]
pub struct ForkOptions {
    /// The last frame shared with the parent; if the fork point is edited, the frame before it.
    pub at: u32,
    /// Changes from the fork point on.
    pub edits: ForkEdits,
    /// The program.
    pub program: Program,
    /// Its input, and how long to wait for processes that outlive it.
    pub supervision: Supervision,
    /// Upstreams in place of the parent's: a provider (none: all), and a base address.
    pub upstreams: Vec<(Option<String>, String)>,
    /// How answers of earlier runs are used.
    pub cache: CacheUse,
    /// Which upstreams may be called.
    pub guard: UpstreamGuard,
    /// Rules for matching shared requests, for severity and for prices; stored with the child.
    pub rules: RulesFile,
    /// What the program may reach besides annals during the shared frames.
    pub network: NetworkPolicy,
}

/// Runs a program again. Its calls are answered from the run up to a frame and are live afterwards; they are
/// recorded into a fork with this name.
///
/// # Errors
/// If nothing was started: errors of the store, the proxy or the program, or a key that the parent's calls
/// after the fork point had and whose variable is not set.
pub fn fork(
    into: &Destination,
    reader: &RunReader,
    origin: &Origin,
    spec: RunSpec,
    forking: &ForkOptions,
) -> Result<ForkReport, SessionError> {
    forking.program.check().map_err(SessionError::Program)?;
    let mut origin = origin.clone();
    origin.mounts.redirect(&forking.upstreams)?;
    forking.guard.check(&origin.mounts)?;
    let edit = !forking.edits.is_empty();
    let from = if edit { forking.at } else { forking.at + 1 };
    // A replaced answer needs no call.
    let first_live = from + u32::from(forking.edits.response.is_some());
    check_credentials(reader, first_live)?;
    let secrets = secrets::named_secrets(&origin.secrets)?;
    let key = origin.key_bytes()?;
    let capture = origin.capture(&forking.program, || DrawLanes::from_reader(reader))?;
    let rules = &forking.rules;
    let origin = origin.with_rules(rules, &secrets)?.with_program(&forking.program, &secrets)?;
    let origin = origin.with_input(&forking.supervision.stdin);
    let options = ReplayOptions {
        secrets: secrets.clone(),
        rules: rules.matcher.clone(),
        prices: rules.prices.clone(),
        ..ReplayOptions::default()
    };
    let parent = ProxyReplayer::new(reader.clone(), key, options)?;
    let cache = AnswerCache::open_in(into, &forking.cache)?;
    let spec = spec.metadata(origin.metadata());
    let point = ForkPoint { run: &reader.info().name, at: forking.at, edit };
    let run = into.fork_run(point, spec)?;
    let done = ProxyRecorder::new(run.clone(), key, origin.mounts.clone(), cache)
        .map_err(SessionError::from)
        .map(|child| {
            child.set_secrets(&secrets);
            child.set_rules(rules);
            child.set_tool_version(origin.revision.as_deref());
            ForkProxy::new(parent, child, from, forking.edits.clone())
        })
        .and_then(|branch| {
            block_on(session(into, &run, &branch, forking, &origin, capture, OutputRedactor::new(&secrets)))
        });
    if let Err(error) = &done {
        into.give_up(&run, error.not_started());
    }
    let mut report = done?;
    if report.recorded.failure.is_none() {
        let status = if report.code == 0 { Status::Ok } else { Status::Failed };
        report.recorded.note_memory(into.remember(&run, status));
    }
    Ok(report)
}

async fn session(
    into: &Destination,
    run: &NewRun,
    branch: &ForkProxy,
    forking: &ForkOptions,
    origin: &Origin,
    capture: Option<Arc<NondetCapture>>,
    output: OutputRedactor,
) -> Result<ForkReport, SessionError> {
    capture.iter().for_each(|capture| branch.child().set_capture(capture.clone()));
    let proxy = branch.listen().await?;
    let more = origin.capture_environment(capture.as_deref());
    let keeper = into.clone();
    let cleared = output.clone();
    let keep = move |from: &mut dyn Read| cleared.redact(from, |from| keeper.store_blob(from));
    let (program, mounts) = (&forking.program, &origin.mounts);
    let network = NetworkWatch::begin(WatchPurpose::Prefix, &forking.network, proxy.port(), mounts, program);
    let network = Arc::new(network);
    branch.set_network(network.clone());
    let played = run_program(proxy, program, &forking.supervision, mounts, more, &network, keep).await?;
    let mut recorded = branch.child().finish().await;
    recorded.secrets_removed += output.removed();
    (recorded.masked_arguments, recorded.altered_arguments) = origin.unstored_arguments();
    recorded.survivors.clone_from(&played.ended.survivors);
    let captured = capture.map(|capture| capture.finish(run));
    let (code, seconds, traffic) = (played.ended.code, played.seconds, played.traffic.clone());
    if recorded.failure.is_none()
        && let Err(error) = end_run(run, played, origin)
    {
        recorded.failure = Some(error.to_string());
    }
    branch.settle().await;
    let (replayed, saved) = branch.served();
    let (left, diverged) = (branch.unasked_calls(), branch.diverged());
    let unapplied = branch.unapplied();
    Ok(ForkReport {
        recorded,
        replayed,
        replaced: branch.replaced(),
        unasked: left,
        diverged,
        unapplied,
        unreadable: branch.unreadable(),
        saved,
        code,
        seconds,
        captured,
        traffic,
    })
}

/// The first frame whose request or answer differs, or that only one run has.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn first_difference(parent: &RunReader, child: &RunReader) -> annals::Result<Option<u32>> {
    let (of_parent, of_child) = (parent.info().frames, child.info().frames);
    for seq in 1..=of_parent.min(of_child) {
        let (a, b) = (parent.frame(seq)?, child.frame(seq)?);
        // A fork's draws begin at the program's start, not at the fork.
        let draws = a.component == Component::Nondet && b.component == Component::Nondet;
        if !draws && (a.input, a.output) != (b.input, b.output) {
            return Ok(Some(seq));
        }
    }
    Ok((of_parent != of_child).then(|| of_parent.min(of_child) + 1))
}

/// Checks for keys without which the live part would fail after a useless replay of the prefix: those that calls from
/// frame `first_live` on had.
pub(super) fn check_credentials(reader: &RunReader, first_live: u32) -> Result<(), SessionError> {
    for seq in first_live..=reader.info().frames {
        let Ok(exchange) = serde_json::from_slice::<ExchangeMetadata>(&reader.frame_info(seq)?.metadata)
        else {
            continue;
        };
        let had = exchange.volatile.request_headers.0.iter().any(|(name, _)| is_credential_header(name));
        let provider =
            exchange.http.mount.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_uppercase();
        let names = KEYS.into_iter().filter(|name| name.starts_with(&provider)).collect::<Vec<_>>();
        if had && !names.is_empty() && !names.iter().any(|name| std::env::var_os(name).is_some()) {
            let what = format!("frame {seq} was requested with a key, and {} is not set", names.join(" or "));
            return Err(invalid(&what).into());
        }
    }
    Ok(())
}
