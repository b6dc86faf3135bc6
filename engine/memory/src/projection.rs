//! The four projections of a recalled snapshot for a model. They equal agentfootprint 9.62.0's output byte
//! for byte, by its sources and by the sample in `engine/memory/tests/data/`.

use super::js::{Js, push};

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
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// The query as the header shows it.
fn query_of(snapshot: &Js) -> Vec<u16> {
    let mut query = Vec::new();
    put(snapshot.get("query"), &mut query);
    if query.len() > QUERY_UNITS_MAX {
        query.truncate(QUERY_UNITS_MAX - 1);
        push(&mut query, "\u{2026}");
    }
    query
}

/// [`header_query`] of a snapshot's JSON, as UTF-8.
pub(super) fn query_told(snapshot: &str) -> Option<String> {
    Js::parse(snapshot).ok().map(|snapshot| String::from_utf16_lossy(&query_of(&snapshot)))
}

/// Renders a snapshot that was found with this score, header first. `None` if the snapshot is not JSON.
///
/// A lone surrogate, which UTF-8 cannot encode, becomes U+FFFD.
#[must_use]
pub fn render(snapshot: &str, projection: Projection, score: f32) -> Option<String> {
    let snapshot = Js::parse(snapshot).ok()?;
    let mut out = Vec::new();
    push(&mut out, HEADER);
    out.extend(query_of(&snapshot));
    push(&mut out, HEADER_SCORE);
    push(&mut out, &two_digits(f64::from(score)));
    push(&mut out, "]\n");
    let decisions = snapshot.get("decisions").map_or(&[][..], Js::items);
    let tools = snapshot.get("toolCalls").map_or(&[][..], Js::items);
    match projection {
        Projection::Decisions if decisions.is_empty() && tools.is_empty() => {
            push(&mut out, "(no decision evidence captured)\n");
            answer(&snapshot, &mut out);
        }
        Projection::Decisions => {
            lines(decisions, &mut out, decision);
            if !tools.is_empty() {
                push(&mut out, "\nTool evidence:\n");
                lines(tools, &mut out, tool);
            }
            push(&mut out, "\n");
            answer(&snapshot, &mut out);
        }
        Projection::Commits if decisions.is_empty() => {
            push(&mut out, "(no commit log captured)\n");
            answer(&snapshot, &mut out);
        }
        Projection::Commits => lines(decisions, &mut out, |decision, out| {
            put(decision.get("stageId"), out);
            push(out, ": chose \"");
            put(decision.get("chosen"), out);
            push(out, "\"");
        }),
        Projection::Narrative => match snapshot.get("narrative") {
            None | Some(Js::Null) => {
                push(&mut out, "(no narrative captured)\n");
                answer(&snapshot, &mut out);
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

fn answer(snapshot: &Js, out: &mut Vec<u16>) {
    push(out, "Final answer: ");
    put(snapshot.get("finalContent"), out);
}

fn lines(items: &[Js], out: &mut Vec<u16>, each: impl Fn(&Js, &mut Vec<u16>)) {
    for (number, item) in items.iter().enumerate() {
        if number > 0 {
            push(out, "\n");
        }
        each(item, out);
    }
}

fn decision(decision: &Js, out: &mut Vec<u16>) {
    push(out, "- ");
    put(decision.get("stageId"), out);
    push(out, " \u{2192} \"");
    put(decision.get("chosen"), out);
    push(out, "\"");
    if let Some(rule) = decision.get("rule").filter(|rule| rule.is_truthy()) {
        push(out, " (rule: ");
        rule.put_text(out);
        push(out, ")");
    }
    if let Some(evidence) = decision.get("evidence").filter(|evidence| evidence.is_truthy()) {
        push(out, "; evidence: ");
        evidence.put_json(out);
    }
}

fn tool(call: &Js, out: &mut Vec<u16>) {
    push(out, "- ");
    put(call.get("name"), out);
    push(out, "(");
    match call.get("args") {
        Some(args) => args.put_json(out),
        None => push(out, "undefined"),
    }
    push(out, ") \u{2192} ");
    put(call.get("resultPreview"), out);
    if call.get("errored").is_some_and(Js::is_truthy) {
        push(out, " [ERROR]");
    }
}

/// Appends a member as a JavaScript template string would.
fn put(member: Option<&Js>, out: &mut Vec<u16>) {
    match member {
        Some(member) => member.put_text(out),
        None => push(out, "undefined"),
    }
}

/// JavaScript's `Number.prototype.toFixed(2)`: ties round away from zero, while Rust rounds them to even.
fn two_digits(number: f64) -> String {
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
    fn scores_are_rounded_as_javascript_rounds_them() {
        let numbers = [0.125, 0.375, 1.005, -0.125, 0.995, 0.625, -0.0, 1.0, 0.999_999];
        let texts = ["0.13", "0.38", "1.00", "-0.13", "0.99", "0.63", "0.00", "1.00", "1.00"];
        for (number, text) in numbers.into_iter().zip(texts) {
            assert_eq!(two_digits(number), text, "{number}");
        }
    }

    #[test]
    fn a_query_is_cut_by_code_units_and_what_is_missing_is_said_as_javascript_says_it() {
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
