//! Profiles: the rules for what a reader sees, and the redactor that applies them.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use annals::replay::matching::Path;
use regex::Regex;

use super::body;
use super::json::ProfilePaths;
use crate::detect::{Detector, Detectors};
use crate::exchange::ExchangeMetadata;

/// Maximum size of a redacted body in bytes, also after decompression: it is held in memory as a whole. A
/// longer body is replaced by a placeholder.
pub const REDACTED_BODY_BYTES_MAX: usize = 32 << 20;

/// What a match was found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RedactionKind {
    /// A JSON path.
    Path,
    /// The body is JSON that is nested too deep to be searched.
    Deep,
    /// A pattern of the profile, by its number.
    Pattern(u16),
    Detector(Detector),
}

/// A regular expression of the user.
#[derive(Debug, Clone)]
pub(super) struct ProfilePattern {
    pub(super) name: String,
    pub(super) regex: Regex,
}

/// What a profile removes.
#[derive(Debug, Clone)]
pub(super) struct ProfileRules {
    pub(super) detectors: Detectors,
    pub(super) patterns: Vec<ProfilePattern>,
    pub(super) paths: ProfilePaths,
    /// Makes the placeholders instead of the store's key.
    pub(super) key: Option<[u8; 32]>,
}

impl ProfileRules {
    /// The name of a kind in placeholders.
    pub(super) fn kind_name(&self, kind: RedactionKind) -> &str {
        match kind {
            RedactionKind::Path => "path",
            RedactionKind::Deep => "deep",
            RedactionKind::Pattern(number) => {
                self.patterns.get(usize::from(number)).map_or("pattern", |of| of.name.as_str())
            }
            RedactionKind::Detector(detector) => detector.name(),
        }
    }
}

/// What a reader sees of the stored data.
///
/// ```
/// use annals_policy::profiles::{Profile, Redactor};
///
/// let redactor = Redactor::new(&Profile::safe(), [7; 32]);
/// let shown = redactor.body(br#"{"to":"anna@example.com"}"#, None);
/// let text = String::from_utf8(shown.bytes.into_owned())?;
/// assert!(text.starts_with(r#"{"to":"[email:"#) && text.ends_with(r#"]"}"#));
/// # Ok::<(), std::string::FromUtf8Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Profile {
    name: Arc<str>,
    /// `None`: everything is shown unchanged.
    pub(super) rules: Option<Arc<ProfileRules>>,
}

impl Profile {
    /// Everything as stored.
    #[must_use]
    pub fn raw() -> Self {
        Self { name: "raw".into(), rules: None }
    }

    /// All detectors, without user rules.
    #[must_use]
    pub fn safe() -> Self {
        let rules = ProfileRules {
            detectors: Detectors::ALL,
            patterns: Vec::new(),
            paths: ProfilePaths::default(),
            key: None,
        };
        Self::new("safe", rules)
    }

    pub(super) fn new(name: &str, rules: ProfileRules) -> Self {
        Self { name: name.into(), rules: Some(Arc::new(rules)) }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it shows everything as stored.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.rules.is_none()
    }

    /// Whether it has a key of its own and does not need the store's.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.key.is_some())
    }
}

/// Applies a profile to bodies.
#[derive(Clone)]
pub struct Redactor {
    profile: Profile,
    key: [u8; 32],
    /// The profile's rules for metadata, which contains hashes of requests.
    metadata_rules: Option<Arc<ProfileRules>>,
}

/// A body as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedBody<'a> {
    /// The bytes; borrowed if nothing was replaced.
    pub bytes: Cow<'a, [u8]>,
    /// The number of placeholders in it.
    pub replaced: usize,
}

/// A frame's bytes as a reader sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedFrame {
    /// The input.
    pub input: Vec<u8>,
    /// The output.
    pub output: Vec<u8>,
    /// The metadata.
    pub metadata: Vec<u8>,
}

/// The content encodings of a frame's input and output, from its metadata.
pub fn encodings(metadata: &[u8]) -> (Option<String>, Option<String>) {
    let Ok(of) = serde_json::from_slice::<ExchangeMetadata>(metadata) else { return (None, None) };
    let encoding = |headers: &crate::exchange::Headers| headers.get("content-encoding").map(str::to_owned);
    (encoding(&of.volatile.request_headers), encoding(&of.volatile.response_headers))
}

/// The values that would allow guesses to be tested: in metadata, the request hash key and the hashes; in a memory's
/// snapshot, the hashes of its commit log.
static HASH_PATHS: LazyLock<Vec<Path>> = LazyLock::new(|| {
    let paths =
        ["$.program.key", "$.volatile.asked", "$.commitLog[*].input.blake3", "$.commitLog[*].output.blake3"];
    paths.iter().filter_map(|path| Path::parse(path).ok()).collect()
});

impl Redactor {
    /// A redactor for a profile; `key` makes the placeholders if the profile has no key.
    #[must_use]
    pub fn new(profile: &Profile, key: [u8; 32]) -> Self {
        let own = profile.rules.as_ref().and_then(|rules| rules.key);
        let of_metadata = profile.rules.as_ref().map(|rules| {
            let mut rules = ProfileRules::clone(rules);
            rules.paths.removed.extend(HASH_PATHS.iter().cloned());
            Arc::new(rules)
        });
        Self { profile: profile.clone(), key: own.unwrap_or(key), metadata_rules: of_metadata }
    }

    /// The profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Redacts a body. A changed body is returned without its content encoding. If the encoding is unknown,
    /// or the body is binary or longer than [`REDACTED_BODY_BYTES_MAX`], the result is a placeholder with
    /// type and size.
    #[must_use]
    pub fn body<'a>(&self, stored: &'a [u8], content_encoding: Option<&str>) -> RedactedBody<'a> {
        match &self.profile.rules {
            Some(rules) => body::redact(rules, &self.key, stored, content_encoding),
            None => RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 },
        }
    }

    /// Redacts the metadata of a run or a frame, or a memory's snapshot. Hashes that would allow guesses to be
    /// tested are removed, too.
    #[must_use]
    pub fn metadata<'a>(&self, stored: &'a [u8]) -> RedactedBody<'a> {
        match &self.metadata_rules {
            Some(rules) => body::redact(rules, &self.key, stored, None),
            None => RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 },
        }
    }

    /// Redacts a frame.
    #[must_use]
    pub fn frame(&self, input: &[u8], output: &[u8], metadata: &[u8]) -> RedactedFrame {
        let (asked, answered) = encodings(metadata);
        RedactedFrame {
            input: self.body(input, asked.as_deref()).bytes.into_owned(),
            output: self.body(output, answered.as_deref()).bytes.into_owned(),
            metadata: self.metadata(metadata).bytes.into_owned(),
        }
    }

    /// Whether a body of this length is read for redaction.
    #[must_use]
    pub fn can_read(len: u64) -> bool {
        len <= REDACTED_BODY_BYTES_MAX as u64
    }

    /// Redacts a text: a tag's value.
    #[must_use]
    pub fn text(&self, stored: &str) -> String {
        String::from_utf8_lossy(&self.body(stored.as_bytes(), None).bytes).into_owned()
    }

    /// The placeholder for a body of `len` bytes that is too long to be read.
    #[must_use]
    pub fn too_long(len: u64) -> Vec<u8> {
        format!("[large: {len} bytes]").into_bytes()
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("profile", &self.profile.name).finish_non_exhaustive()
    }
}
