//! The schema of the daemon's commands: names, arguments, rights, and the texts of COMMAND DOCS,
//! docs/commands.md and the HTTP API. The daemon implements the commands.
//!
//! Layout: a file for each group of commands, `rights`, `docs` (COMMAND and docs/commands.md), `routes` (the
//! same commands over HTTP), `schemas` (the schemas of HTTP answers) and `recorder` (the commands of
//! processes that record into a store).

mod blobs;
mod connection;
mod deliberation;
mod diagnostics;
pub mod docs;
mod frames;
mod history;
mod keys;
mod memory;
mod nondet;
pub mod recorder;
mod retention;
mod rights;
pub mod routes;
mod runs;
pub mod schemas;
mod scripts;
mod server;
mod snapshots;
mod store;
mod streams;
mod strings;
mod tokens;
mod transactions;

pub use rights::Rights;

/// What stands in the place of a version of Redis for commands that Redis does not have.
const ANNALS: &str = "annals 0.1.0";

/// A command. Words, keys and flags are as in COMMAND of Redis.
#[derive(Debug, Clone, Copy)]
pub struct CommandSchema {
    /// In lower case.
    pub name: &'static str,
    /// Number of words including its name; a negative value is a minimum.
    pub arity: i32,
    /// Flags of annals (the others are for clients):
    /// - `no_auth`: allowed before login. `no_multi`: runs at once within a transaction.
    /// - `settled`: runs only when all earlier writes of the connection are on disk.
    /// - `apart`, `whole`: offloaded to a thread, so that it delays no other connection.
    /// - `joined`: an offloaded command that runs in one turn with those of this flag that follow it: none reads what
    ///   another wrote.
    /// - `stores`: its values are stored by the engine; long values are handed to it in advance.
    /// - `operate`: concerns the whole store. `action`: the store records that it was executed.
    /// - `changes`: changes the store for an operator, and records that itself.
    /// - `reveals`: a write whose reply shows the earlier value.
    /// - `redacts`: shows a redacted reader less.
    /// - `both`: a write that is a read in one of its forms, and checks the right itself.
    pub flags: &'static [&'static str],
    /// The words that are keys: first, last (negative counts from the end), step. Zeros mean no keys.
    pub keys: (i32, i32, i32),
    /// The group in Redis' documentation.
    pub group: &'static str,
    /// The Redis version that introduced it.
    pub since: &'static str,
    pub summary: &'static str,
    /// Its arguments: `[x]` is optional, `a|b` is a choice, `...` repeats, CAPITALS are literal.
    pub arguments: &'static str,
}

/// A command that only annals has, without keys and arguments.
const fn command(
    group: &'static str,
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
) -> CommandSchema {
    CommandSchema { name, arity, flags, keys: (0, 0, 0), group, since: ANNALS, summary: "", arguments: "" }
}

impl CommandSchema {
    const fn keys(self, first: i32, last: i32, step: i32) -> Self {
        Self { keys: (first, last, step), ..self }
    }

    const fn since(self, since: &'static str) -> Self {
        Self { since, ..self }
    }

    const fn arguments(self, arguments: &'static str) -> Self {
        Self { arguments, ..self }
    }

