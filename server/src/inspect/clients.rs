//! What is known of libraries and commands: which variables each reads its base address from.
//!
//! What a variable is the address of stands in [`Variable::known`] alone; here are names only, as their documentation has them in November 2026.

use super::report::Kind;
use crate::proxy::Variable;

/// A library or a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// The module or the package, without what is below it; the command's name.
    pub(super) name: &'static str,
    /// The variables that it reads, and that annals sets.
    pub(super) variables: &'static [&'static str],
    /// The provider, where it reads none: whose address is fixed in it. Nothing for a plain HTTP client.
    pub(super) fixed: Option<&'static str>,
}

const fn reads(name: &'static str, variables: &'static [&'static str]) -> Known {
    Known { name, variables, fixed: None }
}

const fn fixed(name: &'static str, provider: &'static str) -> Known {
    Known { name, variables: &[], fixed: Some(provider) }
}

const fn http(name: &'static str) -> Known {
    reads(name, &[])
}

const PYTHON: [Known; 14] = [
    reads("openai", &["OPENAI_BASE_URL"]),
    reads("anthropic", &["ANTHROPIC_BASE_URL"]),
    reads("google.genai", &["GOOGLE_GEMINI_BASE_URL"]),
    fixed("google.generativeai", "gemini"),
    reads("ollama", &["OLLAMA_HOST"]),
    reads("langchain_openai", &["OPENAI_API_BASE", "OPENAI_BASE_URL"]),
    reads("langchain_anthropic", &["ANTHROPIC_API_URL", "ANTHROPIC_BASE_URL"]),
    reads("langchain_ollama", &["OLLAMA_HOST"]),
    reads("litellm", &["OPENAI_API_BASE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"]),
    http("requests"),
    http("httpx"),
    http("aiohttp"),
    http("urllib.request"),
    http("urllib3"),
];

const NODE: [Known; 14] = [
    reads("openai", &["OPENAI_BASE_URL"]),
    reads("@anthropic-ai/sdk", &["ANTHROPIC_BASE_URL"]),
    reads("@google/genai", &["GOOGLE_GEMINI_BASE_URL"]),
    fixed("@google/generative-ai", "gemini"),
    fixed("ollama", "ollama"),
    reads("@langchain/openai", &["OPENAI_BASE_URL"]),
    reads("@langchain/anthropic", &["ANTHROPIC_BASE_URL"]),
    fixed("@langchain/ollama", "ollama"),
    reads("@ai-sdk/openai", &["OPENAI_BASE_URL"]),
    http("axios"),
    http("undici"),
    http("node-fetch"),
    http("got"),
    http("ky"),
];

const SHELL: [Known; 4] =
    [reads("ollama", &["OLLAMA_HOST"]), reads("claude", &["ANTHROPIC_BASE_URL"]), http("curl"), http("wget")];

/// What is known of a module, a package or a command of this name, or of what it is a part of.
pub(super) fn known(kind: Kind, name: &str) -> Option<&'static Known> {
    let (all, below): (&'static [Known], char) = match kind {
        Kind::Python => (&PYTHON, '.'),
        Kind::Node => (&NODE, '/'),
        Kind::Shell | Kind::Other => (&SHELL, '\n'),
    };
    let is = |known: &&Known| {
        name.strip_prefix(known.name).is_some_and(|rest| rest.is_empty() || rest.starts_with(below))
    };
    all.iter().find(is)
}

/// The providers whose addresses these variables are.
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
    fn each_client_reads_variables_that_annals_sets() {
        let set: Vec<_> = Variable::known().into_iter().map(|variable| variable.name).collect();
        for known in PYTHON.iter().chain(&NODE).chain(&SHELL) {
            assert!(known.variables.iter().all(|name| set.iter().any(|set| set == name)), "{known:?}");
            assert_eq!(providers(known.variables).is_empty(), known.variables.is_empty());
        }
    }

    #[test]
    fn parts_of_a_library_are_the_library_and_names_like_it_are_not() {
        let of = |kind, name| known(kind, name).map(|known| known.name);
        assert_eq!(of(Kind::Python, "openai.types"), Some("openai"));
        assert_eq!(of(Kind::Python, "openai_agents"), None);
        assert_eq!(of(Kind::Python, "google"), None);
        assert_eq!(of(Kind::Node, "openai/helpers"), Some("openai"));
        assert_eq!(of(Kind::Node, "openai-edge"), None);
        assert_eq!(of(Kind::Shell, "curl"), Some("curl"));
        assert_eq!(
            providers(&["OPENAI_API_BASE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"]),
            ["openai", "anthropic"]
        );
    }
}
