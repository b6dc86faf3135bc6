//! Streamed bodies: requests and responses of frames, and blobs. Only the chunks in transit are in memory.
//!
//! A body is hashed while it is sent. Its last chunk is sent only after the whole body is verified; otherwise
//! the connection is aborted. A range is also read from the beginning, so everything before it is verified,
//! too. The entity tag is the BLAKE3 hash.

use std::io::{self, Read};
use std::sync::Arc;

use annals::kv::BlobReader;
use axum::Router;
use axum::body::Body;
use axum::extract::{RawPathParams, Request, State};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::problem::HttpProblem;
use super::{HttpShared, json_response, next_chunk, param, run_offloaded};
use crate::commands::{blob_reader, keep_blob};
use crate::perform::perform;
use crate::session::{Daemon, Session};
use crate::turn::{CommandRefusal, Offload};
use annals_policy::profiles::{Redactor, encodings};
use annals_proxy::channel_body::{BodySender, ChannelBody};
use annals_wire::resp::Reply;

/// Bytes per read.
const PIECE_BYTES: usize = 256 << 10;
/// Maximum number of chunks in transit.
const PIECES: usize = 2;

type BodyResult = Result<Response, HttpProblem>;

/// The routes of this module for the API description: method, path, name, summary.
pub(super) const DESCRIBED: &[(&str, &str, &str, &str)] = &[
    ("get", "/v1/runs/{run}/frames/{seq}/request", "getRequest", "A frame's request as a stream."),
    (
        "get",
        "/v1/runs/{run}/frames/{seq}/response",
        "getResponse",
        "A frame's response as a stream; of an unfinished frame, what has arrived so far.",
    ),
    (
        "post",
        "/v1/runs/{run}/frames/{seq}/response",
        "appendResponse",
        "Appends the body, as it arrives, to the response of an open frame, and returns its new length.",
    ),
    ("get", "/v1/blobs/{id}", "getBlob", "A stored blob."),
    ("post", "/v1/blobs", "putBlob", "Stores the body, as it arrives, under its BLAKE3 hash."),
];

pub(super) fn routes(router: Router<Arc<HttpShared>>) -> Router<Arc<HttpShared>> {
    router
        .route("/v1/runs/{run}/frames/{seq}/request", get(request))
        .route("/v1/runs/{run}/frames/{seq}/response", get(response).post(append))
        .route("/v1/blobs/{id}", get(blob))
        .route("/v1/blobs", post(put_blob))
}

async fn request(State(shared): State<Arc<HttpShared>>, path: RawPathParams, request: Request) -> BodyResult {
    frame_body(&shared, &path, request, FrameSide::Request).await
}

async fn response(
    State(shared): State<Arc<HttpShared>>,
    path: RawPathParams,
    request: Request,
) -> BodyResult {
    frame_body(&shared, &path, request, FrameSide::Response).await
}

#[derive(Debug, Clone, Copy)]
enum FrameSide {
    Request,
    Response,
}

/// Refuses a client that may not run this command; a redacted reader is allowed if the command can redact.
fn check_allowed(daemon: &Daemon, session: &Session, command: &str) -> Result<(), HttpProblem> {
    let command = daemon.table.find(command.as_bytes());
    if session
        .grant
        .as_ref()
        .zip(command)
        .is_some_and(|(grant, command)| command.schema.is_allowed(grant.rights))
    {
        return Ok(());
    }
    let rights = command.map(|command| command.schema.rights().to_string()).unwrap_or_default();
    Err(HttpProblem::from_error_text(&format!("NOPERM this takes the right {rights}")))
}

async fn frame_body(
    shared: &Arc<HttpShared>,
    path: &RawPathParams,
    request: Request,
    side: FrameSide,
) -> BodyResult {
    let session = shared.session(&request)?;
    let headers = request.into_parts().0.headers;
    check_allowed(&shared.daemon, &session, "frame.get")?;
    let tenant = session.tenant(&shared.daemon)?;
    let seq = param(path, "seq")
        .unwrap_or_default()
        .parse()
        .map_err(|_| HttpProblem::bad_request("a frame has a number"))?;
    let run = param(path, "run").unwrap_or_default();
    if session.is_redacted() {
        return redacted_body(shared, &session, &headers, run, seq, side).await;
    }
    let opened = run_offloaded(&shared.daemon, || {
        let reader = tenant.space.run(run)?;
        match side {
            FrameSide::Request => reader.input_reader(seq),
            FrameSide::Response => reader.output_reader(seq),
        }
    });
    stream_response(shared, &headers, opened.await?)
}