    const fn summary(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// The rights that it needs.
    pub fn rights(&self) -> Rights {
        let is = |flag| self.flags.contains(&flag);
        let rights = [
            (is("readonly") || is("reveals"), Rights::READ),
            (is("write"), Rights::RECORD),
            (is("operate"), Rights::OPERATE),
        ];
        rights.into_iter().filter(|(is, _)| *is).fold(Rights::NONE, |all, (_, right)| all.union(right))
    }

    /// Whether every form of it writes. A command with the flag `both` decides by its words.
    pub fn writes(&self) -> bool {
        let is = |flag| self.flags.contains(&flag);
        is("write") && !is("both") || is("action") || is("changes")
    }

    /// Whether these rights permit the command. The daemon's session decides what a redacted reader sees.
    pub fn is_allowed(&self, rights: Rights) -> bool {
        let is = |flag| self.flags.contains(&flag);
        rights.includes(self.rights())
            || is("redacts") && rights.includes(Rights::REDACTED)
            || is("both") && rights.includes(Rights::READ)
    }
}

/// All commands, in the order in which they are told.
const GROUPS: &[&[CommandSchema]] = &[
    connection::COMMANDS,
    strings::COMMANDS,
    keys::COMMANDS,
    streams::COMMANDS,
    transactions::COMMANDS,
    scripts::COMMANDS,
    server::COMMANDS,
    runs::COMMANDS,
    frames::COMMANDS,
    nondet::COMMANDS,
    snapshots::COMMANDS,
    blobs::COMMANDS,
    history::COMMANDS,
    memory::COMMANDS,
    deliberation::COMMANDS,
    diagnostics::COMMANDS,
    retention::COMMANDS,
    store::COMMANDS,
    tokens::COMMANDS,
];

/// Every command, group by group.
pub fn all_commands() -> impl Iterator<Item = &'static CommandSchema> {
    GROUPS.iter().copied().flatten()
}

/// The reason why a Redis command is not supported, if there is a notable one.
pub fn unsupported_reason(name: &[u8]) -> Option<&'static str> {
    let known = REFUSED
        .iter()
        .find(|(names, _)| names.split(' ').any(|refused| refused.as_bytes().eq_ignore_ascii_case(name)));
    known.map(|(_, why)| *why)
}

