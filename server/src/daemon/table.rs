//! The commands: one table by which they are found, checked and described.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::access::Rights;
use super::commands;
use super::turn::{Call, Outcome};

/// A command. Words, keys and flags are as in COMMAND of Redis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command {
    /// In lower case.
    pub(super) name: &'static str,
    /// Number of words including its name; a negative value is a minimum.
    pub(super) arity: i32,
    /// `no_auth`: allowed before login. `no_multi`: runs immediately within a transaction. `settled`: runs
    /// only once earlier writes are durable. `apart`, `whole`: offloaded, so that a wait delays no other
    /// connection ([`super::turn::Offload`]). `stores`: long values are stored ahead, before the lock is
    /// taken. `operate`: concerns the whole store. `action`: recorded as an operator's action. `reveals`: a
    /// write whose reply shows the old value. `redacts`: shows a redacted reader redacted content. `both`: a
    /// write with a form that is a read; it checks the right itself. All other flags are for clients only.
    pub(super) flags: &'static [&'static str],
    /// The words that are keys: first, last (negative counts from the end), step. Zeros mean no keys.
    pub(super) keys: (i32, i32, i32),
    /// The group in Redis' documentation.
    pub(super) group: &'static str,
    /// The Redis version that introduced it.
    pub(super) since: &'static str,
    pub(super) summary: &'static str,
    /// Its arguments: `[x]` is optional, `a|b` is a choice, `...` repeats, CAPITALS are literal.
    pub(super) arguments: &'static str,
    pub(super) run: fn(&mut Call<'_, '_>) -> Outcome,
}

impl Command {
    /// The rights that it needs.
    pub(super) fn rights(&self) -> Rights {
        let is = |flag| self.flags.contains(&flag);
        let rights = [
            (is("readonly") || is("reveals"), Rights::READ),
            (is("write"), Rights::RECORD),
            (is("operate"), Rights::OPERATE),
        ];
        rights.into_iter().filter(|(is, _)| *is).fold(Rights::NONE, |all, (_, right)| all.and(right))
    }

    /// Whether these rights allow it. A command that redacts must check
    /// [`Session::is_redacted`](super::session::Session::is_redacted).
    pub(super) fn is_allowed(&self, rights: Rights) -> bool {
        let is = |flag| self.flags.contains(&flag);
        rights.include(self.rights())
            || is("redacts") && rights.include(Rights::REDACTED)
            || is("both") && rights.include(Rights::READ)
    }
}

/// A command on one key; [`in_group`] sets its group.
pub(super) const fn command(
    name: &'static str,
    arity: i32,
    flags: &'static [&'static str],
    since: &'static str,
    summary: &'static str,
    arguments: &'static str,
    run: fn(&mut Call<'_, '_>) -> Outcome,
) -> Command {
    Command { name, arity, flags, keys: (1, 1, 1), group: "", since, summary, arguments, run }
}

/// Sets the group of commands.
pub(super) const fn in_group<const N: usize>(
    group: &'static str,
    mut commands: [Command; N],
) -> [Command; N] {
    let mut at = 0;
    while at < N {
        commands[at].group = group;
        at += 1;
    }
    commands
}

/// Commands by name.
#[derive(Debug)]
pub(super) struct Table(HashMap<&'static str, &'static Command, RandomState>);

/// Maximum length of a command's name.
const NAME_BYTES_MAX: usize = 32;

impl Table {
    pub(super) fn new() -> Self {
        Self(all().map(|command| (command.name, command)).collect())
    }

    /// The command of this name, ignoring case.
    pub(super) fn find(&self, name: &[u8]) -> Option<&'static Command> {
        let mut small = [0; NAME_BYTES_MAX];
        let small = small.get_mut(..name.len())?;
        small.copy_from_slice(name);
        small.make_ascii_lowercase();
        self.0.get(std::str::from_utf8(small).ok()?).copied()
    }
}

/// Every command, group by group.
pub(super) fn all() -> impl Iterator<Item = &'static Command> {
    commands::GROUPS.iter().copied().flatten()
}

/// The reason why a Redis command is not supported, if there is a notable one.
pub(super) fn refused(name: &[u8]) -> Option<&'static str> {
    let known = REFUSED
        .iter()
        .find(|(names, _)| names.split(' ').any(|refused| refused.as_bytes().eq_ignore_ascii_case(name)));
    known.map(|(_, why)| *why)
}

const REFUSED: &[(&str, &str)] = &[
    (
        "watch unwatch",
        "transactions are atomic but not conditional; INCR, SET NX and SET GET change a key by its value",
    ),
    ("xdel xtrim xsetid", "a recorded run is immutable; retention drops whole runs"),
    (
        "subscribe unsubscribe psubscribe punsubscribe publish ssubscribe spublish pubsub",
        "nothing is published here",
    ),
    ("eval evalsha eval_ro evalsha_ro script fcall fcall_ro function", "there are no scripts here"),
    ("flushall flushdb swapdb", "a store cannot be cleared at once: DEL deletes keys one by one"),
    (
        "bgsave save bgrewriteaof lastsave",
        "the log is the database and every reply is durable; `annals backup` copies a store",
    ),
    (
        "replicaof slaveof psync sync replconf wait cluster failover readonly readwrite asking",
        "a store has one process that writes",
    ),
    (
        "lpush rpush lpop rpop lrange llen lindex lset ltrim linsert lrem lpushx rpushx blpop brpop lmove blmove lpos \
         hset hget hdel hgetall hmset hmget hincrby hexists hlen hkeys hvals hsetnx hscan hstrlen hincrbyfloat hrandfield \
         sadd srem smembers sismember scard spop sinter sunion sdiff sscan smismember smove srandmember \
         zadd zrem zrange zscore zcard zincrby zrank zrangebyscore zrevrange zcount zpopmin zpopmax zscan zmscore \
         setbit getbit bitcount bitop bitfield bitpos pfadd pfcount pfmerge geoadd geosearch geopos geodist",
        "values are strings here",
    ),
];

#[cfg(test)]
mod tests {
    use super::{Table, all, refused};

    #[test]
    fn names_are_unique_and_found_in_any_letters() {
        let table = Table::new();
        assert_eq!(table.0.len(), all().count());
        for command in all() {
            assert_eq!(table.find(command.name.to_uppercase().as_bytes()).unwrap().name, command.name);
            assert!(refused(command.name.as_bytes()).is_none(), "{}", command.name);
            assert!(!command.summary.is_empty() && command.name == command.name.to_lowercase());
        }
        assert!(
            table.find(b"no").is_none()
                && table.find(&[b'x'; 100]).is_none()
                && table.find(b"\xff").is_none()
        );
        assert!(refused(b"Watch").is_some() && refused(b"nothing").is_none());
    }
}
