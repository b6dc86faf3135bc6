//! Stores an ended run as a memory entry.

use std::collections::BTreeSet;

use annals::{ErrorKind, Namespace, RunReader, RunUid, Status};
use annals_memory::{Embedder, Identity, Memory};
use serde_json::{Map, Value, json};

use super::conversation::RunConversation;
use super::run_identity::{RunIdentity, run_identity};
use super::snapshot::SnapshotJson;

/// Makes the embedder of a namespace. Called only once an entry needs a vector.
pub type EmbedderFn = fn(&Namespace) -> annals::Result<Box<dyn Embedder>>;

/// The result of remembering a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RememberOutcome {
    /// The run was stored as the entry with this identity and id.
    Stored(Identity, String),
    /// The run was not stored, for this reason.
    Skipped(&'static str),
}

/// Remembers a run that has just ended. If it called no tools, its entry counts as derived from its
/// identity's recent recall.
///
/// # Errors
/// `NotFound`, `Gone`; `Damaged`, `Unavailable`, `Poisoned`.
pub fn remember_ended(
    space: &Namespace,
    uid: RunUid,
    status: Status,
    embedder: EmbedderFn,
) -> annals::Result<RememberOutcome> {
    if !matches!(status, Status::Ok | Status::Failed) {
        return Ok(RememberOutcome::Skipped("it was abandoned"));
    }
    remember_reader(space, &space.run_by_uid(uid)?, status, true, embedder)
}

pub(super) fn remember_reader(
    space: &Namespace,
    reader: &RunReader,
    status: Status,
    is_new: bool,
    embedder: EmbedderFn,
) -> annals::Result<RememberOutcome> {
    let info = reader.info();
    let identity = match run_identity(space, info)? {
        RunIdentity::Known(identity) => identity,
        RunIdentity::Disabled => return Ok(RememberOutcome::Skipped("its tags say memory=off")),
        RunIdentity::Unknown => {
            let why = "the run that it is a fork of is gone, and no tag says whose memory it goes into";
            return Ok(RememberOutcome::Skipped(why));
        }
    };
    let Some((snapshot, tellings)) = snapshot_and_quotes(reader)? else {
        return Ok(RememberOutcome::Skipped("it has no question, or no answer"));
    };
    let (memory, id) = (Memory::open(space)?, format!("run-{}", info.name));
    let mut metadata = json!({ "run": info.name, "status": status.name() });
    if snapshot.tool_calls.is_empty() {
        // The sources are the entries quoted in the run's requests, regardless of the program that recalled them. A run that has
        // just ended also has its identity's recent recall, which it may have paraphrased.
        let mut told = BTreeSet::new();
        for text in &tellings {
            told.extend(memory.entries_quoted_in(&identity, text)?);
        }
        if is_new {
            told.extend(memory.recently_recalled(&identity)?);
        }
        // Not from the run's own earlier entry.
        told.remove(&format!("{}/{id}", identity.name()));
        if !told.is_empty() {
            let told: Vec<String> = told.into_iter().collect();
            metadata["derivedFrom"] = told.into();
        }
    }
    let span_ns = snapshot.duration_ms.saturating_mul(1_000_000);
    let ended_ms = info.ended_ns.unwrap_or_else(|| info.started_ns.saturating_add(span_ns)) / 1_000_000;
    let entry = entry_json(&id, &identity, &metadata, ended_ms, &to_json(&snapshot)?);
    memory.remember_for_run(info.uid, &identity, &entry, &*embedder(space)?)?;
    Ok(RememberOutcome::Stored(identity, id))
}

/// A run's snapshot as JSON.
#[cfg(test)]
pub(super) fn snapshot_json(reader: &RunReader) -> annals::Result<Option<String>> {
    snapshot_and_quotes(reader)?.map(|(snapshot, _)| to_json(&snapshot)).transpose()
}

fn to_json(snapshot: &SnapshotJson) -> annals::Result<String> {
    serde_json::to_string(snapshot)
        .map_err(|error| annals::Error::new(ErrorKind::Bug, format!("a snapshot cannot be encoded: {error}")))
}

/// A run's snapshot, and the texts in which its requests quote earlier runs.
fn snapshot_and_quotes(reader: &RunReader) -> annals::Result<Option<(SnapshotJson, Vec<String>)>> {
    // The bytes were verified when they were stored, and they are only read here, not served.
    let reader = reader.unverified();
    let mut conversation = RunConversation::new(reader.info().started_ns);
    for seq in 1..=reader.info().frames {
        let info = reader.frame_info(seq)?;
        conversation.add_decisions(&info.metadata);
        if RunConversation::reads_component(&info.component) {
            conversation.add_call(&reader.frame(seq)?);
        }
    }
    Ok(conversation.finish())
}

/// The entry of a snapshot as JSON.
fn entry_json(id: &str, identity: &Identity, metadata: &Value, ended_ms: u64, snapshot: &str) -> String {
    let parts = [
        ("tenant", &identity.tenant),
        ("principal", &identity.principal),
        ("conversationId", &identity.conversation),
    ];
    let parts =
        parts.into_iter().filter_map(|(name, part)| Some((name.to_owned(), Value::from(part.clone()?))));
    let whose: Map<String, Value> = parts.collect();
    format!(
        "{{\"id\":{},\"value\":{snapshot},\"version\":1,\"createdAt\":{ended_ms},\"updatedAt\":{ended_ms},\"lastAccessedAt\":{ended_ms},\"accessCount\":0,\"source\":{},\"metadata\":{metadata}}}",
        Value::from(id),
        json!({ "identity": whose }),
    )
}
