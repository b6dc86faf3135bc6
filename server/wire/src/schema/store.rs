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
        summary: "Returns what the store holds: runs, frames, bytes on disk by what they serve, the ledger's root.",
        arguments: "",
    },
    CommandSchema {
        name: "store.verify",
        arity: 1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Reads every file and every run, compares all checksums, hashes and links, and returns what was read and `damaged`: what is not as it was written.",
        arguments: "",
    },
    CommandSchema {
        name: "store.checkpoint",
        arity: 1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Returns the ledger's checkpoint as one line of JSON: whoever keeps it can tell later whether what it covers was rewritten.",
        arguments: "",
    },
    CommandSchema {
        name: "store.backup",
        arity: -2,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Copies the store as it is now to an absolute path where nothing is. Files that never change are shared by links unless COPY is given. For connections by a Unix socket.",
        arguments: "path [COPY]",
    },
    CommandSchema {
        name: "store.compact",
        arity: -1,
        flags: ACTION,
        keys: (0, 0, 0),
        group: "store",
        since: super::ANNALS,
        summary: "Gives back the room of what nothing leads to any more, while the store is used, and returns what it did, or with DRYRUN would do, as one line of JSON. RECOMPRESS packs bodies anew, RATE writes so many bytes a second at most.",
        arguments: "[DRYRUN] [RECOMPRESS] [RATE bytes]",
    },
];
