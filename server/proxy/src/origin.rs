//! The program and the settings that a run was recorded with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annals::RunReader;
use annals_text::hex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::{ProxyError, SessionError, invalid};
use crate::mounts::Mounts;
use crate::nondet::{DrawLanes, HASH_SEED, NondetCapture};
use crate::own_frames::{PROGRAM, STDIN, own_frame};
use crate::program::{InputKind, Program, StandardInput};
use annals_policy::redact::{MaskedArgument, Secrets, mask_arguments, unmask_arguments};
use annals_policy::rules::{RulesError, RulesFile};

/// Variables that are always stored with a run: they change what programs do, and hold no secret.
const ENVIRONMENT: [&str; 8] =
    ["LANG", "LC_ALL", "TZ", "PATH", "PYTHONHASHSEED", "PYTHONPATH", "VIRTUAL_ENV", "NODE_OPTIONS"];

/// The seed for Python's hashing if the environment sets none.
const FIXED_SEED: &str = "0";

/// How a program's standard input was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordedInput {
    /// Stored as the frame `stdin`; without that frame it was empty.
    Recorded,
    /// A terminal; nothing is recorded.
    Terminal,
    /// Left to the program, unread and unrecorded.
    Untouched,
}

impl RecordedInput {
    fn from_input(input: &StandardInput) -> Self {
        match (input, InputKind::own()) {
            (StandardInput::Inherited, _) => Self::Untouched,
            (StandardInput::Kept, InputKind::Terminal) => Self::Terminal,
            (StandardInput::Kept | StandardInput::Given(_), _) => Self::Recorded,
        }
    }
}

/// The metadata of a recorded run: its program and settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Command and arguments. Invalid UTF-8 is replaced, and arguments that look like secrets are masked.
    pub argv: Vec<String>,
    /// The masked arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<MaskedArgument>,
    /// Indices of words that were not UTF-8. What is stored of them starts another command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub altered: Vec<usize>,
    /// How the standard input was recorded; `None` in runs of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<RecordedInput>,
    /// The working directory.
    pub directory: String,
    /// The git revision of that directory, with `-dirty` if files were changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The stored environment variables.
    pub environment: BTreeMap<String, String>,
    /// The upstreams.
    pub mounts: Mounts,
    /// The request hash key, hexadecimal.
    pub key: String,
    /// Whether clock reads and entropy were captured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub captured: bool,
    /// Names of variables whose values were removed from the recording.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The text of the rules file of the recording; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rules: String,
}

impl Origin {
    /// The origin of a run; `None` if no program was recorded.
    ///
    /// # Errors
    /// As [`RunReader::metadata`].
    pub fn from_reader(reader: &RunReader) -> annals::Result<Option<Self>> {
        #[derive(Deserialize)]
        struct OriginMetadata {
            program: Origin,
        }
        let metadata = serde_json::from_slice::<OriginMetadata>(&reader.metadata()?);
        Ok(metadata.ok().map(|metadata| metadata.program))
    }

    /// The program as it was started, in its own directory if that still exists. Masked arguments come from
    /// the environment.
    ///
    /// # Errors
    /// Names the masked argument and its possible variables, if none of them is set, or an argument that was not UTF-8.
    pub fn program(&self) -> Result<Program, String> {
        if let Some(at) = self.altered.first() {
            return Err(format!("argument {at} of the command was not UTF-8, so it is not stored as it was"));
        }
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let argv = unmask_arguments(&self.argv, &self.masked, set).map_err(|mask| {
            let at = mask.at;
            match mask.variables.as_slice() {
                [] => format!("argument {at} of the command was masked when it was recorded"),
                names => {
                    let names = names.join(" or ");
                    format!(
                        "argument {at} of the command was masked when it was recorded, and {names} is not set"
                    )
                }
            }
        })?;
        let directory = Path::new(&self.directory);
        Ok(Program {
            argv: argv.into_iter().map(OsString::from).collect(),
            directory: directory.is_dir().then(|| directory.to_path_buf()),
            environment: Vec::new(),
        })
    }

    /// How many arguments are masked, and how many were not UTF-8.
    pub(crate) fn unstored_arguments(&self) -> (u64, u64) {
        (self.masked.len() as u64, self.altered.len() as u64)
    }

