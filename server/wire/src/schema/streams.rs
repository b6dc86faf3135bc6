//! The schema of the commands of the group `stream`.

use super::{CommandSchema, command};

/// These commands read what is on disk, so they wait for earlier writes.
const READ: &[&str] = &["readonly", "settled"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("stream", "xadd", -5, &["write", "fast"])
        .keys(1, 1, 1)
        .since("5.0.0")
        .arguments("key [NOMKSTREAM] id field value [field value ...]")
        .summary("Appends an entry, which is a frame, to a run. Begins the run if it does not exist."),
    command("stream", "xlen", 2, READ)
        .keys(1, 1, 1)
        .since("5.0.0")
        .arguments("key")
        .summary("Returns the number of entries in a run."),
    command("stream", "xrange", -4, READ)
        .keys(1, 1, 1)
        .since("5.0.0")
        .arguments("key start end [COUNT count]")
        .summary("Returns the entries of a run within a range of ids."),
    command("stream", "xrevrange", -4, READ)
        .keys(1, 1, 1)
        .since("5.0.0")
        .arguments("key end start [COUNT count]")
        .summary("Returns the entries of a run within a range of ids in reverse order."),
    command("stream", "xread", -4, &["readonly", "settled", "blocking"])
        .since("5.0.0")
        .arguments("[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]")
        .summary(
            "Returns entries of runs with ids greater than those given. With BLOCK, waits if there are \
             none.",
        ),
    command("stream", "xinfo", -2, READ)
        .keys(2, 2, 1)
        .since("5.0.0")
        .arguments("subcommand key")
        .summary("Returns information about a run: STREAM."),
];
