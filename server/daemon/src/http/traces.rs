//! OTLP over HTTP, as exporters of OpenTelemetry send it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use super::problem::HttpProblem;
use super::{HttpShared, run_offloaded};
use crate::access::Rights;
use annals_formats::otlp::{BODY_BYTES_MAX, TraceEncoding, TraceIngest, TraceReceipt, TraceRefusal, gunzip};

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router.route("/v1/traces", post(traces)).route("/v1/logs", post(logs))
}

async fn traces(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    ingest(&shared, request, TraceIngest::ingest_request).await
}

async fn logs(State(shared): State<Arc<HttpShared>>, request: Request) -> Result<Response, HttpProblem> {
    ingest(&shared, request, TraceIngest::ingest_logs).await
}

type IngestFn = fn(&TraceIngest, &[u8], TraceEncoding, u64) -> Result<TraceReceipt, TraceRefusal>;

/// Answers a request of an exporter: `take` stores what its body holds.
async fn ingest(shared: &HttpShared, request: Request, take: IngestFn) -> Result<Response, HttpProblem> {
    let session = shared.session(&request)?;
    if !session.has_rights(Rights::RECORD) {
        return Err(HttpProblem::from_error_text("NOPERM this takes the right record"));
    }
    shared.daemon.store.check_writer()?;
    let tenant = session.tenant(&shared.daemon)?;
    let (head, body) = request.into_parts();
    let header = |name: HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok());
    let unknown = |what: &str| HttpProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "ERR", what);
    let form = header(CONTENT_TYPE).and_then(TraceEncoding::from_content_type);
    let form =
        form.ok_or_else(|| unknown("traces and logs must be application/x-protobuf or application/json"))?;
    let is_packed = match header(CONTENT_ENCODING).unwrap_or("identity").trim() {
        packed if packed.eq_ignore_ascii_case("gzip") => true,
        plain if plain.eq_ignore_ascii_case("identity") || plain.is_empty() => false,
        _ => return Err(unknown("the content encoding must be gzip or identity")),
    };
    let (body, _place) = shared.body(body).await?;
    let now_ns = shared.daemon.now_ns();
    let _one = shared.traces.acquire().await;
    let taken = run_offloaded(&shared.daemon, || match is_packed {
        true => gunzip(&body, BODY_BYTES_MAX).and_then(|body| take(&tenant.ingest, &body, form, now_ns)),
        false => take(&tenant.ingest, &body, form, now_ns),
    });
    let kind = [(CONTENT_TYPE, form.content_type())];
    Ok(match taken.await {
        Ok(taken) => {
            tenant.added.notify_waiters();
            (kind, taken.body(form)).into_response()
        }
        Err(refused) => {
            let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::BAD_REQUEST);
            let mut response = (status, kind, refused.body(form)).into_response();
            if let Some(seconds) = refused.retry_after_s {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
    })
}
