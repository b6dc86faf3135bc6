//! Server-sent events: the frames of a run as they arrive, and the runs that begin and change.
//!
//! A stream is a response without an end. Its task runs the same commands as other clients, with the rights of
//! its token, and holds at most one reply of them: the next is asked for once the client has taken this one. A
//! comment is sent while nothing happens, so that both sides notice a broken connection.
//!
//! A stream ends with the run, with the token's validity, and with the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawPathParams, RawQuery, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::problem::HttpProblem;
use super::{HttpShared, StopSignal, json, param, parse_query};
use crate::perform::perform;
use crate::session::Session;
use annals_proxy::channel_body::{BodySender, ChannelBody};
use annals_wire::resp::Reply;

/// Maximum number of streams.
pub(super) const STREAMS_MAX: usize = 256;
/// Frames, and runs, that a stream asks for at a time.
const FRAMES_AT_ONCE: &str = "4";
const RUNS_AT_ONCE: &str = "100";
/// A comment is sent after this time without an event.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Maximum number of open runs whose changes a stream reports, and the time between two looks at each.
const WATCHED_MAX: usize = 1024;
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const LOOK_INTERVAL_PER_RUN: Duration = Duration::from_millis(2);
/// The header with which a client goes on after a broken connection.
const LAST_EVENT_ID: &str = "last-event-id";

/// The routes of this module for the API description: method, path, name, summary.
pub(super) const DESCRIBED: &[(&str, &str, &str, &str)] = &[
    (
        "get",
        "/v1/runs/{run}/events",
        "followRun",
        "The ended frames of a run as server-sent events, as they arrive: `frame` with the frame as JSON and its number as the id. It begins at the query's `from` or after the id in Last-Event-ID. `end` with the run follows the last frame. `error` with a problem ends the stream.",
    ),
    (
        "get",
        "/v1/events",
        "followRuns",
        "Runs as server-sent events: first the open runs, then each run that begins or changes, or that a client flags: `run` with the run as JSON, and `gone` with the name of a dropped run. The id is the newest run's uid; after the id in Last-Event-ID, the runs that began meanwhile come first.",
    ),
];

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route("/v1/runs/{run}/events", get(follow_run)).route("/v1/events", get(follow_runs))
}

/// A stream to a client.
struct EventStream {
    shared: Arc<HttpShared>,
    session: Session,
    to: BodySender<io::Error>,
    stopped: Option<watch::Receiver<bool>>,
    _place: OwnedSemaphorePermit,
}

/// The client is gone, or the stream ends for another reason.
struct StreamEnd;

impl EventStream {
    /// The stream for a request, and its response.
    fn new(
        shared: &Arc<HttpShared>,
        session: Session,
        request: &Request,
    ) -> Result<(Self, Response), HttpProblem> {
        let place = shared.streams.clone().try_acquire_owned().map_err(|_| HttpProblem::busy())?;
        let stopped = request.extensions().get().map(|StopSignal(stopped)| stopped.clone());
        // The channel holds one event besides the one that is being sent.
        let (to, body) = ChannelBody::new(1);
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        let response = (headers, Body::new(body)).into_response();
        Ok((Self { shared: shared.clone(), session, to, stopped, _place: place }, response))
    }

    /// Runs a command; an error ends the stream with an event.
    async fn ask(&mut self, words: &[&str]) -> Result<Reply, StreamEnd> {
        match self.try_ask(words).await? {
            Reply::Error(why) => {
                let (status, detail) = HttpProblem::from_error_text(&why).into_parts();
                let code = why.split(' ').next().unwrap_or_default();
                let problem = json!({ "status": status.as_u16(), "code": code, "detail": detail });
                self.send("error", None, problem).await?;
                Err(StreamEnd)
            }
            reply => Ok(reply),
        }
    }

    async fn try_ask(&mut self, words: &[&str]) -> Result<Reply, StreamEnd> {
        let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let asked = perform(&self.shared.daemon, &mut self.session, words);
        match &mut self.stopped {
            None => Ok(asked.await),
            Some(stopped) => tokio::select! {
                reply = asked => Ok(reply),
                _ = stopped.wait_for(|stopped| *stopped) => Err(StreamEnd),
            },
        }
    }

    /// Sends an event. JSON has no line feeds, so its data is one line.
    async fn send(
        &mut self,
        event: &str,
        id: Option<u64>,
        data: impl std::fmt::Display,
    ) -> Result<(), StreamEnd> {
        let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
        self.send_bytes(format!("event: {event}\n{id}data: {data}\n\n")).await
    }

    async fn send_heartbeat(&mut self) -> Result<(), StreamEnd> {
        self.send_bytes(":\n\n".to_owned()).await
    }

