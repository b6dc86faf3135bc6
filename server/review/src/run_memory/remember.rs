//! Stores an ended run as a memory entry.

use std::collections::BTreeSet;

use annals::retention::parse_duration_ns;
use annals::{ErrorKind, Namespace, RunReader, RunUid, Severity, Status};
use annals_memory::{Embedder, Identity, Memory};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::conversation::{QuestionSnapshot, RunConversations};
use super::run_identity::{
    MEMORY_COMMITS_TAG, MEMORY_FOR_TAG, MEMORY_ON, MEMORY_TAG, RunIdentity, run_identity,
};
use super::snapshot::SnapshotJson;

/// Makes the embedder of a namespace. Called only once an entry needs a vector.
pub type EmbedderFn = fn(&Namespace) -> annals::Result<Box<dyn Embedder>>;

/// The result of remembering a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RememberOutcome {
    /// The run's questions were stored as entries with this identity and these ids, in the order in which they
    /// were asked; at least one.
    Stored(Identity, Vec<String>),
    /// The run was not stored, for this reason.
    Skipped(&'static str),
}

/// Remembers the questions of a run that has just ended: an entry for each question that got an answer.
/// A question counts as derived from what its identity recalled while it was worked on; without tool calls, also from the
/// recent recall before it.
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

/// Why a run that the cache answered is not remembered. Users do not expect this of a plain recording.
pub const FROM_CACHE: &str =
    "the cache answered a call of the run, so it tells what might have been; --remember stores it";

/// Remembers the questions of an imported run, as [`remember_ended`]. It is not new: what was recalled lately is none
/// of its sources.
///
/// # Errors
/// As [`remember_ended`].
pub fn remember_imported(
    space: &Namespace,
    run: &str,
    embedder: EmbedderFn,
) -> annals::Result<RememberOutcome> {
    let reader = space.run(run)?;
    match reader.info().status {
        status @ (Status::Ok | Status::Failed) => remember_reader(space, &reader, status, false, embedder),
        _ => Ok(RememberOutcome::Skipped("it was abandoned")),
    }
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
    let has_tag = |wanted: &str| info.tags.iter().any(|(key, value)| key == wanted && value == MEMORY_ON);
    let read = read_questions(reader, has_tag(MEMORY_COMMITS_TAG))?;
    let is_what_if = info.parent.is_some() || read.is_from_cache;
    if is_what_if && !has_tag(MEMORY_TAG) {
        let why = if read.is_from_cache { FROM_CACHE } else { "it is a what-if: a fork" };
        return Ok(RememberOutcome::Skipped(why));
    }
    let lifetime_ms = lifetime_ms(&info.tags)?;
    let ReadQuestions { questions, is_cut, .. } = read;
    if questions.is_empty() {
        return Ok(RememberOutcome::Skipped("it has no question, or no answer"));
    }
    let memory = Memory::open(space)?;
    // Read once: the run's first entry that answers from it clears it.
    let recent = if is_new { memory.recently_recalled_at(&identity)? } else { Vec::new() };
    let (mut entries, mut ids) = (Vec::new(), Vec::new());
    for (number, question) in questions.into_iter().enumerate() {
        let worked_ms = question.worked_ms();
        let QuestionSnapshot { snapshot, frame, quotes, .. } = question;
        // The first question has the run's name. The others also have the frame of their first call.
        let id = match number {
            0 => format!("run-{}", info.name),
            _ => format!("run-{}@{frame}", info.name),
        };
        let mut metadata = json!({ "run": info.name, "frame": frame, "status": status.name() });
        if info.severity != Severity::Normal {
            metadata["severity"] = info.severity.name().into();
        }
        if is_what_if {
            metadata["whatIf"] = true.into();
        }
        // The sources are the entries quoted in the question's requests, and those that the identity recalled
        // between the question and its answer: regardless of the program that recalled them, of other tools, and of
        // words or vectors as the way of asking. An answer without tool calls may also paraphrase what was
        // recalled before the question.
        let mut told = BTreeSet::new();
        let has_tools = !snapshot.tool_calls.is_empty();
        let during = |at_ms: i64| u64::try_from(at_ms).is_ok_and(|at_ms| worked_ms.contains(&at_ms));
        told.extend(
            recent.iter().filter(|(_, at_ms)| !has_tools || during(*at_ms)).map(|(id, _)| id.clone()),
        );
        for text in &quotes {
            told.extend(memory.entries_quoted_in(&identity, text)?);
        }
        // Not from the question's own earlier entry.
        told.remove(&format!("{}/{id}", identity.name()));
        if !told.is_empty() {
            metadata["derivedFrom"] = told.into_iter().collect::<Vec<String>>().into();
        }
        let span_ns = snapshot.duration_ms.saturating_mul(1_000_000);
        let ended_ms = info.ended_ns.unwrap_or_else(|| info.started_ns.saturating_add(span_ns)) / 1_000_000;
        let times = EntryTimes { ended_ms, ttl_ms: lifetime_ms.map(|lasts| ended_ms.saturating_add(lasts)) };
        entries.push(entry_json(&id, &identity, &metadata, times, &to_json(&snapshot)?));
        ids.push(id);
    }
    memory.remember_for_run(info.uid, &identity, &entries, &*embedder(space)?)?;
    if is_cut {
        return Err(annals::Error::new(
            ErrorKind::Invalid,
            "only a part of the run is remembered: it has more questions, tool calls, decisions or commits than fit",
        ));
    }
    Ok(RememberOutcome::Stored(identity, ids))
}

