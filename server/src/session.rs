//! A program recorded from its beginning to its end.
//!
//! The run's metadata says what was started and how ([`Origin`]). Each exchange is a frame of its own. The last frames are
//! the program's own: `program` (input: what was started, output: its standard output, metadata: how it ended)
//! and, where it wrote any, `stderr`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use annals::{
    Component, Content, Durability, Frame, Namespace, Run, RunReader, RunSpec, Severity, Status, StoredBlob,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::Instant;

use crate::nondet::{Capture, Captured, HASH_SEED, Lanes, NondetError};
use crate::program::{Ended, Program, ProgramError};
use crate::proxy::{
    Branch, Diverged, Edits, Exchange, Guard, MountError, Mounts, ProxyError, Recorded, Recorder,
    ReplayOptions, Replayed, Replayer, unhex,
};
use crate::redact::is_secret_header;

/// The component of the frame that a program itself is.
const PROGRAM: &str = "program";

/// Variables whose values are kept with a run besides those that are named: they change what programs do, and hold no secret.
const ENVIRONMENT: [&str; 8] =
    ["LANG", "LC_ALL", "TZ", "PATH", "PYTHONHASHSEED", "PYTHONPATH", "VIRTUAL_ENV", "NODE_OPTIONS"];

/// The seed of Python's hashing where the environment names none.
const FIXED_SEED: &str = "0";

/// What a run is of: the metadata of a recorded run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Command and arguments; bytes that are no UTF-8 are replaced.
    pub argv: Vec<String>,
    /// The working directory.
    pub directory: String,
    /// The git revision of that directory, with `-dirty` where files were changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Named variables.
    pub environment: BTreeMap<String, String>,
    /// The upstreams.
    pub mounts: Mounts,
    /// The key of the requests' hashes, hexadecimal.
    pub key: String,
    /// Clock reads and entropy were captured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub captured: bool,
}

/// What is to be recorded.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The program.
    pub program: Program,
    /// Its upstreams.
    pub mounts: Mounts,
    /// Which of them may be called.
    pub guard: Guard,
    /// Variables to keep, by name.
    pub keep: Vec<String>,
    /// Whether clock reads and entropy are captured.
    pub capture_nondet: bool,
}

/// What came of it.
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
    /// Clock reads and entropy, where they were captured.
    pub captured: Option<Captured>,
}

/// Why nothing was recorded.
#[derive(Debug)]
pub enum SessionError {
    /// The program could not be started.
    Program(ProgramError),
    /// There is no proxy for it.
    Proxy(ProxyError),
    /// An upstream that may not be called.
    Mount(MountError),
    /// Clocks and randomness cannot be captured.
    Nondet(NondetError),
    /// The store.
    Store(annals::Error),
}

impl From<NondetError> for SessionError {
    fn from(error: NondetError) -> Self {
        Self::Nondet(error)
    }
}

impl From<annals::Error> for SessionError {
    fn from(error: annals::Error) -> Self {
        Self::Store(error)
    }
}

impl From<ProxyError> for SessionError {
    fn from(error: ProxyError) -> Self {
        Self::Proxy(error)
    }
}

