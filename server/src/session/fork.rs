//! Runs a program again from a frame of a run, with changes.

use std::io::Read;
use std::sync::Arc;

use annals::{Component, Namespace, RunReader, RunSpec, Status};

use super::origin::Origin;
use super::secrets::{self, Output};
use super::stage::{KEYS, block_on, end, play};
use super::{SessionError, wrong};
use crate::network::{NetworkPolicy, NetworkWatch, Purpose, TrafficReport};
use crate::nondet::{Capture, Captured, Lanes};
use crate::program::{Program, Supervision};
use crate::providers::Cost;
use crate::proxy::{
    Branch, Cache, CacheUse, Diverged, Edit, Edits, Exchange, Guard, Recorded, Recorder, ReplayOptions,
    Replayer,
};
use crate::redact::is_secret_header;
use crate::rules::RulesFile;
use crate::share::{Destination, Kept, NewRun};

/// The result of a fork's program.
#[derive(Debug)]
pub struct ForkReport {
    /// The child's exchanges after the fork point.
    pub recorded: Recorded,
    /// Calls answered from the parent.
    pub replayed: u32,
    /// Calls of the shared frames that the program never requested.
    pub left: u32,
    /// Deviations while the shared frames lasted.
    pub diverged: Vec<Diverged>,
    /// The edits that changed no request.
    pub unapplied: Vec<Edit>,
    /// What the calls answered from the parent had cost.
    pub saved: Cost,
    /// The first frame in which parent and child differ, if one does.
    pub differs_at: Option<u32>,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if the parent has them.
    pub captured: Option<Captured>,
    /// What the program reached, or tried to reach, besides annals.
    pub traffic: TrafficReport,
}

/// Options of a fork.
#[derive(Debug, Clone)]
pub struct Forking {
    /// The last frame shared with the parent; if the fork point is edited, the frame before it.
    pub at: u32,
    /// Changes from the fork point on.
    pub edits: Edits,
    /// The program.
    pub program: Program,
    /// Its input, and how long to wait for processes that outlive it.
    pub supervision: Supervision,
    /// Upstreams in place of the parent's: a provider (none: all), and a base address.
    pub upstreams: Vec<(Option<String>, String)>,
    /// How answers of earlier runs are used.
    pub cache: CacheUse,
    /// Which upstreams may be called.
    pub guard: Guard,
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
/// had and whose variable is not set.
pub fn fork(
    space: &Namespace,
    reader: &RunReader,
    origin: &Origin,
    spec: RunSpec,
    forking: &Forking,
) -> Result<ForkReport, SessionError> {
    forking.program.check().map_err(SessionError::Program)?;
    let mut origin = origin.clone();
    origin.mounts.redirect(&forking.upstreams)?;
    forking.guard.check(&origin.mounts)?;
    credentials(reader)?;
    let secrets = secrets::named(&origin.secrets)?;
    let key = origin.key_bytes()?;
    let capture = origin.capture(&forking.program, || Lanes::of(reader))?;
    let edit = !forking.edits.is_empty();
    let rules = &forking.rules;
    let origin = origin.ruled_by(rules, &secrets)?.running(&forking.program, &secrets)?;
    let origin = origin.reading(&forking.supervision.stdin);
    let options = ReplayOptions {
        secrets: secrets.clone(),
        rules: rules.matcher.clone(),
        prices: rules.prices.clone(),
        ..ReplayOptions::default()
    };
    let parent = Replayer::new(reader.clone(), key, options)?;
    let cache = Cache::open(space, &forking.cache)?;
    let spec = spec.metadata(origin.metadata());
    let run = NewRun::from(Arc::new(space.fork(&reader.info().name, forking.at, edit, spec)?));
    let from = if edit { forking.at } else { forking.at + 1 };
    let done = Recorder::new(run.clone(), key, origin.mounts.clone(), cache)
        .map_err(SessionError::from)
        .map(|child| {
            child.hides(&secrets);
            child.goes_by(rules);
            child.runs_tools_of(origin.revision.as_deref());
            Branch::new(parent, child, from, forking.edits.clone())
        })
        .and_then(|branch| {
            block_on(session(space, &run, &branch, forking, &origin, capture, Output::of(&secrets)))
        });
    if let Err(error) = &done {
        Destination::from(space.clone()).give_up(&run, error);
    }
    let mut report = done?;
    if report.recorded.failed.is_none() {
        let status = if report.code == 0 { Status::Ok } else { Status::Failed };
        report.recorded.remembered(Destination::from(space.clone()).remember(&run, status));
    }
    report.differs_at = first_difference(reader, &space.run(run.name())?)?;
    Ok(report)
}

async fn session(
    space: &Namespace,
    run: &NewRun,
    branch: &Branch,
    forking: &Forking,
    origin: &Origin,
    capture: Option<Arc<Capture>>,
    output: Output,
) -> Result<ForkReport, SessionError> {
    capture.iter().for_each(|capture| branch.child().draws_of(capture.clone()));
    let proxy = branch.listen().await?;
    let more = origin.environment_of(capture.as_deref());
    let keeper = space.clone();
    let cleared = output.clone();
    let keep = move |from: &mut dyn Read| cleared.clear(from, |from| keeper.store_blob(from).map(Kept::from));
    let (program, mounts) = (&forking.program, &origin.mounts);
    let network = NetworkWatch::begin(Purpose::Prefix, &forking.network, proxy.port(), mounts, program);
    let network = Arc::new(network);
    branch.watched_by(network.clone());
    let played = play(proxy, program, &forking.supervision, mounts, more, &network, keep).await?;
    let mut recorded = branch.child().finish().await;
    recorded.secrets_removed += output.removed();
    recorded.masked_arguments = origin.masked.len() as u64;
    recorded.left.clone_from(&played.ended.left);
    let captured = capture.map(|capture| capture.finish(run));
    let (code, seconds, traffic) = (played.ended.code, played.seconds, played.traffic.clone());
    if recorded.failed.is_none()
        && let Err(error) = end(run, played, origin)
    {
        recorded.failed = Some(error.to_string());
    }
    branch.settle().await;
    let (replayed, saved) = branch.served();
    let (left, diverged) = (branch.left(), branch.diverged());
    let (differs_at, unapplied) = (None, branch.unapplied());
    Ok(ForkReport {
        recorded,
        replayed,
        left,
        diverged,
        unapplied,
        saved,
        differs_at,
        code,
        seconds,
        captured,
        traffic,
    })
}

/// The first frame whose request or answer differs, or that only one run has.
fn first_difference(parent: &RunReader, child: &RunReader) -> annals::Result<Option<u32>> {
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

/// Checks for keys without which the live part would fail after a useless replay of the prefix.
pub(super) fn credentials(reader: &RunReader) -> Result<(), SessionError> {
    for seq in 1..=reader.info().frames {
        let Ok(exchange) = serde_json::from_slice::<Exchange>(&reader.frame_info(seq)?.metadata) else {
            continue;
        };
        let had = exchange.volatile.request_headers.0.iter().any(|(name, _)| is_secret_header(name));
        let provider =
            exchange.http.mount.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_uppercase();
        let names = KEYS.into_iter().filter(|name| name.starts_with(&provider)).collect::<Vec<_>>();
        if had && !names.is_empty() && !names.iter().any(|name| std::env::var_os(name).is_some()) {
            let what = format!("frame {seq} was requested with a key, and {} is not set", names.join(" or "));
            return Err(wrong(&what).into());
        }
    }
    Ok(())
}
