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
        summary: "Stores the agent's state after the last frame of a run and returns the frame's number. Each vector is f32 in little-endian bytes; repeat EMBEDDING for each.",
        arguments: "run state [EMBEDDING embedder vector ...]",
    },
    CommandSchema {
        name: "snap.get",
        arity: 3,
        flags: READ,
        keys: (1, 1, 1),
        group: "snapshots",
        since: super::ANNALS,
        summary: "Returns the state stored after this frame. An error NOTFOUND if there is none.",
        arguments: "run seq",
    },
    CommandSchema {
        name: "snap.at",
        arity: 3,
        flags: READ,
        keys: (1, 1, 1),
        group: "snapshots",
        since: super::ANNALS,
        summary: "Returns the newest state stored after this frame or an earlier one; nil if there is none.",
        arguments: "run seq",
    },
];
