//! Classifies the destination of a connection: a model provider, other known traffic, or unknown.

use std::net::IpAddr;

use crate::mounts::Mounts;
use crate::variables::Variable;

/// `HOST` or `HOST:PORT`; an IPv6 address with a port needs brackets. `any` matches every host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    /// Name or address, in lower case.
    pub host: String,
    /// The port; `None`: any port.
    pub port: Option<u16>,
}

impl HostPattern {
    /// Parses a pattern; `None` if the text is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_v6 => (host, Some(port.parse().ok().filter(|port| *port > 0)?)),
            _ => (text, None),
        };
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_host = !bare.is_empty()
            && bare.len() <= 253
            && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:*".contains(&byte));
        is_host.then(|| Self { host: bare.to_ascii_lowercase(), port })
    }

    /// Whether the pattern matches a connection to one of these hosts (names and addresses).
    pub(super) fn matches(&self, hosts: &[&str], port: u16) -> bool {
        let same_port = self.port.is_none_or(|of| of == port || port == 0);
        same_port && (self.host == "any" || hosts.iter().any(|host| is_under(host, &self.host)))
    }

    /// The pattern as a line of the library's policy.
    pub(super) fn line(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{} {port}", self.host))
    }
}

/// The kind of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DestinationKind {
    /// A model provider: its name, and how a user can get its calls recorded.
    Model {
        /// The provider.
        provider: String,
        /// What to do.
        advice: String,
    },
    /// Known traffic without model calls; its description.
    Other(&'static str),
    /// Unknown.
    Unknown,
}

/// Hosts of providers that `record` has no variable for. A name also covers its subdomains.
const PROVIDERS: [(&str, &str); 17] = [
    ("ai21", "api.ai21.com"),
    ("anyscale", "api.endpoints.anyscale.com"),
    ("azure", "openai.azure.com"),
    ("azure", "services.ai.azure.com"),
    ("azure", "models.inference.ai.azure.com"),
    ("baseten", "baseten.co"),
    ("cohere", "api.cohere.ai"),
    ("databricks", "databricks.com"),
    ("github", "models.github.ai"),
    ("huggingface", "router.huggingface.co"),
    ("huggingface", "api-inference.huggingface.co"),
    ("nvidia", "integrate.api.nvidia.com"),
    ("replicate", "api.replicate.com"),
    ("together", "api.together.xyz"),
    ("vercel", "ai-gateway.vercel.sh"),
    ("vertex", "aiplatform.googleapis.com"),
    ("voyage", "api.voyageai.com"),
];

/// Hosts that carry no model calls.
const OTHERS: [(&str, &str); 29] = [
    ("a package registry", "pypi.org"),
    ("a package registry", "files.pythonhosted.org"),
    ("a package registry", "registry.npmjs.org"),
    ("a package registry", "registry.yarnpkg.com"),
    ("a package registry", "crates.io"),
    ("a package registry", "rubygems.org"),
    ("a package registry", "proxy.golang.org"),
    ("a package registry", "sum.golang.org"),
    ("a package registry", "repo.maven.apache.org"),
    ("a package registry", "conda.anaconda.org"),
    ("a package registry", "deb.debian.org"),
    ("a package registry", "security.debian.org"),
    ("a package registry", "archive.ubuntu.com"),
    ("a package registry", "security.ubuntu.com"),
    ("a package registry", "ghcr.io"),
    ("a package registry", "registry-1.docker.io"),
    ("a code host", "github.com"),
    ("a code host", "raw.githubusercontent.com"),
    ("a code host", "gitlab.com"),
    ("telemetry", "sentry.io"),
    ("telemetry", "posthog.com"),
    ("telemetry", "segment.io"),
    ("telemetry", "segment.com"),
    ("telemetry", "statsigapi.net"),
    ("telemetry", "datadoghq.com"),
    ("telemetry", "honeycomb.io"),
    ("telemetry", "smith.langchain.com"),
    ("telemetry", "cloud.langfuse.com"),
    ("telemetry", "telemetry.crewai.com"),
];

/// Ports of databases and message brokers on this machine.
const LOCAL_SERVICES: [u16; 16] =
    [1433, 3306, 4222, 5432, 5433, 5672, 6333, 6334, 6379, 8123, 9000, 9042, 9092, 9200, 11211, 27017];

