//! Known libraries and commands, and the variables that each reads its base address from.
//!
//! [`Variable::known`] alone maps variables to addresses. Here are names only, as the clients of November
//! 2026 read them.

use memchr::memmem;

use super::report::ProgramKind;
use super::text::is_name;
use crate::variables::Variable;

/// Maximum number of occurrences of a name that are checked.
const CALLS_MAX: usize = 1024;

/// A library or a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownClient {
    /// The module or package, without submodules; or the command's name.
    pub(super) name: &'static str,
    /// The variables that it reads.
    pub(super) variables: &'static [&'static str],
    /// The provider whose address is fixed in a client that reads no variable. `None` for a plain HTTP
    /// client.
    pub(super) fixed: Option<FixedAddress>,
}

/// The address of a client that reads no variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FixedAddress {
    pub(super) provider: &'static str,
    /// The variable whose value serves as the client's base address, followed by this path; empty if there is
    /// none.
    pub(super) variable: &'static str,
    pub(super) path: &'static str,
}

const fn reads(name: &'static str, variables: &'static [&'static str]) -> KnownClient {
    KnownClient { name, variables, fixed: None }
}

const fn fixed(
    name: &'static str,
    provider: &'static str,
    base: (&'static str, &'static str),
) -> KnownClient {
    KnownClient {
        name,
        variables: &[],
        fixed: Some(FixedAddress { provider, variable: base.0, path: base.1 }),
    }
}

const fn http(name: &'static str) -> KnownClient {
    reads(name, &[])
}

const LITELLM: &str = "litellm";

const PYTHON: [KnownClient; 27] = [
    reads("openai", &["OPENAI_BASE_URL"]),
    reads("anthropic", &["ANTHROPIC_BASE_URL"]),
    reads("google.genai", &["GOOGLE_GEMINI_BASE_URL"]),
    fixed("google.generativeai", "gemini", ("GOOGLE_GEMINI_BASE_URL", "")),
    reads("ollama", &["OLLAMA_HOST"]),
    reads("groq", &["GROQ_BASE_URL"]),
    reads("cohere", &["CO_API_URL"]),
    fixed("mistralai", "mistral", ("MISTRAL_BASE_URL", "")),
    reads("langchain_openai", &["OPENAI_API_BASE", "OPENAI_BASE_URL"]),
    reads("langchain_anthropic", &["ANTHROPIC_API_URL", "ANTHROPIC_BASE_URL"]),
    reads("langchain_ollama", &["OLLAMA_HOST"]),
    reads("langchain_groq", &["GROQ_API_BASE", "GROQ_BASE_URL"]),
    reads("langchain_mistralai", &["MISTRAL_BASE_URL"]),
    reads("langchain_deepseek", &["DEEPSEEK_API_BASE"]),
    reads("langchain_xai", &["XAI_API_BASE"]),
    reads("langchain_fireworks", &["FIREWORKS_API_BASE"]),
    fixed("langchain_cohere", "cohere", ("CO_API_URL", "")),
    reads("langchain_aws", &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"]),
    fixed("langchain_google_genai", "gemini", ("GOOGLE_GEMINI_BASE_URL", "")),
    reads(
        LITELLM,
        &[
            "OPENAI_BASE_URL",
            "OPENAI_API_BASE",
            "ANTHROPIC_API_BASE",
            "ANTHROPIC_BASE_URL",
            "OLLAMA_API_BASE",
            "OPENROUTER_API_BASE",
            "GROQ_API_BASE",
            "MISTRAL_AZURE_API_BASE",
            "DEEPSEEK_API_BASE",
            "XAI_API_BASE",
            "TOGETHER_AI_API_BASE",
            "FIREWORKS_API_BASE",
            "PERPLEXITY_API_BASE",
        ],
    ),
    http("requests"),
    http("httpx"),
    http("httpx2"),
    http("aiohttp"),
    http("urllib.request"),
    http("http.client"),
    http("urllib3"),
];

const NODE: [KnownClient; 25] = [
    reads("openai", &["OPENAI_BASE_URL"]),
    reads("@anthropic-ai/sdk", &["ANTHROPIC_BASE_URL"]),
    reads("@google/genai", &["GOOGLE_GEMINI_BASE_URL"]),
    fixed("@google/generative-ai", "gemini", ("GOOGLE_GEMINI_BASE_URL", "")),
    fixed("ollama", "ollama", ("OLLAMA_HOST", "")),
    reads("groq-sdk", &["GROQ_BASE_URL"]),
    fixed("cohere-ai", "cohere", ("CO_API_URL", "")),
    fixed("@mistralai/mistralai", "mistral", ("MISTRAL_BASE_URL", "")),
    reads("@langchain/openai", &["OPENAI_BASE_URL"]),
    reads("@langchain/anthropic", &["ANTHROPIC_BASE_URL"]),
    fixed("@langchain/ollama", "ollama", ("OLLAMA_HOST", "")),
    reads("@ai-sdk/openai", &["OPENAI_BASE_URL"]),
    reads("@ai-sdk/anthropic", &["ANTHROPIC_BASE_URL"]),
    fixed("@ai-sdk/google", "gemini", ("GOOGLE_GEMINI_BASE_URL", "/v1beta")),
    fixed("@ai-sdk/groq", "groq", ("GROQ_API_BASE", "")),
    fixed("@ai-sdk/mistral", "mistral", ("MISTRAL_BASE_URL", "")),
    fixed("@ai-sdk/cohere", "cohere", ("CO_API_URL", "/v2")),
    fixed("@ai-sdk/deepseek", "deepseek", ("DEEPSEEK_API_BASE", "")),
    fixed("@ai-sdk/azure", "azure", ("AZURE_OPENAI_ENDPOINT", "/openai")),
    reads("@ai-sdk/amazon-bedrock", &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"]),
    http("axios"),
    http("undici"),
    http("node-fetch"),
    http("got"),
    http("ky"),
];

const SHELL: [KnownClient; 4] =
    [reads("ollama", &["OLLAMA_HOST"]), reads("claude", &["ANTHROPIC_BASE_URL"]), http("curl"), http("wget")];

/// Clients of libraries with several clients, by constructor name.
const CALLED: [KnownClient; 4] = [
    reads(AZURE, &["AZURE_OPENAI_ENDPOINT"]),
    reads("AzureChatOpenAI", &["AZURE_OPENAI_ENDPOINT"]),
    reads("AnthropicBedrock", &["ANTHROPIC_BEDROCK_BASE_URL"]),
    // boto3.client("bedrock-runtime").
    reads("bedrock-runtime", &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"]),
];
pub(super) const AZURE: &str = "AzureOpenAI";

/// litellm providers, as its model names begin, without a variable that a recording sets.
const LITELLM_OTHERS: [&str; 30] = [
    "ai21",
    "ai21_chat",
    "aiml",
    "azure",
    "azure_ai",
    "bedrock",
    "cohere",
    "cohere_chat",
    "databricks",
    "featherless_ai",
    "friendliai",
    "gemini",
    "github",
    "github_copilot",
    "hosted_vllm",
    "huggingface",
    "inception",
    "lambda_ai",
    "lm_studio",
    "meta_llama",
    "nvidia_nim",
    "predibase",
    "replicate",
    "sagemaker",
    "snowflake",
    "vercel_ai_gateway",
    "vertex_ai",
    "volcengine",
    "wandb",
    "watsonx",
];

/// Whether a client selects the provider by the model's name.
pub(super) fn is_litellm(name: &str) -> bool {
    name == LITELLM
}

/// The first litellm model in a text that goes to a provider without a variable: its offset, and the
/// provider.
pub(super) fn other_model(code: &str) -> Option<(usize, &'static str)> {
    let find = |provider: &'static str| {
        let found = ['"', '\''].into_iter().filter_map(|quote| {
            memmem::find(code.as_bytes(), format!("{quote}{provider}/").as_bytes()).map(|at| at + 1)
        });
        found.min().map(|at| (at, provider))
    };
    LITELLM_OTHERS.into_iter().filter_map(find).min()
}

/// The clients that a text calls, with the offset of each first call.
pub(super) fn called(code: &str) -> impl Iterator<Item = (&'static KnownClient, usize)> {
    let is_call = |name: &str, at: usize| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        if name.contains('-') {
            return before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']);
        }
        let before = before.strip_suffix("Async").unwrap_or(before);
        !before.ends_with(is_name) && after.starts_with('(')
    };
    CALLED.iter().filter_map(move |known| {
        let all = memmem::find_iter(code.as_bytes(), known.name).take(CALLS_MAX);
        all.into_iter().find(|at| is_call(known.name, *at)).map(|at| (known, at))
    })
}

/// The known client for this module, package or command, or for its parent.
pub(super) fn known(kind: ProgramKind, name: &str) -> Option<&'static KnownClient> {
    let (all, below): (&'static [KnownClient], char) = match kind {
        ProgramKind::Python => (&PYTHON, '.'),
        ProgramKind::Node => (&NODE, '/'),
        ProgramKind::Shell | ProgramKind::Other => (&SHELL, '\n'),
    };
    let is = |known: &&KnownClient| {
        name.strip_prefix(known.name).is_some_and(|rest| rest.is_empty() || rest.starts_with(below))
    };
    all.iter().find(is)
}

/// The providers that these variables belong to.
pub(super) fn providers(variables: &[&str]) -> Vec<String> {
    let mut providers: Vec<_> = Variable::known()
        .into_iter()
        .filter(|variable| variables.contains(&variable.name.as_str()))
        .map(|variable| variable.provider)
        .collect();
    providers.dedup();
    providers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_clients_read_variables_that_annals_sets() {
        let set: Vec<_> = Variable::known().into_iter().map(|variable| variable.name).collect();
        for known in PYTHON.iter().chain(&NODE).chain(&SHELL).chain(&CALLED) {
            let given = known.fixed.map(|fixed| fixed.variable);
            assert!(given.is_none_or(|name| set.iter().any(|set| set == name)), "{known:?}");
            assert!(known.variables.iter().all(|name| set.iter().any(|set| set == name)), "{known:?}");
            assert_eq!(providers(known.variables).is_empty(), known.variables.is_empty());
        }
    }

    #[test]
    fn submodules_match_their_library_and_similar_names_do_not() {
        let of = |kind, name| known(kind, name).map(|known| known.name);
        assert_eq!(of(ProgramKind::Python, "openai.types"), Some("openai"));
        assert_eq!(of(ProgramKind::Python, "openai_agents"), None);
        assert_eq!(of(ProgramKind::Python, "google"), None);
        assert_eq!(of(ProgramKind::Node, "openai/helpers"), Some("openai"));
        assert_eq!(of(ProgramKind::Node, "openai-edge"), None);
        assert_eq!(of(ProgramKind::Node, "@ai-sdk/openai-compatible"), None);
        assert_eq!(of(ProgramKind::Shell, "curl"), Some("curl"));
        assert_eq!(
            providers(&["OPENAI_API_BASE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"]),
            ["openai", "anthropic"]
        );
    }
    #[test]
    fn called_clients_are_found_and_similar_names_are_not() {
        let of = |code: &str| called(code).map(|(known, at)| (known.name, at)).collect::<Vec<_>>();
        assert_eq!(of("x = AsyncAzureOpenAI(a)"), [("AzureOpenAI", 9)]);
        assert_eq!(of("boto3.client('bedrock-runtime')"), [("bedrock-runtime", 14)]);
        assert_eq!(of("MyAzureOpenAI(); AzureOpenAIx(); 'bedrock-runtime.x'; import AzureOpenAI"), []);
    }

    #[test]
    fn litellm_models_without_a_variable_are_found() {
        assert_eq!(other_model("completion('groq/x'); completion(\"gemini/y\")"), Some((34, "gemini")));
        assert_eq!(other_model("completion('openai/azure/x')"), None);
    }
}
