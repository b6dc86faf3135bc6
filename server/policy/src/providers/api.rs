//! Recognises the interface of a model provider from a request's method, path and host.
//!
//! The path decides, because many servers and proxies speak the same interface; the host only names the
//! provider. An unknown path is not an error: the exchange is opaque, passed on and recorded as bytes.

use std::fmt;

use super::bedrock;
use annals_text::percent;

/// The interface of a request, and what its address says about the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelApi {
    /// The form of requests and answers.
    pub shape: ApiShape,
    /// The provider: `openai`, `azure`, `anthropic`, `gemini`, ...; `openai-compatible` and similar names if
    /// the host is unknown; `http` if the exchange is opaque.
    pub provider: &'static str,
    /// The model, if the address names it: Gemini, Azure, Vertex, Bedrock.
    pub model: Option<String>,
    /// Whether the address asks for a stream.
    pub streams: bool,
}

/// The form of an exchange's bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ApiShape {
    /// OpenAI chat completions, also from compatible servers.
    OpenAiChat,
    /// OpenAI responses.
    OpenAiResponses,
    /// OpenAI embeddings.
    OpenAiEmbeddings,
    /// Anthropic messages; also on Vertex and Bedrock.
    AnthropicMessages,
    /// Gemini `generateContent` and `streamGenerateContent`.
    Gemini,
    /// Amazon Bedrock's Converse and ConverseStream.
    BedrockConverse,
    /// Amazon Bedrock's InvokeModel with a model that is not known to be Anthropic's.
    BedrockInvoke,
    /// Ollama's own `/api/chat` and `/api/generate`.
    Ollama,
    /// Token counting: no model answers.
    CountTokens,
    /// Anything else over HTTP.
    Opaque,
}

impl ApiShape {
    /// All forms.
    pub(crate) const ALL: [Self; 10] = [
        Self::OpenAiChat,
        Self::OpenAiResponses,
        Self::OpenAiEmbeddings,
        Self::AnthropicMessages,
        Self::Gemini,
        Self::BedrockConverse,
        Self::BedrockInvoke,
        Self::Ollama,
        Self::CountTokens,
        Self::Opaque,
    ];

    /// The name in metadata.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai.chat",
            Self::OpenAiResponses => "openai.responses",
            Self::OpenAiEmbeddings => "openai.embeddings",
            Self::AnthropicMessages => "anthropic.messages",
            Self::Gemini => "gemini.generate",
            Self::BedrockConverse => "bedrock.converse",
            Self::BedrockInvoke => "bedrock.invoke",
            Self::Ollama => "ollama.chat",
            Self::CountTokens => "count_tokens",
            Self::Opaque => "opaque",
        }
    }

    /// Whether a model answers.
    #[must_use]
    pub fn is_model_call(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Opaque)
    }
}

