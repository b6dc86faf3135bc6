//! One question to a model over an OpenAI-compatible interface, for commands that ask a model's opinion. No
//! retries: a failure is reported, and the command can be repeated.

use std::time::Duration;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::Url;

use crate::upstream::{UpstreamClients, error_chain};

/// The longest time until the answer is complete.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum length of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of a refusal that are shown.
const SAID_BYTES_MAX: usize = 300;

/// The variable that holds the key of a judge.
const JUDGE_KEY: &str = "ANNALS_JUDGE_KEY";
/// The variable that holds a key for OpenAI, and the only host that gets this key.
const OPENAI_KEY: &str = "OPENAI_API_KEY";
const OPENAI_HOST: &str = "api.openai.com";

/// A model at an address.
pub(crate) struct ChatEndpoint {
    url: Url,
    key: Option<HeaderValue>,
}

/// Leaves out the key.
impl std::fmt::Debug for ChatEndpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ChatEndpoint").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl ChatEndpoint {
    /// The endpoint of chat completions under a base address such as `https://api.openai.com/v1`.
    ///
    /// # Errors
    /// A sentence, for an invalid address or key, and for a key that would travel unencrypted.
    pub(crate) fn new(base: &str, key: Option<&str>) -> Result<Self, String> {
        let address = format!("{}/chat/completions", base.trim_end_matches('/'));
        let url = Url::parse(&address).map_err(|error| format!("{base:?} is not a URL: {error}"))?;
        if !["http", "https"].contains(&url.scheme()) {
            return Err(format!("{base:?} must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the address must not hold a user name or password".to_owned());
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = host == "localhost"
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback());
        if key.is_some() && url.scheme() == "http" && !is_near {
            return Err(format!("{base} would receive the key unencrypted: use https"));
        }
        let key = key.map(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                .map_err(|_| "the key is invalid: no header can hold it".to_owned())?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        Ok(Self { url, key: key.transpose()? })
    }

    /// The endpoint of a judge, with the key in `ANNALS_JUDGE_KEY`; if that is not set, OpenAI's own address gets
    /// the key in `OPENAI_API_KEY`, and no other address does. `variable` reads a variable of the environment.
    ///
    /// # Errors
    /// As [`ChatEndpoint::new`].
    pub(crate) fn judge(base: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_openai =
            Url::parse(base).is_ok_and(|url| url.scheme() == "https" && url.host_str() == Some(OPENAI_HOST));
        let key = set(JUDGE_KEY).or_else(|| set(OPENAI_KEY).filter(|_| is_openai));
        Self::new(base, key.as_deref())
    }

    /// Sends a request and returns the answer's body.
    ///
    /// # Errors
    /// A sentence, if there is no answer, or one that is no success.
    pub(crate) fn ask(&self, body: String) -> Result<Vec<u8>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("no request can be sent: {error}"))?;
        runtime.block_on(self.ask_async(body))
    }

    async fn ask_async(&self, body: String) -> Result<Vec<u8>, String> {
        let clients = UpstreamClients::default();
        let client = clients.client(&self.url)?;
        let request = client.post(self.url.clone()).timeout(TIMEOUT).header(CONTENT_TYPE, "application/json");
        let request = match &self.key {
            Some(key) => request.header(AUTHORIZATION, key.clone()),
            None => request,
        };
        let told = |error: &reqwest::Error| format!("{} gives no answer: {}", self.url, error_chain(error));
        let mut response = request.body(body).send().await.map_err(|error| told(&error))?;
        let status = response.status();
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| told(&error))? {
            if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(format!("the answer of {} is longer than {ANSWER_BYTES_MAX} bytes", self.url));
            }
            answer.extend_from_slice(&chunk);
        }
        if status.is_success() {
            return Ok(answer);
        }
        let said =
            String::from_utf8_lossy(answer.get(..answer.len().min(SAID_BYTES_MAX)).unwrap_or_default());
        Err(format!("{} answered {status}: {}", self.url, said.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::{ChatEndpoint, JUDGE_KEY, OPENAI_KEY};

    /// The judge of blame sent `OPENAI_API_KEY` to whatever address it was given.
    #[test]
    fn key_for_openai_goes_to_openai_only() {
        let sent = |base: &str, name: &str| {
            let variable = |wanted: &str| (wanted == name).then(|| "sk-secret".to_owned());
            ChatEndpoint::judge(base, &variable).map(|endpoint| endpoint.key.is_some())
        };
        assert_eq!(sent("https://api.openai.com/v1", OPENAI_KEY), Ok(true));
        for other in [
            "https://api.openai.com.example.org/v1",
            "https://example.org/api.openai.com/v1",
            "http://api.openai.com/v1",
            "http://127.0.0.1:8080/v1",
        ] {
            assert_eq!(sent(other, OPENAI_KEY), Ok(false), "{other}");
        }
        assert_eq!(sent("http://127.0.0.1:8080/v1", JUDGE_KEY), Ok(true));
        assert!(sent("http://example.org/v1", JUDGE_KEY).is_err(), "a key would travel unencrypted");
        let endpoint = ChatEndpoint::new("https://example.org", Some("sk-secret"));
        assert!(!format!("{endpoint:?}").contains("sk-secret"));
    }
}
