//! A fork in the store: a run that shares the frames of another one.

use annals_proxy::Origin;
use annals_text::shell;
use serde_json::{Value, json};

use super::{RUN, Tool, named_run, runs::run_item};
use crate::answer::field;
use crate::arguments::{Arguments, Parameter, ParameterKind, ToolError};
use crate::store::{McpStore, ToolRight};

pub(super) const FORK_RUN: Tool = Tool {
    name: "fork_run",
    title: "Fork a run",
    description: "Makes a run in the store that shares the frames 1 to seq of another run. Starts no program: the answer has the command that continues the recorded program from there.",
    parameters: &[
        RUN,
        Parameter {
            name: "seq",
            kind: ParameterKind::Integer(1, u32::MAX as u64),
            is_required: true,
            description: "The last frame that the fork shares",
        },
        Parameter {
            name: "name",
            kind: ParameterKind::Text,
            is_required: false,
            description: "Name of the fork; default RUN-shared-SEQ",
        },
    ],
    right: ToolRight::Record,
    run: fork_run,
};

fn fork_run(store: &dyn McpStore, arguments: &Arguments) -> Result<Value, ToolError> {
    let reader = named_run(&store.namespace()?, arguments, "run")?;
    let parent = &reader.info().name;
    let seq = arguments.number("seq").and_then(|seq| u32::try_from(seq).ok()).unwrap_or(u32::MAX);
    let name = arguments.text("name").map_or_else(|| format!("{parent}-shared-{seq}"), str::to_owned);
    // Read before the store is changed: an unreadable parent has no fork.
    let has_program = Origin::from_reader(&reader)?.is_some();
    store.fork(&reader, seq, &name)?;
    let fork = store.namespace()?.run(&name)?;
    let mut answer = json!({
        "fork": run_item(&fork, store.redactor())?, "shares_frames": [1, seq], "program_was_run": false,
    });
    if has_program {
        let command = format!("{} fork {}", store.command_line(), shell::quote(&format!("{parent}@{seq}")));
        answer["to_continue"] = field(&command);
    } else {
        answer["why"] = "the run has no recorded program that could continue from here".into();
    }
    Ok(answer)
}
