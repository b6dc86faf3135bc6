//! Maps addresses of the proxy to upstreams, and names the variables that tell a program about them.
//!
//! The proxy's addresses begin with `http://127.0.0.1:PORT/SECRET-MOUNT`. A mount is one upstream origin; the
//! path below the mount is requested from the upstream unchanged. Clients expect different base addresses:
//! some need `/v1` at the end; some join relative paths, which needs a final slash.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use crate::variables::{Variable, public_path, public_paths, replace_prefix};

/// An upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Its name in the proxy's addresses: the provider, with a number if it has several mounts.
    pub name: String,
    /// Scheme, host and port of the upstream, without a slash at the end.
    pub origin: String,
    /// The variables that point to it, each with the path after the origin.
    pub variables: BTreeMap<String, String>,
    /// Path prefixes that some clients request, and their replacements for the upstream.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub paths: BTreeMap<String, String>,
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

/// The origin (scheme, host and port) of a variable with this value; or why it cannot be an upstream.
pub(crate) fn origin_of(variable: &Variable, value: &str) -> Result<String, String> {
    check_address(&variable.address_in(value)).map(|url| url.origin().ascii_serialization())
}

impl Mount {
    /// The provider of the upstream.
    fn provider(&self) -> &str {
        self.name.trim_end_matches(|c: char| c.is_ascii_digit())
    }
}

