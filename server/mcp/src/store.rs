//! What the host of an MCP server provides: a store as one reader sees it.

use annals::{Namespace, RunReader};
use annals_deliberation::Method;
use annals_memory::{Identity, MemoryHit, MemoryQuery};
use annals_policy::profiles::Redactor;

/// What a tool does with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolRight {
    /// It reads what a profile can redact.
    Read,
    /// It reads what no profile redacts before it is searched or counted.
    ReadUnredacted,
    /// It changes the store.
    Record,
}

/// A namespace of a store, as one reader sees it. Calls may block.
pub trait McpStore: Send + Sync + 'static {
    /// The namespace, with everything that was committed before the call.
    ///
    /// # Errors
    /// As opening a store for reading: `NotFound` if there is no store or no such namespace.
    fn namespace(&self) -> annals::Result<Namespace>;

    /// The redaction profile of the reader; `None` if the reader sees what was recorded.
    fn redactor(&self) -> Option<&Redactor>;

    /// Finds the memory entries that answer a question, in the order of their weights. With a session, which takes
    /// the right to record, logs the candidates and what the session is given.
    ///
    /// # Errors
    /// As [`annals_memory::Memory::recall`].
    fn recall(
        &self,
        whose: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
        session: Option<&str>,
    ) -> annals::Result<Vec<MemoryHit>>;

    /// Whether the reader may use tools that need this right.
    fn allows(&self, right: ToolRight) -> bool;

    /// Stores a memory entry or a snapshot, on disk when the call returns. Returns the entry's id.
    ///
    /// # Errors
    /// `Invalid` for JSON that is neither an entry nor a snapshot; else as a commit.
    fn remember(&self, whose: &Identity, entry: &str) -> annals::Result<String>;

    /// Makes a run that shares the frames 1 to `seq` of another run, and ends it at once. It is on disk when the
    /// call returns.
    ///
    /// # Errors
    /// As [`Namespace::fork`].
    fn fork(&self, from: &RunReader, seq: u32, name: &str) -> annals::Result<()>;

    /// The words before the verb of a command line for this namespace, quoted for a shell.
    fn command_line(&self) -> String;

    /// Calls a method of decisions. Parameters and result are JSON. A writable store captures the call for the
    /// session's next decision. `None` if a store that is only read has no decisions.
    ///
    /// # Errors
    /// As [`annals_deliberation::Deliberation::call`].
    fn decisions(&self, method: Method, params: &str) -> annals::Result<Option<String>>;

    /// Records how a session ended. Returns the report as JSON.
    ///
    /// # Errors
    /// As [`annals_diagnostics::Diagnostics::record`].
    fn diagnose(&self, session: &str) -> annals::Result<String>;
}
