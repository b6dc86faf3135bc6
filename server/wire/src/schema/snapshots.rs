//! The schema of the commands of the group `snapshots`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("snapshots", "snap.put", -3, &["write"])
        .keys(1, 1, 1)
        .arguments("run state [EMBEDDING embedder vector ...]")
        .summary(
            "Stores the agent's state after the last frame of a run and returns the frame's number. Each \
             vector is f32 in little-endian bytes; repeat EMBEDDING for each.",
        ),
    command("snapshots", "snap.get", 3, READ)
        .keys(1, 1, 1)
        .arguments("run seq")
        .summary("Returns the state stored after this frame. An error NOTFOUND if there is none."),
    command("snapshots", "snap.at", 3, READ)
        .keys(1, 1, 1)
        .arguments("run seq")
        .summary("Returns the newest state stored after this frame or an earlier one; nil if there is none."),
];
