//! The four projections of a recalled snapshot for a model. They equal agentfootprint 9.62.0's output byte
//! for byte, by its sources and by the sample in `engine/memory/tests/data/`.

use super::js_value::{JsValue, push_text};

/// Maximum UTF-16 units of a query in a header; a longer query is cut to 79 units and an ellipsis.
const QUERY_UNITS_MAX: usize = 80;

/// The start of every rendered text, and the text after the query in its first line.
pub(super) const HEADER: &str = "[Past run \u{b7} query: \"";
pub(super) const HEADER_SCORE: &str = "\" \u{b7} score: ";

/// Maximum UTF-16 units of an indented snapshot; a longer one is given without indentation.
const FULL_UNITS_MAX: usize = 16 << 20;

/// The part of a snapshot that a model gets.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Projection {
    /// The decisions with rule and evidence, the tool results and the answer.
    #[default]
    Decisions,
    /// The choice of each stage.
    Commits,
    /// The narrative of the run.
    Narrative,
    /// The whole snapshot.
    Full,
}

impl Projection {
    /// All projections.
    pub const ALL: [Self; 4] = [Self::Decisions, Self::Commits, Self::Narrative, Self::Full];

    /// The name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Commits => "commits",
            Self::Narrative => "narrative",
            Self::Full => "full",
        }
    }

    /// The projection with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// The query as the header shows it.
fn header_query(snapshot: &JsValue) -> Vec<u16> {
    let mut query = Vec::new();
    push_member(snapshot.get("query"), &mut query);
    if query.len() > QUERY_UNITS_MAX {
        query.truncate(QUERY_UNITS_MAX - 1);
        push_text(&mut query, "\u{2026}");
    }
    query
}

/// [`header_query`] of a snapshot's JSON, as UTF-8.
pub(super) fn rendered_query(snapshot: &str) -> Option<String> {
    JsValue::parse(snapshot).ok().map(|snapshot| String::from_utf16_lossy(&header_query(&snapshot)))
}

/// Renders a snapshot that was found with this score, header first. `None` if the snapshot is not JSON.
///
/// A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.
#[must_use]
pub fn render(snapshot: &str, projection: Projection, score: f32) -> Option<String> {
    let snapshot = JsValue::parse(snapshot).ok()?;
    let mut out = Vec::new();
    push_text(&mut out, HEADER);
    out.extend(header_query(&snapshot));
    push_text(&mut out, HEADER_SCORE);
    push_text(&mut out, &to_fixed_2(f64::from(score)));
    push_text(&mut out, "]\n");
    let decisions = snapshot.get("decisions").map_or(&[][..], JsValue::items);
    let tools = snapshot.get("toolCalls").map_or(&[][..], JsValue::items);
    let commits = snapshot.get("commitLog").map_or(&[][..], JsValue::items);
    match projection {
        Projection::Decisions if decisions.is_empty() && tools.is_empty() => {
            push_text(&mut out, "(no decision evidence captured)\n");
            push_answer(&snapshot, &mut out);
        }
        Projection::Decisions => {
            push_lines(decisions, &mut out, push_decision);
            if !tools.is_empty() {
                push_text(&mut out, "\nTool evidence:\n");
                push_lines(tools, &mut out, push_tool_call);
            }
            push_text(&mut out, "\n");
            push_answer(&snapshot, &mut out);
        }
        Projection::Commits if !commits.is_empty() => push_lines(commits, &mut out, push_commit),
        Projection::Commits if decisions.is_empty() => {
            push_text(&mut out, "(no commit log captured)\n");
            push_answer(&snapshot, &mut out);
        }
        Projection::Commits => push_lines(decisions, &mut out, |decision, out| {
            push_member(decision.get("stageId"), out);
            push_text(out, ": chose \"");
            push_member(decision.get("chosen"), out);
            push_text(out, "\"");
        }),
        Projection::Narrative => match snapshot.get("narrative") {
            None | Some(JsValue::Null) => {
                push_text(&mut out, "(no narrative captured)\n");
                push_answer(&snapshot, &mut out);
            }
            Some(narrative) => narrative.put_text(&mut out),
        },
        Projection::Full => {
            if !snapshot.put_indented(2, FULL_UNITS_MAX, &mut out) {
                snapshot.put_json(&mut out);
            }
        }
    }
    Some(String::from_utf16_lossy(&out))
}

fn push_answer(snapshot: &JsValue, out: &mut Vec<u16>) {
    push_text(out, "Final answer: ");
    push_member(snapshot.get("finalContent"), out);
}

fn push_lines(items: &[JsValue], out: &mut Vec<u16>, each: impl Fn(&JsValue, &mut Vec<u16>)) {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            push_text(out, "\n");
        }
        each(item, out);
    }
}

