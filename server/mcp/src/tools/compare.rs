//! Two runs, frame by frame.

use annals_review::{BodyDifference, FramePair, align, frame_difference};
use serde_json::{Value, json};

use super::{CURSOR, Tool, cursor_place, named_run};
use crate::answer::{Page, field};
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// Differences of one body that are listed.
const LINES_MAX: usize = 12;

pub(super) const COMPARE_RUNS: Tool = Tool {
    name: "compare_runs",
    title: "Compare two runs",
    description: "Aligns the frames of two runs by what they say, and lists the frames that differ and how.",
    parameters: &[
        Parameter {
            name: "a",
            kind: ParameterKind::Text,
            is_required: true,
            description: "Name of the first run",
        },
        Parameter {
            name: "b",
            kind: ParameterKind::Text,
            is_required: true,
            description: "Name of the second run",
        },
        CURSOR,
    ],
    right: ToolRight::Read,
    run: compare_runs,
};

fn compare_runs(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let space = store.namespace()?;
    let (a, b) = (named_run(&space, arguments, "a")?, named_run(&space, arguments, "b")?);
    let pairs = align(&a, &b)?.pairs;
    let count = |wanted: fn(&FramePair) -> bool| pairs.iter().filter(|pair| wanted(pair)).count();
    let same = count(|pair| matches!(pair, FramePair::Same(..)));
    let same_in_other_bytes = count(|pair| matches!(pair, FramePair::Changed { says_same: true, .. }));
    let first = usize::try_from(cursor_place(arguments, 0)?).unwrap_or(usize::MAX);
    let (mut page, mut next) = (Page::default(), None);
    for (at, pair) in pairs.iter().enumerate().skip(first) {
        let item = match pair {
            FramePair::Same(..) | FramePair::Changed { says_same: true, .. } => continue,
            FramePair::Dropped(seq) => json!({ "only_in": "a", "seq": seq }),
            FramePair::Added(seq) => json!({ "only_in": "b", "seq": seq }),
            FramePair::Changed { a: in_a, b: in_b, .. } => {
                let found = frame_difference(&a.frame(*in_a)?, &b.frame(*in_b)?, store.redactor());
                json!({
                    "a": in_a, "b": in_b,
                    "request": body_item(&found.request), "answer": body_item(&found.answer),
                })
            }
        };
        if !page.push(item) {
            next = Some(at);
            break;
        }
    }
    let mut answer = json!({
        "a": field(&a.info().name), "b": field(&b.info().name), "same": same,
        "same_in_other_bytes": same_in_other_bytes, "differ": pairs.len() - same - same_in_other_bytes,
        "differences": page.into_items(),
    });
    if let Some(next) = next {
        answer["cursor"] = next.to_string().into();
    }
    Ok(answer)
}

fn body_item(body: &BodyDifference) -> Value {
    let span = |kind: &str, at: &annals_policy::providers::FirstDifference| json!({ "compared_by": kind, "at": at.at, "a": field(&at.was), "b": field(&at.is) });
    match body {
        BodyDifference::Same => Value::from("same"),
        BodyDifference::Hidden => Value::from("differs in what the profile does not show"),
        BodyDifference::Form(_) => Value::from("says the same in other bytes"),
        BodyDifference::Bytes(at) => span("bytes", at),
        BodyDifference::Words(all) => {
            let lines: Vec<_> = all.iter().take(LINES_MAX).map(|one| field(&one.to_string())).collect();
            json!({ "lines": lines, "more": all.len().saturating_sub(LINES_MAX) })
        }
    }
}
