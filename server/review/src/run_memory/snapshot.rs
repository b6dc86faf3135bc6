//! The stored form of a snapshot: agentfootprint 9.62.0's `SnapshotEntry`, with its keys in the same order.

use serde::Serialize;
use serde_json::value::RawValue;

/// Maximum UTF-16 units of a tool result's preview.
const PREVIEW_UNITS_MAX: usize = 200;
/// Maximum UTF-16 units of a call's arguments; longer ones are stored as `{"__truncated": text}`.
const ARGUMENTS_UNITS_MAX: usize = 2000;

/// The snapshot of a run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SnapshotJson {
    /// The question.
    pub(super) query: String,
    /// The last answer.
    pub(super) final_content: String,
    /// Number of model calls that were answered.
    pub(super) iterations: u64,
    /// The decisions as they were recorded, byte for byte.
    pub(super) decisions: Vec<Box<RawValue>>,
    pub(super) tool_calls: Vec<ToolCallJson>,
    /// Time from the first request to the end of the last answer. For a fork: the sum over the shared calls
    /// and its own calls.
    pub(super) duration_ms: u64,
    pub(super) token_usage: TokenUsageJson,
    /// The frames of the question, if the run asked for them. agentfootprint's snapshots have no such member.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) commit_log: Option<Vec<CommitJson>>,
}

/// A frame of the run in the commit log. The hashes prove the bytes of a run that is kept elsewhere.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommitJson {
    pub(super) frame: u32,
    /// The frame that caused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<u32>,
    pub(super) component: String,
    /// The call's name, or the path of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) started_at: u64,
    pub(super) duration_ms: u64,
    pub(super) failed: bool,
    pub(super) input: CommittedBodyJson,
    pub(super) output: CommittedBodyJson,
}

/// A body in the commit log.
#[derive(Debug, Serialize)]
pub(super) struct CommittedBodyJson {
    pub(super) bytes: usize,
    /// BLAKE3 of the recorded bytes, in hexadecimal.
    pub(super) blake3: String,
    /// The beginning; empty if the body is not text.
    pub(super) preview: String,
}

impl CommittedBodyJson {
    pub(super) fn new(body: &[u8]) -> Self {
        // A preview of a long body needs its first bytes alone.
        let head = body.get(..body.len().min(4 * PREVIEW_UNITS_MAX)).unwrap_or_default();
        let text = match std::str::from_utf8(head) {
            Ok(text) => text,
            // The cut may split a character.
            Err(error) if body.len() > head.len() && error.error_len().is_none() => {
                std::str::from_utf8(head.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
            }
            Err(_) => "",
        };
        Self { bytes: body.len(), blake3: blake3::hash(body).to_hex().to_string(), preview: preview(text) }
    }
}

/// A call of a tool.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ToolCallJson {
    pub(super) name: String,
    pub(super) args: Box<RawValue>,
    pub(super) result_preview: String,
    pub(super) errored: bool,
}

/// Tokens of all calls together.
#[derive(Debug, Default, Serialize)]
pub(super) struct TokenUsageJson {
    pub(super) input: u64,
    pub(super) output: u64,
}

/// A call's arguments as stored: unchanged if they are JSON and short.
pub(super) fn arguments(source: &str) -> Box<RawValue> {
    let source = if source.trim().is_empty() { "{}" } else { source };
    let kept = match truncate(source, ARGUMENTS_UNITS_MAX) {
        (beginning, true) => {
            format!("{{\"__truncated\":{}}}", serde_json::Value::from(beginning + "\u{2026}"))
        }
        (source, false) => source,
    };
    let whole = RawValue::from_string(kept);
    // Arguments that are not JSON are stored as a string.
    let as_text = || RawValue::from_string(serde_json::Value::from(source).to_string());
    whole.or_else(|_| as_text()).unwrap_or_default()
}

/// The beginning of a tool's result.
pub(super) fn preview(result: &str) -> String {
    match truncate(result, PREVIEW_UNITS_MAX) {
        (beginning, true) => beginning + "\u{2026}",
        (whole, false) => whole,
    }
}

/// The longest prefix of whole characters within a number of UTF-16 units, and whether text follows it.
fn truncate(text: &str, units_max: usize) -> (String, bool) {
    let mut units = 0;
    for (at, letter) in text.char_indices() {
        units += letter.len_utf16();
        if units > units_max {
            return (text.get(..at).unwrap_or_default().to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_kept_verbatim_unless_long_or_not_json() {
        for (source, kept) in [
            (r#"{ "id":4.20e1,"a":"\u00e9"}"#, r#"{ "id":4.20e1,"a":"\u00e9"}"#),
            ("", "{}"),
            ("[1]", "[1]"),
            ("SELECT 1", r#""SELECT 1""#),
            (r#"{"cut":"#, r#""{\"cut\":""#),
        ] {
            assert_eq!(arguments(source).get(), kept);
        }
        let long = |letters: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(letters));
        assert_eq!(arguments(&long(1992)).get(), long(1992));
        let cut = format!("{{\"__truncated\":{:?}}}", format!("{{\"a\":\"{}\u{2026}", "x".repeat(1994)));
        assert_eq!(arguments(&long(1993 + 8)).get(), cut);
        let deep = "[".repeat(900) + &"]".repeat(900);
        assert_eq!(arguments(&deep).get(), deep);
    }

    #[test]
    fn preview_is_cut_at_200_units_between_characters() {
        assert_eq!(preview(&"x".repeat(200)), "x".repeat(200));
        assert_eq!(preview(&"x".repeat(201)), "x".repeat(200) + "\u{2026}");
        let pairs = "\u{1f600}".repeat(101);
        assert_eq!(preview(&format!("x{pairs}")), format!("x{}\u{2026}", "\u{1f600}".repeat(99)));
    }
}
