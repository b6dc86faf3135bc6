//! The schema of the commands of the group `retention`.

use super::{CommandSchema, command};

const OPERATE: &[&str] = &["operate", "apart", "changes"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("retention", "run.pin", -3, OPERATE)
        .keys(1, 1, 1)
        .arguments("run why [NAMESPACE namespace]")
        .summary(
            "Keeps a run regardless of any policy, until it is unpinned. NAMESPACE other than the \
             connection's needs a Unix socket.",
        ),
    command("retention", "run.unpin", -2, OPERATE)
        .keys(1, 1, 1)
        .arguments("run [NAMESPACE namespace]")
        .summary("Removes the pin of a run. Nil if it has none."),
    command("retention", "run.flag", -3, OPERATE)
        .keys(1, 1, 1)
        .arguments("run why [SEVERITY flagged|escalated] [NAMESPACE namespace]")
        .summary(
            "Flags a run, open or ended: lists and retention count it as at least `flagged`, or `escalated`. Its \
             record stays. Replaces an existing flag.",
        ),
    command("retention", "run.unflag", -2, OPERATE)
        .keys(1, 1, 1)
        .arguments("run [NAMESPACE namespace]")
        .summary("Removes the flag of a run. Its recorded severity stays. Nil if it has none."),
    command("retention", "run.drop", -3, &["operate", "whole", "changes"])
        .keys(1, 1, 1)
        .arguments("run why [NAMESPACE namespace] [COMPACT]")
        .summary(
            "Drops a run and the forks of its blame now, by the rule `forget`; with COMPACT also rewrites the log \
             files that hold bytes of them, its memories or its decisions. Returns the compaction report as JSON, and in `held` what \
             still holds such bytes (forks, living data, files, backups); OK without COMPACT. With COMPACT also erases a run that was dropped before, if bytes of it are left. The ledger keeps the \
             reason, so it must not contain data of the run. An error CONFLICT if one of them is open \
             or pinned.",
        ),
    command("retention", "kv.forget", -3, &["operate", "whole", "settled", "changes"])
        .keys(1, 1, 1)
        .arguments("key why [KEYSPACE keyspace] [NAMESPACE namespace]")
        .summary(
            "Deletes a key with all its versions, and rewrites the files that hold its name or values; without \
             KEYSPACE, a key of the connection's database. A key that was deleted before can be forgotten, too. \
             Returns the compaction report as JSON, and in `held` what still holds its bytes: living data \
             with the same bytes, and backups. An error NOTFOUND if the store has no record of it.",
        ),
    command("retention", "blob.forget", -3, &["operate", "whole", "settled", "changes"])
        .arguments("id why [NAMESPACE namespace]")
        .summary(
            "Deletes a stored blob, and rewrites the files that hold its bytes. Returns a report as KV.FORGET. \
             An error CONFLICT that names them, if frames, states or keys have the same content.",
        ),
    command("retention", "store.retain", -1, &["operate", "whole", "action"])
        .arguments("[POLICY toml] [AT nanoseconds] [DRYRUN]")
        .summary(
            "Drops the runs of every namespace that a policy does not keep; without POLICY, by the built-in \
             one. Returns what each rule keeps and drops as JSON. Without AT, an error UNAVAILABLE if the \
             clock is before the newest record or more than 400 days after it.",
        ),
];