/// A body redacted by a profile. It is in memory as a whole, counted against the room of all bodies, until it
/// is sent.
async fn redacted_body(
    shared: &Arc<HttpShared>,
    session: &Session,
    headers: &HeaderMap,
    run: &str,
    seq: u32,
    side: FrameSide,
) -> BodyResult {
    let refused = |CommandRefusal(why)| HttpProblem::from_error_text(&why);
    let redactor = tokio::task::block_in_place(|| shared.daemon.redactor(session)).map_err(refused)?;
    let redactor = redactor.ok_or_else(|| HttpProblem::from_error_text("BUG no profile"))?;
    let tenant = session.tenant(&shared.daemon)?;
    let opened = run_offloaded(&shared.daemon, || {
        let reader = tenant.space.run(run)?;
        let (asked, answered) = encodings(&reader.frame_info(seq)?.metadata);
        Ok::<_, annals::Error>(match side {
            FrameSide::Request => (reader.input_reader(seq)?, asked),
            FrameSide::Response => (reader.output_reader(seq)?, answered),
        })
    });
    let (mut reader, encoding) = opened.await?;
    let len = reader.len();
    // The body as read, as decoded, and as shown.
    let kib =
        if Redactor::can_read(len) { u32::try_from(3 * len.div_ceil(1024)).unwrap_or(u32::MAX) } else { 1 };
    let place = shared.bodies.clone().try_acquire_many_owned(kib).map_err(|_| HttpProblem::busy())?;
    let shown = run_offloaded(&shared.daemon, || {
        if !Redactor::can_read(len) {
            return Ok(Redactor::too_long(len));
        }
        let mut stored = Vec::new();
        reader.read_to_end(&mut stored)?;
        Ok::<_, io::Error>(redactor.body(&stored, encoding.as_deref()).bytes.into_owned())
    });
    let shown =
        Bytes::from(shown.await.map_err(|error| HttpProblem::from_error_text(&format!("DAMAGED {error}")))?);
    // The hash of the redacted body: a hash of the stored one would allow guesses to be checked.
    let tag = format!("\"{}\"", blake3::hash(&shown).to_hex());
    let asked = match select_range(headers, &tag, shown.len() as u64)? {
        BodySelection::NotModified(response) => return Ok(response),
        BodySelection::Part(asked) => asked,
    };
    let (sender, body) = ChannelBody::new(PIECES);
    let part = shown.slice(usize::try_from(asked.from).unwrap_or(0)..usize::try_from(asked.to).unwrap_or(0));
    tokio::spawn(async move {
        let (_place, mut part, sender): (_, Bytes, BodySender<io::Error>) = (place, part, sender);
        while !part.is_empty() {
            let piece = part.split_to(part.len().min(PIECE_BYTES));
            if sender.send_data(piece).await.is_err() {
                return;
            }
        }
    });
    let mut response = asked.response(Body::new(body));
    if let Ok(name) = HeaderValue::from_str(redactor.profile().name()) {
        response.headers_mut().insert("annals-redacted", name);
    }
    Ok(response)
}

async fn blob(State(shared): State<Arc<HttpShared>>, path: RawPathParams, request: Request) -> BodyResult {
    let session = shared.session(&request)?;
    let headers = request.into_parts().0.headers;
    check_allowed(&shared.daemon, &session, "blob.get")?;
    let tenant = session.tenant(&shared.daemon)?;
    let id = param(&path, "id").unwrap_or_default().as_bytes();
    let found = run_offloaded(&shared.daemon, || blob_reader(&tenant.space, id));
    let found = found.await.map_err(|CommandRefusal(why)| HttpProblem::from_error_text(&why))?;
    stream_response(&shared, &headers, found.ok_or_else(|| HttpProblem::not_found("there is no such blob"))?)
}

/// A body, or the requested range of it, as a response.
fn stream_response(shared: &Arc<HttpShared>, headers: &HeaderMap, reader: BlobReader) -> BodyResult {
    let asked = match select_range(headers, &format!("\"{}\"", reader.id()), reader.len())? {
        BodySelection::NotModified(response) => return Ok(response),
        BodySelection::Part(asked) => asked,
    };
    let (sender, body) = ChannelBody::new(PIECES);
    tokio::spawn(stream_range(shared.daemon.clone(), reader, asked.from, asked.to - asked.from, sender));
    Ok(asked.response(Body::new(body)))
}

/// What to send of a body.
enum BodySelection {
    /// Nothing: the client has it already.
    NotModified(Response),
    Part(SelectedRange),
}

struct SelectedRange {
    status: StatusCode,
    from: u64,
    to: u64,
    len: u64,
    tag: HeaderValue,
}