/// A frame of the run: `#3 tool getUser, 12 ms: {"id":42} → {"name":"Ana"}`. agentfootprint 9.62 has no such
/// member, so the form is our own.
fn push_commit(commit: &JsValue, out: &mut Vec<u16>) {
    push_text(out, "#");
    push_member(commit.get("frame"), out);
    push_text(out, " ");
    push_member(commit.get("component"), out);
    if let Some(name) = commit.get("name") {
        push_text(out, " ");
        name.put_text(out);
    }
    push_text(out, ", ");
    push_member(commit.get("durationMs"), out);
    push_text(out, " ms: ");
    push_member(commit.get("input").and_then(|body| body.get("preview")), out);
    push_text(out, " \u{2192} ");
    if matches!(commit.get("failed"), Some(JsValue::Bool(true))) {
        push_text(out, "failed ");
    }
    push_member(commit.get("output").and_then(|body| body.get("preview")), out);
}

fn push_decision(decision: &JsValue, out: &mut Vec<u16>) {
    push_text(out, "- ");
    push_member(decision.get("stageId"), out);
    push_text(out, " \u{2192} \"");
    push_member(decision.get("chosen"), out);
    push_text(out, "\"");
    if let Some(rule) = decision.get("rule").filter(|rule| rule.is_truthy()) {
        push_text(out, " (rule: ");
        rule.put_text(out);
        push_text(out, ")");
    }
    if let Some(evidence) = decision.get("evidence").filter(|evidence| evidence.is_truthy()) {
        push_text(out, "; evidence: ");
        evidence.put_json(out);
    }
}

fn push_tool_call(call: &JsValue, out: &mut Vec<u16>) {
    push_text(out, "- ");
    push_member(call.get("name"), out);
    push_text(out, "(");
    match call.get("args") {
        Some(args) => args.put_json(out),
        None => push_text(out, "undefined"),
    }
    push_text(out, ") \u{2192} ");
    push_member(call.get("resultPreview"), out);
    if call.get("errored").is_some_and(JsValue::is_truthy) {
        push_text(out, " [ERROR]");
    }
}

/// Appends a member as a JavaScript template string would.
fn push_member(member: Option<&JsValue>, out: &mut Vec<u16>) {
    match member {
        Some(member) => member.put_text(out),
        None => push_text(out, "undefined"),
    }
}

/// JavaScript's `Number.prototype.toFixed(2)`: ties round away from zero, while Rust rounds them to even.
fn to_fixed_2(number: f64) -> String {
    let eighths = number.abs() * 8.0;
    // Only an odd number of eighths lies exactly between two hundredths.
    let text = match eighths.fract() == 0.0 && eighths % 2.0 == 1.0 {
        true => format!("{:.2}", (number.abs() * 100.0).ceil() / 100.0),
        false => format!("{:.2}", number.abs()),
    };
    if number < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_rounds_as_javascript_to_fixed() {
        let numbers = [0.125, 0.375, 1.005, -0.125, 0.995, 0.625, -0.0, 1.0, 0.999_999];
        let texts = ["0.13", "0.38", "1.00", "-0.13", "0.99", "0.63", "0.00", "1.00", "1.00"];
        for (number, text) in numbers.into_iter().zip(texts) {
            assert_eq!(to_fixed_2(number), text, "{number}");
        }
    }

    #[test]
    fn render_cuts_query_by_utf16_and_names_missing_members() {
        let long = |query: &str| {
            format!("{{\"query\":{query:?},\"finalContent\":\"f\",\"decisions\":[],\"toolCalls\":[]}}")
        };
        let head = |query: &str| render(&long(query), Projection::Commits, 0.5).unwrap();
        let eighty = "\u{e9}".repeat(80);
        assert!(
            head(&eighty).starts_with(&format!("[Past run \u{b7} query: \"{eighty}\" \u{b7} score: 0.50]\n"))
        );
        // Forty pairs are 80 units; with one more, the 79th unit is half a pair.
        let pairs = "\u{1f600}".repeat(41);
        let cut = format!("query: \"{}\u{fffd}\u{2026}\"", "\u{1f600}".repeat(39));
        assert!(head(&pairs).contains(&cut), "{}", head(&pairs));
        let odd = r#"{"query":"q","finalContent":null,"decisions":[{"chosen":1e21,"rule":0,"evidence":{}}],"toolCalls":[{"name":"t","errored":1}]}"#;
        assert_eq!(
            render(odd, Projection::Decisions, 1.0).unwrap(),
            "[Past run \u{b7} query: \"q\" \u{b7} score: 1.00]\n- undefined \u{2192} \"1e+21\"; evidence: {}\nTool evidence:\n- t(undefined) \u{2192} undefined [ERROR]\nFinal answer: null"
        );
        let tools = r#"{"query":"q","finalContent":"f","toolCalls":[{"name":"t","args":[],"resultPreview":"p","errored":false}]}"#;
        assert!(
            render(tools, Projection::Decisions, 1.0)
                .unwrap()
                .contains("]\n\nTool evidence:\n- t([]) \u{2192} p\nFinal")
        );
        assert_eq!(render("{", Projection::Full, 1.0), None);
    }
}
