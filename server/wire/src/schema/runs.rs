//! The schema of the commands of the group `runs`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];
const REDACTS: &[&str] = &["readonly", "apart", "redacts"];
const WRITE: &[&str] = &["write", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("runs", "run.begin", -1, WRITE)
        .arguments(
            "[NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] [STARTED \
             nanoseconds] [TAG key value ...]",
        )
        .summary(
            "Begins a run and returns its name and uid. Without NAME, the daemon chooses the name. Repeat \
             TAG for each tag.",
        ),
    command("runs", "run.end", -2, &["write", "settled"])
        .keys(1, 1, 1)
        .arguments("run [ok|failed|abandoned]")
        .summary(
            "Ends a run that was begun here; the default status is ok. Its frames and its exchanges through \
             the proxy must have ended before.",
        ),
    command("runs", "run.get", 2, REDACTS)
        .keys(1, 1, 1)
        .arguments("run")
        .summary("Returns the properties of a run."),
    command("runs", "run.list", -1, REDACTS)
        .arguments(
            "[STATUS open|ok|failed|abandoned] [SEVERITY severity] [AGENT agent] [MODEL model] [TAG key=value] \
             [SINCE nanoseconds] [UNTIL nanoseconds] [ORDER oldest|newest] [COUNT count] [FROM cursor] [WITH usage]",
        )
        .summary(
            "Returns a cursor and the runs that match, oldest first. Pass the cursor to continue; it is 0 at the end. \
             A page may be short or empty before the end. SINCE and UNTIL are times since 1970 between which a run \
             began. WITH usage adds models, tokens and cost from the frames' metadata (at most 1,000 runs a page), and the \
             pin. A reader of redacted runs cannot use TAG.",
        ),
    command("runs", "run.failure", 2, REDACTS)
        .keys(1, 1, 1)
        .arguments("run")
        .summary(
            "Returns the frame of a run to read first, and why: `seq`, `why`, `status_code`, `exit_code`, `signal`. \
             Nil if the run has no frames.",
        ),
    command("runs", "run.suspect", 2, &["readonly", "whole", "redacts"])
        .keys(1, 1, 1)
        .arguments("run")
        .summary(
            "Returns the steps of a run as JSON, the most suspect first: `seq`, `agent`, `component`, `score`, \
             `signals`. A heuristic from the record alone.",
        ),
    command("runs", "run.blame", 2, READ)
        .keys(1, 1, 1)
        .arguments("run")
        .summary("Returns the stored blame of a run as JSON: `state`, `rows`, `pairs`, `spent`. Nil if there is none."),
    command("runs", "run.diff", 3, &["readonly", "whole", "redacts"])
        .keys(1, 2, 1)
        .arguments("run other")
        .summary(
            "Returns the frames of two runs in pairs as JSON: `kind` (`same`, `changed`, `dropped`, `added`), `a`, `b`, \
             and of changed ones `input`, `output` (which bytes differ) and `says_same`.",
        ),
    command("runs", "run.search", -2, &["readonly", "whole", "redacts"])
        .arguments("question [BY words|meaning] [COUNT count]")
        .summary(
            "Returns the frames whose texts hold what a question asks for, the best first, as JSON: `hits`, `is_whole`, \
             `gaps`. Indexes frames that were recorded since the last search first, about 48 MiB at a time; `is_whole` is \
             false until all are indexed: search again. At most COUNT hits (default 20, at most 100). BY MEANING returns \
             the runs with a question near to this one, in the memories of all tenants: `hits`, `embedder`, `not_compared`.",
        ),
    command("runs", "run.index", -1, &["write", "whole"])
        .arguments("[NAMESPACE namespace] [REBUILD]")
        .summary(
            "Indexes frames that were recorded since the last search, about 48 MiB of them. Returns 1 if all are \
             indexed, else 0. REBUILD begins anew. NAMESPACE needs a connection by a Unix socket.",
        ),
    command("runs", "run.forks", 2, REDACTS)
        .keys(1, 1, 1)
        .arguments("run")
        .summary(
            "Returns the run from which a run was forked first, and all living forks that come from it, parents \
             before their forks; at most 1,000.",
        ),
    command("runs", "run.fork", -2, WRITE)
        .arguments(
            "run@seq [EDIT] [END [NAMESPACE namespace]] [NAME name] [AGENT agent] [MODEL model] [SEVERITY severity] [METADATA json] \
             [STARTED nanoseconds] [TAG key value ...]",
        )
        .summary(
            "Begins a run that shares another run's frames up to this one. With EDIT, this frame is \
             excluded, so that it can be recorded anew. With END, the new run ends at once, and no frame can be \
             added; NAMESPACE needs a connection by a Unix socket. Returns its name and uid.",
        ),
    command("runs", "run.verify", 2, &["readonly", "whole"]).keys(1, 1, 1).arguments("run").summary(
        "Reads every frame of a run and verifies its hashes and links. An error DAMAGED at the first \
             mismatch.",
    ),
    command("runs", "run.tail", -2, &["readonly", "apart", "blocking", "redacts"])
        .keys(1, 1, 1)
        .arguments("run [FROM seq] [COUNT count] [BLOCK milliseconds]")
        .summary(
            "Returns ended frames of a run, from FROM on. If there are none: an empty array if the run has \
             ended, else nil, after waiting if BLOCK is given (0: no limit).",
        ),
    command("runs", "run.replay", -3, READ)
        .keys(1, 1, 1)
        .arguments("run request [NAME name] [RESTART]")
        .summary(
            "Returns the recorded answer to a request: that of the first call with this name (default \
             `llm`) and the same bytes that was not yet served to this connection. An error DIVERGED names \
             the step and the difference; FAILED has the recorded error of a failed call.",
        ),
];
