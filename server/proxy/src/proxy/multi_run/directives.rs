//! What a request says to annals besides its request to the upstream: a token, the run, the replay's session.
//! All of it is removed here, before the request is used.
//!
//! ```text
//! /proxy/[TOKEN@]RUN/MOUNT/v1/...                    the path
//! x-annals-run: RUN, x-annals-token: TOKEN           headers, with /proxy/MOUNT/v1/...
//! x-annals-tenant: T, -principal: P, -conversation: C, x-annals-memory: off, x-annals-memory-for: 180d, -memory-commits: on
//!                                                    headers in any form: tags of a new run
//! Authorization: Bearer KEY+annals:[TOKEN:]RUN       behind a key, with /proxy/MOUNT/v1/...
//! ```
//!
//! `/replay` works the same for a replayed run, and so does `x-annals-replay: RUN`; `RUN;SESSION` names one
//! of several replays. TOKEN, RUN and SESSION are percent-decoded once. Values given twice must agree. No
//! refusal repeats a possible token.

use annals::runs::RUN_NAME_BYTES_MAX;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;

use super::RequestRefusal;
use crate::mounts::Mounts;
use annals_review::run_memory;
use annals_text::percent;

/// Path prefixes of requests to record and to replay.
pub const RECORDED: &str = "/proxy";
pub const REPLAYED: &str = "/replay";

/// Headers with this prefix are for annals.
const HEADER_PREFIX: &str = "x-annals";
const RUN: &str = "x-annals-run";
const REPLAY: &str = "x-annals-replay";
const TOKEN: &str = "x-annals-token";
/// Headers that become tags of the run.
const TAGS: [(&str, &str); 6] = [
    ("x-annals-tenant", run_memory::TENANT_TAG),
    ("x-annals-principal", run_memory::PRINCIPAL_TAG),
    ("x-annals-conversation", run_memory::CONVERSATION_TAG),
    ("x-annals-memory", run_memory::MEMORY_TAG),
    ("x-annals-memory-for", run_memory::MEMORY_FOR_TAG),
    ("x-annals-memory-commits", run_memory::MEMORY_COMMITS_TAG),
];

/// Headers that clients send a key in.
const KEYS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
/// Separates a key from the directives behind it.
const MARK: &str = "+annals:";

const TOKEN_BYTES_MAX: usize = 1024;
const TAG_BYTES_MAX: usize = 2048;
const SESSION_BYTES_MAX: usize = 128;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyAction {
    /// Pass it on and record it.
    Record,
    /// Answer it from a recording.
    Replay,
}

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProxyDirectives {
    pub(super) wants: ProxyAction,
    pub(super) token: Option<String>,
    pub(super) run: String,
    /// Empty if none is named.
    pub(super) session: String,
    pub(super) mount: String,
    /// The path below the mount.
    pub(super) path: String,
    /// Tags for the run, if the request begins it.
    pub(super) tags: Vec<(String, String)>,
}

