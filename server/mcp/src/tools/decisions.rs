//! Decisions and lessons: queries, statistics, and what records them.

use annals_deliberation::Method;
use annals_diagnostics::{Diagnostics, LessonFilter};
use serde_json::{Map, Value, json};

use super::Tool;
use crate::answer::{OBJECT_BYTES_MAX, PAGE_BYTES, Page, field, fitted, shown};
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// Decisions that one call lists without `limit`.
const DECISIONS_DEFAULT: u64 = 5;
/// Misleading observations that are listed.
const MISLEADING_MAX: usize = 100;

const CATEGORY: Parameter = Parameter {
    name: "category",
    kind: ParameterKind::OneOf(&annals_deliberation::CATEGORIES),
    is_required: false,
    description: "Only decisions of this category",
};
const STAKES: Parameter = Parameter {
    name: "stakes",
    kind: ParameterKind::OneOf(&annals_deliberation::STAKES),
    is_required: false,
    description: "Only decisions of these stakes",
};
const AGENT: Parameter = Parameter {
    name: "agent",
    kind: ParameterKind::Text,
    is_required: false,
    description: "Only decisions of this agent",
};
const OF_RUN: Parameter = Parameter {
    name: "run",
    kind: ParameterKind::Text,
    is_required: false,
    description: "Only decisions that were taken in this run",
};

pub(super) const QUERY_DECISIONS: Tool = Tool {
    name: "query_decisions",
    title: "Query decisions",
    description: "Finds recorded decisions of agents by words or meaning, with their confidence, outcome and, if asked for, how they were reached.",
    parameters: &[
        Parameter {
            name: "query",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Words to look for; without it the newest decisions",
        },
        CATEGORY,
        STAKES,
        AGENT,
        OF_RUN,
        Parameter {
            name: "include_deliberation",
            kind: ParameterKind::Boolean,
            is_required: false,
            description: "Also give inputs and steps of each decision",
        },
        Parameter {
            name: "limit",
            kind: ParameterKind::Integer(1, 50),
            is_required: false,
            description: "Maximum number of decisions; default 5",
        },
    ],
    right: ToolRight::ReadUnredacted,
    run: query_decisions,
};

pub(super) const GET_DECISION: Tool = Tool {
    name: "get_decision",
    title: "Get a decision",
    description: "Reads one recorded decision by its id, with its outcome and how it was reached.",
    parameters: &[
        Parameter {
            name: "decision_id",
            kind: ParameterKind::Text,
            is_required: true,
            description: "Id of the decision, as query_decisions and record_decision give it",
        },
        Parameter {
            name: "include_deliberation",
            kind: ParameterKind::Boolean,
            is_required: false,
            description: "Also give inputs and steps; default true",
        },
    ],
    right: ToolRight::Read,
    run: get_decision,
};

pub(super) const CHECK_GUARDRAILS: Tool = Tool {
    name: "check_guardrails",
    title: "Check guardrails",
    description: "Says whether the guardrails allow an action, before it is taken. Gives the guardrails that it violates, and warnings.",
    parameters: &[
        Parameter {
            name: "description",
            kind: ParameterKind::Text,
            is_required: true,
            description: "What is about to be done",
        },
        Parameter {
            name: "context",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Why, and in what situation",
        },
        Parameter {
            name: "category",
            kind: ParameterKind::OneOf(&annals_deliberation::CATEGORIES),
            is_required: false,
            description: "Category of the action",
        },
        Parameter {
            name: "stakes",
            kind: ParameterKind::OneOf(&annals_deliberation::STAKES),
            is_required: false,
            description: "Stakes of the action",
        },
        Parameter {
            name: "confidence",
            kind: ParameterKind::Share,
            is_required: false,
            description: "How sure you are, from 0 to 1; some guardrails require it",
        },
    ],
    right: ToolRight::ReadUnredacted,
    run: check_guardrails,
};

pub(super) const GET_REASON_STATS: Tool = Tool {
    name: "get_reason_stats",
    title: "Statistics of reasons",
    description: "For each type of reason, how often decisions rest on it, their confidence and their rate of success; the variety of the types, and calibration.",
    parameters: &[CATEGORY, STAKES, AGENT, OF_RUN],
    right: ToolRight::ReadUnredacted,
    run: get_reason_stats,
};

pub(super) const DELIBERATION_STATS: Tool = Tool {
    name: "deliberation_stats",
    title: "Statistics of deliberations",
    description: "Numbers of steps and inputs, speed of convergence and variety of sources, against the outcome of decisions; calibration of stated confidence.",
    parameters: &[CATEGORY, AGENT],
    right: ToolRight::ReadUnredacted,
    run: deliberation_stats,
};

