//! How much an exchange matters, told by itself: rules of the user's in TOML, then those built in. The first
//! rule that holds decides, so that a user's rule may also lower what would be flagged.
//!
//! Built in: a connection that failed, an error status (429 only where nothing came after it, since clients try
//! again), an error within a stream, a stream that was cut, a refusal, and a tool result that tells of a
//! failure are flagged.

use annals::Severity;
use serde::{Deserialize, Deserializer, de};

use super::summary::Summary;
use super::text::one_line;

/// The most rules of one table.
const RULES_MAX: usize = 1000;
/// Characters of a provider's words in a reason.
const REASON_CHARS: usize = 160;

/// What an exchange is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// What is known about the exchange.
    pub summary: &'a Summary,
    /// Why no whole answer came, if the connection failed or timed out.
    pub transport: Option<&'a str>,
    /// Whether it is the last exchange of its run, as far as is known.
    pub last: bool,
}

/// A severity and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// How much it matters.
    pub severity: Severity,
    /// Why, as a sentence without its full stop.
    pub reason: String,
}

/// Rules in their order.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One rule: it holds where each of its conditions does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(deserialize_with = "severity")]
    severity: Severity,
    reason: Option<String>,
    #[serde(default)]
    status: Vec<Status>,
    finish_reason: Option<String>,
    error_type: Option<String>,
    contains: Option<String>,
    tool: Option<String>,
    tool_failed: Option<bool>,
    refused: Option<bool>,
    cut_short: Option<bool>,
    transport_failed: Option<bool>,
    last: Option<bool>,
}

/// A status (`429`), or a class of them (`"5xx"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    from: u16,
    to: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default, rename = "rule")]
    rules: Vec<Rule>,
}

/// Rules that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rules {0}")]
pub struct RulesError(String);

impl Rules {
    /// Reads rules: a `[[rule]]` for each, with `severity` (debug, normal, flagged, escalated), an optional
    /// `reason`, and conditions, of which at least one is needed and all must hold: `status` (a list of `429`
    /// or `"5xx"`), `finish_reason`, `error_type`, `contains` (a text in the answer's first 64 KiB or in a tool
    /// call's arguments), `tool` (the name of a tool that the answer calls), `tool_failed`, `refused`,
    /// `cut_short`, `transport_failed`, `last`.
    ///
    /// # Errors
    /// Says what is wrong and where: no TOML, an unknown key or severity, a rule without conditions, too many
    /// rules.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let table: Table =
            toml::from_str(text).map_err(|error| RulesError(format!("cannot be read: {error}")))?;
        if table.rules.len() > RULES_MAX {
            return Err(RulesError(format!("are more than {RULES_MAX}")));
        }
        match table.rules.iter().position(|rule| rule.conditions() == 0) {
            Some(at) => Err(RulesError(format!("have one, number {}, without a condition", at + 1))),
            None => Ok(Self { rules: table.rules }),
        }
    }

    /// The severity of an exchange and the reason; none where nothing stands out.
    #[must_use]
    pub fn judge(&self, evidence: &Evidence<'_>) -> Option<Verdict> {
        for (at, rule) in self.rules.iter().enumerate() {
            if rule.holds(evidence) {
                let reason = rule.reason.clone().unwrap_or_else(|| format!("rule {} holds", at + 1));
                return Some(Verdict { severity: rule.severity, reason });
            }
        }
        built_in(evidence).map(|reason| Verdict { severity: Severity::Flagged, reason })
    }
}

fn built_in(evidence: &Evidence<'_>) -> Option<String> {
    let summary = evidence.summary;
    if let Some(why) = evidence.transport {
        return Some(format!("the connection failed: {}", one_line(why, REASON_CHARS)));
    }
    let words = summary.error.as_ref().map(|error| {
        let words = [error.kind.as_deref(), error.message.as_deref()];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        one_line(&words.join(": "), REASON_CHARS)
    });
    if summary.status >= 400 {
        if summary.status == 429 && !evidence.last {
            return None;
        }
        let words = words.map(|words| format!(": {words}")).unwrap_or_default();
        return Some(format!("the provider answered {}{words}", summary.status));
    }
    if let Some(words) = words {
        return Some(format!("the answer is an error: {words}"));
    }
    if let Some(refusal) = &summary.refusal {
        return Some(format!("the model refused: {}", one_line(refusal, REASON_CHARS)));
    }
    if summary.complete == Some(false) {
        return Some("the answer's stream ended before its end".to_owned());
    }
    let failed = summary.tool_errors.first()?;
    Some(format!("a tool failed: {}", one_line(failed, REASON_CHARS)))
}

impl Rule {
    fn conditions(&self) -> usize {
        let texts = [&self.finish_reason, &self.error_type, &self.contains, &self.tool];
        let truths = [self.tool_failed, self.refused, self.cut_short, self.transport_failed, self.last];
        usize::from(!self.status.is_empty())
            + texts.into_iter().flatten().count()
            + truths.into_iter().flatten().count()
    }

    fn holds(&self, evidence: &Evidence<'_>) -> bool {
        let summary = evidence.summary;
        let is = |wanted: Option<bool>, found: bool| wanted.is_none_or(|wanted| wanted == found);
        let named =
            |wanted: &Option<String>, holds: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(holds);
        (self.status.is_empty() || self.status.iter().any(|status| status.holds(summary.status)))
            && named(&self.finish_reason, &|wanted| {
                summary.finish_reasons.iter().any(|reason| reason == wanted)
            })
            && named(&self.error_type, &|wanted| {
                summary.error.as_ref().and_then(|error| error.kind.as_deref()) == Some(wanted)
            })
            && named(&self.contains, &|wanted| {
                let arguments = summary.tool_calls.iter().map(|call| call.arguments.head());
                [summary.text.head()].into_iter().chain(arguments).any(|text| text.contains(wanted))
            })
            && named(&self.tool, &|wanted| summary.tool_calls.iter().any(|call| call.name == wanted))
            && is(self.tool_failed, !summary.tool_errors.is_empty())
            && is(self.refused, summary.refusal.is_some())
            && is(self.cut_short, summary.complete == Some(false))
            && is(self.transport_failed, evidence.transport.is_some())
            && is(self.last, evidence.last)
    }
}

impl Status {
    fn holds(self, status: u16) -> bool {
        (self.from..=self.to).contains(&status)
    }
}

impl<'de> Deserialize<'de> for Status {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u16),
            Class(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(status) => Ok(Self { from: status, to: status }),
            Written::Class(class) => {
                let hundreds = class.strip_suffix("xx").and_then(|digit| digit.parse::<u16>().ok());
                let from = hundreds.filter(|digit| (1..=5).contains(digit)).map(|digit| digit * 100);
                let from =
                    from.ok_or_else(|| de::Error::custom(format!("{class:?} is no class of statuses")))?;
                Ok(Self { from, to: from + 99 })
            }
        }
    }
}

fn severity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Severity, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}
