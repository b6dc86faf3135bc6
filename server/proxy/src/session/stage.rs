//! Starts a program behind a proxy, and stores the end of its run.

use std::time::Duration;

use annals::{Component, Durability, Frame, Severity, Status};
use serde_json::json;
use std::io::Read;
use tokio::process::Command;

use super::SessionError;
use crate::destination::{DestinationBlob, NewRun};
use crate::error::ProxyError;
use crate::mounts::Mounts;
use crate::network::{NetworkWatch, TrafficReport};
use crate::origin::Origin;
use crate::own_frames::{PROGRAM, STDIN};
use crate::program::{Program, ProgramExit, StopReason, Supervision};
use crate::proxy::Proxy;

/// Variables without which client libraries refuse to start. Dummy values are enough.
pub(crate) const KEYS: [&str; 9] = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY",
    "OPENROUTER_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "GROQ_API_KEY",
    "CO_API_KEY",
];

/// The same for AWS, whose clients need them to sign requests, and the variables that show other credentials.
const AWS_KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
const AWS_PROFILES: [&str; 3] = ["AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_BEARER_TOKEN_BEDROCK"];

/// The end of a program, and how long it ran.
pub(super) struct ProgramOutcome<T> {
    pub(super) ended: ProgramExit<T>,
    pub(super) seconds: f64,
    /// What the program reached besides the proxy.
    pub(super) traffic: TrafficReport,
}

impl<T> ProgramOutcome<T> {
    /// The status of its run.
    pub(super) fn status(&self) -> Status {
        if self.ended.code == 0 { Status::Ok } else { Status::Failed }
    }
}

impl<T> ProgramOutcome<T> {
    /// The same with input and outputs converted.
    pub(super) fn map<U>(self, of: impl Fn(T) -> U) -> ProgramOutcome<U> {
        let ProgramExit { code, signal, stopped, ran, survivors: left, stdin, stdout, stderr } = self.ended;
        let (stdin, stdout, stderr) = (stdin.map(&of), of(stdout), of(stderr));
        let ended = ProgramExit { code, signal, stopped, ran, survivors: left, stdin, stdout, stderr };
        ProgramOutcome { ended, seconds: self.seconds, traffic: self.traffic }
    }
}

/// Runs a program to its end behind a proxy, which has stopped when this returns. `more` are additional
/// variables; `network` watches the program.
pub(super) async fn run_program<T: Send + 'static>(
    proxy: Proxy,
    program: &Program,
    supervision: &Supervision,
    mounts: &Mounts,
    more: Vec<(String, String)>,
    network: &NetworkWatch,
    keep: impl Fn(&mut dyn Read) -> T + Clone + Send + 'static,
) -> Result<ProgramOutcome<T>, SessionError> {
    let mut program = program.clone();
    program.environment.extend(mounts.environment(&proxy.base(), proxy.secret()));
    program.environment.extend(no_proxy_variables());
    program.environment.extend(more);
    let preloaded = program
        .environment
        .iter()
        .rev()
        .find(|(name, _)| name == "LD_PRELOAD")
        .map(|(_, value)| value.clone());
    let preloaded = preloaded.or_else(|| std::env::var("LD_PRELOAD").ok());
    program.environment.extend(network.environment(preloaded.as_deref()));
    let also_at = |listener, socket_diag| proxy.add_listener(listener, socket_diag);
    let spawn = |command: &mut Command| network.spawn(command, also_at);
    let ended = program.run(spawn, supervision, proxy.secret(), keep).await.map_err(SessionError::Program)?;
    let seconds = ended.ran.as_secs_f64();
    proxy.stop().await;
    let traffic = tokio::task::block_in_place(|| network.finish());
    Ok(ProgramOutcome { ended, seconds, traffic })
}

/// Key variables that are not set, with dummy values.
pub(super) fn dummy_keys() -> Vec<(String, String)> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    // These would override the user's own AWS profile.
    let aws = if AWS_PROFILES.iter().any(|name| is_set(name)) { &[][..] } else { &AWS_KEYS };
    let missing = KEYS.iter().chain(aws).filter(|name| !is_set(name));
    missing.map(|name| ((*name).to_owned(), "annals-replay".to_owned())).collect()
}

/// Stores the program's own frames and ends the run; both are on disk when this returns.
pub(super) fn end_run(
    run: &NewRun,
    played: ProgramOutcome<annals::Result<DestinationBlob>>,
    origin: &Origin,
) -> annals::Result<()> {
    end_run_with(run, played, origin, Durability::Disk)
}

/// The same with another durability.
pub(super) fn end_run_with(
    run: &NewRun,
    played: ProgramOutcome<annals::Result<DestinationBlob>>,
    origin: &Origin,
    durability: Durability,
) -> annals::Result<()> {
    let status = played.status();
    let ProgramOutcome { ended, seconds, traffic } = played;
    let (stdin, stdout, stderr) = (ended.stdin.transpose()?, ended.stdout?, ended.stderr?);
    let mut volatile = json!({ "seconds": seconds });
    if let Some(network) = traffic.unrecorded() {
        volatile["network"] = json!(network);
    }
    let mut exit = json!({ "code": ended.code, "signal": ended.signal });
    if let Some(stopped) = ended.stopped {
        exit["stopped"] = json!(match stopped {
            StopReason::TimeLimit => "time limit",
            StopReason::Interrupted => "interrupted",
        });
    }
    let metadata = json!({ "exit": exit, "volatile": volatile });
    let started = serde_json::to_vec(&origin.argv).unwrap_or_default();
    let mut frame = Frame::new(Component::Other(PROGRAM.to_owned()), started, "");
    frame.error = status == Status::Failed;
    frame.severity = if frame.error { Severity::Flagged } else { Severity::Normal };
    let mut frames = Vec::new();
    if let Some(stdin) = stdin.filter(|stdin| !stdin.is_empty()) {
        frames.push((Frame::new(Component::Other(STDIN.to_owned()), "", ""), stdin));
    }
    frames.push((frame.metadata(metadata.to_string()), stdout));
    if !stderr.is_empty() {
        frames.push((Frame::new(Component::Other("stderr".to_owned()), "", ""), stderr));
    }
    run.end_with_durability(frames, status, durability)
}

/// Runs a session to its end on a runtime of its own.
pub(super) fn block_on<T>(session: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|e| ProxyError(format!("no threads can be started: {e}")))?;
    let done = runtime.block_on(session);
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

/// Variables that exempt the loopback from the environment's HTTP proxy.
fn no_proxy_variables() -> Vec<(String, String)> {
    let of = |name: &str| {
        let set = std::env::var(name).ok().filter(|value| !value.is_empty());
        let hosts = set.map_or_else(|| "127.0.0.1".to_owned(), |value| format!("{value},127.0.0.1"));
        (name.to_owned(), hosts)
    };
    vec![of("NO_PROXY"), of("no_proxy")]
}
