//! The schema of the commands of the group `server`.

use super::CommandSchema;

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "command",
        arity: -1,
        flags: &["slow"],
        keys: (0, 0, 0),
        group: "server",
        since: "2.8.13",
        summary: "Returns the command table: all, COUNT, INFO, DOCS, LIST.",
        arguments: "[subcommand] [name ...]",
    },
    CommandSchema {
        name: "config",
        arity: -2,
        flags: &["slow"],
        keys: (0, 0, 0),
        group: "server",
        since: "2.0.0",
        summary: "Returns settings by pattern (GET). Settings are given when the daemon is started.",
        arguments: "subcommand [parameter ...]",
    },
    CommandSchema {
        name: "info",
        arity: -1,
        flags: &["slow"],
        keys: (0, 0, 0),
        group: "server",
        since: "1.0.0",
        summary: "Returns information about the server.",
        arguments: "[section ...]",
    },
    CommandSchema {
        name: "slowlog",
        arity: -2,
        flags: &["operate", "slow"],
        keys: (0, 0, 0),
        group: "server",
        since: "2.2.12",
        summary: "Returns slow turns (GET, LEN) or forgets them (RESET): for each turn its number, time, microseconds, first command, number of commands, and client.",
        arguments: "subcommand [count]",
    },
    CommandSchema {
        name: "time",
        arity: 1,
        flags: &["slow"],
        keys: (0, 0, 0),
        group: "server",
        since: "2.6.0",
        summary: "Returns the server time.",
        arguments: "",
    },
];
