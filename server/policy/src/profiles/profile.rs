//! What a reader sees: a profile's rules, and the redactor that goes by them.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use annals::replay::matching::Path;
use regex::Regex;

use super::body;
use super::json::ProfilePaths;
use crate::detect::{Detector, Detectors};
use crate::exchange::ExchangeMetadata;

/// The longest body that is redacted, in bytes, and the most that a compressed one may become: it is held in memory as a whole. A longer one
/// is replaced by a placeholder.
pub const REDACTED_BODY_BYTES_MAX: usize = 32 << 20;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RedactionKind {
    /// A JSON path names it.
    Path,
    /// JSON that is nested too deep to be looked into.
    Deep,
    /// A pattern of the profile, by its number.
    Pattern(u16),
    Detector(Detector),
}

/// A regular expression of the user's own.
#[derive(Debug, Clone)]
pub(super) struct ProfilePattern {
    pub(super) name: String,
    pub(super) regex: Regex,
}

/// What a profile takes out.
#[derive(Debug, Clone)]
pub(super) struct ProfileRules {
    pub(super) detectors: Detectors,
    pub(super) patterns: Vec<ProfilePattern>,
    pub(super) paths: ProfilePaths,
    /// Makes the placeholders, in place of the store's key.
    pub(super) key: Option<[u8; 32]>,
}

/// What a reader sees of what is stored.
///
/// ```
/// use annals_server::profiles::{Profile, Redactor};
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
    /// None: everything is shown as it is.
    pub(super) rules: Option<Arc<ProfileRules>>,
}

impl Profile {
    /// Everything as it is stored.
    #[must_use]
    pub fn raw() -> Self {
        Self { name: "raw".into(), rules: None }
    }

    /// All detectors, and nothing of one's own.
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

    /// Whether it shows everything as it is stored.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.rules.is_none()
    }

    /// Whether it has a key of its own, so that the store's is not needed.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.key.is_some())
    }
}

/// Shows bodies by a profile.
#[derive(Clone)]
pub struct Redactor {
    profile: Profile,
    key: [u8; 32],
    /// The profile's rules for metadata, which holds hashes of what was said.
    metadata_rules: Option<Arc<ProfileRules>>,
}

/// A body as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactedBody<'a> {
    /// The bytes; borrowed where nothing was replaced.
    pub bytes: Cow<'a, [u8]>,
    /// How many placeholders stand in it.
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

/// The content encodings of a frame's input and output, as its metadata has them.
pub fn encodings(metadata: &[u8]) -> (Option<String>, Option<String>) {
    let Ok(of) = serde_json::from_slice::<ExchangeMetadata>(metadata) else { return (None, None) };
    let encoding = |headers: &crate::exchange::Headers| headers.get("content-encoding").map(str::to_owned);
    (encoding(&of.volatile.request_headers), encoding(&of.volatile.response_headers))
}

/// What of a run's and a frame's metadata would let somebody try guesses of what was said: the key of requests' hashes, and the hashes.
static METADATA_PATHS: LazyLock<Vec<Path>> = LazyLock::new(|| {
    ["$.program.key", "$.volatile.asked"].iter().filter_map(|path| Path::parse(path).ok()).collect()
});

impl Redactor {
    /// Of a profile; `key` makes the placeholders where the profile has none of its own.
    #[must_use]
    pub fn new(profile: &Profile, key: [u8; 32]) -> Self {
        let own = profile.rules.as_ref().and_then(|rules| rules.key);
        let of_metadata = profile.rules.as_ref().map(|rules| {
            let mut rules = ProfileRules::clone(rules);
            rules.paths.removed.extend(METADATA_PATHS.iter().cloned());
            Arc::new(rules)
        });
        Self { profile: profile.clone(), key: own.unwrap_or(key), metadata_rules: of_metadata }
    }

    /// The profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// A body as it is shown. One in a content encoding is shown plain where it has to be changed; one whose encoding is not known, that is
    /// binary, or that is longer than [`REDACTED_BODY_BYTES_MAX`] is a placeholder that names type and size.
    #[must_use]
    pub fn body<'a>(&self, stored: &'a [u8], content_encoding: Option<&str>) -> RedactedBody<'a> {
        match &self.profile.rules {
            Some(rules) => body::redact(rules, &self.key, stored, content_encoding),
            None => RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 },
        }
    }

    /// The metadata of a run or a frame as it is shown. Hashes by which somebody could try guesses go, too.
    #[must_use]
    pub fn metadata<'a>(&self, stored: &'a [u8]) -> RedactedBody<'a> {
        match &self.metadata_rules {
            Some(rules) => body::redact(rules, &self.key, stored, None),
            None => RedactedBody { bytes: Cow::Borrowed(stored), replaced: 0 },
        }
    }

    /// A frame as it is shown.
    #[must_use]
    pub fn frame(&self, input: &[u8], output: &[u8], metadata: &[u8]) -> RedactedFrame {
        let (asked, answered) = encodings(metadata);
        RedactedFrame {
            input: self.body(input, asked.as_deref()).bytes.into_owned(),
            output: self.body(output, answered.as_deref()).bytes.into_owned(),
            metadata: self.metadata(metadata).bytes.into_owned(),
        }
    }

    /// Whether a body of so many bytes is read at all to be redacted.
    #[must_use]
    pub fn can_read(len: u64) -> bool {
        len <= REDACTED_BODY_BYTES_MAX as u64
    }

    /// A text as it is shown: a tag's value.
    #[must_use]
    pub fn text(&self, stored: &str) -> String {
        String::from_utf8_lossy(&self.body(stored.as_bytes(), None).bytes).into_owned()
    }

    /// The placeholder of a body that is too long to be read, `len` bytes of it.
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