/// The kind of a destination, by its names, address and port.
pub(super) fn kind(hosts: &[&str], address: Option<IpAddr>, port: u16, mounts: &Mounts) -> DestinationKind {
    if let Some(mount) = mounts.0.iter().find(|mount| is_origin(&mount.origin, hosts, port)) {
        let provider = mount.name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let names = mount.variables.keys().map(String::as_str).collect::<Vec<_>>();
        let advice = match names.as_slice() {
            [] => format!("give its client the base address of the mount {:?}", mount.name),
            names => format!("make its client read its base address from {}", names.join(" or ")),
        };
        return DestinationKind::Model { provider, advice };
    }
    let is_at = |variable: &Variable| {
        variable.default.as_deref().is_some_and(|origin| is_origin(origin, hosts, port))
    };
    if let Some(variable) = Variable::known().into_iter().find(is_at) {
        let advice = format!("make its client read its base address from {}", variable.name);
        return DestinationKind::Model { provider: variable.provider, advice };
    }
    if let Some((provider, _)) =
        PROVIDERS.iter().find(|(_, name)| hosts.iter().any(|host| is_under(host, name)))
    {
        return DestinationKind::Model { provider: (*provider).to_owned(), advice: unset_advice() };
    }
    if hosts.iter().any(|host| host.starts_with("bedrock-runtime.") && is_under(host, "amazonaws.com")) {
        return DestinationKind::Model { provider: "bedrock".to_owned(), advice: unset_advice() };
    }
    let is_local = address.is_some_and(|address| address.is_loopback() || address.is_unspecified());
    match port {
        53 | 853 => DestinationKind::Other("name look-ups (DNS)"),
        4317 | 4318 => DestinationKind::Other("telemetry"),
        port if is_local && LOCAL_SERVICES.contains(&port) => {
            DestinationKind::Other("a database on this machine")
        }
        _ => {
            let other = OTHERS.iter().find(|(_, name)| hosts.iter().any(|host| is_under(host, name)));
            other.map_or(DestinationKind::Unknown, |(what, _)| DestinationKind::Other(what))
        }
    }
}

fn unset_advice() -> String {
    "annals sets no variable for it: give its client a base address from a variable of yours (--env NAME=/PATH)".to_owned()
}

/// Whether a host equals this name or is below it. `*.example.org` matches only hosts below.
fn is_under(host: &str, name: &str) -> bool {
    let name = name.strip_prefix("*.").unwrap_or(name);
    let host = host.trim_end_matches('.');
    host.eq_ignore_ascii_case(name)
        || host.len().checked_sub(name.len() + 1).is_some_and(|at| {
            host.is_char_boundary(at)
                && host[at..].starts_with('.')
                && host[at + 1..].eq_ignore_ascii_case(name)
                && host.parse::<IpAddr>().is_err()
        })
}

fn is_origin(origin: &str, hosts: &[&str], port: u16) -> bool {
    let Ok(url) = reqwest::Url::parse(origin) else { return false };
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // A look-up names no port.
    let same_port = port == 0 || url.port_or_known_default() == Some(port);
    let is_local =
        |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback());
    same_port && hosts.iter().any(|of| of.eq_ignore_ascii_case(host) || (is_local(of) && is_local(host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_patterns_match_with_and_without_ports() {
        let of = |text: &str| HostPattern::parse(text).map(|pattern| (pattern.host, pattern.port));
        assert_eq!(of("API.example.org"), Some(("api.example.org".to_owned(), None)));
        assert_eq!(of("example.org:443"), Some(("example.org".to_owned(), Some(443))));
        assert_eq!(of("::1"), Some(("::1".to_owned(), None)));
        assert_eq!(of("[::1]:80"), Some(("::1".to_owned(), Some(80))));
        for bad in ["", "http://example.org", "example.org:", "example.org:0", "example.org:99999", "a b"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
        let covers =
            |pattern: &str, host: &str, port| HostPattern::parse(pattern).unwrap().matches(&[host], port);
        assert!(covers("example.org", "api.example.org", 443) && covers("any", "10.0.0.1", 1));
        assert!(
            !covers("example.org", "badexample.org", 443) && !covers("example.org:80", "example.org", 443)
        );
        assert!(!covers("0.0.1", "10.0.0.1", 1));
    }

    #[test]
    fn destination_kinds_are_recognised() {
        let mounts = Mounts::new(&Variable::known(), &[(None, "http://127.0.0.1:5000".to_owned())], |_| None);
        let mounts = mounts.unwrap();
        let of = |host: &str, port| kind(&[host], host.parse().ok(), port, &mounts);
        assert!(
            matches!(of("127.0.0.1", 5000), DestinationKind::Model { provider, .. } if provider == "openai")
        );
        assert!(
            matches!(of("api.groq.com", 443), DestinationKind::Model { provider, .. } if provider == "groq")
        );
        assert!(matches!(of("x.openai.azure.com", 443), DestinationKind::Model { .. }));
        assert!(matches!(of("api.anthropic.com", 443), DestinationKind::Model { .. }));
        assert!(matches!(of("bedrock-runtime.eu-west-1.amazonaws.com", 443), DestinationKind::Model { .. }));
        assert_eq!(of("10.0.0.2", 53), DestinationKind::Other("name look-ups (DNS)"));
        assert_eq!(of("127.0.0.1", 5432), DestinationKind::Other("a database on this machine"));
        assert_eq!(of("10.0.0.2", 5432), DestinationKind::Unknown);
        assert_eq!(of("files.pythonhosted.org", 443), DestinationKind::Other("a package registry"));
        assert_eq!(of("example.org", 443), DestinationKind::Unknown);
    }
}
