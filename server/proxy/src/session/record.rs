//! Records a program.

use std::io::Read;
use std::sync::Arc;

use annals::{RunSpec, Status};

use super::SessionError;
use super::secrets::{self, OutputRedactor};
use super::stage::{block_on, end_run, run_program};
use crate::destination::{Destination, NewRun};
use crate::mounts::Mounts;
use crate::network::{NetworkPolicy, NetworkWatch, TrafficReport, WatchPurpose};
use crate::nondet::{CaptureReport, DrawLanes, NondetCapture};
use crate::origin::{Origin, random_key};
use crate::program::{Program, Supervision};
use crate::proxy::{AnswerCache, CacheUse, ProxyRecorder, RecordingSummary};
use crate::upstream::UpstreamGuard;
use annals_policy::rules::RulesFile;

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    /// The program.
    pub program: Program,
    /// Its input, and how long to wait for processes that outlive it.
    pub supervision: Supervision,
    /// Its upstreams.
    pub mounts: Mounts,
    /// Which upstreams may be called.
    pub guard: UpstreamGuard,
    /// How answers of earlier runs are used.
    pub cache: CacheUse,
    /// Names of variables whose values are stored.
    pub keep: Vec<String>,
    /// Whether clock reads and entropy are captured.
    pub capture_nondet: bool,
    /// Names of variables whose values are removed before storing.
    pub secrets: Vec<String>,
    /// Rules for severity and prices; stored with the run and used by its replays.
    pub rules: RulesFile,
    /// Hosts that the program is expected to reach directly.
    pub network: NetworkPolicy,
}

/// The result of a recording.
#[derive(Debug)]
pub struct RecordReport {
    /// Counts.
    pub recorded: RecordingSummary,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// How the run ended.
    pub status: Status,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if they were captured.
    pub captured: Option<CaptureReport>,
    /// What the program reached besides annals.
    pub traffic: TrafficReport,
}

/// Runs a program and records it into a new run with this name and these tags.
///
/// # Errors
/// If nothing was started: errors of the store, the proxy or the program.
pub fn record(
    into: &Destination,
    spec: RunSpec,
    recording: &RecordOptions,
) -> Result<RecordReport, SessionError> {
    recording.program.check().map_err(SessionError::Program)?;
    recording.guard.check(&recording.mounts)?;
    let secrets = secrets::named_secrets(&recording.secrets)?;
    let key = random_key()?;
    let mut origin = Origin::new(&recording.program, &recording.mounts, &recording.keep, &key)
        .with_rules(&recording.rules, &secrets)?
        .with_secrets(&recording.secrets, &secrets)?
        .with_input(&recording.supervision.stdin);
    if recording.capture_nondet {
        origin = origin.with_capture();
    }
    let capture = origin.capture(&recording.program, || Ok::<_, SessionError>(DrawLanes::default()))?;
    let cache = AnswerCache::open_in(into, &recording.cache)?;
    let run = into.begin_run(spec.metadata(origin.metadata()))?;
    let recorder = ProxyRecorder::new(run.clone(), key, recording.mounts.clone(), cache);
    let done = recorder.map_err(SessionError::from).and_then(|recorder| {
        recorder.set_secrets(&secrets);
        recorder.set_rules(&recording.rules);
        recorder.set_tool_version(origin.revision.as_deref());
        let output = OutputRedactor::new(&secrets);
        block_on(session(into, &run, &recorder, recording, &origin, capture, output))
    });
    match done {
        Ok(mut report) => {
            if report.recorded.failure.is_none() {
                report.recorded.note_memory(into.remember(&run, report.status));
            }
            Ok(report)
        }
        Err(error) => {
            into.give_up(&run, error.not_started());
            Err(error)
        }
    }
}

async fn session(
    into: &Destination,
    run: &NewRun,
    recorder: &ProxyRecorder,
    recording: &RecordOptions,
    origin: &Origin,
    capture: Option<Arc<NondetCapture>>,
    output: OutputRedactor,
) -> Result<RecordReport, SessionError> {
    capture.iter().for_each(|capture| recorder.set_capture(capture.clone()));
    let proxy = recorder.listen().await?;
    let more = origin.capture_environment(capture.as_deref());
    let keeper = into.clone();
    let cleared = output.clone();
    let keep = move |from: &mut dyn Read| cleared.redact(from, |from| keeper.store_blob(from));
    let (program, mounts) = (&recording.program, &recording.mounts);
    let network =
        NetworkWatch::begin(WatchPurpose::Record, &recording.network, proxy.port(), mounts, program);
    let played = run_program(proxy, program, &recording.supervision, mounts, more, &network, keep).await?;
    let mut recorded = recorder.finish().await;
    recorded.secrets_removed += output.removed();
    (recorded.masked_arguments, recorded.altered_arguments) = origin.unstored_arguments();
    recorded.survivors.clone_from(&played.ended.survivors);
    let captured = capture.map(|capture| capture.finish(run));
    let (code, status, seconds) = (played.ended.code, played.status(), played.seconds);
    let traffic = played.traffic.clone();
    if recorded.failure.is_none()
        && let Err(error) = end_run(run, played, origin)
    {
        recorded.failure = Some(error.to_string());
    }
    Ok(RecordReport { recorded, code, status, seconds, captured, traffic })
}
