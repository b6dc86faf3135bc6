//! Responses of OTLP over HTTP: 200 with the number of rejected spans, or an error status with a
//! `google.rpc.Status`; both in the encoding of the request.

use annals::ErrorKind;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message as _;
use serde_json::json;

use super::wire::TraceEncoding;

/// Seconds after which a client should retry if the store could not write.
const RETRY_AFTER_S: u32 = 30;
/// Maximum number of rejection reasons in a response.
const REASONS_MAX: usize = 4;

/// The result of an accepted request; some of its spans may have been rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceReceipt {
    /// Spans that became frames.
    pub frames: u64,
    /// Spans that were frames already.
    pub duplicates: u64,
    /// Spans that can never be accepted: resending them gives the same answer.
    pub rejected: u64,
    /// Whether the request had log records.
    pub(super) is_logs: bool,
    reasons: Vec<String>,
}

impl TraceReceipt {
    pub(super) fn reject(&mut self, spans: usize, why: &str) {
        self.rejected += spans as u64;
        if self.reasons.len() < REASONS_MAX && self.reasons.iter().all(|known| known != why) {
            self.reasons.push(why.to_owned());
        }
    }

    /// Why spans were rejected, at most four reasons.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The response body, an `ExportTraceServiceResponse` or `ExportLogsServiceResponse`, which have the same
    /// fields in protobuf; its status is 200.
    pub fn body(&self, form: TraceEncoding) -> Vec<u8> {
        let message = self.reasons.join("; ");
        match (form, self.rejected) {
            (TraceEncoding::Protobuf, 0) => Vec::new(),
            (TraceEncoding::Json, 0) => b"{}".to_vec(),
            (TraceEncoding::Protobuf, rejected) => ExportTraceServiceResponse {
                partial_success: Some(ExportTracePartialSuccess {
                    rejected_spans: i64::try_from(rejected).unwrap_or(i64::MAX),
                    error_message: message,
                }),
            }
            .encode_to_vec(),
            (TraceEncoding::Json, rejected) => {
                let key = if self.is_logs { "rejectedLogRecords" } else { "rejectedSpans" };
                let partial = json!({ key: rejected.to_string(), "errorMessage": message });
                json!({ "partialSuccess": partial }).to_string().into_bytes()
            }
        }
    }
}

/// A failed request. None of it was stored, or the outcome is unknown and the same request may be resent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRefusal {
    /// The HTTP status of the response.
    pub status: u16,
    /// The value of `Retry-After`, if a retry may succeed.
    pub retry_after_s: Option<u32>,
    message: String,
}

impl TraceRefusal {
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: 400, retry_after_s: None, message: message.into() }
    }

    pub(super) fn payload_too_large(message: impl Into<String>) -> Self {
        Self { status: 413, retry_after_s: None, message: message.into() }
    }

    /// The error as a sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The response body, a `google.rpc.Status`.
    pub fn body(&self, form: TraceEncoding) -> Vec<u8> {
        // INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE, INTERNAL.
        let code: u8 = match self.status {
            400 => 3,
            413 => 8,
            503 => 14,
            _ => 13,
        };
        match form {
            TraceEncoding::Json => json!({ "code": code, "message": self.message }).to_string().into_bytes(),
            TraceEncoding::Protobuf => {
                // Field 1 is a number, field 2 a text.
                let mut bytes = vec![0x08, code, 0x12];
                prost::encoding::encode_varint(self.message.len() as u64, &mut bytes);
                bytes.extend_from_slice(self.message.as_bytes());
                bytes
            }
        }
    }
}

impl From<annals::Error> for TraceRefusal {
    fn from(error: annals::Error) -> Self {
        let (status, retry_after_s) = match error.kind() {
            ErrorKind::Unavailable | ErrorKind::Poisoned | ErrorKind::Locked | ErrorKind::Conflict => {
                (503, Some(RETRY_AFTER_S))
            }
            _ => (500, None),
        };
        Self { status, retry_after_s, message: error.to_string() }
    }
}
