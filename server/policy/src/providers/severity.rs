//! The severity of an exchange: built-in conditions, and user rules that raise it further.
//!
//! The built-in conditions flag a failed connection, an error status, an error within a stream, a cut stream,
//! a refusal, and a tool result that reports a failure. Status 429 is included although clients retry,
//! because nobody knows yet whether they will.
//!
//! Invariant: no rule lowers a severity. The greatest one wins; among equals the first rule, then the
//! built-in conditions.

use annals::Severity;
use regex::Regex;

use super::api::ApiShape;
use super::encoding::{DECODED_BYTES_MAX, DecodedBody, decode};
use super::json::JsonNode;
use super::summary::ExchangeSummary;
use super::text::{TEXT_BYTES_MAX, one_line};
use crate::body_path::{BodyPath, BodyPathStep};

/// Maximum number of characters of a provider's words in a reason.
const REASON_CHARS: usize = 160;

/// The facts that an exchange is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The summary of the exchange.
    pub summary: &'a ExchangeSummary,
    /// The name of the called mount.
    pub mount: &'a str,
    /// The request's path.
    pub path: &'a str,
    /// Why no complete answer came, if the connection failed or timed out.
    pub transport: Option<&'a str>,
    /// Milliseconds from the request to the answer's end.
    pub duration_ms: u64,
    /// The request's body.
    pub input: EncodedBody<'a>,
    /// The answer's body, or the part that arrived.
    pub output: EncodedBody<'a>,
}

/// A body as sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct EncodedBody<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its `Content-Encoding`.
    pub encoding: Option<&'a str>,
}

/// A severity and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeverityVerdict {
    /// The severity.
    pub severity: Severity,
    /// The reason, as a sentence without its full stop.
    pub reason: String,
    /// Whether it depends on the exchange's duration, and so may differ for the same exchange at another
    /// time.
    pub timed: bool,
}

/// Rules that raise the severity of exchanges. An empty set leaves only the built-in conditions.
#[derive(Debug, Clone, Default)]
pub struct SeverityRules {
    rules: Vec<SeverityRule>,
}

/// One rule: it holds if all its conditions do. Empty and absent conditions are ignored.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeverityRule {
    pub(crate) severity: Severity,
    pub(crate) why: String,
    pub(crate) status: Vec<StatusRange>,
    pub(crate) mount: Vec<NamePattern>,
    pub(crate) path: Vec<NamePattern>,
    pub(crate) provider: Vec<NamePattern>,
    pub(crate) api: Vec<NamePattern>,
    pub(crate) model: Vec<NamePattern>,
    pub(crate) finish_reason: Vec<NamePattern>,
    pub(crate) error_type: Vec<NamePattern>,
    pub(crate) tool: Vec<NamePattern>,
    /// At least one of these texts.
    pub(crate) contains: Vec<String>,
    pub(crate) matches: Option<Regex>,
    pub(crate) duration_over_ms: Option<u64>,
    pub(crate) refusal: Option<bool>,
    pub(crate) tool_errors: Option<bool>,
    pub(crate) cut_short: Option<bool>,
    pub(crate) broken: Option<bool>,
    /// Values at paths of the request, if it is JSON.
    pub(crate) input: Vec<(BodyPath, ExpectedScalar)>,
    /// Values at paths of the answer, if it is JSON.
    pub(crate) output: Vec<(BodyPath, ExpectedScalar)>,
}

/// A range of statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatusRange {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

/// A name, or a prefix (`gpt-4*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamePattern {
    head: String,
    whole: bool,
}

/// The expected value at a path of a body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExpectedScalar {
    Text(String),
    Whole(i64),
    Number(f64),
    Truth(bool),
}

impl SeverityRules {
    pub(crate) fn new(rules: Vec<SeverityRule>) -> Self {
        Self { rules }
    }