impl Mounts {
    /// The mounts of a program. Each variable leads to the upstream named for its provider or for all, else
    /// to its own address, else to its default. A variable that would lead a client elsewhere than without
    /// annals is left out ([`Variable`]).
    ///
    /// `upstreams` are pairs of a provider (`None`: all) and an address; `set` returns a variable's value in
    /// the program's environment.
    ///
    /// # Errors
    /// An address that is not http or https, or has a user, a query or a fragment.
    pub fn new(
        variables: &[Variable],
        upstreams: &[(Option<String>, String)],
        set: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, MountError> {
        let set = |name: &str| set(name).filter(|value| !value.is_empty());
        let mut mounts = Self::default();
        for variable in variables {
            let last =
                |of: Option<&str>| upstreams.iter().rev().find(|(provider, _)| provider.as_deref() == of);
            let (named, all) = (last(Some(&variable.provider)), last(None));
            if named.is_none() && variable.is_left_unset(all.is_some(), &set) {
                continue;
            }
            let default = variable.default.as_deref().map(address).transpose()?;
            match (named.or(all), set(&variable.name)) {
                (Some((_, given)), _) => {
                    let url = variable_at(&address(given)?, default.as_ref())?;
                    let public = default.is_some_and(|default| path_of(&default) == path_of(&url));
                    mounts.add(variable, &url, public);
                }
                (None, Some(value)) => {
                    let url = check_address(&variable.address_in(&value)).map_err(|why| {
                        MountError(format!(
                            "the value of {name} cannot be an upstream: {why}; unset it, name one with --upstream {}=URL, or leave it out with --env {name}=",
                            variable.provider,
                            name = variable.name,
                        ))
                    })?;
                    let public = default.is_some_and(|default| {
                        default.origin() == url.origin() && path_of(&default) == path_of(&url)
                    });
                    mounts.add(variable, &url, public);
                }
                (None, None) => {
                    if let Some(default) = default {
                        mounts.add(variable, &default, true);
                    }
                }
            }
        }
        for (provider, url) in upstreams {
            let Some(provider) = provider else { continue };
            if !variables.iter().any(|variable| variable.provider == *provider) {
                let url = address(url)?;
                mounts.mount_for(provider, &url.origin().ascii_serialization());
            }
        }
        Ok(mounts)
    }

    /// Parses `[PROVIDER=]URL` into a pair for [`Mounts::new`].
    #[must_use]
    pub fn parse_upstream(text: &str) -> (Option<String>, String) {
        match text.split_once('=') {
            Some((provider, url)) if !provider.contains(['/', ':']) => {
                (Some(provider.to_owned()), url.to_owned())
            }
            _ => (None, text.to_owned()),
        }
    }

    /// Replaces the origins of all mounts, or of those of one provider.
    ///
    /// # Errors
    /// As [`Mounts::new`].
    pub fn redirect(&mut self, upstreams: &[(Option<String>, String)]) -> Result<(), MountError> {
        for (provider, text) in upstreams {
            let origin = address(text)?.origin().ascii_serialization();
            for mount in &mut self.0 {
                if provider.as_deref().is_none_or(|provider| provider == mount.provider()) {
                    mount.origin.clone_from(&origin);
                }
            }
        }
        Ok(())
    }

    /// `public`: whether request paths follow the form of the provider's public address.
    fn add(&mut self, variable: &Variable, url: &Url, public: bool) {
        let mount = self.mount_for(&variable.provider, &url.origin().ascii_serialization());
        if public {
            let paths = public_paths(&variable.provider);
            mount.paths.extend(paths.map(|(from, to)| (from.to_owned(), to.to_owned())));
        }
        let path = path_of(url);
        let end = if variable.slash { "/" } else { "" };
        mount.variables.insert(variable.name.clone(), format!("{path}{end}"));
    }

    /// The mount of an origin; adds it if needed.
    fn mount_for(&mut self, provider: &str, origin: &str) -> &mut Mount {
        let same = |mount: &Mount| mount.origin == origin && mount.provider() == provider;
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            let known = self.0.iter().filter(|mount| mount.provider() == provider).count();
            let name = if known == 0 { provider.to_owned() } else { format!("{provider}{}", known + 1) };
            self.0.push(Mount { name, origin: origin.to_owned(), ..Mount::default() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// The values of the program's variables, for a proxy at this base address.
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

    /// The path to request from the upstream instead of this one; `None` if the path stays.
    pub(crate) fn upstream_path(&self, mount: &str, path: &str) -> Option<String> {
        self.get(mount)?.paths.iter().find_map(|(from, to)| replace_prefix(path, from, to))
    }

    /// The mount of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Mount> {
        self.0.iter().find(|mount| mount.name == name)
    }
}

/// The upstream's form of a path, which the recording may hold instead of this one.
pub(crate) fn recorded_path(mount: &str, path: &str) -> Option<String> {
    public_path(mount.trim_end_matches(|c: char| c.is_ascii_digit()), path)
}

/// A variable's address at a given upstream: a bare origin stands for the provider's usual paths at it.
fn variable_at(given: &Url, default: Option<&Url>) -> Result<Url, MountError> {
    let default = default.map_or("/", |default| default.path());
    match given.path() {
        "/" => joined(given, default),
        _ if default == "/" => {
            let path = path_of(given);
            let base = ["/openai/v1", "/v1"].into_iter().find_map(|end| path.strip_suffix(end));
            joined(given, base.unwrap_or(path))
        }
        _ => Ok(given.clone()),
    }
}

fn path_of(url: &Url) -> &str {
    url.path().trim_end_matches('/')
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
    check_address(text).map_err(|why| wrong(text, &why))
}

/// A valid upstream address, or the reason why it is not one. The reason omits the address, which may hold a
/// password.
pub(crate) fn check_address(text: &str) -> Result<Url, String> {
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
    fn mounts_without_upstreams_use_public_addresses() {
        let mounts = Mounts::new(&Variable::known(), &[], |_| None).unwrap();
        let set = variables(&mounts);
        assert_eq!(set["OPENAI_BASE_URL"], "http://127.0.0.1:9/s-openai/v1");
        assert_eq!(set["OPENAI_HOST"], "http://127.0.0.1:9/s-openai/");
        assert_eq!(set["ANTHROPIC_BASE_URL"], "http://127.0.0.1:9/s-anthropic");
        assert_eq!(mounts.get("openai").unwrap().origin, "https://api.openai.com");
        assert_eq!(mounts.get("ollama").unwrap().origin, "http://127.0.0.1:11434");
    }

    #[test]
    fn program_address_is_used_and_two_origins_get_two_mounts() {
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
    fn named_upstream_wins_over_the_environment() {
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
    fn mounts_with(
        pairs: &[(&str, &str)],
        upstreams: &[(Option<String>, String)],
    ) -> Result<Mounts, MountError> {
        let value =
            |name: &str| pairs.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        Mounts::new(&Variable::known(), upstreams, value)
    }

    /// No client reads MISTRAL_API_ENDPOINT, so it is no longer set. Runs recorded with it are replayed with
    /// it.
    #[test]
    fn older_runs_keep_their_variables_and_paths() {
        let old = r#"[{"name":"mistral","origin":"https://api.mistral.ai","variables":{"MISTRAL_API_ENDPOINT":""}},{"name":"anthropic","origin":"https://api.anthropic.com","variables":{"ANTHROPIC_BASE_URL":""}}]"#;
        let mounts: Mounts = serde_json::from_str(old).unwrap();
        assert_eq!(variables(&mounts)["MISTRAL_API_ENDPOINT"], "http://127.0.0.1:9/s-mistral");
        assert_eq!(mounts.upstream_path("anthropic", "/messages"), None);
        assert_eq!(serde_json::to_string(&mounts).unwrap(), old);
        assert!(!variables(&mounts_with(&[], &[]).unwrap()).contains_key("MISTRAL_API_ENDPOINT"));
    }

    #[test]
    fn paths_are_replaced_at_public_forms_only() {
        let asked = |pairs: &[(&str, &str)], upstreams: &[(Option<String>, String)]| {
            mounts_with(pairs, upstreams).unwrap().upstream_path("anthropic", "/messages")
        };
        let to = |url: &str| [(Some("anthropic".to_owned()), url.to_owned())];
        let public = Some("/v1/messages".to_owned());
        assert_eq!(asked(&[], &[]), public);
        assert_eq!(asked(&[], &to("http://127.0.0.1:1")), public);
        assert_eq!(asked(&[], &to("http://127.0.0.1:1/v1")), public);
        assert_eq!(asked(&[("ANTHROPIC_BASE_URL", "https://api.anthropic.com/")], &[]), public);
        assert_eq!(asked(&[("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")], &[]), None);
        assert_eq!(asked(&[], &to("http://127.0.0.1:1/claude")), None);
        let groq =
            mounts_with(&[], &[]).unwrap().upstream_path("groq", "/openai/v1/openai/v1/chat/completions");
        assert_eq!(groq.as_deref(), Some("/openai/v1/chat/completions"));
    }

    #[test]
    fn user_addresses_are_read_as_clients_read_them() {
        for (value, origin, path) in [
            ("http://gateway.example/api/v3", "http://gateway.example", "/api/v3"),
            ("http://gateway.example/v1/", "http://gateway.example", "/v1"),
            ("http://[::1]:8000/v1", "http://[::1]:8000", "/v1"),
            ("localhost:8000", "http://localhost:8000", ""),
            ("", "https://api.openai.com", "/v1"),
        ] {
            let mounts = mounts_with(&[("OPENAI_BASE_URL", value)], &[]).unwrap();
            assert_eq!(mounts.0[0].origin, origin, "{value}");
            assert_eq!(mounts.0[0].variables["OPENAI_BASE_URL"], path, "{value}");
        }
        for value in ["http://", "://", "http://[::1", "ftp://a", "http://me:pw@a", "http://a?b"] {
            let error = mounts_with(&[("OPENAI_BASE_URL", value)], &[]).unwrap_err();
            assert!(error.0.contains("the value of OPENAI_BASE_URL") && !error.0.contains("pw"), "{error}");
        }
    }

    /// A client that reads two variables uses the first: annals must not set that one beside the user's.
    #[test]
    fn rivals_of_a_set_variable_are_not_set() {
        let set = |pairs: &[(&str, &str)]| variables(&mounts_with(pairs, &[]).unwrap());
        let gateway = "http://gateway.example";
        assert!(!set(&[("OPENAI_API_BASE", gateway)]).contains_key("OPENAI_BASE_URL"));
        assert!(!set(&[("ANTHROPIC_BASE_URL", gateway)]).contains_key("ANTHROPIC_API_URL"));
        assert!(!set(&[("GROQ_BASE_URL", gateway)]).contains_key("GROQ_API_BASE"));
        assert!(set(&[("OLLAMA_HOST", gateway)]).contains_key("OLLAMA_API_BASE"));
        let all = [(None, "http://127.0.0.1:1".to_owned())];
        let redirected = variables(&mounts_with(&[("OPENAI_API_BASE", gateway)], &all).unwrap());
        assert!(redirected.contains_key("OPENAI_BASE_URL"), "all go to one upstream");
    }

    /// Azure has no public address. AWS refuses a signature made for the proxy, and botocore sends a key over
    /// https only.
    #[test]
    fn azure_and_bedrock_are_set_where_they_can_work() {
        let bedrock = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME";
        let has = |name: &str, pairs: &[(&str, &str)], upstreams: &[(Option<String>, String)]| {
            variables(&mounts_with(pairs, upstreams).unwrap()).contains_key(name)
        };
        let gateway = (bedrock, "http://gateway.example");
        let aws = (bedrock, "https://bedrock-runtime.us-east-1.amazonaws.com");
        let key = ("AWS_BEARER_TOKEN_BEDROCK", "k");
        let named = [(Some("bedrock".to_owned()), "http://127.0.0.1:1".to_owned())];
        assert!(!has(bedrock, &[], &[]));
        assert!(has(bedrock, &[gateway], &[]));
        assert!(!has(bedrock, &[aws], &[]));
        assert!(!has(bedrock, &[gateway, key], &[]));
        assert!(has(bedrock, &[key], &named));
        assert!(!has("AZURE_OPENAI_ENDPOINT", &[], &[]));
        let azure = ("AZURE_OPENAI_ENDPOINT", "https://x.openai.azure.com");
        assert!(has(azure.0, &[azure], &[]));
        assert!(!has("OPENAI_BASE_URL", &[azure], &[]));
        assert!(has("OPENAI_BASE_URL", &[azure, ("OPENAI_API_KEY", "k")], &[]));
    }
}
