//! The schema of the commands of the group `history`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "apart"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("history", "kv.at", 3, READ).keys(1, 1, 1).arguments("key seqno").summary(
        "Returns the value of a key after the record with this number; nil if it had none. An error \
             GONE if that version is no longer kept.",
    ),
    command("history", "kv.history", -2, READ).keys(1, 1, 1).arguments("key [COUNT count]").summary(
        "Returns the kept versions of a key, newest first: seqno, time_ns, and value, which is nil for \
             a deletion.",
    ),
];
