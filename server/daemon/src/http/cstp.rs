//! Decisions over JSON-RPC 2.0: `POST /v1/cstp`, single calls and batches.
//!
//! A call runs as a command ([`crate::commands::command_of`]), so rights, durability and logs are those of
//! commands. The calls of a batch run in their order. A notification has no response.

use std::collections::BTreeMap;
use std::sync::Arc;

use annals_deliberation::Method;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;
use serde_json::value::RawValue;

use super::problem::HttpProblem;
use super::{HttpShared, json_only};
use crate::commands::command_of;
use crate::perform::perform;
use crate::session::Session;
use annals_wire::resp::Reply;

/// Maximum number of calls in a batch.
const CALLS_MAX: usize = 1000;

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL_ERROR: i32 = -32603;

/// The number of an error for each code; any other code is an internal error.
const CODES: &[(&str, i32)] = &[
    ("ERR", INVALID_PARAMS),
    ("NOAUTH", -32001),
    ("NOPERM", -32003),
    ("NOTFOUND", -32004),
    ("CONFLICT", -32009),
    ("GONE", -32010),
    ("UNAVAILABLE", -32011),
    ("POISONED", -32012),
];

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route("/v1/cstp", post(call))
}

async fn call(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    let mut session = shared.session(&request)?;
    let (head, body) = request.into_parts();
    json_only(&head.headers)?;
    let (body, _place) = shared.body(body).await?;
    let Ok(text) = std::str::from_utf8(&body) else {
        return Ok(rpc_response(&error("null", PARSE_ERROR, "the request is not UTF-8", None)));
    };
    if !text.trim_start().starts_with('[') {
        return Ok(match run(&shared, &mut session, text).await {
            Some(answer) => rpc_response(&answer),
            None => StatusCode::NO_CONTENT.into_response(),
        });
    }
    let calls: Vec<&RawValue> = match serde_json::from_str(text) {
        Ok(calls) => calls,
        Err(why) => return Ok(rpc_response(&error("null", PARSE_ERROR, &why.to_string(), None))),
    };
    if calls.is_empty() || calls.len() > CALLS_MAX {
        let why = format!("a batch has 1 to {CALLS_MAX} calls");
        return Ok(rpc_response(&error("null", INVALID_REQUEST, &why, None)));
    }
    let mut answers = Vec::new();
    for one in calls {
        answers.extend(run(&shared, &mut session, one.get()).await);
    }
    Ok(match answers.is_empty() {
        true => StatusCode::NO_CONTENT.into_response(),
        false => rpc_response(&format!("[{}]", answers.join(","))),
    })
}

fn rpc_response(text: &str) -> Response {
    (StatusCode::OK, [(CONTENT_TYPE, "application/json")], format!("{text}\n")).into_response()
}

/// Runs a call; a notification has no answer.
async fn run(shared: &HttpShared, session: &mut Session, text: &str) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = match serde_json::from_str(text) {
        Ok(members) => members,
        Err(why) => {
            let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
            let code = if is_json { INVALID_REQUEST } else { PARSE_ERROR };
            return Some(error("null", code, &why.to_string(), None));
        }
    };
    let id = members.get("id").map(|id| id.get());
    let read = |name: &str| members.get(name).and_then(|of| serde_json::from_str::<String>(of.get()).ok());
    let is_valid_id = id.is_none_or(|id| !id.starts_with(['{', '[', 't', 'f']));
    let answer = match (read("jsonrpc").as_deref(), read("method")) {
        (Some("2.0"), Some(method)) if is_valid_id => match Method::from_name(&method) {
            Some(method) => {
                let params = members.get("params").map_or("{}", |params| params.get());
                let words = vec![command_of(method).as_bytes().to_vec(), params.as_bytes().to_vec()];
                outcome(id.unwrap_or("null"), perform(&shared.daemon, session, words).await)
            }
            None => {
                let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
                let why = format!("unknown method {method:?}: use {}", names.join(", "));
                error(id.unwrap_or("null"), METHOD_NOT_FOUND, &why, None)
            }
        },
        _ => {
            let why =
                "a call has \"jsonrpc\": \"2.0\", a \"method\", and an \"id\" that is a text or a number";
            let id = id.filter(|_| is_valid_id).unwrap_or("null");
            return Some(error(id, INVALID_REQUEST, why, None));
        }
    };
    id.is_some().then_some(answer)
}

fn outcome(id: &str, reply: Reply) -> String {
    match reply {
        Reply::Json(text) => format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{text}}}"),
        Reply::Error(text) => {
            let (code, why) = text.split_once(' ').unwrap_or(("ERR", &text));
            let number =
                CODES.iter().find(|(known, _)| *known == code).map_or(INTERNAL_ERROR, |(_, number)| *number);
            error(id, number, why, Some(code))
        }
        _ => error(id, INTERNAL_ERROR, "the reply is not JSON", Some("BUG")),
    }
}

fn error(id: &str, number: i32, why: &str, code: Option<&str>) -> String {
    let mut told = json!({ "code": number, "message": why });
    if let Some(code) = code {
        told["data"] = json!({ "code": code });
    }
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{told}}}")
}