impl From<MountError> for SessionError {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

/// Runs a program and records it into a new run of this name and these tags.
///
/// # Errors
/// Where nothing was started: the store, the proxy, the program.
pub fn record(space: &Namespace, spec: RunSpec, recording: &Recording) -> Result<Report, SessionError> {
    recording.guard.check(&recording.mounts)?;
    let key = random_key()?;
    let origin = origin(recording, &key);
    let capture = origin.capture(&recording.program, || Ok::<_, SessionError>(Lanes::default()))?;
    let metadata = serde_json::to_vec(&json!({ "program": origin })).unwrap_or_default();
    let run = Arc::new(space.begin_run(spec.metadata(metadata))?);
    let runtime = runtime()?;
    let done = runtime.block_on(session(space, &run, key, recording, &origin, capture));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    if done.is_err() {
        // What was begun and never ran says so.
        let _ = run.end(Status::Failed);
    }
    done
}

async fn session(
    space: &Namespace,
    run: &Arc<Run>,
    key: [u8; 32],
    recording: &Recording,
    origin: &Origin,
    capture: Option<Arc<Capture>>,
) -> Result<Report, SessionError> {
    let recorder = Recorder::new(run.clone(), key, recording.mounts.clone())?;
    capture.iter().for_each(|capture| recorder.draws_of(capture.clone()));
    let proxy = recorder.listen().await?;
    let mut program = recording.program.clone();
    program.environment.extend(recording.mounts.environment(&proxy.base(), proxy.secret()));
    program.environment.extend(past_proxies());
    program.environment.extend(origin.environment_of(capture.as_deref()));
    let began = Instant::now();
    let keeper = space.clone();
    let ended = program.run(move |from| keeper.store_blob(from)).await.map_err(SessionError::Program)?;
    let seconds = began.elapsed().as_secs_f64();
    proxy.stop().await;
    let mut recorded = recorder.finish().await;
    let captured = capture.map(|capture| capture.finish(run));
    let (code, status) = (ended.code, if ended.code == 0 { Status::Ok } else { Status::Failed });
    if recorded.failed.is_none()
        && let Err(error) = end(run, ended, origin, seconds, status)
    {
        recorded.failed = Some(error.to_string());
    }
    Ok(Report { recorded, code, status, seconds, captured })
}

/// The program's own frames, and the run's end, on disk when this returns.
fn end(
    run: &Run,
    ended: Ended<annals::Result<StoredBlob>>,
    origin: &Origin,
    seconds: f64,
    status: Status,
) -> annals::Result<()> {
    let content = |kept: annals::Result<StoredBlob>| kept.map(Content::from);
    let (stdout, stderr) = (content(ended.stdout)?, content(ended.stderr)?);
    let mut batch = run.batch()?;
    batch.durability(Durability::Disk);
    let metadata = json!({
        "exit": { "code": ended.code, "signal": ended.signal },
        "volatile": { "seconds": seconds },
    });
    let started = serde_json::to_vec(&origin.argv).unwrap_or_default();
    let mut frame = Frame::new(Component::Other(PROGRAM.to_owned()), started, stdout);
    frame.error = status == Status::Failed;
    frame.severity = if frame.error { Severity::Flagged } else { Severity::Normal };
    batch.frame(frame.metadata(metadata.to_string()))?;
    if !stderr.is_empty() {
        batch.frame(Frame::new(Component::Other("stderr".to_owned()), "", stderr))?;
    }
    batch.end(status)?;
    batch.commit()?;
    Ok(())
}

/// What a replayed program and its replay came to.
#[derive(Debug)]
pub struct ReplayReport {
    /// Counts and divergences.
    pub replayed: Replayed,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// What it wrote is what it had written; `None` where the recording does not say.
    pub same_output: Option<bool>,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, where the recording has them.
    pub captured: Option<Captured>,
}

/// Values for variables without which client libraries refuse to start. They open nothing.
const KEYS: [&str; 7] = [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "MISTRAL_API_KEY",
    "OPENROUTER_API_KEY",
    "AZURE_OPENAI_API_KEY",
];

impl Origin {
    /// What a run was recorded of; `None` where no program was.
    ///
    /// # Errors
    /// As [`RunReader::metadata`].
    pub fn of(reader: &RunReader) -> annals::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct Metadata {
            program: Origin,
        }
        let metadata = serde_json::from_slice::<Metadata>(&reader.metadata()?);
        Ok(metadata.ok().map(|metadata| metadata.program))
    }

    /// What captures this program's draws, if the run has them or is to have them; it serves what `served` gives.
    fn capture<E: Into<SessionError>>(
        &self,
        program: &Program,
        served: impl FnOnce() -> Result<Lanes, E>,
    ) -> Result<Option<Arc<Capture>>, SessionError> {
        if !self.captured {
            return Ok(None);
        }
        let served = served().map_err(Into::into)?;
        Ok(Some(Arc::new(Capture::begin(program, served)?)))
    }

    fn environment_of(&self, capture: Option<&Capture>) -> Vec<(String, String)> {
        let seed = self.environment.get(HASH_SEED).map_or(FIXED_SEED, String::as_str);
        capture.map(|capture| capture.environment(seed)).unwrap_or_default()
    }

    /// The program as it was started: in its own directory, where that is still there.
    #[must_use]
    pub fn program(&self) -> Program {
        let directory = Path::new(&self.directory);
        Program {
            argv: self.argv.iter().map(OsString::from).collect(),
            directory: directory.is_dir().then(|| directory.to_path_buf()),
            environment: Vec::new(),
        }
    }
}

