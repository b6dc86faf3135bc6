//! The variables that clients read a base address from, and when a program gets them.
//!
//! A variable is listed only if a client was seen to read it: docs/record.md names the client and its
//! version. A wrongly set variable breaks a working program, so each rule here has a client behind it.

use crate::mounts::check_address;

/// A variable that programs read an address from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The provider whose address it is.
    pub provider: String,
    /// The address that clients use if it is not set; `None` if the provider has no public address.
    pub default: Option<String>,
    /// Whether its address must end in a slash.
    pub slash: bool,
}

/// Name, provider, public address (empty: none), slash at the end.
const VARIABLES: [(&str, &str, &str, bool); 40] = [
    ("OPENAI_BASE_URL", "openai", "https://api.openai.com/v1", false),
    ("OPENAI_API_BASE", "openai", "https://api.openai.com/v1", false),
    ("OPENAI_HOST", "openai", "https://api.openai.com", true),
    ("ANTHROPIC_BASE_URL", "anthropic", "https://api.anthropic.com", false),
    ("ANTHROPIC_API_URL", "anthropic", "https://api.anthropic.com", false),
    ("ANTHROPIC_API_BASE", "anthropic", "https://api.anthropic.com", false),
    ("ANTHROPIC_HOST", "anthropic", "https://api.anthropic.com", true),
    ("GOOGLE_GEMINI_BASE_URL", "gemini", "https://generativelanguage.googleapis.com", false),
    ("GEMINI_BASE_URL", "gemini", "https://generativelanguage.googleapis.com", false),
    ("OLLAMA_HOST", "ollama", "http://127.0.0.1:11434", false),
    ("OLLAMA_API_BASE", "ollama", "http://127.0.0.1:11434", false),
    ("OPENROUTER_BASE_URL", "openrouter", "https://openrouter.ai/api/v1", false),
    ("OPENROUTER_API_BASE", "openrouter", "https://openrouter.ai/api/v1", false),
    ("GROQ_BASE_URL", "groq", "https://api.groq.com", false),
    ("GROQ_API_BASE", "groq", "https://api.groq.com/openai/v1", false),
    ("MISTRAL_BASE_URL", "mistral", "https://api.mistral.ai/v1", false),
    ("MISTRAL_AZURE_API_BASE", "mistral", "https://api.mistral.ai/v1", false),
    ("CODESTRAL_API_BASE", "codestral", "https://codestral.mistral.ai/v1", false),
    ("CO_API_URL", "cohere", "https://api.cohere.com", false),
    ("DEEPSEEK_API_BASE", "deepseek", "https://api.deepseek.com/beta", false),
    ("XAI_API_BASE", "xai", "https://api.x.ai/v1", false),
    ("TOGETHER_AI_API_BASE", "together", "https://api.together.ai/v1", false),
    ("FIREWORKS_API_BASE", "fireworks", "https://api.fireworks.ai/inference/v1", false),
    ("PERPLEXITY_API_BASE", "perplexity", "https://api.perplexity.ai", false),
    ("CEREBRAS_API_BASE", "cerebras", "https://api.cerebras.ai/v1", false),
    ("SAMBANOVA_API_BASE", "sambanova", "https://api.sambanova.ai/v1", false),
    ("DEEPINFRA_API_BASE", "deepinfra", "https://api.deepinfra.com/v1/openai", false),
    ("NOVITA_API_BASE", "novita", "https://api.novita.ai/v3/openai", false),
    ("NEBIUS_API_BASE", "nebius", "https://api.studio.nebius.ai/v1", false),
    ("MOONSHOT_API_BASE", "moonshot", "https://api.moonshot.ai/v1", false),
    ("DASHSCOPE_API_BASE", "dashscope", "https://dashscope.aliyuncs.com/compatible-mode/v1", false),
    ("HYPERBOLIC_API_BASE", "hyperbolic", "https://api.hyperbolic.xyz/v1", false),
    ("MINIMAX_API_BASE", "minimax", "https://api.minimax.io", false),
    ("ZAI_API_BASE", "zai", "https://api.z.ai/api/paas/v4", false),
    ("AZURE_OPENAI_ENDPOINT", "azure", "", false),
    ("AZURE_API_BASE", "azure", "", false),
    ("AZURE_AI_API_BASE", "azure", "", false),
    (AWS_ENDPOINT, "bedrock", "", false),
    ("AWS_BEDROCK_RUNTIME_ENDPOINT", "bedrock", "", false),
    ("ANTHROPIC_BEDROCK_BASE_URL", "bedrock", "", false),
];

/// Read by botocore and by Vercel's Bedrock client.
const AWS_ENDPOINT: &str = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME";
/// A key for Bedrock, sent as it is: requests with it carry no signature.
const AWS_BEARER: &str = "AWS_BEARER_TOKEN_BEDROCK";

/// Variables of which one client reads several and uses the first that is set. If a program has one of them,
/// setting another would lead the client elsewhere.
const RIVALS: [&[&str]; 3] = [
    // litellm, langchain-openai.
    &["OPENAI_BASE_URL", "OPENAI_API_BASE"],
    // litellm, langchain-anthropic, langchain-aws.
    &["ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE"],
    // langchain-groq and the groq library below it.
    &["GROQ_BASE_URL", "GROQ_API_BASE"],
];

/// Provider, path prefix, and its replacement at the public address: clients of one variable join different
/// paths to it.
const PATHS: [(&str, &str, &str); 5] = [
    // Vercel's @ai-sdk/anthropic expects the address to end in /v1.
    ("anthropic", "/messages", "/v1/messages"),
    // langchain-groq reads litellm's variable and joins a path that litellm has in the address.
    ("groq", "/openai/v1/openai/v1", "/openai/v1"),
    // mistralai expects an address without /v1, langchain-mistralai one with it.
    ("mistral", "/v1/v1", "/v1"),
    // litellm joins its ranking path to the address of its chats.
    ("dashscope", "/compatible-mode/v1/reranks", "/compatible-api/v1/reranks"),
    // langchain-fireworks, the same as langchain-groq.
    ("fireworks", "/inference/v1/v1", "/inference/v1"),
];

