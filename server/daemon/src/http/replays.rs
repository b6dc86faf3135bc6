//! Runs that are replayed over several requests: what a connection is over RESP is a replay with a name here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{RawPathParams, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;

use super::json::{self, Members};
use super::problem::Problem;
use super::{Shared, json_only, json_response, param};
use crate::perform::perform;
use crate::session::Session;
use annals_wire::resp::Reply;
use annals_wire::schema::routes::Kind;

/// Replays at a time. Past it those go that were not asked for longest.
const REPLAYS_MAX: usize = 1024;

type Answer = Result<Response, Problem>;

/// The routes here, as the description has them: method, path, name, summary.
pub(super) const DESCRIBED: &[(&str, &str, &str, &str)] = &[
    (
        "post",
        "/v1/runs/{run}/replays",
        "beginReplay",
        "Begins to replay a run: its recorded calls are then served, each once. Gives a name for it.",
    ),
    (
        "post",
        "/v1/replays/{replay}",
        "replay",
        "The recorded answer to a request of this name (else `llm`): that of the first call with the same bytes that was not served yet. 409 with the code DIVERGED names the step and what differs.",
    ),
    ("delete", "/v1/replays/{replay}", "endReplay", "Forgets a replay."),
];

/// See the module.
#[derive(Default)]
pub(super) struct Replays(Mutex<Known>);

#[derive(Default)]
struct Known {
    replays: HashMap<String, Replay>,
    asked: u64,
}

struct Replay {
    run: String,
    /// Who began it: nobody else is answered.
    who: (String, String),
    session: Arc<tokio::sync::Mutex<Session>>,
    asked: u64,
}

pub(super) fn routes(router: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    router.route("/v1/runs/{run}/replays", post(begin)).route("/v1/replays/{replay}", post(ask).delete(end))
}

fn who(session: &Session) -> (String, String) {
    (session.facts.user.clone(), session.facts.namespace.clone())
}

async fn begin(State(shared): State<Arc<Shared>>, path: RawPathParams, request: Request) -> Answer {
    let mut session = shared.session(&request)?;
    let run = param(&path, "run").unwrap_or_default().to_owned();
    // What cannot be read is told at once, and that it may not be.
    let reply =
        perform(&shared.daemon, &mut session, vec![b"run.get".to_vec(), run.clone().into_bytes()]).await;
    if let Reply::Error(why) = reply {
        return Err(Problem::of(&why));
    }
    let mut bytes = [0; 16];
    shared.daemon.io.random(&mut bytes).map_err(annals::Error::from)?;
    let name = annals_text::hex::encode(&bytes);
    let who = who(&session);
    let session = Arc::new(tokio::sync::Mutex::new(session));
    let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
    known.asked += 1;
    let asked = known.asked;
    known.replays.insert(name.clone(), Replay { run, who, session, asked });
    if known.replays.len() > REPLAYS_MAX {
        let oldest =
            known.replays.iter().min_by_key(|(_, replay)| replay.asked).map(|(name, _)| name.clone());
        oldest.and_then(|oldest| known.replays.remove(&oldest));
    }
    Ok(json_response(StatusCode::CREATED, json!({ "replay": name })))
}

async fn ask(State(shared): State<Arc<Shared>>, path: RawPathParams, request: Request) -> Answer {
    let asking = shared.session(&request)?;
    let (head, body) = request.into_parts();
    json_only(&head.headers)?;
    let (body, _place) = shared.body(body).await?;
    let mut members = Members::parse(&body).map_err(Problem::bad)?;
    let asked = members.take("request").ok_or_else(|| Problem::bad("\"request\" is missing"))?;
    let asked = json::words("request", &asked, Kind::Bytes, None).map_err(Problem::bad)?;
    let name = members.take("name").map(|name| json::words("name", &name, Kind::Text, Some("NAME")));
    let name = name.transpose().map_err(Problem::bad)?.unwrap_or_default();
    members.end().map_err(Problem::bad)?;
    let (run, session) = {
        let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked += 1;
        let now = known.asked;
        let replay = known.replays.get_mut(param(&path, "replay").unwrap_or_default());
        let replay = replay.filter(|replay| replay.who == who(&asking)).ok_or_else(none)?;
        replay.asked = now;
        (replay.run.clone(), replay.session.clone())
    };
    // Calls of one replay are served one after the other.
    let mut session = session.lock().await;
    // As much as whoever asks may do now, not as when it began.
    session.grant.clone_from(&asking.grant);
    let words = [vec![b"run.replay".to_vec(), run.into_bytes()], asked, name].concat();
    match perform(&shared.daemon, &mut session, words).await {
        Reply::Error(why) => Err(Problem::of(&why)),
        reply => {
            Ok(json_response(StatusCode::OK, json::text(Reply::Map(vec![(Reply::text("response"), reply)]))))
        }
    }
}

async fn end(State(shared): State<Arc<Shared>>, path: RawPathParams, request: Request) -> Answer {
    let asking = who(&shared.session(&request)?);
    let name = param(&path, "replay").unwrap_or_default();
    let mut known = shared.replays.0.lock().unwrap_or_else(PoisonError::into_inner);
    if known.replays.get(name).is_none_or(|replay| replay.who != asking) {
        return Err(none());
    }
    known.replays.remove(name);
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn none() -> Problem {
    Problem::not_found("there is no such replay, or it was not asked for long")
}
