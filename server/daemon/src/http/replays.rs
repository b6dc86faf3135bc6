//! Replays that span several requests: the HTTP counterpart of a RESP connection that replays a run,
//! identified by a name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;

use super::json::{self, JsonMembers};
use super::problem::HttpProblem;
use super::{HttpShared, json_only, json_response, param};
use crate::perform::perform;
use crate::session::Session;
use annals_wire::resp::Reply;
use annals_wire::schema::routes::MemberKind;

/// Maximum number of replays. Beyond it, the least recently used one is removed.
const REPLAYS_MAX: usize = 1024;

type HttpReplayResult = Result<Response, HttpProblem>;

/// The routes of this module for the API description: method, path, name, summary.
pub(super) const DESCRIBED: &[(&str, &str, &str, &str)] = &[
    (
        "post",
        "/v1/runs/{run}/replays",
        "beginReplay",
        "Begins a replay of a run: its recorded calls are then served, each once. Returns the replay's name.",
    ),
    (
        "post",
        "/v1/replays/{replay}",
        "replay",
        "The recorded answer to a request with this name (default `llm`): that of the first call with the same bytes that was not served yet. 409 with the code DIVERGED names the step and the difference.",
    ),
    ("delete", "/v1/replays/{replay}", "endReplay", "Forgets a replay."),
];

/// All replays.
#[derive(Default)]
pub(super) struct HttpReplays(Mutex<HttpReplayTable>);

#[derive(Default)]
struct HttpReplayTable {
    replays: HashMap<String, HttpReplay>,
    asked: u64,
}

struct HttpReplay {
    run: String,
    /// The client that began it; no other client may use it.
    who: (String, String),
    session: Arc<tokio::sync::Mutex<Session>>,
    asked: u64,
}

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route("/v1/runs/{run}/replays", post(begin)).route("/v1/replays/{replay}", post(ask).delete(end))
}

fn session_owner(session: &Session) -> (String, String) {
    (session.facts.user.clone(), session.facts.namespace.clone())
}

async fn begin(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    request: Request,
) -> HttpReplayResult {
    let mut session = shared.session(&request)?;
    let run = param(&path, "run").unwrap_or_default().to_owned();
    // Reports at once if the run cannot be read, or the client may not read it.
    let reply =
        perform(&shared.daemon, &mut session, vec![b"run.get".to_vec(), run.clone().into_bytes()]).await;
    if let Reply::Error(why) = reply {
        return Err(HttpProblem::from_error_text(&why));
    }
    let mut bytes = [0; 16];
    shared.daemon.io.random(&mut bytes).map_err(annals::Error::from)?;
    let name = annals_text::hex::encode(&bytes);
    let who = session_owner(&session);
    let session = Arc::new(tokio::sync::Mutex::new(session));
    let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
    known.asked += 1;
    let asked = known.asked;
    known.replays.insert(name.clone(), HttpReplay { run, who, session, asked });
    if known.replays.len() > REPLAYS_MAX {
        let oldest =
            known.replays.iter().min_by_key(|(_, replay)| replay.asked).map(|(name, _)| name.clone());
        oldest.and_then(|oldest| known.replays.remove(&oldest));
    }
    Ok(json_response(StatusCode::CREATED, json!({ "replay": name })))
}

async fn ask(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    request: Request,
) -> HttpReplayResult {
    let asking = shared.session(&request)?;
    let (head, body) = request.into_parts();
    json_only(&head.headers)?;
    let (body, _place) = shared.body(body).await?;
    let mut members = JsonMembers::parse(&body).map_err(HttpProblem::bad_request)?;
    let asked = members.take("request").ok_or_else(|| HttpProblem::bad_request("\"request\" is missing"))?;
    let asked = json::words("request", &asked, MemberKind::Bytes, None).map_err(HttpProblem::bad_request)?;
    let name = members.take("name").map(|name| json::words("name", &name, MemberKind::Text, Some("NAME")));
    let name = name.transpose().map_err(HttpProblem::bad_request)?.unwrap_or_default();
    members.expect_empty().map_err(HttpProblem::bad_request)?;
    let (run, session) = {
        let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked += 1;
        let now = known.asked;
        let replay = known.replays.get_mut(param(&path, "replay").unwrap_or_default());
        let replay =
            replay.filter(|replay| replay.who == session_owner(&asking)).ok_or_else(unknown_replay)?;
        replay.asked = now;
        (replay.run.clone(), replay.session.clone())
    };
    // The calls of a replay are served one after another.
    let mut session = session.lock().await;
    // The client's current rights apply, not those at the beginning.
    session.grant.clone_from(&asking.grant);
    let words = [vec![b"run.replay".to_vec(), run.into_bytes()], asked, name].concat();
    match perform(&shared.daemon, &mut session, words).await {
        Reply::Error(why) => Err(HttpProblem::from_error_text(&why)),
        reply => Ok(json_response(
            StatusCode::OK,
            json::reply_to_json(Reply::Map(vec![(Reply::text("response"), reply)])),
        )),
    }
}

async fn end(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    request: Request,
) -> HttpReplayResult {
    let asking = session_owner(&shared.session(&request)?);
    let name = param(&path, "replay").unwrap_or_default();
    let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
    if known.replays.get(name).is_none_or(|replay| replay.who != asking) {
        return Err(unknown_replay());
    }
    known.replays.remove(name);
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn unknown_replay() -> HttpProblem {
    HttpProblem::not_found("there is no such replay, or it has expired")
}