    /// Waits until the client has taken earlier events. The connection ends if it takes nothing for too long.
    async fn send_bytes(&mut self, text: String) -> Result<(), StreamEnd> {
        let sent = self.to.send_data(Bytes::from(text));
        match &mut self.stopped {
            None => sent.await.map_err(|_| StreamEnd),
            Some(stopped) => tokio::select! {
                sent = sent => sent.map_err(|_| StreamEnd),
                _ = stopped.wait_for(|stopped| *stopped) => Err(StreamEnd),
            },
        }
    }
}

/// Where a stream begins: after the id of the last event that the client has.
fn last_event_id(request: &Request) -> Result<Option<u64>, HttpProblem> {
    let Some(id) = request.headers().get(LAST_EVENT_ID) else { return Ok(None) };
    let id = id.to_str().ok().and_then(|id| id.parse().ok());
    id.map(Some)
        .ok_or_else(|| HttpProblem::bad_request("Last-Event-ID is not an id of an event of this stream"))
}

async fn follow_run(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, HttpProblem> {
    let mut session = shared.session(&request)?;
    let mut from = 1;
    for (name, value) in parse_query(query.as_deref().unwrap_or_default())? {
        match (name.as_str(), value.parse::<u64>()) {
            ("from", Ok(number)) => from = number.max(1),
            ("from", Err(_)) => return Err(HttpProblem::bad_request("from is not the number of a frame")),
            _ => return Err(HttpProblem::bad_request(format!("unknown query parameter {name:?}"))),
        }
    }
    if let Some(last) = last_event_id(&request)? {
        from = last.saturating_add(1);
    }
    let run = param(&path, "run").unwrap_or_default().to_owned();
    // Reports at once if the run cannot be read, or the client may not read it.
    let words = vec![b"run.get".to_vec(), run.clone().into_bytes()];
    if let Reply::Error(why) = perform(&shared.daemon, &mut session, words).await {
        return Err(HttpProblem::from_error_text(&why));
    }
    let (mut stream, response) = EventStream::new(&shared, session, &request)?;
    tokio::spawn(async move {
        // The client sees the end of the response.
        let StreamEnd = stream.send_frames(&run, from).await;
    });
    Ok(response)
}

async fn follow_runs(
    State(shared): State<Arc<HttpShared>>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Response, HttpProblem> {
    let mut session = shared.session(&request)?;
    if let Some((name, _)) = parse_query(query.as_deref().unwrap_or_default())?.first() {
        return Err(HttpProblem::bad_request(format!("unknown query parameter {name:?}")));
    }
    let last = last_event_id(&request)?;
    let words = ["run.list", "order", "newest", "count", "1"].map(|word| word.as_bytes().to_vec()).to_vec();
    let newest = match perform(&shared.daemon, &mut session, words).await {
        Reply::Error(why) => return Err(HttpProblem::from_error_text(&why)),
        reply => listed_runs(reply).first().map_or(0, |run| run.uid),
    };
    let (mut stream, response) = EventStream::new(&shared, session, &request)?;
    tokio::spawn(async move {
        let StreamEnd = stream.send_runs(last.unwrap_or(newest).min(newest)).await;
    });
    Ok(response)
}

impl EventStream {
    /// Sends the frames of a run from this one on, and its end.
    async fn send_frames(&mut self, run: &str, mut from: u64) -> StreamEnd {
        let heartbeat_ms = HEARTBEAT.as_millis().to_string();
        loop {
            let first = from.to_string();
            let words = ["run.tail", run, "from", &first, "count", FRAMES_AT_ONCE, "block", &heartbeat_ms];
            let sent = match self.ask(&words).await {
                Ok(Reply::Array(frames)) if frames.is_empty() => self.send_run_end(run).await,
                Ok(Reply::Array(frames)) => self.send_all(frames, &mut from).await,
                Ok(_) => self.send_heartbeat().await,
                Err(end) => Err(end),
            };
            if let Err(end) = sent {
                return end;
            }
        }
    }

    async fn send_all(&mut self, frames: Vec<Reply>, from: &mut u64) -> Result<(), StreamEnd> {
        for frame in frames {
            self.send("frame", Some(*from), json::reply_to_json(frame)).await?;
            *from += 1;
        }
        Ok(())
    }

    async fn send_run_end(&mut self, run: &str) -> Result<(), StreamEnd> {
        let told = self.ask(&["run.get", run]).await?;
        self.send("end", None, json::reply_to_json(told)).await?;
        Err(StreamEnd)
    }

    /// Sends the open runs, then the runs after this uid and all changes.
    async fn send_runs(&mut self, mut last: u64) -> StreamEnd {
        let mut open = BTreeMap::new();
        let mut seen = self.shared.daemon.changed_runs.count();
        let listed = self.ask(&["run.list", "status", "open", "count", "1000"]).await;
        let begun = match listed {
            Ok(listed) => self.note_runs(listed, &mut open, last, |uid, last| uid <= last).await,
            Err(end) => Err(end),
        };
        if let Err(end) = begun {
            return end;
        }
        let mut silent_since = tokio::time::Instant::now();
        loop {
            match self.send_changes(&mut open, &mut last, &mut seen).await {
                Ok(true) => silent_since = tokio::time::Instant::now(),
                Ok(false) if silent_since.elapsed() >= HEARTBEAT => {
                    silent_since = tokio::time::Instant::now();
                    if let Err(end) = self.send_heartbeat().await {
                        return end;
                    }
                }
                Ok(false) => {}
                Err(end) => return end,
            }
            let pause = LOOK_INTERVAL
                .max(LOOK_INTERVAL_PER_RUN.saturating_mul(u32::try_from(open.len()).unwrap_or(u32::MAX)));
            let is_stopped = match &mut self.stopped {
                Some(stopped) => tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => true,
                    () = tokio::time::sleep(pause) => false,
                },
                None => {
                    tokio::time::sleep(pause).await;
                    false
                }
            };
            if is_stopped {
                return StreamEnd;
            }
        }
    }

    /// Sends new runs, the open runs that have changed, and runs that were flagged or dropped. Returns whether it sent
    /// something.
    async fn send_changes(
        &mut self,
        open: &mut BTreeMap<String, OpenRun>,
        last: &mut u64,
        seen: &mut u64,
    ) -> Result<bool, StreamEnd> {
        let mut has_sent = false;
        loop {
            let after = last.to_string();
            let listed = self.ask(&["run.list", "from", &after, "count", RUNS_AT_ONCE]).await?;
            let Some(newest) = self.note_runs(listed, open, *last, |uid, last| uid > last).await? else {
                break;
            };
            (*last, has_sent) = (newest, true);
        }
        let mut names: BTreeSet<String> = open.keys().cloned().collect();
        if let Some(grant) = &self.session.grant {
            names.extend(self.shared.daemon.changed_runs.since(seen, &grant.tenant.name));
        }
        for name in names {
            match self.try_ask(&["run.get", &name]).await? {
                Reply::Error(why) if !why.starts_with("NOTFOUND") && !why.starts_with("GONE") => {
                    // The token has expired, or the store cannot be read.
                    self.ask(&["run.get", &name]).await?;
                }
                Reply::Error(_) => {
                    open.remove(&name);
                    self.send("gone", Some(*last), json!({ "name": name })).await?;
                    has_sent = true;
                }
                told => {
                    let run = ListedRun::new(told);
                    if open.get(&name).is_some_and(|known| known.told == run.told) {
                        continue;
                    }
                    self.send("run", Some(*last), &run.told).await?;
                    has_sent = true;
                    if run.is_open {
                        open.insert(name, OpenRun { told: run.told });
                    } else {
                        open.remove(&name);
                    }
                }
            }
        }
        Ok(has_sent)
    }

    /// Sends the listed runs for which `is_wanted` holds, and keeps the open ones. Returns the greatest uid.
    async fn note_runs(
        &mut self,
        listed: Reply,
        open: &mut BTreeMap<String, OpenRun>,
        last: u64,
        is_wanted: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, StreamEnd> {
        let mut newest = None;
        for run in listed_runs(listed).into_iter().filter(|run| is_wanted(run.uid, last)) {
            newest = newest.max(Some(run.uid));
            self.send("run", Some(last.max(run.uid)), &run.told).await?;
            if run.is_open && open.len() < WATCHED_MAX {
                open.insert(run.name, OpenRun { told: run.told });
            }
        }
        Ok(newest)
    }
}

/// An open run, as it was last sent.
struct OpenRun {
    told: String,
}

/// A run as a list or RUN.GET tells it.
struct ListedRun {
    uid: u64,
    name: String,
    is_open: bool,
    /// As JSON.
    told: String,
}

impl ListedRun {
    fn new(told: Reply) -> Self {
        let mut value: serde_json::Value =
            serde_json::from_str(&json::reply_to_json(told)).unwrap_or_default();
        // Lists have no metadata: a run would seem to change when it is looked at alone.
        if let Some(fields) = value.as_object_mut() {
            fields.remove("metadata");
        }
        Self {
            uid: value["uid"].as_u64().unwrap_or_default(),
            name: value["name"].as_str().unwrap_or_default().to_owned(),
            is_open: value["status"] == "open",
            told: value.to_string(),
        }
    }
}

/// The runs of a page.
fn listed_runs(page: Reply) -> Vec<ListedRun> {
    let Reply::Array(page) = page else { return Vec::new() };
    match page.into_iter().nth(1) {
        Some(Reply::Array(runs)) => runs.into_iter().map(ListedRun::new).collect(),
        _ => Vec::new(),
    }
}
