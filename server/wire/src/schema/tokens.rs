//! The schema of the commands of the group `tokens`.

use super::CommandSchema;

const ACTION: &[&str] = &["operate", "action", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "token.add",
        arity: -2,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "tokens",
        since: super::ANNALS,
        summary: "Makes a token, which is returned this once. It leads to one namespace, this connection's where none is named, with the rights record, read, redacted, operate, or those of them that are named with commas between. Who has redacted and not read is shown runs by PROFILE, else by safe; with PROFILE and without RIGHTS it has the right redacted. For connections by a Unix socket.",
        arguments: "name [NAMESPACE namespace] [RIGHTS rights] [PROFILE profile]",
    },
    CommandSchema {
        name: "token.list",
        arity: 1,
        flags: &["operate", "apart"],
        keys: (0, 0, 0),
        group: "tokens",
        since: super::ANNALS,
        summary: "Returns the name, namespace and rights of each token, its profile where it has one, and when it was made.",
        arguments: "",
    },
    CommandSchema {
        name: "token.revoke",
        arity: 2,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "tokens",
        since: super::ANNALS,
        summary: "Takes a token back: whoever came by it is hung up on. For connections by a Unix socket.",
        arguments: "name",
    },
];
