//! The schema of the commands of the group `diagnostics`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];
const WRITE: &[&str] = &["write", "apart"];
/// A command that is a read in one of its forms and checks the right itself.
const BOTH: &[&str] = &["write", "apart", "both"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("diagnostics", "diag.record", -2, BOTH)
        .arguments("session [TTL milliseconds] [STRICT] [DRYRUN] [NAMESPACE namespace]")
        .summary(
            "Records how a session ended (JSON) and returns the report as JSON: the row's id, the failure \
             category, the changed weights. The same report again changes nothing. A failure stands in the \
             member `failures` of the reply, so that it does not disturb the session's end; with STRICT it is \
             an error. TTL is the lifetime of the row. DRYRUN only returns the category.",
        ),
    command("diagnostics", "diag.inject", 2, WRITE).arguments("injection").summary(
        "Logs what a session was given (JSON: sessionId, observationIds, graphEntityIds, graphEdgeKeys). \
         DIAG.RECORD takes from it what the report leaves out.",
    ),
    command("diagnostics", "diag.get", 2, READ)
        .arguments("session")
        .summary("Returns the row of a session as JSON; nil if it does not exist or has expired."),
    command("diagnostics", "diag.misleading", -1, READ)
        .arguments("[ORG organisation] [PROJECT project] [SINCE milliseconds]")
        .summary(
            "Returns the observations that at least three failed sessions and no accepted one were given, in \
             order of their ids. SINCE counts only sessions from this time on (milliseconds since 1970).",
        ),
    command("diagnostics", "diag.distribution", -1, READ)
        .arguments("[ORG organisation] [PROJECT project] [SINCE milliseconds]")
        .summary("Returns the number of failed sessions of each category as JSON, also those with 0."),
    command("diagnostics", "diag.weight", -3, READ)
        .arguments("OBSERVATION id|NODE id|EDGE source target relationship")
        .summary("Returns the weight of an observation, a graph node or a graph edge."),
    command("diagnostics", "diag.history", -3, READ)
        .arguments("OBSERVATION id|NODE id|EDGE source target relationship")
        .summary("Returns the changes of a weight as JSON, oldest first."),
    command("diagnostics", "diag.audit", -1, READ)
        .arguments("[FROM number] [COUNT count]")
        .summary(
            "Returns audit events as JSON, oldest first, from event FROM on (default 0), at most COUNT (default \
             100).",
        ),
    command("diagnostics", "diag.retrievals", 2, READ).arguments("session").summary(
        "Returns the candidates of a session's searches as JSON: relevance, weight and both ranks of each.",
    ),
    command("diagnostics", "diag.weighting", -1, BOTH).arguments("[ON|OFF] [ORG organisation]").summary(
        "Switches ranking by weight on or off, for an organisation or for all; weights are kept either way. \
         Without ON or OFF, returns whether it is on.",
    ),
];