impl Variable {
    /// The known variables.
    #[must_use]
    pub fn known() -> Vec<Self> {
        let of = |(name, provider, default, slash): (&str, &str, &str, bool)| Self {
            name: name.to_owned(),
            provider: provider.to_owned(),
            default: (!default.is_empty()).then(|| default.to_owned()),
            slash,
        };
        VARIABLES.into_iter().map(of).collect()
    }

    /// A variable that only its own program reads: its upstream must be given, or be its value.
    #[must_use]
    pub fn custom(name: &str, path: &str) -> Self {
        let provider = name.to_ascii_lowercase().replace('_', "-");
        let default = Some(format!("http://127.0.0.1{path}"));
        Self { name: name.to_owned(), provider, default, slash: path.len() > 1 && path.ends_with('/') }
    }

    /// Whether a recording without a named upstream points it to the proxy; `set` returns a variable's value.
    pub(crate) fn is_recorded(&self, set: &dyn Fn(&str) -> Option<String>) -> bool {
        !self.is_left_unset(false, &|name| set(name).filter(|value| !value.is_empty()))
    }

    /// Whether a recording that names no upstream of the provider leaves the variable unchanged;
    /// `redirected`: there is an upstream for all providers. `set` returns a variable's value.
    pub(crate) fn is_left_unset(&self, redirected: bool, set: &dyn Fn(&str) -> Option<String>) -> bool {
        match (set(&self.name), self.name.as_str()) {
            // botocore sends a key over https only.
            (Some(_), AWS_ENDPOINT) if set(AWS_BEARER).is_some() => true,
            // A signature covers host and path: AWS refuses a request signed for the proxy.
            (Some(value), _) if self.provider == "bedrock" => {
                !redirected && set(AWS_BEARER).is_none() && is_aws(&value)
            }
            (Some(_), _) => false,
            // The Node client of Azure prefers OpenAI's address to its own.
            (None, "OPENAI_BASE_URL") if is_azure_only(set) => true,
            (None, name) => {
                self.default.is_none()
                    || !redirected && rival_variables(name).any(|other| set(other).is_some())
            }
        }
    }

    /// A variable's value as its clients read it, as an address.
    pub(crate) fn address_in(&self, value: &str) -> String {
        if self.name == "OLLAMA_HOST" { ollama_host(value) } else { with_scheme(value) }
    }
}

/// The other variables that a client of this one reads.
fn rival_variables(name: &str) -> impl Iterator<Item = &'static str> {
    let group = RIVALS.into_iter().find(|group| group.contains(&name)).unwrap_or_default();
    group.iter().copied().filter(move |other| *other != name)
}

fn is_azure_only(set: &dyn Fn(&str) -> Option<String>) -> bool {
    set("AZURE_OPENAI_ENDPOINT").is_some() && set("OPENAI_API_KEY").is_none()
}

fn is_aws(value: &str) -> bool {
    let host = check_address(&with_scheme(value)).ok().and_then(|url| url.host_str().map(str::to_owned));
    host.is_some_and(|host| host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"))
}

/// An address without a scheme uses http.
pub(crate) fn with_scheme(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

/// Ollama's variable is also its server's listening address: `0.0.0.0`, a host without a port, a port alone.
fn ollama_host(value: &str) -> String {
    let value = value.trim();
    if value.contains("://") {
        return value.to_owned();
    }
    let (authority, path) = value.split_at(value.find('/').unwrap_or(value.len()));
    let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
    let (host, port) = authority.split_at(port_at.unwrap_or(authority.len()));
    let host = if matches!(host, "" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { host };
    let port = if port.len() > 1 { port } else { ":11434" };
    format!("http://{host}{port}{path}")
}

/// The path at the provider's public address, if clients request it in another form.
pub(crate) fn public_path(provider: &str, path: &str) -> Option<String> {
    PATHS.into_iter().find_map(|(of, from, to)| (of == provider).then(|| replace_prefix(path, from, to))?)
}

/// The paths of a provider in which clients differ.
pub(crate) fn public_paths(provider: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    PATHS.into_iter().filter(move |(of, ..)| *of == provider).map(|(_, from, to)| (from, to))
}

/// A path with another prefix, if it begins with all of `from`.
pub(crate) fn replace_prefix(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ollama_host_is_read_as_clients_read_it() {
        for (value, address) in [
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("10.0.0.7", "http://10.0.0.7:11434"),
            ("10.0.0.7:999", "http://10.0.0.7:999"),
            (":999", "http://127.0.0.1:999"),
            ("[::1]", "http://[::1]:11434"),
            ("[::1]:999", "http://[::1]:999"),
            ("gpu/ollama", "http://gpu:11434/ollama"),
            ("https://gpu.example", "https://gpu.example"),
        ] {
            assert_eq!(ollama_host(value), address, "{value}");
        }
    }

    #[test]
    fn path_is_replaced_at_its_beginning_only() {
        let of = |path| public_path("anthropic", path);
        assert_eq!(of("/messages").as_deref(), Some("/v1/messages"));
        assert_eq!(of("/messages/count_tokens").as_deref(), Some("/v1/messages/count_tokens"));
        assert_eq!(of("/v1/messages"), None);
        assert_eq!(of("/messagesx"), None);
        assert_eq!(public_path("openai", "/messages"), None);
    }
}
