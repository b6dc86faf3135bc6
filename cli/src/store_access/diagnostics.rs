//! Sessions' diagnostics: one session recorded, and what all of them taught.

use std::path::Path;

use annals::io::{Io, RealIo};
use annals::{Error, ErrorKind};
use annals_diagnostics::{
    CategoryCounts, Diagnostics, LessonFilter, SessionDiagnostic, SessionReport, WeightChange,
};
use annals_server::AskOutcome;

use super::failures::engine_failure;
use super::memory::refused_failure;
use super::opening::write_options;
use super::{StoreAccess, StoreWait};
use crate::failure::{CliResult, Failure};

/// What sessions taught.
#[derive(Debug, Default)]
pub(crate) struct Lessons {
    /// Misleading observations, with their weights.
    pub(crate) misleading: Vec<(String, f64)>,
    pub(crate) distribution: CategoryCounts,
}

impl StoreAccess {
    /// Records a session, and creates the store if there is none. If a daemon or a recorder holds the store,
    /// that process records it.
    pub(crate) fn diagnose(
        root: &Path,
        namespace: &str,
        (text, session): (&str, &SessionDiagnostic),
        keep_ms: Option<u64>,
        wait: StoreWait,
    ) -> CliResult<SessionReport> {
        let refused = |error| refused_failure(error, "docs/diagnostics.md has the rules; nothing was stored");
        let ttl = keep_ms.map(|ms| ms.to_string());
        let mut words: Vec<&[u8]> = vec![b"DIAG.RECORD", text.as_bytes(), b"STRICT"];
        words.extend([&b"NAMESPACE"[..], namespace.as_bytes()]);
        words.extend(ttl.iter().flat_map(|ttl| [&b"TTL"[..], ttl.as_bytes()]));
        // A report that arrives twice is recorded once.
        let store = match wait.ask_or_open(root, &words, &write_options(), true).map_err(refused)? {
            AskOutcome::Asked(reply) => {
                return serde_json::from_str(&reply).map_err(|error| {
                    engine_failure(Error::new(
                        ErrorKind::Unavailable,
                        format!("the process that holds the store gave an unknown reply: {error}"),
                    ))
                });
            }
            AskOutcome::Opened(store) => store,
        };
        let space = store.namespace(namespace).map_err(engine_failure)?;
        let report = Diagnostics::open(&space)
            .and_then(|diagnostics| diagnostics.with_disk_durability().record(session, keep_ms))
            .map_err(|error| match error.kind() {
                ErrorKind::Conflict => Failure::failed(error, "nothing was stored"),
                _ => refused(error),
            })?;
        drop(space);
        store.close().map_err(engine_failure)?;
        Ok(report)
    }

    /// The diagnostics of the namespace; `None` if no session was ever recorded in it.
    fn diagnostics(&self) -> CliResult<Option<Diagnostics>> {
        match Diagnostics::open(&self.namespace()?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(engine_failure),
        }
    }

    /// What the sessions of a filter taught, of those recorded in the last `within_ms`.
    pub(crate) fn lessons(&self, filter: &LessonFilter<'_>, within_ms: Option<u64>) -> CliResult<Lessons> {
        let Some(diagnostics) = self.diagnostics()? else { return Ok(Lessons::default()) };
        let since_ms = within_ms.map_or(0, |ms| (RealIo::new().now_ns() / 1_000_000).saturating_sub(ms));
        let filter = LessonFilter { since_ms, ..*filter };
        let distribution = diagnostics.distribution(&filter).map_err(engine_failure)?;
        let ids = diagnostics.misleading(&filter).map_err(engine_failure)?;
        let with_weight = |id: String| diagnostics.weight(&id).map(|weight| (id, weight));
        let misleading = ids.into_iter().map(with_weight).collect::<annals::Result<_>>();
        Ok(Lessons { misleading: misleading.map_err(engine_failure)?, distribution })
    }

    /// The changes of an observation's weight.
    pub(crate) fn weight_history(&self, observation: &str) -> CliResult<Vec<WeightChange>> {
        let Some(diagnostics) = self.diagnostics()? else { return Ok(Vec::new()) };
        diagnostics.weight_history(observation).map_err(engine_failure)
    }

    /// The row of a session as JSON.
    pub(crate) fn session_row(&self, session: &str) -> CliResult<Option<String>> {
        let Some(diagnostics) = self.diagnostics()? else { return Ok(None) };
        diagnostics.session(session).map_err(engine_failure)
    }
}
