//! What the environment and this machine tell. Values of keys and HTTP proxies are not read.

use super::report::{InspectionFinding, KeyVariable, NondetSupport, ProgramKind, UpstreamVariable};
use crate::mounts::{Mount, Mounts, origin_of};
use crate::nondet::{ExecChain, ExecTarget, check_support};
use crate::session::KEYS;
use crate::upstream::UpstreamGuard;
use crate::variables::Variable;

/// Variables that name an HTTP proxy.
const PROXIES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// The base addresses that are set, and the problems with them.
pub(super) fn upstreams(
    set: &dyn Fn(&str) -> Option<String>,
) -> (Vec<UpstreamVariable>, Vec<InspectionFinding>) {
    let (mut upstreams, mut findings) = (Vec::new(), Vec::new());
    for variable in Variable::known() {
        let Some(value) = set(&variable.name).filter(|value| !value.is_empty()) else { continue };
        let allowed = origin_of(&variable, &value).and_then(|origin| {
            let mount = Mount { name: variable.provider.clone(), origin: origin.clone(), ..Mount::default() };
            UpstreamGuard::default().check(&Mounts(vec![mount])).map_err(|error| error.0)?;
            Ok(origin)
        });
        if let Err(why) = &allowed {
            findings.push(InspectionFinding {
                problem: true,
                what: "upstream",
                place: None,
                text: format!("the value of {} cannot be an upstream: {why}", variable.name),
                next: format!(
                    "unset it, or name the upstream: --upstream {}=URL",
                    provider_of(&variable.name)
                ),
            });
        }
        upstreams.push(UpstreamVariable { variable: variable.name, origin: allowed.ok() });
    }
    (upstreams, findings)
}

fn provider_of(name: &str) -> String {
    Variable::known()
        .into_iter()
        .find(|variable| variable.name == name)
        .map_or(String::new(), |found| found.provider)
}

/// The key variables, and whether they are set.
pub(super) fn keys(set: &dyn Fn(&str) -> Option<String>) -> Vec<KeyVariable> {
    let of = |name: &str| KeyVariable {
        variable: name.to_owned(),
        set: set(name).is_some_and(|value| !value.is_empty()),
    };
    KEYS.into_iter().map(of).collect()
}

/// The HTTP proxy variables that are set.
pub(super) fn proxies(set: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let named = PROXIES.into_iter().filter(|name| set(name).is_some_and(|value| !value.is_empty()));
    named.map(str::to_owned).collect()
}

/// Whether clocks and randomness of a command can be captured.
pub(super) fn nondet(kind: ProgramKind, chain: &ExecChain) -> NondetSupport {
    let (works, mut not_covered) = match (check_support(), &chain.end) {
        (Err(why), _) => (false, vec![why.0]),
        (Ok(()), ExecTarget::NotCoverable(beyond)) => (false, vec![beyond.why.clone()]),
        (Ok(()), _) => (true, Vec::new()),
    };
    if works {
        if !matches!(kind, ProgramKind::Python | ProgramKind::Node) {
            not_covered.push("only Python and Node are tested".to_owned());
        }
        not_covered.push(
            "racing threads, randomness drawn inside OpenSSL and the C library, static programs that it starts"
                .to_owned(),
        );
    }
    NondetSupport { works, not_covered }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_addresses_are_listed_without_secrets() {
        let set = |name: &str| {
            let value = match name {
                "OPENAI_BASE_URL" => "https://llm.example/v1/",
                "OLLAMA_HOST" => "10.0.0.7:999",
                "ANTHROPIC_BASE_URL" => "https://me:hunter2@llm.example",
                "GEMINI_BASE_URL" => "http://169.254.169.254/x",
                "HTTPS_PROXY" => "http://me:hunter2@proxy.example",
                "OPENAI_API_KEY" => "hunter2",
                "ANTHROPIC_API_KEY" => "",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let (upstreams, findings) = upstreams(&set);
        let origins: Vec<_> =
            upstreams.iter().map(|found| (found.variable.as_str(), found.origin.as_deref())).collect();
        let expected = [
            ("OPENAI_BASE_URL", Some("https://llm.example")),
            ("ANTHROPIC_BASE_URL", None),
            ("GEMINI_BASE_URL", None),
            ("OLLAMA_HOST", Some("http://10.0.0.7:999")),
        ];
        assert_eq!(origins, expected);
        assert!(findings.len() == 2 && findings[1].text.contains("link-local address"), "{findings:?}");
        let keys = keys(&set);
        let of = |name| keys.iter().find(|key| key.variable == name).unwrap().set;
        assert!(of("OPENAI_API_KEY") && !of("ANTHROPIC_API_KEY") && !of("MISTRAL_API_KEY"));
        assert_eq!(proxies(&set), ["HTTPS_PROXY"]);
        let all = format!("{upstreams:?} {findings:?} {keys:?}");
        assert!(!all.contains("hunter2"), "{all}");
    }
}
