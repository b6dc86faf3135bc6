//! The schema of the commands of the group `stream`.

use super::CommandSchema;

/// These commands read what is on disk, so they wait for earlier writes.
const READ: &[&str] = &["readonly", "settled"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "xadd",
        arity: -5,
        flags: &["write", "fast"],
        keys: (1, 1, 1),
        group: "stream",
        since: "5.0.0",
        summary: "Appends an entry, which is a frame, to a run. Begins the run if it does not exist.",
        arguments: "key [NOMKSTREAM] id field value [field value ...]",
    },
    CommandSchema {
        name: "xlen",
        arity: 2,
        flags: READ,
        keys: (1, 1, 1),
        group: "stream",
        since: "5.0.0",
        summary: "Returns the number of entries in a run.",
        arguments: "key",
    },
    CommandSchema {
        name: "xrange",
        arity: -4,
        flags: READ,
        keys: (1, 1, 1),
        group: "stream",
        since: "5.0.0",
        summary: "Returns the entries of a run within a range of ids.",
        arguments: "key start end [COUNT count]",
    },
    CommandSchema {
        name: "xrevrange",
        arity: -4,
        flags: READ,
        keys: (1, 1, 1),
        group: "stream",
        since: "5.0.0",
        summary: "Returns the entries of a run within a range of ids in reverse order.",
        arguments: "key end start [COUNT count]",
    },
    CommandSchema {
        name: "xread",
        arity: -4,
        flags: &["readonly", "settled", "blocking"],
        keys: (0, 0, 0),
        group: "stream",
        since: "5.0.0",
        summary: "Returns entries of runs with ids greater than those given. With BLOCK, waits if there are none.",
        arguments: "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
    },
    CommandSchema {
        name: "xinfo",
        arity: -2,
        flags: READ,
        keys: (2, 2, 1),
        group: "stream",
        since: "5.0.0",
        summary: "Returns information about a run: STREAM.",
        arguments: "subcommand key",
    },
];
