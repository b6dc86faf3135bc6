//! Secret headers: their values are replaced; names and order stay.

use super::PLACEHOLDER;
use super::address::redact_url;
use crate::secret_names::holds_secret_word;

/// Secret headers whose names contain no secret word.
const NAMES: [&str; 3] = ["x-auth", "x-key", "x-pass"];
/// Headers with an address as value, which may contain a secret.
const ADDRESSES: [&str; 5] =
    ["location", "content-location", "referer", "azure-asyncoperation", "operation-location"];
/// Harmless headers whose names contain a secret word.
const HARMLESS: [&str; 2] = ["sec-websocket-key", "access-control-allow-credentials"];

/// Whether a header's value is secret: `authorization`, `proxy-authorization`, `x-api-key`, `api-key`,
/// `x-goog-api-key`, `cookie`, `set-cookie`, `x-amz-security-token`, and every name that contains a secret
/// word.
#[must_use]
pub fn is_secret_header(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    !HARMLESS.contains(&name.as_str()) && (NAMES.contains(&name.as_str()) || holds_secret_word(&name))
}

/// Replaces the values of secret headers, and secrets within addresses such as `location`. Returns the number
/// of removed values; empty ones stay.
pub fn redact_headers(headers: &mut [(String, Vec<u8>)]) -> usize {
    let mut removed = 0;
    for (name, value) in headers {
        if is_secret_header(name) {
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
    use super::{is_secret_header, redact_headers};

    #[test]
    fn secret_headers_are_recognised() {
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
            assert!(is_secret_header(name), "{name}");
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
            assert!(!is_secret_header(name), "{name}");
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