pub(super) const LESSONS: Tool = Tool {
    name: "lessons",
    title: "Lessons of sessions",
    description: "Failed sessions by category, and the observations from memory that misled sessions, with their weights.",
    parameters: &[
        Parameter {
            name: "organisation",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only sessions of this organisation",
        },
        Parameter {
            name: "project",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Only sessions of this project",
        },
    ],
    right: ToolRight::ReadUnredacted,
    run: lessons,
};

pub(super) const RECORD_DECISION: Tool = Tool {
    name: "record_decision",
    title: "Record a decision",
    description: "Stores a decision with its deliberation. Members as cstp.recordDecision has them: decision and confidence are required.",
    parameters: &[Parameter {
        name: "decision",
        kind: ParameterKind::Object,
        is_required: true,
        description: "The decision: {\"decision\": text, \"confidence\": 0 to 1, \"category\", \"stakes\", \"reasons\", \"deliberation\", ...}",
    }],
    right: ToolRight::Record,
    run: |store, arguments| change(store, Method::RecordDecision, arguments.object("decision").cloned()),
};

pub(super) const RECORD_THOUGHT: Tool = Tool {
    name: "record_thought",
    title: "Record a thought",
    description: "Adds a thought to the agent's next decision, or to the stored decision with this id.",
    parameters: &[
        Parameter { name: "text", kind: ParameterKind::Text, is_required: true, description: "The thought" },
        Parameter {
            name: "decision_id",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Id of a stored decision",
        },
    ],
    right: ToolRight::Record,
    run: |store, arguments| {
        let mut params = json!({ "text": arguments.text("text") });
        if let Some(id) = arguments.text("decision_id") {
            params["id"] = id.into();
        }
        change(store, Method::RecordThought, Some(params))
    },
};

pub(super) const REVIEW_OUTCOME: Tool = Tool {
    name: "review_outcome",
    title: "Review a decision",
    description: "Stores how a decision turned out.",
    parameters: &[
        Parameter {
            name: "decision_id",
            kind: ParameterKind::Text,
            is_required: true,
            description: "Id of the decision",
        },
        Parameter {
            name: "outcome",
            kind: ParameterKind::OneOf(&annals_deliberation::OUTCOMES),
            is_required: true,
            description: "How it turned out",
        },
        Parameter {
            name: "result",
            kind: ParameterKind::Text,
            is_required: false,
            description: "What happened",
        },
    ],
    right: ToolRight::Record,
    run: |store, arguments| {
        let mut params = json!({ "id": arguments.text("decision_id"), "outcome": arguments.text("outcome") });
        if let Some(result) = arguments.text("result") {
            params["actualResult"] = result.into();
        }
        change(store, Method::ReviewOutcome, Some(params))
    },
};

pub(super) const DIAGNOSE_SESSION: Tool = Tool {
    name: "diagnose_session",
    title: "Diagnose a session",
    description: "Records how a session ended: its failure category, and the weights of the observations it was given.",
    parameters: &[Parameter {
        name: "session",
        kind: ParameterKind::Object,
        is_required: true,
        description: "The report: {\"sessionId\", \"outcome\", \"injectedObservationIds\", \"toolCallSummary\", \"errorsEncountered\": [{\"message\"}], \"filesModified\"}",
    }],
    right: ToolRight::Record,
    run: |store, arguments| {
        let session = arguments.object("session").map(ToString::to_string).unwrap_or_default();
        read_answer(store, &store.diagnose(&session)?)
    },
};

/// Parses the JSON of another layer's answer, as the reader may see it.
fn read_answer(store: &dyn McpStore, text: &str) -> Result<Value, ToolError> {
    let answer = serde_json::from_str(text)
        .map_err(|error| ToolError(format!("the answer is no JSON: {error}: this is a bug in annals")))?;
    Ok(shown(answer, store.redactor()))
}

fn change(store: &dyn McpStore, method: Method, params: Option<Value>) -> Result<Value, ToolError> {
    let params = params.unwrap_or_default().to_string();
    let answer = store.decisions(method, &params)?;
    read_answer(store, &answer.unwrap_or_else(|| "{}".to_owned()))
}

/// The filters of a query, by the names of CSTP.
fn filters(arguments: &Arguments) -> Map<String, Value> {
    let mut filters = Map::new();
    for (argument, name) in
        [("category", "category"), ("stakes", "stakes"), ("agent", "agent"), ("run", "run")]
    {
        if let Some(text) = arguments.text(argument) {
            filters.insert(name.to_owned(), text.into());
        }
    }
    filters
}

