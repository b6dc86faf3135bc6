//! The schema of the commands of the group `tokens`.

use super::{CommandSchema, command};

const ACTION: &[&str] = &["operate", "action", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("tokens", "token.add", -2, ACTION)
        .arguments("name [NAMESPACE namespace] [RIGHTS rights] [PROFILE profile] [EXPIRES time]")
        .summary(
            "Makes a token and returns its text, which is shown only once. NAMESPACE defaults to this \
             connection's namespace. RIGHTS are names separated by commas (record, read, redacted, \
             operate); the default is all. A token with redacted but not read sees runs through PROFILE, by \
             default `safe`; with PROFILE and without RIGHTS, it has the right redacted. EXPIRES is a time \
             (RFC 3339) or a duration such as 90d; without it the token does not expire. Needs a connection by a \
             Unix socket.",
        ),
    command("tokens", "token.list", 1, &["operate", "apart"])
        .summary("Returns the name, namespace, rights, profile if any, time and expiry if any of each token."),
    command("tokens", "token.rotate", -2, ACTION).arguments("name [OVERLAP duration] [EXPIRES time]").summary(
        "Makes a new token with the name, namespace, rights and profile of a stored one, and returns its text, \
         which is shown only once. The old one stays valid for OVERLAP, by default 24h, or until its own expiry. \
         EXPIRES is as for TOKEN.ADD. Needs a connection by a Unix socket.",
    ),
    command("tokens", "token.revoke", 2, ACTION).arguments("name").summary(
        "Revokes a token and closes the connections that use it. Needs a connection by a Unix socket.",
    ),
];
