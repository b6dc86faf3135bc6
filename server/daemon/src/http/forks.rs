//! Forks that a client starts: `annals fork` as a process of its own, with the command that the daemon was started
//! with (`annals serve --allow-fork -- CMD`).
//!
//! The process records through this daemon, as one that a person starts does. So a fork that is stopped, or whose
//! daemon ends, keeps what it has recorded.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use rustix::process::{Pid, Signal};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

use super::problem::HttpProblem;
use super::{HttpShared, json_only, json_response, param};
use crate::access::Rights;
use crate::config::ForkCommand;
use crate::perform::perform;
use crate::session::Session;
use annals_wire::resp::Reply;

/// Maximum number of forks that run at a time.
const RUNNING_MAX: usize = 8;
/// Maximum number of forks that are listed; the oldest that has ended is left out first.
const LISTED_MAX: usize = 100;
/// How much of the output of a fork is kept: the last bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 10;
/// Interval of looking for the new run.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The routes of this module for the API description: method, path, name, summary.
pub(super) const DESCRIBED: &[(&str, &str, &str, &str)] = &[
    (
        "get",
        "/v1/forks",
        "startedForks",
        "The command that forks run (null if the daemon starts none), and the forks of the namespace that it has started, with their output and exit codes. Needs the rights read, record and operate.",
    ),
    (
        "post",
        "/v1/forks",
        "startFork",
        "Continues the daemon's command from a frame of a run into a new run. Answers once that run exists. 422 if the fork ended before, with its output. Needs the rights read, record and operate.",
    ),
    (
        "delete",
        "/v1/forks/{run}",
        "stopFork",
        "Asks a fork that this daemon started to end. It keeps what it has recorded.",
    ),
];

/// The forks that a daemon has started.
pub(super) struct ForkPrograms {
    /// `None` if it starts none.
    command: Option<ForkCommand>,
    /// In the order in which they were started.
    started: Mutex<Vec<Arc<StartedFork>>>,
    /// The daemon ends. Changed only under the lock of `started`.
    is_ending: AtomicBool,
}

/// A fork that was started.
struct StartedFork {
    namespace: String,
    run: String,
    parent: String,
    at: u32,
    /// The last bytes of its output.
    output: Mutex<Vec<u8>>,
    /// How it ended.
    end: watch::Sender<Option<ForkEnd>>,
    stop: Notify,
}

#[derive(Debug, Clone)]
struct ForkEnd {
    /// `None` if a signal ended it.
    code: Option<i32>,
    text: String,
}

/// What a client asks for. Edits are those of `annals fork`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkRequest {
    /// The run to fork.
    run: String,
    /// The frame to fork at.
    at: u32,
    /// The name of the new run.
    #[serde(default)]
    name: Option<String>,
    /// Another answer of the frame.
    #[serde(default)]
    answer: Option<String>,
    /// Other results, by the id of the tool call.
    #[serde(default)]
    tool_results: BTreeMap<String, String>,
    /// Other values in the request of the frame, by place.
    #[serde(default)]
    set: BTreeMap<String, Value>,
    /// Other values in this and all later requests, by place.
    #[serde(default)]
    set_all: BTreeMap<String, Value>,
    /// Another model from the frame on.
    #[serde(default)]
    model: Option<String>,
}

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route("/v1/forks", get(list).post(start)).route("/v1/forks/{run}", delete(stop))
}

impl ForkPrograms {
    pub(super) fn new(command: Option<ForkCommand>) -> Self {
        Self { command, started: Mutex::default(), is_ending: AtomicBool::new(false) }
    }

    /// Asks all forks to end, and starts no more.
    pub(super) fn stop_all(&self) {
        let started = self.started();
        self.is_ending.store(true, Ordering::Relaxed);
        for fork in started.iter() {
            fork.stop.notify_one();
        }
    }

    fn started(&self) -> MutexGuard<'_, Vec<Arc<StartedFork>>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fork. Refused while one of this name runs, while too many run, and at the daemon's end.
    fn add(&self, fork: Arc<StartedFork>) -> Result<(), HttpProblem> {
        let mut started = self.started();
        if self.is_ending.load(Ordering::Relaxed) {
            return Err(HttpProblem::from_error_text("UNAVAILABLE the daemon ends"));
        }
        let is_same = |other: &StartedFork| other.namespace == fork.namespace && other.run == fork.run;
        if started.iter().any(|other| is_same(other) && other.is_running()) {
            let why = format!("CONFLICT a fork into run `{}` is running", fork.run);
            return Err(HttpProblem::from_error_text(&why));
        }
        if started.iter().filter(|other| other.is_running()).count() >= RUNNING_MAX {
            return Err(HttpProblem::busy());
        }
        started.retain(|other| !is_same(other));
        if started.len() >= LISTED_MAX
            && let Some(oldest) = started.iter().position(|other| !other.is_running())
        {
            started.remove(oldest);
        }
        started.push(fork);
        Ok(())
    }
}

