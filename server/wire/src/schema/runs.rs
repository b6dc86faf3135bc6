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
        summary: "Begins a run, by a name of its own where none is given, and returns its name and uid. Each tag has a TAG of its own.",
        arguments: "[NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] [STARTED nanoseconds] [TAG key value ...]",
    },
    CommandSchema {
        name: "run.end",
        arity: -2,
        flags: &["write", "settled"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Ends a run that was begun here, as ok where no status is given. Its frames, and exchanges that go through the proxy, have to be ended before.",
        arguments: "run [ok|failed|abandoned]",
    },
    CommandSchema {
        name: "run.get",
        arity: 2,
        flags: REDACTS,
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns what is known of a run.",
        arguments: "run",
    },
    CommandSchema {
        name: "run.list",
        arity: -1,
        flags: REDACTS,
        keys: (0, 0, 0),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns a cursor and runs, the oldest first. The cursor is for going on after them, and 0 where there are no more.",
        arguments: "[STATUS open|ok|failed|abandoned] [COUNT count] [FROM cursor]",
    },
    CommandSchema {
        name: "run.fork",
        arity: -2,
        flags: WRITE,
        keys: (0, 0, 0),
        group: "runs",
        since: super::ANNALS,
        summary: "Begins a run that shares another one's frames up to this one, which with EDIT is left out, to be recorded otherwise. Returns its name and uid.",
        arguments: "run@seq [EDIT] [NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] [STARTED nanoseconds] [TAG key value ...]",
    },
    CommandSchema {
        name: "run.verify",
        arity: 2,
        flags: &["readonly", "whole"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Reads every frame of a run and compares its hashes and links. An error DAMAGED at the first that is not what was recorded.",
        arguments: "run",
    },
    CommandSchema {
        name: "run.tail",
        arity: -2,
        flags: &["readonly", "apart", "blocking", "redacts"],
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns frames of a run from one on, which have ended. Where there are none: an empty array if the run has ended, else nil, after waiting where BLOCK is given (0: without end).",
        arguments: "run [FROM seq] [COUNT count] [BLOCK milliseconds]",
    },
    CommandSchema {
        name: "run.replay",
        arity: -3,
        flags: READ,
        keys: (1, 1, 1),
        group: "runs",
        since: super::ANNALS,
        summary: "Returns the recorded answer to a request: that of the first call of this name (else `llm`) with the same bytes that was not served to this connection yet. An error DIVERGED names the step and what differs, FAILED is what a call that failed said.",
        arguments: "run request [NAME name] [RESTART]",
    },
];
