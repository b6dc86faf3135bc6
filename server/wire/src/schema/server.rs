//! The schema of the commands of the group `server`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("server", "command", -1, &["slow"])
        .since("2.8.13")
        .arguments("[subcommand] [name ...]")
        .summary("Returns the command table: all, COUNT, INFO, DOCS, LIST."),
    command("server", "config", -2, &["slow"])
        .since("2.0.0")
        .arguments("subcommand [parameter ...]")
        .summary("Returns settings by pattern (GET). Settings are given when the daemon is started."),
    command("server", "info", -1, &["slow"])
        .since("1.0.0")
        .arguments("[section ...]")
        .summary("Returns information about the server."),
    command("server", "page.link", -1, &["operate", "slow"])
        .arguments("[namespace]")
        .summary(
            "Returns a link to the debugger page that logs in once, within 10 minutes, with all rights in the \
             namespace (default: that of the connection). Needs a connection by a Unix socket and a daemon with --http.",
        ),
    command("server", "slowlog", -2, &["operate", "slow"])
        .since("2.2.12")
        .arguments("subcommand [count]")
        .summary(
            "Returns slow turns (GET, LEN) or forgets them (RESET): for each turn its number, time, \
             microseconds, first command, number of commands, and client.",
        ),
    command("server", "time", 1, &["slow"]).since("2.6.0").summary("Returns the server time."),
];
