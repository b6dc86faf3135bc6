//! Reads a frame into its view: what the request adds to the one before, the answer, and what is known about
//! both.

use std::borrow::Cow;
use std::io::Read;

use annals::runs::FrameInfo;
use annals::{BlobId, ErrorKind, RunReader};

use annals_policy::exchange::ExchangeMetadata;
use annals_policy::profiles::Redactor;
use annals_policy::providers::{
    self, ConversationMessage, DECODED_BYTES_MAX, ModelApi, Prices, WireExchange, answer_conversation,
    plain_body, request_conversation,
};

use super::facts::FrameFacts;
use super::lanes::Lanes;
use super::view::{
    FrameKind, FrameStatus, FrameView, HttpView, RequestBefore, ShownBody, ShownSeverity, ShownUsage,
};
use crate::frame_views::{chat_answer, frame_api, previous_request};

/// Default maximum length of a shown text, in bytes.
pub const TEXT_BYTES_MAX: usize = 200_000;

/// How a frame is shown.
#[derive(Debug, Clone, Copy)]
pub struct FrameViewOptions<'a> {
    /// The profile that redacts the view.
    pub redactor: Option<&'a Redactor>,
    /// Shows every message of the request, not only the new ones.
    pub all: bool,
    /// Maximum bytes of each text.
    pub text_bytes_max: usize,
    /// What tokens cost.
    pub prices: &'a Prices,
}

/// The stored parts of a frame, as far as they can be read.
struct StoredFrame {
    info: FrameInfo,
    input: Vec<u8>,
    output: Vec<u8>,
    ids: [Option<BlobId>; 2],
    damage: Option<String>,
}

/// A body as it is shown: decoded, redacted.
struct ReadBody {
    bytes: Vec<u8>,
    about: ShownBody,
}

/// Reads one frame as a person reads it. Damage in a body is named in the view, and the rest is shown.
///
/// # Errors
/// As [`RunReader::frame`], but damage is an error only in the frame's record.
pub fn frame_view(reader: &RunReader, seq: u32, options: &FrameViewOptions<'_>) -> annals::Result<FrameView> {
    let by = options.redactor;
    let stored = read_stored(reader, seq)?;
    let info = &stored.info;
    let metadata = match by {
        Some(by) => by.metadata(&info.metadata).bytes,
        None => Cow::Borrowed(info.metadata.as_slice()),
    };
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&info.metadata).ok();
    let facts = FrameFacts::read(&metadata);
    let mut labels = Vec::new();
    if let Some(by) = by {
        labels.push(format!("redacted by profile {}", by.profile().name()));
    }
    if facts.is_free() {
        labels.push("answered without a call to the provider".to_owned());
    }
    let headers = exchange.as_ref().map(|exchange| &exchange.volatile);
    let coding = |of: Option<&annals_policy::exchange::Headers>| {
        of.and_then(|headers| headers.get("content-encoding")).map(str::to_owned)
    };
    let asked = coding(headers.map(|of| &of.request_headers));
    let answered = coding(headers.map(|of| &of.response_headers));
    let mut request = read_body("request", &stored.input, stored.ids[0], asked, by, &mut labels);
    let mut response = read_body("response", &stored.output, stored.ids[1], answered, by, &mut labels);
    if stored.damage.is_some() {
        // What was recorded, and not what could be read of it.
        (request.about.bytes, response.about.bytes) = (info.input_bytes, info.output_bytes);
    }
    let status = facts.status(info, reader.info().status);
    let api = frame_api(&info.component, exchange.as_ref());
    let mut view = FrameView {
        seq,
        uid: reader.info().uid.0,
        run: reader.info().name.clone(),
        component: info.component.name().to_owned(),
        name: facts.name(&info.component),
        kind: FrameKind::of(&info.component),
        parent: info.parent,
        lane: lane(reader, seq)?,
        began_ns: info.started_ns,
        duration_ns: (status != FrameStatus::Open).then_some(info.duration_ns),
        status,
        severity: ShownSeverity::of(info),
        api: api.as_ref().map(|api| api.shape.name()),
        model: facts.model().cloned(),
        usage: facts.usage.as_ref().map(ShownUsage::from),
        dollars: facts.dollars(options.prices),
        http: http_view(&metadata),
        request: request.about,
        response: (status != FrameStatus::Open || !response.bytes.is_empty()).then_some(response.about),
        before: RequestBefore::default(),
        messages: Vec::new(),
        removed: 0,
        changes: Vec::new(),
        tools: Vec::new(),
        answer: Vec::new(),
        error: None,
        labels,
        damage: stored.damage,
        why: facts.why(),
    };
    let content_types = content_types(exchange.as_ref());
    let is_read = match &api {
        Some(api) => {
            show_request(&mut view, reader, api, &request.bytes, options)?;
            show_answer(&mut view, api, exchange.as_ref(), &response.bytes, options);
            true
        }
        None => false,
    };
    if view.messages.is_empty() && (!is_read || view.before.messages == 0) {
        show_plain(&mut view, true, &request.bytes, content_types[0].as_deref(), options);
    }
    if view.answer.is_empty() {
        show_plain(&mut view, false, &response.bytes, content_types[1].as_deref(), options);
    }
    if let Some(why) = exchange.and_then(|exchange| exchange.http.broken).filter(|_| by.is_none()) {
        view.error.get_or_insert(why);
    }
    let is_cut =
        |message: &ConversationMessage| message.parts.iter().any(providers::ConversationPart::is_cut);
    if view.messages.iter().chain(&view.answer).any(is_cut) {
        view.labels.push("cut".to_owned());
    }
    Ok(view)
}

