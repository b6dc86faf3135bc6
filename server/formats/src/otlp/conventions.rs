//! Attribute names of the conventions for tracing agents: OpenTelemetry GenAI (and its older names),
//! OpenInference, and the earlier names of Traceloop.
//!
//! This module holds names only: which attribute has the model, the input, the tokens. The first name that a
//! span has wins. Attributes that are not named here are kept as well ([`super::value`]).

use annals::Component;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

/// The convention by which a span describes its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Convention {
    GenAi,
    OpenInference,
    Traceloop,
    /// None of them: an HTTP request, a database call.
    None,
}

impl Convention {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GenAi => "gen_ai",
            Self::OpenInference => "openinference",
            Self::Traceloop => "traceloop",
            Self::None => "none",
        }
    }
}

pub(super) const MODEL_ANSWERED: &[&str] =
    &["gen_ai.response.model", "llm.response.model_name", "llm.model_name", "llm.response.model"];
pub(super) const MODEL_REQUESTED: &[&str] =
    &["gen_ai.request.model", "llm.request.model_name", "llm.request.model", "embedding.model_name"];
pub(super) const PROVIDER: &[&str] =
    &["gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "llm.vendor"];
pub(super) const AGENT: &[&str] = &["gen_ai.agent.name", "agent.name"];
pub(super) const SERVICE: &[&str] = &["service.name"];
pub(super) const CONVERSATION: &[&str] = &["gen_ai.conversation.id", "session.id"];
pub(super) const RESPONSE_ID: &[&str] = &["gen_ai.response.id"];
pub(super) const FINISH_REASON: &[&str] =
    &["gen_ai.response.finish_reasons", "llm.finish_reason", "gen_ai.completion.0.finish_reason"];
pub(super) const TOOL_NAME: &[&str] = &["gen_ai.tool.name", "tool.name", "traceloop.entity.name"];
pub(super) const TOOL_CALL_ID: &[&str] = &["gen_ai.tool.call.id", "tool.id", "tool_call.id"];
pub(super) const ERROR_TYPE: &[&str] = &["error.type", "exception.type"];
pub(super) const ERROR_MESSAGE: &[&str] = &["error.message", "exception.message"];
/// A JSON text with parameters under the provider's own names.
pub(super) const INVOCATION: &str = "llm.invocation_parameters";

/// Token counts by metadata key.
pub(super) const USAGE: [(&str, &[&str]); 5] = [
    (
        "input",
        &[
            "gen_ai.usage.input_tokens",
            "gen_ai.usage.prompt_tokens",
            "llm.token_count.prompt",
            "llm.usage.prompt_tokens",
        ],
    ),
    (
        "output",
        &[
            "gen_ai.usage.output_tokens",
            "gen_ai.usage.completion_tokens",
            "llm.token_count.completion",
            "llm.usage.completion_tokens",
        ],
    ),
    (
        "cached_input",
        &[
            "gen_ai.usage.cache_read.input_tokens",
            "gen_ai.usage.cache_read_input_tokens",
            "llm.token_count.prompt_details.cache_read",
        ],
    ),
    (
        "cache_write",
        &[
            "gen_ai.usage.cache_creation.input_tokens",
            "gen_ai.usage.cache_creation_input_tokens",
            "llm.token_count.prompt_details.cache_write",
        ],
    ),
    ("reasoning", &["gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion_details.reasoning"]),
];

/// Sampling parameters by metadata key.
pub(super) const SAMPLING: [(&str, &[&str]); 9] = [
    ("temperature", &["gen_ai.request.temperature"]),
    ("top_p", &["gen_ai.request.top_p"]),
    ("top_k", &["gen_ai.request.top_k"]),
    ("max_tokens", &["gen_ai.request.max_tokens"]),
    ("seed", &["gen_ai.request.seed", "gen_ai.openai.request.seed"]),
    ("stop", &["gen_ai.request.stop_sequences"]),
    ("frequency_penalty", &["gen_ai.request.frequency_penalty"]),
    ("presence_penalty", &["gen_ai.request.presence_penalty"]),
    ("n", &["gen_ai.request.choice.count"]),
];

/// The attributes that form a body: those with these names, or all whose names have one of these prefixes.
#[derive(Debug, Clone, Copy)]
pub(super) enum BodyAttributes {
    Names(&'static [&'static str]),
    Prefixes(&'static [&'static str]),
}

