//! Secret headers: their values are replaced; names and order stay.

use super::PLACEHOLDER;
use super::address::redact_url;
use crate::secret_names::holds_secret_word;

/// Words that make a header secret, anywhere in its name.
const WORDS: [&str; 5] = ["auth", "key", "token", "secret", "cookie"];
/// Authorization schemes that make a header secret, at the beginning of its value.
const SCHEMES: [&[u8]; 2] = [b"bearer", b"basic"];
/// Credentials whose names contain no secret word.
const NAMES: [&str; 3] = ["x-auth", "x-key", "x-pass"];
/// Headers with an address as value, which may contain a secret.
const ADDRESSES: [&str; 5] =
    ["location", "content-location", "referer", "azure-asyncoperation", "operation-location"];
/// Headers that a client needs in a replay, and that hold no secret: challenges (RFC 9110, section 11.6.1)
/// and the handshake of WebSocket (RFC 6455).
const HARMLESS: [&str; 4] =
    ["www-authenticate", "proxy-authenticate", "sec-websocket-key", "access-control-allow-credentials"];

/// Whether a header holds a credential: `authorization`, `proxy-authorization`, `x-api-key`, `api-key`,
/// `x-goog-api-key`, `cookie`, `set-cookie`, `x-amz-security-token`, and every name that contains a secret
/// word. [`redact_headers`] removes more: what may hold one.
#[must_use]
pub fn is_credential_header(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    !HARMLESS.contains(&name.as_str()) && (NAMES.contains(&name.as_str()) || holds_secret_word(&name))
}

/// Whether a header's value is removed before it is stored.
fn is_removed(name: &str, value: &[u8]) -> bool {
    let name = name.trim().to_ascii_lowercase();
    if HARMLESS.contains(&name.as_str()) {
        return false;
    }
    // Clients wait by these counts: `x-ratelimit-remaining-tokens`, `x-amzn-bedrock-input-token-count`.
    let is_count = name.contains("token") && (name.contains("ratelimit") || name.ends_with("-count"));
    let begins_with = |scheme: &&[u8]| {
        let value = value.trim_ascii_start();
        value.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
            && value.get(scheme.len()).is_none_or(u8::is_ascii_whitespace)
    };
    is_credential_header(&name)
        || !is_count && WORDS.iter().any(|word| name.contains(word))
        || SCHEMES.iter().any(begins_with)
}

/// Replaces the values of headers whose names contain `auth`, `key`, `token`, `secret` or `cookie` or another
/// secret word, of headers that begin with `Bearer` or `Basic`, and secrets within addresses such as `location`. Returns the number
/// of removed values; empty ones stay.
pub fn redact_headers(headers: &mut [(String, Vec<u8>)]) -> usize {
    let mut removed = 0;
    for (name, value) in headers {
        if is_removed(name, value) {
            if !value.is_empty() && value != PLACEHOLDER.as_bytes() {
                *value = PLACEHOLDER.into();
                removed += 1;
            }
        } else if ADDRESSES.iter().any(|address| name.eq_ignore_ascii_case(address)) {
            let (redacted, count) = redact_url(value);
            if count > 0 {
                *value = redacted;
                removed += count;
            }
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::{is_credential_header, redact_headers};

    #[test]
    fn credential_headers_are_recognised() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "x-api-key",
            "api-key",
            "X-Goog-Api-Key",
            "cookie",
            "Set-Cookie",
            "x-amz-security-token",
            "x-auth-token",
            "X_API_KEY",
            "apikey",
            "ocp-apim-subscription-key",
            "x-functions-key",
            "cf-access-client-secret",
            "x-csrf-token",
            "x-tokens",
        ] {
            assert!(is_credential_header(name), "{name}");
        }
        for name in [
            "content-type",
            "x-ratelimit-remaining-tokens",
            "anthropic-ratelimit-input-tokens-reset",
            "x-amzn-bedrock-input-token-count",
            "idempotency-key",
            "sec-websocket-key",
            "retry-after",
            "openai-organization",
            "x-request-id",
            "www-authenticate",
        ] {
            assert!(!is_credential_header(name), "{name}");
        }
    }

    /// Keys of gateways stood in clear on disk: their names held no known secret word.
    #[test]
    fn headers_that_may_hold_a_key_are_removed() {
        let removed = |name: &str, value: &str| {
            redact_headers(&mut [(name.to_owned(), value.as_bytes().to_vec())]) == 1
        };
        for (name, value) in [
            ("helicone-auth", "Bearer sk-helicone-1"),
            ("x-portkey-virtual-key", "openai-virtual-1"),
            ("x-langsmith-key", "lsv2_pt_1"),
            ("x-custom", "Bearer abc"),
            ("X-Custom", "basic dTpw"),
            ("idempotency-key", "k1"),
            ("x-anything-secretive", "v"),
        ] {
            assert!(removed(name, value), "{name}: {value}");
        }
        for (name, value) in [
            ("www-authenticate", "Bearer realm=\"x\""),
            ("proxy-authenticate", "Basic realm=\"x\""),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("anthropic-ratelimit-tokens-reset", "2026-11-24T10:00:00Z"),
            ("x-amzn-bedrock-input-token-count", "12"),
            ("keep-alive", "timeout=5"),
            ("x-note", "Bearers of news"),
        ] {
            assert!(!removed(name, value), "{name}: {value}");
        }
    }

    #[test]
    fn secret_header_values_are_removed() {
        let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let mut headers = vec![
            header("Host", "h"),
            header("Authorization", "Bearer sk-1"),
            header("x-api-key", ""),
            header("Set-Cookie", "a=1"),
            header("Set-Cookie", "b=2"),
            ("cookie".to_owned(), vec![0xff, 0xfe]),
            header("Location", "https://u:pw@s3/x?a=1&X-Amz-Signature=5&b=2#c=3"),
        ];
        assert_eq!(redact_headers(&mut headers), 6);
        let shown: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value)))
            .collect();
        assert_eq!(
            shown,
            [
                "Host: h",
                "Authorization: annals-redacted",
                "x-api-key: ",
                "Set-Cookie: annals-redacted",
                "Set-Cookie: annals-redacted",
                "cookie: annals-redacted",
                "Location: https://u:annals-redacted@s3/x?a=1&X-Amz-Signature=annals-redacted&b=2#c=3",
            ]
        );
        assert_eq!(redact_headers(&mut headers), 0, "what was redacted stays as it is");
    }
}