    /// The severity of an exchange and the reason; `None` if nothing stands out.
    #[must_use]
    pub fn judge(&self, evidence: &Evidence<'_>) -> Option<SeverityVerdict> {
        let bodies = EvidenceBodies::decode(&self.rules, evidence);
        let bodies = bodies.as_json();
        let mut greatest: Option<&SeverityRule> = None;
        for rule in &self.rules {
            let more = greatest.is_none_or(|greatest| rule.severity > greatest.severity);
            if more && rule.holds(evidence, &bodies) {
                greatest = Some(rule);
            }
        }
        let own = built_in(evidence).map(|reason| SeverityVerdict {
            severity: Severity::Flagged,
            reason,
            timed: false,
        });
        let raised = greatest.map(|rule| SeverityVerdict {
            severity: rule.severity,
            reason: rule.why.clone(),
            timed: rule.duration_over_ms.is_some(),
        });
        match (raised, own) {
            (Some(raised), Some(own)) if own.severity > raised.severity => Some(own),
            (raised, own) => raised.or(own),
        }
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

/// The bodies that rules search, decoded once for all rules, and only if a rule needs them.
struct EvidenceBodies<'a> {
    input: Option<DecodedBody<'a>>,
    output: Option<DecodedBody<'a>>,
    /// The beginning of an answer without a known text.
    opaque: Option<DecodedBody<'a>>,
}

/// The bodies as JSON, if they are JSON.
struct EvidenceJson<'a> {
    input: JsonNode<'a>,
    output: JsonNode<'a>,
    opaque: String,
}

impl<'a> EvidenceBodies<'a> {
    fn decode(rules: &[SeverityRule], evidence: &Evidence<'a>) -> Self {
        let whole = |body: EncodedBody<'a>| decode(body.encoding, body.bytes, DECODED_BYTES_MAX);
        let of_text = |rule: &SeverityRule| !rule.contains.is_empty() || rule.matches.is_some();
        let opaque = evidence.summary.shape == ApiShape::Opaque && rules.iter().any(of_text);
        let output = evidence.output;
        Self {
            input: rules.iter().any(|rule| !rule.input.is_empty()).then(|| whole(evidence.input)),
            output: rules.iter().any(|rule| !rule.output.is_empty()).then(|| whole(output)),
            opaque: opaque.then(|| decode(output.encoding, output.bytes, TEXT_BYTES_MAX)),
        }
    }

    fn as_json(&self) -> EvidenceJson<'_> {
        fn node<'a>(body: &'a Option<DecodedBody<'_>>) -> JsonNode<'a> {
            body.as_ref().and_then(|body| JsonNode::parse(&body.bytes).ok()).unwrap_or_default()
        }
        let head = self.opaque.as_ref().map(|body| body.bytes.get(..TEXT_BYTES_MAX).unwrap_or(&body.bytes));
        let opaque = head.map(|head| String::from_utf8_lossy(head).into_owned()).unwrap_or_default();
        EvidenceJson { input: node(&self.input), output: node(&self.output), opaque }
    }
}

impl SeverityRule {
    /// Number of conditions.
    pub(crate) fn conditions(&self) -> usize {
        let names = self.names().into_iter().filter(|names| !names.is_empty()).count();
        let truths = [self.refusal, self.tool_errors, self.cut_short, self.broken];
        names
            + usize::from(!self.status.is_empty())
            + usize::from(!self.contains.is_empty())
            + usize::from(self.matches.is_some())
            + usize::from(self.duration_over_ms.is_some())
            + truths.into_iter().flatten().count()
            + self.input.len()
            + self.output.len()
    }

    fn names(&self) -> [&Vec<NamePattern>; 8] {
        let Self { mount, path, provider, api, model, finish_reason, error_type, tool, .. } = self;
        [mount, path, provider, api, model, finish_reason, error_type, tool]
    }

