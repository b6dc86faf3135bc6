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
        summary: "Returns the value of a key after the record with this number; nil if it had none. An error GONE if that version is no longer kept.",
        arguments: "key seqno",
    },
    CommandSchema {
        name: "kv.history",
        arity: -2,
        flags: READ,
        keys: (1, 1, 1),
        group: "history",
        since: super::ANNALS,
        summary: "Returns the kept versions of a key, newest first: seqno, time_ns, and value, which is nil for a deletion.",
        arguments: "key [COUNT count]",
    },
];
