//! Records a program.

use std::io::Read;
use std::sync::Arc;

use annals::{RunSpec, Status};

use super::SessionError;
use super::origin::{Origin, random_key};
use super::secrets::{self, Output};
use super::stage::{block_on, end, play};
use crate::network::{NetworkPolicy, NetworkWatch, Purpose, TrafficReport};
use crate::nondet::{Capture, Captured, Lanes};
use crate::program::{Program, Supervision};
use crate::proxy::{Cache, CacheUse, Guard, Mounts, Recorded, Recorder};
use crate::rules::RulesFile;
use crate::share::{Destination, NewRun};

/// Options of a recording.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The program.
    pub program: Program,
    /// Its input, and how long to wait for processes that outlive it.
    pub supervision: Supervision,
    /// Its upstreams.
    pub mounts: Mounts,
    /// Which upstreams may be called.
    pub guard: Guard,
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
pub struct Report {
    /// Counts.
    pub recorded: Recorded,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// How the run ended.
    pub status: Status,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if they were captured.
    pub captured: Option<Captured>,
    /// What the program reached besides annals.
    pub traffic: TrafficReport,
}

/// Runs a program and records it into a new run with this name and these tags.
///
/// # Errors
/// If nothing was started: errors of the store, the proxy or the program.
pub fn record(into: &Destination, spec: RunSpec, recording: &Recording) -> Result<Report, SessionError> {
    recording.program.check().map_err(SessionError::Program)?;
    recording.guard.check(&recording.mounts)?;
    let secrets = secrets::named(&recording.secrets)?;
    let key = random_key()?;
    let mut origin = Origin::new(&recording.program, &recording.mounts, &recording.keep, &key)
        .ruled_by(&recording.rules, &secrets)?
        .hiding(&recording.secrets, &secrets)?
        .reading(&recording.supervision.stdin);
    if recording.capture_nondet {
        origin = origin.capturing();
    }
    let capture = origin.capture(&recording.program, || Ok::<_, SessionError>(Lanes::default()))?;
    let cache = Cache::open_in(into, &recording.cache)?;
    let run = into.begin_run(spec.metadata(origin.metadata()))?;
    let recorder = Recorder::new(run.clone(), key, recording.mounts.clone(), cache);
    let done = recorder.map_err(SessionError::from).and_then(|recorder| {
        recorder.hides(&secrets);
        recorder.goes_by(&recording.rules);
        recorder.runs_tools_of(origin.revision.as_deref());
        let output = Output::of(&secrets);
        block_on(session(into, &run, &recorder, recording, &origin, capture, output))
    });
    match done {
        Ok(mut report) => {
            if report.recorded.failed.is_none() {
                report.recorded.remembered(into.remember(&run, report.status));
            }
            Ok(report)
        }
        Err(error) => {
            into.give_up(&run, &error);
            Err(error)
        }
    }
}

async fn session(
    into: &Destination,
    run: &NewRun,
    recorder: &Recorder,
    recording: &Recording,
    origin: &Origin,
    capture: Option<Arc<Capture>>,
    output: Output,
) -> Result<Report, SessionError> {
    capture.iter().for_each(|capture| recorder.draws_of(capture.clone()));
    let proxy = recorder.listen().await?;
    let more = origin.environment_of(capture.as_deref());
    let keeper = into.clone();
    let cleared = output.clone();
    let keep = move |from: &mut dyn Read| cleared.clear(from, |from| keeper.keep(from));
    let (program, mounts) = (&recording.program, &recording.mounts);
    let network = NetworkWatch::begin(Purpose::Record, &recording.network, proxy.port(), mounts, program);
    let played = play(proxy, program, &recording.supervision, mounts, more, &network, keep).await?;
    let mut recorded = recorder.finish().await;
    recorded.secrets_removed += output.removed();
    recorded.masked_arguments = origin.masked.len() as u64;
    recorded.left.clone_from(&played.ended.left);
    let captured = capture.map(|capture| capture.finish(run));
    let (code, status, seconds) = (played.ended.code, played.status(), played.seconds);
    let traffic = played.traffic.clone();
    if recorded.failed.is_none()
        && let Err(error) = end(run, played, origin)
    {
        recorded.failed = Some(error.to_string());
    }
    Ok(Report { recorded, code, status, seconds, captured, traffic })
}