/// The commands of Redis 7 that are not offered, and why.
const REFUSED: &[(&str, &str)] = &[
    (
        "watch unwatch",
        "transactions are atomic but not conditional; INCR, SET NX and SET GET change a key by its value",
    ),
    ("xdel xtrim xsetid", "a recorded run is immutable; retention drops whole runs"),
    (
        "xgroup xreadgroup xack xpending xclaim xautoclaim",
        "streams have no consumer groups here: XREAD reads on from an id",
    ),
    (
        "subscribe unsubscribe psubscribe punsubscribe publish ssubscribe sunsubscribe spublish pubsub",
        "nothing is published here",
    ),
    (
        "eval eval_ro evalsha_ro fcall fcall_ro function",
        "no Lua runs here; EVALSHA knows the scripts of redis-py's lock",
    ),
    ("flushall flushdb swapdb", "a store cannot be cleared at once: DEL deletes keys one by one"),
    ("move", "COPY with DB and DEL move a key to another database"),
    ("dump restore restore-asking migrate", "values have no serialised form of Redis: GET and SET copy them"),
    (
        "bgsave save bgrewriteaof lastsave",
        "the log is the database and every reply is durable; `annals backup` copies a store",
    ),
    (
        "replicaof slaveof psync sync replconf wait waitaof cluster failover readonly readwrite asking role",
        "a store has one process that writes",
    ),
    ("acl", "TOKEN.ADD, TOKEN.LIST and TOKEN.REVOKE manage who may do what"),
    ("latency monitor", "SLOWLOG, INFO and /metrics tell what the daemon does"),
    ("shutdown", "a signal (SIGTERM) ends the daemon"),
    ("module debug pfdebug pfselftest lolwut", "it concerns Redis itself"),
    ("lcs sort sort_ro", "the daemon computes nothing over values: GET them"),
    (
        "lpush rpush lpop rpop lrange llen lindex lset ltrim linsert lrem lpushx rpushx blpop brpop lmove blmove lpos \
         lmpop blmpop rpoplpush brpoplpush \
         hset hget hdel hgetall hmset hmget hincrby hexists hlen hkeys hvals hsetnx hscan hstrlen hincrbyfloat hrandfield \
         sadd srem smembers sismember scard spop sinter sunion sdiff sscan smismember smove srandmember \
         sinterstore sunionstore sdiffstore sintercard \
         zadd zrem zrange zscore zcard zincrby zrank zrevrank zrangebyscore zrevrangebyscore zrevrange zcount zpopmin \
         zpopmax zscan zmscore zdiff zdiffstore zinter zinterstore zintercard zunion zunionstore zlexcount zmpop bzmpop \
         bzpopmin bzpopmax zrandmember zrangebylex zrevrangebylex zrangestore zremrangebylex zremrangebyrank \
         zremrangebyscore \
         setbit getbit bitcount bitop bitfield bitfield_ro bitpos pfadd pfcount pfmerge geoadd geosearch geosearchstore \
         geopos geodist geohash georadius georadius_ro georadiusbymember georadiusbymember_ro",
        "values are strings here",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{all_commands, unsupported_reason};

    /// The commands of Redis 7.0.15, as its COMMAND LIST names them.
    const REDIS: &str = "acl append asking auth bgrewriteaof bgsave bitcount bitfield bitfield_ro bitop bitpos blmove \
        blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin client cluster command config copy dbsize \
        debug decr decrby del discard dump echo eval eval_ro evalsha evalsha_ro exec exists expire \
        expireat expiretime failover fcall fcall_ro flushall flushdb function geoadd geodist geohash \
        geopos georadius georadius_ro georadiusbymember georadiusbymember_ro geosearch geosearchstore \
        get getbit getdel getex getrange getset hdel hello hexists hget hgetall hincrby hincrbyfloat \
        hkeys hlen hmget hmset hrandfield hscan hset hsetnx hstrlen hvals incr incrby incrbyfloat info \
        keys lastsave latency lcs lindex linsert llen lmove lmpop lolwut lpop lpos lpush lpushx lrange \
        lrem lset ltrim memory mget migrate module monitor move mset msetnx multi object persist pexpire \
        pexpireat pexpiretime pfadd pfcount pfdebug pfmerge pfselftest ping psetex psubscribe psync pttl \
        publish pubsub punsubscribe quit randomkey readonly readwrite rename renamenx replconf replicaof \
        reset restore restore-asking role rpop rpoplpush rpush rpushx sadd save scan scard script sdiff \
        sdiffstore select set setbit setex setnx setrange shutdown sinter sintercard sinterstore \
        sismember slaveof slowlog smembers smismember smove sort sort_ro spop spublish srandmember srem \
        sscan ssubscribe strlen subscribe substr sunion sunionstore sunsubscribe swapdb sync time touch \
        ttl type unlink unsubscribe unwatch wait watch xack xadd xautoclaim xclaim xdel xgroup xinfo \
        xlen xpending xrange xread xreadgroup xrevrange xsetid xtrim zadd zcard zcount zdiff zdiffstore \
        zincrby zinter zintercard zinterstore zlexcount zmpop zmscore zpopmax zpopmin zrandmember zrange \
        zrangebylex zrangebyscore zrangestore zrank zrem zremrangebylex zremrangebyrank zremrangebyscore \
        zrevrange zrevrangebylex zrevrangebyscore zrevrank zscan zscore zunion zunionstore";

    // A client that sends a command of Redis learns why it is refused; `unknown command` looked like an old or
    // broken server.
    #[test]
    fn every_command_of_redis_is_offered_or_refused_with_a_reason() {
        let offered: HashSet<_> = all_commands().map(|command| command.name).collect();
        let silent: Vec<_> = REDIS
            .split(' ')
            .filter(|name| !offered.contains(name) && unsupported_reason(name.as_bytes()).is_none())
            .collect();
        assert!(silent.is_empty() && REDIS.split(' ').count() == 240, "{silent:?}");
    }

    #[test]
    fn names_are_unique_and_summaries_are_there() {
        let names: HashSet<_> = all_commands().map(|command| command.name).collect();
        assert_eq!(names.len(), all_commands().count());
        for command in all_commands() {
            assert!(unsupported_reason(command.name.as_bytes()).is_none(), "{}", command.name);
            assert!(!command.summary.is_empty() && command.name == command.name.to_lowercase());
        }
        assert!(unsupported_reason(b"Watch").is_some() && unsupported_reason(b"nothing").is_none());
    }
}
