//! The bytes of a request, with limits applied before decoding: decompression up to a limit, a count of
//! messages, then decoding.
//!
//! Two bytes of protobuf, or three of JSON, can become a message of hundreds of bytes. So the messages of a
//! body are counted first, iteratively, and a body with too many is refused. The decoders limit nesting to
//! 100 messages in protobuf and 128 levels in JSON.

use std::io::Read;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;

use super::json;
use super::reply::TraceRefusal;

/// Maximum size of an uncompressed body, in bytes.
pub const BODY_BYTES_MAX: usize = 32 << 20;
/// Maximum number of messages in a body: spans, attributes, values, events, links.
const MESSAGES_MAX: usize = 1 << 18;
/// Maximum nesting of protobuf messages; the decoder's own limit.
const DEPTH_MAX: usize = 100;

/// The encoding of a body, by its `Content-Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceEncoding {
    /// `application/x-protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

impl TraceEncoding {
    /// The encoding for a `Content-Type`; `None` if it is unknown.
    pub fn from_content_type(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "application/x-protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }

    /// The `Content-Type` of the response.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }
}

/// Undoes `Content-Encoding: gzip`.
///
/// # Errors
/// 400 for invalid or truncated gzip, 413 for more than `max` bytes.
pub fn gunzip(gzip: &[u8], max: usize) -> Result<Vec<u8>, TraceRefusal> {
    let mut bytes = Vec::new();
    // One byte over the limit, to detect a body that is too long.
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    flate2::read::MultiGzDecoder::new(gzip)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|error| TraceRefusal::bad_request(format!("the body is not complete gzip: {error}")))?;
    if bytes.len() > max {
        return Err(TraceRefusal::payload_too_large(format!(
            "the uncompressed body has more than {max} bytes"
        )));
    }
    Ok(bytes)
}

/// Decodes a body.
///
/// # Errors
/// 400 if the body cannot be decoded, 413 if it is too large.
pub(super) fn decode_request(
    body: &[u8],
    form: TraceEncoding,
) -> Result<ExportTraceServiceRequest, TraceRefusal> {
    decode(body, form, MessageKind::Request, json::parse_request)
}

/// Decodes a body with log records.
///
/// # Errors
/// 400 if the body cannot be decoded, 413 if it is too large.
pub(super) fn decode_logs(
    body: &[u8],
    form: TraceEncoding,
) -> Result<ExportLogsServiceRequest, TraceRefusal> {
    decode(body, form, MessageKind::LogRequest, json::parse_logs)
}

fn decode<M: prost::Message + Default>(
    body: &[u8],
    form: TraceEncoding,
    kind: MessageKind,
    parse_json: impl FnOnce(&[u8]) -> serde_json::Result<M>,
) -> Result<M, TraceRefusal> {
    if body.len() > BODY_BYTES_MAX {
        return Err(TraceRefusal::payload_too_large(format!("a body has at most {BODY_BYTES_MAX} bytes")));
    }
    match form {
        TraceEncoding::Protobuf => {
            count_protobuf(body, kind)?;
            M::decode(body)
                .map_err(|error| TraceRefusal::bad_request(format!("the body is not OTLP protobuf: {error}")))
        }
        TraceEncoding::Json => {
            count_json(body)?;
            parse_json(body)
                .map_err(|error| TraceRefusal::bad_request(format!("the body is not OTLP JSON: {error}")))
        }
    }
}

/// The message type of a length-delimited field.
#[derive(Debug, Clone, Copy)]
enum MessageKind {
    Request,
    LogRequest,
    ResourceLogs,
    ScopeLogs,
    LogRecord,
    ResourceSpans,
    Resource,
    ScopeSpans,
    Scope,
    Span,
    EventOrLink,
    Event,
    KeyValue,
    Value,
    Array,
    KeyValues,
    Entity,
    /// A string in a list, or a message without submessages.
    Leaf,
}

