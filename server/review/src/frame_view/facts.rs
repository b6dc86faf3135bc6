//! What a frame's metadata says about it: name, model, tokens, cost, and why it is severe.

use annals::runs::FrameInfo;
use annals::{Component, Status};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use annals_policy::exchange::WHY_SEVERE;
use annals_policy::providers::{Prices, TokenUsage};

use super::view::FrameStatus;

/// Facts from metadata; any other form reads as no facts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FrameFacts {
    #[serde(deserialize_with = "lenient")]
    pub(super) model: Option<String>,
    #[serde(deserialize_with = "lenient")]
    model_requested: Option<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) usage: Option<TokenUsage>,
    pub(super) cached: Option<IgnoredAny>,
    #[serde(deserialize_with = "lenient")]
    tool: Option<NamedMember>,
    #[serde(deserialize_with = "lenient")]
    call: Option<NamedMember>,
    #[serde(deserialize_with = "lenient")]
    http: Option<LineMember>,
    #[serde(deserialize_with = "lenient", rename = "why_severe")]
    why: Option<String>,
    volatile: VolatileFacts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct VolatileFacts {
    local: bool,
    #[serde(deserialize_with = "lenient", rename = "why_severe")]
    why: Option<String>,
}

#[derive(Debug, Deserialize)]
struct NamedMember {
    name: String,
}

#[derive(Debug, Deserialize)]
struct LineMember {
    method: String,
    path: String,
    #[serde(default)]
    query: Option<String>,
    #[serde(default)]
    broken: Option<String>,
}

/// A value in a form that is not expected reads as absent: a redacted or foreign value spoils no other.
fn lenient<'de, D: serde::Deserializer<'de>, T: serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

impl FrameFacts {
    pub(super) fn read(metadata: &[u8]) -> Self {
        debug_assert_eq!(WHY_SEVERE, "why_severe");
        serde_json::from_slice(metadata).unwrap_or_default()
    }

    /// The model that answered, else the requested one.
    pub(super) fn model(&self) -> Option<&String> {
        self.model.as_ref().or(self.model_requested.as_ref())
    }

    pub(super) fn why(self) -> Option<String> {
        self.why.or(self.volatile.why)
    }

    /// Whether the answer came from a recording, an edit or the cache: it cost nothing.
    pub(super) fn is_free(&self) -> bool {
        self.volatile.local || self.cached.is_some()
    }

    pub(super) fn dollars(&self, prices: &Prices) -> Option<f64> {
        let usage = self.usage.as_ref()?;
        if self.is_free() {
            return Some(0.0);
        }
        [&self.model, &self.model_requested]
            .into_iter()
            .flatten()
            .find_map(|model| prices.cost_of(model, usage))
    }

    pub(super) fn tokens(&self) -> Option<u64> {
        let usage = self.usage.as_ref()?;
        (usage.input.is_some() || usage.output.is_some())
            .then(|| usage.input.unwrap_or(0).saturating_add(usage.output.unwrap_or(0)))
    }

    pub(super) fn name(&self, component: &Component) -> Option<String> {
        let named = |member: &Option<NamedMember>| member.as_ref().map(|member| member.name.clone());
        let line = || self.http.as_ref().map(|http| format!("{} {}", http.method, http.target()));
        match component {
            Component::Llm => self.model().cloned().or_else(|| named(&self.call)).or_else(line),
            _ => named(&self.tool).or_else(|| named(&self.call)).or_else(line),
        }
    }

    pub(super) fn status(&self, frame: &FrameInfo, run: Status) -> FrameStatus {
        let broken = self.http.as_ref().is_some_and(|http| http.broken.is_some());
        match () {
            () if frame.incomplete && run == Status::Open => FrameStatus::Open,
            () if frame.incomplete || broken => FrameStatus::Aborted,
            () if frame.error => FrameStatus::Error,
            () => FrameStatus::Ok,
        }
    }
}

impl LineMember {
    fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}
