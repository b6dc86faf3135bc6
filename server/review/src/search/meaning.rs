//! Questions of runs that are about the same matter, found in agents' memory.

use std::collections::HashMap;

use annals::{ErrorKind, Namespace};
use annals_memory::{Embedder, Memory, MemoryEntry, MemoryHit, entry_shares};
use annals_policy::profiles::Redactor;
use serde::{Deserialize, Serialize};

use super::HITS_MAX;
use crate::memory_redaction::redacted_hits;

/// Runs whose questions are read for each hit that is asked for: what-ifs and derived entries move back in the order, and a
/// profile may hide why an entry was found.
const READ_EACH: usize = 4;
/// Maximum bytes of a question's text, and of an answer's.
const SHOWN_BYTES_MAX: usize = 400;

/// The result of a search by meaning.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MeaningAnswer {
    /// The best run first. No run is there twice.
    pub hits: Vec<RunHit>,
    /// The id of the embedder that compared the question with the questions of runs.
    pub embedder: String,
    /// Other embedders with entries in the namespace. Questions of their entries were not compared.
    pub not_compared: Vec<String>,
}

/// A run with a question that the search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunHit {
    pub run: String,
    /// The run was dropped or replaced, and its memory outlives it: there are no frames to show.
    pub gone: bool,
    /// The identity that the entry belongs to: tenant, principal and conversation.
    pub identity: String,
    /// When the run ended, in milliseconds since 1970.
    pub ended_ms: Option<i64>,
    /// How the run ended: `ok` or `failed`.
    pub status: Option<String>,
    /// The run tells what might have been: it is a fork, or the cache answered one of its calls.
    pub what_if: bool,
    /// The question of the run that is the nearest.
    #[serde(flatten)]
    pub best: QuestionHit,
    /// Other questions of the run that were found, the nearest first; at most four.
    pub others: Vec<QuestionHit>,
}

/// A question of a run, and its answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuestionHit {
    /// The frame of the question's first call.
    pub seq: u32,
    /// How near the question is: the embedder's score, from 0 to 1.
    pub score: f32,
    /// Texts of at most 400 bytes; a longer one is cut and ends with `…`.
    pub question: String,
    pub answer: String,
}

/// What the metadata of a run's entry says.
#[derive(Deserialize)]
struct RunMetadata {
    run: String,
    frame: u32,
    #[serde(default)]
    status: Option<String>,
}

/// The texts of a snapshot that are shown.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ShownTexts {
    query: String,
    final_content: String,
}

/// Finds the runs with a question that is near to `question`, the best first, in the memories of all tenants. A reader with
/// a profile finds what the profile shows: the question is redacted, and each entry is compared as the profile shows it.
///
/// # Errors
/// As [`Memory::recall_runs`].
pub fn find_by_meaning(
    space: &Namespace,
    memory: &Memory,
    question: &str,
    with: &dyn Embedder,
    by: Option<&Redactor>,
    count: usize,
) -> annals::Result<MeaningAnswer> {
    let count = count.min(HITS_MAX);
    let question = by.map_or_else(|| question.to_owned(), |by| by.text(question));
    let mut found = Vec::new();
    for hit in memory.recall_runs(&question, with, count.saturating_mul(READ_EACH))? {
        // Before the entry is redacted: a run is found by its name.
        let metadata = hit.entry.member("metadata").map(serde_json::from_str::<RunMetadata>);
        if let Some(Ok(metadata)) = metadata {
            found.push((metadata, hit));
        }
    }
    if let Some(by) = by {
        found = compared_as_shown(found, &question, with, by)?;
    }
    let mut runs: Vec<RunHit> = Vec::new();
    let mut places: HashMap<(String, String, Option<i64>), usize> = HashMap::new();
    for (metadata, hit) in found {
        let ended_ms = hit.entry.member("createdAt").and_then(|ms| ms.parse().ok());
        let question = question_hit(metadata.frame, hit.score, &hit.entry);
        // A dropped run and the run that took its name are two.
        let run = (hit.identity.clone(), metadata.run.clone(), ended_ms);
        if let Some(found) = places.get(&run).and_then(|place| runs.get_mut(*place)) {
            found.others.push(question);
            continue;
        }
        if runs.len() >= count {
            continue;
        }
        places.insert(run, runs.len());
        let gone = !is_living(space, &metadata.run, ended_ms)?;
        runs.push(RunHit {
            run: match by {
                // No list of runs has its name.
                Some(by) if gone => by.text(&metadata.run),
                _ => metadata.run,
            },
            gone,
            identity: hit.identity,
            ended_ms,
            status: metadata.status,
            what_if: hit.entry.is_what_if,
            best: question,
            others: Vec::new(),
        });
    }
    let not_compared = memory.other_embedders(with.id())?;
    Ok(MeaningAnswer { hits: runs, embedder: with.id().to_owned(), not_compared })
}

/// Hits as a profile shows them, of which those stay that still answer the question, the best first.
fn compared_as_shown(
    found: Vec<(RunMetadata, MemoryHit)>,
    question: &str,
    with: &dyn Embedder,
    by: &Redactor,
) -> annals::Result<Vec<(RunMetadata, MemoryHit)>> {
    let (metadata, hits): (Vec<RunMetadata>, Vec<MemoryHit>) = found.into_iter().unzip();
    let hits = redacted_hits(by, hits)?;
    let entries: Vec<MemoryEntry> = hits.iter().map(|hit| hit.entry.clone()).collect();
    let scores = entry_shares(question, &entries, with)?;
    let scored = metadata.into_iter().zip(hits).zip(scores);
    let mut shown: Vec<(RunMetadata, MemoryHit)> = scored
        .filter_map(|((metadata, hit), score)| Some((metadata, MemoryHit { score: score?, ..hit })))
        .collect();
    // Stable: equal hits keep their order, and what-ifs stay behind all others.
    shown.sort_by(|(_, a), (_, b)| {
        a.entry.is_what_if.cmp(&b.entry.is_what_if).then(b.score.total_cmp(&a.score))
    });
    Ok(shown)
}

/// Whether the run that an entry tells of is stored. A run of its name that ended at another time is another run.
fn is_living(space: &Namespace, run: &str, ended_ms: Option<i64>) -> annals::Result<bool> {
    match space.run(run) {
        Ok(reader) => {
            let ended_ns = reader.info().ended_ns;
            Ok(ended_ns.is_none_or(|ns| i64::try_from(ns / 1_000_000).ok() == ended_ms))
        }
        Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::NotFound) => Ok(false),
        // A damaged run must not hide the others. Reading it names the damage.
        Err(error) if error.kind() == ErrorKind::Damaged => Ok(true),
        Err(error) => Err(error),
    }
}

fn question_hit(seq: u32, score: f32, entry: &MemoryEntry) -> QuestionHit {
    let texts: ShownTexts = serde_json::from_str(entry.value()).unwrap_or_default();
    QuestionHit { seq, score, question: cut(&texts.query), answer: cut(&texts.final_content) }
}

/// The beginning of a text.
fn cut(text: &str) -> String {
    let text = text.trim();
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let mut end = SHOWN_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", text.get(..end).unwrap_or_default().trim_end())
}
