//! The schema of the commands of the group `retention`.

use super::CommandSchema;

const OPERATE: &[&str] = &["operate", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "run.pin",
        arity: -3,
        flags: OPERATE,
        keys: (1, 1, 1),
        group: "retention",
        since: super::ANNALS,
        summary: "Keeps a run whatever a policy says, until it is unpinned. Another namespace than this connection's is for connections by a Unix socket.",
        arguments: "run why [NAMESPACE namespace]",
    },
    CommandSchema {
        name: "run.unpin",
        arity: -2,
        flags: OPERATE,
        keys: (1, 1, 1),
        group: "retention",
        since: super::ANNALS,
        summary: "Takes a run's pin away. Nil where it has none.",
        arguments: "run [NAMESPACE namespace]",
    },
    CommandSchema {
        name: "run.drop",
        arity: -3,
        flags: &["operate", "whole"],
        keys: (1, 1, 1),
        group: "retention",
        since: super::ANNALS,
        summary: "Drops a run now, by the rule `forget`, and with COMPACT rewrites the log files that hold its bytes; returns what that did as JSON, else OK. The ledger keeps why, so nothing of the run belongs in it. An error CONFLICT for a run that is open or pinned.",
        arguments: "run why [NAMESPACE namespace] [COMPACT]",
    },
    CommandSchema {
        name: "store.retain",
        arity: -1,
        flags: &["operate", "whole", "action"],
        keys: (0, 0, 0),
        group: "retention",
        since: super::ANNALS,
        summary: "Drops the runs of every namespace that a policy does not keep, by the built-in one where none is given, and returns what stays and goes by each rule as JSON. Without AT an error UNAVAILABLE where the clock stands before the newest record or more than 400 days after it.",
        arguments: "[POLICY toml] [AT nanoseconds] [DRYRUN]",
    },
];
