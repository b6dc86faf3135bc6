//! Replays a program.

use std::io::Read;

use annals::RunReader;

use super::SessionError;
use super::secrets::{self, OutputRedactor};
use super::stage::{block_on, dummy_keys, run_program};
use crate::network::{NetworkPolicy, NetworkWatch, TrafficReport, UnrecordedTraffic, WatchPurpose};
use crate::nondet::{CaptureReport, DrawLanes};
use crate::origin::Origin;
use crate::own_frames::{PROGRAM, own_frame};
use crate::program::{Program, Supervision, Survivor};
use crate::proxy::{ProxyReplayer, ReplayOptions, ReplaySummary};

/// The result of a replayed program.
#[derive(Debug)]
pub struct ReplayReport {
    /// Counts and divergences.
    pub replayed: ReplaySummary,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// Whether the output equals the recorded one; `None` if the recording does not tell.
    pub same_output: Option<bool>,
    /// Processes still running after the program and the linger time.
    pub survivors: Vec<Survivor>,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if the recording has them.
    pub captured: Option<CaptureReport>,
    /// What the program tried to reach besides annals.
    pub traffic: TrafficReport,
    /// Network traffic of the recorded program that the recording does not contain.
    pub unrecorded: Option<UnrecordedTraffic>,
}

/// Runs a program again; all its model calls are answered from a recording. `policy` says what else it may
/// reach.
///
/// # Errors
/// If nothing was started: errors of the recording, the proxy or the program.
pub fn replay(
    reader: &RunReader,
    origin: &Origin,
    program: &Program,
    supervision: &Supervision,
    mut options: ReplayOptions,
    policy: &NetworkPolicy,
) -> Result<ReplayReport, SessionError> {
    let (known, all_known) = secrets::known_secrets(origin);
    let output = OutputRedactor::new(&known);
    options.secrets = known;
    let replayer = ProxyReplayer::new(reader.clone(), origin.key_bytes()?, options)?;
    let capture = origin.capture(program, || DrawLanes::from_reader(reader))?;
    block_on(async {
        let proxy = replayer.listen().await?;
        let more = [dummy_keys(), origin.capture_environment(capture.as_deref())].concat();
        let keep = move |from: &mut dyn Read| output.redact(from, hash);
        let network =
            NetworkWatch::begin(WatchPurpose::Replay, policy, proxy.port(), &origin.mounts, program);
        let played = run_program(proxy, program, supervision, &origin.mounts, more, &network, keep).await?;
        // Output that held a secret cannot be compared without it.
        let recorded = recorded_output(reader)?.filter(|_| all_known);
        let same_output = recorded.map(|recorded| recorded == played.ended.stdout);
        let (code, seconds, survivors) = (played.ended.code, played.seconds, played.ended.survivors);
        replayer.settle().await;
        let captured = capture.map(|capture| capture.compare());
        let (traffic, unrecorded) = (played.traffic, UnrecordedTraffic::from_reader(reader)?);
        let replayed = replayer.finish();
        Ok(ReplayReport { replayed, code, same_output, survivors, seconds, captured, traffic, unrecorded })
    })
}

/// The hash of the program's recorded standard output.
pub(super) fn recorded_output(reader: &RunReader) -> annals::Result<Option<blake3::Hash>> {
    let frame = own_frame(reader, PROGRAM)?.map(|seq| reader.frame(seq)).transpose()?;
    Ok(frame.map(|frame| blake3::hash(&frame.output)))
}

pub(super) fn hash(from: &mut dyn Read) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    // A read error ends the output; it is reported elsewhere.
    let _ = hasher.update_reader(from);
    hasher.finalize()
}
