//! The schema of the commands of the group `blobs`.

use super::{CommandSchema, command};

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("blobs", "blob.put", 2, &["write", "stores"])
        .arguments("bytes")
        .summary("Stores bytes under their BLAKE3 hash and returns the hash as 64 hexadecimal digits."),
    command("blobs", "blob.get", -2, &["readonly", "apart"]).arguments("id [offset length]").summary(
        "Returns the bytes that BLOB.PUT stored under an id, or `length` of them from an offset; nil if \
             there are none.",
    ),
];
