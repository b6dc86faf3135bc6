//! The schema of the commands of the group `history`.

use super::CommandSchema;

const READ: &[&str] = &["readonly", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "kv.at",
        arity: 3,
        flags: READ,
        keys: (1, 1, 1),
        group: "history",
        since: super::ANNALS,
        summary: "Returns what a key held after the record of this number; nil where nothing. An error GONE where that is no longer kept.",
        arguments: "key seqno",
    },
    CommandSchema {
        name: "kv.history",
        arity: -2,
        flags: READ,
        keys: (1, 1, 1),
        group: "history",
        since: super::ANNALS,
        summary: "Returns the versions of a key that are kept, the newest first: seqno, time_ns, and value, which is nil where the key was deleted.",
        arguments: "key [COUNT count]",
    },
];