    fn holds(&self, evidence: &Evidence<'_>, bodies: &EvidenceJson<'_>) -> bool {
        let summary = evidence.summary;
        let is = |wanted: Option<bool>, found: bool| wanted.is_none_or(|wanted| wanted == found);
        let models = [summary.model_answered.as_deref(), summary.model_requested.as_deref()];
        let error = summary.error.as_ref().and_then(|error| error.kind.as_deref());
        (self.status.is_empty() || self.status.iter().any(|status| status.hold(summary.status)))
            && any(&self.mount, [evidence.mount])
            && any(&self.path, [evidence.path])
            && any(&self.provider, [summary.provider])
            && any(&self.api, [summary.shape.name()])
            && any(&self.model, models.into_iter().flatten())
            && any(&self.finish_reason, summary.finish_reasons.iter().map(String::as_str))
            && any(&self.error_type, error)
            && any(&self.tool, summary.tool_calls.iter().map(|call| call.name.as_str()))
            && is(self.refusal, summary.refusal.is_some())
            && is(self.tool_errors, !summary.tool_errors.is_empty())
            && is(self.cut_short, summary.complete == Some(false))
            && is(self.broken, evidence.transport.is_some())
            && self.duration_over_ms.is_none_or(|ms| evidence.duration_ms > ms)
            && self.input.iter().all(|(place, wanted)| wanted.is(at(bodies.input, place)))
            && self.output.iter().all(|(place, wanted)| wanted.is(at(bodies.output, place)))
            && (self.contains.is_empty()
                || texts(summary, bodies).any(|text| self.contains.iter().any(|part| text.contains(part))))
            && self.matches.as_ref().is_none_or(|of| texts(summary, bodies).any(|text| of.is_match(text)))
    }
}

/// Whether a found name matches a wanted one; true if none is wanted.
fn any<'a>(wanted: &[NamePattern], found: impl IntoIterator<Item = &'a str>) -> bool {
    wanted.is_empty() || found.into_iter().any(|found| wanted.iter().any(|name| name.is(found)))
}

/// The texts of the answer.
fn texts<'a>(summary: &'a ExchangeSummary, bodies: &'a EvidenceJson<'_>) -> impl Iterator<Item = &'a str> {
    let error = summary.error.as_ref().and_then(|error| error.message.as_deref());
    let arguments = summary.tool_calls.iter().map(|call| call.arguments.head());
    let words = [Some(summary.text.head()), summary.refusal.as_deref(), error, Some(bodies.opaque.as_str())];
    words.into_iter().flatten().chain(arguments).filter(|text| !text.is_empty())
}

/// The value at a path; absent if there is none.
fn at<'a>(body: JsonNode<'a>, place: &BodyPath) -> JsonNode<'a> {
    place.steps().iter().fold(body, |node, step| match step {
        BodyPathStep::Member(name) => node.get(name),
        BodyPathStep::Element(number) => node.items().nodes.get(*number).copied().unwrap_or_default(),
    })
}

impl StatusRange {
    fn hold(self, status: u16) -> bool {
        (self.from..=self.to).contains(&status)
    }
}

impl NamePattern {
    /// A name; a final `*` makes it a prefix.
    pub(crate) fn parse(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(head) => Self { head: head.to_owned(), whole: false },
            None => Self { head: text.to_owned(), whole: true },
        }
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        if self.whole { name == self.head } else { name.starts_with(&self.head) }
    }
}

impl ExpectedScalar {
    fn is(&self, node: JsonNode<'_>) -> bool {
        match self {
            // A much longer source must be a different text.
            Self::Text(text) => {
                let may_be = node.is_string() && node.source().len() <= text.len() * 6 + 2;
                may_be && node.text().is_some_and(|found| found == text.as_str())
            }
            Self::Whole(number) => node
                .source()
                .parse::<i64>()
                .map_or_else(|_| same(node, *number as f64), |found| found == *number),
            Self::Number(number) => same(node, *number),
            Self::Truth(truth) => node.truth() == Some(*truth),
        }
    }
}

/// Whether a JSON number equals this one, in any spelling.
fn same(node: JsonNode<'_>, number: f64) -> bool {
    node.source().parse::<f64>().is_ok_and(|found| found == number)
}
