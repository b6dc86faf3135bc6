//! Views of recorded exchanges for people: what a request adds to the previous one, and which frame of a
//! failed run to read first.

use std::borrow::Cow;
use std::collections::HashSet;

use annals::{Component, RecordedFrame, RunReader};

use annals_policy::exchange::{ExchangeMetadata, WHY_SEVERE};
use annals_policy::profiles::Redactor;
use annals_policy::providers::{
    self, DECODED_BYTES_MAX, ExchangeSummary, ModelApi, RequestChanges, WireExchange, summary_with,
};

/// The frame of a failed run to read first, with its context.
#[derive(Debug)]
pub struct FailureReport {
    /// The frame.
    pub frame: RecordedFrame,
    /// The number of the previous frame with the same request format, and what this request adds to it.
    pub new: Option<(u32, RequestChanges)>,
    /// Why the frame is severe, as noted when it was recorded.
    pub why: Option<String>,
    /// The end of the program's standard error.
    pub stderr: Option<String>,
    /// The program's exit code, and the signal that ended it.
    pub exit: Option<(u64, Option<i64>)>,
}

/// Maximum bytes of standard error shown.
const STDERR_BYTES: usize = 2000;

/// The API of a frame's request. Imported frames have no HTTP metadata and use the chat completions format.
/// `None` if the frame is not a model call.
pub(crate) fn frame_api(component: &Component, exchange: Option<&ExchangeMetadata>) -> Option<ModelApi> {
    let api = match exchange {
        Some(ExchangeMetadata { http, .. }) => {
            let host = http.mount.trim_end_matches(|c: char| c.is_ascii_digit());
            providers::recognise(&http.method, &http.path, host)
        }
        None if *component == Component::Llm => providers::recognise("POST", "/v1/chat/completions", ""),
        None => return None,
    };
    api.shape.is_model_call().then_some(api)
}

/// The API and decoded body of a frame's request. `None` if the frame is not a model call.
pub(crate) fn api_and_body(frame: &RecordedFrame) -> Option<(ModelApi, Vec<u8>)> {
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
    let api = frame_api(&frame.component, exchange.as_ref())?;
    let encoding = exchange.as_ref().and_then(|of| of.volatile.request_headers.get("content-encoding"));
    let body = providers::decode(encoding, &frame.input, DECODED_BYTES_MAX).bytes.into_owned();
    Some((api, body))
}

/// [`api_and_body`] as the profile `by` shows it.
pub(crate) fn api_and_shown_body(
    frame: &RecordedFrame,
    by: Option<&Redactor>,
) -> Option<(ModelApi, Vec<u8>)> {
    let (api, body) = api_and_body(frame)?;
    let body = match by {
        Some(by) => by.body(&body, None).bytes.into_owned(),
        None => body,
    };
    Some((api, body))
}

/// What a frame's request adds to the last earlier request in the same format, and the number of that frame;
/// 0 if there is none. `None` if the frame is not a model call. Both requests are read as `by` shows them.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn new_part(
    reader: &RunReader,
    seq: u32,
    by: Option<&Redactor>,
) -> annals::Result<Option<(u32, RequestChanges)>> {
    let Some((speaks, after)) = api_and_shown_body(&reader.frame(seq)?, by) else { return Ok(None) };
    Ok(Some(match previous_request(reader, seq, &speaks, by)? {
        Some((earlier, before)) => (earlier, providers::request_changes(&speaks, &before, &after)),
        None => (0, providers::request_changes(&speaks, b"", &after)),
    }))
}

/// Bytes of earlier requests that are compared to find the one before, and their number.
const EARLIER_BYTES_MAX: usize = 8 << 20;
const EARLIER_FRAMES_MAX: usize = 64;