/// Runs a program again, every model call of it answered from a recording.
///
/// # Errors
/// Where nothing was started: the recording, the proxy, the program.
pub fn replay(
    reader: &RunReader,
    origin: &Origin,
    program: &Program,
    options: ReplayOptions,
) -> Result<ReplayReport, SessionError> {
    let key = unhex(&origin.key)
        .ok_or_else(|| annals::Error::new(annals::ErrorKind::Invalid, "the run's key is not 64 digits"))?;
    let replayer = Replayer::new(reader.clone(), key, options)?;
    let capture = origin.capture(program, || Lanes::of(reader))?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let proxy = replayer.listen().await?;
        let mut program = program.clone();
        program.environment.extend(origin.mounts.environment(&proxy.base(), proxy.secret()));
        program.environment.extend(past_proxies());
        let missing = KEYS.into_iter().filter(|name| std::env::var_os(name).is_none());
        program.environment.extend(missing.map(|name| (name.to_owned(), "annals-replay".to_owned())));
        program.environment.extend(origin.environment_of(capture.as_deref()));
        let began = Instant::now();
        let ended = program.run(hash).await.map_err(SessionError::Program)?;
        let seconds = began.elapsed().as_secs_f64();
        proxy.stop().await;
        let same_output = recorded_output(reader)?.map(|recorded| recorded == ended.stdout);
        let captured = capture.map(|capture| capture.compare());
        Ok(ReplayReport { replayed: replayer.finish(), code: ended.code, same_output, seconds, captured })
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    done
}

/// What a fork that was run came to.
#[derive(Debug)]
pub struct ForkReport {
    /// The child's exchanges, those of the tail.
    pub recorded: Recorded,
    /// Calls answered from the parent.
    pub replayed: u32,
    /// Calls of the shared frames that the program never asked for.
    pub left: u32,
    /// What was not as recorded while the shared frames lasted.
    pub diverged: Vec<Diverged>,
    /// What the calls answered from the parent had cost, in US dollars, as far as the table of prices knows.
    pub saved: f64,
    /// The first frame in which parent and child differ, if one does.
    pub differs_at: Option<u32>,
    /// The program's exit code, or 128 and a signal's number.
    pub code: u8,
    /// How long the program ran.
    pub seconds: f64,
    /// Clock reads and entropy, where the parent has them.
    pub captured: Option<Captured>,
}

/// How a run is forked.
#[derive(Debug, Clone)]
pub struct Forking {
    /// The last frame that is as in the parent; the one before the fork's point where that is edited.
    pub at: u32,
    /// What is changed from there on.
    pub edits: Edits,
    /// The program.
    pub program: Program,
    /// Upstreams in place of the parent's: a provider (none: all), and a base address.
    pub upstreams: Vec<(Option<String>, String)>,
    /// Which upstreams may be called.
    pub guard: Guard,
}

