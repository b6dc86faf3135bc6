//! Agents' memory: entries, definitions, recall, training lines.

use std::path::Path;

use annals::{Error, ErrorKind};
use annals_diagnostics::{Diagnostics, RecallWeights};
use annals_memory::{
    Definition, Embedder, HitWeights, Identity, Memory, MemoryHit, MemoryQuery, SnapshotOptions,
    TrainingFormat,
};
use annals_server::profiles::Redactor;
use annals_server::search::{MeaningAnswer, find_by_meaning};
use annals_server::{AskOutcome, ConfiguredEmbedder, EmbeddingsOptions, RememberOutcome};

use super::failures::engine_failure;
use super::opening::write_options;
use super::{StoreAccess, StoreWait};
use crate::failure::{CliResult, Failure};
use crate::watched_embedder::Watched;

impl StoreAccess {
    /// Stores an entry or a snapshot in an agent's memory, and creates the store if there is none. Returns
    /// the entry's id. If a daemon or a recorder holds the store, that process stores the entry.
    pub(crate) fn remember(
        root: &Path,
        namespace: &str,
        whose: &Identity,
        text: &str,
        wait: StoreWait,
    ) -> CliResult<String> {
        let refused =
            |error| refused_failure(error, "docs/memory.md has the form of an entry and of a snapshot");
        let remote =
            EmbeddingsOptions::from_variables(&|name| std::env::var(name).ok()).map_err(embedder_failure)?;
        let remote = remote.map(|options| options.id());
        let words = put_words(text, remote.as_deref(), whose, namespace);
        let store = match wait.ask_or_open(root, &words, &write_options(), false).map_err(refused)? {
            AskOutcome::Asked(id) => return Ok(id),
            AskOutcome::Opened(store) => store,
        };
        let space = store.namespace(namespace).map_err(engine_failure)?;
        let memory = Memory::open(&space).map_err(engine_failure)?;
        let with =
            Watched::new(ConfiguredEmbedder::from_environment(Some(&space)).map_err(embedder_failure)?);
        let kept = annals_server::remember_json(&memory, whose, text, &with, &SnapshotOptions::default());
        let id = kept.map(|entry| entry.id).map_err(|error| match error.kind() {
            _ if with.has_failed() => embedder_failure(error),
            _ => refused(error),
        })?;
        drop((memory, with, space));
        store.close().map_err(engine_failure)?;
        Ok(id)
    }

