//! The schema of the commands of the group `frames`.

use super::{CommandSchema, command};

const WRITE: &[&str] = &["write"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("frames", "frame.add", -5, WRITE)
        .keys(1, 1, 1)
        .arguments(
            "run component request response [METADATA json] [PARENT seq] [SEVERITY severity] [ERROR] \
             [STARTED nanoseconds] [DURATION nanoseconds]",
        )
        .summary(
            "Adds a frame to a run and returns its number. Components are user, llm, tool, planner, merge, \
             nondet or a name of your own.",
        ),
    command("frames", "frame.begin", -4, WRITE)
        .keys(1, 1, 1)
        .arguments(
            "run component request [METADATA json] [PARENT seq] [SEVERITY severity] [STARTED nanoseconds]",
        )
        .summary("Begins a frame whose response is still to come, and returns its number."),
    command("frames", "frame.append", 4, WRITE).keys(1, 1, 1).arguments("run seq bytes").summary(
        "Appends to the response of a frame that FRAME.BEGIN began, and returns its length. Appended \
             bytes are kept even if the frame is never ended.",
    ),
    command("frames", "frame.end", -3, WRITE)
        .keys(1, 1, 1)
        .arguments("run seq [ERROR] [METADATA json] [SEVERITY severity] [DURATION nanoseconds]")
        .summary("Ends a frame that FRAME.BEGIN began. METADATA replaces the metadata that it began with."),
    command("frames", "frame.get", -3, &["readonly", "apart", "redacts"])
        .keys(1, 1, 1)
        .arguments("run seq [REQUEST|RESPONSE|METADATA]")
        .summary(
            "Returns a frame of a run, or one part of it. Its bytes are verified; damage is an error. A \
             redacted reader gets the whole frame redacted by its profile, with the fields redacted and \
             profile, and cannot read a single part.",
        ),
    command("frames", "run.view", -3, &["readonly", "apart", "redacts"])
        .keys(1, 1, 1)
        .arguments("run seq [ALL] [TEXTMAX bytes]")
        .summary(
            "Returns a frame as a person reads it, as JSON: the messages that its request adds to the request \
             before (with ALL every message), the answer put together, tool calls, tokens, cost and headers. \
             Texts are cut at TEXTMAX bytes (default 200000). Damage in a body is named in `damage`, and the \
             rest is returned.",
        ),
    command("frames", "run.timeline", -2, &["readonly", "apart", "redacts"])
        .keys(1, 1, 1)
        .arguments("run [FROM seq] [LIMIT frames]")
        .summary(
            "Returns the frames of a run without their bodies, as JSON: times, lanes of parallel frames, \
             severity, tokens and cost; at most LIMIT (default 512, at most 10000), and in `next` the frame to \
             continue with.",
        ),
];
