//! The schema of the commands of the group `deliberation`. Each takes the parameters of a method of `cstp`, a JSON
//! object, and returns its result as JSON.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];
const WRITE: &[&str] = &["write", "apart"];
const OPERATE: &[&str] = &["operate", "apart", "changes"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("deliberation", "delib.record", -2, WRITE).arguments("decision [NAMESPACE namespace] [SESSION session]").summary(
        "Stores a decision (JSON with `decision` and `confidence`; `deliberation` is optional) with the inputs \
         that were captured for it, and clears those, in one commit. Returns its id and how many inputs it has. \
         An error CONFLICT if a guardrail blocks it. Another namespace than this connection's needs a Unix \
         socket, here and in the other commands of this group. Inputs of different sessions of one token are \
         kept apart.",
    ),
    command("deliberation", "delib.query", -1, READ).arguments("[query] [NAMESPACE namespace] [SESSION session]").summary(
        "Returns decisions by text and vector (`query`, `embedding`) and filters, the best first; without a \
         question the newest first. The call becomes an input of the caller's next decision.",
    ),
    command("deliberation", "delib.check", -2, READ).arguments("action [NAMESPACE namespace] [SESSION session]").summary(
        "Evaluates the guardrails for an action (`description`, `category`, `stakes`, `confidence`). The call \
         becomes an input of the caller's next decision.",
    ),
    command("deliberation", "delib.get", -2, &["readonly", "apart", "redacts"])
        .arguments("id [NAMESPACE namespace] [SESSION session]")
        .summary(
            "Returns a decision with its deliberation (JSON with `id`). The call becomes an input of the \
             caller's next decision. A redacted reader sees it by its profile, and captures nothing.",
        ),
    command("deliberation", "delib.reasons", -1, READ).arguments("[filters] [NAMESPACE namespace] [SESSION session]").summary(
        "Returns which types of reasons decisions have and how those ended. The call becomes an input of the \
         caller's next decision.",
    ),
    command("deliberation", "delib.thought", -2, WRITE).arguments("thought [NAMESPACE namespace] [SESSION session]").summary(
        "Adds a thought (`text`) to the caller's next decision; with `id`, appends it to a stored decision as a \
         step.",
    ),
    command("deliberation", "delib.review", -2, WRITE)
        .arguments("review [NAMESPACE namespace] [SESSION session]")
        .summary("Stores the `outcome` of a decision: success, partial, failure or abandoned."),
    command("deliberation", "delib.stats", -1, READ).arguments("[filters] [NAMESPACE namespace] [SESSION session]").summary(
        "Returns how steps, inputs, sources and convergence go with outcomes, with correlations and intervals, \
         and the calibration of stated confidence.",
    ),
    command("deliberation", "delib.spikes", -2, READ)
        .arguments("id [NAMESPACE namespace] [SESSION session]")
        .summary("Returns a deliberation as spike timings (JSON with `id`; `format` is json or csv)."),
    command("deliberation", "delib.guardrail", -2, OPERATE)
        .arguments("guardrail [NAMESPACE namespace] [SESSION session]")
        .summary("Stores a guardrail under its `id`, in the place of an older one."),
    command("deliberation", "delib.guardrails", -1, READ)
        .arguments("[parameters] [NAMESPACE namespace] [SESSION session]")
        .summary("Returns the guardrails, and whether new decisions must have a deliberation."),
    command("deliberation", "delib.unguard", -2, OPERATE)
        .arguments("id [NAMESPACE namespace] [SESSION session]")
        .summary("Deletes a guardrail (JSON with `id`). Returns whether it existed."),
    command("deliberation", "delib.config", -1, OPERATE).arguments("[settings] [NAMESPACE namespace] [SESSION session]").summary(
        "Sets whether new decisions must have a deliberation (`requireDeliberation`) and how long a captured \
         input lives (`inputTtlMs`). Returns both.",
    ),
    command("deliberation", "delib.tracked", -1, READ).arguments("[parameters] [NAMESPACE namespace] [SESSION session]").summary(
        "Returns the inputs that wait for the caller's decisions, and the last inputs that decisions took. \
         Deletes inputs that have ended.",
    ),
];
