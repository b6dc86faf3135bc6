//! The agents' memory: recall, and remember.

use annals_memory::{Identity, MemoryQuery, prompt_text};
use serde_json::{Value, json};

use super::Tool;
use crate::answer::{Page, clipped, field};
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// Bytes of the evidence of one entry.
const EVIDENCE_BYTES_MAX: usize = 4000;

const TENANT: Parameter = Parameter {
    name: "tenant",
    kind: ParameterKind::Text,
    is_required: false,
    description: "Tenant whose memory it is; tenants cannot see each other's",
};
const PRINCIPAL: Parameter = Parameter {
    name: "principal",
    kind: ParameterKind::Text,
    is_required: false,
    description: "Person or program within the tenant",
};
const CONVERSATION: Parameter = Parameter {
    name: "conversation",
    kind: ParameterKind::Text,
    is_required: false,
    description: "Conversation",
};

pub(super) const RECALL: Tool = Tool {
    name: "recall",
    title: "Recall a decision",
    description: "Finds earlier decisions that answer a question, with their recorded evidence. Gives nothing rather than the answer of another decision.",
    parameters: &[
        Parameter {
            name: "question",
            kind: ParameterKind::Text,
            is_required: true,
            description: "The question, with the identifiers of the case it is about",
        },
        TENANT,
        PRINCIPAL,
        CONVERSATION,
        Parameter {
            name: "across_conversations",
            kind: ParameterKind::Boolean,
            is_required: false,
            description: "Search all principals and conversations of the tenant",
        },
        Parameter {
            name: "top_k",
            kind: ParameterKind::Integer(1, 10),
            is_required: false,
            description: "Maximum number of entries; default 3",
        },
        Parameter {
            name: "threshold",
            kind: ParameterKind::Share,
            is_required: false,
            description: "Least score of an entry",
        },
        Parameter {
            name: "session",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Id of the session that asks: what it is given is logged for diagnose_session; needs the right to write",
        },
    ],
    right: ToolRight::Read,
    run: recall,
};

pub(super) const REMEMBER: Tool = Tool {
    name: "remember",
    title: "Remember a decision",
    description: "Stores a memory entry or a run's snapshot (agentfootprint's form), so that recall finds it.",
    parameters: &[
        Parameter {
            name: "entry",
            kind: ParameterKind::Object,
            is_required: true,
            description: "The entry or snapshot",
        },
        TENANT,
        PRINCIPAL,
        CONVERSATION,
    ],
    right: ToolRight::Record,
    run: remember,
};

fn identity(arguments: &Arguments) -> Identity {
    let part = |name: &str| arguments.text(name).map(str::to_owned);
    Identity { tenant: part("tenant"), principal: part("principal"), conversation: part("conversation") }
}

fn recall(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let question = arguments.text("question").unwrap_or_default();
    #[allow(clippy::cast_possible_truncation, reason = "a share has few digits")]
    let min_score = arguments.share("threshold").map(|share| share as f32);
    let wanted = MemoryQuery {
        k: arguments.number("top_k").and_then(|k| usize::try_from(k).ok()).unwrap_or(3),
        min_score,
        across_conversations: arguments.is_set("across_conversations"),
        ..MemoryQuery::default()
    };
    // The question is redacted, too: else guesses of a removed value could be checked with it.
    let question = store.redactor().map_or_else(|| question.to_owned(), |by| by.text(question));
    let session = arguments.text("session");
    if session.is_some() && !store.allows(ToolRight::Record) {
        return Err(ToolError("recall with a session logs what it gives, and you may not write".to_owned()));
    }
    let hits = store.recall(&identity(arguments), &question, &wanted, session)?;
    let (mut page, mut left_out) = (Page::default(), 0);
    for hit in &hits {
        let text = prompt_text(std::slice::from_ref(hit), None, None);
        let text = store.redactor().map_or(text.clone(), |by| by.text(&text));
        let is_added = page.push(json!({
            "id": field(&hit.entry.id), "identity": field(&hit.identity), "score": hit.score,
            "decided_at": hit.decided_at(), "evidence": clipped(&text, EVIDENCE_BYTES_MAX),
            "evidence_bytes": text.len(),
        }));
        left_out += usize::from(!is_added);
    }
    let mut answer = json!({ "hits": page.into_items() });
    if left_out > 0 {
        answer["left_out"] = left_out.into();
    }
    if hits.is_empty() {
        answer["why"] = "no entry answers this question".into();
    }
    Ok(answer)
}

fn remember(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let entry = arguments.object("entry").map(ToString::to_string).unwrap_or_default();
    let id = store.remember(&identity(arguments), &entry)?;
    Ok(json!({ "id": field(&id) }))
}
