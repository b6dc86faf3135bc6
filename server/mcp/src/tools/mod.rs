//! The tools: what each is called, takes and does.

mod blame;
mod compare;
mod decisions;
mod forks;
mod frames;
mod memory;
mod runs;

use annals::runs::{RunFilter, RunOrder};
use annals::{Namespace, RunReader};
use annals_blame::BLAME_TAG;
use serde_json::Value;

use crate::answer::clipped;
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

/// A tool.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) description: &'static str,
    pub(crate) parameters: &'static [Parameter],
    /// What its caller must be allowed to do.
    pub(crate) right: ToolRight,
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
    decisions::GET_DECISION,
    decisions::CHECK_GUARDRAILS,
    decisions::DELIBERATION_STATS,
    decisions::GET_REASON_STATS,
    decisions::LESSONS,
    memory::REMEMBER,
    decisions::RECORD_DECISION,
    decisions::RECORD_THOUGHT,
    decisions::REVIEW_OUTCOME,
    decisions::DIAGNOSE_SESSION,
    forks::FORK_RUN,
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
        Err(error) if error.kind() == annals::ErrorKind::NotFound && name == "last" => {
            let newest = newest_run(space, &RunFilter::default())?;
            newest.ok_or_else(|| ToolError("there is no run yet".to_owned()))
        }
        Err(error) if error.kind() == annals::ErrorKind::NotFound => {
            let name = clipped(name, 200);
            Err(ToolError(format!("there is no run {name:?}; search_runs lists the runs")))
        }
        found => Ok(found?),
    }
}

/// The newest run of a filter, forks of blames left out: nobody started them to see their result.
fn newest_run(space: &Namespace, filter: &RunFilter) -> Result<Option<RunReader>, ToolError> {
    let mut after = None;
    loop {
        let page = space.page_runs(filter, RunOrder::NewestFirst, after, 16)?;
        let is_fork = |reader: &RunReader| reader.info().tags.iter().any(|(key, _)| key == BLAME_TAG);
        if let Some(reader) = page.runs.into_iter().find(|reader| !is_fork(reader)) {
            return Ok(Some(reader));
        }
        after = page.next;
        if after.is_none() {
            return Ok(None);
        }
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