/// The sources of an input; the first that the span has is used.
pub(super) const INPUTS: [BodyAttributes; 7] = [
    BodyAttributes::Names(&[
        "gen_ai.system_instructions",
        "gen_ai.input.messages",
        "gen_ai.tool.definitions",
    ]),
    BodyAttributes::Names(&["gen_ai.tool.call.arguments"]),
    BodyAttributes::Names(&["input.value"]),
    BodyAttributes::Names(&["traceloop.entity.input"]),
    BodyAttributes::Names(&["gen_ai.retrieval.query.text", "tool.parameters", "reranker.query"]),
    BodyAttributes::Names(&["gen_ai.prompt"]),
    BodyAttributes::Prefixes(&[
        "gen_ai.prompt.",
        "llm.input_messages.",
        "llm.prompts.",
        "reranker.input_documents.",
    ]),
];
/// The sources of an output; the first that the span has is used.
pub(super) const OUTPUTS: [BodyAttributes; 7] = [
    BodyAttributes::Names(&["gen_ai.output.messages"]),
    BodyAttributes::Names(&["gen_ai.tool.call.result"]),
    BodyAttributes::Names(&["output.value"]),
    BodyAttributes::Names(&["traceloop.entity.output"]),
    BodyAttributes::Names(&["gen_ai.retrieval.documents"]),
    BodyAttributes::Names(&["gen_ai.completion"]),
    BodyAttributes::Prefixes(&[
        "gen_ai.completion.",
        "llm.output_messages.",
        "llm.completions.",
        "llm.choices.",
        "retrieval.documents.",
        "reranker.output_documents.",
    ]),
];
/// Events that hold the input if no attribute does.
pub(super) const INPUT_EVENTS: &[&str] = &[
    "gen_ai.system.message",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
    "gen_ai.content.prompt",
];
/// Events that hold the output if no attribute does.
pub(super) const OUTPUT_EVENTS: &[&str] = &["gen_ai.choice", "gen_ai.content.completion"];

/// The value of the first of these names that the span has.
pub(super) fn first_value<'a>(attributes: &'a [KeyValue], names: &[&str]) -> Option<&'a AnyValue> {
    names.iter().find_map(|name| attributes.iter().find(|pair| pair.key == *name)?.value.as_ref())
}

/// The first of these values that is a non-empty text.
pub(super) fn first_text<'a>(attributes: &'a [KeyValue], names: &[&str]) -> Option<&'a str> {
    names.iter().find_map(|name| match first_value(attributes, &[name])?.value.as_ref()? {
        Held::StringValue(text) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    })
}

/// The first of these values that is a count.
pub(super) fn first_count(attributes: &[KeyValue], names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| match first_value(attributes, &[name])?.value.as_ref()? {
        Held::IntValue(count) => u64::try_from(*count).ok(),
        // Some senders write counts as doubles; a fraction is not a count.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and within bounds"
        )]
        Held::DoubleValue(count) if (0.0..9e15).contains(count) && count.fract() == 0.0 => {
            Some(*count as u64)
        }
        Held::StringValue(text) => text.parse().ok(),
        _ => None,
    })
}

/// The convention and component of a span. The set of components is closed, whatever a span says.
pub(super) fn classify(span: &Span) -> (Convention, Component) {
    let attributes = &span.attributes;
    if let Some(operation) = first_text(attributes, &["gen_ai.operation.name"]) {
        return (Convention::GenAi, operation_component(operation, span));
    }
    if let Some(kind) = first_text(attributes, &["openinference.span.kind"]) {
        let component = match kind.to_ascii_uppercase().as_str() {
            "LLM" => Component::Llm,
            "TOOL" => Component::Tool,
            "AGENT" => other_component("agent"),
            "CHAIN" => other_component("chain"),
            "RETRIEVER" => other_component("retriever"),
            "EMBEDDING" => other_component("embeddings"),
            "RERANKER" => other_component("reranker"),
            "GUARDRAIL" => other_component("guardrail"),
            "EVALUATOR" => other_component("evaluator"),
            "PROMPT" => other_component("prompt"),
            _ => kind_component(span),
        };
        return (Convention::OpenInference, component);
    }
    if let Some(kind) = first_text(attributes, &["traceloop.span.kind", "llm.request.type"]) {
        let component = match kind {
            "chat" | "completion" => Component::Llm,
            "tool" => Component::Tool,
            "agent" => other_component("agent"),
            "workflow" => other_component("workflow"),
            "task" => other_component("task"),
            "embedding" => other_component("embeddings"),
            "rerank" => other_component("reranker"),
            _ => kind_component(span),
        };
        return (Convention::Traceloop, component);
    }
    // Spans from before operations had names.
    if first_value(attributes, &["gen_ai.system", "gen_ai.provider.name"]).is_some()
        && first_value(attributes, &["gen_ai.request.model"]).is_some()
    {
        return (Convention::GenAi, Component::Llm);
    }
    (Convention::None, kind_component(span))
}

fn operation_component(operation: &str, span: &Span) -> Component {
    match operation {
        "chat" | "text_completion" | "generate_content" => Component::Llm,
        "execute_tool" => Component::Tool,
        "plan" => Component::Planner,
        "invoke_agent" | "create_agent" => other_component("agent"),
        "invoke_workflow" => other_component("workflow"),
        "embeddings" => other_component("embeddings"),
        "retrieval" => other_component("retriever"),
        _ => kind_component(span),
    }
}

/// The component of a span that is not about a model.
fn kind_component(span: &Span) -> Component {
    other_component(kind_name(span))
}

fn other_component(name: &str) -> Component {
    Component::Other(name.to_owned())
}

/// The span kind as a word.
pub(super) fn kind_name(span: &Span) -> &'static str {
    match SpanKind::try_from(span.kind) {
        Ok(SpanKind::Internal) => "internal",
        Ok(SpanKind::Server) => "server",
        Ok(SpanKind::Client) => "client",
        Ok(SpanKind::Producer) => "producer",
        Ok(SpanKind::Consumer) => "consumer",
        Ok(SpanKind::Unspecified) | Err(_) => "span",
    }
}
