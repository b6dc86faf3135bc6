//! `annals remember`, `recall`, `define-memory` and `export-training`: store decisions, find them by a
//! question, store recall settings, and export training lines.

use std::path::Path;

use annals_memory::{Identity, MemoryHit, MemoryQuery, Projection, TrainingFormat, prompt_text};
use annals_server::redacted_hits;
use serde_json::json;

use crate::args::{
    DefineMemoryArgs, ExportTrainingArgs, GlobalArgs, IdentityArgs, ProjectionArg, RecallArgs, RememberArgs,
    TrainingArg,
};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, metadata};
use crate::profiles;
use crate::store_access::{StoreAccess, StoreWait};
use crate::{input, locate};

/// Most bytes of an entry's file: slightly more than the engine accepts, so that the engine's error is shown.
const FILE_BYTES_MAX: usize = 65 << 20;
/// Most bytes of a question from standard input. Linux limits an argument to 128 KiB.
const QUESTION_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a definition.
const DEFINITION_BYTES_MAX: usize = 1 << 20;
/// The name of standard input in messages.
const STDIN_NAME: &str = "standard input";

pub(super) fn remember(global: &GlobalArgs, args: &RememberArgs, out: &mut CliOutput) -> CliResult<()> {
    let whose = parse_identity(&args.whose)?;
    let hint =
        "an entry has at most 64 MiB: store the decisions and their evidence, not the whole conversation";
    let bytes = input::read_at_most(&args.file, FILE_BYTES_MAX, hint)?;
    let place = source_name(&args.file);
    let text = parse_utf8(bytes, &place, "a memory is JSON in UTF-8")?;
    let root = locate::store(global.store.as_deref());
    let id = StoreAccess::remember(&root, &global.namespace, &whose, &text, StoreWait::from_args(global))
        .map_err(|failure| failure.with_place(&place))?;
    let name = whose.name();
    if out.json {
        return out.object(&json!({ "id": id, "identity": name }));
    }
    out.line(format_args!("remembered {id} in {name}"))
}

pub(super) fn recall(global: &GlobalArgs, args: &RecallArgs, out: &mut CliOutput) -> CliResult<()> {
    let whose = parse_identity(&args.whose)?;
    let question = match args.question.as_str() {
        "-" => {
            let bytes =
                input::read_at_most(Path::new("-"), QUESTION_BYTES_MAX, "a question has at most 1 MiB")?;
            parse_utf8(bytes, STDIN_NAME, "a question is text in UTF-8")?
        }
        question => question.to_owned(),
    };
    let door = match args.session {
        Some(_) => super::open_existing_to_write(global).map_err(|failure| match failure {
            Failure::Message { code, message, .. } => Failure::Message {
                code,
                message,
                hint:
                    "without --session, recall only reads and works now; over a daemon MEM.SEARCH has SESSION"
                        .to_owned(),
            },
            other => other,
        })?,
        None => super::open_to_read(global)?,
    };
    let definition = args.memory.as_deref().map(|id| door.definition(id)).transpose()?;
    // Options of the command line override the definition.
    let by = definition.as_ref();
    let wanted = MemoryQuery {
        k: args.top_k.map(usize::from).or(by.map(|by| by.k)).unwrap_or(1),
        min_score: args.threshold.or(by.and_then(|by| by.threshold)),
        embedder: by.and_then(|by| by.embedder.as_deref()),
        across_conversations: args.across_conversations || by.is_some_and(|by| by.across_conversations),
        ..MemoryQuery::default()
    };
    let redactor = profiles::redactor(global, &args.reader)?;
    // A hit must confirm no guess of a value that the profile hides.
    let question = match &redactor {
        Some(redactor) => redactor.text(&question),
        None => question,
    };
    let hits = door.recall(&whose, &question, &wanted, args.session.as_deref())?;
    if args.session.is_some() {
        door.close()?;
    }
    let hits = match &redactor {
        Some(redactor) => redacted_hits(redactor, hits).map_err(redaction_failure)?,
        None => hits,
    };
    let projection = match args.projection {
        None => by.map(|by| by.projection),
        Some(ProjectionArg::Decisions) => Some(Projection::Decisions),
        Some(ProjectionArg::Commits) => Some(Projection::Commits),
        Some(ProjectionArg::Narrative) => Some(Projection::Narrative),
        Some(ProjectionArg::Full) => Some(Projection::Full),
    };
    if !out.json {
        return match prompt_text(&hits, projection, args.budget) {
            text if text.is_empty() => Ok(()),
            text => {
                profiles::print_redaction_note(redactor.as_ref());
                out.text(&text)
            }
        };
    }
    let profile = redactor.as_ref().map(|redactor| redactor.profile().name());
    hits.iter().try_for_each(|hit| {
        let text = projected_text(hit, projection, args.budget);
        out.object(&HitLine { redacted: profile, ..hit_line(hit, &text) })
    })
}

