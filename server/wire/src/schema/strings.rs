//! The schema of the commands of the group `string`.

use super::{CommandSchema, command};

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
/// Their replies reveal values.
const REVEALS: &[&str] = &["write", "denyoom", "fast", "reveals"];
const STORES_AND_REVEALS: &[&str] = &["write", "denyoom", "fast", "stores", "reveals"];
const STORES: &[&str] = &["write", "denyoom", "fast", "stores"];

pub(super) const COMMANDS: &[CommandSchema] = &[
    command("string", "get", 2, READ)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key")
        .summary("Returns the string value of a key."),
    command("string", "set", -3, STORES)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments(
            "key value [NX|XX] [GET] [EX seconds|PX milliseconds|EXAT unix-time-seconds|PXAT \
             unix-time-milliseconds|KEEPTTL]",
        )
        .summary(
            "Sets the string value of a key, ignoring its type. The key is created if it doesn't exist.",
        ),
    command("string", "setnx", 3, STORES)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key value")
        .summary("Set the string value of a key only when the key doesn't exist."),
    command("string", "setex", 4, STORES)
        .keys(1, 1, 1)
        .since("2.0.0")
        .arguments("key seconds value")
        .summary("Sets the string value and expiration time of a key. Creates the key if it doesn't exist."),
    command("string", "psetex", 4, STORES)
        .keys(1, 1, 1)
        .since("2.6.0")
        .arguments("key milliseconds value")
        .summary(
            "Sets both string value and expiration time in milliseconds of a key. The key is created if it \
             doesn't exist.",
        ),
    command("string", "getset", 3, STORES_AND_REVEALS)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key value")
        .summary("Returns the previous string value of a key after setting it to a new value."),
    command("string", "getdel", 2, REVEALS)
        .keys(1, 1, 1)
        .since("6.2.0")
        .arguments("key")
        .summary("Returns the string value of a key after deleting the key."),
    command("string", "getex", -2, REVEALS)
        .keys(1, 1, 1)
        .since("6.2.0")
        .arguments(
            "key [EX seconds|PX milliseconds|EXAT unix-time-seconds|PXAT unix-time-milliseconds|PERSIST]",
        )
        .summary("Returns the string value of a key after setting its expiration time."),
    command("string", "strlen", 2, READ)
        .keys(1, 1, 1)
        .since("2.2.0")
        .arguments("key")
        .summary("Returns the length of a string value."),
    command("string", "append", 3, WRITE)
        .keys(1, 1, 1)
        .since("2.0.0")
        .arguments("key value")
        .summary("Appends a string to the value of a key. Creates the key if it doesn't exist."),
    command("string", "getrange", 4, READ)
        .keys(1, 1, 1)
        .since("2.4.0")
        .arguments("key start end")
        .summary("Returns a substring of the string stored at a key."),
    command("string", "substr", 4, READ)
        .keys(1, 1, 1)
        .since("1.0.0")
        .arguments("key start end")
        .summary("Returns a substring of the string stored at a key: the same as GETRANGE."),
    command("string", "setrange", 4, WRITE)
        .keys(1, 1, 1)
        .since("2.2.0")
        .arguments("key offset value")
        .summary("Overwrites a part of a string value, which is lengthened by zero bytes if it is too short."),
    command("string", "incrbyfloat", 3, REVEALS)
        .keys(1, 1, 1)
        .since("2.6.0")
        .arguments("key increment")
        .summary("Increments the decimal value of a key by a number. Uses 0 as initial value if the key doesn't exist."),
    command("string", "incr", 2, REVEALS).keys(1, 1, 1).since("1.0.0").arguments("key").summary(
        "Increments the integer value of a key by one. Uses 0 as initial value if the key doesn't \
             exist.",
    ),
    command("string", "decr", 2, REVEALS).keys(1, 1, 1).since("1.0.0").arguments("key").summary(
        "Decrements the integer value of a key by one. Uses 0 as initial value if the key doesn't \
             exist.",
    ),
    command("string", "incrby", 3, REVEALS).keys(1, 1, 1).since("1.0.0").arguments("key increment").summary(
        "Increments the integer value of a key by a number. Uses 0 as initial value if the key doesn't \
             exist.",
    ),
    command("string", "decrby", 3, REVEALS).keys(1, 1, 1).since("1.0.0").arguments("key decrement").summary(
        "Decrements a number from the integer value of a key. Uses 0 as initial value if the key \
             doesn't exist.",
    ),
    command("string", "mget", -2, READ)
        .keys(1, -1, 1)
        .since("1.0.0")
        .arguments("key [key ...]")
        .summary("Atomically returns the string values of one or more keys."),
    command("string", "mset", -3, STORES)
        .keys(1, -1, 2)
        .since("1.0.1")
        .arguments("key value [key value ...]")
        .summary("Atomically creates or modifies the string values of one or more keys."),
    command("string", "msetnx", -3, STORES)
        .keys(1, -1, 2)
        .since("1.0.1")
        .arguments("key value [key value ...]")
        .summary("Atomically modifies the string values of one or more keys only when all keys don't exist."),
];
