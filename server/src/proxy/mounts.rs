//! Which upstream an address of the proxy stands for, and which variables tell a program of it.
//!
//! The proxy's addresses are `http://127.0.0.1:PORT/SECRET-MOUNT` and on. A mount is one upstream origin; what
//! follows the mount in a path is asked of the upstream as it is. Clients differ in what they take a base address to be: some
//! want it to end in `/v1`, some join paths to it as a relative address, which needs a slash at its end.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// A variable that programs read an address from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The provider whose address it is.
    pub provider: String,
    /// What it is taken to be where it is not set.
    pub default: String,
    /// Whether its address has to end in a slash.
    pub slash: bool,
}

/// Name, provider, public address, slash at the end. From the clients' own documentation.
const VARIABLES: [(&str, &str, &str, bool); 11] = [
    ("OPENAI_BASE_URL", "openai", "https://api.openai.com/v1", false),
    ("OPENAI_API_BASE", "openai", "https://api.openai.com/v1", false),
    ("OPENAI_HOST", "openai", "https://api.openai.com", true),
    ("ANTHROPIC_BASE_URL", "anthropic", "https://api.anthropic.com", false),
    ("ANTHROPIC_API_URL", "anthropic", "https://api.anthropic.com", false),
    ("ANTHROPIC_HOST", "anthropic", "https://api.anthropic.com", true),
    ("GOOGLE_GEMINI_BASE_URL", "gemini", "https://generativelanguage.googleapis.com", false),
    ("GEMINI_BASE_URL", "gemini", "https://generativelanguage.googleapis.com", false),
    ("OLLAMA_HOST", "ollama", "http://127.0.0.1:11434", false),
    ("MISTRAL_API_ENDPOINT", "mistral", "https://api.mistral.ai", false),
    ("OPENROUTER_BASE_URL", "openrouter", "https://openrouter.ai/api/v1", false),
];

/// An upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Its name in the proxy's addresses: the provider, with a number where there are two of one.
    pub name: String,
    /// Scheme, host and port of the upstream, without a slash at the end.
    pub origin: String,
    /// The variables that point at it, with what follows the origin in each.
    pub variables: BTreeMap<String, String>,
}

/// The upstreams of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mounts(pub Vec<Mount>);

/// Why an address cannot be an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountError(pub String);

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MountError {}

impl Variable {
    /// The variables that are known.
    #[must_use]
    pub fn known() -> Vec<Self> {
        let of = |(name, provider, default, slash): (&str, &str, &str, bool)| Self {
            name: name.to_owned(),
            provider: provider.to_owned(),
            default: default.to_owned(),
            slash,
        };
        VARIABLES.into_iter().map(of).collect()
    }

    /// One that only its own program reads: its upstream has to be said, or be its value.
    #[must_use]
    pub fn of(name: &str, path: &str) -> Self {
        let provider = name.to_ascii_lowercase().replace('_', "-");
        let default = format!("http://127.0.0.1{path}");
        Self { name: name.to_owned(), provider, default, slash: path.len() > 1 && path.ends_with('/') }
    }
}

/// Where requests would go on to that a program sends by a variable with this value: scheme, host and port; or why they would not.
pub(crate) fn origin_of(value: &str) -> Result<String, String> {
    checked(&with_scheme(value)).map(|url| url.origin().ascii_serialization())
}