    /// The recorded input; `None` if it was not recorded, or was lost with the run's end.
    ///
    /// # Errors
    /// As [`RunReader::frame`].
    pub fn input(&self, reader: &RunReader) -> annals::Result<Option<StandardInput>> {
        if self.stdin != Some(RecordedInput::Recorded) || own_frame(reader, PROGRAM)?.is_none() {
            return Ok(None);
        }
        let bytes = match own_frame(reader, STDIN)? {
            Some(seq) => reader.frame(seq)?.output.into(),
            None => bytes::Bytes::new(),
        };
        Ok(Some(StandardInput::Given(bytes)))
    }

    /// Captures this program's draws if the run has them or should have them; `served` gives the draws to
    /// serve.
    pub(crate) fn capture<E: Into<SessionError>>(
        &self,
        program: &Program,
        served: impl FnOnce() -> Result<DrawLanes, E>,
    ) -> Result<Option<Arc<NondetCapture>>, SessionError> {
        if !self.captured {
            return Ok(None);
        }
        let served = served().map_err(Into::into)?;
        Ok(Some(Arc::new(NondetCapture::begin(program, served)?)))
    }

    /// The variables that make a program's draws captured.
    pub(crate) fn capture_environment(&self, capture: Option<&NondetCapture>) -> Vec<(String, String)> {
        let seed = self.environment.get(HASH_SEED).map_or(FIXED_SEED, String::as_str);
        capture.map(|capture| capture.environment(seed)).unwrap_or_default()
    }

    /// The request hash key.
    pub fn key_bytes(&self) -> annals::Result<[u8; 32]> {
        hex::decode(&self.key)
            .and_then(|key| key.try_into().ok())
            .ok_or_else(|| invalid("the run's key is not 64 digits"))
    }

    /// The origin as a run's metadata.
    pub(crate) fn metadata(&self) -> Vec<u8> {
        serde_json::to_vec(&json!({ "program": self })).unwrap_or_default()
    }

    /// The origin of a new recording.
    pub(crate) fn new(program: &Program, mounts: &Mounts, keep: &[String], key: &[u8; 32]) -> Self {
        let names = ENVIRONMENT.iter().copied().chain(keep.iter().map(String::as_str));
        let directory = directory_of(program);
        let (argv, masked) = stored_command(program, &[]);
        Self {
            argv,
            masked,
            altered: altered_words(program),
            stdin: None,
            revision: revision(&directory),
            directory: lossy(directory.as_os_str()),
            environment: names
                .filter_map(|name| Some((name.to_owned(), lossy(&std::env::var_os(name)?))))
                .collect(),
            mounts: mounts.clone(),
            key: hex::encode(key),
            captured: false,
            secrets: Vec::new(),
            rules: String::new(),
        }
    }

    /// The same for a run of this program instead of the recorded one.
    ///
    /// # Errors
    /// `Secret` if the command holds a secret.
    pub(crate) fn with_program(mut self, program: &Program, secrets: &Secrets) -> Result<Self, SessionError> {
        let directory = directory_of(program);
        let value = |name: &String| Some((name.clone(), std::env::var(name).ok()?));
        let known: Vec<_> = self.secrets.iter().filter_map(value).collect();
        (self.argv, self.masked) = stored_command(program, &known);
        self.altered = altered_words(program);
        self.revision = revision(&directory);
        self.directory = lossy(directory.as_os_str());
        self.check_without_secrets(secrets)
    }

    /// The same with this standard input.
    pub(crate) fn with_input(mut self, input: &StandardInput) -> Self {
        self.stdin = Some(RecordedInput::from_input(input));
        self
    }

    /// Fails if a value that a replay needs unchanged holds a secret.
    fn check_without_secrets(self, secrets: &Secrets) -> Result<Self, SessionError> {
        if !secrets.is_empty() && secrets.redact(&self.metadata()).removed > 0 {
            let why = "the command, its directory or an upstream's address holds a secret, and a replay needs them unchanged";
            return Err(SessionError::Secret(why.to_owned()));
        }
        Ok(self)
    }

