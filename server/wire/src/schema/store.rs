//! The schema of the commands of the group `store`.

use super::CommandSchema;

const WHOLE: &[&str] = &["operate", "whole"];
const ACTION: &[&str] = &["operate", "whole", "action"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "store.stats",
        arity: 1,
        flags: WHOLE,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Returns what the store holds: runs, frames, bytes on disk by purpose, the ledger's root.",
        arguments: "",
    },
    CommandSchema {
        name: "store.verify",
        arity: 1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Reads every file and every run, verifies all checksums, hashes and links, and returns what was read and the list `damaged`.",
        arguments: "",
    },
    CommandSchema {
        name: "store.checkpoint",
        arity: 1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Returns the ledger's checkpoint as one line of JSON: it can later show whether the history that it covers was rewritten.",
        arguments: "",
    },
    CommandSchema {
        name: "store.backup",
        arity: -2,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Copies the store as it is now to an absolute path that does not exist yet. Files that never change are hard-linked unless COPY is given. Needs a connection by a Unix socket.",
        arguments: "path [COPY]",
    },
    CommandSchema {
        name: "store.compact",
        arity: -1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Reclaims the disk space of deleted data while the store is in use. Returns a report as one line of JSON; with DRYRUN, only predicts it. RECOMPRESS packs bodies anew, RATE limits the bytes written per second.",
        arguments: "[DRYRUN] [RECOMPRESS] [RATE bytes]",
    },
];
