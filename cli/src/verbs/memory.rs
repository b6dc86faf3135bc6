//! `annals remember`, `annals recall` and `annals export-training`: what was decided, kept, found again by a question, and made lines to train by.

use annals::memory::{Hit, Identity, Projection, Training, Wanted, told};
use annals_server::{EmbeddingsOptions, ask_daemon};
use serde_json::json;

use crate::args::{
    ExportTrainingArgs, Global, ProjectionArg, RecallArgs, RememberArgs, TrainingArg, WhoseArgs,
};
use crate::door::{Door, embedder, engine};
use crate::failure::{Code, Failure, Result};
use crate::out::{Out, metadata};
use crate::{input, locate};

/// The longest file that is remembered: some more than an entry may have, so that the engine's reason is told.
const FILE_BYTES_MAX: usize = 65 << 20;

pub(super) fn remember(global: &Global, args: &RememberArgs, out: &mut Out) -> Result<()> {
    let hint =
        "a memory has at most 64 MiB: keep what was decided and on what evidence, not all that was said";
    let bytes = input::at_most(&args.file, FILE_BYTES_MAX, hint)?;
    let place = match args.file.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => args.file.display().to_string(),
    };
    let text = String::from_utf8(bytes).map_err(|error| {
        let (line, column) = place_of(error.as_bytes(), error.utf8_error().valid_up_to());
        let message = format!("{place}: it is not UTF-8 at line {line} column {column}");
        Failure::new(Code::Failed, message, "a memory is JSON in UTF-8")
    })?;
    let whose = identity(&args.whose);
    let root = locate::store(global.store.as_deref());
    let far = EmbeddingsOptions::from_variables(&|name| std::env::var(name).ok()).map_err(embedder)?;
    let far = far.map(|options| options.id());
    let id = match ask_daemon(&root, &words(&text, far.as_deref(), &args.whose, &global.namespace)) {
        Ok(Some(id)) => id,
        Ok(None) => {
            let door = Door::write(&root, &global.namespace)?;
            let id = door.remember(&whose, &text).map_err(|failure| failure.at(&place))?;
            door.close()?;
            id
        }
        Err(error) => {
            let refused = match error.to_string().strip_prefix("ERR ") {
                Some(why) => Failure::new(
                    Code::Failed,
                    why,
                    "docs/memory.md has the form of an entry and of a snapshot",
                ),
                None => engine(error),
            };
            return Err(refused.at(&place));
        }
    };
    let name = whose.name();
    if out.json {
        return out.object(&json!({ "id": id, "identity": name }));
    }
    out.line(format_args!("remembered {id} in {name}"))
}

pub(super) fn recall(global: &Global, args: &RecallArgs, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let wanted = Wanted {
        k: args.top_k.into(),
        min_score: args.threshold,
        across: args.across_conversations,
        ..Wanted::default()
    };
    let hits = door.recall(&identity(&args.whose), &args.question, &wanted)?;
    let projection = match args.projection {
        ProjectionArg::Decisions => Projection::Decisions,
        ProjectionArg::Commits => Projection::Commits,
        ProjectionArg::Narrative => Projection::Narrative,
        ProjectionArg::Full => Projection::Full,
    };
    if !out.json {
        return match told(&hits, projection, args.budget) {
            text if text.is_empty() => Ok(()),
            text => out.value(text.as_bytes()),
        };
    }
    hits.iter().try_for_each(|hit| out.object(&shown(hit, &told_of(hit, projection, args.budget))))
}

pub(super) fn export_training(global: &Global, args: &ExportTrainingArgs, out: &mut Out) -> Result<()> {
    let form = match args.format {
        TrainingArg::Sft => Training::Sft,
        TrainingArg::Dpo => Training::Dpo,
        TrainingArg::ProcessRl => Training::ProcessRl,
    };
    let door = super::reading(global)?;
    door.training(&identity(&args.whose), args.across_conversations, form, &mut |line| {
        out.line(String::from_utf8_lossy(line))
    })
}

fn told_of(hit: &Hit, projection: Projection, budget: Option<usize>) -> String {
    told(std::slice::from_ref(hit), projection, budget)
}

/// A hit for a JSON line.
#[derive(serde::Serialize)]
struct Shown<'a> {
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
}

fn shown<'a>(hit: &'a Hit, text: &'a str) -> Shown<'a> {
    let (snapshot, snapshot_base64) = metadata(hit.entry.value().as_bytes());
    Shown {
        id: &hit.entry.id,
        identity: &hit.identity,
        score: hit.score,
        decided_ms: hit.decided_ms(),
        decided_at: hit.decided_at(),
        text,
        snapshot,
        snapshot_base64,
    }
}

fn identity(whose: &WhoseArgs) -> Identity {
    Identity {
        tenant: whose.tenant.clone(),
        principal: whose.principal.clone(),
        conversation: whose.conversation.clone(),
    }
}

/// The same for a daemon.
fn words<'a>(
    text: &'a str,
    embedder: Option<&'a str>,
    whose: &'a WhoseArgs,
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

/// The line and the column of a byte, from 1.
fn place_of(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = bytes.get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count();
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count();
    (line + 1, column + 1)
}
