//! The schema of the commands of the group `transactions`.

use super::CommandSchema;

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "multi",
        arity: 1,
        flags: &["no_multi", "fast"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "1.2.0",
        summary: "Starts a transaction.",
        arguments: "",
    },
    CommandSchema {
        name: "exec",
        arity: 1,
        flags: &["no_multi", "slow"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "1.2.0",
        summary: "Executes all commands in a transaction, as one batch.",
        arguments: "",
    },
    CommandSchema {
        name: "discard",
        arity: 1,
        flags: &["no_multi", "fast"],
        keys: (0, 0, 0),
        group: "transactions",
        since: "2.0.0",
        summary: "Discards a transaction.",
        arguments: "",
    },
];