fn show_request(
    view: &mut FrameView,
    reader: &RunReader,
    api: &ModelApi,
    body: &[u8],
    options: &FrameViewOptions<'_>,
) -> annals::Result<()> {
    let before = match previous_request(reader, view.seq, api, options.redactor) {
        Ok(before) => before,
        Err(error) if error.kind() == ErrorKind::Damaged => {
            view.labels.push("the request before is damaged: all messages are shown".to_owned());
            None
        }
        Err(error) => return Err(error),
    };
    let bytes = before.as_ref().map(|(_, bytes)| bytes.as_slice());
    let read = request_conversation(api, bytes, body, options.all, options.text_bytes_max);
    view.before = RequestBefore {
        seq: before.as_ref().map(|(seq, _)| *seq),
        messages: read.before.0,
        bytes: read.before.1,
    };
    (view.messages, view.removed) = (read.messages, read.removed);
    (view.changes, view.tools) = (read.changes, read.tools);
    if let Some(fault) = read.fault.filter(|_| !body.is_empty()) {
        view.labels.push(format!("the request {fault}"));
    }
    Ok(())
}

fn show_answer(
    view: &mut FrameView,
    api: &ModelApi,
    exchange: Option<&ExchangeMetadata>,
    body: &[u8],
    options: &FrameViewOptions<'_>,
) {
    if body.is_empty() {
        return;
    }
    let body = chat_answer(exchange, body);
    let content_type = exchange.and_then(|of| of.volatile.response_headers.get("content-type"));
    let (answer, summary) = answer_conversation(
        &WireExchange {
            api,
            request: b"",
            request_encoding: None,
            status: exchange.map_or(Some(200), |of| of.http.status).unwrap_or(0),
            content_type,
            content_encoding: None,
            response: &body,
        },
        options.text_bytes_max,
    );
    view.answer = answer;
    if let Some(error) = summary.error {
        let text = [error.kind, error.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
        view.error = Some(text);
    }
    if summary.complete == Some(false) {
        view.labels.push("the stream broke off".to_owned());
    }
    // A request without its body is always unparsed here; the answer's faults begin with its name.
    let faults = summary.unparsed.unwrap_or_default();
    for fault in faults.split("; ").filter(|fault| !fault.is_empty() && !fault.starts_with("the request")) {
        view.labels.push(fault.to_owned());
    }
}

fn show_plain(
    view: &mut FrameView,
    is_request: bool,
    body: &[u8],
    content_type: Option<&str>,
    options: &FrameViewOptions<'_>,
) {
    let role = if is_request { "input" } else { "output" };
    let (messages, is_lossy) = plain_body(role, body, content_type, options.text_bytes_max);
    if is_lossy {
        view.labels.push(format!("bytes of the {role} are not UTF-8 and shown as \u{fffd}"));
    }
    match is_request {
        true => view.messages = messages,
        false => view.answer = messages,
    }
}

fn content_types(exchange: Option<&ExchangeMetadata>) -> [Option<String>; 2] {
    let of = |headers: &annals_policy::exchange::Headers| headers.get("content-type").map(str::to_owned);
    match exchange {
        Some(exchange) => [of(&exchange.volatile.request_headers), of(&exchange.volatile.response_headers)],
        None => [None, None],
    }
}

fn http_view(metadata: &[u8]) -> Option<HttpView> {
    let exchange = serde_json::from_slice::<ExchangeMetadata>(metadata).ok()?;
    let http = exchange.http;
    Some(HttpView {
        target: match &http.query {
            Some(query) => format!("{}?{query}", http.path),
            None => http.path,
        },
        method: http.method,
        status: http.status,
        request_headers: exchange.volatile.request_headers.0,
        response_headers: exchange.volatile.response_headers.0,
    })
}

/// Decodes and redacts a body, and says so.
fn read_body(
    what: &str,
    stored: &[u8],
    id: Option<BlobId>,
    coding: Option<String>,
    by: Option<&Redactor>,
    labels: &mut Vec<String>,
) -> ReadBody {
    let decoded = providers::decode(coding.as_deref(), stored, DECODED_BYTES_MAX);
    let is_decoded = matches!(decoded.bytes, Cow::Owned(_));
    if let Some(fault) = &decoded.fault {
        labels.push(format!("the {what} {fault}"));
    }
    let decoded_from = coding.filter(|_| is_decoded);
    if let Some(coding) = &decoded_from {
        labels.push(format!("{what} decoded from {coding}"));
    }
    let bytes = match by {
        Some(by) => by.body(&decoded.bytes, None).bytes.into_owned(),
        None => decoded.bytes.into_owned(),
    };
    let blake3 = id.filter(|_| by.is_none()).map(|id| id.to_string());
    ReadBody { bytes, about: ShownBody { bytes: stored.len() as u64, blake3, decoded_from } }
}

fn read_stored(reader: &RunReader, seq: u32) -> annals::Result<StoredFrame> {
    let info = reader.frame_info(seq)?;
    let error = match reader.frame(seq) {
        Ok(frame) => {
            let ids = [frame.input_id, frame.output_id];
            return Ok(StoredFrame { info, input: frame.input, output: frame.output, ids, damage: None });
        }
        Err(error) if error.kind() == ErrorKind::Damaged => error.to_string(),
        Err(error) => return Err(error),
    };
    let mut damage = Vec::new();
    let mut part = |name: &str, body: annals::Result<annals::kv::BlobReader>| {
        let mut bytes = Vec::new();
        let read = match body {
            Ok(mut body) => body.read_to_end(&mut bytes).map(drop).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = read {
            damage.push(format!("{name}: {error}"));
        }
        bytes
    };
    let input = part("request", reader.input_reader(seq));
    let output = part("response", reader.output_reader(seq));
    let damage = if damage.is_empty() { error } else { damage.join("; ") };
    Ok(StoredFrame { info, input, output, ids: [None, None], damage: Some(damage) })
}

fn lane(reader: &RunReader, seq: u32) -> annals::Result<u32> {
    let mut lanes = Lanes::default();
    let mut lane = 0;
    for at in 1..=seq {
        match reader.frame_info(at) {
            Ok(info) => lane = lanes.add(&info),
            Err(error) if error.kind() == ErrorKind::Damaged => {}
            Err(error) => return Err(error),
        }
    }
    Ok(lane)
}
