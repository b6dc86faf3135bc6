//! The schema of the commands of the group `frames`.

use super::CommandSchema;

const WRITE: &[&str] = &["write"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "frame.add",
        arity: -5,
        flags: WRITE,
        keys: (1, 1, 1),
        group: "frames",
        since: super::ANNALS,
        summary: "Adds a frame to a run and returns its number. Components are user, llm, tool, planner, merge, nondet or a name of your own.",
        arguments: "run component request response [METADATA json] [PARENT seq] [SEVERITY severity] [ERROR] [STARTED nanoseconds] [DURATION nanoseconds]",
    },
    CommandSchema {
        name: "frame.begin",
        arity: -4,
        flags: WRITE,
        keys: (1, 1, 1),
        group: "frames",
        since: super::ANNALS,
        summary: "Begins a frame whose response is still to come, and returns its number.",
        arguments: "run component request [METADATA json] [PARENT seq] [SEVERITY severity] [STARTED nanoseconds]",
    },
    CommandSchema {
        name: "frame.append",
        arity: 4,
        flags: WRITE,
        keys: (1, 1, 1),
        group: "frames",
        since: super::ANNALS,
        summary: "Appends to the response of a frame that FRAME.BEGIN began, and returns its length. Appended bytes are kept even if the frame is never ended.",
        arguments: "run seq bytes",
    },
    CommandSchema {
        name: "frame.end",
        arity: -3,
        flags: WRITE,
        keys: (1, 1, 1),
        group: "frames",
        since: super::ANNALS,
        summary: "Ends a frame that FRAME.BEGIN began. METADATA replaces the metadata that it began with.",
        arguments: "run seq [ERROR] [METADATA json] [SEVERITY severity] [DURATION nanoseconds]",
    },
    CommandSchema {
        name: "frame.get",
        arity: -3,
        flags: &["readonly", "apart", "redacts"],
        keys: (1, 1, 1),
        group: "frames",
        since: super::ANNALS,
        summary: "Returns a frame of a run, or one part of it. Its bytes are verified; damage is an error. A redacted reader gets the whole frame redacted by its profile, with the fields redacted and profile, and cannot read a single part.",
        arguments: "run seq [REQUEST|RESPONSE|METADATA]",
    },
];
