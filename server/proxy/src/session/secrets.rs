//! Secrets that are removed from a recording: named variables, whose values come from the environment and are
//! never stored.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SessionError;
use crate::origin::Origin;
use annals_policy::redact::{RedactingReader, Secrets};

/// The values of all these variables.
///
/// # Errors
/// `Secret` if one is not set, or if a value is too short or too long, or there are too many.
pub(crate) fn named_secrets(names: &[String]) -> Result<Secrets, SessionError> {
    let mut values = Vec::new();
    for name in names {
        match std::env::var_os(name).filter(|value| !value.is_empty()) {
            Some(value) => values.push((name.clone(), value.into_vec())),
            None => {
                let why = format!("{name} is named as a secret, but is not set");
                return Err(SessionError::Secret(why));
            }
        }
    }
    match Secrets::new(&values) {
        (secrets, refused) if refused.is_empty() => Ok(secrets),
        (_, refused) => {
            let why: Vec<String> = refused.iter().map(ToString::to_string).collect();
            Err(SessionError::Secret(why.join("; ")))
        }
    }
}

/// The secrets of a recorded run that are set here, and whether they are complete.
pub(crate) fn known_secrets(origin: &Origin) -> (Secrets, bool) {
    let set = |name: &String| Some((name.clone(), std::env::var_os(name)?.into_vec()));
    let values: Vec<_> = origin.secrets.iter().filter_map(set).collect();
    let (secrets, refused) = Secrets::new(&values);
    let all = values.len() == origin.secrets.len() && refused.is_empty();
    (secrets, all)
}

/// Removes secrets from a program's output before it is stored.
#[derive(Debug, Clone)]
pub(super) struct OutputRedactor {
    secrets: Secrets,
    removed: Arc<AtomicU64>,
}

impl OutputRedactor {
    pub(super) fn new(secrets: &Secrets) -> Self {
        Self { secrets: secrets.clone(), removed: Arc::default() }
    }

    /// Passes the output to `keep` without secrets.
    pub(super) fn redact<T>(&self, from: &mut dyn Read, keep: impl FnOnce(&mut dyn Read) -> T) -> T {
        if self.secrets.is_empty() {
            return keep(from);
        }
        let mut cleared = RedactingReader::new(from, &self.secrets);
        let kept = keep(&mut cleared);
        self.removed.fetch_add(cleared.removed(), Ordering::Relaxed);
        kept
    }

    /// How many values were removed.
    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }
}
