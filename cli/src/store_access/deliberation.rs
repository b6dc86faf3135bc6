//! Decisions of agents.

use std::path::Path;

use annals::{Error, ErrorKind};
use annals_deliberation::{Caller, Deliberation, Method};
use annals_server::AskOutcome;

use super::failures::engine_failure;
use super::opening::write_options;
use super::{StoreAccess, StoreWait};
use crate::failure::{CliResult, Failure};

/// The token under which decisions of the command line stand.
const OWNER: &str = "owner";

fn failure(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Invalid => Failure::failed(error, "docs/deliberation.md has the form of a decision"),
        ErrorKind::NotFound
            if error.to_string().contains("no run") || error.to_string().contains("no frame") =>
        {
            Failure::missing(error, "`annals runs` lists the runs, `annals show RUN` the frames of one")
        }
        ErrorKind::NotFound => Failure::missing(error, "`annals decisions` lists the decisions"),
        ErrorKind::Conflict => {
            Failure::failed(error, "change the decision, or the guardrail that the message names")
        }
        _ => engine_failure(error),
    }
}

impl StoreAccess {
    /// Calls a method that writes, and creates the store if `creates` and there is none. Returns the result as
    /// JSON. Inputs of different sessions are kept apart. If a daemon or a recorder holds the store, that process
    /// executes the command.
    pub(crate) fn write_decision(
        root: &Path,
        namespace: &str,
        (command, method): (&str, Method),
        session: Option<&str>,
        params: &str,
        creates: bool,
        wait: StoreWait,
    ) -> CliResult<String> {
        let mut words: Vec<&[u8]> =
            vec![command.as_bytes(), params.as_bytes(), b"NAMESPACE", namespace.as_bytes()];
        words.extend(session.iter().flat_map(|session| [&b"SESSION"[..], session.as_bytes()]));
        let options = annals::Options { create: creates, ..write_options() };
        let asked = wait.ask_or_open(root, &words, &options, false).map_err(|error| match error.kind() {
            ErrorKind::NotFound if !root.exists() => super::failures::open_failure(root, error),
            _ => failure(error),
        })?;
        let store = match asked {
            AskOutcome::Asked(answer) => return Ok(answer),
            AskOutcome::Opened(store) => store,
        };
        let space = store.namespace(namespace).map_err(engine_failure)?;
        let decisions = Deliberation::open(&space).map_err(engine_failure)?;
        let answer =
            decisions.call(&Caller { session, ..Caller::new(OWNER) }, method, params).map_err(failure)?;
        drop((decisions, space));
        store.close().map_err(engine_failure)?;
        Ok(answer)
    }

    /// Calls a method that reads; `None` if the namespace has no decisions. Captures nothing.
    pub(crate) fn read_decisions(&self, method: Method, params: &str) -> CliResult<Option<String>> {
        let Some(decisions) = self.decisions()? else { return Ok(None) };
        let caller = Caller { tracks: false, ..Caller::new(OWNER) };
        decisions.call(&caller, method, params).map(Some).map_err(failure)
    }

    /// The decisions that were taken in a run, or in a frame of it, as JSON.
    pub(crate) fn decisions_of_run(&self, run: &str, frame: Option<u32>) -> CliResult<Vec<String>> {
        let Some(decisions) = self.decisions()? else { return Ok(Vec::new()) };
        let uid = self.reader(run)?.info().uid;
        decisions.decisions_of_run(uid, frame).map_err(failure)
    }

    fn decisions(&self) -> CliResult<Option<Deliberation>> {
        match Deliberation::open(&self.namespace()?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(engine_failure),
        }
    }
}
