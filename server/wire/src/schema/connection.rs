//! The schema of the commands of the group `connection`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("connection", "ping", -1, &["fast"])
        .since("1.0.0")
        .arguments("[message]")
        .summary("Returns the server's liveliness response."),
    command("connection", "echo", 2, &["fast"])
        .since("1.0.0")
        .arguments("message")
        .summary("Returns the given string."),
    command("connection", "hello", -1, &["no_auth", "fast"])
        .since("6.0.0")
        .arguments("[protover] [AUTH username password] [SETNAME clientname]")
        .summary("Handshakes with the server: the protocol's version, a login, a name."),
    command("connection", "auth", -2, &["no_auth", "fast"])
        .since("1.0.0")
        .arguments("[username] password")
        .summary("Authenticates the connection by a token."),
    command("connection", "select", 2, &["fast"])
        .since("1.0.0")
        .arguments("index")
        .summary("Changes the selected database."),
    command("connection", "quit", -1, &["no_auth", "no_multi", "fast"])
        .since("1.0.0")
        .summary("Closes the connection."),
    command("connection", "reset", 1, &["no_auth", "no_multi", "fast"])
        .since("6.2.0")
        .summary("Resets the connection."),
    command("connection", "client", -2, &["slow"])
        .since("2.4.0")
        .arguments("subcommand [argument ...]")
        .summary("Returns or sets the properties of connections: ID, GETNAME, SETNAME, SETINFO, INFO, LIST."),
];