impl StartedFork {
    fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    fn output(&self) -> MutexGuard<'_, Vec<u8>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_output(&self, bytes: &[u8]) {
        let mut output = self.output();
        output.extend_from_slice(bytes);
        let over = output.len().saturating_sub(OUTPUT_BYTES_MAX);
        output.drain(..over);
    }

    fn to_json(&self) -> Value {
        let end = self.end.borrow().clone();
        json!({
            "run": self.run,
            "parent": self.parent,
            "at": self.at,
            "running": end.is_none(),
            "code": end.and_then(|end| end.code),
            "output": String::from_utf8_lossy(&self.output()),
        })
    }

    /// Reads the output of the process until it ends. The edits' files are kept as long.
    async fn supervise(self: Arc<Self>, mut child: Child, mut output: Receiver, edits: Vec<NamedTempFile>) {
        let (mut buffer, mut is_open) = ([0; 4096], true);
        let ended = loop {
            tokio::select! {
                read = output.read(&mut buffer), if is_open => match read {
                    Ok(0) | Err(_) => is_open = false,
                    Ok(read) => self.add_output(buffer.get(..read).unwrap_or_default()),
                },
                () = self.stop.notified() => send_term(&child),
                // Processes that it leaves behind may keep the pipe: they are not waited for.
                ended = child.wait() => break ended,
            }
        };
        while let Ok(read @ 1..) = output.try_read(&mut buffer) {
            self.add_output(buffer.get(..read).unwrap_or_default());
        }
        drop(edits);
        self.end.send_replace(Some(ForkEnd::new(ended)));
    }
}

impl ForkEnd {
    fn new(ended: std::io::Result<ExitStatus>) -> Self {
        match ended {
            Ok(status) => Self {
                code: status.code(),
                text: status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}")),
            },
            Err(error) => Self { code: None, text: error.to_string() },
        }
    }
}

/// `annals fork` and the processes of its program end on this signal, as on a Ctrl-C. What was recorded is kept.
fn send_term(child: &Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended; it was not waited for, so its number is not another process's.
        let _ = rustix::process::kill_process_group(pid, Signal::TERM);
    }
}

impl ForkRequest {
    /// The options of `annals fork`, and the files that hold longer values.
    fn options(&self) -> Result<(Vec<String>, Vec<NamedTempFile>), HttpProblem> {
        let (mut options, mut files) = (Vec::new(), Vec::new());
        let mut file = |text: &str| -> Result<PathBuf, HttpProblem> {
            let failed = |error: std::io::Error| {
                HttpProblem::from_error_text(&format!("UNAVAILABLE a temporary file: {error}"))
            };
            let mut file = NamedTempFile::new().map_err(failed)?;
            file.write_all(text.as_bytes()).map_err(failed)?;
            let path = file.path().to_owned();
            files.push(file);
            Ok(path)
        };
        if let Some(answer) = &self.answer {
            options.push(format!("--response={}", file(answer)?.display()));
        }
        for (id, text) in &self.tool_results {
            check_name("the id of a tool call", id)?;
            options.push(format!("--tool-result={id}={}", file(text)?.display()));
        }
        for (option, edits) in [("--set", &self.set), ("--set-all", &self.set_all)] {
            for (place, value) in edits {
                check_name("a place", place)?;
                options.push(format!("{option}={place}={value}"));
            }
        }
        options.extend(self.model.iter().map(|model| format!("--model={model}")));
        Ok((options, files))
    }
}

/// Refuses text that the command line would read as something else.
fn check_name(what: &str, text: &str) -> Result<(), HttpProblem> {
    if text.starts_with('-') || text.contains(['=', '\0']) {
        let why = format!("{what} must not begin with `-` or contain `=` here: use `annals fork`");
        return Err(HttpProblem::bad_request(why));
    }
    Ok(())
}

/// The session of a client that may start programs.
fn session(shared: &HttpShared, request: &Request) -> Result<Session, HttpProblem> {
    let session = shared.session(request)?;
    if !session.has_rights(Rights::READ.union(Rights::RECORD).union(Rights::OPERATE)) {
        return Err(HttpProblem::from_error_text("NOPERM this takes the rights read, record and operate"));
    }
    Ok(session)
}

async fn list(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    let session = session(&shared, &request)?;
    let forks: Vec<Value> = shared
        .forks
        .started()
        .iter()
        .filter(|fork| fork.namespace == session.facts.namespace)
        .map(|fork| fork.to_json())
        .collect();
    let command = shared.forks.command.as_ref().map(|command| &command.command);
    Ok(json_response(StatusCode::OK, json!({ "command": command, "forks": forks })))
}