pub(super) fn define(global: &GlobalArgs, args: &DefineMemoryArgs, out: &mut CliOutput) -> CliResult<()> {
    let bytes = input::read_small(&args.file, DEFINITION_BYTES_MAX)?;
    let place = source_name(&args.file);
    let text = parse_utf8(bytes, &place, "a definition is JSON in UTF-8")?;
    let root = locate::store(global.store.as_deref());
    // Some editors write a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    let id = StoreAccess::define(&root, &global.namespace, text, StoreWait::from_args(global))
        .map_err(|failure| failure.with_place(&place))?;
    if out.json {
        return out.object(&json!({ "memory": id }));
    }
    out.line(format_args!("defined {id}"))
}

pub(super) fn export_training(
    global: &GlobalArgs,
    args: &ExportTrainingArgs,
    out: &mut CliOutput,
) -> CliResult<()> {
    let form = match args.format {
        TrainingArg::Sft => TrainingFormat::Sft,
        TrainingArg::Dpo => TrainingFormat::Dpo,
        TrainingArg::ProcessRl => TrainingFormat::ProcessRl,
    };
    let whose = parse_identity(&args.whose)?;
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    profiles::print_redaction_note(redactor.as_ref());
    door.export_training(&whose, args.across_conversations, form, &mut |line| {
        let shown = redactor.as_ref().map(|redactor| redactor.body(line, None).bytes);
        out.json_line(&String::from_utf8_lossy(shown.as_deref().unwrap_or(line)))
    })
}

fn redaction_failure(error: annals::Error) -> Failure {
    Failure::failed(error, "this is a bug in annals: please report it")
}

fn projected_text(hit: &MemoryHit, projection: Option<Projection>, budget: Option<usize>) -> String {
    prompt_text(std::slice::from_ref(hit), projection, budget)
}

/// A hit as a JSON line.
#[derive(serde::Serialize)]
struct HitLine<'a> {
    id: &'a str,
    identity: &'a str,
    score: f32,
    decided_ms: Option<i64>,
    decided_at: Option<String>,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<Box<serde_json::value::RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redacted: Option<&'a str>,
}

fn hit_line<'a>(hit: &'a MemoryHit, text: &'a str) -> HitLine<'a> {
    let (snapshot, snapshot_base64) = metadata(hit.entry.value().as_bytes());
    HitLine {
        id: &hit.entry.id,
        identity: &hit.identity,
        score: hit.score,
        decided_ms: hit.decided_ms(),
        decided_at: hit.decided_at(),
        text,
        snapshot,
        snapshot_base64,
        redacted: None,
    }
}

fn parse_identity(whose: &IdentityArgs) -> CliResult<Identity> {
    let identity = Identity {
        tenant: whose.tenant.clone(),
        principal: whose.principal.clone(),
        conversation: whose.conversation.clone(),
    };
    let named = identity.checked_name();
    named.map_err(|error| Failure::usage(error, "shorten --tenant, --principal or --conversation"))?;
    Ok(identity)
}

pub(super) fn source_name(file: &Path) -> String {
    match file.as_os_str() == "-" {
        true => STDIN_NAME.to_owned(),
        false => file.display().to_string(),
    }
}

/// Parses UTF-8; an error names the line and column.
pub(super) fn parse_utf8(bytes: Vec<u8>, place: &str, hint: &str) -> CliResult<String> {
    String::from_utf8(bytes).map_err(|error| {
        let (line, column) = line_and_column(error.as_bytes(), error.utf8_error().valid_up_to());
        Failure::failed(format!("{place}: not UTF-8 at line {line} column {column}"), hint)
    })
}

/// The line and column of a byte, counted from 1.
fn line_and_column(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = bytes.get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count();
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count();
    (line + 1, column + 1)
}