impl fmt::Display for ApiShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Host suffixes and their providers.
const HOSTS: [(&str, &str); 29] = [
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure"),
    (".cognitiveservices.azure.com", "azure"),
    (".services.ai.azure.com", "azure"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gemini"),
    ("aiplatform.googleapis.com", "vertex"),
    (".amazonaws.com", "bedrock"),
    ("openrouter.ai", "openrouter"),
    ("api.groq.com", "groq"),
    ("api.mistral.ai", "mistral"),
    ("api.deepseek.com", "deepseek"),
    ("api.x.ai", "xai"),
    ("codestral.mistral.ai", "codestral"),
    ("api.cohere.com", "cohere"),
    ("api.perplexity.ai", "perplexity"),
    ("api.sambanova.ai", "sambanova"),
    ("api.deepinfra.com", "deepinfra"),
    ("api.novita.ai", "novita"),
    ("api.moonshot.ai", "moonshot"),
    ("dashscope.aliyuncs.com", "dashscope"),
    ("api.hyperbolic.xyz", "hyperbolic"),
    ("api.minimax.io", "minimax"),
    ("api.z.ai", "zai"),
    ("api.together.ai", "together"),
    ("api.together.xyz", "together"),
    ("api.fireworks.ai", "fireworks"),
    ("api.cerebras.ai", "cerebras"),
    ("ollama.com", "ollama"),
];

/// Recognises a request's interface. `path` may include a query, `host` a port.
#[must_use]
pub fn recognise(method: &str, path: &str, host: &str) -> ModelApi {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    // Decoded before it is split: some clients send `%3A` for the colon of Gemini's verbs.
    let path = percent::decode(path);
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let is_post = method.eq_ignore_ascii_case("POST");
    if let Some((shape, id, streams)) = bedrock::by_path(&segments).filter(|_| is_post) {
        return ModelApi { shape, provider: provider(host).unwrap_or("bedrock"), model: Some(id), streams };
    }
    let found = if is_post { by_path(&segments) } else { None };
    let (shape, fallback, model, streams) = found.unwrap_or((ApiShape::Opaque, "http", None, false));
    ModelApi { shape, provider: provider(host).unwrap_or(fallback), model: model.map(str::to_owned), streams }
}

type RecognisedPath<'a> = (ApiShape, &'static str, Option<&'a str>, bool);

fn by_path<'a>(segments: &[&'a str]) -> Option<RecognisedPath<'a>> {
    // `/openai/deployments/NAME/...` names Azure's deployment, which serves as the model.
    let deployment = segments
        .iter()
        .position(|segment| *segment == "deployments")
        .filter(|at| segments.get(at.wrapping_sub(1)) == Some(&"openai"))
        .and_then(|at| segments.get(at + 1).copied());
    let openai = if deployment.is_some() { "azure" } else { "openai-compatible" };
    Some(match segments {
        [.., "chat", "completions"] => (ApiShape::OpenAiChat, openai, deployment, false),
        [rest @ .., "responses"] if is_base(rest, deployment) => {
            (ApiShape::OpenAiResponses, openai, deployment, false)
        }
        [rest @ .., "embeddings"] if is_base(rest, deployment) => {
            (ApiShape::OpenAiEmbeddings, openai, deployment, false)
        }
        [.., "v1", "messages"] | ["messages"] => {
            (ApiShape::AnthropicMessages, "anthropic-compatible", None, false)
        }
        [.., "v1", "messages", "count_tokens"] => {
            (ApiShape::CountTokens, "anthropic-compatible", None, false)
        }
        [.., "api", "chat" | "generate"] => (ApiShape::Ollama, "ollama", None, false),
        [.., "models", last] => by_verb(last)?,
        _ => return None,
    })
}

/// Google's `MODEL:verb`.
fn by_verb(last: &str) -> Option<RecognisedPath<'_>> {
    let (model, verb) = last.rsplit_once(':')?;
    Some(match verb {
        "generateContent" => (ApiShape::Gemini, "gemini", Some(model), false),
        "streamGenerateContent" => (ApiShape::Gemini, "gemini", Some(model), true),
        "rawPredict" => (ApiShape::AnthropicMessages, "vertex", Some(model), false),
        "streamRawPredict" => (ApiShape::AnthropicMessages, "vertex", Some(model), true),
        "countTokens" => (ApiShape::CountTokens, "gemini", Some(model), false),
        _ => return None,
    })
}

/// Whether the path before the last segment is a base address. Words such as `responses` are too common to be
/// recognised anywhere.
fn is_base(rest: &[&str], deployment: Option<&str>) -> bool {
    match rest.last() {
        None => true,
        Some(last) => deployment == Some(*last) || ["v1", "openai"].contains(last),
    }
}

fn provider(host: &str) -> Option<&'static str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            if port == "11434" {
                return Some("ollama");
            }
            name
        }
        _ => host,
    };
    let name = name.to_ascii_lowercase();
    HOSTS.iter().find_map(|(end, provider)| {
        let before = name.strip_suffix(end)?;
        (before.is_empty() || before.ends_with(['.', '-']) || end.starts_with('.')).then_some(*provider)
    })
}

#[cfg(test)]
mod tests {
    use super::{ApiShape, recognise};

