//! Errors as RFC 9457 problem details, with the code that the error has in RESP.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::turn::CommandRefusal;

/// The status for each error code; any other code is 400.
const STATUSES: &[(&str, StatusCode)] = &[
    ("NOTFOUND", StatusCode::NOT_FOUND),
    ("CONFLICT", StatusCode::CONFLICT),
    ("DIVERGED", StatusCode::CONFLICT),
    ("GONE", StatusCode::GONE),
    ("FAILED", StatusCode::BAD_GATEWAY),
    ("NOPERM", StatusCode::FORBIDDEN),
    ("NOAUTH", StatusCode::UNAUTHORIZED),
    ("DAMAGED", StatusCode::INTERNAL_SERVER_ERROR),
    ("UNSUPPORTED", StatusCode::INTERNAL_SERVER_ERROR),
    ("BUG", StatusCode::INTERNAL_SERVER_ERROR),
    ("UNAVAILABLE", StatusCode::SERVICE_UNAVAILABLE),
    ("POISONED", StatusCode::SERVICE_UNAVAILABLE),
    ("LOCKED", StatusCode::SERVICE_UNAVAILABLE),
];

/// An error response.
#[derive(Debug)]
pub(super) struct HttpProblem {
    status: StatusCode,
    code: String,
    detail: String,
    header: Option<(&'static str, HeaderValue)>,
}

impl HttpProblem {
    pub(super) fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), detail: detail.into(), header: None }
    }

    /// The request is invalid.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "ERR", detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOTFOUND", detail)
    }

    /// The server is busy; a retry may succeed.
    pub(super) fn busy() -> Self {
        let why = "too many requests at once: try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", why)
            .with_header("retry-after", HeaderValue::from_static("1"))
    }

    /// Its status and its sentence.
    pub(super) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.detail)
    }

    /// From an error of a command: its code, a space, a sentence.
    pub(super) fn from_error_text(error: &str) -> Self {
        let (code, detail) = error.split_once(' ').unwrap_or(("ERR", error));
        let status = STATUSES.iter().find(|(known, _)| *known == code).map(|(_, status)| *status);
        Self::new(status.unwrap_or(StatusCode::BAD_REQUEST), code, detail)
    }

    /// Adds a header.
    pub(super) fn with_header(self, name: &'static str, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }
}

impl From<annals::Error> for HttpProblem {
    fn from(error: annals::Error) -> Self {
        Self::from_error_text(&CommandRefusal::from(error).0)
    }
}

impl From<CommandRefusal> for HttpProblem {
    fn from(CommandRefusal(error): CommandRefusal) -> Self {
        let problem = Self::from_error_text(&error);
        match problem.status {
            StatusCode::UNAUTHORIZED => {
                problem.with_header("www-authenticate", HeaderValue::from_static("Bearer"))
            }
            _ => problem,
        }
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = json!({ "title": title, "status": self.status.as_u16(), "code": self.code, "detail": self.detail });
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, kind, format!("{body}\n")).into_response();
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
        response
    }
}
