//! The schema of the commands of the group `runs`.

use super::CommandSchema;

const READ: &[&str] = &["readonly", "apart"];
const REDACTS: &[&str] = &["readonly", "apart", "redacts"];
const WRITE: &[&str] = &["write", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "run.begin",
        arity: -1,
        flags: WRITE,
        keys: (0, 0, 0),
        group: "runs",
        since: super::ANNALS,
        summary: "Begins a run and returns its name and uid. Without NAME, the daemon chooses the name. Repeat TAG for each tag.",
        arguments: "[NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] [STARTED nanoseconds] [TAG key value ...]",
    },
    CommandSchema {
        name: "run.end",
        arity: -2,
        flags: &["write", "settled"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Ends a run that was begun here; the default status is ok. Its frames and its exchanges through the proxy must have ended before.",
        arguments: "run [ok|failed|abandoned]",
    },
    CommandSchema {
        name: "run.get",
        arity: 2,
        flags: REDACTS,
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns the properties of a run.",
        arguments: "run",
    },
    CommandSchema {
        name: "run.list",
        arity: -1,
        flags: REDACTS,
        keys: (0, 0, 0),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns a cursor and runs, oldest first. Pass the cursor to continue; it is 0 at the end.",
        arguments: "[STATUS open|ok|failed|abandoned] [COUNT count] [FROM cursor]",
    },
    CommandSchema {
        name: "run.fork",
        arity: -2,
        flags: WRITE,
        keys: (0, 0, 0),
        group: "runs",
        since: super::ANNALS,
        summary: "Begins a run that shares another run's frames up to this one. With EDIT, this frame is excluded, so that it can be recorded anew. Returns its name and uid.",
        arguments: "run@seq [EDIT] [NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] [STARTED nanoseconds] [TAG key value ...]",
    },
    CommandSchema {
        name: "run.verify",
        arity: 2,
        flags: &["readonly", "whole"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Reads every frame of a run and verifies its hashes and links. An error DAMAGED at the first mismatch.",
        arguments: "run",
    },
    CommandSchema {
        name: "run.tail",
        arity: -2,
        flags: &["readonly", "apart", "blocking", "redacts"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns ended frames of a run, from FROM on. If there are none: an empty array if the run has ended, else nil, after waiting if BLOCK is given (0: no limit).",
        arguments: "run [FROM seq] [COUNT count] [BLOCK milliseconds]",
    },
    CommandSchema {
        name: "run.replay",
        arity: -3,
        flags: READ,
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns the recorded answer to a request: that of the first call with this name (default `llm`) and the same bytes that was not yet served to this connection. An error DIVERGED names the step and the difference; FAILED has the recorded error of a failed call.",
        arguments: "run request [NAME name] [RESTART]",
    },
];