/// Removes the directives from a request. The request's own path must not be used afterwards.
///
/// # Errors
/// 400 if the directives are malformed or contradict each other.
pub(super) fn take(parts: &mut Parts, mounts: &Mounts) -> Result<ProxyDirectives, RequestRefusal> {
    let mut all = PartialDirectives::default();
    let (begins, rest) =
        split_prefix(parts.uri.path()).ok_or_else(|| wrong("this is not an address of the proxy"))?;
    let mut replays = begins == REPLAYED;
    for (name, is_replay) in [(RUN, false), (REPLAY, true)] {
        for value in parts.headers.get_all(name) {
            all.run(text(value.as_bytes())?)?;
            replays |= is_replay;
        }
    }
    if parts.headers.contains_key(RUN) && parts.headers.contains_key(REPLAY) {
        return Err(wrong("a request is for x-annals-run or for x-annals-replay, not for both"));
    }
    for value in parts.headers.get_all(TOKEN) {
        all.token(text(value.as_bytes())?)?;
    }
    let mut tags = Vec::new();
    for (name, key) in TAGS {
        let mut known = None;
        for value in parts.headers.get_all(name) {
            let value = decoded(text(value.as_bytes())?)?;
            if value.len() > TAG_BYTES_MAX {
                return Err(wrong(format!("{name} has at most {TAG_BYTES_MAX} bytes")));
            }
            set_once(&mut known, value, &format!("{name} is given twice with different values"))?;
        }
        tags.extend(known.map(|value| (key.to_owned(), value)));
    }
    let ours: Vec<HeaderName> =
        parts.headers.keys().filter(|name| name.as_str().starts_with(HEADER_PREFIX)).cloned().collect();
    ours.iter().for_each(|name| drop(parts.headers.remove(name)));
    for name in KEYS {
        cut_key_suffix(&mut parts.headers, &HeaderName::from_static(name), &mut all)?;
    }
    let (first, after) = split_segment(rest);
    let in_path = match &all.run {
        None => true,
        Some(named) => {
            let (second, _) = split_segment(after);
            let is_mount = |segment: &str| mounts.get(segment).is_some();
            let is_same = || decoded(first).is_ok_and(|run| run == *named);
            first.contains(['@', ';']) || !is_mount(first) && (is_mount(second) || is_same())
        }
    };
    let (mount, path) = if in_path {
        let (token, run) = first.split_once('@').unwrap_or(("", first));
        all.token(token)?;
        all.run(run)?;
        split_segment(after)
    } else {
        (first, after)
    };
    let run = all.run.ok_or_else(|| wrong("no run is named"))?;
    if !replays && all.session.is_some() {
        return Err(wrong("a session (RUN;SESSION) is only for a replay: write ';' in a run's name as %3B"));
    }
    Ok(ProxyDirectives {
        wants: if replays { ProxyAction::Replay } else { ProxyAction::Record },
        token: all.token,
        run,
        session: all.session.unwrap_or_default(),
        mount: mount.to_owned(),
        path: single_slash(path).to_owned(),
        tags,
    })
}

/// The directives found so far.
#[derive(Debug, Default)]
struct PartialDirectives {
    token: Option<String>,
    run: Option<String>,
    session: Option<String>,
}

impl PartialDirectives {
    /// `RUN` or `RUN;SESSION`.
    fn run(&mut self, said: &str) -> Result<(), RequestRefusal> {
        let (run, session) = match said.split_once(';') {
            Some((run, session)) => (run, Some(session)),
            None => (said, None),
        };
        let run = decoded(run)?;
        if !(1..=RUN_NAME_BYTES_MAX).contains(&run.len()) {
            return Err(wrong(format!("a run's name is UTF-8 of 1 to {RUN_NAME_BYTES_MAX} bytes")));
        }
        set_once(&mut self.run, run, "two different runs are named")?;
        if let Some(session) = session {
            let session = decoded(session)?;
            if !(1..=SESSION_BYTES_MAX).contains(&session.len()) {
                return Err(wrong(format!("a session's name is UTF-8 of 1 to {SESSION_BYTES_MAX} bytes")));
            }
            set_once(&mut self.session, session, "two different sessions are named")?;
        }
        Ok(())
    }

    /// A token; may be empty.
    fn token(&mut self, said: &str) -> Result<(), RequestRefusal> {
        if said.is_empty() {
            return Ok(());
        }
        let token = decoded(said)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(wrong(format!("a token has at most {TOKEN_BYTES_MAX} bytes")));
        }
        set_once(&mut self.token, token, "two different tokens are given")
    }
}

fn set_once(known: &mut Option<String>, said: String, otherwise: &str) -> Result<(), RequestRefusal> {
    match known {
        Some(known) if *known != said => Err(wrong(otherwise)),
        _ => {
            *known = Some(said);
            Ok(())
        }
    }
}

/// Removes the directives behind the keys of a header. A key that consisted only of directives is removed
/// whole.
fn cut_key_suffix(
    headers: &mut HeaderMap,
    name: &HeaderName,
    all: &mut PartialDirectives,
) -> Result<(), RequestRefusal> {
    let has_mark = |value: &HeaderValue| memchr::memmem::find(value.as_bytes(), MARK.as_bytes()).is_some();
    if !headers.get_all(name).iter().any(has_mark) {
        return Ok(());
    }
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    for value in values {
        let Some((key, said)) = has_mark(&value)
            .then(|| text(value.as_bytes()))
            .transpose()?
            .and_then(|value| value.split_once(MARK))
        else {
            headers.append(name, value);
            continue;
        };
        if said.contains(MARK) {
            return Err(wrong("a key is followed by two runs"));
        }
        let (token, run) = said.split_once(':').unwrap_or(("", said));
        all.token(token)?;
        all.run(run)?;
        if !matches!(key.trim().to_ascii_lowercase().as_str(), "" | "bearer") {
            let mut key =
                HeaderValue::from_str(key).map_err(|_| wrong("a key is not a valid header value"))?;
            key.set_sensitive(true);
            headers.append(name, key);
        }
    }
    Ok(())
}

