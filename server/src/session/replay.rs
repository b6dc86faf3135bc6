//! Replays a program.

use std::io::Read;

use annals::RunReader;

use super::SessionError;
use super::origin::Origin;
use super::secrets::{self, Output};
use super::stage::{PROGRAM, block_on, dummy_keys, own_frame, play};
use crate::network::{NetworkPolicy, NetworkWatch, Purpose, TrafficReport, UnrecordedTraffic};
use crate::nondet::{Captured, Lanes};
use crate::program::{Program, Supervision, Survivor};
use crate::proxy::{ReplayOptions, Replayed, Replayer};

/// The result of a replayed program.
#[derive(Debug)]
pub struct ReplayReport {
    /// Counts and divergences.
    pub replayed: Replayed,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// Whether the output equals the recorded one; `None` if the recording does not tell.
    pub same_output: Option<bool>,
    /// Processes still running after the program and the linger time.
    pub left: Vec<Survivor>,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, if the recording has them.
    pub captured: Option<Captured>,
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
    let (known, all_known) = secrets::known(origin);
    let output = Output::of(&known);
    options.secrets = known;
    let replayer = Replayer::new(reader.clone(), origin.key_bytes()?, options)?;
    let capture = origin.capture(program, || Lanes::of(reader))?;
    block_on(async {
        let proxy = replayer.listen().await?;
        let more = [dummy_keys(), origin.environment_of(capture.as_deref())].concat();
        let keep = move |from: &mut dyn Read| output.clear(from, hash);
        let network = NetworkWatch::begin(Purpose::Replay, policy, proxy.port(), &origin.mounts, program);
        let played = play(proxy, program, supervision, &origin.mounts, more, &network, keep).await?;
        // Output that held a secret cannot be compared without it.
        let recorded = recorded_output(reader)?.filter(|_| all_known);
        let same_output = recorded.map(|recorded| recorded == played.ended.stdout);
        let (code, seconds, left) = (played.ended.code, played.seconds, played.ended.left);
        replayer.settle().await;
        let captured = capture.map(|capture| capture.compare());
        let (traffic, unrecorded) = (played.traffic, UnrecordedTraffic::of(reader)?);
        let replayed = replayer.finish();
        Ok(ReplayReport { replayed, code, same_output, left, seconds, captured, traffic, unrecorded })
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