    /// The rules of the recording.
    ///
    /// # Errors
    /// As [`RulesFile::parse`], if another version wrote them.
    pub fn rules(&self) -> Result<RulesFile, RulesError> {
        RulesFile::parse(&self.rules)
    }

    /// The same with these rules.
    ///
    /// # Errors
    /// `Secret` if the rules hold a secret.
    pub(crate) fn with_rules(mut self, rules: &RulesFile, secrets: &Secrets) -> Result<Self, SessionError> {
        if secrets.redact(rules.text().as_bytes()).removed > 0 {
            let why = "the rules file holds a secret, and is stored with the run";
            return Err(SessionError::Secret(why.to_owned()));
        }
        rules.text().clone_into(&mut self.rules);
        Ok(self)
    }

    /// The same without the values of these variables.
    ///
    /// # Errors
    /// `Secret` if a value that a replay needs unchanged holds a secret.
    pub(crate) fn with_secrets(mut self, names: &[String], secrets: &Secrets) -> Result<Self, SessionError> {
        if secrets.is_empty() {
            return Ok(self);
        }
        for value in self.environment.values_mut() {
            *value = String::from_utf8_lossy(&secrets.redact(value.as_bytes()).bytes).into_owned();
        }
        self.secrets = names.to_vec();
        self.check_without_secrets(secrets)
    }

    /// The same with captured clock reads and entropy.
    pub(crate) fn with_capture(mut self) -> Self {
        self.captured = true;
        // A random or invalid seed would make Python draw its own.
        if self.environment.get(HASH_SEED).is_none_or(|seed| seed.parse::<u32>().is_err()) {
            self.environment.insert(HASH_SEED.to_owned(), FIXED_SEED.to_owned());
        }
        self
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

fn directory_of(program: &Program) -> PathBuf {
    program.directory.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_default()
}

fn altered_words(program: &Program) -> Vec<usize> {
    let altered = program.argv.iter().enumerate().filter(|(_, word)| word.to_str().is_none());
    altered.map(|(at, _)| at).collect()
}

/// The command as stored, and its masked arguments. A masked value that a variable holds is later read from
/// that variable.
fn stored_command(program: &Program, known: &[(String, String)]) -> (Vec<String>, Vec<MaskedArgument>) {
    let words: Vec<_> = program.argv.iter().map(|word| lossy(word)).collect();
    let variables_of = |secret: &str| {
        let same = std::env::vars_os().filter(|(_, value)| value.as_os_str() == OsStr::new(secret));
        let mut names: Vec<_> = same.filter_map(|(name, _)| name.into_string().ok()).collect();
        names.sort_unstable();
        names
    };
    mask_arguments(&words, known, variables_of)
}

pub(crate) fn random_key() -> Result<[u8; 32], ProxyError> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|e| ProxyError(format!("the system has no randomness: {e}")))?;
    Ok(key)
}

/// The git revision of a directory, if it has one.
fn revision(directory: &Path) -> Option<String> {
    let mut command = std::process::Command::new("git");
    command.arg("-C").arg(directory).args(["status", "--porcelain=v2", "--branch", "--untracked-files=no"]);
    let output = command.stdin(std::process::Stdio::null()).output().ok()?;
    output.status.success().then(|| revision_in(&String::from_utf8_lossy(&output.stdout))).flatten()
}

/// Parses git's status in porcelain format 2: a header line holds the revision, other lines are changed
/// files.
fn revision_in(status: &str) -> Option<String> {
    let head = status.lines().find_map(|line| line.strip_prefix("# branch.oid "))?;
    let changed = status.lines().any(|line| !line.starts_with('#'));
    match head {
        "(initial)" => None,
        head if changed => Some(format!("{head}-dirty")),
        head => Some(head.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_is_marked_dirty_if_files_changed() {
        let clean = "# branch.oid 0221f89\n# branch.head main\n";
        assert_eq!(revision_in(clean).as_deref(), Some("0221f89"));
        let changed = format!("{clean}1 .M N... 100644 100644 100644 a b c.rs\n");
        assert_eq!(revision_in(&changed).as_deref(), Some("0221f89-dirty"));
        assert_eq!(revision_in("# branch.oid (initial)\n# branch.head main\n"), None);
        assert_eq!(revision_in(""), None);
    }
}
