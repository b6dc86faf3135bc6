//! Removes secrets from addresses: values of query keys, and the password before a host.

use super::PLACEHOLDER;
use crate::secret_names::is_secret_key;

/// Replaces the values of secret query keys in a request's target; all other bytes stay. A fragment is
/// treated like a query, because some servers put tokens into it. Returns the new target and the number of
/// removed values.
#[must_use]
pub fn redact_target(target: &[u8]) -> (Vec<u8>, usize) {
    let Some(first) = memchr::memchr2(b'?', b'#', target) else { return (target.to_vec(), 0) };
    let (path, query) = target.split_at(first + 1);
    let mut redacted = path.to_vec();
    let mut removed = 0;
    let separates = |byte: &u8| matches!(byte, b'&' | b';' | b'?' | b'#');
    for pair in query.split_inclusive(separates) {
        let len = pair.len() - usize::from(pair.last().is_some_and(separates));
        let (pair, separator) = pair.split_at(len);
        let equals = memchr::memchr(b'=', pair).map(|at| at + 1);
        let (key, value) = pair.split_at(equals.unwrap_or(pair.len()));
        redacted.extend_from_slice(key);
        let name = String::from_utf8_lossy(key.strip_suffix(b"=").unwrap_or(key));
        if value.is_empty() || value == PLACEHOLDER.as_bytes() || !is_secret_key(&name) {
            redacted.extend_from_slice(value);
        } else {
            redacted.extend_from_slice(PLACEHOLDER.as_bytes());
            removed += 1;
        }
        redacted.extend_from_slice(separator);
    }
    (redacted, removed)
}

/// As [`redact_target`], and the password of `scheme://user:password@host`.
#[must_use]
pub fn redact_url(url: &[u8]) -> (Vec<u8>, usize) {
    let (mut redacted, mut removed) = redact_target(url);
    if let Some((from, to)) = password(&redacted)
        && &redacted[from..to] != PLACEHOLDER.as_bytes()
    {
        redacted.splice(from..to, PLACEHOLDER.bytes());
        removed += 1;
    }
    (redacted, removed)
}

/// The position of a password, if there is one.
fn password(url: &[u8]) -> Option<(usize, usize)> {
    let start = memchr::memmem::find(url, b"//")? + 2;
    let authority = url[start..].split(|byte| matches!(byte, b'/' | b'?' | b'#')).next()?;
    let at = memchr::memrchr(b'@', authority)?;
    let colon = memchr::memchr(b':', &authority[..at])?;
    (colon + 1 < at).then_some((start + colon + 1, start + at))
}

#[cfg(test)]
mod tests {
    use super::{redact_target, redact_url};

    #[test]
    fn secret_query_values_are_removed_and_the_rest_stays() {
        for (target, expected, count) in [
            (
                "/v1beta/models/g:generateContent?key=AIza&alt=sse",
                "/v1beta/models/g:generateContent?key=annals-redacted&alt=sse",
                1,
            ),
            ("/x?a=%20b&&sig=1;sig=2&&b", "/x?a=%20b&&sig=annals-redacted;sig=annals-redacted&&b", 2),
            ("/x?key=a=b=c#key=d&e", "/x?key=annals-redacted#key=annals-redacted&e", 2),
            ("/x?k%65y=1", "/x?k%65y=annals-redacted", 1),
            ("/x?key=&key", "/x?key=&key", 0),
            ("/key=1", "/key=1", 0),
            ("/x?a?key=1&api_key=2", "/x?a?key=annals-redacted&api_key=annals-redacted", 2),
            ("", "", 0),
            ("?", "?", 0),
        ] {
            let (redacted, removed) = redact_target(target.as_bytes());
            assert_eq!(
                (String::from_utf8(redacted).unwrap().as_str(), removed),
                (expected, count),
                "{target}"
            );
        }
        let odd = b"/\xff?\xfe=1&key=\xfd".as_slice();
        assert_eq!(redact_target(odd), (b"/\xff?\xfe=1&key=annals-redacted".to_vec(), 1));
    }

    #[test]
    fn password_before_a_host_is_removed() {
        for (url, expected) in [
            ("http://u:p@h:80/?a=b", "http://u:annals-redacted@h:80/?a=b"),
            ("http://u:p@q@h/", "http://u:annals-redacted@h/"),
            ("http://u:@h/a@b", "http://u:@h/a@b"),
            ("http://h/u:p@x", "http://h/u:p@x"),
            ("/relative", "/relative"),
        ] {
            assert_eq!(redact_url(url.as_bytes()).0, expected.as_bytes(), "{url}");
        }
    }
}