/// The snapshots of a run's questions as JSON.
#[cfg(test)]
pub(super) fn snapshots_json(reader: &RunReader) -> annals::Result<Vec<String>> {
    read_questions(reader, false)?.questions.iter().map(|question| to_json(&question.snapshot)).collect()
}

fn to_json(snapshot: &SnapshotJson) -> annals::Result<String> {
    serde_json::to_string(snapshot)
        .map_err(|error| annals::Error::new(ErrorKind::Bug, format!("a snapshot cannot be encoded: {error}")))
}

/// What a run's calls were about.
struct ReadQuestions {
    /// The snapshots of the answered questions.
    questions: Vec<QuestionSnapshot>,
    /// Whether questions, tool calls, decisions or commits beyond a limit are left out.
    is_cut: bool,
    /// Whether the cache answered a call.
    is_from_cache: bool,
}

/// The mark of a call that the cache answered, in a frame's metadata.
#[derive(Deserialize)]
struct CacheMark {
    #[serde(default)]
    cached: Option<IgnoredAny>,
}

fn read_questions(reader: &RunReader, with_commits: bool) -> annals::Result<ReadQuestions> {
    // The bytes were verified when they were stored, and they are only read here, not served.
    let reader = reader.unverified();
    let mut conversations = RunConversations::new(reader.info().started_ns, with_commits);
    let mut is_from_cache = false;
    for seq in 1..=reader.info().frames {
        let info = reader.frame_info(seq)?;
        if RunConversations::reads_component(&info.component) {
            is_from_cache |=
                serde_json::from_slice::<CacheMark>(&info.metadata).is_ok_and(|mark| mark.cached.is_some());
            conversations.add_call(seq, &reader.frame(seq)?);
        }
        if with_commits {
            conversations.add_commit(&info, &reader.frame(seq)?);
        }
        conversations.add_decisions(&info.metadata);
    }
    let (questions, is_cut) = conversations.finish();
    Ok(ReadQuestions { questions, is_cut, is_from_cache })
}

/// How long the run's entries are kept, by its tag.
fn lifetime_ms(tags: &[(String, String)]) -> annals::Result<Option<u64>> {
    let Some((_, text)) = tags.iter().rev().find(|(key, _)| key == MEMORY_FOR_TAG) else { return Ok(None) };
    let wrong = || {
        let what = format!(
            "the tag {MEMORY_FOR_TAG} is {text:?}: give a time such as 180d, an integer and s, min, h, d, w or y"
        );
        annals::Error::new(ErrorKind::Invalid, what)
    };
    parse_duration_ns(text).map(|ns| Some(ns / 1_000_000)).ok_or_else(wrong)
}

/// When an entry's run ended, and when the entry expires, in milliseconds since 1970.
#[derive(Clone, Copy)]
struct EntryTimes {
    ended_ms: u64,
    ttl_ms: Option<u64>,
}

/// The entry of a snapshot as JSON.
fn entry_json(id: &str, identity: &Identity, metadata: &Value, times: EntryTimes, snapshot: &str) -> String {
    let ended_ms = times.ended_ms;
    let ttl = times.ttl_ms.map(|ttl| format!("\"ttl\":{ttl},")).unwrap_or_default();
    let parts = [
        ("tenant", &identity.tenant),
        ("principal", &identity.principal),
        ("conversationId", &identity.conversation),
    ];
    let parts =
        parts.into_iter().filter_map(|(name, part)| Some((name.to_owned(), Value::from(part.clone()?))));
    let whose: Map<String, Value> = parts.collect();
    format!(
        "{{\"id\":{},\"value\":{snapshot},\"version\":1,\"createdAt\":{ended_ms},\"updatedAt\":{ended_ms},\"lastAccessedAt\":{ended_ms},\"accessCount\":0,{ttl}\"source\":{},\"metadata\":{metadata}}}",
        Value::from(id),
        json!({ "identity": whose }),
    )
}