/// The request before frame `seq` in the same conversation, as `by` shows it, and the number of its frame: of the last
/// requests in the same format, the one that begins with the most messages of this one; else one that has most of them;
/// else the last one. Agents that take turns have conversations of their own.
pub(crate) fn previous_request(
    reader: &RunReader,
    seq: u32,
    api: &ModelApi,
    by: Option<&Redactor>,
) -> annals::Result<Option<(u32, Vec<u8>)>> {
    let own = match api_and_shown_body(&reader.frame(seq)?, by) {
        Some((_, body)) => providers::message_hashes(api, &body),
        None => return Ok(None),
    };
    let (mut best, mut bytes, mut looked) = (None::<(u32, Vec<u8>)>, 0, 0);
    let mut most = Likeness::default();
    for earlier in (1..seq).rev() {
        if reader.frame_info(earlier)?.component != Component::Llm {
            continue;
        }
        let before = api_and_shown_body(&reader.frame(earlier)?, by);
        let Some((_, before)) = before.filter(|(of, _)| of.shape == api.shape) else { continue };
        (bytes, looked) = (bytes + before.len(), looked + 1);
        let likeness = Likeness::of(&providers::message_hashes(api, &before), &own);
        let is_next = likeness.is_next;
        // Of equal ones the last counts.
        if likeness > most || best.is_none() {
            (best, most) = (Some((earlier, before)), likeness);
        }
        if is_next || bytes >= EARLIER_BYTES_MAX || looked >= EARLIER_FRAMES_MAX {
            break;
        }
    }
    Ok(best)
}

/// How much of an earlier request a request repeats. The order is that of the fields.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Likeness {
    /// Number of equal messages at the beginning.
    prefix: usize,
    /// Number of messages that both have, if they are at least half of the earlier ones.
    common: usize,
    /// It is the earlier request and at most two messages more: no other can be nearer.
    is_next: bool,
}

impl Likeness {
    fn of(before: &[[u8; 32]], own: &[[u8; 32]]) -> Self {
        let prefix = before.iter().zip(own).take_while(|(one, other)| one == other).count();
        let known: HashSet<&[u8; 32]> = own.iter().collect();
        let common = before.iter().filter(|message| known.contains(message)).count();
        let is_next = prefix >= 3 && prefix == before.len() && own.len() <= prefix + 2;
        Self { prefix, common: if common * 2 >= before.len() { common } else { 0 }, is_next }
    }
}

/// The ids of the tool calls whose results appear for the first time in a frame's request, in its order.
/// Empty if the frame is not a model call.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn new_tool_results(reader: &RunReader, seq: u32) -> annals::Result<Vec<String>> {
    let ids = |seq: u32| -> annals::Result<Option<Vec<String>>> {
        let body = api_and_body(&reader.frame(seq)?).map(|(_, body)| body);
        let request = body.map(|body| serde_json::from_slice(&body).unwrap_or_default());
        Ok(request.map(|request| providers::tool_result_ids(&request)))
    };
    let mut new = ids(seq)?.unwrap_or_default();
    for earlier in (1..seq).rev() {
        if !new.is_empty()
            && let Some(known) = ids(earlier)?
        {
            new.retain(|id| !known.contains(id));
            break;
        }
    }
    Ok(new)
}

/// A frame's answer without its content encoding.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn decoded_answer(reader: &RunReader, seq: u32) -> annals::Result<Vec<u8>> {
    Ok(decode_answer(&reader.frame(seq)?))
}

/// The answer of a frame that has been read, without its content encoding.
pub(crate) fn decode_answer(frame: &RecordedFrame) -> Vec<u8> {
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
    let coding = exchange.as_ref().and_then(|of| of.volatile.response_headers.get("content-encoding"));
    providers::decode(coding, &frame.output, DECODED_BYTES_MAX).bytes.into_owned()
}

