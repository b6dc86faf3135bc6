//! The tools: what each is called, takes and does.

mod compare;
mod decisions;
mod frames;
mod memory;
mod runs;

use annals::{Namespace, RunReader};
use serde_json::Value;

use crate::answer::clipped;
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::McpStore;

/// A tool.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// Whether it changes the store.
    pub(crate) writes: bool,
    pub(crate) run: fn(&dyn McpStore, &Arguments) -> Result<Value, ToolError>,
}

/// All tools.
pub(crate) const TOOLS: &[Tool] = &[
    runs::SEARCH_RUNS,
    runs::LAST_FAILED_RUN,
    runs::GET_RUN,
    frames::GET_FRAME,
    runs::EXPLAIN_FAILURE,
    compare::COMPARE_RUNS,
    memory::RECALL,
    decisions::QUERY_DECISIONS,
    decisions::DELIBERATION_STATS,
    decisions::LESSONS,
    memory::REMEMBER,
    decisions::RECORD_DECISION,
    decisions::RECORD_THOUGHT,
    decisions::REVIEW_OUTCOME,
    decisions::DIAGNOSE_SESSION,
];

const RUN: Parameter = Parameter {
    name: "run",
    kind: ParameterKind::Text,
    is_required: true,
    description: "Name of the run, as search_runs gives it; \"last\" is the newest run",
};
const CURSOR: Parameter = Parameter {
    name: "cursor",
    kind: ParameterKind::Text,
    is_required: false,
    description: "The cursor of the answer before, to go on where it ended",
};

/// The run that an argument names.
fn named_run(space: &Namespace, arguments: &Arguments, name: &str) -> Result<RunReader, ToolError> {
    let name = arguments.text(name).unwrap_or_default();
    match space.run(name) {
        Err(error) if error.kind() == annals::ErrorKind::NotFound && name == "last" => Ok(space.last_run()?),
        Err(error) if error.kind() == annals::ErrorKind::NotFound => {
            let name = clipped(name, 200);
            Err(ToolError(format!("there is no run {name:?}; search_runs lists the runs")))
        }
        found => Ok(found?),
    }
}

/// The place that a cursor names; `first` without one.
fn cursor_place(arguments: &Arguments, first: u64) -> Result<u64, ToolError> {
    match arguments.text("cursor") {
        None => Ok(first),
        Some(cursor) => {
            cursor.parse().map_err(|_| ToolError("the cursor is not one that this tool gave".to_owned()))
        }
    }
}
