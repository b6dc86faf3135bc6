//! Guardrails: rules that a decision must meet, kept in the namespace.
//!
//! A rule is JSON under its id in the keyspace `annals.guardrails`. It selects by category, stakes and text; it
//! requires a confidence or a deliberation. A rule that requires nothing refuses all that it selects.

use annals::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::decision::{CATEGORIES, STAKES, check_confidence};
use crate::json::check_choice;

/// The id of the rule that a namespace's switch turns on.
pub(crate) const REQUIRE_DELIBERATION: &str = "require-deliberation";
const ID_BYTES_MAX: usize = 128;

/// When a rule is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Check,
    Record,
    #[default]
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effect {
    #[default]
    Block,
    Warn,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Guardrail {
    pub(crate) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) phase: Phase,
    #[serde(default)]
    pub(crate) effect: Effect,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) category: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stakes: Vec<String>,
    /// Selects what contains one of these texts, whatever the letters' case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) contains: Vec<String>,
    #[serde(default, alias = "min_confidence", skip_serializing_if = "Option::is_none")]
    pub(crate) min_confidence: Option<f64>,
    #[serde(default, alias = "requires_deliberation")]
    pub(crate) requires_deliberation: bool,
}

/// What rules are evaluated against.
#[derive(Debug, Default)]
pub(crate) struct Action<'a> {
    pub(crate) text: &'a str,
    pub(crate) context: Option<&'a str>,
    pub(crate) category: Option<&'a str>,
    pub(crate) stakes: Option<&'a str>,
    pub(crate) confidence: Option<f64>,
    /// Known once a decision is recorded.
    pub(crate) has_deliberation: Option<bool>,
    pub(crate) has_reasoning: bool,
}

/// A rule that an action does not meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) guardrail: String,
    pub(crate) message: String,
}

/// The result of an evaluation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
    pub(crate) evaluated: usize,
}

impl Guardrail {
    /// Parses a rule.
    ///
    /// # Errors
    /// `Invalid` with the reason.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let rule: Self = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("a guardrail is a JSON object: {error}")))?;
        if rule.id.is_empty() || rule.id.len() > ID_BYTES_MAX || rule.id.chars().any(char::is_control) {
            return Err(Error::invalid(format!(
                "a guardrail's id has 1 to {ID_BYTES_MAX} bytes and no control characters"
            )));
        }
        if rule.id == REQUIRE_DELIBERATION {
            return Err(Error::invalid(format!(
                "the guardrail {REQUIRE_DELIBERATION:?} is a switch: set requireDeliberation of the namespace"
            )));
        }
        rule.category.iter().try_for_each(|one| check_choice(one, "category", &CATEGORIES))?;
        rule.stakes.iter().try_for_each(|one| check_choice(one, "stakes", &STAKES))?;
        if rule.contains.iter().any(String::is_empty) {
            return Err(Error::invalid("a text of \"contains\" is empty: every decision contains it"));
        }
        rule.min_confidence.map(check_confidence).transpose()?;
        Ok(rule)
    }

    fn selects(&self, action: &Action<'_>) -> bool {
        let among = |list: &[String], value: Option<&str>| {
            list.is_empty() || value.is_some_and(|value| list.iter().any(|one| one == value))
        };
        let holds = |text: &str| {
            let text = text.to_lowercase();
            self.contains.iter().any(|part| text.contains(&part.to_lowercase()))
        };
        among(&self.category, action.category)
            && among(&self.stakes, action.stakes)
            && (self.contains.is_empty() || holds(action.text) || action.context.is_some_and(holds))
    }

    /// Why the action does not meet the rule.
    fn finding(&self, action: &Action<'_>) -> Option<Finding> {
        if !self.selects(action) {
            return None;
        }
        let mut reasons = Vec::new();
        if let Some(least) = self.min_confidence {
            match action.confidence {
                Some(confidence) if confidence >= least => {}
                Some(confidence) => reasons.push(format!("confidence {confidence} is below {least}")),
                None => reasons.push(format!("no confidence is given, and {least} is required")),
            }
        }
        if self.requires_deliberation && action.has_deliberation == Some(false) {
            reasons.push("there is no deliberation".to_owned());
        }
        let requires = self.min_confidence.is_some() || self.requires_deliberation;
        if requires && reasons.is_empty() {
            return None;
        }
        let about = self.description.clone().unwrap_or_else(|| "not allowed by this guardrail".to_owned());
        let message = if reasons.is_empty() { about } else { format!("{about}: {}", reasons.join("; ")) };
        Some(Finding { guardrail: self.id.clone(), message })
    }
}

/// Evaluates rules, and the switch that requires deliberations.
pub(crate) fn evaluate(
    rules: &[Guardrail],
    requires_all: bool,
    phase: Phase,
    action: &Action<'_>,
) -> Verdict {
    let mut verdict = Verdict::default();
    for rule in rules.iter().filter(|rule| rule.phase == Phase::Both || rule.phase == phase) {
        verdict.evaluated += 1;
        if let Some(finding) = rule.finding(action) {
            match rule.effect {
                Effect::Block => verdict.violations.push(finding),
                Effect::Warn => verdict.warnings.push(finding),
            }
        }
    }
    if requires_all && phase == Phase::Record {
        verdict.evaluated += 1;
        let finding = |message: &str| Finding {
            guardrail: REQUIRE_DELIBERATION.to_owned(),
            message: message.to_owned(),
        };
        match action.has_deliberation {
            Some(true) if !action.has_reasoning => {
                verdict.warnings.push(finding("the deliberation has no step of reasoning"));
            }
            Some(true) | None => {}
            Some(false) => verdict.violations.push(finding(
                "this namespace requires a deliberation: send one, or query, check or think before the decision",
            )),
        }
    }
    verdict
}