    /// Stores the questions of an imported run in the agents' memory. Returns the number of entries, or why there
    /// are none.
    pub(crate) fn remember_imported(&self, run: &str) -> CliResult<Result<usize, &'static str>> {
        let space = self.namespace()?;
        let outcome = annals_server::remember_imported(&space, run, |space| {
            let with = ConfiguredEmbedder::from_environment(Some(space))?;
            Ok(Box::new(with) as Box<dyn Embedder>)
        });
        match outcome.map_err(engine_failure)? {
            RememberOutcome::Stored(_, ids) => Ok(Ok(ids.len())),
            RememberOutcome::Skipped(why) => Ok(Err(why)),
        }
    }

    /// Stores a definition of a memory, and creates the store if there is none. Returns the definition's id.
    /// If a daemon or a recorder holds the store, that process stores it.
    pub(crate) fn define(root: &Path, namespace: &str, text: &str, wait: StoreWait) -> CliResult<String> {
        let refused = |error| refused_failure(error, "`annals define-memory --help` shows a definition");
        let definition = Definition::parse(text).map_err(refused)?;
        let words = [&b"MEM.DEFINE"[..], text.as_bytes(), b"NAMESPACE", namespace.as_bytes()];
        let asked = wait.ask_or_open(root, &words, &write_options(), true);
        if let AskOutcome::Opened(store) = asked.map_err(refused)? {
            let space = store.namespace(namespace).map_err(engine_failure)?;
            Memory::open(&space).and_then(|memory| memory.define(text)).map_err(refused)?;
            drop(space);
            store.close().map_err(engine_failure)?;
        }
        Ok(definition.id)
    }

    /// The memory of the namespace; `None` if nothing was ever stored in it.
    fn memory(&self) -> CliResult<Option<Memory>> {
        match Memory::open(&self.namespace()?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some).map_err(engine_failure),
        }
    }

    /// Returns a stored definition of a memory.
    pub(crate) fn definition(&self, id: &str) -> CliResult<Definition> {
        const HINT: &str = "`annals define-memory` defines one";
        let none = || Failure::missing(format!("there is no memory {id:?}: none is defined"), HINT);
        self.memory()?.ok_or_else(none)?.definition(id).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::missing(error, HINT),
            _ => engine_failure(error),
        })
    }

    /// Finds the entries that answer a question. With a session, logs what the session is given.
    pub(crate) fn recall(
        &self,
        whose: &Identity,
        question: &str,
        wanted: &MemoryQuery<'_>,
        session: Option<&str>,
    ) -> CliResult<Vec<MemoryHit>> {
        // Without a namespace the embedder caches no vectors, so that a read writes nothing.
        let with = Watched::new(ConfiguredEmbedder::from_environment(None).map_err(embedder_failure)?);
        let Some(memory) = self.memory()? else { return Ok(Vec::new()) };
        let space = self.namespace()?;
        let diagnostics = match session {
            Some(_) => Diagnostics::open(&space).map(|opened| Some(opened.with_disk_durability())),
            None => Diagnostics::find(&space),
        };
        let diagnostics = diagnostics.map_err(engine_failure)?;
        let weights = diagnostics.as_ref().map(|diagnostics| RecallWeights {
            diagnostics,
            org: whose.tenant.as_deref(),
            session,
        });
        let weights = weights.as_ref().map(|weights| weights as &dyn HitWeights);
        let wanted = &MemoryQuery { weights, ..wanted.clone() };
        memory.recall(whose, question, &with, wanted).map_err(|error| recall_failure(error, &with))
    }

    /// Finds runs with a question near to this one, in the memories of all tenants.
    pub(crate) fn search_by_meaning(
        &self,
        question: &str,
        by: Option<&Redactor>,
        count: usize,
    ) -> CliResult<MeaningAnswer> {
        // Without a namespace the embedder caches no vectors, so that a read writes nothing.
        let with = Watched::new(ConfiguredEmbedder::from_environment(None).map_err(embedder_failure)?);
        let Some(memory) = self.memory()? else { return Ok(MeaningAnswer::default()) };
        find_by_meaning(&self.namespace()?, &memory, question, &with, by, count)
            .map_err(|error| recall_failure(error, &with))
    }

    /// Calls `each` with every training line, until it fails.
    pub(crate) fn export_training(
        &self,
        whose: &Identity,
        across: bool,
        form: TrainingFormat,
        each: &mut dyn FnMut(&[u8]) -> CliResult<()>,
    ) -> CliResult<()> {
        let Some(memory) = self.memory()? else { return Ok(()) };
        let mut failed = None;
        let given = memory.training_lines(whose, across, form, &mut |line| {
            each(line).map_err(|failure| {
                failed = Some(failure);
                Error::new(ErrorKind::Unavailable, "the lines can go nowhere")
            })
        });
        match failed {
            Some(failure) => Err(failure),
            None => given.map(drop).map_err(engine_failure),
        }
    }
}

fn recall_failure(error: Error, with: &Watched) -> Failure {
    match error.kind() {
        _ if with.has_failed() => embedder_failure(error),
        ErrorKind::Invalid => {
            let hint = "docs/memory.md explains recall and how ANNALS_EMBEDDINGS_URL names an embedder";
            Failure::failed(error, hint)
        }
        _ => engine_failure(error),
    }
}

/// The command that stores an entry through another process.
fn put_words<'a>(
    text: &'a str,
    embedder: Option<&'a str>,
    whose: &'a Identity,
    namespace: &'a str,
) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> =
        vec![b"MEM.PUT", text.as_bytes(), b"EMBED", b"NAMESPACE", namespace.as_bytes()];
    words.extend(embedder.iter().flat_map(|id| [&b"EMBEDDER"[..], id.as_bytes()]));
    let parts =
        [("TENANT", &whose.tenant), ("PRINCIPAL", &whose.principal), ("CONVERSATION", &whose.conversation)];
    for (option, part) in parts {
        words.extend(part.iter().flat_map(|part| [option.as_bytes(), part.as_bytes()]));
    }
    words
}

/// The failure of an entry or definition that this process, or the one that holds the store, refused.
pub(super) fn refused_failure(error: Error, hint: &str) -> Failure {
    let told = error.to_string();
    match told.strip_prefix("ERR ") {
        None if error.kind() != ErrorKind::Invalid => engine_failure(error),
        why => Failure::failed(why.unwrap_or(&told), hint),
    }
}

/// The failure of the embedder that the environment describes.
fn embedder_failure(error: Error) -> Failure {
    Failure::failed(error, "docs/memory.md lists the variables that configure an HTTP embedder")
}
