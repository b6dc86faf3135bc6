//! The schema of the commands of the group `snapshots`.

use super::CommandSchema;

const READ: &[&str] = &["readonly", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "snap.put",
        arity: -3,
        flags: &["write"],
        keys: (1, 1, 1),
        group: "snapshots",
        since: super::ANNALS,
        summary: "Keeps the agent's state after the last frame of a run, whose number is returned. A vector is of f32 in little-endian bytes, each with an EMBEDDING of its own.",
        arguments: "run state [EMBEDDING embedder vector ...]",
    },
    CommandSchema {
        name: "snap.get",
        arity: 3,
        flags: READ,
        keys: (1, 1, 1),
        group: "snapshots",
        since: super::ANNALS,
        summary: "Returns the state that was kept after this frame. An error NOTFOUND where there is none.",
        arguments: "run seq",
    },
    CommandSchema {
        name: "snap.at",
        arity: 3,
        flags: READ,
        keys: (1, 1, 1),
        group: "snapshots",
        since: super::ANNALS,
        summary: "Returns the newest state that was kept after this frame or an earlier one; nil where there is none.",
        arguments: "run seq",
    },
];