/// Text, tool calls, refusal and error of a model call's answer, as the profile `by` shows it, with at most
/// `text_bytes_max` bytes of text. `None` if the frame is not a model call.
#[must_use]
pub fn answer_summary(
    frame: &RecordedFrame,
    by: Option<&Redactor>,
    text_bytes_max: usize,
) -> Option<ExchangeSummary> {
    let (api, _) = api_and_body(frame)?;
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
    let header =
        |name: &str| exchange.as_ref().and_then(|exchange| exchange.volatile.response_headers.get(name));
    let decoded = providers::decode(header("content-encoding"), &frame.output, DECODED_BYTES_MAX).bytes;
    let shown = match by {
        Some(by) => by.body(&decoded, None).bytes,
        None => Cow::Borrowed(&*decoded),
    };
    let response = chat_answer(exchange.as_ref(), &shown);
    let status = exchange.as_ref().map_or(Some(200), |exchange| exchange.http.status);
    Some(summary_with(
        &WireExchange {
            api: &api,
            request: b"",
            request_encoding: None,
            status: status.unwrap_or(0),
            content_type: header("content-type"),
            content_encoding: None,
            response: &response,
        },
        text_bytes_max,
    ))
}

/// An answer as the chat completions format has it: an imported answer is the message alone.
pub(crate) fn chat_answer<'a>(exchange: Option<&ExchangeMetadata>, answer: &'a [u8]) -> Cow<'a, [u8]> {
    match exchange {
        Some(_) => Cow::Borrowed(answer),
        None => Cow::Owned([br#"{"choices":[{"message":"#, answer, b"}]}"].concat()),
    }
}

/// A frame as the profile shows it.
#[must_use]
pub fn redacted_frame(frame: RecordedFrame, by: Option<&Redactor>) -> RecordedFrame {
    let Some(by) = by else { return frame };
    let shown = by.frame(&frame.input, &frame.output, &frame.metadata);
    RecordedFrame { input: shown.input, output: shown.output, metadata: shown.metadata, ..frame }
}

/// The frame of a run to read first: the last of its most severe frames, leaving out those of the program
/// itself (`stdin`, `program`, `stderr`). If there are no others, its standard error, else its last one: the program
/// failed before it called a model. `None` for a run without frames. Everything is as `by` shows it.
///
/// # Errors
/// As [`RunReader::frame`].
pub fn failure_report(reader: &RunReader, by: Option<&Redactor>) -> annals::Result<Option<FailureReport>> {
    let (mut found, mut stderr, mut exit) = (None, None, None);
    let mut own_frame = None;
    let own = |component: &Component| matches!(component.name(), "stdin" | "program" | "stderr");
    for seq in 1..=reader.info().frames {
        let frame = reader.frame_info(seq)?;
        let weight = (frame.severity, frame.error);
        if !own(&frame.component) && found.is_none_or(|(most, _)| weight >= most) {
            found = Some((weight, seq));
        }
        if own(&frame.component) && stderr.is_none() {
            own_frame = Some(seq);
        }
        if frame.component.name() == "stderr" {
            let frame = redacted_frame(reader.frame(seq)?, by);
            let bytes = frame.output;
            let end = &bytes[bytes.len().saturating_sub(STDERR_BYTES)..];
            stderr = Some(String::from_utf8_lossy(end).into_owned());
        }
        if frame.component.name() == "program"
            && let Ok(metadata) = serde_json::from_slice::<serde_json::Value>(&frame.metadata)
        {
            exit = metadata["exit"]["code"].as_u64().map(|code| (code, metadata["exit"]["signal"].as_i64()));
        }
    }
    let Some(seq) = found.map(|(_, seq)| seq).or(own_frame) else { return Ok(None) };
    let frame = reader.frame(seq)?;
    let new = new_part(reader, seq, by)?;
    let frame = redacted_frame(frame, by);
    let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
    let why = exchange.and_then(|exchange| {
        let why = exchange.summary.get(WHY_SEVERE).or_else(|| exchange.volatile.other.get(WHY_SEVERE));
        Some(why?.as_str()?.to_owned())
    });
    Ok(Some(FailureReport { new, frame, why, stderr, exit }))
}
