//! The schema of the commands of the group `transactions`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("transactions", "multi", 1, &["no_multi", "fast"])
        .since("1.2.0")
        .summary("Starts a transaction."),
    command("transactions", "exec", 1, &["no_multi", "slow"])
        .since("1.2.0")
        .summary("Executes all commands in a transaction, as one batch."),
    command("transactions", "discard", 1, &["no_multi", "fast"])
        .since("2.0.0")
        .summary("Discards a transaction."),
];
