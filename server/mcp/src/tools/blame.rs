//! The blame of a failed run: what was measured by running the program again.

use annals::{Namespace, RunReader};
use annals_blame::document::BlameDocument;
use annals_blame::ranking::{StepRow, base_rate, rows};
use annals_blame::{BlameState, load_blame};
use annals_policy::profiles::Redactor;
use serde_json::{Value, json};

use crate::answer::field;

/// Steps of a blame that are shown.
const STEPS_MAX: usize = 5;

/// The blame of a run; `None` if nobody has run one.
pub(super) fn blame_item(space: &Namespace, reader: &RunReader, by: Option<&Redactor>) -> Option<Value> {
    match load_blame(space, &reader.info().name) {
        Ok(found) => found.map(|document| item(&document, by)),
        // The rest of the explanation is still true.
        Err(error) => Some(json!({ "unreadable": field(&error.to_string()) })),
    }
}

fn item(document: &BlameDocument, by: Option<&Redactor>) -> Value {
    let rows = rows(document);
    let oracle = &document.settings.oracle;
    let oracle = by.map_or_else(|| oracle.clone(), |by| by.text(oracle));
    let state = match document.state {
        BlameState::Running => "running, or its process was killed",
        BlameState::Interrupted => "interrupted",
        BlameState::OutOfBudget => "stopped at its budget",
        BlameState::Done => "done",
    };
    json!({
        "how": "Measured: the program ran again from each step with that step's answer changed. flip_rate is the share of those forks in which the outcome changed.",
        "state": state,
        "oracle": field(&oracle),
        "forks": document.spent.forks,
        "base_rate": base_rate(document).used,
        "steps": rows.iter().take(STEPS_MAX).map(step_item).collect::<Vec<_>>(),
        "steps_more": rows.len().saturating_sub(STEPS_MAX),
    })
}

fn step_item(row: &StepRow) -> Value {
    let mut item = json!({
        "seq": row.step, "flip_rate": row.flip_rate, "interval": [row.interval.low, row.interval.high],
        "label": row.label, "q_value": row.q_value, "flips": row.flips, "valid_forks": row.valid,
        "ungraded_forks": row.undefined, "trustworthy": row.trustworthy,
    });
    if let Some(role) = row.role {
        item["role"] = json!(role);
    }
    if let Some(skipped) = &row.skipped {
        item["not_perturbed"] = field(skipped);
    }
    item
}
