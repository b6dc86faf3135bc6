//! The store of `annals mcp`: opened for reading when a tool first needs it, and for writing by one call at a
//! time.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use annals::upkeep::is_unfinished_repair;
use annals::{Error, ErrorKind, Namespace, Result, RunReader, Store};
use annals_deliberation::{Caller, Deliberation, Method};
use annals_diagnostics::{Diagnostics, RecallWeights, SessionDiagnostic};
use annals_mcp::{McpStore, ToolRight};
use annals_memory::{HitWeights, Identity, Memory, MemoryHit, MemoryQuery};
use annals_server::ConfiguredEmbedder;
use annals_server::profiles::Redactor;

use annals_text::shell;

use super::{StoreAccess, StoreWait};
use crate::failure::Failure;

/// A namespace of a store for tools.
pub(crate) struct ToolStore {
    root: PathBuf,
    namespace: String,
    redactor: Option<Redactor>,
    is_writable: bool,
    wait: StoreWait,
    /// Names this process among the sessions of the store's owner.
    session: String,
    reader: Mutex<Option<Store>>,
}

impl ToolStore {
    pub(crate) fn new(
        root: PathBuf,
        namespace: &str,
        redactor: Option<Redactor>,
        is_writable: bool,
        wait: StoreWait,
    ) -> Self {
        let session = format!("stdio-{}", std::process::id());
        let (namespace, reader) = (namespace.to_owned(), Mutex::new(None));
        Self { root, namespace, redactor, is_writable, wait, session, reader }
    }

    /// The store with all commits. A store that cannot follow its writer any more is opened anew.
    fn reader(&self) -> Result<Store> {
        let mut open = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.take()
            && store.refresh().is_ok()
        {
            *open = Some(store.clone());
            return Ok(store);
        }
        let store = Store::open_read_only(&self.root).map_err(|error| match error.kind() {
            ErrorKind::NotFound if !is_unfinished_repair(&error) => {
                Error::new(ErrorKind::NotFound, format!("no store at {}", self.root.display()))
            }
            _ => error,
        })?;
        *open = Some(store.clone());
        Ok(store)
    }
}

impl McpStore for ToolStore {
    fn namespace(&self) -> Result<Namespace> {
        self.reader()?.namespace(&self.namespace)
    }

    fn redactor(&self) -> Option<&Redactor> {
        self.redactor.as_ref()
    }

    fn recall(
        &self,
        whose: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
        session: Option<&str>,
    ) -> Result<Vec<MemoryHit>> {
        if session.is_some() {
            let door = StoreAccess::open_existing_to_write(&self.root, &self.namespace, self.wait);
            let door = door.map_err(refusal)?;
            let hits = door.recall(whose, question, wanted, session).map_err(refusal)?;
            door.close().map_err(refusal)?;
            return Ok(hits);
        }
        // Without a namespace the embedder caches no vectors, so that a read writes nothing.
        let embedder = ConfiguredEmbedder::from_environment(None)?;
        let space = self.namespace()?;
        let memory = match Memory::open(&space) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            memory => memory?,
        };
        let diagnostics = Diagnostics::find(&space)?;
        let weights = diagnostics.as_ref().map(|diagnostics| RecallWeights {
            diagnostics,
            org: whose.tenant.as_deref(),
            session: None,
        });
        let weights = weights.as_ref().map(|weights| weights as &dyn HitWeights);
        memory.recall(whose, question, &embedder, &MemoryQuery { weights, ..*wanted })
    }

    fn allows(&self, right: ToolRight) -> bool {
        match right {
            // Who can start this program can read the store's files.
            ToolRight::Read | ToolRight::ReadUnredacted => true,
            ToolRight::Record => self.is_writable,
        }
    }

    fn fork(&self, from: &RunReader, seq: u32, name: &str) -> Result<()> {
        StoreAccess::share_frames(&self.root, &self.namespace, from, seq, name, self.wait).map_err(refusal)
    }

    fn command_line(&self) -> String {
        let root = std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone());
        let store = format!("annals --store {}", shell::quote(&root.to_string_lossy()));
        match self.namespace.as_str() {
            "default" => store,
            name => format!("{store} --namespace {}", shell::quote(name)),
        }
    }

    fn remember(&self, whose: &Identity, entry: &str) -> Result<String> {
        StoreAccess::remember(&self.root, &self.namespace, whose, entry, self.wait).map_err(refusal)
    }

    fn decisions(&self, method: Method, params: &str) -> Result<Option<String>> {
        if self.is_writable {
            let command = match method {
                Method::RecordDecision => "DELIB.RECORD",
                Method::QueryDecisions => "DELIB.QUERY",
                Method::CheckGuardrails => "DELIB.CHECK",
                Method::GetDecision => "DELIB.GET",
                Method::GetReasonStats => "DELIB.REASONS",
                Method::RecordThought => "DELIB.THOUGHT",
                Method::ReviewOutcome => "DELIB.REVIEW",
                Method::GetDeliberationStats => "DELIB.STATS",
                _ => return Err(Error::invalid("no tool calls this method")),
            };
            let written = StoreAccess::write_decision(
                &self.root,
                &self.namespace,
                (command, method),
                Some(&self.session),
                params,
                true,
                self.wait,
            );
            return written.map(Some).map_err(refusal);
        }
        let decisions = match Deliberation::open(&self.namespace()?) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            decisions => decisions?,
        };
        let caller = Caller { tracks: false, ..Caller::new("owner") };
        decisions.call(&caller, method, params).map(Some)
    }

    fn diagnose(&self, session: &str) -> Result<String> {
        let parsed = SessionDiagnostic::parse(session).map_err(|error| Error::invalid(error.to_string()))?;
        let report = StoreAccess::diagnose(&self.root, &self.namespace, (session, &parsed), None, self.wait)
            .map_err(refusal)?;
        serde_json::to_string(&report).map_err(|error| Error::invalid(error.to_string()))
    }
}

/// The error that a tool's caller reads.
fn refusal(failure: Failure) -> Error {
    let what = match failure {
        Failure::Message { message, .. } => message,
        _ => "nothing was stored".to_owned(),
    };
    Error::new(ErrorKind::Invalid, what)
}
