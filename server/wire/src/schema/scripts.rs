//! The schema of the commands of the group `scripting`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("scripting", "evalsha", -3, &["write"])
        .keys(3, 3, 1)
        .since("2.6.0")
        .arguments("sha1 numkeys key [argument ...]")
        .summary("Does what the known script with this SHA-1 does: those of redis-py's lock."),
    command("scripting", "script", -2, &["fast"])
        .since("2.6.0")
        .arguments("EXISTS|FLUSH|KILL [argument ...]")
        .summary("Tells which scripts are known."),
];
