//! User profiles in one TOML file. docs/redaction.md has tables of the format.

use annals::replay::matching::Path;
use regex::RegexBuilder;

use super::json::ProfilePaths;
use super::profile::{Profile, ProfilePattern, ProfileRules};
use crate::detect::{Detector, Detectors};
use crate::rules::RulesError;
use crate::rules::document::{RulesDocument, RulesSection, join_names};

/// Maximum size of a profiles file, in bytes.
pub const PROFILES_BYTES_MAX: usize = 256 << 10;
/// Maximum number of profiles in a file, and of patterns and paths in a profile: each is applied to every
/// text.
const PROFILES_MAX: usize = 64;
const PATTERNS_MAX: usize = 64;
const PATHS_MAX: usize = 64;
/// Maximum size of a compiled regular expression, in bytes: its time per character grows with the size.
const REGEX_BYTES_MAX: usize = 256 << 10;
/// Maximum length of a profile's or pattern's name, in bytes.
const NAME_BYTES_MAX: usize = 32;
/// Minimum length of a key, in bytes: a guessable key would let others confirm the values behind
/// placeholders.
const KEY_BYTES_MIN: usize = 16;

const PROFILE: [&str; 6] = ["name", "detect", "patterns", "paths", "keep", "key"];

/// The available profiles: those of a file, and `raw` and `safe`.
///
/// ```
/// use annals_policy::profiles::Profiles;
/// let profiles = Profiles::parse(r#"
///     [[profile]]
///     name = "support"
///     detect = ["email", "phone", "api-key"]
///     patterns = { customer = 'C-\d{6}' }
///     paths = "$..password"
/// "#)?;
/// assert_eq!(profiles.find("support").map(|profile| profile.is_raw()), Some(false));
/// assert!(profiles.find("safe").is_some() && profiles.find("other").is_none());
/// let error = Profiles::parse("[[profile]]\nnmae = 'x'").unwrap_err();
/// assert_eq!((error.line, error.column), (2, 1));
/// # Ok::<(), annals_policy::rules::RulesError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Profiles(Vec<Profile>);

impl Default for Profiles {
    fn default() -> Self {
        Self(vec![Profile::raw(), Profile::safe()])
    }
}

impl Profiles {
    /// Parses a profiles file.
    ///
    /// # Errors
    /// What is wrong, where, and what is allowed: invalid TOML, unknown keys, wrong types, duplicates,
    /// invalid or too large patterns, too many entries.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        if text.len() > PROFILES_BYTES_MAX {
            let what = format!("the file has {} bytes; at most {PROFILES_BYTES_MAX} are allowed", text.len());
            return Err(RulesError { line: 1, column: 1, what });
        }
        let document = RulesDocument::parse(text, &["profile"])?;
        let mut profiles = Self::default();
        for section in document.sections("profile", &PROFILE)? {
            let Some(name) = section.text("name")? else { return Err(section.wrong("has no name")) };
            if profiles.find(name.value).is_some() {
                let what = format!("there is a profile {:?} already", name.value);
                return Err(section.wrong_at(name.at, what));
            }
            if !is_name(name.value) {
                let what = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'");
                return Err(section.wrong_at(name.at, what));
            }
            if profiles.0.len() >= PROFILES_MAX {
                return Err(
                    section.wrong(format_args!("is one too many: at most {PROFILES_MAX} are allowed"))
                );
            }
            profiles.0.push(Profile::new(name.value, rules(&section)?));
        }
        Ok(profiles)
    }

    /// The profile with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Profile> {
        self.0.iter().find(|profile| profile.name() == name)
    }

    /// The names of all profiles.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Profile::name)
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain)
}

fn rules(section: &RulesSection<'_, '_>) -> Result<ProfileRules, RulesError> {
    let named = section.optional_texts("detect")?;
    let mut detectors = if named.is_none() { Detectors::ALL } else { Detectors::NONE };
    for text in named.unwrap_or_default() {
        let found = Detector::ALL.into_iter().find(|detector| detector.name() == text.value);
        let Some(detector) = found else {
            let there = join_names(Detector::ALL.map(Detector::name));
            return Err(section
                .wrong_at(text.at, format!("there is no detector {:?}; there are {there}", text.value)));
        };
        detectors = detectors.with(detector);
    }
    let key = section.text("key")?.map(|key| match key.value.len() {
        KEY_BYTES_MIN.. => Ok(blake3::derive_key("annals 2026-11-23 placeholders", key.value.as_bytes())),
        len => Err(section.wrong_at(key.at, format!("key has {len} bytes: placeholders could be confirmed by guessing; at least {KEY_BYTES_MIN} are needed"))),
    });
    let paths = ProfilePaths { removed: paths(section, "paths")?, retained: paths(section, "keep")? };
    Ok(ProfileRules { detectors, patterns: patterns(section)?, paths, key: key.transpose()? })
}

fn paths(section: &RulesSection<'_, '_>, key: &str) -> Result<Vec<Path>, RulesError> {
    let texts = section.texts(key)?;
    if let Some(text) = texts.get(PATHS_MAX) {
        return Err(section.wrong_at(text.at, format!("at most {PATHS_MAX} {key} are allowed")));
    }
    let path = |text: crate::rules::document::Located<&str>| {
        Path::parse(text.value).map_err(|error| section.wrong_at(text.at, error.to_string()))
    };
    texts.into_iter().map(path).collect()
}

fn patterns(section: &RulesSection<'_, '_>) -> Result<Vec<ProfilePattern>, RulesError> {
    let mut patterns = Vec::new();
    for (name, value) in section.table("patterns")? {
        if !is_name(name.value) || Detector::ALL.iter().any(|detector| detector.name() == name.value) {
            let what = format!(
                "a pattern's name has 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_', and is not a detector's"
            );
            return Err(section.wrong_at(name.at, what));
        }
        let at = value.span().start;
        let Some(text) = value.get_ref().as_str() else {
            return Err(section.wrong_at(
                at,
                format!("{} is a regular expression, as in {{ customer = 'C-\\d{{6}}' }}", name.value),
            ));
        };
        if patterns.len() == PATTERNS_MAX {
            return Err(section.wrong_at(at, format!("at most {PATTERNS_MAX} patterns are allowed")));
        }
        let regex = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build().map_err(|error| {
            let why = match error {
                regex::Error::CompiledTooBig(_) => {
                    format!("it is too large: more than {REGEX_BYTES_MAX} bytes once compiled")
                }
                // The last line is the message; the lines before it mark the position.
                other => other.to_string().lines().last().unwrap_or_default().trim().to_owned(),
            };
            let what = format!("{} is a regular expression without backreferences: {why}", name.value);
            section.wrong_at(at, what)
        })?;
        patterns.push(ProfilePattern { name: name.value.to_owned(), regex });
    }
    Ok(patterns)
}
