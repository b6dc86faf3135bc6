//! The switches of a namespace, and its guardrails.

use annals::kv::ScanRange;
use annals::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::Deliberation;
use crate::guardrails::Guardrail;
use crate::json::{ObjectText, RawObject, to_json};
use crate::tracker::INPUT_TTL_MS;

const KEY: &[u8] = b"settings";
/// Longest life of a captured input: a day.
const TTL_MS_MAX: u64 = 86_400_000;

/// The switches of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// New decisions must have a deliberation.
    pub(crate) require_deliberation: bool,
    /// Life of a captured input.
    pub(crate) input_ttl_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { require_deliberation: false, input_ttl_ms: INPUT_TTL_MS }
    }
}

impl Settings {
    fn to_answer(self) -> String {
        ObjectText::new()
            .value("requireDeliberation", self.require_deliberation)
            .value("inputTtlMs", self.input_ttl_ms)
            .end()
    }
}

impl Deliberation {
    pub(crate) fn read_settings(&self) -> Result<Settings> {
        match self.settings.get(KEY)? {
            None => Ok(Settings::default()),
            Some(text) => serde_json::from_slice(&text).map_err(crate::stored_error),
        }
    }

    /// Changes switches, and returns all of them.
    pub(crate) fn configure(&self, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the settings")?;
        let require = object.take_as(&["requireDeliberation", "require_deliberation"], "true or false")?;
        let ttl = object.take_as::<u64>(&["inputTtlMs", "input_ttl_ms"], "a whole number of milliseconds")?;
        object.expect_empty()?;
        if ttl.is_some_and(|ttl| !(1..=TTL_MS_MAX).contains(&ttl)) {
            return Err(Error::invalid(format!("inputTtlMs is from 1 to {TTL_MS_MAX} (a day)")));
        }
        // The lock orders changes of the settings.
        let _state = self.state();
        let mut settings = self.read_settings()?;
        if require.is_none() && ttl.is_none() {
            return Ok(settings.to_answer());
        }
        settings.require_deliberation = require.unwrap_or(settings.require_deliberation);
        settings.input_ttl_ms = ttl.unwrap_or(settings.input_ttl_ms);
        let mut batch = self.space.batch();
        batch.put(&self.settings, KEY, to_json(&settings).into_bytes());
        self.commit(batch)?;
        Ok(settings.to_answer())
    }

    pub(crate) fn rules(&self) -> Result<Vec<Guardrail>> {
        let rules = self.guardrails.scan(ScanRange::all());
        rules.map(|found| serde_json::from_slice(&found?.1).map_err(crate::stored_error)).collect()
    }

    pub(crate) fn set_guardrail(&self, params: &str) -> Result<String> {
        let rule = Guardrail::parse(params)?;
        let mut batch = self.space.batch();
        batch.put(&self.guardrails, rule.id.as_bytes(), to_json(&rule).into_bytes());
        self.commit(batch)?;
        Ok(to_json(&rule))
    }

    pub(crate) fn list_guardrails(&self, params: &str) -> Result<String> {
        RawObject::parse(params, "the parameters")?.expect_empty()?;
        Ok(ObjectText::new()
            .value("guardrails", self.rules()?)
            .value("requireDeliberation", self.read_settings()?.require_deliberation)
            .end())
    }

    pub(crate) fn delete_guardrail(&self, params: &str) -> Result<String> {
        let mut object = RawObject::parse(params, "the parameters")?;
        let id =
            object.take_text(&["id"])?.ok_or_else(|| Error::invalid("\"id\" of the guardrail is missing"))?;
        object.expect_empty()?;
        let was_there = self.guardrails.get(id.as_bytes())?.is_some();
        if was_there {
            let mut batch = self.space.batch();
            batch.delete(&self.guardrails, id.as_bytes());
            self.commit(batch)?;
        }
        Ok(ObjectText::new().value("deleted", was_there).end())
    }
}
