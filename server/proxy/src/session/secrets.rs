//! Secrets that a run is recorded without: variables by name, whose values come from the environment and are kept nowhere.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::SessionError;
use crate::origin::Origin;
use annals_policy::redact::{RedactingReader, Secrets};

/// The values of these variables, all of them.
///
/// # Errors
/// `Secret` for one that is not set, and for a value that is too short, too long, or too many.
pub(super) fn named_secrets(names: &[String]) -> Result<Secrets, SessionError> {
    let mut values = Vec::new();
    for name in names {
        match std::env::var_os(name).filter(|value| !value.is_empty()) {
            Some(value) => values.push((name.clone(), value.into_vec())),
            None => {
                let why = format!("{name} is to be removed from what is recorded, and it is not set");
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

/// Of the variables that a run was recorded without, those that are set here, and whether these are all.
pub(super) fn known_secrets(origin: &Origin) -> (Secrets, bool) {
    let set = |name: &String| Some((name.clone(), std::env::var_os(name)?.into_vec()));
    let values: Vec<_> = origin.secrets.iter().filter_map(set).collect();
    let (secrets, refused) = Secrets::new(&values);
    let all = values.len() == origin.secrets.len() && refused.is_empty();
    (secrets, all)
}

/// A program's output on its way to the store.
#[derive(Debug, Clone)]
pub(super) struct OutputRedactor {
    secrets: Secrets,
    removed: Arc<AtomicU64>,
}

impl OutputRedactor {
    pub(super) fn new(secrets: &Secrets) -> Self {
        Self { secrets: secrets.clone(), removed: Arc::default() }
    }

    /// Hands it on without secrets.
    pub(super) fn redact<T>(&self, from: &mut dyn Read, keep: impl FnOnce(&mut dyn Read) -> T) -> T {
        if self.secrets.is_empty() {
            return keep(from);
        }
        let mut cleared = RedactingReader::new(from, &self.secrets);
        let kept = keep(&mut cleared);
        self.removed.fetch_add(cleared.removed(), Ordering::Relaxed);
        kept
    }

    /// How many values have been removed.
    pub(super) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }
}
