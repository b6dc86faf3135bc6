//! The schema of the commands of the group `blobs`.

use super::CommandSchema;

pub(super) const COMMANDS: &[CommandSchema] = &[
    CommandSchema {
        name: "blob.put",
        arity: 2,
        flags: &["write", "stores"],
        keys: (0, 0, 0),
        group: "blobs",
        since: super::ANNALS,
        summary: "Stores bytes under their BLAKE3 hash and returns the hash as 64 hexadecimal digits.",
        arguments: "bytes",
    },
    CommandSchema {
        name: "blob.get",
        arity: -2,
        flags: &["readonly", "apart"],
        keys: (0, 0, 0),
        group: "blobs",
        since: super::ANNALS,
        summary: "Returns the bytes that BLOB.PUT stored under an id, or `length` of them from an offset; nil if there are none.",
        arguments: "id [offset length]",
    },
];