/// Runs a program again, its calls answered from a run up to a frame and live from there on, recorded into a fork of
/// this name.
///
/// # Errors
/// Where nothing was started: the store, the proxy, the program; a variable for a key that the parent's calls had and that is
/// not set.
pub fn fork(
    space: &Namespace,
    reader: &RunReader,
    origin: &Origin,
    spec: RunSpec,
    forking: &Forking,
) -> Result<ForkReport, SessionError> {
    let mut origin = origin.clone();
    origin.mounts.redirect(&forking.upstreams)?;
    forking.guard.check(&origin.mounts)?;
    credentials(reader)?;
    let key = unhex(&origin.key).ok_or_else(|| wrong("the run's key is not 64 digits"))?;
    let capture = origin.capture(&forking.program, || Lanes::of(reader))?;
    let edit = forking.edits.response.is_some() || !forking.edits.set.is_empty();
    let metadata = serde_json::to_vec(&json!({ "program": origin })).unwrap_or_default();
    let parent = Replayer::new(reader.clone(), key, ReplayOptions::default())?;
    let run = Arc::new(space.fork(&reader.info().name, forking.at, edit, spec.metadata(metadata))?);
    let from = if edit { forking.at } else { forking.at + 1 };
    let runtime = runtime()?;
    let done: Result<ForkReport, SessionError> = runtime.block_on(async {
        let child = Recorder::new(run.clone(), key, origin.mounts.clone())?;
        capture.iter().for_each(|capture| child.draws_of(capture.clone()));
        let branch = Branch::new(parent, child, from, forking.edits.clone());
        let proxy = branch.listen().await?;
        let mut program = forking.program.clone();
        program.environment.extend(origin.mounts.environment(&proxy.base(), proxy.secret()));
        program.environment.extend(past_proxies());
        program.environment.extend(origin.environment_of(capture.as_deref()));
        let began = Instant::now();
        let keeper = space.clone();
        let ended = program.run(move |from| keeper.store_blob(from)).await.map_err(SessionError::Program)?;
        let seconds = began.elapsed().as_secs_f64();
        proxy.stop().await;
        let mut recorded = branch.child().finish().await;
        let captured = capture.map(|capture| capture.finish(&run));
        let (code, status) = (ended.code, if ended.code == 0 { Status::Ok } else { Status::Failed });
        if recorded.failed.is_none()
            && let Err(error) = end(&run, ended, &origin, seconds, status)
        {
            recorded.failed = Some(error.to_string());
        }
        let (replayed, saved) = branch.served();
        let (left, diverged) = (branch.left(), branch.diverged());
        Ok(ForkReport {
            recorded,
            replayed,
            left,
            diverged,
            saved,
            differs_at: None,
            code,
            seconds,
            captured,
        })
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    if done.is_err() {
        let _ = run.end(Status::Failed);
    }
    let mut report = done?;
    report.differs_at = first_difference(reader, &space.run(run.name())?)?;
    Ok(report)
}

fn wrong(what: &str) -> annals::Error {
    annals::Error::new(annals::ErrorKind::Invalid, what)
}

/// The first frame whose request or answer is another, or that only one of the two has.
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

/// Keys without which the tail would fail, after a prefix that was replayed for nothing.
fn credentials(reader: &RunReader) -> Result<(), SessionError> {
    for seq in 1..=reader.info().frames {
        let Ok(exchange) = serde_json::from_slice::<Exchange>(&reader.frame_info(seq)?.metadata) else {
            continue;
        };
        let had = exchange.volatile.request_headers.0.iter().any(|(name, _)| is_secret_header(name));
        let provider =
            exchange.http.mount.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_uppercase();
        let names = KEYS.into_iter().filter(|name| name.starts_with(&provider)).collect::<Vec<_>>();
        if had && !names.is_empty() && !names.iter().any(|name| std::env::var_os(name).is_some()) {
            let what = format!("frame {seq} was asked with a key, and {} is not set", names.join(" or "));
            return Err(wrong(&what).into());
        }
    }
    Ok(())
}

/// The hash of what the program wrote to its standard output.
fn recorded_output(reader: &RunReader) -> annals::Result<Option<blake3::Hash>> {
    for seq in (1..=reader.info().frames).rev().take(2) {
        let frame = reader.frame(seq)?;
        if frame.component.name() == PROGRAM {
            return Ok(Some(blake3::hash(&frame.output)));
        }
    }
    Ok(None)
}

fn hash(from: &mut dyn Read) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    // It ends where the output does; there is nothing to be told then.
    let _ = hasher.update_reader(from);
    hasher.finalize()
}

fn runtime() -> Result<tokio::runtime::Runtime, ProxyError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|e| ProxyError(format!("no threads can be started: {e}")))
}

fn random_key() -> Result<[u8; 32], ProxyError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|e| ProxyError(format!("the system has no randomness: {e}")))?;
    Ok(key)
}

fn origin(recording: &Recording, key: &[u8; 32]) -> Origin {
    let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
    let names = ENVIRONMENT.iter().copied().chain(recording.keep.iter().map(String::as_str));
    let directory =
        recording.program.directory.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    let mut environment: BTreeMap<_, _> =
        names.filter_map(|name| Some((name.to_owned(), lossy(&std::env::var_os(name)?)))).collect();
    // A seed that Python would draw is no seed.
    if recording.capture_nondet && environment.get(HASH_SEED).is_none_or(|seed| seed.parse::<u32>().is_err())
    {
        environment.insert(HASH_SEED.to_owned(), FIXED_SEED.to_owned());
    }
    Origin {
        argv: recording.program.argv.iter().map(|argument| lossy(argument)).collect(),
        revision: revision(&directory),
        directory: lossy(directory.as_os_str()),
        environment,
        mounts: recording.mounts.clone(),
        key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
        captured: recording.capture_nondet,
    }
}

/// The revision that a directory is at, if git knows it.
fn revision(directory: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.arg("-C").arg(directory).args(arguments).stdin(std::process::Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(if changed { format!("{head}-dirty") } else { head })
}

/// A program that goes through a proxy comes to the loopback without it.
fn past_proxies() -> Vec<(String, String)> {
    let of = |name: &str| {
        let set = std::env::var(name).ok().filter(|value| !value.is_empty());
        let hosts = set.map_or_else(|| "127.0.0.1".to_owned(), |value| format!("{value},127.0.0.1"));
        (name.to_owned(), hosts)
    };
    vec![of("NO_PROXY"), of("no_proxy")]
}
