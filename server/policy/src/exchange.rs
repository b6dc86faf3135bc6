//! The metadata of a recorded HTTP exchange. The request's body is the frame's input, the answer's body its
//! output; both are stored as sent, without the transfer coding.
//!
//! Values that differ between two recordings of the same exchange are stored under `volatile`, which no
//! fingerprint covers.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::redact::{Secrets, redact_headers};

/// The metadata key for the reason of a severity; time-dependent reasons are stored under `volatile`.
pub const WHY_SEVERE: &str = "why_severe";

/// Headers in the order they came. Each byte of a value is stored as one character U+0000 to U+00FF, so any
/// value round-trips.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub Vec<(String, String)>);

/// Headers that concern one connection only (RFC 9110, section 7.6.1), and `host`.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
];

impl Headers {
    /// All headers except those of the connection.
    #[must_use]
    pub fn from_map(map: &HeaderMap) -> Self {
        let named = connection_headers(map);
        let own = |name: &str| HOP_BY_HOP.contains(&name) || named.iter().any(|other| other == name);
        let pairs = map.iter().filter(|(name, _)| !own(name.as_str()));
        Self(pairs.map(|(name, value)| (name.as_str().to_owned(), latin1_text(value.as_bytes()))).collect())
    }

    /// The headers as a map; invalid headers are left out.
    #[must_use]
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in &self.0 {
            if let (Ok(name), Ok(value)) =
                (HeaderName::try_from(name), HeaderValue::from_bytes(&latin1_bytes(value)))
            {
                // A map holds some 32,000 headers; a file may claim more, and the rest is left out.
                let _ = map.try_append(name, value);
            }
        }
        map
    }

    /// The first value of a header; `name` is in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// Replaces every secret value by a placeholder, and returns their number.
    pub fn remove_secrets(&mut self) -> usize {
        let mut pairs: Vec<_> = self.0.drain(..).map(|(name, value)| (name, latin1_bytes(&value))).collect();
        let removed = redact_headers(&mut pairs);
        self.0 = pairs.into_iter().map(|(name, value)| (name, latin1_text(&value))).collect();
        removed
    }
}

impl Headers {
    /// Removes named secrets from every value, and returns their number.
    pub fn remove_named(&mut self, secrets: &Secrets) -> usize {
        let mut removed = 0;
        for (_, value) in &mut self.0 {
            let of = latin1_bytes(value);
            let cleared = secrets.redact(&of);
            if cleared.removed > 0 {
                removed += cleared.removed;
                *value = latin1_text(&cleared.bytes);
            }
        }
        removed
    }
}

fn connection_headers(map: &HeaderMap) -> Vec<String> {
    let values = map.get_all(http::header::CONNECTION).iter();
    let named = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    named.map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn latin1_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn latin1_bytes(value: &str) -> Vec<u8> {
    value.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// A frame's metadata.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExchangeMetadata {
    /// The request's line and the answer's status.
    pub http: HttpExchange,
    /// Model, usage, finish reason and similar facts, read from a copy.
    #[serde(flatten)]
    pub summary: Map<String, Value>,
    /// What differs between two recordings.
    pub volatile: VolatileExchange,
}

impl ExchangeMetadata {
    /// The metadata as it is stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The request's line and the answer's status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpExchange {
    /// The name of the mount that was called.
    pub mount: String,
    /// GET, POST, ...
    pub method: String,
    /// The path that the upstream was asked for.
    pub path: String,
    /// The query without its question mark and without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The answer's status; `None` if no answer came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why there is no complete answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// What differs between two recordings of the same exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolatileExchange {
    /// Keyed hash of the original request, before anything was removed from it; hexadecimal.
    pub asked: String,
    /// The request's headers.
    pub request_headers: Headers,
    /// The answer's headers.
    #[serde(default)]
    pub response_headers: Headers,
    /// Bytes of each part of the answer, in order of arrival.
    #[serde(default)]
    pub part_bytes: Vec<u64>,
    /// When each part came, in milliseconds after the request.
    #[serde(default)]
    pub part_ms: Vec<u64>,
    /// When the last byte of the answer came, in nanoseconds after the request. The connection may have ended
    /// later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_ns: Option<u64>,
    /// Whether annals gave the answer itself, from a recording or an edit: no upstream was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// Arrival order of identical requests, by the connections that carried them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<u64>,
    /// Other volatile values, from the answer's body.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl HttpExchange {
    /// The call's name, which tells requests apart besides their bodies: `POST openai
    /// /v1/chat/completions?a=b`.
    #[must_use]
    pub fn call(&self) -> String {
        let Self { mount, method, path, query, .. } = self;
        match query {
            Some(query) => format!("{method} {mount} {path}?{query}"),
            None => format!("{method} {mount} {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redact::PLACEHOLDER;

    /// A recording that claims more headers than a map can hold must not panic.
    #[test]
    fn too_many_headers_are_left_out() {
        let headers = Headers((0..40_000).map(|n| (format!("x-{n}"), "v".to_owned())).collect());
        assert!(headers.to_map().len() > 1000);
    }

    #[test]
    fn header_values_round_trip_without_secrets_and_hop_headers() {
        let mut map = HeaderMap::new();
        map.append("x-odd", HeaderValue::from_bytes(b"caf\xe9 \xc3\xa9").unwrap());
        map.append("set-cookie", HeaderValue::from_static("a=1"));
        map.append("set-cookie", HeaderValue::from_static("b=2"));
        map.append("authorization", HeaderValue::from_static("Bearer sk-1"));
        map.append("connection", HeaderValue::from_static("close, X-Hop"));
        map.append("x-hop", HeaderValue::from_static("1"));
        map.append("transfer-encoding", HeaderValue::from_static("chunked"));
        map.append("x-ratelimit-remaining-tokens", HeaderValue::from_static("99"));
        let mut headers = Headers::from_map(&map);
        assert_eq!(headers.to_map().get("x-odd").unwrap().as_bytes(), b"caf\xe9 \xc3\xa9");
        assert_eq!(headers.to_map().get_all("set-cookie").iter().count(), 2);
        assert_eq!(headers.get("x-hop"), None);
        assert_eq!(headers.get("transfer-encoding"), None);
        assert_eq!(headers.remove_secrets(), 3);
        assert_eq!(headers.get("authorization"), Some(PLACEHOLDER));
        assert_eq!(headers.get("x-ratelimit-remaining-tokens"), Some("99"));
    }
}
