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
        summary: "Keeps a run regardless of any policy, until it is unpinned. NAMESPACE other than the connection's needs a Unix socket.",
        arguments: "run why [NAMESPACE namespace]",
    },
    CommandSchema {
        name: "run.unpin",
        arity: -2,
        flags: OPERATE,
        keys: (1, 1, 1),
        group: "retention",
        since: super::ANNALS,
        summary: "Removes the pin of a run. Nil if it has none.",
        arguments: "run [NAMESPACE namespace]",
    },
    CommandSchema {
        name: "run.drop",
        arity: -3,
        flags: &["operate", "whole"],
        keys: (1, 1, 1),
        group: "retention",
        since: super::ANNALS,
        summary: "Drops a run now, by the rule `forget`; with COMPACT also rewrites the log files that hold its bytes. Returns the compaction report as JSON, or OK without COMPACT. The ledger keeps the reason, so it must not contain data of the run. An error CONFLICT if the run is open or pinned.",
        arguments: "run why [NAMESPACE namespace] [COMPACT]",
    },
    CommandSchema {
        name: "store.retain",
        arity: -1,
        flags: &["operate", "whole", "action"],
        keys: (0, 0, 0),
        group: "retention",
        since: super::ANNALS,
        summary: "Drops the runs of every namespace that a policy does not keep; without POLICY, by the built-in one. Returns what each rule keeps and drops as JSON. Without AT, an error UNAVAILABLE if the clock is before the newest record or more than 400 days after it.",
        arguments: "[POLICY toml] [AT nanoseconds] [DRYRUN]",
    },
];