impl Mounts {
    /// The mounts of a program: each variable's own address if it has one, else the upstream given for its provider or
    /// for all, else its default.
    ///
    /// `upstreams` are pairs of a provider (none: for all) and an address; `set` gives a variable's value in
    /// the program's environment.
    ///
    /// # Errors
    /// An address that is not http or https, or has a user, a query or a fragment.
    pub fn new(
        variables: &[Variable],
        upstreams: &[(Option<String>, String)],
        set: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, MountError> {
        let mut mounts = Self::default();
        let given = |provider: &str| {
            let of = upstreams.iter().rev().find(|(of, _)| of.as_deref() == Some(provider));
            of.or_else(|| upstreams.iter().rev().find(|(of, _)| of.is_none())).map(|(_, url)| url.clone())
        };
        for variable in variables {
            let default =
                Url::parse(&variable.default).map_err(|e| wrong(&variable.default, &e.to_string()))?;
            let url = match (given(&variable.provider), set(&variable.name).filter(|value| !value.is_empty()))
            {
                (Some(given), _) => {
                    let url = address(&given)?;
                    // Whoever names an origin means the provider's usual paths at it.
                    match url.path() {
                        "/" => joined(&url, default.path())?,
                        _ if default.path() == "/" => {
                            let base = url.path().trim_end_matches('/').trim_end_matches("/v1").to_owned();
                            joined(&url, &base)?
                        }
                        _ => url,
                    }
                }
                (None, Some(set)) => address(&with_scheme(&set))?,
                (None, None) => default,
            };
            mounts.add(variable, &url);
        }
        for (provider, url) in upstreams {
            let Some(provider) = provider else { continue };
            if !variables.iter().any(|variable| variable.provider == *provider) {
                let url = address(url)?;
                mounts.mount(provider, &url.origin().ascii_serialization());
            }
        }
        Ok(mounts)
    }

    /// `[PROVIDER=]URL` as a pair for [`Mounts::new`].
    #[must_use]
    pub fn named(text: &str) -> (Option<String>, String) {
        match text.split_once('=') {
            Some((provider, url)) if !provider.contains(['/', ':']) => {
                (Some(provider.to_owned()), url.to_owned())
            }
            _ => (None, text.to_owned()),
        }
    }

    /// Other origins in place of those there are: for all mounts, or for those of a provider.
    ///
    /// # Errors
    /// As [`Mounts::new`].
    pub fn redirect(&mut self, upstreams: &[(Option<String>, String)]) -> Result<(), MountError> {
        for (provider, text) in upstreams {
            let origin = address(text)?.origin().ascii_serialization();
            for mount in &mut self.0 {
                let name = mount.name.trim_end_matches(|c: char| c.is_ascii_digit());
                if provider.as_deref().is_none_or(|provider| provider == name) {
                    mount.origin.clone_from(&origin);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, variable: &Variable, url: &Url) {
        let mount = self.mount(&variable.provider, &url.origin().ascii_serialization());
        let path = url.path().trim_end_matches('/');
        let end = if variable.slash { "/" } else { "" };
        mount.variables.insert(variable.name.clone(), format!("{path}{end}"));
    }

    /// The mount of an origin, made where there is none.
    fn mount(&mut self, provider: &str, origin: &str) -> &mut Mount {
        let same = |mount: &Mount| {
            mount.origin == origin && mount.name.trim_end_matches(|c: char| c.is_ascii_digit()) == provider
        };
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            let known = self.0.iter().filter(|mount| mount.name.starts_with(provider)).count();
            let name = if known == 0 { provider.to_owned() } else { format!("{provider}{}", known + 1) };
            self.0.push(Mount { name, origin: origin.to_owned(), variables: BTreeMap::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// What the program's variables are set to, where the proxy's addresses begin so.
    #[must_use]
    pub fn environment(&self, base: &str, secret: &str) -> Vec<(String, String)> {
        let of = |mount: &Mount| {
            let address = format!("{base}/{secret}-{}", mount.name);
            let pairs =
                mount.variables.iter().map(move |(name, path)| (name.clone(), format!("{address}{path}")));
            pairs.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    /// The mount of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.name == name)
    }
}

/// OLLAMA_HOST and its like may be a host and a port only.
fn with_scheme(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

fn joined(url: &Url, path: &str) -> Result<Url, MountError> {
    let mut url = url.clone();
    url.set_path(path);
    Ok(url)
}

fn wrong(text: &str, why: &str) -> MountError {
    MountError(format!("{text:?} cannot be an upstream: {why}"))
}

fn address(text: &str) -> Result<Url, MountError> {
    checked(text).map_err(|why| wrong(text, &why))
}

/// An address that can be an upstream, or why this one cannot, without the address itself: it may hold a password.
fn checked(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| e.to_string())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("it has to begin with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a user and a password in it would be recorded".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(mounts: &Mounts) -> BTreeMap<String, String> {
        mounts.environment("http://127.0.0.1:9", "s").into_iter().collect()
    }

    #[test]
    fn without_anything_said_a_program_goes_to_the_public_addresses() {
        let mounts = Mounts::new(&Variable::known(), &[], |_| None).unwrap();
        let set = variables(&mounts);
        assert_eq!(set["OPENAI_BASE_URL"], "http://127.0.0.1:9/s-openai/v1");
        assert_eq!(set["OPENAI_HOST"], "http://127.0.0.1:9/s-openai/");
        assert_eq!(set["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9/s-anthropic");
        assert_eq!(mounts.get("openai").unwrap().origin, "https://api.openai.com");
        assert_eq!(mounts.get("ollama").unwrap().origin, "http://127.0.0.1:11434");
    }

    #[test]
    fn an_address_that_the_program_has_is_used_and_two_of_one_provider_are_two() {
        let set = |name: &str| match name {
            "OPENAI_BASE_URL" => Some("http://localhost:8000/api/v3/".to_owned()),
            "OLLAMA_HOST" => Some("10.0.0.7:999".to_owned()),
            _ => None,
        };
        let mounts = Mounts::new(&Variable::known(), &[], set).unwrap();
        assert_eq!(mounts.get("openai").unwrap().origin, "http://localhost:8000");
        assert_eq!(mounts.get("openai2").unwrap().origin, "https://api.openai.com");
        assert_eq!(mounts.get("ollama").unwrap().origin, "http://10.0.0.7:999");
        let set = variables(&mounts);
        assert_eq!(set["OPENAI_BASE_URL"], "http://127.0.0.1:9/s-openai/api/v3");
        assert_eq!(set["OPENAI_HOST"], "http://127.0.0.1:9/s-openai2/");
    }

    #[test]
    fn an_upstream_that_is_named_wins() {
        let upstreams = [
            (None, "http://127.0.0.1:5000".to_owned()),
            (Some("anthropic".to_owned()), "http://127.0.0.1:6000/claude".to_owned()),
            (Some("mine".to_owned()), "https://example.org".to_owned()),
        ];
        let mounts =
            Mounts::new(&Variable::known(), &upstreams, |_| Some("https://a.example/v9".into())).unwrap();
        let set = variables(&mounts);
        assert_eq!(mounts.get("openai").unwrap().origin, "http://127.0.0.1:5000");
        assert_eq!(set["OPENAI_BASE_URL"], "http://127.0.0.1:9/s-openai/v1");
        assert_eq!(set["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9/s-anthropic/claude");
        assert_eq!(mounts.get("mine").unwrap().origin, "https://example.org");
        for bad in ["ftp://a", "nonsense", "http://user:pw@a", "http://a?b", "file:///etc/passwd"] {
            assert!(Mounts::new(&Variable::known(), &[(None, bad.to_owned())], |_| None).is_err(), "{bad}");
        }
    }
}