fn select_range(headers: &HeaderMap, tag: &str, len: u64) -> Result<BodySelection, HttpProblem> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_known = |tags: &str| {
        tags.split(',').any(|known| known.trim().trim_start_matches("W/") == tag || known.trim() == "*")
    };
    let tag_value = HeaderValue::from_str(tag).map_err(|_| HttpProblem::bad_request("no tag"))?;
    if text(IF_NONE_MATCH).is_some_and(is_known) {
        return Ok(BodySelection::NotModified(
            (StatusCode::NOT_MODIFIED, [(ETAG, tag_value)]).into_response(),
        ));
    }
    let asked = text(RANGE).filter(|_| text(IF_RANGE).is_none_or(|wanted| wanted == tag));
    let (status, from, to) = match asked.map_or(RangeRequest::Whole, |asked| parse_range(asked, len)) {
        RangeRequest::Whole => (StatusCode::OK, 0, len),
        RangeRequest::Some(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        RangeRequest::Nothing => {
            let value = HeaderValue::from_str(&format!("bytes */{len}"))
                .map_err(|_| HttpProblem::bad_request("no length"))?;
            let problem =
                HttpProblem::new(StatusCode::RANGE_NOT_SATISFIABLE, "ERR", "the range is not satisfiable");
            return Err(problem.with_header("content-range", value));
        }
    };
    Ok(BodySelection::Part(SelectedRange { status, from, to, len, tag: tag_value }))
}

impl SelectedRange {
    fn response(self, body: Body) -> Response {
        let Self { status, from, to, len, tag } = self;
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(ETAG, tag);
        // Recorded content may be anything, so no browser may execute it.
        headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
        if status == StatusCode::PARTIAL_CONTENT
            && let Ok(value) = HeaderValue::from_str(&format!("bytes {from}-{}/{len}", to - 1))
        {
            headers.insert(CONTENT_RANGE, value);
        }
        response
    }
}

/// The requested range of a body.
#[derive(Debug, PartialEq, Eq)]
enum RangeRequest {
    Whole,
    /// From the first byte (inclusive) to the second (exclusive).
    Some(u64, u64),
    Nothing,
}

/// Parses `Range` for a body of `len` bytes (RFC 9110, section 14.2). Several ranges, and an invalid one,
/// select the whole body.
fn parse_range(asked: &str, len: u64) -> RangeRequest {
    let Some(range) = asked.trim().strip_prefix("bytes=").filter(|range| !range.contains(',')) else {
        return RangeRequest::Whole;
    };
    let Some((from, to)) = range.trim().split_once('-') else { return RangeRequest::Whole };
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (from.is_empty(), to.is_empty(), number(from), number(to)) {
        (true, false, _, Some(last)) if last > 0 && len > 0 => {
            RangeRequest::Some(len.saturating_sub(last), len)
        }
        (true, false, _, Some(_)) => RangeRequest::Nothing,
        (false, true, Some(from), _) if from < len => RangeRequest::Some(from, len),
        (false, false, Some(from), Some(to)) if from > to => RangeRequest::Whole,
        (false, false, Some(from), Some(to)) if from < len => {
            RangeRequest::Some(from, len.min(to.saturating_add(1)))
        }
        (false, _, Some(_), Some(_)) => RangeRequest::Nothing,
        _ => RangeRequest::Whole,
    }
}

/// Sends a range of a body, chunk by chunk, as fast as the client reads.
async fn stream_range(
    daemon: Arc<Daemon>,
    reader: BlobReader,
    skip: u64,
    mut left: u64,
    to: BodySender<io::Error>,
) {
    let (mut reader, mut skip) = (Some(reader), skip);
    while left > 0 {
        let Some(mut from) = reader.take() else { return };
        // A permit is held only while reading, so a slow client holds none.
        let Ok(place) = daemon.offload_permits(Offload::Blocking).acquire().await else { return };
        let read = spawn_blocking(move || {
            let skipped = io::copy(&mut from.by_ref().take(skip), &mut io::sink());
            let mut piece = Vec::new();
            let wanted = left.min(PIECE_BYTES as u64);
            let read = skipped.and_then(|_| from.by_ref().take(wanted).read_to_end(&mut piece));
            read.map(|_| (from, piece))
        });
        let read = read.await;
        drop(place);
        skip = 0;
        match read {
            Ok(Ok((from, piece))) if !piece.is_empty() => {
                left = left.saturating_sub(piece.len() as u64);
                reader = Some(from);
                if to.send_data(piece.into()).await.is_err() {
                    return;
                }
            }
            // The body is shorter than announced: abort, so that the client notices.
            Ok(Ok(_)) => return to.abort(io::ErrorKind::UnexpectedEof.into()).await,
            Ok(Err(error)) => return to.abort(error).await,
            Err(error) => return to.abort(io::Error::other(error)).await,
        }
    }
}