async fn start(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    let mut session = session(&shared, &request)?;
    let Some(command) = &shared.forks.command else {
        let why = "NOPERM this daemon starts no forks: `annals serve --allow-fork -- CMD` does";
        return Err(HttpProblem::from_error_text(why));
    };
    let (head, body) = request.into_parts();
    json_only(&head.headers)?;
    let (body, _place) = shared.body(body).await?;
    let asked: ForkRequest =
        serde_json::from_slice(&body).map_err(|error| HttpProblem::bad_request(error.to_string()))?;
    shared.daemon.store.check_writer()?;
    let parent = asked.run.clone();
    // Reports at once if the run cannot be read.
    if let Err(why) = find_run(&shared, &mut session, &parent).await {
        return Err(HttpProblem::from_error_text(&why));
    }
    let run = match &asked.name {
        None => free_name(&shared, &mut session, &parent, asked.at).await,
        Some(name) if find_run(&shared, &mut session, name).await.is_ok() => {
            return Err(HttpProblem::from_error_text(&format!("CONFLICT run `{name}` exists")));
        }
        Some(name) => name.clone(),
    };
    check_name("the name of a run", &parent)?;
    check_name("the name of a run", &run)?;
    let (options, files) = asked.options()?;
    let fork = Arc::new(StartedFork {
        namespace: session.facts.namespace.clone(),
        run: run.clone(),
        parent: parent.clone(),
        at: asked.at,
        output: Mutex::default(),
        end: watch::Sender::new(None),
        stop: Notify::new(),
    });
    shared.forks.add(fork.clone())?;
    let address = format!("{parent}@{}", asked.at);
    let words = ["--namespace", &fork.namespace, "fork", &address, &run].map(str::to_owned);
    let words = words.into_iter().chain(options).chain(["--".to_owned()]).chain(command.command.clone());
    match spawn(command, words) {
        Ok((child, output)) => {
            tracing::info!(parent, at = asked.at, run, user = session.facts.user, "a fork was started");
            tokio::spawn(fork.clone().supervise(child, output, files));
        }
        Err(error) => {
            let end = ForkEnd { code: None, text: error.to_string() };
            fork.end.send_replace(Some(end));
        }
    }
    let mut end = fork.end.subscribe();
    loop {
        let over = end.borrow_and_update().clone();
        if find_run(&shared, &mut session, &run).await.is_ok() {
            return Ok(json_response(StatusCode::CREATED, json!({ "run": run })));
        }
        if let Some(ForkEnd { text, .. }) = over {
            let output = String::from_utf8_lossy(&fork.output()).trim().to_owned();
            let why = format!("the fork made no run ({text}): {output}");
            return Err(HttpProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "FORK", why));
        }
        // An error only says that the time has passed.
        let _ = tokio::time::timeout(POLL_INTERVAL, end.changed()).await;
    }
}

async fn stop(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    request: Request,
) -> Result<Response, HttpProblem> {
    let session = session(&shared, &request)?;
    let run = param(&path, "run").unwrap_or_default();
    let started = shared.forks.started();
    let fork = started.iter().find(|fork| fork.namespace == session.facts.namespace && fork.run == run);
    let fork = fork.ok_or_else(|| {
        HttpProblem::not_found(format!("this daemon has not started a fork into run `{run}`"))
    })?;
    fork.stop.notify_one();
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Starts the program. Its output comes through one pipe, in the order in which it was written.
fn spawn(command: &ForkCommand, words: impl Iterator<Item = String>) -> std::io::Result<(Child, Receiver)> {
    let (reader, writer) = std::io::pipe()?;
    // Before the process: nobody would look after it if this failed.
    let output = Receiver::from_owned_fd(reader.into())?;
    let mut process = Command::new(&command.executable);
    process.arg("--store").arg(&command.store).args(words);
    // In a group of its own: a Ctrl-C on the daemon's terminal is for the daemon, which ends its forks.
    process.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    Ok((process.spawn()?, output))
}

async fn find_run(shared: &HttpShared, session: &mut Session, run: &str) -> Result<(), String> {
    let words = vec![b"run.get".to_vec(), run.as_bytes().to_vec()];
    match perform(&shared.daemon, session, words).await {
        Reply::Error(why) => Err(why.to_string()),
        _ => Ok(()),
    }
}

/// `PARENT-fork-AT`, or the first of `PARENT-fork-AT-2` and so on that no run has.
async fn free_name(shared: &HttpShared, session: &mut Session, parent: &str, at: u32) -> String {
    let mut name = format!("{parent}-fork-{at}");
    let mut number = 1;
    while find_run(shared, session, &name).await.is_ok() {
        number += 1;
        name = format!("{parent}-fork-{at}-{number}");
    }
    name
}
