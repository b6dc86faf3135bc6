//! The schema of the commands of the group `generic`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "fast"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("generic", "del", -2, &["write"])
        .keys(1, -1, 1)
        .since("1.0.0")
        .arguments("key [key ...]")
        .summary("Deletes one or more keys."),
    command("generic", "unlink", -2, WRITE)
        .keys(1, -1, 1)
        .since("4.0.0")
        .arguments("key [key ...]")
        .summary("Deletes one or more keys: the same as DEL."),
    command("generic", "exists", -2, READ)
        .keys(1, -1, 1)
        .since("1.0.0")
        .arguments("key [key ...]")
        .summary("Determines whether one or more keys exist."),
    command("generic", "touch", -2, READ)
        .keys(1, -1, 1)
        .since("3.2.1")
        .arguments("key [key ...]")
        .summary("Returns the number of existing keys."),
    command("generic", "type", 2, READ)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key")
        .summary("Determines the type of value stored at a key."),
    command("generic", "expire", -3, WRITE)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key seconds [NX|XX|GT|LT]")
        .summary("Sets the expiration time of a key in seconds."),
    command("generic", "pexpire", -3, WRITE)
        .keys(1, 1, 1)
        .since("2.6.0")
        .arguments("key milliseconds [NX|XX|GT|LT]")
        .summary("Sets the expiration time of a key in milliseconds."),
    command("generic", "expireat", -3, WRITE)
        .keys(1, 1, 1)
        .since("1.2.0")
        .arguments("key unix-time-seconds [NX|XX|GT|LT]")
        .summary("Sets the expiration time of a key to a Unix timestamp."),
    command("generic", "pexpireat", -3, WRITE)
        .keys(1, 1, 1)
        .since("2.6.0")
        .arguments("key unix-time-milliseconds [NX|XX|GT|LT]")
        .summary("Sets the expiration time of a key to a Unix milliseconds timestamp."),
    command("generic", "ttl", 2, READ)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key")
        .summary("Returns the expiration time in seconds of a key."),
    command("generic", "pttl", 2, READ)
        .keys(1, 1, 1)
        .since("2.6.0")
        .arguments("key")
        .summary("Returns the expiration time in milliseconds of a key."),
    command("generic", "expiretime", 2, READ)
        .keys(1, 1, 1)
        .since("7.0.0")
        .arguments("key")
        .summary("Returns the expiration time of a key as a Unix timestamp."),
    command("generic", "pexpiretime", 2, READ)
        .keys(1, 1, 1)
        .since("7.0.0")
        .arguments("key")
        .summary("Returns the expiration time of a key as a Unix milliseconds timestamp."),
    command("generic", "persist", 2, WRITE)
        .keys(1, 1, 1)
        .since("2.2.0")
        .arguments("key")
        .summary("Removes the expiration time of a key."),
    command("generic", "rename", 3, WRITE)
        .keys(1, 2, 1)
        .since("1.0.0")
        .arguments("key newkey")
        .summary("Renames a key and overwrites the destination."),
    command("generic", "renamenx", 3, WRITE)
        .keys(1, 2, 1)
        .since("1.0.0")
        .arguments("key newkey")
        .summary("Renames a key only when the target key name doesn't exist."),
    command("generic", "copy", -3, WRITE)
        .keys(1, 2, 1)
        .since("6.2.0")
        .arguments("source destination [DB index] [REPLACE]")
        .summary("Copies the value of a key to a new key."),
    command("generic", "object", -2, READ)
        .keys(2, 2, 1)
        .since("2.2.3")
        .arguments("ENCODING|REFCOUNT key")
        .summary("Returns how Redis would keep the value of a key."),
    command("server", "memory", -2, READ)
        .keys(2, 2, 1)
        .since("4.0.0")
        .arguments("USAGE key [SAMPLES count]")
        .summary("Returns the bytes of a key and its value."),
    command("generic", "randomkey", 1, READ)
        .since("1.0.0")
        .summary("Returns a random key name from the database."),
    command("generic", "keys", 2, &["readonly"])
        .since("1.0.0")
        .arguments("pattern")
        .summary("Returns all key names that match a pattern."),
    command("generic", "scan", -2, &["readonly"])
        .since("2.8.0")
        .arguments("cursor [MATCH pattern] [COUNT count] [TYPE type]")
        .summary("Iterates over the key names in the database, in their order."),
    command("generic", "dbsize", 1, READ)
        .since("1.0.0")
        .summary("Returns the number of keys in the database."),
];
