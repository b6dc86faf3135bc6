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
        summary: "Makes a token and returns its text, which is shown only once. NAMESPACE defaults to this connection's namespace. RIGHTS are names separated by commas (record, read, redacted, operate); the default is all. A token with redacted but not read sees runs through PROFILE, by default `safe`; with PROFILE and without RIGHTS, it has the right redacted. Needs a connection by a Unix socket.",
        arguments: "name [NAMESPACE namespace] [RIGHTS rights] [PROFILE profile]",
    },
    CommandSchema {
        name: "token.list",
        arity: 1,
        flags: &["operate", "apart"],
        keys: (0, 0, 0),
        group: "tokens",
        since: super::ANNALS,
        summary: "Returns the name, namespace, rights, profile if any, and creation time of each token.",
        arguments: "",
    },
    CommandSchema {
        name: "token.revoke",
        arity: 2,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "tokens",
        since: super::ANNALS,
        summary: "Revokes a token and closes the connections that use it. Needs a connection by a Unix socket.",
        arguments: "name",
    },
];