    #[test]
    fn interfaces_are_recognised_by_path() {
        for (path, host, shape, provider, model, streams) in [
            ("/v1/chat/completions", "api.openai.com", ApiShape::OpenAiChat, "openai", None, false),
            (
                "/some/prefix/v1/chat/completions?a=b",
                "127.0.0.1:8000",
                ApiShape::OpenAiChat,
                "openai-compatible",
                None,
                false,
            ),
            ("/chat/completions", "api.deepseek.com", ApiShape::OpenAiChat, "deepseek", None, false),
            ("/v1/chat/completions", "localhost:11434", ApiShape::OpenAiChat, "ollama", None, false),
            (
                "/v1beta/openai/chat/completions",
                "generativelanguage.googleapis.com",
                ApiShape::OpenAiChat,
                "gemini",
                None,
                false,
            ),
            (
                "/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21",
                "x.openai.azure.com:443",
                ApiShape::OpenAiChat,
                "azure",
                Some("my-gpt"),
                false,
            ),
            ("/openai/deployments/e/embeddings", "h", ApiShape::OpenAiEmbeddings, "azure", Some("e"), false),
            ("/v1/responses", "api.openai.com", ApiShape::OpenAiResponses, "openai", None, false),
            ("/responses", "h", ApiShape::OpenAiResponses, "openai-compatible", None, false),
            ("/openai/v1/responses", "h", ApiShape::OpenAiResponses, "openai-compatible", None, false),
            ("//v1/embeddings", "h", ApiShape::OpenAiEmbeddings, "openai-compatible", None, false),
            (
                "/v1/messages?beta=true",
                "API.Anthropic.com",
                ApiShape::AnthropicMessages,
                "anthropic",
                None,
                false,
            ),
            (
                "/v1/messages/count_tokens",
                "api.anthropic.com",
                ApiShape::CountTokens,
                "anthropic",
                None,
                false,
            ),
            (
                "/model/eu.anthropic.claude-3%3A0/invoke",
                "bedrock-runtime.eu-west-1.amazonaws.com",
                ApiShape::AnthropicMessages,
                "bedrock",
                Some("eu.anthropic.claude-3:0"),
                false,
            ),
            (
                "/model/amazon.nova-lite-v1%3A0/converse-stream",
                "127.0.0.1:9",
                ApiShape::BedrockConverse,
                "bedrock",
                Some("amazon.nova-lite-v1:0"),
                true,
            ),
            (
                "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fx/invoke",
                "h",
                ApiShape::BedrockInvoke,
                "bedrock",
                Some("arn:aws:bedrock:us-east-1:1:inference-profile/x"),
                false,
            ),
            (
                "/v1/projects/p/locations/l/publishers/anthropic/models/claude-4:streamRawPredict",
                "us-aiplatform.googleapis.com",
                ApiShape::AnthropicMessages,
                "vertex",
                Some("claude-4"),
                true,
            ),
            (
                "/v1beta/models/gemini-2.5-pro:generateContent?key=k",
                "generativelanguage.googleapis.com",
                ApiShape::Gemini,
                "gemini",
                Some("gemini-2.5-pro"),
                false,
            ),
            (
                "/v1beta/models/gemini-2.5-pro%3AstreamGenerateContent?alt=sse",
                "h",
                ApiShape::Gemini,
                "gemini",
                Some("gemini-2.5-pro"),
                true,
            ),
            ("/v1beta/models/g:countTokens", "h", ApiShape::CountTokens, "gemini", Some("g"), false),
            ("/api/chat", "localhost:11434", ApiShape::Ollama, "ollama", None, false),
        ] {
            let api = recognise("post", path, host);
            assert_eq!(
                (api.shape, api.provider, api.model.as_deref(), api.streams),
                (shape, provider, model, streams),
                "{path}"
            );
        }
    }

    #[test]
    fn unknown_paths_are_opaque() {
        for (method, path) in [
            ("GET", "/v1/chat/completions"),
            ("GET", "/v1/responses/resp_1"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("POST", "/v1/messages/batches"),
            ("POST", "/survey/responses"),
            ("POST", "/chat/completions/more"),
            ("POST", "/v1beta/models/g:embedContent"),
            ("POST", "/model/mine/invoke"),
            ("POST", "/model/converse"),
            ("POST", ""),
            ("POST", "*"),
            ("", "http://["),
        ] {
            let api = recognise(method, path, "evilapi.openai.com.example");
            assert_eq!((api.shape, api.provider), (ApiShape::Opaque, "http"), "{method} {path}");
        }
        assert_eq!(recognise("GET", "/v1/models", "api.openai.com").provider, "openai");
        assert_eq!(recognise("GET", "/v1/models", "notapi.openai.com").provider, "http");
    }
}
