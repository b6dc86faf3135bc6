//! The schema of the commands of the group `store`.

use super::{CommandSchema, command};

const WHOLE: &[&str] = &["operate", "whole"];
const ACTION: &[&str] = &["operate", "whole", "action"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("store", "store.stats", 1, WHOLE)
        .summary("Returns what the store holds: runs, frames, bytes on disk by purpose, the ledger's root."),
    command("store", "store.sizes", 1, WHOLE).summary(
        "Returns what the store held, measured once a day while a daemon ran, oldest first: `at_ns`, `runs`, `frames`, \
             `raw_bytes`, `disk_bytes`.",
    ),
    command("store", "store.verify", 1, ACTION).summary(
        "Reads every file and every run, verifies all checksums, hashes and links, and returns what was \
             read and the list `damaged`.",
    ),
    command("store", "store.checkpoint", 1, ACTION).summary(
        "Returns the ledger's checkpoint as one line of JSON: it can later show whether the history \
             that it covers was rewritten.",
    ),
    command("store", "store.backup", -2, ACTION).arguments("path [COPY | NOTE | REMOVED]").summary(
        "Copies the store as it is now to an absolute path that does not exist yet. Files that never \
             change are hard-linked unless COPY is given. NOTE copies nothing: it notes a backup that another \
             process made, so that a report of forgetting names it; REMOVED takes the note \
             back. Needs a connection by a Unix socket.",
    ),
    command("store", "store.compact", -1, ACTION)
        .arguments("[DRYRUN] [NOW] [RECOMPRESS] [RATE bytes]")
        .summary(
            "Reclaims the disk space of deleted data while the store is in use. Returns a report as one \
             line of JSON; with DRYRUN, only predicts it. NOW rewrites every file with dead data, however \
             little; otherwise files of which a tenth is dead. RECOMPRESS packs bodies anew, RATE limits the \
             bytes written per second.",
        ),
];