async fn append(State(shared): State<Arc<HttpShared>>, path: RawPathParams, request: Request) -> BodyResult {
    let mut session = shared.session(&request)?;
    let of_path = |name| param(&path, name).unwrap_or_default().as_bytes().to_vec();
    let (run, seq) = (of_path("run"), of_path("seq"));
    let mut body = request.into_body();
    let mut len = None;
    loop {
        let piece = next_chunk(&mut body).await?;
        let is_last = piece.is_none();
        if is_last && len.is_some() {
            break;
        }
        // An empty body also returns the length of the response, or the error that there is no such frame.
        let words = vec![
            b"frame.append".to_vec(),
            run.clone(),
            seq.clone(),
            piece.map(|piece| piece.to_vec()).unwrap_or_default(),
        ];
        match perform(&shared.daemon, &mut session, words).await {
            Reply::Integer(now) => len = Some(now),
            Reply::Error(why) => return Err(HttpProblem::from_error_text(&why)),
            _ => return Err(HttpProblem::from_error_text("BUG an unexpected reply")),
        }
        if is_last {
            break;
        }
    }
    Ok(json_response(StatusCode::OK, json!({ "response_bytes": len })))
}

async fn put_blob(State(shared): State<Arc<HttpShared>>, request: Request) -> BodyResult {
    let session = shared.session(&request)?;
    check_allowed(&shared.daemon, &session, "blob.put")?;
    shared.daemon.store.check_writer()?;
    let _place = shared.uploads.try_acquire().map_err(|_| HttpProblem::busy())?;
    let tenant = session.tenant(&shared.daemon)?;
    let (to, from) = mpsc::channel::<io::Result<Bytes>>(PIECES);
    let keeping = spawn_blocking(move || {
        let stored = tenant.space.store_blob(UploadReader { from, at: Bytes::new() })?;
        let (id, len) = (stored.id(), stored.len());
        keep_blob(&tenant.space, stored)?.wait()?;
        Ok::<_, annals::Error>((id, len))
    });
    let mut body = request.into_body();
    // The storing task may end before the body does.
    let broken = loop {
        match next_chunk(&mut body).await {
            Ok(Some(piece)) => {
                if to.send(Ok(piece)).await.is_err() {
                    break None;
                }
            }
            Ok(None) => break None,
            Err(problem) => {
                let _ = to.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                break Some(problem);
            }
        }
    };
    drop(to);
    let kept = keeping.await.map_err(|error| HttpProblem::from_error_text(&format!("BUG {error}")))?;
    if let Some(problem) = broken {
        return Err(problem);
    }
    let (id, len) = kept?;
    Ok(json_response(StatusCode::CREATED, json!({ "id": id.to_string(), "bytes": len })))
}

/// A blocking reader over chunks from an async task.
struct UploadReader {
    from: mpsc::Receiver<io::Result<Bytes>>,
    at: Bytes,
}

impl Read for UploadReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.at = piece?,
                None => return Ok(0),
            }
        }
        let count = self.at.len().min(out.len());
        out[..count].copy_from_slice(&self.at.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::{RangeRequest, parse_range};

    #[test]
    fn ranges_parse_per_rfc_9110() {
        for (asked, expected) in [
            ("bytes=0-0", RangeRequest::Some(0, 1)),
            ("bytes=2-4", RangeRequest::Some(2, 5)),
            ("bytes=2-", RangeRequest::Some(2, 10)),
            ("bytes=-3", RangeRequest::Some(7, 10)),
            ("bytes=-30", RangeRequest::Some(0, 10)),
            ("bytes=9-99999999999999999999999", RangeRequest::Some(9, 10)),
            ("bytes=10-", RangeRequest::Nothing),
            ("bytes=10-11", RangeRequest::Nothing),
            ("bytes=-0", RangeRequest::Nothing),
            ("bytes=4-2", RangeRequest::Whole),
            ("bytes=0-1,3-4", RangeRequest::Whole),
            ("bytes=-", RangeRequest::Whole),
            ("bytes=a-b", RangeRequest::Whole),
            ("bytes=+1-2", RangeRequest::Whole),
            ("lines=1-2", RangeRequest::Whole),
        ] {
            assert_eq!(parse_range(asked, 10), expected, "{asked}");
        }
        assert_eq!(parse_range("bytes=0-", 0), RangeRequest::Nothing);
        assert_eq!(parse_range("bytes=-1", 0), RangeRequest::Nothing);
    }
}