fn query_decisions(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let mut params = json!({
        "limit": arguments.number("limit").unwrap_or(DECISIONS_DEFAULT),
        "includeDeliberation": arguments.is_set("include_deliberation"),
    });
    if let Some(query) = arguments.text("query") {
        params["query"] = query.into();
    }
    let filters = filters(arguments);
    if !filters.is_empty() {
        params["filters"] = filters.into();
    }
    let Some(answer) = store.decisions(Method::QueryDecisions, &params.to_string())? else {
        return Ok(json!({ "decisions": [], "why": "no decision was recorded" }));
    };
    let mut answer = read_answer(store, &answer)?;
    let found = answer.get_mut("decisions").map(Value::take).unwrap_or_default();
    let Value::Array(found) = found else { return Ok(answer) };
    let (mut page, mut left_out) = (Page::default(), 0);
    for decision in found {
        let id = decision["id"].clone();
        let decision = fitted(decision, PAGE_BYTES)
            .unwrap_or_else(|| json!({ "id": id, "why": "it is too long for an answer" }));
        left_out += usize::from(left_out > 0 || !page.push(decision));
    }
    answer["decisions"] = page.into_items().into();
    if left_out > 0 {
        answer["left_out"] = left_out.into();
    }
    Ok(answer)
}

fn get_decision(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let id = arguments.text("decision_id").unwrap_or_default();
    let mut params = json!({ "id": id });
    if let Some(with_trace) = arguments.boolean("include_deliberation") {
        params["includeDeliberation"] = with_trace.into();
    }
    let Some(answer) = store.decisions(Method::GetDecision, &params.to_string())? else {
        return Err(ToolError("no decision was recorded".to_owned()));
    };
    fitted(read_answer(store, &answer)?, OBJECT_BYTES_MAX).ok_or_else(|| {
        ToolError("the decision is too long for an answer: `annals decision ID --json` prints it".to_owned())
    })
}

fn check_guardrails(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let mut params = Map::new();
    for name in ["description", "context", "category", "stakes"] {
        params.extend(arguments.text(name).map(|text| (name.to_owned(), text.into())));
    }
    params.extend(arguments.share("confidence").map(|share| ("confidence".to_owned(), share.into())));
    match store.decisions(Method::CheckGuardrails, &Value::Object(params).to_string())? {
        Some(answer) => fitted(read_answer(store, &answer)?, OBJECT_BYTES_MAX)
            .ok_or_else(|| ToolError("the violated guardrails are too long for an answer".to_owned())),
        // To set a guardrail makes the keyspaces of decisions, so there is no guardrail either.
        None => Ok(json!({ "allowed": true, "violations": [], "warnings": [], "evaluated": 0 })),
    }
}

fn get_reason_stats(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    statistics(store, Method::GetReasonStats, arguments)?
        .map_or_else(|| Ok(json!({ "total_decisions": 0, "why": "no decision was recorded" })), Ok)
}

/// The statistics of a method over the decisions that the filters select; `None` without any decision.
fn statistics(
    store: &dyn McpStore,
    method: Method,
    arguments: &Arguments,
) -> Result<Option<Value>, ToolError> {
    let filters = filters(arguments);
    let params = if filters.is_empty() { json!({}) } else { json!({ "filters": filters }) };
    store.decisions(method, &params.to_string())?.map(|answer| read_answer(store, &answer)).transpose()
}

fn deliberation_stats(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    statistics(store, Method::GetDeliberationStats, arguments)?
        .map_or_else(|| Ok(json!({ "total": 0, "why": "no decision was recorded" })), Ok)
}

fn lessons(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let Some(diagnostics) = Diagnostics::find(&store.namespace()?)? else {
        return Ok(json!({ "misleading": [], "why": "no session was diagnosed" }));
    };
    let filter = LessonFilter {
        org: arguments.text("organisation"),
        project: arguments.text("project"),
        ..LessonFilter::default()
    };
    let counts = diagnostics.distribution(&filter)?;
    let distribution: Map<String, Value> =
        counts.each().map(|(category, rows)| (category.name().to_owned(), rows.into())).into_iter().collect();
    let ids = diagnostics.misleading(&filter)?;
    let mut page = Page::default();
    for id in ids.iter().take(MISLEADING_MAX) {
        let weight = diagnostics.weight(id)?;
        if !page.push(json!({ "observation": field(id), "weight": weight })) {
            break;
        }
    }
    let more = ids.len() - page.len();
    Ok(
        json!({ "failures_by_category": distribution, "misleading": page.into_items(), "misleading_more": more }),
    )
}
