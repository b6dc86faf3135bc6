//! A run, remembered.

use std::collections::BTreeSet;

use annals::{ErrorKind, Namespace, RunReader, RunUid, Status};
use annals_memory::{Identity, Memory};
use serde_json::{Map, Value, json};

use super::conversation::Conversation;
use super::snapshot::Snapshot;
use super::whose::{Whose, whose};
use crate::embeddings::EmbedderHere;

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remembered {
    /// It is remembered as the entry of this id of this identity.
    As(Identity, String),
    /// There is nothing to remember, or it is not to be: why.
    Nothing(&'static str),
}

/// Remembers a run that has ended, however it did. One that is remembered already is remembered anew.
///
/// # Errors
/// `Conflict` for a run that is open; `NotFound`, `Gone`; `Damaged`, `Unavailable`, `Poisoned`.
pub fn remember_run(space: &Namespace, run: &str) -> annals::Result<Remembered> {
    let reader = space.run(run)?;
    let info = reader.info();
    if info.status == Status::Open {
        let what = format!("run {run:?} is open: it is remembered when it has ended");
        return Err(annals::Error::new(ErrorKind::Conflict, what));
    }
    entered(space, &reader, info.status, false)
}

/// Remembers a run that was just ended so. One that called no tools only answers from what its identity was told of late, if it was.
///
/// # Errors
/// As [`remember_run`].
pub(crate) fn remember_ended(space: &Namespace, uid: RunUid, status: Status) -> annals::Result<Remembered> {
    if !matches!(status, Status::Ok | Status::Failed) {
        return Ok(Remembered::Nothing("it was abandoned"));
    }
    entered(space, &space.run_numbered(uid)?, status, true)
}

fn entered(
    space: &Namespace,
    reader: &RunReader,
    status: Status,
    is_new: bool,
) -> annals::Result<Remembered> {
    let info = reader.info();
    let identity = match whose(space, info)? {
        Whose::Of(identity) => identity,
        Whose::Off => return Ok(Remembered::Nothing("its tags say memory=off")),
        Whose::Unknown => {
            let why = "the run that it is a fork of is gone, and no tag says whose memory it goes into";
            return Ok(Remembered::Nothing(why));
        }
    };
    let Some((snapshot, tellings)) = snapshot_of(reader)? else {
        return Ok(Remembered::Nothing("it has no question, or no answer"));
    };
    let (memory, id) = (Memory::open(space)?, format!("run-{}", info.name));
    let mut metadata = json!({ "run": info.name, "status": status.name() });
    if snapshot.tool_calls.is_empty() {
        // What its requests tell of, whoever recalled that; and what it was told by a door of ours and did not pass on word for word.
        let mut told = BTreeSet::new();
        for text in &tellings {
            told.extend(memory.told_in(&identity, text)?);
        }
        if is_new {
            told.extend(memory.told_of_late(&identity)?);
        }
        // Not from what it was remembered as before.
        told.remove(&format!("{}/{id}", identity.name()));
        if !told.is_empty() {
            let told: Vec<String> = told.into_iter().collect();
            metadata["derivedFrom"] = told.into();
        }
    }
    let span_ns = snapshot.duration_ms.saturating_mul(1_000_000);
    let ended_ms = info.ended_ns.unwrap_or_else(|| info.started_ns.saturating_add(span_ns)) / 1_000_000;
    let entry = entry(&id, &identity, &metadata, ended_ms, &json_of(&snapshot)?);
    memory.remember_with(info.uid, &identity, &entry, &EmbedderHere::of_environment(Some(space))?)?;
    Ok(Remembered::As(identity, id))
}

/// What a run came to, as JSON.
#[cfg(test)]
pub(super) fn snapshot_json(reader: &RunReader) -> annals::Result<Option<String>> {
    snapshot_of(reader)?.map(|(snapshot, _)| json_of(&snapshot)).transpose()
}

fn json_of(snapshot: &Snapshot) -> annals::Result<String> {
    serde_json::to_string(snapshot)
        .map_err(|error| annals::Error::new(ErrorKind::Bug, format!("a snapshot cannot be written: {error}")))
}

/// What a run came to, and what it was told of earlier ones.
fn snapshot_of(reader: &RunReader) -> annals::Result<Option<(Snapshot, Vec<String>)>> {
    // What is read was checked when it was stored, and is looked at, not served.
    let reader = reader.unverified();
    let mut conversation = Conversation::of_run(reader.info().started_ns);
    for seq in 1..=reader.info().frames {
        let info = reader.frame_info(seq)?;
        conversation.decided(&info.metadata);
        if Conversation::wants(&info.component) {
            conversation.call(&reader.frame(seq)?);
        }
    }
    Ok(conversation.finish())
}

/// The entry of a snapshot, as JSON.
fn entry(id: &str, identity: &Identity, metadata: &Value, ended_ms: u64, snapshot: &str) -> String {
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