/// The prefix that a path begins with, and the rest.
fn split_prefix(path: &str) -> Option<(&'static str, &str)> {
    let path = single_slash(path);
    [RECORDED, REPLAYED].into_iter().find_map(|begins| {
        let rest = path.strip_prefix(begins)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((begins, rest))
    })
}

/// The first segment of a path, and the rest. Some clients join a path to a base that ends in a slash, which
/// gives two slashes.
fn split_segment(path: &str) -> (&str, &str) {
    let path = path.trim_start_matches('/');
    path.split_at(path.find('/').unwrap_or(path.len()))
}

/// The path with a single slash at its beginning.
fn single_slash(path: &str) -> &str {
    let doubled = path.len() - path.trim_start_matches('/').len();
    &path[doubled.saturating_sub(1)..]
}

fn text(bytes: &[u8]) -> Result<&str, RequestRefusal> {
    std::str::from_utf8(bytes).map_err(|_| wrong("a header for annals is not UTF-8"))
}

fn decoded(text: &str) -> Result<String, RequestRefusal> {
    percent::decode_exactly(text)
        .ok_or_else(|| wrong("values for annals are percent-encoded UTF-8; write a percent sign as %25"))
}

fn wrong(why: impl Into<String>) -> RequestRefusal {
    RequestRefusal::new(StatusCode::BAD_REQUEST, why)
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;
    use crate::proxy::UpstreamOptions;

    fn directives_of(
        path: &str,
        headers: &[(&str, &str)],
    ) -> (Result<ProxyDirectives, RequestRefusal>, Vec<(String, String)>) {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        let said = take(&mut parts, &UpstreamOptions::default().mounts().unwrap());
        let left =
            parts.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        (said, left.collect())
    }

    #[track_caller]
    fn assert_directives(
        path: &str,
        headers: &[(&str, &str)],
        expected: (ProxyAction, &str, &str, &str, &str, &str),
        left: &[(&str, &str)],
    ) {
        let (got, got_left) = directives_of(path, headers);
        let got = got.unwrap();
        let token = got.token.as_deref().unwrap_or("-");
        assert_eq!((got.wants, token, &*got.run, &*got.session, &*got.mount, &*got.path), expected);
        let left: Vec<_> =
            left.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(got_left, left);
    }

    #[test]
    fn directives_are_read_and_removed_in_every_form() {
        use ProxyAction::{Record, Replay};
        let plain = (Record, "-", "r", "", "openai", "/v1/x");
        assert_directives("/proxy/r/openai/v1/x?a=b", &[("a", "b")], plain, &[("a", "b")]);
        assert_directives("//proxy//r/openai//v1/x", &[], plain, &[]);
        assert_directives("/proxy/openai/v1/x", &[("x-annals-run", "r"), ("X-Annals-Else", "1")], plain, &[]);
        assert_directives(
            "/proxy/openai/v1/x",
            &[("authorization", "Bearer k+annals:r")],
            plain,
            &[("authorization", "Bearer k")],
        );
        let with = (Record, "t", "r", "", "openai", "/v1/x");
        assert_directives("/proxy/t@r/openai/v1/x", &[], with, &[]);
        assert_directives("/proxy/openai/v1/x", &[("x-annals-run", "r"), ("x-annals-token", "t")], with, &[]);
        for name in KEYS {
            assert_directives("/proxy/openai/v1/x", &[(name, "k+annals:t:r")], with, &[(name, "k")]);
            assert_directives("/proxy/openai/v1/x", &[(name, "+annals:t:r")], with, &[]);
        }
        assert_directives("/proxy/openai/v1/x", &[("authorization", "Bearer +annals:t:r")], with, &[]);
        let replay = (Replay, "t", "r", "s", "openai", "/v1/x");
        assert_directives("/replay/t@r;s/openai/v1/x", &[], replay, &[]);
        assert_directives(
            "/proxy/openai/v1/x",
            &[("x-annals-replay", "r;s"), ("x-annals-token", "t")],
            replay,
            &[],
        );
        assert_directives(
            "/replay/openai/v1/x",
            &[("x-api-key", "k+annals:t:r;s")],
            replay,
            &[("x-api-key", "k")],
        );
        assert_directives("/replay/t@r;s", &[], (Replay, "t", "r", "s", "", ""), &[]);
    }

    #[test]
    fn run_names_are_percent_decoded_once() {
        let named = |run| (ProxyAction::Record, "-", run, "", "openai", "/v1/%2F");
        assert_directives("/proxy/a%2Fb%3Bc%40d%2525/openai/v1/%2F", &[], named("a/b;c@d%25"), &[]);
        assert_directives("/proxy/openai/v1/%2F", &[("x-annals-run", "%C3%A9@x")], named("é@x"), &[]);
        assert_directives(
            "/proxy/openai/v1/%2F",
            &[("api-key", "k+annals::a%3Ab")],
            named("a:b"),
            &[("api-key", "k")],
        );
        for bad in ["%ff", "%", "%zz", "", ";", "a;"] {
            let (got, _) = directives_of("/proxy/openai/v1", &[("x-annals-run", bad)]);
            assert_eq!(got.unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
        let long = "x".repeat(RUN_NAME_BYTES_MAX + 1);
        assert!(directives_of(&format!("/proxy/{long}/openai/v1"), &[]).0.is_err());
        // A run may have the name of an upstream.
        assert_directives("/proxy/openai/openai/v1/%2F", &[], named("openai"), &[]);
        assert!(directives_of("/proxyr/openai/v1", &[]).0.is_err());
    }

    #[test]
    fn memory_tag_headers_are_read_and_removed() {
        let headers = [
            ("x-annals-conversation", "app%2042"),
            ("x-annals-tenant", "lending"),
            ("x-annals-memory", "off"),
            ("x-annals-tenant", "lending"),
        ];
        let (got, left) = directives_of("/proxy/r/openai/v1", &headers);
        let tags = [("tenant", "lending"), ("conversation", "app 42"), ("memory", "off")];
        assert_eq!(got.unwrap().tags, tags.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert!(left.is_empty());
        let long = "x".repeat(TAG_BYTES_MAX + 1);
        for bad in [
            &[("x-annals-tenant", "a"), ("x-annals-tenant", "b")][..],
            &[("x-annals-principal", "%ff")],
            &[("x-annals-conversation", &long)],
        ] {
            assert_eq!(
                directives_of("/proxy/r/openai/v1", bad).0.unwrap_err().status,
                StatusCode::BAD_REQUEST
            );
        }
    }

    #[test]
    fn contradicting_directives_are_refused_without_the_token() {
        let ways = [
            ("/proxy/t0ken@a/openai/v1", vec![("x-annals-run", "b")]),
            ("/proxy/a/openai/v1", vec![("x-annals-run", "b")]),
            ("/proxy/a/openai/v1", vec![("authorization", "Bearer k+annals:t0ken:b")]),
            ("/proxy/openai/v1", vec![("x-annals-run", "a"), ("x-api-key", "k+annals:b")]),
            ("/proxy/openai/v1", vec![("x-annals-run", "a"), ("x-annals-run", "b")]),
            ("/proxy/openai/v1", vec![("x-annals-run", "a"), ("x-annals-replay", "a")]),
            ("/proxy/openai/v1", vec![("authorization", "k+annals:a"), ("x-api-key", "k+annals:b")]),
            ("/proxy/openai/v1", vec![("authorization", "k+annals:t0ken:a+annals:t0ken:a")]),
            ("/proxy/t0ken@a/openai/v1", vec![("x-annals-token", "other")]),
            ("/replay/a;s/openai/v1", vec![("x-annals-run", "a;u")]),
            ("/proxy/a;s/openai/v1", vec![]),
            ("/proxy", vec![]),
        ];
        for (path, headers) in ways {
            let refused = directives_of(path, &headers).0.expect_err(path);
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path} {headers:?}");
            assert!(!refused.why.contains("t0ken"), "{}", refused.why);
        }
        // The same value, given in all three ways.
        let all = [("x-annals-run", "a"), ("x-annals-token", "t"), ("authorization", "Bearer k+annals:t:a")];
        let expected = (ProxyAction::Record, "t", "a", "", "openai", "/v1");
        assert_directives("/proxy/t@a/openai/v1", &all, expected, &[("authorization", "Bearer k")]);
    }
}
