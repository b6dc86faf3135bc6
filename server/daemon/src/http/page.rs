//! The debugger page: its files, the login by a one-time link, and the session of a request.
//!
//! The files are public: they hold nothing of the store. The page asks this API like every other client.

use std::sync::Arc;

use annals_page::{ASSETS, Asset, SECURITY_HEADERS};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, COOKIE, ETAG, IF_NONE_MATCH, SET_COOKIE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::json::JsonMembers;
use super::problem::HttpProblem;
use super::{HttpShared, json_only, json_response};
use crate::page_sessions::LinkProblem;

/// The header with a session's key.
const KEY_HEADER: &str = "annals-page";
/// What a browser says about the origin of a request.
const FETCH_SITE: &str = "sec-fetch-site";

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    let router = ASSETS.iter().fold(router, |router, asset| {
        router.route(asset.path, get(async move |headers: HeaderMap| asset_response(asset, &headers)))
    });
    router.route("/login", post(login))
}

fn asset_response(asset: &'static Asset, headers: &HeaderMap) -> Response {
    let is_known = headers
        .get(IF_NONE_MATCH)
        .and_then(|tags| tags.to_str().ok())
        .is_some_and(|tags| tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == asset.etag));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(CONTENT_TYPE, asset.content_type)], asset.bytes).into_response(),
    };
    let of = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        of.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // A newer daemon has newer files under the same addresses.
    of.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&asset.etag) {
        of.insert(ETAG, tag);
    }
    response
}

/// Trades the code of a one-time link for a session. Requests of other origins were refused before.
async fn login(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    let (head, body) = request.into_parts();
    json_only(&head.headers)?;
    if !is_own_fetch(&head.headers) {
        return Err(HttpProblem::new(StatusCode::FORBIDDEN, "NOPERM", "the request comes from another site"));
    }
    let (body, _place) = shared.body(body).await?;
    let mut members = JsonMembers::parse(&body).map_err(HttpProblem::bad_request)?;
    let code = members.take("code").and_then(|code| serde_json::from_str::<String>(code.get()).ok());
    let code = code.ok_or_else(|| HttpProblem::bad_request("\"code\" is missing"))?;
    members.expect_empty().map_err(HttpProblem::bad_request)?;
    let refused = |why: &str| HttpProblem::new(StatusCode::UNAUTHORIZED, "NOAUTH", why);
    let session = match shared.daemon.page.open(&code, &*shared.daemon.io)? {
        Ok(session) => session,
        Err(LinkProblem::Expired) => return Err(refused("the link has expired")),
        Err(LinkProblem::Unknown) => {
            return Err(refused("the link was used before, or the daemon that made it has ended"));
        }
    };
    let secure = if shared.has_tls { "; Secure" } else { "" };
    let cookie =
        format!("{}={}; HttpOnly; SameSite=Strict; Path=/{secure}", shared.session_cookie, session.cookie);
    let answer = json!({ "key": session.key, "reads_only": shared.daemon.reads_only() });
    let mut response = json_response(StatusCode::OK, answer);
    let value = HeaderValue::from_str(&cookie).map_err(|_| HttpProblem::bad_request("no cookie"))?;
    response.headers_mut().insert(SET_COOKIE, value);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Whether a browser that says where a request comes from says that it comes from our own page or from its user.
/// Requests with an origin that is not this server were refused before.
fn is_own_fetch(headers: &HeaderMap) -> bool {
    headers.get(FETCH_SITE).is_none_or(|site| site == "same-origin" || site == "none")
}

impl HttpShared {
    /// The namespace of the page's session that a request belongs to.
    pub(super) fn page_namespace(&self, headers: &HeaderMap) -> Option<String> {
        if !is_own_fetch(headers) {
            return None;
        }
        let key = headers.get(KEY_HEADER)?.to_str().ok()?;
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
        let (_, cookie) = pairs.find(|(name, _)| name.trim() == self.session_cookie)?;
        self.daemon.page.namespace(cookie.trim(), key, &*self.daemon.io)
    }
}