impl MessageKind {
    /// The message type of a field, by the field numbers of opentelemetry-proto 1.x; `None` for single
    /// strings and unknown fields.
    fn field(self, number: u64) -> Option<Self> {
        Some(match (self, number) {
            (Self::Request, 1) => Self::ResourceSpans,
            (Self::LogRequest, 1) => Self::ResourceLogs,
            (Self::ResourceLogs, 2) => Self::ScopeLogs,
            (Self::ScopeLogs, 2) => Self::LogRecord,
            (Self::ResourceSpans | Self::ResourceLogs, 1) => Self::Resource,
            (Self::ResourceSpans, 2) => Self::ScopeSpans,
            (Self::Resource, 3) => Self::Entity,
            (Self::Entity, 3 | 4) | (Self::Span, 15) => Self::Leaf,
            (Self::ScopeSpans | Self::ScopeLogs, 1) => Self::Scope,
            (Self::ScopeSpans, 2) => Self::Span,
            (Self::Span, 11) => Self::Event,
            (Self::Span, 13) => Self::EventOrLink,
            (Self::Resource, 1)
            | (Self::Scope | Self::Event, 3)
            | (Self::Span, 9)
            | (Self::LogRecord, 6)
            | (Self::EventOrLink, 4)
            | (Self::KeyValues, 1) => Self::KeyValue,
            (Self::KeyValue, 2) | (Self::Array, 1) | (Self::LogRecord, 5) => Self::Value,
            (Self::Value, 5) => Self::Array,
            (Self::Value, 6) => Self::KeyValues,
            _ => return None,
        })
    }
}

fn count_protobuf(body: &[u8], kind: MessageKind) -> Result<(), TraceRefusal> {
    let mut open = vec![(kind, body)];
    let mut count = 0;
    while let Some((kind, rest)) = open.pop() {
        let Some((field, after)) = next_field(rest)? else { continue };
        open.push((kind, after));
        let Some((number, held)) = field else { continue };
        let Some(within) = kind.field(number) else { continue };
        count += 1;
        check_message_count(count)?;
        if matches!(within, MessageKind::Leaf) {
            continue;
        }
        if open.len() >= DEPTH_MAX {
            return Err(TraceRefusal::bad_request(format!("messages nest deeper than {DEPTH_MAX}")));
        }
        open.push((within, held));
    }
    Ok(())
}

/// A field's number and its content, if it is length-delimited.
type ProtobufField<'a> = Option<(u64, &'a [u8])>;

/// The first field of a message and the bytes after it; `None` at the end.
fn next_field(bytes: &[u8]) -> Result<Option<(ProtobufField<'_>, &[u8])>, TraceRefusal> {
    let cut = || TraceRefusal::bad_request("the body is not OTLP protobuf: it ends within a field");
    if bytes.is_empty() {
        return Ok(None);
    }
    let (key, rest) = varint(bytes).ok_or_else(cut)?;
    let skip = |count: usize| rest.get(count..).ok_or_else(cut);
    match key & 7 {
        0 => Ok(Some((None, varint(rest).ok_or_else(cut)?.1))),
        1 => Ok(Some((None, skip(8)?))),
        5 => Ok(Some((None, skip(4)?))),
        2 => {
            let (len, rest) = varint(rest).ok_or_else(cut)?;
            let len = usize::try_from(len).map_err(|_| cut())?;
            let (held, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
            Ok(Some((Some((key >> 3, held)), rest)))
        }
        _ => {
            Err(TraceRefusal::bad_request("the body is not OTLP protobuf: it has a group, and OTLP has none"))
        }
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(at + 1..)?));
        }
    }
    None
}

/// Counts the objects and arrays in JSON, outside of strings.
fn count_json(body: &[u8]) -> Result<(), TraceRefusal> {
    let (mut count, mut in_text, mut escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => {
                count += 1;
                check_message_count(count)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_message_count(count: usize) -> Result<(), TraceRefusal> {
    if count <= MESSAGES_MAX {
        return Ok(());
    }
    Err(TraceRefusal::payload_too_large(format!(
        "a body has at most {MESSAGES_MAX} spans, attributes, values, events and links together: send smaller batches"
    )))
}
